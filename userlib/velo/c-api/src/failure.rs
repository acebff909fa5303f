//! Errors as C has them: a negative number from errno.h, and a text for the thread that got it.

use std::{
    cell::RefCell,
    ffi::{CString, c_char},
    panic::{AssertUnwindSafe, catch_unwind},
};

use nicforge_driver::Error as DriverError;
use nicforge_velo::{DeviceError, Error};

/// A failure that is about to cross the boundary.
#[derive(Debug)]
pub(crate) struct Failure {
    errno: i32,
    text: String,
}

impl Failure {
    pub(crate) fn new(errno: i32, text: &str) -> Self {
        Self { errno, text: text.to_owned() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { errno: errno(&error), text: error.to_string() }
    }
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Self {
        Error::from(error).into()
    }
}

fn errno(error: &Error) -> i32 {
    match error {
        Error::WouldBlock => libc::EAGAIN,
        Error::BadLength { .. } => libc::EMSGSIZE,
        Error::BadTag { .. } | Error::BadRing { .. } => libc::EINVAL,
        Error::NoSuchPeer { .. } => libc::EADDRNOTAVAIL,
        Error::PeerGone { .. } => libc::ECONNRESET,
        Error::NoCredit { .. } => libc::ECONNREFUSED,
        Error::Device { error: DeviceError::Watchdog { .. }, .. } => libc::EHOSTUNREACH,
        Error::Device { .. } => libc::EPROTO,
        Error::KeptFull { .. } => libc::ENOBUFS,
        Error::Timeout { .. } => libc::ETIMEDOUT,
        Error::Cancelled { .. } => libc::ECANCELED,
        Error::WrongDevice { .. } => libc::ENXIO,
        Error::Driver(error) => driver_errno(error),
        _ => libc::EIO,
    }
}

fn driver_errno(error: &DriverError) -> i32 {
    match error {
        DriverError::DeviceGone { .. } => libc::ENODEV,
        DriverError::Timeout { .. } => libc::ETIMEDOUT,
        DriverError::Cancelled => libc::ECANCELED,
        DriverError::Environment { .. } => libc::ENOENT,
        DriverError::Connection { .. } => libc::ECONNREFUSED,
        DriverError::Refused { errno, .. } if *errno > 0 => *errno,
        _ => libc::EIO,
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Text of the calling thread's last failure; empty when there was none. It lives until the thread's next failure.
pub(crate) fn last() -> *const c_char {
    // The thread may be ending.
    LAST.try_with(|last| last.try_borrow().map_or(c"".as_ptr(), |text| text.as_ptr())).unwrap_or(c"".as_ptr())
}

#[cold]
fn remember(failure: &Failure) {
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    // A text that cannot be kept is lost; the number is not.
    let _ = LAST.try_with(|last| last.try_borrow_mut().map(|mut last| *last = text));
}

/// Runs a call of the C API: what it gives, or the negative error number. No panic passes.
pub(crate) fn guarded(call: impl FnOnce() -> Result<i32, Failure>) -> i32 {
    let result = catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err(Failure::new(libc::EIO, "the library failed inside; this is a bug in it")));
    result.unwrap_or_else(|failure| {
        remember(&failure);
        -failure.errno
    })
}
