//! The trapped port: quads and headers that are pushed into and popped from the FIFOs one by one
//! ([`nicforge_hwi::tree_dcr::port`]).

use std::collections::VecDeque;

use nicforge_core::fabric::{Packet, Ports};
use nicforge_hwi::{
    tree::PAYLOAD,
    tree_dcr::{port, status},
};

use super::{Channel, FRAMING, QUAD, QUADS, receive::ReceiveFifo, side::SideItem};

/// Bytes of half a quad, the widest access of a processor that splits quads.
const HALF: usize = QUAD / 2;

/// The state of a channel's trapped port.
#[derive(Default)]
pub(super) struct TrappedPort {
    staged: Staged,
    popped: Popped,
}

/// Quads and headers that were pushed and do not make a packet yet.
#[derive(Default)]
struct Staged {
    quads: VecDeque<[u8; QUAD]>,
    headers: VecDeque<u32>,
}

/// The port's position in the receive FIFO. Headers and payloads are popped on their own.
///
/// The position can be before the head of the FIFO, because software may have freed packets that
/// the port has not popped. [`Popped::at_least_head`] corrects it.
#[derive(Clone, Copy, Debug, Default)]
struct Popped {
    /// Number of the packet whose header is popped next.
    header: u32,
    /// Number of the packet whose payload is popped next.
    payload: u32,
    /// Index of the quad that is popped next in that payload.
    quad: u32,
}

/// The halves of quads between the two 8-byte accesses of an attachment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QuadHalves {
    /// A lower half that was written; its upper half is missing.
    written: Option<[u8; HALF]>,
    /// The upper half of a quad whose lower half was read.
    unread: Option<[u8; HALF]>,
}

/// Reasons why an access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The width or alignment is wrong.
    Align,
    /// There is no register at the offset, or it does not allow this direction.
    Address,
    /// The FIFO is empty or full. The exception bit is set already.
    Reported,
}

impl Refused {
    /// Returns the rule that the access has broken.
    pub(crate) fn rule(self) -> &'static &'static str {
        match self {
            Self::Align => {
                &"an access has the width and alignment of its register, and halves of quads come in order"
            }
            Self::Address => &"the attachment may access the register in this direction",
            Self::Reported => &"a FIFO that is read has a packet, and one that is written has room",
        }
    }
}

/// The number of quads and headers that the port can pop.
#[derive(Clone, Copy, Debug)]
struct PoppableCounts {
    quads: u32,
    headers: u32,
}

impl TrappedPort {
    /// Drops the staged quads and headers, and starts again with empty FIFOs.
    pub(super) fn restart(&mut self) {
        *self = Self::default();
    }

    /// Returns the status word with `send_count` packets in the send FIFO. It does not count quads
    /// and headers that the port has popped.
    #[inline]
    pub(super) fn status(&self, fifo: &ReceiveFifo, send_count: u32) -> u32 {
        let unpopped = self.unpopped(fifo);
        status::word(
            QUADS * send_count + self.staged.quads.len() as u32,
            send_count + self.staged.headers.len() as u32,
            unpopped.quads,
            fifo.irq_count() > 0,
            unpopped.headers,
        )
    }

    /// Returns the number of quads and headers that can be popped.
    #[inline]
    fn unpopped(&self, fifo: &ReceiveFifo) -> PoppableCounts {
        let popped = self.popped.at_least_head(fifo);
        PoppableCounts {
            quads: QUADS * fifo.tail().wrapping_sub(popped.payload) - popped.quad,
            headers: fifo.tail().wrapping_sub(popped.header),
        }
    }
}

impl Popped {
    /// Returns the position, moved up to the FIFO's head where software has freed packets that were
    /// not popped.
    #[inline]
    fn at_least_head(self, fifo: &ReceiveFifo) -> Self {
        let (mut popped, head, count) = (self, fifo.head(), fifo.count());

        if popped.header.wrapping_sub(head) > count {
            popped.header = head;
        }
        if popped.payload.wrapping_sub(head) > count {
            (popped.payload, popped.quad) = (head, 0);
        }
        popped
    }

    /// Returns the number of packets from `head` on that are popped completely.
    fn packets_since(self, head: u32) -> u32 {
        self.header.wrapping_sub(head).min(self.payload.wrapping_sub(head))
    }
}

impl Channel {
    /// Handles a write to the port: of a quad or half a quad to [`port::DI`], or of a header to
    /// [`port::HI`]. Complete packets move to the send FIFO.
    pub(crate) fn write_port(
        &mut self,
        ports: &mut Ports<'_>,
        halves: &mut QuadHalves,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Refused> {
        let pushed = match (offset, data.len()) {
            (port::DI, QUAD) => data.first_chunk::<QUAD>().map_or(Ok(()), |quad| self.push_quad(*quad)),
            (port::DI, HALF) => {
                // A second lower half in a row: the first one can no longer become complete.
                let is_first_lost = halves.written.take().is_some();
                halves.written = data.first_chunk::<HALF>().copied();
                if is_first_lost {
                    return Err(Refused::Align);
                }
                Ok(())
            }
            (offset, HALF) if offset == port::DI + HALF as u64 => {
                let low = halves.written.take().ok_or(Refused::Align)?;
                let mut quad = [0; QUAD];
                quad[..HALF].copy_from_slice(&low);
                quad[HALF..].copy_from_slice(data);
                self.push_quad(quad)
            }
            (port::HI, 4) => {
                let header = data.first_chunk::<4>();
                header.map_or(Ok(()), |header| self.push_header(u32::from_le_bytes(*header)))
            }
            (0..port::DR, _) => return Err(Refused::Align),
            _ => return Err(Refused::Address),
        };

        self.form_packets(ports);
        pushed
    }

    /// Stages a quad, or sets an overflow exception if the send FIFO has no room.
    fn push_quad(&mut self, quad: [u8; QUAD]) -> Result<(), Refused> {
        let held = QUADS * self.send_count() + self.port.staged.quads.len() as u32;
        if held >= QUADS * self.send.depth() {
            self.events.payload_overflow();
            return Err(Refused::Reported);
        }
        self.port.staged.quads.push_back(quad);
        Ok(())
    }

    /// Stages a header, or sets an overflow exception if the send FIFO has no room.
    fn push_header(&mut self, header: u32) -> Result<(), Refused> {
        if self.send_count() + self.port.staged.headers.len() as u32 >= self.send.depth() {
            self.events.header_overflow();
            return Err(Refused::Reported);
        }
        self.port.staged.headers.push_back(header);
        Ok(())
    }

    /// Appends to the send FIFO each packet whose header and quads are staged.
    #[inline]
    pub(crate) fn form_packets(&mut self, ports: &mut Ports<'_>) {
        while self.port.staged.quads.len() >= QUADS as usize && !self.port.staged.headers.is_empty() {
            // The rest stays staged until the pool has a packet again.
            let Ok(packet) = ports.new_packet(PAYLOAD) else { return };
            self.form_packet(packet);
        }
    }

    /// Appends to the send FIFO the first staged packet, in the buffer `packet`.
    fn form_packet(&mut self, mut packet: Packet) {
        let Staged { quads, headers } = &mut self.port.staged;
        for (bytes, quad) in packet.bytes_mut().chunks_exact_mut(QUAD).zip(quads.drain(..QUADS as usize)) {
            bytes.copy_from_slice(&quad);
        }

        packet.header = headers.pop_front().unwrap_or_default().into();
        packet.framing = FRAMING;
        self.append(SideItem::Packet(packet));
    }

    /// Handles a read from the port: of a quad or half a quad from [`port::DR`], of a header, or of
    /// the status word. The caller handles [`port::SO`].
    pub(crate) fn read_port(
        &mut self,
        halves: &mut QuadHalves,
        offset: u64,
        data: &mut [u8],
    ) -> Result<(), Refused> {
        match (offset, data.len()) {
            (port::DR, QUAD) => data.copy_from_slice(&self.pop_quad()?),
            (port::DR, HALF) => {
                let is_upper_lost = halves.unread.take().is_some();
                let quad = self.pop_quad()?;
                data.copy_from_slice(&quad[..HALF]);
                halves.unread = quad.last_chunk::<HALF>().copied();
                // As for writes: an upper half that was not read is lost.
                if is_upper_lost {
                    return Err(Refused::Align);
                }
            }
            (offset, HALF) if offset == port::DR + HALF as u64 => {
                data.copy_from_slice(&halves.unread.take().ok_or(Refused::Align)?);
            }
            (port::HR, 4) => data.copy_from_slice(&self.pop_header()?.to_le_bytes()),
            (port::SX, 4) => {
                self.poll_recv_head();
                data.copy_from_slice(&self.status().to_le_bytes());
            }
            (port::DR..port::SIZE, _) => return Err(Refused::Align),
            _ => return Err(Refused::Address),
        }

        Ok(())
    }

    /// Takes the next quad out of the receive FIFO, or sets an underflow exception.
    fn pop_quad(&mut self) -> Result<[u8; QUAD], Refused> {
        self.poll_recv_head();
        let mut popped = self.port.popped.at_least_head(&self.receive);

        let quad = match self.state.memory() {
            Some(memory) if self.receive.contains(popped.payload) => {
                memory.received_quad(popped.payload, popped.quad)
            }
            _ => None,
        };
        let Some(quad) = quad else {
            self.events.payload_underflow();
            return Err(Refused::Reported);
        };

        popped.quad += 1;
        if popped.quad == QUADS {
            popped.quad = 0;
            popped.payload = popped.payload.wrapping_add(1);
        }

        self.set_popped(popped);
        Ok(quad)
    }

    /// Takes the next header out of the receive FIFO, or sets an underflow exception.
    fn pop_header(&mut self) -> Result<u32, Refused> {
        self.poll_recv_head();
        let mut popped = self.port.popped.at_least_head(&self.receive);

        let memory = self.state.memory();
        let header = memory.and_then(|memory| self.receive.header(&memory.receive, popped.header));
        let Some(header) = header else {
            self.events.header_underflow();
            return Err(Refused::Reported);
        };

        popped.header = popped.header.wrapping_add(1);
        self.set_popped(popped);
        Ok(header.0)
    }

    /// Sets the port's position, and frees the packets that were popped completely.
    fn set_popped(&mut self, popped: Popped) {
        self.port.popped = popped;

        let read = popped.packets_since(self.receive.head());
        if let Some(memory) = self.state.memory()
            && read > 0
        {
            self.receive.free(&memory.receive, read, &mut self.events);
        }
    }
}
