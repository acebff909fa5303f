//! `DEVICE_SET_IRQS`: converts untrusted bytes and descriptors to a [`SetIrqs`] for the device.

use vfio_bindings::bindings::vfio;

use super::handler::Handler;
use crate::Errno;
use crate::socket::{Message, PeerFd};
use crate::types::{IRQ_FLAG_EVENTFD, IRQ_FLAG_MASKABLE, IrqAction, IrqData, SetIrqs};
use crate::wire::{SetIrqsPayload, parse_prefix};

/// Parses a request, and checks it against the handler's description of the interrupt type.
/// Descriptors of a refused request are closed. `argsz` is not checked: clients disagree about it,
/// and the size of the payload is sufficient.
pub(super) fn parse_set_irqs(message: Message<'_>, handler: &mut dyn Handler) -> Result<SetIrqs, Errno> {
    let (raw, data) = parse_prefix::<SetIrqsPayload>(message.payload).map_err(|_| Errno::EINVAL)?;
    let (index, start, count) = (raw.index.get(), raw.start.get(), raw.count.get());

    // Without all its descriptors the request would bind the wrong eventfds.
    if message.fds_lost {
        return Err(Errno::EMFILE);
    }

    let info = handler.irq_info(index)?;
    let end = start.checked_add(count).ok_or(Errno::EINVAL)?;
    if start >= info.count || end > info.count {
        return Err(Errno::EINVAL);
    }

    let flags = raw.flags.get();
    let action = action_of(flags & !vfio::VFIO_IRQ_SET_DATA_TYPE_MASK)?;
    let data_kind = flags & vfio::VFIO_IRQ_SET_DATA_TYPE_MASK;

    // In VFIO a trigger of no interrupts disables all interrupts of the type.
    if count == 0 {
        let is_disable =
            action == IrqAction::Trigger && data_kind == vfio::VFIO_IRQ_SET_DATA_NONE && start == 0;
        if !is_disable || !message.fds.is_empty() {
            return Err(Errno::EINVAL);
        }
        return Ok(SetIrqs { index, start, count, action: IrqAction::Disable, data: IrqData::None });
    }

    if action != IrqAction::Trigger && info.flags & IRQ_FLAG_MASKABLE == 0 {
        return Err(Errno::EINVAL);
    }

    let data = match data_kind {
        vfio::VFIO_IRQ_SET_DATA_NONE if message.fds.is_empty() => IrqData::None,
        vfio::VFIO_IRQ_SET_DATA_BOOL if message.fds.is_empty() => {
            let values = data.get(..count as usize).ok_or(Errno::EINVAL)?;
            IrqData::Bool(values.iter().map(|value| *value != 0).collect())
        }
        vfio::VFIO_IRQ_SET_DATA_EVENTFD if info.flags & IRQ_FLAG_EVENTFD != 0 => {
            IrqData::EventFd(eventfds(message.fds, count)?)
        }
        _ => return Err(Errno::EINVAL),
    };

    Ok(SetIrqs { index, start, count, action, data })
}

/// Returns the operation that the action bits of a request name. Exactly one must be set.
fn action_of(action_bits: u32) -> Result<IrqAction, Errno> {
    match action_bits {
        vfio::VFIO_IRQ_SET_ACTION_MASK => Ok(IrqAction::Mask),
        vfio::VFIO_IRQ_SET_ACTION_UNMASK => Ok(IrqAction::Unmask),
        vfio::VFIO_IRQ_SET_ACTION_TRIGGER => Ok(IrqAction::Trigger),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns one entry for each of the `count` interrupts: its descriptor, or `None` for all when the
/// message brings no descriptors, which unbinds the range's eventfds. The caller has checked
/// `count` against the device's number of interrupts, which bounds the allocation.
fn eventfds(fds: Vec<PeerFd>, count: u32) -> Result<Vec<Option<PeerFd>>, Errno> {
    if fds.is_empty() {
        Ok((0..count).map(|_| None).collect())
    } else if fds.len() == count as usize {
        Ok(fds.into_iter().map(Some).collect())
    } else {
        Err(Errno::EINVAL)
    }
}
