//! Rows of packets: packets with the same way that move in one operation. Over links that take no
//! time they give the results of packets that move one by one.

use nicforge_core::fabric::{CreditUnit, Direction, Fault, LinkId, LinkSpec};
use nicforge_network::{
    router::policies::{ChannelClass, Fixed, TorusPolicy, TorusRules, TorusWord},
    shape::{Cabling, Dimension, Torus},
};
use proptest::prelude::*;

use crate::{
    bed::{Bed, LONGEST, Message, spec},
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
