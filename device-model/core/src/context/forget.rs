//! Reads that a device no longer wants.

use super::{Context, Outgoing};
use crate::{
    attachment::RemoteRead,
    ids::{AttachmentId, DmaToken},
};

impl Context<'_> {
    /// Forgets all DMA reads of an attachment that are in progress, as a soft reset does: no
    /// [`crate::device::Device::dma_done`] follows for them. Their tokens may be used again.
    ///
    /// A read that has been sent as a message still counts against [`super::MAX_REMOTE`] until the
    /// client replies. The reply is dropped.
    pub fn forget_reads(&mut self, attachment_id: AttachmentId) {
        self.forget_matching(attachment_id, |_| true);
    }

    /// Forgets the DMA reads of an attachment with this token, as [`Context::forget_reads`] does.
    pub fn forget_read(&mut self, attachment_id: AttachmentId, token: DmaToken) {
        self.forget_matching(attachment_id, |other| other == token);
    }

    /// Drops the results of an attachment's reads whose tokens `forgets` selects, done or not.
    /// Their late answers are dropped when they arrive.
    fn forget_matching(&mut self, attachment_id: AttachmentId, forgets: impl Fn(DmaToken) -> bool) {
        self.shared
            .drop_results(self.function, |done| done.attachment_id == attachment_id && forgets(done.token));

        let attachment = self.function.attachments.get_mut(usize::from(attachment_id.0));
        let Some(tenant) = attachment.and_then(|attachment| attachment.tenant.as_mut()) else { return };
        let reads = &mut tenant.remote_reads;
        // A forgotten read has no token.
        let count_forgotten = |reads: &[RemoteRead]| reads.iter().filter(|read| read.token.is_none()).count();
        let forgotten_before = count_forgotten(reads);
        for read in &mut *reads {
            read.token = read.token.filter(|&token| !forgets(token));
        }
        if count_forgotten(reads) == forgotten_before {
            return;
        }

        // A message that has not been sent is dropped, and no longer counts against the limit.
        let owner = (self.function.id, attachment_id);
        self.shared.outgoing.retain(|message| {
            let Outgoing::DmaRead { id, function, attachment, .. } = message else { return true };
            if (*function, *attachment) != owner {
                return true;
            }

            let forgotten = reads.iter().position(|read| read.id == *id && read.token.is_none());
            if let Some(index) = forgotten {
                reads.swap_remove(index);
            }
            forgotten.is_none()
        });
    }
}
