//! A virtual channel's send and receive FIFO at a node.
//!
//! Both are slots in mapped memory ([`nicforge_hwi::tree::window`], [`nicforge_hwi::tree::mirror`]). What the NIC itself puts into
//! the send FIFO (packets from the port, those of a tenant that is gone, presence symbols) waits beside the slots, each
//! with the number of the slot that it goes in front of, so that there is one order.
//!
//! Slots are read once into a packet of our own; the receive slots are in memory that clients can't write.

mod receive;
mod send;
mod state;

use std::{collections::VecDeque, sync::atomic::Ordering};

use nicforge_core::fabric::{Packet, Ports};
use nicforge_hwi::tree::{CORES, Header, PAYLOAD, SLOT, SLOT_PAYLOAD, VC_USER, mirror, vector, window};
use nicforge_shm::{MemoryError, SharedMemory, SharedU32, Slots, Window};

use crate::{config::TreeConfig, presence::Presence};

/// Quads in a payload.
pub(crate) const QUADS: u32 = (PAYLOAD / 16) as u32;
/// Bytes of a packet on the wire beside the payload.
pub(crate) const FRAMING: u32 = 4;

/// Something that the NIC put into the send FIFO.
pub(crate) struct Side {
    /// Number of the slot it goes in front of.
    after: u32,
    item: SideItem,
}

pub(crate) enum SideItem {
    Packet(Packet),
    Presence { core: u8, generation: u8 },
}

/// What is first in the send FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    Empty,
    Packet(Header),
    Presence { core: u8, generation: u8 },
}

/// Whether the receive FIFO takes a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Yes,
    /// It waits.
    No,
    /// It is discarded: whom it was for is gone.
    Sink,
}

/// What became of packets for cores that have no client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discarded {
    Nothing,
    Some,
    /// A live core has the lock. It takes them itself if it goes on reading; when it gives the lock back instead, nothing says so.
    Later,
}

/// What ended a row of packets that go the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowEnd {
    /// There are no more.
    Empty,
    /// The next one would go the same way and has to wait.
    Blocked,
    /// As [`RowEnd::Blocked`], for want of a packet from the pool.
    Starved,
    /// The next one is not like these, or as many as were asked for have gone.
    Other,
}

/// The slots of a FIFO.
type Ring = Slots<{ SLOT as usize }, { SLOT_PAYLOAD as usize }, PAYLOAD>;

/// The mapped memory of a tenancy.
struct Windows {
    window: Window,
    mirror: Window,
    send: Ring,
    recv: Ring,
    recv_head: SharedU32,
    lock_recv: SharedU32,
    /// The words of the mirror that follow the packets.
    shown: ShownAt,
}

/// Where [`Shown`] is in the mirror.
struct ShownAt {
    send_head: SharedU32,
    recv_tail: SharedU32,
    irq: SharedU32,
    status: SharedU32,
    error: SharedU32,
}

impl Windows {
    fn new(
        config: &TreeConfig,
        window: &SharedMemory,
        mirror_memory: &SharedMemory,
    ) -> Result<Self, MemoryError> {
        let lock_recv = window.u32(window::LOCK + window::LOCK_RECV * window::LOCK_STRIDE)?;
        let recv_head = window.u32(window::RECV_HEAD)?;
        let window = window.window(0, window::SIZE)?;
        let mirror = mirror_memory.window(0, mirror::SIZE)?;
        Ok(Self {
            send: Ring::new(&window, window::SEND, config.send_depth)?,
            recv: Ring::new(&mirror, mirror::RECV, config.recv_depth)?,
            window,
            mirror,
            recv_head,
            lock_recv,
            shown: ShownAt {
                send_head: mirror_memory.u32(mirror::SEND_HEAD)?,
                recv_tail: mirror_memory.u32(mirror::RECV_TAIL)?,
                irq: mirror_memory.u32(mirror::RECV_IRQ)?,
                status: mirror_memory.u32(mirror::STATUS)?,
                error: mirror_memory.u32(mirror::ERROR)?,
            },
        })
    }

    fn show(&self, offset: u64, value: u32) {
        // The windows have their full size and are writable here, so this can't fail.
        let _ = self.mirror.store_u32_release(offset, value);
    }
}

/// How far the port has popped the receive FIFO.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Popped {
    /// Number of the packet whose header is next.
    pub(crate) header: u32,
    /// Number of the packet whose payload is next, and which quad of it.
    pub(crate) payload: u32,
    pub(crate) quad: u32,
}

/// What the mirror shows.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Shown {
    send_head: u32,
    recv_tail: u32,
    irq: u32,
    status: u32,
    error: u32,
}

/// One virtual channel's FIFOs.
pub(crate) struct Channel {
    number: u32,
    windows: Option<Windows>,
    /// Whether it has had a tenant.
    was_up: bool,
    send_depth: u32,
    recv_depth: u32,
    /// Packets taken out of the send slots.
    send_head: u32,
    /// Send slots known to be filled, from the head on.
    send_seen: u32,
    /// Control word of the slot at the head, once it was read: it is not read again.
    current: Option<u64>,
    side: VecDeque<Side>,
    side_packets: u32,
    /// Packets put into and taken out of the receive slots.
    recv_tail: u32,
    recv_head: u32,
    /// Which receive slots hold a packet with the irq bit.
    irq: [u64; 4],
    irq_count: u32,
    bad_head: Option<u32>,
    /// The owner of the receive lock died; nobody has taken it since.
    guard: bool,
    /// Which cores have no client, a bit a core; 0 where packets for cores are like any others (the system channel).
    absent: u32,
    /// Receive slots up to this number may hold packets for a core that was there when they came.
    orphans_until: Option<u32>,
    shown: Shown,
    /// Exceptions set and not read yet.
    pub(crate) prx: u32,
    pub(crate) pix: u32,
    pub(crate) vcfg: u32,
    pub(crate) payload_checksum: u32,
    pub(crate) header_checksum: u32,
    watermarks: (bool, bool),
    /// Vectors to raise.
    pub(crate) events: u32,
    pub(crate) discarded: u64,
    /// Quads and headers that the port has pushed and that make no packet yet.
    pub(crate) staged: (u32, u32),
    popped: Popped,
}

impl Channel {
    pub(crate) fn new(number: usize, config: &TreeConfig) -> Self {
        Self {
            number: number as u32,
            windows: None,
            was_up: false,
            send_depth: config.send_depth,
            recv_depth: config.recv_depth,
            send_head: 0,
            send_seen: 0,
            current: None,
            side: VecDeque::new(),
            side_packets: 0,
            recv_tail: 0,
            recv_head: 0,
            irq: [0; 4],
            irq_count: 0,
            bad_head: None,
            guard: false,
            absent: if number == VC_USER { (1 << CORES) - 1 } else { 0 },
            orphans_until: None,
            shown: Shown::default(),
            prx: 0,
            pix: 0,
            vcfg: 0,
            payload_checksum: 0,
            header_checksum: 0,
            watermarks: (false, false),
            events: 0,
            discarded: 0,
            staged: (0, 0),
            popped: Popped::default(),
        }
    }

    /// The first tenant came: `window` and `mirror` are new.
    pub(crate) fn open(
        &mut self,
        config: &TreeConfig,
        presence: &Presence,
        window: &SharedMemory,
        mirror: &SharedMemory,
    ) -> Result<(), MemoryError> {
        let windows = Windows::new(config, window, mirror)?;
        self.empty();
        self.windows = Some(windows);
        self.was_up = true;
        self.show_constants(config, presence);
        Ok(())
    }

    fn show_constants(&mut self, config: &TreeConfig, presence: &Presence) {
        let Some(windows) = &self.windows else { return };
        windows.show(mirror::NODE_ADDRESS, config.node_address);
        windows.show(mirror::CHANNEL, self.number);
        windows.show(mirror::SEND_DEPTH, config.send_depth);
        windows.show(mirror::RECV_DEPTH, config.recv_depth);
        windows.show(mirror::NODES, config.nodes);
        windows.show(mirror::IO_NODE, config.io_node);
        windows.show(mirror::PSET_RANK, config.pset_rank.unwrap_or(u32::MAX));
        windows.show(mirror::PSET_SIZE, config.pset_size);
        for (node, word) in presence.table(self.number as usize).iter().enumerate() {
            windows.show(mirror::PRESENCE + 4 * node as u64, *word);
        }
        windows.show(mirror::PRESENCE_CHANGES, presence.changes(self.number as usize));
        self.shown = Shown::default();
    }

    /// FIFOs and slot numbers as new; what waits beside the slots stays.
    fn empty(&mut self) {
        for side in &mut self.side {
            side.after = 0;
        }
        self.send_head = 0;
        self.send_seen = 0;
        self.current = None;
        self.recv_tail = 0;
        self.recv_head = 0;
        self.irq = [0; 4];
        self.irq_count = 0;
        self.bad_head = None;
        self.guard = false;
        self.orphans_until = None;
        self.shown = Shown::default();
        self.watermarks = (false, false);
        self.prx = 0;
        self.pix = 0;
        self.staged = (0, 0);
        self.popped = Popped::default();
    }

    /// The last tenant goes. What it had sent waits beside the slots from now on; what it had received is gone.
    pub(crate) fn close(&mut self, ports: &mut Ports<'_>) {
        self.keep_sent(ports);
        self.windows = None;
        self.empty();
    }

    fn keep_sent(&mut self, ports: &mut Ports<'_>) {
        let filled = self.send_filled();
        let mut kept = VecDeque::with_capacity(self.side.len() + filled as usize);
        let mut left = std::mem::take(&mut self.side);
        for _ in 0..filled {
            while left.front().is_some_and(|side| side.after == self.send_head) {
                kept.extend(left.pop_front());
            }
            // Tenants that come and go while the tree is blocked leave a bounded amount behind.
            let packet = if self.side_packets < 2 * self.send_depth { self.read_slot(ports) } else { None };
            match packet {
                Some(packet) => {
                    kept.push_back(Side { after: 0, item: SideItem::Packet(packet) });
                    self.side_packets += 1;
                }
                None => self.discarded += 1,
            }
            self.next_slot();
        }
        kept.extend(left);
        self.side = kept;
    }

    /// A reset of the whole function: FIFOs, and what waits beside them, are emptied; tenants stay.
    pub(crate) fn clear(&mut self, config: &TreeConfig, presence: &Presence, ports: &mut Ports<'_>) {
        for side in self.side.drain(..) {
            if let SideItem::Packet(packet) = side.item {
                ports.recycle(packet);
            }
        }
        self.side_packets = 0;
        self.empty();
        self.payload_checksum = 0;
        self.header_checksum = 0;
        if let Some(windows) = &self.windows {
            let _ = windows.window.zero(0, window::SIZE);
            let _ = windows.mirror.zero(0, mirror::SIZE);
        }
        self.show_constants(config, presence);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.windows.is_some()
    }

    /// The mirror's presence word of a node changed. Comes after the packets that were in front of the news.
    pub(crate) fn show_presence(&mut self, node: u32, word: u32, changes: u32) {
        if let Some(windows) = &self.windows {
            if self.shown.recv_tail != self.recv_tail {
                self.shown.recv_tail = self.recv_tail;
                windows.shown.recv_tail.store(self.recv_tail, Ordering::Release);
            }
            windows.show(mirror::PRESENCE + 4 * u64::from(node), word);
            windows.show(mirror::PRESENCE_CHANGES, changes);
            self.events |= 1 << vector::PRESENCE;
        }
    }

    pub(crate) fn show_global_interrupts(&self, word: u32) {
        if let Some(windows) = &self.windows {
            windows.show(mirror::GLOBAL_INT, word);
        }
    }
}
