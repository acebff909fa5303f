//! Client memory: mappings, the replies to DMA messages, and the results of DMA reads.

use super::{FunctionSlot, Machine, MachineError, active::ActiveFunction, schedule::MAX_TOUCHED};
use crate::{
    context::{Completion, Context, FilledBuffer, Outgoing},
    dma::{DmaBacking, DmaError, DmaPermission},
    ids::{AttachmentId, DmaToken, FunctionId},
    panic::DeviceMethod,
};

impl Machine {
    /// Maps memory for the attachment's DMA.
    pub fn dma_map(
        &mut self,
        function: FunctionId,
        attachment_id: AttachmentId,
        iova: u64,
        length: u64,
        permission: DmaPermission,
        backing: DmaBacking,
    ) -> Result<(), MachineError> {
        let mut active = self.active_for_client(function, attachment_id)?;
        Ok(active.attachment(attachment_id)?.dma.map(iova, length, permission, backing)?)
    }

    /// Unmaps memory. When this returns, no DMA of this process reaches it.
    ///
    /// Messages for it that the caller has not taken stay queued. The caller must take them with
    /// [`Machine::take_outgoing`] and answer them with an error.
    pub fn dma_unmap(
        &mut self,
        function: FunctionId,
        attachment_id: AttachmentId,
        iova: u64,
        length: u64,
    ) -> Result<(), MachineError> {
        let mut active = self.active_for_client(function, attachment_id)?;
        if active.attachment(attachment_id)?.dma.unmap(iova, length)? {
            self.report_ended_leases(function, attachment_id);
        }
        Ok(())
    }

    /// Unmaps all memory.
    pub fn dma_unmap_all(
        &mut self,
        function: FunctionId,
        attachment_id: AttachmentId,
    ) -> Result<(), MachineError> {
        let mut active = self.active_for_client(function, attachment_id)?;
        if active.attachment(attachment_id)?.dma.unmap_all() {
            self.report_ended_leases(function, attachment_id);
        }
        Ok(())
    }

    /// Lets the device drop the leases that an unmap has ended. If the device panics, its function
    /// goes out of service, and the memory stays unmapped.
    fn report_ended_leases(&mut self, function: FunctionId, attachment_id: AttachmentId) {
        let _ = self.guarded(|machine| {
            if let Some(mut active) = machine.active(function) {
                active.call(DeviceMethod::LeasesEnded, |device, context| {
                    device.leases_ended(context, attachment_id)
                });
            }
        });
    }

    /// Removes and returns the next DMA message for a client.
    pub fn pop_outgoing(&mut self) -> Option<Outgoing> {
        self.shared.outgoing.pop_front()
    }

    /// Removes and returns the DMA messages of one client, past those of others.
    pub fn take_outgoing(&mut self, function: FunctionId, attachment_id: AttachmentId) -> Vec<Outgoing> {
        self.shared.take_outgoing(function, attachment_id)
    }

    /// Takes a client's answer to a DMA read. An answer without a read in flight, as after a reset,
    /// is ignored. So is the data of a read that the device has forgotten.
    pub fn dma_read_done(
        &mut self,
        function: FunctionId,
        attachment_id: AttachmentId,
        id: u64,
        result: Result<&[u8], DmaError>,
    ) -> Result<(), MachineError> {
        self.active_for_client(function, attachment_id)?.end_read(attachment_id, id, result)
    }

    /// Takes a client's answer to a DMA write. The last answer releases the interrupts held after
    /// the writes.
    pub fn dma_write_done(
        &mut self,
        function: FunctionId,
        attachment_id: AttachmentId,
        id: u64,
        result: Result<(), DmaError>,
    ) -> Result<(), MachineError> {
        self.active_for_client(function, attachment_id)?.end_write(attachment_id, id, result)
    }
}

impl ActiveFunction<'_> {
    /// Fails the messages that the caller has not taken, after the function lost bus mastering.
    pub(super) fn stop_messages(&mut self, attachment_id: AttachmentId) -> Result<(), MachineError> {
        for message in self.shared.take_outgoing(self.id(), attachment_id) {
            match message {
                Outgoing::DmaRead { id, .. } => {
                    self.end_read(attachment_id, id, Err(DmaError::NotBusMaster))?
                }
                Outgoing::DmaWrite { id, .. } => {
                    self.end_write(attachment_id, id, Err(DmaError::NotBusMaster))?
                }
            }
        }

        Ok(())
    }

    /// Queues the result of a read in flight for the device.
    fn end_read(
        &mut self,
        attachment_id: AttachmentId,
        id: u64,
        result: Result<&[u8], DmaError>,
    ) -> Result<(), MachineError> {
        let tenant = self.tenant(attachment_id)?;
        let Some(position) = tenant.remote_reads.iter().position(|read| read.id == id) else { return Ok(()) };
        let read = tenant.remote_reads.swap_remove(position);

        let Some(token) = read.token else {
            // The forgotten read no longer counts against the limit, so the device may start
            // another.
            self.wake();
            return Ok(());
        };

        let result = match result {
            Ok(data) if data.len() == read.length => {
                Ok(FilledBuffer { buffer: self.shared.buffer_from(data), length: data.len() })
            }
            Ok(data) => Err(DmaError::ShortAnswer { length: data.len(), wanted: read.length }),
            Err(error) => Err(error),
        };

        match &result {
            Ok(filled) => {
                self.attachment(attachment_id)?.counters.dma_read_bytes += filled.length as u64;
            }
            Err(error) => self.slot.state.record_dma_error(self.shared.now, attachment_id, error),
        }

        self.slot.state.queue_result(Completion { attachment_id, token, result });
        self.wake();

        Ok(())
    }

    /// Ends a write in flight. The end of the last one delivers the interrupts held back for it.
    fn end_write(
        &mut self,
        attachment_id: AttachmentId,
        id: u64,
        result: Result<(), DmaError>,
    ) -> Result<(), MachineError> {
        let tenant = self.tenant(attachment_id)?;
        let Some(position) = tenant.remote_writes.iter().position(|&write| write == id) else {
            return Ok(());
        };

        tenant.remote_writes.swap_remove(position);
        let is_last = tenant.remote_writes.is_empty();
        if let Err(error) = &result {
            self.slot.state.record_dma_error(self.shared.now, attachment_id, error);
        }

        let attachment = self.attachment(attachment_id)?;
        if is_last {
            // Interrupts without a sink are not delivered, and become pending.
            for &vector in attachment.interrupts.release() {
                if let Some(msix) = &mut attachment.msix {
                    msix.set_pending(vector);
                }
            }
        }

        // A device whose write was refused for want of room may try again.
        self.wake();

        Ok(())
    }
}

impl ActiveFunction<'_> {
    /// Delivers finished DMA reads to the device, at most `maximum` and within the bytes that a
    /// step may touch. Returns their number.
    #[inline(always)]
    pub(super) fn deliver_results(&mut self, maximum: u32) -> u32 {
        if self.slot.state.completions.is_empty() { 0 } else { self.deliver_queued_results(maximum) }
    }

    /// Slow path of [`ActiveFunction::deliver_results`]: there are results to deliver.
    #[inline(never)]
    pub(super) fn deliver_queued_results(&mut self, maximum: u32) -> u32 {
        for delivered in 0..maximum {
            if self.shared.touched >= MAX_TOUCHED {
                return delivered;
            }
            let Some(completion) = self.slot.state.completions.pop_front() else { return delivered };
            let (attachment_id, token) = (completion.attachment_id, completion.token);

            if let Ok(attachment) = self.attachment(attachment_id) {
                attachment.waiting_reads = attachment.waiting_reads.saturating_sub(1);
            }

            match completion.result {
                Ok(filled) => self.deliver_data(attachment_id, token, filled),
                Err(error) => self.call(DeviceMethod::DmaDone, |device, context| {
                    device.dma_done(context, attachment_id, token, Err(error));
                }),
            }
        }

        maximum
    }

    /// Delivers the data of a DMA read to the device, and returns the buffer to the pool.
    fn deliver_data(&mut self, attachment_id: AttachmentId, token: DmaToken, filled: FilledBuffer) {
        let FunctionSlot { state, device, method_in_progress, lent, .. } = &mut *self.slot;
        // A panic of the device leaves the buffer in `lent`, from where it returns to the pool.
        let filled = lent.data.insert(filled);
        let data = &filled.buffer[..filled.length];

        let mut context = Context { function: state, shared: self.shared, fabric: self.fabric };
        *method_in_progress = Some(DeviceMethod::DmaDone);
        device.dma_done(&mut context, attachment_id, token, Ok(data));
        *method_in_progress = None;
        context.trace_packets();

        if let Some(filled) = lent.data.take() {
            self.shared.return_buffer(filled.buffer);
        }
        self.update_timer();
    }
}
