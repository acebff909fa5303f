//! The ATU (Address Translation Unit): the memory that RMA may access, and its owners.
//!
//! RMA addresses memory by *network logical addresses* (NLA). A card's table has entries for pages
//! of four sizes. An entry gives the VPID that owns the page, the page's address in that VPID's DMA
//! address space, and the permitted access. A region of several pages has consecutive entries, so
//! that its NLAs are contiguous. An access must lie in one region; adjacent regions are not one.
//!
//! A region lies in at most [`MAX_MAPPINGS`] mappings of its owner's, and all regions of a card
//! together in [`ALL_MAPPINGS`]. A guest whose IOMMU maps pages has one mapping for each page.
//!
//! Half of the entries of each page size, and half of those mappings, is divided equally among the
//! card's VPIDs. No other VPID can take a VPID's share. The other half is granted in order of
//! request. A registration that would use another VPID's share is refused with [`command::QUOTA`].
//!
//! A region consists of the memory that its owner has mapped there at registration. If any of that
//! is unmapped, or the owner loses *bus master*, RMA does not access the region any more. Memory
//! mapped there later does not change that; the owner must register it again. A region ends with
//! its owner.
//!
//! In an NLA, bits 63..62 are zero and bits 61..60 are the page size ([`page`]). Below them are the
//! number of the entry and the offset in the page.
//!
//! The admin attachment may register for any VPID, and every VPID for itself. A kernel does this in
//! a system call, because physical addresses reach all memory. Here the card can do it, because a
//! VPID can name only its own address space.

use crate::register::{Field, Register};

/// Largest number of mappings of one region: 64 MiB in pages of 4 KiB.
pub const MAX_MAPPINGS: u32 = 1 << 14;
/// Largest number of mappings of all regions of a card, counted for each region.
pub const ALL_MAPPINGS: u32 = 1 << 18;

/// Page sizes.
pub mod page {
    /// 4 KiB.
    pub const SIZE_4K: u8 = 0;
    /// 64 KiB.
    pub const SIZE_64K: u8 = 1;
    /// 2 MiB.
    pub const SIZE_2M: u8 = 2;
    /// 1 GiB.
    pub const SIZE_1G: u8 = 3;

    /// Returns the log2 of a page's size in bytes. `class` is taken modulo 4.
    #[inline]
    pub const fn shift(class: u8) -> u32 {
        match class & 3 {
            SIZE_4K => 12,
            SIZE_64K => 16,
            SIZE_2M => 21,
            _ => 30,
        }
    }

    /// Returns the number of entries of a card's table for a page size.
    #[inline]
    pub const fn entries(class: u8) -> u32 {
        match class & 3 {
            SIZE_4K => 1 << 16,
            SIZE_64K => 1 << 14,
            SIZE_2M => 1 << 12,
            _ => 1 << 6,
        }
    }
}

/// Network logical addresses.
pub mod nla {
    /// Lowest bit of the page size.
    pub const CLASS_SHIFT: u32 = 60;
    /// Bits of an NLA that may be set.
    pub const MASK: u64 = (1 << 62) - 1;

    /// The byte of a card's table that an NLA names.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Location {
        /// Page size ([`super::page`]).
        pub class: u8,
        /// Entry of the table for that size.
        pub entry: u32,
        /// Offset in the entry's page in bytes.
        pub offset: u64,
    }

    /// Returns the first address of an entry's page.
    #[inline]
    pub const fn of_entry(class: u8, entry: u32) -> u64 {
        ((class as u64 & 3) << CLASS_SHIFT) | ((entry as u64) << super::page::shift(class))
    }

    /// Returns the location that an NLA names, or `None` if reserved bits are set or the table has
    /// no such entry.
    #[inline]
    pub const fn decode(nla: u64) -> Option<Location> {
        if nla & !MASK != 0 {
            return None;
        }

        let class = (nla >> CLASS_SHIFT) as u8;
        let entry_and_offset = nla & ((1 << CLASS_SHIFT) - 1);
        let page_shift = super::page::shift(class);
        let entry = entry_and_offset >> page_shift;
        if entry >= super::page::entries(class) as u64 {
            return None;
        }

        let offset = entry_and_offset & ((1 << page_shift) - 1);
        Some(Location { class, entry: entry as u32, offset })
    }
}

/// Registers at [`crate::extoll::reg::ATU`]. Each is 64 bits wide, and each attachment has its own.
/// Software fills them in, writes [`command::COMMAND`], and reads [`command::STATUS`] and
/// [`command::RESULT`]. A command ends with its write; the write waits while the card is busy with
/// other commands.
pub mod command {
    /// IOVA of the first page, a multiple of the page size. For deregistration: the region's first
    /// NLA.
    pub const ADDRESS: u64 = 0x1000;
    /// Number of pages, 1 to the number of entries of the table.
    pub const PAGES: u64 = 0x1008;
    /// VPID of the owner. Only the admin attachment's value has effect; others register for
    /// themselves.
    pub const OWNER: u64 = 0x1010;
    /// Write: starts a command. Bits 3..0 select it ([`REGISTER`], [`DEREGISTER`]), bits 5..4 are
    /// the page size. Bit 8 lets others read, bit 9 lets others write. The owner itself may do
    /// both.
    pub const COMMAND: u64 = 0x1018;
    /// Read: result of the last command.
    pub const STATUS: u64 = 0x1020;
    /// Read: NLA of the first page registered.
    pub const RESULT: u64 = 0x1028;

    /// Register pages.
    pub const REGISTER: u64 = 1;
    /// Deregister pages. When the write ends, RMA does not access them any more. Commands in
    /// progress there end with [`crate::extoll_rma::status::WITHDRAWN`].
    pub const DEREGISTER: u64 = 2;
    /// Bits of [`COMMAND`] that select the command.
    pub const WHAT: u64 = 0xf;
    /// Bits of [`COMMAND`] that must be zero.
    pub const RESERVED: u64 = 0xffff_ffff_ffff_fcc0;
    /// Lowest bit of the page size in [`COMMAND`].
    pub const CLASS_SHIFT: u32 = 4;
    /// In [`COMMAND`]: others may read.
    pub const READ: u64 = 1 << 8;
    /// In [`COMMAND`]: others may write.
    pub const WRITE: u64 = 1 << 9;

    /// [`STATUS`]: the command was carried out.
    pub const DONE: u64 = 0;
    /// [`STATUS`]: misaligned address, no pages, too many pages, or unknown command.
    pub const MALFORMED: u64 = 1;
    /// [`STATUS`]: too few consecutive entries or mappings are free.
    pub const NO_ENTRIES: u64 = 2;
    /// [`STATUS`]: the region is not registered, or belongs to another VPID.
    pub const NOT_YOURS: u64 = 3;
    /// [`STATUS`]: the owner has not mapped that memory for DMA.
    pub const NOT_MAPPED: u64 = 4;
    /// [`STATUS`]: the owner's VPID has no client.
    pub const NO_OWNER: u64 = 5;
    /// [`STATUS`]: the rest of the table is reserved for other VPIDs.
    pub const QUOTA: u64 = 6;
    /// [`STATUS`]: the memory lies in more than [`super::MAX_MAPPINGS`] mappings.
    pub const SCATTERED: u64 = 7;
}

/// The declarations of the registers.
pub(crate) const REGISTER_MAP: &[Register] = &[
    Register::rw64("ATU_ADDRESS", 0, command::ADDRESS).about("IOVA of the first page, or NLA"),
    Register::rw64("ATU_PAGES", 0, command::PAGES).about("number of pages"),
    Register::rw64("ATU_OWNER", 0, command::OWNER).about("VPID of the owner"),
    Register::wo64("ATU_COMMAND", 0, command::COMMAND).fields(&[
        Field::mask("WHAT", command::WHAT)
            .values(&[(command::REGISTER, "register"), (command::DEREGISTER, "deregister")]),
        Field::bits("PAGE", 5, 4).values(&[(0, "4 KiB"), (1, "64 KiB"), (2, "2 MiB"), (3, "1 GiB")]),
        Field::mask("READ", command::READ),
        Field::mask("WRITE", command::WRITE),
    ]),
    Register::ro64("ATU_STATUS", 0, command::STATUS).fields(&[Field::bits("STATUS", 7, 0).values(&[
        (command::DONE, "done"),
        (command::MALFORMED, "malformed"),
        (command::NO_ENTRIES, "no entries"),
        (command::NOT_YOURS, "not yours"),
        (command::NOT_MAPPED, "not mapped"),
        (command::NO_OWNER, "no owner"),
        (command::QUOTA, "quota"),
        (command::SCATTERED, "scattered"),
    ])]),
    Register::ro64("ATU_RESULT", 0, command::RESULT).about("NLA of the first page registered"),
];
