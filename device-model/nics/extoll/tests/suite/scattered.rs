//! Rings, queues and regions in memory that is mapped in many pieces.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{
    Client, Message, RING_BASE, Rig,
    rma::{DATA_BASE, OPEN_TO_ALL, QUEUE_BASE},
    scattered::Scattered,
};
use nicforge_core::{fabric::Direction, machine::Access};
use nicforge_hwi::{
    extoll::{error, reg, window},
    extoll_atu::page,
    extoll_rma::{Command, Notification, command, notify, status},
    extoll_velo::{SLOT, SLOT_DATA, SLOT_HEADER, header},
};
use zerocopy::IntoBytes;

const PAGE: u64 = 4096;

/// Requests a receive ring, and returns whether it was enabled.
fn enable_ring(rig: &mut Rig, client: &Client, slots: u64) -> bool {
    rig.write64(client, reg::VELO_RING_BASE, RING_BASE);
    rig.write64(client, reg::VELO_RING_SLOTS, slots);
    rig.write64(client, reg::VELO_RING_ENABLE, 1);
    rig.run();
    rig.read64(client, reg::VELO_RING_ENABLE) == 1
}

/// The owner's side of a ring.
struct Ring {
    memory: Scattered,
    slots: u64,
    taken: u64,
}

impl Ring {
    /// Takes a message, and moves the read pointer.
    fn take(&mut self, client: &Client) -> Option<Message> {
        let at = self.taken % self.slots * SLOT;
        let header = header::decode(self.memory.word(at + SLOT_HEADER))?;
        let bytes = self.memory.read(at + SLOT_DATA, header.quadwords * 8);
        self.memory.write(at + SLOT_HEADER, &[0; 8]);
        self.taken += 1;

        client
            .windows
            .window(window::VELO_READ_POINTER, 8)
            .unwrap()
            .store_u64_release(0, self.taken)
            .unwrap();
        Some(Message { from: (header.node, header.vpid), tag: header.tag, bytes })
    }
}

/// Returns lists of pieces that are `bytes` bytes together: pages, odd lengths that split slots and
/// their messages, and a short piece at each end.
fn layouts(bytes: u64) -> [Vec<u64>; 4] {
    let odd = [8, 120, 64, 200, 72, 1000, 8, 8, 2048, 24];
    let rest = bytes - odd.iter().sum::<u64>();

    [
        vec![PAGE; (bytes / PAGE) as usize],
        odd.iter().copied().chain([rest]).collect(),
        [rest].into_iter().chain(odd).collect(),
        [PAGE - 8].into_iter().chain(vec![PAGE; (bytes / PAGE - 1) as usize]).chain([8]).collect(),
    ]
}

#[test]
fn messages_fill_a_scattered_ring_repeatedly() {
    for slots in [64, 1024] {
        for (case, lengths) in layouts(slots * SLOT).iter().enumerate() {
            let mut rig = Rig::pair();
            let (sender, receiver) = (rig.attach(0, 0), rig.attach(1, 0));
            let memory = rig.map_scattered(&receiver, RING_BASE, lengths);
            assert!(enable_ring(&mut rig, &receiver, slots), "case {case}");
            let mut ring = Ring { memory, slots, taken: 0 };

            let message = |number: u64| {
                // Most messages have one quadword, as in practice.
                let quadwords = if number.is_multiple_of(3) { 1 + number as usize % 8 } else { 1 };
                (0..quadwords as u64).flat_map(|word| (number << 8 | word).to_le_bytes()).collect::<Vec<_>>()
            };

            let (mut sent, mut received) = (0, 0);
            while received < 3 * slots + 7 {
                // Messages arrive in rows, and one by one.
                for _ in 0..1 + received % 40 {
                    let bytes = message(sent);
                    sent += u64::from(rig.send(&sender, (1, 0), (sent % 16) as u8, &bytes));
                }

                rig.run();

                while let Some(found) = ring.take(&receiver) {
                    let tag = (received % 16) as u8;
                    assert_eq!(found, Message { from: (0, 0), tag, bytes: message(received) }, "case {case}");
                    received += 1;
                }
                rig.run();
            }
            assert_eq!(receiver.last_error(), (0, 0));
        }
    }
}

#[test]
fn a_ring_ends_with_any_of_its_pages() {
    for unmapped in [0, 1, 5, 31] {
        let mut rig = Rig::pair();
        let (sender, receiver) = (rig.attach(0, 0), rig.attach(1, 0));
        let memory = rig.map_scattered(&receiver, RING_BASE, &[PAGE; 32]);
        assert!(enable_ring(&mut rig, &receiver, 1024));

        let at = RING_BASE + unmapped * PAGE;
        rig.machine.dma_unmap(receiver.function, receiver.attachment, at, PAGE).unwrap();

        assert!(rig.send(&sender, (1, 0), 0, &[1; 8]));
        rig.run();

        assert_eq!(receiver.last_error().0, error::RING_MEMORY);
        assert_eq!(rig.read64(&receiver, reg::VELO_RING_ENABLE), 0);
        assert!(memory.read(0, 32 * PAGE as usize).iter().all(|&byte| byte == 0), "nothing was written");
        assert!(sender.generation(1, 0).is_multiple_of(2));
    }
}

#[test]
fn a_ring_with_a_hole_or_with_a_cut_header_is_refused() {
    for lengths in [vec![PAGE], vec![PAGE - 4, PAGE + 4], vec![1, 2 * PAGE - 1]] {
        let mut rig = Rig::pair();
        let client = rig.attach(1, 0);
        let _memory = rig.map_scattered(&client, RING_BASE, &lengths);
        assert!(!enable_ring(&mut rig, &client, 64), "{lengths:?}");
        assert_eq!(client.last_error().0, error::RING);
    }
}

/// A VPID whose queue and memory are in pieces.
struct Peer {
    client: Client,
    queue: Scattered,
    entries: u64,
    taken: u64,
    memory: Scattered,
    /// Network logical address of the memory.
    nla: u64,
}

impl Peer {
    /// Attaches VPID 0 of a node, with a queue and memory in pieces of these lengths.
    fn new(rig: &mut Rig, node: u32, queue: &[u64], memory: &[u64]) -> Self {
        let client = rig.attach(node, 0);
        let entries = queue.iter().sum::<u64>() / 16;
        let queue = rig.map_scattered(&client, QUEUE_BASE, queue);
        let pages = memory.iter().sum::<u64>() / PAGE;
        let memory = rig.map_scattered(&client, DATA_BASE, memory);

        rig.write64(&client, reg::RMA_QUEUE_BASE, QUEUE_BASE);
        rig.write64(&client, reg::RMA_QUEUE_ENTRIES, entries);
        rig.write64(&client, reg::RMA_QUEUE_ENABLE, 1);
        assert_eq!(rig.read64(&client, reg::RMA_QUEUE_ENABLE), 1);

        let nla = rig.register(&client, DATA_BASE, pages, page::SIZE_4K, OPEN_TO_ALL).unwrap();
        Self { client, queue, entries, taken: 0, memory, nla }
    }

    /// Takes a notification, and moves the read pointer.
    fn take(&mut self) -> Option<Notification> {
        let at = self.taken % self.entries * 16;
        let head = self.queue.word(at);
        let notified = Notification { head, address: self.queue.word(at + 8) };
        self.queue.write(at, &[0; 8]);

        self.taken += u64::from(head != 0);
        let pointer = self.client.windows.window(window::RMA_READ_POINTER, 8).unwrap();
        pointer.store_u64_release(0, self.taken).unwrap();
        (head != 0).then_some(notified)
    }

    /// Takes the next notification, and returns its role and status.
    fn take_outcome(&mut self) -> Option<(u8, u8)> {
        self.take().map(|notified| (notified.role(), notified.status()))
    }

    /// Posts a transfer between this VPID's memory and node 1's, and runs it to its end.
    fn transfer(&self, rig: &mut Rig, remote: &Self, operation: u8, length: u32, from: u64, to: u64) {
        let (from, to) = if operation == command::GET {
            (remote.nla + from, self.nla + to)
        } else {
            (self.nla + from, remote.nla + to)
        };

        let command = Command::new(1, 0, operation, notify::REQUESTER, length, from, to);
        let Client { function, attachment, .. } = self.client;
        let posted =
            rig.machine.write(function, attachment, 0, reg::RMA_COMMAND, command.as_bytes()).unwrap();
        assert_eq!(posted, Access::Done);
        rig.run();
    }
}

/// Returns bytes that depend on `seed` and their position.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|index| ((index ^ index >> 8).wrapping_mul(31) + seed) as u8).collect()
}

#[test]
fn transfers_between_scattered_regions_arrive_whole() {
    const BYTES: u64 = 64 * PAGE;
    for (case, (local_layout, remote_layout)) in
        layouts(BYTES).iter().zip(layouts(BYTES).iter().rev()).enumerate()
    {
        let mut rig = Rig::pair();
        let [queue_of_pages, queue_of_odd_pieces, ..] = layouts(2 * PAGE);
        let mut local = Peer::new(&mut rig, 0, &queue_of_odd_pieces, local_layout);
        let remote = Peer::new(&mut rig, 1, &queue_of_pages, remote_layout);
        let mut expected = vec![0; BYTES as usize];

        for (round, length) in (0..).zip([1, 8, 100, 4095, 4096, 5000, 65_536, 70_001, 200_000]) {
            let (from, to) = (round * 997, 8191 - round);
            let bytes = pattern(round, length);

            local.memory.write(from, &bytes);
            local.transfer(&mut rig, &remote, command::PUT, length as u32, from, to);
            expected[to as usize..to as usize + length].copy_from_slice(&bytes);
            assert_eq!(local.take_outcome(), Some((notify::REQUESTER, status::DONE)));
            assert!(remote.memory.read(0, BYTES as usize) == expected, "case {case}, put of {length}");

            local.memory.write(0, &vec![0; BYTES as usize]);
            local.transfer(&mut rig, &remote, command::GET, length as u32, to, from);
            assert_eq!(local.take_outcome(), Some((notify::REQUESTER, status::DONE)));
            let mut received = vec![0; BYTES as usize];
            received[from as usize..from as usize + length].copy_from_slice(&bytes);
            assert!(local.memory.read(0, BYTES as usize) == received, "case {case}, get of {length}");
        }

        // The notification queue has 512 entries in separate pieces of memory, and wraps around.
        let word = u64::from_le_bytes(*b"anywhere");
        for round in 0..1100u64 {
            let to = remote.nla + round * 8;
            let put = Command::new(1, 0, command::IMMEDIATE_PUT, notify::REQUESTER, 8, word ^ round, to);
            let Client { function, attachment, .. } = local.client;
            let posted =
                rig.machine.write(function, attachment, 0, reg::RMA_COMMAND, put.as_bytes()).unwrap();
            assert_eq!(posted, Access::Done);
            rig.run();

            let notified = local.take().unwrap();
            assert_eq!((notified.role(), notified.status()), (notify::REQUESTER, status::DONE));
            assert_eq!(remote.memory.word(round * 8), word ^ round);
        }
    }
}

#[test]
fn a_transfer_takes_as_many_packets_from_scattered_pages_as_from_one_mapping() {
    const BYTES: u64 = 1 << 20;
    let packets = |lengths: &[u64]| {
        let mut rig = Rig::pair();
        let mut local = Peer::new(&mut rig, 0, &[PAGE], lengths);
        let remote = Peer::new(&mut rig, 1, &[PAGE], lengths);

        local.transfer(&mut rig, &remote, command::PUT, BYTES as u32, 0, 0);
        local.transfer(&mut rig, &remote, command::GET, BYTES as u32, 0, 0);
        assert_eq!(
            [local.take_outcome(), local.take_outcome()],
            [Some((notify::REQUESTER, status::DONE)); 2]
        );

        let link = rig.links[0];
        [Direction::Forward, Direction::Backward].map(|direction| {
            let channels = 0..nicforge_extoll::packet::CHANNELS;
            channels
                .map(|channel| rig.machine.fabric().link_stats(link, direction, channel).unwrap().packets)
                .sum()
        })
    };
    let of_one_mapping: [u64; 2] = packets(&[BYTES]);
    assert_eq!(packets(&[PAGE; (BYTES / PAGE) as usize]), of_one_mapping);
}

#[test]
fn a_region_ends_as_a_whole_with_any_of_its_pages() {
    let mut rig = Rig::pair();
    let mut local = Peer::new(&mut rig, 0, &[PAGE], &[PAGE; 16]);
    let mut remote = Peer::new(&mut rig, 1, &[PAGE], &[PAGE; 16]);
    local.memory.write(0, &[7; 4096]);

    let Client { function, attachment, .. } = remote.client;
    rig.machine.dma_unmap(function, attachment, DATA_BASE + 9 * PAGE, PAGE).unwrap();

    for (what, notified) in [(command::PUT, status::WITHDRAWN), (command::GET, status::WITHDRAWN)] {
        local.transfer(&mut rig, &remote, what, 4096, 0, 0);
        assert_eq!(local.take_outcome(), Some((notify::REQUESTER, notified)));
    }
    assert_eq!(remote.memory.read(0, 4096), [0; 4096]);

    // The rest of the memory can be registered again.
    assert_eq!(rig.deregister(&remote.client, remote.nla), 0);
    remote.nla = rig.register(&remote.client, DATA_BASE, 9, page::SIZE_4K, OPEN_TO_ALL).unwrap();
    local.transfer(&mut rig, &remote, command::PUT, 4096, 0, 0);
    assert_eq!(local.take_outcome(), Some((notify::REQUESTER, status::DONE)));
    assert_eq!(remote.memory.read(0, 4096), [7; 4096]);
}

#[test]
fn a_queue_ends_with_any_of_its_pages() {
    let mut rig = Rig::pair();
    let local = Peer::new(&mut rig, 0, &[PAGE; 4], &[PAGE]);
    let remote = Peer::new(&mut rig, 1, &[PAGE; 4], &[PAGE]);
    let Client { function, attachment, .. } = local.client;

    rig.machine.dma_unmap(function, attachment, QUEUE_BASE + 3 * PAGE, PAGE).unwrap();
    local.transfer(&mut rig, &remote, command::PUT, 8, 0, 0);

    assert_eq!(local.client.last_error().0, error::RING_MEMORY);
    assert_eq!(rig.read64(&local.client, reg::RMA_QUEUE_ENABLE), 0);
    assert!(local.queue.read(0, 4 * PAGE as usize).iter().all(|&byte| byte == 0));
}
