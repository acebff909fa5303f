//! A repeater with two ports: a device that forwards packets, and has no client.
//!
//! The chapter "Devices that talk to each other" includes this file, and the tests compile and run
//! it.

// ANCHOR: device
use nicforge_core::{
    context::Context,
    device::{Counter, Device, Progress, Reset, Write},
    ids::{Address, AttachmentId},
    spec::{FunctionSpec, Identity},
};

/// The virtual channel of all packets.
const CHANNEL: usize = 0;

/// Passes packets on between ports 0 and 1, in both directions.
#[derive(Default)]
pub struct Repeater {
    forwarded: u64,
}

impl Device for Repeater {
    fn spec(&self) -> FunctionSpec {
        let identity = Identity {
            vendor: 0x1234,
            device: 0x2b2b,
            subsystem_vendor: 0x1234,
            subsystem: 0,
            class: 0x02_80_00,
            revision: 1,
        };

        // Without an attachment it is no PCI function: no client reaches it.
        FunctionSpec::hub(identity)
    }

    fn ports(&self) -> u8 {
        2
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let mut ports = context.ports();
        let mut left = budget;
        for (from, to) in [(0, 1), (1, 0)] {
            // Without a credit the packet stays where it is, and its sender runs out of credits.
            while left > 0 && ports.forward(from, to, CHANNEL) {
                self.forwarded += 1;
                left -= 1;
            }
        }

        if left < budget { Progress::Busy } else { Progress::Idle }
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {}

    fn counters(&self) -> Vec<Counter> {
        vec![Counter { name: "forwarded", value: self.forwarded }]
    }
}
// ANCHOR_END: device

#[cfg(test)]
mod tests {
    use nicforge_core::{
        fabric::{Direction, Fault, LinkSpec},
        time::Nanos,
    };
    use nicforge_test_kit::{PeerPacket, PeerPort, Testbed};

    use super::{CHANNEL, Repeater};

    // ANCHOR: bed
    /// Returns a repeater between two ports that the test holds.
    fn between_peers(link: &LinkSpec) -> (Testbed, PeerPort, PeerPort) {
        let mut bed = Testbed::new();
        let repeater = bed.add("repeater0", Repeater::default());
        let left = bed.peer((repeater, 0), link.clone());
        let right = bed.peer((repeater, 1), link.clone());
        (bed, left, right)
    }

    #[test]
    fn packets_pass_in_both_directions() {
        let (mut bed, left, right) = between_peers(&LinkSpec::default());

        left.send(&mut bed, CHANNEL, &PeerPacket::new(7, b"ping"));
        right.send(&mut bed, CHANNEL, &PeerPacket::new(8, b"pong"));
        bed.run_until_idle();

        let (ping, pong) = (right.take(&mut bed, CHANNEL).unwrap(), left.take(&mut bed, CHANNEL).unwrap());
        assert_eq!((ping.header, ping.bytes.as_slice()), (7, b"ping".as_slice()));
        assert_eq!((pong.header, pong.bytes.as_slice()), (8, b"pong".as_slice()));
    }
    // ANCHOR_END: bed

    // ANCHOR: credits
    #[test]
    fn a_receiver_that_takes_nothing_stops_the_sender() {
        let link = LinkSpec { credits: vec![2], ..LinkSpec::default() };
        let (mut bed, left, right) = between_peers(&link);

        let mut sent = 0_u32;
        while left.try_send(&mut bed, CHANNEL, &PeerPacket::new(0, &sent.to_le_bytes())) {
            sent += 1;
            bed.run_until_idle();
        }
        let first = right.take(&mut bed, CHANNEL).unwrap();
        bed.run_until_idle();

        // Two packets are in front of the repeater, and two behind it.
        assert_eq!(sent, 4);
        // Each packet that is taken makes room for one more, at the other end.
        assert_eq!((first.bytes, left.credits(&mut bed, CHANNEL)), (0_u32.to_le_bytes().to_vec(), 1));
    }
    // ANCHOR_END: credits

    // ANCHOR: time
    #[test]
    fn packets_take_the_time_of_the_links() {
        // 8 Gb/s are a byte in a nanosecond.
        let link = LinkSpec { delay: 500, bits_per_second: 8_000_000_000, ..LinkSpec::default() };
        let (mut bed, left, right) = between_peers(&link);

        let packet = PeerPacket { framing: 24, ..PeerPacket::new(0, &[0; 1000]) };
        left.send(&mut bed, CHANNEL, &packet);
        bed.run_until(|bed| right.take(bed, CHANNEL).is_some());

        // Two links, which each carry content and framing.
        assert_eq!(bed.now(), Nanos(2 * (1024 + 500)));
    }
    // ANCHOR_END: time

    // ANCHOR: cut_through
    #[test]
    fn a_head_is_passed_on_before_its_tail_has_come() {
        let timed = LinkSpec { delay: 500, bits_per_second: 8_000_000_000, ..LinkSpec::default() };
        let link = LinkSpec { cut_through: Some(32), ..timed };
        let (mut bed, left, right) = between_peers(&link);

        left.send(&mut bed, CHANNEL, &PeerPacket::new(0, &[0; 1024]));
        bed.run_until(|bed| right.take(bed, CHANNEL).is_some());

        // The repeater waits for 32 bytes, and the peer for all of them.
        assert_eq!(bed.now(), Nanos((32 + 500) + (1024 + 500)));
    }
    // ANCHOR_END: cut_through

    // ANCHOR: faults
    #[test]
    fn a_corrupted_packet_is_sent_again_and_arrives_late() {
        let link = LinkSpec { delay: 500, bits_per_second: 8_000_000_000, ..LinkSpec::default() };
        let (mut bed, left, right) = between_peers(&link);
        // The first transmission from the repeater fails its checksum.
        let hook = |_: &mut _, transmission| if transmission == 0 { Fault::Corrupt } else { Fault::None };
        bed.fabric().set_fault(right.link(), Direction::Forward, Some(Box::new(hook))).unwrap();

        left.send(&mut bed, CHANNEL, &PeerPacket::new(0, &[0; 1024]));
        bed.run_until(|bed| right.take(bed, CHANNEL).is_some());

        // The receiver asks for it again, which takes the delay twice.
        assert_eq!(bed.now(), Nanos((1024 + 500) + (1024 + 2 * 500) + (1024 + 500)));
        let stats = bed.fabric().link_stats(right.link(), Direction::Forward, CHANNEL).unwrap();
        assert_eq!((stats.packets, stats.retransmissions), (1, 1));
    }

    #[test]
    fn a_link_that_is_down_keeps_packets_back() {
        let (mut bed, left, right) = between_peers(&LinkSpec::default());
        bed.fabric().set_link_up(right.link(), false).unwrap();

        left.send(&mut bed, CHANNEL, &PeerPacket::new(0, b"held"));
        bed.run_until_idle();
        let while_down = right.take(&mut bed, CHANNEL);
        bed.fabric().set_link_up(right.link(), true).unwrap();
        bed.run_until_idle();

        assert!(while_down.is_none());
        assert_eq!(right.take(&mut bed, CHANNEL).unwrap().bytes, b"held");
    }
    // ANCHOR_END: faults
}
