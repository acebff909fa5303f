//! Interrupts: KVM's routes from numbers (GSIs) to the I/O APIC or to MSI messages.
//!
//! The first [`IO_APIC_PINS`] numbers are the inputs of the I/O APIC. The others are messages, one
//! for each vector in use.

use std::sync::{Arc, Mutex, PoisonError};

use kvm_bindings::{
    KVM_IRQ_ROUTING_IRQCHIP, KVM_IRQ_ROUTING_MSI, KVM_IRQCHIP_IOAPIC, KvmIrqRouting, kvm_irq_routing_entry,
};
use kvm_ioctls::VmFd;

use crate::{error::VmError, event::Event, layout::IO_APIC_PINS};

/// Number of routes that KVM has.
const MOST_ROUTES: u32 = 4096;

/// A message-signalled interrupt: the write that raises it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) address: u64,
    pub(crate) data: u32,
}

/// A number of an interrupt that is a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageNumber(u32);

/// The interrupts of a virtual machine.
pub(crate) struct Interrupts {
    vm: Arc<VmFd>,
    /// The messages, by number from [`IO_APIC_PINS`] on.
    messages: Mutex<Vec<Option<Message>>>,
}

impl Interrupts {
    /// Makes KVM's interrupt controllers.
    pub(crate) fn new(vm: Arc<VmFd>) -> Result<Self, VmError> {
        vm.create_irq_chip().map_err(VmError::kvm("the interrupt controllers"))?;
        let interrupts = Self { vm, messages: Mutex::default() };
        interrupts.set_routes(&[])?;
        Ok(interrupts)
    }

    /// Reserves a number for a message. It is never returned.
    pub(crate) fn reserve(&self) -> Result<MessageNumber, VmError> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let number = IO_APIC_PINS + messages.len() as u32;
        if number >= MOST_ROUTES {
            return Err(VmError::Request(format!("KVM has {MOST_ROUTES} interrupts, and all are in use")));
        }

        messages.push(None);
        Ok(MessageNumber(number))
    }

    /// Sets the message of a number.
    pub(crate) fn route(&self, number: MessageNumber, message: Message) -> Result<(), VmError> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = messages.get_mut((number.0 - IO_APIC_PINS) as usize);
        let Some(entry) = entry.filter(|entry| **entry != Some(message)) else { return Ok(()) };

        *entry = Some(message);
        self.set_routes(&messages)
    }

    /// Raises an input of the I/O APIC for each write to an eventfd.
    pub(crate) fn connect_pin(&self, event: &Event, pin: u32) -> Result<(), VmError> {
        self.vm.register_irqfd(event.for_kvm(), pin).map_err(VmError::kvm("an interrupt's eventfd"))
    }

    /// Asserts an input of the I/O APIC after a write to `raised`, until the guest has serviced it.
    /// KVM then writes to `serviced`. Several functions may share an input.
    pub(crate) fn connect_line(&self, raised: &Event, serviced: &Event, pin: u32) -> Result<(), VmError> {
        let connected = self.vm.register_irqfd_with_resample(raised.for_kvm(), serviced.for_kvm(), pin);
        connected.map_err(VmError::kvm("an interrupt line's eventfds"))
    }

    /// Sends a message for each write to an eventfd, and for earlier ones that were not sent.
    pub(crate) fn connect(&self, event: &Event, number: MessageNumber) -> Result<(), VmError> {
        self.vm.register_irqfd(event.for_kvm(), number.0).map_err(VmError::kvm("an interrupt's eventfd"))
    }

    /// Lets the writes to an eventfd wait.
    pub(crate) fn disconnect(&self, event: &Event, number: MessageNumber) -> Result<(), VmError> {
        self.vm.unregister_irqfd(event.for_kvm(), number.0).map_err(VmError::kvm("an interrupt's eventfd"))
    }

    /// Replaces all routes in KVM.
    fn set_routes(&self, messages: &[Option<Message>]) -> Result<(), VmError> {
        let pins = (0..IO_APIC_PINS).map(pin_route);
        let messages = (IO_APIC_PINS..).zip(messages);
        let messages = messages.filter_map(|(number, message)| Some(message_route(number, (*message)?)));

        let entries: Vec<_> = pins.chain(messages).collect();
        let routes = KvmIrqRouting::from_entries(&entries)
            .map_err(|_| VmError::Request(format!("{} routes are too many", entries.len())))?;
        self.vm.set_gsi_routing(&routes).map_err(VmError::kvm("the interrupts' routes"))
    }
}

fn pin_route(pin: u32) -> kvm_irq_routing_entry {
    let mut entry = kvm_irq_routing_entry { gsi: pin, type_: KVM_IRQ_ROUTING_IRQCHIP, ..Default::default() };
    entry.u.irqchip.irqchip = KVM_IRQCHIP_IOAPIC;
    entry.u.irqchip.pin = pin;
    entry
}

fn message_route(number: u32, message: Message) -> kvm_irq_routing_entry {
    let mut entry = kvm_irq_routing_entry { gsi: number, type_: KVM_IRQ_ROUTING_MSI, ..Default::default() };
    entry.u.msi.address_lo = message.address as u32;
    entry.u.msi.address_hi = (message.address >> 32) as u32;
    entry.u.msi.data = message.data;
    entry
}
