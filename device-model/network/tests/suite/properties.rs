//! Properties of networks of routers, on random shapes with random traffic.
//!
//! Each runs a few cases, and `PROPTEST_CASES` of them if it is set.

use std::collections::{BTreeMap, BTreeSet};

use nicforge_network::{
    deadlock::{NodeChannels, WaitGraph, bubble},
    router::policies::{ChannelClass, Fixed, TorusPolicy, TorusRules, TorusWord, escape_routes},
    shape::{Cabling, Torus},
};
use proptest::prelude::*;

use crate::{
    bed::{Bed, LONGEST, Message, link, spec},
    strategies,
};

/// Returns the configuration of a property with this number of cases, unless `PROPTEST_CASES` names
/// another.
pub(crate) fn cases(default: u32) -> ProptestConfig {
    let named = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(named.unwrap_or(default)) }
}

/// Rules of deadlock-free routing, with the packets of room that each of four virtual channels has.
/// Packets of class 0 have one or two adaptive channels or none, and those of class 1 one or none.
pub(crate) fn rules() -> impl Strategy<Value = (TorusRules, Vec<u32>)> {
    let adaptive = prop_oneof![Just([0, 0]), Just([0b100, 0]), Just([0b1100, 0b1000])];
    let order = Just([0_u8, 1, 2, 3, 4]).prop_shuffle();
    (any::<bool>(), adaptive, order, 2_u32..4, 1_u32..3).prop_map(
        |(bubble, adaptive, order, fixed, dynamic)| {
            let channels = if bubble { Fixed::Bubble { vc: 0 } } else { Fixed::Dateline { vcs: [0, 1] } };
            let class = |adaptive| ChannelClass { fixed: channels, adaptive };
            let mut rules = TorusRules { order, ..TorusRules::shared(class(adaptive[0])) };
            rules.classes[1] = class(adaptive[1]);
            (rules, vec![fixed, 1, dynamic, 1])
        },
    )
}

/// A packet of random traffic.
#[derive(Clone, Debug)]
pub(crate) struct Pick {
    /// The nodes, modulo the number of nodes.
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// The directions in dimensions in which both are equally short, one bit for each.
    pub(crate) ties: u8,
    pub(crate) bytes: usize,
    pub(crate) is_adaptive: bool,
    pub(crate) class: u8,
}

/// Up to `maximum` packets between random nodes, with random lengths.
pub(crate) fn traffic(maximum: usize) -> impl Strategy<Value = Vec<Pick>> {
    let pick = (any::<u32>(), any::<u32>(), any::<u8>(), 8..=LONGEST, any::<bool>(), 0_u8..2);
    let pick = pick.prop_map(|(from, to, ties, bytes, is_adaptive, class)| Pick {
        from,
        to,
        ties,
        bytes,
        is_adaptive,
        class,
    });
    proptest::collection::vec(pick, 1..=maximum)
}

/// Returns the routers of a torus.
fn bed(torus: &Torus, rules: TorusRules, packets: &[u32]) -> Bed {
    let bubbles = u16::from(matches!(rules.classes[0].fixed, Fixed::Bubble { .. }));
    let spec = spec(torus.ports(), &link(packets), bubbles);
    Bed::new(torus, &spec, |node| TorusPolicy::new(torus, node, rules).unwrap())
}

/// Has nodes send packets, each with its number as its mark.
fn send_all(bed: &mut Bed, torus: &Torus, picks: &[Pick]) {
    for (mark, pick) in picks.iter().enumerate() {
        let (from, to) = (pick.from % torus.nodes(), pick.to % torus.nodes());
        let word = TorusWord::between(torus, from, to, pick.ties).unwrap().with_class(pick.class);
        let word = if pick.is_adaptive { word.adaptive() } else { word };
        bed.send(from, Message { fifo: 0, word: word.0, bytes: pick.bytes, mark: mark as u64 });
    }
}

/// Returns the node that is `shares` eighths of each dimension's length away from another.
fn node_at_distance(torus: &Torus, from: u32, shares: &[u32]) -> u32 {
    let mut at = torus.coordinates(from).unwrap().to_vec();
    for ((at, dimension), share) in at.iter_mut().zip(torus.dimensions()).zip(shares) {
        *at = (*at + dimension.length * share / 8) % dimension.length;
    }
    torus.node(&at).unwrap()
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn packets_arrive_once_and_flows_that_promise_order_keep_it(
        torus in strategies::torus(),
        (rules, packets) in rules(),
        picks in traffic(300),
    ) {
        let mut bed = bed(&torus, rules, &packets);
        send_all(&mut bed, &torus, &picks);
        bed.run();

        let mut seen = BTreeSet::new();
        let mut last = BTreeMap::new();
        for node in 0..torus.nodes() {
            for receipt in &bed.node(node).received {
                let pick = &picks[receipt.mark as usize];
                prop_assert_eq!(pick.to % torus.nodes(), node);
                prop_assert_eq!(pick.bytes, receipt.bytes);
                prop_assert!(seen.insert(receipt.mark), "packet {} arrived twice", receipt.mark);

                // Packets of a class that go the same way stay in order.
                let is_adaptive = pick.is_adaptive && rules.classes[usize::from(pick.class)].adaptive != 0;
                if !is_adaptive {
                    let from = pick.from % torus.nodes();
                    let word = TorusWord::between(&torus, from, node, pick.ties).unwrap();
                    let before = last.insert((from, word.with_class(pick.class).0), receipt.mark);
                    prop_assert!(before.is_none_or(|before| before < receipt.mark));
                }
            }
        }
        prop_assert_eq!(seen.len(), picks.len());
        prop_assert_eq!(bed.packets_in_use(), 0);
    }

    /// Each node sends long and short packets as fast as it can to nodes far away, and buffers are
    /// as small as they may be.
    #[test]
    fn saturated_networks_with_the_bubble_rule_do_not_deadlock(
        torus in prop_oneof![strategies::torus(), strategies::ring()],
        adaptive in any::<bool>(),
        shares in proptest::array::uniform5(1_u32..=4),
        lengths in proptest::collection::vec(prop_oneof![Just(8), Just(LONGEST), 8..=LONGEST], 24),
    ) {
        let class = ChannelClass { fixed: Fixed::Bubble { vc: 0 }, adaptive: if adaptive { 0b10 } else { 0 } };
        let mut bed = bed(&torus, TorusRules::shared(class), &[2, 1]);

        let nodes = torus.nodes();
        for from in 0..nodes {
            let to = node_at_distance(&torus, from, &shares);
            for (mark, &bytes) in lengths.iter().enumerate() {
                let word = TorusWord::between(&torus, from, to, mark as u8).unwrap();
                let word = if adaptive { word.adaptive() } else { word };
                bed.send(from, Message { fifo: 0, word: word.0, bytes, mark: mark as u64 });
            }
        }
        bed.run();

        let received: usize = (0..nodes).map(|node| bed.node(node).received.len()).sum();
        prop_assert_eq!(received, lengths.len() * nodes as usize);
    }

    #[test]
    fn deposited_packets_reach_each_node_of_their_line_once(
        torus in strategies::torus(),
        lines in proptest::collection::vec((any::<u32>(), 0_usize..5, any::<bool>()), 1..20),
        lengths in proptest::collection::vec(8..=LONGEST, 20),
    ) {
        let class = ChannelClass { fixed: Fixed::Bubble { vc: 0 }, adaptive: 0 };
        let mut bed = bed(&torus, TorusRules::shared(class), &[2, 1]);

        let mut expected = BTreeSet::new();
        for (mark, (&(from, dimension, down), &bytes)) in lines.iter().zip(&lengths).enumerate() {
            let from = from % torus.nodes();
            let Some(word) = TorusWord::line(&torus, from, dimension, down) else { continue };
            bed.send(from, Message { fifo: 0, word: word.0, bytes, mark: mark as u64 });

            let own = torus.coordinates(from).unwrap();
            let wraps = torus.dimensions()[dimension].wraps;
            for node in (0..torus.nodes()).filter(|&node| node != from) {
                let at = torus.coordinates(node).unwrap();
                let is_beside = (0..own.len()).all(|other| other == dimension || at[other] == own[other]);
                if is_beside && (wraps || (at[dimension] < own[dimension]) == down) {
                    expected.insert((node, mark as u64));
                }
            }
        }
        bed.run();

        let mut received = BTreeSet::new();
        for node in 0..torus.nodes() {
            for mark in bed.marks(node) {
                prop_assert!(received.insert((node, mark)), "node {} has packet {} twice", node, mark);
            }
        }
        prop_assert_eq!(received, expected);
    }

    #[test]
    fn policies_pass_the_deadlock_check(torus in strategies::torus(), (rules, _) in rules()) {
        let mut graph = WaitGraph::new(&torus, NodeChannels { vcs: 2, fifos: 0 }).unwrap();
        graph.add_routes(&escape_routes(&torus, rules, 0).unwrap()).unwrap();

        let checked = match rules.classes[0].fixed {
            Fixed::Bubble { vc } => graph.check_with(bubble(&torus, vc)),
            _ => graph.check(),
        };
        prop_assert_eq!(checked, Ok(()));
    }
}
