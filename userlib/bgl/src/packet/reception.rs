//! The reception FIFOs.

use std::sync::atomic::Ordering;

use nicforge_driver::runtime::{Cost, charge, note_store};
use nicforge_hwi::torus::{FIFO, FIFO_CHUNKS, PacketHeader, RECEPTION_FIFOS, mirror, window};
use nicforge_shm::{SharedU32, Window};

use super::{
    Verdict,
    ring::{self, PayloadReader},
};
use crate::Error;

/// Chunks that may be taken from a FIFO between two announcements: half of the FIFO.
const ANNOUNCE_AT: u32 = FIFO_CHUNKS / 2;

/// The memory and the counts of a reception FIFO.
#[derive(Debug)]
struct Fifo {
    ring: Window,
    /// Chunks that the card has put into the FIFO, modulo 2^32, in the mirror.
    tail: SharedU32,
    /// Where the card reads how many chunks were taken.
    head_word: SharedU32,
    /// Chunks that were taken.
    head: u32,
    /// The head at the last announcement.
    announced: u32,
}

impl Fifo {
    /// Opens FIFO `index` of the windows.
    fn new(windows: &Window, mirrors: &Window, index: u64) -> Result<Self, Error> {
        let head_word = windows.u32(window::RECEPTION_HEAD + window::HEAD_STRIDE * index)?;
        let head = head_word.load(Ordering::Relaxed);
        Ok(Self {
            ring: mirrors.window(mirror::RECEPTION + FIFO * index, FIFO)?,
            tail: mirrors.u32(mirror::RECEPTION_TAIL + 4 * index)?,
            head_word,
            head,
            announced: head,
        })
    }

    /// Hands the packets in the FIFO to a handler, and counts them in `taken`.
    #[inline]
    fn receive(
        &mut self,
        taken: &mut usize,
        handler: &mut impl FnMut(PacketHeader, PayloadReader<'_>) -> Verdict,
    ) -> Result<(), Error> {
        let tail = self.tail.load(Ordering::Acquire);
        let first = self.head;

        let result = self.take_until(tail, taken, handler);
        if self.head != first {
            // The loads of the payloads come before this store.
            self.head_word.store(self.head, Ordering::Release);
            note_store();
        }
        result
    }

    /// Hands the packets before `tail` to a handler, and moves the head in this process.
    #[inline]
    fn take_until(
        &mut self,
        tail: u32,
        taken: &mut usize,
        handler: &mut impl FnMut(PacketHeader, PayloadReader<'_>) -> Verdict,
    ) -> Result<(), Error> {
        if tail.wrapping_sub(self.head) > FIFO_CHUNKS {
            return Err(Error::BadDevice { what: "a reception FIFO's tail", value: tail.into() });
        }

        while self.head != tail {
            let header = ring::read_header(&self.ring, self.head)?;
            let chunks = header.chunks();
            if chunks > tail.wrapping_sub(self.head) {
                return Err(Error::BadDevice { what: "a packet's size in chunks", value: chunks.into() });
            }

            match handler(header, PayloadReader::new(&self.ring, self.head, chunks)) {
                Verdict::Taken => self.head = self.head.wrapping_add(chunks),
                Verdict::Left => break,
            }
            *taken += 1;
            charge(Cost::ReceivePacket, 1);
        }
        Ok(())
    }

    /// Returns whether the card must be told that the head has moved.
    ///
    /// The card waits for room only if a packet does not fit, thus if more than three quarters of
    /// the FIFO are full by the head that it knows, which is at least the announced one. A FIFO is
    /// announced earlier than that, so no wait is missed.
    #[inline]
    fn must_announce(&self) -> bool {
        self.head.wrapping_sub(self.announced) >= ANNOUNCE_AT
    }
}

/// All reception FIFOs of a core.
#[derive(Debug)]
pub(super) struct Reception {
    fifos: Vec<Fifo>,
}

impl Reception {
    /// Opens the FIFOs.
    pub(super) fn new(windows: &Window, mirrors: &Window) -> Result<Self, Error> {
        let fifos = (0..RECEPTION_FIFOS as u64).map(|index| Fifo::new(windows, mirrors, index));
        Ok(Self { fifos: fifos.collect::<Result<_, _>>()? })
    }

    /// Hands all packets that have arrived to a handler, the FIFO of high priority first. Returns
    /// the number of packets taken.
    #[inline]
    pub(super) fn receive(
        &mut self,
        handler: &mut impl FnMut(PacketHeader, PayloadReader<'_>) -> Verdict,
    ) -> Result<usize, Error> {
        let mut taken = 0;
        // The tails of all FIFOs lie in one cache line.
        for fifo in self.fifos.iter_mut().rev() {
            fifo.receive(&mut taken, handler)?;
        }
        Ok(taken)
    }

    /// Returns whether the card must be told of moved heads.
    #[inline]
    pub(super) fn must_announce(&self) -> bool {
        self.fifos.iter().any(Fifo::must_announce)
    }

    /// Records that the card was told of all heads.
    #[inline]
    pub(super) fn mark_announced(&mut self) {
        for fifo in &mut self.fifos {
            fifo.announced = fifo.head;
        }
    }
}
