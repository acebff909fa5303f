//! Taps: what a trace sees of the packets on links.

use super::{Direction, LinkId, Packet};
use crate::time::Nanos;

/// Largest number of packets that wait for the trace. The machine takes them after each call of a
/// device, so that only a fabric without a trace gets that far.
const MAX_WAITING: usize = 4096;

/// A packet on its way over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing<'a> {
    /// The link.
    pub link: LinkId,
    /// The direction in which the packet crosses it.
    pub direction: Direction,
    /// Number of the virtual channel.
    pub channel: u8,
    /// Number of the packet: the same on all links that it crosses, and for copies that a router
    /// makes of it after the first link.
    pub packet: u64,
    /// The word that the NIC sends with it: see [`super::Contents::header`].
    pub header: u64,
    /// Time at which the packet's last byte arrives, if the receiver has room to show it.
    pub arrives: Nanos,
    /// Number of transmissions that had to be repeated.
    pub repeats: u64,
    /// Length of the packet in bytes.
    pub length: usize,
    /// The first bytes, as many as the tap keeps.
    pub data: &'a [u8],
}

/// The packets that were put on tapped links since the trace has taken them last.
#[derive(Debug, Default)]
pub(super) struct TappedPackets {
    packets: Vec<TappedPacket>,
    /// The kept bytes of the packets, one after the other.
    bytes: Vec<u8>,
    /// Number of the last packet that was seen for the first time.
    last_number: u64,
}

/// A packet that was put on a tapped link.
#[derive(Debug)]
struct TappedPacket {
    /// Index of the path in the fabric's table.
    path: u32,
    channel: u8,
    number: u64,
    header: u64,
    arrives: Nanos,
    repeats: u64,
    length: usize,
    /// Number of bytes that were kept.
    kept: usize,
}

impl TappedPackets {
    /// Records a packet of a path, and at most `limit` of its bytes.
    pub(super) fn record(
        &mut self,
        (path, channel): (u32, u8),
        arrives: Nanos,
        repeats: u64,
        packet: &mut Packet,
        limit: usize,
    ) {
        if self.packets.len() == MAX_WAITING {
            return;
        }
        if packet.number == 0 {
            self.last_number += 1;
            packet.number = self.last_number;
        }

        let length = packet.len();
        let kept = length.min(limit);
        self.bytes.extend_from_slice(&packet.bytes()[..kept]);
        self.packets.push(TappedPacket {
            path,
            channel,
            number: packet.number,
            header: packet.header,
            arrives,
            repeats,
            length,
            kept,
        });
    }

    /// Passes the packets to `show`, in order, and forgets them. The buffers stay for the next
    /// ones.
    pub(super) fn take(&mut self, mut show: impl FnMut(Crossing<'_>)) {
        let mut rest = self.bytes.as_slice();
        for packet in &self.packets {
            let (data, others) = rest.split_at(packet.kept.min(rest.len()));
            rest = others;
            // Each link has two paths, the forward one first.
            let is_forward = packet.path.is_multiple_of(2);
            show(Crossing {
                link: LinkId(packet.path / 2),
                direction: if is_forward { Direction::Forward } else { Direction::Backward },
                channel: packet.channel,
                packet: packet.number,
                header: packet.header,
                arrives: packet.arrives,
                repeats: packet.repeats,
                length: packet.length,
                data,
            });
        }
        self.packets.clear();
        self.bytes.clear();
    }
}
