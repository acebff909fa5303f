//! The register file: which register an access of BAR 0 names.
//!
//! In: offsets and lengths of accesses. Out: [`Register`], or the reason of a refusal.

use nicforge_core::ids::AttachmentId;
use nicforge_hwi::{
    mu::{
        BASE_ADDRESSES, DEVICE_CONTROL, FIRST_SUBGROUP, INJECTION_FIFOS, KERNEL, PAGE, RECEPTION_FIFOS,
        REGISTERS, USER_SUBGROUPS, reg,
    },
    mu_packet::CLASSES,
    nd_dcr,
};
use nicforge_kit::RegisterValue;

/// A register of BAR 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    /// In the page of the subgroup with this number.
    Page(u16, PageRegister),
    /// A device control register of the Message Unit, at this offset from [`DEVICE_CONTROL`].
    Unit(u64),
    /// A device control register of the network, at this offset from [`nd_dcr::BASE`].
    Network(u64),
}

/// A register in the page of a subgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageRegister {
    /// Of the injection FIFO with this index in the subgroup.
    Injection(usize, FifoRegister),
    /// Of the reception FIFO with this index in the subgroup.
    Reception(usize, FifoRegister),
    /// Enables and interrupts.
    Subgroup(SubgroupRegister),
    /// The entry of the base address table with this index.
    BaseAddress(usize),
    /// Enters a barrier of this class, and says whether the node is in one.
    BarrierControl(u8),
    /// The number of completed barriers of this class.
    BarrierStatus(u8),
    /// The lines of global interrupts of this class that the node sets.
    GlobalInterruptControl(u8),
    /// The lines of this class that some node sets.
    GlobalInterruptStatus(u8),
}

/// A register of a FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FifoRegister {
    Start,
    Size,
    Head,
    Tail,
    DescriptorCount,
    FreeSpace,
    Fault,
}

/// A register of a subgroup's enables and interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubgroupRegister {
    IsEnabled,
    Enable,
    Disable,
    HighPriority,
    InterruptStatus,
    ClearInterrupt,
    InterruptEnable,
    RemoteGet,
    ReceptionEnable,
    InjectionThreshold,
    ReceptionThreshold,
}

/// Reasons why an access names no register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRegister {
    /// The access does not have 8 aligned bytes.
    Width,
    /// There is no register at the address, or none for this attachment.
    Address,
}

impl Register {
    /// Returns the register that an access of an attachment names.
    #[inline]
    pub(crate) fn decode(from: AttachmentId, offset: u64, length: usize) -> Result<Self, NoRegister> {
        if !u64::is_whole_access(offset, length) {
            return Err(NoRegister::Width);
        }

        let (page, within) = (offset / PAGE, offset % PAGE);
        // A user's attachment has the page of its subgroup alone.
        if from.0 != KERNEL {
            if page != 0 {
                return Err(NoRegister::Address);
            }
            return page_register(within).map(|register| Self::Page(from.0 - FIRST_SUBGROUP, register));
        }

        // The kernel's has the pages of the system's subgroups, and the device control registers.
        match offset {
            _ if offset < DEVICE_CONTROL => {
                let subgroup = USER_SUBGROUPS + page as u16;
                page_register(within).map(|register| Self::Page(subgroup, register))
            }
            _ if offset < DEVICE_CONTROL + PAGE => Ok(Self::Unit(offset - DEVICE_CONTROL)),
            _ if offset < REGISTERS => Ok(Self::Network(offset - nd_dcr::BASE)),
            _ => Err(NoRegister::Address),
        }
    }
}

/// Returns the register at an offset of a subgroup's page.
#[inline]
fn page_register(offset: u64) -> Result<PageRegister, NoRegister> {
    // The index of the register block at `offset`, among `count` blocks of `size` bytes.
    let index_in = |first: u64, size: u64, count: u64| {
        let index = offset.checked_sub(first)? / size;
        (index < count).then_some(index as usize)
    };

    if let Some(fifo) = index_in(reg::INJECTION, reg::FIFO, INJECTION_FIFOS.into()) {
        return fifo_register(offset % reg::FIFO).map(|register| PageRegister::Injection(fifo, register));
    }
    if let Some(fifo) = index_in(reg::RECEPTION, reg::FIFO, RECEPTION_FIFOS.into()) {
        return match fifo_register(offset % reg::FIFO)? {
            FifoRegister::DescriptorCount => Err(NoRegister::Address),
            register => Ok(PageRegister::Reception(fifo, register)),
        };
    }

    if let Some(entry) = index_in(reg::BASE_ADDRESS, 8, BASE_ADDRESSES.into()) {
        return Ok(PageRegister::BaseAddress(entry));
    }
    if let Some(class) = index_in(reg::BARRIER_CONTROL, 8, CLASSES as u64) {
        return Ok(PageRegister::BarrierControl(class as u8));
    }
    if let Some(class) = index_in(reg::BARRIER_STATUS, 8, CLASSES as u64) {
        return Ok(PageRegister::BarrierStatus(class as u8));
    }
    if let Some(class) = index_in(reg::GI_CONTROL, 8, CLASSES as u64) {
        return Ok(PageRegister::GlobalInterruptControl(class as u8));
    }
    if let Some(class) = index_in(reg::GI_STATUS, 8, CLASSES as u64) {
        return Ok(PageRegister::GlobalInterruptStatus(class as u8));
    }
    subgroup_register(offset).map(PageRegister::Subgroup)
}

/// Returns the register at an offset from the first one of a FIFO.
#[inline]
fn fifo_register(offset: u64) -> Result<FifoRegister, NoRegister> {
    match offset {
        reg::START => Ok(FifoRegister::Start),
        reg::SIZE_1 => Ok(FifoRegister::Size),
        reg::HEAD => Ok(FifoRegister::Head),
        reg::TAIL => Ok(FifoRegister::Tail),
        reg::DESCRIPTOR_COUNT => Ok(FifoRegister::DescriptorCount),
        reg::FREE_SPACE => Ok(FifoRegister::FreeSpace),
        reg::FAULT => Ok(FifoRegister::Fault),
        _ => Err(NoRegister::Address),
    }
}

/// Returns the register that concerns a whole subgroup, at an offset of its page.
fn subgroup_register(offset: u64) -> Result<SubgroupRegister, NoRegister> {
    match offset {
        reg::IS_ENABLED => Ok(SubgroupRegister::IsEnabled),
        reg::ENABLE => Ok(SubgroupRegister::Enable),
        reg::DISABLE => Ok(SubgroupRegister::Disable),
        reg::HIGH_PRIORITY => Ok(SubgroupRegister::HighPriority),
        reg::INTERRUPT_STATUS => Ok(SubgroupRegister::InterruptStatus),
        reg::CLEAR_INTERRUPT => Ok(SubgroupRegister::ClearInterrupt),
        reg::INTERRUPT_ENABLE => Ok(SubgroupRegister::InterruptEnable),
        reg::REMOTE_GET => Ok(SubgroupRegister::RemoteGet),
        reg::RECEPTION_ENABLE => Ok(SubgroupRegister::ReceptionEnable),
        reg::INJECTION_THRESHOLD => Ok(SubgroupRegister::InjectionThreshold),
        reg::RECEPTION_THRESHOLD => Ok(SubgroupRegister::ReceptionThreshold),
        _ => Err(NoRegister::Address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(from: u16, offset: u64) -> Result<Register, NoRegister> {
        Register::decode(AttachmentId(from), offset, 8)
    }

    #[test]
    fn a_user_has_one_page_and_the_kernel_four_and_the_control_registers() {
        let tail = PageRegister::Injection(7, FifoRegister::Tail);
        assert_eq!(decode(6, 7 * 0x40 + 0x18), Ok(Register::Page(5, tail)));
        assert_eq!(decode(0, 3 * PAGE + 7 * 0x40 + 0x18), Ok(Register::Page(67, tail)));
        assert_eq!(decode(6, PAGE), Err(NoRegister::Address));
        assert_eq!(decode(0, DEVICE_CONTROL + 8), Ok(Register::Unit(8)));
        assert_eq!(decode(0, DEVICE_CONTROL + PAGE), Ok(Register::Network(0)));
        assert_eq!(decode(6, DEVICE_CONTROL), Err(NoRegister::Address));
        assert_eq!(decode(0, REGISTERS), Err(NoRegister::Address));
    }

    #[test]
    fn only_aligned_accesses_of_8_bytes_name_a_register() {
        for (offset, length) in [(0, 4), (4, 8), (0, 16), (8, 1), (0, 64)] {
            let decoded = Register::decode(AttachmentId(1), offset, length);
            assert_eq!(decoded, Err(NoRegister::Width), "{offset} {length}");
        }
    }

    #[test]
    fn holes_are_no_registers() {
        for offset in [0x38, 0x220, 0x2f8 + 0x40, 0x358, 0x440, 0x600, 0xff8] {
            let decoded = decode(1, offset);
            assert!(!matches!(decoded, Ok(Register::Unit(_) | Register::Network(_))), "{offset:#x}");
        }
        assert_eq!(decode(1, 0x38), Err(NoRegister::Address));
        assert_eq!(decode(1, reg::RECEPTION + reg::DESCRIPTOR_COUNT), Err(NoRegister::Address));
        assert_eq!(decode(1, reg::BARRIER_STATUS + 16 * 8), Err(NoRegister::Address));
        assert_eq!(decode(1, reg::GI_STATUS + 16 * 8), Err(NoRegister::Address));
        assert_eq!(decode(1, reg::NODE), Err(NoRegister::Address));
    }
}
