//! The C API of FCNP.
//!
//! The functions take C strings, pointers and sizes. They return sizes, or negative numbers from
//! errno.h with a text in [`nicforge_fcnp_last_error`]. No panic crosses the boundary.
//! The header is `nicforge/fcnp.h`. `fcnp_cn.h` and `fcnp_ion.h` define the calls under their
//! original names. The original system has one header for each kind of node.
//!
//! UNSAFETY: a C API takes raw pointers. Each function's documentation states its requirements.
//! Handles are boxes that C returns once. The endpoints of the calls without a handle are
//! reference-counted, so that a call in another thread outlives `fcnp_exit`.
#![allow(unsafe_code, non_camel_case_types)]

mod endpoint;
mod failure;

use std::{
    ffi::{c_char, c_void},
    sync::Arc,
};

use nicforge_driver::Device;
use nicforge_fcnp::{ComputeCore, Config, Error, IoNode};

use self::endpoint::{Endpoint, Singleton};
use crate::support::{
    Failure, guarded_size, guarded_status, input, last_error, opened, options_or_default, output, path,
    release, store_opened,
};

/// Options of an endpoint. All fields 0 are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct nicforge_fcnp_options {
    /// I/O node: the daemon thread polls for a while, then sleeps until an interrupt. Otherwise it
    /// polls always.
    pub use_interrupts: bool,
    /// How long the daemon polls before it sleeps, in microseconds; 0 means 50.
    pub poll_us: u64,
    /// How long a call may take, in milliseconds; 0 means no limit. On a compute core, a call that
    /// timed out or was cancelled continues for up to 100 ms to withdraw its request.
    pub timeout_ms: u64,
    /// How long opening may take, in milliseconds; 0 means 10,000.
    pub open_timeout_ms: u64,
}

/// An endpoint of FCNP on a compute core.
pub struct nicforge_fcnp_compute(Arc<Endpoint<ComputeCore>>);

/// An endpoint of FCNP on an I/O node.
pub struct nicforge_fcnp_io(Arc<Endpoint<IoNode>>);

// The endpoints of the calls without a handle, which the paper on FCNP defines.
static COMPUTE_NODE: Singleton<ComputeCore> = Singleton::new();
static IO_NODE: Singleton<IoNode> = Singleton::new();

/// Returns the text of the calling thread's last error in any call of libnicforge; an empty text
/// without one. It is valid until the thread's next error.
#[unsafe(no_mangle)]
pub extern "C" fn nicforge_fcnp_last_error() -> *const c_char {
    last_error()
}

/// Opens FCNP on the compute core at `socket` (a socket's path, vfio:BDF or shim:PATH). NULL means
/// the first address in the environment variable NICFORGE_SOCKET. The call waits for the I/O node's
/// process. `options` may be NULL. Returns 0 and the handle in `*compute`, or a negative error
/// number.
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
        // SAFETY: `socket` and `options` are NULL or valid by this function's contract.
        let open = unsafe { opener(socket, options, ComputeCore::open) };
        // SAFETY: `compute` is NULL or valid by this function's contract.
        unsafe { store_opened(compute, "compute", || open().map(nicforge_fcnp_compute)) }
    })
}

/// Returns a function that opens an endpoint at `socket` by `open`. The pointers are read here, and
/// the endpoint is opened by the returned function.
///
/// # Safety
/// `socket` and `options` are NULL or valid. The returned function does not use them.
unsafe fn opener<T>(
    socket: *const c_char,
    options: *const nicforge_fcnp_options,
    open: fn(Device, Config) -> Result<T, Error>,
) -> impl FnOnce() -> Result<Arc<Endpoint<T>>, Failure> {
    // SAFETY: `socket` is NULL or a C string by this function's contract.
    let socket = unsafe { path(socket) };
    // SAFETY: `options` is NULL or valid by this function's contract.
    let options = unsafe { options_or_default(options) };

    move || Endpoint::open(socket, &options, open)
}

/// Closes the endpoint. No other thread may be in a call: end such calls by
/// nicforge_fcnp_compute_cancel, and wait until they have returned. NULL is allowed.
///
/// # Safety
/// `compute` is NULL or a handle that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_close_compute(compute: *mut nicforge_fcnp_compute) {
    guarded_status(|| {
        // SAFETY: `compute` is NULL, or came from `store_opened` and is not used any more.
        unsafe { release(compute) };
        Ok(())
    });
}

/// Sends `size` bytes to the I/O node. Returns the number of bytes that both sides agreed on, or a
/// negative error number. It returns -ECONNRESET once in each direction when the process on the I/O
/// node was replaced since the last call.
///
/// # Safety
/// `compute` is a handle; `ptr` has `size` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_compute_write(
    compute: *const nicforge_fcnp_compute,
    ptr: *const c_void,
    size: usize,
) -> isize {
    // SAFETY: `compute` and `ptr` are valid by this function's contract.
    guarded_size(|| unsafe { opened(compute) }?.0.write(unsafe { input(ptr, size) }?))
}

/// Receives up to `size` bytes from the I/O node. Returns the number of bytes that both sides
/// agreed on, or a negative error number. It returns -ECONNRESET as nicforge_fcnp_compute_write
/// does.
///
/// # Safety
/// `compute` is a handle; `ptr` has `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_compute_read(
    compute: *const nicforge_fcnp_compute,
    ptr: *mut c_void,
    size: usize,
) -> isize {
    // SAFETY: `compute` and `ptr` are valid by this function's contract.
    guarded_size(|| unsafe { opened(compute) }?.0.read(unsafe { output(ptr, size) }?))
}

/// Returns the core's rank in its pset, by which the I/O node names it, or a negative error number.
///
/// # Safety
/// `compute` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_compute_rank(compute: *const nicforge_fcnp_compute) -> isize {
    // SAFETY: `compute` is a handle by this function's contract.
    guarded_size(|| Ok(unsafe { opened(compute) }?.0.rank() as usize))
}

/// Ends running and later calls with -ECANCELED while `on`. Returns 0 or a negative error number.
///
/// # Safety
/// `compute` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_compute_cancel(
    compute: *const nicforge_fcnp_compute,
    on: bool,
) -> i32 {
    guarded_status(|| {
        // SAFETY: `compute` is a handle by this function's contract.
        unsafe { opened(compute) }?.0.set_cancelled(on);
        Ok(())
    })
}

/// Serves FCNP on the I/O node at `socket` (a socket's path, vfio:BDF or shim:PATH). NULL means the
/// first address in the environment variable NICFORGE_SOCKET. `options` may be NULL. Returns 0 and
/// the handle in `*io`, or a negative error number.
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
        // SAFETY: `socket` and `options` are NULL or valid by this function's contract.
        let open = unsafe { opener(socket, options, IoNode::open) };
        // SAFETY: `io` is NULL or valid by this function's contract.
        unsafe { store_opened(io, "io", || open().map(nicforge_fcnp_io)) }
    })
}

/// Closes the endpoint, as nicforge_fcnp_close_compute does. NULL is allowed.
///
/// # Safety
/// `io` is NULL or a handle that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_close_io(io: *mut nicforge_fcnp_io) {
    guarded_status(|| {
        // SAFETY: `io` is NULL, or came from `store_opened` and is not used any more.
        unsafe { release(io) };
        Ok(())
    });
}

/// Sends `size` bytes to compute core `core`: 4 times its node's rank in the pset, plus the core of
/// the node. Returns the number of bytes that both sides agreed on, or a negative error number.
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
    // SAFETY: `io` and `ptr` are valid by this function's contract.
    guarded_size(|| unsafe { opened(io) }?.0.write(core, unsafe { input(ptr, size) }?))
}

/// Receives up to `size` bytes from compute core `core`. Returns the number of bytes that both
/// sides agreed on, or a negative error number.
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
    // SAFETY: `io` and `ptr` are valid by this function's contract.
    guarded_size(|| unsafe { opened(io) }?.0.read(core, unsafe { output(ptr, size) }?))
}

/// Returns the number of compute cores in the pset, or a negative error number.
///
/// # Safety
/// `io` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_io_cores(io: *const nicforge_fcnp_io) -> isize {
    // SAFETY: `io` is a handle by this function's contract.
    guarded_size(|| Ok(unsafe { opened(io) }?.0.cores() as usize))
}

/// Ends running and later calls with -ECANCELED while `on`. Returns 0 or a negative error number.
///
/// # Safety
/// `io` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_io_cancel(io: *const nicforge_fcnp_io, on: bool) -> i32 {
    guarded_status(|| {
        // SAFETY: `io` is a handle by this function's contract.
        unsafe { opened(io) }?.0.set_cancelled(on);
        Ok(())
    })
}

/// The paper's fcnp_init on a compute node: opens the core that NICFORGE_SOCKET names. Compute
/// cores poll in either case.
#[unsafe(no_mangle)]
pub extern "C" fn nicforge_fcnp_cn_init(use_interrupts: bool) -> i32 {
    let options = nicforge_fcnp_options { use_interrupts, ..Default::default() };
    guarded_status(|| COMPUTE_NODE.init(|| Endpoint::open(None, &options, ComputeCore::open)))
}

/// The paper's fcnp_exit on a compute node. Running calls end with -ECANCELED.
#[unsafe(no_mangle)]
pub extern "C" fn nicforge_fcnp_cn_exit() -> i32 {
    guarded_status(|| COMPUTE_NODE.exit())
}

/// The paper's fcnp_write on a compute node.
///
/// # Safety
/// `ptr` has `size` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_cn_write(ptr: *const c_void, size: usize) -> isize {
    // SAFETY: `ptr` has `size` readable bytes by this function's contract.
    guarded_size(|| COMPUTE_NODE.get()?.write(unsafe { input(ptr, size) }?))
}

/// The paper's fcnp_read on a compute node.
///
/// # Safety
/// `ptr` has `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_cn_read(ptr: *mut c_void, size: usize) -> isize {
    // SAFETY: `ptr` has `size` writable bytes by this function's contract.
    guarded_size(|| COMPUTE_NODE.get()?.read(unsafe { output(ptr, size) }?))
}

/// The paper's fcnp_init on an I/O node: serves the node that NICFORGE_SOCKET names.
#[unsafe(no_mangle)]
pub extern "C" fn nicforge_fcnp_ion_init(use_interrupts: bool) -> i32 {
    let options = nicforge_fcnp_options { use_interrupts, ..Default::default() };
    guarded_status(|| IO_NODE.init(|| Endpoint::open(None, &options, IoNode::open)))
}

/// The paper's fcnp_exit on an I/O node. Running calls end with -ECANCELED.
#[unsafe(no_mangle)]
pub extern "C" fn nicforge_fcnp_ion_exit() -> i32 {
    guarded_status(|| IO_NODE.exit())
}

/// The paper's fcnp_write on an I/O node.
///
/// # Safety
/// `ptr` has `size` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_ion_write(ptr: *const c_void, size: usize, core: u32) -> isize {
    // SAFETY: `ptr` has `size` readable bytes by this function's contract.
    guarded_size(|| IO_NODE.get()?.write(core, unsafe { input(ptr, size) }?))
}

/// The paper's fcnp_read on an I/O node.
///
/// # Safety
/// `ptr` has `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_fcnp_ion_read(ptr: *mut c_void, size: usize, core: u32) -> isize {
    // SAFETY: `ptr` has `size` writable bytes by this function's contract.
    guarded_size(|| IO_NODE.get()?.read(core, unsafe { output(ptr, size) }?))
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    /// Returns the text of this thread's last error.
    fn last_text() -> String {
        let text = nicforge_fcnp_last_error();
        // SAFETY: the text is valid until this thread's next error.
        unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn call_before_init_returns_enotconn_with_a_text() {
        let mut buffer = [0_u8; 4];
        // SAFETY: the buffer has 4 bytes.
        let result = unsafe { nicforge_fcnp_cn_read(buffer.as_mut_ptr().cast(), buffer.len()) };
        assert_eq!(
            (result, last_text().as_str()),
            (-(libc::ENOTCONN as isize), "fcnp_init has not been called")
        );
    }

    #[test]
    fn null_handle_returns_efault() {
        // SAFETY: the call refuses NULL before it uses it.
        let handle = unsafe { nicforge_fcnp_io_read(std::ptr::null(), std::ptr::null_mut(), 1, 0) };
        assert_eq!(handle, -(libc::EFAULT as isize));
    }

    #[test]
    fn opening_an_absent_socket_returns_an_error_and_no_handle() {
        let mut compute = std::ptr::null_mut();
        // SAFETY: a C string, no options, and a valid address for the handle.
        let result = unsafe {
            nicforge_fcnp_open_compute(c"/nonexistent/socket".as_ptr(), std::ptr::null(), &mut compute)
        };
        assert!(result < 0 && compute.is_null() && !last_text().is_empty());
    }
}
