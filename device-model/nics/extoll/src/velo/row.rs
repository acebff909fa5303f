//! Messages that leave together in one packet.
//!
//! Over links that take no time, the messages of a client with the same header share a packet, up
//! to its longest content. The receiving card takes them apart by their length.

use nicforge_core::fabric::{Contents, PortChannel, Ports, Run};
use nicforge_hwi::extoll_velo::MAX_QUADWORDS;
use zerocopy::IntoBytes;

use super::{QUADWORD, address::SendAddress, assembly::is_start};
use crate::{directory::Entry, packet::Endpoint, unit::set_header_and_framing};

/// Sends the messages of one client to the VPIDs of one node. Messages with the same header that
/// follow each other share a packet.
pub(super) struct PackedSender<'a> {
    /// Access to the output channel, by which all packets leave.
    run: Run<'a>,
    /// The directory's entries of the node's VPIDs.
    entries: &'a mut [Entry],
    source: Endpoint,
    node: u32,
    /// The VPID that the last message was for, or [`PackedSender::NO_VPID`].
    receiver: u16,
    /// The credit that is left for this VPID. Its entry in the directory gets it when another VPID
    /// is selected, and at the end.
    credit: u32,
    /// The messages of the next packet.
    next_packet: PackedMessages,
    /// Number of packets sent.
    packets: u32,
}

impl<'a> PackedSender<'a> {
    /// A VPID that no card has.
    const NO_VPID: u16 = u16::MAX;

    /// Returns a sender of messages of `source` to `node`. The link of `run` takes packets of
    /// [`nicforge_hwi::extoll_velo::MAX_MESSAGE`] bytes.
    pub(super) fn new(run: Run<'a>, entries: &'a mut [Entry], source: Endpoint, node: u32) -> Self {
        let next_packet = PackedMessages::default();
        Self { run, entries, source, node, receiver: Self::NO_VPID, credit: 0, next_packet, packets: 0 }
    }

    /// Adds a message of a quadword with the address and length of the last message to that one's
    /// packet. Returns false if the message is longer, or there is no credit or no room for it.
    #[inline(always)]
    pub(super) fn repeat(&mut self, message: &[u8]) -> bool {
        if self.credit == 0 || !self.next_packet.add_quadword(message) {
            return false;
        }
        self.credit -= 1;
        true
    }

    /// Adds a message. `offset` is its offset in the send aperture, or `None` if it has the address
    /// and the length of the last message.
    ///
    /// A message with the address of the last one joins that one's packet if there is room.
    /// Otherwise it is the first one of a new packet, and the packet before is sent. Returns false
    /// if the message can't be sent in this way.
    #[inline(never)]
    pub(super) fn add(&mut self, offset: Option<u64>, message: &[u8]) -> bool {
        let is_repeat = offset.is_none();
        if is_repeat && self.credit == 0 {
            return false;
        }

        if !(is_repeat && self.next_packet.has_room(message.len())) {
            if !self.send_packet() || self.run.room() == 0 {
                return false;
            }
            if offset.is_some_and(|offset| !self.select_receiver(offset, message)) {
                return false;
            }
        }

        self.credit -= 1;
        self.next_packet.add(message);
        true
    }

    /// Selects the receiver of a message and of those that follow with the same address. Returns
    /// false if the message is not a complete one to this node, if the receiver is down, or if
    /// there is no credit left for it.
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
        self.next_packet.header = address.packet_header(self.source, generation).encode();
        self.next_packet.message_bytes = message.len();

        credit > 0
    }

    /// Writes the credit that is left into the directory.
    fn return_credit(&mut self) {
        if let Some(entry) = self.entries.get_mut(usize::from(self.receiver)) {
            entry.credit = self.credit;
        }
    }

    /// Sends the messages of the next packet, if there are any. Returns false if the pool has no
    /// packet left.
    fn send_packet(&mut self) -> bool {
        let messages = &mut self.next_packet;
        if messages.quadword_count == 0 {
            return true;
        }

        let sent = self.run.send(messages.bytes(), |packet| messages.set_header_and_framing(packet)).is_ok();
        if sent {
            self.packets += 1;
            messages.quadword_count = 0;
        }
        sent
    }

    /// Sends the last packet, if the pool has one for it.
    pub(super) fn finish(mut self) -> SentPackets {
        self.return_credit();
        if self.send_packet() {
            SentPackets { count: self.packets, unsent: None }
        } else {
            SentPackets { count: self.packets + 1, unsent: Some(self.next_packet) }
        }
    }
}

/// The packets of a [`PackedSender`].
pub(super) struct SentPackets {
    /// Number of packets, including the last one.
    pub(super) count: u32,
    /// The messages of the last packet, if the caller must send it because the pool was empty.
    pub(super) unsent: Option<PackedMessages>,
}

/// Messages with one header, on their way into one packet.
pub(super) struct PackedMessages {
    /// The packet's header.
    header: u64,
    /// Length of each message in bytes.
    message_bytes: usize,
    /// Number of quadwords of all messages, 0 without a message.
    quadword_count: usize,
    quadwords: [u64; MAX_QUADWORDS],
}

impl Default for PackedMessages {
    /// Returns no messages. Header and length are set before the first message is added.
    fn default() -> Self {
        Self { header: 0, message_bytes: 1, quadword_count: 0, quadwords: [0; MAX_QUADWORDS] }
    }
}

impl PackedMessages {
    /// Returns whether a message of `bytes` bytes fits after the others.
    fn has_room(&self, bytes: usize) -> bool {
        self.quadword_count + bytes / QUADWORD <= MAX_QUADWORDS
    }

    /// Adds a message of a quadword. Returns false if it is longer, or if there is no room for it.
    #[inline(always)]
    fn add_quadword(&mut self, message: &[u8]) -> bool {
        let next_quadword = self.quadwords.get_mut(self.quadword_count);
        let (Ok(bytes), Some(quadword)) = (message.try_into(), next_quadword) else {
            return false;
        };
        *quadword = u64::from_ne_bytes(bytes);
        self.quadword_count += 1;
        true
    }

    /// Adds a message of whole quadwords, for which there is room.
    fn add(&mut self, message: &[u8]) {
        let free = self.quadwords.iter_mut().skip(self.quadword_count);
        for (quadword, bytes) in free.zip(message.as_chunks().0) {
            *quadword = u64::from_ne_bytes(*bytes);
        }
        self.quadword_count += message.len() / QUADWORD;
    }

    /// Returns the messages.
    fn bytes(&self) -> &[u8] {
        self.quadwords.as_bytes().get(..self.quadword_count * QUADWORD).unwrap_or_default()
    }

    /// Sends the messages by an output channel that has a credit. The caller has made sure that the
    /// pool has a packet.
    #[cold]
    pub(super) fn send_last(&self, ports: &mut Ports<'_>, output: PortChannel) {
        let Ok(mut packet) = ports.new_packet(self.quadword_count * QUADWORD) else { return };
        packet.bytes_mut().copy_from_slice(self.bytes());
        self.set_header_and_framing(&mut packet);

        // A failure is not reached, because a packet is begun only with a credit for it.
        if let Err(unsent) = ports.send(output.port, output.channel, packet) {
            ports.recycle(unsent.packet);
        }
    }

    /// Sets the packet's header and framing. The packet takes as much framing on the link as a
    /// packet for each message would.
    #[inline(always)]
    fn set_header_and_framing(&self, packet: &mut Contents) {
        set_header_and_framing(packet, self.header);
        // The number of messages is at most MAX_QUADWORDS.
        packet.framing *= (self.quadword_count * QUADWORD / self.message_bytes) as u32;
    }
}
