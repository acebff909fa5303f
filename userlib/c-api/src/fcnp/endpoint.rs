//! The endpoints behind the handles of the C API.

use std::{
    ffi::OsString,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use nicforge_driver::{Cancel, Deadline, Device};
use nicforge_fcnp::{ComputeCore, Config, IoNode, Mode};
use nicforge_shm::OwnerCell;

use super::{failure::failure, nicforge_fcnp_options};
use crate::support::{Failure, inherited, open_device, timeout};

/// An endpoint of FCNP: a [`ComputeCore`] or an [`IoNode`].
pub(crate) struct Endpoint<T> {
    inner: T,
    /// Cancellation token of all calls.
    cancel: Cancel,
    /// Time limit of each call.
    timeout: Option<Duration>,
}

impl<T> Endpoint<T> {
    /// Opens the device behind `socket`, or the one that `NICFORGE_SOCKET` names, and calls `open`
    /// on it.
    pub(crate) fn open(
        socket: Option<OsString>,
        options: &nicforge_fcnp_options,
        open: impl FnOnce(Device, Config) -> Result<T, nicforge_fcnp::Error>,
    ) -> Result<Arc<Self>, Failure> {
        let device = open_device(socket)?;
        let config = config(options);

        let inner = open(device, config).map_err(failure)?;
        Ok(Arc::new(Self { inner, cancel: Cancel::new()?, timeout: config.timeout }))
    }

    /// Returns the deadline of a call that begins now.
    fn deadline(&self) -> Deadline {
        self.timeout.map_or(Deadline::never(), Deadline::after)
    }

    /// Sets whether running and later calls end with an error.
    pub(crate) fn set_cancelled(&self, is_cancelled: bool) {
        if is_cancelled { self.cancel.cancel() } else { self.cancel.rearm() }
    }
}

impl Endpoint<ComputeCore> {
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize, Failure> {
        self.inner.read_until(buffer, self.deadline(), Some(&self.cancel)).map_err(failure)
    }

    pub(crate) fn write(&self, data: &[u8]) -> Result<usize, Failure> {
        self.inner.write_until(data, self.deadline(), Some(&self.cancel)).map_err(failure)
    }

    pub(crate) fn rank(&self) -> u32 {
        self.inner.rank()
    }
}

impl Endpoint<IoNode> {
    pub(crate) fn read(&self, core: u32, buffer: &mut [u8]) -> Result<usize, Failure> {
        self.inner.read_until(core, buffer, self.deadline(), Some(&self.cancel)).map_err(failure)
    }

    pub(crate) fn write(&self, core: u32, data: &[u8]) -> Result<usize, Failure> {
        self.inner.write_until(core, data, self.deadline(), Some(&self.cancel)).map_err(failure)
    }

    pub(crate) fn cores(&self) -> u32 {
        self.inner.cores()
    }
}

/// Converts the options. A value of 0 means the default.
fn config(options: &nicforge_fcnp_options) -> Config {
    let non_zero_or = |value: u64, default| if value == 0 { default } else { value };
    let default = Config::default();

    Config {
        mode: if options.use_interrupts { Mode::Interrupt } else { Mode::Polling },
        poll_phase: Duration::from_micros(non_zero_or(
            options.poll_us,
            default.poll_phase.as_micros() as u64,
        )),
        timeout: timeout(options.timeout_ms),
        open_timeout: Duration::from_millis(non_zero_or(
            options.open_timeout_ms,
            default.open_timeout.as_millis() as u64,
        )),
        ..default
    }
}

/// The only endpoint of this process that the calls without a handle use. Those calls have the
/// names and parameters of the paper on FCNP.
pub(crate) struct Singleton<T> {
    only: RwLock<Option<Arc<Endpoint<T>>>>,
    /// The process that has opened the endpoint. It is checked before the lock is taken, which a
    /// thread may hold that only a parent of this process has.
    owner: OwnerCell,
}

impl<T> Singleton<T> {
    /// Returns a singleton without an endpoint.
    pub(crate) const fn new() -> Self {
        Self { only: RwLock::new(None), owner: OwnerCell::new() }
    }

    /// Checks that no parent of this process has opened the endpoint.
    fn check_owner(&self) -> Result<(), Failure> {
        if self.owner.is_inherited() { Err(inherited()) } else { Ok(()) }
    }

    /// Returns the process's endpoint.
    pub(crate) fn get(&self) -> Result<Arc<Endpoint<T>>, Failure> {
        self.check_owner()?;
        let only = self.only.read().unwrap_or_else(PoisonError::into_inner);
        only.clone().ok_or_else(|| Failure::new(libc::ENOTCONN, "fcnp_init has not been called"))
    }

    /// Opens the process's endpoint by `open`, unless there is one.
    pub(crate) fn init(
        &self,
        open: impl FnOnce() -> Result<Arc<Endpoint<T>>, Failure>,
    ) -> Result<(), Failure> {
        self.check_owner()?;
        let mut only = self.only.write().unwrap_or_else(PoisonError::into_inner);
        if only.is_some() {
            return Err(Failure::new(
                libc::EALREADY,
                "fcnp_init has been called already; call fcnp_exit first",
            ));
        }

        *only = Some(open()?);
        self.owner.set_current();
        Ok(())
    }

    /// Closes the endpoint for later calls, and cancels the running ones.
    pub(crate) fn exit(&self) -> Result<(), Failure> {
        self.check_owner()?;
        let taken = self.only.write().unwrap_or_else(PoisonError::into_inner).take();
        let endpoint = taken.ok_or_else(|| Failure::new(libc::ENOTCONN, "fcnp_init has not been called"))?;
        self.owner.clear();
        endpoint.set_cancelled(true);
        Ok(())
    }
}
