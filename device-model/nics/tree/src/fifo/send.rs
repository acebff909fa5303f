//! The send FIFO: slots that software fills, and what the NIC put beside them.

use nicforge_core::fabric::{Packet, Ports};
use nicforge_hwi::{
    tree::{Header, PAYLOAD, SLOT, SLOT_CONTROL, SLOT_PAYLOAD, window},
    tree_dcr::{checksum, vcfg},
};

use super::{Channel, FRAMING, Head, Side, SideItem};

impl Channel {
    /// What is first in the send FIFO.
    #[inline]
    pub(crate) fn head(&mut self) -> Head {
        if self.windows.is_none() && self.side.is_empty() {
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
    pub(super) fn read_slot(&mut self, ports: &mut Ports<'_>) -> Option<Packet> {
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
    pub(super) fn next_slot(&mut self) {
        self.current = None;
        self.send_head = self.send_head.wrapping_add(1);
        self.send_slot += 1;
        if self.send_slot == self.send_depth {
            self.send_slot = 0;
        }
        self.send_seen = self.send_seen.saturating_sub(1);
    }

    /// Send slots that are filled.
    pub(super) fn send_filled(&mut self) -> u32 {
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
}
