//! The services of a hypervisor for the devices of a machine: memory, doorbells and interrupts.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod.rs` | the trait |
//! | `kvm.rs` | KVM |

mod kvm;

use std::sync::Arc;

use vm_memory::MmapRegion;

use crate::{error::VmError, event::Event};
pub(crate) use kvm::KvmMachine;

/// The accesses of a guest to the memory of a slot that cause no exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAccess {
    /// The guest loads.
    ReadOnly,
    /// The guest loads and stores.
    ReadWrite,
}

/// An address of the guest without memory, where accesses are exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExitAddress {
    /// A memory address.
    Memory(u64),
    /// An I/O port.
    Port(u64),
}

/// A message-signalled interrupt: the write that raises it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Its address.
    pub address: u64,
    /// Its data.
    pub data: u32,
}

/// The destination of an interrupt number (GSI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// An input of the I/O APIC.
    Pin(u32),
    /// A message.
    Message(Message),
}

/// A hypervisor. The devices call it from the threads of all processors at once.
///
/// [`crate::Vm`] uses KVM. Another one serves tests of the devices without a processor.
pub trait Hypervisor: Send + Sync {
    /// Returns the number of memory slots.
    fn count_slots(&self) -> u32;

    /// Makes `memory` appear at a guest address. The slot is free, the address is a multiple of the
    /// page size, and no other slot has a part of the range. The hypervisor keeps the memory until
    /// the slot is removed.
    ///
    /// # Errors
    /// [`VmError`]. The slot is free then.
    fn add_memory(
        &self,
        slot: u32,
        address: u64,
        memory: Arc<MmapRegion>,
        access: MemoryAccess,
    ) -> Result<(), VmError>;

    /// Removes a slot. When it returns, no processor uses its memory.
    ///
    /// # Errors
    /// [`VmError`]. The memory is still there then.
    fn remove_memory(&self, slot: u32) -> Result<(), VmError>;

    /// Makes each write to an address, of any width and value, signal an eventfd instead of an
    /// exit.
    ///
    /// # Errors
    /// [`VmError`] when another doorbell has the address, or when no more are possible.
    fn add_doorbell(&self, at: ExitAddress, event: &Event) -> Result<(), VmError>;

    /// Makes writes to an address exits again.
    ///
    /// # Errors
    /// [`VmError`]
    fn remove_doorbell(&self, at: ExitAddress, event: &Event) -> Result<(), VmError>;

    /// Sets the destinations of all interrupt numbers. A number that is not in `routes` has none.
    ///
    /// # Errors
    /// [`VmError`]
    fn set_routes(&self, routes: &[(u32, Route)]) -> Result<(), VmError>;

    /// Raises the interrupt of a number for each write to an eventfd, and once if earlier writes
    /// are still in its counter.
    ///
    /// # Errors
    /// [`VmError`]
    fn connect(&self, event: &Event, number: u32) -> Result<(), VmError>;

    /// Raises no interrupt any more for writes to an eventfd. They stay in its counter.
    ///
    /// # Errors
    /// [`VmError`]
    fn disconnect(&self, event: &Event, number: u32) -> Result<(), VmError>;

    /// Asserts a level-triggered interrupt after a write to `raised`, until the guest has serviced
    /// it. The hypervisor then writes to `serviced`. Several pairs may share a number.
    ///
    /// # Errors
    /// [`VmError`]
    fn connect_line(&self, raised: &Event, serviced: &Event, number: u32) -> Result<(), VmError>;
}
