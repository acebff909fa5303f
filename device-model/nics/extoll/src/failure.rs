//! An error of an attachment: its code, and what it is about.

use nicforge_core::{ids::Address, warning::Warning};
use nicforge_hwi::extoll::{BAR_VELO, error};

use crate::device::BAR_REGISTERS;

/// An error of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// One of [`error`].
    code: u8,
    /// The register or the address of a send.
    register: Option<Address>,
    /// The value that was written.
    value: Option<u64>,
}

impl Failure {
    /// Returns an error that is about no register.
    pub(crate) fn new(code: u8) -> Self {
        Self { code, register: None, value: None }
    }

    /// Returns an error of an access to a register of BAR 0, or of the command written there.
    pub(crate) fn of_register(code: u8, offset: u64) -> Self {
        Self { register: Some(Address { bar: BAR_REGISTERS, offset }), ..Self::new(code) }
    }

    /// Returns an error of a VELO send to this offset.
    pub(crate) fn of_send(code: u8, offset: u64) -> Self {
        Self { register: Some(Address { bar: BAR_VELO, offset }), ..Self::new(code) }
    }

    /// Adds the value that software has written, if it is known.
    pub(crate) fn with_value(self, value: Option<u64>) -> Self {
        Self { value, ..self }
    }

    /// Returns the word of [`nicforge_hwi::extoll::mirror::LAST_ERROR`]: the code, and 32 bits of
    /// the offset, or of the value if the error is about no register.
    pub(crate) fn last_error(self) -> u64 {
        let about = self.register.map(|at| at.offset).or(self.value).unwrap_or(0);
        u64::from(self.code) | (about & 0xffff_ffff) << 8
    }

    /// Returns the line of the log.
    pub(crate) fn warning(self) -> Warning<'static> {
        let warning = match self.code {
            error::SEND_TORN | error::NO_RECEIVER | error::WATCHDOG | error::OVERFLOW => {
                Warning::dropped(rule(self.code))
            }
            error::RING_MEMORY | error::READ_POINTER => Warning::failed(rule(self.code)),
            _ => Warning::refused(rule(self.code)),
        };

        let warning = self.register.into_iter().fold(warning, Warning::register);
        self.value.into_iter().fold(warning, Warning::value)
    }
}

/// Returns the rule that an error breaks, as [`error`] states it.
fn rule(code: u8) -> &'static &'static str {
    match code {
        error::REGISTER_ACCESS => &"a register is read or written whole, and as its map permits",
        error::NOT_PERMITTED => &"this register, or this use of it, is another attachment's",
        error::RING => &"a ring is enabled with an aligned base and a valid size in mapped memory",
        error::READ_POINTER => &"a read pointer lies between its last value and the card's write pointer",
        error::SEND_ADDRESS => {
            &"a send has the width that its address encodes, and does not cross its message"
        }
        error::SEND_TORN => &"all pieces of a send come in order, and before another send begins",
        error::NO_RECEIVER => &"the target exists, has a client, and has enabled its ring",
        error::WATCHDOG => &"a send does not wait for credit longer than the watchdog permits",
        error::RING_MEMORY => &"the memory of an enabled ring stays mapped; the ring is disabled",
        error::COMMAND => &"an RMA command has defined bits only, and a length that the command allows",
        error::ATU => &"a registration names mapped memory and its owner, and the table has room for it",
        error::OVERFLOW => &"a notification queue has room: take notifications sooner, or enlarge it",
        _ => &"an unknown error",
    }
}
