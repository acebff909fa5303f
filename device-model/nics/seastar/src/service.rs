//! The data message in service of the transmit engine, and how its packets are made.
//!
//! ```text
//!   header ──▶ data ──▶ ... ──▶ last data, with the check ──▶ end
//!                                └▶ last data ──▶ check alone ─▶ end   if it has no room there
//! ```

use crc32fast::Hasher;
use nicforge_core::{
    context::Context,
    fabric::Packet,
    ids::{AttachmentId, FunctionId},
};
use nicforge_hwi::seastar::{INLINE, PACKET, trusted_flag};
use nicforge_seastar_firmware::chip::{Pieces, TransferStatus, Transmission, Transmit};
use zerocopy::IntoBytes;

use crate::{
    memory::{Access, Cursor, MemoryOwner, Reader, Run},
    parts::Parts,
    reference::{MIN_REFERENCE, REFERENCE_BYTES, ReferencedMemory},
    wire,
};

/// A data message that is to be sent.
pub(crate) struct Job {
    pub(crate) message: Transmit,
    /// This node's incarnation at the program's call.
    pub(crate) incarnation: u32,
    /// The highest tenant number that the program had seen at the call.
    pub(crate) latest_tenant: u32,
}

impl Job {
    /// Returns whether the message is its header packet alone, and has no data in client memory.
    #[inline]
    pub(crate) fn is_one_packet(&self) -> bool {
        self.message.pieces == Pieces::None && self.message.packet.trusted.length <= INLINE as u32
    }

    /// Fills a packet of [`PACKET`] bytes with the header of the message.
    #[inline]
    pub(crate) fn fill_header(&mut self, packet: &mut Packet, parts: &Parts) {
        let Transmit { packet: header, target, target_incarnation, .. } = &mut self.message;
        header.trusted.source_node = parts.site.node;
        packet.bytes_mut().copy_from_slice(header.as_bytes());
        packet.header = wire::header(*target, wire::DATA, self.incarnation, target_incarnation.0);
    }
}

/// The data message in service.
pub(crate) struct Service {
    job: Job,
    /// Where the data of the next packet are.
    cursor: Cursor,
    /// Bytes of data in packets so far.
    sent: u32,
    /// The next packet to make.
    progress: Progress,
    /// The end-to-end check so far, if there is one.
    check: Option<Hasher>,
    /// Its memory could not be read: zeros take the place of the rest.
    is_faulty: bool,
    /// Client memory that packets refer to; `None` if they carry its data.
    referenced: Option<ReferencedMemory>,
}

/// The next packet of a message.
enum Progress {
    /// The header packet. The first `filled` bytes of its data were read.
    Header { filled: usize },
    /// A packet of data. The first `filled` bytes of it were read.
    Body { packet: Packet, filled: usize },
    /// A packet of data that is not begun.
    NextBody,
    /// A packet with the check alone.
    Check,
}

/// Result of [`Service::next_packet`].
pub(crate) enum NextPacket {
    /// The packet, the number of bytes that were read for it, and whether it is the message's last
    /// one.
    Packet { packet: Packet, read: u32, is_last: bool },
    /// Client memory is being read by message.
    Wait,
    /// The fabric's pool of packets is empty.
    Starved,
}

impl Service {
    /// Begins a message. `function` is woken when its packets no longer refer to client memory.
    pub(crate) fn new(job: Job, parts: &Parts, function: FunctionId) -> Self {
        let cursor = Cursor::new(&job.message.pieces, job.latest_tenant);
        let has_check = parts.site.options.end_to_end_crc == Some(true);
        let is_checked = has_check && job.message.packet.trusted.length > INLINE as u32;

        Self {
            job,
            cursor,
            sent: 0,
            progress: Progress::Header { filled: 0 },
            check: is_checked.then(Hasher::new),
            is_faulty: false,
            referenced: (parts.max_reference >= MIN_REFERENCE).then(|| ReferencedMemory::new(function)),
        }
    }

    /// Returns the message's name.
    pub(crate) fn name(&self) -> Transmission {
        self.job.message.name
    }

    /// Returns the status of a message whose packets are all made.
    pub(crate) fn status(&self) -> TransferStatus {
        if self.is_faulty { TransferStatus::MemoryFault } else { TransferStatus::Complete }
    }

    /// Returns the memory that packets still refer to, if there is any.
    pub(crate) fn into_referenced(self) -> Option<ReferencedMemory> {
        self.referenced.filter(ReferencedMemory::is_in_use)
    }

    /// Returns the packet that is being filled, if there is one. The message is dropped.
    pub(crate) fn into_packet(self) -> Option<Packet> {
        match self.progress {
            Progress::Body { packet, .. } => Some(packet),
            Progress::Header { .. } | Progress::NextBody | Progress::Check => None,
        }
    }

    /// Makes the next packet. After [`NextPacket::Wait`] and [`NextPacket::Starved`], the caller
    /// must repeat the call.
    pub(crate) fn next_packet(
        &mut self,
        parts: &mut Parts,
        context: &mut Context<'_>,
        reader: &mut Reader,
    ) -> NextPacket {
        match std::mem::replace(&mut self.progress, Progress::NextBody) {
            Progress::Header { filled } => self.make_header(parts, context, reader, filled),
            Progress::Check => self.make_check(parts, context),
            Progress::Body { packet, filled } => self.fill_body(parts, context, reader, packet, filled),
            Progress::NextBody => match self.make_reference(parts, context, reader) {
                Some(made) => made,
                None => self.make_body(parts, context, reader),
            },
        }
    }

    /// Makes a packet of data.
    fn make_body(&mut self, parts: &mut Parts, context: &mut Context<'_>, reader: &mut Reader) -> NextPacket {
        match context.ports().new_packet(self.body_length(parts)) {
            Ok(packet) => self.fill_body(parts, context, reader, packet, 0),
            Err(_) => NextPacket::Starved,
        }
    }

    /// Makes a packet that refers to client memory. Returns `None` if the next packet must carry
    /// its data.
    #[inline]
    fn make_reference(
        &mut self,
        parts: &Parts,
        context: &mut Context<'_>,
        reader: &mut Reader,
    ) -> Option<NextPacket> {
        // Memory that cannot be leased, or of which too little is in one place, is copied.
        let rest = self.length() - self.sent;
        let referenced = self.referenced.as_mut().filter(|_| rest >= MIN_REFERENCE && !self.is_faulty)?;
        let Run::Piece(piece) = self.cursor.run(context, &parts.tenants, reader) else { return None };
        let length = rest.min(piece.length).min(parts.max_reference);
        let is_known = parts.tenants.is_known(AttachmentId(piece.attachment), self.cursor.latest_tenant());
        if length < MIN_REFERENCE || !is_known {
            return None;
        }

        let Ok(mut packet) = context.ports().new_packet(REFERENCE_BYTES) else {
            return Some(NextPacket::Starved);
        };
        if !referenced.refer(context, &piece, length, &mut packet) {
            context.ports().recycle(packet);
            return None;
        }

        self.cursor.advance(length as usize);
        self.sent += length;
        let is_last = self.sent == self.length();
        self.set_route_word(&mut packet, parts, is_last);
        // The packet counts on its links as long as one with the data, or as the longest one.
        packet.framing =
            (length as usize).min(parts.site.options.link.max_packet) as u32 - REFERENCE_BYTES as u32;
        Some(NextPacket::Packet { packet, read: length, is_last })
    }

    /// Returns the bytes of data of the message.
    pub(crate) fn length(&self) -> u32 {
        self.job.message.packet.trusted.length
    }

    /// Returns the bytes of data in the next packet.
    fn payload(&self, parts: &Parts) -> usize {
        ((self.length() - self.sent) as usize).min(parts.site.options.link.max_packet)
    }

    /// Returns the bytes of the next packet: data, and the check if it has room after them.
    fn body_length(&self, parts: &Parts) -> usize {
        let payload = self.payload(parts);
        let ends_here = self.sent as usize + payload == self.length() as usize;
        let with_check = payload + wire::CHECK;
        let check_fits =
            self.check.is_some() && ends_here && with_check <= parts.site.options.link.max_packet;
        if check_fits { with_check } else { payload }
    }

    /// Makes the header packet. It carries the data of a short message, whose first `filled` bytes
    /// were read by earlier calls.
    fn make_header(
        &mut self,
        parts: &mut Parts,
        context: &mut Context<'_>,
        reader: &mut Reader,
        mut filled: usize,
    ) -> NextPacket {
        let length = self.length() as usize;
        let header = &mut self.job.message.packet;
        let mut read = 0;
        let is_last = length <= INLINE;
        if is_last && !self.is_faulty && self.job.message.pieces != Pieces::None {
            let data = &mut header.inline[..length];
            match gather(&mut self.cursor, parts, context, reader, data, &mut filled) {
                Access::Done => read = length as u32,
                Access::Wait => {
                    self.progress = Progress::Header { filled };
                    return NextPacket::Wait;
                }
                Access::Fault => {
                    header.inline = [0; INLINE];
                    header.trusted.flags |= trusted_flag::INLINE_FAULT;
                    self.is_faulty = true;
                }
            }
        }

        let Ok(mut packet) = context.ports().new_packet(PACKET) else {
            self.progress = Progress::Header { filled };
            return NextPacket::Starved;
        };
        self.job.fill_header(&mut packet, parts);
        if let Some(check) = &mut self.check {
            check.update(packet.bytes());
        }
        NextPacket::Packet { packet, read, is_last }
    }

    /// Fills a packet of data from client memory. It continues at byte `filled` of the packet, and
    /// sends zeros for memory that cannot be read. The last packet gets the check if it fits.
    fn fill_body(
        &mut self,
        parts: &mut Parts,
        context: &mut Context<'_>,
        reader: &mut Reader,
        mut packet: Packet,
        mut filled: usize,
    ) -> NextPacket {
        let payload = self.payload(parts);
        if !self.is_faulty {
            let data = &mut packet.bytes_mut()[..payload];
            match gather(&mut self.cursor, parts, context, reader, data, &mut filled) {
                Access::Done => {}
                Access::Wait => {
                    self.progress = Progress::Body { packet, filled };
                    return NextPacket::Wait;
                }
                Access::Fault => self.is_faulty = true,
            }
        }
        if self.is_faulty {
            packet.bytes_mut()[filled..payload].fill(0);
        }
        if let Some(check) = &mut self.check {
            check.update(&packet.bytes()[..payload]);
        }

        // `body_length` has left room for the check after the last data, if it fits into the
        // packet.
        let room_after_data = packet.len() - payload;
        self.sent += payload as u32;
        let is_last_data = self.sent == self.length();
        let needs_check = is_last_data && self.check.is_some();
        if needs_check && room_after_data == wire::CHECK {
            self.put_check(&mut packet, payload);
        }

        let is_last = is_last_data && (!needs_check || room_after_data == wire::CHECK);
        if is_last_data && !is_last {
            self.progress = Progress::Check;
        }
        self.set_route_word(&mut packet, parts, is_last);
        NextPacket::Packet { packet, read: payload as u32, is_last }
    }

    /// Makes the packet of a check that had no room after the data.
    fn make_check(&mut self, parts: &Parts, context: &mut Context<'_>) -> NextPacket {
        let Ok(mut packet) = context.ports().new_packet(wire::CHECK) else {
            self.progress = Progress::Check;
            return NextPacket::Starved;
        };
        self.put_check(&mut packet, 0);
        let is_last = true;
        self.set_route_word(&mut packet, parts, is_last);
        NextPacket::Packet { packet, read: 0, is_last }
    }

    /// Puts the check into a packet, after `at` bytes.
    fn put_check(&mut self, packet: &mut Packet, at: usize) {
        let check = self.check.take().map_or(0, Hasher::finalize);
        packet.bytes_mut()[at..].copy_from_slice(&check.to_le_bytes());
    }

    /// Sets the route word of a packet of data.
    fn set_route_word(&self, packet: &mut Packet, parts: &Parts, is_last: bool) {
        let (target, source) = (self.job.message.target, parts.site.node);
        packet.header = if is_last {
            wire::last_body(target, source, self.is_faulty)
        } else {
            wire::body(target, source)
        };
        pad(packet, parts);
    }
}

/// Adds framing to a short packet, so that it takes the time of a whole one over links with a
/// bandwidth.
#[inline]
pub(crate) fn pad(packet: &mut Packet, parts: &Parts) {
    if parts.site.options.link.bits_per_second > 0 {
        packet.framing = (PACKET - packet.len().min(PACKET)) as u32;
    }
}

/// Copies the client memory at a cursor to `out`, from its byte `filled` on. `filled` counts the
/// bytes that are there; after [`Access::Wait`], the next call continues from it.
#[inline]
fn gather(
    cursor: &mut Cursor,
    parts: &Parts,
    context: &mut Context<'_>,
    reader: &mut Reader,
    out: &mut [u8],
    filled: &mut usize,
) -> Access {
    while *filled < out.len() {
        let piece = match cursor.run(context, &parts.tenants, reader) {
            Run::Piece(piece) => piece,
            Run::Wait => return Access::Wait,
            Run::End => return Access::Fault,
        };

        let bytes = (piece.length as usize).min(out.len() - *filled);
        let owner = MemoryOwner {
            attachment_id: AttachmentId(piece.attachment),
            latest_tenant: cursor.latest_tenant(),
        };
        let target = &mut out[*filled..*filled + bytes];
        match reader.read(context, &parts.tenants, owner, piece.address, target) {
            Access::Done => {}
            other => return other,
        }
        cursor.advance(bytes);
        *filled += bytes;
    }
    Access::Done
}
