//! VELO messages out of posted-write rings, where many come in a row.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{Arc, Mutex};

use crate::common::{Message, Rig, plain_link, posting::Posting};
use nicforge_core::{
    fabric::LinkSpec,
    ids::{AttachmentId, FunctionId},
    time::Nanos,
    trace::{Event, TraceSink},
};
use nicforge_extoll::Topology;
use nicforge_hwi::{
    extoll::{BAR_VELO, error, mirror},
    extoll_velo::address,
};
use nicforge_kit::retry;
use proptest::prelude::*;

/// A message, or several, that a writer posts.
#[derive(Clone, Copy, Debug)]
enum Post {
    /// A number of messages to a VPID of the other card.
    ToOtherCard { vpid: u16, tag: u8, quadwords: usize, times: usize },
    /// A message to another VPID of the same card.
    ToOwnCard { tag: u8 },
    /// A message to a VPID without a receive ring.
    ToMissingVpid,
    /// A message in two pieces.
    Split { vpid: u16 },
}

/// The posted messages, each with the number of its writer.
fn posts() -> impl Strategy<Value = Vec<(usize, Post)>> {
    let post = prop_oneof![
        6 => (0u16..2, 0u8..3, prop_oneof![4 => Just(1usize), 1 => 2usize..=7], 1usize..40)
            .prop_map(|(vpid, tag, quadwords, times)| Post::ToOtherCard { vpid, tag, quadwords, times }),
        2 => (0u8..3).prop_map(|tag| Post::ToOwnCard { tag }),
        1 => Just(Post::ToMissingVpid),
        1 => (0u16..2).prop_map(|vpid| Post::Split { vpid }),
    ];
    prop::collection::vec((0usize..2, post), 1..40)
}

/// Counts posted-write events.
struct Counting(Arc<Mutex<u64>>);

impl TraceSink for Counting {
    fn event(&mut self, _: Nanos, _: FunctionId, _: Option<AttachmentId>, event: &Event<'_>) {
        *self.0.lock().unwrap() += u64::from(matches!(event, Event::Posted { .. }));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn posted_messages_arrive_once_and_in_order_for_each_pair_of_vpids(
        posts in posts(),
        credits in prop_oneof![Just(1u32), 2u32..9, Just(64)],
        delay in prop_oneof![3 => Just(0u64), 1 => Just(300)],
        cut_through in prop_oneof![3 => Just(None), 1 => Just(Some(16u32))],
        pool in prop_oneof![3 => Just(None), 1 => (1usize..4).prop_map(Some)],
        traced: bool,
        steps in prop_oneof![Just(0u32), 1u32..5],
    ) {
        // Only a link with a bandwidth has heads that arrive before their packets.
        let bits_per_second = if cut_through.is_some() { 10_000_000_000 } else { 0 };
        let credits = vec![credits; plain_link().credits.len()];
        let link = LinkSpec { delay, bits_per_second, cut_through, credits, ..plain_link() };
        let mut rig = Rig::with(&Topology::full_mesh(2).unwrap(), 4, &link, |_| {});
        let events = Arc::new(Mutex::new(0));
        if traced {
            rig.machine.set_trace(Some(Box::new(Counting(events.clone()))));
        }

        let senders = [rig.attach(0, 0), rig.attach(0, 1)];
        let mut readers = [rig.receiver(1, 0, 64), rig.receiver(1, 1, 64), rig.receiver(0, 2, 64)];
        let mut rings = senders.each_ref().map(|sender| Posting::of(&rig, sender));

        if let Some(packets) = pool {
            rig.machine.fabric().set_pool_bound(packets);
        }

        // The expected messages, by reader, then writer.
        let mut expected: [[Vec<Message>; 2]; 3] = Default::default();
        let mut received: [[Vec<Message>; 2]; 3] = Default::default();
        let (mut sent, mut records, mut undelivered) = (0u64, 0, [0u64; 2]);

        for (writer, post) in posts {
            let ring = &mut rings[writer];
            let mut message = |quadwords: usize| {
                sent += 1;
                [sent.to_le_bytes()].repeat(quadwords).concat()
            };

            let from = (0, writer as u16);
            match post {
                Post::ToOtherCard { vpid, tag, quadwords, times } => for _ in 0..times {
                    let bytes = message(quadwords);
                    ring.post(BAR_VELO, address::encode(1, vpid, tag, quadwords), &bytes);
                    expected[usize::from(vpid)][writer].push(Message { from, tag, bytes });
                    records += 1;
                },
                Post::ToOwnCard { tag } => {
                    let bytes = message(1);
                    ring.post(BAR_VELO, address::encode(0, 2, tag, 1), &bytes);
                    expected[2][writer].push(Message { from, tag, bytes });
                    records += 1;
                }
                Post::ToMissingVpid => {
                    ring.post(BAR_VELO, address::encode(1, 3, 0, 1), &message(1));
                    undelivered[writer] += 1;
                    records += 1;
                }
                Post::Split { vpid } => {
                    let (bytes, at) = (message(3), address::encode(1, vpid, 4, 3));
                    ring.post(BAR_VELO, at, &bytes[..16]);
                    ring.post(BAR_VELO, at + 16, &bytes[16..]);
                    expected[usize::from(vpid)][writer].push(Message { from, tag: 4, bytes });
                    records += 2;
                }
            }

            for sender in &senders {
                rig.machine.wake(sender.function);
            }

            for _ in 0..steps {
                rig.machine.advance(100);
                let _ = rig.machine.step(16);
            }
        }

        // The rings are small, so they are emptied and their slots freed until no message arrives
        // any more.
        let mut rest = 0;
        while rest < 3 {
            for sender in &senders {
                rig.machine.wake(sender.function);
            }
            // The time after which a card checks for free packets again.
            rig.advance_and_run(retry::STARVED);
            rest += 1;
            for (reader, received) in readers.iter_mut().zip(&mut received) {
                for message in reader.take_all() {
                    received[usize::from(message.from.1)].push(message);
                    rest = 0;
                }
                rig.machine.wake(reader.function);
            }
        }

        prop_assert_eq!(&received, &expected);
        for (sender, undelivered) in senders.iter().zip(undelivered) {
            prop_assert_eq!(sender.mirror_word(mirror::VELO_UNDELIVERED), undelivered);
            prop_assert!(undelivered == 0 || sender.last_error().0 == error::NO_RECEIVER);
            prop_assert_eq!(sender.mirror_word(mirror::ERRORS), undelivered);
        }

        let counted: u64 = senders.iter().map(|sender| sender.mirror_word(mirror::VELO_SENT)).sum();
        prop_assert_eq!(counted, sent - undelivered.iter().sum::<u64>());
        prop_assert_eq!(*events.lock().unwrap(), if traced { records } else { 0 });
    }
}

/// The second of two neighbouring records names the same VPID of another node.
#[test]
fn messages_in_one_ring_to_the_same_vpid_of_two_nodes_reach_both() {
    let mut rig = Rig::pair();
    let sender = rig.attach(0, 0);
    let mut receivers = [0, 1].map(|node| rig.receiver(node, 1, 64));
    let mut ring = Posting::of(&rig, &sender);

    let numbers: Vec<u64> = (0..8).collect();
    for number in &numbers {
        let node = u32::from(number % 2 == 0);
        ring.post(BAR_VELO, address::encode(node, 1, 0, 1), &number.to_le_bytes());
    }
    rig.machine.wake(sender.function);
    rig.run();

    for (node, receiver) in (0..).zip(&mut receivers) {
        let received: Vec<_> = receiver.take_all().into_iter().map(|message| message.bytes).collect();
        let sent = numbers.iter().filter(|&number| u64::from(number % 2 == 0) == node);
        assert_eq!(received, sent.map(|number| number.to_le_bytes().to_vec()).collect::<Vec<_>>());
    }
}
