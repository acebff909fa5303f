//! The BARs of a card, and the mirror page that it writes for one VPID.

use nicforge_driver::Device;
use nicforge_hwi::{extoll::mirror, pci};
use nicforge_shm::{SharedU64, Window};

use crate::Error;

/// BAR of the register file.
pub(crate) const BAR_REGISTERS: u8 = 0;
/// BAR of the windows.
pub(crate) const BAR_WINDOWS: u8 = 1;
/// BAR of the mirror.
pub(crate) const BAR_MIRROR: u8 = 2;

/// Checks that a device is an EXTOLL card.
///
/// # Errors
/// [`Error::WrongDevice`].
pub(crate) fn check_identity(device: &Device) -> Result<(), Error> {
    let identity = device.identity();

    if (identity.vendor, identity.device) == (pci::VENDOR_EXTOLL, pci::DEVICE_EXTOLL) {
        Ok(())
    } else {
        let found = format!("PCI {:04x}:{:04x}", identity.vendor, identity.device);
        Err(Error::WrongDevice { found })
    }
}

/// The counters of a VPID, which the card writes.
pub(crate) struct MirrorPage(Window);

impl MirrorPage {
    /// Opens the mirror page of the VPID that `device` is.
    pub(crate) fn open(device: &Device) -> Result<Self, Error> {
        Ok(Self(device.bar(BAR_MIRROR)?.window(mirror::NODE, mirror::SIZE)?))
    }

    /// Returns the word at an offset of the mirror's BAR.
    pub(crate) fn word(&self, offset: u64) -> Result<SharedU64, Error> {
        Ok(self.0.u64(offset - mirror::NODE)?)
    }
}
