//! A process in host-based mode.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use nicforge_driver::runtime;
use nicforge_hwi::seastar::{HeaderPacket, INLINE};
use nicforge_seastar_firmware::matching::{self, Events};
use zerocopy::IntoBytes;

use crate::{Error, region::Pieces};

/// Offset of the number in an event, which is written last.
const NUMBER_OFFSET: usize = 60;

/// A process in host-based mode.
pub(super) struct HostProcess {
    /// Number of its start among all starts of processes, by which messages of an earlier process
    /// of its number are told from its own.
    pub(super) start: u32,
    /// Its portals, match entries, descriptors and event queues.
    pub(super) matching: matching::Process,
    /// Its memory, in the order of the addresses.
    regions: Vec<Arc<Pieces>>,
    /// Messages that wait until operations in progress end.
    pub(super) waiting: WaitingArrivals,
}

/// Messages that wait for a process, in order. A node has no more of them than there is room left,
/// so that one which fills the queue leaves room for the others.
#[derive(Default)]
pub(super) struct WaitingArrivals {
    queue: VecDeque<Arrival>,
    /// Number of messages of each node that has some.
    of_node: HashMap<u32, usize>,
}

impl WaitingArrivals {
    /// Returns whether a message of a node may wait too, where `maximum` messages may wait in all.
    pub(super) fn has_room(&self, node: u32, maximum: usize) -> bool {
        let own = self.of_node.get(&node).copied().unwrap_or(0);
        own < maximum.saturating_sub(self.queue.len())
    }

    pub(super) fn push(&mut self, arrival: Arrival) {
        *self.of_node.entry(arrival.packet.trusted.source_node).or_default() += 1;
        self.queue.push_back(arrival);
    }

    pub(super) fn front(&self) -> Option<Arrival> {
        self.queue.front().copied()
    }

    pub(super) fn pop(&mut self) {
        let Some(Arrival { packet, .. }) = self.queue.pop_front() else { return };
        let node = packet.trusted.source_node;
        if let Some(count) = self.of_node.get_mut(&node) {
            *count -= 1;
            if *count == 0 {
                self.of_node.remove(&node);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Removes and returns all messages.
    pub(super) fn take_all(&mut self) -> VecDeque<Arrival> {
        std::mem::take(self).queue
    }
}

/// A message that has arrived, as the firmware has reported it.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) packet: HeaderPacket,
    /// The firmware's number of the message.
    pub(super) token: u32,
}

impl HostProcess {
    pub(super) fn new(start: u32, matching: matching::Process) -> Self {
        Self { start, matching, regions: Vec::new(), waiting: WaitingArrivals::default() }
    }

    /// Adds memory that the process may name.
    pub(super) fn add_region(&mut self, pieces: &Arc<Pieces>) {
        let at = self.regions.partition_point(|other| other.base < pieces.base);
        self.regions.insert(at, pieces.clone());
    }

    /// Returns the region that a range lies in, and its offset there. An empty range may lie
    /// anywhere.
    pub(super) fn region(&self, address: u64, length: u64) -> Option<(&Arc<Pieces>, u64)> {
        let after = self.regions.partition_point(|region| region.base <= address);
        let region = self.regions.get(after.checked_sub(1)?)?;
        let offset = address - region.base;
        let fits = offset.checked_add(length).is_some_and(|end| end <= region.length);
        fits.then_some((region, offset))
    }

    /// Writes events into the process's queues. A queue lies in one buffer of one region, which was
    /// checked when it was allocated.
    pub(super) fn write_events(&self, events: &Events) -> Result<(), Error> {
        for event in events.iter() {
            let Some((region, offset)) = self.region(event.address, size_of_val(&event.record) as u64) else {
                continue;
            };
            let [buffer] = &*region.buffers else { continue };

            let bytes = event.record.as_bytes();
            buffer.write(offset, &bytes[..NUMBER_OFFSET])?;
            // The store is a release: a process that sees the number also sees the rest of the
            // event.
            buffer.window().store_u32_release(offset + NUMBER_OFFSET as u64, event.record.number)?;
            runtime::note_store();
        }
        Ok(())
    }

    /// Writes the first `length` bytes of the data in a header packet to the process's memory.
    pub(super) fn write_inline(&self, address: u64, data: &[u8; INLINE], length: u32) -> Result<(), Error> {
        let mut remaining = &data[..INLINE.min(length as usize)];
        let Some((region, offset)) = self.region(address, remaining.len() as u64) else { return Ok(()) };

        region.for_each_part(offset, remaining.len() as u64, |buffer, at, length| {
            let (part, rest) = remaining.split_at(length as usize);
            remaining = rest;
            Ok(buffer.write(at, part)?)
        })
    }
}
