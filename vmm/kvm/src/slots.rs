//! The guest addresses that are memory. Each range has a slot of the hypervisor.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use vm_memory::MmapRegion;

use crate::{
    error::VmError,
    event::Event,
    hypervisor::{ExitAddress, Hypervisor, MemoryAccess},
};

/// The number of a slot in use. [`Slots::unmap`] takes it back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Slot(u32);

/// The slots of a virtual machine.
pub(crate) struct Slots {
    hypervisor: Arc<dyn Hypervisor>,
    /// Number of slots that the hypervisor has.
    limit: u32,
    /// The slots in use, by number.
    used: Mutex<BTreeMap<u32, GuestRange>>,
}

/// Guest addresses of a slot, the last one included.
#[derive(Clone, Copy)]
struct GuestRange {
    first: u64,
    last: u64,
}

impl Slots {
    pub(crate) fn new(hypervisor: Arc<dyn Hypervisor>) -> Self {
        let limit = hypervisor.count_slots();
        Self { hypervisor, limit, used: Mutex::default() }
    }

    /// Makes `memory` appear at a guest address, which is a multiple of the page size.
    ///
    /// # Errors
    /// [`VmError::Request`] when another slot has one of the addresses, or when no slot is left.
    /// [`VmError::Kvm`].
    pub(crate) fn map(
        &self,
        address: u64,
        memory: Arc<MmapRegion>,
        access: MemoryAccess,
    ) -> Result<Slot, VmError> {
        let size = memory.size() as u64;
        let last = size.checked_sub(1).and_then(|last| address.checked_add(last));
        let last = last.ok_or_else(|| VmError::Request(format!("{size} bytes at {address:#x}")))?;

        let mut used = self.used();
        let range = GuestRange { first: address, last };
        if let Some(other) = used.values().find(|other| range.first <= other.last && other.first <= last) {
            let text = format!("{size} bytes at {address:#x} overlap memory at {:#x}", other.first);
            return Err(VmError::Request(text));
        }

        let free = (0..self.limit).find(|slot| !used.contains_key(slot));
        let slot = free.ok_or_else(|| VmError::Request("no memory slot is left".into()))?;
        self.hypervisor.add_memory(slot, address, memory, access)?;
        used.insert(slot, range);
        Ok(Slot(slot))
    }

    /// Removes a slot. When it returns, no processor uses its memory.
    pub(crate) fn unmap(&self, slot: Slot) {
        let mut used = self.used();
        match self.hypervisor.remove_memory(slot.0) {
            Ok(()) => drop(used.remove(&slot.0)),
            // The slot stays in use, and the hypervisor keeps its memory: the guest must not reach
            // freed memory.
            Err(error) => tracing::error!(%error, slot = slot.0, "a memory slot cannot be removed"),
        }
    }

    /// Makes each write to an address signal an eventfd: see [`Hypervisor::add_doorbell`].
    pub(crate) fn connect_doorbell(&self, at: ExitAddress, event: &Event) -> Result<(), VmError> {
        self.hypervisor.add_doorbell(at, event)
    }

    /// Makes writes to an address exits again.
    pub(crate) fn disconnect_doorbell(&self, at: ExitAddress, event: &Event) -> Result<(), VmError> {
        self.hypervisor.remove_doorbell(at, event)
    }

    /// Locks the table of slots in use.
    fn used(&self) -> MutexGuard<'_, BTreeMap<u32, GuestRange>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
