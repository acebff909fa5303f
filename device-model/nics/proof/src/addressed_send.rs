//! *Addressed send*: the address of a store says where its data goes, and the store can stall for want of credits.
//!
//! A client writes 1 to [`MAX_MESSAGE`] bytes to BAR 5. The offset holds the target attachment and a tag. The device puts
//! the message, with the number of the attachment that it *came from*, into the target's mailbox: eight slots in the target's
//! mirror, which the target polls. A client can't lie about who it is, since the core says where each access came from.
//!
//! Each slot is a credit. A client returns credits by counting the messages that it took in [`WIN_HEAD`]. That is a word in
//! mapped memory, not a register: a register write could be queued behind a send that waits for this very credit. Without
//! credits, [`Device::write`] answers [`Write::Stalled`]; the core offers the same write again, and keeps everything behind it
//! in the same ring waiting. A reset of the target gives all credits back, so that nothing waits for ever.

use std::sync::atomic::{Ordering, fence};

use nicforge_core::{
    context::Context,
    device::{Address, AttachmentId, Counter, Device, Ended, Reset, Write},
    spec::{BarSpec, FunctionSpec},
};
use nicforge_hwi::{pci, proof::addressed_send::*};
use nicforge_shm::{MemoryError, SharedU64, Window};

use crate::{answer, identity, users};

/// The device. See the module.
#[derive(Default)]
pub struct AddressedSend {
    ports: [Port; ATTACHMENTS as usize],
    delivered: u64,
}

/// What one client has.
#[derive(Default)]
struct Port {
    mailbox: Option<Mailbox>,
    /// Its send in front was refused for want of credits already.
    stalled: bool,
    stalls: u64,
    bad: u64,
}

/// A client's receive side.
struct Mailbox {
    slots: Window,
    head_word: SharedU64,
    delivered: u64,
    /// The last good value of `head_word`.
    head: u64,
}

/// What a send's address and length say.
struct Send {
    target: AttachmentId,
    tag: u16,
}

impl AddressedSend {
    /// The card. It has [`ATTACHMENTS`] attachments.
    pub fn new() -> Self {
        Self::default()
    }

    fn power_on(&mut self, context: &Context<'_>, who: AttachmentId) {
        self.ports[usize::from(who.0)] = Port { mailbox: Mailbox::open(context, who), ..Port::default() };
    }

    /// Deliver a message; `None` when it can't be delivered to anybody.
    fn deliver(
        &mut self,
        context: &mut Context<'_>,
        from: AttachmentId,
        at: Address,
        data: &[u8],
    ) -> Option<Write> {
        let Send { target, tag } = Send::decode(at, data.len())?;
        let mailbox = self.ports[usize::from(target.0)].mailbox.as_mut()?;
        if mailbox.credits() == 0 {
            return Some(Write::Stalled);
        }
        let before = mailbox.delivered;
        mailbox.put(from, tag, data).ok()?;
        self.delivered += 1;
        // The target stores its read pointer, then looks for a message once more, then waits. Here it is the other way round: the message, then
        // the pointer. With a fence between the two on either side, one of them sees the other's store.
        fence(Ordering::SeqCst);
        mailbox.look_at_head();
        if mailbox.head >= before {
            context.interrupt(target, VECTOR_RECEIVE);
        }
        Some(Write::Accepted)
    }
}

impl Device for AddressedSend {
    fn spec(&self) -> FunctionSpec {
        // 4 KiB of registers, one vector, a ring of 64 cells, 4 KiB of windows, 4 KiB of mirror; and BAR 5 to send to.
        let mut spec = FunctionSpec::nic(
            identity(pci::DEVICE_ADDRESSED_SEND),
            users(ATTACHMENTS),
            0x1000,
            1,
            64,
            0x1000,
            0x1000,
        );
        spec.bars[usize::from(SEND_BAR)] = Some(BarSpec::trapped(SEND_WINDOW));
        spec
    }

    fn attached(&mut self, context: &mut Context<'_>, who: AttachmentId) {
        self.power_on(context, who);
    }

    fn detached(&mut self, _: &mut Context<'_>, who: AttachmentId, _: Ended) {
        // Without a mailbox nobody can send to it, and who waits for its credits is let through.
        self.ports[usize::from(who.0)] = Port::default();
    }

    fn reset(&mut self, context: &mut Context<'_>, reach: Reset) {
        for index in 0..self.ports.len() {
            let who = AttachmentId(index as u16);
            let meant = reach == Reset::Function || reach == Reset::Attachment(who);
            if meant && self.ports[index].mailbox.is_some() {
                self.power_on(context, who);
            }
        }
    }

    fn read(&mut self, _: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        let port = &self.ports[usize::from(from.0)];
        match (at.bar, at.offset) {
            (0, REG_STALLS) => answer(data, port.stalls.to_le_bytes()),
            (0, REG_BAD) => answer(data, port.bad.to_le_bytes()),
            (0, REG_PRESENT) => {
                let bits =
                    self.ports.iter().enumerate().map(|(n, port)| u32::from(port.mailbox.is_some()) << n);
                answer(data, bits.sum::<u32>().to_le_bytes());
            }
            _ => {}
        }
    }

    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write {
        if at.bar != SEND_BAR {
            return Write::Accepted;
        }
        let outcome = self.deliver(context, from, at, data);
        let port = &mut self.ports[usize::from(from.0)];
        if outcome == Some(Write::Stalled) {
            // It is offered again and again; it is one stall.
            port.stalls += u64::from(!port.stalled);
            port.stalled = true;
            return Write::Stalled;
        }
        port.stalled = false;
        port.bad += u64::from(outcome.is_none());
        Write::Accepted
    }

    fn counters(&self) -> Vec<Counter> {
        let sum = |count: fn(&Port) -> u64| self.ports.iter().map(count).sum();
        vec![
            Counter { name: "delivered", value: self.delivered },
            Counter { name: "stalls", value: sum(|port| port.stalls) },
            Counter { name: "bad_sends", value: sum(|port| port.bad) },
        ]
    }
}

impl Send {
    /// `None` when bits 5..0 of the offset are not zero, or the message is too long.
    fn decode(at: Address, length: usize) -> Option<Self> {
        let sound = at.offset < SEND_WINDOW
            && at.offset.is_multiple_of(1 << SEND_TAG_SHIFT)
            && (1..=MAX_MESSAGE).contains(&length);
        sound.then_some(Self {
            target: AttachmentId((at.offset >> SEND_TARGET_SHIFT) as u16 % ATTACHMENTS),
            tag: ((at.offset >> SEND_TAG_SHIFT) % TAGS) as u16,
        })
    }
}

impl Mailbox {
    /// A client's windows; `None` when there is no client.
    fn open(context: &Context<'_>, who: AttachmentId) -> Option<Self> {
        let (windows, mirror) = (context.memory(who, 1)?, context.memory(who, 2)?);
        // The places are constants inside BARs that `spec` asked for.
        let slots = mirror.window(MIRROR_MAILBOX, SLOTS * SLOT).ok()?;
        let head_word = windows.u64(WIN_HEAD).ok()?;
        Some(Self { slots, head_word, delivered: 0, head: 0 })
    }

    /// Take over the client's read pointer. One that makes no sense returns nothing.
    fn look_at_head(&mut self) {
        let head = self.head_word.load(Ordering::Acquire);
        if (self.head..=self.delivered).contains(&head) {
            self.head = head;
        }
    }

    /// Slots that are free.
    fn credits(&mut self) -> u64 {
        self.look_at_head();
        SLOTS - (self.delivered - self.head)
    }

    fn put(&mut self, from: AttachmentId, tag: u16, data: &[u8]) -> Result<(), MemoryError> {
        let slot = self.slots.window(self.delivered % SLOTS * SLOT, SLOT)?;
        slot.store_u16_relaxed(SLOT_SOURCE, from.0)?;
        slot.store_u16_relaxed(SLOT_TAG, tag)?;
        slot.store_u32_relaxed(SLOT_LENGTH, data.len() as u32)?;
        slot.write(SLOT_DATA, data)?;
        // Release: who sees the sequence word sees the message.
        slot.store_u64_release(0, self.delivered + 1)?;
        self.delivered += 1;
        Ok(())
    }
}
