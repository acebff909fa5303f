//! The send FIFO: slots that software fills, and the side queue.

use nicforge_core::fabric::{Packet, Ports, Run};
use nicforge_hwi::{
    tree::{Header, PAYLOAD},
    tree_dcr::{checksum, vcfg},
};

use super::{Channel, FRAMING, Head, RowEnd, Side, SideItem};

impl Channel {
    /// Returns whether the channel has a tenant, or items that a former tenant left behind.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        self.windows.is_some() || !self.side.is_empty()
    }

    /// Returns the first item of the send FIFO.
    #[inline]
    pub(crate) fn head(&mut self) -> Head {
        if !self.may_send() {
            return Head::Empty;
        }

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

    /// Returns the control word of the send slot `ahead` of the head, if the slot holds that
    /// packet.
    #[inline]
    fn control(&self, ahead: u32) -> Option<u64> {
        self.windows.as_ref()?.send.holds(self.send_head.wrapping_add(ahead))
    }

    /// Returns the header of the packet in the slot at the head, unless an item of the side queue
    /// is first.
    #[inline]
    pub(crate) fn slot_header(&mut self) -> Option<Header> {
        if self.side.front().is_some_and(|side| side.after == self.send_head) {
            return None;
        }

        if self.current.is_none() {
            self.current = self.control(0);
        }

        self.current.map(|control| Header((control >> 32) as u32))
    }

    /// Sends packets out of the slots while `goes` accepts their headers, at most `most`. Returns
    /// the number sent and why the row ended.
    ///
    /// A packet with a checksum ends the row.
    #[inline]
    pub(crate) fn send_row(
        &mut self,
        run: &mut Run<'_>,
        most: u32,
        goes: impl Fn(Header) -> bool,
    ) -> (u32, RowEnd) {
        let Some(windows) = &self.windows else { return (0, RowEnd::Other) };

        // An item of the side queue ends the row at its place.
        let first = self.send_head;
        let most = self.side.front().map_or(most, |side| most.min(side.after.wrapping_sub(first)));

        let (mut sent, mut alike, mut current) = (0, None, self.current);

        let end = loop {
            if sent == most {
                break RowEnd::Other;
            }

            let number = first.wrapping_add(sent);
            // The control word is read once, even if the packet does not leave in this step.
            current = current.or_else(|| windows.send.holds(number));
            let Some(control) = current else { break RowEnd::Empty };

            let header = Header((control >> 32) as u32);
            if alike != Some(header) {
                if header.checksum_mode() != checksum::NONE || !goes(header) {
                    break RowEnd::Other;
                }
                alike = Some(header);
            }

            let gone = run.send_with(PAYLOAD, |packet| {
                if let Some(payload) = packet.bytes_mut().first_chunk_mut::<PAYLOAD>() {
                    windows.send.payload(number, payload);
                }
                packet.header = header.0.into();
                packet.framing = FRAMING;
            });
            if !gone {
                break if run.room() == 0 { RowEnd::Blocked } else { RowEnd::Starved };
            }

            current = None;
            sent += 1;
        };

        self.current = current;
        self.send_head = first.wrapping_add(sent);
        self.send_seen = if end == RowEnd::Empty { 0 } else { self.send_seen.saturating_sub(sent) };

        (sent, end)
    }

    /// Takes the first packet out of the FIFO. Returns `None` if there is none, or if the pool has
    /// no packet to hold it.
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

    /// Removes the presence symbol that is first.
    pub(crate) fn take_presence(&mut self) {
        if self.side.front().is_some_and(|side| matches!(side.item, SideItem::Presence { .. })) {
            self.side.pop_front();
        }
    }

    /// Returns the packet in the slot at the head; the slot is read once.
    #[inline]
    pub(super) fn read_slot(&mut self, ports: &mut Ports<'_>) -> Option<Packet> {
        let control = self.current.or_else(|| self.control(0))?;
        let mut packet = ports.new_packet(PAYLOAD)?;
        let windows = self.windows.as_ref()?;

        if let Some(payload) = packet.bytes_mut().first_chunk_mut::<PAYLOAD>() {
            windows.send.payload(self.send_head, payload);
        }

        packet.header = control >> 32;
        packet.framing = FRAMING;
        Some(packet)
    }

    /// Moves the head past the slot.
    #[inline]
    pub(super) fn next_slot(&mut self) {
        self.current = None;
        self.send_head = self.send_head.wrapping_add(1);
        self.send_seen = self.send_seen.saturating_sub(1);
    }

    /// Returns the number of filled send slots.
    pub(super) fn send_filled(&mut self) -> u32 {
        self.send_seen = self.send_seen.max(self.current.is_some().into());
        while self.send_seen < self.send_depth && self.control(self.send_seen).is_some() {
            self.send_seen += 1;
        }
        self.send_seen
    }

    /// Returns the number of packets in the send FIFO.
    pub(crate) fn send_count(&mut self) -> u32 {
        self.send_filled() + self.side_packets
    }

    /// Returns the number of packets that the send FIFO holds.
    pub(crate) fn send_depth(&self) -> u32 {
        self.send_depth
    }

    /// Returns the number of packets taken out of the send slots.
    pub(crate) fn send_pointer(&self) -> u32 {
        self.send_head
    }

    /// Puts an item behind the current contents of the send FIFO.
    pub(crate) fn append(&mut self, item: SideItem) {
        match &item {
            SideItem::Packet(_) => self.side_packets += 1,
            // An older symbol for the same core is superseded.
            SideItem::Presence { core, .. } => self.side.retain(
                |side| !matches!(&side.item, SideItem::Presence { core: other, .. } if other == core),
            ),
        }

        let after = self.send_head.wrapping_add(self.send_filled());
        self.side.push_back(Side { after, item });
    }

    /// Adds a packet to the channel's checksums.
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
}
