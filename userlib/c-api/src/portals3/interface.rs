//! A network interface, its memory, and the events of descriptors that have no queue.

use std::sync::{Mutex, OnceLock};

use nicforge_driver::runtime::lock;
use nicforge_portals::{Error, EventKind, EventQueue, Interface, Mode, Region};

use super::{failure::failure, library::with_objects};
use crate::support::Failure;

/// Maximum number of descriptors of a process in NIC-based mode.
pub(super) const NIC_BASED_DESCRIPTORS: u32 = 4096;
/// Maximum number of descriptors of a process in host-based mode.
pub(super) const HOST_BASED_DESCRIPTORS: u32 = 16_384;

/// Memory that the program has allocated.
struct Allocation {
    /// Its address in this process.
    start: usize,
    region: Region,
}

/// A network interface. The order of the fields is that of their drop.
pub(super) struct NetworkInterface {
    /// An event queue of this crate, for descriptors that are unlinked automatically and have no
    /// queue of the program. Its events report when the handles of such descriptors become invalid.
    unlink_queue: OnceLock<EventQueue>,
    interface: Interface,
    /// The allocated memory, ordered by address.
    memory: Mutex<Vec<Allocation>>,
}

impl NetworkInterface {
    /// Returns a network interface without memory.
    pub(super) fn new(interface: Interface) -> Self {
        Self { unlink_queue: OnceLock::new(), interface, memory: Mutex::default() }
    }

    /// Returns the interface in the Portals library for Rust.
    pub(super) fn portals(&self) -> &Interface {
        &self.interface
    }

    /// Returns the maximum number of descriptors in the interface's mode.
    pub(super) fn max_descriptors(&self) -> u32 {
        match self.interface.mode() {
            Mode::NicBased => NIC_BASED_DESCRIPTORS,
            Mode::HostBased => HOST_BASED_DESCRIPTORS,
        }
    }

    /// Allocates memory and returns its address.
    pub(super) fn allocate(&self, bytes: u64) -> Result<usize, Failure> {
        let mut memory = lock(&self.memory);
        let region = self.interface.allocate(bytes).map_err(failure)?;
        let size = region.len();
        let buffer = region.buffer().ok_or(Error::OutOfRange { offset: 0, length: bytes, size });
        let start = buffer.map_err(failure)?.window().base_address();

        let position = memory.partition_point(|other| other.start < start);
        memory.insert(position, Allocation { start, region });
        Ok(start)
    }

    /// Returns the region that a range of memory lies in, and the range's offset there. An empty
    /// range may lie anywhere: if no region contains it, it is located in any region.
    pub(super) fn locate(&self, start: usize, length: u64) -> Result<Option<(Region, u64)>, Failure> {
        if let Some(found) = self.find(start, length) {
            return Ok(Some(found));
        }
        if length > 0 {
            return Ok(None);
        }

        let first = lock(&self.memory).first().map(|allocation| allocation.region.clone());
        if let Some(region) = first {
            return Ok(Some((region, 0)));
        }
        let start_of_new = self.allocate(1)?;
        Ok(self.find(start_of_new, 0))
    }

    /// Returns the region that contains a range of memory, and the range's offset there.
    fn find(&self, start: usize, length: u64) -> Option<(Region, u64)> {
        let memory = lock(&self.memory);
        // The last allocation that begins at the range's start or before it.
        let count_before = memory.partition_point(|allocation| allocation.start <= start);
        let allocation = memory.get(count_before.checked_sub(1)?)?;
        let offset = (start - allocation.start) as u64;
        let fits = offset.checked_add(length).is_some_and(|end| end <= allocation.region.len());
        fits.then(|| (allocation.region.clone(), offset))
    }

    /// Returns the queue that reports automatic unlinks, or `None` if there is no room for it. The
    /// handles of descriptors that need it then stay valid until the program unlinks them.
    pub(super) fn unlink_queue(&self) -> Option<&EventQueue> {
        if self.unlink_queue.get().is_none()
            && let Ok(queue) = self.interface.allocate_queue(self.max_descriptors() - 1)
        {
            // If another thread has set its queue first, that one stays.
            let _ = self.unlink_queue.set(queue);
        }
        self.unlink_queue.get()
    }

    /// Retires the handles of descriptors that were unlinked automatically, as the unlink queue
    /// reports.
    pub(super) fn retire_unlinked(&self) -> Result<(), Failure> {
        let Some(unlink_queue) = self.unlink_queue.get() else { return Ok(()) };
        for _ in 0..self.max_descriptors() {
            match unlink_queue.get() {
                Ok(None) => break,
                Ok(Some(event)) if event.kind == EventKind::Unlink => with_objects(|objects| {
                    objects.retire_descriptor(event.user_pointer as u32);
                    Ok(())
                })?,
                Ok(Some(_)) | Err(Error::EventsLost { .. }) => {}
                Err(error) => return Err(failure(error)),
            }
        }
        Ok(())
    }
}
