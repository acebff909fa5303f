//! A network interface: the calls of Portals for one process.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod.rs` | opening an interface, and what it is |
//! | `memory.rs` | regions |
//! | `objects.rs` | event queues, match entries, memory descriptors |
//! | `messages.rs` | puts and gets |

mod memory;
mod messages;
mod objects;

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use nicforge_driver::{Deadline, Device, Waiter, runtime};
use nicforge_hwi::seastar::{Command, KERNEL_MESSAGES, code, command, process_messages, status};

use self::memory::Memory;
pub use self::objects::MemoryDescriptor;
use crate::{
    Error, Kernel, KernelConfig, Mode, ProcessId, Refusal, Status,
    link::{Link, Path},
    mailbox::{Mailbox, NetworkPosition},
};

/// Time between two checks whether another program's kernel has granted the process.
const GRANT_CHECK_PERIOD: Duration = Duration::from_millis(1);

/// A process's interface to the network (`ptl_handle_ni_t`). Threads may share it.
///
/// Dropping it ends the process's use of the network: its messages in flight fail.
pub struct Interface {
    link: Arc<Link>,
    id: ProcessId,
    /// Number of nodes of the network.
    nodes: u32,
    /// Maximum number of puts and gets in progress.
    operations: u16,
    memory: Mutex<Memory>,
}

impl Interface {
    /// Initialises the interface of the process whose attachment `device` is (`PtlNIInit`).
    ///
    /// # Errors
    /// - [`Error::WrongDevice`] if it is no process's attachment, or of another node than `kernel`.
    /// - [`Refusal::Process`] if the process has an interface.
    /// - [`Refusal::NoSpace`] if the card has no room for another process.
    /// - [`Error::is_gone`] names those of a lost card or node.
    pub fn open(kernel: &Arc<Kernel>, device: Device, mode: Mode) -> Result<Self, Error> {
        let (mailbox, position) = Mailbox::open(&device, kernel.timeout())?;
        let wrong = |found: String| Error::WrongDevice { wanted: "a process of this kernel's node", found };
        let process = position.process.ok_or_else(|| wrong("the kernel's attachment".to_owned()))?;
        if position.node != kernel.node() {
            return Err(wrong(format!("a process of node {}", position.node)));
        }

        let incarnation = mailbox.incarnation().clone();
        let path = match mode {
            Mode::NicBased => {
                kernel.start_nic_based(process)?;
                Path::Mailbox { mailbox: Mutex::new(mailbox), kernel: Some(kernel.clone()) }
            }
            Mode::HostBased => {
                Path::Kernel { start: kernel.start_host_based(process)?, kernel: kernel.clone() }
            }
        };
        let operations = match mode {
            Mode::NicBased => process_messages(position.processes as u16),
            Mode::HostBased => kernel.limits().outgoing.min(KERNEL_MESSAGES),
        };
        Ok(Self::new(Link::new(process, incarnation, path), position, operations))
    }

    /// Initialises the interface of a process whose node's kernel is in another program, which has
    /// [granted](Kernel::grant) the process. The mode is NIC-based. The call waits for the grant
    /// until `deadline`.
    ///
    /// The process ends when its device is closed: when the interface and all that was made from it
    /// or from the device is dropped. When the kernel's program ends, calls are refused with
    /// [`Refusal::Interface`]; waits then end by their deadlines.
    ///
    /// # Errors
    /// - [`Error::WrongDevice`] if `device` is no process's attachment.
    /// - [`Refusal::Interface`] if the process is not granted until the deadline.
    /// - [`Error::is_gone`] names those of a lost card or node.
    pub fn attach(device: Device, deadline: Deadline) -> Result<Self, Error> {
        let (mut mailbox, position) = Mailbox::open(&device, KernelConfig::default().timeout)?;
        let wrong = || Error::WrongDevice {
            wanted: "a process's attachment",
            found: "the kernel's attachment".to_owned(),
        };
        let process = position.process.ok_or_else(wrong)?;

        // The card refuses all commands of a process that is not granted: this one shows when it
        // is.
        let waiter = Waiter::new(&device, deadline, None);
        let probe = Command { kind: command::STATUS, handle: status::DROP_COUNT, ..Command::default() };
        while mailbox.call(&probe)?.code != code::OK {
            if waiter.check().is_err() {
                return Err(Error::Refused { call: "PtlNIInit", reason: Refusal::Interface });
            }
            runtime::sleep(GRANT_CHECK_PERIOD);
        }

        let incarnation = mailbox.incarnation().clone();
        let path = Path::Mailbox { mailbox: Mutex::new(mailbox), kernel: None };
        Ok(Self::new(
            Link::new(process, incarnation, path),
            position,
            process_messages(position.processes as u16),
        ))
    }

    fn new(link: Arc<Link>, position: NetworkPosition, operations: u16) -> Self {
        let id = ProcessId { node: position.node, process: link.process };
        Self { link, id, nodes: position.nodes, operations, memory: Mutex::default() }
    }

    /// Returns the name of the process (`PtlGetId`).
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Returns the number of nodes of the network.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Returns the number of puts and gets of the process that can be in progress: its share of the
    /// card's messages in NIC-based mode. In host-based mode the node's processes share that many,
    /// and further ones, as far as [`KernelConfig::limits`] allow them, wait in the kernel.
    pub fn operations(&self) -> u16 {
        self.operations
    }

    /// Returns where the messages of the process are matched.
    pub fn mode(&self) -> Mode {
        if self.link.is_host_based() { Mode::HostBased } else { Mode::NicBased }
    }

    /// Returns the device of the process.
    pub fn device(&self) -> &Device {
        self.link.device()
    }

    /// Returns how far another process is (`PtlNIDist`): 0 for this process, 1 for another one of
    /// this node, and 2 for one of another node. The card knows nothing closer about the torus.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`].
    pub fn distance(&self, process: ProcessId) -> Result<u32, Error> {
        self.check_node(process.node)?;
        Ok(match process {
            same if same == self.id => 0,
            ProcessId { node, .. } if node == self.id.node => 1,
            _ => 2,
        })
    }

    /// Returns the value of a status register (`PtlNIStatus`).
    ///
    /// # Errors
    /// Those of a lost card: [`Error::is_gone`].
    pub fn status(&self, register: Status) -> Result<u64, Error> {
        let handle = match register {
            Status::DropCount => status::DROP_COUNT,
            Status::PermissionViolations => status::PERMISSION_VIOLATIONS,
        };
        let read = Command { kind: command::STATUS, handle, ..Command::default() };
        Ok(self.link.call("PtlNIStatus", &read)?.value)
    }

    /// Handles arrived messages of processes in host-based mode. Calls that take events do so too.
    /// In NIC-based mode the card needs no such call.
    ///
    /// # Errors
    /// Those of a lost card: [`Error::is_gone`].
    pub fn progress(&self) -> Result<(), Error> {
        self.link.progress().map(drop)
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        // The process ends before its memory is dropped with the fields. In a child of `fork`, it
        // is the parent's.
        if !self.link.device().is_inherited() {
            self.link.stop();
        }
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interface").field("id", &self.id).field("mode", &self.mode()).finish()
    }
}
