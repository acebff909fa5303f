//! The order in which the engine serves its attachments.
//!
//! An attachment is named by its number among those served. It stands at most once in each queue,
//! and in at most one of the two queues for service, so its client is served once in a round.

use std::collections::VecDeque;

/// A queue of attachments in which each stands at most once.
#[derive(Debug, Default)]
struct UniqueQueue {
    order: VecDeque<usize>,
    /// For each attachment, whether it is in `order`.
    members: Vec<bool>,
}

impl UniqueQueue {
    /// Makes room for one more attachment.
    fn add_attachment(&mut self) {
        self.members.push(false);
        self.order.reserve(self.members.len());
    }

    fn contains(&self, index: usize) -> bool {
        self.members.get(index).is_some_and(|member| *member)
    }

    /// Appends an attachment, unless it is in the queue or unknown.
    fn push(&mut self, index: usize) {
        if let Some(member) = self.members.get_mut(index)
            && !std::mem::replace(member, true)
        {
            self.order.push_back(index);
        }
    }

    fn pop(&mut self) -> Option<usize> {
        let index = self.order.pop_front()?;
        self.members[index] = false;
        Some(index)
    }
}

/// Attachments that the engine is to serve, to accept at, or whose deferred access it tries again.
#[derive(Debug, Default)]
pub(crate) struct ServiceQueues {
    /// Attachments with a client that is served in this round, or in the next one if time runs out.
    ready: UniqueQueue,
    /// As `ready`, of clients for which system calls take long. One is served in each round.
    slow: UniqueQueue,
    /// Attachments at which a connection may be accepted in this round.
    accepting: UniqueQueue,
    /// Attachments with a deferred access, which is tried again in each round.
    deferred: UniqueQueue,
    /// Attachments that are neither served nor accepted at until some of their items are closed.
    held: UniqueQueue,
}

impl ServiceQueues {
    /// Makes room for one more attachment, so that no other call allocates.
    pub(crate) fn add_attachment(&mut self) {
        for queue in
            [&mut self.ready, &mut self.slow, &mut self.accepting, &mut self.deferred, &mut self.held]
        {
            queue.add_attachment();
        }
    }

    /// Whether the next round has clients to serve or connections to accept.
    pub(crate) fn has_work(&self) -> bool {
        self.has_clients() || !self.accepting.order.is_empty()
    }

    /// Whether a client is to be served.
    pub(crate) fn has_clients(&self) -> bool {
        !self.ready.order.is_empty() || !self.slow.order.is_empty()
    }

    /// Queues a client for service, unless it is queued.
    pub(crate) fn push_client(&mut self, index: usize, is_slow: bool) {
        if is_slow && !self.ready.contains(index) {
            self.slow.push(index);
        } else if !self.slow.contains(index) {
            self.ready.push(index);
        }
    }

    /// Returns the number of clients that are ready and not slow.
    pub(crate) fn count_ready(&self) -> usize {
        self.ready.order.len()
    }

    /// Takes the next client that is not slow.
    pub(crate) fn pop_ready(&mut self) -> Option<usize> {
        self.ready.pop()
    }

    /// Takes the next slow client.
    pub(crate) fn pop_slow(&mut self) -> Option<usize> {
        self.slow.pop()
    }

    /// Queues an attachment at which a connection may be accepted.
    pub(crate) fn push_accepting(&mut self, index: usize) {
        self.accepting.push(index);
    }

    /// Takes the next attachment at which a connection may be accepted.
    pub(crate) fn pop_accepting(&mut self) -> Option<usize> {
        self.accepting.pop()
    }

    /// Queues an attachment with a deferred access.
    pub(crate) fn push_deferred(&mut self, index: usize) {
        self.deferred.push(index);
    }

    /// Takes the next attachment with a deferred access.
    pub(crate) fn pop_deferred(&mut self) -> Option<usize> {
        self.deferred.pop()
    }

    /// Returns the number of attachments with a deferred access.
    pub(crate) fn count_deferred(&self) -> usize {
        self.deferred.order.len()
    }

    /// Holds an attachment back until [`Self::pop_held`].
    pub(crate) fn hold(&mut self, index: usize) {
        self.held.push(index);
    }

    /// Returns the number of attachments that are held back.
    pub(crate) fn count_held(&self) -> usize {
        self.held.order.len()
    }

    /// Takes the next attachment that was held back.
    pub(crate) fn pop_held(&mut self) -> Option<usize> {
        self.held.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(attachments: usize) -> ServiceQueues {
        let mut queues = ServiceQueues::default();
        (0..attachments).for_each(|_| queues.add_attachment());
        queues
    }

    #[test]
    fn client_that_becomes_slow_while_it_is_ready_is_served_once() {
        let mut queues = queues(2);
        queues.push_client(1, false);
        queues.push_client(1, true);
        queues.push_client(0, true);
        queues.push_client(0, false);

        assert_eq!((queues.pop_ready(), queues.pop_ready()), (Some(1), None));
        assert_eq!((queues.pop_slow(), queues.pop_slow()), (Some(0), None));
        assert!(!queues.has_work());
    }

    #[test]
    fn dequeued_attachment_can_be_queued_again_after_the_others() {
        let mut queues = queues(2);
        queues.push_deferred(0);
        queues.push_deferred(1);

        let first = queues.pop_deferred();
        queues.push_deferred(0);

        assert_eq!((first, queues.count_deferred()), (Some(0), 2));
        assert_eq!((queues.pop_deferred(), queues.pop_deferred()), (Some(1), Some(0)));
    }

    #[test]
    fn unknown_attachment_is_not_queued() {
        let mut queues = queues(1);

        queues.push_client(1, false);
        queues.push_accepting(1);

        assert!(!queues.has_work());
    }
}
