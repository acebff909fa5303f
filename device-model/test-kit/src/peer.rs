//! A test's own end of a link.

use std::sync::Arc;

use nicforge_core::{
    dma::DmaLease,
    fabric::{LinkId, Ports},
    ids::FunctionId,
};

use crate::Testbed;

/// A packet that a test sends or has received.
#[derive(Clone, Debug, Default)]
pub struct PeerPacket {
    /// The word for the NIC's use.
    pub header: u64,
    /// Bytes on the link beside the content, such as a checksum.
    pub framing: u32,
    /// The content.
    pub bytes: Vec<u8>,
    /// Memory that the packet refers to instead of carrying it.
    pub memory: Option<Arc<DmaLease>>,
}

impl PeerPacket {
    /// Returns a packet without framing.
    pub fn new(header: u64, bytes: &[u8]) -> Self {
        Self { header, framing: 0, bytes: bytes.to_vec(), memory: None }
    }
}

/// The far end of a link of a lone device. The test sends and receives through it.
///
/// It has the credits of a device's port. Packets that the test does not take stay in the link's
/// buffers, and a device without credit stalls.
#[derive(Clone, Copy, Debug)]
pub struct PeerPort {
    end: FunctionId,
    link: LinkId,
}

impl PeerPort {
    pub(crate) const fn new(end: FunctionId, link: LinkId) -> Self {
        Self { end, link }
    }

    /// Returns the link. The device is its first end, so that its packets go
    /// [forward](nicforge_core::fabric::Direction::Forward).
    pub const fn link(self) -> LinkId {
        self.link
    }

    /// Returns the number of packets that the test can send now on a virtual channel.
    pub fn credits(self, bed: &mut Testbed, channel: usize) -> u32 {
        self.ports(bed).credits(0, channel)
    }

    /// Sends a packet on a virtual channel that must have a credit. It arrives after the link's
    /// time, in a later step.
    #[track_caller]
    pub fn send(self, bed: &mut Testbed, channel: usize, packet: &PeerPacket) {
        let sent = self.try_send(bed, channel, packet);
        assert!(sent, "virtual channel {channel} has no credit, or the link is down");
    }

    /// Sends a packet. Returns false if there is no credit, or the link is down.
    #[track_caller]
    pub fn try_send(self, bed: &mut Testbed, channel: usize, packet: &PeerPacket) -> bool {
        let mut ports = self.ports(bed);
        if ports.credits(0, channel) == 0 {
            return false;
        }

        let length = packet.bytes.len();
        let mut sent = ports.new_packet(length).expect("the packet is too long, or the pool is empty");
        sent.header = packet.header;
        sent.framing = packet.framing;
        sent.memory.clone_from(&packet.memory);
        sent.bytes_mut().copy_from_slice(&packet.bytes);

        assert!(ports.send(0, channel, sent).is_ok(), "the link does not take {length} bytes");
        true
    }

    /// Takes the first packet that has arrived on a virtual channel. Its credit returns to the
    /// device.
    pub fn take(self, bed: &mut Testbed, channel: usize) -> Option<PeerPacket> {
        let mut ports = self.ports(bed);
        let arrived = ports.take(0, channel)?;
        let packet = PeerPacket {
            header: arrived.header,
            framing: arrived.framing,
            bytes: arrived.bytes().to_vec(),
            memory: arrived.memory.clone(),
        };

        ports.recycle(arrived);
        Some(packet)
    }

    /// Takes all packets that have arrived on a virtual channel.
    pub fn take_all(self, bed: &mut Testbed, channel: usize) -> Vec<PeerPacket> {
        std::iter::from_fn(|| self.take(bed, channel)).collect()
    }

    /// Returns the far end's ports, after the fabric has delivered what has arrived by now.
    fn ports(self, bed: &mut Testbed) -> Ports<'_> {
        let now = bed.now();
        bed.fabric().advance(now);
        bed.fabric().ports(self.end, now)
    }
}
