//! A virtual channel's send and receive FIFO at a node.
//!
//! Both are slots in mapped memory ([`nicforge_hwi::tree::window`], [`nicforge_hwi::tree::mirror`]). What the NIC itself puts into
//! the send FIFO (packets from the port, those of a tenant that is gone, presence symbols) waits beside the slots, each
//! with the number of the slot that it goes in front of, so that there is one order.
//!
//! Slots are read once into a packet of our own; the receive slots are in memory that clients can't write.

use std::{collections::VecDeque, sync::atomic::Ordering};

use nicforge_core::fabric::{Packet, Ports};
use nicforge_hwi::{
    tree::{Header, PAYLOAD, SLOT, SLOT_CONTROL, SLOT_PAYLOAD, mirror, vector, window},
    tree_dcr::{LOCK_OWNER_NIC, checksum, error_word, pix, prx, status, vcfg},
};
use nicforge_shm::{MemoryError, SharedMemory, SharedU32, Window};

use crate::{config::TreeConfig, presence::Presence};

/// Bytes of a packet on the wire beside the payload.
pub(crate) const FRAMING: u32 = 4;

/// Something that the NIC put into the send FIFO.
pub(crate) struct Side {
    /// Number of the slot it goes in front of.
    after: u32,
    item: SideItem,
}

pub(crate) enum SideItem {
    Packet(Packet),
    Presence { core: u8, generation: u8 },
}

/// What is first in the send FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    Empty,
    Packet(Header),
    Presence { core: u8, generation: u8 },
}

/// Whether the receive FIFO takes a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Yes,
    /// It waits.
    No,
    /// It is discarded: whom it was for is gone.
    Sink,
}

/// The mapped memory of a tenancy.
struct Windows {
    window: Window,
    mirror: Window,
    recv_head: SharedU32,
    lock_recv: SharedU32,
}

impl Windows {
    fn new(window: &SharedMemory, mirror: &SharedMemory) -> Result<Self, MemoryError> {
        Ok(Self {
            window: window.window(0, window::SIZE)?,
            mirror: mirror.window(0, mirror::SIZE)?,
            recv_head: window.u32(window::RECV_HEAD)?,
            lock_recv: window.u32(window::LOCK + window::LOCK_RECV * window::LOCK_STRIDE)?,
        })
    }

    fn show(&self, offset: u64, value: u32) {
        // The windows have their full size and are writable here, so this can't fail.
        let _ = self.mirror.store_u32_release(offset, value);
    }
}

/// What the mirror shows.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Shown {
    send_head: u32,
    recv_tail: u32,
    irq: u32,
    status: u32,
    error: u32,
}

/// One virtual channel's FIFOs.
pub(crate) struct Channel {
    number: u32,
    windows: Option<Windows>,
    /// Whether it has had a tenant.
    was_up: bool,
    send_depth: u32,
    recv_depth: u32,
    /// Packets taken out of the send slots, and the slot of the next one.
    send_head: u32,
    send_slot: u32,
    /// Send slots known to be filled, from the head on.
    send_seen: u32,
    /// Control word of the slot at the head, once it was read: it is not read again.
    current: Option<u64>,
    side: VecDeque<Side>,
    side_packets: u32,
    /// Packets put into and taken out of the receive slots, and their slots.
    recv_tail: u32,
    recv_tail_slot: u32,
    recv_head: u32,
    recv_head_slot: u32,
    /// Which receive slots hold a packet with the irq bit.
    irq: [u64; 4],
    irq_count: u32,
    bad_head: Option<u32>,
    /// The owner of the receive lock died; nobody has taken it since.
    guard: bool,
    shown: Shown,
    /// Exceptions set and not read yet.
    pub(crate) prx: u32,
    pub(crate) pix: u32,
    pub(crate) vcfg: u32,
    pub(crate) payload_checksum: u32,
    pub(crate) header_checksum: u32,
    watermarks: (bool, bool),
    /// Vectors to raise.
    pub(crate) events: u32,
    pub(crate) discarded: u64,
    /// Quads and headers that the port has pushed and that make no packet yet.
    pub(crate) staged: (u32, u32),
}

impl Channel {
    pub(crate) fn new(number: usize, config: &TreeConfig) -> Self {
        Self {
            number: number as u32,
            windows: None,
            was_up: false,
            send_depth: config.send_depth,
            recv_depth: config.recv_depth,
            send_head: 0,
            send_slot: 0,
            send_seen: 0,
            current: None,
            side: VecDeque::new(),
            side_packets: 0,
            recv_tail: 0,
            recv_tail_slot: 0,
            recv_head: 0,
            recv_head_slot: 0,
            irq: [0; 4],
            irq_count: 0,
            bad_head: None,
            guard: false,
            shown: Shown::default(),
            prx: 0,
            pix: 0,
            vcfg: 0,
            payload_checksum: 0,
            header_checksum: 0,
            watermarks: (false, false),
            events: 0,
            discarded: 0,
            staged: (0, 0),
        }
    }

    /// The first tenant came: `window` and `mirror` are new.
    pub(crate) fn open(
        &mut self,
        config: &TreeConfig,
        presence: &Presence,
        window: &SharedMemory,
        mirror: &SharedMemory,
    ) -> Result<(), MemoryError> {
        let windows = Windows::new(window, mirror)?;
        self.empty();
        self.windows = Some(windows);
        self.was_up = true;
        self.show_constants(config, presence);
        Ok(())
    }

    fn show_constants(&mut self, config: &TreeConfig, presence: &Presence) {
        let Some(windows) = &self.windows else { return };
        windows.show(mirror::NODE_ADDRESS, config.node_address);
        windows.show(mirror::CHANNEL, self.number);
        windows.show(mirror::SEND_DEPTH, config.send_depth);
        windows.show(mirror::RECV_DEPTH, config.recv_depth);
        windows.show(mirror::NODES, config.nodes);
        windows.show(mirror::IO_NODE, config.io_node);
        windows.show(mirror::PSET_RANK, config.pset_rank.unwrap_or(u32::MAX));
        windows.show(mirror::PSET_SIZE, config.pset_size);
        for (node, word) in presence.table(self.number as usize).iter().enumerate() {
            windows.show(mirror::PRESENCE + 4 * node as u64, *word);
        }
        windows.show(mirror::PRESENCE_CHANGES, presence.changes(self.number as usize));
        self.shown = Shown::default();
    }

    /// FIFOs and slot numbers as new; what waits beside the slots stays.
    fn empty(&mut self) {
        for side in &mut self.side {
            side.after = 0;
        }
        self.send_head = 0;
        self.send_slot = 0;
        self.send_seen = 0;
        self.current = None;
        self.recv_tail = 0;
        self.recv_tail_slot = 0;
        self.recv_head = 0;
        self.recv_head_slot = 0;
        self.irq = [0; 4];
        self.irq_count = 0;
        self.bad_head = None;
        self.guard = false;
        self.shown = Shown::default();
        self.watermarks = (false, false);
        self.prx = 0;
        self.pix = 0;
        self.staged = (0, 0);
    }

    /// The last tenant goes. What it had sent waits beside the slots from now on; what it had received is gone.
    pub(crate) fn close(&mut self, ports: &mut Ports<'_>) {
        self.keep_sent(ports);
        self.windows = None;
        self.empty();
    }

    fn keep_sent(&mut self, ports: &mut Ports<'_>) {
        let filled = self.send_filled();
        let mut kept = VecDeque::with_capacity(self.side.len() + filled as usize);
        let mut left = std::mem::take(&mut self.side);
        for _ in 0..filled {
            while left.front().is_some_and(|side| side.after == self.send_head) {
                kept.extend(left.pop_front());
            }
            // Tenants that come and go while the tree is blocked leave a bounded amount behind.
            let packet = if self.side_packets < 2 * self.send_depth { self.read_slot(ports) } else { None };
            match packet {
                Some(packet) => {
                    kept.push_back(Side { after: 0, item: SideItem::Packet(packet) });
                    self.side_packets += 1;
                }
                None => self.discarded += 1,
            }
            self.next_slot();
        }
        kept.extend(left);
        self.side = kept;
    }

    /// A reset of the whole function: FIFOs, and what waits beside them, are emptied; tenants stay.
    pub(crate) fn clear(&mut self, config: &TreeConfig, presence: &Presence, ports: &mut Ports<'_>) {
        for side in self.side.drain(..) {
            if let SideItem::Packet(packet) = side.item {
                ports.recycle(packet);
            }
        }
        self.side_packets = 0;
        self.empty();
        self.payload_checksum = 0;
        self.header_checksum = 0;
        if let Some(windows) = &self.windows {
            let _ = windows.window.zero(0, window::SIZE);
            let _ = windows.mirror.zero(0, mirror::SIZE);
        }
        self.show_constants(config, presence);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.windows.is_some()
    }

    /// The mirror's presence word of a node changed. Comes after the packets that were in front of the news.
    pub(crate) fn show_presence(&mut self, node: u32, word: u32, changes: u32) {
        if let Some(windows) = &self.windows {
            if self.shown.recv_tail != self.recv_tail {
                self.shown.recv_tail = self.recv_tail;
                windows.show(mirror::RECV_TAIL, self.recv_tail);
            }
            windows.show(mirror::PRESENCE + 4 * u64::from(node), word);
            windows.show(mirror::PRESENCE_CHANGES, changes);
            self.events |= 1 << vector::PRESENCE;
        }
    }

    pub(crate) fn show_global_interrupts(&self, word: u32) {
        if let Some(windows) = &self.windows {
            windows.show(mirror::GLOBAL_INT, word);
        }
    }

    // Sending.

    /// What is first in the send FIFO.
    #[inline]
    pub(crate) fn head(&mut self) -> Head {
        if let Some(side) = self.side.front()
            && side.after == self.send_head
        {
            return match &side.item {
                SideItem::Packet(packet) => Head::Packet(Header(packet.header as u32)),
                SideItem::Presence { core, generation } => {
                    Head::Presence { core: *core, generation: *generation }
                }
            };
        }
        if self.current.is_none() {
            self.current = self.control(0);
        }
        match self.current {
            Some(control) => Head::Packet(Header((control >> 32) as u32)),
            None => {
                self.send_seen = 0;
                Head::Empty
            }
        }
    }

    /// The control word of the send slot `ahead` of the head, if the slot holds that packet.
    #[inline]
    fn control(&self, ahead: u32) -> Option<u64> {
        let windows = self.windows.as_ref()?;
        let mut slot = self.send_slot + ahead;
        if slot >= self.send_depth {
            slot -= self.send_depth;
        }
        let offset = window::SEND + u64::from(slot) * SLOT + SLOT_CONTROL;
        let control = windows.window.load_u64_acquire(offset).ok()?;
        let number = self.send_head.wrapping_add(ahead);
        (control as u32 == number.wrapping_add(1)).then_some(control)
    }

    /// Takes the packet that is first out of the FIFO. `None` when there is none, or no packet to put it in.
    #[inline]
    pub(crate) fn take(&mut self, ports: &mut Ports<'_>) -> Option<Packet> {
        let packet = if self.side.front().is_some_and(|side| side.after == self.send_head) {
            match self.side.pop_front()?.item {
                SideItem::Packet(packet) => {
                    self.side_packets -= 1;
                    packet
                }
                SideItem::Presence { .. } => return None,
            }
        } else {
            let packet = self.read_slot(ports)?;
            self.next_slot();
            packet
        };
        let header = Header(packet.header as u32);
        if header.checksum_mode() != checksum::NONE {
            self.sum(header, packet.bytes());
        }
        Some(packet)
    }

    /// Takes the presence symbol that is first.
    pub(crate) fn take_presence(&mut self) {
        if self.side.front().is_some_and(|side| matches!(side.item, SideItem::Presence { .. })) {
            self.side.pop_front();
        }
    }

    /// The packet in the slot at the head, read once.
    #[inline]
    fn read_slot(&mut self, ports: &mut Ports<'_>) -> Option<Packet> {
        let control = self.current.or_else(|| self.control(0))?;
        let mut packet = ports.new_packet(PAYLOAD)?;
        let windows = self.windows.as_ref()?;
        let offset = window::SEND + u64::from(self.send_slot) * SLOT + SLOT_PAYLOAD;
        if let Some(payload) = packet.bytes_mut().first_chunk_mut::<PAYLOAD>() {
            windows.window.read_array(offset, payload).ok()?;
        }
        packet.header = control >> 32;
        packet.framing = FRAMING;
        Some(packet)
    }

    #[inline]
    fn next_slot(&mut self) {
        self.current = None;
        self.send_head = self.send_head.wrapping_add(1);
        self.send_slot += 1;
        if self.send_slot == self.send_depth {
            self.send_slot = 0;
        }
        self.send_seen = self.send_seen.saturating_sub(1);
    }

    /// Send slots that are filled.
    fn send_filled(&mut self) -> u32 {
        self.send_seen = self.send_seen.max(self.current.is_some().into());
        while self.send_seen < self.send_depth && self.control(self.send_seen).is_some() {
            self.send_seen += 1;
        }
        self.send_seen
    }

    /// Packets in the send FIFO.
    pub(crate) fn send_count(&mut self) -> u32 {
        self.send_filled() + self.side_packets
    }

    pub(crate) fn send_depth(&self) -> u32 {
        self.send_depth
    }

    /// Packets taken out of the send slots so far.
    pub(crate) fn send_pointer(&self) -> u32 {
        self.send_head
    }

    /// Puts something behind what is in the send FIFO now.
    pub(crate) fn append(&mut self, item: SideItem) {
        match &item {
            SideItem::Packet(_) => self.side_packets += 1,
            // Only the latest word about a core counts, at its place.
            SideItem::Presence { core, .. } => self.side.retain(
                |side| !matches!(&side.item, SideItem::Presence { core: other, .. } if other == core),
            ),
        }
        let after = self.send_head.wrapping_add(self.send_filled());
        self.side.push_back(Side { after, item });
    }

    fn sum(&mut self, header: Header, payload: &[u8]) {
        let left_out = match header.checksum_mode() {
            checksum::NONE => return,
            checksum::SOME => 8,
            checksum::CFG => ((self.vcfg >> vcfg::CSUMX_SHIFT) & 0xff) as usize,
            _ => 0,
        };
        self.header_checksum = self.header_checksum.wrapping_add(header.0);
        for word in payload.as_chunks::<2>().0.iter().skip(left_out) {
            self.payload_checksum = self.payload_checksum.wrapping_add(u16::from_be_bytes(*word).into());
        }
    }

    // Receiving.

    /// Packets in the receive FIFO.
    #[inline]
    pub(crate) fn recv_count(&self) -> u32 {
        self.recv_tail.wrapping_sub(self.recv_head)
    }

    pub(crate) fn recv_head(&self) -> u32 {
        self.recv_head
    }

    pub(crate) fn recv_tail(&self) -> u32 {
        self.recv_tail
    }

    /// Whether a packet can be delivered here.
    #[inline]
    pub(crate) fn room(&mut self, header: Header) -> Room {
        let Some(windows) = &self.windows else {
            return if self.was_up { Room::Sink } else { Room::No };
        };
        if self.guard && !header.irq() {
            if windows.lock_recv.load(Ordering::Acquire) == 0 {
                return Room::Sink;
            }
            self.guard = false;
        }
        if self.recv_count() < self.recv_depth {
            return Room::Yes;
        }
        self.poll_recv_head();
        if self.recv_count() < self.recv_depth { Room::Yes } else { Room::No }
    }

    /// Whether the receive FIFO is full, as far as is known.
    pub(crate) fn is_full(&self) -> bool {
        self.recv_count() >= self.recv_depth
    }

    /// Puts a packet into the receive FIFO; [`Channel::room`] said yes.
    #[inline]
    pub(crate) fn deliver(&mut self, header: Header, payload: &[u8]) {
        let (Some(windows), Some(payload)) = (&self.windows, payload.first_chunk::<PAYLOAD>()) else {
            return;
        };
        let slot = mirror::RECV + u64::from(self.recv_tail_slot) * SLOT;
        let _ = windows.mirror.write_array(slot + SLOT_PAYLOAD, payload);
        let number = u64::from(self.recv_tail.wrapping_add(1)) | (u64::from(header.0) << 32);
        let _ = windows.mirror.store_u64_release(slot + SLOT_CONTROL, number);
        if header.irq() {
            self.irq[(self.recv_tail_slot / 64) as usize] |= 1 << (self.recv_tail_slot % 64);
            self.irq_count += 1;
            self.events |= 1 << vector::RECV_IRQ;
        }
        self.recv_tail = self.recv_tail.wrapping_add(1);
        self.recv_tail_slot += 1;
        if self.recv_tail_slot == self.recv_depth {
            self.recv_tail_slot = 0;
        }
    }

    /// Frees the receive slots that software has done with.
    #[inline]
    pub(crate) fn poll_recv_head(&mut self) {
        let Some(windows) = &self.windows else { return };
        let head = windows.recv_head.load(Ordering::Acquire);
        if head != self.recv_head {
            self.free_until(head);
        }
    }

    fn free_until(&mut self, head: u32) {
        let freed = head.wrapping_sub(self.recv_head);
        if freed > self.recv_count() {
            if self.bad_head != Some(head) {
                self.bad_head = Some(head);
                self.receive_error(if self.number == 0 { prx::PFU0 } else { prx::PFU1 });
            }
            return;
        }
        self.bad_head = None;
        if self.irq_count == 0 {
            self.recv_head = head;
            self.recv_head_slot = (self.recv_head_slot + freed) % self.recv_depth;
        } else {
            for _ in 0..freed {
                self.free_one();
            }
        }
    }

    fn free_one(&mut self) {
        let (word, bit) = ((self.recv_head_slot / 64) as usize, 1u64 << (self.recv_head_slot % 64));
        if self.irq[word] & bit != 0 {
            self.irq[word] &= !bit;
            self.irq_count -= 1;
        }
        self.recv_head = self.recv_head.wrapping_add(1);
        self.recv_head_slot = (self.recv_head_slot + 1) % self.recv_depth;
    }

    /// Frees receive slots on software's behalf (the port), and says so where software would.
    pub(crate) fn advance_recv_head(&mut self, head: u32) {
        self.free_until(head);
        if let Some(windows) = &self.windows {
            windows.recv_head.store(self.recv_head, Ordering::Release);
        }
    }

    /// Header of packet `number`, which is in the receive FIFO.
    pub(crate) fn received_header(&self, number: u32) -> Option<u32> {
        let control = self.windows.as_ref()?.mirror.load_u64_relaxed(self.recv_slot(number)? + SLOT_CONTROL);
        control.ok().map(|control| (control >> 32) as u32)
    }

    /// A quad of packet `number`, which is in the receive FIFO.
    pub(crate) fn received_quad(&self, number: u32, quad: u32) -> Option<[u8; 16]> {
        let offset = self.recv_slot(number)? + SLOT_PAYLOAD + 16 * u64::from(quad);
        let mut bytes = [0; 16];
        self.windows.as_ref()?.mirror.read_array(offset, &mut bytes).ok()?;
        Some(bytes)
    }

    fn recv_slot(&self, number: u32) -> Option<u64> {
        let ahead = number.wrapping_sub(self.recv_head);
        let slot = (self.recv_head_slot + ahead) % self.recv_depth;
        (ahead < self.recv_count()).then_some(mirror::RECV + u64::from(slot) * SLOT)
    }

    // Lock boxes.

    /// Frees the lock boxes of an attachment that ends.
    pub(crate) fn free_locks(&mut self, attachment: u16) {
        let Some(windows) = &self.windows else { return };
        for number in 0..window::LOCK_BOXES {
            let Ok(lock) = windows.window.u32(window::LOCK + number * window::LOCK_STRIDE) else { continue };
            let owner = lock.load(Ordering::Acquire);
            if owner & 0xffff == u32::from(attachment) + 1
                && lock.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                && number == window::LOCK_RECV
            {
                self.guard = true;
            }
        }
    }

    /// While nobody reads what a dead reader was about to: discards packets without the irq bit from the front of the FIFO,
    /// holding the reader's lock.
    pub(crate) fn discard_orphans(&mut self) -> bool {
        if !self.guard || self.recv_count() == 0 || self.front_has_irq() {
            return false;
        }
        let Some(windows) = &self.windows else { return false };
        let lock = windows.lock_recv.clone();
        if lock.compare_exchange(0, LOCK_OWNER_NIC, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            self.guard = false;
            return false;
        }
        self.poll_recv_head();
        let before = self.discarded;
        while self.recv_count() > 0 && !self.front_has_irq() {
            self.free_one();
            self.discarded += 1;
        }
        if let Some(windows) = &self.windows {
            windows.recv_head.store(self.recv_head, Ordering::Release);
        }
        lock.store(0, Ordering::Release);
        self.discarded != before
    }

    fn front_has_irq(&self) -> bool {
        self.irq[(self.recv_head_slot / 64) as usize] & (1 << (self.recv_head_slot % 64)) != 0
    }

    // Errors, status, watermarks.

    /// Sets receive exceptions.
    pub(crate) fn receive_error(&mut self, bits: u32) {
        if bits & !self.prx != 0 {
            self.prx |= bits;
            self.events |= 1 << vector::ERROR;
        }
    }

    /// Sets injection exceptions.
    pub(crate) fn inject_error(&mut self, bits: u32) {
        if bits & !self.pix != 0 {
            self.pix |= bits;
            self.events |= 1 << vector::ERROR;
        }
    }

    /// Exceptions, watermarks included as they are now.
    pub(crate) fn exceptions(&mut self) -> (u32, u32) {
        let send = self.send_count();
        self.exceptions_with(send)
    }

    fn exceptions_with(&self, send: u32) -> (u32, u32) {
        let above = self.recv_count() > ((self.vcfg >> vcfg::RWM_SHIFT) & 7) * self.recv_depth / 8;
        let below = send <= ((self.vcfg >> vcfg::IWM_SHIFT) & 7) * self.send_depth / 8;
        let (above_bit, below_bit) =
            if self.number == 0 { (prx::WM0, pix::WM0) } else { (prx::WM1, pix::WM1) };
        (self.prx | if above { above_bit } else { 0 }, self.pix | if below { below_bit } else { 0 })
    }

    /// The port's status word.
    pub(crate) fn status(&mut self) -> u32 {
        let (send, recv) = (self.send_count(), self.recv_count());
        self.status_with(send, 16 * recv, recv)
    }

    /// The status word with `send` packets in the send FIFO, these quads and headers in the receive FIFO.
    pub(crate) fn status_with(&self, send: u32, quads: u32, headers: u32) -> u32 {
        let (staged_quads, staged_headers) = self.staged;
        status::word(16 * send + staged_quads, send + staged_headers, quads, self.irq_count > 0, headers)
    }

    /// Brings the mirror up to date. `enabled` are the watermark exceptions that count.
    pub(crate) fn publish(&mut self, enabled: (u32, u32)) {
        if self.windows.is_none() {
            return;
        }
        let (send, recv) = (self.send_count(), self.recv_count());
        let status = self.status_with(send, 16 * recv, recv);
        let (prx_bits, pix_bits) = self.exceptions_with(send);
        let now = Shown {
            send_head: self.send_head,
            recv_tail: self.recv_tail,
            irq: self.irq_count,
            status,
            error: error_word(prx_bits, pix_bits),
        };
        let watermarks = (
            prx_bits & enabled.0 & (prx::WM0 | prx::WM1) != 0,
            pix_bits & enabled.1 & (pix::WM0 | pix::WM1) != 0,
        );
        if (watermarks.0 && !self.watermarks.0) || (watermarks.1 && !self.watermarks.1) {
            self.events |= 1 << vector::WATERMARK;
        }
        self.watermarks = watermarks;
        if now == self.shown {
            return;
        }
        let Some(windows) = &self.windows else { return };
        let shown = std::mem::replace(&mut self.shown, now);
        if now.send_head != shown.send_head {
            windows.show(mirror::SEND_HEAD, now.send_head);
        }
        if now.recv_tail != shown.recv_tail {
            windows.show(mirror::RECV_TAIL, now.recv_tail);
        }
        if now.irq != shown.irq {
            windows.show(mirror::RECV_IRQ, now.irq);
        }
        if now.status != shown.status {
            windows.show(mirror::STATUS, now.status);
        }
        if now.error != shown.error {
            windows.show(mirror::ERROR, now.error);
        }
    }

    /// Vectors whose condition holds, as far as this channel is concerned.
    pub(crate) fn conditions(&mut self, enabled: (u32, u32)) -> u32 {
        let (prx_bits, pix_bits) = self.exceptions();
        let (prx_bits, pix_bits) = (prx_bits & enabled.0, pix_bits & enabled.1);
        let (receive_marks, inject_marks) = (prx::WM0 | prx::WM1, pix::WM0 | pix::WM1);
        let watermark = prx_bits & receive_marks != 0 || pix_bits & inject_marks != 0;
        let error = prx_bits & !receive_marks != 0 || pix_bits & !(inject_marks | pix::ENABLE) != 0;
        (u32::from(self.irq_count > 0) << vector::RECV_IRQ)
            | (u32::from(watermark) << vector::WATERMARK)
            | (u32::from(error) << vector::ERROR)
    }
}
