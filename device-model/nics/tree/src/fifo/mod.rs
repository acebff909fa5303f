//! A virtual channel's send and receive FIFO at a node.
//!
//! Both are slots in mapped memory ([`nicforge_hwi::tree::window`],
//! [`nicforge_hwi::tree::mirror`]). The NIC itself also puts items into the send FIFO: packets from
//! the port, packets of clients that are gone, and presence symbols. These wait in a side queue.
//! Each has the number of the slot that it goes in front of, so slots and side queue have one
//! order.
//!
//! A slot is read once, into a packet that the NIC owns. The receive slots are in memory that
//! clients can't write.
//!
//! | module | contents |
//! | --- | --- |
//! | `send`, `side` | the send FIFO and its side queue |
//! | `receive`, `receivers` | the receive FIFO, and the packets in it whose receiver is gone |
//! | `port` | the trapped port on both FIFOs |
//! | `events` | exceptions, watermarks, interrupts |
//! | `checksums` | the injection checksums, and the configuration register |
//! | `memory` | the mapped memory |

mod checksums;
mod events;
mod memory;
mod port;
mod receive;
mod receivers;
mod send;
mod side;

use nicforge_core::fabric::{Packet, Ports, Run};
use nicforge_hwi::{
    tree::{Header, PAYLOAD, VC_USER, mirror as mirror_map, vector},
    tree_dcr::checksum,
};
use nicforge_shm::{MemoryError, SharedMemory};

pub(crate) use self::{
    checksums::{ChannelConfig, Checksums},
    events::{Events, Exceptions},
    port::{QuadHalves, Refused},
    side::SideItem,
};
use self::{
    events::FillComparison,
    memory::{ChannelState, Memory},
    port::TrappedPort,
    receive::{PortRow, ReceiveFifo},
    receivers::Receivers,
    send::SendFifo,
};
use crate::{config::TreeConfig, presence::Presence};

/// Bytes of a quad.
const QUAD: usize = 16;
/// Quads in a payload.
const QUADS: u32 = (PAYLOAD / QUAD) as u32;
/// Bytes of a packet on the wire in addition to the payload.
const FRAMING: u32 = 4;

/// The first item of the send FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendHead {
    Empty,
    Packet(Header),
    Presence { core: u8, generation: u8 },
}

/// Whether the receive FIFO accepts a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Accept,
    /// The FIFO is full: the packet waits.
    Wait,
    /// The packet is discarded because its receiver is gone.
    Discard,
}

/// The outcome of an attempt to discard packets whose receiver is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Discarded {
    /// Whether any packet was discarded.
    pub(crate) any: bool,
    /// Whether a live core has the lock. It takes the packets itself if it continues to read. If it
    /// frees the lock instead, no event tells the NIC, so the NIC must retry.
    pub(crate) locked: bool,
}

/// The reason why a row of packets ended: packets of one source that move to one target together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowEnd {
    /// There are no more packets.
    Empty,
    /// The next packet has to wait.
    Blocked,
    /// The next packet could move, but the packet pool of the fabric is empty.
    Starved,
    /// The next packet does not belong to the row, or the limit was reached. Where no packet has
    /// moved, the source is disabled.
    Other,
}

/// The outcome of moving a row of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowOutcome {
    /// Number of packets moved.
    pub(crate) moved: u32,
    /// The reason why the row ended.
    pub(crate) end: RowEnd,
}

impl RowOutcome {
    /// Returns the outcome of a row of which no packet has moved.
    pub(crate) const fn nothing(end: RowEnd) -> Self {
        Self { moved: 0, end }
    }
}

/// The numbers of packets in a channel's FIFOs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketCounts {
    pub(crate) send: u32,
    pub(crate) receive: u32,
}

impl RowEnd {
    /// Returns why a row of packets with the header `row_header` ended, from the packet that is
    /// first now.
    #[inline(never)]
    pub(crate) fn before(front: Option<&Packet>, row_header: u64) -> Self {
        match front {
            None => Self::Empty,
            Some(packet) if packet.header == row_header => Self::Blocked,
            Some(_) => Self::Other,
        }
    }
}

/// One virtual channel's FIFOs.
///
/// The parts keep their own invariants. The channel keeps them together: the slots of both FIFOs,
/// the port's position and the words in the mirror start again at 0 whenever the channel opens.
pub(crate) struct Channel {
    number: usize,
    state: ChannelState,
    send: SendFifo,
    receive: ReceiveFifo,
    port: TrappedPort,
    pub(crate) events: Events,
    pub(crate) config: ChannelConfig,
    pub(crate) checksums: Checksums,
}

impl Channel {
    /// Returns virtual channel `number` without clients.
    pub(crate) fn new(number: usize, config: &TreeConfig) -> Self {
        let receivers =
            if number == VC_USER { Receivers::of_user_channel() } else { Receivers::of_system_channel() };

        Self {
            number,
            state: ChannelState::NeverOpened,
            send: SendFifo::new(config.send_depth),
            receive: ReceiveFifo::new(config.recv_depth, receivers),
            port: TrappedPort::default(),
            events: Events::new(number),
            config: ChannelConfig::default(),
            checksums: Checksums::default(),
        }
    }

    /// Opens the channel for its first client, with `window` and `mirror` as its new memory.
    pub(crate) fn open(
        &mut self,
        config: &TreeConfig,
        presence: &Presence,
        window: &SharedMemory,
        mirror: &SharedMemory,
    ) -> Result<(), MemoryError> {
        let memory = Memory::new(config, window, mirror)?;

        self.restart();
        self.state = ChannelState::Open(memory);
        self.show_constants(config, presence);
        Ok(())
    }

    /// Closes the channel when its last client leaves. Packets that the clients had sent move to
    /// the side queue; received packets are dropped.
    pub(crate) fn close(&mut self, ports: &mut Ports<'_>) {
        if let Some(slots) = self.state.send_slots() {
            self.send.move_to_side_queue(slots, ports);
            self.state = ChannelState::Closed;
        }
        self.restart();
    }

    /// Empties slots and side queue for a reset of the whole function; clients stay.
    pub(crate) fn clear(&mut self, config: &TreeConfig, presence: &Presence, ports: &mut Ports<'_>) {
        self.send.clear(ports);
        self.restart();
        self.checksums = Checksums::default();

        if let ChannelState::Open(memory) = &mut self.state {
            memory.clear();
        }

        self.show_constants(config, presence);
    }

    /// Starts again with empty slots and port, and without errors. The side queue keeps its items.
    fn restart(&mut self) {
        self.send.restart();
        self.receive.restart();
        self.port.restart();
        self.events.restart();
    }

    /// Returns whether the channel has a client.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.state.memory().is_some()
    }
}

/// The send FIFO.
impl Channel {
    /// Returns whether the channel has a client, or items that a former client left behind.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        self.is_open() || self.send.has_side_items()
    }

    /// Looks at the first item of the send FIFO.
    #[inline]
    pub(crate) fn poll_send_head(&mut self) -> SendHead {
        self.send.poll_head(self.state.send_slots())
    }

    /// Sends packets out of the slots while `belongs_to_row` accepts their headers, at most
    /// `maximum`. A packet that must be taken with [`Channel::take_send_head`] ends the row.
    #[inline]
    pub(crate) fn send_row(
        &mut self,
        run: &mut Run<'_>,
        maximum: u32,
        belongs_to_row: impl Fn(Header) -> bool,
    ) -> RowOutcome {
        let Some(slots) = self.state.send_slots() else { return RowOutcome::nothing(RowEnd::Other) };
        self.send.send_row(slots, run, maximum, belongs_to_row)
    }

    /// Takes the first packet out of the send FIFO, and adds it to the checksums. Returns `None` if
    /// there is none, or if the packet pool (in `ports`) has no packet to hold it.
    #[inline]
    pub(crate) fn take_send_head(&mut self, ports: &mut Ports<'_>) -> Option<Packet> {
        let packet = self.send.take_head(self.state.send_slots(), ports)?;

        let header = Header(packet.header as u32);
        if header.checksum_mode() != checksum::NONE {
            self.checksums.add(self.config, header, packet.bytes());
        }
        Some(packet)
    }

    /// Removes the presence symbol that is first.
    pub(crate) fn take_presence(&mut self) {
        self.send.take_presence();
    }

    /// Puts an item after the current contents of the send FIFO.
    pub(crate) fn append(&mut self, item: SideItem) {
        self.send.append(self.state.send_slots(), item);
    }

    /// Looks for filled send slots. Returns the number of packets in the send FIFO.
    #[inline]
    pub(crate) fn send_count(&mut self) -> u32 {
        self.send.refresh_count(self.state.send_slots())
    }

    /// Returns the number of packets taken out of the send slots.
    pub(crate) fn send_head(&self) -> u32 {
        self.send.taken()
    }
}

/// The receive FIFO.
impl Channel {
    /// Returns the number of packets that software has freed.
    pub(crate) fn recv_head(&self) -> u32 {
        self.receive.head()
    }

    /// Returns whether the receive FIFO is full, as far as is known.
    pub(crate) fn is_recv_full(&self) -> bool {
        self.receive.is_full()
    }

    /// Returns whether the receive FIFO takes a packet, after reading the memory where that is
    /// needed.
    #[inline]
    pub(crate) fn check_admission(&mut self, header: Header) -> Admission {
        match &self.state {
            ChannelState::Open(memory) => {
                self.receive.check_admission(&memory.receive, header, &mut self.events)
            }
            ChannelState::NeverOpened => Admission::Wait,
            ChannelState::Closed => Admission::Discard,
        }
    }

    /// Puts a packet into the receive FIFO. The caller must have seen [`Admission::Accept`] for it.
    #[inline]
    pub(crate) fn put_received(&mut self, header: Header, payload: &[u8]) {
        if let Some(memory) = self.state.memory() {
            self.receive.put(&memory.receive, header, payload, &mut self.events);
        }
    }

    /// Puts packets that have arrived at a port into the receive FIFO while their header is
    /// `header`, at most `limit`. The caller must have seen [`Admission::Accept`] for it.
    #[inline]
    pub(crate) fn put_received_row(
        &mut self,
        ports: &mut Ports<'_>,
        port: u8,
        limit: u32,
        header: Header,
    ) -> RowOutcome {
        let Some(memory) = self.state.memory() else { return RowOutcome::nothing(RowEnd::Blocked) };
        let row = PortRow { ports, port, channel: self.number, limit };
        self.receive.put_row(&memory.receive, row, header, &mut self.events)
    }

    /// Frees the receive slots that software has released.
    #[inline]
    pub(crate) fn poll_recv_head(&mut self) {
        if let Some(memory) = self.state.memory() {
            self.receive.poll_head(&memory.receive, &mut self.events);
        }
    }

    /// Does the work of a step that comes before the router's: frees the receive slots that
    /// software has released, discards packets whose receiver is gone from the front of the receive
    /// FIFO, and puts the port's complete packets into the send FIFO.
    #[inline]
    pub(crate) fn begin_step(&mut self, ports: &mut Ports<'_>) -> Discarded {
        let Some(memory) = self.state.memory() else { return Discarded::default() };
        let (receive, events) = (&mut self.receive, &mut self.events);

        receive.poll_head(&memory.receive, events);
        let any = receive.discard_for_dead_reader(&memory.receive, events);
        let mut discarded = receive.discard_for_absent(&memory.receive, events);
        discarded.any |= any;

        self.form_packets(ports);
        discarded
    }

    /// Records that a core has a client.
    pub(crate) fn core_attached(&mut self, core: u16) {
        self.receive.receivers.attach(core);
    }

    /// Records that a core has lost its client. Packets for it in the FIFO no longer have a
    /// receiver.
    pub(crate) fn core_detached(&mut self, core: u16) {
        let tail = if self.is_open() { Some(self.receive.tail()) } else { None };
        self.receive.receivers.detach(core, tail);
    }

    /// Frees the lock boxes of an attachment that ends.
    pub(crate) fn free_locks(&mut self, attachment: u16) {
        // The dead core may have moved the head before it died. Later moves are a live reader's.
        self.poll_recv_head();

        if let Some(memory) = self.state.memory()
            && memory.free_locks(attachment)
        {
            self.receive.receivers.reader_died();
        }
    }
}

/// The visible state.
impl Channel {
    /// Returns the numbers of packets in the FIFOs, as last seen.
    pub(crate) fn packet_counts(&self) -> PacketCounts {
        PacketCounts { send: self.send.known_count(), receive: self.receive.count() }
    }

    /// Returns the number of packets that were discarded in the FIFOs.
    pub(crate) fn discarded(&self) -> u64 {
        self.send.discarded() + self.receive.discarded
    }

    /// Returns the errors, and the watermarks as of now.
    fn exceptions(&mut self) -> Exceptions {
        self.send_count();
        self.exceptions_last_seen()
    }

    /// Returns the errors, and the watermarks as of the last look at the FIFOs.
    pub(crate) fn exceptions_last_seen(&self) -> Exceptions {
        let send_count = self.send.known_count();
        self.events.exceptions(FillComparison::of(self.config, &self.receive, &self.send, send_count))
    }

    /// Returns the receive exceptions, and clears the errors among them.
    pub(crate) fn take_receive_exceptions(&mut self) -> u32 {
        let exceptions = self.exceptions();
        self.events.clear_receive_errors();
        exceptions.receive
    }

    /// Returns the injection exceptions, and clears the errors among them.
    pub(crate) fn take_inject_exceptions(&mut self) -> u32 {
        let exceptions = self.exceptions();
        self.events.clear_inject_errors();
        exceptions.inject
    }

    /// Returns the vectors whose condition holds, one bit for each vector.
    pub(crate) fn conditions(&mut self, enabled: Exceptions) -> u32 {
        self.send_count();
        self.conditions_last_seen(enabled)
    }

    /// Returns the same as [`Channel::conditions`], as of the last look at the FIFOs.
    pub(crate) fn conditions_last_seen(&self, enabled: Exceptions) -> u32 {
        events::conditions(self.exceptions_last_seen(), enabled, self.receive.irq_count() > 0)
    }

    /// Returns the port's status word. It does not count quads and headers that the port has
    /// popped.
    pub(crate) fn status(&mut self) -> u32 {
        self.send_count();
        self.status_last_seen()
    }

    /// Returns the port's status word, as of the last look at the FIFOs.
    pub(crate) fn status_last_seen(&self) -> u32 {
        self.port.status(&self.receive, self.send.known_count())
    }

    /// Stores the words of the mirror that have changed, and requests an interrupt for a watermark
    /// that was passed. Only the watermarks in `enabled` count.
    #[inline]
    pub(crate) fn publish(&mut self, enabled: Exceptions) {
        if self.is_open() {
            self.publish_open(enabled);
        }
    }

    /// As [`Channel::publish`], for an open channel.
    fn publish_open(&mut self, enabled: Exceptions) {
        let Self { state: ChannelState::Open(memory), send, receive, port, events, config, .. } = self else {
            return;
        };
        let send_count = send.refresh_count(Some(&memory.send));
        let exceptions = events.exceptions(FillComparison::of(*config, receive, send, send_count));

        let words = &mut memory.words;
        words.send_head.publish(send.taken());
        words.recv_tail.publish(receive.tail());
        words.irq.publish(receive.irq_count());
        words.status.publish(port.status(receive, send_count));
        words.error.publish(exceptions.error_word());

        events.compare_watermarks(exceptions, enabled);
    }

    /// Writes the words of the mirror that do not change with each packet: the node's position,
    /// the FIFOs' depths, and the presence table.
    fn show_constants(&mut self, config: &TreeConfig, presence: &Presence) {
        let Some(memory) = self.state.memory() else { return };

        memory.publish(mirror_map::NODE_ADDRESS, config.node_address);
        memory.publish(mirror_map::CHANNEL, self.number as u32);
        memory.publish(mirror_map::SEND_DEPTH, config.send_depth);
        memory.publish(mirror_map::RECV_DEPTH, config.recv_depth);
        memory.publish(mirror_map::NODES, config.nodes);
        memory.publish(mirror_map::IO_NODE, config.io_node);
        memory.publish(mirror_map::PSET_RANK, config.pset_rank.unwrap_or(u32::MAX));
        memory.publish(mirror_map::PSET_SIZE, config.pset_size);

        for (node, word) in presence.table(self.number).iter().enumerate() {
            memory.publish(mirror_map::PRESENCE + 4 * node as u64, *word);
        }
        memory.publish(mirror_map::PRESENCE_CHANGES, presence.changes(self.number));
    }

    /// Shows a node's new presence word in the mirror. The receive tail is published first, so that
    /// a client that sees the change also sees the packets in front of it.
    pub(crate) fn show_presence(&mut self, node: u32, word: u32, changes: u32) {
        let ChannelState::Open(memory) = &mut self.state else { return };
        memory.words.recv_tail.publish(self.receive.tail());

        memory.publish(mirror_map::PRESENCE + 4 * u64::from(node), word);
        memory.publish(mirror_map::PRESENCE_CHANGES, changes);
        self.events.request(vector::PRESENCE);
    }

    /// Shows the global interrupt status word in the mirror.
    pub(crate) fn show_global_interrupts(&self, word: u32) {
        if let Some(memory) = self.state.memory() {
            memory.publish(mirror_map::GLOBAL_INT, word);
        }
    }
}
