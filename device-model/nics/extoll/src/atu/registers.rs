//! The registers of the ATU, and its commands.

use nicforge_core::{dma::DmaPermission, ids::AttachmentId};
use nicforge_hwi::{extoll::error, extoll_atu::command};

use super::{Atu, CommandStatus};
use crate::{failure::Failure, registers::NotWritable, unit::UnitContext};

/// Mask of the page size's number in a command.
const PAGE_SIZE_MASK: u64 = 3;

/// A register of the ATU, as [`command`] names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    Address,
    Pages,
    Owner,
    Command,
    Status,
    Result,
}

/// A request to register memory: the operands of the command, checked as far as they name a VPID.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registration {
    pub(super) owner: AttachmentId,
    /// Number of the page size.
    pub(super) page_size: u8,
    /// The accesses that VPIDs other than the owner get.
    pub(super) others: DmaPermission,
    /// Address of the first page in the owner's memory.
    pub(super) address: u64,
    /// Number of pages.
    pub(super) pages: u64,
}

/// An attachment's registers: the operands of a command, and the outcome of the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Registers {
    address: u64,
    pages: u64,
    owner: u64,
    status: u64,
    result: u64,
}

impl Atu {
    /// Returns the value of an attachment's register; `None` if it can't be read.
    pub(crate) fn register_value(&self, attachment: AttachmentId, register: Register) -> Option<u64> {
        let registers = self.registers.get(usize::from(attachment.0))?;

        match register {
            Register::Address => Some(registers.address),
            Register::Pages => Some(registers.pages),
            Register::Owner => Some(registers.owner),
            Register::Command => None,
            Register::Status => Some(registers.status),
            Register::Result => Some(registers.result),
        }
    }
}

/// Writes an attachment's register. A write of the command register carries out a command; one that
/// fails counts as an error.
///
/// # Errors
/// The register can't be written.
pub(crate) fn write_register(
    unit: &mut UnitContext<'_, '_>,
    attachment: AttachmentId,
    register: Register,
    value: u64,
) -> Result<(), NotWritable> {
    let registers = unit.parts.atu.registers.get_mut(usize::from(attachment.0)).ok_or(NotWritable)?;

    match register {
        Register::Address => registers.address = value,
        Register::Pages => registers.pages = value,
        Register::Owner => registers.owner = value,
        Register::Command => {
            let operands = *registers;
            let outcome = carry_out(unit, attachment, operands, value);
            store_outcome(unit, attachment, outcome);
        }
        Register::Status | Register::Result => return Err(NotWritable),
    }
    Ok(())
}

/// Carries out the command that was written as `value`. Returns the NLA of a registration's first
/// page, and `None` for a deregistration.
///
/// # Errors
/// A status of [`command`].
fn carry_out(
    unit: &mut UnitContext<'_, '_>,
    attachment: AttachmentId,
    operands: Registers,
    value: u64,
) -> Result<Option<u64>, CommandStatus> {
    if value & command::RESERVED != 0 {
        return Err(command::MALFORMED);
    }

    let Registers { address, pages, .. } = operands;
    match value & command::WHAT {
        command::REGISTER => {
            let owner = owner_of(unit, attachment, operands).ok_or(command::NO_OWNER)?;
            let page_size = (value >> command::CLASS_SHIFT & PAGE_SIZE_MASK) as u8;
            let others =
                DmaPermission { read: value & command::READ != 0, write: value & command::WRITE != 0 };
            let registration = Registration { owner, page_size, others, address, pages };
            unit.parts.atu.register(unit.context, &mut unit.parts.command_budget, registration).map(Some)
        }
        command::DEREGISTER => {
            // The admin may deregister the memory of every VPID.
            let owner = (!unit.is_admin(attachment)).then_some(attachment);
            unit.parts.atu.deregister(&mut unit.parts.command_budget, owner, address).map(|()| None)
        }
        _ => Err(command::MALFORMED),
    }
}

/// Returns the VPID for which an attachment registers memory: itself, or the one that the admin
/// names.
fn owner_of(
    unit: &UnitContext<'_, '_>,
    attachment: AttachmentId,
    operands: Registers,
) -> Option<AttachmentId> {
    if unit.is_admin(attachment) {
        u16::try_from(operands.owner).ok().filter(|&owner| owner < unit.parts.config.vpids).map(AttachmentId)
    } else {
        Some(attachment)
    }
}

/// Stores the outcome of a command in the status and result registers. A failure counts as an
/// error. A command without a result leaves the result register as it is.
fn store_outcome(
    unit: &mut UnitContext<'_, '_>,
    attachment: AttachmentId,
    outcome: Result<Option<u64>, CommandStatus>,
) {
    let Some(registers) = unit.parts.atu.registers.get_mut(usize::from(attachment.0)) else { return };

    match outcome {
        Ok(result) => {
            registers.status = command::DONE;
            registers.result = result.unwrap_or(registers.result);
        }
        Err(status) => {
            registers.status = status;
            unit.fail(attachment, Failure::of_register(error::ATU, command::COMMAND));
        }
    }
}
