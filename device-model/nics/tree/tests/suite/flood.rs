//! A client of the tree that fills, overwrites and resets all that it can reach, and the effect on
//! its neighbours.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{Client, Payload, Rig, payload, to};
use nicforge_core::{
    ids::AttachmentId,
    machine::{Access, region},
};
use nicforge_hwi::{
    tree::{ATTACHMENT_ADMIN, Header, SLOT, SLOT_CONTROL, mirror, window},
    tree_dcr::{GLOB_NADDR, REGISTERS, dcr},
};

/// Packets for each function in one pass: a hostile action, and a step of the machine.
const BUDGET: u32 = 16;
/// Passes of an attack.
const PASSES: u32 = 3000;
/// The bound, in passes, within which a packet of an otherwise idle node arrives.
const MAX_PASSES: u32 = 8;
/// The node that attacks. The path between its neighbours passes through it.
const HOSTILE: u32 = 1;

/// A reproducible sequence of pseudo-random numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 24
    }

    /// Returns a number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// All cores of a node, attacking together.
struct Hostile {
    cores: Vec<Client>,
    numbers: Numbers,
    /// Packets leave with any header, including those of collectives that never complete.
    any_header: bool,
}

impl Hostile {
    fn new(rig: &mut Rig, any_header: bool) -> Self {
        let cores = (0..4).map(|core| rig.attach(HOSTILE, core)).collect();
        Self { cores, numbers: Numbers(3), any_header }
    }

    /// Performs one hostile action.
    fn act(&mut self, rig: &mut Rig) {
        let core = self.numbers.below(4) as usize;

        match self.numbers.below(8) {
            0 => {
                let attachment = AttachmentId(core as u16);
                rig.machine.reset_attachment(rig.functions[HOSTILE as usize], attachment).unwrap();
            }
            1 => {
                rig.kill(&self.cores[core]);
                self.cores[core] = rig.attach_at_once(HOSTILE, core as u16);
            }
            2 => self.scribble(core),
            3..5 => self.access(rig, core),
            _ => self.fill(core),
        }
    }

    /// Fills all send slots. Targets are a node that receives, the node itself (which does not
    /// receive), and absent nodes.
    fn fill(&mut self, core: usize) {
        let client = &self.cores[core];
        let depth = client.mirror(mirror::SEND_DEPTH);

        for _ in 0..depth {
            let number = client.mirror(mirror::SEND_HEAD);
            let header = match self.numbers.below(4) {
                _ if self.any_header => Header(self.numbers.next() as u32),
                0 => to(0),
                1 => to(HOSTILE),
                2 => to(1000),
                _ => to(2),
            };

            for ahead in 0..depth {
                let sequence = number.wrapping_add(ahead);
                let slot = window::SEND + u64::from(sequence % depth) * SLOT;
                client.set_window(slot + SLOT_CONTROL + 4, header.0);
                client.set_window(slot + SLOT_CONTROL, sequence.wrapping_add(1));
            }
        }
    }

    /// Stores numbers in lock boxes, pointers and scratch memory, and leaves the lock boxes taken.
    fn scribble(&mut self, core: usize) {
        let client = &self.cores[core];

        for lock in 0..window::LOCK_BOXES {
            client.set_window(window::LOCK + lock * window::LOCK_STRIDE, self.numbers.next() as u32 | 1);
        }

        client.set_window(window::RECV_HEAD, self.numbers.next() as u32);
        client.set_window(window::SEND_TAIL, self.numbers.next() as u32);
        client.set_window(window::SRAM, self.numbers.next() as u32);
    }

    /// Accesses every kind of register with odd widths.
    fn access(&mut self, rig: &mut Rig, core: usize) {
        let (function, attachment) = (self.cores[core].function, self.cores[core].attachment);
        for _ in 0..64 {
            let at = self.numbers.below(REGISTERS);
            let length = self.numbers.below(65) as usize;
            let mut data = [self.numbers.next() as u8; 64];

            // An access beyond the BAR is refused.
            let _ = rig.machine.write(function, attachment, region::BAR0, at, &data[..length]);
            let _ = rig.machine.read(function, attachment, region::BAR0, at, &mut data[..length]);
        }
    }
}

/// Packets between two nodes, one at a time.
struct Traffic {
    from: Client,
    to: Client,
    sent: u32,
    /// The pass in which the packet on its way was sent.
    since: u32,
    /// Maximum number of passes that a packet took.
    longest: u32,
}

impl Traffic {
    fn new(from: Client, to: Client) -> Self {
        Self { from, to, sent: 0, since: 0, longest: 0 }
    }

    /// Returns the payload of the packet on its way.
    fn expected(&self) -> Payload {
        payload(self.sent + 1_000_000)
    }

    /// Takes the packets that have arrived, and sends the next one. The hostile node's packets may
    /// be among those that arrive.
    fn poll(&mut self, pass: u32) {
        let mut has_arrived = pass == 0;

        while let Some((_, received)) = self.to.receive() {
            if received == self.expected() {
                self.longest = self.longest.max(pass - self.since);
                self.sent += 1;
                has_arrived = true;
            }
        }

        if has_arrived {
            assert!(self.from.try_send(to(self.to.node), &self.expected()));
            self.since = pass;
        }
    }
}

/// Attacks in each pass, and asserts that every packet and access of the neighbours completes in
/// time. The reader, if any, takes all packets that arrive for it.
fn attack(rig: &mut Rig, mut hostile: Hostile, mut flows: [Traffic; 2], reader: Option<Client>) {
    for pass in 0..PASSES {
        hostile.act(rig);
        while reader.as_ref().is_some_and(|reader| reader.receive().is_some()) {}

        for traffic in &mut flows {
            traffic.poll(pass);
            let mut address = [0; 4];
            let (function, attachment) = (traffic.from.function, traffic.from.attachment);
            let at = dcr(GLOB_NADDR);
            let access = rig.machine.read(function, attachment, region::BAR0, at, &mut address);

            assert_eq!(access.ok(), Some(Access::Done), "pass {pass}");
            assert_eq!(u32::from_le_bytes(address), traffic.from.node, "pass {pass}");
        }

        let _ = rig.machine.step(BUDGET);
    }

    for traffic in &flows {
        assert!(
            traffic.longest <= MAX_PASSES,
            "a packet took {} passes, {} came",
            traffic.longest,
            traffic.sent
        );
        assert!(traffic.sent >= PASSES / MAX_PASSES, "{} packets came", traffic.sent);
    }
}

#[test]
fn a_node_that_floods_its_fifos_and_registers_delays_its_neighbours_packets_by_few_passes() {
    let mut rig = Rig::psets(&[4]);
    let (io, victim) = (rig.core(0), rig.core(3));
    let neighbour = rig.core(2);
    let (up, down) = (Traffic::new(victim.twin(), io.twin()), Traffic::new(io, victim));
    let hostile = Hostile::new(&mut rig, false);

    attack(&mut rig, hostile, [up, down], Some(neighbour));
}

#[test]
fn a_node_that_sends_any_header_on_the_user_channel_does_not_delay_the_system_channel() {
    let mut rig = Rig::psets(&[4]);
    let (io, victim) = (rig.admin(0), rig.attach(3, ATTACHMENT_ADMIN));
    let (up, down) = (Traffic::new(victim.twin(), io.twin()), Traffic::new(io, victim));
    let hostile = Hostile::new(&mut rig, true);

    attack(&mut rig, hostile, [up, down], None);
}
