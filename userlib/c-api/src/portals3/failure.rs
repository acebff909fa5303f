//! Errors as the standard's codes.

use std::ffi::c_int;

use nicforge_driver::Error as DriverError;
use nicforge_portals::{Error, Refusal};

use super::types::{
    PTL_AC_INDEX_INVALID, PTL_EQ_DROPPED, PTL_EQ_INVALID, PTL_FAIL, PTL_IFACE_INVALID, PTL_MD_ILLEGAL,
    PTL_MD_IN_USE, PTL_MD_INVALID, PTL_ME_IN_USE, PTL_ME_INVALID, PTL_NI_INVALID, PTL_NO_SPACE,
    PTL_PID_INVALID, PTL_PROCESS_INVALID, PTL_PT_INDEX_INVALID, PTL_SEGV,
};
use crate::support::{Failure, guarded_number};

/// The guard reports a panic as this number, which is thus `PTL_FAIL`.
const _: () = assert!(libc::EIO == PTL_FAIL);

/// Runs a call and returns its code: that of its result, or that of its failure.
pub(super) fn guarded(call: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    guarded_number(call).abs()
}

/// Returns a failure with one of the standard's codes.
pub(super) fn refused(code: c_int, text: impl Into<String>) -> Failure {
    Failure::new(code, text)
}

/// Translates an error of the library.
pub(super) fn failure(error: Error) -> Failure {
    refused(code(&error), error.to_string())
}

/// Translates an error of the driver.
pub(super) fn driver_failure(error: DriverError) -> Failure {
    refused(PTL_FAIL, error.to_string())
}

/// Returns the standard's code for an error of the library.
fn code(error: &Error) -> c_int {
    match error {
        Error::Refused { reason, .. } => refusal_code(*reason),
        Error::NoSuchNode { .. } => PTL_PROCESS_INVALID,
        Error::OutOfRange { .. } | Error::TooLong { .. } => PTL_MD_ILLEGAL,
        Error::EventsLost { .. } => PTL_EQ_DROPPED,
        Error::TooManyRegions => PTL_NO_SPACE,
        Error::WrongDevice { .. } => PTL_IFACE_INVALID,
        _ => PTL_FAIL,
    }
}

/// Returns the standard's code for a command that the card or the kernel has refused.
fn refusal_code(reason: Refusal) -> c_int {
    match reason {
        Refusal::NoSpace => PTL_NO_SPACE,
        Refusal::Segment => PTL_SEGV,
        Refusal::Portal => PTL_PT_INDEX_INVALID,
        Refusal::Access => PTL_AC_INDEX_INVALID,
        Refusal::Entry => PTL_ME_INVALID,
        Refusal::EntryInUse => PTL_ME_IN_USE,
        Refusal::Descriptor => PTL_MD_INVALID,
        Refusal::DescriptorInUse => PTL_MD_IN_USE,
        Refusal::DescriptorIllegal => PTL_MD_ILLEGAL,
        Refusal::Queue => PTL_EQ_INVALID,
        Refusal::Process => PTL_PID_INVALID,
        Refusal::Interface => PTL_NI_INVALID,
        _ => PTL_FAIL,
    }
}
