//! State of each attachment that has or had a client.
//!
//! A machine of hundreds of nodes has thousands of attachments without software. Their state is
//! allocated when the first client comes, and kept for those after it.

use nicforge_core::ids::AttachmentId;

/// State by attachment. Attachments that never had a client have none.
pub(crate) struct PerClient<T>(Vec<Option<Box<T>>>);

impl<T: Default> PerClient<T> {
    /// Returns the state of a card with this number of attachments, without clients.
    pub(crate) fn new(attachments: usize) -> Self {
        Self((0..attachments).map(|_| None).collect())
    }

    /// Allocates the default state of an attachment, unless it has state of an earlier client.
    pub(crate) fn open(&mut self, id: AttachmentId) {
        if let Some(state) = self.0.get_mut(usize::from(id.0)) {
            state.get_or_insert_default();
        }
    }

    /// Returns an attachment's state.
    #[inline]
    pub(crate) fn get(&self, id: AttachmentId) -> Option<&T> {
        self.0.get(usize::from(id.0))?.as_deref()
    }

    /// Returns an attachment's state for changes.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: AttachmentId) -> Option<&mut T> {
        self.0.get_mut(usize::from(id.0))?.as_deref_mut()
    }

    /// Returns the states of the attachments that have or had a client.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().filter_map(Option::as_deref)
    }

    /// Returns the attachments that have or had a client, with their states.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (AttachmentId, &mut T)> {
        // The number of attachments fits: there are at most MAX_VPIDS and the admin.
        self.0.iter_mut().zip(0..).filter_map(|(state, id)| Some((AttachmentId(id), state.as_deref_mut()?)))
    }

    /// Returns the ids of all attachments, with and without state.
    pub(crate) fn ids(&self) -> impl Iterator<Item = AttachmentId> + use<T> {
        (0..self.0.len() as u16).map(AttachmentId)
    }
}
