//! The global interrupt unit of a node ([`nicforge_hwi::tree_dcr::gi`]).

use nicforge_core::fabric::{Combine, Ports};
use nicforge_hwi::tree_dcr::gi;

/// A node's global interrupt channels; each mask has one bit for each channel.
pub(crate) struct Barrier {
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
    seen: [u64; gi::CHANNELS as usize],
    /// Whether a register was written since the wires were last checked.
    pub(crate) written: bool,
}

impl Barrier {
    pub(crate) fn new() -> Self {
        Self {
            participates: 0,
            sticky: 0,
            and: 0,
            active: 0,
            interrupt: 0,
            seen: [0; gi::CHANNELS as usize],
            written: true,
        }
    }

    /// Returns to the state of power-on, taking part in the channels of `participates`.
    pub(crate) fn reset(&mut self, participates: u8, ports: &mut Ports<'_>) {
        *self = Self { participates: participates & 0xf, ..Self::new() };

        for channel in 0..gi::CHANNELS as u8 {
            ports.join_wire(channel, participates & (1 << channel) != 0);
            ports.drive_wire(channel, false);
            self.forget(channel, ports);
        }
    }

    /// Marks all rises of a channel's wire so far as accounted for.
    fn forget(&mut self, channel: u8, ports: &Ports<'_>) {
        self.seen[usize::from(channel)] = self.rises(channel, ports);
    }

    /// Returns how often a channel's wire has risen, for the type that the channel has.
    fn rises(&self, channel: u8, ports: &Ports<'_>) -> u64 {
        let state = ports.wire(channel);
        if self.and & (1 << channel) != 0 { state.and_rises } else { state.or_rises }
    }

    /// Writes `value` to the unit's register at `offset`. Returns false if there is no such
    /// register.
    pub(crate) fn write(&mut self, offset: u64, value: u32, ports: &mut Ports<'_>) -> bool {
        let channel = ((offset >> 4) & 3) as u8;
        let bit = 1u8 << channel;
        let on = value & 1 != 0;

        self.written = true;
        if offset >= gi::SIZE || offset & 0xf != 0 {
            return false;
        }

        match offset & 0xc0 {
            gi::STATE => {
                self.sticky &= !bit;
                self.active &= !bit;
                ports.drive_wire(channel, on);
            }
            gi::PARTICIPATE => {
                self.participates = if on { self.participates | bit } else { self.participates & !bit };
                self.active &= !bit;
                ports.join_wire(channel, on);
                self.forget(channel, ports);
            }
            gi::STICKY if on => {
                if self.sticky & self.participates & bit != 0 && self.active & bit == 0 {
                    let and = self.and & bit != 0;
                    if and {
                        self.forget(channel, ports);
                    }
                    self.active |= bit;
                    ports.fire_wire(channel, if and { Combine::And } else { Combine::Or });
                }
            }
            gi::STICKY => {
                self.interrupt &= !bit;
                self.active &= !bit;
                ports.drive_wire(channel, false);
                self.forget(channel, ports);
            }
            _ => {
                self.sticky |= bit;
                self.active &= !bit;
                self.and = if on { self.and | bit } else { self.and & !bit };
                ports.drive_wire(channel, false);
                self.forget(channel, ports);
            }
        }

        true
    }

    /// Compares the wires with what was seen before. Returns the channels whose interrupt was set
    /// just now.
    #[inline]
    pub(crate) fn update(&mut self, ports: &Ports<'_>) -> u8 {
        // A barrier interrupts a node that has entered it; a notification interrupts each node that
        // is armed.
        let watched = self.sticky & self.participates & (self.active | !self.and);
        if watched == 0 {
            return 0;
        }

        let mut fired = 0;
        for channel in 0..gi::CHANNELS as u8 {
            let bit = 1u8 << channel;
            if watched & bit != 0 && self.rises(channel, ports) != self.seen[usize::from(channel)] {
                self.forget(channel, ports);
                self.active &= !bit;
                fired |= bit & !self.interrupt;
                self.interrupt |= bit;
            }
        }

        fired
    }

    /// Returns the channels whose interrupt is set.
    pub(crate) fn interrupts(&self) -> u8 {
        self.interrupt
    }

    /// Returns the status word.
    pub(crate) fn status(&self, ports: &Ports<'_>) -> u32 {
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
