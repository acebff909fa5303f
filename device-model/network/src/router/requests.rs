//! Which inputs want which outputs.

use super::{
    Decision, Exit, MAX_INPUTS,
    heads::Exits,
    outputs::{Output, Outputs},
    policy::Candidates,
};

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
    /// Inputs that want the port as their exit, or as one of several targets or the escape.
    pub(super) fixed: Inputs,
    /// Inputs whose packets have the port among their candidates.
    adaptive: Inputs,
}

impl Output {
    /// Removes the request of an input, whose exit by this port was the only one. Returns whether
    /// no input wants the port any more.
    #[inline(always)]
    pub(super) fn remove_fixed(&mut self, input: usize) -> bool {
        self.requests.fixed &= !(1 << (input % MAX_INPUTS));
        self.requests.fixed | self.requests.adaptive == 0
    }
}

impl Outputs {
    /// Adds the request of an input for its exit.
    #[inline]
    pub(super) fn add_one(&mut self, input: usize, exit: Exit) {
        let wanted = self.want(input, exit.port);
        self.wanted |= wanted;
        self.end_full(wanted);
    }

    /// Adds the requests of an input for its decision.
    pub(super) fn add(&mut self, input: usize, decision: &Decision) {
        let wanted = match *decision {
            Decision::One(exit) => self.want(input, exit.port),
            Decision::Local | Decision::Drop => return,
            _ => self.add_many(input, decision),
        };
        self.wanted |= wanted;
        self.end_full(wanted);
    }

    /// Adds the requests of an input whose packet has several exits. Returns their ports.
    #[inline(never)]
    fn add_many(&mut self, input: usize, decision: &Decision) -> u64 {
        match *decision {
            Decision::Any(Candidates { ports, vcs, escape }) => {
                self.adaptive_vcs |= vcs;
                for port in bits(ports) {
                    self.ports[usize::from(port)].requests.adaptive |= 1 << input;
                }
                ports | escape.map_or(0, |exit| self.want(input, exit.port))
            }
            Decision::Many(targets) => {
                for port in bits(targets.ports) {
                    self.want(input, port);
                }
                targets.ports
            }
            _ => 0,
        }
    }

    /// Removes the requests of an input for its decision.
    #[inline(always)]
    pub(super) fn remove(&mut self, input: usize, decision: &Decision) {
        match *decision {
            Decision::One(exit) => self.forget(input, exit.port),
            Decision::Local | Decision::Drop => {}
            _ => self.remove_many(input, decision),
        }
    }

    /// Removes the requests of an input whose packet has several exits.
    fn remove_many(&mut self, input: usize, decision: &Decision) {
        match *decision {
            Decision::Any(Candidates { ports, escape, .. }) => {
                for port in bits(ports) {
                    self.ports[usize::from(port)].requests.adaptive &= !(1 << input);
                    self.update_port(port);
                }
                if let Some(exit) = escape {
                    self.forget(input, exit.port);
                }
            }
            Decision::Many(targets) => {
                for port in bits(targets.ports) {
                    self.forget(input, port);
                }
            }
            _ => {}
        }
    }

    /// Adds an input's request for a port as its exit. Returns the port.
    #[inline]
    fn want(&mut self, input: usize, port: u8) -> u64 {
        self.ports[usize::from(port)].requests.fixed |= 1 << input;
        1 << port
    }

    /// Removes an input's request for a port as its exit.
    #[inline]
    pub(super) fn forget(&mut self, input: usize, port: u8) {
        self.ports[usize::from(port)].requests.fixed &= !(1 << input);
        self.update_port(port);
    }

    /// Removes a port that no input wants any more.
    #[inline]
    fn update_port(&mut self, port: u8) {
        let PortRequests { fixed, adaptive } = self.ports[usize::from(port)].requests;
        self.wanted &= !(u64::from(fixed | adaptive == 0) << port);
    }

    /// Returns the virtual channels of a port that inputs want as their exit, and those that
    /// inputs want adaptively.
    pub(super) fn requested_vcs(&self, exits: &Exits, port: u8) -> (u16, u16) {
        let PortRequests { fixed, adaptive } = self.ports[usize::from(port)].requests;
        let fixed_vcs = bits(fixed).fold(0, |vcs, input| vcs | 1 << exits.of(input.into()).vc);
        (fixed_vcs, if adaptive == 0 { 0 } else { self.adaptive_vcs })
    }

    /// Returns the inputs that want a port as their exit.
    #[inline]
    pub(super) fn fixed(&self, port: u8) -> Inputs {
        self.ports[usize::from(port)].requests.fixed
    }

    /// Returns the inputs that have a port among their candidates.
    #[inline]
    pub(super) fn adaptive(&self, port: u8) -> Inputs {
        self.ports[usize::from(port)].requests.adaptive
    }
}
