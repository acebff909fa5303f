//! Random schedules of several nodes, with few streams, drops and restarts.

use std::collections::BTreeMap;

use nicforge_hwi::seastar::{KERNEL, code, event, failure, option};
use proptest::prelude::*;

use crate::network::{Network, Put};

/// Incarnation of the target, place in the order of headers, and number of a message.
type Arrival = (u32, u32, u64);

/// Puts whose header data count up for each pair, and their events.
#[derive(Default)]
struct Record {
    /// Number of puts from a node to another one.
    sent: BTreeMap<(u32, u32), u64>,
    /// Messages that have arrived, for each pair.
    arrived: BTreeMap<(u32, u32), Vec<Arrival>>,
    /// Number of incarnations of each node that are over.
    incarnations: BTreeMap<u32, u32>,
    /// Number of messages that have arrived.
    count: u64,
    /// Ends at the senders, without and with a failure.
    ends: [u64; 2],
}

impl Record {
    /// Sends a put, if there is room.
    fn put(
        &mut self,
        network: &mut Network,
        descriptor: u32,
        (from, to): (u32, u32),
        length: u64,
        ack: bool,
    ) -> bool {
        let number = self.sent.get(&(from, to)).copied().unwrap_or(0) + 1;
        let options = if ack { option::ACK } else { 0 };
        let put = Put { header_data: number, options, ..Put::new(to, number, length) };
        let done = network.put(from, 0, descriptor, put) == code::OK;
        if done {
            self.sent.insert((from, to), number);
        }
        done
    }

    /// Takes all events.
    fn collect(&mut self, network: &mut Network) {
        for node in 0..network.nodes.len() as u32 {
            for seen in network.events(node, 0) {
                match seen.kind {
                    event::PUT_END => {
                        let incarnation = self.incarnations.get(&node).copied().unwrap_or(0);
                        let arrived = self.arrived.entry((seen.node, node)).or_default();
                        arrived.push((incarnation, seen.link, seen.header_data));
                        self.count += u64::from(seen.failure == 0);
                    }
                    event::SEND_END => self.ends[usize::from(seen.failure != 0)] += 1,
                    _ => {}
                }
            }
        }
    }

    /// Checks that messages have arrived at most once, and in order.
    fn check(&mut self) {
        for (pair, arrived) in &mut self.arrived {
            arrived.sort_unstable();
            assert!(arrived.is_sorted_by(|one, next| one.2 < next.2), "{pair:?}: {arrived:?}");
        }
    }

    fn total(&self) -> u64 {
        self.sent.values().sum()
    }
}

#[test]
fn a_flood_of_257_senders_is_delivered() {
    const SENDERS: u32 = 257;
    let mut network = Network::new(SENDERS + 1, 256, 1);
    network.start_all();
    let mut record = Record::default();
    for sender in 0..SENDERS {
        let descriptor = network.bind(sender, 0);
        assert!(record.put(&mut network, descriptor, (sender, SENDERS), 64, false));
    }

    // All headers arrive before the end of the first message.
    for sender in 0..SENDERS {
        while network.poll(sender) {}
        network.begin(sender, SENDERS);
    }
    network.settle_with(|network| record.collect(network));
    record.collect(&mut network);

    assert_eq!(record.count, u64::from(SENDERS));
    assert_eq!(record.ends, [u64::from(SENDERS), 0]);
    assert!(network.nodes[SENDERS as usize].firmware.statistics().dropped >= 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Without restarts, each message arrives exactly once and in order, however many are dropped.
    #[test]
    fn messages_arrive_exactly_once_in_order(
        seed in any::<u64>(),
        streams in 1usize..4,
        drops in proptest::option::of(2u64..6),
        puts in proptest::collection::vec((0u32..3, 0u32..3, 0usize..5, any::<bool>(), 0u64..40), 1..80),
    ) {
        let mut network = Network::new(3, streams, seed);
        network.start_all();
        network.drop_one_of = drops;
        let descriptors = [0, 1, 2].map(|node| network.bind(node, 0));
        let mut record = Record::default();

        for (from, to, length, ack, steps) in puts {
            let to = if from == to { (to + 1) % 3 } else { to };
            let length = [0, 8, 16, 17, 500][length];
            record.put(&mut network, descriptors[from as usize], (from, to), length, ack);
            for _ in 0..steps {
                network.step();
            }
            record.collect(&mut network);
        }
        network.settle_with(|network| record.collect(network));
        record.collect(&mut network);
        record.check();

        prop_assert_eq!(record.count, record.total());
        prop_assert_eq!(record.ends, [record.total(), 0]);
        for node in &network.nodes {
            prop_assert_eq!(node.firmware.pending(), 0);
        }
    }

    /// With restarts, each message arrives at most once, in order, and nothing leaks. Each message
    /// of a node that lives on ends.
    #[test]
    fn restarts_deliver_at_most_once_in_order(
        seed in any::<u64>(),
        streams in 1usize..3,
        puts in proptest::collection::vec((0u32..3, 0u32..3, 0usize..5, 0u8..12, 0u64..40), 1..80),
    ) {
        let mut network = Network::new(3, streams, seed);
        network.start_all();
        network.drop_one_of = Some(4);
        let mut descriptors = [0, 1, 2].map(|node| network.bind(node, 0));
        let mut record = Record::default();
        let free = network.nodes[0].firmware.free_scratch();
        // Messages of node 0, which lives on.
        let mut of_survivor = 0;

        for (from, to, length, what, steps) in puts {
            let to = if from == to { (to + 1) % 3 } else { to };
            if what == 0 && from != 0 {
                record.collect(&mut network);
                *record.incarnations.entry(from).or_default() += 1;
                network.reset(from);
                network.boot(from);
            } else if what == 1 && from != 0 {
                record.collect(&mut network);
                *record.incarnations.entry(from).or_default() += 1;
                network.detach(from, 1);
                network.detach(from, KERNEL);
                network.boot(from);
            }
            if what < 2 && from != 0 {
                network.start(from, 0);
                network.receive_all(from, 0);
                descriptors[from as usize] = network.bind(from, 0);
            }

            let length = [0, 8, 16, 17, 500][length];
            let done = record.put(&mut network, descriptors[from as usize], (from, to), length, what == 3);
            of_survivor += u64::from(done && from == 0);
            for _ in 0..steps {
                network.step();
            }
            if what > 5 {
                record.collect(&mut network);
            }
        }
        network.settle_with(|network| record.collect(network));
        record.collect(&mut network);
        record.check();

        let ended = record.ends[0] + record.ends[1];
        prop_assert!(ended >= of_survivor && ended <= record.total());
        for node in &network.nodes {
            prop_assert_eq!(node.firmware.pending(), 0);
            prop_assert_eq!(node.firmware.free_scratch(), free);
            prop_assert_eq!(node.chip.streams_in_use(), 0);
        }
    }
}

#[test]
fn message_cut_by_a_restart_fails_at_the_target_although_it_was_acknowledged() {
    let (mut network, descriptor) = Network::pair(1);
    network.put(0, 0, descriptor, Put::new(1, 2, 1000));
    while network.nodes[1].firmware.statistics().messages == 0 {
        network.poll(0);
        network.begin(0, 1);
        network.poll(1);
    }
    assert!(network.events(1, 0).is_empty());

    network.reset(0);
    network.settle();

    let cut = network.events(1, 0);
    assert_eq!(cut.len(), 1);
    assert_eq!((cut[0].kind, cut[0].failure), (event::PUT_END, failure::DATA));
}
