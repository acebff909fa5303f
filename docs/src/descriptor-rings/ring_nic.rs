//! A NIC that sends frames from a ring of descriptors in client memory.
//!
//! The chapter "A NIC with descriptor rings" includes this file, and the tests compile and run it.

// ANCHOR: registers
/// 64 bits, BAR 0, write: the address of the ring. The card begins with its first descriptor.
pub const REG_RING: u64 = 0x00;
/// 32 bits, BAR 0, write: the doorbell. The card looks at the next descriptor.
pub const REG_DOORBELL: u64 = 0x08;
/// 32 bits, BAR 0, write: the soft reset. The card forgets the ring and the frame in work.
pub const REG_RESET: u64 = 0x0c;
/// 32 bits, BAR 0, read: 1 after a descriptor that the card could not carry out. It then rests
/// until the soft reset.
pub const REG_ERROR: u64 = 0x10;

/// Descriptors of the ring.
pub const ENTRIES: u64 = 4;
/// Bytes of a descriptor, and the offsets in it: the frame's address (64 bits), its length (32
/// bits), and the hand-over word (32 bits).
pub const DESCRIPTOR: u64 = 16;
pub const ADDRESS: u64 = 0;
pub const LENGTH: u64 = 8;
pub const STATUS: u64 = 12;
/// In the hand-over word: the card owns the descriptor. The driver sets it, and the card clears it.
pub const OWN: u32 = 1 << 31;

/// Longest frame in bytes.
pub const MAX_FRAME: u32 = 1500;
/// Interrupt after a frame was sent, and after an error.
pub const VECTOR: u16 = 0;
// ANCHOR_END: registers

// ANCHOR: device
use nicforge_core::{
    context::Context,
    device::{Device, Progress, Reset, Write},
    dma::DmaError,
    ids::{Address, AttachmentId, DmaToken},
    spec::{AttachmentSpec, FunctionSpec, Identity, NicSizes},
};
use nicforge_kit::{RegisterValue, retry};

const USER: AttachmentId = AttachmentId(0);
const FRAME: DmaToken = DmaToken(0);

/// Where the frame of the next descriptor is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// In client memory.
    #[default]
    Unread,
    /// On its way here, because only messages reach its memory.
    Reading,
    /// In the card's buffer.
    Read,
}

/// The card.
#[derive(Debug, Default)]
pub struct RingNic {
    ring: Option<u64>,
    /// Number of the next descriptor.
    next: u64,
    stage: Stage,
    frame: Vec<u8>,
    has_failed: bool,
}

impl Device for RingNic {
    fn spec(&self) -> FunctionSpec {
        let identity = Identity {
            vendor: 0x1234,
            device: 0x2b2c,
            subsystem_vendor: 0x1234,
            subsystem: 0,
            class: 0x02_80_00,
            revision: 1,
        };
        let user = AttachmentSpec { name: "user0".to_owned(), group: 0 };
        FunctionSpec::nic(
            identity,
            vec![user],
            NicSizes { register_bytes: 0x1000, vectors: 1, ring_cells: 64, ..NicSizes::default() },
        )
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, at: Address, data: &mut [u8]) {
        if at.offset == REG_ERROR {
            u32::from(self.has_failed).answer_read(data);
        }
    }

    fn write(&mut self, context: &mut Context<'_>, _: AttachmentId, at: Address, data: &[u8]) -> Write {
        match (at.offset, u64::from_write(data)) {
            (REG_RING, Some(address)) if !self.has_failed => (self.ring, self.next) = (Some(address), 0),
            (REG_RESET, _) => self.soft_reset(context),
            // The step that follows each write looks at the ring.
            _ => {}
        }

        Write::Accepted
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        for done in 0..budget {
            match self.send_next(context) {
                Ok(true) => {}
                Ok(false) => return if done > 0 { Progress::Busy } else { Progress::Idle },
                Err(_) => {
                    self.fail(context);
                    return Progress::Idle;
                }
            }
        }

        Progress::Busy
    }

    fn dma_done(
        &mut self,
        context: &mut Context<'_>,
        _: AttachmentId,
        _: DmaToken,
        result: Result<&[u8], DmaError>,
    ) {
        // A soft reset forgets the read, so that this is the frame of the next descriptor.
        match result {
            Ok(bytes) => {
                self.frame.copy_from_slice(bytes);
                self.stage = Stage::Read;
            }
            Err(_) => self.fail(context),
        }
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {
        *self = Self::default();
    }
}
// ANCHOR_END: device

// ANCHOR: ring
impl RingNic {
    /// Sends the frame of the next descriptor. Returns false if there is none, or it can't continue
    /// now.
    fn send_next(&mut self, context: &mut Context<'_>) -> Result<bool, DmaError> {
        let Some(ring) = self.ring else { return Ok(false) };
        let at = ring.wrapping_add(self.next * DESCRIPTOR);

        if self.stage == Stage::Unread && !self.fetch(context, at)? {
            return Ok(false);
        }
        if self.stage == Stage::Reading || !context.ports().ready(0, 0) {
            return Ok(false);
        }

        let mut ports = context.ports();
        let Ok(mut packet) = ports.new_packet(self.frame.len()) else {
            retry::when_starved(context);
            return Ok(false);
        };
        packet.bytes_mut().copy_from_slice(&self.frame);
        if let Err(unsent) = ports.send(0, 0, packet) {
            ports.recycle(unsent.packet);
            return Ok(false);
        }

        // The hand-over word goes last, in a write of its own, and the interrupt behind it.
        context.copy_to(USER, at.wrapping_add(STATUS), &0_u32.to_le_bytes())?;
        context.interrupt(USER, VECTOR);
        (self.next, self.stage) = ((self.next + 1) % ENTRIES, Stage::Unread);
        Ok(true)
    }

    /// Reads the descriptor at `at`, and its frame. Returns false if the driver owns it.
    fn fetch(&mut self, context: &mut Context<'_>, at: u64) -> Result<bool, DmaError> {
        // The hand-over word is read first, on its own. Behind it the rest is complete.
        let mut status = [0; 4];
        context.copy_from(USER, at.wrapping_add(STATUS), &mut status)?;
        if u32::from_le_bytes(status) & OWN == 0 {
            return Ok(false);
        }

        let (mut address, mut length) = ([0; 8], [0; 4]);
        context.copy_from(USER, at.wrapping_add(ADDRESS), &mut address)?;
        context.copy_from(USER, at.wrapping_add(LENGTH), &mut length)?;
        let (address, length) = (u64::from_le_bytes(address), u32::from_le_bytes(length));

        // The values are the card's own now. The driver can't change them behind this check.
        if !(1..=MAX_FRAME).contains(&length) {
            return Err(DmaError::TooLong { length: length as usize });
        }

        self.frame.resize(length as usize, 0);
        self.stage = match context.copy_from(USER, address, &mut self.frame) {
            Ok(()) => Stage::Read,
            Err(DmaError::Remote { .. }) => match context.dma_read(USER, address, length as usize, FRAME) {
                Ok(()) => Stage::Reading,
                Err(_) => {
                    context.wake_at(context.now().after(retry::MEMORY_BUSY));
                    return Ok(false);
                }
            },
            Err(error) => return Err(error),
        };
        Ok(true)
    }

    /// Stops until the next soft reset, and says so.
    fn fail(&mut self, context: &mut Context<'_>) {
        self.soft_reset(context);
        self.has_failed = true;
        context.interrupt(USER, VECTOR);
    }

    /// Forgets the ring and the frame in work. A read that is in progress would otherwise end in
    /// the new state.
    fn soft_reset(&mut self, context: &mut Context<'_>) {
        context.forget_reads(USER);
        *self = Self::default();
    }
}
// ANCHOR_END: ring

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nicforge_core::{fabric::LinkSpec, ids::AttachmentId};
    use nicforge_test_kit::{Client, ClientMemory, InterruptCount, PeerPort, Testbed};

    use super::*;

    const RING: u64 = 0x1_0000;
    const FRAMES: u64 = 0x2_0000;
    const REMOTE: u64 = 0x8_0000;

    /// A card with a driver, and the far end of its link.
    struct Card {
        bed: Testbed,
        peer: PeerPort,
        client: Client,
        memory: ClientMemory,
        interrupts: Vec<Arc<InterruptCount>>,
        posted: u64,
    }

    impl Card {
        fn new() -> Self {
            let mut bed = Testbed::new();
            let card = bed.add("nic0", RingNic::default());
            let peer = bed.peer((card, 0), LinkSpec::default());
            let client = Client::attach(&mut bed, card, AttachmentId(0));
            let interrupts = client.bind_msix(&mut bed);

            let mut memory = ClientMemory::new(client);
            memory.map(&mut bed, RING, 4096);
            memory.map(&mut bed, FRAMES, 4096);
            memory.map_remote(&mut bed, REMOTE, 4096);
            client.write64(&mut bed, 0, REG_RING, RING);
            Self { bed, peer, client, memory, interrupts, posted: 0 }
        }

        /// Hands over a descriptor as a driver does: the hand-over word last.
        fn post(&mut self, address: u64, length: u32) {
            let at = RING + self.posted % ENTRIES * DESCRIPTOR;
            self.memory.write(at + ADDRESS, &address.to_le_bytes());
            self.memory.write(at + LENGTH, &length.to_le_bytes());
            self.memory.write(at + STATUS, &OWN.to_le_bytes());
            self.client.write32(&mut self.bed, 0, REG_DOORBELL, 0);
            self.posted += 1;
        }

        /// Runs the machine, and returns the first bytes of the frames that have arrived.
        fn arrived(&mut self) -> Vec<u8> {
            self.bed.run_until_idle();
            self.peer.take_all(&mut self.bed, 0).iter().map(|frame| frame.bytes[0]).collect()
        }
    }

    // ANCHOR: tests
    #[test]
    fn frames_are_sent_in_the_order_of_the_ring() {
        let mut card = Card::new();

        let mut arrived = Vec::new();
        for number in 0..10 {
            card.memory.write(FRAMES, &[number; 60]);
            card.post(FRAMES, 60);
            arrived.extend(card.arrived());
        }

        assert_eq!(arrived, (0..10).collect::<Vec<_>>());
        assert_eq!((card.memory.read32(RING + STATUS), card.interrupts[0].get()), (0, 10));
    }

    #[test]
    fn a_soft_reset_forgets_a_frame_that_is_on_its_way() {
        let mut card = Card::new();
        card.memory.write(REMOTE, &[1; 60]);
        card.post(REMOTE, 60);
        card.bed.step(1);

        card.client.write32(&mut card.bed, 0, REG_RESET, 0);
        card.memory.answer(&mut card.bed);
        let after_the_reset = card.arrived();

        // The ring starts again, and the token is free.
        card.posted = 0;
        card.client.write64(&mut card.bed, 0, REG_RING, RING);
        card.memory.write(REMOTE, &[2; 60]);
        card.post(REMOTE, 60);
        card.bed.step(1);
        card.memory.answer(&mut card.bed);

        assert_eq!((after_the_reset, card.arrived()), (vec![], vec![2]));
    }
    // ANCHOR_END: tests

    #[test]
    fn a_bad_descriptor_stops_the_card_until_its_soft_reset() {
        for (address, length) in [(0xdead_0000, 60), (FRAMES, 0), (FRAMES, MAX_FRAME + 1)] {
            let mut card = Card::new();
            card.post(address, length);
            let arrived = card.arrived();
            let interrupts = card.interrupts[0].get();

            // A new ring alone does not set the card going again.
            card.client.write64(&mut card.bed, 0, REG_RING, RING);
            let failed = card.client.read32(&mut card.bed, 0, REG_ERROR);

            card.client.write32(&mut card.bed, 0, REG_RESET, 0);
            let after_the_reset = card.client.read32(&mut card.bed, 0, REG_ERROR);

            assert_eq!((arrived, interrupts, failed, after_the_reset), (vec![], 1, 1, 0));
        }
    }
}
