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
    /// To the process's mailbox, in NIC-based mode.
    Mailbox {
        mailbox: Mutex<Mailbox>,
        /// The node's kernel, unless it is in another program, which has granted the process.
        kernel: Option<Arc<Kernel>>,
    },
    /// To the kernel, in host-based mode.
    Kernel {
        kernel: Arc<Kernel>,
        /// Number of the process's start.
        start: u32,
    },
}

/// The part of an interface that its objects share.
pub(crate) struct Link {
    /// Number of the process.
    pub(crate) process: u16,
    incarnation: Incarnation,
    path: Path,
    /// Memory of event queues that were freed, for later ones.
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
        matches!(self.path, Path::Kernel { .. })
    }

    /// Makes a call. `name` is the standard's name of it.
    pub(crate) fn call(&self, name: &'static str, command: &Command) -> Result<CommandResult, Error> {
        let result = match &self.path {
            Path::Mailbox { mailbox, .. } => runtime::lock(mailbox).call(command)?,
            Path::Kernel { kernel, start } => {
                self.incarnation.check()?;
                kernel.system_call(self.process, *start, command)?
            }
        };
        check_result(name, result)
    }

    /// Starts a put or a get. The call does not wait for the card's answer if the card cannot
    /// refuse it.
    ///
    /// `is_valid` returns whether the descriptor and the target are known to be valid. It is called
    /// under the mailbox's lock. A thread that makes the descriptor invalid records that before it
    /// takes the lock for its own command. So the card gets that command after one that was valid.
    #[inline]
    pub(crate) fn start(
        &self,
        name: &'static str,
        command: &Command,
        is_valid: impl FnOnce() -> bool,
    ) -> Result<(), Error> {
        match &self.path {
            Path::Mailbox { mailbox, .. } => {
                let mut mailbox = runtime::lock(mailbox);
                let result = mailbox.start(command, is_valid())?;
                drop(mailbox);
                check_result(name, result).map(drop)
            }
            Path::Kernel { .. } => self.call(name, command).map(drop),
        }
    }

    /// Lets the kernel handle its events in host-based mode, and checks that the card works.
    /// Returns whether the kernel may have written events.
    #[inline]
    pub(crate) fn progress(&self) -> Result<bool, Error> {
        let is_host_based = match &self.path {
            Path::Kernel { kernel, .. } => {
                kernel.progress()?;
                true
            }
            Path::Mailbox { .. } => false,
        };
        self.incarnation.check()?;
        Ok(is_host_based)
    }

    /// Keeps the memory of an event queue that was freed, for a later one.
    pub(crate) fn release_queue(&self, memory: QueueMemory) {
        runtime::lock(&self.freed).push(memory);
    }

    /// Returns the memory of an event queue that was freed, if one had exactly this length.
    pub(crate) fn reuse_queue(&self, length: u64) -> Option<QueueMemory> {
        let mut freed = runtime::lock(&self.freed);
        let position = freed.iter().position(|memory| memory.window.len() == length)?;
        Some(freed.swap_remove(position))
    }

    /// Adds memory that the process has allocated to its address map. A granted process has a fixed
    /// one, in which the memory must lie.
    pub(crate) fn add_memory(&self, pieces: &Arc<Pieces>) -> Result<(), Error> {
        match &self.path {
            Path::Kernel { kernel, .. } => {
                kernel.add_region(self.process, pieces);
                Ok(())
            }
            Path::Mailbox { kernel: Some(kernel), .. } => {
                kernel.map(self.process, pieces.base, pieces.length)
            }
            Path::Mailbox { kernel: None, .. } => check_granted(pieces.base, pieces.length),
        }
    }

    /// Ends the process's use of the network. A process that another program's kernel has granted
    /// ends with its attachment.
    pub(crate) fn stop(&self) {
        if let Path::Mailbox { mailbox, .. } = &self.path {
            // Posted commands are carried out before the process ends. On a lost card this fails.
            let _ = runtime::lock(mailbox).await_posted();
        }
        match &self.path {
            Path::Mailbox { kernel: Some(kernel), .. } => kernel.stop(self.process, None),
            Path::Mailbox { kernel: None, .. } => {}
            Path::Kernel { kernel, start } => kernel.stop(self.process, Some(*start)),
        }
    }
}

/// Returns the result of a call, or the error of one that was refused.
#[inline]
fn check_result(call: &'static str, result: CommandResult) -> Result<CommandResult, Error> {
    match result.code {
        code::OK => Ok(result),
        refused => Err(Error::Refused { call, reason: Refusal::of_code(refused) }),
    }
}
