//! Commands to a running engine from another thread.

use std::{
    sync::mpsc::{self, RecvTimeoutError, SyncSender, TrySendError},
    time::Duration,
};

use nicforge_core::{
    ids::{AttachmentId, FunctionId},
    machine::{Machine, MachineError},
};

use crate::{engine::Engine, error::HandleError, stats::Snapshot, stop::Waker};

/// Most commands that wait at a time.
pub(crate) const MAX_COMMANDS: usize = 64;

pub(crate) type Command = Box<dyn FnOnce(&mut Control<'_>) + Send>;

/// Access to the engine for a command. The command runs on the engine's thread, between two steps,
/// and must not wait.
pub struct Control<'a> {
    pub(crate) engine: &'a mut Engine,
}

impl Control<'_> {
    /// Returns the machine. Only the engine may attach and detach; see [`Control::evict`].
    pub fn machine(&mut self) -> &mut Machine {
        self.engine.machine_mut()
    }

    /// Returns a snapshot of the engine and its machine.
    pub fn snapshot(&self) -> Snapshot {
        self.engine.snapshot()
    }

    /// Takes an attachment from its client and closes the connection. Returns false when it has no
    /// client.
    pub fn evict(&mut self, function: FunctionId, who: AttachmentId) -> bool {
        self.engine.evict(function, who)
    }

    /// Resets a function, with or without clients.
    ///
    /// # Errors
    /// As [`Machine::reset_function`].
    pub fn reset_function(&mut self, function: FunctionId) -> Result<(), MachineError> {
        self.engine.reset_function(function)
    }
}

/// A handle for a running engine. Clones reach the same one.
#[derive(Clone)]
pub struct EngineHandle {
    commands: SyncSender<Command>,
    waker: Waker,
}

impl EngineHandle {
    pub(crate) fn new(commands: SyncSender<Command>, waker: Waker) -> Self {
        Self { commands, waker }
    }

    /// Runs a command on the engine's thread and waits for its result, for at most `timeout`.
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
            // The caller may have given up; then the result is dropped.
            let _ = answer.try_send(command(control));
        })?;
        answered.recv_timeout(timeout).map_err(|error| match error {
            RecvTimeoutError::Timeout => HandleError::Timeout { milliseconds: timeout.as_millis() },
            RecvTimeoutError::Disconnected => HandleError::Ended,
        })
    }

    /// Runs a command on the engine's thread soon, without waiting for it.
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

    /// Returns a snapshot of the engine and its machine.
    ///
    /// # Errors
    /// [`HandleError`].
    pub fn snapshot(&self, timeout: Duration) -> Result<Snapshot, HandleError> {
        self.call(timeout, |control| control.snapshot())
    }

    /// Takes an attachment from its client. Returns false when it has no client.
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

    /// Resets a function, with or without clients.
    ///
    /// # Errors
    /// [`HandleError`]; the inner result is the machine's.
    pub fn reset_function(
        &self,
        function: FunctionId,
        timeout: Duration,
    ) -> Result<Result<(), MachineError>, HandleError> {
        self.call(timeout, move |control| control.reset_function(function))
    }
}
