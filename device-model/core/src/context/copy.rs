//! Accesses to client memory that end within the call.
//!
//! They serve memory that is mapped into this process. For other memory they answer
//! [`DmaError::Remote`], and change nothing; the device then reads with [`Context::dma_read`] and
//! writes with [`Context::dma_write`].

use super::{Context, check_may_dma, has_writes_in_flight};
use crate::{
    attachment::Attachment,
    dma::{DmaAccess, DmaError, WordUpdate},
    ids::AttachmentId,
    trace::Event,
};

impl Context<'_> {
    /// Copies at most [`crate::dma::MAX_DMA`] bytes of client memory at `iova` to `out`.
    ///
    /// Copies are made in the order of the calls. After a word with which the client hands over
    /// data, a later copy finds the data. A single copy may find the word and miss the data, so the
    /// word must be copied first. An aligned word of 1, 2, 4 or 8 bytes is copied in one piece.
    ///
    /// # Errors
    /// [`DmaError::Remote`] if a part is reached by messages only. The device then calls
    /// [`Context::dma_read`], which counts the access, so this error is not counted. Every other
    /// error is final, and the device should set its error bit. After [`DmaError::Faulted`], the
    /// content of `out` is arbitrary; after the other errors it is unchanged.
    pub fn copy_from(
        &mut self,
        attachment_id: AttachmentId,
        iova: u64,
        out: &mut [u8],
    ) -> Result<(), DmaError> {
        let attachment =
            self.function.attachments.get_mut(usize::from(attachment_id.0)).ok_or(DmaError::Gone)?;
        let result = check_may_dma(attachment).and_then(|()| attachment.dma.read_local(iova, out));

        if result.is_ok() {
            attachment.counters.dma_read_bytes += out.len() as u64;
        }

        if self.record_access(attachment_id, out.len(), &result) {
            let outcome = result.map(|()| &*out);
            let event = Event::DmaRead { iova, length: out.len(), outcome };
            self.shared.trace(self.function.id, attachment_id, event);
        }
        result
    }

    /// Copies `data`, at most [`crate::dma::MAX_DMA`] bytes, to client memory at `iova`. Order and
    /// atomicity are those of [`Context::dma_write`].
    ///
    /// # Errors
    /// [`DmaError::Remote`] if a part is reached by messages only, before anything is copied. The
    /// device then calls [`Context::dma_write`], which counts the access, so this error is not
    /// counted. [`DmaError::Busy`] while an earlier write by message has no reply. Every other
    /// error is final, and the device should set its error bit.
    pub fn copy_to(&mut self, attachment_id: AttachmentId, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        self.function.has_touched_clients = true;
        let attachment =
            self.function.attachments.get_mut(usize::from(attachment_id.0)).ok_or(DmaError::Gone)?;
        let result = check_may_write(attachment, iova, data.len())
            .and_then(|()| attachment.dma.write_local(iova, data));

        if result.is_ok() {
            attachment.counters.dma_written_bytes += data.len() as u64;
        }

        if self.record_access(attachment_id, data.len(), &result) {
            let event = Event::DmaWrite { iova, data, outcome: result };
            self.shared.trace(self.function.id, attachment_id, event);
        }
        result
    }

    /// Changes the 64-bit word of client memory at `iova`, a multiple of 8, by one atomic
    /// operation. Returns its previous value.
    ///
    /// No store of the client falls between the read and the write, and the call never retries. The
    /// change is ordered after the attachment's earlier copies and writes, and in front of its
    /// later ones. [`Context::copy_to`] of 8 bytes stores a word without reading it.
    ///
    /// # Errors
    /// Those of [`Context::copy_to`], and [`DmaError::NoWord`]. The mapping must permit reads and
    /// writes.
    pub fn update_u64(
        &mut self,
        attachment_id: AttachmentId,
        iova: u64,
        update: WordUpdate,
    ) -> Result<u64, DmaError> {
        const WORD: usize = size_of::<u64>();

        self.function.has_touched_clients = true;
        let attachment =
            self.function.attachments.get_mut(usize::from(attachment_id.0)).ok_or(DmaError::Gone)?;
        let result =
            check_may_write(attachment, iova, WORD).and_then(|()| attachment.dma.update_local(iova, update));

        if result.is_ok() {
            attachment.counters.dma_read_bytes += WORD as u64;
            attachment.counters.dma_written_bytes += WORD as u64;
        }

        if self.record_access(attachment_id, WORD, &result) {
            let event = Event::DmaUpdate { iova, update, outcome: result };
            self.shared.trace(self.function.id, attachment_id, event);
        }
        result
    }

    /// Adds the bytes of an access to those of the machine's step, and counts its error. It does
    /// neither, and returns false, for an access that the device must repeat, or carry out by
    /// messages.
    #[inline]
    fn record_access<T>(
        &mut self,
        attachment_id: AttachmentId,
        length: usize,
        result: &Result<T, DmaError>,
    ) -> bool {
        match result {
            Ok(_) => self.shared.touched += length,
            Err(DmaError::Remote { .. } | DmaError::Busy) => return false,
            Err(error) => {
                // The file behind the memory ended, but the bytes before its end were copied.
                if matches!(error, DmaError::Faulted { .. }) {
                    self.shared.touched += length;
                }
                self.function.record_dma_error(self.shared.now, attachment_id, error);
            }
        }

        true
    }
}

/// Checks that a write to mapped memory is allowed, and overtakes no write by message.
fn check_may_write(attachment: &Attachment, iova: u64, length: usize) -> Result<(), DmaError> {
    check_may_dma(attachment)?;
    if has_writes_in_flight(attachment) && attachment.dma.is_local(iova, length, DmaAccess::Write)? {
        return Err(DmaError::Busy);
    }
    Ok(())
}
