//! *Addressed send*: the address of a store names the receiver of its data, and the store stalls
//! without a credit.
//!
//! A client writes 1 to [`MAX_MESSAGE`] bytes to BAR 5. The offset holds the target attachment and
//! a tag. The device puts the message into the target's mailbox: eight slots in the target's
//! mirror, which the target polls. The device adds the number of the *sending* attachment. A client
//! can't forge it, because the core identifies the source of each access.
//!
//! Each slot is a credit. A client returns credits by counting the messages that it took in
//! [`WIN_HEAD`]. That is a word in mapped memory, not a register: a register write could be queued
//! after a send that waits for this very credit.
//!
//! Without a credit, [`Device::write`] answers [`Write::Stalled`]. The core retries the same write,
//! and all later records of its ring wait. A reset of the target returns all credits, so
//! no send waits for ever.

use std::sync::atomic::{Ordering, fence};

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Ended, Reset, Write},
    fabric::Ports,
    ids::{Address, AttachmentId},
    register::Register,
    spec::{BarSpec, FunctionSpec, NicSizes},
    warning::Warning,
};
use nicforge_hwi::{pci, proof::addressed_send::*};
use nicforge_kit::RegisterValue;
use nicforge_shm::{MemoryError, SharedU64, Window};

use crate::{identity, users};

/// The device; the module's documentation describes it.
#[derive(Default)]
pub struct AddressedSend {
    clients: [AttachmentState; ATTACHMENTS as usize],
    /// Number of messages that were delivered.
    delivered: u64,
}

/// The state of one client.
#[derive(Default)]
struct AttachmentState {
    /// `None` while the attachment has no client.
    mailbox: Option<Mailbox>,
    /// The client's oldest send is stalled, and was counted as a stall.
    is_stalled: bool,
    /// Number of sends that have stalled.
    stalls: u64,
    /// Number of sends that were dropped: they had an invalid address or length, or no receiver.
    bad_sends: u64,
}

/// The receive side of a client.
struct Mailbox {
    slots: Window,
    /// The client's word for the number of messages that it has taken.
    head_word: SharedU64,
    /// Number of messages put into the mailbox.
    delivered: u64,
    /// The last valid value of `head_word`.
    head: u64,
}

/// The fields of the offset of a send.
struct SendAddress {
    target: AttachmentId,
    tag: u16,
}

impl AddressedSend {
    /// Builds the card in the state of power-on. It has [`ATTACHMENTS`] attachments.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a client to the state of power-on.
    fn reset_attachment(&mut self, context: &Context<'_>, attachment: AttachmentId) {
        self.clients[usize::from(attachment.0)] =
            AttachmentState { mailbox: Mailbox::open(context, attachment), ..AttachmentState::default() };
    }

    /// Delivers a message. Returns `None` if its target has no client, or its offset or length
    /// is invalid.
    fn deliver(
        &mut self,
        context: &mut Context<'_>,
        from: AttachmentId,
        at: Address,
        data: &[u8],
    ) -> Option<Write> {
        let SendAddress { target, tag } = SendAddress::decode(at, data.len())?;
        let mailbox = self.clients[usize::from(target.0)].mailbox.as_mut()?;
        if mailbox.credits() == 0 {
            return Some(Write::Stalled);
        }

        let delivered_before = mailbox.delivered;
        mailbox.put(from, tag, data).ok()?;
        self.delivered += 1;

        // The target stores its head, checks for a message once more, and then waits. The order
        // here is the opposite: the message is stored, then the head is loaded. If the target had
        // taken all earlier messages, it may wait for the interrupt. With a fence between the two
        // on either side, one of them sees the other's store.
        fence(Ordering::SeqCst);
        mailbox.load_head();
        if mailbox.head >= delivered_before {
            context.interrupt(target, VECTOR_RECEIVE);
        }

        Some(Write::Accepted)
    }
}

impl Device for AddressedSend {
    fn spec(&self) -> FunctionSpec {
        // 4 KiB of registers, one vector, a ring of 64 cells, 4 KiB of windows, 4 KiB of mirror,
        // and BAR 5 for sends.
        let mut spec = FunctionSpec::nic(
            identity(pci::DEVICE_ADDRESSED_SEND),
            users(ATTACHMENTS),
            NicSizes {
                register_bytes: 0x1000,
                vectors: 1,
                ring_cells: 64,
                window_bytes: 0x1000,
                mirror_bytes: 0x1000,
            },
        );
        spec.bars[usize::from(SEND_BAR)] = Some(BarSpec::trapped(SEND_WINDOW));
        spec
    }

    fn registers(&self) -> &'static [Register] {
        REGISTER_MAP
    }

    fn ports(&self) -> u8 {
        0
    }

    fn attached(&mut self, context: &mut Context<'_>, attachment: AttachmentId) {
        self.reset_attachment(context, attachment);
    }

    fn detached(&mut self, _: &mut Context<'_>, attachment: AttachmentId, _: Ended) {
        // Without a mailbox, sends to the attachment fail, also those that wait for its credits.
        self.clients[usize::from(attachment.0)] = AttachmentState::default();
    }

    fn reset(&mut self, context: &mut Context<'_>, reach: Reset) {
        for index in 0..self.clients.len() {
            let attachment = AttachmentId(index as u16);
            if reach.reaches(attachment) && self.clients[index].mailbox.is_some() {
                self.reset_attachment(context, attachment);
            }
        }
    }

    fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        self.peek(&context.ports(), from, at, data);
    }

    fn peek(&self, _: &Ports<'_>, from: AttachmentId, at: Address, data: &mut [u8]) -> bool {
        let client = &self.clients[usize::from(from.0)];
        match (at.bar, at.offset) {
            (0, REG_STALLS) => client.stalls.answer_read(data),
            (0, REG_BAD) => client.bad_sends.answer_read(data),
            (0, REG_PRESENT) => {
                let bits = self
                    .clients
                    .iter()
                    .enumerate()
                    .map(|(index, client)| u32::from(client.mailbox.is_some()) << index);
                bits.sum::<u32>().answer_read(data);
            }
            _ => return false,
        }
        true
    }

    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write {
        if at.bar != SEND_BAR {
            return Write::Accepted;
        }

        let outcome = self.deliver(context, from, at, data);
        let client = &mut self.clients[usize::from(from.0)];
        if outcome == Some(Write::Stalled) {
            // A retried send counts as one stall.
            client.stalls += u64::from(!client.is_stalled);
            client.is_stalled = true;
            return Write::Stalled;
        }

        client.is_stalled = false;
        client.bad_sends += u64::from(outcome.is_none());
        if outcome.is_none() {
            let rule =
                &"a send has 1 byte to a slot's, an offset that names a tag, and a target with a client";
            context.warn(from, Warning::dropped(rule).register(at).written(data));
        }
        Write::Accepted
    }

    fn counters(&self) -> Vec<Counter> {
        let sum = |count: fn(&AttachmentState) -> u64| self.clients.iter().map(count).sum();
        vec![
            Counter { name: "delivered", value: self.delivered },
            Counter { name: "stalls", value: sum(|client| client.stalls) },
            Counter { name: "bad_sends", value: sum(|client| client.bad_sends) },
        ]
    }
}

impl SendAddress {
    /// Decodes the offset of a send of `length` bytes. Returns `None` if the offset is not below
    /// [`SEND_WINDOW`], if its bits 5..0 are not zero, or if the length is not 1 to
    /// [`MAX_MESSAGE`].
    fn decode(at: Address, length: usize) -> Option<Self> {
        let is_valid = at.offset < SEND_WINDOW
            && at.offset.is_multiple_of(1 << SEND_TAG_SHIFT)
            && (1..=MAX_MESSAGE).contains(&length);
        // `% TAGS` removes the target's bits, which lie above the tag. `% ATTACHMENTS` changes no
        // valid offset; it keeps the target a valid index whatever the size of the window.
        is_valid.then_some(Self {
            target: AttachmentId((at.offset >> SEND_TARGET_SHIFT) as u16 % ATTACHMENTS),
            tag: ((at.offset >> SEND_TAG_SHIFT) % TAGS) as u16,
        })
    }
}

impl Mailbox {
    /// Opens a client's windows; returns `None` if there is no client.
    fn open(context: &Context<'_>, attachment: AttachmentId) -> Option<Self> {
        let (windows, mirror) = (context.memory(attachment, 1)?, context.memory(attachment, 2)?);
        // The offsets are constants inside the BARs that `spec` asks for.
        let slots = mirror.window(MIRROR_MAILBOX, SLOTS * SLOT).ok()?;
        let head_word = windows.u64(WIN_HEAD).ok()?;
        Some(Self { slots, head_word, delivered: 0, head: 0 })
    }

    /// Loads the client's head, the number of messages that it has taken. An invalid value is
    /// ignored.
    fn load_head(&mut self) {
        let head = self.head_word.load(Ordering::Acquire);
        if (self.head..=self.delivered).contains(&head) {
            self.head = head;
        }
    }

    /// Returns the number of free slots.
    fn credits(&mut self) -> u64 {
        self.load_head();
        SLOTS - (self.delivered - self.head)
    }

    /// Writes a message into the next slot.
    fn put(&mut self, from: AttachmentId, tag: u16, data: &[u8]) -> Result<(), MemoryError> {
        let slot = self.slots.window(self.delivered % SLOTS * SLOT, SLOT)?;
        slot.store_u16_relaxed(SLOT_SOURCE, from.0)?;
        slot.store_u16_relaxed(SLOT_TAG, tag)?;
        slot.store_u32_relaxed(SLOT_LENGTH, data.len() as u32)?;
        slot.write(SLOT_DATA, data)?;

        // Release: a reader that sees the sequence word sees the message.
        slot.store_u64_release(0, self.delivered + 1)?;
        self.delivered += 1;
        Ok(())
    }
}
