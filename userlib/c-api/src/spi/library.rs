//! The node's subgroups and kernel in this process.
//!
//! A call opens the devices that it needs and that are not open yet. A lock is held while a device
//! is opened, and never while a call works on a subgroup.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use nicforge_driver::{Device, OpenOptions, environment, runtime::lock};
use nicforge_shm::OwnerCell;
use nicforge_spi::{Kernel, Options, Subgroup};

use super::{
    failure::{failure, invalid},
    subgroup::nicforge_spi_subgroup,
};
use crate::support::{Failure, inherited};

/// Number of the first subgroup of the system. The system's subgroups are reached by the kernel's
/// attachment.
const FIRST_SYSTEM_SUBGROUP: u32 = 64;
/// Number of subgroups of a node.
const SUBGROUPS: u32 = 68;

/// The devices that this process has opened. `None` until the first call, and after [`close`].
static LIBRARY: Mutex<Option<Library>> = Mutex::new(None);
/// The process that has opened them. It is checked before the lock is taken, which a thread may
/// hold that only a parent of this process has.
static OWNER: OwnerCell = OwnerCell::new();

/// The devices of a node.
pub(super) trait Node: Send + Sync {
    /// Opens the kernel's attachment.
    fn open_kernel(&self) -> Result<Device, Failure>;
    /// Opens the attachment of an application subgroup.
    fn open_subgroup(&self, number: u32) -> Result<Device, Failure>;
}

/// The sockets of a node.
struct Sockets {
    directory: PathBuf,
    node: String,
}

impl Sockets {
    /// Opens the device behind a socket.
    fn open(path: PathBuf) -> Result<Device, Failure> {
        Ok(Device::open_named(OsString::from(path), OpenOptions::default())?)
    }
}

impl Node for Sockets {
    fn open_kernel(&self) -> Result<Device, Failure> {
        Self::open(self.directory.join("admin").join(format!("{}.kernel", self.node)))
    }

    fn open_subgroup(&self, number: u32) -> Result<Device, Failure> {
        Self::open(self.directory.join(format!("{}.s{number}", self.node)))
    }
}

/// The devices of a node that this process has opened.
struct Library {
    node: Arc<dyn Node>,
    kernel: Option<Arc<Kernel>>,
    subgroups: BTreeMap<u32, Arc<nicforge_spi_subgroup>>,
}

impl Library {
    /// Returns a library that has opened no device of the node.
    fn new(node: Arc<dyn Node>) -> Self {
        Self { node, kernel: None, subgroups: BTreeMap::new() }
    }

    /// Returns the kernel, which is opened if necessary.
    fn kernel(&mut self) -> Result<Arc<Kernel>, Failure> {
        if let Some(kernel) = &self.kernel {
            return Ok(kernel.clone());
        }

        let device = self.node.open_kernel()?;
        Ok(self.kernel.insert(Arc::new(Kernel::open(&device).map_err(failure)?)).clone())
    }

    /// Returns a subgroup, which is opened if necessary.
    fn subgroup(&mut self, number: u32) -> Result<Arc<nicforge_spi_subgroup>, Failure> {
        if let Some(subgroup) = self.subgroups.get(&number) {
            return Ok(subgroup.clone());
        }

        let opened = match number {
            0..FIRST_SYSTEM_SUBGROUP => Subgroup::open(&self.node.open_subgroup(number)?, Options::default()),
            FIRST_SYSTEM_SUBGROUP..SUBGROUPS => {
                self.kernel()?.system_subgroup((number - FIRST_SYSTEM_SUBGROUP) as u8, Options::default())
            }
            _ => return Err(invalid(format!("there is no subgroup {number}"))),
        };
        let opened = Arc::new(nicforge_spi_subgroup::new(opened.map_err(failure)?)?);
        self.subgroups.insert(number, opened.clone());
        Ok(opened)
    }
}

/// Checks that no parent of this process has opened the devices.
pub(super) fn check_owner() -> Result<(), Failure> {
    if OWNER.is_inherited() { Err(inherited()) } else { Ok(()) }
}

/// Calls `call` with the library, under the lock. The first call uses the node that the environment
/// names.
fn with_library<T>(call: impl FnOnce(&mut Library) -> Result<T, Failure>) -> Result<T, Failure> {
    check_owner()?;
    let mut library = lock(&LIBRARY);
    let library = match &mut *library {
        Some(library) => library,
        uninitialised => {
            let (directory, node) = (environment::directory()?, environment::node()?);
            OWNER.set_current();
            uninitialised.insert(Library::new(Arc::new(Sockets { directory, node })))
        }
    };
    call(library)
}

/// Returns a subgroup, which is opened if necessary.
pub(super) fn subgroup(number: u32) -> Result<Arc<nicforge_spi_subgroup>, Failure> {
    with_library(|library| library.subgroup(number))
}

/// Returns a subgroup that is open. If none is, opens the first one.
pub(super) fn any_subgroup() -> Result<Arc<nicforge_spi_subgroup>, Failure> {
    with_library(|library| match library.subgroups.values().next() {
        Some(subgroup) => Ok(subgroup.clone()),
        None => library.subgroup(0),
    })
}

/// Returns the subgroups that are open.
pub(super) fn open_subgroups() -> Result<Vec<Arc<nicforge_spi_subgroup>>, Failure> {
    with_library(|library| Ok(library.subgroups.values().cloned().collect()))
}

/// Returns the node's kernel, which is opened if necessary.
pub(super) fn kernel() -> Result<Arc<Kernel>, Failure> {
    with_library(Library::kernel)
}

/// Uses the devices of `node` from now on.
#[cfg(test)]
pub(super) fn begin(node: Arc<dyn Node>) {
    *lock(&LIBRARY) = Some(Library::new(node));
    OWNER.set_current();
}

/// Closes all devices. In a child of the process that has opened them, nothing changes.
pub(super) fn close() {
    if OWNER.is_inherited() {
        return;
    }

    OWNER.clear();
    let ended = lock(&LIBRARY).take();
    drop(ended);
}
