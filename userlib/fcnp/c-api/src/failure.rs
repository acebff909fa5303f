//! Errors as C has them: a negative number from errno.h, and a text for the thread that got it.

use std::{
    cell::RefCell,
    ffi::{CString, c_char},
    panic::{AssertUnwindSafe, catch_unwind},
};

use nicforge_driver::Error as DriverError;
use nicforge_fcnp::Error;

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
        Error::PeerGone { .. } => libc::ECONNRESET,
        Error::Aborted { .. } => libc::ECONNABORTED,
        Error::Timeout { .. } => libc::ETIMEDOUT,
        Error::Cancelled { .. } => libc::ECANCELED,
        Error::Busy { .. } => libc::EBUSY,
        Error::NoSuchCore { .. } => libc::EINVAL,
        Error::WrongDevice { .. } => libc::ENXIO,
        Error::Served { .. } => libc::EADDRINUSE,
        Error::BadDevice { .. } | Error::BadPeer { .. } => libc::EPROTO,
        Error::Thread { .. } => libc::EAGAIN,
        Error::Device(error) => device_errno(error),
        _ => libc::EIO,
    }
}

fn device_errno(error: &DriverError) -> i32 {
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

fn remember(failure: &Failure) {
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    // A text that cannot be kept is lost; the number is not.
    let _ = LAST.try_with(|last| last.try_borrow_mut().map(|mut last| *last = text));
}

/// Runs a call of the C API: its size, or the negative error number. No panic passes.
pub(crate) fn guarded(call: impl FnOnce() -> Result<usize, Failure>) -> isize {
    let result = catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err(Failure::new(libc::EIO, "the library failed inside; this is a bug in it")));
    match result {
        Ok(size) => isize::try_from(size).unwrap_or(isize::MAX),
        Err(failure) => {
            remember(&failure);
            -(failure.errno as isize)
        }
    }
}

/// The same for a call that gives 0 or an error.
pub(crate) fn guarded_status(call: impl FnOnce() -> Result<(), Failure>) -> i32 {
    guarded(|| call().map(|()| 0)) as i32
}
