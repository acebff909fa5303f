//! The receive DMA engine: packets become messages in client memory.
//!
//! The *demultiplexer* keeps the packets of concurrent messages apart. The packets of a source are
//! in order, so each source has at most one stream. A message of more than [`INLINE`] bytes that
//! finds no free stream is dropped: the firmware sees its header, and its data are discarded.
//!
//! ```text
//!   free ── header packet ──▶ waiting ── Chip::receive ──▶ moving ── last packet ──▶ free
//!                                │  the sender's incarnation ends    │
//!                                └────────▶ cut ◀─────────────┘
//! ```
//!
//! A packet whose stream has no destination yet waits at the head of the reception FIFO, and so do
//! the packets after it. Nothing else makes reception wait, transmission least of all.
//!
//! A cut stream is free only after the firmware's call of `receive`. A call thus never meets
//! another message than the one that it is for.
//!
//! [`INLINE`]: nicforge_hwi::seastar::INLINE

use std::collections::VecDeque;

use crc32fast::Hasher;
use nicforge_core::{context::Context, ids::AttachmentId, time::Nanos};
use nicforge_hwi::seastar::{HeaderPacket, INLINE, STREAMS};
use nicforge_kit::Server;
use nicforge_seastar_firmware::chip::{self, Event, Incarnation, Pieces, TransferStatus};
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    memory::{Access, Cursor, Reader, WRITE_LIMIT},
    parts::Parts,
    reference::Reference,
    stream::{Destination, Memory, State, Stream},
    wait_budgets::Wait,
    wire::{self, BodyWord, HeaderWord, Kind, ShortIncarnation},
};

/// Number of this engine among the two of a node that read client memory.
const READER: u64 = 1;
/// Reception FIFO of the router.
const FIFO: u8 = 0;
/// Number of bytes whose copying counts as one packet in the budget of a step.
const COUNTED_BYTES: u64 = 8 << 10;
/// Index of no stream.
const NONE: u16 = u16::MAX;

/// The engine.
pub(crate) struct Receiver {
    /// All streams that were ever used.
    streams: Vec<Stream>,
    /// Indices of the free ones among them.
    free: Vec<u16>,
    /// The stream of each source, or [`NONE`].
    stream_by_source: Box<[u16]>,
    /// Cut streams whose end must be reported to the firmware.
    cut: VecDeque<u16>,
    /// Reads the lists of pieces in the kernel's memory.
    reader: Reader,
    /// The host interface, which writes the data of packets.
    host: Server,
    /// The wait of a deposit for its client, if one waits.
    wait: Option<Wait>,
    /// The client for whose answers to writes the end of a message waits, and the end of that wait.
    awaited: Option<(AttachmentId, Nanos)>,
    /// Buffer for data on their way to memory that only messages reach.
    buffer: Vec<u8>,
    pub(crate) counters: ReceiveCounters,
}

/// Counters of the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceiveCounters {
    /// Messages that were received, without control messages.
    pub(crate) messages: u64,
    /// Control messages.
    pub(crate) control: u64,
    /// Packets that were taken, of all kinds.
    pub(crate) packets: u64,
    /// Bytes of data that came in packets behind the header packets.
    pub(crate) bytes: u64,
    /// Messages dropped because all streams were in use.
    pub(crate) dropped: u64,
    /// Messages for another incarnation of this node, or of an incarnation of their sender that is
    /// over.
    pub(crate) stale: u64,
    /// Streams that were cut.
    pub(crate) cut: u64,
    /// Messages that ended with [`TransferStatus::Corrupt`].
    pub(crate) corrupt: u64,
    /// Messages that ended with [`TransferStatus::MemoryFault`].
    pub(crate) faults: u64,
    /// Packets discarded while the firmware did not run, and malformed ones.
    pub(crate) discarded: u64,
    /// The largest number of streams in use.
    pub(crate) most_streams: u64,
}

impl Receiver {
    pub(crate) fn new(nodes: u32) -> Self {
        Self {
            streams: Vec::new(),
            free: Vec::new(),
            stream_by_source: vec![NONE; nodes as usize].into_boxed_slice(),
            cut: VecDeque::new(),
            reader: Reader::new(READER),
            host: Server::default(),
            wait: None,
            awaited: None,
            buffer: Vec::new(),
            counters: ReceiveCounters::default(),
        }
    }

    /// Frees all streams, when the firmware stops.
    pub(crate) fn clear(&mut self, context: &mut Context<'_>) {
        self.reader.cancel(context);
        self.streams.clear();
        self.free.clear();
        self.stream_by_source.fill(NONE);
        self.cut.clear();
        self.wait = None;
        self.awaited = None;
    }

    /// Returns whether the end of a message waits until a client has answered all writes. Other
    /// writes to the client would prolong that wait.
    #[inline]
    pub(crate) fn awaits_answers(&self, context: &Context<'_>) -> bool {
        let waits = |(client, until)| until > context.now() && context.has_writes_in_flight(client);
        self.awaited.is_some_and(waits)
    }

    /// Returns the reader, for answers to its reads.
    pub(crate) fn reader(&mut self) -> &mut Reader {
        &mut self.reader
    }

    /// Returns the number of reads that ended early because a budget of waits was spent.
    pub(crate) fn over_budget(&self) -> u64 {
        self.reader.over_budget()
    }

    /// Returns the number of streams in use.
    pub(crate) fn streams_in_use(&self) -> u64 {
        (self.streams.len() - self.free.len()) as u64
    }

    /// Returns the time at which the host interface has delivered what it has, or [`Nanos::NEVER`]
    /// if it is idle. The engine can take the next packet then.
    #[inline]
    pub(crate) fn next_time(&self, now: Nanos) -> Nanos {
        let idle_at = self.host.idle_at();
        if idle_at > now { idle_at } else { Nanos::NEVER }
    }

    /// Returns whether there is no packet to take, and no cut stream to report.
    #[inline]
    pub(crate) fn is_idle(&self, parts: &Parts, now: Nanos) -> bool {
        self.cut.is_empty() && parts.router.front(FIFO, now).is_none()
    }

    /// Sets the destination of a stream, at the firmware's call of `receive`. The end of a stream
    /// that was cut while it waited for this call can now be reported.
    pub(crate) fn set_destination(
        &mut self,
        stream: chip::Stream,
        length: u32,
        pieces: &Pieces,
        latest_tenant: u32,
    ) {
        let Some(entry) = self.streams.get_mut(usize::from(stream.0)) else { return };
        match entry.state {
            State::Waiting => {
                entry.state = State::Moving;
                entry.destination = Destination::new(Cursor::new(pieces, latest_tenant), length);
            }
            State::Cut => {
                entry.state = State::Ending;
                self.cut.push_back(stream.0);
            }
            State::Free | State::Moving | State::Ending => {}
        }
    }

    /// Cuts the stream of a node, unless it belongs to the node's present incarnation.
    pub(crate) fn incarnation_changed(&mut self, context: &mut Context<'_>, node: u32, incarnation: u32) {
        let index = self.stream_of(node);
        let is_over =
            self.streams.get(usize::from(index)).is_some_and(|entry| entry.source_incarnation != incarnation);
        if is_over {
            self.cut_stream(context, index);
        }
    }

    /// Cuts all streams, at the end of this node's incarnation.
    pub(crate) fn cut_all(&mut self, context: &mut Context<'_>) {
        for index in 0..self.streams.len() as u16 {
            self.cut_stream(context, index);
        }
    }

    /// Cuts a stream. The packets that follow from its source belong to no stream.
    fn cut_stream(&mut self, context: &mut Context<'_>, index: u16) {
        let Some(entry) = self.streams.get_mut(usize::from(index)) else { return };
        entry.state = match entry.state {
            State::Waiting => State::Cut,
            State::Moving => {
                self.cut.push_back(index);
                State::Ending
            }
            State::Free | State::Cut | State::Ending => return,
        };

        if let Some(slot) = self.stream_by_source.get_mut(entry.source as usize) {
            *slot = NONE;
        }
        self.reader.cancel(context);
        self.wait = None;
        self.awaited = None;
        self.counters.cut += 1;
    }

    /// Reports the ends of cut streams to the firmware. Returns whether all of them are reported.
    pub(crate) fn report_cuts(&mut self, parts: &mut Parts, now: Nanos) -> bool {
        while let Some(&index) = self.cut.front() {
            let event = Event::Received { stream: chip::Stream(index), status: TransferStatus::Cut };
            if !parts.firmware.send(now, event) {
                return false;
            }
            self.cut.pop_front();
            self.release(index);
        }
        true
    }

    /// Drops the leases of clients' memory that are over.
    pub(crate) fn release_leases(&mut self) {
        self.streams.iter_mut().for_each(Stream::release_lease_if_over);
    }

    /// Returns the index of the stream of a source, or [`NONE`].
    #[inline]
    fn stream_of(&self, source: u32) -> u16 {
        self.stream_by_source.get(source as usize).copied().unwrap_or(NONE)
    }

    /// Makes a stream free.
    fn release(&mut self, index: u16) {
        let Some(entry) = self.streams.get_mut(usize::from(index)) else { return };
        entry.state = State::Free;
        entry.release_lease();
        if let Some(slot) = self.stream_by_source.get_mut(entry.source as usize)
            && *slot == index
        {
            *slot = NONE;
        }
        self.free.push(index);
    }

    /// Takes packets until one has to wait or `budget` is used up. Returns the part of it that is
    /// used: one for each packet, and one for each [`COUNTED_BYTES`] that were copied.
    #[inline]
    pub(crate) fn step(&mut self, parts: &mut Parts, context: &mut Context<'_>, budget: u32) -> u32 {
        let now = context.now();
        if self.is_idle(parts, now) {
            return 0;
        }

        let mut count = 0;
        while count < budget && self.host.idle_at() <= now {
            let cuts_are_reported = self.cut.is_empty() || self.report_cuts(parts, now);
            let before = self.counters.bytes;
            if !cuts_are_reported || !self.take_packet(parts, context) {
                break;
            }
            count += 1 + ((self.counters.bytes - before) / COUNTED_BYTES) as u32;
        }
        count
    }

    /// Takes the packet in front of the FIFO. Returns false if there is none, or if it has to wait.
    fn take_packet(&mut self, parts: &mut Parts, context: &mut Context<'_>) -> bool {
        let now = context.now();
        let Some(packet) = parts.router.front(FIFO, now) else { return false };

        let is_running = parts.firmware.is_running();
        let is_taken = match wire::decode(packet.header) {
            Some(Kind::ShutdownNotice) => true,
            Some(_) if !is_running => self.discard(),
            Some(Kind::Header(word)) => match HeaderPacket::read_from_bytes(packet.bytes()) {
                Ok(header) => self.take_header(parts, context, header, word),
                Err(_) => self.discard(),
            },
            Some(Kind::Body(word)) => self.take_body(parts, context, word),
            None => self.discard(),
        };

        if is_taken && let Some(packet) = parts.router.take(FIFO, now) {
            self.counters.packets += 1;
            context.ports().recycle(packet);
        }
        is_taken
    }

    /// Counts a packet that is discarded, and returns that it is taken.
    fn discard(&mut self) -> bool {
        self.counters.discarded += 1;
        true
    }

    /// Takes a header packet. Returns false if it has to wait.
    fn take_header(
        &mut self,
        parts: &mut Parts,
        context: &mut Context<'_>,
        packet: HeaderPacket,
        word: HeaderWord,
    ) -> bool {
        let HeaderWord { is_control, source_incarnation, target_incarnation } = word;
        let source = packet.trusted.source_node;
        if source >= parts.site.nodes {
            return self.discard();
        }

        // The source's next message begins. If the one before has no last packet, it never will.
        let now = context.now();
        if !is_control {
            self.cut_stream(context, self.stream_of(source));
            if !self.report_cuts(parts, now) {
                return false;
            }
        }

        // A message of an earlier incarnation of its sender is ignored. The firmware answers one
        // that is meant for another incarnation of this node.
        let shown = parts.site.incarnations.shown(source);
        if source_incarnation != ShortIncarnation::of(shown) {
            self.counters.stale += 1;
            return true;
        }
        if parts.own_incarnation == 0 || target_incarnation != ShortIncarnation::of(parts.own_incarnation) {
            let is_sent = parts.firmware.send(now, Event::Stale { packet });
            self.counters.stale += u64::from(is_sent);
            return is_sent;
        }

        if is_control || packet.trusted.length <= INLINE as u32 {
            let incarnation = Incarnation(parts.own_incarnation);
            let is_sent = parts.firmware.send(now, Event::Header { packet, incarnation, stream: None });
            let counter = if is_control { &mut self.counters.control } else { &mut self.counters.messages };
            *counter += u64::from(is_sent);
            return is_sent;
        }
        self.open_stream(parts, now, packet, shown)
    }

    /// Opens a stream for a message, or drops the message if no stream is free, and reports its
    /// header to the firmware. Returns false if the report has to wait.
    fn open_stream(
        &mut self,
        parts: &mut Parts,
        now: Nanos,
        packet: HeaderPacket,
        source_incarnation: u32,
    ) -> bool {
        let incarnation = Incarnation(parts.own_incarnation);
        let Some(index) = self.free_stream() else {
            let is_sent = parts.firmware.send(now, Event::Dropped { packet, incarnation });
            self.counters.dropped += u64::from(is_sent);
            return is_sent;
        };

        let event = Event::Header { packet, incarnation, stream: Some(chip::Stream(index)) };
        if !parts.firmware.send(now, event) {
            self.free.push(index);
            return false;
        }

        let is_checked = parts.site.options.end_to_end_crc == Some(true);
        let check = is_checked.then(|| {
            let mut check = Hasher::new();
            check.update(packet.as_bytes());
            check
        });
        let source = packet.trusted.source_node;
        if let Some(entry) = self.streams.get_mut(usize::from(index)) {
            *entry = Stream {
                state: State::Waiting,
                source,
                source_incarnation,
                length: packet.trusted.length,
                check,
                ..Stream::unused()
            };
        }
        if let Some(slot) = self.stream_by_source.get_mut(source as usize) {
            *slot = index;
        }
        self.counters.most_streams = self.counters.most_streams.max(self.streams_in_use());
        true
    }

    /// Takes a free stream, or returns `None` if all are in use.
    fn free_stream(&mut self) -> Option<u16> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }

        let index = self.streams.len() as u16;
        if index >= STREAMS {
            return None;
        }
        self.streams.push(Stream::unused());
        Some(index)
    }

    /// Takes the packet of data in front of the FIFO. Returns false if it has to stay there; the
    /// next call continues where this one has stopped.
    fn take_body(&mut self, parts: &mut Parts, context: &mut Context<'_>, word: BodyWord) -> bool {
        let index = self.stream_of(word.source);
        // The data of a message without a stream are discarded.
        let Some(entry) = self.streams.get(usize::from(index)) else { return true };
        if entry.state != State::Moving {
            return false;
        }

        if entry.status.is_none() && !self.move_data(parts, context, index, word) {
            return false;
        }

        let Some(entry) = self.streams.get_mut(usize::from(index)) else { return true };
        if entry.status == Some(TransferStatus::Complete) {
            // Programs read the data as soon as the firmware reports them, so that they must be in
            // memory by then.
            let Self { wait, .. } = self;
            let access = entry.destination.await_answers(context, &mut parts.tenants, wait);
            let until = wait.map(|wait| wait.since.after(WRITE_LIMIT));
            self.awaited = entry.destination.awaited().zip(until);
            match access {
                Access::Done => {}
                Access::Wait => return false,
                Access::Fault => entry.status = Some(TransferStatus::MemoryFault),
            }
        }
        let status = entry.status;
        status.is_none_or(|status| self.report_end(parts, context.now(), index, status))
    }

    /// Moves the data of the packet in front of the FIFO to client memory. After the last packet,
    /// sets the stream's status. Returns false if the packet has to wait.
    fn move_data(
        &mut self,
        parts: &mut Parts,
        context: &mut Context<'_>,
        index: u16,
        BodyWord { is_last, is_corrupt, .. }: BodyWord,
    ) -> bool {
        let now = context.now();
        let Some(entry) = self.streams.get_mut(usize::from(index)) else { return false };
        let Parts { router, tenants, site, .. } = &mut *parts;
        let Some(packet) = router.front(FIFO, now) else { return false };
        let memory =
            Memory { tenants, reader: &mut self.reader, wait: &mut self.wait, buffer: &mut self.buffer };

        let (bytes, check) = if let Some((reference, source)) = Reference::of(packet) {
            if entry.copy_referenced(context, memory, reference, source) == Access::Wait {
                return false;
            }
            entry.count_bytes(reference.length as usize);
            (reference.length, &[][..])
        } else {
            // The end-to-end check is at the end of the last packet.
            let check_bytes = if is_last && entry.check.is_some() { wire::CHECK } else { 0 };
            let (data, check) = packet.bytes().split_at(packet.len().saturating_sub(check_bytes));
            if entry.deposit(context, memory, data) == Access::Wait {
                return false;
            }
            entry.count_data(data);
            (data.len() as u32, check)
        };

        self.host.work(now, site.options.host_clock(), bytes);
        self.counters.bytes += u64::from(bytes);
        if is_last {
            entry.status = Some(entry.finish(check, is_corrupt));
        }
        true
    }

    /// Reports the end of a message to the firmware, and frees its stream. Returns false if the
    /// event has to wait.
    fn report_end(&mut self, parts: &mut Parts, now: Nanos, index: u16, status: TransferStatus) -> bool {
        let event = Event::Received { stream: chip::Stream(index), status };
        // The firmware sees the end when the host interface has delivered the data.
        if !parts.firmware.send(self.host.idle_at().max(now), event) {
            return false;
        }

        self.counters.messages += 1;
        self.counters.corrupt += u64::from(status == TransferStatus::Corrupt);
        self.counters.faults += u64::from(status == TransferStatus::MemoryFault);
        self.release(index);
        true
    }
}
