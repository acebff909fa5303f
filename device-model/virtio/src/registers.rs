//! Registers and bits that all virtio devices on PCI have, as their drivers see them.
//!
//! Section numbers are those of *Virtual I/O Device (VIRTIO) Version 1.2*. All values are
//! little-endian.

/// PCI vendor id of virtio devices (4.1.2).
pub const VENDOR_VIRTIO: u16 = 0x1af4;
/// PCI device id of a device of type 0 without the registers of older drafts: the type is added
/// (4.1.2).
pub const DEVICE_BASE: u16 = 0x1040;

/// The BAR of all registers. It is trapped.
pub const BAR: u8 = 0;
/// Bytes of the BAR.
pub const BAR_SIZE: u64 = 0x8000;
/// Offset of the common configuration (4.1.4.3).
pub const COMMON: u64 = 0x0000;
/// Offset of the interrupt status (4.1.4.5).
pub const ISR: u64 = 0x1000;
/// Offset of the configuration of the device's type (4.1.4.6).
pub const DEVICE: u64 = 0x2000;
/// Offset of the notification registers (4.1.4.4).
pub const NOTIFY: u64 = 0x3000;
/// Bytes from one queue's notification register to the next.
pub const NOTIFY_STRIDE: u32 = 4;
/// Offset of the MSI-X table.
pub const MSIX_TABLE: u32 = 0x4000;
/// Offset of the MSI-X pending bits.
pub const MSIX_PENDING: u32 = 0x5000;

/// Types of the vendor-specific capabilities that locate the registers (4.1.4).
pub mod capability {
    /// The common configuration.
    pub const COMMON: u8 = 1;
    /// The notification registers.
    pub const NOTIFY: u8 = 2;
    /// The interrupt status.
    pub const ISR: u8 = 3;
    /// The device's own configuration.
    pub const DEVICE: u8 = 4;
    /// The window to the BARs in configuration space (4.1.4.9).
    pub const PCI: u8 = 5;
}

/// Offsets in the common configuration (4.1.4.3).
pub mod common {
    /// The half of the offered features that [`DEVICE_FEATURE`] shows, 4 bytes.
    pub const DEVICE_FEATURE_SELECT: u64 = 0x00;
    /// 32 of the offered features.
    pub const DEVICE_FEATURE: u64 = 0x04;
    /// The half of the accepted features that [`DRIVER_FEATURE`] sets, 4 bytes.
    pub const DRIVER_FEATURE_SELECT: u64 = 0x08;
    /// 32 of the accepted features.
    pub const DRIVER_FEATURE: u64 = 0x0c;
    /// MSI-X vector of configuration changes, 2 bytes.
    pub const CONFIG_VECTOR: u64 = 0x10;
    /// Number of queues, 2 bytes.
    pub const QUEUES: u64 = 0x12;
    /// Device status, 1 byte.
    pub const STATUS: u64 = 0x14;
    /// Generation of the device's configuration, 1 byte.
    pub const GENERATION: u64 = 0x15;
    /// The queue that the registers below belong to, 2 bytes.
    pub const QUEUE_SELECT: u64 = 0x16;
    /// Entries of the queue, 2 bytes.
    pub const QUEUE_SIZE: u64 = 0x18;
    /// MSI-X vector of the queue, 2 bytes.
    pub const QUEUE_VECTOR: u64 = 0x1a;
    /// Whether the queue is enabled, 2 bytes.
    pub const QUEUE_ENABLE: u64 = 0x1c;
    /// Place of the queue's notification register in units of the stride, 2 bytes.
    pub const QUEUE_NOTIFY_OFFSET: u64 = 0x1e;
    /// IOVA of the descriptor table, 8 bytes.
    pub const QUEUE_DESCRIPTORS: u64 = 0x20;
    /// IOVA of the available ring, 8 bytes.
    pub const QUEUE_DRIVER: u64 = 0x28;
    /// IOVA of the used ring, 8 bytes.
    pub const QUEUE_DEVICE: u64 = 0x30;
    /// Bytes of the common configuration.
    pub const SIZE: u64 = 0x38;
}

/// Bits of the device status (2.1).
pub mod status {
    /// The driver has seen the device.
    pub const ACKNOWLEDGE: u8 = 1;
    /// The driver knows how to drive it.
    pub const DRIVER: u8 = 2;
    /// The driver is set up.
    pub const DRIVER_OK: u8 = 4;
    /// The features are negotiated. The bit stays 0 if the device does not take the driver's
    /// choice.
    pub const FEATURES_OK: u8 = 8;
    /// The device met an error and works again after a reset.
    pub const NEEDS_RESET: u8 = 64;
    /// The driver has given up.
    pub const FAILED: u8 = 128;
}

/// Feature bits of all devices (6).
pub mod feature {
    /// Descriptors may lie in a table of their own.
    pub const INDIRECT: u64 = 1 << 28;
    /// Driver and device say by index when they want to be notified.
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// The device is one of virtio 1.0 or later. A driver must accept it.
    pub const VERSION_1: u64 = 1 << 32;
    /// The device reaches memory by the addresses of an IOMMU.
    pub const ACCESS_PLATFORM: u64 = 1 << 33;

    /// The features that every device of nicforge offers.
    pub const COMMON: u64 = INDIRECT | EVENT_INDEX | VERSION_1 | ACCESS_PLATFORM;
}

/// Bits of the interrupt status (4.1.4.5).
pub mod isr {
    /// A queue has used buffers.
    pub const QUEUE: u8 = 1;
    /// The configuration or the device status has changed.
    pub const CONFIG: u8 = 2;
}

/// MSI-X vector of an event that has none (4.1.5.1.2).
pub const NO_VECTOR: u16 = 0xffff;
/// Largest number of entries of a queue.
pub const MAX_QUEUE_SIZE: u16 = 256;
/// Maximum number of descriptors of one buffer, in the queue's table and an indirect one together.
pub const MAX_CHAIN: usize = MAX_QUEUE_SIZE as usize;
