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

    /// Opens the line to a node.
    pub(super) fn open(&mut self, node: u32, now: u64) -> Option<u16> {
        let index = self.free.pop()?;
        let head = self.chains.get_mut(node as usize % CHAINS)?;
        let chain = core::mem::replace(head, index);
        let line = Line {
            sender: Sender::default(),
            node,
            chain,
            place: Place::Idle,
            paused_until: None,
            heard: now,
        };
        *self.lines.get_mut(usize::from(index))? = Some(line);

        if self.scan_at.is_none() && self.scan.is_none() {
            self.scan_at = Some(now + self.settings.timeout / SCANS);
        }
        Some(index)
    }

    /// Closes a line without messages.
    pub(super) fn close(&mut self, index: u16) {
        let Some(line) = self.lines.get_mut(usize::from(index)).and_then(Option::take) else { return };
        self.free.push(index);
        if self.free.len() == self.lines.len() {
            self.scan_at = None;
        }

        let Some(head) = self.chains.get_mut(line.node as usize % CHAINS) else { return };
        if *head == index {
            *head = line.chain;
            return;
        }
        let mut next = *head;
        while let Some(other) = self.lines.get_mut(usize::from(next)).and_then(Option::as_mut) {
            if other.chain == index {
                other.chain = line.chain;
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
