//! Registers, requests and bits of the block device (5.2), as its driver sees them.

use nicforge_virtio::registers::feature::COMMON;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Number of the type (5.2.1).
pub const DEVICE_TYPE: u16 = 2;
/// PCI class "SCSI storage controller".
pub const CLASS: u32 = 0x01_00_00;
/// Number of the only queue.
pub const REQUESTS: usize = 0;

/// Feature bits (5.2.3).
pub mod feature {
    /// The configuration has the longest segment.
    pub const SIZE_MAX: u64 = 1 << 1;
    /// The configuration has the greatest number of segments of a request.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The driver can't write.
    pub const READ_ONLY: u64 = 1 << 5;
    /// The configuration has the size of a block.
    pub const BLOCK_SIZE: u64 = 1 << 6;
    /// The driver may flush.
    pub const FLUSH: u64 = 1 << 9;
}

/// The features that every disk offers.
pub const OFFERED: u64 = COMMON | feature::SIZE_MAX | feature::SEG_MAX | feature::BLOCK_SIZE;

/// Bytes of the longest segment that a driver should use.
pub const SIZE_MAX: u32 = 4096;
/// Maximum number of segments of data of a request.
pub const SEG_MAX: u32 = 64;
/// Maximum number of bytes of data of a request.
pub const MAX_DATA: u64 = SIZE_MAX as u64 * SEG_MAX as u64;

/// The configuration (5.2.4), as far as the features need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceConfig {
    /// Size in sectors of 512 bytes.
    pub capacity: [u8; 8],
    /// [`SIZE_MAX`].
    pub size_max: [u8; 4],
    /// [`SEG_MAX`].
    pub seg_max: [u8; 4],
    /// Cylinders, heads and sectors. They have no meaning without a feature.
    pub geometry: [u8; 4],
    /// Bytes of a block.
    pub block_size: [u8; 4],
}

/// The header of a request (5.2.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RequestHeader {
    /// Kind of request: [`IN`], [`OUT`], [`FLUSH`], [`GET_ID`].
    pub kind: [u8; 4],
    /// Without meaning.
    pub reserved: [u8; 4],
    /// The first sector.
    pub sector: [u8; 8],
}

/// Bytes of a [`RequestHeader`].
pub const HEADER: u64 = size_of::<RequestHeader>() as u64;

/// Kind of request: the device writes sectors to the buffer.
pub const IN: u32 = 0;
/// Kind of request: the device reads sectors from the buffer.
pub const OUT: u32 = 1;
/// Kind of request: flush, which completes when all earlier writes are stored.
pub const FLUSH: u32 = 4;
/// Kind of request: the device writes its name.
pub const GET_ID: u32 = 8;

/// Bytes of a disk's name.
pub const ID_BYTES: usize = 20;

/// Status of a request (5.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// It is done.
    Ok = 0,
    /// The sectors do not exist, can't be written, or the file had an error.
    IoError = 1,
    /// The device has no requests of this kind.
    Unsupported = 2,
}
