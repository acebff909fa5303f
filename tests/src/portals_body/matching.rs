//! Match lists, descriptors and access control.

use nicforge_portals::{
    Access, Ack, Criteria, Descriptor, EventKind, Initiator, Options, Position, Refusal, Status, Target,
    Threshold, Unlink,
};
use nicforge_test_body::body;

use super::{BITS, MACHINE, PORTAL, in_both_modes};
use crate::{backing::Rig, pattern::pattern};

/// A message takes the first entry of the list that it matches, by bits and by initiator.
#[body]
pub fn messages_match_in_the_order_of_the_list(rig: &dyn Rig) {
    in_both_modes(rig, |local, remote, bench| {
        let (source, sink) = (local.region(4096), remote.region(4096));
        let from = local.bind(&source);
        let options = Options::PUT | Options::START_DISABLE;
        let mut posted = Vec::new();
        let mut post = |criteria| {
            let once = Descriptor {
                threshold: Threshold::Operations(1),
                user_pointer: posted.len() as u64,
                ..remote.over(&sink, options)
            };
            posted.push(remote.post_for(criteria, &once));
        };

        let outsider = Initiator { node: Some(1), process: None };
        post(Criteria { initiator: outsider, ..Criteria::ALL });
        post(Criteria::bits(5));
        post(Criteria { match_bits: 0x70, ignore_bits: 0xf, initiator: local.id().into() });
        post(Criteria::bits(5));
        post(Criteria { initiator: Initiator { node: None, process: Some(0) }, ..Criteria::ALL });

        for (bits, expected) in [(0x7a, 2), (5, 1), (5, 3), (99, 4)] {
            local.put(&from, (0, 8), &Target::new(remote.id(), PORTAL, bits));
            assert_eq!(bench.wait_for_event(remote).user_pointer, expected, "match bits {bits:#x}");
        }
        local.put(&from, (0, 8), &Target::new(remote.id(), PORTAL, 99));
        bench.wait_for_status(remote, Status::DropCount, 1);
    });
}

/// Entries are inserted at their positions.
#[body]
pub fn entries_are_inserted_before_and_after_others(rig: &dyn Rig) {
    in_both_modes(rig, |local, remote, bench| {
        let (source, sink) = (local.region(4096), remote.region(4096));
        let from = local.bind(&source);
        let attach = |position, number| {
            let entry = remote.interface.attach_entry(position, Criteria::ALL, Unlink::Automatic).unwrap();
            let once = Descriptor {
                threshold: Threshold::Operations(1),
                unlink: Unlink::Automatic,
                user_pointer: number,
                ..remote.over(&sink, Options::PUT | Options::START_DISABLE)
            };
            remote.interface.attach_descriptor(entry, &once).unwrap();
            let second_descriptor = remote.interface.attach_descriptor(entry, &once).unwrap_err();
            assert_eq!(second_descriptor.refusal(), Some(Refusal::EntryInUse));
            entry
        };

        let third = attach(Position::Tail(PORTAL), 3);
        let first = attach(Position::Head(PORTAL), 1);
        attach(Position::After(third), 5);
        attach(Position::Before(third), 2);
        attach(Position::After(third), 4);
        for number in 1..=5 {
            local.put(&from, (0, 8), &Target::new(remote.id(), PORTAL, number));
            let events = bench.wait_for_events(remote, &[EventKind::PutEnd, EventKind::Unlink]);
            assert_eq!((events[0].user_pointer, events[0].unlinked), (number, true));
        }

        let unlinked = remote.interface.unlink_entry(first).unwrap_err();
        assert_eq!(unlinked.refusal(), Some(Refusal::Entry));
    });
}

/// A message that is too long is truncated, or continues to the next entry.
#[body]
pub fn messages_are_truncated_only_where_allowed(rig: &dyn Rig) {
    in_both_modes(rig, |local, remote, bench| {
        let (source, sink) = (local.region(8192), remote.region(8192));
        source.write(0, &pattern(3, 8192)).unwrap();
        let from = local.bind(&source);
        let exact = Descriptor { length: 99, ..remote.over(&sink, Options::PUT | Options::MANAGE_REMOTE) };
        remote.post(&exact);
        let truncating = Options::PUT | Options::MANAGE_REMOTE | Options::TRUNCATE;
        remote.post(&Descriptor {
            offset: 1000,
            length: 77,
            user_pointer: 1,
            ..remote.over(&sink, truncating)
        });

        for (length, offset, moved, number) in
            [(99, 0, 99, 0), (100, 0, 77, 1), (12, 70, 12, 0), (40, 70, 7, 1)]
        {
            let target = Target { offset, ..Target::new(remote.id(), PORTAL, BITS) };
            local.put(&from, (0, length), &target);
            let events = bench.wait_for_events(remote, &[EventKind::PutStart, EventKind::PutEnd]);
            let message = events[1].message;
            assert_eq!((message.requested, message.moved), (length as u32, moved));
            assert_eq!((message.offset, events[1].user_pointer), (offset, number));
        }

        let mut sentinel = [0; 16];
        sink.read(1077, &mut sentinel).unwrap();
        assert_eq!(sentinel, [0; 16], "nothing lies behind a truncated message");
    });
}

/// Messages follow each other in a locally managed descriptor until it is used up.
#[body]
pub fn a_locally_managed_descriptor_is_filled_and_unlinked(rig: &dyn Rig) {
    in_both_modes(rig, |local, remote, bench| {
        let (source, sink) = (local.region(4096), remote.region(4096));
        let bytes = pattern(5, 4096);
        source.write(0, &bytes).unwrap();
        let from = local.bind(&source);
        let options = Options::PUT | Options::START_DISABLE;
        for start in [0, 2048] {
            remote.post(&Descriptor {
                offset: start,
                length: 1000,
                max_size: Some(300),
                unlink: Unlink::Automatic,
                user_pointer: start,
                ..remote.over(&sink, options)
            });
        }

        let (mut sent, mut at) = (0, [0; 2]);
        for length in [300, 200, 220, 8, 290, 300, 150] {
            local.put(&from, (sent, length), &Target::new(remote.id(), PORTAL, BITS));
            let event = bench.wait_for_event(remote);
            let which = usize::from(event.user_pointer != 0);
            assert_eq!((event.kind, event.message.offset), (EventKind::PutEnd, at[which]));
            let mut arrived = vec![0; length as usize];
            sink.read(event.user_pointer + at[which], &mut arrived).unwrap();
            assert_eq!(arrived, bytes[sent as usize..][..length as usize]);

            at[which] += length;
            sent += length;
            let is_full = at[which] > 700;
            assert_eq!(event.unlinked, is_full);
            if is_full {
                assert_eq!(bench.wait_for_event(remote).kind, EventKind::Unlink);
            }
        }
        assert_eq!(at, [720, 748]);
    });
}

/// A threshold counts puts, gets and acknowledgements, and ends with the unlink event.
#[body]
pub fn thresholds_count_operations_and_unlink(rig: &dyn Rig) {
    in_both_modes(rig, |local, remote, bench| {
        let (source, sink) = (local.region(4096), remote.region(4096));
        remote.post(&remote.over(&sink, Options::PUT | Options::GET | Options::MANAGE_REMOTE));
        let target = Target::new(remote.id(), PORTAL, BITS);
        let bound = |operations| {
            let values = Descriptor {
                threshold: Threshold::Operations(operations),
                unlink: Unlink::Automatic,
                ..local.over(&source, Options::empty())
            };
            local.interface.bind_descriptor(&values).unwrap()
        };

        let second = bound(2);
        local.interface.put_region(&second, 0, 100, Ack::Requested, &target, 0).unwrap();
        let kinds = [EventKind::SendStart, EventKind::SendEnd, EventKind::Ack, EventKind::Unlink];
        assert_eq!(bench.wait_for_events(local, &kinds)[3].kind, EventKind::Unlink);
        let unlinked = local.interface.put_region(&second, 0, 8, Ack::No, &target, 0).unwrap_err();
        assert_eq!(unlinked.refusal(), Some(Refusal::Descriptor));

        let first = bound(1);
        local.interface.get_region(&first, 0, 100, &target).unwrap();
        let kinds = [EventKind::ReplyStart, EventKind::ReplyEnd, EventKind::Unlink];
        assert_eq!(bench.wait_for_events(local, &kinds)[2].kind, EventKind::Unlink);
        assert_eq!(
            local.interface.unlink_descriptor(&first).unwrap_err().refusal(),
            Some(Refusal::Descriptor)
        );
    });
}

/// Access control entries permit initiators and portals, and violations are counted.
#[body]
pub fn access_control_permits_and_refuses(rig: &dyn Rig) {
    in_both_modes(rig, |local, remote, bench| {
        let (source, sink) = (local.region(4096), remote.region(4096));
        let from = local.bind(&source);
        remote.post(&remote.over(&sink, Options::PUT | Options::MANAGE_REMOTE | Options::START_DISABLE));
        let put = |access| {
            local.put(&from, (0, 8), &Target { access, ..Target::new(remote.id(), PORTAL, BITS) });
        };

        put(0);
        assert_eq!(bench.wait_for_event(remote).kind, EventKind::PutEnd);
        put(1);
        bench.wait_for_status(remote, Status::PermissionViolations, 1);
        remote
            .interface
            .set_access(1, Access { initiator: local.id().into(), portal: Some(PORTAL) })
            .unwrap();
        put(1);
        assert_eq!(bench.wait_for_event(remote).kind, EventKind::PutEnd);
        remote.interface.set_access(0, Access { initiator: remote.id().into(), portal: None }).unwrap();
        put(0);
        bench.wait_for_status(remote, Status::PermissionViolations, 2);
        assert_eq!(remote.interface.status(Status::DropCount).unwrap(), 0);

        let no_access = Access { initiator: Initiator::ANY, portal: None };
        assert_eq!(remote.interface.set_access(8, no_access).unwrap_err().refusal(), Some(Refusal::Access));
    });
}

/// An update and a post change nothing while the tested queue has an event.
#[body]
pub fn updates_and_posts_test_a_queue(rig: &dyn Rig) {
    in_both_modes(rig, |local, remote, bench| {
        let (source, sink) = (local.region(4096), remote.region(4096));
        let from = local.bind(&source);
        let unexpected =
            Descriptor { user_pointer: 1, ..remote.over(&sink, Options::PUT | Options::MANAGE_REMOTE) };
        let catch_all =
            remote.interface.attach_entry(Position::Tail(PORTAL), Criteria::ALL, Unlink::Retain).unwrap();
        remote.interface.attach_descriptor(catch_all, &unexpected).unwrap();
        let expected = remote.interface.allocate_queue(16).unwrap();
        let receive = Descriptor {
            threshold: Threshold::Operations(1),
            unlink: Unlink::Automatic,
            queue: Some(&expected),
            user_pointer: 2,
            ..remote.over(&sink, Options::PUT)
        };
        let position = Position::Before(catch_all);
        let post = |values: &Descriptor<'_>| {
            let posted = remote.interface.post(
                position,
                Criteria::bits(BITS),
                Unlink::Automatic,
                values,
                Some(&remote.queue),
            );
            posted.unwrap().map(|(_, descriptor)| descriptor)
        };

        local.put(&from, (0, 64), &Target::new(remote.id(), PORTAL, BITS));
        bench.wait_for_events(local, &[EventKind::SendStart, EventKind::SendEnd]);
        let first = bench.wait_for_event(remote);
        assert!(post(&receive).is_none(), "the tested queue still has the end of the unexpected message");
        let second = bench.wait_for_event(remote);
        assert_eq!([first.kind, second.kind], [EventKind::PutStart, EventKind::PutEnd]);
        assert_eq!([first.user_pointer, second.user_pointer], [1, 1]);

        let mut posted = post(&Descriptor { threshold: Threshold::Operations(0), ..receive }).unwrap();
        let is_updated = remote.interface.update_descriptor(&mut posted, &receive, Some(&remote.queue));
        assert_eq!(is_updated, Ok(true));
        local.put(&from, (0, 64), &Target::new(remote.id(), PORTAL, BITS));
        assert_eq!(bench.wait_for_event_in(&expected).user_pointer, 2);
    });
}
