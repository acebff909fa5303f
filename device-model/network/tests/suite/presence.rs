//! The table of presence: what peers see, and when.

use std::collections::BTreeMap;

use nicforge_core::time::Nanos;
use nicforge_network::presence::{Generation, Presence, PresenceError};
use proptest::prelude::*;

use crate::properties::cases;

/// Nanoseconds for which a packet is in flight at most.
const DRAIN: u64 = 100;

/// Returns the generation of node 0 that its peers see.
fn seen(presence: &Presence, now: u64) -> Option<u32> {
    presence.generation(0, Nanos(now)).map(|generation| generation.0)
}

#[test]
fn first_incarnation_is_visible_at_once() {
    let mut presence = Presence::new(2, DRAIN, 0);

    assert_eq!(presence.join(0, Nanos(7)), Ok((Generation(1), Nanos(7))));

    assert_eq!((seen(&presence, 7), presence.generation(1, Nanos(7))), (Some(1), None));
}

#[test]
fn end_is_visible_when_the_packets_of_the_incarnation_have_arrived() {
    let mut presence = Presence::new(1, DRAIN, 0);
    presence.join(0, Nanos(0)).unwrap();

    assert_eq!(presence.leave(0, Nanos(50)), Ok(Nanos(150)));

    assert_eq!((seen(&presence, 149), seen(&presence, 150)), (Some(1), None));
    assert_eq!(presence.next_change(0, Nanos(50)), Nanos(150));
}

#[test]
fn next_incarnation_is_visible_when_the_packets_to_the_previous_one_have_arrived() {
    let mut presence = Presence::new(1, DRAIN, 0);
    presence.join(0, Nanos(0)).unwrap();
    presence.leave(0, Nanos(50)).unwrap();

    assert_eq!(presence.join(0, Nanos(60)), Ok((Generation(2), Nanos(250))));

    assert_eq!([149, 150, 249, 250].map(|now| seen(&presence, now)), [Some(1), None, None, Some(2)]);
    assert_eq!(presence.next_change(0, Nanos(60)), Nanos(150));
    assert_eq!(presence.next_change(0, Nanos(150)), Nanos(250));
    assert_eq!(presence.next_change(0, Nanos(250)), Nanos::NEVER);
}

#[test]
fn incarnation_that_ends_before_it_was_visible_is_never_visible() {
    let mut presence = Presence::new(1, DRAIN, 0);
    presence.join(0, Nanos(0)).unwrap();
    presence.leave(0, Nanos(50)).unwrap();
    presence.join(0, Nanos(60)).unwrap();

    presence.leave(0, Nanos(70)).unwrap();

    assert_eq!([149, 150, 1000].map(|now| seen(&presence, now)), [Some(1), None, None]);
    assert_eq!(presence.join(0, Nanos(80)), Ok((Generation(3), Nanos(250))));
}

#[test]
fn changes_are_visible_at_once_when_the_network_is_drained() {
    let mut presence = Presence::new(1, DRAIN, 0);
    presence.join(0, Nanos(0)).unwrap();
    presence.leave(0, Nanos(50)).unwrap();

    presence.drained(0, Nanos(55)).unwrap();

    assert_eq!(seen(&presence, 55), None);
    assert_eq!(presence.join(0, Nanos(60)), Ok((Generation(2), Nanos(60))));
}

#[test]
fn changes_become_visible_at_multiples_of_the_period() {
    let mut presence = Presence::new(1, DRAIN, 64);

    assert_eq!(presence.join(0, Nanos(1)), Ok((Generation(1), Nanos(64))));
    assert_eq!(presence.leave(0, Nanos(65)), Ok(Nanos(192)));
    assert_eq!(presence.join(0, Nanos(66)), Ok((Generation(2), Nanos(320))));
}

#[test]
fn changes_that_make_no_sense_are_refused() {
    let mut presence = Presence::new(1, DRAIN, 0);

    assert_eq!(presence.join(1, Nanos(0)), Err(PresenceError::NoNode { node: 1, nodes: 1 }));
    assert_eq!(presence.leave(0, Nanos(0)), Err(PresenceError::Absent { node: 0 }));
    presence.join(0, Nanos(0)).unwrap();
    assert_eq!(presence.join(0, Nanos(0)), Err(PresenceError::Present { node: 0 }));
    assert_eq!(presence.changes(), 1);
}

proptest! {
    #![proptest_config(cases(64))]

    /// A model of packets: each incarnation of a node sends while peers see it, and each peer sends
    /// to the incarnation that it sees. No packet of one incarnation arrives in another.
    #[test]
    fn no_packet_of_an_incarnation_arrives_in_another(
        steps in proptest::collection::vec(1_u64..150, 1..40),
        period in prop_oneof![Just(0_u64), Just(16), Just(64)],
        flight in 0..=DRAIN,
    ) {
        let mut presence = Presence::new(1, DRAIN, period);
        let mut own = None;
        let mut changes = steps.iter().scan(0, |time, step| { *time += step; Some(*time) }).peekable();
        let end = steps.iter().sum::<u64>() + 6 * DRAIN;

        // Packets in flight by their time of arrival. A packet to the node has the generation that
        // the peer saw when it left, and a packet to the peer has that of its sender.
        let mut to_node = BTreeMap::new();
        let mut to_peer = BTreeMap::new();
        let mut last = None;
        for now in 0..end {
            if changes.next_if_eq(&now).is_some() {
                own = match own {
                    None => Some(presence.join(0, Nanos(now)).unwrap().0),
                    Some(_) => { presence.leave(0, Nanos(now)).unwrap(); None }
                };
            }

            let visible = presence.generation(0, Nanos(now));
            prop_assert!(visible.is_none() || last <= visible, "generations go backwards");
            last = last.max(visible);

            if let Some(sent_to) = to_node.remove(&now) && let Some(own) = own && Some(own) == visible {
                prop_assert_eq!(sent_to, own, "a packet to an earlier incarnation");
            }
            if let Some(sent_by) = to_peer.remove(&now) {
                prop_assert_eq!(Some(sent_by), visible, "a packet of an incarnation that is not visible");
            }

            if let Some(visible) = visible {
                to_node.insert(now + flight, visible);
            }
            if let Some(own) = own && Some(own) == visible {
                to_peer.insert(now + flight, own);
            }
        }
    }
}
