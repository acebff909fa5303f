//! Registered memory.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
};

use nicforge_driver::{Bar, Device};
use nicforge_hwi::extoll_atu::{command, page};
use nicforge_shm::SharedU64;

use crate::Error;

/// What others may do with registered memory. Its owner may do both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Get from it.
    pub read: bool,
    /// Put to it.
    pub write: bool,
}

impl Access {
    /// Nothing: memory of this side of transfers.
    pub const NONE: Self = Self { read: false, write: false };
    /// Gets.
    pub const READ: Self = Self { read: true, write: false };
    /// Puts.
    pub const WRITE: Self = Self { read: false, write: true };
    /// Both.
    pub const READ_WRITE: Self = Self { read: true, write: true };
}

/// The registers of address translation. A command is several accesses, so that one goes after the other.
pub(crate) struct Translation {
    registers: Mutex<Bar>,
    start: Start,
}

/// Since when the VPID is what it is: it may be reset by this process, or by the admin.
#[derive(Clone)]
pub(crate) struct Start {
    device: Device,
    resets: u32,
    starts: SharedU64,
    start: u64,
}

impl Start {
    /// Now. `starts` is the card's count.
    pub(crate) fn now(device: &Device, starts: SharedU64) -> Self {
        let (resets, start) = (device.resets(), starts.load(Ordering::Acquire));
        Self { device: device.clone(), resets, starts, start }
    }

    /// Whether the card still knows what it was told since.
    pub(crate) fn holds(&self) -> bool {
        self.device.resets() == self.resets && self.starts.load(Ordering::Acquire) == self.start
    }
}

impl Translation {
    pub(crate) fn new(start: Start, registers: Bar) -> Arc<Self> {
        Arc::new(Self { registers: Mutex::new(registers), start })
    }

    /// # Errors
    /// [`Error::Reset`] when the card knows nothing of what was registered here, and may have given its addresses to others.
    fn check(&self) -> Result<(), Error> {
        if self.start.holds() { Ok(()) } else { Err(Error::Reset) }
    }

    /// A command; the first address, where it registers.
    fn command(&self, what: &'static str, address: u64, pages: u64, command: u64) -> Result<u64, Error> {
        let registers = self.registers.lock().unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        registers.write64(command::ADDRESS, address)?;
        registers.write64(command::PAGES, pages)?;
        registers.write64(command::COMMAND, command)?;
        match registers.read64(command::STATUS)? {
            command::DONE => Ok(registers.read64(command::RESULT)?),
            status => Err(Error::Translation { what, status }),
        }
    }

    /// Registers with the largest pages that fit and are left.
    pub(crate) fn register(
        self: &Arc<Self>,
        iova: u64,
        length: u64,
        access: Access,
    ) -> Result<Region, Error> {
        let fits = |class: u8| (iova | length).is_multiple_of(1 << page::shift(class));
        if length == 0 || !fits(page::SIZE_4K) {
            return Err(Error::Unaligned { iova, length });
        }
        let mut refused = Error::Translation { what: "register", status: command::NO_ENTRIES };
        for class in [page::SIZE_1G, page::SIZE_2M, page::SIZE_64K, page::SIZE_4K] {
            let pages = length >> page::shift(class);
            if !fits(class) || pages > page::entries(class).into() {
                continue;
            }
            let command = command::REGISTER
                | u64::from(class) << command::CLASS_SHIFT
                | if access.read { command::READ } else { 0 }
                | if access.write { command::WRITE } else { 0 };
            match self.command("register", iova, pages, command) {
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

/// Registered memory, until it is dropped.
pub struct Region {
    translation: Arc<Translation>,
    address: u64,
    length: u64,
    registered: bool,
}

impl Region {
    /// Its first network address: what partners are told.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// The network address of `length` bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::OutsideRegion`]; [`Error::Reset`] when the device was reset since it was registered.
    pub fn at(&self, offset: u64, length: u64) -> Result<u64, Error> {
        self.translation.check()?;
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(self.address + offset),
            _ => Err(Error::OutsideRegion { offset, length, size: self.length }),
        }
    }

    /// Deregisters it: when this returns nothing of it is touched any more. Dropping it does so too, and tells no error.
    ///
    /// # Errors
    /// [`Error::Reset`] when the device or its VPID was reset, which has ended it; [`Error::Translation`] when the card does not know it any more, because the
    /// admin has deregistered it; those of a trapped access.
    pub fn deregister(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.registered) {
            return Ok(());
        }
        self.translation.command("deregister", self.address, 0, command::DEREGISTER).map(drop)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // A card that is gone or was reset touches nothing of it anyway.
        let _ = self.end();
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region[{:#x}, +{:#x})", self.address, self.length)
    }
}
