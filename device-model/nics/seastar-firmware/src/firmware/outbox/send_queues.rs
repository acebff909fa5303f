//! Send queues: the messages in flight to each node, and the table that finds them.

use super::{CHAINS, Outbox, SCANS_PER_TIMEOUT};
use crate::protocol::Sender;

/// Where a send queue is registered for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkState {
    /// Nothing can be done.
    Idle,
    /// In the queue of send queues with work.
    Ready,
    /// In the queue of send queues that wait for room in the transmit DMA engine.
    Stalled,
}

/// The messages in flight to a node.
#[derive(Debug)]
pub(super) struct SendQueue {
    pub(super) sender: Sender,
    pub(super) node: u32,
    /// The next send queue of its chain in the hash table.
    pub(super) chain: u16,
    pub(super) work_state: WorkState,
    /// It starts nothing before this time, and is in the heap of paused send queues.
    pub(super) paused_until: Option<u64>,
    /// Time since which the node has been silent: that of its last answer, or that at which the
    /// first message was transmitted if that is later.
    pub(super) last_heard: u64,
}

/// A send queue that is taken from its node for another one, with its places in the outbox's
/// queues.
struct Reused {
    index: u16,
    work_state: WorkState,
    paused_until: Option<u64>,
}

impl Outbox {
    /// Fails all messages of a send queue.
    pub(super) fn fail_send_queue(&mut self, index: u16) {
        if let Some(send_queue) = self.send_queues.get_mut(usize::from(index)).and_then(Option::as_mut) {
            send_queue.sender.fail_all(&mut self.pendings.to(send_queue.node));
        }
        self.make_ready(index);
    }

    /// Returns a send queue, or `None` if none is open at this index.
    pub(super) fn send_queue(&self, index: u16) -> Option<&SendQueue> {
        self.send_queues.get(usize::from(index))?.as_ref()
    }

    /// Returns the index of the send queue to a node, or `None` if it has none.
    pub(super) fn find(&self, node: u32) -> Option<u16> {
        let mut next = *self.chains.get(node as usize % CHAINS)?;
        while let Some(send_queue) = self.send_queue(next) {
            if send_queue.node == node {
                return Some(next);
            }
            next = send_queue.chain;
        }
        None
    }

    /// Opens the send queue to a node. If all are open, one without messages changes its node.
    pub(super) fn open(&mut self, node: u32, now: u64) -> Option<u16> {
        let Reused { index, work_state, paused_until } = match self.free.pop() {
            Some(index) => Reused { index, work_state: WorkState::Idle, paused_until: None },
            None => self.take_empty()?,
        };
        let head = self.chains.get_mut(node as usize % CHAINS)?;
        let chain = core::mem::replace(head, index);
        let send_queue =
            SendQueue { sender: Sender::default(), node, chain, work_state, paused_until, last_heard: now };
        *self.send_queues.get_mut(usize::from(index))? = Some(send_queue);

        // Scans for silent nodes are made while send queues are open.
        if self.scan_at.is_none() && self.scan.is_none() {
            self.scan_at = Some(now + self.settings.timeout / SCANS_PER_TIMEOUT);
        }
        Some(index)
    }

    /// Takes a send queue without messages, which no step has closed yet, from its node.
    ///
    /// Its index stays in the queue of ready or stalled send queues and in the heap of paused ones.
    /// The next send queue at this index therefore continues in the same state.
    fn take_empty(&mut self) -> Option<Reused> {
        let is_empty = |send_queue: &Option<SendQueue>| {
            send_queue.as_ref().is_some_and(|send_queue| send_queue.sender.count() == 0)
        };
        let index = self.send_queues.iter().position(is_empty)?;
        let send_queue = self.send_queues.get_mut(index)?.take()?;
        self.unchain(index as u16, send_queue.node, send_queue.chain);
        let SendQueue { work_state, paused_until, .. } = send_queue;
        Some(Reused { index: index as u16, work_state, paused_until })
    }

    /// Closes a send queue without messages.
    pub(super) fn close(&mut self, index: u16) {
        let Some(send_queue) = self.send_queues.get_mut(usize::from(index)).and_then(Option::take) else {
            return;
        };
        self.free.push(index);
        // Without open send queues, no node can be silent.
        if self.free.len() == self.send_queues.len() {
            self.scan_at = None;
        }
        self.unchain(index, send_queue.node, send_queue.chain);
    }

    /// Takes a send queue out of the chain of the hash table that has its node. `following` is the
    /// next send queue of the chain.
    fn unchain(&mut self, index: u16, node: u32, following: u16) {
        let Some(head) = self.chains.get_mut(node as usize % CHAINS) else { return };
        if *head == index {
            *head = following;
            return;
        }

        let mut next = *head;
        while let Some(other) = self.send_queues.get_mut(usize::from(next)).and_then(Option::as_mut) {
            if other.chain == index {
                other.chain = following;
                return;
            }
            next = other.chain;
        }
    }

    /// Records in which of the queues a send queue is. The caller puts it there.
    pub(super) fn set_work_state(&mut self, index: u16, work_state: WorkState) {
        if let Some(send_queue) = self.send_queues.get_mut(usize::from(index)).and_then(Option::as_mut) {
            send_queue.work_state = work_state;
        }
    }

    /// Puts an idle send queue into the queue of those with work. One that is ready or stalled
    /// stays as it is.
    pub(super) fn make_ready(&mut self, index: u16) {
        if self.send_queue(index).is_some_and(|send_queue| send_queue.work_state == WorkState::Idle) {
            self.set_work_state(index, WorkState::Ready);
            self.ready.push_back(index);
        }
    }
}
