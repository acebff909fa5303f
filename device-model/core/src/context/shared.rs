//! State that the functions of a machine share: DMA messages, buffers, the trace.

use std::collections::VecDeque;

use super::FunctionState;
use crate::{
    companion::Companions,
    dma::{DmaError, MAX_DMA},
    ids::{AttachmentId, DmaToken, FunctionId},
    time::Nanos,
    trace::{Event, TraceSink},
};

/// Limit for a machine on DMA reads whose data waits in a buffer for the device.
const MAX_BUFFERS: usize = 64;

/// A DMA operation on memory that only messages reach. The owner of the machine sends it to the
/// client and returns the answer through [`crate::machine::Machine::dma_read_done`] or
/// `dma_write_done`.
#[derive(Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// A read of client memory.
    DmaRead {
        /// Number that the answer must carry.
        id: u64,
        /// Function whose device started the operation.
        function: FunctionId,
        /// Attachment whose memory it reads.
        attachment: AttachmentId,
        /// Start address.
        iova: u64,
        /// Length in bytes, at most [`MAX_DMA`].
        length: usize,
    },
    /// A write to client memory.
    DmaWrite {
        /// Number that the answer must carry.
        id: u64,
        /// Function whose device started the operation.
        function: FunctionId,
        /// Attachment whose memory it writes.
        attachment: AttachmentId,
        /// Start address.
        iova: u64,
        /// Data to write, at most [`MAX_DMA`] bytes.
        data: Vec<u8>,
    },
}

impl Outgoing {
    /// Returns the function and attachment whose operation this is.
    fn owner(&self) -> (FunctionId, AttachmentId) {
        match self {
            Self::DmaRead { function, attachment, .. } | Self::DmaWrite { function, attachment, .. } => {
                (*function, *attachment)
            }
        }
    }
}

/// A finished DMA read whose result the device has not received.
pub(crate) struct Completion {
    pub(crate) attachment_id: AttachmentId,
    pub(crate) token: DmaToken,
    pub(crate) result: Result<FilledBuffer, DmaError>,
}

/// Data in a buffer of the pool.
pub(crate) struct FilledBuffer {
    pub(crate) buffer: Box<[u8]>,
    /// Number of bytes of data at the start of the buffer.
    pub(crate) length: usize,
}

/// State that the functions of a machine share, apart from the fabric.
pub(crate) struct Shared {
    pub(crate) now: Nanos,
    /// DMA messages that the owner of the machine has not taken.
    pub(crate) outgoing: VecDeque<Outgoing>,
    /// Number of the next DMA message.
    pub(crate) next_id: u64,
    pub(crate) trace: Option<Box<dyn TraceSink>>,
    /// Bytes of client memory that DMA has read or written in the current step of the machine.
    pub(crate) touched: usize,
    pub(crate) companions: Companions,
    /// The free buffers of the pool, of [`MAX_DMA`] bytes each.
    buffers: Vec<Box<[u8]>>,
    /// Number of buffers of [`MAX_DMA`] bytes, free or in use. It can exceed [`MAX_BUFFERS`] by
    /// those that hold answers.
    buffers_allocated: usize,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            now: Nanos::ZERO,
            outgoing: VecDeque::new(),
            next_id: 1,
            trace: None,
            touched: 0,
            companions: Companions::new(),
            buffers: Vec::new(),
            buffers_allocated: 0,
        }
    }

    /// Passes an event to the trace sink, if there is one.
    #[inline]
    pub(crate) fn trace(&mut self, function: FunctionId, attachment: AttachmentId, event: Event<'_>) {
        if let Some(sink) = &mut self.trace {
            sink.event(self.now, function, Some(attachment), &event);
        }
    }

    /// Takes a buffer from the pool, or `None` when all [`MAX_BUFFERS`] are in use.
    pub(crate) fn take_buffer(&mut self) -> Option<Box<[u8]>> {
        self.buffers.pop().or_else(|| {
            (self.buffers_allocated < MAX_BUFFERS).then(|| {
                self.buffers_allocated += 1;
                vec![0; MAX_DMA].into_boxed_slice()
            })
        })
    }

    /// Returns a buffer with a copy of `data`. It comes from the pool while the pool lasts, and
    /// from the heap otherwise, because an answer that has arrived must not be refused.
    pub(crate) fn buffer_from(&mut self, data: &[u8]) -> Box<[u8]> {
        if data.len() <= MAX_DMA
            && let Some(mut buffer) = self.take_buffer()
        {
            buffer[..data.len()].copy_from_slice(data);
            return buffer;
        }

        self.buffers_allocated += usize::from(data.len() == MAX_DMA);
        data.into()
    }

    /// Returns a buffer to the pool. A buffer of another size, or beyond [`MAX_BUFFERS`], is freed.
    pub(crate) fn return_buffer(&mut self, buffer: Box<[u8]>) {
        if buffer.len() != MAX_DMA {
            return;
        }

        if self.buffers_allocated > MAX_BUFFERS {
            self.buffers_allocated -= 1;
        } else {
            self.buffers.push(buffer);
        }
    }

    /// Removes and returns the messages of an attachment that the owner has not taken.
    pub(crate) fn take_outgoing(
        &mut self,
        function: FunctionId,
        attachment_id: AttachmentId,
    ) -> Vec<Outgoing> {
        let (taken, remaining): (VecDeque<_>, _) = std::mem::take(&mut self.outgoing)
            .into_iter()
            .partition(|message| message.owner() == (function, attachment_id));

        self.outgoing = remaining;
        Vec::from(taken)
    }

    /// Drops the undelivered results for which `drops` returns true.
    pub(crate) fn drop_results(&mut self, function: &mut FunctionState, drops: impl Fn(&Completion) -> bool) {
        // Backwards, because a removal moves the results behind it.
        for index in (0..function.completions.len()).rev() {
            if !function.completions.get(index).is_some_and(&drops) {
                continue;
            }
            let Some(completion) = function.completions.remove(index) else { continue };

            if let Some(attachment) = function.attachments.get_mut(usize::from(completion.attachment_id.0)) {
                attachment.waiting_reads = attachment.waiting_reads.saturating_sub(1);
            }
            if let Ok(filled) = completion.result {
                self.return_buffer(filled.buffer);
            }
        }
    }

    /// Drops the unsent messages and undelivered results of `attachment_id`, or of every attachment
    /// of the function.
    pub(crate) fn drop_pending(&mut self, function: &mut FunctionState, attachment_id: Option<AttachmentId>) {
        let function_id = function.id;
        let is_dropped = |owner| attachment_id.is_none_or(|attachment_id| owner == attachment_id);

        self.outgoing.retain(|message| {
            let (owning_function, owning_attachment) = message.owner();
            owning_function != function_id || !is_dropped(owning_attachment)
        });
        self.drop_results(function, |completion| is_dropped(completion.attachment_id));
    }
}
