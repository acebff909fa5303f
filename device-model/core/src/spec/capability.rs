//! Vendor-specific capabilities of a device's own.

use nicforge_hwi::pci::AttachmentCapability;

use super::SpecError;

/// Maximum number of bytes that a [`VendorCapability`] has after its header.
pub const MAX_CAPABILITY: usize = 61;
/// Bytes of id, link and length at the start of a vendor-specific capability.
const CAPABILITY_HEADER: usize = 3;
/// End of the core's own capabilities in configuration space: power management, PCI Express and
/// MSI-X. The attachment capability of a function with rings follows them.
const CORE_CAPABILITIES: usize = 0x90;
/// End of the space for capabilities in configuration space.
const CAPABILITIES_END: usize = 0x100;

/// A vendor-specific capability of the device's own (PCI Local Bus 3.0, appendix H).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VendorCapability {
    /// Content after the bytes for id, link and length: 1 to [`MAX_CAPABILITY`] bytes.
    pub content: Vec<u8>,
    /// Registers in the capability that give access to the BARs. At most one capability has them.
    pub window: Option<BarWindow>,
}

/// Registers of a [`VendorCapability`] by which software reads and writes BARs through
/// configuration space, for software that can't map them yet.
///
/// An access to the data register is an access to the BAR that the other registers name. Their
/// values are little-endian. Each field is an offset from the start of the capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarWindow {
    /// Number of the BAR, 1 byte.
    pub bar: u8,
    /// Offset in the BAR, 4 bytes: a multiple of the length.
    pub offset: u8,
    /// Length of the access, 4 bytes: 1, 2 or 4. Other values make accesses to the data register
    /// have no effect on a BAR.
    pub length: u8,
    /// The data, 4 bytes.
    pub data: u8,
}

impl VendorCapability {
    /// Returns the bytes that the capability takes in configuration space.
    fn size(&self) -> usize {
        (CAPABILITY_HEADER + self.content.len()).next_multiple_of(4)
    }
}

/// Checks the device's own capabilities: their lengths, their space, and their window.
///
/// # Errors
/// [`SpecError::Capability`], [`SpecError::CapabilitySpace`].
pub(super) fn validate(capabilities: &[VendorCapability], has_rings: bool) -> Result<(), SpecError> {
    let mut windows = 0;
    for (index, capability) in capabilities.iter().enumerate() {
        let content = capability.content.len();
        let end = CAPABILITY_HEADER + content;
        // The window's registers must be aligned, lie in the content, and not overlap.
        let is_in_content = |register: u8, width: usize| {
            let register = usize::from(register);
            register >= CAPABILITY_HEADER && register.is_multiple_of(width) && register + width <= end
        };
        let is_window_valid = capability.window.is_none_or(|window| {
            windows += 1;
            let words = [window.offset, window.length, window.data];
            let are_disjoint = words.iter().enumerate().all(|(index, word)| {
                !words[..index].contains(word) && !(*word..word.saturating_add(4)).contains(&window.bar)
            });
            are_disjoint
                && is_in_content(window.bar, 1)
                && words.into_iter().all(|word| is_in_content(word, 4))
        });

        if content == 0 || content > MAX_CAPABILITY || !is_window_valid || windows > 1 {
            return Err(SpecError::Capability { capability: index });
        }
    }

    let attachment_capability = if has_rings { size_of::<AttachmentCapability>() } else { 0 };
    let space = CAPABILITIES_END - CORE_CAPABILITIES - attachment_capability;
    let bytes = capabilities.iter().map(VendorCapability::size).sum();
    if bytes > space {
        return Err(SpecError::CapabilitySpace { bytes, space });
    }

    Ok(())
}
