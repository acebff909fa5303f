//! The global interrupt unit of a node ([`nicforge_hwi::tree_dcr::gi`]).

use nicforge_core::fabric::{Combine, Ports};
use nicforge_hwi::{tree::VC_USER, tree_dcr::gi};

use crate::config::ALL_BARRIERS;

/// The global interrupt channels of the user channel's clients, one bit for each. The system
/// channel's clients can use all channels.
const USER_BARRIERS: u8 = (1 << gi::PRIVILEGED) - 1;

/// Returns the global interrupt channel of the unit's register at `offset`. A register's offset has
/// its kind in bits 7..6 and its channel in bits 5..4.
pub(crate) fn gi_channel_of(offset: u64) -> u8 {
    ((offset >> 4) & 3) as u8
}

/// Returns the global interrupt channels that interrupt the clients of a virtual channel, one bit
/// for each global interrupt channel.
pub(crate) fn gi_channels_seen_by(vc: usize) -> u8 {
    if vc == VC_USER { USER_BARRIERS } else { ALL_BARRIERS }
}

/// Returns the global interrupt channels that return to the state of power-on when the last client
/// of a virtual channel leaves, one bit for each global interrupt channel.
pub(crate) fn gi_channels_reset_with(vc: usize) -> u8 {
    if vc == VC_USER { USER_BARRIERS } else { ALL_BARRIERS & !USER_BARRIERS }
}

/// The global interrupts of a node: its unit, and what the clients have seen of it.
///
/// Wires and status word have not changed since the last update, unless
/// [`GlobalInterrupts::needs_update`] returns true.
pub(crate) struct GlobalInterrupts {
    barrier: Barrier,
    /// Channels that the node takes part in at power-on, one bit for each channel.
    members_at_power_on: u8,
    /// The fabric's count of wire changes when the wires were last read. `None` before the node has
    /// joined its wires, which it does in the first update.
    wires_read_at: Option<u64>,
    /// Whether a register was written since the last update.
    written: bool,
    /// The status word in the mirrors.
    mirrored: u32,
}

/// The result of [`GlobalInterrupts::update`].
pub(crate) struct Update {
    /// Channels whose interrupt was set just now, one bit for each channel.
    pub(crate) fired: u8,
    /// The status word, if it differs from the one in the mirrors.
    pub(crate) status: Option<u32>,
}

impl GlobalInterrupts {
    /// Returns the unit of a node that takes part in these channels at power-on. It joins their
    /// wires in the first update.
    pub(crate) fn new(members_at_power_on: u8) -> Self {
        Self {
            barrier: Barrier::default(),
            members_at_power_on,
            wires_read_at: None,
            written: true,
            mirrored: 0,
        }
    }

    /// Returns the channels of `channels` to the state of power-on, one bit for each channel.
    pub(crate) fn reset(&mut self, channels: u8, ports: &mut Ports<'_>) {
        self.barrier.reset(channels, self.members_at_power_on, ports);
        self.written = true;
    }

    /// Writes `value` to the unit's register at `offset`. Returns false if there is no such
    /// register.
    pub(crate) fn write(&mut self, offset: u64, value: u32, ports: &mut Ports<'_>) -> bool {
        self.written = true;
        self.barrier.write(offset, value, ports)
    }

    /// Returns whether wires or status word may have changed since the last update. `wire_changes`
    /// is the fabric's count of wire changes.
    #[inline(always)]
    pub(crate) fn needs_update(&self, wire_changes: u64) -> bool {
        self.wires_read_at != Some(wire_changes) || self.written
    }

    /// Reads the wires, and returns what has changed.
    pub(crate) fn update(&mut self, ports: &mut Ports<'_>) -> Update {
        if self.wires_read_at.is_none() {
            self.barrier.reset(ALL_BARRIERS, self.members_at_power_on, ports);
        }

        self.written = false;
        self.wires_read_at = Some(ports.wire_changes());
        let fired = self.barrier.update(ports);

        let status = self.barrier.status(ports);
        let changed = status != self.mirrored;
        self.mirrored = status;
        Update { fired, status: changed.then_some(status) }
    }

    /// Returns the channels whose interrupt is set.
    pub(crate) fn interrupts(&self) -> u8 {
        self.barrier.interrupt
    }

    /// Returns the status word.
    pub(crate) fn status(&self, ports: &Ports<'_>) -> u32 {
        self.barrier.status(ports)
    }

    /// Returns the status word in the mirrors.
    pub(crate) fn mirrored(&self) -> u32 {
        self.mirrored
    }
}

/// A node's global interrupt channels; each mask has one bit for each channel.
#[derive(Default)]
struct Barrier {
    /// Channels that the node takes part in.
    participates: u8,
    /// Channels in sticky mode.
    sticky: u8,
    /// Channels whose sticky type is AND (a barrier); the others' is OR (a notification).
    and: u8,
    /// Channels on which the node has fired and waits for the wire to rise.
    active: u8,
    /// Channels whose interrupt is set.
    interrupt: u8,
    /// Number of rises of each channel's wire that have been accounted for.
    counted_rises: [u64; gi::CHANNELS as usize],
}

impl Barrier {
    /// Returns the channels of `channels` to the state of power-on. The node then takes part in
    /// those of them that are in `participates`.
    fn reset(&mut self, channels: u8, participates: u8, ports: &mut Ports<'_>) {
        let kept = !channels;
        self.participates = self.participates & kept | participates & channels;
        self.sticky &= kept;
        self.and &= kept;
        self.active &= kept;
        self.interrupt &= kept;

        for channel in (0..gi::CHANNELS as u8).filter(|channel| channels & (1 << channel) != 0) {
            ports.join_wire(channel, participates & (1 << channel) != 0);
            ports.drive_wire(channel, false);
            self.count_rises_as_reported(channel, ports);
        }
    }

    /// Marks all rises of a channel's wire so far as accounted for.
    fn count_rises_as_reported(&mut self, channel: u8, ports: &Ports<'_>) {
        self.counted_rises[usize::from(channel)] = self.rises(channel, ports);
    }

    /// Returns how often a channel's wire has risen, as AND or as OR of all nodes, by the channel's
    /// type.
    fn rises(&self, channel: u8, ports: &Ports<'_>) -> u64 {
        let state = ports.wire(channel);
        if self.and & (1 << channel) != 0 { state.and_rises } else { state.or_rises }
    }

    /// Writes `value` to the unit's register at `offset`. Returns false if there is no such
    /// register.
    fn write(&mut self, offset: u64, value: u32, ports: &mut Ports<'_>) -> bool {
        const KIND: u64 = 0xc0;
        let channel = gi_channel_of(offset);
        let bit = 1u8 << channel;
        let on = value & 1 != 0;

        if offset >= gi::SIZE || offset & 0xf != 0 {
            return false;
        }

        match offset & KIND {
            gi::STATE => {
                self.sticky &= !bit;
                self.active &= !bit;
                ports.drive_wire(channel, on);
            }
            gi::PARTICIPATE => {
                self.participates = if on { self.participates | bit } else { self.participates & !bit };
                self.active &= !bit;
                ports.join_wire(channel, on);
                self.count_rises_as_reported(channel, ports);
            }
            gi::STICKY if on => {
                if self.sticky & self.participates & bit != 0 && self.active & bit == 0 {
                    // Earlier rises of an AND wire completed earlier barriers. An earlier rise of
                    // an OR wire is a notification that is still to be reported.
                    let and = self.and & bit != 0;
                    if and {
                        self.count_rises_as_reported(channel, ports);
                    }
                    self.active |= bit;
                    ports.fire_wire(channel, if and { Combine::And } else { Combine::Or });
                }
            }
            gi::STICKY => {
                self.interrupt &= !bit;
                self.active &= !bit;
                ports.drive_wire(channel, false);
                self.count_rises_as_reported(channel, ports);
            }
            // `gi::ARM_TYPE`
            _ => {
                self.sticky |= bit;
                self.active &= !bit;
                self.and = if on { self.and | bit } else { self.and & !bit };
                ports.drive_wire(channel, false);
                self.count_rises_as_reported(channel, ports);
            }
        }

        true
    }

    /// Compares the wires with what was seen before. Returns the channels whose interrupt was set
    /// just now.
    #[inline]
    fn update(&mut self, ports: &Ports<'_>) -> u8 {
        // A barrier interrupts a node that has entered it; a notification interrupts each node that
        // is armed.
        let watched = self.sticky & self.participates & (self.active | !self.and);
        if watched == 0 {
            return 0;
        }

        let mut fired = 0;
        for channel in 0..gi::CHANNELS as u8 {
            let bit = 1u8 << channel;
            if watched & bit != 0 && self.rises(channel, ports) != self.counted_rises[usize::from(channel)] {
                self.count_rises_as_reported(channel, ports);
                self.active &= !bit;
                fired |= bit & !self.interrupt;
                self.interrupt |= bit;
            }
        }

        fired
    }

    /// Returns the status word.
    fn status(&self, ports: &Ports<'_>) -> u32 {
        let mut word = 0;
        for channel in 0..gi::CHANNELS as u8 {
            let bit = 1u8 << channel;
            let mut show = |flag: u32, on: bool| word |= if on { flag >> channel } else { 0 };

            show(gi::MODE, self.sticky & bit != 0);
            show(gi::STICKY_INT, self.interrupt & bit != 0);
            show(gi::STICKY_ACTIVE, self.active & bit != 0);
            show(gi::STICKY_TYPE, self.and & bit != 0);
            show(gi::RECV_STATE, ports.wire(channel).or);
            show(gi::PARTICIPATES, self.participates & bit != 0);
            show(gi::SEND_STATE, ports.drives_wire(channel));
        }

        word
    }
}
