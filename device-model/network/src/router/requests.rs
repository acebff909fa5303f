//! Which inputs want which outputs.

use super::{Decision, Exit, Room, outputs::Outputs, policy::Candidates};

/// A set of inputs, one bit for each.
pub(super) type Inputs = u64;

/// The bits of a mask, in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bits(u64);

/// Returns the bits of a mask, in order.
#[inline]
pub(super) fn bits(mask: u64) -> Bits {
    Bits(mask)
}

impl Iterator for Bits {
    type Item = u8;

    #[inline]
    fn next(&mut self) -> Option<u8> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as u8;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

/// Returns the first input of a set behind `last`, or the first one if there is none behind it. The
/// set must not be empty.
#[inline]
pub(super) fn next_in_turn(set: Inputs, last: u8) -> usize {
    // Two shifts, because one by 64 is none.
    let behind = set & (Inputs::MAX << last << 1);
    let pick = if behind == 0 { set } else { behind };
    pick.trailing_zeros() as usize
}

/// The requests for a port.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PortRequests {
    /// Inputs whose packets need [`Room::Two`] on a virtual channel with the bubble rule.
    entering: Inputs,
    /// Inputs whose packets have the port among their candidates.
    adaptive: Inputs,
    /// Virtual channels that inputs want as their exit.
    fixed_vcs: u16,
}

impl Outputs {
    /// Adds the requests of an input for its decision.
    #[inline]
    pub(super) fn add(&mut self, input: usize, decision: &Decision) {
        let wanted = match *decision {
            Decision::One(exit) => self.want(input, exit),
            Decision::Any(Candidates { ports, vcs, escape }) => {
                self.adaptive_vcs |= vcs;
                for port in bits(ports) {
                    self.of[usize::from(port)].requests.adaptive |= 1 << input;
                }
                ports | escape.map_or(0, |exit| self.want(input, exit))
            }
            Decision::Many(targets) => {
                for port in bits(targets.ports) {
                    self.want(input, Exit { port, vc: targets.vc, room: targets.room });
                }
                targets.ports
            }
            Decision::Local | Decision::Drop => 0,
        };
        self.wanted |= wanted;
        self.end_full(wanted);
    }

    /// Removes the requests of an input for its decision.
    #[inline(always)]
    pub(super) fn remove(&mut self, input: usize, decision: &Decision) {
        match *decision {
            Decision::One(exit) => self.forget(input, exit.port, exit.vc),
            Decision::Local | Decision::Drop => {}
            _ => self.remove_many(input, decision),
        }
    }

    /// Removes the requests of an input whose packet has several exits.
    fn remove_many(&mut self, input: usize, decision: &Decision) {
        match *decision {
            Decision::Any(Candidates { ports, escape, .. }) => {
                for port in bits(ports) {
                    self.of[usize::from(port)].requests.adaptive &= !(1 << input);
                    self.update_port(port);
                }
                if let Some(exit) = escape {
                    self.forget(input, exit.port, exit.vc);
                }
            }
            Decision::Many(targets) => {
                for port in bits(targets.ports) {
                    self.forget(input, port, targets.vc);
                }
            }
            _ => {}
        }
    }

    /// Adds an input's request for an exit. Returns the exit's port.
    #[inline]
    fn want(&mut self, input: usize, exit: Exit) -> u64 {
        let port = usize::from(exit.port);
        self.fixed[port * usize::from(self.vcs) + usize::from(exit.vc)] |= 1 << input;

        let requests = &mut self.of[port].requests;
        requests.fixed_vcs |= 1 << exit.vc;
        requests.entering |= u64::from(exit.room == Room::Two) << input;
        1 << exit.port
    }

    /// Removes an input's request for a virtual channel of a port.
    #[inline]
    pub(super) fn forget(&mut self, input: usize, port: u8, vc: u8) {
        let requests = &mut self.of[usize::from(port)].requests;
        requests.entering &= !(1 << input);

        let inputs = &mut self.fixed[usize::from(port) * usize::from(self.vcs) + usize::from(vc)];
        *inputs &= !(1 << input);
        requests.fixed_vcs &= !(u16::from(*inputs == 0) << vc);
        self.update_port(port);
    }

    /// Removes a port that no input wants any more.
    #[inline]
    fn update_port(&mut self, port: u8) {
        let requests = &self.of[usize::from(port)].requests;
        let is_wanted = requests.fixed_vcs != 0 || requests.adaptive != 0;
        self.wanted &= !(u64::from(!is_wanted) << port);
    }

    /// Returns the virtual channels of a port that inputs want as their exit, and those that
    /// inputs want adaptively.
    #[inline]
    pub(super) fn requested_vcs(&self, port: u8) -> (u16, u16) {
        let requests = &self.of[usize::from(port)].requests;
        (requests.fixed_vcs, if requests.adaptive == 0 { 0 } else { self.adaptive_vcs })
    }

    /// Returns the inputs that want a virtual channel of a port as their exit.
    #[inline]
    pub(super) fn wanting(&self, port: u8, vc: u8) -> Inputs {
        self.fixed[usize::from(port) * usize::from(self.vcs) + usize::from(vc)]
    }

    /// Returns the inputs that have a port among their candidates.
    #[inline]
    pub(super) fn adaptive(&self, port: u8) -> Inputs {
        self.of[usize::from(port)].requests.adaptive
    }

    /// Returns the inputs that would enter a ring at a port.
    #[inline]
    pub(super) fn entering(&self, port: u8) -> Inputs {
        self.of[usize::from(port)].requests.entering
    }
}
