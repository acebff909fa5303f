//! The two ends of a companion's FIFOs.

use std::sync::{
    Arc,
    mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
};

use super::{CompanionSpec, CompanionStatus, Halt, life::Life};

/// Reason why a message was not sent. It returns the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError<T> {
    /// The FIFO is full. The sender should try again: a device after the next event, a companion in
    /// its next poll, which follows when the device has received an event.
    Full(T),
    /// The life is over: the companion is halted, or the device has dropped its end.
    Ended(T),
}

/// The device's end of a life of its companion. Dropping it ends the life.
pub struct DeviceEnd<C, E> {
    commands: SyncSender<C>,
    events: Receiver<E>,
    life: Arc<Life>,
}

/// The companion's end of its FIFOs.
pub struct CompanionEnd<C, E> {
    commands: Receiver<C>,
    events: SyncSender<E>,
    life: Arc<Life>,
}

/// Returns both ends of new FIFOs.
pub(super) fn ends<C, E>(spec: &CompanionSpec, life: &Arc<Life>) -> (DeviceEnd<C, E>, CompanionEnd<C, E>) {
    let (command_sender, commands) = sync_channel(spec.commands);
    let (event_sender, events) = sync_channel(spec.events);

    (
        DeviceEnd { commands: command_sender, events, life: Arc::clone(life) },
        CompanionEnd { commands, events: event_sender, life: Arc::clone(life) },
    )
}

impl<C, E> DeviceEnd<C, E> {
    /// Sends a command and wakes the companion. It never blocks.
    ///
    /// # Errors
    /// [`SendError`], with the command.
    pub fn send(&self, command: C) -> Result<(), SendError<C>> {
        if self.status() != CompanionStatus::Running {
            return Err(SendError::Ended(command));
        }

        self.commands.try_send(command).map_err(|error| match error {
            TrySendError::Full(command) => SendError::Full(command),
            TrySendError::Disconnected(command) => SendError::Ended(command),
        })?;
        self.life.wake_companion();

        Ok(())
    }

    /// Takes the next event. A companion that hung has none, even if it returns.
    pub fn receive(&self) -> Option<E> {
        if self.life.is_hung() {
            return None;
        }

        let event = self.events.try_recv().ok()?;
        // The companion may wait for room.
        self.life.wake_companion();

        Some(event)
    }

    /// Returns the state of this life.
    pub fn status(&self) -> CompanionStatus {
        self.life.status()
    }

    /// Returns the reason if the companion is halted.
    pub fn halt(&self) -> Option<Halt> {
        match self.status() {
            CompanionStatus::Halted(halt) => Some(halt),
            CompanionStatus::Running | CompanionStatus::Ended => None,
        }
    }

    /// Returns the number of this life, from 1.
    pub fn epoch(&self) -> u32 {
        self.life.epoch()
    }
}

impl<C, E> Drop for DeviceEnd<C, E> {
    fn drop(&mut self) {
        self.life.end();
    }
}

impl<C, E> CompanionEnd<C, E> {
    /// Takes the next command.
    pub fn receive(&mut self) -> Option<C> {
        self.commands.try_recv().ok()
    }

    /// Sends an event and wakes the device. It never blocks.
    ///
    /// # Errors
    /// [`SendError`], with the event.
    pub fn send(&mut self, event: E) -> Result<(), SendError<E>> {
        self.events.try_send(event).map_err(|error| match error {
            TrySendError::Full(event) => SendError::Full(event),
            TrySendError::Disconnected(event) => SendError::Ended(event),
        })?;
        self.life.wake_device();

        Ok(())
    }

    /// Returns whether the life has ended. A companion that waits within a poll should look at it
    /// now and then, and return.
    pub fn has_ended(&self) -> bool {
        self.life.has_ended()
    }

    /// Returns the number of this life, from 1.
    pub fn epoch(&self) -> u32 {
        self.life.epoch()
    }
}
