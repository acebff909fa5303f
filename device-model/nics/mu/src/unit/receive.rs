//! The reception engines: packets become entries of FIFOs, data in memory, or descriptors.
//!
//! In: packets in network reception FIFOs. Out: deposits in client memory, moved tails, interrupts,
//! errors. May touch: client memory, the network's reception FIFOs.
//!
//! A packet that finds a full FIFO stays in its network reception FIFO, and delays those behind it.
//! Its engine tries again when the FIFO has room. `fifo` is a FIFO's number among all FIFOs of its
//! kind on the node, and `index` its number in its subgroup.
//!
//! A packet with an error, or for a subgroup without a client, is dropped and counted.

use nicforge_core::{context::Context, fabric::Contents};
use nicforge_hwi::{
    mu::{ALL_INJECTION_FIFOS, ALL_RECEPTION_FIFOS, DESCRIPTOR, RECEPTION_FIFOS, USER_SUBGROUPS},
    mu_dcr::{counter, error},
    mu_packet::{
        HEADER, MAX_PAYLOAD, PacketHeader, UnitHeader, channel, packet_type, reception_fifo, routing,
    },
};
use nicforge_kit::in_turn;
use zerocopy::FromBytes;

use super::{
    Unit, engine_after,
    errors::{ErrorInfo, ErrorSet},
    inject::subgroup_and_index,
    memory::{Memory, MemoryFault, Owner, fault_of},
    reference,
    ring::Ring,
    subgroup::{InjectionFifo, ReceptionFifo},
    view::View,
    waits::Wait,
};
use crate::network::NetworkUnit;

/// Sets of engines by priority, highest first: system, user high priority, others.
const PRIORITIES: [u16; 3] = [
    1 << reception_fifo::SYSTEM | 1 << reception_fifo::COLLECTIVE_SYSTEM,
    1 << reception_fifo::PRIORITY,
    !(1 << reception_fifo::SYSTEM | 1 << reception_fifo::COLLECTIVE_SYSTEM | 1 << reception_fifo::PRIORITY),
];

/// Reasons why a packet was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undelivered {
    /// A FIFO in memory has no room.
    Full(Wait),
    /// A word of memory changes too often. The packet is tried again.
    Contended,
    /// The packet is dropped.
    Dropped,
}

/// A packet that is being delivered.
pub(crate) struct Arrival<'a> {
    /// The number of its network reception FIFO.
    pub(crate) engine: u8,
    header: PacketHeader,
    /// Header and payload.
    bytes: &'a [u8],
    /// It came on a virtual channel of the system.
    pub(crate) is_system: bool,
}

impl Arrival<'_> {
    /// Returns the bytes after the header.
    pub(crate) fn payload(&self) -> &[u8] {
        self.bytes.get(HEADER..).unwrap_or_default()
    }

    /// Returns the Message Unit's part of the header.
    pub(crate) fn unit(&self) -> &UnitHeader {
        &self.header.unit
    }
}

impl Unit {
    /// Delivers packets, about `budget` at most. Returns their number.
    pub(crate) fn receive(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        budget: u32,
    ) -> u32 {
        let now = context.now();
        // Engines that may deliver their first packet. Those that can't are left out of this call.
        let mut open = network.fifos_with_packets(now)
            & self.control.reception_engines
            & !self.reception_waits.waiting();
        let mut taken = 0;

        while taken < budget && open != 0 {
            let highest = PRIORITIES.into_iter().map(|engines| engines & open).find(|&engines| engines != 0);
            let Some(engine) = in_turn(highest.unwrap_or(open).into(), self.reception_waits.turn) else {
                break;
            };
            self.reception_waits.turn = engine_after(engine);

            // Packets in a row are delivered together, where that is possible.
            let row = self.deposit_row(network, context, engine, budget - taken);
            if row > 0 {
                taken += row;
                continue;
            }

            let Some(packet) = network.front(engine, now) else {
                open &= !(1 << engine);
                continue;
            };
            // Packets that refer to client memory count it as framing.
            let payload_bytes = match packet.memory {
                Some(_) => packet.framing.into(),
                None => packet.len().saturating_sub(HEADER) as u64,
            };
            if !self.timing.take_first(context, engine, payload_bytes) {
                open &= !(1 << engine);
                continue;
            }

            let cost = reference::budget_cost(payload_bytes);
            match self.deliver(context, engine, packet) {
                Ok(()) | Err(Undelivered::Dropped) => {
                    if let Some(packet) = network.take(engine, now) {
                        context.ports().recycle(packet);
                    }
                    self.timing.end_first(engine);
                    taken += cost;
                }
                Err(Undelivered::Full(wait)) => {
                    self.reception_waits.wait(engine, wait);
                    self.counters[counter::RECEIVE_WAITS] += 1;
                    open &= !(1 << engine);
                }
                Err(Undelivered::Contended) => {
                    self.is_contended = true;
                    open &= !(1 << engine);
                }
            }
        }
        taken
    }

    /// Checks a packet, and delivers it according to its type.
    pub(super) fn deliver(
        &mut self,
        context: &mut Context<'_>,
        engine: u8,
        packet: &Contents,
    ) -> Result<(), Undelivered> {
        let bytes = packet.bytes();
        let Ok((header, payload)) = PacketHeader::read_from_prefix(bytes) else {
            return Err(self.drop_for_header(engine));
        };
        if payload.len() > MAX_PAYLOAD || header.payload_bytes() != payload.len() {
            return Err(self.drop_for_header(engine));
        }

        // The mark names the tenants that the packet was sent to; 0 stands for any.
        let mark = u16::from_le_bytes(header.injection_info);
        if mark != 0 && mark != self.identity.mark_at(self.identity.node, &header) {
            self.tenancies.stale += 1;
            return Err(self.drop_packet());
        }

        let is_system = matches!(header.channel(), channel::SYSTEM | channel::SYSTEM_COLLECTIVE);
        let arrival = Arrival { engine, header, bytes, is_system };
        if let Some(lease) = &packet.memory {
            return self.deliver_referring_put(context, &arrival, lease);
        }

        match header.packet_type() {
            packet_type::FIFO => self.deposit_packet(context, &arrival),
            packet_type::PUT => self.deliver_put(context, &arrival),
            packet_type::GET => self.deliver_get(context, &arrival),
            _ => Err(self.drop_for_header(engine)),
        }
    }

    /// Writes a packet into a reception FIFO.
    fn deposit_packet(
        &mut self,
        context: &mut Context<'_>,
        arrival: &Arrival<'_>,
    ) -> Result<(), Undelivered> {
        let fifo = arrival.unit().reception_fifo();
        let (subgroup_id, index) = reception_subgroup_and_index(fifo);
        if fifo >= ALL_RECEPTION_FIFOS {
            return Err(self.drop_at_reception(error::RCSRAM_INDEX, fifo));
        }
        if subgroup_id >= USER_SUBGROUPS && !arrival.is_system {
            return Err(self.drop_at_reception(error::RCSRAM_SYSTEM, fifo));
        }

        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else {
            return Err(self.drop_without_client());
        };
        let owner = subgroup.owner();
        let target = &mut subgroup.reception[index];
        if !target.is_enabled {
            return Err(self.drop_at_subgroup_reception(subgroup_id, error::RCSRAM_DISABLED, fifo));
        }

        let (length, free_before) = (arrival.bytes.len() as u64, target.ring.free());
        if !target.ring.has_room(length) {
            let (error, info) = (error::RMFIFO_INSUFFICIENT_SPACE, ErrorInfo::FullReception);
            self.errors.record_with_info(ErrorSet::Fifo, error, info, fifo.into());
            return Err(Undelivered::Full(Wait::Reception(fifo)));
        }

        let tail = target.ring.tail;
        let mut memory = Memory { context, ranges: &self.control.ranges };
        let ReceptionFifo { ring, view, .. } = &mut *target;
        if let Err(fault) = write_at_tail(&mut memory, view, owner, ring, arrival.bytes) {
            // The FIFO's memory can't be reached, and no later packet could reach it, so it stops.
            (target.is_enabled, target.fault) = (false, fault_of(fault));
            subgroup.page.mark_reception(index);
            self.reception_waits.wake_for_reception(fifo);
            self.report_range(owner, tail, error::XM_WRITE_RANGE, fault_of(fault));
            return Err(self.drop_for(subgroup_id));
        }

        // The packet is in memory, so the tail may move past it. One packet is written at a time,
        // so packets become visible in the order in which they lie in the FIFO.
        target.ring.produce(length);
        let interrupts = arrival.header.byte2 & routing::INTERRUPT != 0;
        subgroup.reception_moved(index, free_before, interrupts);
        self.subgroups.mark_changed(subgroup_id);
        self.counters[counter::FIFO_PACKETS] += 1;
        self.counters[counter::BYTES_RECEIVED] += arrival.payload().len() as u64;
        Ok(())
    }

    /// Puts the descriptors of a remote get into an injection FIFO.
    fn deliver_get(&mut self, context: &mut Context<'_>, arrival: &Arrival<'_>) -> Result<(), Undelivered> {
        let payload = arrival.payload();
        if payload.is_empty() || !payload.len().is_multiple_of(DESCRIPTOR as usize) {
            return Err(self.drop_for_header(arrival.engine));
        }

        let fifo = arrival.unit().get_fifo();
        let (subgroup_id, index) = subgroup_and_index(fifo);
        if fifo >= ALL_INJECTION_FIFOS || subgroup_id >= USER_SUBGROUPS && !arrival.is_system {
            self.errors.report_with_info(
                ErrorSet::Get,
                error::ICSRAM_SELECT_SYSTEM,
                ErrorInfo::Get,
                fifo.into(),
            );
            return Err(self.drop_packet());
        }

        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else {
            return Err(self.drop_without_client());
        };
        if subgroup.remote_get >> index & 1 == 0 {
            return Err(self.drop_get(fifo, error::ICSRAM_SELECT_NO_GET));
        }
        if !subgroup.injection[index].is_enabled() {
            return Err(self.drop_get(fifo, error::ICSRAM_SELECT_DISABLED));
        }

        let owner = subgroup.owner();
        let InjectionFifo { ring, get_view, .. } = &mut subgroup.injection[index];
        let ring = *ring;
        if payload.len() as u64 >= ring.size() {
            // One slot stays free, so the packet would never have room.
            let (error, info) = (error::ICSRAM_GET_FULL, ErrorInfo::FullInjection);
            self.errors.report_with_info(ErrorSet::Injection, error, info, fifo.into());
            return Err(self.drop_for(subgroup_id));
        }
        if !ring.has_room(payload.len() as u64) {
            let (error, info) = (error::ICSRAM_GET_FULL, ErrorInfo::FullInjection);
            self.errors.record_with_info(ErrorSet::Injection, error, info, fifo.into());
            return Err(Undelivered::Full(Wait::Injection(fifo)));
        }

        let mut memory = Memory { context, ranges: &self.control.ranges };
        if let Err(fault) = write_at_tail(&mut memory, get_view, owner, &ring, payload) {
            self.report_range(owner, ring.tail, error::XM_WRITE_RANGE, fault_of(fault));
            self.stop(fifo, fault_of(fault));
            return Err(self.drop_for(subgroup_id));
        }
        self.accept_get(fifo, payload.len() as u64);
        Ok(())
    }

    /// Moves the tail of an injection FIFO past the descriptors of a remote get, so that they are
    /// fetched.
    fn accept_get(&mut self, fifo: u16, bytes: u64) {
        let (subgroup_id, index) = subgroup_and_index(fifo);
        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { return };
        let free_before = subgroup.injection[index].ring.free();
        subgroup.injection[index].ring.produce(bytes);
        subgroup.injection_moved(index, free_before);

        let priority = subgroup.priority(index);
        self.active.add(fifo, priority);
        self.subgroups.mark_changed(subgroup_id);
        self.counters[counter::GET_PACKETS] += 1;
        self.counters[counter::BYTES_RECEIVED] += bytes;
    }
}

/// Writes data at the tail of a FIFO that has room for it, in two pieces if the memory ends in
/// between.
fn write_at_tail(
    memory: &mut Memory<'_, '_>,
    view: &mut View,
    owner: Owner,
    ring: &Ring,
    data: &[u8],
) -> Result<(), MemoryFault> {
    let front_bytes = data.len().min(usize::try_from(ring.contiguous_at_tail()).unwrap_or(usize::MAX));
    let (front, rest) = data.split_at(front_bytes);
    memory.write_by(view, owner, ring.tail, front)?;
    if rest.is_empty() { Ok(()) } else { memory.write_by(view, owner, ring.start, rest) }
}

/// Returns the number of a reception FIFO's subgroup, and its index there.
#[inline]
pub(crate) fn reception_subgroup_and_index(fifo: u16) -> (u16, usize) {
    (fifo / RECEPTION_FIFOS, usize::from(fifo % RECEPTION_FIFOS))
}

/// Returns the number of a reception FIFO among all of the node.
#[inline]
pub(crate) fn reception_fifo(subgroup_id: u16, index: usize) -> u16 {
    subgroup_id * RECEPTION_FIFOS + index as u16
}
