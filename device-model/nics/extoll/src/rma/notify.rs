//! A VPID's notification queue, in its own memory, which the card fills and its owner empties.

use std::sync::atomic::Ordering;

use nicforge_core::{dma::DmaLease, ids::AttachmentId};
use nicforge_hwi::{
    extoll::{error, reg, vector},
    extoll_rma::{MAX_ENTRIES, MIN_ENTRIES, Notification},
};
use nicforge_shm::SharedU64;

use super::Rma;
use crate::{
    failure::Failure,
    ring_registers::{RingLimits, RingRegisters},
    unit::UnitContext,
};

/// Bytes of an entry.
const ENTRY: u64 = size_of::<Notification>() as u64;

/// The queues that RMA can use.
const LIMITS: RingLimits = RingLimits { entries: MIN_ENTRIES..=MAX_ENTRIES, entry: ENTRY };

/// The outcome of writing a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteOutcome {
    Done,
    /// The owner has not taken the oldest notification.
    Full,
    /// The queue's memory was unmapped.
    MemoryGone,
}

/// An enabled queue.
struct Queue {
    memory: DmaLease,
    entries: u64,
    /// Number of notifications written so far.
    written: u64,
    /// Number of notifications that the owner has taken.
    taken: u64,
}

impl Queue {
    /// Writes a notification to the next entry. The word that marks the entry as valid is written
    /// last.
    fn write(&mut self, notification: Notification) -> WriteOutcome {
        if self.written - self.taken == self.entries {
            return WriteOutcome::Full;
        }

        let at = (self.written & (self.entries - 1)) * ENTRY;
        let written = self
            .memory
            .store_u64_relaxed(at + 8, notification.address)
            .and_then(|()| self.memory.store_u64_release(at, notification.head));

        if written.is_err() {
            return WriteOutcome::MemoryGone;
        }

        self.written += 1;
        WriteOutcome::Done
    }
}

/// The notification queue of an attachment, enabled or not.
#[derive(Default)]
pub(super) struct Notifications {
    pub(super) registers: RingRegisters,
    queue: Option<Queue>,
    /// Generation of the queue, which each reset, enabling and disabling increments. A command's
    /// notifications go only to the queue that was enabled when the command was written.
    generation: u32,
    /// The last invalid read pointer. It is not reported again until it changes.
    bad_pointer: Option<u64>,
    /// The client's read pointer of the queue, while a client is attached.
    read_pointer: Option<SharedU64>,
}

impl Notifications {
    /// Returns to the state of power-on, without a queue. `read_pointer` is that of the client, if
    /// there is one.
    pub(super) fn power_on(&mut self, read_pointer: Option<SharedU64>) {
        let generation = self.generation.wrapping_add(1);
        *self = Self { generation, read_pointer, ..Self::default() };
    }

    /// Returns whether the queue is enabled.
    pub(super) fn is_enabled(&self) -> bool {
        self.queue.is_some()
    }

    /// Returns the generation of the queue, which each reset, enabling and disabling increments.
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// Enables a queue in this memory.
    fn enable(&mut self, memory: DmaLease) {
        self.queue = Some(Queue { memory, entries: self.registers.entries, written: 0, taken: 0 });
        // The read pointer counts from the enabling of this queue. A value that an earlier queue
        // left is ignored.
        self.bad_pointer = self.load_read_pointer();
    }

    /// Disables the queue.
    fn disable(&mut self) {
        self.queue = None;
        self.generation = self.generation.wrapping_add(1);
    }

    /// Returns the client's read pointer, if there is a client.
    fn load_read_pointer(&self) -> Option<u64> {
        Some(self.read_pointer.as_ref()?.load(Ordering::Acquire))
    }

    /// Reads the owner's read pointer, and records the notifications that the owner has taken.
    /// Returns an invalid pointer once: until it changes, later calls return `None`.
    fn poll_read_pointer(&mut self) -> Option<u64> {
        let pointer = self.load_read_pointer()?;
        let queue = self.queue.as_mut()?;

        if (queue.taken..=queue.written).contains(&pointer) {
            queue.taken = pointer;
            self.bad_pointer = None;
            return None;
        }
        (self.bad_pointer.replace(pointer) != Some(pointer)).then_some(pointer)
    }

    /// Returns whether the owner has notifications to take.
    fn has_unread(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.written != queue.taken)
    }
}

impl Rma {
    /// Enables or disables a notification queue. A queue that can't be used counts as an error.
    pub(super) fn set_queue_enabled(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        on: bool,
    ) {
        let Some(client) = self.client(attachment) else { return };
        let notifications = &mut client.notifications;
        if on == notifications.is_enabled() {
            return;
        }

        notifications.disable();
        if !on {
            return;
        }

        match unit.lease_ring(attachment, notifications.registers, &LIMITS) {
            Some(memory) => notifications.enable(memory),
            None => unit.fail(attachment, Failure::of_register(error::RING, reg::RMA_QUEUE_ENABLE)),
        }
    }

    /// Reads the owner's read pointer, and returns whether it has notifications to take. A pointer
    /// that is invalid counts as one error until it changes.
    pub(crate) fn poll_notifications(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
    ) -> bool {
        let Some(client) = self.client(attachment) else { return false };
        if let Some(pointer) = client.notifications.poll_read_pointer() {
            unit.fail(attachment, Failure::new(error::READ_POINTER).with_value(Some(pointer)));
        }
        client.notifications.has_unread()
    }

    /// Writes a notification for a VPID, if it has a queue, and raises its interrupt if the queue
    /// was empty.
    pub(super) fn notify(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        notification: Notification,
    ) {
        let was_empty = !self.poll_notifications(unit, attachment);
        let Some(client) = self.client(attachment) else { return };
        let Some(queue) = &mut client.notifications.queue else { return };

        match queue.write(notification) {
            WriteOutcome::Done => {
                client.counts.notifications += 1;
                unit.parts.attachments.mark_changed(attachment);
                if was_empty {
                    unit.raise(attachment, vector::RMA_NOTIFICATION);
                }
            }
            WriteOutcome::Full => {
                client.counts.overflows += 1;
                unit.fail(attachment, Failure::new(error::OVERFLOW));
            }
            WriteOutcome::MemoryGone => {
                client.notifications.disable();
                unit.fail(attachment, Failure::new(error::RING_MEMORY));
            }
        }
    }
}
