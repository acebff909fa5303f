//! The steps of the outbox: each handles one send queue with work.

use core::cmp::Reverse;

use super::{Outbox, Work, send_queues::WorkState};
use crate::{chip::MAX_TRANSMISSIONS, firmware::pending::ToNode};

impl Outbox {
    /// Handles one send queue with work: takes an ended message out, or starts the next one.
    /// `in_engine` is the number of messages in the transmit DMA engine. `is_last` says that the
    /// poll makes no further step. Returns `None` if no send queue has work.
    #[inline]
    pub(in crate::firmware) fn step(&mut self, in_engine: u16, now: u64, is_last: bool) -> Option<Work> {
        if !self.paused.is_empty() {
            self.end_due_pause(now);
        }
        if self.ready.is_empty() && in_engine < MAX_TRANSMISSIONS {
            // A queue that was resumed may have had nothing to transmit, and left room for another.
            self.resume_stalled_queue();
        }
        let index = self.ready.pop_front()?;
        self.serve(index, in_engine, is_last)
    }

    /// Makes the send queue ready whose back-off ends first, if its end has come.
    ///
    /// Answers overtake the puts and gets that were refused. The receiver may be full of answers to
    /// this node, which wait behind requests that this node refuses for the same reason: nodes that
    /// refuse each other in a circle would wait for ever.
    #[cold]
    fn end_due_pause(&mut self, now: u64) {
        if let Some(Reverse((time, index))) = self.paused.peek().copied()
            && time <= now
        {
            self.paused.pop();
            if let Some(send_queue) = self.send_queues.get_mut(usize::from(index)).and_then(Option::as_mut) {
                send_queue.paused_until = None;
                let mut messages = self.pendings.to(send_queue.node);
                send_queue.sender.let_overtake(&mut messages, ToNode::is_answer);
            }
            self.make_ready(index);
        }
    }

    /// Handles a send queue with work for [`Outbox::step`].
    fn serve(&mut self, index: u16, in_engine: u16, is_last: bool) -> Option<Work> {
        let send_queue = self.send_queues.get_mut(usize::from(index))?.as_mut()?;
        send_queue.work_state = WorkState::Idle;
        let node = send_queue.node;

        if send_queue.sender.only_waits(&self.pendings.to(node)) {
            return Some(Work::Nothing);
        }
        if let Some((slot, outcome)) = send_queue.sender.pop_ended(&mut self.pendings.to(node)) {
            self.make_ready_after_work(index, is_last);
            return Some(self.remove(slot, outcome).map_or(Work::Nothing, Work::Ended));
        }
        if send_queue.sender.count() == 0 {
            if send_queue.paused_until.is_none() {
                self.close(index);
            }
            return Some(Work::Nothing);
        }
        if send_queue.paused_until.is_some() {
            return Some(Work::Nothing);
        }
        let Some(slot) = send_queue.sender.next_to_transmit(&self.pendings.to(node)) else {
            return Some(Work::Nothing);
        };

        if in_engine >= MAX_TRANSMISSIONS {
            send_queue.work_state = WorkState::Stalled;
            self.stalled.push_back(index);
            return Some(Work::Nothing);
        }
        send_queue.sender.begin_transmission(&mut self.pendings.to(node), slot);
        self.make_ready_after_work(index, is_last);
        Some(Work::Transmit { slot, target: node })
    }

    /// Puts a send queue, which a step has handled, into the queue of those with work. If the next
    /// step of the poll would find that it merely waits for an answer, it stays idle. A back-off
    /// that ends before that step would come first, so that there may be none.
    #[inline]
    fn make_ready_after_work(&mut self, index: u16, is_last: bool) {
        if !is_last
            && self.ready.is_empty()
            && self.paused.is_empty()
            && let Some(Some(send_queue)) = self.send_queues.get_mut(usize::from(index))
            && send_queue.sender.only_waits(&self.pendings.to(send_queue.node))
        {
            return;
        }
        self.make_ready(index);
    }
}
