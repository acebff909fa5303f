//! Transfers in packets of a few hundred bytes, and their bandwidth in virtual time.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{Rig, cut_through_link, plain_link};
use nicforge_core::fabric::LinkSpec;
use nicforge_extoll::{CardConfig, Topology};
use nicforge_hwi::extoll_rma::{MAX_LENGTH, command, notify, status};
use nicforge_kit::Clock;

const MIB: u32 = 1 << 20;
/// Bytes of data of a packet of the R1 prototype.
const MTU: u32 = nicforge_extoll::R1_RMA_MTU;
/// Bytes that a packet takes on a link in addition to its data.
const OVERHEAD: u32 = 80;
/// Notifications for all roles of a command.
const ALL: u8 = notify::REQUESTER | notify::RESPONDER | notify::COMPLETER;

/// Returns bytes that depend on their position.
fn pattern(bytes: u32) -> Vec<u8> {
    (0..bytes).map(|index| (index.wrapping_mul(31) >> 3) as u8).collect()
}

/// Builds a machine of two cards with packets of `mtu` bytes of data.
fn pair(link: &LinkSpec, mtu: u32, change: impl Fn(&mut CardConfig)) -> Rig {
    Rig::with(&Topology::full_mesh(2).unwrap(), 4, link, |config| {
        config.rma_mtu = mtu;
        change(config);
    })
}

/// Returns the bytes per second of a put or get of a mebibyte, from the post of the command until
/// the completer's notification.
fn bandwidth(rig: &mut Rig, is_get: bool) -> f64 {
    let (local, mut remote) = (rig.peer(0, 1, MIB.into()), rig.peer(1, 2, MIB.into()));
    let bytes = pattern(MIB);
    local.write(0, &bytes);

    let start = rig.machine.now();
    let posted = match is_get {
        true => rig.get(&remote, &local, (0, 0, MIB), notify::COMPLETER),
        false => rig.put(&local, &remote, (0, 0, MIB), notify::COMPLETER),
    };
    assert!(posted);
    let mut notified = None;
    rig.run_in_steps(20, |_| {
        notified = remote.take();
        notified.is_some()
    });
    let nanoseconds = rig.machine.now().0 - start.0;

    assert_eq!(notified.unwrap().status(), status::DONE);
    assert_eq!(remote.read(0, MIB as usize), bytes);
    f64::from(MIB) * 1e9 / nanoseconds as f64
}

#[test]
fn a_transfer_of_many_packets_arrives_whole_and_notifies_once() {
    for (mtu, length) in [(64, 1), (64, 64), (64, 65), (256, 8192), (256, 100_001), (4096, MAX_LENGTH / 16)] {
        let mut rig = pair(&plain_link(), mtu, |_| {});
        let bytes = u64::from(length).next_multiple_of(4096) + 4096;
        let (mut local, mut remote) = (rig.peer(0, 1, bytes), rig.peer(1, 2, bytes));
        local.write(3, &pattern(length));

        assert!(rig.put(&local, &remote, (3, 5, length), ALL));
        assert!(rig.get(&local, &remote, (5, 7, length), ALL));
        rig.run();

        assert_eq!(remote.read(5, length as usize), pattern(length));
        assert_eq!(local.read(7, length as usize), pattern(length));
        let notified: Vec<_> =
            local.take_all().iter().map(|notified| (notified.role(), notified.command())).collect();
        let expected = [
            (notify::REQUESTER, command::PUT),
            (notify::REQUESTER, command::GET),
            (notify::COMPLETER, command::GET),
        ];
        assert_eq!(notified, expected);
        assert_eq!(remote.outcomes(), [(notify::COMPLETER, status::DONE), (notify::RESPONDER, status::DONE)]);
        assert_eq!(rig.counter(0, "rma_bytes_written"), u64::from(length));
    }
}

#[test]
fn a_part_of_a_get_that_finds_no_room_for_its_answers_continues_later() {
    // One credit: each answer waits for the one before it.
    let link = LinkSpec { credits: vec![1; plain_link().credits.len()], ..plain_link() };
    let mut rig = pair(&link, 64, |_| {});
    let (mut local, remote) = (rig.peer(0, 1, 1 << 16), rig.peer(1, 2, 1 << 16));
    remote.write(0, &pattern(60_000));

    assert!(rig.get(&local, &remote, (0, 0, 60_000), notify::COMPLETER));
    rig.run();

    assert_eq!(local.read(0, 60_000), pattern(60_000));
    assert_eq!(local.outcomes(), [(notify::COMPLETER, status::DONE)]);
}

#[test]
fn packets_of_the_prototype_move_475_megabytes_per_second() {
    // The link moves 624 million bytes per second.
    let expected = 624e6 * f64::from(MTU) / f64::from(MTU + OVERHEAD);
    assert!((expected / 480e6 - 1.0).abs() < 0.02, "the paper's peak is 480 MB/s");

    for is_get in [false, true] {
        for mhz in [0, 156] {
            let change = |config: &mut CardConfig| config.clock = Clock::of_mhz(mhz);
            let mut rig = pair(&cut_through_link(32), MTU, change);
            let found = bandwidth(&mut rig, is_get);
            assert!((found / expected - 1.0).abs() < 0.01, "{found} with a get {is_get} at {mhz} MHz");
        }
    }
}

#[test]
fn the_engines_bound_the_bandwidth_where_the_link_is_faster() {
    // A descriptor of 24 bytes and 256 of data are 70 words of 32 bits: 700 ns at 100 MHz.
    let expected = f64::from(MTU) * 1e9 / 700.0;

    for is_get in [false, true] {
        let mut rig = pair(&plain_link(), MTU, |config| config.clock = Clock::of_mhz(100));
        let found = bandwidth(&mut rig, is_get);
        assert!((found / expected - 1.0).abs() < 0.01, "{found} with a get {is_get}");
    }
}
