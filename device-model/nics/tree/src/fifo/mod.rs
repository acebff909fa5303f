//! A virtual channel's send and receive FIFO at a node.
//!
//! Both are slots in mapped memory ([`nicforge_hwi::tree::window`],
//! [`nicforge_hwi::tree::mirror`]). The NIC itself also puts items into the send FIFO: packets from
//! the port, packets of a tenant that is gone, and presence symbols. These wait in a side queue.
//! Each has the number of the slot that it goes in front of, so slots and side queue have one
//! order.
//!
//! A slot is read once, into a packet that the NIC owns. The receive slots are in memory that
//! clients can't write.

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
/// Bytes of a packet on the wire in addition to the payload.
pub(crate) const FRAMING: u32 = 4;

/// An item of the side queue of a send FIFO.
pub(crate) struct Side {
    /// Number of the slot that the item goes in front of.
    after: u32,
    item: SideItem,
}

/// An item that the NIC put into the send FIFO: a packet, or the new generation of one of the
/// node's cores.
pub(crate) enum SideItem {
    Packet(Packet),
    Presence { core: u8, generation: u8 },
}

/// The first item of the send FIFO.
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
    /// The packet waits.
    No,
    /// The packet is discarded because its receiver is gone.
    Sink,
}

/// The outcome of an attempt to discard packets for cores that have no client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discarded {
    Nothing,
    Some,
    /// A live core has the lock. It takes the packets itself if it goes on reading. If it frees the
    /// lock instead, no event tells the NIC, so the NIC must retry.
    Later,
}

/// The reason why a row of packets that go the same way ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowEnd {
    /// There are no more packets.
    Empty,
    /// The next packet would go the same way and has to wait.
    Blocked,
    /// The next packet would go the same way, and the pool has no packet left to carry it.
    Starved,
    /// The next packet differs from these, or the limit was reached.
    Other,
}

/// The slots of a FIFO.
type Ring = Slots<{ SLOT as usize }, { SLOT_PAYLOAD as usize }, PAYLOAD>;

/// The mapped memory of one tenancy: from the first client of a channel to the last.
struct Windows {
    window: Window,
    mirror: Window,
    send: Ring,
    recv: Ring,
    recv_head: SharedU32,
    lock_recv: SharedU32,
    /// The words of the mirror that change with the packets.
    shown: ShownAt,
}

/// The mirror's words for the fields of [`Shown`].
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

    /// Stores a word of the mirror.
    fn show(&self, offset: u64, value: u32) {
        // The windows have their full size and are writable here, so this can't fail.
        let _ = self.mirror.store_u32_release(offset, value);
    }
}

/// The port's position in the receive FIFO.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Popped {
    /// Number of the packet whose header is popped next.
    pub(crate) header: u32,
    /// Number of the packet whose payload is popped next.
    pub(crate) payload: u32,
    /// Index of the quad that is popped next in that payload.
    pub(crate) quad: u32,
}

/// The values in the mirror; a word is stored only when its value changes.
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
    /// Whether the channel has ever had a tenant.
    was_up: bool,
    send_depth: u32,
    recv_depth: u32,
    /// Number of packets taken out of the send slots.
    send_head: u32,
    /// Number of send slots known to be filled, from the head on.
    send_seen: u32,
    /// Control word of the slot at the head, once it was read; it is not read again.
    current: Option<u64>,
    /// Items between the slots, in order.
    side: VecDeque<Side>,
    /// Number of packets in the side queue.
    side_packets: u32,
    /// Number of packets put into the receive slots.
    recv_tail: u32,
    /// Number of packets that software has freed.
    recv_head: u32,
    /// Receive slots that hold a packet with the irq bit, one bit for each slot.
    irq: [u64; 4],
    /// Number of packets with the irq bit.
    irq_count: u32,
    /// The last invalid head that software wrote; it is reported once.
    bad_head: Option<u32>,
    /// Whether the owner of the receive lock died and no core has taken the lock since.
    guard: bool,
    /// Cores that have no client, one bit for each core. 0 in the system channel, where packets for
    /// cores are like all others.
    absent: u32,
    /// Receive slots up to this number may hold packets for a core that has left since they
    /// arrived.
    orphans_until: Option<u32>,
    shown: Shown,
    /// Receive exceptions that are set and not read yet.
    pub(crate) prx: u32,
    /// Injection exceptions that are set and not read yet.
    pub(crate) pix: u32,
    /// The channel's configuration register: watermarks, and bytes excluded from checksums.
    pub(crate) vcfg: u32,
    pub(crate) payload_checksum: u32,
    pub(crate) header_checksum: u32,
    /// Whether an enabled receive or send watermark exception was set when last published.
    watermarks: (bool, bool),
    /// Vectors to raise at the end of the step.
    pub(crate) events: u32,
    /// Number of packets that were discarded in this FIFO.
    pub(crate) discarded: u64,
    /// Quads and headers that the port has pushed and that do not make a packet yet.
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

    /// Opens the channel for its first tenant, with `window` and `mirror` as its new memory.
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

    /// Writes all words of the mirror that do not change with each packet.
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

    /// Resets FIFOs and slot numbers. The side queue keeps its items.
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

    /// Closes the channel when its last tenant leaves. Packets that the tenant had sent move to the
    /// side queue; received packets are dropped.
    pub(crate) fn close(&mut self, ports: &mut Ports<'_>) {
        self.keep_sent(ports);
        self.windows = None;
        self.empty();
    }

    /// Moves the packets in the send slots to the side queue, up to a bound.
    fn keep_sent(&mut self, ports: &mut Ports<'_>) {
        let filled = self.send_filled();
        let mut kept = VecDeque::with_capacity(self.side.len() + filled as usize);
        let mut left = std::mem::take(&mut self.side);

        for _ in 0..filled {
            while left.front().is_some_and(|side| side.after == self.send_head) {
                kept.extend(left.pop_front());
            }

            // The bound holds however many tenants come and go while the tree is blocked.
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

    /// Empties slots and side queue for a reset of the whole function; tenants stay.
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

    /// Shows a node's new presence word in the mirror. The receive tail is published first, so that
    /// a client that sees the change also sees the packets in front of it.
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

    /// Shows the global interrupt status word in the mirror.
    pub(crate) fn show_global_interrupts(&self, word: u32) {
        if let Some(windows) = &self.windows {
            windows.show(mirror::GLOBAL_INT, word);
        }
    }
}
