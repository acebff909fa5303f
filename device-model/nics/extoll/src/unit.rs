//! The parts of a card that its units (VELO and RMA) share.
//!
//! A unit owns its state and is called with a [`UnitContext`], which the card builds for the call.
//! A unit reaches everything else only through it: the machine, the switch, the ATU, the directory,
//! and the attachments with their errors and interrupts. No unit reaches the other one.

use nicforge_core::{
    context::Context,
    dma::{DmaAccess, DmaLease},
    fabric::{Contents, Packet},
    ids::AttachmentId,
};
use nicforge_kit::{Server, retry};

use crate::{
    attachment::Attachments,
    atu::Atu,
    command_budget::{self, CommandBudget},
    config::CardConfig,
    directory::Directory,
    failure::Failure,
    packet::{FRAMING, PacketHeader},
    ring_registers::{RingLimits, RingRegisters},
    switch::{Refused, Switch},
};

/// Bytes of a word of a ring in client memory. The card writes each word in one access.
const RING_WORD: u64 = 8;

/// The parts of a card that its units share.
pub(crate) struct SharedParts {
    pub(crate) config: CardConfig,
    pub(crate) attachments: Attachments,
    pub(crate) switch: Switch,
    pub(crate) directory: Directory,
    pub(crate) atu: Atu,
    /// The budget for expensive commands.
    pub(crate) command_budget: CommandBudget,
}

/// The machine and the parts of the card on which a unit works during a call, beside its own state.
pub(crate) struct UnitContext<'a, 'b> {
    pub(crate) context: &'a mut Context<'b>,
    pub(crate) parts: &'a mut SharedParts,
}

/// The originators of a card's packets, which have different shares of a contended output channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A client's message, sent before transit packets move.
    Client,
    /// A packet of the card itself.
    Card,
}

/// Reasons why a packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsent {
    /// The pool has no packet left. The card is woken soon to retry.
    Starved,
    /// The output channel has no room now.
    Full,
    /// No route leads to the target.
    Unreachable,
}

/// Sets a packet's header, and its framing to that of one message.
#[inline(always)]
pub(crate) fn set_header_and_framing(packet: &mut Contents, header: u64) {
    packet.header = header;
    packet.framing = FRAMING;
}

impl UnitContext<'_, '_> {
    /// Returns whether this is the admin's attachment.
    #[inline]
    pub(crate) fn is_admin(&self, attachment: AttachmentId) -> bool {
        attachment == self.parts.config.admin()
    }

    /// Returns whether a part of the card, such as a DMA engine, is idle. If it is not, requests a
    /// step of the card for the time at which it will be.
    #[inline]
    pub(crate) fn request_idle(&mut self, server: &Server) -> bool {
        retry::is_due(self.context, server.idle_at())
    }

    /// Records that a part of the card begins work now, which takes `cycles` cycles of the core's
    /// clock.
    #[inline]
    pub(crate) fn begin_work(&self, server: &mut Server, cycles: u32) {
        server.work(self.context.now(), self.parts.config.clock, cycles);
    }

    /// Counts an error of an attachment, logs it, and raises the error interrupt.
    #[cold]
    pub(crate) fn fail(&mut self, attachment: AttachmentId, failure: Failure) {
        self.parts.attachments.fail(self.context, attachment, failure);
    }

    /// Takes a lease of a client's memory for the ring that its registers describe, and charges its
    /// cost. Returns `None` if the registers are invalid, if the memory can't be used, and for the
    /// admin, which has no rings.
    ///
    /// A slot or an entry may lie in two mappings, but none of its words may, because each word is
    /// written in one access.
    pub(crate) fn lease_ring(
        &mut self,
        attachment: AttachmentId,
        registers: RingRegisters,
        limits: &RingLimits,
    ) -> Option<DmaLease> {
        if self.is_admin(attachment) {
            return None;
        }

        let (base, length) = (registers.base, registers.length(limits)?);
        self.parts.command_budget.spend(command_budget::lease_visits(self.context, attachment, base, length));
        let lease = self.context.dma_lease(attachment, base, length, DmaAccess::Write);
        lease.ok().filter(|memory| memory.keeps_whole(RING_WORD))
    }

    /// Raises an interrupt if it is enabled, and then disables it, as [`Attachments::raise`] does.
    pub(crate) fn raise(&mut self, attachment: AttachmentId, vector: u16) {
        self.parts.attachments.raise(self.context, attachment, vector);
    }
}

/// Sends a packet with `length` bytes of content, which `fill` must write.
///
/// This is not a method of [`UnitContext`], so that a caller can borrow other parts of the card
/// during the call.
///
/// # Errors
/// [`Unsent`]. Then the packet's buffer is back in the pool.
#[inline(always)]
pub(crate) fn send_packet(
    context: &mut Context<'_>,
    switch: &mut Switch,
    origin: Origin,
    header: PacketHeader,
    length: usize,
    fill: impl FnOnce(&mut Packet),
) -> Result<(), Unsent> {
    let mut ports = context.ports();
    let Ok(mut packet) = ports.new_packet(length) else {
        retry::when_starved(context);
        return Err(Unsent::Starved);
    };

    set_header_and_framing(&mut packet, header.encode());
    fill(&mut packet);

    let (target, class) = (header.target.node, header.kind.class());
    let sent = match origin {
        Origin::Client => switch.send_for_client(&mut ports, target, class, packet),
        Origin::Card => switch.send_to(&mut ports, target, class, packet),
    };

    let (packet, reason) = match sent {
        Ok(()) => return Ok(()),
        Err(Refused::Full(packet)) => (packet, Unsent::Full),
        Err(Refused::NoRoute(packet)) => (packet, Unsent::Unreachable),
    };
    ports.recycle(packet);
    Err(reason)
}
