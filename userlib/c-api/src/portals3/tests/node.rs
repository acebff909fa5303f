//! The library, its node and interfaces: beginnings, ends, and arguments that are refused.

use super::*;

#[test]
fn calls_before_initialisation_give_no_init() {
    let _exclusive = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut handle, mut event) = (0, empty_event());

    let codes = [
        call!(PtlNIInit(PTL_IFACE_DEFAULT, PTL_PID_ANY, null(), null_mut(), &raw mut handle)),
        PtlNIFini(1),
        call!(PtlNIHandle(1, &raw mut handle)),
        call!(PtlEQGet(1, &raw mut event)),
        PtlMDUnlink(1),
        PtlPut(1, PTL_ACK_REQ, ANYONE, 0, 0, 0, 0, 0),
        nicforge_portals_grant(0),
    ];
    assert_eq!(codes, [PTL_NO_INIT; 7]);
    assert!(nicforge_portals_allocate(1, 1).is_null());
}

#[test]
fn opening_an_absent_node_fails_with_a_message() {
    let _exclusive = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (socket, mut count) = (c"/nonexistent/socket".as_ptr(), 0);

    let code = call!(nicforge_portals_init(socket, &raw const socket, 1, &raw mut count));
    assert_eq!((code, last_text().is_empty()), (PTL_FAIL, false));
    assert_eq!(call!(nicforge_portals_init(null(), null(), 1, &raw mut count)), PTL_SEGV);
    assert_eq!(call!(nicforge_portals_init(socket, null(), 1, &raw mut count)), PTL_SEGV);
    assert_eq!(call!(PtlInit(null_mut())), PTL_SEGV);
}

#[test]
fn granted_processes_are_used_without_a_kernel() {
    let exclusive = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (machine, kernel) = node_with_kernel();
    (0..2).for_each(|process| kernel.grant(process).unwrap());

    let session = Session::of(machine, false, exclusive);
    let mut handle = PTL_INVALID_HANDLE;
    let host_based = NICFORGE_PORTALS_IFACE_HOST_BASED;
    let opened = call!(PtlNIInit(host_based, PTL_PID_ANY, null(), null_mut(), &raw mut handle));
    assert_eq!((opened, nicforge_portals_grant(0)), (PTL_IFACE_INVALID, PTL_FAIL));

    let (from, to) = (session.process(PTL_IFACE_DEFAULT), session.process(PTL_IFACE_DEFAULT));
    let entry = to.entry(PTL_UNLINK);
    to.attach(entry, to.md(PTL_MD_OP_PUT));
    from.write(0x5a);
    let source = from.try_bind(ptl_md_t { threshold: 2, ..from.md(0) }, PTL_UNLINK).unwrap();
    assert_eq!(from.put(source, BYTES, to.id), PTL_OK, "{}", last_text());
    assert_eq!(to.event(PTL_EVENT_PUT_END).mlength, BYTES);
    assert_eq!((to.byte(0), to.byte(BYTES as usize - 1)), (0x5a, 0x5a));
}

#[test]
fn opening_any_process_opens_the_first_one_that_is_granted() {
    let exclusive = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (machine, kernel) = node_with_kernel();
    kernel.grant(1).unwrap();
    let session = Session::of(machine, false, exclusive);

    // Process 0 is not granted, and a wait for it would end with the deadline.
    assert_eq!(session.process(PTL_IFACE_DEFAULT).id.pid, 1);
    let granting = std::thread::spawn(move || {
        kernel.grant(0).unwrap();
        kernel
    });
    assert_eq!(session.process(PTL_IFACE_DEFAULT).id.pid, 0);
    let _kernel = granting.join().unwrap();
}

#[test]
fn the_kernels_program_grants_processes() {
    let session = Session::new();
    assert_eq!(nicforge_portals_grant(1), PTL_OK, "{}", last_text());

    // The granted process is not free any more, for this program either.
    let process = session.process(PTL_IFACE_DEFAULT);
    assert_eq!((process.id.pid, nicforge_portals_grant(2)), (0, PTL_PID_INVALID));
    assert_eq!(nicforge_portals_grant(0), PTL_PID_INVALID);
}

#[test]
fn null_pointers_give_segv() {
    let session = Session::new();
    let process = session.process(PTL_IFACE_DEFAULT);
    let Process { interface, queue, id, .. } = process;
    let entry = process.entry(PTL_RETAIN);

    let codes = [
        call!(PtlNIInit(PTL_IFACE_DEFAULT, PTL_PID_ANY, null(), null_mut(), null_mut())),
        call!(PtlNIStatus(interface, PTL_SR_DROP_COUNT, null_mut())),
        call!(PtlNIDist(interface, id, null_mut())),
        call!(PtlNIHandle(interface, null_mut())),
        call!(PtlGetId(interface, null_mut())),
        call!(PtlMEAttach(interface, 0, ANYONE, 0, 0, 0, 0, null_mut())),
        call!(PtlMEInsert(entry, ANYONE, 0, 0, 0, 0, null_mut())),
        call!(PtlMDAttach(entry, process.md(0), 0, null_mut())),
        call!(PtlMDBind(interface, process.md(0), 0, null_mut())),
        call!(PtlEQAlloc(interface, 1, None, null_mut())),
        call!(PtlEQGet(queue, null_mut())),
        call!(PtlEQWait(queue, null_mut())),
        call!(PtlEQPoll(null(), 1, 0, null_mut(), null_mut())),
    ];
    assert_eq!(codes, [PTL_SEGV; 13]);
}

#[test]
fn wrong_arguments_give_the_standards_codes() {
    let session = Session::new();
    let process = session.process(PTL_IFACE_DEFAULT);
    let Process { interface, queue, id, .. } = process;
    let (mut handle, mut value, mut distance) = (0, 0, 0);
    let out = &raw mut handle;
    let open = |kind, pid| call!(PtlNIInit(kind, pid, null(), null_mut(), out));
    let attach =
        |portal, id, position| call!(PtlMEAttach(interface, portal, id, 0, 0, PTL_RETAIN, position, out));

    assert_eq!(open(2, PTL_PID_ANY), PTL_IFACE_INVALID);
    assert_eq!([open(0, id.pid), open(0, 2), open(0, 1 << 20)], [PTL_PID_INVALID; 3]);
    assert_eq!([attach(64, ANYONE, 0), attach(255, ANYONE, 0)], [PTL_PT_INDEX_INVALID; 2]);
    let attach_for = |nid, pid| attach(0, ptl_process_id_t { nid, pid }, PTL_INS_AFTER);
    assert_eq!([attach_for(2, 0), attach_for(0, 0xffff), attach_for(0, 1 << 16)], [PTL_PROCESS_INVALID; 3]);
    assert_eq!(attach(0, ANYONE, 2), PTL_FAIL);

    assert_eq!(call!(PtlNIStatus(interface, 1, &raw mut value)), PTL_SR_INDEX_INVALID);
    let missing_node = ptl_process_id_t { nid: 2, pid: 0 };
    assert_eq!(call!(PtlNIDist(interface, missing_node, &raw mut distance)), PTL_PROCESS_INVALID);
    let access = |index, portal, user| PtlACEntry(interface, index, ANYONE, user, PTL_JID_ANY, portal);
    assert_eq!(access(1, PTL_PT_INDEX_ANY, PTL_UID_ANY), PTL_OK);
    assert_eq!(access(8, PTL_PT_INDEX_ANY, PTL_UID_ANY), PTL_AC_INDEX_INVALID);
    assert_eq!(access(1, 64, PTL_UID_ANY), PTL_PT_INDEX_INVALID);
    assert_eq!(access(1, PTL_PT_INDEX_ANY, 1), PTL_FAIL);

    assert_eq!(call!(PtlEQAlloc(interface, 1 << 16, None, out)), PTL_NO_SPACE);
    assert_eq!(call!(PtlNIHandle(PTL_EQ_NONE, out)), PTL_HANDLE_INVALID);
    let codes = [PtlNIFini(queue), PtlEQFree(interface), PtlMEUnlink(PTL_HANDLE_NONE), PtlMDUnlink(0)];
    assert_eq!(codes, [PTL_NI_INVALID, PTL_EQ_INVALID, PTL_ME_INVALID, PTL_MD_INVALID]);
}

#[test]
fn closing_an_interface_ends_its_handles_and_waits() {
    let session = Session::new();
    let process = session.process(PTL_IFACE_DEFAULT);
    let entry = process.entry(PTL_RETAIN);
    let descriptor = process.try_bind(process.md(0), PTL_RETAIN).unwrap();
    let queue = process.queue;
    let waiting = std::thread::spawn(move || {
        let mut event = empty_event();
        call!(PtlEQWait(queue, &raw mut event))
    });

    assert_eq!(PtlNIFini(process.interface), PTL_OK);
    assert_eq!(waiting.join().unwrap(), PTL_EQ_INVALID);
    let handles = [process.interface, queue, entry, descriptor];
    assert_eq!(handles.map(is_valid), [false; 4]);
    assert_eq!(process.put(descriptor, 1, process.id), PTL_MD_INVALID);

    // The process can be opened again, under other handles.
    let reopened = session.process(NICFORGE_PORTALS_IFACE_HOST_BASED);
    assert_eq!((reopened.id, is_valid(process.interface)), (process.id, false));
}

#[test]
fn the_last_end_of_nested_initialisations_ends_the_library() {
    let session = Session::new();
    let mut count = 0;
    assert_eq!((call!(PtlInit(&raw mut count)), count), (PTL_OK, 2));
    PtlFini();
    let process = session.process(PTL_IFACE_DEFAULT);
    assert!(is_valid(process.interface));
    drop(session);

    let _exclusive = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(PtlNIFini(process.interface), PTL_NO_INIT);
}

#[test]
fn limits_are_those_of_the_mode() {
    let session = Session::new();
    let (mut limits, mut interface) = (ptl_ni_limits_t::default(), 0);
    for (kind, entries) in KINDS.into_iter().zip([4096, 16_384]) {
        let opened = call!(PtlNIInit(kind, PTL_PID_ANY, null(), &raw mut limits, &raw mut interface));
        assert_eq!((opened, limits.max_mes, limits.max_pt_index), (PTL_OK, entries, 63));
    }
    let full = call!(PtlNIInit(0, PTL_PID_ANY, null(), null_mut(), &raw mut interface));
    assert_eq!(full, PTL_PID_INVALID);
    drop(session);
}
