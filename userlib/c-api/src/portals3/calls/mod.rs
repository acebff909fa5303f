//! The functions of Portals.
//!
//! UNSAFETY: a C API takes raw pointers. NULL is refused, or means that a result is not wanted.
//! Each function documents its other requirements. Handles are looked up in tables, so that a wrong
//! one is no danger.
#![allow(unsafe_code, reason = "C passes raw pointers")]
#![allow(clippy::too_many_arguments, reason = "the standard's parameters")]

mod descriptors;
mod entries;
mod messages;
mod node;
mod queues;

use std::{ffi::c_int, ptr::NonNull};

use nicforge_portals::{Criteria, Initiator, Position, ProcessId, Unlink};

pub use self::descriptors::*;
pub use self::entries::*;
pub use self::messages::*;
pub use self::node::*;
pub use self::queues::*;

use super::{
    failure::refused,
    interface::NetworkInterface,
    types::{
        PTL_FAIL, PTL_INS_AFTER, PTL_INS_BEFORE, PTL_NID_ANY, PTL_PID_ANY, PTL_PROCESS_INVALID, PTL_RETAIN,
        PTL_SEGV, PTL_UNLINK, ptl_ins_pos_t, ptl_match_bits_t, ptl_process_id_t, ptl_unlink_t,
    },
};
use crate::support::Failure;

/// Returns the pointer to the memory of a result, which must not be NULL.
fn out_pointer<T>(pointer: *mut T, name: &str) -> Result<NonNull<T>, Failure> {
    NonNull::new(pointer).ok_or_else(|| refused(PTL_SEGV, format!("{name} is NULL")))
}

/// Returns the failure of an argument that is none of the standard's constants.
fn unknown_constant(name: &str, value: u32) -> Failure {
    refused(PTL_FAIL, format!("{name} {value} is none of the standard's values"))
}

/// Returns the library's value of a [`ptl_unlink_t`].
fn unlink_of(name: &str, unlink: ptl_unlink_t) -> Result<Unlink, Failure> {
    match unlink {
        PTL_RETAIN => Ok(Unlink::Retain),
        PTL_UNLINK => Ok(Unlink::Automatic),
        other => Err(unknown_constant(name, other)),
    }
}

/// Returns the position before or after a base, whichever a [`ptl_ins_pos_t`] names.
fn position_of<T>(
    position: ptl_ins_pos_t,
    base: T,
    before: impl FnOnce(T) -> Position,
    after: impl FnOnce(T) -> Position,
) -> Result<Position, Failure> {
    match position {
        PTL_INS_BEFORE => Ok(before(base)),
        PTL_INS_AFTER => Ok(after(base)),
        other => Err(unknown_constant("position", other)),
    }
}

/// Returns the failure of a call that names a process which does not exist.
fn no_process(id: ptl_process_id_t) -> Failure {
    refused(PTL_PROCESS_INVALID, format!("there is no process {} of node {}", id.pid, id.nid))
}

/// Returns the number of a process, which the card stores in 16 bits. All ones mean any process.
fn process_of(id: ptl_process_id_t) -> Result<u16, Failure> {
    match u16::try_from(id.pid) {
        Ok(process) if process != u16::MAX => Ok(process),
        _ => Err(no_process(id)),
    }
}

/// Returns the process that a put or get goes to.
fn target_of(id: ptl_process_id_t) -> Result<ProcessId, Failure> {
    Ok(ProcessId { node: id.nid, process: process_of(id)? })
}

/// Returns the initiators that an identifier with wildcards names.
fn initiator_of(interface: &NetworkInterface, id: ptl_process_id_t) -> Result<Initiator, Failure> {
    let node = match id.nid {
        PTL_NID_ANY => None,
        node if node < interface.portals().nodes() => Some(node),
        _ => return Err(no_process(id)),
    };
    let process = if id.pid == PTL_PID_ANY { None } else { Some(process_of(id)?) };
    Ok(Initiator { node, process })
}

/// Returns the messages that a match entry takes.
fn criteria_of(
    interface: &NetworkInterface,
    id: ptl_process_id_t,
    match_bits: ptl_match_bits_t,
    ignore_bits: ptl_match_bits_t,
) -> Result<Criteria, Failure> {
    Ok(Criteria { initiator: initiator_of(interface, id)?, match_bits, ignore_bits })
}

/// Returns the number of a portal or an access control entry, which has 8 bits, or a failure with
/// `code` when `number` does not fit. `description` names the numbered object in the failure's
/// text.
fn index_of_8_bits(number: u32, code: c_int, description: &str) -> Result<u8, Failure> {
    // All ones are no number: they mean any portal.
    match u8::try_from(number) {
        Ok(number) if number != u8::MAX => Ok(number),
        _ => Err(refused(code, format!("there is no {description} {number}"))),
    }
}
