//! The wire format: headers, commands, and the structures after them.
//!
//! The input is byte slices of any content and length. The output is owned, checked values or a
//! typed error. Nothing here does I/O, allocates by a length that the peer claims, or can panic.
//!
//! All numbers are little-endian: the specification says "host endianness", and this crate runs on
//! little-endian hosts. The source is `docs/interop/vfio-user.rst` of QEMU; the VFIO numbers are
//! those of `<linux/vfio.h>`.

#![forbid(unsafe_code)]

mod layout;
mod region;
mod version;

pub use layout::*;
pub(crate) use region::region_info_size;
pub use region::{RegionInfoError, build_region_info, parse_region_info};
pub use version::{
    Capabilities, MAX_VERSION_JSON, TwinSocket, VersionError, VersionMessage, build_version, parse_version,
};

use zerocopy::{FromBytes, IntoBytes};

/// Size of the header in front of every message, in bytes.
pub const HEADER_SIZE: usize = 16;

/// Protocol major version spoken here.
pub const VERSION_MAJOR: u16 = 0;

/// Highest protocol minor version spoken here.
pub const VERSION_MINOR: u16 = 0;

/// `max_data_xfer_size` of a peer that names none: 1 MiB (specification, *Version*).
pub const DEFAULT_MAX_DATA_XFER_SIZE: u32 = 1 << 20;

/// `max_msg_fds` of a peer that names none (specification, *Version*).
pub const DEFAULT_MAX_MSG_FDS: u32 = 1;

/// `max_dma_maps` of a peer that names none (specification, *Version*).
pub const DEFAULT_MAX_DMA_MAPS: u32 = 65535;

/// `pgsizes` of a peer that names none: 4 KiB pages only (specification, *Version*).
pub const DEFAULT_PGSIZES: u64 = 4096;

/// Command that a message requests or replies to (specification, *Commands*).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// `VFIO_USER_VERSION`
    Version,
    /// `VFIO_USER_DMA_MAP`
    DmaMap,
    /// `VFIO_USER_DMA_UNMAP`
    DmaUnmap,
    /// `VFIO_USER_DEVICE_GET_INFO`
    DeviceGetInfo,
    /// `VFIO_USER_DEVICE_GET_REGION_INFO`
    DeviceGetRegionInfo,
    /// `VFIO_USER_DEVICE_GET_REGION_IO_FDS`
    DeviceGetRegionIoFds,
    /// `VFIO_USER_DEVICE_GET_IRQ_INFO`
    DeviceGetIrqInfo,
    /// `VFIO_USER_DEVICE_SET_IRQS`
    DeviceSetIrqs,
    /// `VFIO_USER_REGION_READ`
    RegionRead,
    /// `VFIO_USER_REGION_WRITE`
    RegionWrite,
    /// `VFIO_USER_DMA_READ`, server to client
    DmaRead,
    /// `VFIO_USER_DMA_WRITE`, server to client
    DmaWrite,
    /// `VFIO_USER_DEVICE_RESET`
    DeviceReset,
    /// `VFIO_USER_DIRTY_PAGES` of older drafts; known, not supported here
    DirtyPages,
    /// `VFIO_USER_REGION_WRITE_MULTI`
    RegionWriteMulti,
    /// `VFIO_USER_DEVICE_FEATURE`; known, not supported here
    DeviceFeature,
    /// `VFIO_USER_MIG_DATA_READ`; known, not supported here
    MigDataRead,
    /// `VFIO_USER_MIG_DATA_WRITE`; known, not supported here
    MigDataWrite,
    /// A number that the specification does not assign.
    Unknown(u16),
}

impl Command {
    /// Returns the command with this number; every number has one.
    pub const fn from_number(number: u16) -> Self {
        match number {
            1 => Self::Version,
            2 => Self::DmaMap,
            3 => Self::DmaUnmap,
            4 => Self::DeviceGetInfo,
            5 => Self::DeviceGetRegionInfo,
            6 => Self::DeviceGetRegionIoFds,
            7 => Self::DeviceGetIrqInfo,
            8 => Self::DeviceSetIrqs,
            9 => Self::RegionRead,
            10 => Self::RegionWrite,
            11 => Self::DmaRead,
            12 => Self::DmaWrite,
            13 => Self::DeviceReset,
            14 => Self::DirtyPages,
            15 => Self::RegionWriteMulti,
            16 => Self::DeviceFeature,
            17 => Self::MigDataRead,
            18 => Self::MigDataWrite,
            other => Self::Unknown(other),
        }
    }

    /// Returns the number on the wire.
    pub const fn number(self) -> u16 {
        match self {
            Self::Version => 1,
            Self::DmaMap => 2,
            Self::DmaUnmap => 3,
            Self::DeviceGetInfo => 4,
            Self::DeviceGetRegionInfo => 5,
            Self::DeviceGetRegionIoFds => 6,
            Self::DeviceGetIrqInfo => 7,
            Self::DeviceSetIrqs => 8,
            Self::RegionRead => 9,
            Self::RegionWrite => 10,
            Self::DmaRead => 11,
            Self::DmaWrite => 12,
            Self::DeviceReset => 13,
            Self::DirtyPages => 14,
            Self::RegionWriteMulti => 15,
            Self::DeviceFeature => 16,
            Self::MigDataRead => 17,
            Self::MigDataWrite => 18,
            Self::Unknown(number) => number,
        }
    }
}

/// The *Type* bits of a header's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageType {
    /// A request.
    Command,
    /// The answer to a request.
    Reply,
    /// A number that the specification does not assign.
    Unknown(u8),
}

const FLAG_TYPE_MASK: u32 = 0xf;
const FLAG_TYPE_REPLY: u32 = 0x1;
const FLAG_NO_REPLY: u32 = 0x10;
const FLAG_ERROR: u32 = 0x20;

/// The header in front of every message, as an owned value (specification, *Header*).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Message ID: the sender of a request chooses it, and the reply repeats it.
    pub id: u16,
    /// Command that is requested or answered.
    pub command: Command,
    /// Size of the whole message, this header included, in bytes.
    pub size: u32,
    /// Type, *No_reply* and *Error* bits.
    pub flags: u32,
    /// Error number of a reply whose *Error* bit is set.
    pub error: u32,
}

impl Header {
    /// Reads a header from the first 16 bytes. Any 16 bytes are a header; with fewer it returns
    /// `None`.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (raw, _) = RawHeader::read_from_prefix(bytes).ok()?;
        Some(Self {
            id: raw.id.get(),
            command: Command::from_number(raw.command.get()),
            size: raw.size.get(),
            flags: raw.flags.get(),
            error: raw.error.get(),
        })
    }

    /// Makes the header of a request with a payload of `payload` bytes.
    pub fn request(id: u16, command: Command, payload: usize, no_reply: bool) -> Self {
        let flags = if no_reply { FLAG_NO_REPLY } else { 0 };
        Self { id, command, size: size_of_message(payload), flags, error: 0 }
    }

    /// Makes the header of the reply to message `id` with a payload of `payload` bytes.
    pub fn reply(id: u16, command: Command, payload: usize) -> Self {
        Self { id, command, size: size_of_message(payload), flags: FLAG_TYPE_REPLY, error: 0 }
    }

    /// Makes the header of a reply that reports the failure of message `id`; it has no payload.
    pub fn error_reply(id: u16, command: Command, errno: crate::Errno) -> Self {
        Self {
            id,
            command,
            size: HEADER_SIZE as u32,
            flags: FLAG_TYPE_REPLY | FLAG_ERROR,
            error: errno.raw() as u32,
        }
    }

    /// Returns the 16 bytes on the wire.
    pub fn to_bytes(self) -> [u8; HEADER_SIZE] {
        let raw = RawHeader {
            id: self.id.into(),
            command: self.command.number().into(),
            size: self.size.into(),
            flags: self.flags.into(),
            error: self.error.into(),
        };

        let mut bytes = [0; HEADER_SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Returns the *Type* bits of the flags as a type.
    pub fn message_type(&self) -> MessageType {
        match self.flags & FLAG_TYPE_MASK {
            0 => MessageType::Command,
            FLAG_TYPE_REPLY => MessageType::Reply,
            other => MessageType::Unknown(other as u8),
        }
    }

    /// Whether the sender of this request wants no reply, not even when the request fails.
    pub fn no_reply(&self) -> bool {
        self.flags & FLAG_NO_REPLY != 0
    }

    /// Returns the error that this reply reports, if it reports one.
    pub fn reply_error(&self) -> Option<crate::Errno> {
        (self.flags & FLAG_ERROR != 0).then(|| crate::Errno::from_wire(self.error))
    }
}

/// Returns the size of a message with this payload. The negotiated limits keep sizes far below 4
/// GiB. A larger size would be an error of this crate, and becomes a size that every receiver
/// refuses.
fn size_of_message(payload: usize) -> u32 {
    u32::try_from(payload.saturating_add(HEADER_SIZE)).unwrap_or(u32::MAX)
}

/// Reads a fixed structure from the start of a payload, and returns it with the bytes after it.
///
/// # Errors
/// [`ShortPayload`] when the payload is shorter than the structure.
pub fn parse_prefix<T: FromBytes>(payload: &[u8]) -> Result<(T, &[u8]), ShortPayload> {
    T::read_from_prefix(payload)
        .map_err(|_| ShortPayload { need: std::mem::size_of::<T>(), got: payload.len() })
}

/// A payload that ends before the end of the structure that its command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the payload has {got} bytes and its command needs {need}: send the whole structure")]
pub struct ShortPayload {
    /// Bytes that the structure takes.
    pub need: usize,
    /// Bytes that arrived.
    pub got: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Errno;
    use proptest::prelude::*;

    #[test]
    fn header_of_a_posted_write_has_the_bytes_of_the_specification() {
        let header = Header::request(0x1234, Command::RegionWrite, 20, true);

        let bytes = header.to_bytes();

        assert_eq!(bytes, [0x34, 0x12, 10, 0, 36, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Header::parse(&bytes), Some(header));
        assert!(header.no_reply());
    }

    #[test]
    fn error_reply_carries_its_errno_and_no_payload() {
        let header = Header::error_reply(7, Command::DmaMap, Errno::EEXIST);

        assert_eq!(header.size, 16);
        assert_eq!(header.message_type(), MessageType::Reply);
        assert_eq!(header.reply_error(), Some(Errno::EEXIST));
    }

    #[test]
    fn header_of_fifteen_bytes_is_none() {
        assert_eq!(Header::parse(&[0; 15]), None);
    }

    #[test]
    fn sizes_of_structures_are_those_of_the_specification() {
        assert_eq!(std::mem::size_of::<RawHeader>(), 16);
        assert_eq!(std::mem::size_of::<DmaMapPayload>(), 32);
        assert_eq!(std::mem::size_of::<DmaUnmapPayload>(), 24);
        assert_eq!(std::mem::size_of::<DeviceInfoPayload>(), 16);
        assert_eq!(std::mem::size_of::<RegionInfoPayload>(), 32);
        assert_eq!(std::mem::size_of::<RegionIoFdsPayload>(), 16);
        assert_eq!(std::mem::size_of::<SubRegionIoFd>(), 40);
        assert_eq!(std::mem::size_of::<IrqInfoPayload>(), 16);
        assert_eq!(std::mem::size_of::<SetIrqsPayload>(), 20);
        assert_eq!(std::mem::size_of::<RegionAccess>(), 16);
        assert_eq!(std::mem::size_of::<DmaAccess>(), 16);
        assert_eq!(std::mem::size_of::<MultiWrite>(), 24);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn command_numbers_round_trip(number: u16) {
            prop_assert_eq!(Command::from_number(number).number(), number);
        }

        #[test]
        fn random_headers_of_16_bytes_round_trip(bytes: [u8; 16]) {
            let header = Header::parse(&bytes).unwrap();
            prop_assert_eq!(header.to_bytes(), bytes);
        }
    }
}
