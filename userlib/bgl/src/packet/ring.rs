//! A FIFO in memory: a ring of chunks that holds packets one after the other.

use nicforge_hwi::torus::{CHUNK, FIFO, FIFO_CHUNKS, HEADER, MAX_PAYLOAD, PacketHeader};
use nicforge_shm::{MemoryError, Window};
use zerocopy::{FromZeros, IntoBytes};

use crate::Error;

/// Returns the byte of a ring at which a chunk lies.
fn offset_of(chunk: u32) -> u64 {
    u64::from(chunk % FIFO_CHUNKS) * CHUNK as u64
}

/// Copies from a ring, around its end if need be.
#[inline]
fn read_around(ring: &Window, at: u64, out: &mut [u8]) -> Result<(), MemoryError> {
    let at = at % FIFO;
    let until_end = (FIFO - at) as usize;
    match out.split_at_mut_checked(until_end) {
        Some((first, rest)) if !rest.is_empty() => {
            ring.read(at, first)?;
            ring.read(0, rest)
        }
        _ => ring.read(at, out),
    }
}

/// Copies into a ring, around its end if need be.
#[inline]
fn write_around(ring: &Window, at: u64, data: &[u8]) -> Result<(), MemoryError> {
    let at = at % FIFO;
    let until_end = (FIFO - at) as usize;
    match data.split_at_checked(until_end) {
        Some((first, rest)) if !rest.is_empty() => {
            ring.write(at, first)?;
            ring.write(0, rest)
        }
        _ => ring.write(at, data),
    }
}

/// Returns the header of a packet with a payload in pieces.
///
/// # Errors
/// Returns [`Error::PayloadTooLong`].
#[inline]
pub(super) fn sized<'a>(
    header: PacketHeader,
    payload: impl Iterator<Item = &'a [u8]>,
) -> Result<PacketHeader, Error> {
    let len = payload.fold(0_usize, |sum, piece| sum.saturating_add(piece.len()));
    if len > MAX_PAYLOAD {
        return Err(Error::PayloadTooLong { len, most: MAX_PAYLOAD });
    }
    Ok(header.with_payload(len))
}

/// Writes a packet from a chunk on: the header, the pieces of the payload, and zeros up to the size
/// in the header.
#[inline]
pub(super) fn write_packet<'a>(
    ring: &Window,
    chunk: u32,
    header: PacketHeader,
    payload: impl Iterator<Item = &'a [u8]>,
) -> Result<(), MemoryError> {
    const ZEROS: [u8; CHUNK] = [0; CHUNK];

    let start = offset_of(chunk);
    let end = start + u64::from(header.chunks()) * CHUNK as u64;
    ring.write_array::<HEADER>(start, &zerocopy::transmute!(header))?;

    let mut at = start + HEADER as u64;
    for piece in payload.filter(|piece| !piece.is_empty()) {
        write_around(ring, at, piece)?;
        at += piece.len() as u64;
    }

    // The memory has an old packet, which is not for the receiver.
    while at < end {
        let padding = &ZEROS[..(end - at).min(CHUNK as u64) as usize];
        write_around(ring, at, padding)?;
        at += padding.len() as u64;
    }
    Ok(())
}

/// Reads the header of the packet at a chunk.
#[inline]
pub(super) fn read_header(ring: &Window, chunk: u32) -> Result<PacketHeader, MemoryError> {
    let mut header = PacketHeader::new_zeroed();
    ring.read(offset_of(chunk), header.as_mut_bytes())?;
    Ok(header)
}

/// Reads the payload of a packet in place, in a FIFO.
///
/// The memory belongs to the network, which may be faulty: two reads of the same bytes may differ.
/// A reader of control information copies it once, and checks the copy.
#[derive(Clone, Copy, Debug)]
pub struct PayloadReader<'a> {
    ring: &'a Window,
    /// Where the payload begins in the ring.
    start: u64,
    len: usize,
}

impl<'a> PayloadReader<'a> {
    /// Returns the reader of a packet's payload. The packet begins at chunk `chunk` of `ring`,
    /// which is a ring of [`FIFO_CHUNKS`] chunks, and has `chunks` chunks.
    #[inline]
    pub fn new(ring: &'a Window, chunk: u32, chunks: u32) -> Self {
        let len = (chunks as usize * CHUNK).saturating_sub(HEADER).min(MAX_PAYLOAD);
        Self { ring, start: offset_of(chunk) + HEADER as u64, len }
    }

    /// Returns the number of bytes with padding: 16 to 240, in steps of 32.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the payload has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes from `offset` on, and returns whether the payload has them all. Otherwise it
    /// copies nothing.
    #[inline]
    #[must_use]
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) -> bool {
        let has_all = offset.checked_add(out.len()).is_some_and(|end| end <= self.len);
        has_all && read_around(self.ring, self.start + offset as u64, out).is_ok()
    }
}
