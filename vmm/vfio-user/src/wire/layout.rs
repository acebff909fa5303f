//! The fixed structures of the payloads, byte for byte. Each type's name is its command's; fields
//! keep the names of the specification. No type has padding, and any bytes are a valid value.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! wire_struct {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
        )]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: $kind,)* }
    };
}

wire_struct! {
    /// The header, 16 bytes. [`Header`](super::Header) is its owned form.
    RawHeader {
        /// Message ID.
        id: U16,
        /// Command number.
        command: U16,
        /// Size of the message with this header, in bytes.
        size: U32,
        /// Type in bits 0-3, *No_reply* bit 4, *Error* bit 5.
        flags: U32,
        /// Error number of a reply.
        error: U32,
    }
}

wire_struct! {
    /// Start of `VFIO_USER_VERSION`, both ways; optional NUL-terminated JSON follows.
    VersionPayload {
        /// Major version.
        major: U16,
        /// Minor version.
        minor: U16,
    }
}

wire_struct! {
    /// Request of `VFIO_USER_DMA_MAP`, 32 bytes; its reply is empty.
    DmaMapPayload {
        /// Size of this structure.
        argsz: U32,
        /// Bit 0 readable, bit 1 writeable (by the device).
        flags: U32,
        /// Where the range starts in the descriptor's file, in bytes; zero without one.
        offset: U64,
        /// First DMA address.
        address: U64,
        /// Size of the range, in bytes.
        size: U64,
    }
}

wire_struct! {
    /// Request and reply of `VFIO_USER_DMA_UNMAP`, 24 bytes.
    DmaUnmapPayload {
        /// Largest reply payload that the client takes.
        argsz: U32,
        /// `VFIO_DMA_UNMAP_FLAG_ALL` or zero.
        flags: U32,
        /// First DMA address of the mapping.
        address: U64,
        /// Size of the mapping, in bytes.
        size: U64,
    }
}

wire_struct! {
    /// Request and reply of `VFIO_USER_DEVICE_GET_INFO`, 16 bytes.
    DeviceInfoPayload {
        /// Request: room for the reply payload. Reply: its size.
        argsz: U32,
        /// `VFIO_DEVICE_FLAGS_*`.
        flags: U32,
        /// Number of regions.
        num_regions: U32,
        /// Number of interrupt types.
        num_irqs: U32,
    }
}

wire_struct! {
    /// Request and start of the reply of `VFIO_USER_DEVICE_GET_REGION_INFO`, 32 bytes; capabilities
    /// follow.
    RegionInfoPayload {
        /// Request: room for the reply payload. Reply: its size with all capabilities.
        argsz: U32,
        /// `VFIO_REGION_INFO_FLAG_*`.
        flags: U32,
        /// Index of the region.
        index: U32,
        /// Where the first capability starts, from the start of this structure.
        cap_offset: U32,
        /// Size of the region, in bytes.
        size: U64,
        /// Offset for `mmap` of the message's descriptor.
        offset: U64,
    }
}

wire_struct! {
    /// Start of every region capability, 8 bytes (`struct vfio_info_cap_header`).
    CapHeader {
        /// `VFIO_REGION_INFO_CAP_*`.
        id: U16,
        /// Version of that capability.
        version: U16,
        /// Where the next one starts, from the start of the region info; zero ends the list.
        next: U32,
    }
}

wire_struct! {
    /// After the [`CapHeader`] of a sparse mmap capability, 8 bytes; the areas follow.
    SparseMmapCap {
        /// Number of areas.
        nr_areas: U32,
        /// Zero.
        reserved: U32,
    }
}

wire_struct! {
    /// One area of a sparse mmap capability, 16 bytes (`struct vfio_region_sparse_mmap_area`).
    SparseAreaPayload {
        /// Start in the region, in bytes; added to the region's own offset for `mmap`.
        offset: U64,
        /// Size, in bytes.
        size: U64,
    }
}

wire_struct! {
    /// After the [`CapHeader`] of a type capability, 8 bytes (`struct vfio_region_info_cap_type`).
    TypeCap {
        /// Type, global or of a bus driver.
        kind: U32,
        /// Type-specific number.
        subtype: U32,
    }
}

wire_struct! {
    /// Request and start of the reply of `VFIO_USER_DEVICE_GET_REGION_IO_FDS`, 16 bytes.
    RegionIoFdsPayload {
        /// Request: room for the reply payload. Reply: its size.
        argsz: U32,
        /// Zero.
        flags: U32,
        /// Index of the region.
        index: U32,
        /// Number of [`SubRegionIoFd`] after this.
        count: U32,
    }
}

wire_struct! {
    /// One sub-region of `VFIO_USER_DEVICE_GET_REGION_IO_FDS`, 40 bytes.
    SubRegionIoFd {
        /// Start in the region, in bytes.
        offset: U64,
        /// Size, in bytes; zero when the size of the access does not matter.
        size: U64,
        /// Index among the descriptors of the message.
        fd_index: U32,
        /// 0 ioeventfd, 1 ioregionfd.
        kind: U32,
        /// `KVM_IOEVENTFD_FLAG_*` or `KVM_IOREGION_*`.
        flags: U32,
        /// Zero.
        padding: U32,
        /// Value to match (ioeventfd), or opaque value that is returned (ioregionfd).
        data: U64,
    }
}

wire_struct! {
    /// Request and reply of `VFIO_USER_DEVICE_GET_IRQ_INFO`, 16 bytes.
    IrqInfoPayload {
        /// Request: room for the reply payload. Reply: its size.
        argsz: U32,
        /// `VFIO_IRQ_INFO_*`.
        flags: U32,
        /// Index of the interrupt type.
        index: U32,
        /// Number of interrupts of that type.
        count: U32,
    }
}

wire_struct! {
    /// Start of `VFIO_USER_DEVICE_SET_IRQS`, 20 bytes; with `DATA_BOOL` one byte follows for each
    /// interrupt.
    SetIrqsPayload {
        /// Size of the request payload.
        argsz: U32,
        /// One `VFIO_IRQ_SET_DATA_*` and one `VFIO_IRQ_SET_ACTION_*`.
        flags: U32,
        /// Index of the interrupt type.
        index: U32,
        /// First interrupt.
        start: U32,
        /// Number of interrupts.
        count: U32,
    }
}

wire_struct! {
    /// Start of `VFIO_USER_REGION_READ` and `_WRITE`, both ways, 16 bytes; the data follow.
    RegionAccess {
        /// Offset in the region, in bytes.
        offset: U64,
        /// Index of the region.
        region: U32,
        /// Number of bytes.
        count: U32,
    }
}

wire_struct! {
    /// Start of `VFIO_USER_DMA_READ` and `_WRITE`, both ways, 16 bytes; the data follow.
    DmaAccess {
        /// DMA address.
        address: U64,
        /// Number of bytes.
        count: U64,
    }
}

wire_struct! {
    /// Start of `VFIO_USER_REGION_WRITE_MULTI`, and its whole reply, 8 bytes.
    WriteMultiPayload {
        /// Number of [`MultiWrite`] after this, or of writes done.
        wr_cnt: U64,
    }
}

wire_struct! {
    /// One write of `VFIO_USER_REGION_WRITE_MULTI`, 24 bytes.
    MultiWrite {
        /// Offset in the region, in bytes.
        offset: U64,
        /// Index of the region.
        region: U32,
        /// Number of bytes of `data` to write, at most 8.
        count: U32,
        /// The bytes.
        data: [u8; 8],
    }
}
