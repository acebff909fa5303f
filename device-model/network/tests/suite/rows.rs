//! Rows of packets: packets with the same way that move in one operation. Over links that take no
//! time they give the results of packets that move one by one.

use nicforge_core::fabric::{CreditUnit, Direction, Fault, LaneStats, LinkId, LinkSpec};
use nicforge_network::{
    router::{
        InputCounters, OutputCounters, RouterCounters,
        policies::{ChannelClass, Fixed, TorusPolicy, TorusRules, TorusWord},
    },
    shape::{Cabling, Dimension, Torus},
};
use proptest::prelude::*;

use crate::{
    bed::{Bed, LONGEST, Message, Receipt, Taking, spec},
    properties::{Pick, cases, traffic},
};

/// Returns links that take no time. Each virtual channel has this many credits, for a packet each.
fn instant(credits: u32) -> LinkSpec {
    LinkSpec {
        delay: 0,
        bits_per_second: 0,
        credits: vec![credits; 2],
        credit_unit: CreditUnit::Packets,
        max_packet: LONGEST,
        cut_through: None,
    }
}

/// Returns routers of a torus with links of [`instant`]. Without `has_rows`, each link has a fault
/// function that changes nothing, because such links send packets one by one.
fn bed(torus: &Torus, rules: TorusRules, credits: u32, has_rows: bool) -> Bed {
    let bubbles = u16::from(matches!(rules.classes[0].fixed, Fixed::Bubble { .. }));
    let spec = spec(torus.ports(), &instant(credits), bubbles);
    let mut bed = Bed::new(torus, &spec, |node| TorusPolicy::new(torus, node, rules).unwrap());

    let links = if has_rows { 0 } else { bed.machine.fabric().links() };
    for link in (0..links).map(LinkId) {
        for direction in [Direction::Forward, Direction::Backward] {
            bed.machine.fabric().set_fault(link, direction, Some(Box::new(|_, _| Fault::None))).unwrap();
        }
    }
    bed
}

/// The results of a run: marks in the order of arrival for each pair of nodes, and counters.
#[derive(Debug, PartialEq, Eq)]
struct Results {
    flows: Vec<Vec<u64>>,
    /// Packets delivered by each node.
    delivered: Vec<u64>,
    /// Packets and bytes of each input of each node.
    inputs: Vec<(u64, u64)>,
    /// Through packets and injected packets of each output of each node.
    outputs: Vec<(u64, u64)>,
    /// Packets and bytes of each direction of each link.
    links: Vec<(u64, u64)>,
    /// Packets left in the fabric.
    in_use: usize,
}

/// Sends packets, each `repeats` times so that there are rows, and returns the results.
fn results(torus: &Torus, bed: &mut Bed, picks: &[Pick], repeats: u64) -> Results {
    let nodes = torus.nodes();
    for (number, pick) in picks.iter().enumerate() {
        let (from, to) = (pick.from % nodes, pick.to % nodes);
        // All packets of a pair take the same way, and stay in order.
        let word = TorusWord::between(torus, from, to, 0).unwrap();
        for repeat in 0..repeats {
            let flow = u64::from(from * nodes + to);
            let mark = flow << 32 | (number as u64) << 16 | repeat;
            bed.send(from, Message { fifo: 0, word: word.0, bytes: pick.bytes, mark });
        }
    }
    bed.run();

    let mut flows = vec![Vec::new(); (nodes * nodes) as usize];
    let (mut delivered, mut inputs, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..nodes {
        for mark in bed.marks(number) {
            flows[(mark >> 32) as usize].push(mark);
        }
        let node = bed.node(number);
        delivered.push(node.counters.delivered);
        let of_links = node.links.iter().chain([&node.injection.0]);
        inputs.extend(of_links.map(|input| (input.packets, input.bytes)));
        outputs.extend(node.outputs.iter().map(|output| (output.through, output.injected)));
    }

    let fabric = bed.machine.fabric();
    let links = (0..fabric.links()).flat_map(|link| {
        [Direction::Forward, Direction::Backward].map(|direction| {
            let stats = fabric.link_stats(LinkId(link), direction, 0).unwrap();
            (stats.packets, stats.bytes)
        })
    });
    let links = links.collect();
    let in_use = bed.packets_in_use();
    Results { flows, delivered, inputs, outputs, links, in_use }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn rows_give_the_results_of_packets_one_by_one(
        lengths in proptest::collection::vec(1_u32..4, 1..3),
        is_bubble in any::<bool>(),
        credits in 2_u32..9,
        picks in traffic(12),
        repeats in 1_u64..20,
    ) {
        let dimension = if is_bubble { Dimension::torus } else { Dimension::mesh };
        let lengths: Vec<_> = lengths.into_iter().map(dimension).collect();
        let torus = Torus::new(&lengths).unwrap();
        let fixed = if is_bubble { Fixed::Bubble { vc: 0 } } else { Fixed::Plain { vc: 0 } };
        let rules = TorusRules::shared(ChannelClass { fixed, adaptive: 0 });

        let mut with_rows = bed(&torus, rules, credits, true);
        let mut without = bed(&torus, rules, credits, false);
        let found = results(&torus, &mut with_rows, &picks, repeats);
        let expected = results(&torus, &mut without, &picks, repeats);

        let sent = picks.len() as u64 * repeats;
        prop_assert_eq!(found.delivered.iter().sum::<u64>(), sent);
        prop_assert_eq!(found.in_use, 0);
        prop_assert!(found.flows.iter().all(|flow| flow.is_sorted()));
        prop_assert_eq!(found, expected);
    }
}

/// All that can be told of a node: receipts, and counters of its router.
#[derive(Debug, PartialEq)]
struct Observed {
    received: Vec<Receipt>,
    counters: RouterCounters,
    links: Vec<InputCounters>,
    injection: (InputCounters, u64),
    outputs: Vec<OutputCounters>,
}

/// Picks whose packets are sent together.
const BURST: usize = 3;

/// Sends packets in bursts, with a node that is deaf for a while, to devices that take packets in
/// this way. Packets of a burst alternate, so that a link carries rows for several nodes. Returns
/// the state of all nodes and links after each burst, and the number of packets that passed.
fn observed(
    torus: &Torus,
    bed: &mut Bed,
    (picks, repeats, deaf): (&[Pick], u64, u32),
    taking: Taking,
) -> (Vec<Observed>, Vec<LaneStats>, u64) {
    let nodes = torus.nodes();
    (0..nodes).for_each(|node| bed.node(node).taking = taking);
    let (mut observed, mut links) = (Vec::new(), Vec::new());

    for (burst, picks) in picks.chunks(BURST).enumerate() {
        bed.node(deaf % nodes).takes_nothing = burst % 3 == 1;
        for repeat in 0..repeats {
            for (number, pick) in picks.iter().enumerate() {
                let (from, to) = (pick.from % nodes, pick.to % nodes);
                let word = TorusWord::between(torus, from, to, 0).unwrap().0;
                for part in 0..u64::from(pick.ties % 4 + 1) {
                    let mark = ((burst * BURST + number) as u64) << 16 | (4 * repeat + part + 1);
                    bed.send(from, Message { fifo: 0, word, bytes: pick.bytes, mark });
                }
            }
        }
        bed.wake(deaf % nodes);
        bed.run();

        for node in (0..nodes).map(|node| bed.node(node)) {
            let (received, links) = (node.received.clone(), node.links.clone());
            let (counters, injection, outputs) = (node.counters, node.injection, node.outputs.clone());
            observed.push(Observed { received, counters, links, injection, outputs });
        }
        let fabric = bed.machine.fabric();
        links.extend((0..fabric.links()).flat_map(|link| {
            [Direction::Forward, Direction::Backward]
                .map(|direction| fabric.link_stats(LinkId(link), direction, 0).unwrap())
        }));
    }

    let passed = (0..nodes).map(|node| bed.node(node).passed).sum();
    (observed, links, passed)
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn packets_that_pass_give_all_results_of_those_that_stay_in_their_fifo(
        lengths in proptest::collection::vec(1_u32..4, 1..3),
        is_bubble in any::<bool>(),
        credits in 2_u32..12,
        picks in traffic(18),
        repeats in 1_u64..8,
        deaf in 0_u32..9,
        refused in 2_u64..30,
    ) {
        let dimension = if is_bubble { Dimension::torus } else { Dimension::mesh };
        let lengths: Vec<_> = lengths.into_iter().map(dimension).collect();
        let torus = Torus::new(&lengths).unwrap();
        let fixed = if is_bubble { Fixed::Bubble { vc: 0 } } else { Fixed::Plain { vc: 0 } };
        let rules = TorusRules::shared(ChannelClass { fixed, adaptive: 0 });

        let traffic = (&picks[..], repeats, deaf);
        let run = |taking| observed(&torus, &mut bed(&torus, rules, credits, true), traffic, taking);
        let (found, found_links, passed) = run(Taking::Bypass(refused));
        let (expected, expected_links, none) = run(Taking::After);

        prop_assert_eq!(none, 0);
        prop_assert_eq!(found, expected);
        prop_assert_eq!(found_links, expected_links);
        prop_assert!(passed <= picks.len() as u64 * 4 * repeats);
    }
}

#[test]
fn packets_of_a_link_pass_a_router_that_has_nothing_else_to_do() {
    let torus = Torus::new(&[Dimension::mesh(2)]).unwrap();
    let fixed = Fixed::Plain { vc: 0 };
    let rules = TorusRules::shared(ChannelClass { fixed, adaptive: 0 });
    let pick = Pick { from: 0, to: 1, ties: 0, bytes: 64, is_adaptive: false, class: 0 };

    let mut bed = bed(&torus, rules, 4, true);
    let (_, _, passed) = observed(&torus, &mut bed, (&[pick], 20, 0), Taking::Bypass(1 << 40));
    // The reception FIFO has room for two of the longest packets. Others behind these may stay.
    assert!((2..=20).contains(&passed), "{passed}");
    assert_eq!(bed.node(1).counters.delivered, 20);
}

#[test]
fn packets_for_other_nodes_behind_those_that_pass_go_on() {
    let torus = Torus::new(&[Dimension::mesh(3)]).unwrap();
    let rules = TorusRules::shared(ChannelClass { fixed: Fixed::Plain { vc: 0 }, adaptive: 0 });
    let mut bed = bed(&torus, rules, 4, true);
    (0..3).for_each(|node| bed.node(node).taking = Taking::Bypass(1 << 40));

    // Node 1 sees packets for itself, and behind them packets for node 2.
    for mark in 1..=12 {
        let to = 2 - mark as u32 % 2;
        let word = TorusWord::between(&torus, 0, to, 0).unwrap().0;
        bed.send(0, Message { fifo: 0, word, bytes: 64, mark });
    }
    bed.run();

    assert_eq!(bed.marks(1), [1, 3, 5, 7, 9, 11]);
    assert_eq!(bed.marks(2), [2, 4, 6, 8, 10, 12]);
    assert!(bed.node(1).passed > 0 && bed.node(2).passed > 0);
}
