//! The receive FIFO: slots that the NIC fills, and the lock boxes. One lock box guards the FIFO.

use std::sync::atomic::Ordering;

use nicforge_core::fabric::Ports;
use nicforge_hwi::{
    tree::{CORES, Header, PAYLOAD, SLOT, SLOT_PAYLOAD, mirror, vector, window},
    tree_dcr::{LOCK_OWNER_NIC, prx},
};

use super::{Channel, Discarded, Popped, Room, RowEnd};

impl Channel {
    /// Returns the number of packets in the receive FIFO.
    #[inline]
    pub(crate) fn recv_count(&self) -> u32 {
        self.recv_tail.wrapping_sub(self.recv_head)
    }

    /// Returns the number of packets that software has freed.
    pub(crate) fn recv_head(&self) -> u32 {
        self.recv_head
    }

    /// Returns whether a packet can be delivered here.
    #[inline]
    pub(crate) fn room(&mut self, header: Header) -> Room {
        let Some(windows) = &self.windows else {
            return if self.was_up { Room::Sink } else { Room::No };
        };
        if is_for_absent(self.absent, header) {
            return Room::Sink;
        }

        // Without a live reader a packet that names no core has no receiver. After an irq-marked
        // packet it may have one: the irq-marked packet can be the acknowledgement of a live core's
        // read.
        if self.guard && has_no_receiver(header) && self.irq_count == 0 {
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

    /// Returns whether the receive FIFO is full, as far as is known.
    pub(crate) fn is_full(&self) -> bool {
        self.recv_count() >= self.recv_depth
    }

    /// Puts a packet into the receive FIFO. The caller must have seen [`Room::Yes`] from
    /// [`Channel::room`].
    #[inline]
    pub(crate) fn deliver(&mut self, header: Header, payload: &[u8]) {
        let (Some(windows), Some(payload)) = (&self.windows, payload.first_chunk::<PAYLOAD>()) else {
            return;
        };

        windows.recv.put(self.recv_tail, header.0, payload);
        if header.irq() {
            let (word, bit) = irq_at(self.recv_depth, self.recv_tail);
            self.irq[word] |= bit;
            self.irq_count += 1;
            self.events |= 1 << vector::RECV_IRQ;
        }

        self.recv_tail = self.recv_tail.wrapping_add(1);
    }

    /// Puts packets that have arrived at a port into the receive FIFO, as [`Channel::deliver`] does
    /// one by one. Stops at the first header that `goes` refuses, and after `limit` packets.
    /// Returns the number delivered and why the row ended.
    #[inline]
    pub(crate) fn receive_row(
        &mut self,
        ports: &mut Ports<'_>,
        port: u8,
        limit: u32,
        goes: impl Fn(u64) -> bool,
    ) -> (u32, RowEnd) {
        let mut received = 0;
        loop {
            let (row, end) = self.put_row(ports, port, limit - received, &goes);
            received += row;
            if end != RowEnd::Blocked {
                return (received, end);
            }

            self.poll_recv_head();
            if self.is_full() {
                return (received, end);
            }
        }
    }

    /// As [`Channel::receive_row`], limited to the slots that are known to be free.
    #[inline(always)]
    fn put_row(
        &mut self,
        ports: &mut Ports<'_>,
        port: u8,
        limit: u32,
        goes: impl Fn(u64) -> bool,
    ) -> (u32, RowEnd) {
        // While `guard` is set, each packet's receiver needs a check of its own.
        let Some(windows) = self.windows.as_ref().filter(|_| !self.guard) else { return (0, RowEnd::Other) };

        let (mut tail, full) = (self.recv_tail, self.recv_head.wrapping_add(self.recv_depth));
        let (mut alike, mut end) = (None, RowEnd::Empty);

        let taken = ports.take_while(port, self.number as usize, limit, |packet| {
            let header = Header(packet.header as u32);

            if alike != Some(packet.header) {
                if !goes(packet.header) || is_for_absent(self.absent, header) {
                    end = RowEnd::Other;
                    return false;
                }
                alike = Some(packet.header);
            }

            if tail == full {
                end = RowEnd::Blocked;
                return false;
            }

            if let Some(payload) = packet.bytes().first_chunk::<PAYLOAD>() {
                windows.recv.put(tail, header.0, payload);
                if header.irq() {
                    let (word, bit) = irq_at(self.recv_depth, tail);
                    self.irq[word] |= bit;
                    self.irq_count += 1;
                    self.events |= 1 << vector::RECV_IRQ;
                }
                tail = tail.wrapping_add(1);
            }
            true
        });

        self.recv_tail = tail;
        (taken, end)
    }

    /// Frees the receive slots that software has released.
    #[inline]
    pub(crate) fn poll_recv_head(&mut self) {
        let Some(windows) = &self.windows else { return };
        let head = windows.recv_head.load(Ordering::Acquire);
        if head != self.recv_head {
            self.free_until(head);
        }
    }

    /// Frees receive slots up to `head`. A head beyond the packets sets an exception once and frees
    /// nothing.
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
        // Only a core that has the lock moves the head, so a live reader has had the lock since.
        self.guard &= freed == 0;

        if self.irq_count == 0 {
            self.recv_head = head;
        } else {
            for _ in 0..freed {
                self.free_one();
            }
        }
    }

    /// Frees the receive slot at the head.
    fn free_one(&mut self) {
        let (word, bit) = irq_at(self.recv_depth, self.recv_head);
        if self.irq[word] & bit != 0 {
            self.irq[word] &= !bit;
            self.irq_count -= 1;
        }
        self.recv_head = self.recv_head.wrapping_add(1);
    }

    /// Frees receive slots for the port, and writes the head where software would write it.
    pub(crate) fn advance_recv_head(&mut self, head: u32) {
        self.free_until(head);
        if let Some(windows) = &self.windows {
            windows.recv_head.store(self.recv_head, Ordering::Release);
        }
    }

    /// Returns the port's position in the FIFO. Packets that software has freed count as popped.
    pub(crate) fn popped(&self) -> Popped {
        let mut popped = self.popped;
        let count = self.recv_count();

        if popped.header.wrapping_sub(self.recv_head) > count {
            popped.header = self.recv_head;
        }
        if popped.payload.wrapping_sub(self.recv_head) > count {
            (popped.payload, popped.quad) = (self.recv_head, 0);
        }
        popped
    }

    /// Sets the port's position, and frees the packets that were popped completely.
    pub(crate) fn set_popped(&mut self, popped: Popped) {
        self.popped = popped;

        let headers = popped.header.wrapping_sub(self.recv_head);
        let read = headers.min(popped.payload.wrapping_sub(self.recv_head));
        if read > 0 {
            self.advance_recv_head(self.recv_head.wrapping_add(read));
        }
    }

    /// Returns the header of packet `number` if that packet is in the receive FIFO.
    pub(crate) fn received_header(&self, number: u32) -> Option<u32> {
        let ring = &self.windows.as_ref()?.recv;
        self.is_received(number).then(|| (ring.control(number) >> 32) as u32)
    }

    /// Returns a quad of packet `number` if that packet is in the receive FIFO.
    pub(crate) fn received_quad(&self, number: u32, quad: u32) -> Option<[u8; 16]> {
        let slot = u64::from(number & (self.recv_depth - 1)) * SLOT;
        let offset = mirror::RECV + slot + SLOT_PAYLOAD + 16 * u64::from(quad);
        let mut bytes = [0; 16];

        let windows = self.windows.as_ref().filter(|_| self.is_received(number))?;
        windows.mirror.read_array(offset, &mut bytes).ok()?;

        Some(bytes)
    }

    /// Returns whether packet `number` is in the receive FIFO.
    fn is_received(&self, number: u32) -> bool {
        number.wrapping_sub(self.recv_head) < self.recv_count()
    }

    /// Frees the lock boxes of an attachment that ends.
    pub(crate) fn free_locks(&mut self, attachment: u16) {
        // The dead core may have moved the head before it died. Later moves are a live reader's.
        self.poll_recv_head();
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

    /// Notes that a core has a client.
    pub(crate) fn core_attached(&mut self, core: u16) {
        self.absent &= !(1 << core);
    }

    /// Notes that a core has lost its client. Packets for it in the FIFO no longer have a receiver.
    pub(crate) fn core_detached(&mut self, core: u16) {
        self.absent |= 1 << core;
        if self.windows.is_some() {
            self.orphans_until = Some(self.recv_tail);
        }
    }

    /// Discards packets for cores without a client from the front of the FIFO. The NIC holds the
    /// reader's lock meanwhile.
    #[inline]
    pub(crate) fn discard_for_absent(&mut self) -> Discarded {
        if self.orphans_until.is_none() { Discarded::Nothing } else { self.discard_front_for_absent() }
    }

    /// As [`Channel::discard_for_absent`], where such packets may be left.
    #[cold]
    fn discard_front_for_absent(&mut self) -> Discarded {
        let Some(until) = self.orphans_until else { return Discarded::Nothing };

        let left = until.wrapping_sub(self.recv_head);
        if left == 0 || left > self.recv_count() {
            self.orphans_until = None;
            return Discarded::Nothing;
        }

        if !self.front_is_for_absent() {
            return Discarded::Nothing;
        }

        let Some(windows) = &self.windows else { return Discarded::Nothing };
        let lock = windows.lock_recv.clone();
        let owner = lock.load(Ordering::Acquire);
        // The owner may be a core that had left before it was handed the lock.
        let free = owner == 0 || self.is_absent_owner(owner);
        if !free || lock.compare_exchange(owner, LOCK_OWNER_NIC, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return Discarded::Later;
        }

        self.poll_recv_head();

        let before = self.discarded;
        while self.recv_count() > 0 && self.front_is_for_absent() {
            self.free_one();
            self.discarded += 1;
        }

        if let Some(windows) = &self.windows {
            windows.recv_head.store(self.recv_head, Ordering::Release);
        }
        lock.store(0, Ordering::Release);

        if self.discarded == before { Discarded::Nothing } else { Discarded::Some }
    }

    /// Returns whether the packet at the front is for a core without a client.
    fn front_is_for_absent(&self) -> bool {
        self.received_header(self.recv_head).is_some_and(|header| is_for_absent(self.absent, Header(header)))
    }

    /// Returns whether the owner in a lock box is a core without a client.
    fn is_absent_owner(&self, owner: u32) -> bool {
        let core = (owner & 0xffff).wrapping_sub(1);
        core < u32::from(CORES) && self.absent & (1 << core) != 0
    }

    /// Discards packets from the front of the FIFO while the owner of the receive lock is dead and
    /// no core has taken it. Only packets without the irq bit that name no core are discarded. The
    /// NIC holds the reader's lock meanwhile. Returns whether any packet was discarded.
    #[inline]
    pub(crate) fn discard_orphans(&mut self) -> bool {
        self.guard && self.discard_front_orphans()
    }

    /// As [`Channel::discard_orphans`], where the guard is set.
    #[cold]
    fn discard_front_orphans(&mut self) -> bool {
        if !self.front_has_no_receiver() {
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
        while self.guard && self.front_has_no_receiver() {
            self.free_one();
            self.discarded += 1;
        }

        if self.discarded != before
            && let Some(windows) = &self.windows
        {
            windows.recv_head.store(self.recv_head, Ordering::Release);
        }

        lock.store(0, Ordering::Release);
        self.discarded != before
    }

    /// Returns whether the packet at the front has no known receiver.
    fn front_has_no_receiver(&self) -> bool {
        self.recv_count() > 0
            && self.received_header(self.recv_head).is_some_and(|header| has_no_receiver(Header(header)))
    }
}

/// Returns whether a packet has neither an irq bit nor a core's name that would assign it to a live
/// reader.
#[inline]
fn has_no_receiver(header: Header) -> bool {
    !header.irq() && header.core().is_none()
}

/// Returns whether a packet is for a core that has no client; `absent` has one bit for each such
/// core.
#[inline]
fn is_for_absent(absent: u32, header: Header) -> bool {
    absent != 0 && header.core().is_some_and(|core| absent & (1 << core) != 0)
}

/// Returns the word and the bit in it that mark packet `number` as irq-marked, in a FIFO of `depth`
/// slots.
#[inline]
fn irq_at(depth: u32, number: u32) -> (usize, u64) {
    let slot = number & (depth - 1);
    ((slot / 64) as usize, 1 << (slot % 64))
}
