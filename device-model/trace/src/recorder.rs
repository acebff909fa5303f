//! A sink that keeps the last events in memory.

use std::collections::VecDeque;

use nicforge_core::{
    ids::{AttachmentId, FunctionId},
    time::Nanos,
    trace::{Event, TraceSink},
};

use crate::{
    filter::Filter,
    record::{Record, What},
};

/// A sink that keeps the last events that its filter lets pass.
///
/// Its memory is allocated at the start, at most 200 bytes for each record. A new record takes the
/// place of the oldest one. An event costs a copy of at most [`crate::KEPT`] bytes of its data, and
/// neither a lock nor a system call.
#[derive(Debug)]
pub struct Recorder {
    filter: Filter,
    records: VecDeque<Record>,
    limit: usize,
    /// Number of the next record.
    next: u64,
}

/// Records that were read from a [`Recorder`].
#[derive(Debug)]
pub struct Batch {
    /// The records, oldest first.
    pub records: Vec<Record>,
    /// Records that a newer one had replaced before this reader came to them.
    pub lost: u64,
    /// Number from which the next read continues.
    pub next: u64,
    /// Number of the record that the recorder makes next. A reader that has come so far has read
    /// all.
    pub end: u64,
}

impl Recorder {
    /// Returns a recorder of the last `limit` events, at least one, that `filter` lets pass.
    pub fn new(filter: Filter, limit: usize) -> Self {
        let limit = limit.max(1);
        Self { filter, records: VecDeque::with_capacity(limit), limit, next: 0 }
    }

    /// Returns copies of at most `limit` records, from number `from` on. It changes nothing, so
    /// that several readers can each follow with the numbers of their own.
    pub fn read(&self, from: u64, limit: usize) -> Batch {
        let oldest = self.next - self.records.len() as u64;
        let first = from.clamp(oldest, self.next);
        let lost = first.saturating_sub(from);
        let skipped = (first - oldest) as usize;
        let records: Vec<_> = self.records.iter().skip(skipped).take(limit).copied().collect();
        Batch { next: first + records.len() as u64, records, lost, end: self.next }
    }

    /// Returns the number of the next record.
    pub fn next(&self) -> u64 {
        self.next
    }
}

impl TraceSink for Recorder {
    fn event(
        &mut self,
        now: Nanos,
        function: FunctionId,
        attachment: Option<AttachmentId>,
        event: &Event<'_>,
    ) {
        let what = What::of(event);
        let record = Record { sequence: self.next, time: now, function, attachment, what };
        if !self.filter.accepts(&record) {
            return;
        }

        if self.records.len() == self.limit {
            self.records.pop_front();
        }
        self.records.push_back(record);
        self.next += 1;
    }
}
