//! KVM as the hypervisor of the devices.
//!
//! UNSAFETY: KVM lets the guest reach the addresses of this process that a memory slot names. Each
//! slot keeps its mapping alive for as long as KVM may use it.

#![allow(unsafe_code)]

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kvm_bindings::{
    KVM_IRQ_ROUTING_IRQCHIP, KVM_IRQ_ROUTING_MSI, KVM_IRQCHIP_IOAPIC, KVM_MEM_READONLY, KvmIrqRouting,
    kvm_irq_routing_entry, kvm_userspace_memory_region,
};
use kvm_ioctls::{Cap, IoEventAddress, NoDatamatch, VmFd};
use vm_memory::MmapRegion;

use super::{ExitAddress, Hypervisor, MemoryAccess, Message, Route};
use crate::{error::VmError, event::Event};

/// Number of memory slots that any KVM has, for one that does not say how many.
const LEAST_SLOTS: u32 = 32;

/// A virtual machine of KVM, with KVM's interrupt controllers.
pub(crate) struct KvmMachine {
    vm: Arc<VmFd>,
    slots: Mutex<BTreeMap<u32, Slot>>,
}

/// A memory slot in use.
struct Slot {
    region: kvm_userspace_memory_region,
    /// The memory, which must outlive the slot.
    _memory: Arc<MmapRegion>,
}

impl KvmMachine {
    /// Makes the interrupt controllers of a machine without processors.
    pub(crate) fn new(vm: Arc<VmFd>) -> Result<Self, VmError> {
        vm.create_irq_chip().map_err(VmError::kvm("the interrupt controllers"))?;
        Ok(Self { vm, slots: Mutex::default() })
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<u32, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hypervisor for KvmMachine {
    fn count_slots(&self) -> u32 {
        self.vm.check_extension_int(Cap::NrMemslots).try_into().unwrap_or(LEAST_SLOTS)
    }

    fn add_memory(
        &self,
        slot: u32,
        address: u64,
        memory: Arc<MmapRegion>,
        access: MemoryAccess,
    ) -> Result<(), VmError> {
        let region = kvm_userspace_memory_region {
            slot,
            flags: if access == MemoryAccess::ReadOnly { KVM_MEM_READONLY } else { 0 },
            guest_phys_addr: address,
            memory_size: memory.size() as u64,
            userspace_addr: memory.as_ptr() as u64,
        };

        let mut slots = self.slots();
        if slots.contains_key(&slot) {
            return Err(VmError::Request(format!("memory slot {slot} is not free")));
        }
        // SAFETY: The mapping has these addresses, and `slots` keeps it for as long as the slot
        // exists. KVM itself refuses a slot that overlaps another one.
        unsafe { self.vm.set_user_memory_region(region) }.map_err(VmError::kvm("a memory slot"))?;
        slots.insert(slot, Slot { region, _memory: memory });
        Ok(())
    }

    fn remove_memory(&self, slot: u32) -> Result<(), VmError> {
        let mut slots = self.slots();
        let Some(entry) = slots.get(&slot) else { return Ok(()) };
        let region = kvm_userspace_memory_region { memory_size: 0, ..entry.region };

        // SAFETY: A region of size 0 removes the slot. If KVM refuses, `slots` keeps the memory.
        unsafe { self.vm.set_user_memory_region(region) }.map_err(VmError::kvm("a memory slot"))?;
        slots.remove(&slot);
        Ok(())
    }

    fn add_doorbell(&self, at: ExitAddress, event: &Event) -> Result<(), VmError> {
        let added = self.vm.register_ioevent(event.for_kvm(), &at.into(), NoDatamatch);
        added.map_err(VmError::kvm("a doorbell"))
    }

    fn remove_doorbell(&self, at: ExitAddress, event: &Event) -> Result<(), VmError> {
        let removed = self.vm.unregister_ioevent(event.for_kvm(), &at.into(), NoDatamatch);
        removed.map_err(VmError::kvm("a doorbell"))
    }

    fn set_routes(&self, routes: &[(u32, Route)]) -> Result<(), VmError> {
        let entries: Vec<_> = routes.iter().map(|(number, route)| routing_entry(*number, *route)).collect();
        let routing = KvmIrqRouting::from_entries(&entries)
            .map_err(|_| VmError::Request(format!("{} routes are too many", entries.len())))?;
        self.vm.set_gsi_routing(&routing).map_err(VmError::kvm("the interrupts' routes"))
    }

    fn connect(&self, event: &Event, number: u32) -> Result<(), VmError> {
        self.vm.register_irqfd(event.for_kvm(), number).map_err(VmError::kvm("an interrupt's eventfd"))
    }

    fn disconnect(&self, event: &Event, number: u32) -> Result<(), VmError> {
        self.vm.unregister_irqfd(event.for_kvm(), number).map_err(VmError::kvm("an interrupt's eventfd"))
    }

    fn connect_line(&self, raised: &Event, serviced: &Event, number: u32) -> Result<(), VmError> {
        let connected = self.vm.register_irqfd_with_resample(raised.for_kvm(), serviced.for_kvm(), number);
        connected.map_err(VmError::kvm("an interrupt line's eventfds"))
    }
}

impl From<ExitAddress> for IoEventAddress {
    fn from(at: ExitAddress) -> Self {
        match at {
            ExitAddress::Memory(address) => Self::Mmio(address),
            ExitAddress::Port(port) => Self::Pio(port),
        }
    }
}

/// Returns the route of an interrupt number as KVM takes it.
fn routing_entry(number: u32, route: Route) -> kvm_irq_routing_entry {
    let mut entry = kvm_irq_routing_entry { gsi: number, ..Default::default() };
    match route {
        Route::Pin(pin) => {
            entry.type_ = KVM_IRQ_ROUTING_IRQCHIP;
            entry.u.irqchip.irqchip = KVM_IRQCHIP_IOAPIC;
            entry.u.irqchip.pin = pin;
        }
        Route::Message(Message { address, data }) => {
            entry.type_ = KVM_IRQ_ROUTING_MSI;
            entry.u.msi.address_lo = address as u32;
            entry.u.msi.address_hi = (address >> 32) as u32;
            entry.u.msi.data = data;
        }
    }
    entry
}
