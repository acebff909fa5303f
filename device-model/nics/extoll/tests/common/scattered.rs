//! Memory that is mapped for DMA in many pieces, none of which directly follows its neighbour in
//! its file. A guest behind an IOMMU that maps single pages has such memory.

use nicforge_core::dma::{DmaBacking, DmaPermission};
use nicforge_shm::SharedMemory;

use super::{Client, Rig};

/// Memory that is mapped in many pieces.
pub(crate) struct Scattered {
    memory: SharedMemory,
    /// The offset in the memory and the position in the file of each piece. The last entry is the
    /// end of the memory.
    pieces: Vec<(u64, u64)>,
}

impl Rig {
    /// Maps pieces of these lengths, one after the other from `iova` on.
    pub(crate) fn map_scattered(&mut self, client: &Client, iova: u64, lengths: &[u64]) -> Scattered {
        let total: u64 = lengths.iter().sum();

        // The gaps are multiples of 8, so that words stay aligned.
        let available: u64 = lengths.iter().map(|length| length.next_multiple_of(8) + 8).sum();
        let memory = SharedMemory::create("scattered", available as usize).unwrap();

        let (mut start, mut at, mut pieces) = (0, available, Vec::new());
        for &length in lengths {
            at -= length.next_multiple_of(8) + 8;
            let backing = DmaBacking::Memory(memory.window(at, length).unwrap());
            let permission = DmaPermission::READ_WRITE;
            self.machine
                .dma_map(client.function, client.attachment, iova + start, length, permission, backing)
                .unwrap();
            pieces.push((start, at));
            start += length;
        }

        pieces.push((total, 0));
        Scattered { memory, pieces }
    }
}

impl Scattered {
    /// Calls `access` with the position in the file and the range of bytes of each piece of an
    /// access.
    fn for_each_piece(
        &self,
        offset: u64,
        length: usize,
        mut access: impl FnMut(u64, std::ops::Range<usize>),
    ) {
        let end = offset + length as u64;
        for pair in self.pieces.windows(2) {
            let ((start, at), (until, _)) = (pair[0], pair[1]);
            let (first, last) = (start.max(offset), until.min(end));
            if first < last {
                access(at + first - start, (first - offset) as usize..(last - offset) as usize);
            }
        }
    }

    /// Returns `length` bytes at `offset`.
    pub(crate) fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.for_each_piece(offset, length, |at, range| self.memory.read(at, &mut bytes[range]).unwrap());
        bytes
    }

    /// Writes bytes at `offset`.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        self.for_each_piece(offset, bytes.len(), |at, range| self.memory.write(at, &bytes[range]).unwrap());
    }

    /// Returns the 8 bytes at `offset` as a number.
    pub(crate) fn word(&self, offset: u64) -> u64 {
        u64::from_le_bytes(*self.read(offset, 8).first_chunk().unwrap())
    }
}
