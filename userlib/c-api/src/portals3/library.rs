//! The library in this process: the node's kernel, and the objects that C names.
//!
//! It has two locks. [`SETUP`] is held by calls that begin or end the library or an interface.
//! [`LIBRARY`] is held for the time of a look-up, and never during a call to the card or the
//! kernel.

use std::{
    ffi::OsString,
    path::PathBuf,
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use nicforge_driver::{
    Cancel, Deadline, Device, Error as DriverError, OpenOptions, environment,
    runtime::{self, lock},
};
use nicforge_portals::{Interface, Kernel, KernelConfig, Mode};
use nicforge_shm::OwnerCell;

use super::{
    failure::{driver_failure, failure, refused},
    interface::NetworkInterface,
    objects::Objects,
    types::{
        PTL_FAIL, PTL_IFACE_INVALID, PTL_NI_INVALID, PTL_NO_INIT, PTL_NO_SPACE, PTL_PID_INVALID,
        ptl_handle_ni_t,
    },
};
use crate::support::Failure;

/// The longest wait until the program that has the node's kernel grants a process.
const GRANT_WAIT: Duration = Duration::from_secs(10);
/// Time between two checks whether a process was granted.
const GRANT_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of processes of a node, bounded by the scratch memory of the card.
const MAX_PROCESSES: usize = 15;

/// The library between PtlInit and PtlFini.
static LIBRARY: Mutex<Option<Library>> = Mutex::new(None);
/// Held by calls that begin or end the library or an interface.
static SETUP: Mutex<()> = Mutex::new(());
/// The process that has initialised the library. It is checked before a lock is taken, which a
/// thread may hold that only a parent of this process has.
static OWNER: OwnerCell = OwnerCell::new();

/// The devices of a node.
pub(super) trait Node: Send + Sync {
    /// Opens the kernel's attachment. Returns `None` if another program has it.
    fn open_kernel(&self) -> Result<Option<Device>, Failure>;
    /// Opens a process's attachment.
    fn open_process(&self, process: usize) -> Result<Device, Failure>;
    /// Returns the number of processes.
    fn processes(&self) -> usize;
}

/// The sockets of a node, or other addresses of its devices.
pub(super) struct Sockets {
    /// `None` if another program has the kernel.
    pub(super) kernel: Option<OsString>,
    pub(super) processes: Vec<OsString>,
}

impl Sockets {
    /// Returns the sockets of the node on which `nicforge run` has started this program.
    pub(super) fn of_environment() -> Result<Self, Failure> {
        let directory = environment::directory().map_err(driver_failure)?;
        let node = environment::node().map_err(driver_failure)?;

        let kernel = directory.join("admin").join(format!("{node}.kernel"));
        let kernel = Some(kernel.into_os_string());
        let processes = (0..MAX_PROCESSES).map(|process| directory.join(format!("{node}.p{process}")));
        let processes = processes.take_while(|path| path.exists()).map(PathBuf::into_os_string).collect();
        Ok(Self { kernel, processes })
    }
}

impl Node for Sockets {
    fn open_kernel(&self) -> Result<Option<Device>, Failure> {
        let open = |kernel| Device::open_named(kernel, OpenOptions::default()).map_err(driver_failure);
        self.kernel.as_deref().map(open).transpose()
    }

    fn open_process(&self, process: usize) -> Result<Device, Failure> {
        let address = self.processes.get(process).ok_or_else(|| no_process(process))?;
        Device::open_named(address, OpenOptions::default()).map_err(driver_failure)
    }

    fn processes(&self) -> usize {
        self.processes.len()
    }
}

/// Returns the failure of a call that names a process which the node does not have.
fn no_process(process: usize) -> Failure {
    refused(PTL_PID_INVALID, format!("the node has no process {process}"))
}

/// The thread that matches messages of processes in host-based mode. It does what a kernel does in
/// the handler of the card's interrupts.
struct MatchingThread {
    cancel: Arc<Cancel>,
    thread: Option<JoinHandle<()>>,
}

impl MatchingThread {
    /// Starts the thread.
    fn start(kernel: &Arc<Kernel>) -> Result<Self, Failure> {
        let cancel = Arc::new(Cancel::new().map_err(driver_failure)?);
        let (kernel, cancel_of_thread) = (kernel.clone(), cancel.clone());
        let name = "portals-kernel".to_owned();
        // An error means that the card is lost. Then the calls that need the card return an error
        // too, so the thread only ends.
        let serve = move || drop(kernel.serve(&cancel_of_thread));

        let thread = std::thread::Builder::new().name(name).spawn(serve);
        let thread = thread.map_err(|error| refused(PTL_NO_SPACE, format!("no thread: {error}")))?;
        Ok(Self { cancel, thread: Some(thread) })
    }
}

impl Drop for MatchingThread {
    fn drop(&mut self) {
        self.cancel.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// The state of the initialised library.
struct Library {
    /// Number of calls of PtlInit, less those of PtlFini.
    init_count: u32,
    node: Arc<dyn Node>,
    /// The node's kernel; `None` if another program has it.
    kernel: Option<Arc<Kernel>>,
    /// The thread that matches messages, from the first interface in host-based mode on.
    matching_thread: Option<MatchingThread>,
    objects: Objects,
}

/// Calls `call` with the objects, under the lock.
///
/// # Errors
/// Returns `PTL_NO_INIT` outside of PtlInit and PtlFini, and the errors of `call`.
pub(super) fn with_objects<T>(call: impl FnOnce(&mut Objects) -> Result<T, Failure>) -> Result<T, Failure> {
    check_owner()?;
    match lock(&LIBRARY).as_mut() {
        Some(library) => call(&mut library.objects),
        None => Err(no_init()),
    }
}

/// Checks that no parent of this process has initialised the library.
fn check_owner() -> Result<(), Failure> {
    if OWNER.is_inherited() { Err(driver_failure(DriverError::ForeignProcess)) } else { Ok(()) }
}

/// Returns the failure of a call before PtlInit.
fn no_init() -> Failure {
    refused(PTL_NO_INIT, "Portals is not initialised: call PtlInit first")
}

/// Boots the node, unless the library has been initialised before, or another program has the
/// kernel. Returns the number of processes.
pub(super) fn init(node: impl FnOnce() -> Result<Arc<dyn Node>, Failure>) -> Result<usize, Failure> {
    check_owner()?;
    let _setup = lock(&SETUP);
    if let Some(library) = lock(&LIBRARY).as_mut() {
        library.init_count += 1;
        return Ok(library.node.processes());
    }

    let node = node()?;
    let boot = |device| Kernel::boot(device, KernelConfig::default()).map_err(failure);
    let kernel = node.open_kernel()?.map(boot).transpose()?;
    let processes = node.processes();
    let library = Library { init_count: 1, node, kernel, matching_thread: None, objects: Objects::new() };
    *lock(&LIBRARY) = Some(library);
    OWNER.set_current();
    Ok(processes)
}

/// Undoes one initialisation. When none is left, all interfaces and the kernel end. In a child of
/// the process that has initialised the library, nothing changes.
pub(super) fn fini() {
    if OWNER.is_inherited() {
        return;
    }

    let _setup = lock(&SETUP);
    let mut library = lock(&LIBRARY);
    let Some(Library { init_count, .. }) = library.as_mut() else { return };
    *init_count -= 1;
    if *init_count > 0 {
        return;
    }

    let ended = library.take();
    OWNER.clear();
    drop(library);
    if let Some(mut ended) = ended {
        // Interfaces stop their processes, for which the kernel's thread must still run.
        drop(ended.objects.remove_all());
        drop(ended.matching_thread);
    }
}

/// Opens an interface of a process, or of the first free one, and returns its handle.
pub(super) fn open_interface(mode: Mode, process: Option<u32>) -> Result<ptl_handle_ni_t, Failure> {
    check_owner()?;
    let _setup = lock(&SETUP);
    let (node, kernel, used) = match lock(&LIBRARY).as_ref() {
        Some(library) => (library.node.clone(), library.kernel.clone(), library.objects.processes()),
        None => return Err(no_init()),
    };

    let is_used = |process: usize| used.iter().any(|&other| usize::from(other) == process);
    let interface = match process.map(|process| process as usize) {
        Some(process) if process >= node.processes() => Err(no_process(process)),
        Some(process) if is_used(process) => {
            Err(refused(PTL_PID_INVALID, format!("process {process} has an interface already")))
        }
        Some(process) => open_process(&*node, kernel.as_ref(), mode, process, Deadline::after(GRANT_WAIT)),
        None => open_first_free(&*node, kernel.as_ref(), mode, is_used),
    }?;

    let mut library = lock(&LIBRARY);
    let library = library.as_mut().ok_or_else(no_init)?;
    if let Some(kernel) = kernel.filter(|_| mode == Mode::HostBased && library.matching_thread.is_none()) {
        library.matching_thread = Some(MatchingThread::start(&kernel)?);
    }
    library.objects.add_interface(NetworkInterface::new(interface))
}

/// Opens the first process that neither this program nor another one uses. If another program has
/// the kernel, waits until it grants one of the unused processes.
fn open_first_free(
    node: &dyn Node,
    kernel: Option<&Arc<Kernel>>,
    mode: Mode,
    is_used: impl Fn(usize) -> bool,
) -> Result<Interface, Failure> {
    let deadline = Deadline::after(GRANT_WAIT);
    let mut last_error = refused(PTL_PID_INVALID, "all processes of the node are in use");
    let mut ungranted = Vec::new();
    for process in (0..node.processes()).filter(|&process| !is_used(process)) {
        match open_process(node, kernel, mode, process, Deadline::now()) {
            Ok(interface) => return Ok(interface),
            Err(error) => {
                if kernel.is_none() && error.errno() == PTL_NI_INVALID {
                    ungranted.push(process);
                }
                last_error = error;
            }
        }
    }

    // Any of these processes may be granted later. They are closed between the checks, so that
    // other programs can open them meanwhile.
    while !ungranted.is_empty() && !deadline.has_passed() {
        runtime::sleep(GRANT_POLL_INTERVAL);
        for &process in &ungranted {
            match open_process(node, kernel, mode, process, Deadline::now()) {
                Ok(interface) => return Ok(interface),
                Err(error) => last_error = error,
            }
        }
    }
    Err(last_error)
}

/// Opens a process. If another program has the kernel, waits for its grant until the deadline.
fn open_process(
    node: &dyn Node,
    kernel: Option<&Arc<Kernel>>,
    mode: Mode,
    process: usize,
    deadline: Deadline,
) -> Result<Interface, Failure> {
    let device = node.open_process(process)?;
    let opened = match (kernel, mode) {
        (Some(kernel), _) => Interface::open(kernel, device, mode),
        (None, Mode::NicBased) => Interface::attach(device, deadline),
        (None, Mode::HostBased) => {
            let reason = "a process that another program's kernel has granted is matched by the card";
            return Err(refused(PTL_IFACE_INVALID, reason));
        }
    };
    let interface = opened.map_err(failure)?;
    if usize::from(interface.id().process) != process {
        let found = interface.id();
        return Err(refused(PTL_FAIL, format!("the device for process {process} is that of {found}")));
    }
    Ok(interface)
}

/// Grants other programs a process of the node whose kernel this program has.
pub(super) fn grant(process: u32) -> Result<(), Failure> {
    check_owner()?;
    let _setup = lock(&SETUP);
    let kernel = match lock(&LIBRARY).as_ref() {
        Some(library) => library.kernel.clone(),
        None => return Err(no_init()),
    };

    let kernel = kernel.ok_or_else(|| refused(PTL_FAIL, "another program has the node's kernel"))?;
    let number = u16::try_from(process).map_err(|_| no_process(process as usize))?;
    kernel.grant(number).map_err(failure)
}

/// Ends an interface, with all its objects.
pub(super) fn close_interface(handle: ptl_handle_ni_t) -> Result<(), Failure> {
    check_owner()?;
    let _setup = lock(&SETUP);
    let ended = with_objects(|objects| objects.remove_interface(handle))?;
    drop(ended);
    Ok(())
}
