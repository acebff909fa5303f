//! The subgroups that have a client.
//!
//! In: clients that come and go. Out: the state of each subgroup. May touch: its own state.

use nicforge_core::{context::Context, ids::AttachmentId};
use nicforge_hwi::mu::SUBGROUPS;
use nicforge_kit::AttachmentSet;

use super::subgroup::Subgroup;

/// A set of subgroups. The kit's sets hold attachment ids; here, the number in an id is a
/// subgroup's.
type SubgroupSet = AttachmentSet<{ (SUBGROUPS as usize).div_ceil(64) }>;

/// The subgroups of a node.
pub(crate) struct Subgroups {
    /// The states of those that have a client, by their numbers.
    list: Vec<Option<Box<Subgroup>>>,
    /// Subgroups whose pages must be updated at the end of the step.
    changed: SubgroupSet,
    /// Subgroups that have a client.
    present: SubgroupSet,
}

impl Subgroups {
    /// Returns subgroups without clients.
    pub(crate) fn new() -> Self {
        let list = (0..SUBGROUPS).map(|_| None).collect();
        Self { list, changed: SubgroupSet::default(), present: SubgroupSet::default() }
    }

    /// Returns a subgroup that has a client.
    #[inline]
    pub(crate) fn get(&self, subgroup_id: u16) -> Option<&Subgroup> {
        self.list.get(usize::from(subgroup_id))?.as_deref()
    }

    /// Returns a subgroup that has a client, for changes.
    #[inline]
    pub(crate) fn get_mut(&mut self, subgroup_id: u16) -> Option<&mut Subgroup> {
        self.list.get_mut(usize::from(subgroup_id))?.as_deref_mut()
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
        let subgroup_id = subgroup.id;
        if let Some(entry) = self.list.get_mut(usize::from(subgroup_id)) {
            *entry = Some(Box::new(subgroup));
            self.present.add(AttachmentId(subgroup_id));
            self.mark_changed(subgroup_id);
        }
    }

    /// Drops the state of a subgroup whose client has left.
    pub(crate) fn close(&mut self, subgroup_id: u16) {
        if let Some(entry) = self.list.get_mut(usize::from(subgroup_id)) {
            *entry = None;
            self.present.remove(AttachmentId(subgroup_id));
            self.changed.remove(AttachmentId(subgroup_id));
        }
    }

    /// Marks a subgroup whose page must be updated at the end of the step.
    #[inline]
    pub(crate) fn mark_changed(&mut self, subgroup_id: u16) {
        self.changed.add(AttachmentId(subgroup_id));
    }

    /// Publishes what has changed in the pages of subgroups, and then raises their interrupts.
    #[inline]
    pub(crate) fn publish_changes(&mut self, context: &mut Context<'_>) {
        let mut next = self.changed.first();
        while let Some(member) = next {
            if let Some(subgroup) = self.list.get_mut(usize::from(member.0)).and_then(Option::as_deref_mut) {
                subgroup.publish_changes();
                let attachment_id = subgroup.owner().attachment;
                let vectors = subgroup.interrupts.take_vectors();
                raise(context, attachment_id, vectors);
                context.note_change();
            }
            self.changed.remove(member);
            next = self.changed.next_after(member);
        }
    }
}

/// Raises the interrupts of an attachment whose vectors are set in a bit mask.
pub(crate) fn raise(context: &mut Context<'_>, attachment_id: AttachmentId, mut vectors: u32) {
    while vectors != 0 {
        context.interrupt(attachment_id, vectors.trailing_zeros() as u16);
        vectors &= vectors - 1;
    }
}
