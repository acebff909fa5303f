//! A function during an operation: see [`ActiveFunction`].

use super::{FunctionSlot, Machine, MachineError, schedule::Schedule};
use crate::{
    attachment::{Attachment, Tenant},
    context::{Context, Shared},
    device::Device,
    fabric::Fabric,
    ids::{AttachmentId, FunctionId},
    panic::DeviceMethod,
    trace::Event,
};

/// A function, and the parts of its machine that the function's operations use.
///
/// Each operation of a machine on a function looks the function up once, and then works on this.
pub(super) struct ActiveFunction<'a> {
    pub(super) slot: &'a mut FunctionSlot,
    pub(super) shared: &'a mut Shared,
    pub(super) fabric: &'a mut Fabric,
    pub(super) schedule: &'a mut Schedule,
}

impl Machine {
    /// Returns a function for an operation.
    #[inline(always)]
    pub(super) fn active(&mut self, function: FunctionId) -> Option<ActiveFunction<'_>> {
        Some(ActiveFunction {
            slot: self.slots.get_mut(function.0 as usize)?,
            shared: &mut self.shared,
            fabric: &mut self.fabric,
            schedule: &mut self.schedule,
        })
    }

    /// Returns a function for an operation on an attachment, with or without a client.
    pub(super) fn active_for(
        &mut self,
        function: FunctionId,
        attachment_id: AttachmentId,
    ) -> Result<ActiveFunction<'_>, MachineError> {
        let missing = MachineError::NoSuchAttachment { function: function.0, attachment: attachment_id.0 };
        match self.active(function) {
            Some(active) if usize::from(attachment_id.0) < active.slot.state.attachments.len() => Ok(active),
            _ => Err(missing),
        }
    }

    /// Returns a function for an operation on an attachment that has a client.
    pub(super) fn active_for_client(
        &mut self,
        function: FunctionId,
        attachment_id: AttachmentId,
    ) -> Result<ActiveFunction<'_>, MachineError> {
        let mut active = self.active_for(function, attachment_id)?;
        active.tenant(attachment_id)?;
        Ok(active)
    }
}

impl FunctionSlot {
    /// Returns an attachment of the function that has or had a client.
    fn attachment(&mut self, attachment_id: AttachmentId) -> Result<&mut Attachment, MachineError> {
        let (function, attachment) = (self.state.id.0, attachment_id.0);
        let attachments = &mut self.state.attachments;
        let missing = match usize::from(attachment_id.0) < attachments.len() {
            true => MachineError::NotAttached { function, attachment },
            false => MachineError::NoSuchAttachment { function, attachment },
        };
        attachments.get_mut(usize::from(attachment_id.0)).ok_or(missing)
    }
}

impl<'a> ActiveFunction<'a> {
    /// Returns an attachment for as long as the machine is borrowed.
    pub(super) fn into_attachment(
        self,
        attachment_id: AttachmentId,
    ) -> Result<&'a mut Attachment, MachineError> {
        self.slot.attachment(attachment_id)
    }
}

impl ActiveFunction<'_> {
    pub(super) fn id(&self) -> FunctionId {
        self.slot.state.id
    }

    /// Returns an attachment that has or had a client.
    pub(super) fn attachment(
        &mut self,
        attachment_id: AttachmentId,
    ) -> Result<&mut Attachment, MachineError> {
        self.slot.attachment(attachment_id)
    }

    /// Returns the state of an attachment's client, or [`MachineError::NotAttached`].
    pub(super) fn tenant(&mut self, attachment_id: AttachmentId) -> Result<&mut Tenant, MachineError> {
        let function = self.slot.state.id;
        self.attachment(attachment_id)?
            .tenant
            .as_mut()
            .ok_or(MachineError::NotAttached { function: function.0, attachment: attachment_id.0 })
    }

    /// Calls a method of the device with its context, and takes over its timer request.
    pub(super) fn call<R>(
        &mut self,
        method: DeviceMethod,
        f: impl FnOnce(&mut dyn Device, &mut Context<'_>) -> R,
    ) -> R {
        self.slot.method_in_progress = Some(method);
        let mut context =
            Context { function: &mut self.slot.state, shared: self.shared, fabric: self.fabric };
        let result = f(self.slot.device.as_mut(), &mut context);
        context.trace_packets();
        self.slot.method_in_progress = None;

        self.update_timer();
        self.note_work();

        result
    }

    /// Takes over the device's timer request.
    #[inline(always)]
    pub(super) fn update_timer(&mut self) {
        self.schedule.update_timer(self.slot);
    }

    /// Makes the function hot: see [`Machine::wake`].
    #[inline]
    pub(super) fn wake(&mut self) {
        self.schedule.wake(self.slot);
    }

    /// Drops unsent DMA messages and undelivered results of `attachment_id`, or of the whole
    /// function.
    pub(super) fn drop_pending_dma(&mut self, attachment_id: Option<AttachmentId>) {
        self.shared.drop_pending(&mut self.slot.state, attachment_id);
    }

    pub(super) fn trace(&mut self, attachment_id: AttachmentId, event: Event<'_>) {
        self.shared.trace(self.slot.state.id, attachment_id, event);
    }
}
