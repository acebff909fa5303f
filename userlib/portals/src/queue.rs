//! Event queues: events in the process's memory, which the firmware or the kernel writes.

use std::{fmt, sync::Arc, sync::Mutex};

use nicforge_driver::{Cancel, Deadline, Waiter, runtime};
use nicforge_hwi::seastar::{Command, Event as EventRecord, command};
use nicforge_shm::Window;
use zerocopy::FromBytes;

use crate::{Error, Event, link::Link};

/// Bytes of an event.
pub(crate) const EVENT_BYTES: u64 = size_of::<EventRecord>() as u64;
/// Offset of the number in an event, which is written last.
const NUMBER_OFFSET: u64 = EVENT_BYTES - 4;

/// An event queue (`ptl_handle_eq_t`). Clones share the queue. Events that are not taken in time
/// are written over, and the next call reports [`Error::EventsLost`].
#[derive(Clone)]
pub struct EventQueue(pub(crate) Arc<Shared>);

/// The memory of an event queue.
pub(crate) struct QueueMemory {
    pub(crate) window: Window,
    /// Its address in the process's address space.
    pub(crate) address: u64,
}

/// The part of an event queue that its clones share.
pub(crate) struct Shared {
    link: Arc<Link>,
    /// The card's handle of the queue.
    handle: u32,
    /// Address of its memory in the process's address space.
    address: u64,
    ring: Ring,
}

/// The ring of events in memory, of which this process is the consumer.
struct Ring {
    memory: Window,
    /// Number of slots less one; the number is a power of two.
    mask: u32,
    /// Number of events taken, modulo 2^32.
    taken: Mutex<u32>,
}

impl EventQueue {
    /// Makes a queue of `events` slots, a power of two, in zeroed memory.
    pub(crate) fn new(link: &Arc<Link>, handle: u32, memory: QueueMemory, events: u32) -> Self {
        let QueueMemory { window, address } = memory;
        let ring = Ring { memory: window, mask: events - 1, taken: Mutex::new(0) };
        Self(Arc::new(Shared { link: link.clone(), handle, address, ring }))
    }

    /// Returns the card's handle of the queue.
    pub(crate) fn handle(&self) -> u32 {
        self.0.handle
    }

    /// Returns the link of the queue's interface.
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.0.link
    }

    /// Returns the number of events taken, modulo 2^32.
    pub(crate) fn taken(&self) -> u32 {
        *runtime::lock(&self.0.ring.taken)
    }

    /// Returns the number of events that the queue can hold.
    pub fn capacity(&self) -> u32 {
        self.0.ring.capacity()
    }

    /// Takes the next event (`PtlEQGet`), or returns `None` if there is none (`PTL_EQ_EMPTY`).
    ///
    /// # Errors
    /// [`Error::EventsLost`]; the error that [`Error::is_gone`] names, if there is no event.
    pub fn get(&self) -> Result<Option<Event>, Error> {
        if let Some(event) = self.0.ring.take()? {
            return Ok(Some(event));
        }

        let may_have_events = self.0.link.progress()?;
        if may_have_events { self.0.ring.take() } else { Ok(None) }
    }

    /// Waits for the next event and takes it (`PtlEQWait`).
    ///
    /// # Errors
    /// As for [`EventQueue::get`]; [`Error::Timeout`]; [`Error::Cancelled`].
    pub fn wait(&self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<Event, Error> {
        wait_any(&[self], deadline, cancel).map(|(_, event)| event)
    }
}

impl Ring {
    /// Returns the number of events that it can hold. The writer may be filling one slot more.
    fn capacity(&self) -> u32 {
        self.mask
    }

    /// Takes the next event from memory, if it is there. The number of an event is its index plus
    /// 1.
    #[inline]
    fn take(&self) -> Result<Option<Event>, Error> {
        let mut taken = runtime::lock(&self.taken);
        let number = taken.wrapping_add(1);
        let slot = self.slot_offset(*taken);
        let found = self.memory.load_u32_acquire(slot + NUMBER_OFFSET)?;
        if found != number {
            // A later event in the slot means that all before it are lost.
            let is_newer = is_after(found, number);
            return if is_newer { Err(skip_to(&mut taken, found.wrapping_sub(1))) } else { Ok(None) };
        }

        let mut bytes = [0; EVENT_BYTES as usize];
        self.memory.read_array(slot, &mut bytes)?;
        // Events are written in order. If the previous slot has a later event than this one, the
        // writer may have begun to overwrite this slot during the copy. The oldest event that is
        // certainly intact then comes `mask` - 1 events before the one in the previous slot.
        let previous =
            self.memory.load_u32_acquire(self.slot_offset(taken.wrapping_sub(1)) + NUMBER_OFFSET)?;
        if is_after(previous, number) {
            return Err(skip_to(&mut taken, previous.wrapping_sub(self.mask)));
        }

        *taken = number;
        runtime::charge(runtime::Cost::ReceiveMessage, 1);
        let record = EventRecord::read_from_bytes(&bytes).unwrap_or_default();
        Ok(Event::decode(&record))
    }

    /// Returns the offset of the slot of the event with this index.
    #[inline]
    fn slot_offset(&self, index: u32) -> u64 {
        u64::from(index & self.mask) * EVENT_BYTES
    }
}

/// Moves on to the event with index `next`. Returns the error that reports the events skipped.
#[cold]
fn skip_to(taken: &mut u32, next: u32) -> Error {
    let lost = next.wrapping_sub(*taken);
    *taken = next;
    Error::EventsLost { lost }
}

/// Returns whether an event's number is later than another one's. A slot without an event has
/// number 0, or one of the round before.
fn is_after(number: u32, other: u32) -> bool {
    number != other && number.wrapping_sub(other) < 1 << 31 && number != 0
}

/// Waits for an event of any of the queues, and returns it with the position of its queue.
pub(crate) fn wait_any(
    queues: &[&EventQueue],
    deadline: Deadline,
    cancel: Option<&Cancel>,
) -> Result<(usize, Event), Error> {
    const AWAITED: &str = "an event";
    let Some(first) = queues.first() else { return Err(Error::Timeout { what: AWAITED }) };
    let device = first.link().device();
    let mut waiter = Waiter::new(device, deadline, cancel);

    loop {
        // An error of one queue is reported only if no other queue has an event.
        let mut checked = Ok(());
        for (position, queue) in queues.iter().enumerate() {
            match queue.get() {
                Ok(Some(event)) => return Ok((position, event)),
                Ok(None) => {}
                Err(error @ Error::EventsLost { .. }) => return Err(error),
                Err(error) => checked = Err(error),
            }
        }

        checked?;
        waiter.check().map_err(|end| Error::of_wait(end, AWAITED))?;
        waiter.pause(device)?;
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // In a child of `fork`, the queue is the parent's.
        if self.link.device().is_inherited() {
            return;
        }

        // This fails on a lost card, and for a queue that descriptors use, which stays until the
        // interface ends. The memory is then not used again.
        let free = Command { kind: command::FREE_QUEUE, handle: self.handle, ..Command::default() };
        let is_freed = self.link.call("PtlEQFree", &free).is_ok();
        if is_freed {
            let (window, address) = (self.ring.memory.clone(), self.address);
            self.link.release_queue(QueueMemory { window, address });
        }
    }
}

impl fmt::Debug for EventQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventQueue").field("handle", &self.0.handle).field("taken", &self.taken()).finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use nicforge_shm::SharedMemory;
    use zerocopy::IntoBytes;

    use super::*;

    /// A queue of 8 slots, `start` of whose events were written and taken.
    fn ring(start: u32) -> Ring {
        let memory = SharedMemory::create("events", 4096).unwrap().window(0, 8 * EVENT_BYTES).unwrap();
        let ring = Ring { memory, mask: 7, taken: Mutex::new(start) };
        for number in start.saturating_sub(8)..start {
            write(&ring, number);
        }
        ring
    }

    /// Writes an event as the card does. Its link is its number.
    fn write(ring: &Ring, number: u32) {
        let record = EventRecord { link: number, number: number.wrapping_add(1), ..EventRecord::default() };
        ring.memory.write(ring.slot_offset(number), record.as_bytes()).unwrap();
    }

    fn link(ring: &Ring) -> Option<u32> {
        ring.take().unwrap().map(|event| event.link)
    }

    #[test]
    fn events_are_taken_in_order_and_once() {
        let ring = ring(0);
        assert_eq!(ring.take(), Ok(None));
        for number in 0..100 {
            write(&ring, number);
            assert_eq!((link(&ring), link(&ring)), (Some(number), None));
        }
    }

    #[test]
    fn a_full_queue_loses_nothing() {
        let ring = ring(5);
        (5..12).for_each(|number| write(&ring, number));
        (5..12).for_each(|number| assert_eq!(link(&ring), Some(number)));
        assert_eq!(link(&ring), None);
    }

    #[test]
    fn events_that_were_written_over_are_reported_once() {
        let ring = ring(0);
        (0..21).for_each(|number| write(&ring, number));

        // The slot of event 0 has event 16.
        assert_eq!(ring.take(), Err(Error::EventsLost { lost: 16 }));
        (16..21).for_each(|number| assert_eq!(link(&ring), Some(number)));
        assert_eq!(link(&ring), None);
    }

    #[test]
    fn an_event_beside_one_that_was_written_over_is_not_trusted() {
        let ring = ring(8);
        // Event 8 is there, but event 16 may be on its way into its slot.
        (8..16).for_each(|number| write(&ring, number));

        assert_eq!(ring.take(), Err(Error::EventsLost { lost: 1 }));
        (9..16).for_each(|number| assert_eq!(link(&ring), Some(number)));
    }

    #[test]
    fn numbers_wrap() {
        let ring = ring(u32::MAX - 2);
        for step in 0..6 {
            let number = (u32::MAX - 2).wrapping_add(step);
            write(&ring, number);
            assert_eq!(link(&ring), Some(number));
        }
    }
}
