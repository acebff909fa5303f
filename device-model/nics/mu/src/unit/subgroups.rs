//! The subgroups that have a client.
//!
//! In: clients that come and go. Out: the state of each subgroup. May touch: its own state.

use nicforge_core::{context::Context, ids::AttachmentId};
use nicforge_hwi::mu::SUBGROUPS;
use nicforge_kit::AttachmentSet;

use super::subgroup::Subgroup;

/// A set of subgroups. The kit's sets are of attachments; here, a member is a subgroup's number.
type Set = AttachmentSet<{ (SUBGROUPS as usize).div_ceil(64) }>;

/// The states, by number.
pub(crate) struct Subgroups {
    list: Vec<Option<Box<Subgroup>>>,
    /// Subgroups whose pages must be shown at the end of the step.
    changed: Set,
    present: Set,
}

impl Subgroups {
    /// Returns no states.
    pub(crate) fn new() -> Self {
        let list = (0..SUBGROUPS).map(|_| None).collect();
        Self { list, changed: Set::default(), present: Set::default() }
    }

    /// Returns a subgroup that has a client.
    #[inline]
    pub(crate) fn get(&self, number: u16) -> Option<&Subgroup> {
        self.list.get(usize::from(number))?.as_deref()
    }

    /// Returns a subgroup that has a client, for changes.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u16) -> Option<&mut Subgroup> {
        self.list.get_mut(usize::from(number))?.as_deref_mut()
    }

    /// Returns the numbers of the subgroups that have clients.
    pub(crate) fn present(&self) -> impl Iterator<Item = u16> + use<> {
        self.present.iter().map(|member| member.0)
    }

    /// Returns how many subgroups have clients.
    pub(crate) fn count(&self) -> usize {
        self.present.iter().count()
    }

    /// Sets the state of a subgroup whose client has come, or was reset.
    pub(crate) fn open(&mut self, subgroup: Subgroup) {
        let number = subgroup.number;
        if let Some(entry) = self.list.get_mut(usize::from(number)) {
            *entry = Some(Box::new(subgroup));
            self.present.add(AttachmentId(number));
            self.mark_changed(number);
        }
    }

    /// Drops the state of a subgroup whose client has left.
    pub(crate) fn close(&mut self, number: u16) {
        if let Some(entry) = self.list.get_mut(usize::from(number)) {
            *entry = None;
            self.present.remove(AttachmentId(number));
            self.changed.remove(AttachmentId(number));
        }
    }

    /// Marks a subgroup's page to be shown at the end of the step.
    #[inline]
    pub(crate) fn mark_changed(&mut self, number: u16) {
        self.changed.add(AttachmentId(number));
    }

    /// Shows the pages that have changed, and then raises the interrupts that tell of it.
    #[inline]
    pub(crate) fn show_changes(&mut self, context: &mut Context<'_>) {
        let mut next = self.changed.first();
        while let Some(member) = next {
            if let Some(subgroup) = self.list.get_mut(usize::from(member.0)).and_then(Option::as_deref_mut) {
                subgroup.show_changes();
                let (attachment_id, vectors) =
                    (subgroup.owner().attachment, subgroup.interrupts.take_vectors());
                raise(context, attachment_id, vectors);
            }
            self.changed.remove(member);
            next = self.changed.next_after(member);
        }
    }
}

/// Raises the vectors of a bit mask.
pub(crate) fn raise(context: &mut Context<'_>, attachment_id: AttachmentId, mut vectors: u32) {
    while vectors != 0 {
        context.interrupt(attachment_id, vectors.trailing_zeros() as u16);
        vectors &= vectors - 1;
    }
}
