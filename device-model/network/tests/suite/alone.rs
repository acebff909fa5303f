//! Networks alone, beside machines of the same nodes.

use std::collections::VecDeque;

use nicforge_core::{fabric::LinkSpec, time::Nanos};
use nicforge_network::{
    alone::{AloneError, Network, NodeLinks, Parcel, Turn},
    router::{
        Links, OutputCounters, Policy, Router, RouterCounters, RouterPlan, RouterSpec,
        policies::{ChannelClass, Fixed, TorusPolicy, TorusRules, TorusWord},
    },
    shape::{Cabling, Dimension, Torus},
};
use proptest::prelude::*;

use crate::{
    bed::{Bed, LONGEST, Message, Receipt, link, spec},
    properties::{Pick, cases, rules, traffic},
    strategies,
};

/// A node of a network without a machine. It does what the nodes of [`Bed`] do.
struct AloneNode<P> {
    router: Router<P, Parcel>,
    /// The router decides on packets ahead of the node's turns.
    decides_ahead: bool,
    to_send: VecDeque<Message>,
    received: Vec<Receipt>,
}

impl<P: Policy> nicforge_network::alone::Node for AloneNode<P> {
    fn turn(&mut self, links: &mut NodeLinks<'_>) -> Turn {
        let now = links.now();
        while let Some(parcel) = self.router.take(0, now) {
            let (bytes, mark) = (parcel.bytes as usize, parcel.tag);
            self.received.push(Receipt { time: now, fifo: 0, bytes, mark });
        }

        while let Some(message) = self.to_send.front() {
            let parcel = Parcel::new(message.word, message.bytes as u32, message.mark);
            if self.router.inject(message.fifo, parcel, now).is_err() {
                break;
            }
            self.to_send.pop_front();
        }

        let outcome = self.router.step(links, 64);
        Turn { wake: outcome.wake, has_more: outcome.moved > 0 }
    }

    fn arrive(&mut self, links: &mut NodeLinks<'_>, input: u8) -> bool {
        !self.decides_ahead || self.router.arrive(links, input)
    }
}

/// Returns a torus of nodes without messages.
fn alone(
    torus: &Torus,
    spec: &RouterSpec,
    rules: TorusRules,
    decides_ahead: bool,
) -> Network<AloneNode<TorusPolicy>> {
    let plan = RouterPlan::new(spec).unwrap();
    let nodes = (0..torus.nodes()).map(|node| AloneNode {
        router: Router::of_packets(&plan, TorusPolicy::new(torus, node, rules).unwrap()),
        decides_ahead,
        to_send: VecDeque::new(),
        received: Vec::new(),
    });
    Network::new(torus, &spec.link, nodes.collect()).unwrap()
}

/// Returns the message of a pick, and the node that sends it.
fn message(torus: &Torus, mark: usize, pick: &Pick) -> (u32, Message) {
    let (from, to) = (pick.from % torus.nodes(), pick.to % torus.nodes());
    let word = TorusWord::between(torus, from, to, pick.ties).unwrap().with_class(pick.class);
    let word = match pick.class {
        // Some packets leave copies on their way, if it is a line.
        1 if pick.ties & 8 != 0 => {
            TorusWord::line(torus, from, pick.ties as usize % 3, false).unwrap_or(word)
        }
        _ if pick.is_adaptive => word.adaptive(),
        _ => word,
    };
    (from, Message { fifo: 0, word: word.0, bytes: pick.bytes, mark: mark as u64 })
}

/// The counters of a router and of its outputs.
type Counters = (RouterCounters, Vec<OutputCounters>);

/// Returns all that the nodes of a machine have received and counted.
fn in_a_machine(
    torus: &Torus,
    spec: &RouterSpec,
    rules: TorusRules,
    picks: &[Pick],
) -> (Vec<Vec<Receipt>>, Vec<Counters>) {
    let mut bed = Bed::new(torus, spec, |node| TorusPolicy::new(torus, node, rules).unwrap());
    for (mark, pick) in picks.iter().enumerate() {
        let (from, message) = message(torus, mark, pick);
        bed.send(from, message);
    }
    bed.run();

    let nodes = 0..torus.nodes();
    let counters = nodes.clone().map(|node| {
        let node = bed.node(node);
        (node.counters, node.outputs.iter().take(torus.ports().into()).copied().collect())
    });
    let counters = counters.collect();
    (nodes.map(|node| bed.node(node).received.clone()).collect(), counters)
}

proptest! {
    #![proptest_config(cases(48))]

    /// Links count bytes or packets, cut through or not, and are slow or fast.
    #[test]
    fn networks_alone_and_machines_deliver_the_same_packets(
        torus in strategies::torus(),
        (rules, packets) in rules(),
        picks in traffic(300),
        bits_per_second in prop_oneof![Just(8_000_000_000), Just(3_000_000_000), Just(700_000_000_000_u64)],
        delay in 1_u64..40,
        cut_through in proptest::option::of(8_u32..LONGEST as u32 + 8),
        counts_packets in any::<bool>(),
        decides_ahead in any::<bool>(),
        through_ratio in 1_u8..4,
    ) {
        let mut link = LinkSpec { bits_per_second, delay, cut_through, ..link(&packets) };
        if counts_packets {
            link.credit_unit = nicforge_core::fabric::CreditUnit::Packets;
            link.credits = packets.iter().map(|packets| packets + 1).collect();
        }
        let bubbles = u16::from(matches!(rules.classes[0].fixed, Fixed::Bubble { .. }));
        let spec = RouterSpec { through_ratio, ..spec(torus.ports(), &link, bubbles) };

        let (expected, counters) = in_a_machine(&torus, &spec, rules, &picks);

        let mut network = alone(&torus, &spec, rules, decides_ahead);
        for (mark, pick) in picks.iter().enumerate() {
            let (from, message) = message(&torus, mark, pick);
            network.node_mut(from).unwrap().to_send.push_back(message);
        }
        network.run_until(Nanos::NEVER).unwrap();

        for (node, found) in network.nodes().iter().enumerate() {
            prop_assert_eq!(&found.received, &expected[node], "node {}", node);
            let outputs: Vec<_> = (0..torus.ports()).map(|port| found.router.output_counters(port)).collect();
            prop_assert_eq!((found.router.counters(), outputs), counters[node].clone(), "node {}", node);
        }
    }
}

#[test]
fn times_of_a_run_do_not_depend_on_its_slices() {
    let torus = Torus::new(&[Dimension::torus(4), Dimension::mesh(3)]).unwrap();
    let rules = TorusRules::shared(ChannelClass { fixed: Fixed::Dateline { vcs: [0, 1] }, adaptive: 0 });
    let spec = spec(torus.ports(), &link(&[1, 1]), 0);
    let run = |slice: u64| {
        let mut network = alone(&torus, &spec, rules, true);
        for from in 0..torus.nodes() {
            for mark in 0..40 {
                let to = (from + 5) % torus.nodes();
                let word = TorusWord::between(&torus, from, to, 0).unwrap().0;
                let message = Message { fifo: 0, word, bytes: 100, mark };
                network.node_mut(from).unwrap().to_send.push_back(message);
            }
        }
        // Some slices end at times beyond the range of the timing wheel.
        for end in (0..100_000).step_by(slice as usize) {
            network.run_until(Nanos(end)).unwrap();
        }
        network.run_until(Nanos::NEVER).unwrap();
        let received: Vec<_> = network.nodes().iter().map(|node| node.received.clone()).collect();
        (received, network.hops())
    };

    let whole = run(100_000);
    assert_eq!(whole.0.iter().map(Vec::len).sum::<usize>(), 40 * 12);
    assert_eq!(run(7), whole);
    assert_eq!(run(5_000), whole);
}

#[test]
fn links_without_delay_or_bandwidth_need_a_machine() {
    let torus = Torus::new(&[Dimension::torus(4)]).unwrap();
    let nodes = || Vec::<AloneNode<TorusPolicy>>::new();
    for (delay, bits_per_second) in [(0, 8_000_000_000), (20, 0)] {
        let link = LinkSpec { delay, bits_per_second, ..link(&[1]) };
        let refused = Network::new(&torus, &link, nodes()).err();
        assert_eq!(refused, Some(AloneError::Instant { delay, bits_per_second }));
    }

    let refused = Network::new(&torus, &link(&[1]), nodes()).err();
    assert_eq!(refused, Some(AloneError::Nodes { given: 0, nodes: 4 }));
}
