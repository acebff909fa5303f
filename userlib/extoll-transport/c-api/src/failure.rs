//! Errors as C has them: a negative number from errno.h, and a text for the thread that got it.

use std::{
    cell::RefCell,
    ffi::{CString, c_char},
    panic::{AssertUnwindSafe, catch_unwind},
};

use nicforge_driver::Error as DriverError;
use nicforge_extoll_transport::Error as TransportError;
use nicforge_matching::Error;
use nicforge_mpi_programs::Error as ProgramError;
use nicforge_velo::Error as VeloError;

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
        let errno = match &error {
            Error::Truncated { .. } => libc::EMSGSIZE,
            Error::Cancelled | Error::Interrupted { .. } => libc::ECANCELED,
            Error::PeerGone { .. } => libc::ECONNRESET,
            Error::BadPeer { .. } => libc::EPROTO,
            Error::NoSuchPeer { .. } => libc::EADDRNOTAVAIL,
            Error::NoSuchRequest { .. } | Error::NoSuchMessage { .. } => libc::EBADF,
            Error::TooManyRequests { .. } => libc::ENOBUFS,
            Error::BadConfig { .. } => libc::EINVAL,
            Error::Timeout { .. } => libc::ETIMEDOUT,
            _ => libc::EIO,
        };
        Self { errno, text: error.to_string() }
    }
}

impl From<TransportError> for Failure {
    fn from(error: TransportError) -> Self {
        let errno = match &error {
            TransportError::BadConfig { .. } | TransportError::SameAddress { .. } => libc::EINVAL,
            TransportError::NoSuchAddress { .. } | TransportError::NotOfJob { .. } => libc::EADDRNOTAVAIL,
            TransportError::Velo(VeloError::Timeout { .. }) => libc::ETIMEDOUT,
            TransportError::Velo(VeloError::WrongDevice { .. }) => libc::ENXIO,
            TransportError::Driver(DriverError::Environment { .. }) => libc::ENOENT,
            TransportError::Driver(DriverError::Connection { .. }) => libc::ECONNREFUSED,
            TransportError::Driver(error) if error.is_gone() => libc::ENODEV,
            _ => libc::EIO,
        };
        Self { errno, text: error.to_string() }
    }
}

impl From<ProgramError> for Failure {
    fn from(error: ProgramError) -> Self {
        match error {
            ProgramError::Matching(error) => error.into(),
            other => Self { errno: libc::EIO, text: other.to_string() },
        }
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
