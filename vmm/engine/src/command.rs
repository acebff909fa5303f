//! Commands to a running engine from another thread.

use std::{
    sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError},
    time::Duration,
};

use nicforge_core::{
    ids::{AttachmentId, FunctionId},
    machine::{Machine, MachineError},
};

use crate::{
    engine::Engine,
    error::{EngineError, HandleError},
    stats::EngineSnapshot,
    stop::Waker,
};

/// Maximum number of commands that wait at a time.
const MAX_COMMANDS: usize = 64;

type Command = Box<dyn FnOnce(&mut Control<'_>) + Send>;

/// The engine's end of the queue of commands, and the eventfd that other threads wake it by.
pub(crate) struct CommandQueue {
    waker: Waker,
    receiver: Receiver<Command>,
    sender: SyncSender<Command>,
}

impl CommandQueue {
    pub(crate) fn new() -> Result<Self, EngineError> {
        let (sender, receiver) = mpsc::sync_channel(MAX_COMMANDS);
        Ok(Self { waker: Waker::new()?, receiver, sender })
    }

    /// Returns the eventfd that wakes the engine.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Returns a handle that sends commands to the engine.
    pub(crate) fn handle(&self) -> EngineHandle {
        EngineHandle { commands: self.sender.clone(), waker: self.waker.clone() }
    }
}

impl Engine {
    /// Handles what other threads wake the engine for: mappings that were made, items that were
    /// closed, and commands.
    pub(crate) fn on_wake(&mut self) {
        self.commands.waker.clear();
        while let Some(mapped) = self.mapper.take_done() {
            self.on_mapped(mapped);
        }
        self.resume_held();

        for _ in 0..MAX_COMMANDS {
            let Ok(command) = self.commands.receiver.try_recv() else { return };
            command(&mut Control { engine: self });
        }
        // Callers may refill the queue as fast as it is emptied, so the rest waits for the next
        // round.
        self.commands.waker.wake();
    }
}

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
    pub fn snapshot(&mut self) -> EngineSnapshot {
        self.engine.snapshot()
    }

    /// Takes an attachment from its client and closes the connection. Returns false when it has no
    /// client.
    pub fn evict(&mut self, function: FunctionId, attachment: AttachmentId) -> bool {
        self.engine.evict(function, attachment)
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
    /// Runs a command on the engine's thread and waits for its result, for at most `timeout`.
    ///
    /// # Errors
    /// [`HandleError`].
    pub fn call<R: Send + 'static>(
        &self,
        timeout: Duration,
        command: impl FnOnce(&mut Control<'_>) -> R + Send + 'static,
    ) -> Result<R, HandleError> {
        let (result_sender, result_receiver) = mpsc::sync_channel(1);
        self.send(move |control| {
            // The caller may have given up; then the result is dropped.
            let _ = result_sender.try_send(command(control));
        })?;
        result_receiver.recv_timeout(timeout).map_err(|error| match error {
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
    pub fn snapshot(&self, timeout: Duration) -> Result<EngineSnapshot, HandleError> {
        self.call(timeout, |control| control.snapshot())
    }

    /// Takes an attachment from its client. Returns false when it has no client.
    ///
    /// # Errors
    /// [`HandleError`].
    pub fn evict(
        &self,
        function: FunctionId,
        attachment: AttachmentId,
        timeout: Duration,
    ) -> Result<bool, HandleError> {
        self.call(timeout, move |control| control.evict(function, attachment))
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
