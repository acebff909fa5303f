//! The collective unit of a node.

use nicforge_core::{
    fabric::{Packet, Ports},
    time::Nanos,
};

use super::{CLASSES, ClassRoute, CollectiveError, CollectiveSpec, CollectiveWord, barrier::Barriers};
use crate::router::{
    InjectionRefusal, NotInjected, Outcome,
    fifo::{InjectionFifo, ReceptionFifo, wire_bytes},
};

/// Bit of the node's own contribution in a set of operands. Ports have the bits below.
pub(super) const OWN: u64 = 1 << 63;
/// Nanoseconds after which a unit tries again whose fabric had no packet.
const STARVED_RETRY: u64 = 1000;

/// Counters of a collective unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectiveCounters {
    /// Combined packets, one for each operation.
    pub combined: u64,
    /// Packets sent up and down.
    pub sent: u64,
    /// Packets put into the reception FIFO.
    pub delivered: u64,
    /// Operations whose operands differ in their operation, their numbers or their length. The
    /// result is that of the first operand's.
    pub mismatched: u64,
    /// Packets with a wrong header, or that no class route expects. They are dropped.
    pub dropped: u64,
    /// Results with an exception of this node's ALU.
    pub exceptions: u64,
}

/// The first packet of an input.
#[derive(Clone, Copy, Debug)]
pub(super) enum Slot {
    /// The unit has seen none.
    Empty,
    /// It waits.
    Waiting(CollectiveWord),
    /// The unit has used it. It leaves the buffer when its tail has arrived.
    Used,
}

/// A packet that the unit works on, in one direction.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) packet: Packet,
    /// Ports to which it still goes.
    pub(super) ports: u64,
    /// It is still to be delivered here.
    pub(super) is_local: bool,
    /// Time from which it can be sent.
    pub(super) due: Nanos,
    /// Time at which all of it is here.
    pub(super) complete: Nanos,
}

/// The collective unit of a node: see the documentation of [`super`].
#[derive(Debug)]
pub struct CollectiveUnit {
    pub(super) spec: CollectiveSpec,
    pub(super) longest_credits: u32,
    pub(super) routes: [ClassRoute; CLASSES],
    pub(super) slots: Vec<Slot>,
    pub(super) own: Slot,
    pub(super) injection: InjectionFifo,
    pub(super) reception: ReceptionFifo,
    pub(super) up: Option<Active>,
    pub(super) down: Option<Active>,
    pub(super) barriers: Barriers,
    /// A packet was wanted in this step, and the fabric had none.
    pub(super) starved: bool,
    pub(super) counters: CollectiveCounters,
}

impl CollectiveUnit {
    /// Returns a unit without class routes.
    ///
    /// # Errors
    /// [`CollectiveError`] names the value that does not fit.
    pub fn new(spec: CollectiveSpec) -> Result<Self, CollectiveError> {
        spec.check()?;

        let unit = spec.link.credit_unit;
        let symbol_credits = unit.needed(spec.barrier_framing.into());
        Ok(Self {
            longest_credits: unit.needed(spec.longest_bytes().into()),
            routes: [ClassRoute::default(); CLASSES],
            slots: vec![Slot::Empty; usize::from(spec.ports)],
            own: Slot::Empty,
            injection: InjectionFifo::new(spec.injection),
            reception: ReceptionFifo::new(spec.reception),
            up: None,
            down: None,
            barriers: Barriers::new(spec.ports, spec.barrier_vc, spec.barrier_framing, symbol_credits),
            starved: false,
            counters: CollectiveCounters::default(),
            spec,
        })
    }

    /// Sets the class route of a class. No operation and no barrier of it may be under way.
    ///
    /// # Errors
    /// [`CollectiveError::Class`], [`CollectiveError::RoutePort`].
    pub fn set_route(&mut self, class: u8, route: ClassRoute) -> Result<(), CollectiveError> {
        self.spec.check_route(class, &route)?;
        self.routes[usize::from(class)] = route;
        Ok(())
    }

    /// Returns the class route of a class; an empty one if it does not exist.
    pub fn route(&self, class: u8) -> ClassRoute {
        self.routes.get(usize::from(class)).copied().unwrap_or_default()
    }

    /// Puts a contribution into the injection FIFO. Its header must be a [`CollectiveWord`] of a
    /// class of which the node is a member; the unit drops and counts others.
    ///
    /// # Errors
    /// [`NotInjected`] with the packet and the reason.
    pub fn inject(&mut self, packet: Packet, now: Nanos) -> Result<(), NotInjected> {
        let (bytes, longest) = (wire_bytes(&packet), self.spec.longest_bytes());
        if bytes > longest {
            return Err(NotInjected { packet, reason: InjectionRefusal::TooLong { bytes, longest } });
        }

        let (room, places) = self.injection.room(now);
        if bytes > room || places == 0 {
            return Err(NotInjected { packet, reason: InjectionRefusal::Full { fifo: 0 } });
        }

        self.injection.push(packet, now);
        Ok(())
    }

    /// Takes the next result, if it is complete. The caller must return it to the fabric, and call
    /// [`CollectiveUnit::step`] afterwards.
    pub fn take(&mut self, now: Nanos) -> Option<Packet> {
        self.reception.pop(now)
    }

    /// Enters the node into the next barrier of a class. [`CollectiveUnit::step`] sends the symbol.
    ///
    /// # Errors
    /// [`CollectiveError::Class`], [`CollectiveError::NoMember`], [`CollectiveError::Entered`].
    pub fn enter_barrier(&mut self, class: u8) -> Result<(), CollectiveError> {
        let index = usize::from(class);
        let route = *self.routes.get(index).ok_or(CollectiveError::Class { class })?;
        if !route.is_member {
            return Err(CollectiveError::NoMember { class });
        }
        if self.barriers.is_entered(index) {
            return Err(CollectiveError::Entered { class });
        }

        self.barriers.enter(index, &route);
        Ok(())
    }

    /// Returns the number of completed barriers of a class; 0 if it does not exist.
    pub fn barriers_completed(&self, class: u8) -> u64 {
        if usize::from(class) < CLASSES { self.barriers.completed(class.into()) } else { 0 }
    }

    /// Returns the counters.
    pub fn counters(&self) -> CollectiveCounters {
        let unexpected = self.barriers.unexpected;
        CollectiveCounters { dropped: self.counters.dropped + unexpected, ..self.counters }
    }

    /// Combines and moves packets, at most about `budget`.
    pub fn step(&mut self, ports: &mut Ports<'_>, budget: u32) -> Outcome {
        self.starved = false;

        let mut moved = 0;
        let has_more = loop {
            let before = moved;
            moved += self.barriers.receive(ports, &self.routes);
            moved += self.barriers.send(ports);
            moved += self.release_used(ports);
            self.look(ports);
            moved += self.begin_down(ports) + self.advance_down(ports);
            moved += self.begin_up(ports) + self.advance_up(ports);

            if moved == before || moved >= budget.max(1) {
                break moved > before;
            }
        };

        Outcome { moved, has_more, wake: self.next_wake(ports.now()) }
    }

    /// Empties the FIFOs and forgets operations and barriers. Packets on links stay there. Class
    /// routes and counters stay.
    pub fn reset(&mut self, ports: &mut Ports<'_>) {
        let now = ports.now();
        while let Some(packet) = self.injection.pop(now) {
            ports.recycle(packet);
        }
        while let Some(packet) = self.reception.pop_any(now) {
            ports.recycle(packet);
        }
        for active in [self.up.take(), self.down.take()].into_iter().flatten() {
            ports.recycle(active.packet);
        }

        self.own = Slot::Empty;
        // Packets that were used before still leave when their tails have arrived.
        for slot in self.slots.iter_mut().filter(|slot| matches!(slot, Slot::Waiting(_))) {
            *slot = Slot::Empty;
        }
        self.barriers.reset();
    }

    /// Returns the time at which the unit has to run again.
    fn next_wake(&self, now: Nanos) -> Nanos {
        let active = [&self.up, &self.down].into_iter().flatten().map(|active| active.due);
        let front = self.reception.front().map(|(_, complete)| complete);
        let retry = self.starved.then(|| now.after(STARVED_RETRY));
        active.chain(front).chain(retry).filter(|&time| time > now).min().unwrap_or(Nanos::NEVER)
    }

    /// Frees the buffers of used packets whose tails have arrived.
    fn release_used(&mut self, ports: &mut Ports<'_>) -> u32 {
        let vc = usize::from(self.spec.vc);
        let mut released = 0;
        for port in 0..self.spec.ports {
            let slot = &mut self.slots[usize::from(port)];
            if matches!(slot, Slot::Used)
                && let Some(packet) = ports.take(port, vc)
            {
                *slot = Slot::Empty;
                ports.recycle(packet);
                released += 1;
            }
        }
        released
    }

    /// Reads the headers of packets that have become the first of their input.
    fn look(&mut self, ports: &Ports<'_>) {
        let vc = usize::from(self.spec.vc);
        let present = ports.arrived(vc) | ports.heads(vc);
        for port in (0..self.spec.ports).filter(|port| present >> port & 1 == 1) {
            if matches!(self.slots[usize::from(port)], Slot::Empty)
                && let Some(packet) = ports.peek_head(port, vc)
            {
                let word = packet.header;
                self.slots[usize::from(port)] = self.slot_of(word, 1 << port);
            }
        }

        if matches!(self.own, Slot::Empty)
            && let Some(packet) = self.injection.front()
        {
            let word = packet.header;
            self.own = self.slot_of(word, OWN);
        }
    }

    /// Returns the slot of a packet at an input: its word, or that it is used up because no class
    /// route expects it.
    fn slot_of(&mut self, bits: u64, input: u64) -> Slot {
        let expected = CollectiveWord::from_bits(bits).filter(|word| {
            let route = &self.routes[usize::from(word.class) % CLASSES];
            if word.is_down {
                route.output.is_some_and(|port| 1 << port == input)
            } else {
                operands(route) & input != 0
            }
        });
        match expected {
            Some(word) => Slot::Waiting(word),
            None => {
                self.counters.dropped += 1;
                Slot::Used
            }
        }
    }

    /// Returns the word of the packet that waits at an input.
    pub(super) fn waiting(&self, input: u64) -> Option<CollectiveWord> {
        let slot = if input == OWN { self.own } else { self.slots[input.trailing_zeros() as usize] };
        match slot {
            Slot::Waiting(word) => Some(word),
            Slot::Empty | Slot::Used => None,
        }
    }
}

/// Returns the operands of a class: its inputs, and the own contribution.
pub(super) fn operands(route: &ClassRoute) -> u64 {
    route.inputs | if route.is_member { OWN } else { 0 }
}

/// Returns the bits of a set of inputs, in order.
pub(super) fn inputs_of(mut set: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let input = (set != 0).then(|| set & set.wrapping_neg())?;
        set &= set - 1;
        Some(input)
    })
}
