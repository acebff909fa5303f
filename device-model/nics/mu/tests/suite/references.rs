//! Long puts whose packets refer to the payload.

use nicforge_core::dma::{DmaBacking, DmaPermission};
use nicforge_hwi::mu::{fault, reg};
use nicforge_mu::{Options, config::MAX_REFERENCE};

use crate::common::{COUNTERS, DATA, PAYLOAD, Rig, User, Way, pattern};

const WAY: Way = Way { from: 0, to: 1 };
const LONG: usize = 1 << 20;

/// Puts a long message, and checks what arrives.
fn check(rig: &mut Rig, users: &mut [User; 2], length: usize, done: u64) {
    let data = pattern(length, length);
    users[0].write(PAYLOAD + 3, &data);
    users[1].write(DATA, &vec![0xaa; length + 100]);
    users[1].write64(COUNTERS, length as u64);
    users[0].inject(&mut rig.bed, 0, &WAY.put(0, 5, 0, PAYLOAD + 3, length));

    rig.until(|_| users[1].read64(COUNTERS) == 0 && users[0].done(0) == done);
    assert!(users[1].read(DATA + 5, length) == data, "{length} bytes");
    assert_eq!(users[1].read(DATA + 5 + length as u64, 20), [0xaa; 20]);
    assert_eq!(users[1].read(DATA, 5), [0xaa; 5]);
}

#[test]
fn messages_around_the_sizes_of_references_arrive_unchanged() {
    let (mut rig, mut users) = Rig::pair();
    let sizes = [
        1023,
        1024,
        1025,
        4095,
        4096,
        4097,
        65_535,
        65_536,
        262_143,
        262_144,
        262_145,
        524_288,
        LONG,
        3 * LONG - 1,
    ];
    for (count, length) in (1..).zip(sizes) {
        check(&mut rig, &mut users, length, count);
    }
    let packets: usize = sizes.iter().map(|length| length.div_ceil(512)).sum();
    assert_eq!(rig.counter(0, "packets_sent"), packets as u64);
    assert_eq!(rig.counter(1, "put_packets"), packets as u64);
    assert_eq!(rig.counter(1, "bytes_received"), sizes.iter().sum::<usize>() as u64);
}

#[test]
fn links_with_a_bandwidth_carry_packets_of_512_bytes() {
    let mut options = Options::default();
    options.link.bits_per_second = 16_000_000_000;
    options.link.delay = 40;
    let mut rig = Rig::new(&[2], options);
    let mut users = [0, 1].map(|node| rig.user(node, 0));
    check(&mut rig, &mut users, 100_000, 1);
}

#[test]
fn the_descriptor_is_done_when_the_payload_has_been_read() {
    let (mut rig, mut users) = Rig::pair();
    // The put stands after a packet that finds its FIFO full.
    let mut flood = WAY.fifo(3, PAYLOAD, 3 << 16);
    flood.torus_fifo_map = 0x8000;
    flood.packet_header.set_hint(0, true);
    users[0].inject(&mut rig.bed, 1, &flood);
    rig.settle();
    let mut put = WAY.put(0, 0, 0, PAYLOAD, 8192);
    put.torus_fifo_map = 0x4000;
    put.packet_header.set_hint(0, true);
    users[0].write(PAYLOAD, &[1; 8192]);
    users[1].write64(COUNTERS, 8192);
    users[0].inject(&mut rig.bed, 0, &put);
    rig.settle();
    assert_eq!((users[0].done(0), users[1].read64(COUNTERS)), (0, 8192));

    for _ in 0..20 {
        users[1].take(&mut rig.bed, 3);
        rig.settle();
    }
    rig.until(|_| users[0].done(0) == 1);
    assert_eq!(users[1].read64(COUNTERS), 0);
    assert!(users[1].read(DATA, 8192) == [1; 8192]);
}

#[test]
fn the_end_of_a_put_needs_no_timer() {
    let (mut rig, mut users) = Rig::pair();
    for (done, length) in [(1, 1024), (2, 8192), (3, LONG)] {
        users[1].write64(COUNTERS, length as u64);
        users[0].inject(&mut rig.bed, 0, &WAY.put(0, 0, 0, PAYLOAD, length));
        rig.bed.rescan();
        // No timer fires in this call.
        rig.bed.run_until_idle();
        assert_eq!((users[0].done(0), users[1].read64(COUNTERS)), (done, 0), "{length}");
    }
}

#[test]
fn payload_that_is_unmapped_on_the_way_stops_the_fifo() {
    let (mut rig, mut users) = Rig::pair();
    let (address, length) = (0x4000_0000, 3 * LONG);
    let _extra = users[0].client.map(&mut rig.bed, address, length);
    users[1].write64(COUNTERS, length as u64);
    users[0].inject(&mut rig.bed, 0, &WAY.put(0, 0, 0, address, length));
    rig.until(|_| users[1].read64(COUNTERS) < length as u64);
    let client = users[0].client;
    rig.bed.dma_unmap(client.function, client.attachment, address, length as u64).unwrap();
    rig.settle();
    rig.until(|_| users[0].fault(0) == fault::UNMAPPED);

    let left = users[1].read64(COUNTERS);
    assert!(left > 0 && left.is_multiple_of(MAX_REFERENCE.into()));
    assert_eq!((users[0].done(0), users[0].shown(reg::IS_ENABLED) & 1), (0, 0));
}

#[test]
fn payload_and_target_may_lie_in_many_mappings() {
    let (mut rig, mut users) = Rig::pair();
    let address = 0x4000_0000;
    let data = pattern(9, LONG);
    let pages: Vec<_> = [0, 1]
        .map(|node: usize| {
            let map = |page: u64| users[node].client.map(&mut rig.bed, address + page * 4096, 4096);
            (0..LONG as u64 / 4096).map(map).collect::<Vec<_>>()
        })
        .into();
    for (page, bytes) in pages[0].iter().zip(data.chunks(4096)) {
        page.write(0, bytes).unwrap();
    }

    users[1].set(&mut rig.bed, reg::BASE_ADDRESS, address);
    users[1].write64(COUNTERS, LONG as u64);
    users[0].inject(&mut rig.bed, 0, &WAY.put(0, 0, 0, address, LONG));
    rig.until(|_| users[1].read64(COUNTERS) == 0);
    let mut received = vec![0; 4096];
    for (page, bytes) in pages[1].iter().zip(data.chunks(4096)) {
        page.read(0, &mut received).unwrap();
        assert!(received == bytes);
    }
}

#[test]
fn a_part_of_the_target_that_only_messages_reach_drops_its_packets() {
    let (mut rig, mut users) = Rig::pair();
    let client = users[1].client;
    let (permission, backing) = (DmaPermission::READ_WRITE, DmaBacking::Remote);
    let address = 0x4000_0000;
    // A packet refers to as many bytes as its front half.
    let half = u64::from(MAX_REFERENCE);
    let _front = client.map(&mut rig.bed, address, half as usize);
    rig.bed.dma_map(client.function, client.attachment, address + half, half, permission, backing).unwrap();

    users[1].set(&mut rig.bed, reg::BASE_ADDRESS, address);
    users[1].write64(COUNTERS, 2 * half);
    users[0].inject(&mut rig.bed, 0, &WAY.put(0, 0, 0, PAYLOAD, 2 * half as usize));
    rig.until(|_| users[0].done(0) == 1);
    rig.settle();
    assert_eq!((users[1].read64(COUNTERS), users[1].shown(reg::DROPPED)), (half, 1));
}
