//! The receive FIFO: slots that the NIC fills and software frees.

use std::sync::atomic::Ordering;

use nicforge_core::fabric::Ports;
use nicforge_hwi::tree::{Header, MAX_FIFO_DEPTH, PAYLOAD, vector};

use super::{
    Admission, RowEnd, RowOutcome,
    events::Events,
    memory::{ReceiveMemory, header_of},
    receivers::Receivers,
};

/// The receive FIFO of a channel.
///
/// `tail` counts the packets put into the slots, and `head` those that software has freed. The
/// packets from head to tail, at most `depth`, are in the FIFO. `marks` marks those of them that
/// have the irq bit, and no other slot.
pub(super) struct ReceiveFifo {
    depth: u32,
    tail: u32,
    head: u32,
    marks: IrqMarks,
    /// The last invalid head that software wrote; it is reported once.
    bad_head: Option<u32>,
    pub(super) receivers: Receivers,
    /// Number of packets that were discarded in this FIFO.
    pub(super) discarded: u64,
}

impl ReceiveFifo {
    /// Returns an empty FIFO of `depth` slots.
    pub(super) fn new(depth: u32, receivers: Receivers) -> Self {
        Self { depth, tail: 0, head: 0, marks: IrqMarks::new(depth), bad_head: None, receivers, discarded: 0 }
    }

    /// Starts again with empty slots.
    pub(super) fn restart(&mut self) {
        self.tail = 0;
        self.head = 0;
        self.marks = IrqMarks::new(self.depth);
        self.bad_head = None;
        self.receivers.restart();
    }

    /// Returns the number of packets that the FIFO holds.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns the number of packets put into the slots.
    #[inline]
    pub(super) fn tail(&self) -> u32 {
        self.tail
    }

    /// Returns the number of packets that software has freed.
    #[inline]
    pub(super) fn head(&self) -> u32 {
        self.head
    }

    /// Returns the number of packets in the FIFO.
    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Returns the number of packets with the irq bit.
    #[inline]
    pub(super) fn irq_count(&self) -> u32 {
        self.marks.count
    }

    /// Returns whether the FIFO is full, as far as is known.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.count() >= self.depth
    }

    /// Returns the header of packet `number` if that packet is in the FIFO.
    pub(super) fn header(&self, memory: &ReceiveMemory, number: u32) -> Option<Header> {
        self.contains(number).then(|| header_of(memory.slots.control(number)))
    }

    /// Returns whether packet `number` is in the FIFO.
    pub(super) fn contains(&self, number: u32) -> bool {
        number.wrapping_sub(self.head) < self.count()
    }

    /// Returns whether a packet can be put into the FIFO, after reading the memory where that is
    /// needed.
    #[inline]
    pub(super) fn check_admission(
        &mut self,
        memory: &ReceiveMemory,
        header: Header,
        events: &mut Events,
    ) -> Admission {
        if !self.receivers.check_receiver(memory, header, self.marks.count) {
            return Admission::Discard;
        }

        if self.is_full() {
            self.poll_head(memory, events);
        }
        if self.is_full() { Admission::Wait } else { Admission::Accept }
    }

    /// Puts a packet into the FIFO. The caller must have seen [`Admission::Accept`] for it.
    #[inline]
    pub(super) fn put(
        &mut self,
        memory: &ReceiveMemory,
        header: Header,
        payload: &[u8],
        events: &mut Events,
    ) {
        let Some(payload) = payload.first_chunk::<PAYLOAD>() else { return };
        memory.slots.put(self.tail, header.0, payload);

        let end = self.tail.wrapping_add(1);
        if header.irq() {
            self.marks.note_put(self.tail, end, events);
        }
        self.tail = end;
    }

    /// Puts packets that have arrived at a port into the FIFO while their header is `header`. The
    /// caller must have seen [`Admission::Accept`] for it.
    #[inline]
    pub(super) fn put_row(
        &mut self,
        memory: &ReceiveMemory,
        row: PortRow<'_, '_>,
        header: Header,
        events: &mut Events,
    ) -> RowOutcome {
        let PortRow { ports, port, channel, limit } = row;
        let (mut received, row_header) = (0, u64::from(header.0));

        loop {
            let (mut tail, full) = (self.tail, self.head.wrapping_add(self.depth));
            received += ports.take_while(port, channel, limit - received, |packet| {
                if packet.header != row_header || tail == full {
                    return false;
                }

                if let Some(payload) = packet.bytes().first_chunk::<PAYLOAD>() {
                    memory.slots.put(tail, header.0, payload);
                    tail = tail.wrapping_add(1);
                }
                true
            });

            if header.irq() {
                self.marks.note_put(self.tail, tail, events);
            }
            self.tail = tail;
            if received >= limit {
                return RowOutcome { moved: received, end: RowEnd::Other };
            }

            // A packet of the row is left if the FIFO is full. Software may have freed slots since.
            let end = RowEnd::before(ports.peek(port, channel), row_header);
            if end == RowEnd::Blocked {
                self.poll_head(memory, events);
            }
            if end != RowEnd::Blocked || self.is_full() {
                return RowOutcome { moved: received, end };
            }
        }
    }

    /// Frees the slots that software has released.
    #[inline]
    pub(super) fn poll_head(&mut self, memory: &ReceiveMemory, events: &mut Events) {
        let head = memory.head.load(Ordering::Acquire);
        if head != self.head {
            self.free_until(head, events);
        }
    }

    /// Frees slots up to `head`. A head beyond the packets sets an exception once and frees
    /// nothing.
    fn free_until(&mut self, head: u32, events: &mut Events) {
        let freed = head.wrapping_sub(self.head);

        if freed > self.count() {
            if self.bad_head != Some(head) {
                self.bad_head = Some(head);
                events.invalid_head(head);
            }
            return;
        }

        self.bad_head = None;
        self.receivers.note_freed(freed);

        if self.marks.count == 0 {
            self.head = head;
        } else {
            for _ in 0..freed {
                self.free_one();
            }
        }
    }

    /// Frees the slot at the head, and removes its mark.
    pub(super) fn free_one(&mut self) {
        self.marks.note_freed(self.head);
        self.head = self.head.wrapping_add(1);
    }

    /// Frees `count` packets for the port, and writes the head where software would write it.
    pub(super) fn free(&mut self, memory: &ReceiveMemory, count: u32, events: &mut Events) {
        self.free_until(self.head.wrapping_add(count), events);
        self.store_head(memory);
    }

    /// Writes the head where software would write it.
    pub(super) fn store_head(&self, memory: &ReceiveMemory) {
        memory.head.store(self.head, Ordering::Release);
    }
}

/// The packets that [`ReceiveFifo::put_row`] may take.
pub(super) struct PortRow<'a, 'b> {
    pub(super) ports: &'a mut Ports<'b>,
    pub(super) port: u8,
    pub(super) channel: usize,
    /// Maximum number of packets to take.
    pub(super) limit: u32,
}

/// The receive slots that hold a packet with the irq bit.
///
/// `count` is the number of bits set in `slots`.
struct IrqMarks {
    /// One bit for each slot.
    slots: [u64; MAX_FIFO_DEPTH as usize / 64],
    count: u32,
    /// Number of slots minus 1.
    mask: u32,
}

impl IrqMarks {
    /// Returns the marks of `depth` empty slots.
    fn new(depth: u32) -> Self {
        Self { slots: [0; MAX_FIFO_DEPTH as usize / 64], count: 0, mask: depth - 1 }
    }

    /// Returns the word and the bit in it that mark packet `number`.
    #[inline]
    fn position(&self, number: u32) -> (usize, u64) {
        let slot = number & self.mask;
        ((slot / 64) as usize, 1 << (slot % 64))
    }

    /// Marks the packets from number `first` to the one before `end`, and requests the interrupt
    /// for them.
    fn note_put(&mut self, first: u32, end: u32, events: &mut Events) {
        let mut number = first;
        while number != end {
            let (word, bit) = self.position(number);
            self.slots[word] |= bit;
            self.count += 1;
            events.request(vector::RECV_IRQ);
            number = number.wrapping_add(1);
        }
    }

    /// Removes the mark of packet `number`, if there is one.
    fn note_freed(&mut self, number: u32) {
        let (word, bit) = self.position(number);
        if self.slots[word] & bit != 0 {
            self.slots[word] &= !bit;
            self.count -= 1;
        }
    }
}
