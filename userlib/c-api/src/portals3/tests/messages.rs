//! Messages, and the objects that they use.

use super::*;

#[test]
fn descriptors_with_other_memory_or_invalid_values_are_illegal() {
    let session = Session::new();
    let (process, other_process) = (session.process(PTL_IFACE_DEFAULT), session.process(PTL_IFACE_DEFAULT));
    let valid = process.md(0);
    let mut unallocated = [0_u8; 64];
    let code = |md| process.try_bind(md, PTL_RETAIN).err();

    assert_eq!(code(valid), None);
    assert_eq!(
        code(ptl_md_t { start: unallocated.as_mut_ptr().cast(), length: 64, ..valid }),
        Some(PTL_MD_ILLEGAL)
    );
    assert_eq!(code(ptl_md_t { start: null_mut(), ..valid }), Some(PTL_MD_ILLEGAL));
    assert_eq!(code(ptl_md_t { start: other_process.memory, ..valid }), Some(PTL_MD_ILLEGAL));
    assert_eq!(code(ptl_md_t { length: u64::MAX, ..valid }), Some(PTL_MD_ILLEGAL));
    assert_eq!(code(ptl_md_t { threshold: -2, ..valid }), Some(PTL_MD_ILLEGAL));
    assert_eq!(code(ptl_md_t { options: PTL_MD_IOVEC, ..valid }), Some(PTL_MD_ILLEGAL));
    assert_eq!(code(ptl_md_t { eq_handle: other_process.queue, ..valid }), Some(PTL_MD_ILLEGAL));
    assert_eq!(code(ptl_md_t { eq_handle: 0, ..valid }), Some(PTL_EQ_INVALID));
    assert_eq!(code(ptl_md_t { start: null_mut(), length: 0, ..valid }), None);
}

#[test]
fn a_put_reaches_the_memory_of_the_other_process() {
    for kind in KINDS {
        let session = Session::new();
        let (sender, receiver) = (session.process(kind), session.process(kind));
        let entry = receiver.entry(PTL_UNLINK);
        let descriptor = receiver.attach(entry, receiver.md(PTL_MD_OP_PUT));
        sender.write(5);
        let from = sender.try_bind(ptl_md_t { threshold: 2, ..sender.md(0) }, PTL_UNLINK).unwrap();
        assert_eq!(sender.put(from, 100, receiver.id), PTL_OK, "{}", last_text());

        let end = receiver.event(PTL_EVENT_PUT_END);
        assert_eq!((end.initiator, end.ni_fail_type), (sender.id, PTL_NI_OK));
        assert_eq!((end.rlength, end.mlength, end.offset, end.hdr_data), (100, 100, 0, HEADER_DATA));
        assert_eq!((end.md_handle, end.md.user_ptr, end.md.length), (descriptor, receiver.memory, BYTES));
        assert_eq!((receiver.byte(99), receiver.byte(100)), (5, 0));

        let unlink = receiver.event(PTL_EVENT_UNLINK);
        assert_eq!((unlink.md_handle, unlink.link), (descriptor, end.link));
        assert_eq!((is_valid(descriptor), is_valid(entry)), (false, false));
        assert_eq!((PtlMDUnlink(descriptor), PtlMEUnlink(entry)), (PTL_MD_INVALID, PTL_ME_INVALID));

        let ack = sender.event(PTL_EVENT_ACK);
        assert_eq!((ack.initiator, ack.mlength, ack.md_handle), (sender.id, 100, from));
    }
}

#[test]
fn a_get_fetches_the_memory_of_the_other_process() {
    for kind in KINDS {
        let session = Session::new();
        let (reader, owner) = (session.process(kind), session.process(kind));
        let entry = owner.entry(PTL_RETAIN);
        owner.attach(entry, owner.md(PTL_MD_OP_GET | PTL_MD_MANAGE_REMOTE));
        owner.write(9);
        let into = reader.try_bind(reader.md(0), PTL_RETAIN).unwrap();
        assert_eq!(PtlGetRegion(into, 64, 32, owner.id, PORTAL, 0, BITS, 8), PTL_OK, "{}", last_text());

        let reply = reader.event(PTL_EVENT_REPLY_END);
        assert_eq!((reply.initiator, reply.mlength, reply.md_handle), (reader.id, 32, into));
        assert_eq!([reader.byte(63), reader.byte(64), reader.byte(95), reader.byte(96)], [0, 9, 9, 0]);
        assert_eq!(owner.event(PTL_EVENT_GET_END).offset, 8);
        assert_eq!(owner.event(PTL_EVENT_UNLINK).initiator, reader.id);
        assert!(is_valid(entry));
    }
}

#[test]
fn a_post_with_a_queue_that_is_not_empty_changes_nothing() {
    let session = Session::new();
    let (sender, receiver) = (session.process(PTL_IFACE_DEFAULT), session.process(PTL_IFACE_DEFAULT));
    let base = receiver.entry(PTL_RETAIN);
    let post = |md: ptl_md_t| {
        let (mut entry, mut descriptor) = (PTL_INVALID_HANDLE, PTL_INVALID_HANDLE);
        let Process { interface, queue, .. } = receiver;
        let code = call!(PtlPost(
            interface,
            base,
            ANYONE,
            BITS,
            0,
            PTL_UNLINK,
            PTL_INS_BEFORE,
            md,
            PTL_UNLINK,
            &raw mut entry,
            &raw mut descriptor,
            queue,
        ));
        (code, entry, descriptor)
    };

    let (code, entry, descriptor) = post(receiver.md(PTL_MD_OP_PUT));
    assert_eq!((code, is_valid(entry), is_valid(descriptor)), (PTL_OK, true, true), "{}", last_text());
    let from = sender.try_bind(sender.md(0), PTL_RETAIN).unwrap();
    assert_eq!(sender.put(from, 8, receiver.id), PTL_OK);
    sender.event(PTL_EVENT_SEND_END);

    assert_eq!(post(receiver.md(PTL_MD_OP_PUT)), (PTL_MD_NO_UPDATE, PTL_INVALID_HANDLE, PTL_INVALID_HANDLE));
    receiver.event(PTL_EVENT_UNLINK);
    assert_eq!(post(receiver.md(PTL_MD_OP_PUT)).0, PTL_OK);
    assert_eq!(post(ptl_md_t { start: null_mut(), ..receiver.md(0) }).0, PTL_MD_ILLEGAL);
}

#[test]
fn an_update_stores_the_old_values_and_sets_the_new_ones() {
    let session = Session::new();
    let process = session.process(PTL_IFACE_DEFAULT);
    let descriptor = process.try_bind(process.md(0), PTL_RETAIN).unwrap();
    let (mut old, new) = (process.md(0), ptl_md_t { length: 10, threshold: 5, ..process.md(0) });
    let update =
        |old: *mut ptl_md_t, new: *const ptl_md_t, queue| call!(PtlMDUpdate(descriptor, old, new, queue));

    assert_eq!(update(null_mut(), &raw const new, process.queue), PTL_OK, "{}", last_text());
    assert_eq!(update(&raw mut old, null(), PTL_EQ_NONE), PTL_OK);
    assert_eq!((old.length, old.threshold, old.start), (10, 5, process.memory));
    assert_eq!(process.put(descriptor, 11, process.id), PTL_MD_ILLEGAL);
    assert_eq!(update(null_mut(), &raw const new, process.interface), PTL_EQ_INVALID);
}

#[test]
fn a_descriptor_without_a_queue_becomes_invalid_when_it_is_unlinked() {
    let session = Session::new();
    let (sender, receiver) = (session.process(PTL_IFACE_DEFAULT), session.process(PTL_IFACE_DEFAULT));
    let entry = receiver.entry(PTL_RETAIN);
    receiver.attach(entry, ptl_md_t { threshold: PTL_MD_THRESH_INF, ..receiver.md(PTL_MD_OP_PUT) });
    let without_queue = ptl_md_t { eq_handle: PTL_EQ_NONE, ..sender.md(0) };
    let from = sender.try_bind(without_queue, PTL_UNLINK).unwrap();
    assert_eq!(sender.put(from, 8, receiver.id), PTL_OK);
    receiver.event(PTL_EVENT_PUT_END);

    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while is_valid(from) {
        assert!(std::time::Instant::now() < deadline, "the handle stays valid");
        // A call that makes a descriptor retires the handles of unlinked ones.
        let other = sender.try_bind(without_queue, PTL_RETAIN).unwrap();
        assert_eq!(PtlMDUnlink(other), PTL_OK);
    }
    let (mut event, queue) = (empty_event(), sender.queue);
    assert_eq!(call!(PtlEQGet(queue, &raw mut event)), PTL_EQ_EMPTY);
}

#[test]
fn a_late_unlink_event_leaves_the_next_descriptor_of_the_entry() {
    let session = Session::new();
    let (sender, receiver) = (session.process(PTL_IFACE_DEFAULT), session.process(PTL_IFACE_DEFAULT));
    let entry = receiver.entry(PTL_RETAIN);
    let first = receiver.attach(entry, receiver.md(PTL_MD_OP_PUT));
    let from = sender.try_bind(ptl_md_t { threshold: 2, ..sender.md(0) }, PTL_RETAIN).unwrap();
    assert_eq!(sender.put(from, 8, receiver.id), PTL_OK, "{}", last_text());
    sender.event(PTL_EVENT_ACK);

    // The first descriptor is unlinked, but its event has not been read.
    let second = receiver.attach(entry, receiver.md(PTL_MD_OP_PUT));
    assert_eq!(receiver.event(PTL_EVENT_UNLINK).md_handle, first);
    assert_eq!((is_valid(first), is_valid(second)), (false, true));

    assert_eq!(PtlMEUnlink(entry), PTL_OK, "{}", last_text());
    assert_eq!((is_valid(entry), is_valid(second)), (false, false));
}

#[test]
fn lost_events_are_reported_with_the_next_one() {
    let session = Session::new();
    let process = session.process(PTL_IFACE_DEFAULT);
    let (mut small, mut event) = (PTL_INVALID_HANDLE, empty_event());
    assert_eq!(call!(PtlEQAlloc(process.interface, 1, None, &raw mut small)), PTL_OK);
    let entry = process.entry(PTL_RETAIN);
    process.attach(
        entry,
        ptl_md_t { threshold: PTL_MD_THRESH_INF, eq_handle: small, ..process.md(PTL_MD_OP_PUT) },
    );
    let md = ptl_md_t { threshold: PTL_MD_THRESH_INF, ..process.md(0) };
    let from = process.try_bind(md, PTL_RETAIN).unwrap();
    for _ in 0..8 {
        assert_eq!(process.put(from, 8, process.id), PTL_OK);
        process.event(PTL_EVENT_ACK);
    }

    assert_eq!(call!(PtlEQWait(small, &raw mut event)), PTL_EQ_DROPPED);
    assert_eq!(event.r#type, PTL_EVENT_PUT_END);
}

#[test]
fn puts_of_two_threads_at_the_same_time_are_all_acknowledged() {
    const ROUNDS: usize = 200;
    for kind in KINDS {
        let session = Session::new();
        let (sender, receiver) = (session.process(kind), session.process(kind));
        let entry = receiver.entry(PTL_RETAIN);
        let md = ptl_md_t { threshold: PTL_MD_THRESH_INF, eq_handle: PTL_EQ_NONE, ..receiver.md(0) };
        let takes_all = PTL_MD_OP_PUT | PTL_MD_MANAGE_REMOTE;
        receiver.attach(entry, ptl_md_t { options: takes_all, ..md });

        let (interface, to, length) = (sender.interface, receiver.id, BYTES);
        let start = sender.memory.expose_provenance();
        let send = move || {
            let start = std::ptr::with_exposed_provenance_mut(start);
            let (mut queue, mut descriptor) = (PTL_INVALID_HANDLE, PTL_INVALID_HANDLE);
            assert_eq!(call!(PtlEQAlloc(interface, 64, None, &raw mut queue)), PTL_OK);
            for _ in 0..ROUNDS {
                let (threshold, max_size, options) = (2, 0, PTL_MD_EVENT_START_DISABLE);
                let (user_ptr, eq_handle) = (null_mut(), queue);
                let md = ptl_md_t { start, length, threshold, max_size, options, user_ptr, eq_handle };
                assert_eq!(call!(PtlMDBind(interface, md, PTL_UNLINK, &raw mut descriptor)), PTL_OK);
                assert_eq!(PtlPut(descriptor, PTL_ACK_REQ, to, PORTAL, 0, BITS, 0, 0), PTL_OK);
                while next(queue).r#type != PTL_EVENT_UNLINK {}
                assert!(!is_valid(descriptor));
            }
        };
        let threads = [std::thread::spawn(send), std::thread::spawn(send)];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn a_poll_accepts_queues_of_one_interface_only() {
    let session = Session::new();
    let (first, second) = (session.process(PTL_IFACE_DEFAULT), session.process(PTL_IFACE_DEFAULT));
    let (queues, mut event, mut which) = ([first.queue, second.queue], empty_event(), 0);
    let mut poll = |count| call!(PtlEQPoll(queues.as_ptr(), count, 0, &raw mut event, &raw mut which));

    assert_eq!([poll(2), poll(0), poll(-1)], [PTL_EQ_INVALID; 3]);
    assert_eq!(poll(1), PTL_EQ_EMPTY);
    drop(session);
}
