//! A client that misuses VELO in every way its windows allow, beside clients that behave.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{Client, Rig, posting::Posting};
use nicforge_core::{
    device::Ended,
    machine::{Access, Next, region},
};
use nicforge_hwi::{
    extoll::{BAR_VELO, RING_CELLS, mirror, reg, window},
    extoll_velo::address,
    posted::CELL,
};

/// Packets for each function in one pass.
const BUDGET: u32 = 64;
const PASSES: u64 = 4000;
/// Time between two passes.
const TICK: u64 = 1_000_000;
/// The bound, in passes, within which a message of an otherwise idle client arrives.
const MAX_PASSES: u64 = 4;

/// A reproducible sequence of pseudo-random numbers.
struct Numbers(u64);

impl Numbers {
    /// Returns the next number.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 24
    }

    /// Returns a number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// The client that attacks.
struct Hostile {
    client: Client,
    numbers: Numbers,
}

impl Hostile {
    /// Performs one hostile action.
    fn act(&mut self, rig: &mut Rig) {
        match self.numbers.below(16) {
            0 => rig.machine.reset_attachment(self.client.function, self.client.attachment).unwrap(),
            1 => {
                rig.machine.detach(self.client.function, self.client.attachment, Ended::Closed).unwrap();
                self.client = rig.attach_at_once(0, self.client.vpid);
            }
            2..5 => self.scribble(),
            5..8 => self.access(rig),
            _ => self.post(rig),
        }
    }

    /// Fills the ring with messages to a client that never reads, messages to clients that do not
    /// exist, and bad records.
    fn post(&mut self, rig: &Rig) {
        let mut ring = Posting::of(rig, &self.client);
        loop {
            let data = [0x5a; 64];
            let length = 8 * (1 + self.numbers.below(8) as usize);

            let more = match self.numbers.below(4) {
                0 => ring.offer(BAR_VELO, address::encode(1, 3, 0, length / 8), &data[..length]),
                1 => ring.offer(BAR_VELO, address::encode(1, 200, 0, 1), &data[..8]),
                2 => ring.offer(BAR_VELO, self.numbers.below(1 << 32), &data[..length]),
                _ => ring.offer(self.numbers.below(8) as u8, self.numbers.below(1 << 14), &data[..length]),
            };
            if !more {
                return;
            }
        }
    }

    /// Stores numbers in the ring's cells and in both read pointers.
    fn scribble(&mut self) {
        for _ in 0..256 {
            let at = self.numbers.below(u64::from(RING_CELLS) * CELL as u64 / 8) * 8;
            let word = self.client.windows.window(at, 8).unwrap();
            word.store_u64_release(0, self.numbers.next()).unwrap();
        }
        for pointer in [window::VELO_READ_POINTER, window::RMA_READ_POINTER] {
            let word = self.client.windows.window(pointer, 8).unwrap();
            word.store_u64_release(0, self.numbers.next()).unwrap();
        }
    }

    /// Accesses registers and the send aperture with any width and offset.
    fn access(&mut self, rig: &mut Rig) {
        let Client { function, attachment, .. } = self.client;
        for _ in 0..64 {
            let length = self.numbers.below(65) as usize;
            let mut data = [0xa5; 64];
            let at = self.numbers.below(0x4000);

            // Some accesses are refused, and some stall.
            let _ = rig.machine.write(function, attachment, region::BAR0, at, &data[..length]);
            let _ = rig.machine.read(function, attachment, region::BAR0, at, &mut data[..length]);

            let aperture = u32::from(BAR_VELO);
            let _ = rig.machine.write(
                function,
                attachment,
                aperture,
                self.numbers.below(1 << 32),
                &data[..length],
            );
        }
    }
}

/// Messages between two clients that behave, one at a time.
struct Traffic {
    sender: Client,
    ring: Posting,
    receiver: Client,
    sent: u64,
    /// The pass in which the message in flight was posted.
    since: u64,
    /// Maximum number of passes that a message took.
    longest: u64,
    /// The number of passes for which an access of the sender has waited.
    stalled: u64,
    /// Maximum number of passes that an access has waited.
    most_stalled: u64,
    /// Whether the next message waits for an access to end.
    due: bool,
}

impl Traffic {
    /// Attaches a sender and a receiver, each by node and VPID.
    fn new(rig: &mut Rig, from: (u32, u16), to: (u32, u16)) -> Self {
        let receiver = rig.receiver(to.0, to.1, 64);
        let sender = rig.attach(from.0, from.1);
        let ring = Posting::of(rig, &sender);
        Self { sender, ring, receiver, sent: 0, since: 0, longest: 0, stalled: 0, most_stalled: 0, due: true }
    }

    /// Takes the messages that have arrived, and posts the next one.
    fn poll(&mut self, pass: u64) {
        let arrived = self.receiver.take_all();
        for message in &arrived {
            assert_eq!(message.bytes, self.sent.to_le_bytes());
            assert_eq!(message.from, (self.sender.node, self.sender.vpid));
            self.longest = self.longest.max(pass - self.since);
            self.sent += 1;
        }

        self.due |= !arrived.is_empty();
        if self.due && self.stalled == 0 {
            let to = address::encode(self.receiver.node, self.receiver.vpid, 0, 1);
            self.ring.post(BAR_VELO, to, &self.sent.to_le_bytes());
            (self.since, self.due) = (pass, false);
        }
    }
}

/// Reads the identity register. Returns false if the access stalls.
fn read_identity(rig: &mut Rig, client: &Client) -> bool {
    let mut identity = [0; 8];
    let Client { function, attachment, .. } = *client;
    let access = rig.machine.read(function, attachment, region::BAR0, reg::IDENTITY, &mut identity).unwrap();
    access == Access::Done && &identity == b"EXTOLLR1"
}

#[test]
fn a_hostile_sender_delays_neither_messages_nor_accesses_of_its_neighbours() {
    let mut rig = Rig::pair();
    let _unresponsive = rig.receiver(1, 3, 64);
    let mut flows = [Traffic::new(&mut rig, (0, 0), (1, 0)), Traffic::new(&mut rig, (1, 1), (0, 1))];
    let mut hostile = Hostile { client: rig.attach(0, 2), numbers: Numbers(7) };

    for pass in 0..PASSES {
        hostile.act(&mut rig);
        for traffic in &mut flows {
            traffic.poll(pass);
            // An access ends at once, unless posted messages of the same client wait for the link.
            assert!(read_identity(&mut rig, &traffic.receiver), "pass {pass}");
            let stalled = !read_identity(&mut rig, &traffic.sender);
            traffic.stalled = if stalled { traffic.stalled + 1 } else { 0 };
            traffic.most_stalled = traffic.most_stalled.max(traffic.stalled);
        }

        rig.machine.advance(TICK);
        rig.machine.rescan();
        let _ = rig.machine.step(BUDGET);
    }

    for traffic in &flows {
        assert!(traffic.most_stalled <= MAX_PASSES, "an access took {} passes", traffic.most_stalled);
        assert!(traffic.longest <= MAX_PASSES, "a message took {} passes", traffic.longest);
        assert!(traffic.sent >= PASSES / MAX_PASSES, "{} messages", traffic.sent);
        assert_eq!(traffic.sender.mirror_word(mirror::ERRORS), 0);
    }
}

#[test]
fn the_cards_become_idle_after_a_hostile_sender_has_detached() {
    let mut rig = Rig::pair();
    let _unresponsive = rig.receiver(1, 3, 64);
    let mut hostile = Hostile { client: rig.attach(0, 2), numbers: Numbers(11) };
    for _ in 0..1000 {
        hostile.act(&mut rig);
        rig.machine.rescan();
        let _ = rig.machine.step(BUDGET);
    }

    rig.machine.detach(hostile.client.function, hostile.client.attachment, Ended::Closed).unwrap();

    let passes = (0..100).take_while(|_| rig.machine.step(BUDGET) == Next::Now).count();
    assert!(passes < 100);
    assert_eq!(rig.machine.fabric().packets_in_use(), 0);
}
