//! Rows of messages that leave in one packet.
//!
//! Over links that take no time, the messages of a client with the same header share a packet, up
//! to its longest content. The receiving card takes them apart by their length.

use nicforge_core::fabric::{Contents, Ports, Run};
use nicforge_hwi::extoll_velo::MAX_QUADWORDS;
use zerocopy::IntoBytes;

use super::{address::SendAddress, assembly::is_start};
use crate::{directory::Entry, unit::frame, wire::Endpoint};

/// The messages of one client to the VPIDs of one node, on their way into packets.
pub(super) struct Rows<'a> {
    run: Run<'a>,
    /// The directory's entries of the node's VPIDs.
    entries: &'a mut [Entry],
    source: Endpoint,
    node: u32,
    /// The VPID that the last message was for, or [`Rows::NONE`].
    receiver: u16,
    /// The credit that is left for this VPID. Its entry gets it when another VPID is served, and
    /// at the end.
    credit: u32,
    row: Row,
    /// Number of packets sent.
    packets: u32,
}

impl<'a> Rows<'a> {
    /// A VPID that no card has.
    const NONE: u16 = u16::MAX;

    /// Returns the messages of `source` to `node`, none at first. The link of `run` takes packets
    /// of [`nicforge_hwi::extoll_velo::MAX_MESSAGE`] bytes.
    pub(super) fn new(run: Run<'a>, entries: &'a mut [Entry], source: Endpoint, node: u32) -> Self {
        let row = Row { header: 0, message: 1, length: 0, quadwords: [0; MAX_QUADWORDS] };
        Self { run, entries, source, node, receiver: Self::NONE, credit: 0, row, packets: 0 }
    }

    /// Adds a message of a quadword with the address and length of the last message to that one's
    /// packet. Returns false if the message is longer, or there is no credit or no room for it.
    #[inline(always)]
    pub(super) fn repeat(&mut self, message: &[u8]) -> bool {
        if self.credit == 0 || !self.row.add_quadword(message) {
            return false;
        }
        self.credit -= 1;
        true
    }

    /// Adds a message to the address `offset`, or to that of the last one, whose length it has
    /// then. Such a repeat joins the last message if there is room. Otherwise the message is the
    /// first one of a packet, and the packet before is sent. Returns false if the message can't be
    /// sent in this way.
    #[inline(never)]
    pub(super) fn add(&mut self, offset: Option<u64>, message: &[u8]) -> bool {
        let is_repeat = offset.is_none();
        if is_repeat && self.credit == 0 {
            return false;
        }

        if !(is_repeat && self.row.has_room(message.len())) {
            if !self.send_row() || self.run.room() == 0 {
                return false;
            }
            if offset.is_some_and(|offset| !self.select_receiver(offset, message)) {
                return false;
            }
        }

        self.credit -= 1;
        self.row.add(message);
        true
    }

    /// Selects the receiver of a message, for which messages are added from now on. Returns false
    /// if its address is no complete one of a message to this node, or the receiver is down or has
    /// no credit left.
    fn select_receiver(&mut self, offset: u64, message: &[u8]) -> bool {
        let address = SendAddress::decode(offset);
        let Endpoint { node, vpid } = address.receiver;
        if node != self.node || !is_start(offset) || message.len() != address.bytes() {
            return false;
        }

        self.return_credit();
        let entry = self.entries.get(usize::from(vpid)).filter(|entry| entry.is_up());
        let Some(&Entry { generation, credit }) = entry else { return false };
        (self.receiver, self.credit) = (vpid, credit);
        self.row.header = address.message(self.source, generation).encode();
        self.row.message = message.len();

        credit > 0
    }

    /// Writes the credit that is left into the directory.
    fn return_credit(&mut self) {
        if let Some(entry) = self.entries.get_mut(usize::from(self.receiver)) {
            entry.credit = self.credit;
        }
    }

    /// Sends the messages that have come together. Returns false if the pool has no packet left.
    fn send_row(&mut self) -> bool {
        let row = &mut self.row;
        if row.length == 0 {
            return true;
        }

        let sent = self.run.send(row.bytes(), |packet| row.frame(packet)).is_ok();
        if sent {
            self.packets += 1;
            row.length = 0;
        }
        sent
    }

    /// Sends the last messages. Returns the number of packets, and the row that the pool had no
    /// packet for.
    pub(super) fn finish(mut self) -> (u32, Option<Row>) {
        self.return_credit();
        if self.send_row() { (self.packets, None) } else { (self.packets + 1, Some(self.row)) }
    }
}

/// Messages with one header on their way into one packet.
pub(super) struct Row {
    header: u64,
    /// Length of each message in bytes.
    message: usize,
    /// Number of quadwords of all messages, 0 without a message.
    length: usize,
    quadwords: [u64; MAX_QUADWORDS],
}

impl Row {
    /// Returns whether a message of `bytes` bytes fits after the others.
    fn has_room(&self, bytes: usize) -> bool {
        self.length + bytes / 8 <= MAX_QUADWORDS
    }

    /// Adds a message of a quadword. Returns false if it is longer, or if there is no room for it.
    #[inline(always)]
    fn add_quadword(&mut self, message: &[u8]) -> bool {
        let (Ok(bytes), Some(quadword)) = (message.try_into(), self.quadwords.get_mut(self.length)) else {
            return false;
        };
        *quadword = u64::from_ne_bytes(bytes);
        self.length += 1;
        true
    }

    /// Adds a message of whole quadwords, for which there is room.
    fn add(&mut self, message: &[u8]) {
        let free = self.quadwords.iter_mut().skip(self.length);
        for (quadword, bytes) in free.zip(message.as_chunks().0) {
            *quadword = u64::from_ne_bytes(*bytes);
        }
        self.length += message.len() / 8;
    }

    /// Returns the messages.
    fn bytes(&self) -> &[u8] {
        self.quadwords.as_bytes().get(..self.length * 8).unwrap_or_default()
    }

    /// Sends the row with a buffer that was kept free, by an output channel that has a credit.
    #[cold]
    pub(super) fn send_last(&self, ports: &mut Ports<'_>, (port, vc): (u8, usize)) {
        let Ok(mut packet) = ports.new_packet(self.length * 8) else { return };
        packet.bytes_mut().copy_from_slice(self.bytes());
        self.frame(&mut packet);

        // A failure is not reached, because a row begins only with a credit for its packet.
        if let Err(unsent) = ports.send(port, vc, packet) {
            ports.recycle(unsent.packet);
        }
    }

    /// Writes the header and the framing of the packet, which counts the framing of each message.
    #[inline(always)]
    fn frame(&self, packet: &mut Contents) {
        frame(packet, self.header);
        // The number of messages is at most 8.
        packet.framing *= (self.length * 8 / self.message) as u32;
    }
}
