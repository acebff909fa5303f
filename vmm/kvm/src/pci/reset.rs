//! Function-level reset, which the guest requests by a bit of the device control register.

use super::capability;
use crate::function::{Function, FunctionError};

/// The number of the PCI Express capability.
const CAPABILITY: u8 = 0x10;
/// Offsets in the capability: device capabilities and device control (PCI Express Base 4.0, 7.5.3).
const DEVICE_CAPABILITIES: u16 = 4;
const DEVICE_CONTROL: u16 = 8;
/// The bit of the device capabilities for functions that have the reset.
const HAS_RESET: u32 = 1 << 28;
/// The bit of the device control's upper byte that requests a reset.
const INITIATE: u8 = 1 << 7;

/// Offset of the byte of the configuration space by which the guest requests a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResetControl(u16);

impl ResetControl {
    /// Finds the byte of a function, if it has the reset.
    pub(super) fn find(function: &dyn Function) -> Result<Option<Self>, FunctionError> {
        let Some(at) = capability::find(function, CAPABILITY)? else { return Ok(None) };
        let capabilities = u32::from_le_bytes(capability::read(function, at + DEVICE_CAPABILITIES)?);
        Ok((capabilities & HAS_RESET != 0).then_some(Self(at + DEVICE_CONTROL + 1)))
    }

    /// Returns whether a write of `data` at `register` requests a reset.
    pub(super) fn is_requested(self, register: u16, data: &[u8]) -> bool {
        let written = self.0.checked_sub(register).and_then(|index| data.get(usize::from(index)));
        written.is_some_and(|byte| byte & INITIATE != 0)
    }
}
