//! The trapped port: quads that are written to injection FIFOs and read from reception FIFOs, one
//! by one.
//!
//! A quad is one access of 16 bytes, or two of 8 bytes in ascending order. The quads lie in the
//! same memory as packets that software writes there itself. On one FIFO, software uses either the
//! port or the memory.

use nicforge_hwi::torus::{INJECTION_FIFOS, QUAD, RECEPTION_FIFOS};

use crate::group::Group;

/// Bytes of half a quad.
const HALF: usize = QUAD / 2;

/// The state of a group's port between two accesses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Port {
    /// The lower half of a quad that was written, and the FIFO.
    written: Option<(usize, [u8; HALF])>,
    /// The upper half of a quad whose lower half was read, and the FIFO.
    unread: Option<(usize, [u8; HALF])>,
    /// Injection FIFOs whose last chunk has one quad.
    half_written: [bool; INJECTION_FIFOS],
    /// Reception FIFOs of whose first chunk one quad was read.
    half_read: [bool; RECEPTION_FIFOS],
}

/// The part of a quad that an access covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Whole,
    Lower,
    Upper,
}

impl Part {
    /// Returns the part of an access, if it is one.
    fn of(offset: u64, length: usize) -> Option<Self> {
        match (offset % QUAD as u64, length) {
            (0, QUAD) => Some(Self::Whole),
            (0, HALF) => Some(Self::Lower),
            (8, HALF) => Some(Self::Upper),
            _ => None,
        }
    }
}

impl Group {
    /// Handles a write to an injection FIFO. Wrong accesses, and quads for which there is no room,
    /// count as errors and have no effect.
    pub(crate) fn write_port(&mut self, fifo: usize, offset: u64, data: &[u8]) {
        let written = self.port.written.take();
        match (Part::of(offset, data.len()), written) {
            (Some(Part::Whole), None) => {
                if let Some(quad) = data.first_chunk() {
                    self.push_quad(fifo, quad);
                }
            }
            (Some(Part::Lower), None) => {
                self.port.written = data.first_chunk().map(|half| (fifo, *half));
            }
            (Some(Part::Upper), Some((same, lower))) if same == fifo => {
                let mut quad = [0; QUAD];
                quad[..HALF].copy_from_slice(&lower);
                quad[HALF..].copy_from_slice(data);
                self.push_quad(fifo, &quad);
            }
            _ => self.count_errors(1),
        }
    }

    /// Puts a quad into an injection FIFO. The second one of a chunk completes it.
    fn push_quad(&mut self, fifo: usize, quad: &[u8; QUAD]) {
        let Some(memory) = &self.memory else { return };
        let Some(chunk) = self.injection[fifo].free_chunk() else {
            self.count_errors(1);
            return;
        };

        let is_second = self.port.half_written[fifo];
        memory.injection[fifo].put_quad(chunk, is_second.into(), quad);
        self.port.half_written[fifo] = !is_second;
        if is_second {
            self.injection[fifo].set_tail(chunk.wrapping_add(1));
        }
    }

    /// Handles a read from a reception FIFO. A wrong access, and one to an empty FIFO, counts as an
    /// error and returns ones.
    pub(crate) fn read_port(&mut self, fifo: usize, offset: u64, data: &mut [u8]) {
        let unread = self.port.unread.take();
        let Some(part) = Part::of(offset, data.len()) else {
            self.count_errors(1);
            return;
        };

        if part == Part::Upper {
            match unread {
                Some((same, upper)) if same == fifo => data.copy_from_slice(&upper),
                _ => self.count_errors(1),
            }
            return;
        }
        if unread.is_some() {
            // The upper half of the quad before is lost.
            self.count_errors(1);
        }
        let Some(quad) = self.pop_quad(fifo) else {
            self.count_errors(1);
            return;
        };
        data.copy_from_slice(&quad[..data.len()]);
        if part == Part::Lower {
            self.port.unread = quad.last_chunk().map(|half| (fifo, *half));
        }
    }

    /// Takes the next quad out of a reception FIFO. The second one of a chunk frees it.
    fn pop_quad(&mut self, fifo: usize) -> Option<[u8; QUAD]> {
        self.poll_heads();
        let memory = self.memory.as_ref()?;
        let reception = &mut self.reception[fifo];
        if reception.count() == 0 {
            return None;
        }

        let chunk = reception.head();
        let is_second = self.port.half_read[fifo];
        let quad = memory.reception[fifo].quad(chunk, is_second.into());
        self.port.half_read[fifo] = !is_second;
        if is_second {
            reception.set_head(chunk.wrapping_add(1));
            memory.store_head(fifo, reception.head());
        }
        Some(quad)
    }
}
