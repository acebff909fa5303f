//! The memory of a FIFO: a ring of chunks.

use nicforge_hwi::torus::{CHUNK, FIFO, FIFO_CHUNKS, HEADER, PacketHeader, QUAD};
use nicforge_shm::{MemoryError, SharedMemory, Window};
use zerocopy::FromZeros;

/// Chunks in mapped memory. Chunk `n` lies at `n % FIFO_CHUNKS`.
///
/// The window has its full size, so that accesses do not fail.
#[derive(Debug)]
pub(crate) struct Ring(Window);

impl Ring {
    /// Returns the ring at an offset of the memory.
    pub(crate) fn new(memory: &SharedMemory, offset: u64) -> Result<Self, MemoryError> {
        Ok(Self(memory.window(offset, FIFO)?))
    }

    /// Returns the offset of a chunk.
    #[inline]
    fn offset(chunk: u32) -> u64 {
        u64::from(chunk % FIFO_CHUNKS) * CHUNK as u64
    }

    /// Returns the number of the `bytes` from a chunk on that lie before the end of the memory. The
    /// others lie at its start.
    #[inline]
    fn bytes_before_end(chunk: u32, bytes: usize) -> usize {
        bytes.min((FIFO - Self::offset(chunk)) as usize)
    }

    /// Returns the header of the packet that begins at a chunk.
    #[inline]
    pub(crate) fn header(&self, chunk: u32) -> PacketHeader {
        let mut bytes = [0; HEADER];
        let mut header = PacketHeader::new_zeroed();
        if self.0.read_array(Self::offset(chunk), &mut bytes).is_ok() {
            header = zerocopy::transmute!(bytes);
        }
        header
    }

    /// Reads bytes from a chunk on, at most [`FIFO`] of them.
    #[inline]
    pub(crate) fn read(&self, chunk: u32, bytes: &mut [u8]) {
        let (first, second) = bytes.split_at_mut(Self::bytes_before_end(chunk, bytes.len()));
        let _ = self.0.read(Self::offset(chunk), first);
        let _ = self.0.read(0, second);
    }

    /// Writes bytes from a chunk on, at most [`FIFO`] of them.
    #[inline]
    pub(crate) fn write(&self, chunk: u32, bytes: &[u8]) {
        let (first, second) = bytes.split_at(Self::bytes_before_end(chunk, bytes.len()));
        let _ = self.0.write(Self::offset(chunk), first);
        let _ = self.0.write(0, second);
    }

    /// Reads a quad of a chunk, 0 or 1.
    pub(crate) fn quad(&self, chunk: u32, quad: usize) -> [u8; QUAD] {
        let mut bytes = [0; QUAD];
        let _ = self.0.read_array(Self::offset(chunk) + (quad * QUAD) as u64, &mut bytes);
        bytes
    }

    /// Writes a quad of a chunk, 0 or 1.
    pub(crate) fn put_quad(&self, chunk: u32, quad: usize, bytes: &[u8; QUAD]) {
        let _ = self.0.write_array(Self::offset(chunk) + (quad * QUAD) as u64, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_goes_on_at_the_start_of_the_memory() {
        let memory = SharedMemory::create("ring", 4096).unwrap();
        let ring = Ring::new(&memory, 1024).unwrap();
        let packet: Vec<u8> = (0..=255).collect();

        for chunk in [0, 24, 25, 31, u32::MAX, 37] {
            ring.write(chunk, &packet);
            let mut read = vec![0; packet.len()];
            ring.read(chunk, &mut read);
            assert_eq!(read, packet, "from chunk {chunk}");
            assert_eq!(ring.quad(chunk.wrapping_add(7), 1), packet[240..]);
        }
        let mut outside = [1; 1024];
        memory.read(0, &mut outside).unwrap();
        assert_eq!(outside, [0; 1024]);
    }
}
