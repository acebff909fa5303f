//! Deposits: packets of a link, or of a network reception FIFO, that go to client memory in a row.
//!
//! Where one reception FIFO gets packets that follow each other, it and its memory are looked up
//! once for all of them. The packets and counters are the same as one by one.
//!
//! In: packets of a link or of a network reception FIFO. Out: packets in a reception FIFO of
//! a client, moved tails. May touch: client memory by views, network FIFOs.
//!
//! Rows have packets for one user's FIFO, in memory that its view holds. Everything else ends a row
//! and is left to `receive`, and so are all faults of packets for FIFOs. A put that bypasses its
//! network FIFO is delivered by `deliver`, faults included, like those that `receive` takes.

use nicforge_core::{
    context::Context,
    fabric::{Contents, Packet},
};
use nicforge_hwi::{
    mu::{RECEPTION_FIFOS, USER_SUBGROUPS},
    mu_dcr::counter,
    mu_packet::{CHUNK, HEADER, MAX_PAYLOAD, PacketHeader, packet_type, routing},
};
use nicforge_network::router::Bypass;
use zerocopy::FromBytes;

use super::{
    Unit, engine_after,
    ranges::Access,
    receive::{Undelivered, reception_subgroup_and_index},
    subgroup::ReceptionFifo,
    view::HeldMemory,
};
use crate::network::NetworkUnit;

/// A reception FIFO that gets packets in a row, until its memory ends.
struct RowReceiver<'a> {
    /// Address at which the next packet is written.
    tail: u64,
    /// Bytes that fit there, all of which are permitted.
    room: u64,
    memory: HeldMemory<'a>,
    /// The header of the first packet, with which the others must share some fields.
    header: HeaderWords,
    /// The bitwise or of the first words of all headers: its interrupt bit is set if one of the
    /// packets asks for an interrupt.
    first_words: u64,
}

/// The first two little-endian words of a packet's header. They have the fields that all packets of
/// a row share: channel, packet type, mark and FIFO.
#[derive(Clone, Copy, Debug)]
struct HeaderWords {
    first: u64,
    second: u64,
}

impl HeaderWords {
    /// First word: the virtual channel, in byte 3 of the header.
    const CHANNEL: u64 = 0xe0 << 24;
    /// First word: the request for an interrupt, in byte 2.
    const INTERRUPT: u64 = (routing::INTERRUPT as u64) << 16;
    /// Second word: the packet type, in byte 8.
    const PACKET_TYPE: u64 = 0xc0;
    /// Second word: the number of chunks of payload, in byte 8.
    const CHUNKS: u64 = 0x1f;
    /// Second word: the mark, in bytes 9 and 10.
    const MARK: u64 = 0xffff << 8;
    /// Second word: the reception FIFO, in bytes 12 and 13.
    const FIFO: u64 = 0xffc0 << 32;

    /// Returns the words of a packet that carries its payload and has the length that its header
    /// states.
    #[inline(always)]
    fn of(packet: &Contents) -> Option<Self> {
        let bytes = packet.bytes();
        let word = |at: usize| {
            let word = bytes.get(at..)?.first_chunk()?;
            Some(u64::from_le_bytes(*word))
        };
        let (first, second) = (word(0)?, word(8)?);
        let length = HEADER + (second & Self::CHUNKS) as usize * CHUNK;
        let is_valid = bytes.len() == length && length <= HEADER + MAX_PAYLOAD && packet.memory.is_none();
        is_valid.then_some(Self { first, second })
    }

    /// Returns whether the packets of two headers can be in one row.
    #[inline(always)]
    fn is_same_row(self, other: Self) -> bool {
        const SECOND: u64 = HeaderWords::PACKET_TYPE | HeaderWords::MARK | HeaderWords::FIFO;
        (self.first ^ other.first) & Self::CHANNEL == 0 && (self.second ^ other.second) & SECOND == 0
    }
}

impl RowReceiver<'_> {
    /// Writes a packet at the tail. Returns false, and changes nothing, if it ends the row.
    #[inline(always)]
    fn accept(&mut self, packet: &Contents) -> bool {
        let Some(header) = HeaderWords::of(packet) else { return false };
        let length = packet.len() as u64;
        let is_written = header.is_same_row(self.header)
            && length <= self.room
            && self.memory.write(self.tail, packet.bytes());
        if !is_written {
            return false;
        }

        self.tail += length;
        self.room -= length;
        self.first_words |= header.first;
        true
    }
}

/// The reception FIFO of a row of packets, and the header of the first one.
struct RowTarget {
    fifo: u16,
    header: HeaderWords,
}

impl Unit {
    /// Writes packets of an engine's network reception FIFO into a user's reception FIFO, at most
    /// `limit`. Returns their number, which is 0 where a row is not possible.
    pub(super) fn deposit_row(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        engine: u8,
        limit: u32,
    ) -> u32 {
        let now = context.now();
        let first = network.front(engine, now);
        let Some(target) = first.and_then(|packet| self.row_target(packet)) else { return 0 };
        let (mut ports, mut left) = (context.ports(), limit);
        self.deposit_packets(target, |receiver| {
            let accept = |packet: &Packet| {
                let is_accepted = left > 0 && receiver.accept(packet);
                left -= u32::from(is_accepted);
                is_accepted
            };
            network.take_row(engine, now, accept, |packet| ports.recycle(packet))
        })
    }

    /// Writes packets of a link into a user's reception FIFO, and delivers its puts, at most
    /// `limit` together, as if they had come through their network reception FIFO. Returns their
    /// number.
    pub(crate) fn deposit_bypassing(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        bypass: &mut Bypass,
        limit: u32,
    ) -> u32 {
        let open_engines = self.control.reception_engines & !self.reception_waits.waiting();
        if open_engines >> bypass.fifo & 1 == 0 {
            return 0;
        }

        let mut passed = 0;
        while passed < limit {
            let mut ports = context.ports();
            let Some(first) = bypass.first(&ports) else { break };
            let row = match self.row_target(first) {
                Some(target) => self.deposit_packets(target, |receiver| {
                    network.bypass_row(&mut ports, bypass, limit - passed, |packet| receiver.accept(packet))
                }),
                None => u32::from(self.deliver_bypassing(network, context, bypass)),
            };
            if row == 0 {
                break;
            }
            passed += row;
        }

        if passed > 0 {
            self.reception_waits.turn = engine_after(bypass.fifo);
        }
        passed
    }

    /// Delivers the first packet of a link, if it is a put that carries its payload. Returns
    /// whether it has passed its network reception FIFO.
    fn deliver_bypassing(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        bypass: &mut Bypass,
    ) -> bool {
        if !self.timing.is_instant() {
            return false;
        }
        let Some(packet) = network.bypass_put(&mut context.ports(), bypass) else { return false };

        match self.deliver(context, bypass.fifo, &packet) {
            Ok(()) | Err(Undelivered::Dropped) => {
                context.ports().recycle(packet);
                true
            }
            // The reception engine tries it again from its FIFO.
            Err(Undelivered::Full(_) | Undelivered::Contended) => {
                network.put_in_fifo(bypass, packet, context.now());
                false
            }
        }
    }

    /// Returns the target of a row that begins with a packet. Returns `None` if the packet is not
    /// for a user's reception FIFO, or is for a former tenant.
    #[inline]
    fn row_target(&self, packet: &Contents) -> Option<RowTarget> {
        let (header, _) = PacketHeader::ref_from_prefix(packet.bytes()).ok()?;
        let fifo = header.unit.reception_fifo();
        if header.packet_type() != packet_type::FIFO || fifo / RECEPTION_FIFOS >= USER_SUBGROUPS {
            return None;
        }

        // The mark names the tenant that the packet was sent to; 0 stands for any.
        let mark = u16::from_le_bytes(header.injection_info);
        let is_current = mark == 0 || mark == self.identity.mark_at(self.identity.node, header);
        HeaderWords::of(packet).filter(|_| is_current).map(|header| RowTarget { fifo, header })
    }

    /// Calls `pass_packets` with a receiver for the packets of a row. It passes packets to the
    /// receiver, and returns the number of those that were accepted. Moves the tail past these
    /// packets, and returns their number.
    #[inline(always)]
    fn deposit_packets(
        &mut self,
        RowTarget { fifo, header }: RowTarget,
        pass_packets: impl FnOnce(&mut RowReceiver<'_>) -> u32,
    ) -> u32 {
        let (subgroup_id, index) = reception_subgroup_and_index(fifo);
        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { return 0 };
        let ReceptionFifo { ring, view, is_enabled, .. } = &mut subgroup.reception[index];
        let Some(memory) = view.held().filter(|_| *is_enabled && self.timing.is_instant()) else { return 0 };

        // One byte of a FIFO always stays free.
        let (free_before, tail) = (ring.free(), ring.tail);
        let room = free_before.saturating_sub(1).min(ring.contiguous_at_tail());
        if !self.control.ranges.permit(false, tail, room, Access::Write) {
            return 0;
        }

        let mut receiver = RowReceiver { tail, room, memory, header, first_words: 0 };
        let accepted = pass_packets(&mut receiver);

        let RowReceiver { tail: end, first_words, .. } = receiver;
        if accepted > 0 {
            // The packets are in memory, so the tail may move past them.
            ring.produce(end - tail);
            let packet_interrupts = first_words & HeaderWords::INTERRUPT != 0;
            subgroup.reception_moved(index, free_before, packet_interrupts);
            self.subgroups.mark_changed(subgroup_id);
            self.counters[counter::FIFO_PACKETS] += u64::from(accepted);
            self.counters[counter::BYTES_RECEIVED] += end - tail - u64::from(accepted) * HEADER as u64;
        }
        accepted
    }
}
