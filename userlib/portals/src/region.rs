//! Memory of a process that messages come from and go to.

use std::{fmt, sync::Arc};

use nicforge_driver::DmaBuffer;

use crate::Error;

/// Memory that an interface has allocated, and that its process may name. Clones share the memory.
///
/// A region is contiguous for the card, or *scattered*: then it consists of pieces of equal length,
/// and the kernel makes the DMA engines' command lists. It stays registered until its interface is
/// dropped.
#[derive(Clone)]
pub struct Region(pub(crate) Arc<Pieces>);

/// The memory of a region.
pub(crate) struct Pieces {
    /// Address of its first byte, in the process's address space.
    pub(crate) base: u64,
    /// Number of its bytes.
    pub(crate) length: u64,
    /// Length of each piece, a power of two. The only piece of a contiguous region has any length.
    pub(crate) piece: u64,
    /// The memory of each piece.
    pub(crate) buffers: Vec<DmaBuffer>,
}

impl Pieces {
    /// Calls `visit` for each part of a range that lies in one piece, in order. Its arguments are
    /// the piece's buffer, the part's offset in the buffer, and the part's length.
    pub(crate) fn for_each_part(
        &self,
        offset: u64,
        length: u64,
        mut visit: impl FnMut(&DmaBuffer, u64, u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            return Err(Error::OutOfRange { offset, length, size: self.length });
        }
        if let [buffer] = &*self.buffers {
            return visit(buffer, offset, length);
        }

        let (mut at, end) = (offset, offset + length);
        while at < end {
            let in_piece = at % self.piece;
            let part = (self.piece - in_piece).min(end - at);
            if let Some(buffer) = self.buffers.get((at / self.piece) as usize) {
                visit(buffer, in_piece, part)?;
            }
            at += part;
        }
        Ok(())
    }
}

impl Region {
    /// Returns the size in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.0.length
    }

    /// Returns the address of the region in the process's address space, which descriptors and the
    /// address map name.
    pub fn address(&self) -> u64 {
        self.0.base
    }

    /// Returns the number of pieces that the region consists of.
    pub fn pieces(&self) -> usize {
        self.0.buffers.len()
    }

    /// Copies `data` into the region from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let mut remaining = data;
        self.0.for_each_part(offset, data.len() as u64, |buffer, at, length| {
            let (part, rest) = remaining.split_at(length as usize);
            remaining = rest;
            Ok(buffer.write(at, part)?)
        })
    }

    /// Copies bytes of the region from `offset` on into `out`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let (length, mut at_out) = (out.len() as u64, 0);
        self.0.for_each_part(offset, length, |buffer, at, length| {
            let end = at_out + length as usize;
            buffer.read(at, &mut out[at_out..end])?;
            at_out = end;
            Ok(())
        })
    }

    /// Returns the memory of a contiguous region, for access in place.
    pub fn buffer(&self) -> Option<&DmaBuffer> {
        match &*self.0.buffers {
            [buffer] => Some(buffer),
            _ => None,
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("length", &self.len())
            .field("pieces", &self.pieces())
            .finish()
    }
}
