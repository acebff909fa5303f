//! The trapped port: quads and headers that are pushed into and popped from the FIFOs one by one
//! ([`nicforge_hwi::tree_dcr::port`]).

use std::collections::VecDeque;

use nicforge_core::fabric::Ports;
use nicforge_hwi::{
    tree::{PAYLOAD, VCS},
    tree_dcr::{pix, port, prx},
};

use crate::fifo::{Channel, FRAMING, QUADS, SideItem};

/// Quads and headers pushed into a virtual channel's port that do not make a packet yet.
#[derive(Default)]
pub(crate) struct TrappedPort {
    quads: VecDeque<[u8; 16]>,
    headers: VecDeque<u32>,
}

/// The halves of quads between the two 8-byte accesses of an attachment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QuadHalves {
    /// A lower half that was written; its upper half is missing.
    written: Option<[u8; 8]>,
    /// The upper half of a quad whose lower half was read.
    unread: Option<[u8; 8]>,
}

/// Reasons why an access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The width or alignment is wrong.
    Align,
    /// No register is there, or it does not allow this direction.
    Address,
    /// The exception bit is set already.
    Noted,
}

impl TrappedPort {
    pub(crate) fn clear(&mut self) {
        self.quads.clear();
        self.headers.clear();
    }

    /// Handles a write to the port of channel `vc`.
    pub(crate) fn write(
        &mut self,
        vc: usize,
        channel: &mut Channel,
        ports: &mut Ports<'_>,
        halves: &mut QuadHalves,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Refused> {
        match (offset, data.len()) {
            (port::DI, 16) => {
                if let Some(quad) = data.first_chunk::<16>() {
                    self.push_quad(vc, channel, *quad);
                }
            }
            (port::DI, 8) => {
                // A second lower half in a row: the first one can no longer become complete.
                let lost = halves.written.take().is_some();
                halves.written = data.first_chunk::<8>().copied();
                if lost {
                    return Err(Refused::Align);
                }
            }
            (offset, 8) if offset == port::DI + 8 => {
                let low = halves.written.take().ok_or(Refused::Align)?;
                let mut quad = [0; 16];
                quad[..8].copy_from_slice(&low);
                quad[8..].copy_from_slice(data);
                self.push_quad(vc, channel, quad);
            }
            (port::HI, 4) => {
                if let Some(header) = data.first_chunk::<4>() {
                    self.push_header(vc, channel, u32::from_le_bytes(*header));
                }
            }
            (0..port::DR, _) => return Err(Refused::Align),
            _ => return Err(Refused::Address),
        }

        self.form(channel, ports);
        Ok(())
    }

    /// Queues a quad, or sets an overflow exception if the send FIFO has no room.
    fn push_quad(&mut self, vc: usize, channel: &mut Channel, quad: [u8; 16]) {
        let held = QUADS * channel.send_count() + self.quads.len() as u32;
        if held >= QUADS * channel.send_depth() {
            channel.inject_error([pix::PFO0, pix::PFO1][vc]);
        } else {
            self.quads.push_back(quad);
        }
    }

    /// Queues a header, or sets an overflow exception if the send FIFO has no room.
    fn push_header(&mut self, vc: usize, channel: &mut Channel, header: u32) {
        if channel.send_count() + self.headers.len() as u32 >= channel.send_depth() {
            channel.inject_error([pix::HFO0, pix::HFO1][vc]);
        } else {
            self.headers.push_back(header);
        }
    }

    /// Appends to the send FIFO each packet whose header and quads are complete.
    #[inline]
    pub(crate) fn form(&mut self, channel: &mut Channel, ports: &mut Ports<'_>) {
        if channel.staged != (0, 0) || !self.quads.is_empty() || !self.headers.is_empty() {
            self.form_packets(channel, ports);
        }
    }

    /// As [`TrappedPort::form`], where something is queued.
    fn form_packets(&mut self, channel: &mut Channel, ports: &mut Ports<'_>) {
        while self.quads.len() >= QUADS as usize && !self.headers.is_empty() {
            let Some(mut packet) = ports.new_packet(PAYLOAD) else { break };

            for (bytes, quad) in
                packet.bytes_mut().chunks_exact_mut(16).zip(self.quads.drain(..QUADS as usize))
            {
                bytes.copy_from_slice(&quad);
            }

            packet.header = self.headers.pop_front().unwrap_or_default().into();
            packet.framing = FRAMING;
            channel.append(SideItem::Packet(packet));
        }
        channel.staged = (self.quads.len() as u32, self.headers.len() as u32);
    }

    /// Handles a read from the port of channel `vc`. [`port::SO`] reads the other channel's status.
    pub(crate) fn read(
        &mut self,
        vc: usize,
        channels: &mut [Channel; VCS],
        halves: &mut QuadHalves,
        offset: u64,
        data: &mut [u8],
    ) -> Result<(), Refused> {
        match (offset, data.len()) {
            (port::DR, 16) => data.copy_from_slice(&self.pop_quad(vc, &mut channels[vc])?),
            (port::DR, 8) => {
                let lost = halves.unread.take().is_some();
                let quad = self.pop_quad(vc, &mut channels[vc])?;
                data.copy_from_slice(&quad[..8]);
                halves.unread = quad.last_chunk::<8>().copied();
                // As for writes: an upper half that was not read is lost.
                if lost {
                    return Err(Refused::Align);
                }
            }
            (offset, 8) if offset == port::DR + 8 => {
                data.copy_from_slice(&halves.unread.take().ok_or(Refused::Align)?);
            }
            (port::HR, 4) => {
                let header = self.pop_header(vc, &mut channels[vc])?;
                data.copy_from_slice(&header.to_le_bytes());
            }
            (port::SX, 4) => data.copy_from_slice(&Self::status(&mut channels[vc])),
            (port::SO, 4) => data.copy_from_slice(&Self::status(&mut channels[1 - vc])),
            (port::DR..port::SIZE, _) => return Err(Refused::Align),
            _ => return Err(Refused::Address),
        }

        Ok(())
    }

    /// Takes the next quad out of the receive FIFO, or sets an underflow exception.
    fn pop_quad(&mut self, vc: usize, channel: &mut Channel) -> Result<[u8; 16], Refused> {
        channel.poll_recv_head();
        let mut popped = channel.popped();
        let Some(quad) = channel.received_quad(popped.payload, popped.quad) else {
            channel.receive_error([prx::PFU0, prx::PFU1][vc]);
            return Err(Refused::Noted);
        };

        popped.quad += 1;
        if popped.quad == QUADS {
            popped.quad = 0;
            popped.payload = popped.payload.wrapping_add(1);
        }

        channel.set_popped(popped);
        Ok(quad)
    }

    /// Takes the next header out of the receive FIFO, or sets an underflow exception.
    fn pop_header(&mut self, vc: usize, channel: &mut Channel) -> Result<u32, Refused> {
        channel.poll_recv_head();
        let mut popped = channel.popped();
        let Some(header) = channel.received_header(popped.header) else {
            channel.receive_error([prx::HFU0, prx::HFU1][vc]);
            return Err(Refused::Noted);
        };

        popped.header = popped.header.wrapping_add(1);
        channel.set_popped(popped);
        Ok(header)
    }

    fn status(channel: &mut Channel) -> [u8; 4] {
        channel.poll_recv_head();
        channel.status().to_le_bytes()
    }
}
