//! The way of an interface's calls: to the card's mailbox, or into the kernel.

use std::sync::{Arc, Mutex};

use nicforge_driver::{Device, runtime};
use nicforge_hwi::seastar::{Command, CommandResult, code};

use crate::{
    Error, Kernel, Refusal,
    kernel::check_granted,
    mailbox::{Incarnation, Mailbox},
    queue::QueueMemory,
    region::Pieces,
};

/// Where the calls of an interface go.
#[allow(clippy::large_enum_variant, reason = "an interface has one, which is shared")]
pub(crate) enum Path {
    /// To the process's mailbox, in NIC-based mode. The kernel is there if this program has it.
    Mailbox(Mutex<Mailbox>, Option<Arc<Kernel>>),
    /// To the kernel, in host-based mode. The number is that of the process's start.
    Kernel(Arc<Kernel>, u32),
}

/// The part of an interface that its objects share.
pub(crate) struct Link {
    pub(crate) process: u16,
    incarnation: Incarnation,
    path: Path,
    /// Memory of queues that were freed.
    freed: Mutex<Vec<QueueMemory>>,
}

impl Link {
    pub(crate) fn new(process: u16, incarnation: Incarnation, path: Path) -> Arc<Self> {
        Arc::new(Self { process, incarnation, path, freed: Mutex::default() })
    }

    /// Returns the device of the process.
    pub(crate) fn device(&self) -> &Device {
        self.incarnation.device()
    }

    /// Returns whether the kernel matches the process's messages.
    #[inline]
    pub(crate) fn is_host_based(&self) -> bool {
        matches!(self.path, Path::Kernel(..))
    }

    /// Makes a call. `name` is the standard's name of it.
    pub(crate) fn call(&self, name: &'static str, command: &Command) -> Result<CommandResult, Error> {
        let result = match &self.path {
            Path::Mailbox(mailbox, _) => runtime::lock(mailbox).call(command)?,
            Path::Kernel(kernel, start) => {
                self.incarnation.check()?;
                kernel.system_call(self.process, *start, command)?
            }
        };
        accepted(name, result)
    }

    /// Starts a put or a get, without a wait for the card's answer where the card cannot refuse it.
    /// `is_valid` says that its descriptor and its target are known to be so. It is asked under the
    /// mailbox's lock: another thread that makes the descriptor invalid says so before it takes the
    /// lock for its own command, so that the card gets that command after this one.
    #[inline]
    pub(crate) fn start(
        &self,
        name: &'static str,
        command: &Command,
        is_valid: impl FnOnce() -> bool,
    ) -> Result<(), Error> {
        match &self.path {
            Path::Mailbox(mailbox, _) => {
                let mut mailbox = runtime::lock(mailbox);
                let result = mailbox.start(command, is_valid())?;
                drop(mailbox);
                accepted(name, result).map(drop)
            }
            Path::Kernel(..) => self.call(name, command).map(drop),
        }
    }

    /// Lets the kernel handle its events in host-based mode, and checks that the card works.
    /// Returns whether the kernel may have written events.
    #[inline]
    pub(crate) fn progress(&self) -> Result<bool, Error> {
        let is_host_based = match &self.path {
            Path::Kernel(kernel, _) => {
                kernel.progress()?;
                true
            }
            Path::Mailbox(..) => false,
        };
        self.incarnation.check()?;
        Ok(is_host_based)
    }

    /// Keeps the memory of a queue that was freed, for another one.
    pub(crate) fn release_queue(&self, memory: QueueMemory) {
        runtime::lock(&self.freed).push(memory);
    }

    /// Returns memory of exactly this length that a queue has had.
    pub(crate) fn reuse_queue(&self, length: u64) -> Option<QueueMemory> {
        let mut freed = runtime::lock(&self.freed);
        let position = freed.iter().position(|memory| memory.window.len() == length)?;
        Some(freed.swap_remove(position))
    }

    /// Lets the process use memory that it has allocated.
    pub(crate) fn add_memory(&self, pieces: &Arc<Pieces>) -> Result<(), Error> {
        match &self.path {
            Path::Kernel(kernel, _) => {
                kernel.add_region(self.process, pieces);
                Ok(())
            }
            Path::Mailbox(_, Some(kernel)) => kernel.map(self.process, pieces.base, pieces.length),
            Path::Mailbox(_, None) => check_granted(pieces.base, pieces.length),
        }
    }

    /// Ends the process's use of the network. A process that another program's kernel has granted
    /// ends with its attachment.
    pub(crate) fn stop(&self) {
        if let Path::Mailbox(mailbox, _) = &self.path {
            // The card takes what was posted. A lost card takes nothing.
            let _ = runtime::lock(mailbox).settle();
        }
        match &self.path {
            Path::Mailbox(_, Some(kernel)) => kernel.stop(self.process, None),
            Path::Mailbox(_, None) => {}
            Path::Kernel(kernel, start) => kernel.stop(self.process, Some(*start)),
        }
    }
}

/// Returns the result of a call, or the error of one that was refused.
#[inline]
fn accepted(call: &'static str, result: CommandResult) -> Result<CommandResult, Error> {
    match result.code {
        code::OK => Ok(result),
        refused => Err(Error::Refused { call, reason: Refusal::of_code(refused) }),
    }
}
