//! Interrupts: the routes from numbers (GSIs) to the I/O APIC or to MSI messages.
//!
//! The first [`IO_APIC_PINS`] numbers are the inputs of the I/O APIC. The others are messages, one
//! for each vector in use.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{
    error::VmError,
    event::Event,
    hypervisor::{Hypervisor, Message, Route},
    layout::IO_APIC_PINS,
};

/// Most routes that KVM takes.
const MOST_ROUTES: u32 = 4096;

/// The number (GSI) of an interrupt that is an MSI message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageNumber(u32);

/// The interrupts of a virtual machine.
pub(crate) struct Interrupts {
    hypervisor: Arc<dyn Hypervisor>,
    /// The messages, by number from [`IO_APIC_PINS`] on. `None` is a reserved number whose message
    /// is not set yet.
    messages: Mutex<Vec<Option<Message>>>,
}

impl Interrupts {
    /// Routes the first numbers to the I/O APIC.
    pub(crate) fn new(hypervisor: Arc<dyn Hypervisor>) -> Result<Self, VmError> {
        let interrupts = Self { hypervisor, messages: Mutex::default() };
        interrupts.set_routes(&[])?;
        Ok(interrupts)
    }

    /// Reserves a number for a message, for the life of the virtual machine.
    pub(crate) fn reserve(&self) -> Result<MessageNumber, VmError> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let number = IO_APIC_PINS + messages.len() as u32;
        if number >= MOST_ROUTES {
            let text = format!("a machine has {MOST_ROUTES} interrupts, and all are in use");
            return Err(VmError::Request(text));
        }

        messages.push(None);
        Ok(MessageNumber(number))
    }

    /// Sets the message of a number.
    pub(crate) fn route(&self, number: MessageNumber, message: Message) -> Result<(), VmError> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let index = (number.0 - IO_APIC_PINS) as usize;
        let entry = messages.get_mut(index);
        let Some(entry) = entry.filter(|entry| **entry != Some(message)) else { return Ok(()) };

        // If the hypervisor refuses the routes, the earlier ones are still in force.
        let earlier = entry.replace(message);
        let set = self.set_routes(&messages);
        if set.is_err()
            && let Some(entry) = messages.get_mut(index)
        {
            *entry = earlier;
        }
        set
    }

    /// Raises an input of the I/O APIC for each write to an eventfd.
    pub(crate) fn connect_pin(&self, event: &Event, pin: u32) -> Result<(), VmError> {
        self.hypervisor.connect(event, pin)
    }

    /// Asserts an input of the I/O APIC after a write to `raised`, until the guest has serviced it.
    /// A write to `serviced` then follows. Several functions may share an input.
    pub(crate) fn connect_line(&self, raised: &Event, serviced: &Event, pin: u32) -> Result<(), VmError> {
        self.hypervisor.connect_line(raised, serviced, pin)
    }

    /// Sends a number's message for each write to an eventfd, and one for earlier writes that sent
    /// none.
    pub(crate) fn connect(&self, event: &Event, number: MessageNumber) -> Result<(), VmError> {
        self.hypervisor.connect(event, number.0)
    }

    /// Sends no message any more for writes to an eventfd. Its counter keeps them until it is
    /// connected again.
    pub(crate) fn disconnect(&self, event: &Event, number: MessageNumber) -> Result<(), VmError> {
        self.hypervisor.disconnect(event, number.0)
    }

    /// Replaces the hypervisor's routes: the inputs of the I/O APIC, and these messages.
    fn set_routes(&self, messages: &[Option<Message>]) -> Result<(), VmError> {
        let pins = (0..IO_APIC_PINS).map(|pin| (pin, Route::Pin(pin)));
        let messages = (IO_APIC_PINS..).zip(messages);
        let messages = messages.filter_map(|(number, message)| Some((number, Route::Message((*message)?))));
        let routes: Vec<_> = pins.chain(messages).collect();
        self.hypervisor.set_routes(&routes)
    }
}
