//! Tests of the C API from Rust: two processes of a node, in this process.
#![allow(unsafe_code, reason = "the functions of a C API are called")]

use std::{
    ffi::{CStr, c_int, c_void},
    ptr::{null, null_mut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nicforge_driver::Device;
use nicforge_machine::{build::build, description::parse, in_process::LocalMachine};
use nicforge_nics::families;
use nicforge_portals::{Kernel, KernelConfig};

use super::{library::Node, *};
use crate::support::Failure;

/// The library is one for the whole process, so one test at a time uses it.
static TURN: Mutex<()> = Mutex::new(());

const BYTES: u64 = 4096;
const PORTAL: u32 = 4;
const BITS: u64 = 0x1234_5678_9abc_def0;
const WAIT_MS: u32 = 60_000;
const ANYONE: ptl_process_id_t = ptl_process_id_t { nid: PTL_NID_ANY, pid: PTL_PID_ANY };
const KINDS: [ptl_interface_t; 2] = [PTL_IFACE_DEFAULT, NICFORGE_PORTALS_IFACE_HOST_BASED];

/// Calls a function of the API.
macro_rules! call {
    ($call:expr) => {{
        // SAFETY: all pointers are NULL where that is allowed, or refer to variables of the test.
        unsafe { $call }
    }};
}

/// The node of a machine in this process.
struct LocalNode {
    machine: Arc<LocalMachine>,
    has_kernel: bool,
}

impl LocalNode {
    fn open(&self, attachment: &str) -> Result<Device, Failure> {
        Ok(Device::from_backing(self.machine.open_named("ss0", attachment).unwrap()).unwrap())
    }
}

impl Node for LocalNode {
    fn open_kernel(&self) -> Result<Option<Device>, Failure> {
        self.has_kernel.then(|| self.open("kernel")).transpose()
    }

    fn open_process(&self, process: usize) -> Result<Device, Failure> {
        self.open(&format!("p{process}"))
    }

    fn processes(&self) -> usize {
        2
    }
}

/// Makes a machine of two nodes with two processes each.
fn machine() -> Arc<LocalMachine> {
    let text = "name = \"node\"\n[[seastar]]\ntorus = [2]\nprocesses = 2\n";
    LocalMachine::new(build(&parse(text, "node.toml", &families()).unwrap()).unwrap().0)
}

/// Makes a machine, and boots its first node.
fn node_with_kernel() -> (Arc<LocalMachine>, Arc<Kernel>) {
    let machine = machine();
    let device = Device::from_backing(machine.open_named("ss0", "kernel").unwrap()).unwrap();
    let kernel = Kernel::boot(device, KernelConfig::default()).unwrap();
    (machine, kernel)
}

/// The initialised library.
struct Session {
    _turn: MutexGuard<'static, ()>,
}

impl Session {
    fn new() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Self::of(machine(), true, turn)
    }

    /// Initialises the library on a node, with its kernel or without.
    fn of(machine: Arc<LocalMachine>, has_kernel: bool, turn: MutexGuard<'static, ()>) -> Self {
        let node = Arc::new(LocalNode { machine, has_kernel }) as Arc<dyn Node>;
        assert_eq!(library::init(|| Ok(node)).map_err(|failure| failure.errno()), Ok(2));
        Self { _turn: turn }
    }

    /// Opens the first free process.
    fn process(&self, kind: ptl_interface_t) -> Process {
        let (mut interface, mut queue) = (PTL_INVALID_HANDLE, PTL_INVALID_HANDLE);
        let opened = call!(PtlNIInit(kind, PTL_PID_ANY, null(), null_mut(), &raw mut interface));
        assert_eq!(opened, PTL_OK, "{}", last_text());
        assert_eq!(call!(PtlEQAlloc(interface, 64, None, &raw mut queue)), PTL_OK);

        let mut id = ptl_process_id_t::default();
        assert_eq!(call!(PtlGetId(interface, &raw mut id)), PTL_OK);
        let memory = nicforge_portals_allocate(interface, BYTES);
        assert!(!memory.is_null());
        Process { interface, queue, id, memory }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        PtlFini();
    }
}

struct Process {
    interface: ptl_handle_ni_t,
    queue: ptl_handle_eq_t,
    id: ptl_process_id_t,
    memory: *mut c_void,
}

impl Process {
    /// A descriptor of all memory for one operation.
    fn md(&self, options: u32) -> ptl_md_t {
        ptl_md_t {
            start: self.memory,
            length: BYTES,
            threshold: 1,
            max_size: 0,
            options: options | PTL_MD_EVENT_START_DISABLE,
            user_ptr: self.memory,
            eq_handle: self.queue,
        }
    }

    fn entry(&self, unlink: ptl_unlink_t) -> ptl_handle_me_t {
        let mut entry = PTL_INVALID_HANDLE;
        let (interface, out) = (self.interface, &raw mut entry);
        let attached = call!(PtlMEAttach(interface, PORTAL, ANYONE, BITS, 0, unlink, PTL_INS_AFTER, out));
        assert_eq!(attached, PTL_OK, "{}", last_text());
        entry
    }

    fn attach(&self, entry: ptl_handle_me_t, md: ptl_md_t) -> ptl_handle_md_t {
        let mut descriptor = PTL_INVALID_HANDLE;
        assert_eq!(call!(PtlMDAttach(entry, md, PTL_UNLINK, &raw mut descriptor)), PTL_OK, "{}", last_text());
        descriptor
    }

    fn try_bind(&self, md: ptl_md_t, unlink: ptl_unlink_t) -> Result<ptl_handle_md_t, c_int> {
        let mut descriptor = PTL_INVALID_HANDLE;
        match call!(PtlMDBind(self.interface, md, unlink, &raw mut descriptor)) {
            PTL_OK => Ok(descriptor),
            code => Err(code),
        }
    }

    fn put(&self, from: ptl_handle_md_t, length: u64, to: ptl_process_id_t) -> c_int {
        PtlPutRegion(from, 0, length, PTL_ACK_REQ, to, PORTAL, 0, BITS, 0, 77)
    }

    /// Waits for events until one of this kind.
    fn event(&self, kind: ptl_event_kind_t) -> ptl_event_t {
        loop {
            let event = next(self.queue);
            if event.r#type == kind {
                return event;
            }
        }
    }

    fn write(&self, byte: u8) {
        // SAFETY: the memory has this length, and belongs to the interface, which is open.
        unsafe { self.memory.cast::<u8>().write_bytes(byte, BYTES as usize) };
    }

    fn byte(&self, at: usize) -> u8 {
        assert!(at < BYTES as usize);
        // SAFETY: the offset was checked.
        let byte = unsafe { self.memory.cast::<u8>().add(at) };
        // SAFETY: the memory belongs to the interface, which is open.
        unsafe { byte.read_volatile() }
    }
}

fn next(queue: ptl_handle_eq_t) -> ptl_event_t {
    let (mut event, mut which) = (empty_event(), -1);
    let code = call!(PtlEQPoll(&raw const queue, 1, WAIT_MS, &raw mut event, &raw mut which));
    assert_eq!((code, which), (PTL_OK, 0), "{}", last_text());
    event
}

fn empty_event() -> ptl_event_t {
    // SAFETY: an event consists of numbers and pointers, which may be 0.
    unsafe { std::mem::zeroed() }
}

fn last_text() -> String {
    // SAFETY: valid until this thread's next error.
    unsafe { CStr::from_ptr(nicforge_portals_last_error()) }.to_str().unwrap().to_owned()
}

fn is_valid(handle: ptl_handle_any_t) -> bool {
    let mut interface = 0;
    call!(PtlNIHandle(handle, &raw mut interface)) == PTL_OK
}

#[test]
fn calls_before_initialisation_give_no_init() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
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
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (socket, mut count) = (c"/nonexistent/socket".as_ptr(), 0);

    let code = call!(nicforge_portals_init(socket, &raw const socket, 1, &raw mut count));
    assert_eq!((code, last_text().is_empty()), (PTL_FAIL, false));
    assert_eq!(call!(nicforge_portals_init(null(), null(), 1, &raw mut count)), PTL_SEGV);
    assert_eq!(call!(nicforge_portals_init(socket, null(), 1, &raw mut count)), PTL_SEGV);
    assert_eq!(call!(PtlInit(null_mut())), PTL_SEGV);
}

#[test]
fn granted_processes_are_used_without_a_kernel() {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (machine, kernel) = node_with_kernel();
    (0..2).for_each(|process| kernel.grant(process).unwrap());

    let session = Session::of(machine, false, turn);
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
fn any_process_is_the_first_one_that_is_granted() {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (machine, kernel) = node_with_kernel();
    kernel.grant(1).unwrap();
    let session = Session::of(machine, false, turn);

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
    let (mut handle, mut value, mut far) = (0, 0, 0);
    let out = &raw mut handle;
    let open = |kind, pid| call!(PtlNIInit(kind, pid, null(), null_mut(), out));
    let attach =
        |portal, id, position| call!(PtlMEAttach(interface, portal, id, 0, 0, PTL_RETAIN, position, out));

    assert_eq!(open(2, PTL_PID_ANY), PTL_IFACE_INVALID);
    assert_eq!([open(0, id.pid), open(0, 2), open(0, 1 << 20)], [PTL_PID_INVALID; 3]);
    assert_eq!([attach(64, ANYONE, 0), attach(255, ANYONE, 0)], [PTL_PT_INDEX_INVALID; 2]);
    let bad = |nid, pid| attach(0, ptl_process_id_t { nid, pid }, PTL_INS_AFTER);
    assert_eq!([bad(2, 0), bad(0, 0xffff), bad(0, 1 << 16)], [PTL_PROCESS_INVALID; 3]);
    assert_eq!(attach(0, ANYONE, 2), PTL_FAIL);

    assert_eq!(call!(PtlNIStatus(interface, 1, &raw mut value)), PTL_SR_INDEX_INVALID);
    let there = ptl_process_id_t { nid: 2, pid: 0 };
    assert_eq!(call!(PtlNIDist(interface, there, &raw mut far)), PTL_PROCESS_INVALID);
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
fn descriptors_outside_of_allocated_memory_are_illegal() {
    let session = Session::new();
    let (process, other) = (session.process(PTL_IFACE_DEFAULT), session.process(PTL_IFACE_DEFAULT));
    let good = process.md(0);
    let mut own = [0_u8; 64];
    let code = |md| process.try_bind(md, PTL_RETAIN).err();

    assert_eq!(code(good), None);
    assert_eq!(code(ptl_md_t { start: own.as_mut_ptr().cast(), length: 64, ..good }), Some(PTL_MD_ILLEGAL));
    assert_eq!(code(ptl_md_t { start: null_mut(), ..good }), Some(PTL_MD_ILLEGAL));
    assert_eq!(code(ptl_md_t { start: other.memory, ..good }), Some(PTL_MD_ILLEGAL));
    assert_eq!(code(ptl_md_t { length: u64::MAX, ..good }), Some(PTL_MD_ILLEGAL));
    assert_eq!(code(ptl_md_t { threshold: -2, ..good }), Some(PTL_MD_ILLEGAL));
    assert_eq!(code(ptl_md_t { options: PTL_MD_IOVEC, ..good }), Some(PTL_MD_ILLEGAL));
    assert_eq!(code(ptl_md_t { eq_handle: other.queue, ..good }), Some(PTL_MD_ILLEGAL));
    assert_eq!(code(ptl_md_t { eq_handle: 0, ..good }), Some(PTL_EQ_INVALID));
    assert_eq!(code(ptl_md_t { start: null_mut(), length: 0, ..good }), None);
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
        assert_eq!((end.rlength, end.mlength, end.offset, end.hdr_data), (100, 100, 0, 77));
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
    let silent = ptl_md_t { eq_handle: PTL_EQ_NONE, ..sender.md(0) };
    let from = sender.try_bind(silent, PTL_UNLINK).unwrap();
    assert_eq!(sender.put(from, 8, receiver.id), PTL_OK);
    receiver.event(PTL_EVENT_PUT_END);

    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while is_valid(from) {
        assert!(std::time::Instant::now() < deadline, "the handle stays valid");
        let other = sender.try_bind(silent, PTL_RETAIN).unwrap();
        assert_eq!(PtlMDUnlink(other), PTL_OK);
    }
    let (mut event, queue) = (empty_event(), sender.queue);
    assert_eq!(call!(PtlEQGet(queue, &raw mut event)), PTL_EQ_EMPTY);
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
    let again = session.process(NICFORGE_PORTALS_IFACE_HOST_BASED);
    assert_eq!((again.id, is_valid(process.interface)), (process.id, false));
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

    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
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

#[test]
fn threads_make_calls_at_the_same_time() {
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
    let (one, other) = (session.process(PTL_IFACE_DEFAULT), session.process(PTL_IFACE_DEFAULT));
    let (queues, mut event, mut which) = ([one.queue, other.queue], empty_event(), 0);
    let mut poll = |count| call!(PtlEQPoll(queues.as_ptr(), count, 0, &raw mut event, &raw mut which));

    assert_eq!([poll(2), poll(0), poll(-1)], [PTL_EQ_INVALID; 3]);
    assert_eq!(poll(1), PTL_EQ_EMPTY);
    drop(session);
}
