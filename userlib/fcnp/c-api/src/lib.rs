//! The C API of FCNP.
//!
//! In: C strings, pointers and sizes. Out: sizes, or negative numbers from errno.h with a text behind
//! [`nicforge_fcnp_last_error`]. No panic crosses the boundary. `include/nicforge_fcnp.h` is generated from this file;
//! `include/fcnp_cn.h` and `include/fcnp_ion.h` give the calls the names they had on the machine, where the two kinds of
//! node had a header each.
//!
//! UNSAFETY: a C API takes raw pointers. What each function asks of them is in its documentation. Handles are boxes that C
//! gives back once; the endpoints of the calls without a handle are counted, so that a call in another thread outlives
//! `fcnp_exit`.
#![allow(unsafe_code, non_camel_case_types)]

mod endpoint;
mod failure;

use std::{
    ffi::{c_char, c_void},
    sync::Arc,
};

use nicforge_c_support::{
    guarded_size as guarded, guarded_status, input, last_error, non_null, options as given, output, path,
    reference as handle, release,
};
use nicforge_fcnp::{ComputeCore, IoNode};

use crate::endpoint::{Endpoint, Only};

/// How an endpoint behaves. All zero is the default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct nicforge_fcnp_options {
    /// I/O node: the daemon thread sleeps until an interrupt when it has polled for a while. Otherwise it polls always.
    pub use_interrupts: bool,
    /// How long it polls before that, in microseconds; 0 for 50.
    pub poll_us: u64,
    /// How long a call may take, in milliseconds; 0 for ever. On a compute core a call that timed out or was cancelled goes on for up to
    /// 100 ms more, to take its request back.
    pub timeout_ms: u64,
    /// How long opening may take, in milliseconds; 0 for 10,000.
    pub open_timeout_ms: u64,
}

/// FCNP on a compute core.
pub struct nicforge_fcnp_compute(Arc<Endpoint<ComputeCore>>);

/// FCNP on an I/O node.
pub struct nicforge_fcnp_io(Arc<Endpoint<IoNode>>);

static COMPUTE_NODE: Only<ComputeCore> = Only::new();
static IO_NODE: Only<IoNode> = Only::new();

/// Text of the calling thread's last error; empty when there was none. Valid until its next error.
#[unsafe(no_mangle)]
pub extern "C" fn nicforge_fcnp_last_error() -> *const c_char {
    last_error()
}

/// Opens FCNP on the compute core at `socket` (a socket's path, vfio:BDF or shim:PATH), or the first in the environment
/// variable NICFORGE_SOCKET when that is NULL. Waits for the I/O node's process. `options` may be NULL. Gives 0 and the handle in `*compute`, or a
/// negative error number.
///
/// # Safety
/// `socket` and `options` are NULL or valid; `compute` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_open_compute(
    socket: *const c_char,
    options: *const nicforge_fcnp_options,
    compute: *mut *mut nicforge_fcnp_compute,
) -> i32 {
    guarded_status(|| {
        let out = non_null(compute, "compute")?;
        // SAFETY: NULL or a C string by this function's contract.
        let socket = unsafe { path(socket) };
        // SAFETY: NULL or valid by this function's contract.
        let options = unsafe { given(options) };
        let opened = Box::new(nicforge_fcnp_compute(Endpoint::open(socket, &options, ComputeCore::open)?));
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(Box::into_raw(opened)) };
        Ok(())
    })
}

/// Closes it. No call is on in another thread: end those by nicforge_fcnp_compute_cancel, and wait until they have returned. NULL is
/// allowed.
///
/// # Safety
/// `compute` is NULL or a handle that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_close_compute(compute: *mut nicforge_fcnp_compute) {
    guarded_status(|| {
        // SAFETY: NULL, or it came from `Box::into_raw`, and is not used any more.
        unsafe { release(compute) };
        Ok(())
    });
}

/// Sends `size` bytes to the I/O node. Gives the number of bytes that both sides agreed on, or a negative error number:
/// -ECONNRESET once in each direction when the process on the I/O node is another one than at the last call.
///
/// # Safety
/// `compute` is a handle; `ptr` has `size` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_compute_write(
    compute: *const nicforge_fcnp_compute,
    ptr: *const c_void,
    size: usize,
) -> isize {
    // SAFETY: by this function's contract.
    guarded(|| unsafe { handle(compute) }?.0.write(unsafe { input(ptr, size) }?))
}

/// Receives up to `size` bytes from the I/O node. Gives the number of bytes that both sides agreed on, or a negative error
/// number: -ECONNRESET as nicforge_fcnp_compute_write does.
///
/// # Safety
/// `compute` is a handle; `ptr` has `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_compute_read(
    compute: *const nicforge_fcnp_compute,
    ptr: *mut c_void,
    size: usize,
) -> isize {
    // SAFETY: by this function's contract.
    guarded(|| unsafe { handle(compute) }?.0.read(unsafe { output(ptr, size) }?))
}

/// The core's rank in its pset, by which the I/O node calls it, or a negative error number.
///
/// # Safety
/// `compute` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_compute_rank(compute: *const nicforge_fcnp_compute) -> isize {
    // SAFETY: by this function's contract.
    guarded(|| Ok(unsafe { handle(compute) }?.0.rank() as usize))
}

/// While `on`, calls that are on and later ones end with -ECANCELED. 0, or a negative error number.
///
/// # Safety
/// `compute` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_compute_cancel(
    compute: *const nicforge_fcnp_compute,
    on: bool,
) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        unsafe { handle(compute) }?.0.cancel(on);
        Ok(())
    })
}

/// Serves FCNP on the I/O node at `socket` (a socket's path, vfio:BDF or shim:PATH), or the first in the environment variable
/// NICFORGE_SOCKET when that is NULL. `options` may be NULL. Gives 0 and the handle in `*io`, or a negative error number.
///
/// # Safety
/// `socket` and `options` are NULL or valid; `io` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_open_io(
    socket: *const c_char,
    options: *const nicforge_fcnp_options,
    io: *mut *mut nicforge_fcnp_io,
) -> i32 {
    guarded_status(|| {
        let out = non_null(io, "io")?;
        // SAFETY: NULL or a C string by this function's contract.
        let socket = unsafe { path(socket) };
        // SAFETY: NULL or valid by this function's contract.
        let options = unsafe { given(options) };
        let opened = Box::new(nicforge_fcnp_io(Endpoint::open(socket, &options, IoNode::open)?));
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(Box::into_raw(opened)) };
        Ok(())
    })
}

/// Closes it, as nicforge_fcnp_close_compute does. NULL is allowed.
///
/// # Safety
/// `io` is NULL or a handle that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_close_io(io: *mut nicforge_fcnp_io) {
    guarded_status(|| {
        // SAFETY: NULL, or it came from `Box::into_raw`, and is not used any more.
        unsafe { release(io) };
        Ok(())
    });
}

/// Sends `size` bytes to compute core `core`: 4 times its node's rank in the pset, plus the core of the node. Gives the
/// number of bytes that both sides agreed on, or a negative error number.
///
/// # Safety
/// `io` is a handle; `ptr` has `size` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_io_write(
    io: *const nicforge_fcnp_io,
    ptr: *const c_void,
    size: usize,
    core: u32,
) -> isize {
    // SAFETY: by this function's contract.
    guarded(|| unsafe { handle(io) }?.0.write(core, unsafe { input(ptr, size) }?))
}

/// Receives up to `size` bytes from compute core `core`. Gives the number of bytes that both sides agreed on, or a negative
/// error number.
///
/// # Safety
/// `io` is a handle; `ptr` has `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_io_read(
    io: *const nicforge_fcnp_io,
    ptr: *mut c_void,
    size: usize,
    core: u32,
) -> isize {
    // SAFETY: by this function's contract.
    guarded(|| unsafe { handle(io) }?.0.read(core, unsafe { output(ptr, size) }?))
}

/// Compute cores of the pset, or a negative error number.
///
/// # Safety
/// `io` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_io_cores(io: *const nicforge_fcnp_io) -> isize {
    // SAFETY: by this function's contract.
    guarded(|| Ok(unsafe { handle(io) }?.0.cores() as usize))
}

/// While `on`, calls that are on and later ones end with -ECANCELED. 0, or a negative error number.
///
/// # Safety
/// `io` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_io_cancel(io: *const nicforge_fcnp_io, on: bool) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        unsafe { handle(io) }?.0.cancel(on);
        Ok(())
    })
}

/// fcnp_init on a compute node: opens the core that NICFORGE_SOCKET names. Compute cores poll in either case.
#[unsafe(no_mangle)]
pub extern "C" fn nicforge_fcnp_cn_init(use_interrupts: bool) -> i32 {
    let options = nicforge_fcnp_options { use_interrupts, ..Default::default() };
    guarded_status(|| COMPUTE_NODE.init(|| Endpoint::open(None, &options, ComputeCore::open)))
}

/// fcnp_exit on a compute node. Calls that are on end with -ECANCELED.
#[unsafe(no_mangle)]
pub extern "C" fn nicforge_fcnp_cn_exit() -> i32 {
    guarded_status(|| COMPUTE_NODE.exit())
}

/// fcnp_write on a compute node.
///
/// # Safety
/// `ptr` has `size` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_cn_write(ptr: *const c_void, size: usize) -> isize {
    // SAFETY: by this function's contract.
    guarded(|| COMPUTE_NODE.get()?.write(unsafe { input(ptr, size) }?))
}

/// fcnp_read on a compute node.
///
/// # Safety
/// `ptr` has `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_cn_read(ptr: *mut c_void, size: usize) -> isize {
    // SAFETY: by this function's contract.
    guarded(|| COMPUTE_NODE.get()?.read(unsafe { output(ptr, size) }?))
}

/// fcnp_init on an I/O node: serves the one that NICFORGE_SOCKET names.
#[unsafe(no_mangle)]
pub extern "C" fn nicforge_fcnp_ion_init(use_interrupts: bool) -> i32 {
    let options = nicforge_fcnp_options { use_interrupts, ..Default::default() };
    guarded_status(|| IO_NODE.init(|| Endpoint::open(None, &options, IoNode::open)))
}

/// fcnp_exit on an I/O node. Calls that are on end with -ECANCELED.
#[unsafe(no_mangle)]
pub extern "C" fn nicforge_fcnp_ion_exit() -> i32 {
    guarded_status(|| IO_NODE.exit())
}

/// fcnp_write on an I/O node.
///
/// # Safety
/// `ptr` has `size` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_ion_write(ptr: *const c_void, size: usize, core: u32) -> isize {
    // SAFETY: by this function's contract.
    guarded(|| IO_NODE.get()?.write(core, unsafe { input(ptr, size) }?))
}

/// fcnp_read on an I/O node.
///
/// # Safety
/// `ptr` has `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_ion_read(ptr: *mut c_void, size: usize, core: u32) -> isize {
    // SAFETY: by this function's contract.
    guarded(|| IO_NODE.get()?.read(core, unsafe { output(ptr, size) }?))
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn last_text() -> String {
        let text = nicforge_fcnp_last_error();
        // SAFETY: valid until this thread's next error.
        unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn call_before_init_gives_enotconn_and_says_so() {
        let mut buffer = [0_u8; 4];
        // SAFETY: the buffer has 4 bytes.
        let result = unsafe { nicforge_fcnp_cn_read(buffer.as_mut_ptr().cast(), buffer.len()) };
        assert_eq!(
            (result, last_text().as_str()),
            (-(libc::ENOTCONN as isize), "fcnp_init has not been called")
        );
    }

    #[test]
    fn null_handle_gives_efault() {
        // SAFETY: NULL is refused before it is used.
        let handle = unsafe { nicforge_fcnp_io_read(std::ptr::null(), std::ptr::null_mut(), 1, 0) };
        assert_eq!(handle, -(libc::EFAULT as isize));
    }

    #[test]
    fn opening_a_socket_that_is_not_there_gives_an_error_and_no_handle() {
        let mut compute = std::ptr::null_mut();
        // SAFETY: a C string, no options, a valid place.
        let result = unsafe {
            nicforge_fcnp_open_compute(c"/nonexistent/socket".as_ptr(), std::ptr::null(), &mut compute)
        };
        assert!(result < 0 && compute.is_null() && !last_text().is_empty());
    }
}
