//! The two ends of a companion's FIFOs.

use std::sync::Arc;

use rtrb::{Consumer, Producer, PushError, RingBuffer};

use super::{CompanionSpec, CompanionStatus, Halt, incarnation::Incarnation};

/// Reason why a message was not sent. It returns the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError<T> {
    /// The FIFO is full. The sender should try again: a device after the next event, a companion in
    /// its next poll, which follows when the device has received an event.
    Full(T),
    /// The incarnation is over: the companion is halted, or the device has dropped its end.
    Ended(T),
}

/// The device's end of an incarnation of its companion. Dropping it ends the incarnation.
pub struct DeviceEnd<C, E> {
    commands: Producer<C>,
    events: Consumer<E>,
    incarnation: Arc<Incarnation>,
}

/// The companion's end of its FIFOs.
pub struct CompanionEnd<C, E> {
    commands: Consumer<C>,
    events: Producer<E>,
    incarnation: Arc<Incarnation>,
}

/// The companion's way to its device, while it looks at a command in the FIFO. When it is dropped,
/// it wakes the device once for all events that it has sent, so that its holder must drop it before
/// it waits.
pub struct EventSender<'a, E> {
    events: &'a mut Producer<E>,
    incarnation: &'a Incarnation,
    /// Whether it has sent an event.
    has_sent: bool,
}

/// Returns both ends of new FIFOs, for a new incarnation.
pub(super) fn new_ends<C, E>(
    spec: &CompanionSpec,
    incarnation: &Arc<Incarnation>,
) -> (DeviceEnd<C, E>, CompanionEnd<C, E>) {
    let (command_sender, command_receiver) = RingBuffer::new(spec.commands);
    let (event_sender, event_receiver) = RingBuffer::new(spec.events);

    (
        DeviceEnd { commands: command_sender, events: event_receiver, incarnation: Arc::clone(incarnation) },
        CompanionEnd {
            commands: command_receiver,
            events: event_sender,
            incarnation: Arc::clone(incarnation),
        },
    )
}

impl<C, E> DeviceEnd<C, E> {
    /// Sends a command and wakes the companion. It never blocks.
    ///
    /// # Errors
    /// [`SendError`], with the command.
    #[inline]
    pub fn send(&mut self, command: C) -> Result<(), SendError<C>> {
        if !self.incarnation.takes_commands() {
            return Err(SendError::Ended(command));
        }

        self.commands.push(command).map_err(|PushError::Full(command)| SendError::Full(command))?;
        self.incarnation.wake_companion();

        Ok(())
    }

    /// Takes the next event. The events of a companion that hung are not delivered, even if its
    /// poll returns later.
    #[inline]
    pub fn receive(&mut self) -> Option<E> {
        if self.incarnation.is_hung() {
            return None;
        }

        let event = self.events.pop().ok()?;
        // The companion may wait for room for another event.
        self.incarnation.wake_companion();

        Some(event)
    }

    /// Returns the next event, which stays in the FIFO. The events of a companion that hung are not
    /// delivered.
    #[inline]
    pub fn front(&self) -> Option<&E> {
        if self.incarnation.is_hung() { None } else { self.events.peek().ok() }
    }

    /// Returns whether there is no event, and the companion is not halted.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.events.is_empty() && self.incarnation.takes_commands()
    }

    /// Drops the event of [`DeviceEnd::front`], without a copy of it.
    #[inline]
    pub fn drop_front(&mut self) {
        if let Ok(event) = self.events.read_chunk(1) {
            event.commit_all();
            self.incarnation.wake_companion();
        }
    }

    /// Calls `handle` with at most `limit` events in turn, without copies of them, until it returns
    /// false. Drops the events for which it has returned true, and returns their number. The others
    /// stay in the FIFO, as all do after a panic of `handle`.
    #[inline]
    pub fn handle_events(&mut self, limit: usize, mut handle: impl FnMut(&E) -> bool) -> usize {
        if self.incarnation.is_hung() {
            return 0;
        }
        let Ok(events) = self.events.read_chunk(self.events.slots().min(limit)) else { return 0 };
        let (first, wrapped) = events.as_slices();
        let count = first.iter().chain(wrapped).take_while(|event| handle(event)).count();

        events.commit(count);
        if count > 0 {
            self.incarnation.wake_companion();
        }
        count
    }

    /// Returns the state of this incarnation.
    pub fn status(&self) -> CompanionStatus {
        self.incarnation.status()
    }

    /// Returns the reason if the companion is halted.
    pub fn halt(&self) -> Option<Halt> {
        match self.status() {
            CompanionStatus::Halted(halt) => Some(halt),
            CompanionStatus::Running | CompanionStatus::Ended => None,
        }
    }

    /// Returns the number of this incarnation, from 1.
    pub fn epoch(&self) -> u32 {
        self.incarnation.epoch()
    }
}

impl<C, E> Drop for DeviceEnd<C, E> {
    fn drop(&mut self) {
        self.incarnation.end();
    }
}

impl<C, E> CompanionEnd<C, E> {
    /// Takes the next command.
    #[inline]
    pub fn receive(&mut self) -> Option<C> {
        self.commands.pop().ok()
    }

    /// Returns the next command, which stays in the FIFO, and a sender of events. After the work
    /// for the command, the caller must call [`CompanionEnd::drop_front`]. A large command is thus
    /// not copied.
    #[inline]
    pub fn front(&mut self) -> (Option<&C>, EventSender<'_, E>) {
        let sender =
            EventSender { events: &mut self.events, incarnation: &self.incarnation, has_sent: false };
        (self.commands.peek().ok(), sender)
    }

    /// Drops the command of [`CompanionEnd::front`].
    #[inline]
    pub fn drop_front(&mut self) {
        // Costs less than a chunk of one command: an unused copy is left out when optimised.
        let _ = self.commands.pop();
    }

    /// Returns whether there is no command.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Returns the number of events that have room now. It falls only when this end sends.
    #[inline]
    pub fn room(&self) -> usize {
        self.events.slots()
    }

    /// Sends an event and wakes the device. It never blocks.
    ///
    /// # Errors
    /// [`SendError`], with the event.
    #[inline]
    pub fn send(&mut self, event: E) -> Result<(), SendError<E>> {
        EventSender { events: &mut self.events, incarnation: &self.incarnation, has_sent: false }.send(event)
    }

    /// Returns whether a poll may wait: the companion has a thread, and is not stepped.
    pub fn may_wait(&self) -> bool {
        !self.incarnation.is_stepped()
    }

    /// Returns whether the incarnation has ended. A companion that waits within a poll should look
    /// at it now and then, and return.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.incarnation.has_ended()
    }

    /// Returns the number of this incarnation, from 1.
    pub fn epoch(&self) -> u32 {
        self.incarnation.epoch()
    }
}

impl<E> EventSender<'_, E> {
    /// Sends an event. It never blocks.
    ///
    /// # Errors
    /// [`SendError`], with the event.
    #[inline]
    pub fn send(&mut self, event: E) -> Result<(), SendError<E>> {
        if self.incarnation.has_ended() {
            return Err(SendError::Ended(event));
        }

        self.events.push(event).map_err(|PushError::Full(event)| SendError::Full(event))?;
        self.has_sent = true;

        Ok(())
    }

    /// Returns whether the incarnation has ended, as [`CompanionEnd::has_ended`] does.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.incarnation.has_ended()
    }
}

impl<E> Drop for EventSender<'_, E> {
    #[inline]
    fn drop(&mut self) {
        if self.has_sent {
            self.incarnation.wake_device();
        }
    }
}
