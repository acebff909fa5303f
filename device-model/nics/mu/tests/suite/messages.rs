//! Messages of every kind: sizes, alignments, local ones.

use nicforge_hwi::{
    mu::{fault, reg},
    mu_packet::{CHUNK, MAX_PAYLOAD, routing},
};
use zerocopy::IntoBytes;

use crate::common::{COUNTERS, DATA, PAYLOAD, Rig, User, Way, pattern};

const SIZES: [usize; 11] = [0, 1, 8, 31, 32, 33, 511, 512, 513, 5000, 64 << 10];

/// Sends a FIFO message and checks the packets that arrive.
fn check_fifo(rig: &mut Rig, users: &mut [User; 2], way: Way, from: u64, length: usize) {
    let data = pattern(length, length);
    users[usize::from(way.from)].write(from, &data);
    let descriptor = way.fifo(2, from, length);
    let done = users[usize::from(way.from)].done(1) + 1;
    users[usize::from(way.from)].inject(&mut rig.bed, 1, &descriptor);

    let mut got = Vec::new();
    let packets = length.div_ceil(MAX_PAYLOAD).max(1);
    rig.until(|rig| {
        got.extend(users[usize::from(way.to)].take(&mut rig.bed, 2));
        got.len() == packets && users[usize::from(way.from)].done(1) == done
    });

    // Packets by different links may overtake each other. The put offset is their place.
    got.sort_by_key(|(header, _)| header.unit.put_offset());
    let mut received = Vec::new();
    for (index, (header, payload)) in got.iter().enumerate() {
        assert_eq!(header.unit.put_offset(), (index * MAX_PAYLOAD) as u64);
        received.extend_from_slice(payload);
    }
    assert_eq!(received.len(), length.next_multiple_of(CHUNK));
    assert!(received[..length] == data, "{length} bytes from {from:#x}");
    assert!(received[length..].iter().all(|&byte| byte == 0), "padding of {length} bytes");
}

#[test]
fn fifo_messages_of_all_sizes_arrive_unchanged() {
    let (mut rig, mut users) = Rig::pair();
    for way in [Way { from: 0, to: 1 }, Way { from: 1, to: 0 }, Way { from: 1, to: 1 }] {
        for length in SIZES {
            check_fifo(&mut rig, &mut users, way, PAYLOAD, length);
        }
    }
    assert_eq!(users[0].fault(1), fault::NONE);
}

#[test]
fn fifo_messages_start_at_any_address() {
    let (mut rig, mut users) = Rig::pair();
    for from in [1, 3, 31, 33, 63, 4095] {
        check_fifo(&mut rig, &mut users, Way { from: 0, to: 1 }, PAYLOAD + from, 1500);
    }
}

/// Sends a put and checks what arrives, and its counter.
fn check_put(rig: &mut Rig, users: &mut [User; 2], way: Way, (from, to): (u64, u64), length: usize) {
    let data = pattern(length + 1, length);
    let (sender, receiver) = (usize::from(way.from), usize::from(way.to));
    users[sender].write(PAYLOAD + from, &data);
    users[receiver].write(DATA, &vec![0xaa; length + 5000]);
    users[receiver].write64(COUNTERS + 24, length as u64);

    users[sender].inject(&mut rig.bed, 0, &way.put(0, to, 3, PAYLOAD + from, length));
    rig.until(|_| users[receiver].read64(COUNTERS + 24) == 0);

    assert!(users[receiver].read(DATA + to, length) == data, "{length} bytes to {to}");
    assert!(users[receiver].read(DATA, to as usize).iter().all(|&byte| byte == 0xaa));
    assert_eq!(users[receiver].read(DATA + to + length as u64, 40), [0xaa; 40], "{length} bytes to {to}");
}

#[test]
fn puts_of_all_sizes_arrive_unchanged() {
    let (mut rig, mut users) = Rig::pair();
    for way in [Way { from: 0, to: 1 }, Way { from: 1, to: 0 }, Way { from: 0, to: 0 }] {
        for length in SIZES.into_iter().skip(1).chain([1 << 20]) {
            check_put(&mut rig, &mut users, way, (0, 0), length);
        }
    }
}

#[test]
fn puts_have_any_alignment_on_both_sides() {
    let (mut rig, mut users) = Rig::pair();
    for (from, to) in [(0, 1), (1, 0), (3, 5), (31, 33), (4095, 4097)] {
        for length in [1, 33, 513, 20_000] {
            check_put(&mut rig, &mut users, Way { from: 0, to: 1 }, (from, to), length);
        }
    }
}

#[test]
fn a_remote_get_fetches_data_of_the_other_node() {
    let (mut rig, mut users) = Rig::pair();
    for length in [1, 512, 513, 64 << 10] {
        let data = pattern(length, length);
        users[1].write(PAYLOAD, &data);
        users[0].write64(COUNTERS, length as u64);

        // The descriptor by which node 1 puts the data to node 0 is the payload of the get.
        let put = Way { from: 1, to: 0 }.put(0, 100, 0, PAYLOAD, length);
        users[0].write(PAYLOAD + 0x1000, put.as_bytes());
        users[0].inject(&mut rig.bed, 0, &Way { from: 0, to: 1 }.get(6, PAYLOAD + 0x1000, 64));
        rig.until(|_| users[0].read64(COUNTERS) == 0);

        assert!(users[0].read(DATA + 100, length) == data, "{length} bytes");
    }
    rig.until(|_| users[1].done(6) == 4);
}

#[test]
fn a_get_of_many_descriptors_carries_all_of_them_out() {
    let (mut rig, mut users) = Rig::pair();
    let count = 20;
    users[0].write64(COUNTERS, count * 8);
    for index in 0..count {
        users[1].write64(PAYLOAD + index * 8, index + 1);
        let put = Way { from: 1, to: 0 }.put(0, index * 8, 0, PAYLOAD + index * 8, 8);
        users[0].write(PAYLOAD + 0x1000 + index * 64, put.as_bytes());
    }

    users[0].inject(&mut rig.bed, 0, &Way { from: 0, to: 1 }.get(6, PAYLOAD + 0x1000, count as usize * 64));
    rig.until(|_| users[0].read64(COUNTERS) == 0);
    for index in 0..count {
        assert_eq!(users[0].read64(DATA + index * 8), index + 1);
    }
}

#[test]
fn prefetch_reads_and_sends_nothing() {
    let (mut rig, mut users) = Rig::pair();
    let mut descriptor = Way { from: 0, to: 1 }.fifo(0, PAYLOAD, 5000);
    descriptor.prefetch_only = 1;
    users[0].inject(&mut rig.bed, 0, &descriptor);

    rig.until(|_| users[0].done(0) == 1);
    assert_eq!(rig.counter(0, "prefetched"), 5000);
    assert_eq!(rig.counter(0, "packets_sent"), 0);
}

#[test]
fn only_the_last_packet_of_a_message_asks_for_an_interrupt() {
    let (mut rig, mut users) = Rig::pair();
    let mut descriptor = Way { from: 0, to: 1 }.fifo(1, PAYLOAD, 2000);
    descriptor.interrupt = 1;
    descriptor.packet_header.byte2 |= routing::INTERRUPT;
    users[0].inject(&mut rig.bed, 0, &descriptor);

    rig.until(|_| users[1].packets(1).0.len() == 4);
    for (header, _) in users[1].packets(1).0 {
        let is_last = header.unit.put_offset() == 1536;
        assert_eq!(header.byte2 & routing::INTERRUPT != 0, is_last);
    }
}

#[test]
fn packets_are_as_long_as_the_template_says() {
    let (mut rig, mut users) = Rig::pair();
    for (bytes, packets) in [(32, 32), (96, 11), (512, 2), (0, 2)] {
        let mut descriptor = Way { from: 0, to: 1 }.fifo(1, PAYLOAD, 1000);
        descriptor.packet_header.set_payload_bytes(bytes);
        users[0].inject(&mut rig.bed, 0, &descriptor);
        rig.settle();
        assert_eq!(users[1].take(&mut rig.bed, 1).len(), packets, "{bytes} bytes");
    }
}

#[test]
fn descriptor_count_and_head_move_with_each_message() {
    let (mut rig, mut users) = Rig::pair();
    let start = users[0].shown_injection(0, reg::HEAD);
    for count in 1..=200 {
        users[0].inject(&mut rig.bed, 0, &Way { from: 0, to: 1 }.fifo(0, PAYLOAD, 8));
        rig.until(|_| users[0].done(0) == count);
        assert_eq!(users[0].shown_injection(0, reg::HEAD), start + count % 64 * 64);
        assert_eq!(users[0].shown_injection(0, reg::FREE_SPACE), 64 * 64);
        users[1].take(&mut rig.bed, 0);
    }
}
