//! Registered memory.

use std::{
    fmt, io,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use nicforge_driver::{
    Bar, Deadline, Device, Error as DriverError,
    runtime::{Cost, charge, lock},
};
use nicforge_hwi::extoll_atu::{command, page};
use nicforge_shm::SharedU64;

use crate::Error;

/// Time after which a deregistration gives up while a message without credit stalls the
/// posted-write ring. The last access may take a few seconds more.
const DEREGISTER_TIMEOUT: Duration = Duration::from_secs(10);

/// Access of other processes to registered memory. The owner may both read and write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Others may get from the memory.
    pub read: bool,
    /// Others may put to the memory.
    pub write: bool,
}

impl Access {
    /// No access: the memory is only this side of transfers.
    pub const NONE: Self = Self { read: false, write: false };
    /// Gets.
    pub const READ: Self = Self { read: true, write: false };
    /// Puts.
    pub const WRITE: Self = Self { read: false, write: true };
    /// Gets and puts.
    pub const READ_WRITE: Self = Self { read: true, write: true };
}

/// The registers of address translation. A command takes several register accesses, so a lock
/// serializes commands.
pub(crate) struct Translation {
    registers: Mutex<Bar>,
    epoch: VpidEpoch,
}

/// An epoch of the VPID. It ends when this process or the administrator resets the VPID.
#[derive(Clone)]
pub(crate) struct VpidEpoch {
    device: Device,
    resets: u32,
    /// The card's counter of resets of the VPID, and its value when the epoch began.
    starts: SharedU64,
    start: u64,
}

impl VpidEpoch {
    /// Returns the present epoch. `starts` is the card's counter of resets.
    pub(crate) fn current(device: &Device, starts: SharedU64) -> Self {
        let (resets, start) = (device.resets(), starts.load(Ordering::Acquire));
        Self { device: device.clone(), resets, starts, start }
    }

    /// Returns whether the epoch has not ended.
    pub(crate) fn is_current(&self) -> bool {
        self.device.resets() == self.resets && self.starts.load(Ordering::Acquire) == self.start
    }
}

impl Translation {
    /// Returns the address translation of a VPID in this epoch, by the card's registers.
    pub(crate) fn new(epoch: VpidEpoch, registers: Bar) -> Arc<Self> {
        Arc::new(Self { registers: Mutex::new(registers), epoch })
    }

    /// Checks that the registrations made here are still valid.
    ///
    /// # Errors
    /// [`Error::Reset`] when the device was reset, which ends its registrations. The card may have
    /// assigned their addresses to other memory.
    fn check_epoch(&self) -> Result<(), Error> {
        if self.epoch.is_current() { Ok(()) } else { Err(Error::Reset) }
    }

    /// Runs the command with the operands `address` and `pages`, and returns its result: the first
    /// network address, for a registration. `operation` names the command in an error. The call
    /// repeats accesses that fail because of a stalled ring until `deadline`.
    ///
    /// It holds the lock meanwhile. Otherwise another thread's registration could be given the
    /// address of a command that is repeated.
    fn run_command(
        &self,
        operation: &'static str,
        command: u64,
        (address, pages): (u64, u64),
        deadline: Deadline,
    ) -> Result<u64, Error> {
        // A thread that only the parent of this process has may hold the lock.
        if self.epoch.device.is_inherited() {
            return Err(DriverError::ForeignProcess.into());
        }

        charge(Cost::Registration, 1);
        let registers = lock(&self.registers);
        self.check_epoch()?;

        for (register, value) in
            [(command::ADDRESS, address), (command::PAGES, pages), (command::COMMAND, command)]
        {
            retry(deadline, || registers.write64(register, value))?;
        }

        match retry(deadline, || registers.read64(command::STATUS))? {
            command::DONE => Ok(retry(deadline, || registers.read64(command::RESULT))?),
            status => Err(Error::Translation { what: operation, status }),
        }
    }

    /// Registers `length` bytes at `iova` with the largest pages that fit and are available.
    ///
    /// # Errors
    /// [`Error::Unaligned`]; the card's refusal of the smallest pages that fit.
    pub(crate) fn register(
        self: &Arc<Self>,
        iova: u64,
        length: u64,
        access: Access,
    ) -> Result<Region, Error> {
        let fits = |page_size: u8| (iova | length).is_multiple_of(1 << page::shift(page_size));
        if length == 0 || !fits(page::SIZE_4K) {
            return Err(Error::Unaligned { iova, length });
        }

        let now = Deadline::after(Duration::ZERO);
        let mut refused = Error::Translation { what: "register", status: command::NO_ENTRIES };
        for page_size in [page::SIZE_1G, page::SIZE_2M, page::SIZE_64K, page::SIZE_4K] {
            let pages = length >> page::shift(page_size);
            if !fits(page_size) || pages > page::entries(page_size).into() {
                continue;
            }

            let command = command::REGISTER
                | u64::from(page_size) << command::CLASS_SHIFT
                | if access.read { command::READ } else { 0 }
                | if access.write { command::WRITE } else { 0 };

            match self.run_command("register", command, (iova, pages), now) {
                Ok(address) => {
                    return Ok(Region { translation: self.clone(), address, length, registered: true });
                }
                Err(error @ Error::Translation { status: command::NO_ENTRIES | command::QUOTA, .. }) => {
                    refused = error;
                }
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    }
}

/// Performs a trapped access. Repeats it until `deadline` while the posted-write ring is stalled.
fn retry<T>(
    deadline: Deadline,
    mut access: impl FnMut() -> Result<T, DriverError>,
) -> Result<T, DriverError> {
    loop {
        match access() {
            Err(error) if is_stall(&error) && !deadline.has_passed() => {}
            result => return result,
        }
    }
}

/// Returns whether a trapped access failed because a record stalls the posted-write ring. The
/// server answers such an access with `EAGAIN` after 2 s.
fn is_stall(error: &DriverError) -> bool {
    match error {
        DriverError::Timeout { .. } => true,
        DriverError::Refused { errno, .. } => {
            io::Error::from_raw_os_error(*errno).kind() == io::ErrorKind::WouldBlock
        }
        _ => false,
    }
}

/// Registered memory. Dropping it deregisters the memory.
pub struct Region {
    translation: Arc<Translation>,
    address: u64,
    length: u64,
    registered: bool,
}

impl Region {
    /// Returns the first network address, which the owner passes to its partners.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Returns the network address of `length` bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::OutsideRegion`]; [`Error::Reset`] when the device was reset since the registration.
    pub fn at(&self, offset: u64, length: u64) -> Result<u64, Error> {
        self.translation.check_epoch()?;
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(self.address + offset),
            _ => Err(Error::OutsideRegion { offset, length, size: self.length }),
        }
    }

    /// Deregisters the memory. No card accesses it after this returns. Dropping the region has the
    /// same effect, but reports no error.
    ///
    /// A message without credit can stall the posted-write ring, and with it the registers. After
    /// an error of that kind the call tries again, for at most about 10 s.
    ///
    /// # Errors
    /// - [`Error::Reset`] when the device or its VPID was reset, which has ended the registration.
    /// - [`Error::Translation`] when the administrator has deregistered the memory.
    /// - Errors of a trapped access.
    pub fn deregister(mut self) -> Result<(), Error> {
        self.end()
    }

    /// Deregisters the memory, if it is still registered.
    fn end(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.registered) {
            return Ok(());
        }

        // The card knows the number of pages.
        let operands = (self.address, 0);
        let deadline = Deadline::after(DEREGISTER_TIMEOUT);
        self.translation.run_command("deregister", command::DEREGISTER, operands, deadline).map(drop)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // A card that is gone or was reset does not access the memory anyway.
        let _ = self.end();
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region[{:#x}, +{:#x})", self.address, self.length)
    }
}
