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

/// The process has one library, so one test at a time uses it.
static ONE_TEST_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Length of the memory of each process.
const BYTES: u64 = 4096;
const PORTAL: u32 = 4;
/// Match bits of all entries and messages.
const BITS: u64 = 0x1234_5678_9abc_def0;
/// Time limit of a wait for an event.
const WAIT_MS: u32 = 60_000;
/// Data in the header of a put.
const HEADER_DATA: u64 = 77;
const ANYONE: ptl_process_id_t = ptl_process_id_t { nid: PTL_NID_ANY, pid: PTL_PID_ANY };
/// Both kinds of interface.
const KINDS: [ptl_interface_t; 2] = [PTL_IFACE_DEFAULT, NICFORGE_PORTALS_IFACE_HOST_BASED];

/// Calls a function of the API.
macro_rules! call {
    ($call:expr) => {{
        // SAFETY: all pointers are NULL where that is allowed, or refer to variables of the test.
        unsafe { $call }
    }};
}

mod messages;
mod node;

/// The node of a machine in this process.
struct LocalNode {
    machine: Arc<LocalMachine>,
    has_kernel: bool,
}

impl LocalNode {
    /// Opens an attachment of the first node's card.
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
    _exclusive: MutexGuard<'static, ()>,
}

impl Session {
    /// Initialises the library on the first node of a new machine.
    fn new() -> Self {
        let exclusive = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        Self::of(machine(), true, exclusive)
    }

    /// Initialises the library on a node, with its kernel or without.
    fn of(machine: Arc<LocalMachine>, has_kernel: bool, exclusive: MutexGuard<'static, ()>) -> Self {
        let node = Arc::new(LocalNode { machine, has_kernel }) as Arc<dyn Node>;
        assert_eq!(library::init(|| Ok(node)).map_err(|failure| failure.errno()), Ok(2));
        Self { _exclusive: exclusive }
    }

    /// Opens an interface of the first free process, with an event queue and memory.
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

/// A process of the node with its interface, event queue and memory.
struct Process {
    interface: ptl_handle_ni_t,
    queue: ptl_handle_eq_t,
    id: ptl_process_id_t,
    memory: *mut c_void,
}

impl Process {
    /// Returns the values of a descriptor of all memory for one operation.
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

    /// Adds a match entry for [`BITS`] at the end of the portal's list.
    fn entry(&self, unlink: ptl_unlink_t) -> ptl_handle_me_t {
        let mut entry = PTL_INVALID_HANDLE;
        let (interface, out) = (self.interface, &raw mut entry);
        let attached = call!(PtlMEAttach(interface, PORTAL, ANYONE, BITS, 0, unlink, PTL_INS_AFTER, out));
        assert_eq!(attached, PTL_OK, "{}", last_text());
        entry
    }

    /// Adds a descriptor to an entry, to be unlinked automatically.
    fn attach(&self, entry: ptl_handle_me_t, md: ptl_md_t) -> ptl_handle_md_t {
        let mut descriptor = PTL_INVALID_HANDLE;
        assert_eq!(call!(PtlMDAttach(entry, md, PTL_UNLINK, &raw mut descriptor)), PTL_OK, "{}", last_text());
        descriptor
    }

    /// Makes a descriptor for puts and gets of this process, or returns the code of the refusal.
    fn try_bind(&self, md: ptl_md_t, unlink: ptl_unlink_t) -> Result<ptl_handle_md_t, c_int> {
        let mut descriptor = PTL_INVALID_HANDLE;
        match call!(PtlMDBind(self.interface, md, unlink, &raw mut descriptor)) {
            PTL_OK => Ok(descriptor),
            code => Err(code),
        }
    }

    /// Puts the first `length` bytes of a descriptor's memory to a process.
    fn put(&self, from: ptl_handle_md_t, length: u64, to: ptl_process_id_t) -> c_int {
        PtlPutRegion(from, 0, length, PTL_ACK_REQ, to, PORTAL, 0, BITS, 0, HEADER_DATA)
    }

    /// Returns the next event of this kind, and drops those before it.
    fn event(&self, kind: ptl_event_kind_t) -> ptl_event_t {
        loop {
            let event = next(self.queue);
            if event.r#type == kind {
                return event;
            }
        }
    }

    /// Fills the memory with a byte.
    fn write(&self, byte: u8) {
        // SAFETY: the memory has this length, and belongs to the interface, which is open.
        unsafe { self.memory.cast::<u8>().write_bytes(byte, BYTES as usize) };
    }

    /// Returns a byte of the memory.
    fn byte(&self, at: usize) -> u8 {
        assert!(at < BYTES as usize);
        // SAFETY: the offset was checked.
        let byte = unsafe { self.memory.cast::<u8>().add(at) };
        // SAFETY: the memory belongs to the interface, which is open.
        unsafe { byte.read_volatile() }
    }
}

/// Waits for the next event of a queue.
fn next(queue: ptl_handle_eq_t) -> ptl_event_t {
    let (mut event, mut which) = (empty_event(), -1);
    let code = call!(PtlEQPoll(&raw const queue, 1, WAIT_MS, &raw mut event, &raw mut which));
    assert_eq!((code, which), (PTL_OK, 0), "{}", last_text());
    event
}

/// Returns memory for an event.
fn empty_event() -> ptl_event_t {
    // SAFETY: an event consists of numbers and pointers, which may be 0.
    unsafe { std::mem::zeroed() }
}

/// Returns the text of this thread's last failure.
fn last_text() -> String {
    // SAFETY: valid until this thread's next error.
    unsafe { CStr::from_ptr(nicforge_portals_last_error()) }.to_str().unwrap().to_owned()
}

/// Returns whether a handle names an object.
fn is_valid(handle: ptl_handle_any_t) -> bool {
    let mut interface = 0;
    call!(PtlNIHandle(handle, &raw mut interface)) == PTL_OK
}
