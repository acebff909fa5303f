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
    used: Mutex<BTreeMap<u32, UsedSlot>>,
}

/// A slot in use.
struct UsedSlot {
    range: GuestRange,
    /// The hypervisor has refused to remove it, so it is to be removed at the next occasion.
    is_leaving: bool,
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
        self.remove_leaving(&mut used);
        let range = GuestRange { first: address, last };
        let mut ranges = used.values().map(|slot| slot.range);
        if let Some(other) = ranges.find(|other| range.first <= other.last && other.first <= last) {
            let text = format!("{size} bytes at {address:#x} overlap memory at {:#x}", other.first);
            return Err(VmError::Request(text));
        }

        let free = (0..self.limit).find(|slot| !used.contains_key(slot));
        let slot = free.ok_or_else(|| VmError::Request("no memory slot is left".into()))?;
        self.hypervisor.add_memory(slot, address, memory, access)?;
        used.insert(slot, UsedSlot { range, is_leaving: false });
        Ok(Slot(slot))
    }

    /// Removes a slot. When it returns, no processor uses its memory, unless the hypervisor
    /// refuses. Then a later call of [`Slots::map`] or of this removes the slot.
    pub(crate) fn unmap(&self, slot: Slot) {
        let mut used = self.used();
        if let Some(slot) = used.get_mut(&slot.0) {
            slot.is_leaving = true;
        }
        self.remove_leaving(&mut used);
        if used.contains_key(&slot.0) {
            tracing::error!(slot = slot.0, "a memory slot cannot be removed now");
        }
    }

    /// Removes the slots that are to be removed.
    fn remove_leaving(&self, used: &mut BTreeMap<u32, UsedSlot>) {
        used.retain(|number, slot| {
            if !slot.is_leaving {
                return true;
            }
            let removed = self.hypervisor.remove_memory(*number);
            // A slot that stays is in use, and the hypervisor keeps its memory: the guest must not
            // reach freed memory.
            removed
                .inspect_err(|error| tracing::debug!(%error, slot = number, "a memory slot stays"))
                .is_err()
        });
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
    fn used(&self) -> MutexGuard<'_, BTreeMap<u32, UsedSlot>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
