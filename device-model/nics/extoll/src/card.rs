//! The state of a card, and the changes that concern all its units.

use nicforge_core::{context::Context, ids::AttachmentId};
use nicforge_hwi::extoll::{error, mirror, vector};

use crate::{
    atu::Atu,
    config::{CardConfig, ConfigError},
    directory::Directory,
    rma::{Counts, Rma},
    set::Set,
    switch::Switch,
    velo::ring::Ring,
    vpid::{Announcement, Vpid, Windows},
    work::{self, Work},
};

/// Delay before a retry when the fabric's packets were all in use, in nanoseconds.
pub(crate) const STARVED_RETRY: u64 = 10_000;

/// An EXTOLL card; the crate's documentation describes it.
pub struct Card {
    pub(crate) config: CardConfig,
    pub(crate) switch: Switch,
    pub(crate) directory: Directory,
    /// State by attachment: the VPIDs, then the admin.
    pub(crate) vpids: Vec<Vpid>,
    pub(crate) atu: Atu,
    pub(crate) work: Work,
    pub(crate) rma: Rma,
    /// Limit of the send watchdog, in nanoseconds; 0 disables it.
    pub(crate) watchdog: u64,
    /// The VPID whose errors the admin reads.
    pub(crate) selected: u64,
    /// VPIDs with unread messages, whose read pointers are polled.
    pub(crate) unread: Set,
    /// Attachments whose counters must be shown at the end of the step.
    pub(crate) with_changed_counters: Set,
    /// VPIDs with an incomplete split message.
    pub(crate) splits: Set,
    /// VPIDs that owe credit or have an announcement to send.
    pub(crate) with_pending_control: Set,
    /// Number of clients.
    pub(crate) clients: u32,
    /// The next node that is asked for its enabled rings, after a reset.
    pub(crate) next_request: Option<u32>,
    /// Messages put into this card's rings.
    pub(crate) delivered: u64,
    /// Messages that no ring took.
    pub(crate) undelivered: u64,
    /// Messages that earlier tenants have sent.
    pub(crate) sent_before: u64,
    /// Times that a send began to wait for credit.
    pub(crate) stalls: u64,
    /// Errors of all attachments.
    pub(crate) errors: u64,
    /// Sends that the watchdog has ended.
    pub(crate) watchdogs: u64,
    /// Split messages that were not completed.
    pub(crate) torn: u64,
}

impl Card {
    /// Builds a card in the state of power-on.
    ///
    /// # Errors
    /// The configuration is not valid.
    pub fn new(config: CardConfig) -> Result<Self, ConfigError> {
        config.validate()?;

        Ok(Self {
            switch: Switch::new(config.node, config.routes.clone()),
            directory: Directory::new(config.nodes, config.vpids),
            vpids: (0..=config.vpids).map(|_| Vpid::default()).collect(),
            atu: Atu::new(config.vpids),
            work: Work::default(),
            rma: Rma::new(usize::from(config.vpids) + 1, config.rma_watchdog),
            watchdog: config.watchdog,
            selected: 0,
            unread: Set::default(),
            with_changed_counters: Set::default(),
            splits: Set::default(),
            with_pending_control: Set::default(),

            clients: 0,
            next_request: None,
            delivered: 0,
            undelivered: 0,
            sent_before: 0,
            stalls: 0,
            errors: 0,
            watchdogs: 0,
            torn: 0,
            config,
        })
    }

    /// Returns the admin's attachment.
    pub fn admin(&self) -> AttachmentId {
        AttachmentId(self.config.vpids)
    }

    /// Returns an attachment's state, if the attachment exists.
    #[inline]
    pub(crate) fn vpid(&mut self, who: AttachmentId) -> Option<&mut Vpid> {
        self.vpids.get_mut(usize::from(who.0))
    }

    /// Counts an error of an attachment and raises its error interrupt.
    #[cold]
    pub(crate) fn fail(&mut self, context: &mut Context<'_>, who: AttachmentId, code: u8, about: u64) {
        self.errors += 1;
        let Some(vpid) = self.vpid(who) else { return };

        vpid.counts.errors += 1;
        vpid.counts.last_error = u64::from(code) | (about & 0xffff_ffff) << 8;
        self.with_changed_counters.add(who.0);
        self.raise(context, who, vector::ERROR);
    }

    /// Marks an attachment's counters to be shown at the end of the step.
    #[inline]
    pub(crate) fn show(&mut self, who: AttachmentId) {
        self.with_changed_counters.add(who.0);
    }

    /// Raises an interrupt if it is enabled, and disables it.
    pub(crate) fn raise(&mut self, context: &mut Context<'_>, who: AttachmentId, vector: u16) {
        let Some(vpid) = self.vpid(who) else { return };
        if vpid.interrupts_enabled & (1 << vector) != 0 {
            vpid.interrupts_enabled &= !(1 << vector);
            context.interrupt(who, vector);
        }
    }

    /// Handles a write of the interrupt enable register. An interrupt whose condition holds already
    /// is raised at once.
    pub(crate) fn enable_interrupts(&mut self, context: &mut Context<'_>, who: AttachmentId, value: u64) {
        self.look_at_read_pointer(context, who.0);
        let Some(vpid) = self.vpid(who) else { return };
        vpid.interrupts_enabled = value & ((1 << vector::COUNT) - 1);

        if vpid.ring.as_ref().is_some_and(Ring::has_unread) {
            self.raise(context, who, vector::VELO_RECEIVE);
        }
        if self.poll_notifications(context, who) {
            self.raise(context, who, vector::RMA_NOTIFICATION);
        }
    }

    /// Handles a write of the receive ring's enable register. A ring that can't be used counts as
    /// an error.
    pub(crate) fn enable_ring(&mut self, context: &mut Context<'_>, who: AttachmentId, on: bool) {
        let nodes = self.config.nodes;
        let admin = self.admin();

        let Some(vpid) = self.vpid(who) else { return };
        if on == vpid.ring.is_some() {
            return;
        }
        if !on {
            self.disable_ring(who);
            return;
        }

        let registers = vpid.ring_registers;
        let memory = if who != admin && registers.is_sound(nodes) {
            let bytes = registers.slots * nicforge_hwi::extoll_velo::SLOT;
            self.work.spend(work::of_lease(context, who, registers.base, bytes));
            // A slot may lie in two mappings, but its header is written in one access.
            context.dma_lease(who, registers.base, bytes, true).ok().filter(|memory| memory.keeps_whole(8))
        } else {
            None
        };

        let Some(memory) = memory else {
            self.fail(context, who, error::RING, nicforge_hwi::extoll::reg::VELO_RING_ENABLE);
            return;
        };

        let Some(vpid) = self.vpid(who) else { return };
        vpid.ring = Some(Ring::new(memory, registers, nodes));
        vpid.generation = vpid.generation.wrapping_add(1);
        vpid.announcement = Some(Announcement { next: 0 });
        self.with_pending_control.add(who.0);
    }

    /// Disables the VPID's receive ring, so that no card can send to the VPID any more.
    pub(crate) fn disable_ring(&mut self, who: AttachmentId) {
        let Some(vpid) = self.vpid(who) else { return };
        if vpid.ring.take().is_some() {
            vpid.generation = vpid.generation.wrapping_add(1);
            vpid.announcement = Some(Announcement { next: 0 });
            self.with_pending_control.add(who.0);
            self.unread.remove(who.0);
        }
    }

    /// Resets a VPID on the admin's behalf, with the same effect as the client's own reset.
    pub(crate) fn restart(&mut self, context: &mut Context<'_>, who: AttachmentId) {
        self.work.spend(self.atu.cost_of_all(who));
        self.power_on(context, who);
    }

    /// Returns an attachment to the state of power-on. Generation, announcement and counters that
    /// outlive tenants are kept.
    pub(crate) fn power_on(&mut self, context: &Context<'_>, who: AttachmentId) {
        self.work.forget(who.0);
        self.disable_ring(who);
        self.rma_power_on(who);

        let (node, nodes, vpids) = (self.config.node, self.config.nodes, self.config.vpids);
        let Some(vpid) = self.vpid(who) else { return };
        let (generation, announcement, sent) = (vpid.generation, vpid.announcement, vpid.counts.sent);
        let (starts, windows) = (vpid.starts + 1, Windows::open(context, who));
        *vpid = Vpid { generation, announcement, starts, windows, ..Vpid::default() };

        if let Some(windows) = &vpid.windows {
            windows.show(mirror::NODE, u64::from(node) | u64::from(who.0) << 32);
            windows.show(mirror::NODES, u64::from(nodes) | u64::from(vpids) << 32);
            windows.show(mirror::STARTS, starts);
        }

        vpid.show_counts(Counts::default());
        self.sent_before += sent;
    }

    /// Clears the card's knowledge of the network, and asks all nodes for their enabled rings.
    pub(crate) fn forget(&mut self, context: &mut Context<'_>) {
        self.directory.forget();
        self.watchdog = self.config.watchdog;
        self.rma.watchdog.set_limit(context, self.config.rma_watchdog);
        self.selected = 0;
        self.next_request = Some(0);
    }
}
