//! A VPID's notification queue, in its own memory, which the card fills and its owner empties.

use nicforge_core::{context::Context, dma::DmaLease, ids::AttachmentId};
use nicforge_hwi::{
    extoll::{error, reg, vector},
    extoll_rma::{MAX_ENTRIES, MIN_ENTRIES, Notification},
};

use crate::{card::Card, work};

/// Bytes of an entry.
const ENTRY: u64 = size_of::<Notification>() as u64;

/// The registers that describe a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueRegisters {
    pub(crate) base: u64,
    pub(crate) entries: u64,
}

impl QueueRegisters {
    /// Returns whether a queue can have this address and size.
    fn is_sound(self) -> bool {
        self.entries.is_power_of_two()
            && (MIN_ENTRIES..=MAX_ENTRIES).contains(&self.entries)
            && self.base.is_multiple_of(4096)
            && self.base.checked_add(self.entries * ENTRY).is_some()
    }
}

/// The outcome of writing a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Put {
    Done,
    Full,
    MemoryGone,
}

/// An enabled queue.
pub(crate) struct Queue {
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
    fn put(&mut self, notification: Notification) -> Put {
        if self.written - self.taken == self.entries {
            return Put::Full;
        }

        let at = (self.written & (self.entries - 1)) * ENTRY;
        let written = self
            .memory
            .store_u64_relaxed(at + 8, notification.address)
            .and_then(|()| self.memory.store_u64_release(at, notification.head));

        if written.is_err() {
            return Put::MemoryGone;
        }

        self.written += 1;
        Put::Done
    }
}

impl Card {
    /// Handles a write of the notification queue's enable register. A queue that can't be used
    /// counts as an error.
    pub(crate) fn enable_queue(&mut self, context: &mut Context<'_>, who: AttachmentId, on: bool) {
        let admin = self.admin();
        let Some(client) = self.rma.client(who) else { return };
        if on == client.queue.is_some() {
            return;
        }

        client.tenancy = client.tenancy.wrapping_add(1);
        if !on {
            client.queue = None;
            return;
        }

        let registers = client.registers;
        let memory = if who != admin && registers.is_sound() {
            let bytes = registers.entries * ENTRY;
            self.work.spend(work::of_lease(context, who, registers.base, bytes));
            let memory = context.dma_lease(who, registers.base, bytes, true).ok();
            // An entry may lie in two mappings, but each half is written in one access.
            memory.filter(|memory| memory.keeps_whole(8))
        } else {
            None
        };

        match memory {
            Some(memory) => {
                // The read pointer counts from the enabling of this queue. A value that an earlier
                // queue left is ignored.
                client.queue = Some(Queue { memory, entries: registers.entries, written: 0, taken: 0 });
                client.bad_pointer =
                    self.vpids.get(usize::from(who.0)).and_then(crate::vpid::Vpid::rma_read_pointer);
            }
            None => self.fail(context, who, error::RING, reg::RMA_QUEUE_ENABLE),
        }
    }

    /// Reads the owner's read pointer. A value that makes no sense counts as one error until it
    /// changes.
    fn look_at_queue(&mut self, context: &mut Context<'_>, who: AttachmentId) {
        let Some(pointer) = self.vpids.get(usize::from(who.0)).and_then(crate::vpid::Vpid::rma_read_pointer)
        else {
            return;
        };

        let Some(client) = self.rma.client(who) else { return };
        let Some(queue) = &mut client.queue else { return };

        if (queue.taken..=queue.written).contains(&pointer) {
            queue.taken = pointer;
            client.bad_pointer = None;
        } else if client.bad_pointer != Some(pointer) {
            client.bad_pointer = Some(pointer);
            self.fail(context, who, error::READ_POINTER, pointer);
        }
    }

    /// Reads the owner's read pointer, and returns whether it has notifications to take.
    pub(crate) fn poll_notifications(&mut self, context: &mut Context<'_>, who: AttachmentId) -> bool {
        self.look_at_queue(context, who);
        let queue = self.rma.client(who).and_then(|client| client.queue.as_ref());
        queue.is_some_and(|queue| queue.written != queue.taken)
    }

    /// Writes a notification for a VPID, if it has a queue, and raises its interrupt if the queue
    /// was empty.
    pub(crate) fn notify(
        &mut self,
        context: &mut Context<'_>,
        who: AttachmentId,
        notification: Notification,
    ) {
        self.look_at_queue(context, who);

        let Some(client) = self.rma.client(who) else { return };
        let Some(queue) = &mut client.queue else { return };
        let first = queue.written == queue.taken;

        match queue.put(notification) {
            Put::Done => {
                client.counts.notifications += 1;
                self.show(who);
                if first {
                    self.raise(context, who, vector::RMA_NOTIFICATION);
                }
            }
            Put::Full => {
                client.counts.overflows += 1;
                self.fail(context, who, error::OVERFLOW, 0);
            }
            Put::MemoryGone => {
                client.queue = None;
                client.tenancy = client.tenancy.wrapping_add(1);
                self.fail(context, who, error::RING_MEMORY, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_queues_are_unsound() {
        let sound = QueueRegisters { base: 0x1000, entries: 64 };
        assert!(sound.is_sound());
        let unsound = [
            QueueRegisters { base: 0x1008, ..sound },
            QueueRegisters { entries: 0, ..sound },
            QueueRegisters { entries: 65, ..sound },
            QueueRegisters { entries: 32, ..sound },
            QueueRegisters { entries: 1 << 17, ..sound },
            QueueRegisters { base: 0xffff_ffff_ffff_f000, entries: 1024 },
        ];
        assert!(unsound.iter().all(|registers| !registers.is_sound()));
    }
}
