//! FCNP in virtual time.

use nicforge_driver::runtime::Cost;
use nicforge_sim::{
    interrupted::Interrupted,
    pset::{Direction, Pset, Waiting},
    world::{Picos, Profile},
};

/// A pset whose cores take as long for a packet as the link, and poll every 100 ns.
fn pset() -> Pset<'static> {
    let profile = Profile::default()
        .with(Cost::SendPacket, Picos::nanos(300))
        .with(Cost::ReceivePacket, Picos::nanos(300))
        .with_poll(Picos::nanos(100));
    Pset {
        link: "delay_ns = 100\ngbit_s = 6.8\ncredits = 8".into(),
        io: profile.clone(),
        compute: profile,
        waiting: Waiting::Polling,
        seed: 1,
        interrupted: Interrupted::default(),
    }
}

#[test]
fn each_further_packet_of_a_message_takes_its_time_on_the_link() {
    let pset = pset();
    for direction in [Direction::ToCompute, Direction::ToIo] {
        let time = |packets: usize| pset.stream(direction, 240 + 256 * packets, 4).unwrap().0;
        // A packet takes 305.9 ns on the link, which is the slowest part. Each of the two ends is
        // seen at a poll, up to 100 ns later.
        let per_packet = (time(400) - time(100)) as f64 / 300.0;
        assert!((305_500.0..306_300.0).contains(&per_packet), "{direction:?}: {per_packet} ps");
    }
}

#[test]
fn a_stream_is_not_slower_while_the_other_direction_is_busy() {
    let pset = pset();
    let one_way = pset.stream(Direction::ToCompute, 256 << 10, 4).unwrap().as_nanos();
    for time in pset.both_ways(256 << 10, 4).unwrap() {
        assert!(
            time.as_nanos() < 1.02 * one_way,
            "{} ns, and {one_way} ns in one direction alone",
            time.as_nanos()
        );
    }
}

#[test]
fn a_message_through_ciod_takes_at_least_the_time_of_its_packets() {
    let pset = pset();
    for bytes in [1, 256, 65_536, 65_537, 100_000] {
        let time = pset.ciod(bytes, 4).unwrap().as_nanos();
        assert!(time >= (bytes.div_ceil(256) * 300) as f64, "{bytes} bytes in {time} ns");
    }
}
