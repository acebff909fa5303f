//! The object behind a C pointer.

use std::{
    ffi::OsString,
    sync::{Mutex, TryLockError},
    time::Duration,
};

use nicforge_driver::{Cancel, Device, Error as DriverError, OpenOptions, environment};

use super::Failure;

/// An object that one thread at a time uses, and whose calls any thread can cancel. A second
/// thread's call returns an error at once, because the lock is never waited for.
#[derive(Debug)]
pub(crate) struct Handle<T> {
    inner: Mutex<T>,
    cancel: Cancel,
}

impl<T> Handle<T> {
    /// Puts `inner` into a handle.
    ///
    /// # Errors
    /// Returns an error when the process has no descriptor left.
    pub(crate) fn new(inner: T) -> Result<Self, DriverError> {
        Ok(Self { inner: Mutex::new(inner), cancel: Cancel::new()? })
    }

    /// Calls `call` with the object and its cancellation token.
    ///
    /// # Errors
    /// Returns `EBUSY` while another call is in progress, in another thread or around a callback of
    /// this one, `EIO` after an earlier call has panicked,
    /// and the errors of `call`.
    pub(crate) fn with<R>(
        &self,
        call: impl FnOnce(&mut T, &Cancel) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let mut inner = self.inner.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Failure::new(
                libc::EBUSY,
                "another call for this handle is in progress, in another thread or around this callback",
            ),
            TryLockError::Poisoned(_) => {
                Failure::new(libc::EIO, "an earlier call failed inside the library; close this port")
            }
        })?;

        call(&mut inner, &self.cancel)
    }

    /// Sets whether present and later calls that wait end with an error.
    pub(crate) fn set_cancelled(&self, is_cancelled: bool) {
        if is_cancelled { self.cancel.cancel() } else { self.cancel.rearm() }
    }
}

/// The type of a C handle whose object is behind a [`Handle`].
pub(crate) trait HasHandle {
    /// The object that the calls use.
    type Object;

    /// Returns the lock around the object.
    fn handle(&self) -> &Handle<Self::Object>;
}

/// Opens the device at `socket`, or the first one that the environment variable `NICFORGE_SOCKET`
/// names.
///
/// # Errors
/// Returns the errors of [`Device::open_named`] and [`Device::open_env`].
pub(crate) fn open_device(socket: Option<OsString>) -> Result<Device, DriverError> {
    match socket {
        Some(device) => Device::open_named(device, OpenOptions::default()),
        None => Device::open_env(environment::SOCKET, OpenOptions::default()),
    }
}

/// Converts a time-out of a C call in milliseconds, where 0 means none.
pub(crate) fn timeout(milliseconds: u64) -> Option<Duration> {
    (milliseconds != 0).then(|| Duration::from_millis(milliseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_call_at_the_same_time_is_refused() {
        let handle = Handle::new(1).unwrap();
        let inside = handle.with(|_, _| Ok(handle.with(|_, _| Ok(())).map_err(|failure| failure.errno())));
        assert_eq!(inside.unwrap(), Err(libc::EBUSY));
        assert_eq!(handle.with(|inner, _| Ok(*inner)).unwrap(), 1);
    }

    #[test]
    fn a_handle_reports_eio_after_a_panic() {
        let handle = Handle::new(()).unwrap();
        let call = || handle.with(|(), _| -> Result<(), Failure> { panic!("inside") });
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err());

        assert_eq!(handle.with(|(), _| Ok(())).map_err(|failure| failure.errno()), Err(libc::EIO));
    }

    #[test]
    fn a_handle_is_cancelled_until_cancellation_is_cleared() {
        let handle = Handle::new(()).unwrap();
        let cancelled = || handle.with(|(), cancel| Ok(cancel.is_cancelled())).unwrap();

        handle.set_cancelled(true);
        assert!(cancelled());

        handle.set_cancelled(false);
        assert!(!cancelled());
    }
}
