//! The injection engines: descriptors become packets.
//!
//! In: FIFOs that `arbitrate` has chosen. Out: packets in network injection FIFOs, moved heads,
//! faults. May touch: client memory, the network's injection FIFOs.
//!
//! A descriptor is fetched when its FIFO is chosen, not when the tail moves. `fifo` is a FIFO's
//! number among all injection FIFOs of the node, and `index` its number in its subgroup.

use std::sync::Arc;

use nicforge_core::{context::Context, dma::Term, fabric::Packet};
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
    engine_after,
    errors::{ErrorInfo, ErrorSet},
    memory::{Memory, MemoryFault, Owner, fault_of},
    message::{Kind, Message, PayloadSource, Rejected},
    ranges::Access,
    reference::{self, CHECK_DELAY, MAX_MAPPINGS, PayloadPlace, Reference},
    stamps,
    subgroup::{Injection, InjectionFifo, owner_of},
};
use crate::network::NetworkUnit;

/// Result of a visit to an active FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// A packet was sent, or a piece prefetched. It takes this much of the step's budget.
    Moved(u32),
    /// None of these network FIFOs, to which its message may go, has room.
    Full(u16),
    /// Its message is not ready, its packets have not all been received, or the word of an atomic
    /// operation is contended.
    Blocked,
    /// The FIFO has no more descriptors, or has stopped.
    Inactive,
    /// The fabric has no free packet.
    Starved,
}

/// Reasons why the next packet of a FIFO can't be made.
enum NotMade {
    /// A fault, one of [`fault`], which stops the FIFO.
    Fault(u64),
    /// The word of an atomic operation is contended. The FIFO tries again.
    Contended,
}

impl NotMade {
    /// Returns the reason for memory that can't be reached.
    fn memory(fault: MemoryFault) -> Self {
        Self::Fault(fault_of(fault))
    }
}

impl Unit {
    /// Returns those engines of a FIFO map that are idle and whose network FIFO has room.
    #[inline]
    pub(super) fn open_engines(&self, network: &NetworkUnit, context: &mut Context<'_>, map: u16) -> u16 {
        let open = network.room(map & self.control.injection_engines, context.now());
        self.timing.idle_engines(context, open)
    }

    /// Returns the engine of a FIFO map whose turn it is, among those that are idle and whose
    /// network FIFO has room.
    #[inline]
    fn choose_engine(&self, network: &NetworkUnit, context: &mut Context<'_>, map: u16) -> Option<u8> {
        if self.timing.has_clock() {
            return in_turn(self.open_engines(network, context, map).into(), self.next_engine);
        }
        // All engines are idle, so the search ends at the first FIFO with room.
        let map = map & self.control.injection_engines;
        network.next_with_room(map, self.next_engine, context.now())
    }

    /// Sends the next packet of an active FIFO. Fetches its next descriptor first, if it has no
    /// message in service.
    pub(super) fn serve(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        fifo: u16,
    ) -> Served {
        let (subgroup_id, index) = subgroup_and_index(fifo);
        let Some(subgroup) = self.subgroups.get(subgroup_id) else { return Served::Inactive };
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

    /// Fetches the descriptor at a FIFO's head, and sends the first packet of its message. The
    /// FIFO's state does not change for a message that this packet ends.
    fn serve_new(&mut self, network: &mut NetworkUnit, context: &mut Context<'_>, fifo: u16) -> Served {
        let Some(mut message) = self.fetch(network, context, fifo) else { return Served::Inactive };
        let served = self.serve_message(network, context, fifo, &mut message);

        // The message waits in the FIFO's state, so that its descriptor is not fetched again.
        if matches!(served, Served::Blocked | Served::Full(_) | Served::Starved) {
            let (subgroup_id, index) = subgroup_and_index(fifo);
            if let Some(subgroup) = self.subgroups.get_mut(subgroup_id) {
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
        let (subgroup_id, index) = subgroup_and_index(fifo);
        let subgroup = self.subgroups.get_mut(subgroup_id)?;
        let owner = subgroup.owner();
        let InjectionFifo { ring, view, template, .. } = &mut subgroup.injection[index];
        let (head, is_for_gets) = (ring.head, subgroup.remote_get >> index & 1 == 1);

        let mut descriptor = Descriptor::default();
        let mut memory = Memory { context, ranges: &self.control.ranges };
        if let Err(fault) = memory.read_by(view, owner, head, descriptor.as_mut_bytes()) {
            self.stop_for_memory(fifo, owner, head, fault);
            return None;
        }
        context.trace(
            Some(owner.attachment),
            "descriptor",
            &[
                ("fifo", fifo.into()),
                ("at", head),
                ("payload", descriptor.pa_payload),
                ("length", descriptor.message_length),
            ],
        );

        match Message::new(&descriptor, template, network, owner.is_system) {
            Ok(mut message) => {
                let header = &descriptor.packet_header;
                message.set_mark(self.identity.mark_of(message.route, header, is_for_gets));
                message.ready = self.timing.ready_time(context.now());
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
                return self.send_reference(network, context, fifo, engine, message, &reference);
            }
            message.may_refer = false;
        }

        let bytes = message.next_bytes();
        let length = HEADER + bytes.next_multiple_of(CHUNK);
        let Ok(mut packet) = context.ports().new_packet(length) else { return Served::Starved };
        packet.framing = 0;

        if let Err(reason) = self.fill(context, fifo, message, &mut packet, bytes) {
            context.ports().recycle(packet);
            return self.not_sent(fifo, message, reason);
        }
        if let Err(refused) = network.inject(engine, route, packet, now) {
            context.ports().recycle(refused.packet);
            return Served::Blocked;
        }

        self.next_engine = engine_after(engine);
        self.counters[counter::PACKETS_SENT] += 1;
        self.counters[counter::BYTES_SENT] += bytes as u64;
        let (PayloadSource::Memory(address) | PayloadSource::Atomic { address, .. }) = message.source;
        self.timing.charge_injection(now, engine, address, bytes as u64);
        self.advance(fifo, message, bytes as u64);
        Served::Moved(1)
    }

    /// Returns the reference to the payload of a message. Returns `None` if packets can't refer to
    /// memory, or the payload can't be leased.
    fn reference(&mut self, context: &mut Context<'_>, fifo: u16, message: &Message) -> Option<Reference> {
        let (subgroup_id, index) = subgroup_and_index(fifo);
        let subgroup = self.subgroups.get_mut(subgroup_id)?;
        let owner = subgroup.owner();
        let fifo = &mut subgroup.injection[index];
        if fifo.reference.is_some() {
            return fifo.reference.clone();
        }

        let PayloadSource::Memory(address) = message.source else { return None };
        let length = message.left;
        let is_possible = self.identity.max_reference > 0
            && self.control.ranges.permit(owner.is_system, address, length, Access::Read)
            && context
                .count_dma_mappings(owner.attachment, address, length)
                .is_ok_and(|count| count <= MAX_MAPPINGS);
        if !is_possible {
            return None;
        }

        // The receiver of the last packet wakes this function.
        let term = Term::waking(context.function());
        let leased = context.dma_piece(owner.attachment, address, length, &term).ok()?;
        let is_readable = leased.permission.read && leased.length == length;
        let lease = leased.lease.filter(|_| is_readable)?;
        fifo.reference = Some(Reference::new(lease, address));
        fifo.reference.clone()
    }

    /// Sends the next packet of a message, which refers to its payload instead of carrying it.
    fn send_reference(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        fifo: u16,
        engine: u8,
        message: &mut Message,
        reference: &Reference,
    ) -> Served {
        let (Some(route), PayloadSource::Memory(address)) = (message.route, message.source) else {
            return Served::Inactive;
        };
        let bytes = message.left.min(self.identity.max_reference.into());
        let Ok(mut packet) = context.ports().new_packet(HEADER + CHUNK) else { return Served::Starved };

        let (header, place) = packet.bytes_mut().split_at_mut(HEADER);
        header.copy_from_slice(message.next_reference_header().as_bytes());
        place.copy_from_slice(PayloadPlace::new(address - reference.start, bytes).as_bytes());
        packet.framing = bytes as u32;
        packet.memory = Some(Arc::clone(&reference.lease));

        if let Err(refused) = network.inject(engine, route, packet, context.now()) {
            context.ports().recycle(refused.packet);
            return Served::Blocked;
        }

        self.next_engine = engine_after(engine);
        self.counters[counter::PACKETS_SENT] += reference::packet_count(bytes);
        self.counters[counter::BYTES_SENT] += bytes;
        self.timing.charge_injection(context.now(), engine, address, bytes);
        self.advance(fifo, message, bytes);
        Served::Moved(reference::budget_cost(bytes))
    }

    /// Ends a message once all packets that refer to its payload have been received.
    fn drain(&mut self, context: &mut Context<'_>, fifo: u16) -> Served {
        let (subgroup_id, index) = subgroup_and_index(fifo);
        let Some(subgroup) = self.subgroups.get(subgroup_id) else { return Served::Inactive };
        let Some(reference) = &subgroup.injection[index].reference else { return Served::Inactive };
        if !reference.is_received() {
            context.wake_at(context.now().after(CHECK_DELAY));
            return Served::Blocked;
        }

        // The payload was unmapped before its packets arrived.
        if !reference.is_valid() {
            self.stop(fifo, fault::UNMAPPED);
            return Served::Inactive;
        }
        self.finish(fifo);
        Served::Moved(1)
    }

    /// Writes the header and the payload of the next packet of a message, with `bytes` bytes of
    /// payload.
    #[inline]
    fn fill(
        &mut self,
        context: &mut Context<'_>,
        fifo: u16,
        message: &Message,
        packet: &mut Packet,
        bytes: usize,
    ) -> Result<(), NotMade> {
        let (subgroup_id, index) = subgroup_and_index(fifo);
        let owner = owner_of(subgroup_id);
        let mut memory = Memory { context, ranges: &self.control.ranges };
        let (header, payload) = packet.bytes_mut().split_at_mut(HEADER);
        header.copy_from_slice(message.next_header(bytes).as_bytes());
        let (payload, padding) = payload.split_at_mut(bytes);
        padding.fill(0);

        match message.source {
            PayloadSource::Memory(address) => {
                let read = match self.subgroups.get_mut(subgroup_id) {
                    Some(subgroup) => {
                        let view = &mut subgroup.injection[index].payload_view;
                        memory.read_by(view, owner, address, payload)
                    }
                    None => memory.read(owner, address, payload),
                };
                read.map_err(NotMade::memory)?;

                if message.kind == Kind::Get && stamps::are_possible(message.header()) {
                    self.identity.stamp(payload);
                }
                Ok(())
            }
            PayloadSource::Atomic { address, operation } => {
                let value =
                    atomic::load(&mut memory, owner, address, operation).map_err(|error| match error {
                        NotDone::Contended => NotMade::Contended,
                        NotDone::Fault(fault) => NotMade::memory(fault),
                    })?;
                payload.copy_from_slice(&value.to_le_bytes()[..bytes.min(8)]);
                self.counters[counter::ATOMICS] += 1;
                Ok(())
            }
        }
    }

    /// Handles a packet that can't be made: the FIFO stops, or tries again.
    #[cold]
    fn not_sent(&mut self, fifo: u16, message: &Message, reason: NotMade) -> Served {
        let NotMade::Fault(fault) = reason else {
            self.is_contended = true;
            return Served::Blocked;
        };
        let (PayloadSource::Memory(address) | PayloadSource::Atomic { address, .. }) = message.source;
        self.report_range(owner_of(subgroup_and_index(fifo).0), address, error::XM_READ_RANGE, fault);
        self.stop(fifo, fault);
        Served::Inactive
    }

    /// Reads the next piece of a message that is not sent. It takes an engine, as a packet does.
    fn prefetch(&mut self, context: &mut Context<'_>, fifo: u16, message: &mut Message) -> Served {
        let open = self.timing.idle_engines(context, self.control.injection_engines);
        let Some(engine) = in_turn(open.into(), self.next_engine) else { return Served::Blocked };

        let owner = owner_of(subgroup_and_index(fifo).0);
        let (PayloadSource::Memory(address) | PayloadSource::Atomic { address, .. }) = message.source;
        let mut piece = [0; MAX_PAYLOAD];
        let bytes = message.next_bytes();

        let mut memory = Memory { context, ranges: &self.control.ranges };
        if let Err(fault) = memory.read(owner, address, &mut piece[..bytes]) {
            return self.not_sent(fifo, message, NotMade::memory(fault));
        }
        self.counters[counter::PREFETCHED] += bytes as u64;
        self.timing.charge_injection(context.now(), engine, address, bytes as u64);
        self.advance(fifo, message, bytes as u64);
        Served::Moved(1)
    }

    /// Records that `bytes` of a message have been sent, and ends it after its last packet.
    #[inline]
    fn advance(&mut self, fifo: u16, message: &mut Message, bytes: u64) {
        let is_done = message.advance(bytes);
        let (subgroup_id, index) = subgroup_and_index(fifo);
        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { return };
        let own = &mut subgroup.injection[index];
        if !is_done {
            own.state = Injection::Sending(*message);
        } else if own.reference.is_some() {
            own.state = Injection::Draining;
        } else {
            self.finish(fifo);
        }
    }

    /// Ends the message in service: the head moves past its descriptor.
    #[inline]
    fn finish(&mut self, fifo: u16) {
        let (subgroup_id, index) = subgroup_and_index(fifo);
        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { return };
        let own = &mut subgroup.injection[index];

        let free_before = own.ring.free();
        (own.state, own.reference) = (Injection::Waiting, None);
        own.ring.consume(DESCRIPTOR);
        own.descriptors_done += 1;
        subgroup.injection_moved(index, free_before);

        // A remote get may wait for the room of this descriptor.
        let is_for_gets = subgroup.remote_get >> index & 1 == 1;
        self.subgroups.mark_changed(subgroup_id);
        self.counters[counter::DESCRIPTORS] += 1;
        if is_for_gets {
            self.reception_waits.wake_for_injection(fifo);
        }
    }

    /// Stops a FIFO whose descriptor was rejected.
    #[cold]
    fn reject(&mut self, fifo: u16, rejected: Rejected) {
        self.errors.report_with_info(
            ErrorSet::Descriptor,
            rejected.error,
            ErrorInfo::Descriptor,
            fifo.into(),
        );
        if rejected.error == error::MCSRAM_SYSTEM_FIFO {
            // The same event, in a second register.
            self.errors.record_with_info(
                ErrorSet::Descriptor,
                rejected.error,
                ErrorInfo::SystemFifo,
                fifo.into(),
            );
        }
        self.stop(fifo, rejected.fault);
    }

    /// Stops a FIFO whose own memory can't be read.
    #[cold]
    fn stop_for_memory(&mut self, fifo: u16, owner: Owner, address: u64, fault: MemoryFault) {
        self.report_range(owner, address, error::XM_READ_RANGE, fault_of(fault));
        self.stop(fifo, fault_of(fault));
    }

    /// Stops an injection FIFO because of a fault: one of [`fault`]. The other FIFOs go on.
    #[cold]
    pub(crate) fn stop(&mut self, fifo: u16, fault: u64) {
        let (subgroup_id, index) = subgroup_and_index(fifo);
        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { return };
        let own = &mut subgroup.injection[index];
        own.disable();
        own.fault = fault;
        subgroup.page.mark_injection(index);

        self.subgroups.mark_changed(subgroup_id);
        self.counters[counter::FAULTS] += 1;
        // A remote get that waits for room must find that the FIFO has stopped.
        self.reception_waits.wake_for_injection(fifo);
    }
}

/// Returns the number of an injection FIFO's subgroup, and its index there.
#[inline]
pub(crate) fn subgroup_and_index(fifo: u16) -> (u16, usize) {
    (fifo / INJECTION_FIFOS, usize::from(fifo % INJECTION_FIFOS))
}

/// Returns the number of an injection FIFO among all of the node.
#[inline]
pub(crate) fn injection_fifo(subgroup_id: u16, index: usize) -> u16 {
    subgroup_id * INJECTION_FIFOS + index as u16
}
