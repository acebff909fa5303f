//! The first packets of the inputs, with the decisions on them.

use nicforge_core::time::Nanos;

use super::{
    Candidates, Decision, Exit, InputCounters, MAX_INPUTS, MAX_PORTS, Room, Targets,
    requests::{Inputs, bits},
};

/// An input: its first packet, and its counters.
///
/// The inputs of a large network are more than a cache holds. One has one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Head {
    /// Decision on the packet, unless it is one exit ([`Heads::exits`]).
    pub(super) decision: Decision,
    /// Time at which it became the first.
    pub(super) since: Nanos,
    /// Bytes of the packet with its framing.
    pub(super) bytes: u32,
    /// Reception FIFO for the packet or its copy.
    pub(super) fifo: u8,
    /// The packet was counted in [`super::RouterCounters::full`].
    pub(super) found_full: bool,
    pub(super) counters: InputCounters,
}

// A head has one cache line.
const _: () = assert!(size_of::<Head>() == 64);

impl Head {
    /// Returns an input without packets.
    fn new() -> Self {
        Self {
            decision: Decision::Drop,
            since: Nanos::ZERO,
            bytes: 0,
            fifo: 0,
            found_full: false,
            counters: InputCounters::default(),
        }
    }
}

/// The port of the exit of a packet that has none or several.
const NO_PORT: u8 = u8::MAX;
const _: () = assert!(MAX_PORTS < NO_PORT);

/// Exits by input. Those of most routers have one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Exits([Exit; MAX_INPUTS]);

impl Exits {
    /// Returns the exit of an input.
    #[inline(always)]
    pub(super) fn of(&self, input: usize) -> Exit {
        self.0[input % MAX_INPUTS]
    }

    /// Sets the exit of an input.
    #[inline(always)]
    fn set(&mut self, input: usize, exit: Exit) {
        self.0[input % MAX_INPUTS] = exit;
    }

    /// Returns those of some inputs whose exits have a property.
    #[inline(always)]
    pub(super) fn matching(&self, inputs: Inputs, has: impl Fn(Exit) -> bool) -> Inputs {
        bits(inputs).fold(0, |set, input| set | Inputs::from(has(self.of(input.into()))) << input)
    }
}

/// The first packets of all inputs, as far as the policy has decided on them.
#[derive(Debug)]
pub(super) struct Heads {
    pub(super) inputs: Vec<Head>,
    /// The exits of first packets that have one: most do. For the others, the port is [`NO_PORT`].
    /// The virtual channel and the room are then those of the copies or of the escape, if any.
    pub(super) exits: Box<Exits>,
    /// Inputs whose first packet has a decision.
    pub(super) decided: Inputs,
    /// Inputs whose first packet is to be delivered here, or a copy of it.
    pub(super) local: Inputs,
    /// Inputs whose first packet is to be dropped.
    pub(super) dropped: Inputs,
    /// Inputs from which a packet has left in this step, and whose next packet can be seen.
    pub(super) exposed: Inputs,
    /// Inputs whose first packet has arrived as a whole, as far as that concerns deliveries.
    pub(super) arrived: Inputs,
}

impl Heads {
    pub(super) fn new(count: usize) -> Self {
        Self {
            inputs: vec![Head::new(); count],
            exits: Box::new(Exits([Exit { port: NO_PORT, vc: 0, room: Room::One }; MAX_INPUTS])),
            decided: 0,
            local: 0,
            dropped: 0,
            exposed: 0,
            arrived: 0,
        }
    }

    /// Returns the exit of an input's first packet, which must have a decision, if it has one exit.
    #[inline(always)]
    pub(super) fn single_exit(&self, input: usize) -> Option<Exit> {
        Some(self.exits.of(input)).filter(|exit| exit.port != NO_PORT)
    }

    /// Returns the decision on the first packet of an input, which must have one.
    #[inline]
    pub(super) fn decision(&self, input: usize) -> Decision {
        self.single_exit(input).map_or(self.inputs[input].decision, Decision::One)
    }

    /// Records the packet that has become the first one of an input, and has one exit.
    #[inline(always)]
    pub(super) fn become_single(&mut self, input: usize, exit: Exit, now: Nanos, bytes: u32) {
        self.decided |= 1 << input;
        self.exits.set(input, exit);
        if let Some(head) = self.inputs.get_mut(input) {
            (head.since, head.bytes) = (now, bytes);
        }
    }

    /// Records the packet that has become the first one of an input.
    #[inline]
    pub(super) fn become_first(
        &mut self,
        input: usize,
        decision: Decision,
        now: Nanos,
        bytes: u32,
        fifo: u8,
    ) {
        if let Decision::One(exit) = decision {
            return self.become_single(input, exit, now, bytes);
        }
        self.decided |= 1 << input;
        let (vc, room) = match decision {
            Decision::Any(Candidates { escape: Some(exit), .. }) => (exit.vc, exit.room),
            Decision::Many(Targets { vc, room, .. }) => (vc, room),
            _ => (0, Room::One),
        };
        self.exits.set(input, Exit { port: NO_PORT, vc, room });

        let head = &mut self.inputs[input];
        (head.decision, head.since) = (decision, now);
        (head.bytes, head.fifo, head.found_full) = (bytes, fifo, false);
    }

    /// Records that the first packet of an input has left it.
    #[inline(always)]
    pub(super) fn leave(&mut self, input: usize, now: Nanos) {
        self.decided &= !(1 << input);
        if let Some(head) = self.inputs.get_mut(input) {
            head.counters.packets += 1;
            head.counters.bytes += u64::from(head.bytes);
            head.counters.waited += now.0 - head.since.0;
        }
    }

    /// Forgets all decisions.
    pub(super) fn clear(&mut self) {
        (self.decided, self.local, self.dropped) = (0, 0, 0);
    }
}
