//! State of one function.

use std::collections::VecDeque;

use nicforge_hwi::register::Register;
use nicforge_shm::{RingHead, SharedCells};

use super::Completion;
use crate::{
    attachment::{AttachmentList, ClientWaker, Ring, WatchState},
    dma::DmaError,
    ids::{AttachmentId, FunctionId},
    panic::DevicePanic,
    spec::FunctionSpec,
    time::Nanos,
    warning::{Warning, WarningLimit},
};

/// The share of [`Attachment::recent_records`](crate::attachment::Attachment) that a turn with
/// competing clients forgets: an eighth.
const RECENT_DECAY: u64 = 8;

/// The head of a client's posted-write ring, which a turn looks at.
pub(crate) struct WatchedRing {
    pub(crate) attachment_id: AttachmentId,
    /// Number of the ring at its attachment.
    pub(crate) number: usize,
    pub(crate) head: RingHead<SharedCells>,
}

/// State of one function, apart from its device. The fields that every turn uses come first.
#[repr(C)]
pub(crate) struct FunctionState {
    pub(crate) id: FunctionId,
    /// A record stalled in the last turn and several clients exist. Only turns drain the rings
    /// then, so that the scheduler can share out the device's resource for which they compete.
    pub(crate) contended: bool,
    /// The result of [`crate::device::Device::lets_clients_sleep`].
    pub(crate) lets_clients_sleep: bool,
    /// The function's clients sleep in this turn: a store of theirs wakes the function.
    pub(crate) clients_sleep: bool,
    /// The device has only passed packets on in this turn.
    pub(crate) is_transit: bool,
    /// The device has changed something that its clients look at since waiting ones were woken.
    pub(crate) has_touched_clients: bool,
    /// Earliest time at which the device has asked for a step during the call in progress, or
    /// [`Nanos::NEVER`].
    pub(crate) wake_at: Nanos,
    /// Finished DMA reads whose results the device has not received.
    pub(crate) completions: VecDeque<Completion>,
    /// Heads of the rings of the clients that are not cold, in the order in which a turn drains
    /// them.
    pub(crate) rings: Vec<WatchedRing>,
    /// What wakes the clients that may wait for the device.
    pub(crate) client_wakers: Vec<(AttachmentId, ClientWaker)>,
    /// Attachments that have a client, in the order in which a turn drains their rings.
    pub(crate) clients: Vec<AttachmentId>,
    pub(crate) attachments: AttachmentList,
    pub(crate) spec: FunctionSpec,
    pub(crate) name: String,
    /// The panic that took the function out of service.
    pub(crate) panic: Option<DevicePanic>,
    /// The result of [`crate::device::Device::registers`].
    pub(crate) registers: &'static [Register],
    /// The lines of the log that the function has left.
    pub(crate) warnings: WarningLimit,
}

impl FunctionState {
    /// Logs a warning of the function, or of one of its attachments.
    #[cold]
    pub(crate) fn warn(&mut self, now: Nanos, from: Option<AttachmentId>, warning: Warning<'_>) {
        warning.log(&mut self.warnings, now, &self.name, &self.spec, from);
    }

    /// Rebuilds the list of attachments that have a client.
    pub(crate) fn refresh_clients(&mut self) {
        self.clients.clear();
        let attached = self.attachments.iter().filter(|(_, attachment)| attachment.tenant.is_some());
        self.clients.extend(attached.map(|(attachment_id, _)| attachment_id));
        let clients = &self.clients;
        self.client_wakers.retain(|(owner, _)| clients.contains(owner));
        self.refresh_rings();
    }

    /// Rebuilds the list of the heads of the rings at which turns look: those of clients that are
    /// not cold.
    pub(crate) fn refresh_rings(&mut self) {
        let Self { attachments, clients, rings, .. } = self;
        rings.clear();
        for &attachment_id in &*clients {
            let attachment = attachments.get_mut(usize::from(attachment_id.0));
            let Some(tenant) = attachment.and_then(|attachment| attachment.tenant.as_mut()) else { continue };
            let is_cold = matches!(tenant.watch.state, WatchState::Cold { .. });
            for (number, ring) in tenant.rings.iter_mut().enumerate() {
                ring.watch_index = if is_cold { Ring::UNWATCHED } else { rings.len() };
                if is_cold {
                    continue;
                }
                rings.push(WatchedRing { attachment_id, number, head: ring.consumer.head() });
            }
        }
    }

    /// Sorts the clients by the number of records carried out recently, fewest first, after a turn
    /// that carried out at most `maximum` records of each.
    ///
    /// Clients that compete for the same resource of a device thus share it, whatever the resource
    /// and however often some of it becomes free. A client none of whose records was carried out
    /// moves towards the front with each turn. A client with more records than another moves behind
    /// it. The share that one client does not use is left to the next one.
    #[cold]
    pub(crate) fn reorder_clients(&mut self, maximum: u32) {
        let Self { attachments, clients, .. } = self;
        for attachment_id in &*clients {
            let Some(attachment) = attachments.get_mut(usize::from(attachment_id.0)) else { continue };
            let posted = attachment.counters.posted_writes;
            // Records carried out while no client had to wait count as one turn's at most.
            let carried_out = posted.saturating_sub(attachment.posted_at_update).min(maximum.into());
            let forgotten = attachment.recent_records.div_ceil(RECENT_DECAY);
            attachment.recent_records = attachment.recent_records - forgotten + carried_out;
            attachment.posted_at_update = posted;
        }

        let recent = |attachment_id: AttachmentId| {
            attachments.get(usize::from(attachment_id.0)).map_or(0, |attachment| attachment.recent_records)
        };

        // The order of equal clients stays. Insertion sort: the list is nearly sorted already.
        let mut has_changed = false;
        for next in 1..clients.len() {
            let mut at = next;
            while at > 0 && recent(clients[at - 1]) > recent(clients[at]) {
                clients.swap(at - 1, at);
                at -= 1;
                has_changed = true;
            }
        }
        if has_changed {
            self.refresh_rings();
        }
    }

    /// Counts an error of DMA, and logs it unless the client has just ended.
    #[cold]
    pub(crate) fn record_dma_error(&mut self, now: Nanos, attachment_id: AttachmentId, error: &DmaError) {
        let Some(attachment) = self.attachments.get_mut(usize::from(attachment_id.0)) else { return };
        attachment.count_dma_error(error);
        if !matches!(error, DmaError::Gone) {
            self.warn(now, Some(attachment_id), Warning::failed(error));
        }
    }

    /// Queues the result of a DMA read for the device.
    pub(crate) fn queue_result(&mut self, completion: Completion) {
        if let Some(attachment) = self.attachments.get_mut(usize::from(completion.attachment_id.0)) {
            attachment.waiting_reads += 1;
        }
        self.completions.push_back(completion);
    }
}
