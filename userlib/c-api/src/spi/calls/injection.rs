//! Injection of descriptors, and their ends.

use std::ffi::c_void;

use nicforge_spi::Descriptor;

use super::{library_number, with_owner};
use crate::{
    spi::{
        failure::{failure, invalid},
        subgroup::Inner,
        types::{
            BGQ_MU_NUM_INJ_FIFOS_PER_SUBGROUP, MUHWI_Descriptor_t, MUSPI_InjFifo_t, MUSPI_InjFifoSubGroup_t,
        },
    },
    support::{Failure, guarded_number, guarded_status, non_null, reference},
};

/// Result of a call that has injected nothing, because there was no room or after an error.
const NOT_INJECTED: u64 = u64::MAX;
/// Maximum number of descriptors of a batch: those of the largest FIFO.
const MAX_BATCH: u32 = 1 << 20;

/// Returns an injection FIFO of a subgroup, or NULL if none has this number.
///
/// # Safety
/// `fg_ptr` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_IdToInjFifo(
    fifoid: i32,
    fg_ptr: *mut MUSPI_InjFifoSubGroup_t,
) -> *mut MUSPI_InjFifo_t {
    let number = usize::try_from(fifoid).unwrap_or(usize::MAX);
    if fg_ptr.is_null() || number >= BGQ_MU_NUM_INJ_FIFOS_PER_SUBGROUP {
        return std::ptr::null_mut();
    }
    // SAFETY: not NULL, and valid by this function's contract.
    let fifos = unsafe { &raw mut (*fg_ptr)._injfifos };
    fifos.cast::<MUSPI_InjFifo_t>().wrapping_add(number)
}

/// Calls `call` with the subgroup and the number of an injection FIFO.
///
/// # Safety
/// `injfifo` is NULL, or from MUSPI_IdToInjFifo.
unsafe fn with_fifo<R>(
    injfifo: *const MUSPI_InjFifo_t,
    call: impl FnOnce(&mut Inner, u8) -> Result<R, Failure>,
) -> Result<R, Failure> {
    // SAFETY: by this function's contract.
    let fifo = unsafe { reference(injfifo) }?;
    // SAFETY: its owner is NULL or valid by this function's contract.
    unsafe { with_owner(fifo.owner, |inner| call(inner, library_number(fifo.number))) }
}

/// Calls `inject`, and returns the sequence number of its descriptor, or all ones if it has
/// injected nothing.
fn sequence_number(inject: impl FnOnce() -> Result<Option<u64>, Failure>) -> u64 {
    let mut number = None;
    guarded_status(|| {
        number = inject()?;
        Ok(())
    });
    number.unwrap_or(NOT_INJECTED)
}

/// Injects a descriptor. Returns its sequence number, with which MUSPI_CheckDescComplete asks for
/// its end. Returns all ones when the FIFO has no room, or after an error. An error sets the text
/// of nicforge_spi_last_error.
///
/// # Safety
/// `injfifo` is NULL, or from MUSPI_IdToInjFifo; `desc` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_InjFifoInject(injfifo: *mut MUSPI_InjFifo_t, desc: *mut c_void) -> u64 {
    sequence_number(|| {
        let desc = non_null(desc.cast::<MUHWI_Descriptor_t>(), "desc")?;
        // SAFETY: not NULL, and valid by this function's contract. C may align it to 4 bytes only.
        let descriptor = unsafe { desc.read_unaligned() }.0;
        let inject = |inner: &mut Inner, fifo| inner.subgroup.try_inject(fifo, &descriptor).map_err(failure);
        // SAFETY: by this function's contract.
        unsafe { with_fifo(injfifo, inject) }
    })
}

/// Injects `ndesc` descriptors, all or none. Returns the sequence number of the last one, as
/// MUSPI_InjFifoInject.
///
/// # Safety
/// `injfifo` is NULL, or from MUSPI_IdToInjFifo; `desc` is NULL or has `ndesc` descriptors, at a
/// multiple of 8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_InjFifoInjectMultiple(
    injfifo: *mut MUSPI_InjFifo_t,
    desc: *mut c_void,
    ndesc: u32,
) -> u64 {
    sequence_number(|| {
        let desc = non_null(desc.cast::<Descriptor>(), "desc")?;
        if !desc.is_aligned() || ndesc > MAX_BATCH {
            return Err(invalid(format!("{ndesc} descriptors at {desc:p}")));
        }

        // SAFETY: not NULL, aligned, and `ndesc` descriptors by this function's contract.
        let descriptors = unsafe { std::slice::from_raw_parts(desc.as_ptr(), ndesc as usize) };
        let inject = |inner: &mut Inner, fifo| {
            inner.subgroup.injection().try_inject_all(fifo, descriptors).map_err(failure)
        };
        // SAFETY: by this function's contract.
        unsafe { with_fifo(injfifo, inject) }
    })
}

/// Returns 1 when the descriptor with this sequence number is done, and 0 when it is not. Returns a
/// negative error number when the unit has stopped the FIFO, and -ECANCELED when
/// nicforge_spi_restart has withdrawn the descriptor: it will never be done.
///
/// # Safety
/// `injfifo` is NULL, or from MUSPI_IdToInjFifo.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_CheckDescComplete(injfifo: *mut MUSPI_InjFifo_t, desc_count: u64) -> i32 {
    let check_descriptor = |inner: &mut Inner, fifo| {
        inner.subgroup.injection().check_done(fifo, desc_count).map(i32::from).map_err(failure)
    };
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_fifo(injfifo, check_descriptor) })
}

/// Returns the number of descriptors that fit into a FIFO now; 0 after an error.
///
/// # Safety
/// `injfifo` is NULL, or from MUSPI_IdToInjFifo.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_getHwFreeSpace(injfifo: *mut MUSPI_InjFifo_t) -> u64 {
    let mut available = 0;
    guarded_status(|| {
        let free_descriptors =
            |inner: &mut Inner, fifo| inner.subgroup.injection().room(fifo).map_err(failure);
        // SAFETY: by this function's contract.
        available = unsafe { with_fifo(injfifo, free_descriptors) }?;
        Ok(())
    });
    available
}

/// Restarts an injection FIFO, empty and active, after the unit has stopped it. The sequence
/// numbers of later descriptors go on behind those of the withdrawn ones.
///
/// # Safety
/// `injfifo` is NULL, or from MUSPI_IdToInjFifo.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_spi_restart(injfifo: *mut MUSPI_InjFifo_t) -> i32 {
    let restart = |inner: &mut Inner, fifo| inner.subgroup.restart_injection(fifo).map_err(failure);
    // SAFETY: by this function's contract.
    guarded_status(|| unsafe { with_fifo(injfifo, restart) })
}
