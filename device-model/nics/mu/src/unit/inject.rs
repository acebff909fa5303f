//! The injection engines: descriptors become packets.
//!
//! In: FIFOs that `arbitrate` has chosen. Out: packets in network injection FIFOs, moved heads,
//! faults. May touch: client memory, the network's injection FIFOs.
//!
//! The descriptor is fetched when its FIFO is chosen for the first time.

use std::sync::Arc;

use nicforge_core::{context::Context, dma::DmaAccess, fabric::Packet};
use nicforge_hwi::{
    mu::{DESCRIPTOR, INJECTION_FIFOS, fault},
    mu_dcr::{counter, error},
    mu_packet::{CHUNK, Descriptor, HEADER, MAX_PAYLOAD},
};
use nicforge_kit::{in_turn, retry};
use zerocopy::IntoBytes;

use super::{
    Unit,
    atomic::{self, NotDone},
    errors::{Info, Set},
    memory::{Memory, MemoryFault, Owner, fault_of},
    message::{Kind, Message, Rejected, Source},
    ranges::Access,
    reference::{self, MAX_MAPPINGS, Place, Reference},
    subgroup::{Injection, InjectionFifo, owner_of},
};
use crate::network::NetworkUnit;

/// Result of a visit to an active FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// A packet was sent, or a piece prefetched: this much of the budget.
    Moved(u32),
    /// No network FIFO of its message's map has room.
    Full(u16),
    /// Its message is not ready, or waits for its packets, or the word of an atomic operation is
    /// contended.
    Blocked,
    /// The FIFO has no more descriptors, or has stopped.
    Inactive,
    /// The fabric has no free packet.
    Starved,
}

/// Reasons why a FIFO does not send its next packet.
enum Stop {
    /// The FIFO stops with this fault.
    Fault(u64),
    /// It tries again.
    Contended,
}

impl Stop {
    fn memory(fault: MemoryFault) -> Self {
        Self::Fault(fault_of(fault))
    }
}

impl Unit {
    /// Returns the idle engines of a map whose network FIFO has room.
    #[inline]
    pub(super) fn open_engines(&self, network: &NetworkUnit, context: &mut Context<'_>, map: u16) -> u16 {
        let open = network.room(map & self.control.injection_engines, context.now());
        self.timing.idle(context, open)
    }

    /// Returns the engine of a map in turn that is idle and whose network FIFO has room.
    #[inline]
    fn choose_engine(&self, network: &NetworkUnit, context: &mut Context<'_>, map: u16) -> Option<u8> {
        if self.timing.has_clock() {
            return in_turn(self.open_engines(network, context, map).into(), self.next_engine);
        }
        // All engines are idle, so that the first FIFO with room is enough. A map has many.
        let map = map & self.control.injection_engines;
        network.next_with_room(map, self.next_engine, context.now())
    }

    /// Sends a packet of an active FIFO, or fetches its next descriptor.
    pub(super) fn serve(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        fifo: u16,
    ) -> Served {
        let (number, index) = subgroup_and_index(fifo);
        let Some(subgroup) = self.subgroups.get(number) else { return Served::Inactive };
        let is_empty = subgroup.injection[index].ring.is_empty();

        let mut message = match subgroup.injection[index].state {
            Injection::Disabled => return Served::Inactive,
            Injection::Waiting if is_empty => return Served::Inactive,
            Injection::Waiting => return self.serve_new(network, context, fifo),
            Injection::Sending(message) => message,
            Injection::Draining => return self.drain(context, fifo),
        };
        self.serve_message(network, context, fifo, &mut message)
    }

    /// Fetches the descriptor at a FIFO's head, and sends its first packet. A message that has no
    /// other one is never stored.
    fn serve_new(&mut self, network: &mut NetworkUnit, context: &mut Context<'_>, fifo: u16) -> Served {
        let Some(mut message) = self.fetch(network, context, fifo) else { return Served::Inactive };
        let served = self.serve_message(network, context, fifo, &mut message);

        if matches!(served, Served::Blocked | Served::Full(_) | Served::Starved) {
            let (number, index) = subgroup_and_index(fifo);
            if let Some(subgroup) = self.subgroups.get_mut(number) {
                subgroup.injection[index].state = Injection::Sending(message);
            }
        }
        served
    }

    /// Sends the next packet of a message, or reads the next piece of one that is not sent.
    fn serve_message(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        fifo: u16,
        message: &mut Message,
    ) -> Served {
        match message.kind {
            Kind::Prefetch => self.prefetch(context, fifo, message),
            _ => self.send(network, context, fifo, message),
        }
    }

    /// Fetches and checks the descriptor at a FIFO's head. Returns `None` if the FIFO has stopped.
    #[inline]
    fn fetch(&mut self, network: &NetworkUnit, context: &mut Context<'_>, fifo: u16) -> Option<Message> {
        let (number, index) = subgroup_and_index(fifo);
        let subgroup = self.subgroups.get_mut(number)?;
        let owner = subgroup.owner();
        let InjectionFifo { ring, view, template, .. } = &mut subgroup.injection[index];
        let head = ring.head;

        let mut descriptor = Descriptor::default();
        let mut memory = Memory { context, ranges: &self.control.ranges };
        if let Err(fault) = memory.read_by(view, owner, head, descriptor.as_mut_bytes()) {
            self.stop_for_memory(fifo, owner, head, fault);
            return None;
        }

        match Message::new(&descriptor, template, network, owner.is_system) {
            Ok(mut message) => {
                message.set_mark(self.identity.mark_on(message.route, message.header()));
                message.ready = self.timing.fetched(context.now());
                Some(message)
            }
            Err(rejected) => {
                self.reject(fifo, rejected);
                None
            }
        }
    }

    /// Sends the next packet of a message.
    fn send(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        fifo: u16,
        message: &mut Message,
    ) -> Served {
        let now = context.now();
        let Some(route) = message.route else { return Served::Inactive };
        if !retry::is_due(context, message.ready) {
            return Served::Blocked;
        }

        let Some(engine) = self.choose_engine(network, context, route.fifos()) else {
            self.counters[counter::SEND_WAITS] += 1;
            return Served::Full(route.fifos());
        };

        if message.may_refer {
            if let Some(reference) = self.reference(context, fifo, message) {
                return self.send_reference(network, context, (fifo, engine), message, &reference);
            }
            message.may_refer = false;
        }

        let bytes = message.next_bytes();
        let length = HEADER + bytes.next_multiple_of(CHUNK);
        let Ok(mut packet) = context.ports().new_packet(length) else { return Served::Starved };
        packet.framing = 0;

        if let Err(stop) = self.fill(context, fifo, message, &mut packet, bytes) {
            context.ports().recycle(packet);
            return self.not_sent(fifo, message, stop);
        }
        if let Err(refused) = network.inject(engine, route, packet, now) {
            context.ports().recycle(refused.packet);
            return Served::Blocked;
        }

        self.next_engine = (engine + 1) % 16;
        self.counters[counter::PACKETS_SENT] += 1;
        self.counters[counter::BYTES_SENT] += bytes as u64;
        let (Source::Memory(address) | Source::Atomic { address, .. }) = message.source;
        self.timing.inject(now, engine, address, bytes as u64);
        self.advance(fifo, message, bytes as u64);
        Served::Moved(1)
    }

    /// Returns the reference to the payload of a message, if it can be leased.
    fn reference(&mut self, context: &mut Context<'_>, fifo: u16, message: &Message) -> Option<Reference> {
        let (number, index) = subgroup_and_index(fifo);
        let subgroup = self.subgroups.get_mut(number)?;
        let owner = subgroup.owner();
        let state = &mut subgroup.injection[index];
        if state.reference.is_some() {
            return state.reference.clone();
        }

        let Source::Memory(address) = message.source else { return None };
        let length = message.left;
        let is_permitted = self.identity.max_reference > 0
            && self.control.ranges.permit(owner.is_system, address, length, Access::Read)
            && context
                .count_dma_mappings(owner.attachment, address, length)
                .is_ok_and(|count| count <= MAX_MAPPINGS);
        if !is_permitted {
            return None;
        }

        let lease = context.dma_lease(owner.attachment, address, length, DmaAccess::Read).ok()?;
        state.reference = Some(Reference::new(lease, address));
        state.reference.clone()
    }

    /// Sends the next packet of a message, which refers to its payload.
    fn send_reference(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        (fifo, engine): (u16, u8),
        message: &mut Message,
        reference: &Reference,
    ) -> Served {
        let (Some(route), Source::Memory(address)) = (message.route, message.source) else {
            return Served::Inactive;
        };
        let bytes = message.left.min(self.identity.max_reference.into());
        let Ok(mut packet) = context.ports().new_packet(HEADER + CHUNK) else { return Served::Starved };

        let (header, place) = packet.bytes_mut().split_at_mut(HEADER);
        header.copy_from_slice(message.next_reference_header().as_bytes());
        place.copy_from_slice(Place::new(address - reference.start, bytes).as_bytes());
        packet.framing = bytes as u32;
        packet.memory = Some(Arc::clone(&reference.lease));

        if let Err(refused) = network.inject(engine, route, packet, context.now()) {
            context.ports().recycle(refused.packet);
            return Served::Blocked;
        }

        self.next_engine = (engine + 1) % 16;
        self.counters[counter::PACKETS_SENT] += reference::packets(bytes);
        self.counters[counter::BYTES_SENT] += bytes;
        self.timing.inject(context.now(), engine, address, bytes);
        self.advance(fifo, message, bytes);
        Served::Moved(reference::cost(bytes))
    }

    /// Ends a message once all packets that refer to its payload have been received.
    fn drain(&mut self, context: &mut Context<'_>, fifo: u16) -> Served {
        let (number, index) = subgroup_and_index(fifo);
        let Some(subgroup) = self.subgroups.get_mut(number) else { return Served::Inactive };
        let Some(reference) = &mut subgroup.injection[index].reference else { return Served::Inactive };
        if !reference.is_received() {
            // No event tells a sender that another device has recycled a packet.
            let look = reference.next_look();
            context.wake_at(context.now().after(look));
            return Served::Blocked;
        }

        if !reference.is_valid() {
            self.stop(fifo, fault::UNMAPPED);
            return Served::Inactive;
        }
        self.finish(fifo);
        Served::Moved(1)
    }

    /// Writes header and payload of a packet.
    #[inline]
    fn fill(
        &mut self,
        context: &mut Context<'_>,
        fifo: u16,
        message: &Message,
        packet: &mut Packet,
        bytes: usize,
    ) -> Result<(), Stop> {
        let (number, index) = subgroup_and_index(fifo);
        let owner = owner_of(number);
        let mut memory = Memory { context, ranges: &self.control.ranges };
        let (header, payload) = packet.bytes_mut().split_at_mut(HEADER);
        header.copy_from_slice(message.next_header(bytes).as_bytes());
        let (payload, padding) = payload.split_at_mut(bytes);
        padding.fill(0);

        match message.source {
            Source::Memory(address) => match self.subgroups.get_mut(number) {
                Some(subgroup) => {
                    let view = &mut subgroup.injection[index].payload;
                    memory.read_by(view, owner, address, payload).map_err(Stop::memory)
                }
                None => memory.read(owner, address, payload).map_err(Stop::memory),
            },
            Source::Atomic { address, operation } => {
                let value =
                    atomic::load(&mut memory, owner, address, operation).map_err(|error| match error {
                        NotDone::Contended => Stop::Contended,
                        NotDone::Fault(fault) => Stop::memory(fault),
                    })?;
                payload.copy_from_slice(&value.to_le_bytes()[..bytes.min(8)]);
                self.counters[counter::ATOMICS] += 1;
                Ok(())
            }
        }
    }

    /// Handles a packet that could not be made.
    #[cold]
    fn not_sent(&mut self, fifo: u16, message: &Message, stop: Stop) -> Served {
        let Stop::Fault(fault) = stop else {
            self.is_contended = true;
            return Served::Blocked;
        };
        let (Source::Memory(address) | Source::Atomic { address, .. }) = message.source;
        self.report_range(owner_of(subgroup_and_index(fifo).0), address, error::XM_READ_RANGE, fault);
        self.stop(fifo, fault);
        Served::Inactive
    }

    /// Reads the next piece of a message that is not sent. It takes an engine, as a packet does.
    fn prefetch(&mut self, context: &mut Context<'_>, fifo: u16, message: &mut Message) -> Served {
        let open = self.timing.idle(context, self.control.injection_engines);
        let Some(engine) = in_turn(open.into(), self.next_engine) else { return Served::Blocked };

        let owner = owner_of(subgroup_and_index(fifo).0);
        let (Source::Memory(address) | Source::Atomic { address, .. }) = message.source;
        let mut piece = [0; MAX_PAYLOAD];
        let bytes = message.next_bytes();

        let mut memory = Memory { context, ranges: &self.control.ranges };
        if let Err(fault) = memory.read(owner, address, &mut piece[..bytes]) {
            return self.not_sent(fifo, message, Stop::memory(fault));
        }
        self.counters[counter::PREFETCHED] += bytes as u64;
        self.timing.inject(context.now(), engine, address, bytes as u64);
        self.advance(fifo, message, bytes as u64);
        Served::Moved(1)
    }

    /// Records that `bytes` of a message have been sent, and ends it after its last packet.
    #[inline]
    fn advance(&mut self, fifo: u16, message: &mut Message, bytes: u64) {
        let is_done = message.advance(bytes);
        let (number, index) = subgroup_and_index(fifo);
        let Some(subgroup) = self.subgroups.get_mut(number) else { return };
        let state = &mut subgroup.injection[index];
        if !is_done {
            state.state = Injection::Sending(*message);
        } else if state.reference.is_some() {
            state.state = Injection::Draining;
        } else {
            self.finish(fifo);
        }
    }

    /// Ends a message: the head moves past its descriptor.
    #[inline]
    fn finish(&mut self, fifo: u16) {
        let (number, index) = subgroup_and_index(fifo);
        let Some(subgroup) = self.subgroups.get_mut(number) else { return };
        let state = &mut subgroup.injection[index];

        let before = state.ring.free();
        (state.state, state.reference) = (Injection::Waiting, None);
        state.ring.consume(DESCRIPTOR);
        state.descriptors += 1;
        subgroup.injection_moved(index, before);

        let is_for_gets = subgroup.remote_get >> index & 1 == 1;
        self.subgroups.mark_changed(number);
        self.counters[counter::DESCRIPTORS] += 1;
        if is_for_gets {
            self.engines.wake_injection(fifo);
        }
    }

    /// Stops a FIFO whose descriptor is not possible.
    #[cold]
    fn reject(&mut self, fifo: u16, rejected: Rejected) {
        self.errors.report_about(Set::Descriptor, rejected.error, Info::Descriptor, fifo.into());
        if rejected.error == error::MCSRAM_SYSTEM_FIFO {
            self.errors.report_about(Set::Descriptor, rejected.error, Info::SystemFifo, fifo.into());
        }
        self.stop(fifo, rejected.fault);
    }

    /// Stops a FIFO whose own memory can't be read.
    #[cold]
    fn stop_for_memory(&mut self, fifo: u16, owner: Owner, address: u64, fault: MemoryFault) {
        self.report_range(owner, address, error::XM_READ_RANGE, fault_of(fault));
        self.stop(fifo, fault_of(fault));
    }

    /// Stops an injection FIFO. The others go on.
    #[cold]
    pub(crate) fn stop(&mut self, fifo: u16, fault: u64) {
        let (number, index) = subgroup_and_index(fifo);
        let Some(subgroup) = self.subgroups.get_mut(number) else { return };
        let state = &mut subgroup.injection[index];
        state.disable();
        state.fault = fault;
        subgroup.page.mark_injection(index);

        self.subgroups.mark_changed(number);
        self.counters[counter::FAULTS] += 1;
        // A remote get that waits for room must find that the FIFO has stopped.
        self.engines.wake_injection(fifo);
    }
}

/// Returns the subgroup of an injection FIFO, and its number there.
#[inline]
pub(crate) fn subgroup_and_index(fifo: u16) -> (u16, usize) {
    (fifo / INJECTION_FIFOS, usize::from(fifo % INJECTION_FIFOS))
}
