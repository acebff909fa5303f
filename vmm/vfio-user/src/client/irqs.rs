//! `DEVICE_SET_IRQS` in all its forms.

use std::os::fd::BorrowedFd;

use vfio_bindings::bindings::vfio;
use zerocopy::IntoBytes;

use super::{Client, ClientError};
use crate::types::IrqAction;
use crate::wire::{Command, SetIrqsPayload};

/// The interrupts that a [`Client::set_irqs`] applies to, and their data.
#[derive(Clone, Copy, Debug)]
pub enum IrqPayload<'a> {
    /// This number of interrupts.
    None(u32),
    /// One entry for each interrupt; the call applies to those that are true.
    Bool(&'a [bool]),
    /// One entry for each interrupt: bind it to the eventfd, or, with `None`, unbind its eventfd.
    EventFd(&'a [Option<BorrowedFd<'a>>]),
}

/// Maximum number of interrupts in one call: as many as MSI-X has vectors, which always fit into a
/// message.
const MAX_INTERRUPTS: usize = 2048;

/// The interrupts that one message names.
#[derive(Clone, Copy)]
struct IrqRange {
    /// Index of the interrupt type.
    index: u32,
    /// The first interrupt.
    start: u32,
    count: u32,
}

impl Client {
    /// Sends `DEVICE_SET_IRQS` for interrupts of type `index` from `start` on. Eventfds go out in
    /// as many messages as the server's `max_msg_fds` requires.
    ///
    /// # Errors
    /// [`ClientError`]; after an error some of several messages may have had an effect.
    pub fn set_irqs(
        &self,
        index: u32,
        start: u32,
        action: IrqAction,
        payload: IrqPayload<'_>,
    ) -> Result<(), ClientError> {
        let action = match action {
            IrqAction::Disable => return self.irq_disable(index),
            IrqAction::Trigger => vfio::VFIO_IRQ_SET_ACTION_TRIGGER,
            IrqAction::Mask => vfio::VFIO_IRQ_SET_ACTION_MASK,
            IrqAction::Unmask => vfio::VFIO_IRQ_SET_ACTION_UNMASK,
        };

        let length = match payload {
            IrqPayload::None(count) => count as usize,
            IrqPayload::Bool(values) => values.len(),
            IrqPayload::EventFd(fds) => fds.len(),
        };

        let fits = u32::try_from(length).is_ok_and(|length| start.checked_add(length).is_some());
        if length == 0 || length > MAX_INTERRUPTS || !fits {
            return Err(ClientError::Argument("the number of interrupts is zero or too large"));
        }

        match payload {
            IrqPayload::None(count) => {
                let flags = action | vfio::VFIO_IRQ_SET_DATA_NONE;
                self.set_irqs_once(IrqRange { index, start, count }, flags, &[], &[])
            }
            IrqPayload::Bool(values) => {
                let flags = action | vfio::VFIO_IRQ_SET_DATA_BOOL;
                let bytes: Vec<u8> = values.iter().map(|value| u8::from(*value)).collect();
                self.set_irqs_once(IrqRange { index, start, count: length as u32 }, flags, &bytes, &[])
            }
            IrqPayload::EventFd(fds) => self.set_eventfds(action, index, start, fds),
        }
    }

    /// Stops all interrupts of type `index`, by a trigger of no interrupts, as VFIO defines it.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn irq_disable(&self, index: u32) -> Result<(), ClientError> {
        let flags = vfio::VFIO_IRQ_SET_ACTION_TRIGGER | vfio::VFIO_IRQ_SET_DATA_NONE;
        self.set_irqs_once(IrqRange { index, start: 0, count: 0 }, flags, &[], &[])
    }

    /// Binds or unbinds eventfds. A message brings descriptors for all of its interrupts or for
    /// none, so interrupts to be bound and interrupts to be unbound go into different messages.
    fn set_eventfds(
        &self,
        action: u32,
        index: u32,
        start: u32,
        fds: &[Option<BorrowedFd<'_>>],
    ) -> Result<(), ClientError> {
        let maximum = (self.limits.max_msg_fds as usize).min(crate::socket::MAX_MESSAGE_FDS);
        if maximum == 0 && fds.iter().any(Option::is_some) {
            return Err(ClientError::Argument(
                "the server takes no descriptors, so it cannot signal interrupts",
            ));
        }

        let flags = action | vfio::VFIO_IRQ_SET_DATA_EVENTFD;
        let mut next = start;
        for run in fds.chunk_by(|a, b| a.is_some() == b.is_some()) {
            for part in run.chunks(maximum.max(1)) {
                let to_bind: Vec<BorrowedFd<'_>> = part.iter().copied().flatten().collect();
                let range = IrqRange { index, start: next, count: part.len() as u32 };
                self.set_irqs_once(range, flags, &[], &to_bind)?;
                next += range.count;
            }
        }
        Ok(())
    }

    /// Sends one `DEVICE_SET_IRQS` with the `VFIO_IRQ_SET_*` bits of `flags`, and waits for its
    /// reply.
    fn set_irqs_once(
        &self,
        range: IrqRange,
        flags: u32,
        data: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        let request = SetIrqsPayload {
            argsz: ((size_of::<SetIrqsPayload>() + data.len()) as u32).into(),
            flags: flags.into(),
            index: range.index.into(),
            start: range.start.into(),
            count: range.count.into(),
        };
        self.call_empty(Command::DeviceSetIrqs, request.as_bytes(), data, fds, self.deadline())
    }
}
