//! The ATU: which memory RMA may touch.
//!
//! A *region* is what one registration made: pages in a row, of one owner. It holds leases of the memory behind it, so that a transfer that uses it
//! looks nothing up in the owner's address space. They have one term, which ends with the region, with the first of the mappings that it lies in
//! and with the owner; whoever finds it over touches nothing.
//!
//! What one VPID may register is bounded: half of the table is kept for VPIDs that have not used their part of it (`Shares`).
//!
//! How many mappings a registration would look at is found first, without looking: one that is refused for that costs next to nothing. What the others
//! cost is bounded, and told to [`Work`].
//!
//! In: commands of the register file, mapped memory. Out: regions by network logical address. Regions of a page size are kept sorted by entry: a look-up is
//! a binary search, a registration looks at the gaps between them, from the first one on.

use std::sync::Arc;

use nicforge_core::{
    context::Context,
    device::AttachmentId,
    dma::{DmaLease, DmaPermission, Term},
};
use nicforge_hwi::extoll_atu::{ALL_MAPPINGS, MAX_MAPPINGS, command, nla, page};

use crate::work::Work;

/// What is shared out: entries of each page size, and mappings.
const RESOURCES: usize = 5;
/// The mappings among them.
const MAPPINGS: usize = 4;
/// Spans that are gone over, or moved, in the time that a mapping takes, about.
const ROW: usize = 32;

/// What an attachment has filled in, and what became of its last command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registers {
    pub(crate) address: u64,
    pub(crate) pages: u64,
    pub(crate) owner: u64,
    pub(crate) status: u64,
    pub(crate) result: u64,
}

/// A part of a region that is of one kind.
struct Extent {
    /// Where it begins in the region.
    start: u64,
    length: u64,
    iova: u64,
    /// `None`: reached by messages.
    lease: Option<Arc<DmaLease>>,
}

/// What is behind a place of a region.
pub(crate) struct Piece<'a> {
    /// The memory, all of the extent, and where in it; `None`: reached by messages.
    pub(crate) lease: Option<(&'a Arc<DmaLease>, u64)>,
    pub(crate) iova: u64,
    pub(crate) length: u64,
}

/// Memory that was registered.
pub(crate) struct Region {
    /// No two regions of a card have the same, ever; 0 is none.
    pub(crate) serial: u64,
    pub(crate) owner: u16,
    /// What the owner's mappings allow, all of them.
    mapped: DmaPermission,
    /// What the owner allows others.
    others: DmaPermission,
    extents: Vec<Extent>,
    /// Mappings that it lies in.
    mappings: u32,
    /// Of all of its memory.
    term: Term,
}

impl Region {
    /// Whether the owner, or somebody else, may read or write it.
    #[inline]
    pub(crate) fn allows(&self, owner_itself: bool, write: bool) -> bool {
        let may = |permission: DmaPermission| if write { permission.write } else { permission.read };
        may(self.mapped) && (owner_itself || may(self.others))
    }

    /// What is behind `offset`, at most `length` bytes of it. None when the memory is not there any more.
    #[inline]
    pub(crate) fn piece(&self, offset: u64, length: u64) -> Option<Piece<'_>> {
        if self.term.is_over() {
            return None;
        }
        let place = self.extents.partition_point(|extent| extent.start <= offset).checked_sub(1)?;
        let extent = self.extents.get(place)?;
        let within = offset - extent.start;
        let left = extent.length.checked_sub(within)?;
        Some(Piece {
            lease: extent.lease.as_ref().map(|lease| (lease, within)),
            iova: extent.iova + within,
            length: length.min(left),
        })
    }
}

/// Where a region is in its page size's table.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: u32,
    pages: u32,
    /// Index into [`Atu::regions`].
    region: u32,
}

/// Who may have how much. Of everything a half is shared out among the VPIDs, and kept for them; the other half is for who comes first. So nobody can
/// take so much that another one gets nothing.
struct Shares {
    /// By VPID: what its regions take.
    used: Vec<[u32; RESOURCES]>,
    /// What is kept for each VPID, and what all of them together have not made use of.
    kept: [u32; RESOURCES],
    unclaimed: [u32; RESOURCES],
    /// What all regions take.
    total: [u32; RESOURCES],
}

impl Shares {
    fn new(vpids: u16) -> Self {
        let vpids = u32::from(vpids.max(1));
        let kept = std::array::from_fn(|resource| Self::all(resource) / 2 / vpids);
        Self {
            used: vec![[0; RESOURCES]; vpids as usize],
            kept,
            unclaimed: kept.map(|kept| kept * vpids),
            total: [0; RESOURCES],
        }
    }

    /// How much there is.
    fn all(resource: usize) -> u32 {
        if resource == MAPPINGS { ALL_MAPPINGS } else { page::entries(resource as u8) }
    }

    /// What a VPID may still take.
    fn left_for(&self, who: u16, resource: usize) -> u32 {
        let Some(used) = self.used.get(usize::from(who)) else { return 0 };
        let own = self.kept[resource].saturating_sub(used[resource]);
        let others = self.unclaimed[resource] - own;
        Self::all(resource) - self.total[resource] - others
    }

    /// A VPID's regions take more by what `change` makes of a number, or less.
    fn change(&mut self, who: u16, resource: usize, change: impl Fn(u32) -> u32) {
        let Some(used) = self.used.get_mut(usize::from(who)) else { return };
        let (kept, used) = (self.kept[resource], &mut used[resource]);
        self.unclaimed[resource] -= kept.saturating_sub(*used);
        *used = change(*used);
        self.unclaimed[resource] += kept.saturating_sub(*used);
        self.total[resource] = change(self.total[resource]);
    }
}

/// A card's table.
pub(crate) struct Atu {
    /// By page size: sorted by first entry.
    spans: [Vec<Span>; 4],
    /// By page size: the entry behind the last grant, where the next one is looked for first. What was freed is so not granted again before all the
    /// others were: who has an address of it, of somebody who is gone, finds nothing there rather than a successor's memory.
    next: [u32; 4],
    regions: Vec<Option<Region>>,
    free: Vec<u32>,
    shares: Shares,
    /// Registrations refused because there was nothing left, for anybody or for this one.
    refused: u64,
    last_serial: u64,
}

impl Atu {
    pub(crate) fn new(vpids: u16) -> Self {
        Self {
            spans: Default::default(),
            next: [0; 4],
            regions: Vec::new(),
            free: Vec::new(),
            shares: Shares::new(vpids),
            refused: 0,
            last_serial: 0,
        }
    }

    /// Entries that are in use.
    pub(crate) fn entries(&self) -> u64 {
        self.shares.total[..MAPPINGS].iter().map(|&entries| u64::from(entries)).sum()
    }

    /// Registrations that were refused because there was nothing left.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// The region that `length` bytes at `address` lie in, and where. All of them lie in one region, or nothing is found.
    #[inline]
    pub(crate) fn find(&self, address: u64, length: u64) -> Option<(&Region, u64)> {
        let (class, entry, offset) = nla::decode(address)?;
        let spans = &self.spans[usize::from(class & 3)];
        let span = spans.get(spans.partition_point(|span| span.first <= entry).checked_sub(1)?)?;
        let place = (u64::from(entry - span.first) << page::shift(class)) + offset;
        let left = (u64::from(span.pages) << page::shift(class)).checked_sub(place)?;
        if left == 0 || length > left {
            return None;
        }
        Some((self.regions.get(span.region as usize)?.as_ref()?, place))
    }

    /// Registers `pages` pages of `owner` from `address` on; the first one's NLA.
    ///
    /// # Errors
    /// A status of [`command`].
    pub(crate) fn register(
        &mut self,
        context: &mut Context<'_>,
        work: &mut Work,
        owner: AttachmentId,
        class: u8,
        others: DmaPermission,
        place: (u64, u64),
    ) -> Result<u64, u64> {
        let result = self.register_if_possible(context, work, owner, class, others, place);
        self.refused += u64::from(matches!(result, Err(command::NO_ENTRIES | command::QUOTA)));
        result
    }

    /// Whether a VPID can have so much of something: a status if not.
    fn admit(&self, owner: AttachmentId, resource: usize, count: u32) -> Result<(), u64> {
        if count <= self.shares.left_for(owner.0, resource) {
            Ok(())
        } else if count <= Shares::all(resource) - self.shares.total[resource] {
            Err(command::QUOTA)
        } else {
            Err(command::NO_ENTRIES)
        }
    }

    fn register_if_possible(
        &mut self,
        context: &mut Context<'_>,
        work: &mut Work,
        owner: AttachmentId,
        class: u8,
        others: DmaPermission,
        (address, pages): (u64, u64),
    ) -> Result<u64, u64> {
        work.spend(1);
        if !context.is_attached(owner) {
            return Err(command::NO_OWNER);
        }
        let shift = page::shift(class);
        let count = u32::try_from(pages).ok().filter(|&count| count > 0 && count <= page::entries(class));
        let (Some(count), true) = (count, address.is_multiple_of(1 << shift)) else {
            return Err(command::MALFORMED);
        };
        let bytes = pages << shift;
        // The last byte must have an address.
        address.checked_add(bytes - 1).ok_or(command::MALFORMED)?;
        let resource = usize::from(class & 3);
        self.admit(owner, resource, count)?;
        let mappings = context.dma_mappings(owner, address, bytes).map_err(|_| command::NOT_MAPPED)?;
        if mappings > MAX_MAPPINGS as usize {
            return Err(command::SCATTERED);
        }
        // No more than that.
        let mappings = mappings as u32;
        self.admit(owner, MAPPINGS, mappings)?;
        let spans = &self.spans[resource];
        work.spend(rows(spans) + mappings);
        let (place, first) =
            gap(spans, count, page::entries(class), self.next[resource]).ok_or(command::NO_ENTRIES)?;
        let term = Term::default();
        let mut mapped = DmaPermission::READ_WRITE;
        let mut extents = Vec::new();
        let mut start = 0;
        while start < bytes {
            let piece = context
                .dma_piece(owner, address + start, bytes - start, &term)
                .map_err(|_| command::NOT_MAPPED)?;
            mapped.read &= piece.permission.read;
            mapped.write &= piece.permission.write;
            let lease = piece.lease.map(Arc::new);
            extents.push(Extent { start, length: piece.length, iova: address + start, lease });
            start += piece.length;
        }
        self.last_serial += 1;
        self.shares.change(owner.0, resource, |used| used + count);
        self.shares.change(owner.0, MAPPINGS, |used| used + mappings);
        let region =
            Region { serial: self.last_serial, owner: owner.0, mapped, others, extents, mappings, term };
        let index = match self.free.pop() {
            Some(index) => {
                self.regions[index as usize] = Some(region);
                index
            }
            None => {
                self.regions.push(Some(region));
                (self.regions.len() - 1) as u32
            }
        };
        self.spans[resource].insert(place, Span { first, pages: count, region: index });
        self.next[resource] = first + count;
        Ok(nla::of_entry(class, first))
    }

    /// Deregisters the region that begins at `address`, of `owner`, or of anybody (`None`). When this returns nothing of it is touched any more.
    ///
    /// # Errors
    /// A status of [`command`].
    pub(crate) fn deregister(
        &mut self,
        work: &mut Work,
        owner: Option<AttachmentId>,
        address: u64,
    ) -> Result<(), u64> {
        work.spend(1);
        let (class, entry, offset) = nla::decode(address).ok_or(command::NOT_YOURS)?;
        let spans = &mut self.spans[usize::from(class & 3)];
        let place = spans.binary_search_by_key(&entry, |span| span.first).map_err(|_| command::NOT_YOURS)?;
        let index = spans[place].region;
        let region = self.regions[index as usize].as_ref();
        if offset != 0 || region.is_none_or(|region| owner.is_some_and(|owner| owner.0 != region.owner)) {
            return Err(command::NOT_YOURS);
        }
        work.spend(rows(spans) + region.map_or(0, |region| region.mappings));
        let span = spans.remove(place);
        self.end(usize::from(class & 3), span);
        Ok(())
    }

    /// What [`Atu::deregister_all`] costs.
    pub(crate) fn cost_of_all(&self, owner: AttachmentId) -> u32 {
        let mappings = self.shares.used.get(usize::from(owner.0)).map_or(0, |used| used[MAPPINGS]);
        self.spans.iter().map(|spans| rows(spans)).sum::<u32>() + mappings
    }

    /// Deregisters all that an attachment has.
    pub(crate) fn deregister_all(&mut self, owner: AttachmentId) {
        for class in 0..self.spans.len() {
            let mut spans = std::mem::take(&mut self.spans[class]);
            spans.retain(|span| {
                let its =
                    self.regions[span.region as usize].as_ref().is_some_and(|region| region.owner == owner.0);
                if its {
                    self.end(class, *span);
                }
                !its
            });
            self.spans[class] = spans;
        }
    }

    fn end(&mut self, class: usize, span: Span) {
        if let Some(region) = self.regions[span.region as usize].take() {
            region.term.end();
            let less = region.mappings;
            self.shares.change(region.owner, class, |used| used - span.pages);
            self.shares.change(region.owner, MAPPINGS, |used| used - less);
            self.free.push(span.region);
        }
    }
}

/// What it costs to go over spans.
fn rows(spans: &[Span]) -> u32 {
    spans.len().div_ceil(ROW) as u32
}

/// The first gap of so many entries from `from` on, else the first there is: where its span goes, and its first entry.
fn gap(spans: &[Span], pages: u32, entries: u32, from: u32) -> Option<(usize, u32)> {
    let mut earlier = None;
    let mut first = 0;
    for (place, end) in spans.iter().map(|span| span.first).chain([entries]).enumerate() {
        let behind = first.max(from);
        if end.saturating_sub(behind) >= pages {
            return Some((place, behind));
        }
        if earlier.is_none() && end - first >= pages {
            earlier = Some((place, first));
        }
        first = spans.get(place).map_or(end, |span| span.first + span.pages);
    }
    earlier
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first: u32, pages: u32) -> Span {
        Span { first, pages, region: 0 }
    }

    #[test]
    fn the_first_gap_that_is_long_enough_is_taken() {
        assert_eq!(gap(&[], 64, 64, 0), Some((0, 0)));
        assert_eq!(gap(&[], 65, 64, 0), None);
        let spans = [span(1, 3), span(6, 2), span(11, 1)];
        assert_eq!(gap(&spans, 1, 16, 0), Some((0, 0)));
        assert_eq!(gap(&spans, 2, 16, 0), Some((1, 4)));
        assert_eq!(gap(&spans, 3, 16, 0), Some((2, 8)));
        assert_eq!(gap(&spans, 4, 16, 0), Some((3, 12)));
        assert_eq!(gap(&spans, 5, 16, 0), None);
    }

    #[test]
    fn what_was_freed_is_used_again_when_all_behind_the_last_grant_is() {
        let spans = [span(1, 3), span(6, 2), span(11, 1)];
        assert_eq!(gap(&spans, 2, 16, 8), Some((2, 8)));
        assert_eq!(gap(&spans, 2, 16, 10), Some((3, 12)));
        assert_eq!(gap(&spans, 2, 16, 13), Some((3, 13)));
        assert_eq!(gap(&spans, 2, 16, 15), Some((1, 4)));
        assert_eq!(gap(&spans, 1, 16, 16), Some((0, 0)));
        assert_eq!(gap(&spans, 5, 16, 12), None);
        assert_eq!(gap(&[], 64, 64, 1), Some((0, 0)));
    }

    #[test]
    fn a_half_is_kept_for_those_who_have_not_come() {
        let mut shares = Shares::new(4);
        let class = usize::from(page::SIZE_1G);
        // 64 entries: 8 for each of four.
        assert_eq!((0..4).map(|who| shares.left_for(who, class)).collect::<Vec<_>>(), [40; 4]);
        shares.change(0, class, |used| used + 40);
        assert_eq!((0..4).map(|who| shares.left_for(who, class)).collect::<Vec<_>>(), [0, 8, 8, 8]);
        shares.change(2, class, |used| used + 8);
        assert_eq!((0..4).map(|who| shares.left_for(who, class)).collect::<Vec<_>>(), [0, 8, 0, 8]);
        shares.change(0, class, |used| used - 36);
        // 12 are in use and 20 are kept; who is below its part has what is left of it, and what is kept for nobody.
        assert_eq!((0..4).map(|who| shares.left_for(who, class)).collect::<Vec<_>>(), [36, 40, 32, 40]);
        assert_eq!(shares.left_for(4, class), 0, "there is no such VPID");
        shares.change(2, class, |used| used - 8);
        shares.change(0, class, |used| used - 4);
        assert_eq!((shares.total[class], shares.unclaimed[class]), (0, 32));
    }
}
