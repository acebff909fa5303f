//! Rates of messages over links as fast as those of the R1 prototype, in virtual time, and the
//! units of a card as servers with a rate.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{Client, Rig, cut_through_link, posting::Posting};
use nicforge_core::{fabric::LinkSpec, machine::Access};
use nicforge_extoll::{CardConfig, Topology};
use nicforge_hwi::{extoll::BAR_VELO, extoll_velo::address};
use nicforge_kit::Clock;

/// Bits per second of a link: 32 bits in each cycle of 156 MHz.
const LINK_BITS: u64 = 4_992_000_000;
/// Frequencies of the paper's Table III in MHz.
const FREQUENCIES: [u32; 4] = [156, 140, 125, 117];
/// Bytes of the MPI header in front of a message: the paper's Table I.
const MPI_HEADER: usize = 16;
/// Number of pairs of a sender and a receiver.
const PAIRS: u16 = 4;

/// Returns the nanoseconds from a store of a message of 8 bytes until it is in the ring of another
/// node's VPID.
fn latency(rig: &mut Rig, sender: &Client, receiver: &mut Client) -> u64 {
    let start = rig.machine.now();
    let stored = rig.store(sender, address::encode(receiver.node, receiver.vpid, 0, 1), &[1; 8]);
    assert_eq!(stored, Access::Done);

    rig.machine.run_until(|_| receiver.take().is_some());
    receiver.store_read_pointer();
    let end = rig.machine.now();

    rig.run();
    end.0 - start.0
}

/// Returns a change of a card's configuration that gives the core a clock.
fn clock(mhz: u32) -> impl Fn(&mut CardConfig) {
    move |config| config.clock = Clock::of_mhz(mhz)
}

/// Exchanges messages of `bytes` bytes between four pairs over one link at full rate. Returns the
/// messages per second that arrive in a millisecond, after some time for the start.
fn rate_of_messages(link: &LinkSpec, bytes: usize, change: impl Fn(&mut CardConfig)) -> f64 {
    const START: u64 = 50_000;
    const WINDOW: u64 = 1_000_000;
    let mut rig = Rig::with(&Topology::full_mesh(2).unwrap(), PAIRS, link, change);
    let mut receivers: Vec<_> = (0..PAIRS).map(|vpid| rig.receiver(1, vpid, 1024)).collect();
    let senders: Vec<_> = (0..PAIRS).map(|vpid| rig.attach(0, vpid)).collect();
    let mut rings: Vec<_> = senders.iter().map(|sender| Posting::of(&rig, sender)).collect();

    let mut received_after = |nanoseconds: u64| {
        let end = rig.machine.now().after(nanoseconds);
        let mut received = 0;
        rig.machine.run_until(|machine| {
            for (ring, vpid) in rings.iter_mut().zip(0..) {
                let offset = address::encode(1, vpid, 0, bytes / 8);
                while ring.offer(BAR_VELO, offset, &vec![1; bytes]) {}
            }
            received += receivers.iter_mut().map(|receiver| Client::take_all(receiver).len()).sum::<usize>();
            machine.now() >= end
        });
        received
    };

    received_after(START);
    received_after(WINDOW) as f64 * 1e9 / WINDOW as f64
}

#[test]
fn an_mpi_message_of_8_bytes_takes_64_bytes_of_a_saturated_link() {
    let rate = rate_of_messages(&cut_through_link(64), MPI_HEADER + 8, |_| {});

    let expected = LINK_BITS as f64 / (64.0 * 8.0);
    assert!((rate / expected - 1.0).abs() < 0.002, "{rate} instead of {expected} messages per second");
    // The paper measured 9.73 million messages per second.
    assert!((rate / 9.73e6 - 1.0).abs() < 0.01, "{rate}");
}

#[test]
fn a_longer_message_takes_its_bytes_and_40_more_of_a_saturated_link() {
    let rate = rate_of_messages(&cut_through_link(64), 64, |_| {});

    // A message takes 40 bytes of a link beside its own.
    let expected = LINK_BITS as f64 / ((64.0 + 40.0) * 8.0);
    assert!((rate / expected - 1.0).abs() < 0.002, "{rate} instead of {expected} messages per second");
}

#[test]
fn a_message_is_forwarded_when_its_head_has_arrived_and_a_hop_takes_300_ns() {
    let stored = LinkSpec { cut_through: None, ..cut_through_link(8) };
    let latencies = [cut_through_link(8), stored].map(|link| {
        let mut rig = Rig::with(&Topology::torus(&[8]).unwrap(), 1, &link, |_| {});
        let sender = rig.attach(0, 0);
        let mut receivers: Vec<_> = (1..=4).map(|node| rig.receiver(node, 0, 64)).collect();
        receivers.iter_mut().map(|receiver| latency(&mut rig, &sender, receiver)).collect::<Vec<_>>()
    });

    // A message of 8 bytes takes 48 on the link, and these 77 ns. Its head takes 26 ns.
    assert_eq!(latencies[0], [351, 651, 951, 1251]);
    assert_eq!(latencies[1], [351, 702, 1053, 1404]);
}

#[test]
fn transit_messages_that_find_no_credit_are_queued_once_their_tails_have_arrived() {
    // Nodes 1 and 2 of the ring send to node 4, and the messages of node 1 pass node 2.
    let mut rig = Rig::with(&Topology::torus(&[8]).unwrap(), 1, &cut_through_link(1), |_| {});
    let senders = [rig.attach(1, 0), rig.attach(2, 0)];
    let mut receiver = rig.receiver(4, 0, 1024);
    let mut rings = senders.each_ref().map(|sender| Posting::of(&rig, sender));
    let before = rig.counter(2, "forwarded");

    for number in 0..100u64 {
        for ring in &mut rings {
            ring.post(BAR_VELO, address::encode(4, 0, 0, 1), &number.to_le_bytes());
        }
    }
    let mut messages = Vec::new();
    rig.machine.run_until(|_| {
        messages.extend(receiver.take_all());
        messages.len() == 200
    });

    for node in [1, 2] {
        let of_node = messages.iter().filter(|message| message.from.0 == node);
        let numbers: Vec<_> = of_node.map(|message| message.bytes.clone()).collect();
        assert_eq!(numbers, (0..100u64).map(|number| number.to_le_bytes().to_vec()).collect::<Vec<_>>());
    }
    // The credit of the receiving card for node 1 passes node 2, too.
    assert!((100..110).contains(&(rig.counter(2, "forwarded") - before)));
}

#[test]
fn a_clock_of_the_paper_scales_the_rate_of_messages() {
    let rates = FREQUENCIES.map(|mhz| {
        let bits_per_second = u64::from(mhz) * 32_000_000;
        let link = LinkSpec { bits_per_second, ..cut_through_link(64) };
        rate_of_messages(&link, MPI_HEADER + 8, clock(mhz))
    });

    for (rate, mhz) in rates.iter().zip(FREQUENCIES) {
        let expected = f64::from(mhz) / f64::from(FREQUENCIES[0]);
        assert!((rate / rates[0] / expected - 1.0).abs() < 0.002, "{rates:?}");
    }
    // Table III has the measured rates.
    for (rate, measured) in rates.iter().zip([1.0, 0.8862, 0.7921, 0.7461]) {
        assert!((rate / rates[0] / measured - 1.0).abs() < 0.02, "{rates:?}");
    }
}

#[test]
fn the_unit_bounds_the_rate_where_the_link_is_faster() {
    const WINDOW: u64 = 50_000;
    // A message of 24 bytes and its quadword are 8 words of 32 bits: 8 cycles of 100 MHz are 80 ns.
    let link = LinkSpec { bits_per_second: 0, cut_through: None, ..cut_through_link(64) };
    let mut rig = Rig::with(&Topology::full_mesh(2).unwrap(), 1, &link, clock(100));
    let mut receiver = rig.receiver(1, 0, 1024);
    let sender = rig.attach(0, 0);
    let mut ring = Posting::of(&rig, &sender);

    let mut received = 0;
    let end = rig.machine.now().after(WINDOW);
    rig.run_in_steps(1, |machine| {
        while ring.offer(BAR_VELO, address::encode(1, 0, 0, 3), &[1; 24]) {}
        received += receiver.take_all().len() as u64;
        machine.now() >= end
    });

    assert!((WINDOW / 80 - 8..=WINDOW / 80).contains(&received), "{received} messages");
}
