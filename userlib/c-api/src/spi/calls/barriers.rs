//! Barriers of the nodes of a class route.

use std::{sync::Arc, time::Duration};

use nicforge_driver::{Deadline, Error as DriverError};
use nicforge_spi::Error;

use super::with_owner;
use crate::{
    spi::{
        failure::failure,
        library,
        subgroup::Inner,
        types::{MUSPI_GIBarrier_t, NICFORGE_SPI_CYCLES_PER_US},
    },
    support::{Failure, guarded_status, non_null, reference},
};

/// Prepares a barrier of a class route. Its route is set by Kernel_SetGlobalInterruptClassRoute.
/// An earlier barrier of the class route is forgotten.
///
/// # Safety
/// `GIBarrier` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_GIBarrierInit(GIBarrier: *mut MUSPI_GIBarrier_t, classRouteId: u32) -> i32 {
    guarded_status(|| {
        let out = non_null(GIBarrier, "GIBarrier")?;
        let owner = Arc::as_ptr(&library::any_subgroup()?);
        let barrier = MUSPI_GIBarrier_t { classRouteId: classRouteId.into(), owner };

        // SAFETY: the pointer is that of an open subgroup.
        unsafe { with_owner(owner, |inner| inner.init_barrier(barrier.classRouteId)) }?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(barrier) };
        Ok(())
    })
}

/// Calls `call` with the subgroup of a barrier and the class route.
///
/// # Safety
/// `barrier` is NULL, or from MUSPI_GIBarrierInit.
unsafe fn with_barrier<R>(
    barrier: *const MUSPI_GIBarrier_t,
    call: impl FnOnce(&mut Inner, u64) -> Result<R, Failure>,
) -> Result<R, Failure> {
    // SAFETY: by this function's contract.
    let barrier = unsafe { reference(barrier) }?;
    // SAFETY: its owner is NULL or valid by this function's contract.
    unsafe { with_owner(barrier.owner, |inner| call(inner, barrier.classRouteId)) }
}

/// Enters the barrier of a class route for this node. A program may only poll afterwards, so a
/// refusal of the unit is reported here.
fn enter(inner: &mut Inner, class: u64) -> Result<(), Failure> {
    let (subgroup, barrier) = inner.barrier(class)?;
    subgroup.enter(barrier).map_err(failure)?;
    subgroup.check_entered(barrier).map_err(failure)
}

/// Waits until a barrier is complete, or the deadline has passed.
fn wait(inner: &mut Inner, class: u64, deadline: Deadline) -> Result<(), Failure> {
    let (subgroup, barrier) = inner.barrier(class)?;
    match subgroup.wait_barrier(barrier, deadline, None) {
        Err(Error::Driver(DriverError::Timeout { .. })) => {
            Err(Failure::new(libc::EAGAIN, "the barrier is not complete"))
        }
        result => result.map_err(failure),
    }
}

/// Enters a barrier for this node. It does not wait. Returns -EACCES if the class route has no part
/// of this node, or is the system's.
///
/// # Safety
/// `GIBarrier` is NULL, or from MUSPI_GIBarrierInit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_GIBarrierEnter(GIBarrier: *mut MUSPI_GIBarrier_t) -> i32 {
    // SAFETY: by this function's contract.
    guarded_status(|| unsafe { with_barrier(GIBarrier, enter) })
}

/// Returns 0 when the barrier is complete, and -EAGAIN when it is not.
///
/// # Safety
/// `GIBarrier` is NULL, or from MUSPI_GIBarrierInit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_GIBarrierPoll(GIBarrier: *mut MUSPI_GIBarrier_t) -> i32 {
    let poll = |inner: &mut Inner, class| wait(inner, class, Deadline::now());
    // SAFETY: by this function's contract.
    guarded_status(|| unsafe { with_barrier(GIBarrier, poll) })
}

/// Waits until the barrier is complete, at most `timeoutInCycles` cycles of 1.6 GHz. Returns 0, or
/// -EAGAIN when the barrier is not complete.
///
/// # Safety
/// `GIBarrier` is NULL, or from MUSPI_GIBarrierInit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_GIBarrierPollWithTimeout(
    GIBarrier: *mut MUSPI_GIBarrier_t,
    timeoutInCycles: u64,
) -> i32 {
    let timeout = Duration::from_micros(timeoutInCycles / NICFORGE_SPI_CYCLES_PER_US);
    let poll = |inner: &mut Inner, class| wait(inner, class, Deadline::after(timeout));
    // SAFETY: by this function's contract.
    guarded_status(|| unsafe { with_barrier(GIBarrier, poll) })
}

/// Enters a barrier, and waits until it is complete. Returns -EACCES as MUSPI_GIBarrierEnter.
///
/// # Safety
/// `GIBarrier` is NULL, or from MUSPI_GIBarrierInit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_GIBarrierEnterAndWait(GIBarrier: *mut MUSPI_GIBarrier_t) -> i32 {
    let call = |inner: &mut Inner, class| {
        enter(inner, class)?;
        wait(inner, class, Deadline::never())
    };
    // SAFETY: by this function's contract.
    guarded_status(|| unsafe { with_barrier(GIBarrier, call) })
}

/// Enters a barrier, and waits until it is complete, at most `timeoutInCycles` cycles of 1.6 GHz.
/// Returns 0, -EAGAIN when the barrier is not complete, or -EACCES as MUSPI_GIBarrierEnter.
///
/// # Safety
/// `GIBarrier` is NULL, or from MUSPI_GIBarrierInit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_GIBarrierEnterAndWaitWithTimeout(
    GIBarrier: *mut MUSPI_GIBarrier_t,
    timeoutInCycles: u64,
) -> i32 {
    let timeout = Duration::from_micros(timeoutInCycles / NICFORGE_SPI_CYCLES_PER_US);
    let call = |inner: &mut Inner, class| {
        enter(inner, class)?;
        wait(inner, class, Deadline::after(timeout))
    };
    // SAFETY: by this function's contract.
    guarded_status(|| unsafe { with_barrier(GIBarrier, call) })
}
