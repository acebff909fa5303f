//! Draining of posted-write rings, and the control page.

use nicforge_hwi::attachment::control;
use nicforge_shm::{Cells, Peek};

use super::{FunctionSlot, active::ActiveFunction};
use crate::{
    attachment::Attachment,
    context::Context,
    device::Write,
    ids::AttachmentId,
    panic::DeviceMethod,
    posted::{Posted, PostedCounts},
    trace::Event,
    warning::Warning,
};

/// Result of draining a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Drained {
    /// At least one record was removed.
    pub(super) moved: bool,
    /// The device refused the next record.
    pub(super) stalled: bool,
}

/// Work of a turn before the step of the device.
#[derive(Clone, Copy, Default)]
pub(super) struct DrainedTurn {
    /// There was work.
    pub(super) busy: bool,
    /// Number of DMA results that the device has received.
    pub(super) results: u32,
}

impl ActiveFunction<'_> {
    /// Carries out the records in an attachment's rings. Returns false if a ring is stalled.
    ///
    /// Each ring yields at most as many records as it has cells. A client that keeps posting thus
    /// can't hold the caller.
    pub(super) fn drain_rings(&mut self, attachment_id: AttachmentId) -> bool {
        let rings = self.tenant(attachment_id).map_or(0, |tenant| tenant.rings.len());
        let mut all_drained = true;
        for ring in 0..rings {
            all_drained &= !self.drain_ring(attachment_id, ring, u32::MAX).stalled;
        }

        all_drained
    }

    /// Drains an attachment's rings for a trapped access, and returns whether the access may go
    /// now. It may when the records that the rings held at its first attempt have been carried out.
    ///
    /// While clients compete for a resource, only turns drain the rings, and this call does not.
    pub(super) fn drain_before_access(&mut self, attachment_id: AttachmentId) -> bool {
        let contended = self.slot.state.contended;
        if !contended && !self.drain_rings(attachment_id) {
            return false;
        }

        let Ok(tenant) = self.tenant(attachment_id) else { return true };
        let mut ready = true;
        if contended {
            for ring in &mut tenant.rings {
                let consumed = ring.consumer.consumed();
                let first_attempt = *ring.waited_from.get_or_insert(consumed);
                // Once a whole ring of cells has been consumed since the first attempt, all further
                // records were posted after the access.
                let whole_ring = ring.consumer.cells().count() as u32;
                let is_past_all = consumed.wrapping_sub(first_attempt) >= whole_ring;
                ready &= is_past_all || ring.consumer.is_empty();
            }
        }

        if ready {
            tenant.rings.iter_mut().for_each(|ring| ring.waited_from = None);
        }

        ready
    }

    /// Carries out at most `limit` records of ring `ring_index` of an attachment, and at most as
    /// many as it has cells.
    pub(super) fn drain_ring(
        &mut self,
        attachment_id: AttachmentId,
        ring_index: usize,
        limit: u32,
    ) -> Drained {
        let FunctionSlot { state, device, method_in_progress, lent, .. } = &mut *self.slot;
        let index = usize::from(attachment_id.0);
        let tenant = state.attachments.get_mut(index).and_then(|attachment| attachment.tenant.as_mut());
        let Some(tenant) = tenant else { return Drained::default() };
        let Some(ring) = tenant.rings.get_mut(ring_index) else { return Drained::default() };

        if matches!(ring.consumer.peek(), Peek::Empty) {
            if let Some(watched) = state.rings.get_mut(ring.watch_index) {
                watched.head.follow(&ring.consumer);
            }
            return Drained::default();
        }

        // The device's call borrows the function's state, so the rings move to `lent` for that
        // time.
        lent.rings = std::mem::take(&mut tenant.rings);
        lent.owner = attachment_id;
        let ring = &mut lent.rings[ring_index];
        let remaining = limit.min(ring.consumer.cells().count() as u32);
        let mut posted = Posted::new(ring, attachment_id, remaining, self.shared.trace.is_some());

        let mut context = Context { function: state, shared: self.shared, fabric: self.fabric };
        *method_in_progress = Some(DeviceMethod::Drain);
        let stalled = device.drain(&mut context, attachment_id, &mut posted) == Write::Stalled;
        *method_in_progress = None;
        context.trace_packets();
        let is_new_stall = stalled && posted.mark_stalled(&mut context);
        let PostedCounts { carried_out, malformed } = posted.counts();

        ring.publish();
        if let Some(watched) = state.rings.get_mut(ring.watch_index) {
            watched.head.follow(&ring.consumer);
        }

        let rings = std::mem::take(&mut lent.rings);
        if let Some(attachment) = state.attachments.get_mut(index) {
            attachment.counters.posted_writes += carried_out;
            attachment.counters.malformed_records += malformed;
            attachment.counters.stalls += u64::from(is_new_stall);
            if let Some(tenant) = &mut attachment.tenant {
                tenant.rings = rings;
            }
        }
        if malformed > 0 {
            self.warn_of_malformed(attachment_id, malformed);
        }

        self.update_timer();

        Drained { moved: carried_out + malformed > 0, stalled }
    }

    /// Logs the records of a ring that were skipped.
    #[cold]
    fn warn_of_malformed(&mut self, attachment_id: AttachmentId, malformed: u64) {
        let rule =
            "a record of a posted-write ring is well formed, and goes to one of the device's registers";
        let warning = Warning::refused(&rule).value(malformed);
        self.trace(attachment_id, Event::Warning(warning));
        self.slot.state.warn(self.shared.now, Some(attachment_id), warning);
    }
}

impl Attachment {
    /// Reads a word of the control page. An unknown offset reads as ones.
    pub(super) fn read_control(&self, attachment_id: AttachmentId, offset: u64) -> u32 {
        match offset {
            control::RING_SELECT => self.ring_selected,
            control::RING_STATE => self
                .tenant
                .as_ref()
                .and_then(|tenant| tenant.rings.get(self.ring_selected as usize))
                .map_or(u32::MAX, |ring| {
                    let (cell, phase) = ring.consumer.state();
                    cell | (u32::from(phase) << 31)
                }),
            control::GENERATION => self.generation,
            control::ATTACHMENT => attachment_id.0.into(),
            _ => u32::MAX,
        }
    }

    /// Writes a word of the control page. An unknown offset is ignored.
    pub(super) fn write_control(&mut self, offset: u64, value: u32) {
        match offset {
            // This write needs no more than a count: every trapped access wakes the function.
            control::WAKE => self.counters.wakes += 1,
            control::RING_SELECT => self.ring_selected = value,
            control::RING_RESET => {
                let rings = self.tenant.as_mut().map(|tenant| &mut tenant.rings);
                if let Some(ring) = rings.and_then(|rings| rings.get_mut(value as usize)) {
                    ring.reset();
                }
            }
            _ => {}
        }
    }
}
