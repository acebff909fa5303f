//! The error registers: the errors that have come, and their interrupts.
//!
//! In: errors, and accesses of the kernel. Out: interrupts for the kernel and lines of the log, at
//! the end of a step. May touch: its own state.

use nicforge_core::{context::Context, ids::AttachmentId, warning::Warning};
use nicforge_hwi::{
    mu::{INJECTION_FIFOS, RECEPTION_FIFOS, vector},
    mu_dcr::{
        ICSRAM_RGET_FIFO_FULL, IMFIFO, IMFIFO_ACCESS_ERROR_ID, MCSRAM_ERR_FIFO_ID, RMFIFO,
        RMFIFO_ACCESS_ERROR_ID, XM0_ERR_INFO, XS_ERR_INFO, error, errors, severity,
    },
};
use nicforge_kit::PendingWarnings;

use super::attachment_of;

/// The sets of errors: each has a block of registers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorSet {
    /// Memory requests that the address ranges refuse.
    MasterPort,
    /// Accesses of addresses without a register, or of a wrong width.
    SlavePort,
    /// Refused accesses of registers in a subgroup's page.
    Registers,
    /// Packets that find no room in a reception FIFO.
    Fifo,
    /// Rejected descriptors.
    Descriptor,
    /// Packets that a reception FIFO does not take, and wrong pointers of reception FIFOs.
    Reception,
    /// Dropped direct puts.
    Put,
    /// Packets with impossible headers, at reception engines 0 to 7.
    Header0,
    /// Packets with impossible headers, at the other reception engines.
    Header1,
    /// Wrong pointers of injection FIFOs, and remote gets that find no room there.
    Injection,
    /// Dropped remote gets.
    Get,
}

/// First register of each set, in the order of [`ErrorSet`].
const FIRST_REGISTERS: [u64; 11] = [
    errors::MASTER_PORT0,
    errors::SLAVE_PORT,
    errors::MMREGS,
    errors::FIFO,
    errors::MCSRAM,
    errors::RCSRAM,
    errors::RPUTSRAM,
    errors::RME0,
    errors::RME1,
    errors::ICSRAM,
    errors::MISC,
];

/// Registers with information about the last error of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorInfo {
    /// The address of a refused memory request.
    Memory,
    /// The offset of a refused register access.
    Access,
    /// The number of a full reception FIFO.
    FullReception,
    /// The number of an injection FIFO with a rejected descriptor.
    Descriptor,
    /// The number of a user's injection FIFO whose descriptor names a FIFO of the system.
    SystemFifo,
    /// The number of a reception FIFO that takes no packet.
    Reception,
    /// The number of a full injection FIFO for remote gets.
    FullInjection,
    /// The number of an injection FIFO that takes no remote get.
    Get,
}

impl ErrorInfo {
    /// Returns the attachment of the FIFO that a value names, if it names one.
    fn attachment(self, value: u64) -> Option<AttachmentId> {
        let fifos = match self {
            Self::Memory | Self::Access => return None,
            Self::FullReception | Self::Reception => RECEPTION_FIFOS,
            Self::Descriptor | Self::SystemFifo | Self::FullInjection | Self::Get => INJECTION_FIFOS,
        };
        u16::try_from(value / u64::from(fifos)).ok().and_then(attachment_of)
    }
}

/// Returns the line of the log for an error.
pub(crate) fn warning(set: ErrorSet, error: u8) -> Warning<'static> {
    let rule = rule(set, error);
    match set {
        ErrorSet::MasterPort | ErrorSet::Descriptor => Warning::failed(rule),
        ErrorSet::SlavePort | ErrorSet::Registers => Warning::refused(rule),
        ErrorSet::Injection if error == error::ICSRAM_GET_FULL => Warning::dropped(rule),
        ErrorSet::Reception if error == error::RCSRAM_POINTER => Warning::refused(rule),
        ErrorSet::Injection => Warning::refused(rule),
        _ => Warning::dropped(rule),
    }
}

/// Returns the rule that an error breaks, as [`error`] states it.
fn rule(set: ErrorSet, error: u8) -> &'static &'static str {
    match (set, error) {
        (ErrorSet::MasterPort, error::XM_WRITE_RANGE) => &"the unit writes only to permitted address ranges",
        (ErrorSet::MasterPort, _) => &"the unit reads only from permitted address ranges",

        (ErrorSet::SlavePort, error::XS_SIZE) => &"a register is accessed by 8 aligned bytes",
        (ErrorSet::SlavePort, _) => &"an access goes to a register that the attachment has",

        (ErrorSet::Registers, error::MMREGS_READ) => &"the register can only be written",
        (ErrorSet::Registers, error::MMREGS_WRITE) => &"the register can only be read",
        (ErrorSet::Registers, error::MMREGS_BARRIER) => {
            &"a user enters barriers of users that the node is a member of"
        }
        (ErrorSet::Registers, _) => &"a write sets only bits that the register has",

        (ErrorSet::Fifo, _) => &"a reception FIFO has room for a packet",

        (ErrorSet::Descriptor, error::MCSRAM_GET_ATOMIC) => &"a get has no atomic payload address",
        (ErrorSet::Descriptor, error::MCSRAM_PACKET_SIZE) => &"packets have at most 512 bytes",
        (ErrorSet::Descriptor, error::MCSRAM_GET_PACKET_SIZE) => &"packets of a get hold whole descriptors",
        (ErrorSet::Descriptor, error::MCSRAM_PAYLOAD_END) => &"the payload ends before the last address",
        (ErrorSet::Descriptor, error::MCSRAM_GET_LENGTH) => &"a get's message is a multiple of 64 bytes",
        (ErrorSet::Descriptor, error::MCSRAM_ATOMIC_LENGTH) => &"an atomic payload has 8 bytes",
        (ErrorSet::Descriptor, error::MCSRAM_NO_PAYLOAD) => &"a put and a get have a payload",
        (ErrorSet::Descriptor, error::MCSRAM_SYSTEM_CHANNEL) => &"a user's descriptor names a user's channel",
        (ErrorSet::Descriptor, error::MCSRAM_PACKET_TYPE) => &"the packet type is 0 to 2",
        (ErrorSet::Descriptor, error::MCSRAM_SYSTEM_FIFO) => {
            &"a user's descriptor names network FIFOs of users"
        }
        (ErrorSet::Descriptor, error::MCSRAM_FIFO_MAP) => &"the FIFO map names FIFOs that carry the packet",
        (ErrorSet::Descriptor, error::MCSRAM_CHANNEL) => &"the channel exists, and leads to the destination",
        (ErrorSet::Descriptor, _) => &"put offset and message length do not pass the last address",

        (ErrorSet::Reception, error::RCSRAM_SYSTEM) => &"a user's packet goes to reception FIFOs of users",
        (ErrorSet::Reception, error::RCSRAM_INDEX) => &"a packet goes to a reception FIFO that exists",
        (ErrorSet::Reception, error::RCSRAM_DISABLED) => &"a packet goes to an enabled reception FIFO",
        (ErrorSet::Reception, _) => &"a reception FIFO's pointers stay in it; enabled, only its head moves",

        (ErrorSet::Put, error::RPUTSRAM_SYSTEM_PAYLOAD) => &"a put names a valid base address of its user",
        (ErrorSet::Put, error::RPUTSRAM_SYSTEM_COUNTER) => &"a put's counter has a valid base address",
        (ErrorSet::Put, error::RPUTSRAM_OVERFLOW) => &"base address and offset do not pass the last address",
        (ErrorSet::Put, error::RPUTSRAM_CROSSING) => &"a put's payload does not pass the last address",
        (ErrorSet::Put, error::RPUTSRAM_ATOMIC_LENGTH) => &"an atomic put has 8 bytes",
        (ErrorSet::Put, _) => &"a put's counter has an atomic address whose operation adds",
        (ErrorSet::Header0 | ErrorSet::Header1, _) => &"a packet's header has a meaning",

        (ErrorSet::Injection, error::ICSRAM_FREE_SPACE) => &"the free space can only be read",
        (ErrorSet::Injection, error::ICSRAM_ALIGNMENT) => &"a tail is aligned, and lies in its FIFO",
        (ErrorSet::Injection, error::ICSRAM_RANGE) => {
            &"an injection FIFO's registers hold addresses; while it is enabled, only the tail is written"
        }
        (ErrorSet::Injection, _) => &"an injection FIFO is larger than a remote get for it",

        (ErrorSet::Get, error::ICSRAM_SELECT_SYSTEM) => &"a user's remote get goes to FIFOs of users",
        (ErrorSet::Get, error::ICSRAM_SELECT_NO_GET) => &"a remote get goes to a FIFO that is for them",
        (ErrorSet::Get, _) => &"a remote get goes to an enabled injection FIFO",
    }
}

/// Offsets of the registers of [`ErrorInfo`], in its order.
const INFO_REGISTERS: [u64; 8] = [
    XM0_ERR_INFO,
    XS_ERR_INFO,
    RMFIFO,
    MCSRAM_ERR_FIFO_ID,
    IMFIFO,
    RMFIFO_ACCESS_ERROR_ID,
    ICSRAM_RGET_FIFO_FULL,
    IMFIFO_ACCESS_ERROR_ID,
];

/// The registers of one set. Error `n` has bit `n`.
#[derive(Clone, Copy, Debug, Default)]
struct SetRegisters {
    /// Errors that have come and have not been cleared.
    state: u64,
    /// The error that came first since `state` was 0.
    first: u64,
    /// Severities of errors 0 to 31, and of 32 to 63, with two bits for each.
    control: [u64; 2],
}

impl SetRegisters {
    /// Returns the severity of an error: one of [`severity`].
    fn severity(&self, error: u8) -> u64 {
        self.control[usize::from(error / 32) % 2] >> (2 * (error % 32)) & 0b11
    }

    /// Returns the errors that have come and have this severity.
    fn with_severity(&self, severity: u64) -> u64 {
        let has_come = |error: u8| self.state >> error & 1 == 1;
        let is_chosen = |&error: &u8| has_come(error) && self.severity(error) == severity;
        (0..64).filter(is_chosen).fold(0, |bits, error| bits | 1 << error)
    }
}

/// The error registers of a node.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    /// By [`ErrorSet`].
    sets: [SetRegisters; FIRST_REGISTERS.len()],
    /// By [`ErrorInfo`].
    infos: [u64; INFO_REGISTERS.len()],
    /// Interrupts for the kernel, one bit for each vector.
    vectors: u32,
    /// Lines for the log.
    pub(crate) warnings: PendingWarnings,
}

impl Errors {
    /// Records an error, and logs it. An error that has come already raises no further interrupt.
    #[cold]
    pub(crate) fn report(&mut self, set: ErrorSet, error: u8) {
        self.warnings.push(None, warning(set, error));
        self.record(set as usize, 1 << (error % 64));
    }

    /// Records an error, and a value in a register that informs about it, and logs both.
    #[cold]
    pub(crate) fn report_with_info(&mut self, set: ErrorSet, error: u8, info: ErrorInfo, value: u64) {
        self.warnings.push(info.attachment(value), warning(set, error).value(value));
        self.record_with_info(set, error, info, value);
    }

    /// Records an error and a value as [`Errors::report_with_info`] does, and logs nothing: the
    /// caller does, or the event is a wait.
    pub(crate) fn record_with_info(&mut self, set: ErrorSet, error: u8, info: ErrorInfo, value: u64) {
        self.infos[info as usize] = value;
        self.record(set as usize, 1 << (error % 64));
    }

    /// Logs the errors since the last call.
    #[inline]
    pub(crate) fn log(&mut self, context: &mut Context<'_>) {
        self.warnings.log(context);
    }

    /// Records errors of a set, and the interrupts of those that are new.
    fn record(&mut self, set: usize, bits: u64) {
        let registers = &mut self.sets[set];
        if registers.state == 0 {
            registers.first = bits;
        }

        let new = bits & !registers.state;
        registers.state |= bits;
        for error in (0..64).filter(|error| new >> error & 1 == 1) {
            self.vectors |= match registers.severity(error) {
                severity::NONCRITICAL => 1 << vector::NON_CRITICAL,
                severity::CRITICAL => 1 << vector::CRITICAL,
                severity::MACHINE_CHECK => 1 << vector::MACHINE_CHECK,
                _ => 0,
            };
        }
    }

    /// Records an interrupt for the kernel whose reason is in no error register.
    pub(crate) fn interrupt(&mut self, vector: u16) {
        self.vectors |= 1 << vector;
    }

    /// Returns the kernel's interrupts since the last call, one bit for each vector.
    #[inline]
    pub(crate) fn take_vectors(&mut self) -> u32 {
        std::mem::take(&mut self.vectors)
    }

    /// Returns the value of a register; `None` if there is none at the offset.
    pub(crate) fn read(&self, offset: u64) -> Option<u64> {
        if let Some(info) = INFO_REGISTERS.iter().position(|&register| register == offset) {
            return Some(self.infos[info]);
        }

        let (set, register) = locate(offset)?;
        let registers = &self.sets[set];
        match register {
            errors::STATE => Some(registers.state),
            errors::CONTROL_LOW => Some(registers.control[0]),
            errors::CONTROL_HIGH => Some(registers.control[1]),
            errors::FIRST => Some(registers.first),
            errors::MACHINE_CHECK => Some(registers.with_severity(severity::MACHINE_CHECK)),
            errors::CRITICAL => Some(registers.with_severity(severity::CRITICAL)),
            errors::NONCRITICAL => Some(registers.with_severity(severity::NONCRITICAL)),
            _ => None,
        }
    }

    /// Writes a register. Returns false if there is none at the offset that can be written.
    pub(crate) fn write(&mut self, offset: u64, value: u64) -> bool {
        if let Some(info) = INFO_REGISTERS.iter().position(|&register| register == offset) {
            self.infos[info] = value;
            return true;
        }

        let Some((set, register)) = locate(offset) else { return false };
        let registers = &mut self.sets[set];
        match register {
            errors::STATE => registers.clear(value),
            errors::CONTROL_LOW => registers.control[0] = value,
            errors::CONTROL_HIGH => registers.control[1] = value,
            errors::FORCE => self.record(set, value),
            _ => return false,
        }
        true
    }
}

impl SetRegisters {
    /// Clears errors.
    fn clear(&mut self, bits: u64) {
        self.state &= !bits;
        if self.state == 0 {
            self.first = 0;
        }
    }
}

/// Returns the number of the set that has a register at an offset, and the register's offset from
/// the first one of the set.
fn locate(offset: u64) -> Option<(usize, u64)> {
    FIRST_REGISTERS.iter().enumerate().find_map(|(set, &first)| {
        let register = offset.checked_sub(first)?;
        (register < errors::SIZE).then_some((set, register))
    })
}

#[cfg(test)]
mod tests {
    use nicforge_hwi::mu_dcr::error;

    use super::*;

    #[test]
    fn an_error_interrupts_once_by_its_severity_until_it_is_cleared() {
        let mut registers = Errors::default();
        let control = severity::CRITICAL << (2 * error::XM_READ_RANGE);
        assert!(registers.write(errors::MASTER_PORT0 + errors::CONTROL_LOW, control));

        registers.report(ErrorSet::MasterPort, error::XM_READ_RANGE);
        registers.report(ErrorSet::MasterPort, error::XM_READ_RANGE);
        assert_eq!(registers.take_vectors(), 1 << vector::CRITICAL);
        assert_eq!(registers.take_vectors(), 0);

        let bit = 1 << error::XM_READ_RANGE;
        assert_eq!(registers.read(errors::MASTER_PORT0 + errors::CRITICAL), Some(bit));
        assert_eq!(registers.read(errors::MASTER_PORT0 + errors::NONCRITICAL), Some(0));

        assert!(registers.write(errors::MASTER_PORT0, bit));
        registers.report(ErrorSet::MasterPort, error::XM_READ_RANGE);
        assert_eq!(registers.take_vectors(), 1 << vector::CRITICAL);
    }

    #[test]
    fn a_masked_error_is_noted_and_raises_nothing() {
        let mut registers = Errors::default();
        registers.report_with_info(ErrorSet::Descriptor, error::MCSRAM_OFFSET, ErrorInfo::Descriptor, 77);

        assert_eq!(registers.take_vectors(), 0);
        assert_eq!(registers.read(errors::MCSRAM), Some(1 << 32));
        assert_eq!(registers.read(errors::MCSRAM + errors::FIRST), Some(1 << 32));
        assert_eq!(registers.read(MCSRAM_ERR_FIFO_ID), Some(77));
    }

    #[test]
    fn the_first_error_stays_until_all_are_cleared() {
        let mut registers = Errors::default();
        for error in [3, 4] {
            registers.report(ErrorSet::Get, error);
        }
        assert_eq!(registers.read(errors::MISC + errors::FIRST), Some(1 << 3));
        registers.write(errors::MISC, 1 << 3);
        assert_eq!(registers.read(errors::MISC + errors::FIRST), Some(1 << 3));
        registers.write(errors::MISC, u64::MAX);
        assert_eq!(registers.read(errors::MISC + errors::FIRST), Some(0));
    }

    #[test]
    fn forced_errors_count_as_real_ones() {
        let mut registers = Errors::default();
        registers.write(errors::RME1 + errors::CONTROL_HIGH, severity::MACHINE_CHECK << (2 * 14));
        registers.write(errors::RME1 + errors::FORCE, 1 << 46);
        assert_eq!(registers.take_vectors(), 1 << vector::MACHINE_CHECK);
        assert_eq!(registers.read(errors::RME1 + errors::MACHINE_CHECK), Some(1 << 46));
        assert!(!registers.write(errors::RME1 + errors::FIRST, 0));
    }
}
