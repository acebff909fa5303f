//! The attachments of a card: the VPIDs, then the admin.
//!
//! An attachment owns its mirror page, its error words and its interrupt enables. Its messages and
//! rings are VELO's (`velo`), its commands and notifications RMA's (`rma`), its registrations the
//! ATU's (`atu`).
//!
//! In: errors, conditions of interrupts, and counters of the units. Out: interrupts, the mirror.
//!
//! *Invariant:* [`Attachments::fail`] is the only function that counts an error, and
//! [`Attachments::raise`] the only function that raises an interrupt. The mirror lags behind the
//! counters until the end of the step or the next read of a register, and only for attachments in
//! the set of changed ones.

use nicforge_core::{context::Context, ids::AttachmentId};
use nicforge_hwi::extoll::{MAX_VPIDS, vector, window};
use nicforge_kit::{AttachmentSet, InterruptEnables};
use nicforge_shm::SharedU64;

use crate::{config::CardConfig, failure::Failure, mirror::Mirror, per_client::PerClient, rma, velo};

/// A set of a card's attachments.
pub(crate) type Set = AttachmentSet<{ (MAX_VPIDS as usize + 1).div_ceil(64) }>;

/// The mapped windows of a client, all present while it is attached.
pub(crate) struct Windows {
    pub(crate) mirror: Mirror,
    /// Number of messages that the client has taken from its receive ring.
    pub(crate) velo_read_pointer: SharedU64,
    /// Number of notifications that the client has taken from its queue.
    pub(crate) rma_read_pointer: SharedU64,
}

impl Windows {
    /// Opens a client's windows; returns `None` if there is no client.
    pub(crate) fn open(context: &Context<'_>, id: AttachmentId) -> Option<Self> {
        let (windows, mirrors) = (context.memory(id, 1)?, context.memory(id, 2)?);

        // The offsets are constants inside the BARs that the card's description asks for.
        Some(Self {
            mirror: Mirror::open(&mirrors).ok()?,
            velo_read_pointer: windows.u64(window::VELO_READ_POINTER).ok()?,
            rma_read_pointer: windows.u64(window::RMA_READ_POINTER).ok()?,
        })
    }
}

/// The error words of an attachment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ErrorWords {
    /// Number of errors so far.
    pub(crate) count: u64,
    /// The last error, as in [`nicforge_hwi::extoll::mirror::LAST_ERROR`].
    pub(crate) last: u64,
}

/// One attachment.
#[derive(Default)]
struct Attachment {
    /// The card's page of the client's mirror, while a client is attached.
    mirror: Option<Mirror>,
    /// Number of starts, as in [`nicforge_hwi::extoll::mirror::STARTS`].
    starts: u64,
    interrupts: InterruptEnables<{ vector::COUNT }>,
    errors: ErrorWords,
}

/// All attachments of a card.
pub(crate) struct Attachments {
    list: PerClient<Attachment>,
    /// Attachments with counters that are not yet written to their mirrors.
    with_changed_counters: Set,
    /// Number of errors of all attachments and tenants.
    errors: u64,
}

impl Attachments {
    /// Returns the attachments of a card with this number of VPIDs, none of them with a client.
    pub(crate) fn new(vpids: u16) -> Self {
        Self {
            list: PerClient::new(usize::from(vpids) + 1),
            with_changed_counters: Set::default(),
            errors: 0,
        }
    }

    /// Returns the ids of all attachments.
    pub(crate) fn ids(&self) -> impl Iterator<Item = AttachmentId> + use<> {
        self.list.ids()
    }

    /// Allocates the state of an attachment whose client is about to attach.
    pub(crate) fn open(&mut self, id: AttachmentId) {
        self.list.open(id);
    }

    /// Returns an attachment, if it has or had a client.
    fn get(&mut self, id: AttachmentId) -> Option<&mut Attachment> {
        self.list.get_mut(id)
    }

    /// Returns whether an attachment has a client.
    #[inline]
    pub(crate) fn is_present(&self, id: AttachmentId) -> bool {
        self.list.get(id).is_some_and(|attachment| attachment.mirror.is_some())
    }

    /// Returns the number of errors of all attachments and tenants.
    pub(crate) fn errors(&self) -> u64 {
        self.errors
    }

    /// Returns the number of errors of an attachment; 0 if it does not exist.
    pub(crate) fn errors_of(&self, id: u64) -> u64 {
        let attachment = u16::try_from(id).ok().and_then(|id| self.list.get(AttachmentId(id)));
        attachment.map_or(0, |attachment| attachment.errors.count)
    }

    /// Returns an attachment to the state of power-on, and writes that state to the client's
    /// mirror, if there is a client.
    pub(crate) fn power_on(&mut self, config: &CardConfig, id: AttachmentId, mirror: Option<Mirror>) {
        let Some(attachment) = self.get(id) else { return };

        let starts = attachment.starts + 1;
        *attachment = Attachment { mirror, starts, ..Attachment::default() };
        if let Some(mirror) = &mut attachment.mirror {
            mirror.show_identity(config, id, starts);
        }
    }

    /// Drops the windows of a client that has left.
    pub(crate) fn detach(&mut self, id: AttachmentId) {
        if let Some(attachment) = self.get(id) {
            attachment.mirror = None;
        }
    }

    /// Counts an error of an attachment, logs it, and raises the error interrupt.
    #[cold]
    pub(crate) fn fail(&mut self, context: &mut Context<'_>, id: AttachmentId, failure: Failure) {
        context.warn(id, failure.warning());
        self.errors += 1;
        let Some(attachment) = self.get(id) else { return };

        attachment.errors.count += 1;
        attachment.errors.last = failure.last_error();
        self.mark_changed(id);
        self.raise(context, id, vector::ERROR);
    }

    /// Raises an interrupt if it is enabled, and then disables it: the client enables it again when
    /// it has handled the interrupt.
    pub(crate) fn raise(&mut self, context: &mut Context<'_>, id: AttachmentId, vector: u16) {
        let Some(attachment) = self.get(id) else { return };
        if attachment.interrupts.take(vector) {
            context.interrupt(id, vector);
        }
    }

    /// Returns the enabled interrupts of an attachment, one bit for each vector.
    pub(crate) fn interrupts_enabled(&self, id: AttachmentId) -> u64 {
        let attachment = self.list.get(id);
        attachment.map_or(0, |attachment| attachment.interrupts.bits().into())
    }

    /// Returns whether an attachment's interrupt is enabled.
    #[inline]
    pub(crate) fn is_interrupt_enabled(&self, id: AttachmentId, vector: u16) -> bool {
        self.list.get(id).is_some_and(|attachment| attachment.interrupts.has(vector))
    }

    /// Sets the enabled interrupts of an attachment.
    pub(crate) fn enable_interrupts(&mut self, id: AttachmentId, enabled: u64) {
        if let Some(attachment) = self.get(id) {
            // The vectors that exist are in the lower half.
            attachment.interrupts.set(enabled as u32);
        }
    }

    /// Records that an attachment's counters have changed. They are written to its mirror at the
    /// end of the step, or when a register is read.
    #[inline]
    pub(crate) fn mark_changed(&mut self, id: AttachmentId) {
        self.with_changed_counters.add(id);
    }

    /// Returns whether counters have changed that are not written to a mirror.
    #[inline]
    pub(crate) fn has_changes(&self) -> bool {
        !self.with_changed_counters.is_empty()
    }

    /// Writes the counters of the attachments that were marked as changed to their mirrors.
    /// `counts` returns an attachment's counters of VELO and RMA.
    #[inline]
    pub(crate) fn show_changes<'a>(
        &mut self,
        counts: impl Fn(AttachmentId) -> Option<(&'a velo::Counts, &'a rma::Counts)>,
    ) {
        if !self.has_changes() {
            return;
        }

        let mut next = self.with_changed_counters.first();
        while let Some(id) = next {
            if let Some(Attachment { mirror: Some(mirror), errors, .. }) = self.get(id)
                && let Some((velo, rma)) = counts(id)
            {
                mirror.show_changes(velo, rma, errors);
            }
            self.with_changed_counters.remove(id);
            next = self.with_changed_counters.next_after(id);
        }
    }
}
