//! VELO: small messages, sent by stores and received in rings.
//!
//! | module | contents |
//! | --- | --- |
//! | `address` | the address of a send |
//! | `assembly` | assembly of split bursts |
//! | `send` | packets from stores |
//! | `row` | messages that leave in one packet |
//! | `stall` | sends that wait, and the watchdog that ends them |
//! | `ring` | a VPID's receive ring in its own memory, and the credit returned for its slots |
//! | `receive` | delivery of packets to receive rings |
//! | `control` | credit returns and ring announcements between cards |
//! | `registers` | the registers of the unit |
//!
//! **Owns**: for each attachment, the receive ring with its generation, the send in progress, and
//! the counters of both. For the card, the watchdog's limit and the announcements to request.
//!
//! **In**: stores of clients, message and control packets, the clients' read pointers. **Out**:
//! packets, messages in the clients' rings, credit for the directory, errors and interrupts by the
//! [`UnitContext`](crate::unit::UnitContext).
//!
//! **Invariants.** A ring's generation is odd exactly while the ring is enabled, and every change
//! of it is announced to all nodes. A message leaves only with a credit of that generation, so that
//! every message finds a slot. A VPID is in the set of unread ones while its ring may have unread
//! messages, and in the set of pending control while it has credit to return or an announcement to
//! send.

mod address;
mod assembly;
mod control;
mod receive;
mod registers;
mod ring;
mod row;
mod send;
mod stall;

use std::sync::atomic::Ordering;

use nicforge_core::ids::AttachmentId;
use nicforge_hwi::extoll::{error, reg};
use nicforge_kit::{Server, WatchdogLimit};
use nicforge_shm::SharedU64;

pub(crate) use self::registers::Register;
use self::{
    assembly::Assembly,
    control::Announcement,
    ring::{LIMITS, Ring},
    stall::Stall,
};
use crate::{
    attachment::Set, failure::Failure, per_client::PerClient, ring_registers::RingRegisters,
    unit::UnitContext,
};

/// Bytes of a quadword, the unit of the lengths of messages.
const QUADWORD: usize = 8;

/// VELO counters of an attachment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    /// Number of sends that had to wait for credit.
    pub(crate) stalls: u64,
    pub(crate) received: u64,
    pub(crate) undelivered: u64,
    /// Number of sends that the watchdog has ended.
    given_up: u64,
}

impl Counts {
    /// Returns the number of sends that the card has finished with.
    fn finished(&self) -> u64 {
        self.sent + self.undelivered + self.given_up
    }
}

/// VELO counters of a card, of all attachments and tenants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) sent: u64,
    /// Messages put into this card's rings.
    pub(crate) delivered: u64,
    /// Messages that no ring took.
    pub(crate) undelivered: u64,
    /// Times that a send began to wait for credit.
    pub(crate) stalls: u64,
    /// Sends that the watchdog has ended.
    pub(crate) given_up: u64,
    /// Split messages that were not completed.
    pub(crate) torn: u64,
}

/// VELO state of an attachment.
#[derive(Default)]
struct Client {
    /// The receive ring's registers.
    registers: RingRegisters,
    ring: Option<Ring>,
    /// Generation of the receive ring, odd while the ring is enabled. It outlives tenants and
    /// resets.
    generation: u8,
    /// The change of the ring that is being announced, if any.
    announcement: Option<Announcement>,
    /// The client's read pointer of the ring, while a client is attached.
    read_pointer: Option<SharedU64>,
    /// The split message that is being sent.
    assembly: Assembly,
    /// The send that has to wait, if any.
    stall: Option<Stall>,
    counts: Counts,
}

impl Client {
    /// Returns whether a poll of the read pointer may change something. It changes nothing if the
    /// ring has unread messages, the pointer is where it was, and no credit is due.
    #[inline]
    fn needs_poll(&self) -> bool {
        let Self { ring: Some(ring), read_pointer: Some(pointer), .. } = self else { return true };
        !ring.has_unread() || ring.has_credit_due() || pointer.load(Ordering::Acquire) != ring.taken()
    }

    /// Records that the ring was enabled or disabled.
    fn begin_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.announcement = Some(Announcement::default());
    }
}

/// Returns the cycles of the core for which the unit is busy with a message of `bytes` bytes: one
/// for each word of 32 bits of the message and of the quadword in front of it.
fn cycles(bytes: usize) -> u32 {
    const WORD: usize = 4;
    // The value fits: a message has at most MAX_MESSAGE bytes.
    (QUADWORD + bytes).div_ceil(WORD) as u32
}

/// A card's VELO unit.
pub(crate) struct Velo {
    /// State by attachment.
    clients: PerClient<Client>,
    /// Limit of the send watchdog.
    watchdog: WatchdogLimit,
    /// VPIDs with unread messages, whose read pointers are polled.
    unread: Set,
    /// VPIDs with an incomplete split message.
    splits: Set,
    /// VPIDs that have credit to return or an announcement to send.
    with_pending_control: Set,
    /// The next node that is asked for its enabled rings, after a reset.
    next_request: Option<u32>,
    /// The part of the unit that sends messages.
    send_engine: Server,
    /// The part of the unit that delivers messages.
    receive_engine: Server,
    /// Counters. `sent` leaves out the messages of the present tenants, which their own counters
    /// have.
    totals: Totals,
}

impl Velo {
    /// Returns the unit of a card with this number of attachments.
    pub(crate) fn new(attachments: usize, watchdog: u64) -> Self {
        Self {
            clients: PerClient::new(attachments),
            watchdog: WatchdogLimit::new(watchdog),
            unread: Set::default(),
            splits: Set::default(),
            with_pending_control: Set::default(),
            next_request: None,
            send_engine: Server::default(),
            receive_engine: Server::default(),
            totals: Totals::default(),
        }
    }

    /// Allocates the state of an attachment whose client is about to attach.
    pub(crate) fn open(&mut self, attachment: AttachmentId) {
        self.clients.open(attachment);
    }

    /// Returns an attachment's state, if it has or had a client.
    #[inline]
    fn client(&mut self, attachment: AttachmentId) -> Option<&mut Client> {
        self.clients.get_mut(attachment)
    }

    /// Returns an attachment's counters, if it has or had a client.
    #[inline]
    pub(crate) fn counts(&self, attachment: AttachmentId) -> Option<&Counts> {
        self.clients.get(attachment).map(|client| &client.counts)
    }

    /// Returns the counters of the card.
    pub(crate) fn totals(&self) -> Totals {
        let sent = self.clients.iter().map(|client| client.counts.sent).sum::<u64>();
        Totals { sent: self.totals.sent + sent, ..self.totals }
    }

    /// Begins a tenancy with the state of power-on. Generation and announcement outlive tenants.
    pub(crate) fn power_on(&mut self, attachment: AttachmentId, read_pointer: Option<SharedU64>) {
        self.disable_ring(attachment);
        let Some(client) = self.client(attachment) else { return };

        let (generation, announcement) = (client.generation, client.announcement);
        let sent = client.counts.sent;
        *client = Client { generation, announcement, read_pointer, ..Client::default() };
        self.totals.sent += sent;
    }

    /// Disables the receive ring of a client that has left, and drops its read pointer.
    pub(crate) fn detach(&mut self, attachment: AttachmentId) {
        self.disable_ring(attachment);
        if let Some(client) = self.client(attachment) {
            client.read_pointer = None;
        }
    }

    /// Returns the unit's own state to that of power-on, and asks all nodes for their enabled
    /// rings.
    pub(crate) fn reset_unit(&mut self, watchdog: u64) {
        self.watchdog = WatchdogLimit::new(watchdog);
        self.next_request = Some(0);
    }

    /// Reads a VPID's read pointer, and returns whether its ring has unread messages.
    pub(crate) fn poll_unread(&mut self, unit: &mut UnitContext<'_, '_>, attachment: AttachmentId) -> bool {
        self.poll_read_pointer(unit, attachment);
        self.client(attachment).is_some_and(|client| client.ring.as_ref().is_some_and(Ring::has_unread))
    }

    /// Enables or disables a receive ring. A ring that can't be used counts as an error.
    fn set_ring_enabled(&mut self, unit: &mut UnitContext<'_, '_>, attachment: AttachmentId, on: bool) {
        let nodes = unit.parts.config.nodes;
        let Some(client) = self.client(attachment) else { return };
        if on == client.ring.is_some() {
            return;
        }
        if !on {
            self.disable_ring(attachment);
            return;
        }

        let registers = client.registers;
        // Each node needs a slot at least.
        let has_enough_slots = registers.entries >= u64::from(nodes);
        let memory = if has_enough_slots { unit.lease_ring(attachment, registers, &LIMITS) } else { None };

        match memory {
            Some(memory) => {
                client.ring = Some(Ring::new(memory, registers, nodes));
                client.begin_generation();
                self.with_pending_control.add(attachment);
            }
            None => unit.fail(attachment, Failure::of_register(error::RING, reg::VELO_RING_ENABLE)),
        }
    }

    /// Disables a receive ring, so that no card can send to the VPID any more.
    fn disable_ring(&mut self, attachment: AttachmentId) {
        let Some(client) = self.client(attachment) else { return };
        if client.ring.take().is_some() {
            client.begin_generation();
            self.with_pending_control.add(attachment);
            self.unread.remove(attachment);
        }
    }

    /// Returns whether a step has work of this unit, apart from packets and stores.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !self.with_pending_control.is_empty()
            || !self.splits.is_empty()
            || self.next_request.is_some()
            || (!self.unread.is_empty() && self.is_any_poll_needed())
    }

    /// Returns whether a poll of the read pointer of any VPID with unread messages may change
    /// something.
    #[inline(never)]
    fn is_any_poll_needed(&self) -> bool {
        let mut next = self.unread.first();
        while let Some(attachment) = next {
            if self.clients.get(attachment).is_none_or(Client::needs_poll) {
                return true;
            }
            next = self.unread.next_after(attachment);
        }
        false
    }

    /// Polls the read pointers of VPIDs with unread messages. Returns the number of VPIDs that have
    /// credit to return.
    pub(crate) fn poll_read_pointers(&mut self, unit: &mut UnitContext<'_, '_>) -> u32 {
        let mut due = 0;
        let mut next = self.unread.first();
        while let Some(attachment) = next {
            // Most polls find the pointer where it was.
            if self.clients.get(attachment).is_none_or(Client::needs_poll) {
                due += u32::from(self.poll_read_pointer(unit, attachment));
            }
            next = self.unread.next_after(attachment);
        }
        due
    }

    /// Reads a VPID's read pointer of its receive ring, and frees the slots before it. Returns
    /// whether the VPID has credit to return.
    fn poll_read_pointer(&mut self, unit: &mut UnitContext<'_, '_>, attachment: AttachmentId) -> bool {
        let Some(Client { ring: Some(ring), read_pointer: Some(pointer), .. }) =
            self.clients.get_mut(attachment)
        else {
            return false;
        };

        let pointer = pointer.load(Ordering::Acquire);
        let is_valid = ring.free_up_to(pointer);
        if !ring.has_unread() {
            self.unread.remove(attachment);
        }

        let due = ring.has_credit_due();
        if due {
            self.with_pending_control.add(attachment);
        }

        if !is_valid {
            unit.fail(attachment, Failure::new(error::READ_POINTER).with_value(Some(pointer)));
            // The pointer is read again when the next message arrives, so a wrong value counts
            // once.
            self.unread.remove(attachment);
        }

        due
    }
}
