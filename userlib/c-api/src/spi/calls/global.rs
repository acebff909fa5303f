//! Global interrupts: lines that the nodes of a class route share.

use std::{sync::Arc, time::Duration};

use nicforge_driver::{Deadline, Error as DriverError};
use nicforge_spi::{Error, GlobalInterrupt};

use super::{class, library_number, with_owner};
use crate::{
    spi::{
        failure::failure,
        library,
        subgroup::Inner,
        types::{KERNEL_GI_INTERRUPT_FLAG_ENABLE, MUSPI_GI_t, NICFORGE_SPI_CYCLES_PER_US},
    },
    support::{Failure, guarded_status, non_null, reference},
};

/// Number of global interrupt lines of a class route.
const LINES: u32 = 3;

/// Prepares a line of a class route, GIId 0 to 2. The route is set by
/// Kernel_SetGlobalInterruptClassRoute, and its lines are clear then.
///
/// # Safety
/// `GI` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_GIInit(GI: *mut MUSPI_GI_t, classRouteId: u32, GIId: u32) -> i32 {
    guarded_status(|| {
        let out = non_null(GI, "GI")?;
        let owner = Arc::as_ptr(&library::any_subgroup()?);
        let line = MUSPI_GI_t { classRouteId: classRouteId.into(), GIId: GIId.into(), owner };

        // SAFETY: the pointer is that of an open subgroup.
        unsafe { with_owner(owner, |inner| interrupt_of(inner, &line).map(drop)) }?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(line) };
        Ok(())
    })
}

/// Returns the library's type for the line that a structure names.
fn interrupt_of(inner: &Inner, line: &MUSPI_GI_t) -> Result<GlobalInterrupt, Failure> {
    let number_of = |id: u64| library_number(u32::try_from(id).unwrap_or(u32::MAX));
    inner.subgroup.global_interrupt(number_of(line.classRouteId), number_of(line.GIId)).map_err(failure)
}

/// Calls `call` with the subgroup of a line.
///
/// # Safety
/// `line` is NULL, or from MUSPI_GIInit.
unsafe fn with_line<R>(
    line: *const MUSPI_GI_t,
    call: impl FnOnce(&mut Inner, &GlobalInterrupt) -> Result<R, Failure>,
) -> Result<R, Failure> {
    // SAFETY: by this function's contract.
    let line = unsafe { reference(line) }?;
    // SAFETY: its owner is NULL or valid by this function's contract.
    unsafe {
        with_owner(line.owner, |inner| {
            let interrupt = interrupt_of(inner, line)?;
            call(inner, &interrupt)
        })
    }
}

/// Sets or clears a line for this node.
///
/// # Safety
/// As [`with_line`].
unsafe fn set(line: *const MUSPI_GI_t, is_set: bool) -> Result<(), Failure> {
    // SAFETY: by this function's contract.
    unsafe {
        with_line(line, |inner, line| inner.subgroup.set_global_interrupt(line, is_set).map_err(failure))
    }
}

/// Waits until a line is set, or clear, or the deadline has passed.
///
/// # Safety
/// As [`with_line`].
unsafe fn wait(line: *const MUSPI_GI_t, is_set: bool, deadline: Deadline) -> Result<(), Failure> {
    let wait = |inner: &mut Inner, line: &GlobalInterrupt| match inner
        .subgroup
        .wait_global_interrupt(line, is_set, deadline, None)
    {
        Err(Error::Driver(DriverError::Timeout { .. })) => {
            let state = if is_set { "set" } else { "clear" };
            Err(Failure::new(libc::EAGAIN, format!("the line is not {state}")))
        }
        result => result.map_err(failure),
    };
    // SAFETY: by this function's contract.
    unsafe { with_line(line, wait) }
}

/// Returns the deadline after a number of cycles of 1.6 GHz.
fn deadline_after(cycles: u64) -> Deadline {
    Deadline::after(Duration::from_micros(cycles / NICFORGE_SPI_CYCLES_PER_US))
}

/// Sets a line for this node. All nodes of the class route see it, until MUSPI_GISendClear.
///
/// # Safety
/// `GI` is NULL, or from MUSPI_GIInit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_GISend(GI: *mut MUSPI_GI_t) -> i32 {
    // SAFETY: by this function's contract.
    guarded_status(|| unsafe { set(GI, true) })
}

/// Clears a line for this node. It stays set as long as another node sets it.
///
/// # Safety
/// `GI` is NULL, or from MUSPI_GIInit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_GISendClear(GI: *mut MUSPI_GI_t) -> i32 {
    // SAFETY: by this function's contract.
    guarded_status(|| unsafe { set(GI, false) })
}

/// Returns 0 when a line is set, and -EAGAIN when it is not.
///
/// # Safety
/// `GI` is NULL, or from MUSPI_GIInit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_GIPollForArrival(GI: *mut MUSPI_GI_t) -> i32 {
    // SAFETY: by this function's contract.
    guarded_status(|| unsafe { wait(GI, true, Deadline::now()) })
}

/// Waits until a line is set, at most `timeoutInCycles` cycles of 1.6 GHz. Returns 0, or -EAGAIN
/// when the line is not set.
///
/// # Safety
/// `GI` is NULL, or from MUSPI_GIInit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_GIPollForArrivalWithTimeout(GI: *mut MUSPI_GI_t, timeoutInCycles: u64) -> i32 {
    // SAFETY: by this function's contract.
    guarded_status(|| unsafe { wait(GI, true, deadline_after(timeoutInCycles)) })
}

/// Returns 0 when a line is clear, and -EAGAIN when it is not.
///
/// # Safety
/// `GI` is NULL, or from MUSPI_GIInit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_GIPollForClear(GI: *mut MUSPI_GI_t) -> i32 {
    // SAFETY: by this function's contract.
    guarded_status(|| unsafe { wait(GI, false, Deadline::now()) })
}

/// Waits until a line is clear, at most `timeoutInCycles` cycles of 1.6 GHz. Returns 0, or -EAGAIN
/// when the line is not clear.
///
/// # Safety
/// `GI` is NULL, or from MUSPI_GIInit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_GIPollForClearWithTimeout(GI: *mut MUSPI_GI_t, timeoutInCycles: u64) -> i32 {
    // SAFETY: by this function's contract.
    guarded_status(|| unsafe { wait(GI, false, deadline_after(timeoutInCycles)) })
}

/// Enables (KERNEL_GI_INTERRUPT_FLAG_ENABLE) or disables the interrupt by which a line wakes waits.
/// It opens the node's kernel. Without the interrupt, waits see the line a little later.
#[unsafe(no_mangle)]
pub extern "C" fn Kernel_ConfigureGIInterrupts(id: u32, giId: u32, interruptFlag: u32) -> i32 {
    guarded_status(|| {
        let (kernel, class) = (library::kernel()?, class(id)?);
        let bit = 1_u8.checked_shl(giId).filter(|bit| *bit < 1 << LINES);
        let bit = bit.ok_or_else(|| failure(Error::NoLine { line: library_number(giId) }))?;

        let enabled = kernel.global_interrupts(class).map_err(failure)?;
        let lines =
            if interruptFlag == KERNEL_GI_INTERRUPT_FLAG_ENABLE { enabled | bit } else { enabled & !bit };
        kernel.set_global_interrupts(class, lines).map_err(failure)
    })
}
