//! The state that the cores of a compute node share in the node's SRAM
//! ([`nicforge_hwi::tree::window::SRAM`]).
//!
//! The cores may be threads or processes. A core that is killed at any point leaves a state from
//! which the others can continue.
//!
//! - *Mailboxes*: one for each core and kind of acknowledgement. Only the owner of the receive lock
//!   writes them. It writes into a mailbox *before* it frees the packet's slot. If it dies between
//!   these steps, the next owner finds the packet again and delivers it again. The packet's number
//!   in its FIFO, which is stored with it, shows that it is the same packet.
//! - The *stream word* names the core that receives the data packets. It is set before the READ
//!   acknowledgement is delivered, and its owner clears it after the last packet. No other core
//!   touches the receive FIFO meanwhile, unless that core is down, a newer process has it, or its
//!   read has ended. In each case the data are orphans.
//! - The *readers* are the cores that are in a read. An acknowledgement for another core belongs to
//!   a read that ended without a withdrawal, so its data are orphans, too. A core enters itself
//!   before its request can leave.
//!
//! | offset | content |
//! | --- | --- |
//! | 0x0 | stream word: bits 7..0 core + 1, bits 15..8 generation; 0 for none |
//! | 0x40 + 4 * core | generation of that core's process while it reads; 0 for none |
//! | 0x100 + 0x600 * core + 0x200 * kind | mailbox |
//!
//! A mailbox has four fields. Each number is that of a packet, plus 1.
//!
//! | offset | content |
//! | --- | --- |
//! | 0x00 | number of the packet that is being delivered |
//! | 0x04 | number of the packet that was delivered |
//! | 0x40 | number of the packet that the mailbox's owner has taken |
//! | 0x80 | payload |

use std::sync::atomic::{Ordering, fence};

use nicforge_driver::runtime::note_store;
use nicforge_hwi::tree::{CORES, PAYLOAD};
use nicforge_shm::{SharedU32, Window};

use crate::{Error, protocol::Kind, tree::Generation};

// Offsets in the shared memory, the size of a mailbox, and the number of mailboxes of a core.
const STREAM: u64 = 0x0;
const READERS: u64 = 0x40;
const MAILBOXES: u64 = 0x100;
const MAILBOX_BYTES: u64 = 0x200;
const KINDS: u64 = 3;
// Offsets in a mailbox.
const DELIVERING: u64 = 0x00;
const DELIVERED: u64 = 0x04;
const TAKEN: u64 = 0x40;
const CONTENT: u64 = 0x80;
/// Position of the generation in the stream word.
const GENERATION_SHIFT: u32 = 8;

/// The mailbox of one core for one kind of acknowledgement.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    memory: Window,
    delivering: SharedU32,
    delivered: SharedU32,
    taken: SharedU32,
}

impl Mailbox {
    /// Opens the mailbox of a core for a kind of acknowledgement, in the node's shared memory.
    pub(crate) fn new(shared: &Window, core: u16, kind: Kind) -> Result<Self, Error> {
        let index = u64::from(core % CORES) * KINDS + kind as u64;
        let memory = shared.window(MAILBOXES + index * MAILBOX_BYTES, MAILBOX_BYTES)?;
        Ok(Self {
            delivering: memory.u32(DELIVERING)?,
            delivered: memory.u32(DELIVERED)?,
            taken: memory.u32(TAKEN)?,
            memory,
        })
    }

    /// Returns whether packet `number` has been delivered here.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.delivered.load(Ordering::Acquire) == number.wrapping_add(1)
    }

    /// Delivers packet `number`. Only the owner of the receive lock may call it.
    pub(crate) fn deliver(&self, number: u32, payload: &[u8; PAYLOAD]) -> Result<(), Error> {
        // In the mailbox, 0 stands for no packet.
        let stored_number = number.wrapping_add(1);

        // A reader that finds this number knows that the payload is being overwritten.
        self.delivering.store(stored_number, Ordering::Relaxed);
        fence(Ordering::Release);
        self.memory.write_array(CONTENT, payload)?;

        self.delivered.store(stored_number, Ordering::Release);
        note_store();
        Ok(())
    }

    /// Takes the delivered payload. Returns `None` if there is none, or if it was taken before.
    /// Only the mailbox's own core may call it.
    #[inline]
    pub(crate) fn take(&self) -> Result<Option<[u8; PAYLOAD]>, Error> {
        let number = self.delivered.load(Ordering::Acquire);
        if number == self.taken.load(Ordering::Relaxed) {
            return Ok(None);
        }

        let mut payload = [0; PAYLOAD];
        self.memory.read_array(CONTENT, &mut payload)?;
        fence(Ordering::Acquire);

        if self.delivering.load(Ordering::Relaxed) != number {
            // The next packet arrived meanwhile. It can be taken as soon as it is complete.
            return Ok(None);
        }

        self.taken.store(number, Ordering::Release);
        Ok(Some(payload))
    }

    /// Discards a delivered payload.
    pub(crate) fn clear(&self) {
        self.taken.store(self.delivered.load(Ordering::Acquire), Ordering::Release);
    }
}

/// The data packets in the receive FIFO, by the process that receives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    pub(crate) core: u16,
    pub(crate) generation: Generation,
}

/// The stream word, which names the receiver of the data packets: bits 7..0 hold its core's number
/// plus 1, bits 15..8 its generation. It is 0 without a receiver.
#[derive(Clone, Debug)]
pub(crate) struct StreamWord(SharedU32);

impl StreamWord {
    /// Opens the stream word in the node's shared memory.
    pub(crate) fn new(shared: &Window) -> Result<Self, Error> {
        Ok(Self(shared.u32(STREAM)?))
    }

    /// Returns the process that receives the data packets, if any does.
    #[inline]
    pub(crate) fn get(&self) -> Option<Stream> {
        let word = self.0.load(Ordering::Acquire);
        let core = (word as u8).checked_sub(1)?;
        Some(Stream { core: u16::from(core), generation: Generation((word >> GENERATION_SHIFT) as u8) })
    }

    /// Sets the stream. Only the owner of the receive lock may call it.
    #[inline]
    pub(crate) fn set(&self, stream: Option<Stream>) {
        let word = match stream {
            Some(stream) => {
                (u32::from(stream.core) + 1) | (u32::from(stream.generation.0) << GENERATION_SHIFT)
            }
            None => 0,
        };

        self.0.store(word, Ordering::Release);
        note_store();
    }
}

/// The cores that are in a read.
#[derive(Clone, Debug)]
pub(crate) struct Readers([SharedU32; CORES as usize]);

impl Readers {
    /// Opens the words of all cores in the node's shared memory.
    pub(crate) fn new(shared: &Window) -> Result<Self, Error> {
        let word = |core: u64| shared.u32(READERS + 4 * core);
        Ok(Self([word(0)?, word(1)?, word(2)?, word(3)?]))
    }

    /// Returns the generation of the process of `core` that is in a read, if any is.
    #[inline]
    pub(crate) fn get(&self, core: u16) -> Option<Generation> {
        let generation = Generation(self.word(core).load(Ordering::Acquire) as u8);
        generation.is_up().then_some(generation)
    }

    /// Enters or removes `core`'s own process. Only that core may call it.
    pub(crate) fn set(&self, core: u16, process: Option<Generation>) {
        self.word(core).store(process.map_or(0, |process| process.0.into()), Ordering::Release);
    }

    /// Returns the word of a core.
    fn word(&self, core: u16) -> &SharedU32 {
        &self.0[usize::from(core % CORES)]
    }
}

#[cfg(test)]
mod tests {
    use nicforge_shm::SharedMemory;

    use super::*;

    fn sram() -> Window {
        SharedMemory::create("sram", 0x4000).unwrap().window(0, 0x4000).unwrap()
    }

    #[test]
    fn delivered_packet_is_taken_once() {
        let sram = sram();
        let mailbox = Mailbox::new(&sram, 2, Kind::Write).unwrap();
        mailbox.deliver(7, &[3; PAYLOAD]).unwrap();
        assert_eq!(mailbox.take(), Ok(Some([3; PAYLOAD])));
        assert_eq!(mailbox.take(), Ok(None));
    }

    #[test]
    fn packet_delivered_again_after_it_was_taken_is_not_seen_twice() {
        let sram = sram();
        let mailbox = Mailbox::new(&sram, 0, Kind::Read).unwrap();
        mailbox.deliver(u32::MAX - 1, &[3; PAYLOAD]).unwrap();
        let first = mailbox.take();
        mailbox.deliver(u32::MAX - 1, &[3; PAYLOAD]).unwrap();
        assert!(mailbox.has(u32::MAX - 1));
        assert_eq!((first, mailbox.take()), (Ok(Some([3; PAYLOAD])), Ok(None)));
    }

    #[test]
    fn packet_half_delivered_by_a_dead_core_is_not_taken_until_it_is_delivered_again() {
        let sram = sram();
        let mailbox = Mailbox::new(&sram, 0, Kind::Read).unwrap();
        mailbox.deliver(4, &[4; PAYLOAD]).unwrap();
        // The core that delivers packet 5 has written its number (plus 1), and dies.
        mailbox.delivering.store(6, Ordering::Relaxed);
        let torn = mailbox.take();
        mailbox.deliver(5, &[5; PAYLOAD]).unwrap();
        assert_eq!((torn, mailbox.take()), (Ok(None), Ok(Some([5; PAYLOAD]))));
    }

    #[test]
    fn mailboxes_of_all_cores_and_kinds_are_distinct() {
        let sram = sram();
        let kinds = [Kind::Read, Kind::Write, Kind::Reset];
        let boxes: Vec<_> = (0..CORES).flat_map(|core| kinds.map(|kind| (core, kind))).collect();
        let open = |(core, kind)| Mailbox::new(&sram, core, kind).unwrap();

        for (number, name) in boxes.iter().enumerate() {
            open(*name).deliver(number as u32, &[number as u8; PAYLOAD]).unwrap();
        }

        for (number, name) in boxes.iter().enumerate() {
            assert_eq!(open(*name).take(), Ok(Some([number as u8; PAYLOAD])));
        }
    }

    #[test]
    fn stream_word_round_trips_core_and_generation() {
        let word = StreamWord::new(&sram()).unwrap();
        let stream = Stream { core: 3, generation: Generation(255) };
        word.set(Some(stream));
        let set = word.get();
        word.set(None);
        assert_eq!((set, word.get()), (Some(stream), None));
    }
}
