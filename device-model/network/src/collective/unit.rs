//! The collective unit of a node.

use nicforge_core::{
    fabric::{Packet, Ports},
    time::Nanos,
};

use super::{
    CLASSES, ClassRoute, CollectiveError, CollectiveSpec, CollectiveWord, MAX_INPUTS,
    barrier_network::{BarrierNetwork, ReceivedSymbols},
    lines::LineLevels,
};
use crate::router::{
    FifoRoom, InjectionRefusal, NotInjected, Outcome, RoutedPacket,
    fifo::{InjectionFifo, ReceptionFifo},
};

/// Position of the first bit of the node's own contributions in a set of inputs, with one bit for
/// each injection FIFO. The inputs from links have the bits below: that of a virtual channel's port
/// is `1 << (channel * ports + port)`.
pub(super) const OWN_SHIFT: u32 = MAX_INPUTS as u32;
/// Nanoseconds after which a unit tries again when the fabric had no packet for it.
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
    /// Operands that differ from the first one of their operation, counted once for another
    /// operation, kind or number, and once for another length. The first operand's are used.
    pub mismatched: u64,
    /// Packets with a wrong header, or that no class route expects. They are dropped.
    pub dropped: u64,
    /// Results with an exception of this node's ALU.
    pub exceptions: u64,
    /// Those of them that are not a number.
    pub not_a_number: u64,
    /// Those of them with an overflow.
    pub overflow: u64,
}

/// The state of the first packet of an input.
#[derive(Clone, Copy, Debug)]
pub(super) enum Slot {
    /// There is no packet, or the unit has not read its header.
    Empty,
    /// The packet, with this header, waits for the other operands of its operation.
    Waiting(CollectiveWord),
    /// The unit needs the packet no more. It leaves the buffer when its tail has arrived.
    Used,
}

/// A packet that the unit works on, in one direction.
#[derive(Debug)]
pub(super) struct PacketInService {
    pub(super) packet: Packet,
    /// Ports by which it is still to be sent, one bit for each.
    pub(super) ports: u64,
    /// Virtual channel of its class.
    pub(super) vc: usize,
    /// Reception FIFO of its class.
    pub(super) fifo: usize,
    /// It is still to be delivered to this node.
    pub(super) is_local: bool,
    /// Time from which it can be sent.
    pub(super) due: Nanos,
    /// Time at which the tails of all packets that it consists of are here.
    pub(super) complete: Nanos,
}

/// The collective unit of a node: see the documentation of [`super`].
#[derive(Debug)]
pub struct CollectiveUnit {
    pub(super) spec: CollectiveSpec,
    /// Credits that the longest packet takes.
    pub(super) longest_credits: u32,
    /// The routes of the classes for data.
    pub(super) routes: [ClassRoute; CLASSES],
    /// The first packets of the inputs from links.
    pub(super) link_slots: Vec<Slot>,
    /// The first packets of the injection FIFOs.
    pub(super) own_slots: Vec<Slot>,
    pub(super) injection: Vec<InjectionFifo>,
    pub(super) reception: Vec<ReceptionFifo>,
    /// The packet on its way up that the unit works on.
    pub(super) up: Option<PacketInService>,
    /// Time from which the next packet can be sent up.
    pub(super) up_free: Nanos,
    /// The packet on its way down that the unit works on.
    pub(super) down: Option<PacketInService>,
    barriers: BarrierNetwork,
    /// The last step found nothing to do, and nothing but arrivals can have changed that.
    awaits_arrivals: bool,
    /// The fabric had no free packet when this step needed one.
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
        Ok(Self {
            longest_credits: unit.needed(spec.longest_bytes().into()),
            routes: [ClassRoute::default(); CLASSES],
            link_slots: vec![Slot::Empty; usize::from(spec.ports) * spec.vcs.len()],
            own_slots: vec![Slot::Empty; spec.injection.len()],
            injection: spec.injection.iter().map(|&fifo| InjectionFifo::new(fifo)).collect(),
            reception: spec.reception.iter().map(|&fifo| ReceptionFifo::new(fifo)).collect(),
            up: None,
            up_free: Nanos::ZERO,
            down: None,
            barriers: BarrierNetwork::new(&spec),
            awaits_arrivals: false,
            starved: false,
            counters: CollectiveCounters::default(),
            spec,
        })
    }

    /// Sets the class route of a class for data. Packets of the class that wait are checked again,
    /// and those that the new route does not expect are dropped. No operation of the class should
    /// be in progress.
    ///
    /// # Errors
    /// [`CollectiveError::Class`], [`CollectiveError::RouteChannel`],
    /// [`CollectiveError::RoutePort`].
    pub fn set_route(&mut self, class: u8, route: ClassRoute) -> Result<(), CollectiveError> {
        self.spec.check_route(class, &route)?;
        self.awaits_arrivals = false;
        self.routes[usize::from(class)] = route;
        for slot in self.link_slots.iter_mut().chain(&mut self.own_slots) {
            if matches!(slot, Slot::Waiting(word) if word.class == class) {
                *slot = Slot::Empty;
            }
        }
        Ok(())
    }

    /// Sets the class route of a class for barriers and global interrupts, and forgets a barrier
    /// that is in progress at this node, and the lines.
    ///
    /// # Errors
    /// As [`CollectiveUnit::set_route`].
    pub fn set_barrier_route(&mut self, class: u8, route: ClassRoute) -> Result<(), CollectiveError> {
        self.spec.check_route(class, &route)?;
        self.awaits_arrivals = false;
        self.barriers.set_route(class.into(), route);
        Ok(())
    }

    /// Removes the routes of all classes, for data and for barriers. It follows
    /// [`CollectiveUnit::reset`]: packets that are still on links are dropped.
    pub fn clear_routes(&mut self) {
        self.routes = [ClassRoute::default(); CLASSES];
        self.barriers.clear_routes();
    }

    /// Returns the barrier route of a class; an empty one if it does not exist.
    pub fn barrier_route(&self, class: u8) -> ClassRoute {
        self.barriers.route(class)
    }

    /// Returns the class route of a class for data; an empty one if it does not exist.
    pub fn route(&self, class: u8) -> ClassRoute {
        self.routes.get(usize::from(class)).copied().unwrap_or_default()
    }

    /// Returns the room of an injection FIFO; none if it does not exist.
    pub fn injection_room(&self, fifo: u8, now: Nanos) -> FifoRoom {
        self.injection.get(usize::from(fifo)).map_or_else(FifoRoom::default, |fifo| fifo.room(now))
    }

    /// Puts a contribution into an injection FIFO. Its header must be a [`CollectiveWord`] of a
    /// class of this FIFO of which the node is a member; the unit drops and counts others.
    ///
    /// # Errors
    /// [`NotInjected`] with the packet and the reason.
    pub fn inject(&mut self, fifo: u8, packet: Packet, now: Nanos) -> Result<(), NotInjected> {
        let Some(queue) = self.injection.get_mut(usize::from(fifo)) else {
            return Err(NotInjected { packet, reason: InjectionRefusal::NoFifo { fifo } });
        };
        let (bytes, longest) = (packet.wire_bytes(), self.spec.longest_bytes());
        if bytes > longest {
            return Err(NotInjected { packet, reason: InjectionRefusal::TooLong { bytes, longest } });
        }

        if !queue.room(now).fits(bytes) {
            return Err(NotInjected { packet, reason: InjectionRefusal::Full { fifo } });
        }

        queue.push(packet, now);
        self.awaits_arrivals = false;
        Ok(())
    }

    /// Returns the next result of a reception FIFO, if it is complete.
    pub fn front(&self, fifo: u8, now: Nanos) -> Option<&Packet> {
        let (packet, complete) = self.reception.get(usize::from(fifo))?.front()?;
        (complete <= now).then_some(packet)
    }

    /// Takes the next result of a reception FIFO, if it is complete. The caller must return it to
    /// the fabric, and call [`CollectiveUnit::step`] afterwards.
    pub fn take(&mut self, fifo: u8, now: Nanos) -> Option<Packet> {
        self.reception.get_mut(usize::from(fifo))?.pop(now)
    }

    /// Enters the node into the next barrier of a class. [`CollectiveUnit::step`] sends the symbol.
    ///
    /// # Errors
    /// [`CollectiveError::Class`], [`CollectiveError::NoMember`], [`CollectiveError::Entered`].
    pub fn enter_barrier(&mut self, class: u8) -> Result<(), CollectiveError> {
        self.barriers.enter(class)?;
        self.awaits_arrivals = false;
        Ok(())
    }

    /// Sets the lines of a class that this node sets, one bit for each of [`LINES`](super::LINES);
    /// other bits are ignored. [`CollectiveUnit::step`] sends the change to the other nodes.
    ///
    /// # Errors
    /// [`CollectiveError::Class`], [`CollectiveError::NoMember`].
    pub fn set_lines(&mut self, class: u8, lines: u8) -> Result<(), CollectiveError> {
        self.barriers.set_lines(class, lines)?;
        self.awaits_arrivals = false;
        Ok(())
    }

    /// Returns the lines of a class that are set; none if it does not exist.
    pub fn lines(&self, class: u8) -> LineLevels {
        self.barriers.lines(class)
    }

    /// Returns the number of changes of the lines that some node sets, of all classes.
    #[inline]
    pub fn line_changes(&self) -> u64 {
        self.barriers.line_changes()
    }

    /// Returns whether the node has entered a barrier of a class that is not complete; false if the
    /// class does not exist.
    pub fn has_entered_barrier(&self, class: u8) -> bool {
        self.barriers.has_entered(class)
    }

    /// Returns the number of completed barriers of a class; 0 if it does not exist.
    pub fn barriers_completed(&self, class: u8) -> u64 {
        self.barriers.completed(class)
    }

    /// Returns the number of completed barriers of all classes.
    #[inline]
    pub fn all_barriers_completed(&self) -> u64 {
        self.barriers.all_completed()
    }

    /// Returns the counters.
    pub fn counters(&self) -> CollectiveCounters {
        self.counters
    }

    /// Returns whether [`CollectiveUnit::step`] has nothing to do: no packet or symbol arrives, is
    /// in service, or waits in a FIFO. A packet that waits for operands is still the first of its
    /// channel or FIFO.
    #[inline]
    fn is_idle(&self, ports: &Ports<'_>) -> bool {
        let arriving = |&vc: &u8| ports.arrived(vc.into()) | ports.heads(vc.into()) != 0;
        self.up.is_none()
            && self.down.is_none()
            && self.barriers.is_idle(ports)
            && !self.spec.vcs.iter().any(arriving)
            && self.injection.iter().all(InjectionFifo::is_empty)
            && self.reception.iter().all(|fifo| fifo.front().is_none())
    }

    /// Returns whether the last [`CollectiveUnit::step`] had nothing to do, and only packets and
    /// symbols that arrive can have changed that. Its reception FIFOs are empty then.
    #[inline]
    pub fn awaits_arrivals(&self) -> bool {
        self.awaits_arrivals
    }

    /// Combines and moves packets, at most about `budget`.
    #[inline]
    pub fn step(&mut self, ports: &mut Ports<'_>, budget: u32) -> Outcome {
        self.awaits_arrivals = self.is_idle(ports);
        if self.awaits_arrivals {
            return Outcome { moved: 0, has_more: false, wake: Nanos::NEVER };
        }
        self.work(ports, budget)
    }

    /// Does the work of [`CollectiveUnit::step`] for a unit that is not idle, in rounds until a
    /// round moves nothing or the budget is used up.
    fn work(&mut self, ports: &mut Ports<'_>, budget: u32) -> Outcome {
        self.starved = false;

        let mut moved = 0;
        let has_more = loop {
            let before = moved;
            moved += self.receive_symbols(ports);
            moved += self.barriers.send_symbols(ports);
            self.starved |= self.barriers.take_starved();
            moved += self.release_used(ports);
            self.read_headers(ports);
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
        self.awaits_arrivals = false;
        let now = ports.now();
        for fifo in &mut self.injection {
            while let Some(packet) = fifo.pop(now) {
                ports.recycle(packet);
            }
        }
        for fifo in &mut self.reception {
            while let Some(packet) = fifo.pop_any(now) {
                ports.recycle(packet);
            }
        }
        for active in [self.up.take(), self.down.take()].into_iter().flatten() {
            ports.recycle(active.packet);
        }

        self.own_slots.fill(Slot::Empty);
        // Packets that were used before still leave when their tails have arrived.
        for slot in self.link_slots.iter_mut().filter(|slot| matches!(slot, Slot::Waiting(_))) {
            *slot = Slot::Empty;
        }
        self.barriers.reset();
    }

    /// Takes the symbols that have arrived. Returns their number.
    fn receive_symbols(&mut self, ports: &mut Ports<'_>) -> u32 {
        let ReceivedSymbols { count, unexpected } = self.barriers.receive_symbols(ports);
        self.counters.dropped += u64::from(unexpected);
        count
    }

    /// Returns the time at which the unit has to run again.
    fn next_wake(&self, now: Nanos) -> Nanos {
        let sends = [&self.up, &self.down].into_iter().flatten().map(|active| active.due);
        let completions = self.reception.iter().filter_map(|fifo| Some(fifo.front()?.1));
        let retry = self.starved.then(|| now.after(STARVED_RETRY));
        sends.chain(completions).chain(retry).filter(|&time| time > now).min().unwrap_or(Nanos::NEVER)
    }

    /// Frees the buffers of used packets from links whose tails have arrived. Returns the number of
    /// packets.
    fn release_used(&mut self, ports: &mut Ports<'_>) -> u32 {
        let mut released = 0;
        for index in 0..self.link_slots.len() {
            let (port, vc) = self.port_and_vc(index);
            if matches!(self.link_slots[index], Slot::Used)
                && let Some(packet) = ports.take(port, vc)
            {
                self.link_slots[index] = Slot::Empty;
                ports.recycle(packet);
                released += 1;
            }
        }
        released
    }

    /// Returns the port and the virtual channel of an input from a link, by the index of its slot.
    pub(super) fn port_and_vc(&self, index: usize) -> (u8, usize) {
        let ports = usize::from(self.spec.ports);
        ((index % ports) as u8, self.spec.vcs[index / ports].into())
    }

    /// Reads the headers of the packets that have become the first of their input, and fills their
    /// slots.
    fn read_headers(&mut self, ports: &Ports<'_>) {
        for channel in 0..self.spec.vcs.len() {
            let vc = usize::from(self.spec.vcs[channel]);
            let present = ports.arrived(vc) | ports.heads(vc);
            for port in (0..self.spec.ports).filter(|port| present >> port & 1 == 1) {
                let index = channel * usize::from(self.spec.ports) + usize::from(port);
                if matches!(self.link_slots[index], Slot::Empty)
                    && let Some(packet) = ports.peek_head(port, vc)
                {
                    let (header, channel) = (packet.header, channel as u8);
                    self.link_slots[index] = self.slot_of(header, &Input::Link { port, channel });
                }
            }
        }

        for fifo in 0..self.own_slots.len() {
            if matches!(self.own_slots[fifo], Slot::Empty)
                && let Some(packet) = self.injection[fifo].front()
            {
                let header = packet.header;
                self.own_slots[fifo] = self.slot_of(header, &Input::Own { fifo: fifo as u8 });
            }
        }
    }

    /// Returns the slot of a packet that has become the first of an input, by its header. A packet
    /// that no class route expects is counted as dropped, and used.
    fn slot_of(&mut self, header: u64, input: &Input) -> Slot {
        let expected = CollectiveWord::from_bits(header).filter(|word| {
            let route = &self.routes[usize::from(word.class) % CLASSES];
            match *input {
                Input::Own { fifo } => route.is_member && route.fifo == fifo && !word.is_down,
                Input::Link { channel, .. } if channel != route.channel => false,
                Input::Link { port, .. } if word.is_down => route.output == Some(port),
                Input::Link { port, .. } => route.inputs >> port & 1 == 1,
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

    /// Returns the header of the packet that waits at an input, which is given by its bit: see
    /// [`OWN_SHIFT`].
    pub(super) fn waiting(&self, input: u64) -> Option<CollectiveWord> {
        let index = input.trailing_zeros();
        let slot = match index.checked_sub(OWN_SHIFT) {
            Some(fifo) => self.own_slots.get(fifo as usize),
            None => self.link_slots.get(index as usize),
        };
        match slot {
            Some(Slot::Waiting(word)) => Some(*word),
            _ => None,
        }
    }

    /// Returns the set of inputs from which a class's operations have operands: those of its route,
    /// and the node's own contribution if the node is a member.
    pub(super) fn operands(&self, route: &ClassRoute) -> u64 {
        let from_links = route.inputs << (u32::from(route.channel) * u32::from(self.spec.ports));
        let own = if route.is_member { 1 << (OWN_SHIFT + u32::from(route.fifo)) } else { 0 };
        from_links | own
    }
}

/// An input of a unit.
enum Input {
    /// An injection FIFO.
    Own { fifo: u8 },
    /// A virtual channel of a port. `channel` is its place in [`CollectiveSpec::vcs`].
    Link { port: u8, channel: u8 },
}

/// Returns the inputs of a set in order, each as its bit.
pub(super) fn inputs_of(mut set: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let input = (set != 0).then(|| set & set.wrapping_neg())?;
        set &= set - 1;
        Some(input)
    })
}
