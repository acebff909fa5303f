//! The mapped memory of a channel.

use nicforge_hwi::tree::{Header, PAYLOAD, SLOT, SLOT_PAYLOAD, mirror, window};
use nicforge_kit::MirrorWord;
use nicforge_shm::{MemoryError, SharedMemory, SharedU32, Slots, Window};

use std::sync::atomic::Ordering;

use super::QUAD;
use crate::config::TreeConfig;

/// The slots of a FIFO.
pub(super) type Ring = Slots<{ SLOT as usize }, { SLOT_PAYLOAD as usize }, PAYLOAD>;

/// Returns the header in the upper half of a slot's control word.
#[inline(always)]
pub(super) fn header_of(control: u64) -> Header {
    Header((control >> 32) as u32)
}

/// The state of a channel: whether it has clients, and their memory.
///
/// A channel opens for its first client and closes when the last one leaves. It never returns to
/// [`ChannelState::NeverOpened`]. The tag has a byte of its own, so that one comparison tells an
/// open channel.
#[repr(u8)]
#[allow(clippy::large_enum_variant, reason = "a channel has one, and a box would cost each packet a load")]
pub(super) enum ChannelState {
    /// The channel has had no client yet. Packets for it wait in the network.
    NeverOpened,
    /// The channel has clients, and memory of its own.
    Open(Memory),
    /// The last client has left. Packets for the channel are discarded.
    Closed,
}

impl ChannelState {
    /// Returns the memory of the present clients; `None` while the channel has no client.
    #[inline]
    pub(super) fn memory(&self) -> Option<&Memory> {
        if let Self::Open(memory) = self { Some(memory) } else { None }
    }

    /// Returns the send slots of the present clients: the mapped memory into which they write
    /// packets. Returns `None` while the channel has no client.
    #[inline]
    pub(super) fn send_slots(&self) -> Option<&Ring> {
        self.memory().map(|memory| &memory.send)
    }
}

/// The mapped memory of an open channel. Each opening of the channel gets new memory.
///
/// All parts are checked when it is made, so accesses to it do not fail.
pub(super) struct Memory {
    window: Window,
    mirror: Window,
    pub(super) send: Ring,
    pub(super) receive: ReceiveMemory,
    /// The words of the mirror that change with the packets.
    pub(super) words: MirrorWords,
}

/// The memory of the receive FIFO.
pub(super) struct ReceiveMemory {
    pub(super) slots: Ring,
    /// The number of packets that software has freed, as software writes it.
    pub(super) head: SharedU32,
    /// The lock box that guards the FIFO.
    pub(super) lock: SharedU32,
}

/// The words of the mirror that change with the packets.
pub(super) struct MirrorWords {
    pub(super) send_head: MirrorWord<SharedU32>,
    pub(super) recv_tail: MirrorWord<SharedU32>,
    pub(super) irq: MirrorWord<SharedU32>,
    pub(super) status: MirrorWord<SharedU32>,
    pub(super) error: MirrorWord<SharedU32>,
}

impl Memory {
    /// Opens the memory of a channel's clients: the window, into which they write, and the mirror,
    /// which they only read.
    pub(super) fn new(
        config: &TreeConfig,
        window_memory: &SharedMemory,
        mirror_memory: &SharedMemory,
    ) -> Result<Self, MemoryError> {
        let window = window_memory.window(0, window::SIZE)?;
        let mirror = mirror_memory.window(0, mirror::SIZE)?;
        let word = |offset| Ok::<_, MemoryError>(MirrorWord::new(mirror_memory.u32(offset)?));

        Ok(Self {
            send: Ring::new(&window, window::SEND, config.send_depth)?,
            receive: ReceiveMemory {
                slots: Ring::new(&mirror, mirror::RECV, config.recv_depth)?,
                head: window_memory.u32(window::RECV_HEAD)?,
                lock: window_memory.u32(lock_box(window::LOCK_RECV))?,
            },
            words: MirrorWords {
                send_head: word(mirror::SEND_HEAD)?,
                recv_tail: word(mirror::RECV_TAIL)?,
                irq: word(mirror::RECV_IRQ)?,
                status: word(mirror::STATUS)?,
                error: word(mirror::ERROR)?,
            },
            window,
            mirror,
        })
    }

    /// Stores a word of the mirror.
    pub(super) fn publish(&self, offset: u64, value: u32) {
        // The mirror has its full size and is writable here, so this can't fail.
        let _ = self.mirror.store_u32_release(offset, value);
    }

    /// Fills window and mirror with zeros.
    pub(super) fn clear(&mut self) {
        let _ = self.window.zero(0, window::SIZE);
        let _ = self.mirror.zero(0, mirror::SIZE);

        let MirrorWords { send_head, recv_tail, irq, status, error } = &mut self.words;
        for word in [send_head, recv_tail, irq, status, error] {
            word.clear();
        }
    }

    /// Returns a quad of packet `number` in the receive slots.
    pub(super) fn received_quad(&self, number: u32, quad: u32) -> Option<[u8; QUAD]> {
        let slot = u64::from(number & (self.receive.slots.count() - 1)) * SLOT;
        let offset = mirror::RECV + slot + SLOT_PAYLOAD + QUAD as u64 * u64::from(quad);
        let mut bytes = [0; QUAD];
        self.mirror.read_array(offset, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Frees the lock boxes of an attachment. Returns whether the receive FIFO's was among them.
    pub(super) fn free_locks(&self, attachment: u16) -> bool {
        let mut receive_lock_freed = false;

        for number in 0..window::LOCK_BOXES {
            let Ok(lock) = self.window.u32(lock_box(number)) else { continue };
            let owner = lock.load(Ordering::Acquire);

            // The lower half of the word is the owner's attachment number + 1.
            if owner & 0xffff == u32::from(attachment) + 1
                && lock.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                receive_lock_freed |= number == window::LOCK_RECV;
            }
        }

        receive_lock_freed
    }
}

/// Returns the offset of a lock box in the window.
const fn lock_box(number: u64) -> u64 {
    window::LOCK + number * window::LOCK_STRIDE
}
