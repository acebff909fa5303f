//! Asking a running engine for something, from another thread.

use std::{
    sync::mpsc::{self, RecvTimeoutError, SyncSender, TrySendError},
    time::Duration,
};

use nicforge_core::{
    device::{AttachmentId, FunctionId},
    machine::{Machine, MachineError},
};

use crate::{engine::Engine, error::HandleError, stats::Snapshot, stop::Waker};

/// Commands that wait at most.
pub(crate) const MAX_COMMANDS: usize = 64;

pub(crate) type Command = Box<dyn FnOnce(&mut Control<'_>) + Send>;

/// What a command may do. It runs on the engine's thread, between two steps, and must not wait.
pub struct Control<'a> {
    pub(crate) engine: &'a mut Engine,
}

impl Control<'_> {
    /// The machine. Attaching and detaching is the engine's; see [`Control::evict`].
    pub fn machine(&mut self) -> &mut Machine {
        self.engine.machine_mut()
    }

    /// What there is to tell.
    pub fn snapshot(&self) -> Snapshot {
        self.engine.snapshot()
    }

    /// Take an attachment from its client: its connection is closed. False when nobody has it.
    pub fn evict(&mut self, function: FunctionId, who: AttachmentId) -> bool {
        self.engine.evict(function, who)
    }

    /// Reset a function, clients or not.
    ///
    /// # Errors
    /// As [`Machine::reset_function`].
    pub fn reset_function(&mut self, function: FunctionId) -> Result<(), MachineError> {
        self.engine.reset_function(function)
    }
}

/// A way to reach a running engine. Clones reach the same one.
#[derive(Clone)]
pub struct EngineHandle {
    commands: SyncSender<Command>,
    waker: Waker,
}

impl EngineHandle {
    pub(crate) fn new(commands: SyncSender<Command>, waker: Waker) -> Self {
        Self { commands, waker }
    }

    /// Run a command on the engine's thread and wait for what it gives.
    ///
    /// # Errors
    /// [`HandleError`].
    pub fn call<R: Send + 'static>(
        &self,
        timeout: Duration,
        command: impl FnOnce(&mut Control<'_>) -> R + Send + 'static,
    ) -> Result<R, HandleError> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.send(move |control| {
            // Nobody is left to hear it when the caller has given up.
            let _ = answer.try_send(command(control));
        })?;
        answered.recv_timeout(timeout).map_err(|error| match error {
            RecvTimeoutError::Timeout => HandleError::Timeout { milliseconds: timeout.as_millis() },
            RecvTimeoutError::Disconnected => HandleError::Ended,
        })
    }

    /// Run a command on the engine's thread soon.
    ///
    /// # Errors
    /// [`HandleError::Full`], [`HandleError::Ended`].
    pub fn send(&self, command: impl FnOnce(&mut Control<'_>) + Send + 'static) -> Result<(), HandleError> {
        self.commands.try_send(Box::new(command)).map_err(|error| match error {
            TrySendError::Full(_) => HandleError::Full { limit: MAX_COMMANDS },
            TrySendError::Disconnected(_) => HandleError::Ended,
        })?;
        self.waker.wake();
        Ok(())
    }

    /// What there is to tell.
    ///
    /// # Errors
    /// [`HandleError`].
    pub fn snapshot(&self, timeout: Duration) -> Result<Snapshot, HandleError> {
        self.call(timeout, |control| control.snapshot())
    }

    /// Take an attachment from its client. False when nobody has it.
    ///
    /// # Errors
    /// [`HandleError`].
    pub fn evict(
        &self,
        function: FunctionId,
        who: AttachmentId,
        timeout: Duration,
    ) -> Result<bool, HandleError> {
        self.call(timeout, move |control| control.evict(function, who))
    }

    /// Reset a function, clients or not.
    ///
    /// # Errors
    /// [`HandleError`], and within it what the machine says.
    pub fn reset_function(
        &self,
        function: FunctionId,
        timeout: Duration,
    ) -> Result<Result<(), MachineError>, HandleError> {
        self.call(timeout, move |control| control.reset_function(function))
    }
}
