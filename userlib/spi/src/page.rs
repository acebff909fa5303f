//! The registers of a subgroup, and their mirror.

use std::{sync::atomic::Ordering, time::Duration};

use nicforge_driver::{Bar, Deadline, Device};
use nicforge_hwi::{
    mu::{
        BAR_MIRROR, BAR_REGISTERS, FIRST_SUBGROUP, KERNEL, MIRROR_BASE, PAGE, SUBGROUPS_OF_GROUP,
        USER_SUBGROUPS, reg,
    },
    mu_packet::Destination,
    pci,
};
use nicforge_shm::{SharedU64, Window};
use zerocopy::little_endian::U32 as Le32;

use crate::{Coordinates, Error, NodePosition};

/// Longest time until the mirror shows a register's value.
const MIRROR_TIMEOUT: Duration = Duration::from_secs(5);

/// The page of a subgroup in an attachment.
#[derive(Clone)]
pub(crate) struct Page {
    device: Device,
    registers: Bar,
    mirror: Window,
    /// Offset of the page in BAR 0 and in the mirror.
    base: u64,
    /// Number of the subgroup in its node.
    subgroup: u16,
    /// [`Device::resets`] when the page was opened.
    resets_at_open: u32,
    /// The mirror's count of the subgroup's starts.
    starts: SharedU64,
    /// That count when the page was opened.
    starts_at_open: u64,
}

/// Checks that a device is an attachment of a Message Unit, and returns the attachment's number.
/// `wanted` describes the attachment for the error.
pub(crate) fn check_identity(device: &Device, wanted: &'static str) -> Result<u16, Error> {
    let identity = device.identity();
    if (identity.vendor, identity.device) != (pci::VENDOR_ID, pci::DEVICE_MU) {
        let found = format!("PCI {:04x}:{:04x}", identity.vendor, identity.device);
        return Err(Error::WrongDevice { wanted, found });
    }

    Ok(device.attachment() as u16)
}

impl Page {
    /// Opens the page of the application subgroup that a device is.
    pub(crate) fn of_user(device: &Device) -> Result<Self, Error> {
        let wanted = "an application subgroup";
        let attachment = check_identity(device, wanted)?;
        let last = FIRST_SUBGROUP + USER_SUBGROUPS - 1;
        if !(FIRST_SUBGROUP..=last).contains(&attachment) {
            let found = format!("attachment {attachment}, of 1 to {last}");
            return Err(Error::WrongDevice { wanted, found });
        }
        Self::open(device, 0, attachment - FIRST_SUBGROUP)
    }

    /// Opens the page of subgroup `number` of the system's group, 0 to 3, in the kernel's
    /// attachment.
    pub(crate) fn of_system(device: &Device, number: u8) -> Result<Self, Error> {
        let subgroup = USER_SUBGROUPS + u16::from(number);
        if u16::from(number) >= SUBGROUPS_OF_GROUP {
            return Err(Error::NoSuchSubgroup { subgroup });
        }

        let wanted = "the kernel's attachment";
        match check_identity(device, wanted)? {
            KERNEL => Self::open(device, u64::from(number) * PAGE, subgroup),
            other => Err(Error::WrongDevice { wanted, found: format!("attachment {other}") }),
        }
    }

    /// Opens the page at an offset of BAR 0 and of the mirror, which is that of a subgroup.
    fn open(device: &Device, base: u64, subgroup: u16) -> Result<Self, Error> {
        let resets_at_open = device.resets();
        let registers = device.bar(BAR_REGISTERS)?;
        let mirror = device.bar(BAR_MIRROR)?.window(MIRROR_BASE + base, PAGE)?;
        let starts = mirror.u64(reg::STARTS)?;
        let starts_at_open = starts.load(Ordering::Acquire);
        let device = device.clone();
        Ok(Self { device, registers, mirror, base, subgroup, resets_at_open, starts, starts_at_open })
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the number of the subgroup in its node.
    pub(crate) fn subgroup(&self) -> u16 {
        self.subgroup
    }

    /// Returns the offset in BAR 0 of a register of the page.
    pub(crate) fn offset(&self, register: u64) -> u64 {
        self.base + register
    }

    /// Reads a register, trapped.
    pub(crate) fn read(&self, register: u64) -> Result<u64, Error> {
        Ok(self.registers.read64(self.base + register)?)
    }

    /// Writes a register, trapped. The unit has taken the value when this returns.
    pub(crate) fn write(&self, register: u64, value: u64) -> Result<(), Error> {
        Ok(self.registers.write64(self.base + register, value)?)
    }

    /// Returns the mirror's word of a register.
    pub(crate) fn word(&self, register: u64) -> Result<SharedU64, Error> {
        Ok(self.mirror.u64(register)?)
    }

    /// Waits until the mirror shows the present value of a register.
    pub(crate) fn await_mirror(&self, register: u64) -> Result<(), Error> {
        let word = self.word(register)?;
        let deadline = Deadline::after(MIRROR_TIMEOUT);

        // The unit may change the register meanwhile, so the register is read again each time.
        self.device.wait_for(deadline, None, "the mirror of a register", || {
            let value = self.read(register)?;
            Ok((word.load(Ordering::Acquire) == value).then_some(()))
        })
    }

    /// Returns whether the subgroup was not reset since the page was opened, by this process or by
    /// another client.
    pub(crate) fn is_current(&self) -> bool {
        self.device.resets() == self.resets_at_open
            && self.starts.load(Ordering::Acquire) == self.starts_at_open
    }

    /// Checks that the subgroup was not reset.
    pub(crate) fn check_not_reset(&self) -> Result<(), Error> {
        if self.is_current() { Ok(()) } else { Err(Error::Reset) }
    }

    /// Returns the position of the node, and the shape of its network.
    pub(crate) fn position(&self) -> Result<NodePosition, Error> {
        let coordinates = |register| -> Result<Coordinates, Error> {
            let word = self.mirror.load_u64_acquire(register)?;
            Ok(Destination(Le32::new(word as u32)).coordinates())
        };

        let own = coordinates(reg::COORDINATES)?;
        let last = coordinates(reg::LAST_COORDINATES)?;
        Ok(NodePosition { shape: last.map(|coordinate| coordinate + 1), own })
    }
}
