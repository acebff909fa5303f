//! Arbitration of links: between VPIDs of a card, between them and transit packets, and the sends
//! that the watchdog ends.
//!
//! Successive messages of a flow have different tags, so that each is a packet of its own: messages
//! with the same header share packets. One test has flows whose messages have one tag.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{Client, Rig, plain_link, posting::Posting};
use nicforge_core::{
    fabric::LinkSpec,
    machine::{Access, region},
};
use nicforge_extoll::{Topology, TopologyLink, packet::CHANNELS};
use nicforge_hwi::{
    extoll::{BAR_VELO, error, mirror},
    extoll_velo::address,
};

/// Packets for each function in one pass.
const BUDGET: u32 = 64;
/// The length of a pass of an engine that rarely gets the processor, in nanoseconds. The watchdog
/// is 12 to 16 such passes.
const RARE_PASS: u64 = 40_000_000;
/// The watchdog, unless a test sets another.
const WATCHDOG: u64 = 500_000_000;
/// More slots than a pass fills in each ring, with two or three cards.
const SLOTS: u64 = 1024;

/// Returns a link without delay or rate, with this many credits of each virtual channel.
fn link(credits: u32) -> LinkSpec {
    LinkSpec { credits: vec![credits; CHANNELS], ..plain_link() }
}

/// Returns a row of cards. The cards at the ends reach each other through those between.
fn chain(cards: u32) -> Topology {
    let links = (1..cards).map(|right| TopologyLink { a: (right - 1, 1), b: (right, 0) }).collect();
    Topology::from_links(cards, links).unwrap()
}

/// Messages from one VPID to another.
struct Flow {
    sender: Client,
    ring: Posting,
    receiver: Client,
    /// Messages that may be in flight.
    window: u64,
    /// Number of tags, which the messages have in turn.
    tags: u64,
    sent: u64,
    received: u64,
}

impl Flow {
    /// Attaches the sender and the receiver of a flow, each by node and VPID.
    fn new(rig: &mut Rig, from: (u32, u16), to: (u32, u16)) -> Self {
        let receiver = rig.receiver(to.0, to.1, SLOTS);
        let sender = rig.attach(from.0, from.1);
        let ring = Posting::of(rig, &sender);
        Self { sender, ring, receiver, window: u64::MAX, tags: 2, sent: 0, received: 0 }
    }

    /// Restricts the flow to one message in flight.
    fn with_one_in_flight(self) -> Self {
        Self { window: 1, ..self }
    }

    /// Takes the messages that have arrived, and posts as many as possible.
    fn poll(&mut self) {
        let arrived = self.receiver.take_all();
        for message in &arrived {
            assert_eq!(message.bytes, self.received.to_le_bytes(), "in order, each once");
            self.received += 1;
        }

        while self.sent - self.received < self.window {
            let tag = (self.sent % self.tags) as u8;
            let offset = address::encode(self.receiver.node, self.receiver.vpid, tag, 1);
            if !self.ring.offer(BAR_VELO, offset, &self.sent.to_le_bytes()) {
                break;
            }
            self.sent += 1;
        }
    }

    /// Returns the number of the sender's errors.
    fn errors(&self) -> u64 {
        self.sender.mirror_word(mirror::ERRORS)
    }
}

/// Steps a machine that polls the memory of its clients, even without a wake-up.
fn step(rig: &mut Rig) {
    rig.machine.rescan();
    rig.machine.step(BUDGET);
}

/// Runs `passes` passes of `tick` nanoseconds. Returns the number of messages that each flow has
/// received in them.
fn run_passes(rig: &mut Rig, flows: &mut [Flow], passes: u32, tick: u64) -> Vec<u64> {
    let before: Vec<_> = flows.iter().map(|flow| flow.received).collect();

    for _ in 0..passes {
        flows.iter_mut().for_each(Flow::poll);
        rig.machine.advance(tick);
        step(rig);
    }

    flows.iter().zip(before).map(|(flow, before)| flow.received - before).collect()
}

/// Node 1 of a chain of three sends to node 2 while messages from node 0 fill the link between
/// them. `senders` are the numbers of sending VPIDs of nodes 0 and 1; the times are in nanoseconds.
/// Returns the number of messages received from node 1, and from node 0.
fn rates_with_transit(
    spec: &LinkSpec,
    senders: [u16; 2],
    tags: u64,
    (watchdog, tick): (u64, u64),
) -> (u64, u64) {
    let mut rig = Rig::with(&chain(3), 8, spec, |config| config.watchdog = watchdog);
    let [through, of_card] = senders;
    let endpoints =
        (0..through).map(|vpid| (0, vpid, vpid)).chain((0..of_card).map(|vpid| (1, vpid, through + vpid)));

    let mut flows: Vec<_> =
        endpoints.map(|(node, vpid, target)| Flow::new(&mut rig, (node, vpid), (2, target))).collect();
    flows.iter_mut().for_each(|flow| flow.tags = tags);

    run_passes(&mut rig, &mut flows, 50, tick);
    let received = run_passes(&mut rig, &mut flows, 1000, tick);

    assert!(flows.iter().all(|flow| flow.errors() == 0), "no message is dropped: {received:?}");
    assert!(received.iter().all(|&messages| messages > 0), "no flow starves: {received:?}");

    let (in_transit, of_card) = received.split_at(through.into());
    (of_card.iter().sum(), in_transit.iter().sum())
}

#[test]
fn a_card_and_transit_packets_share_a_link() {
    for credits in [1, 2, 4, 5, 16, 32, 64] {
        for senders in [[1, 1], [2, 1], [1, 3]] {
            let (of_card, in_transit) = rates_with_transit(&link(credits), senders, 2, (WATCHDOG, RARE_PASS));
            let all = of_card + in_transit;
            // A link carries one pass's worth of credits in each pass.
            let full = u64::from(credits) * 1000;
            assert!(
                all * 10 >= full * 9,
                "{credits} credits, {senders:?}: {of_card} and {in_transit} of {full}"
            );
            assert!(
                of_card * 3 >= all && in_transit * 3 >= all,
                "{credits} credits, {senders:?}: {of_card} and {in_transit}"
            );
        }
    }
}

#[test]
fn a_card_and_transit_packets_share_a_link_by_packets_of_many_messages() {
    for credits in [1, 2, 4, 8] {
        for senders in [[1, 1], [2, 1], [1, 3]] {
            let (of_card, in_transit) = rates_with_transit(&link(credits), senders, 1, (WATCHDOG, RARE_PASS));
            // A packet carries eight messages of a quadword.
            let full = u64::from(credits) * 1000 * 8;
            let all = of_card + in_transit;
            assert!(
                all * 10 >= full * 9,
                "{credits} credits, {senders:?}: {of_card} and {in_transit} of {full}"
            );
            assert!(
                of_card * 3 >= all && in_transit * 3 >= all,
                "{credits} credits, {senders:?}: {of_card} and {in_transit}"
            );
        }
    }
}

#[test]
fn a_card_and_transit_packets_share_a_link_with_a_rate() {
    for (credits, delay, bits_per_second) in [(16, 2_000, 0), (16, 0, 1_000_000_000), (4, 700, 1_000_000_000)]
    {
        let spec = LinkSpec { delay, bits_per_second, ..link(credits) };
        for tick in [300, 1_000, 2_000] {
            let (of_card, in_transit) = rates_with_transit(&spec, [1, 1], 2, (100_000, tick));
            let all = of_card + in_transit;
            assert!(
                of_card * 4 >= all && in_transit * 4 >= all,
                "{spec:?}, {tick} ns: {of_card} and {in_transit}"
            );
        }
    }
}

#[test]
fn vpids_that_fill_a_link_get_equal_parts() {
    // The numbers of credits are fewer than one VPID could use, exactly as many, and so many that
    // the second one gets a part. With a delay the credits return every second and every third
    // pass.
    for (credits, delay) in
        [(1, 0), (16, 0), (64, 0), (80, 0), (150, 0), (16, RARE_PASS), (16, 2 * RARE_PASS), (80, RARE_PASS)]
    {
        for senders in [vec![0, 1], vec![0, 5], vec![1, 2, 3], vec![0, 1, 3, 4, 6]] {
            let mut rig = Rig::with(&chain(2), 8, &LinkSpec { delay, ..link(credits) }, |_| {});

            // Clients without messages have no effect.
            let idle: Vec<_> =
                (0..8).filter(|vpid| !senders.contains(vpid)).map(|vpid| rig.attach(0, vpid)).collect();
            let mut flows: Vec<_> =
                senders.iter().map(|&vpid| Flow::new(&mut rig, (0, vpid), (1, vpid))).collect();

            run_passes(&mut rig, &mut flows, 50, RARE_PASS);
            let received = run_passes(&mut rig, &mut flows, 1000, RARE_PASS);

            let (least, maximum) = (received.iter().min().unwrap(), received.iter().max().unwrap());
            assert!(least * 10 >= maximum * 9, "{credits} credits, {delay} ns, {senders:?}: {received:?}");
            assert!(flows.iter().all(|flow| flow.errors() == 0));
            drop(idle);
        }
    }
}

#[test]
fn vpids_that_fill_another_link_do_not_change_equal_parts() {
    for credits in [16, 80] {
        let mut rig = Rig::with(&chain(3), 4, &link(credits), |_| {});
        // VPIDs of node 1 with the node that each sends to: one uses another link than the others.
        let endpoints = [(0, 0), (1, 2), (2, 2), (3, 2)];
        let mut flows: Vec<_> =
            endpoints.iter().map(|&(vpid, node)| Flow::new(&mut rig, (1, vpid), (node, vpid))).collect();

        run_passes(&mut rig, &mut flows, 50, RARE_PASS);
        let received = run_passes(&mut rig, &mut flows, 1000, RARE_PASS);

        let (least, maximum) = (received[1..].iter().min().unwrap(), received[1..].iter().max().unwrap());
        assert!(
            least * 10 >= maximum * 9 && received[0] >= u64::from(credits.min(BUDGET)) * 1000,
            "{received:?}"
        );
    }
}

#[test]
fn a_sender_that_waits_for_a_receiver_takes_nothing_from_a_stream_and_ends_in_time() {
    // The VPID of the blocked sender is before that of the stream in the card's order, and after
    // it.
    for (unresponsive, streams) in [(0, 1), (1, 0)] {
        let tick = WATCHDOG / 100;
        let mut rig_alone = Rig::with(&chain(2), 4, &link(64), |_| {});
        let mut flows = [Flow::new(&mut rig_alone, (0, streams), (1, streams))];
        let rate = run_passes(&mut rig_alone, &mut flows, 80, tick)[0];

        let mut rig = Rig::with(&chain(2), 4, &link(64), |_| {});
        let mut flows = [Flow::new(&mut rig, (0, streams), (1, streams))];
        let to_unresponsive = rig.attach(0, unresponsive);
        let _unresponsive = rig.receiver(1, unresponsive, 64);
        let mut ring = Posting::of(&rig, &to_unresponsive);
        for number in 0..33u64 {
            ring.post(BAR_VELO, address::encode(1, unresponsive, 0, 1), &number.to_le_bytes());
        }

        let with_blocked_sender = run_passes(&mut rig, &mut flows, 80, tick)[0];
        assert!(with_blocked_sender * 100 >= rate * 97, "{with_blocked_sender} instead of {rate}");

        // 32 messages have left, and one has waited since the first or second pass.
        assert_eq!(to_unresponsive.mirror_word(mirror::VELO_SENT), 32);
        assert_eq!(to_unresponsive.mirror_word(mirror::ERRORS), 0);

        let mut passes = 80;
        while to_unresponsive.mirror_word(mirror::ERRORS) == 0 {
            run_passes(&mut rig, &mut flows, 1, tick);
            passes += 1;
            // The watchdog is 100 passes.
            assert!(passes <= 103, "the watchdog has not ended it");
        }
        assert!(passes >= 100, "ended after {passes} passes");

        assert_eq!(to_unresponsive.last_error().0, error::WATCHDOG);
        assert_eq!(flows[0].errors(), 0);
    }
}

#[test]
fn a_ping_pong_costs_a_stream_no_more_than_its_own_messages() {
    for (stream, ping_pong) in [(0, 1), (1, 0)] {
        for credits in [16, 64] {
            let mut rig_alone = Rig::with(&chain(2), 4, &link(credits), |_| {});
            let mut flows = [Flow::new(&mut rig_alone, (0, stream), (1, stream))];
            let rate = run_passes(&mut rig_alone, &mut flows, 1000, 1_000)[0];

            let mut rig = Rig::with(&chain(2), 4, &link(credits), |_| {});
            let mut flows = [
                Flow::new(&mut rig, (0, stream), (1, stream)),
                Flow::new(&mut rig, (0, ping_pong), (1, ping_pong)).with_one_in_flight(),
            ];
            let received = run_passes(&mut rig, &mut flows, 1000, 1_000);
            assert!(received.iter().sum::<u64>() * 100 >= rate * 95, "{received:?} instead of {rate}");
            assert!(received[1] >= 300, "{received:?}");
        }
    }
}

/// Two VPIDs fill one ring, of which 8 messages are taken in each pass. Returns the number of
/// messages from each. Before each pass, `reader` reads a register, if there is one.
fn receive_from_two_senders(reader: Option<usize>) -> [u64; 2] {
    let mut rig = Rig::with(&chain(2), 4, &link(64), |_| {});
    let mut receiver = rig.receiver(1, 0, 64);
    let senders = [rig.attach(0, 0), rig.attach(0, 1)];
    let mut rings = senders.each_ref().map(|sender| Posting::of(&rig, sender));
    let mut received = [0u64; 2];

    for _ in 0..1000 {
        for ring in &mut rings {
            while ring.offer(BAR_VELO, address::encode(1, 0, 0, 1), &[7; 8]) {}
        }

        for message in std::iter::from_fn(|| receiver.take()).take(8) {
            received[usize::from(message.from.1)] += 1;
        }
        receiver.store_read_pointer();

        rig.machine.advance(1_000_000);
        if let Some(reader) = reader {
            // The read waits for the posted messages of the same client.
            let Client { function, attachment, .. } = senders[reader];
            let outcome = rig.machine.read(function, attachment, region::BAR0, 0, &mut [0; 8]).unwrap();
            assert_eq!(outcome, Access::Stalled);
        }
        step(&mut rig);
    }

    let errors = senders.each_ref().map(|sender| (sender.mirror_word(mirror::ERRORS), sender.last_error()));
    assert_eq!(errors.map(|(errors, _)| errors), [0; 2], "{errors:?}, {received:?}");
    received
}

#[test]
fn vpids_that_wait_for_the_same_receiver_are_served_round_robin() {
    for reader in [None, Some(0), Some(1)] {
        let received = receive_from_two_senders(reader);
        assert!(
            received[0] * 10 >= received[1] * 9 && received[1] * 10 >= received[0] * 9,
            "{reader:?}: {received:?}"
        );
    }
}
