//! Lines: the messages in flight to each node, and the table that finds them.

use super::{CHAINS, Outbox, SCANS};
use crate::protocol::Sender;

/// Where a line is registered for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Nothing can be done.
    Idle,
    /// In the queue of lines with work.
    Ready,
    /// In the queue of lines that wait for room in the transmit DMA engine.
    Stalled,
}

/// The messages in flight to a node.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) sender: Sender,
    pub(super) node: u32,
    /// The next line of its chain.
    pub(super) chain: u16,
    pub(super) place: Place,
    /// It starts nothing before this time, and is in the heap of paused lines.
    pub(super) paused_until: Option<u64>,
    /// Time of the last sign of life of the node.
    pub(super) heard: u64,
}

impl Outbox {
    pub(super) fn fail_line(&mut self, index: u16) {
        if let Some(line) = self.lines.get_mut(usize::from(index)).and_then(Option::as_mut) {
            line.sender.fail_all(&mut self.pendings.to(line.node));
        }
        self.make_ready(index);
    }

    pub(super) fn line(&self, index: u16) -> Option<&Line> {
        self.lines.get(usize::from(index))?.as_ref()
    }

    /// Returns the line to a node.
    pub(super) fn find(&self, node: u32) -> Option<u16> {
        let mut next = *self.chains.get(node as usize % CHAINS)?;
        while let Some(line) = self.line(next) {
            if line.node == node {
                return Some(next);
            }
            next = line.chain;
        }
        None
    }

    /// Opens the line to a node. If all are open, one without messages changes its node.
    pub(super) fn open(&mut self, node: u32, now: u64) -> Option<u16> {
        let (index, place, paused_until) = match self.free.pop() {
            Some(index) => (index, Place::Idle, None),
            None => self.take_empty()?,
        };
        let head = self.chains.get_mut(node as usize % CHAINS)?;
        let chain = core::mem::replace(head, index);
        let line = Line { sender: Sender::default(), node, chain, place, paused_until, heard: now };
        *self.lines.get_mut(usize::from(index))? = Some(line);

        if self.scan_at.is_none() && self.scan.is_none() {
            self.scan_at = Some(now + self.settings.timeout / SCANS);
        }
        Some(index)
    }

    /// Takes a line without messages, which no step has closed yet, from its node. The queue and
    /// the heap that have its index keep it, so that the line's next user has its place in them.
    fn take_empty(&mut self) -> Option<(u16, Place, Option<u64>)> {
        let is_empty = |line: &Option<Line>| line.as_ref().is_some_and(|line| line.sender.count() == 0);
        let index = self.lines.iter().position(is_empty)?;
        let line = self.lines.get_mut(index)?.take()?;
        self.unchain(index as u16, line.node, line.chain);
        Some((index as u16, line.place, line.paused_until))
    }

    /// Closes a line without messages.
    pub(super) fn close(&mut self, index: u16) {
        let Some(line) = self.lines.get_mut(usize::from(index)).and_then(Option::take) else { return };
        self.free.push(index);
        if self.free.len() == self.lines.len() {
            self.scan_at = None;
        }
        self.unchain(index, line.node, line.chain);
    }

    /// Takes a line out of the chain of its node. `following` is the next line of the chain.
    fn unchain(&mut self, index: u16, node: u32, following: u16) {
        let Some(head) = self.chains.get_mut(node as usize % CHAINS) else { return };
        if *head == index {
            *head = following;
            return;
        }

        let mut next = *head;
        while let Some(other) = self.lines.get_mut(usize::from(next)).and_then(Option::as_mut) {
            if other.chain == index {
                other.chain = following;
                return;
            }
            next = other.chain;
        }
    }

    pub(super) fn set_place(&mut self, index: u16, place: Place) {
        if let Some(line) = self.lines.get_mut(usize::from(index)).and_then(Option::as_mut) {
            line.place = place;
        }
    }

    pub(super) fn make_ready(&mut self, index: u16) {
        if self.line(index).is_some_and(|line| line.place == Place::Idle) {
            self.set_place(index, Place::Ready);
            self.ready.push_back(index);
        }
    }
}
