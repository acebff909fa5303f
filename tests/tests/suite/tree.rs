//! The transmission time of the tree's packets, in a machine whose clock is stepped by hand from
//! event to event.
#![allow(clippy::unwrap_used, reason = "all of this file is tests")]

use std::sync::atomic::Ordering;

use nicforge_core::{
    ids::{AttachmentId, FunctionId},
    machine::{Machine, Next},
    time::Nanos,
};
use nicforge_hwi::tree::{BAR_MIRROR, BAR_WINDOW, Header, SLOT, SLOT_CONTROL, mirror, window};
use nicforge_shm::SharedMemory;
use nicforge_tests::tree_body::described;

/// Bytes of a packet on the wire: header and payload.
const PACKET: u64 = 256 + 4;
/// Transmission time of a packet at 6.8 Gb/s.
const NANOSECONDS: f64 = PACKET as f64 * 8.0 / 6.8;

/// Returns the time after which the last bit of `count` packets has left, in nanoseconds,
/// rounded up.
fn transmission(count: u32) -> u64 {
    (f64::from(count) * NANOSECONDS).ceil() as u64
}

/// A pset of two compute nodes (1 and 2), both below the I/O node (0), with links of 6.8 Gb/s.
struct Clocked {
    machine: Machine,
    now: Nanos,
}

/// A core's mapped memory.
struct Slots {
    window: SharedMemory,
    mirror: SharedMemory,
}

impl Clocked {
    /// Creates the machine, whose links have a delay in nanoseconds.
    fn new(delay: u64) -> Self {
        let link = format!("delay_ns = {delay}\ngbit_s = 6.8\n");
        let machine = described(&format!("[[pset]]\ncompute_nodes = 2\n[pset.link]\n{link}"));
        Self { machine, now: Nanos::ZERO }
    }

    /// Attaches core 0 of the node with this address, and waits until its presence is known
    /// everywhere.
    fn core(&mut self, address: u32) -> Slots {
        let (function, attachment) = (FunctionId(address), AttachmentId(0));
        self.machine.attach(function, attachment).unwrap();
        while self.next() {}
        let memory = |bar: u8| self.machine.region(function, attachment, bar.into()).unwrap().memory.unwrap();
        Slots { window: memory(BAR_WINDOW), mirror: memory(BAR_MIRROR) }
    }

    /// Runs the machine until it is at rest at this time.
    fn step_until_idle(&mut self) {
        self.machine.rescan();
        let rests = (0..100_000).any(|_| self.machine.step(self.now, 64) != Next::Now);
        assert!(rests, "the machine does not come to rest");
    }

    /// Advances to the next event of the fabric. Returns false if there is none.
    fn next(&mut self) -> bool {
        self.step_until_idle();
        let next = self.machine.fabric().next_event();
        if next != Nanos::NEVER {
            self.now = next;
            self.step_until_idle();
        }

        next != Nanos::NEVER
    }

    /// Sends packets (sender, target and count) while the receivers read. Returns the time until
    /// the `arrivals` (receiver and count) have arrived.
    fn run(&mut self, packets: &[(&Slots, u32, u32)], arrivals: &[(&Slots, u32)]) -> u64 {
        let start = self.now;
        while arrivals.iter().any(|(to, count)| to.received() < *count) {
            for (from, target, count) in packets {
                while from.sent() < *count && from.try_send(*target) {}
            }
            arrivals.iter().for_each(|(to, _)| to.read_all());
            assert!(self.next(), "packets are missing and nothing is in flight");
        }

        self.now.0 - start.0
    }
}

impl Slots {
    /// Loads a word.
    fn word(memory: &SharedMemory, offset: u64) -> u32 {
        memory.u32(offset).unwrap().load(Ordering::Acquire)
    }

    /// Stores a word of the windows.
    fn store(&self, offset: u64, value: u32) {
        self.window.u32(offset).unwrap().store(value, Ordering::Release);
    }

    /// Returns the number of packets sent so far.
    fn sent(&self) -> u32 {
        Self::word(&self.window, window::SEND_TAIL)
    }

    /// Returns the number of packets received so far.
    fn received(&self) -> u32 {
        Self::word(&self.mirror, mirror::RECV_TAIL)
    }

    /// Frees the slots of all received packets.
    fn read_all(&self) {
        self.store(window::RECV_HEAD, self.received());
    }

    /// Sends a packet. Returns false if no slot is free.
    fn try_send(&self, target: u32) -> bool {
        let (tail, depth) = (self.sent(), Self::word(&self.mirror, mirror::SEND_DEPTH));
        if tail - Self::word(&self.mirror, mirror::SEND_HEAD) >= depth {
            return false;
        }

        let header = Header::point_to_point(0, target, false);
        let control = self.window.u64(window::SEND + u64::from(tail % depth) * SLOT + SLOT_CONTROL).unwrap();
        control.store(u64::from(tail + 1) | u64::from(header.0) << 32, Ordering::Release);
        self.store(window::SEND_TAIL, tail + 1);

        true
    }
}

#[test]
fn a_packet_takes_its_260_bytes_at_6_8_gbit_a_second() {
    let mut machine = Clocked::new(0);
    let (io, node) = (machine.core(0), machine.core(1));

    assert_eq!(machine.run(&[(&node, 0, 1)], &[(&io, 1)]), 306);
}

#[test]
fn the_delay_of_each_link_is_added() {
    let mut machine = Clocked::new(100);
    let (first, second) = (machine.core(1), machine.core(2));

    assert_eq!(machine.run(&[(&first, 2, 1)], &[(&second, 1)]), 2 * (306 + 100));
}

#[test]
fn packets_in_a_row_keep_the_link_busy() {
    let mut machine = Clocked::new(0);
    let (io, node) = (machine.core(0), machine.core(1));

    let time = machine.run(&[(&node, 0, 1000)], &[(&io, 1000)]);
    assert_eq!(time, transmission(1000));

    // The payload's share of the link's rate.
    let payload_rate = 1000.0 * 256.0 * 8.0 / time as f64;

    assert!((payload_rate - 6.695).abs() < 0.001, "{payload_rate} Gb/s");
}

#[test]
fn both_directions_are_as_fast_as_one() {
    let mut machine = Clocked::new(0);
    let (io, node) = (machine.core(0), machine.core(1));

    let time = machine.run(&[(&node, 0, 500), (&io, 1, 500)], &[(&io, 500), (&node, 500)]);
    assert_eq!(time, transmission(500));
}

#[test]
fn senders_on_different_links_take_no_time_from_each_other() {
    let mut machine = Clocked::new(0);
    let (io, first, second) = (machine.core(0), machine.core(1), machine.core(2));

    let time = machine.run(&[(&first, 0, 200), (&second, 0, 200)], &[(&io, 400)]);
    assert_eq!(time, transmission(200));
}
