//! The time that the engines take.

use nicforge_hwi::{mu::reg, mu_dcr::IME_ENABLE};
use nicforge_kit::Clock;
use nicforge_mu::{Options, Times};
use nicforge_test_kit::BUDGET;

use crate::common::{COUNTERS, DATA, PAYLOAD, Rig, User, Way, pattern};

const WAY: Way = Way { from: 0, to: 1 };
const LONG: usize = 1 << 20;

/// Returns two nodes whose engines have a clock of 800 MHz, and links that take no time.
fn clocked() -> (Rig, [User; 2]) {
    with_times(Times::default())
}

fn with_times(times: Times) -> (Rig, [User; 2]) {
    let mut rig = Rig::new(&[2], Options { clock: Clock::of_mhz(800), times, ..Options::default() });
    let users = [0, 1].map(|node| rig.user(node, 0));
    (rig, users)
}

/// Puts 1 MB, and returns the microseconds until it has arrived.
fn put(rig: &mut Rig, users: &mut [User; 2], from: u64, map: u64) -> u64 {
    users[0].write(from, &pattern(1, LONG));
    users[1].write64(COUNTERS, LONG as u64);
    let mut message = WAY.put(0, 0, 0, from, LONG);
    message.torus_fifo_map = map;
    message.packet_header.set_hint(0, true);
    let start = rig.bed.now();
    users[0].inject(&mut rig.bed, 0, &message);
    rig.until(|_| users[1].read64(COUNTERS) == 0);
    assert!(users[1].read(DATA, LONG) == pattern(1, LONG));
    (rig.bed.now().0 - start.0) / 1000
}

#[test]
fn a_reception_engine_takes_4_bytes_a_cycle() {
    let (mut rig, mut users) = clocked();
    // 2,048 packets of 544 bytes at 3.2 GB/s. The clock advances by up to 1 us in a step.
    let time = put(&mut rig, &mut users, PAYLOAD, 0x8000);
    assert!((348..390).contains(&time), "{time} us");
}

#[test]
fn a_packet_arrives_behind_its_reception() {
    let (mut rig, mut users) = clocked();
    users[0].inject(&mut rig.bed, 0, &WAY.fifo(0, PAYLOAD, 512));
    let start = rig.bed.now();
    rig.until(|_| users[1].packets(0).0.len() == 1);
    // 136 cycles of 1.25 ns.
    assert!(rig.bed.now().0 - start.0 >= 170);
}

#[test]
fn a_message_begins_a_latency_after_its_descriptor() {
    let (mut rig, mut users) = with_times(Times { latency: 5000, ..Times::default() });
    let start = rig.bed.now();
    users[0].inject(&mut rig.bed, 0, &WAY.fifo(0, PAYLOAD, 512));
    rig.until(|_| users[1].packets(0).0.len() == 1);

    let time = rig.bed.now().0 - start.0;
    assert!((5000 + 170..8000).contains(&time), "{time} ns");
}

#[test]
fn the_latency_of_messages_in_different_fifos_is_that_of_one() {
    let (mut rig, mut users) = with_times(Times { latency: 5000, ..Times::default() });
    let start = rig.bed.now();
    for fifo in 0..4 {
        users[0].inject(&mut rig.bed, fifo, &WAY.fifo(0, PAYLOAD, 512));
    }
    rig.until(|_| users[1].packets(0).0.len() == 4);

    // One after the other takes 20 us. The clock advances by up to 1 us in a step.
    let time = rig.bed.now().0 - start.0;
    assert!((5000 + 170..15_000).contains(&time), "{time} ns");
}

#[test]
fn memory_has_a_bandwidth() {
    let (mut rig, mut users) = with_times(Times { memory: Clock::of_mhz(100), ..Times::default() });
    // 1 MB at 100 MB/s, where the reception engine alone takes 350 us.
    let time = put(&mut rig, &mut users, PAYLOAD, 0x8000);
    assert!((10_485..13_000).contains(&time), "{time} us");
}

#[test]
fn a_reset_forgets_the_time_of_engines() {
    let (mut rig, mut users) = clocked();
    users[0].inject(&mut rig.bed, 0, &WAY.put(0, 0, 0, PAYLOAD, LONG));
    for _ in 0..20 {
        rig.step();
    }
    for node in 0..2 {
        let function = rig.functions[node];
        rig.bed.reset_function(function).unwrap();
    }
    rig.settle();
    assert_eq!(users[0].shown(reg::IS_ENABLED), 0);
}

/// Prefetches 64 KB from an address by one engine, and returns the nanoseconds until it has begun
/// the last packet.
fn prefetch(rig: &mut Rig, user: &mut User, from: u64) -> u64 {
    let mut message = WAY.fifo(0, from, 64 << 10);
    message.prefetch_only = 1;
    let (start, done) = (rig.bed.now(), user.done(0) + 1);
    user.inject(&mut rig.bed, 0, &message);

    while user.done(0) != done {
        assert!(rig.bed.now().0 - start.0 < 100_000, "the message takes too long");
        rig.bed.step(BUDGET);
        let next = rig.bed.now().after(1);
        rig.bed.advance_to(next);
    }
    rig.bed.now().0 - start.0
}

#[test]
fn a_misaligned_payload_costs_one_more_read() {
    let (mut rig, mut users) = clocked();
    let kernel = rig.kernel(0);
    kernel.set_control(&mut rig.bed, IME_ENABLE, 1 << 3);

    // 127 packets of 512 bytes: 17 cycles of 1.25 ns each, and 18 from an address that is no
    // multiple of 32. An engine may begin a packet up to 1 ns late.
    let aligned = prefetch(&mut rig, &mut users[0], PAYLOAD);
    assert!((2_690..2_840).contains(&aligned), "{aligned} ns");
    for offset in [1, 16, 31] {
        let misaligned = prefetch(&mut rig, &mut users[0], PAYLOAD + offset);
        assert!((100..200).contains(&(misaligned - aligned)), "{misaligned} ns at {offset}");
    }
}
