//! Orders and matches of random messages, compared with a model.

use std::{cell::RefCell, collections::BTreeMap};

use nicforge_portals_mpi::{Envelope, Request, Selector};
use nicforge_test_body::body;
use proptest::{
    collection::vec,
    prelude::{Just, Strategy, any},
    prop_oneof,
};

use super::{MACHINE, MODES, RANKS, World, bytes, small};
use crate::{backing::Rig, pattern::pattern, random::runner};

/// Number of tags of messages.
const TAGS: u64 = 3;
/// Number of contexts of messages.
const CONTEXTS: u32 = 2;
/// Bytes of each receive's buffer.
const ROOM: usize = 10_000;

/// A step of a case.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send {
        from: u32,
        to: u32,
        context: u32,
        tag: u64,
        length: usize,
    },
    Receive {
        rank: u32,
        context: u32,
        source: Option<u32>,
        tag: Option<u64>,
    },
    /// Some progress of all ranks.
    Pause(u8),
}

/// Generates a step. Lengths are around the limits of the protocols.
fn step() -> impl Strategy<Value = Step> {
    let rank = || 0..RANKS;
    let length = prop_oneof![0..20_usize, 240..270_usize, 4080..4110_usize, 0..ROOM];
    let send = (rank(), rank(), 0..CONTEXTS, 0..TAGS, length)
        .prop_map(|(from, to, context, tag, length)| Step::Send { from, to, context, tag, length });
    let sources = prop_oneof![Just(None), rank().prop_map(Some)];
    let tags = prop_oneof![Just(None), (0..TAGS).prop_map(Some)];
    let receive = (rank(), 0..CONTEXTS, sources, tags)
        .prop_map(|(rank, context, source, tag)| Step::Receive { rank, context, source, tag });
    prop_oneof![4 => send, 4 => receive, 1 => any::<u8>().prop_map(Step::Pause)]
}

/// A message that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    envelope: Envelope,
    to: u32,
    length: usize,
}

/// A receive, and the number of the message that it took.
struct Receive {
    request: Request,
    selector: Selector,
    taken: Option<usize>,
}

/// Checks MPI's rule of order for the receives of one rank.
///
/// - A message does not overtake an earlier one of its pair: if both match a receive that took the
///   later one, the earlier one was taken by a receive that was posted before.
/// - A receive does not overtake an earlier one: if both match a message that the later one took,
///   the earlier one took another message, which was not sent later by the same rank.
fn check_order(rank: u32, receives: &[Receive], sent: &[Sent]) {
    let mut takers = BTreeMap::new();
    for (at, receive) in receives.iter().enumerate() {
        if let Some(message) = receive.taken {
            assert!(receive.selector.matches(&sent[message].envelope), "a wrong message");
            assert_eq!(takers.insert(message, at), None, "message {message} was taken twice");
        }
    }

    for (&message, &taker) in &takers {
        let Sent { envelope, .. } = sent[message];
        for (earlier, earlier_message) in sent.iter().enumerate().take(message) {
            let is_of_pair = earlier_message.to == rank && earlier_message.envelope.peer == envelope.peer;
            if is_of_pair && receives[taker].selector.matches(&earlier_message.envelope) {
                let before = takers.get(&earlier).is_some_and(|&earlier_taker| earlier_taker < taker);
                assert!(before, "message {message} overtook {earlier} at rank {rank}");
            }
        }
        for receive in receives[..taker].iter().filter(|receive| receive.selector.matches(&envelope)) {
            let taken =
                receive.taken.unwrap_or_else(|| panic!("message {message} was taken by a later receive"));
            let is_of_pair = sent[taken].envelope.peer == envelope.peer;
            assert!(!is_of_pair || taken < message, "a receive overtook an earlier one at rank {rank}");
        }
    }
}

/// Runs a case. At its end all messages are received, and the other receives are cancelled.
fn run(world: &mut World, steps: &[Step], round: u64) {
    let mut sent = Vec::new();
    let mut receives: Vec<Vec<Receive>> = (0..RANKS).map(|_| Vec::new()).collect();
    let post = |world: &mut World, receives: &mut Vec<Vec<Receive>>, rank: u32, selector| {
        let buffer = world.ranks[rank as usize].allocate(ROOM).unwrap();
        let request = world.ranks[rank as usize].irecv(selector, buffer, 0).unwrap();
        receives[rank as usize].push(Receive { request, selector, taken: None });
    };

    for step in steps {
        match *step {
            Step::Send { from, to, context, tag, length } => {
                let mut data = pattern(sent.len() as u64 ^ round << 32, length);
                // The beginning names the message.
                let name = (sent.len() as u32).to_le_bytes();
                data.iter_mut().zip(name).for_each(|(byte, name)| *byte = name);
                let buffer = world.buffer_of(from as usize, &data);
                world.ranks[from as usize].isend(Envelope::new(to, context, tag), buffer, 0).unwrap();
                sent.push(Sent { envelope: Envelope::new(from, context, tag), to, length });
            }
            Step::Receive { rank, context, source, tag } => {
                let ignore = if tag.is_none() { u64::MAX } else { 0 };
                let selector = Selector { source, context, tag: tag.unwrap_or(0), ignore };
                post(world, &mut receives, rank, selector);
            }
            Step::Pause(turns) => (0..turns % 16).for_each(|_| {
                for rank in &mut world.ranks {
                    rank.progress().unwrap();
                }
            }),
        }
    }

    // Receives without criteria take the remaining messages. Each rank has one for each message to
    // it.
    for Sent { to, envelope, .. } in sent.clone() {
        post(world, &mut receives, to, Selector::any(envelope.context));
    }
    let mut remaining = sent.len();
    let mut contents = Vec::new();
    world.drive_until("all messages", |ranks| {
        for (rank, receives) in ranks.iter_mut().zip(&receives) {
            while let Some(done) = rank.next_completion() {
                assert_eq!(done.result, Ok(()));
                if let Some(at) = receives.iter().position(|receive| receive.request == done.request) {
                    contents.push((rank.rank(), at, done.envelope, bytes(&done)));
                    remaining -= 1;
                }
            }
        }
        (remaining == 0).then_some(())
    });

    record_taken(&mut receives, &sent, &contents, round);
    for (rank, receives) in (0..).zip(&receives) {
        check_order(rank, receives, &sent);
        for receive in receives.iter().filter(|receive| receive.taken.is_none()) {
            assert_eq!(world.ranks[rank as usize].cancel(receive.request), Ok(true));
            world.wait(rank as usize, receive.request);
        }
    }
    world.drive_until("the sends", |ranks| {
        ranks.iter_mut().for_each(|rank| while rank.next_completion().is_some() {});
        ranks.iter().all(|rank| rank.outstanding() == 0 && rank.unacknowledged() == 0).then_some(())
    });
}

/// Records which message each receive took, found by its contents. A message of fewer than 4 bytes
/// does not name itself: it is the first one that fits and was not found.
fn record_taken(
    receives: &mut [Vec<Receive>],
    sent: &[Sent],
    contents: &[(u32, usize, Envelope, Vec<u8>)],
    round: u64,
) {
    let mut found = vec![false; sent.len()];
    let mut short: Vec<_> = Vec::new();
    for (rank, at, envelope, data) in contents {
        let Some(name) = data.first_chunk() else {
            short.push((*rank, *at, *envelope, data));
            continue;
        };
        let message = u32::from_le_bytes(*name) as usize;
        let Sent { envelope: expected, to, length } = sent[message];
        assert_eq!((expected, to, length), (*envelope, *rank, data.len()));
        assert!(pattern(message as u64 ^ round << 32, length)[4..] == data[4..], "message {message}");
        found[message] = true;
        receives[*rank as usize][*at].taken = Some(message);
    }

    // Equal messages are interchangeable: the receives get them in the order of their posts.
    short.sort_by_key(|(rank, at, ..)| (*rank, *at));
    for (rank, at, envelope, data) in short {
        let fits = |&message: &usize| {
            let Sent { envelope: expected, to, length } = sent[message];
            let name = (message as u32).to_le_bytes();
            !found[message]
                && (expected, to, length) == (envelope, rank, data.len())
                && name.starts_with(data)
        };
        let message = (0..sent.len()).find(fits).unwrap_or_else(|| panic!("no rank sent {data:?}"));
        found[message] = true;
        receives[rank as usize][at].taken = Some(message);
    }
}

/// Random messages of all protocols, expected and unexpected, match in MPI's order with their data.
#[body]
pub fn random_messages_match_in_order(rig: &dyn Rig) {
    for mode in MODES {
        let world = RefCell::new((World::new(rig, mode, small()), 0));
        runner(rig, 64)
            .run(&vec(step(), 1..120), |steps| {
                let (world, round) = &mut *world.borrow_mut();
                *round += 1;
                run(world, &steps, *round);
                Ok(())
            })
            .unwrap();
        world.into_inner().0.finish();
    }
}
