//! The ATU (address translation unit): the memory that RMA may access.
//!
//! A *region* is the result of one registration: adjacent pages of one owner. It holds leases of
//! its memory, so that a transfer needs no lookup in the owner's address space. All leases of a
//! region have one term. The term ends when the region is deregistered, when one of its mappings is
//! removed, and when the owner leaves. No byte is accessed after the end of the term.
//!
//! Each of the four page sizes has a number ([`page`]) and a table of its own.
//!
//! A quota bounds what one VPID may register: half of the table is reserved for VPIDs that have not
//! used their part of it (`quota`).
//!
//! The number of mappings of a registration is determined before any of them is visited. A
//! registration of too many mappings thus costs next to nothing. The cost of the others is bounded
//! and charged to [`CommandBudget`].
//!
//! In: commands of the register file, mapped memory. Out: regions by network logical address (NLA).
//!
//! Regions of a page size are sorted by their first entry. A lookup is a binary search; a
//! registration searches the gaps between regions.

mod quota;
mod registers;

use std::sync::Arc;

use nicforge_core::{
    context::Context,
    dma::{DmaLease, DmaPermission, Term},
    ids::AttachmentId,
};
use nicforge_hwi::extoll_atu::{MAX_MAPPINGS, command, nla, page};

pub(crate) use self::registers::{Register, write_register};
use self::{
    quota::{MAPPINGS, Quotas},
    registers::{Registers, Registration},
};
use crate::command_budget::CommandBudget;

/// Number of spans that are scanned or moved in about the time of one visit to a mapping.
const SPANS_PER_VISIT: usize = 32;
/// Number of page sizes.
const PAGE_SIZES: usize = 4;

/// Unique number of a region; the card never uses it again. 0 stands for no region.
pub(crate) type RegionSerial = u64;
/// A status of [`command`].
type CommandStatus = u64;

/// Returns the index of a page size in the tables. Numbers of page sizes have two bits.
#[inline]
fn table_index(page_size: u8) -> usize {
    usize::from(page_size & 3)
}

/// A kind of access to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

impl Access {
    #[inline]
    fn is_write(self) -> bool {
        self == Self::Write
    }
}

/// A part of a region: memory of one lease, or memory that only DMA messages reach.
struct Extent {
    /// Offset of the extent in the region.
    start: u64,
    length: u64,
    iova: u64,
    /// The mapped memory; `None` if the memory is accessed by DMA messages.
    lease: Option<Arc<DmaLease>>,
}

/// The memory of a region from some offset on, up to the end of an extent.
pub(crate) struct Piece<'a> {
    /// The lease of the whole extent and the offset in it; `None` if the memory is reached by
    /// messages.
    pub(crate) lease: Option<(&'a Arc<DmaLease>, u64)>,
    pub(crate) iova: u64,
    pub(crate) length: u64,
}

/// A registered region.
pub(crate) struct Region {
    pub(crate) serial: RegionSerial,
    pub(crate) owner: u16,
    /// The accesses that all of the owner's mappings allow.
    mapped: DmaPermission,
    /// The accesses that the owner allows to other VPIDs.
    others: DmaPermission,
    extents: Vec<Extent>,
    /// Number of mappings that the region lies in.
    mappings: u32,
    /// Term of all its leases.
    term: Term,
}

impl Region {
    /// Returns whether the region's owner has this access.
    #[inline]
    pub(crate) fn allows_owner(&self, access: Access) -> bool {
        self.mapped.allows(access.is_write())
    }

    /// Returns whether VPIDs other than the owner have this access.
    #[inline]
    pub(crate) fn allows_others(&self, access: Access) -> bool {
        self.allows_owner(access) && self.others.allows(access.is_write())
    }

    /// Returns the memory from `offset` on, at most `length` bytes. Returns `None` if the term of
    /// the region has ended, so that its memory may not be accessed any more.
    #[inline]
    pub(crate) fn piece(&self, offset: u64, length: u64) -> Option<Piece<'_>> {
        if self.term.is_over() {
            return None;
        }

        let position = self.extents.partition_point(|extent| extent.start <= offset).checked_sub(1)?;
        let extent = self.extents.get(position)?;
        let within = offset - extent.start;
        let remaining = extent.length.checked_sub(within)?;

        Some(Piece {
            lease: extent.lease.as_ref().map(|lease| (lease, within)),
            iova: extent.iova + within,
            length: length.min(remaining),
        })
    }
}

/// A region's entries in the table of its page size: one for each page.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: u32,
    pages: u32,
    /// Index into [`Atu::regions`].
    region: u32,
}

/// A card's table of regions.
pub(crate) struct Atu {
    /// Regions by page size, sorted by first entry.
    spans: [Vec<Span>; PAGE_SIZES],
    /// By page size, the entry after the last registration, where the next search begins. A freed
    /// entry is used again only after all others. An address that outlived its region therefore
    /// finds no entry for long, rather than the memory of a later region.
    search_from: [u32; PAGE_SIZES],
    regions: Vec<Option<Region>>,
    /// Indices of `regions` that hold no region.
    free: Vec<u32>,
    quotas: Quotas,
    /// By attachment, the operands of its next command and the outcome of its last one.
    registers: Vec<Registers>,
    /// Number of registrations that were refused because the card or the VPID's quota had nothing
    /// left.
    refused: u64,
    last_serial: RegionSerial,
}

/// Takes leases of the `bytes` bytes of the owner's memory at `address`, all with the same term.
/// Returns them, and the accesses that all mappings allow.
///
/// # Errors
/// [`command::NOT_MAPPED`].
fn lease_extents(
    context: &mut Context<'_>,
    owner: AttachmentId,
    address: u64,
    bytes: u64,
    term: &Term,
) -> Result<(Vec<Extent>, DmaPermission), CommandStatus> {
    let mut permission = DmaPermission::READ_WRITE;
    let mut extents = Vec::new();
    let mut start = 0;
    while start < bytes {
        let piece = context
            .dma_piece(owner, address + start, bytes - start, term)
            .map_err(|_| command::NOT_MAPPED)?;
        permission.read &= piece.permission.read;
        permission.write &= piece.permission.write;
        let lease = piece.lease.map(Arc::new);
        extents.push(Extent { start, length: piece.length, iova: address + start, lease });
        start += piece.length;
    }
    Ok((extents, permission))
}

impl Atu {
    /// Returns the table of a card with this number of VPIDs, without regions.
    pub(crate) fn new(vpids: u16) -> Self {
        Self {
            spans: Default::default(),
            search_from: [0; PAGE_SIZES],
            regions: Vec::new(),
            free: Vec::new(),
            quotas: Quotas::new(vpids),
            registers: vec![Registers::default(); usize::from(vpids) + 1],
            refused: 0,
            last_serial: 0,
        }
    }

    /// Returns the number of entries in use.
    pub(crate) fn entries(&self) -> u64 {
        self.quotas.entries()
    }

    /// Returns the number of registrations that were refused because the card or the VPID's quota
    /// had nothing left.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the region in which all `length` bytes at `address` lie, and the offset in it.
    #[inline]
    pub(crate) fn find(&self, address: u64, length: u64) -> Option<(&Region, u64)> {
        let nla::Location { class: page_size, entry, offset } = nla::decode(address)?;
        let spans = &self.spans[table_index(page_size)];
        let span = spans.get(spans.partition_point(|span| span.first <= entry).checked_sub(1)?)?;

        let within = (u64::from(entry - span.first) << page::shift(page_size)) + offset;
        let remaining = (u64::from(span.pages) << page::shift(page_size)).checked_sub(within)?;
        if remaining == 0 || length > remaining {
            return None;
        }
        Some((self.regions.get(span.region as usize)?.as_ref()?, within))
    }

    /// Registers memory. Returns the NLA of the first page. Charges the cost to `budget`.
    ///
    /// # Errors
    /// A status of [`command`].
    fn register(
        &mut self,
        context: &mut Context<'_>,
        budget: &mut CommandBudget,
        registration: Registration,
    ) -> Result<u64, CommandStatus> {
        let result = self.register_if_possible(context, budget, registration);
        self.refused += u64::from(matches!(result, Err(command::NO_ENTRIES | command::QUOTA)));
        result
    }

    /// Checks that a VPID may use `count` more of a resource of [`Quotas`].
    ///
    /// # Errors
    /// A status of [`command`].
    fn check_quota(&self, owner: AttachmentId, resource: usize, count: u32) -> Result<(), CommandStatus> {
        if count <= self.quotas.left_for(owner.0, resource) {
            Ok(())
        } else if count <= self.quotas.left(resource) {
            Err(command::QUOTA)
        } else {
            Err(command::NO_ENTRIES)
        }
    }

    /// As [`Atu::register`], without counting refusals.
    fn register_if_possible(
        &mut self,
        context: &mut Context<'_>,
        budget: &mut CommandBudget,
        registration: Registration,
    ) -> Result<u64, CommandStatus> {
        let Registration { owner, page_size, others, address, pages } = registration;
        budget.spend(1);
        if !context.is_attached(owner) {
            return Err(command::NO_OWNER);
        }

        let shift = page::shift(page_size);
        let maximum = page::entries(page_size);
        let count = u32::try_from(pages).ok().filter(|&count| count > 0 && count <= maximum);
        let is_aligned = address.is_multiple_of(1 << shift);
        let count = count.filter(|_| is_aligned).ok_or(command::MALFORMED)?;

        let bytes = pages << shift;
        // The last byte must be addressable.
        address.checked_add(bytes - 1).ok_or(command::MALFORMED)?;

        let table = table_index(page_size);
        self.check_quota(owner, table, count)?;

        let mappings = context.count_dma_mappings(owner, address, bytes).map_err(|_| command::NOT_MAPPED)?;
        if mappings > MAX_MAPPINGS as usize {
            return Err(command::SCATTERED);
        }
        // The value fits: it is at most MAX_MAPPINGS.
        let mappings = mappings as u32;
        self.check_quota(owner, MAPPINGS, mappings)?;

        let spans = &self.spans[table];
        budget.spend(scan_cost(spans) + mappings);
        let Gap { position, first_entry } =
            find_gap(spans, count, maximum, self.search_from[table]).ok_or(command::NO_ENTRIES)?;

        let term = Term::default();
        let (extents, mapped) = lease_extents(context, owner, address, bytes, &term)?;

        self.last_serial += 1;
        self.quotas.change(owner.0, table, |used| used + count);
        self.quotas.change(owner.0, MAPPINGS, |used| used + mappings);
        let region = self.store_region(Region {
            serial: self.last_serial,
            owner: owner.0,
            mapped,
            others,
            extents,
            mappings,
            term,
        });

        self.spans[table].insert(position, Span { first: first_entry, pages: count, region });
        self.search_from[table] = first_entry + count;
        Ok(nla::of_entry(page_size, first_entry))
    }

    /// Stores a region. Returns its index in [`Atu::regions`].
    fn store_region(&mut self, region: Region) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.regions[index as usize] = Some(region);
                index
            }
            None => {
                self.regions.push(Some(region));
                (self.regions.len() - 1) as u32
            }
        }
    }

    /// Deregisters the region that begins at `address`. `owner` restricts the command to regions of
    /// that VPID; `None` allows all. No access to the region happens after the return.
    ///
    /// # Errors
    /// A status of [`command`].
    fn deregister(
        &mut self,
        budget: &mut CommandBudget,
        owner: Option<AttachmentId>,
        address: u64,
    ) -> Result<(), CommandStatus> {
        budget.spend(1);

        let location = nla::decode(address).ok_or(command::NOT_YOURS)?;
        let nla::Location { class: page_size, entry, offset } = location;
        let spans = &mut self.spans[table_index(page_size)];
        let position =
            spans.binary_search_by_key(&entry, |span| span.first).map_err(|_| command::NOT_YOURS)?;
        let index = spans[position].region;

        let region = self.regions[index as usize].as_ref();
        if offset != 0 || region.is_none_or(|region| owner.is_some_and(|owner| owner.0 != region.owner)) {
            return Err(command::NOT_YOURS);
        }

        budget.spend(scan_cost(spans) + region.map_or(0, |region| region.mappings));
        let span = spans.remove(position);
        self.end_region(table_index(page_size), span);
        Ok(())
    }

    /// Returns the cost of [`Atu::deregister_all`] in visits, as [`CommandBudget`] counts them.
    pub(crate) fn cost_of_deregistering_all(&self, owner: AttachmentId) -> u32 {
        self.spans.iter().map(|spans| scan_cost(spans)).sum::<u32>() + self.quotas.mappings_of(owner.0)
    }

    /// Returns an attachment's registrations and registers to the state of power-on.
    pub(crate) fn power_on(&mut self, attachment: AttachmentId) {
        self.deregister_all(attachment);
        if let Some(registers) = self.registers.get_mut(usize::from(attachment.0)) {
            *registers = Registers::default();
        }
    }

    /// Deregisters all regions of an attachment.
    fn deregister_all(&mut self, owner: AttachmentId) {
        for table in 0..self.spans.len() {
            let mut spans = std::mem::take(&mut self.spans[table]);
            spans.retain(|span| {
                let region = self.regions[span.region as usize].as_ref();
                let is_owned = region.is_some_and(|region| region.owner == owner.0);
                if is_owned {
                    self.end_region(table, *span);
                }
                !is_owned
            });
            self.spans[table] = spans;
        }
    }

    /// Ends the term of a span's region, and frees the entries and mappings that the region used.
    /// The caller removes the span from `table`.
    fn end_region(&mut self, table: usize, span: Span) {
        if let Some(region) = self.regions[span.region as usize].take() {
            region.term.end();
            self.quotas.change(region.owner, table, |used| used - span.pages);
            self.quotas.change(region.owner, MAPPINGS, |used| used - region.mappings);
            self.free.push(span.region);
        }
    }
}

/// Adjacent free entries of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    /// The index at which a span of these entries must be inserted.
    position: usize,
    first_entry: u32,
}

/// Returns the cost of scanning spans in visits, as [`CommandBudget`] counts them.
fn scan_cost(spans: &[Span]) -> u32 {
    spans.len().div_ceil(SPANS_PER_VISIT) as u32
}

/// Finds `pages` adjacent free entries of a table with this number of entries: the first ones from
/// entry `from` on, or else the first ones of the table.
fn find_gap(spans: &[Span], pages: u32, entries: u32, from: u32) -> Option<Gap> {
    // The first gap of the table that is long enough, if it begins before `from`.
    let mut before_from = None;
    let mut gap_start = 0;

    // A gap ends before each span, and at the end of the table.
    for (position, gap_end) in spans.iter().map(|span| span.first).chain([entries]).enumerate() {
        let start = gap_start.max(from);
        if gap_end.saturating_sub(start) >= pages {
            return Some(Gap { position, first_entry: start });
        }

        if before_from.is_none() && gap_end - gap_start >= pages {
            before_from = Some(Gap { position, first_entry: gap_start });
        }

        gap_start = spans.get(position).map_or(gap_end, |span| span.first + span.pages);
    }

    before_from
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the span of entries `first` to `first + pages - 1`.
    fn span(first: u32, pages: u32) -> Span {
        Span { first, pages, region: 0 }
    }

    /// Returns the gap at an index of the spans with this first entry.
    fn gap(position: usize, first_entry: u32) -> Gap {
        Gap { position, first_entry }
    }

    #[test]
    fn the_first_gap_that_is_long_enough_is_taken() {
        assert_eq!(find_gap(&[], 64, 64, 0), Some(gap(0, 0)));
        assert_eq!(find_gap(&[], 65, 64, 0), None);

        let spans = [span(1, 3), span(6, 2), span(11, 1)];
        assert_eq!(find_gap(&spans, 1, 16, 0), Some(gap(0, 0)));
        assert_eq!(find_gap(&spans, 2, 16, 0), Some(gap(1, 4)));
        assert_eq!(find_gap(&spans, 3, 16, 0), Some(gap(2, 8)));
        assert_eq!(find_gap(&spans, 4, 16, 0), Some(gap(3, 12)));
        assert_eq!(find_gap(&spans, 5, 16, 0), None);
    }

    #[test]
    fn entries_before_the_start_of_the_search_are_used_when_no_gap_follows_it() {
        let spans = [span(1, 3), span(6, 2), span(11, 1)];
        assert_eq!(find_gap(&spans, 2, 16, 8), Some(gap(2, 8)));
        assert_eq!(find_gap(&spans, 2, 16, 10), Some(gap(3, 12)));
        assert_eq!(find_gap(&spans, 2, 16, 13), Some(gap(3, 13)));
        assert_eq!(find_gap(&spans, 2, 16, 15), Some(gap(1, 4)));
        assert_eq!(find_gap(&spans, 1, 16, 16), Some(gap(0, 0)));
        assert_eq!(find_gap(&spans, 5, 16, 12), None);
        assert_eq!(find_gap(&[], 64, 64, 1), Some(gap(0, 0)));
    }
}
