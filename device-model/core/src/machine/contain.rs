//! Containment of panics of devices.
//!
//! [`Machine::guarded`] is around each operation of a machine that calls devices. In a step it is
//! around all turns together, so that a packet does not pay for it. The method that is in progress
//! is in [`FunctionSlot::method_in_progress`]. A panic while it is set is the device's, and takes
//! the function out of service. Any other panic is one of the machine, and continues to the
//! machine's owner.
//!
//! After a device's panic:
//!
//! - the device is dropped, and an [`Inert`] one is in its place: no method of the old one is
//!   called again, and no path needs a check;
//! - what the device's call had borrowed of the function returns to it ([`Lent`]);
//! - packets and buffers that the device owned are lost. Those on lanes stay there, since the
//!   guards of the fabric complete what was in progress;
//! - the function's links are down, and its wires low;
//! - its clients read DEAD in their mirrors and get the request interrupt.

use std::panic::{self, AssertUnwindSafe};

use super::{FunctionSlot, Machine, MachineError, active::ActiveFunction};
use crate::{
    attachment::Ring,
    context::{Context, FilledBuffer},
    device::{Device, Progress, Reset, Write},
    fabric::{GI_WIRES, LinkId, MAX_CHANNELS},
    ids::{Address, AttachmentId, FunctionId},
    panic::{DevicePanic, message_of},
    spec::{FunctionSpec, Identity},
    time::Nanos,
};

/// Parts of a function that a call of its device borrows beside the rest of it. They are here for
/// the time of the call, so that a panic does not lose them.
pub(super) struct Lent {
    /// The posted-write rings of the client whose ring is being drained.
    pub(super) rings: Vec<Ring>,
    /// The attachment that they belong to.
    pub(super) owner: AttachmentId,
    /// The data of a DMA read that the device is receiving.
    pub(super) data: Option<FilledBuffer>,
}

impl Lent {
    /// Returns the state between two calls.
    pub(super) const NOTHING: Self = Self { rings: Vec::new(), owner: AttachmentId(0), data: None };
}

/// Drops a device. Returns the message if its drop panics.
pub(super) fn drop_device(device: Box<dyn Device>) -> Option<String> {
    // The device is gone afterwards, so no code sees the state that a panic left behind.
    panic::catch_unwind(AssertUnwindSafe(|| drop(device))).err().map(message_of)
}

/// The device of a function that is out of service. It discards packets and ring records.
pub(super) struct Inert;

impl Device for Inert {
    fn spec(&self) -> FunctionSpec {
        let identity =
            Identity { vendor: 0, device: 0, subsystem_vendor: 0, subsystem: 0, class: 0, revision: 0 };
        FunctionSpec::hub(identity)
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {}

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        // Takes the packets of all ports and virtual channels out of the fabric, so that none
        // blocks a neighbour.
        let mut ports = context.ports();
        let mut remaining = budget;
        for channel in 0..MAX_CHANNELS {
            let mut arrived = ports.arrived(channel);
            while arrived != 0 {
                let port = arrived.trailing_zeros() as u8;
                arrived &= arrived - 1;
                remaining -= ports.take_while(port, channel, remaining, |_| true);
            }
        }

        if remaining == 0 { Progress::Busy } else { Progress::Idle }
    }
}

impl Machine {
    /// Returns the panic that took a function out of service, or `None` while it is in service.
    ///
    /// A function goes out of service when a method of its device panics. No method of the device
    /// is called again, and the device is dropped. The function's links are down. Trapped reads
    /// return ones, and writes have no effect. Its clients read DEAD in their mirrors and get the
    /// request interrupt. It takes no new client and no reset, until the machine is built again.
    pub fn device_panic(&self, function: FunctionId) -> Option<&DevicePanic> {
        self.slots.get(function.0 as usize)?.state.panic.as_ref()
    }

    /// Calls `f`, which may call devices. If a device panics there, takes its function out of
    /// service and returns the function.
    #[inline]
    pub(super) fn guarded<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> Result<R, FunctionId> {
        // A panic leaves the device's own state half done, which is dropped. All other state is put
        // right by the drops of the fabric's guards and by `take_out_of_service`. A panic outside a
        // device continues.
        panic::catch_unwind(AssertUnwindSafe(|| f(self))).map_err(|payload| {
            let panicked = self.slots.iter().position(|slot| slot.method_in_progress.is_some());
            let Some(index) = panicked else { panic::resume_unwind(payload) };
            let function = FunctionId(index as u32);
            if let Some(active) = self.active(function) {
                active.take_out_of_service(message_of(payload));
            }
            function
        })
    }
}

impl ActiveFunction<'_> {
    /// Returns an error if the function is out of service.
    pub(super) fn check_in_service(&self) -> Result<(), MachineError> {
        match &self.slot.state.panic {
            None => Ok(()),
            Some(panic) => Err(MachineError::OutOfService {
                name: self.slot.state.name.clone(),
                panic: Box::new(panic.clone()),
            }),
        }
    }

    /// Takes the function out of service after its device panicked with this message.
    #[cold]
    fn take_out_of_service(mut self, message: String) {
        let Some(method) = self.slot.method_in_progress.take() else { return };
        let panic = DevicePanic { method, message };
        tracing::error!("device {} {panic}; it is out of service", self.slot.state.name);
        self.slot.state.panic = Some(panic);

        self.take_back_lent();
        self.slot.drop_device();

        self.drop_pending_dma(None);
        self.give_up_clients();
        self.disconnect_from_fabric();
        self.restart_schedule();
    }

    /// Returns the parts to the function that the device's call had borrowed.
    fn take_back_lent(&mut self) {
        let Lent { rings, owner, data } = std::mem::replace(&mut self.slot.lent, Lent::NOTHING);
        if !rings.is_empty()
            && let Ok(tenant) = self.tenant(owner)
        {
            tenant.rings = rings;
            self.slot.state.refresh_rings();
        }
        if let Some(filled) = data {
            self.shared.return_buffer(filled.buffer);
        }
    }

    /// Ends the waits of the function's clients, and reports to them that the device is dead.
    fn give_up_clients(&mut self) {
        for attachment_id in self.slot.state.clients.clone() {
            let Ok(attachment) = self.attachment(attachment_id) else { continue };
            attachment.end_device();
            // The attachment has a client, so the report succeeds.
            let _ = self.mark_dead(attachment_id);
        }
    }

    /// Takes the function's links down, and drives its global interrupt wires low.
    fn disconnect_from_fabric(&mut self) {
        let function = self.id();
        self.fabric.show_all(function, self.shared.now);
        for link in (0..self.fabric.links()).map(LinkId) {
            let ends = self.fabric.link_ends(link);
            if ends.is_ok_and(|ends| ends.iter().any(|(end, _)| *end == function)) {
                // The link exists, so the call succeeds.
                let _ = self.fabric.set_link_up(link, false);
            }
        }

        let mut ports = self.fabric.ports(function, self.shared.now);
        for wire in 0..GI_WIRES {
            ports.drive_wire(wire, false);
        }
    }

    /// Drops the device's timers, and makes the function hot. A panic in its turn in virtual time
    /// has left it out of the queue of hot functions.
    fn restart_schedule(&mut self) {
        self.slot.state.contended = false;
        self.slot.state.lets_clients_sleep = false;
        self.slot.state.clients_sleep = false;
        self.slot.state.wake_at = Nanos::NEVER;
        self.slot.timer = Nanos::NEVER;
        self.schedule.requeue(self.slot);
    }
}

impl FunctionSlot {
    /// Drops the device, and puts an inert one in its place.
    fn drop_device(&mut self) {
        let device = std::mem::replace(&mut self.device, Box::new(Inert));
        if let Some(message) = drop_device(device) {
            tracing::error!("device {} panicked in its drop: {message}", self.state.name);
        }
    }
}

impl Drop for FunctionSlot {
    fn drop(&mut self) {
        self.state.warnings.log_suppressed(&self.state.name);
        self.drop_device();
    }
}
