//! The receive ring of a port.

use std::{sync::atomic::Ordering, time::Duration};

use nicforge_driver::{
    Bar, Deadline, Device, DmaBuffer, Doorbell, HugePages,
    runtime::{Cost, charge},
};
use nicforge_hwi::{
    extoll::{reg, window},
    extoll_velo::{MAX_SLOTS, MIN_SLOTS, SLOT, SLOT_DATA, SLOT_HEADER},
};
use nicforge_shm::{Records, SharedU64};

use crate::{
    Address, Config, Error, Message,
    card::{BAR_REGISTERS, BAR_WINDOWS},
    directory::Directory,
    flow,
    tenant::Tenant,
};

// A slot starts with its header, and the data of its message follow.
const _: () = assert!(SLOT_HEADER == 0 && SLOT_DATA == 8);

/// Time that the card may take to enable a ring.
const ENABLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of taken messages of which the card is not yet informed.
const MAX_BATCH: u32 = 64;
/// The card is informed whenever this fraction of a node's share of the slots was taken: an eighth.
const BATCHES_PER_SHARE: u32 = 8;

/// The beginning of a slot: its header, and the first quadword of its message.
pub(crate) struct SlotStart {
    /// 0 for an empty slot.
    pub(crate) header: u64,
    pub(crate) quadword: u64,
}

/// The ring into which the card writes messages, and how far this port has read it.
///
/// Invariants: `taken` messages have left the ring. A taken message's slot has a zero header. The
/// card reuses the slot when the read pointer is after it, and the read pointer is `taken -
/// unreported`.
pub(crate) struct ReceiveRing {
    registers: Bar,
    slots: Records<{ SLOT as usize }>,
    /// Messages taken out of the ring so far.
    taken: u64,
    /// Taken messages that the card does not know of yet.
    unreported: u32,
    /// Number of taken messages after which the card is informed.
    batch: u32,
    read_pointer: SharedU64,
    doorbell: Doorbell,
    /// The ring's memory. The card loses access to it when this is dropped.
    memory: DmaBuffer,
}

impl ReceiveRing {
    /// Allocates a ring of as many slots as `config` and the network ask for. It is not enabled.
    pub(crate) fn allocate(device: &Device, config: &Config, directory: &Directory) -> Result<Self, Error> {
        let slots = slots(config, directory)?;
        let memory = device.dma_buffer((u64::from(slots) * SLOT) as usize, HugePages::Try)?;
        let window = memory.window().window(0, u64::from(slots) * SLOT)?;
        let pointers = device.bar(BAR_WINDOWS)?.window(window::VELO_READ_POINTER, window::SIZE)?;

        Ok(Self {
            registers: device.bar(BAR_REGISTERS)?,
            slots: Records::new(window)?,
            taken: 0,
            unreported: 0,
            batch: (slots / directory.nodes() / BATCHES_PER_SHARE).clamp(1, MAX_BATCH),
            read_pointer: pointers.u64(0)?,
            doorbell: device.doorbell(),
            memory,
        })
    }

    /// Hands the ring to the card, and waits until the card's directory has a tenant at
    /// `own_address`. Returns that tenant, which is this port.
    pub(crate) fn enable(
        &self,
        device: &Device,
        directory: &Directory,
        own_address: Address,
    ) -> Result<Tenant, Error> {
        let deadline = Deadline::after(ENABLE_TIMEOUT);
        let operation = "the receive ring's entry in the directory";

        // An earlier port of this process may have left the ring enabled.
        self.registers.write64(reg::VELO_RING_ENABLE, 0)?;
        device.wait_for(deadline, None, operation, || {
            Ok::<_, Error>(directory.tenant(own_address).is_none().then_some(()))
        })?;

        self.read_pointer.store(0, Ordering::Release);
        self.registers.write64(reg::VELO_RING_BASE, self.memory.iova())?;
        self.registers.write64(reg::VELO_RING_SLOTS, self.slots())?;
        self.registers.write64(reg::VELO_RING_ENABLE, 1)?;

        if !self.is_enabled()? {
            return Err(Error::BadRing { slots: self.slots() as u32, least: least_slots(directory.nodes()) });
        }

        device.wait_for(deadline, None, operation, || Ok(directory.tenant(own_address)))
    }

    /// Takes the ring away from the card, if the card can still be reached.
    pub(crate) fn disable(&self) {
        // A device that is gone or was reset has disabled the ring already.
        let _ = self.registers.write64(reg::VELO_RING_ENABLE, 0);
    }

    /// Returns whether the card uses the ring.
    pub(crate) fn is_enabled(&self) -> Result<bool, Error> {
        Ok(self.registers.read64(reg::VELO_RING_ENABLE)? == 1)
    }

    /// Returns the number of slots.
    pub(crate) fn slots(&self) -> u64 {
        self.slots.count()
    }

    /// Returns whether the card does not know of all taken messages.
    pub(crate) fn has_unreported(&self) -> bool {
        self.unreported > 0
    }

    /// Loads the header of the next message's slot. The data of its message are loaded afterwards.
    #[inline]
    pub(crate) fn load_header(&self) -> u64 {
        self.slots.header(self.taken)
    }

    /// Loads the beginning of the next message's slot.
    #[inline]
    pub(crate) fn load_start(&self) -> SlotStart {
        let (header, quadword) = self.slots.header_and_word(self.taken);
        SlotStart { header, quadword }
    }

    /// Loads the data of the next message, and no more of the slot.
    #[inline]
    pub(crate) fn load_data(&self, data: &mut [[u8; 8]]) {
        self.slots.data(self.taken, data);
    }

    /// Returns the next message without its data, and leaves it in the ring.
    pub(crate) fn peek(&self) -> Option<Message> {
        Message::of_header(self.load_header())
    }

    /// Takes the next message out of the ring. When the ring is empty, informs the card of all
    /// taken messages.
    pub(crate) fn take(&mut self) -> Result<Option<Message>, Error> {
        let Some(mut message) = Message::of_header(self.load_header()) else {
            if self.has_unreported() {
                self.report_taken()?;
            }
            return Ok(None);
        };

        let length = message.len();
        self.load_data(message.data[..length].as_chunks_mut().0);
        self.free();
        Ok(Some(message))
    }

    /// Frees the slot of the next message, whose data have been loaded. Informs the card in
    /// batches.
    ///
    /// A failure to wake the card is ignored, so that the caller keeps the message. The call that
    /// finds the ring empty, or waits, reports that the device is gone.
    #[inline]
    pub(crate) fn free(&mut self) {
        charge(Cost::ReceivePacket, 1);
        self.slots.set_header(self.taken, 0);

        self.taken += 1;
        self.unreported += 1;
        if self.unreported >= self.batch {
            let _ = self.report_taken();
        }
    }

    /// Stores the read pointer for the card, which frees the slots of all taken messages.
    ///
    /// # Errors
    /// The card sleeps and can't be woken. The read pointer is stored nevertheless.
    #[inline(never)]
    pub(crate) fn report_taken(&mut self) -> Result<(), Error> {
        self.read_pointer.store(self.taken, Ordering::Release);
        self.unreported = 0;
        Ok(self.doorbell.after_store()?)
    }
}

/// Returns the smallest number of slots that a network allows.
fn least_slots(nodes: u32) -> u32 {
    nodes.next_power_of_two().max(MIN_SLOTS as u32)
}

/// Returns the number of slots that a configuration asks for, or else one that suits the network.
///
/// # Errors
/// [`Error::BadRing`] if the network does not allow it.
fn slots(config: &Config, directory: &Directory) -> Result<u32, Error> {
    let (nodes, vpids) = (directory.nodes(), directory.vpids());
    let minimum = least_slots(nodes);
    let slots = config.slots.unwrap_or_else(|| flow::suitable_slots(nodes, vpids).max(minimum));

    if slots.is_power_of_two() && (minimum..=MAX_SLOTS as u32).contains(&slots) {
        Ok(slots)
    } else {
        Err(Error::BadRing { slots, least: minimum })
    }
}
