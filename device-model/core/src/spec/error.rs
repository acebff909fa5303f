//! Reasons why a description is refused.

use thiserror::Error;

use super::{MAX_CAPABILITY, RegisterRule};

/// Reason why a [`FunctionSpec`](super::FunctionSpec) was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpecError {
    /// The device panicked in [`crate::device::Device::spec`], or in another method by which it
    /// describes itself.
    #[error("the device panicked in spec: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// There are more than 65535 attachments.
    #[error("a function has at most 65535 attachments, not {count}")]
    Attachments {
        /// Number of attachments.
        count: usize,
    },
    /// An attachment's name is empty, too long, or has characters other than letters, digits and
    /// `-`.
    #[error("attachment {attachment} needs a name of 1 to 64 letters, digits and `-`")]
    Name {
        /// Number of the attachment.
        attachment: usize,
    },
    /// An attachment has the name of an earlier one. Sockets and tables have only the name.
    #[error("attachment {attachment} has the name of an earlier attachment")]
    SameName {
        /// Number of the attachment.
        attachment: usize,
    },
    /// The size of a BAR is not a power of two, or out of range.
    #[error(
        "BAR {bar} of {size} bytes: the size must be a power of two, 16 bytes or more (I/O: 4, with mapped areas: 4096)"
    )]
    BarSize {
        /// Number of the BAR.
        bar: u8,
        /// Its size in bytes.
        size: u64,
    },
    /// A BAR of I/O ports is larger than PCI permits (Local Bus 3.0, 6.2.5.1).
    #[error(
        "BAR {bar} of {size} bytes of I/O ports: PCI permits at most 256 in one BAR, so use memory or several BARs"
    )]
    IoBarSize {
        /// Number of the BAR.
        bar: u8,
        /// Its size in bytes.
        size: u64,
    },
    /// The BAR after a 64-bit BAR is taken or does not exist.
    #[error("BAR {bar} is 64 bits wide, so the next one must be left out")]
    Bar64 {
        /// Number of the BAR of 64 bits.
        bar: u8,
    },
    /// An area is misaligned, outside its BAR, overlaps another, or is of another kind than its
    /// neighbour.
    #[error(
        "BAR {bar}: the area at {offset:#x} of {length:#x} bytes is misaligned, outside, overlapping, or of a second kind"
    )]
    Area {
        /// Number of the BAR.
        bar: u8,
        /// The area's offset.
        offset: u64,
        /// The area's length.
        length: u64,
    },
    /// The number of MSI-X vectors is out of range.
    #[error("{vectors} MSI-X vectors: 1 to 2048 are possible")]
    Vectors {
        /// Number of vectors.
        vectors: u16,
    },
    /// The number or the size of the rings is out of range.
    #[error("{count} rings of {cells} cells: at most 8 of a power of two between 64 and 65536")]
    Rings {
        /// Number of rings.
        count: u8,
        /// Cells in each.
        cells: u32,
    },
    /// A vendor-specific capability has no content or too much, its window is not in its content,
    /// or it has the second window.
    #[error(
        "capability {capability} needs 1 to {MAX_CAPABILITY} bytes, and its window must be the only one, aligned, and in them"
    )]
    Capability {
        /// Number of the capability.
        capability: usize,
    },
    /// The vendor-specific capabilities do not fit into configuration space.
    #[error("the capabilities take {bytes} bytes of configuration space, and {space} are free: shorten them")]
    CapabilitySpace {
        /// Bytes that they take.
        bytes: usize,
        /// Bytes that are free.
        space: usize,
    },
    /// A table, page or ring lies outside the space that it needs, or overlaps another.
    #[error("BAR {bar}: {length:#x} bytes at {offset:#x} do not lie in free space of the right kind")]
    Place {
        /// Number of the BAR.
        bar: u8,
        /// Offset in the BAR.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// A declared register breaks a rule.
    #[error("register {name}: {rule}")]
    Register {
        /// Name of the register.
        name: &'static str,
        /// The rule.
        rule: RegisterRule,
    },
}
