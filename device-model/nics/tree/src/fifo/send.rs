//! The send FIFO: slots that software fills, and the side queue.

use nicforge_core::fabric::{Packet, Ports, Refusal, Run};
use nicforge_hwi::{
    tree::{Header, PAYLOAD},
    tree_dcr::checksum,
};

use super::{
    FRAMING, RowEnd, RowOutcome, SendHead,
    memory::{Ring, header_of},
    side::{SideItem, SideQueue},
};

/// The send FIFO of a channel.
///
/// The slots belong to the clients; without clients only the side queue has items. `head` counts
/// the packets taken out of the slots. The `seen` slots from the head on were found filled.
/// `current`, if present, is the control word of the slot at the head, so that slot is filled, too.
/// A slot's control word and payload are each read once.
pub(super) struct SendFifo {
    depth: u32,
    head: u32,
    seen: u32,
    current: Option<u64>,
    side: SideQueue,
    /// Number of packets that a former client left and that had no room in the side queue.
    discarded: u64,
}

impl SendFifo {
    /// Returns an empty FIFO of `depth` slots.
    pub(super) fn new(depth: u32) -> Self {
        Self { depth, head: 0, seen: 0, current: None, side: SideQueue::default(), discarded: 0 }
    }

    /// Starts again with empty slots. The side queue keeps its items.
    pub(super) fn restart(&mut self) {
        self.side.move_in_front_of(0);
        self.head = 0;
        self.seen = 0;
        self.current = None;
    }

    /// Drops the items of the side queue, and starts again with empty slots.
    pub(super) fn clear(&mut self, ports: &mut Ports<'_>) {
        self.side.clear(ports);
        self.restart();
    }

    /// Returns the number of packets that the FIFO holds.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns the number of packets taken out of the slots.
    pub(super) fn taken(&self) -> u32 {
        self.head
    }

    /// Returns the number of packets that were discarded.
    pub(super) fn discarded(&self) -> u64 {
        self.discarded
    }

    /// Returns the number of packets in the FIFO, as last seen.
    pub(super) fn known_count(&self) -> u32 {
        self.seen + self.side.packets()
    }

    /// Returns whether the side queue has items.
    #[inline]
    pub(super) fn has_side_items(&self) -> bool {
        !self.side.is_empty()
    }

    /// Looks for filled slots. Returns the number of packets in the FIFO.
    pub(super) fn refresh_count(&mut self, slots: Option<&Ring>) -> u32 {
        self.refresh_filled_slots(slots) + self.side.packets()
    }

    /// Looks for filled slots. Returns their number.
    fn refresh_filled_slots(&mut self, slots: Option<&Ring>) -> u32 {
        self.seen = self.seen.max(self.current.is_some().into());
        while self.seen < self.depth && self.control(slots, self.seen).is_some() {
            self.seen += 1;
        }
        self.seen
    }

    /// Returns the control word of the slot `ahead` of the head, if the slot holds that packet.
    #[inline]
    fn control(&self, slots: Option<&Ring>, ahead: u32) -> Option<u64> {
        slots?.holds(self.head.wrapping_add(ahead))
    }

    /// Looks at the first item.
    #[inline]
    pub(super) fn poll_head(&mut self, slots: Option<&Ring>) -> SendHead {
        if let Some(head) = self.side_head() {
            return head;
        }

        if self.current.is_none() {
            self.current = self.control(slots, 0);
        }

        match self.current {
            Some(control) => SendHead::Packet(header_of(control)),
            None => {
                // No slot from the head on is filled. Items of the side queue that wait for a later
                // slot are next, because a client has emptied the slots in front of them.
                self.seen = 0;
                self.side.move_in_front_of(self.head);
                self.side_head().unwrap_or(SendHead::Empty)
            }
        }
    }

    /// Returns the first item of the side queue if it goes in front of the slot at the head.
    #[inline]
    fn side_head(&self) -> Option<SendHead> {
        self.side.before(self.head).map(|item| match item {
            SideItem::Packet(packet) => SendHead::Packet(Header(packet.header as u32)),
            SideItem::Presence { core, generation } => {
                SendHead::Presence { core: *core, generation: *generation }
            }
        })
    }

    /// Sends packets out of the slots while `belongs_to_row` accepts their headers, at most
    /// `maximum`.
    ///
    /// An item of the side queue ends the row, and so does a packet that counts in the injection
    /// checksums: both are moved one by one.
    #[inline]
    pub(super) fn send_row(
        &mut self,
        slots: &Ring,
        run: &mut Run<'_>,
        maximum: u32,
        belongs_to_row: impl Fn(Header) -> bool,
    ) -> RowOutcome {
        let first = self.head;
        let maximum = self.side.slots_before(first, maximum);

        let (mut sent, mut row_header, mut current) = (0, None, self.current);

        let end = loop {
            if sent == maximum {
                break RowEnd::Other;
            }

            let number = first.wrapping_add(sent);
            // The control word is read once, even if the packet does not leave in this step.
            current = current.or_else(|| slots.holds(number));
            let Some(control) = current else { break RowEnd::Empty };

            let header = header_of(control);
            if row_header != Some(header) {
                if header.checksum_mode() != checksum::NONE || !belongs_to_row(header) {
                    break RowEnd::Other;
                }
                row_header = Some(header);
            }

            let sent_one = run.send_with(PAYLOAD, |packet| {
                if let Some(payload) = packet.bytes_mut().first_chunk_mut::<PAYLOAD>() {
                    slots.payload(number, payload);
                }
                packet.header = header.0.into();
                packet.framing = FRAMING;
            });
            if let Err(reason) = sent_one {
                break if reason == Refusal::NoCredit { RowEnd::Blocked } else { RowEnd::Starved };
            }

            current = None;
            sent += 1;
        };

        self.current = current;
        self.head = first.wrapping_add(sent);
        self.seen = if end == RowEnd::Empty { 0 } else { self.seen.saturating_sub(sent) };

        RowOutcome { moved: sent, end }
    }

    /// Takes the first packet out of the FIFO. Returns `None` if there is none, or if the packet
    /// pool (in `ports`) has no packet to hold it.
    #[inline]
    pub(super) fn take_head(&mut self, slots: Option<&Ring>, ports: &mut Ports<'_>) -> Option<Packet> {
        match self.side.before(self.head) {
            Some(SideItem::Packet(_)) => match self.side.pop()? {
                SideItem::Packet(packet) => Some(packet),
                SideItem::Presence { .. } => None,
            },
            Some(SideItem::Presence { .. }) => None,
            None => self.take_slot(slots, ports),
        }
    }

    /// Removes the presence symbol that is first.
    pub(super) fn take_presence(&mut self) {
        if matches!(self.side.before(self.head), Some(SideItem::Presence { .. })) {
            self.side.pop();
        }
    }

    /// Takes the packet out of the slot at the head.
    #[inline]
    fn take_slot(&mut self, slots: Option<&Ring>, ports: &mut Ports<'_>) -> Option<Packet> {
        let slots = slots?;
        let control = self.current.or_else(|| slots.holds(self.head))?;
        let mut packet = ports.new_packet(PAYLOAD).ok()?;

        if let Some(payload) = packet.bytes_mut().first_chunk_mut::<PAYLOAD>() {
            slots.payload(self.head, payload);
        }

        packet.header = header_of(control).0.into();
        packet.framing = FRAMING;

        self.pass_slot();
        Some(packet)
    }

    /// Moves the head past the slot.
    #[inline]
    fn pass_slot(&mut self) {
        self.current = None;
        self.head = self.head.wrapping_add(1);
        self.seen = self.seen.saturating_sub(1);
    }

    /// Puts an item after the current contents of the FIFO.
    pub(super) fn append(&mut self, slots: Option<&Ring>, item: SideItem) {
        let first_free_slot = self.head.wrapping_add(self.refresh_filled_slots(slots));
        self.side.push(first_free_slot, item);
    }

    /// Moves the packets in the slots to the side queue when the last client leaves.
    ///
    /// The side queue takes packets up to twice the depth, however many clients come and go while
    /// the tree is blocked. The rest is discarded.
    pub(super) fn move_to_side_queue(&mut self, slots: &Ring, ports: &mut Ports<'_>) {
        let filled = self.refresh_filled_slots(Some(slots));
        let mut earlier = std::mem::take(&mut self.side);

        for _ in 0..filled {
            while earlier.before(self.head).is_some() {
                self.move_first(&mut earlier);
            }

            let has_room = self.side.packets() + earlier.packets() < 2 * self.depth;
            match if has_room { self.take_slot(Some(slots), ports) } else { None } {
                Some(packet) => self.side.push(0, SideItem::Packet(packet)),
                None => {
                    self.discarded += 1;
                    self.pass_slot();
                }
            }
        }

        while !earlier.is_empty() {
            self.move_first(&mut earlier);
        }

        self.restart();
    }

    /// Moves the first item of `earlier` to the side queue.
    fn move_first(&mut self, earlier: &mut SideQueue) {
        if let Some(item) = earlier.pop() {
            self.side.push(0, item);
        }
    }
}
