//! The ATU, the Address Translation Unit: which memory RMA may touch, and whose it is.
//!
//! RMA names memory by *network logical addresses* (NLA). The table of a card has entries for pages
//! of four sizes; an entry says which VPID the page belongs to, where it is in that VPID's DMA
//! address space, and what may be done with it. A region of several pages has entries in a row, so
//! that its NLAs run on. An access lies in one region: regions next to each other are not one.
//!
//! A region lies in at most [`MAX_MAPPINGS`] mappings of its owner's, all regions of a card
//! together in [`ALL_MAPPINGS`]. A guest whose IOMMU maps pages has a mapping for each of them.
//!
//! Half of the entries of each page size, and of those mappings, is shared out equally among the
//! card's VPIDs: nobody else can take a VPID's part. The other half is for who comes first. A
//! registration that would take what is kept for others is refused with [`command::QUOTA`].
//!
//! A region is of the memory that its owner has mapped there when it is registered. When some of
//! that is unmapped, or the owner loses *bus master*, none of the region is touched any more,
//! whatever is mapped there later: it is registered anew. A region ends with its owner.
//!
//! An NLA: bits 61..60 the page size ([`page`]), below them the number of the entry and the offset
//! in the page; bits 63..62 zero.
//!
//! The admin attachment may register for any VPID, and every VPID for itself: what a kernel has to
//! do in a system call, because physical addresses are everybody's, is done by the card here,
//! because a VPID can name nothing but its own address space.

/// Mappings that a region lies in at most: 64 MiB in pages of 4 KiB.
pub const MAX_MAPPINGS: u32 = 1 << 14;
/// Mappings that all regions of a card lie in at most, counted for each region.
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

    /// Log2 of a page's bytes; `class` is taken modulo 4.
    #[inline]
    pub const fn shift(class: u8) -> u32 {
        match class & 3 {
            SIZE_4K => 12,
            SIZE_64K => 16,
            SIZE_2M => 21,
            _ => 30,
        }
    }

    /// Entries that a card's table has for a page size.
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
    /// Bits of an NLA that mean something.
    pub const MASK: u64 = (1 << 62) - 1;

    /// The first address of an entry's page.
    #[inline]
    pub const fn of_entry(class: u8, entry: u32) -> u64 {
        ((class as u64 & 3) << CLASS_SHIFT) | ((entry as u64) << super::page::shift(class))
    }

    /// {page size, entry, offset in the page}; `None` when bits are set that must not be, or the
    /// table has no such entry.
    #[inline]
    pub const fn decode(nla: u64) -> Option<(u8, u32, u64)> {
        if nla & !MASK != 0 {
            return None;
        }

        let class = (nla >> CLASS_SHIFT) as u8;
        let low = nla & ((1 << CLASS_SHIFT) - 1);
        let shift = super::page::shift(class);
        if low >> shift >= super::page::entries(class) as u64 {
            return None;
        }

        Some((class, (low >> shift) as u32, low & ((1 << shift) - 1)))
    }
}

/// Registers at [`crate::extoll::reg::ATU`], each 64 bits wide and each attachment's own: fill in,
/// write [`command::COMMAND`], read [`command::STATUS`] and [`command::RESULT`]. A command is over
/// when its write is; that waits while the card has much to do for other commands.
pub mod command {
    /// The first page's IOVA, a multiple of the page size. For deregistration: the region's first
    /// NLA.
    pub const ADDRESS: u64 = 0x1000;
    /// Pages, 1 to the entries of the table.
    pub const PAGES: u64 = 0x1008;
    /// Whose: a VPID. Only the admin attachment's counts; others register for themselves.
    pub const OWNER: u64 = 0x1010;
    /// Write: bits 3..0 what ([`REGISTER`], [`DEREGISTER`]), bits 5..4 the page size, bit 8 others
    /// may read, bit 9 others may write. The owner itself may do both.
    pub const COMMAND: u64 = 0x1018;
    /// Read: what became of the last command.
    pub const STATUS: u64 = 0x1020;
    /// Read: the NLA of the first page registered.
    pub const RESULT: u64 = 0x1028;

    /// Register pages.
    pub const REGISTER: u64 = 1;
    /// Deregister pages: when the write is over, RMA does not touch them any more. What was under
    /// way there ends with [`crate::extoll_rma::status::WITHDRAWN`].
    pub const DEREGISTER: u64 = 2;
    /// Bits of [`COMMAND`] that say what to do.
    pub const WHAT: u64 = 0xf;
    /// Bits of [`COMMAND`] that must be zero.
    pub const RESERVED: u64 = 0xffff_ffff_ffff_fcc0;
    /// Lowest bit of the page size in [`COMMAND`].
    pub const CLASS_SHIFT: u32 = 4;
    /// In [`COMMAND`]: others may read.
    pub const READ: u64 = 1 << 8;
    /// In [`COMMAND`]: others may write.
    pub const WRITE: u64 = 1 << 9;

    /// [`STATUS`]: done.
    pub const DONE: u64 = 0;
    /// [`STATUS`]: a misaligned address, no pages, too many, or an unknown command.
    pub const MALFORMED: u64 = 1;
    /// [`STATUS`]: no entries in a row are left for so many pages, or as many mappings as the
    /// memory lies in.
    pub const NO_ENTRIES: u64 = 2;
    /// [`STATUS`]: not registered, or another's.
    pub const NOT_YOURS: u64 = 3;
    /// [`STATUS`]: the owner has not mapped that memory for DMA.
    pub const NOT_MAPPED: u64 = 4;
    /// [`STATUS`]: nobody has the owner's VPID.
    pub const NO_OWNER: u64 = 5;
    /// [`STATUS`]: what is left of the table is kept for other VPIDs.
    pub const QUOTA: u64 = 6;
    /// [`STATUS`]: the memory lies in more than [`super::MAX_MAPPINGS`] mappings.
    pub const SCATTERED: u64 = 7;
}
