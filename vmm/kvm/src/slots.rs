//! KVM's memory slots: the guest addresses that are memory.
//!
//! Each slot keeps its mapping alive for as long as KVM may use it.

#![allow(unsafe_code)]

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use kvm_bindings::{KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::{Cap, IoEventAddress, NoDatamatch, VmFd};
use vm_memory::MmapRegion;

use crate::{error::VmError, event::Event};

/// The accesses of a guest to the memory of a slot. A refused store is an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    ReadWrite,
}

/// A slot in use.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Slot(u32);

struct Mapped {
    region: kvm_userspace_memory_region,
    /// The memory, which must outlive the slot.
    _memory: Arc<MmapRegion>,
}

/// The slots of a virtual machine.
pub(crate) struct Slots {
    vm: Arc<VmFd>,
    limit: u32,
    mapped: Mutex<BTreeMap<u32, Mapped>>,
}

impl Slots {
    pub(crate) fn new(vm: Arc<VmFd>) -> Self {
        let limit = vm.check_extension_int(Cap::NrMemslots).try_into().unwrap_or(32);
        Self { vm, limit, mapped: Mutex::default() }
    }

    /// Makes `memory` appear at a guest address, which is a multiple of the page size.
    ///
    /// # Errors
    /// [`VmError::Kvm`] when another slot has one of the addresses, or when no slot is left.
    pub(crate) fn map(&self, address: u64, memory: Arc<MmapRegion>, access: Access) -> Result<Slot, VmError> {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        let free = (0..self.limit).find(|slot| !mapped.contains_key(slot));
        let slot = free.ok_or_else(|| VmError::Request("KVM has no memory slot left".into()))?;

        let flags = if access == Access::ReadOnly { KVM_MEM_READONLY } else { 0 };
        let region = kvm_userspace_memory_region {
            slot,
            flags,
            guest_phys_addr: address,
            memory_size: memory.size() as u64,
            userspace_addr: memory.as_ptr() as u64,
        };

        // SAFETY: The mapping has these addresses, and `mapped` keeps it for as long as the slot
        // exists. KVM itself refuses a slot that overlaps another one.
        unsafe { self.vm.set_user_memory_region(region) }.map_err(VmError::kvm("a memory slot"))?;
        mapped.insert(slot, Mapped { region, _memory: memory });
        Ok(Slot(slot))
    }

    /// Makes each write to an address, of any width and value, signal an eventfd instead of an
    /// exit.
    ///
    /// # Errors
    /// [`VmError::Kvm`] when another doorbell has the address, or when no more are possible.
    pub(crate) fn connect_doorbell(&self, at: &IoEventAddress, event: &Event) -> Result<(), VmError> {
        let connected = self.vm.register_ioevent(event.for_kvm(), at, NoDatamatch);
        connected.map_err(VmError::kvm("a doorbell"))
    }

    /// Makes writes to an address exits again.
    pub(crate) fn disconnect_doorbell(&self, at: &IoEventAddress, event: &Event) -> Result<(), VmError> {
        let disconnected = self.vm.unregister_ioevent(event.for_kvm(), at, NoDatamatch);
        disconnected.map_err(VmError::kvm("a doorbell"))
    }

    /// Removes a slot. When it returns, no processor uses its memory.
    pub(crate) fn unmap(&self, slot: Slot) {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = mapped.get(&slot.0) else { return };
        let region = kvm_userspace_memory_region { memory_size: 0, ..entry.region };

        // SAFETY: A slot of size 0 refers to no memory.
        match unsafe { self.vm.set_user_memory_region(region) } {
            Ok(()) => drop(mapped.remove(&slot.0)),
            // The mapping stays with its slot, so that the guest reaches no freed memory.
            Err(error) => tracing::error!(%error, slot = slot.0, "a memory slot cannot be removed"),
        }
    }
}
