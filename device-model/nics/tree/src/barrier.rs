//! The global interrupt unit of a node ([`nicforge_hwi::tree_dcr::gi`]).

use nicforge_core::fabric::{Combine, Ports};
use nicforge_hwi::tree_dcr::gi;

/// A node's global interrupt channels; masks have a bit a channel.
pub(crate) struct Barrier {
    participates: u8,
    sticky: u8,
    and: u8,
    active: u8,
    interrupt: u8,
    /// Rises of each channel's wire that are history.
    seen: [u64; gi::CHANNELS as usize],
    /// Something was written; who looks at the wires takes it back.
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

    /// To the state of power-on, taking part in the channels of `participates`.
    pub(crate) fn reset(&mut self, participates: u8, ports: &mut Ports<'_>) {
        *self = Self { participates: participates & 0xf, ..Self::new() };
        for channel in 0..gi::CHANNELS as u8 {
            ports.join_wire(channel, participates & (1 << channel) != 0);
            ports.drive_wire(channel, false);
            self.forget(channel, ports);
        }
    }

    fn forget(&mut self, channel: u8, ports: &Ports<'_>) {
        self.seen[usize::from(channel)] = self.rises(channel, ports);
    }

    fn rises(&self, channel: u8, ports: &Ports<'_>) -> u64 {
        let state = ports.wire(channel);
        if self.and & (1 << channel) != 0 { state.and_rises } else { state.or_rises }
    }

    /// A write of `value` to the unit's register at `offset`. False if there is none.
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

    /// Looks at the wires. Returns the channels whose interrupt was set just now.
    #[inline]
    pub(crate) fn update(&mut self, ports: &Ports<'_>) -> u8 {
        // A barrier interrupts whoever entered it, a notification everybody who is armed for it.
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

    /// Channels whose interrupt is set.
    pub(crate) fn interrupts(&self) -> u8 {
        self.interrupt
    }

    /// The status word.
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
