//! The companion of a disk: it reads and writes the file, and may wait for that.

use std::sync::Arc;

use nicforge_core::{
    companion::{Companion, CompanionEnd, CompanionMode, CompanionSpec, SendError},
    device::Progress,
};

use super::{MAX_IN_FLIGHT, Store, image::SECTOR, registers::Status};

/// The companion. It needs one command and one event for each request in flight.
pub(super) const SPEC: CompanionSpec = CompanionSpec {
    name: "disk",
    commands: MAX_IN_FLIGHT,
    events: MAX_IN_FLIGHT,
    mode: CompanionMode::Threads,
};

/// The direction of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// The job's bytes are read from the file.
    Read,
    /// The job's bytes are written to the file.
    Write,
}

/// A command to the companion, and with its status the event that answers it.
pub(super) struct Job {
    /// Number of the driver's incarnation that it belongs to.
    pub(super) incarnation: u64,
    /// Place of the request among those in flight.
    pub(super) slot: usize,
    pub(super) operation: Operation,
    /// The first sector.
    pub(super) sector: u64,
    /// The data of whole sectors: those to write, or room for those that are read.
    pub(super) bytes: Vec<u8>,
    /// The result, once the job is done.
    pub(super) status: Status,
}

/// The companion, which carries out jobs on the contents of the disk.
pub(super) struct Worker {
    pub(super) store: Arc<dyn Store>,
    /// A job that is done and waits for room in the FIFO of events.
    pub(super) unsent: Option<Job>,
}

impl Companion for Worker {
    type Command = Job;
    type Event = Job;

    /// Does one job, since a slow disk may take most of a poll's time for it.
    fn poll(&mut self, end: &mut CompanionEnd<Job, Job>, _: u32) -> Progress {
        if self.unsent.is_none() {
            let Some(mut job) = end.receive() else { return Progress::Idle };
            job.run(&*self.store);
            self.unsent = Some(job);
        }

        if let Some(job) = self.unsent.take()
            && let Err(SendError::Full(job)) = end.send(job)
        {
            self.unsent = Some(job);
            return Progress::Idle;
        }
        Progress::Busy
    }
}

impl Job {
    /// Carries out the job, and sets its status.
    fn run(&mut self, store: &dyn Store) {
        let offset = self.sector * SECTOR;
        let result = match self.operation {
            Operation::Read => store.read(offset, &mut self.bytes),
            Operation::Write => store.write(offset, &self.bytes),
        };
        self.status = if result.is_ok() { Status::Ok } else { Status::IoError };
    }
}
