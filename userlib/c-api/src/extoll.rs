//! VELO and RMA over one VPID of an EXTOLL card.
//!
//! Input: C strings and pointers. Output: ports of [`velo`] and [`rma`] that share a device and its
//! posted-write ring. A device has one owner, so a process can't open it once for each. The card
//! carries out everything that both ports post in the order of posting. The header is
//! `nicforge/extoll.h`; the calls on ports are in the protocols' own headers.
//!
//! UNSAFETY: a C API takes raw pointers. Each function documents its requirements on them. A handle
//! is a box that C releases once.
#![allow(unsafe_code, non_camel_case_types)]

use std::{
    ffi::{OsString, c_char},
    sync::{Arc, Mutex, Weak},
};

use nicforge_driver::{Device, SharedPoster};

use crate::{
    rma::{self, rma_options, rma_port},
    support::{
        Failure, guarded_status, last_error, open_device, opened, options_or_default, path, release,
        store_opened,
    },
    velo::{self, velo_options, velo_port},
};

/// A VPID of a card, for VELO and RMA together.
pub struct nicforge_extoll {
    device: Device,
    poster: SharedPoster,
    /// Refers to the open VELO port, if there is one. A second port would take over the receive
    /// ring of the first.
    velo: Mutex<Weak<()>>,
    /// Refers to the open RMA port, if there is one. Two ports would enable one notification queue.
    rma: Mutex<Weak<()>>,
}

/// Calls `open`, unless a port of `protocol` is open. The new port keeps the marker that `open` is
/// passed; `open_port` refers to the marker of the last port, which exists as long as that is open.
///
/// # Errors
/// `EBUSY` while such a port is open, or being opened by another thread; the errors of `open`.
fn open_once<P>(
    open_port: &Mutex<Weak<()>>,
    protocol: &str,
    open: impl FnOnce(Arc<()>) -> Result<P, Failure>,
) -> Result<P, Failure> {
    let busy = || Failure::new(libc::EBUSY, format!("{protocol} is open on this VPID, or being opened"));

    let mut open_port = open_port.try_lock().map_err(|_| busy())?;
    if open_port.upgrade().is_some() {
        return Err(busy());
    }

    let marker = Arc::new(());
    *open_port = Arc::downgrade(&marker);
    open(marker)
}

/// Returns the text of the calling thread's last error in any call of libnicforge; an empty text
/// without one. It is valid until the thread's next error.
#[unsafe(no_mangle)]
pub extern "C" fn nicforge_extoll_last_error() -> *const c_char {
    last_error()
}

/// Opens the VPID at `socket` (a socket's path, vfio:BDF or shim:PATH), or, when that is NULL, the
/// first one in the environment variable NICFORGE_SOCKET. Returns 0 and stores the handle in
/// `*extoll`, or returns a negative error number.
///
/// # Safety
/// `socket` is NULL or valid; `extoll` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_extoll_open(
    socket: *const c_char,
    extoll: *mut *mut nicforge_extoll,
) -> i32 {
    guarded_status(|| {
        // SAFETY: NULL or a C string by this function's contract.
        let socket = unsafe { path(socket) };
        // SAFETY: NULL or valid by this function's contract.
        unsafe { store_opened(extoll, "extoll", || open(socket)) }
    })
}

/// Opens a VPID without ports.
fn open(socket: Option<OsString>) -> Result<nicforge_extoll, Failure> {
    let device = open_device(socket)?;
    let poster = SharedPoster::new(device.poster(0)?);
    Ok(nicforge_extoll { device, poster, velo: Mutex::default(), rma: Mutex::default() })
}

/// Closes the VPID. Ports opened on it keep the device until they are closed. NULL is allowed.
///
/// # Safety
/// `extoll` is NULL or a handle that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_extoll_close(extoll: *mut nicforge_extoll) {
    guarded_status(|| {
        // SAFETY: NULL, or it came from `store_opened`, and is not used any more.
        unsafe { release(extoll) };
        Ok(())
    });
}

/// As velo_open, on an opened VPID. A VPID has at most one VELO port: a second call returns -EBUSY.
/// Another thread may use the VPID's RMA.
///
/// # Safety
/// `extoll` is a handle; `options` is NULL or valid; `port` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn velo_open_on(
    extoll: *const nicforge_extoll,
    options: *const velo_options,
    port: *mut *mut velo_port,
) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        let extoll = unsafe { opened(extoll) }?;
        // SAFETY: NULL or valid by this function's contract.
        let options = unsafe { options_or_default(options) };

        let shared = Some(extoll.poster.clone());
        let open = |marker| velo::open_device_as(extoll.device.clone(), shared, marker, &options);
        // SAFETY: NULL or valid by this function's contract.
        unsafe { store_opened(port, "port", || open_once(&extoll.velo, "VELO", open)) }
    })
}

/// As rma_open, on an opened VPID. A VPID has at most one RMA port: a second call returns -EBUSY.
/// Another thread may use the VPID's VELO.
///
/// # Safety
/// `extoll` is a handle; `options` is NULL or valid; `port` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_open_on(
    extoll: *const nicforge_extoll,
    options: *const rma_options,
    port: *mut *mut rma_port,
) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        let extoll = unsafe { opened(extoll) }?;
        // SAFETY: NULL or valid by this function's contract.
        let options = unsafe { options_or_default(options) };

        let shared = Some(extoll.poster.clone());
        let open = |marker| rma::open_device_as(&extoll.device, shared, marker, &options);
        // SAFETY: NULL or valid by this function's contract.
        unsafe { store_opened(port, "port", || open_once(&extoll.rma, "RMA", open)) }
    })
}

#[cfg(test)]
mod tests {
    use std::{ffi::CStr, ptr};

    use super::*;

    #[test]
    fn null_gives_efault() {
        let calls = [
            // SAFETY: NULL is refused before it is used.
            unsafe { nicforge_extoll_open(ptr::null(), ptr::null_mut()) },
            // SAFETY: as above.
            unsafe { velo_open_on(ptr::null(), ptr::null(), ptr::null_mut()) },
            // SAFETY: as above.
            unsafe { rma_open_on(ptr::null(), ptr::null(), ptr::null_mut()) },
        ];
        assert_eq!(calls, [-libc::EFAULT; 3]);

        // SAFETY: NULL is allowed.
        unsafe { nicforge_extoll_close(ptr::null_mut()) };
    }

    #[test]
    fn a_second_port_of_a_protocol_is_refused_while_the_first_is_open_or_being_opened() {
        let open_port = Mutex::default();
        let opened = open_once(&open_port, "RMA", |marker| {
            assert!(open_once(&open_port, "RMA", Ok).is_err_and(|failure| failure.errno() == libc::EBUSY));
            Ok(marker)
        });

        assert!(opened.is_ok());
        assert!(open_once(&open_port, "RMA", Ok).is_err());
        drop(opened);
        assert!(open_once(&open_port, "RMA", Ok).is_ok());
    }

    #[test]
    fn opening_a_missing_socket_returns_an_error_and_no_handle() {
        let mut extoll = ptr::null_mut();
        // SAFETY: a C string, a valid pointer.
        let result = unsafe { nicforge_extoll_open(c"/nonexistent/socket".as_ptr(), &mut extoll) };

        // SAFETY: valid until this thread's next error.
        let text = unsafe { CStr::from_ptr(nicforge_extoll_last_error()) };

        assert!(result < 0 && extoll.is_null() && !text.is_empty());
    }
}
