//! The trapped port: quads and headers pushed into and popped from the FIFOs one by one
//! ([`nicforge_hwi::tree_dcr::port`]).

use std::collections::VecDeque;

use nicforge_core::fabric::Ports;
use nicforge_hwi::{
    tree::{PAYLOAD, VCS},
    tree_dcr::{pix, port, prx},
};

use crate::fifo::{Channel, FRAMING, SideItem};

/// Quads in a payload.
const QUADS: u32 = (PAYLOAD / 16) as u32;

/// A virtual channel's port.
#[derive(Default)]
pub(crate) struct Port {
    quads: VecDeque<[u8; 16]>,
    headers: VecDeque<u32>,
    /// Numbers of the next header and of the packet of the next quad to be popped, and which quad it is.
    next_header: u32,
    next_payload: u32,
    next_quad: u32,
}

/// Halves of quads that an attachment has written or not yet read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Halves {
    written: Option<[u8; 8]>,
    unread: Option<[u8; 8]>,
}

/// Why an access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Bad width or alignment.
    Align,
    /// No such register, or not this way.
    Address,
    /// Noted in the exceptions already.
    Noted,
}

impl Port {
    pub(crate) fn clear(&mut self) {
        self.quads.clear();
        self.headers.clear();
        self.next_header = 0;
        self.next_payload = 0;
        self.next_quad = 0;
    }

    /// A write of the port of channel `vc`.
    pub(crate) fn write(
        &mut self,
        vc: usize,
        channel: &mut Channel,
        ports: &mut Ports<'_>,
        halves: &mut Halves,
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
                // A lower half that follows a lower half: the first one will never be complete.
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

    fn push_quad(&mut self, vc: usize, channel: &mut Channel, quad: [u8; 16]) {
        let held = QUADS * channel.send_count() + self.quads.len() as u32;
        if held >= QUADS * channel.send_depth() {
            channel.inject_error([pix::PFO0, pix::PFO1][vc]);
        } else {
            self.quads.push_back(quad);
        }
    }

    fn push_header(&mut self, vc: usize, channel: &mut Channel, header: u32) {
        if channel.send_count() + self.headers.len() as u32 >= channel.send_depth() {
            channel.inject_error([pix::HFO0, pix::HFO1][vc]);
        } else {
            self.headers.push_back(header);
        }
    }

    /// Makes packets of what has been pushed.
    #[inline]
    pub(crate) fn form(&mut self, channel: &mut Channel, ports: &mut Ports<'_>) {
        if channel.staged != (0, 0) || !self.quads.is_empty() || !self.headers.is_empty() {
            self.form_packets(channel, ports);
        }
    }

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

    /// A read of the port of channel `vc`; `other` is the other channel's status word.
    pub(crate) fn read(
        &mut self,
        vc: usize,
        channels: &mut [Channel; VCS],
        halves: &mut Halves,
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
                if lost {
                    channels[vc].receive_error(prx::ALIGN0);
                }
            }
            (offset, 8) if offset == port::DR + 8 => {
                data.copy_from_slice(&halves.unread.take().ok_or(Refused::Align)?);
            }
            (port::HR, 4) => {
                let header = self.pop_header(vc, &mut channels[vc])?;
                data.copy_from_slice(&header.to_le_bytes());
            }
            (port::SX, 4) => data.copy_from_slice(&self.status(&mut channels[vc])),
            (port::SO, 4) => data.copy_from_slice(&channels[1 - vc].status().to_le_bytes()),
            (port::DR..port::SIZE, _) => return Err(Refused::Align),
            _ => return Err(Refused::Address),
        }
        Ok(())
    }

    /// Software may have freed slots by their read pointer: they count as read.
    fn catch_up(&mut self, channel: &mut Channel) {
        channel.poll_recv_head();
        let (head, count) = (channel.recv_head(), channel.recv_count());
        if self.next_header.wrapping_sub(head) > count {
            self.next_header = head;
        }
        if self.next_payload.wrapping_sub(head) > count {
            (self.next_payload, self.next_quad) = (head, 0);
        }
    }

    fn pop_quad(&mut self, vc: usize, channel: &mut Channel) -> Result<[u8; 16], Refused> {
        self.catch_up(channel);
        let Some(quad) = channel.received_quad(self.next_payload, self.next_quad) else {
            channel.receive_error([prx::PFU0, prx::PFU1][vc]);
            return Err(Refused::Noted);
        };
        self.next_quad += 1;
        if self.next_quad == QUADS {
            self.next_quad = 0;
            self.next_payload = self.next_payload.wrapping_add(1);
            self.free(channel);
        }
        Ok(quad)
    }

    fn pop_header(&mut self, vc: usize, channel: &mut Channel) -> Result<u32, Refused> {
        self.catch_up(channel);
        let Some(header) = channel.received_header(self.next_header) else {
            channel.receive_error([prx::HFU0, prx::HFU1][vc]);
            return Err(Refused::Noted);
        };
        self.next_header = self.next_header.wrapping_add(1);
        self.free(channel);
        Ok(header)
    }

    /// Frees the packets of which everything was read.
    fn free(&mut self, channel: &mut Channel) {
        let head = channel.recv_head();
        let headers = self.next_header.wrapping_sub(head);
        let payloads = self.next_payload.wrapping_sub(head);
        let read = headers.min(payloads);
        if read > 0 {
            channel.advance_recv_head(head.wrapping_add(read));
        }
    }

    /// The channel's status, what has been popped from its receive FIFO left out.
    fn status(&mut self, channel: &mut Channel) -> [u8; 4] {
        self.catch_up(channel);
        let tail = channel.recv_tail();
        let quads = QUADS * tail.wrapping_sub(self.next_payload) - self.next_quad;
        let headers = tail.wrapping_sub(self.next_header);
        let send = channel.send_count();
        channel.status_with(send, quads, headers).to_le_bytes()
    }
}
