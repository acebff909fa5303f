//! The memory of messages: whole buffers, and lists of regions (iovecs).

use std::ops::Range;

use nicforge_hwi::torus::QUAD;

use crate::Error;

/// A contiguous part of a buffer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub start: usize,
    /// Length in bytes.
    pub len: usize,
}

/// A region, with its place in the message.
#[derive(Clone, Copy, Debug)]
struct Placed {
    /// Offset of the region's first byte in the message.
    at: usize,
    region: Region,
}

/// The parts of the memory that are the message, in its order.
#[derive(Debug)]
enum Regions {
    /// One region.
    One(Region),
    /// Any number of regions that are not empty.
    List(Box<[Placed]>),
}

/// Memory that a message is sent from, or received into. The message owns it while it is in
/// progress.
///
/// A message may be scattered over regions of the memory, in any order (paper, section 5.7).
/// Received regions that overlap have the bytes of either.
#[derive(Debug)]
pub struct Buffer {
    memory: Vec<u8>,
    regions: Regions,
    /// Bytes of the message.
    len: usize,
}

impl From<Vec<u8>> for Buffer {
    /// Returns the buffer whose message is all of the memory.
    fn from(memory: Vec<u8>) -> Self {
        let len = memory.len();
        Self { memory, regions: Regions::One(Region { start: 0, len }), len }
    }
}

impl Buffer {
    /// Returns the buffer whose message is a region of the memory.
    ///
    /// # Errors
    /// Returns [`Error::BadRegion`].
    pub fn region(memory: Vec<u8>, region: Region) -> Result<Self, Error> {
        check(&memory, region)?;
        Ok(Self { memory, regions: Regions::One(region), len: region.len })
    }

    /// Returns the buffer whose message is scattered over regions of the memory.
    ///
    /// # Errors
    /// Returns [`Error::BadRegion`] for a region that leaves the memory, and
    /// [`Error::MessageTooLong`] if their sum is beyond `usize`.
    pub fn scattered(memory: Vec<u8>, regions: impl IntoIterator<Item = Region>) -> Result<Self, Error> {
        let (mut list, mut len) = (Vec::new(), 0_usize);
        for region in regions {
            check(&memory, region)?;
            if region.len != 0 {
                list.push(Placed { at: len, region });
            }
            len = len
                .checked_add(region.len)
                .ok_or(Error::MessageTooLong { len: usize::MAX, most: super::MAX_MESSAGE })?;
        }
        Ok(Self { memory, regions: Regions::List(list.into_boxed_slice()), len })
    }

    /// Returns the number of bytes of the message.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the memory, with the bytes outside the regions.
    pub fn memory(&self) -> &[u8] {
        &self.memory
    }

    /// Returns the memory for other use.
    pub fn into_memory(self) -> Vec<u8> {
        self.memory
    }

    /// Returns the number of the message's bytes before the first address that is a multiple of 16:
    /// its alignment phase.
    pub(super) fn head(&self) -> usize {
        let first = match &self.regions {
            Regions::One(region) => Some(region.start),
            Regions::List(list) => list.first().map(|placed| placed.region.start),
        };
        let address = self.memory.as_ptr().addr() + first.unwrap_or_default();
        address.next_multiple_of(QUAD) - address
    }

    /// Returns the region that has byte `offset` of the message, and its number.
    #[inline]
    fn find(&self, offset: usize) -> Option<(usize, Placed)> {
        match &self.regions {
            Regions::One(region) => Some((0, Placed { at: 0, region: *region })),
            Regions::List(list) => {
                let number = list.partition_point(|placed| placed.at <= offset).checked_sub(1)?;
                list.get(number).map(|placed| (number, *placed))
            }
        }
    }

    /// Returns the region with a number.
    #[inline]
    fn placed(&self, number: usize) -> Option<Placed> {
        match &self.regions {
            Regions::One(region) => (number == 0).then_some(Placed { at: 0, region: *region }),
            Regions::List(list) => list.get(number).copied(),
        }
    }

    /// Returns the pieces of the memory that have a range of the message.
    #[inline]
    pub(super) fn pieces(&self, range: Range<usize>) -> Pieces<'_> {
        let found = self.find(range.start);
        Pieces {
            buffer: self,
            number: found.map_or(0, |(number, _)| number),
            placed: found.map(|(_, placed)| placed),
            range,
        }
    }

    /// Calls `fill` with each piece of the memory that has a part of a range of the message, and
    /// with the piece's offset in the range. Bytes beyond the message's end are left out.
    #[inline]
    pub(super) fn fill(&mut self, range: Range<usize>, mut fill: impl FnMut(usize, &mut [u8])) {
        let Some((mut number, mut placed)) = self.find(range.start) else { return };
        let mut at = range.start;
        while let Some(part) = part_of(placed, at..range.end) {
            let len = part.len();
            if let Some(piece) = self.memory.get_mut(part) {
                fill(at - range.start, piece);
            }

            at += len;
            number += 1;
            let Some(next) = self.placed(number) else { return };
            placed = next;
        }
    }
}

/// Returns the part of the memory that a range of the message has in a region, unless it is empty.
/// The range begins in the region.
#[inline]
fn part_of(placed: Placed, range: Range<usize>) -> Option<Range<usize>> {
    let from = range.start.checked_sub(placed.at)?;
    let len = placed.region.len.checked_sub(from)?.min(range.end.saturating_sub(range.start));
    let start = placed.region.start + from;
    (len != 0).then_some(start..start + len)
}

/// Checks that a region lies in the memory.
fn check(memory: &[u8], region: Region) -> Result<(), Error> {
    let Region { start, len } = region;
    let is_inside = start.checked_add(len).is_some_and(|end| end <= memory.len());
    if is_inside { Ok(()) } else { Err(Error::BadRegion { start, len, size: memory.len() }) }
}

/// The pieces of a range of a message.
#[derive(Clone)]
pub(super) struct Pieces<'a> {
    buffer: &'a Buffer,
    /// Number of the next region.
    number: usize,
    /// The next region.
    placed: Option<Placed>,
    /// The rest of the range.
    range: Range<usize>,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let part = part_of(self.placed?, self.range.clone())?;
        self.range.start += part.len();
        self.number += 1;
        self.placed = self.buffer.placed(self.number);
        self.buffer.memory.get(part)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes_of(buffer: &Buffer, range: Range<usize>) -> Vec<u8> {
        buffer.pieces(range).flatten().copied().collect()
    }

    #[test]
    fn region_beyond_the_memory_is_refused() {
        let outside = Region { start: 3, len: 2 };
        let error = Error::BadRegion { start: 3, len: 2, size: 4 };
        assert_eq!(Buffer::region(vec![0; 4], outside).err(), Some(error.clone()));
        assert_eq!(Buffer::scattered(vec![0; 4], [outside]).err(), Some(error));
        let wraps = Region { start: usize::MAX, len: 2 };
        assert!(Buffer::region(vec![0; 4], wraps).is_err());
    }

    #[test]
    fn pieces_follow_the_order_of_the_regions() {
        let regions = [Region { start: 4, len: 2 }, Region { start: 0, len: 0 }, Region { start: 0, len: 3 }];
        let buffer = Buffer::scattered((0..6).collect(), regions).unwrap();
        assert_eq!((buffer.len(), bytes_of(&buffer, 0..5)), (5, vec![4, 5, 0, 1, 2]));
        assert_eq!(bytes_of(&buffer, 1..3), [5, 0]);
        assert_eq!(bytes_of(&buffer, 5..9), [] as [u8; 0]);
    }

    #[test]
    fn head_ends_at_a_multiple_of_a_quad() {
        for start in 0..20 {
            let buffer = Buffer::region(vec![0; 64], Region { start, len: 40 }).unwrap();
            let address = buffer.memory.as_ptr().addr() + start + buffer.head();
            assert!(address.is_multiple_of(QUAD) && buffer.head() < QUAD);
        }
    }

    proptest! {
        #[test]
        fn filled_ranges_are_read_back(
            lens in prop::collection::vec(0usize..40, 0..12), start in 0usize..200, len in 0usize..100,
        ) {
            // The regions lie in the reverse of their order in the message.
            let size: usize = lens.iter().sum();
            let mut end = size;
            let regions = lens.iter().map(|&len| { end -= len; Region { start: end, len } });
            let mut buffer = Buffer::scattered(vec![0; size], regions).unwrap();

            let pattern: Vec<u8> = (0..len).map(|index| index as u8 + 1).collect();
            buffer.fill(start..start + len, |at, piece| {
                let end = at + piece.len();
                piece.copy_from_slice(&pattern[at..end]);
            });

            let expected = &pattern[..len.min(size.saturating_sub(start))];
            prop_assert_eq!(bytes_of(&buffer, start..start + len), expected);
            prop_assert_eq!(buffer.memory.iter().filter(|&&byte| byte != 0).count(), expected.len());
        }
    }
}
