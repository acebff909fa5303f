//! Errors as C expects them: a negative number from errno.h, and a text for the calling thread.

use std::{
    cell::RefCell,
    ffi::{CString, c_char},
    panic::{AssertUnwindSafe, catch_unwind},
};

use nicforge_driver::{Error as DriverError, OpenProblem};

/// An error on its way to C.
#[derive(Debug)]
pub(crate) struct Failure {
    errno: i32,
    text: String,
}

impl Failure {
    /// Creates a failure from a positive number of errno.h and a text.
    pub(crate) fn new(errno: i32, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }

    /// Returns the number of errno.h, which is positive.
    pub(crate) fn errno(&self) -> i32 {
        self.errno
    }
}

/// Returns the failure of a call in a child, by `fork`, of the process that has opened the object.
#[cold]
pub(crate) fn inherited() -> Failure {
    DriverError::ForeignProcess.into()
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Self {
        Self::new(driver_errno(&error), error.to_string())
    }
}

/// Returns the number of errno.h, which is positive, for an error of the driver library.
pub(crate) fn driver_errno(error: &DriverError) -> i32 {
    match error {
        DriverError::DeviceGone { .. } => libc::ENODEV,
        DriverError::Timeout { .. } => libc::ETIMEDOUT,
        DriverError::Cancelled => libc::ECANCELED,
        DriverError::ForeignProcess => libc::EPERM,
        DriverError::Environment { .. } => libc::ENOENT,
        DriverError::Connection { .. } => libc::ECONNREFUSED,
        DriverError::RingTaken { .. } => libc::EBUSY,
        DriverError::RingFull { .. } => libc::EAGAIN,
        DriverError::Open { problem, .. } => open_errno(problem),
        DriverError::Refused { errno, .. } if *errno > 0 => *errno,
        _ => libc::EIO,
    }
}

/// Returns the number of errno.h for a device that cannot be opened.
fn open_errno(problem: &OpenProblem) -> i32 {
    match problem {
        OpenProblem::Address => libc::EINVAL,
        OpenProblem::NoFunction => libc::ENOENT,
        OpenProblem::NotBound { .. } | OpenProblem::NoGroup => libc::ENODEV,
        OpenProblem::NotViable { .. } => libc::EPERM,
        OpenProblem::Busy => libc::EBUSY,
        OpenProblem::Version { .. } => libc::EPROTONOSUPPORT,
        OpenProblem::File { errno, .. } if *errno > 0 => *errno,
        _ => libc::EIO,
    }
}

thread_local! {
    /// Text of the thread's last failure.
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Returns the text of the calling thread's last failure, which is empty when there was none. The
/// text is valid until the thread's next failure.
pub(crate) fn last_error() -> *const c_char {
    // The access fails while the thread is ending. The text is empty then.
    LAST_ERROR
        .try_with(|last| last.try_borrow().map_or(c"".as_ptr(), |text| text.as_ptr()))
        .unwrap_or(c"".as_ptr())
}

/// Stores the text of a failure as the calling thread's last one.
#[cold]
fn store_last_error(failure: &Failure) {
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    // If the text cannot be stored, it is lost. The error number is not.
    let _ = LAST_ERROR.try_with(|last| last.try_borrow_mut().map(|mut last| *last = text));
}

/// Runs a call and returns its result or its negative error number. A panic becomes `EIO`.
fn guarded<T>(call: impl FnOnce() -> Result<T, Failure>) -> Result<T, i32> {
    let result = catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err(Failure::new(libc::EIO, "the library failed inside; this is a bug in it")));

    result.map_err(|failure| {
        store_last_error(&failure);
        -failure.errno
    })
}

/// Runs a call of a C API that returns 0, or a negative error number.
pub(crate) fn guarded_status(call: impl FnOnce() -> Result<(), Failure>) -> i32 {
    guarded(call).map_or_else(|errno| errno, |()| 0)
}

/// Runs a call of a C API that returns a number, or a negative error number.
pub(crate) fn guarded_number(call: impl FnOnce() -> Result<i32, Failure>) -> i32 {
    guarded(call).unwrap_or_else(|errno| errno)
}

/// Runs a call of a C API that returns a size in bytes, or a negative error number.
pub(crate) fn guarded_size(call: impl FnOnce() -> Result<usize, Failure>) -> isize {
    guarded(call).map_or_else(|errno| errno as isize, |size| isize::try_from(size).unwrap_or(isize::MAX))
}

/// Runs a call of a C API that returns a count, or a negative error number.
pub(crate) fn guarded_count(call: impl FnOnce() -> Result<u64, Failure>) -> i64 {
    guarded(call).map_or_else(i64::from, |count| i64::try_from(count).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use nicforge_driver::{Device, OpenOptions};

    use super::*;

    /// Returns the text of this thread's last failure.
    fn last() -> String {
        LAST_ERROR.with(|last| last.borrow().to_string_lossy().into_owned())
    }

    #[test]
    fn result_of_a_call_is_returned() {
        assert_eq!(guarded_status(|| Ok(())), 0);
        assert_eq!(guarded_number(|| Ok(7)), 7);
        assert_eq!(guarded_size(|| Ok(usize::MAX)), isize::MAX);
        assert_eq!(guarded_count(|| Ok(u64::MAX)), i64::MAX);
    }

    #[test]
    fn a_failure_returns_its_number_and_stores_its_text() {
        let fail = || Failure::new(libc::EBADF, "there is\0no such thing");
        assert_eq!(guarded_size(|| Err(fail())), -(libc::EBADF as isize));
        assert_eq!(guarded_count(|| Err(fail())), i64::from(-libc::EBADF));
        assert_eq!(last(), "there is no such thing");
        std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
    }

    #[test]
    fn a_panic_becomes_eio() {
        assert_eq!(guarded_number(|| panic!("inside")), -libc::EIO);
        assert!(last().contains("bug"));
    }

    #[test]
    fn errors_of_the_driver_have_numbers() {
        let errno = |error: DriverError| Failure::from(error).errno();
        assert_eq!(errno(DriverError::Cancelled), libc::ECANCELED);
        assert_eq!(errno(DriverError::RingTaken { ring: 0 }), libc::EBUSY);
        assert_eq!(errno(DriverError::RingFull { ring: 0 }), libc::EAGAIN);
        assert_eq!(errno(DriverError::Refused { what: "it", errno: libc::EPERM }), libc::EPERM);
        assert_eq!(errno(DriverError::Refused { what: "it", errno: 0 }), libc::EIO);
    }

    #[test]
    fn a_device_that_cannot_be_opened_has_the_number_of_its_problem() {
        let errno =
            |name: &str| Failure::from(Device::open_named(name, OpenOptions::default()).unwrap_err()).errno();
        assert_eq!(errno("shim:/nonexistent"), libc::ENOENT);
        assert_eq!(errno("shim:/dev/null"), libc::ENOTTY);
        assert_eq!(errno("vfio:nonsense"), libc::EINVAL);
        assert_eq!(errno("vfio:ffff:ff:1f.7"), libc::ENOENT);
    }
}
