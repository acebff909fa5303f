//! Counts the work of the server and of QEMU while a guest works.

use std::time::{Duration, Instant};

use nicforge::failure::Failure;

use super::{
    guests::{BenchGuest, KvmExits},
    machine::{Machine, WorkDone},
    worker::TIMEOUT,
};
use crate::row::Row;

/// The name of the row for counted posted writes.
pub(super) const POSTED: &str = "counted-posted-writes";
/// The name of the row for counted packets.
pub(super) const PACKETS: &str = "counted-packets";

/// The interval between two checks whether the engine has done all work.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The counts of one piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    /// The work that the machine has done.
    pub(super) done: WorkDone,
    /// Device accesses that QEMU carried out.
    pub(super) exits: u64,
    /// The exits that KVM counted, if it runs the guests.
    kvm: Option<KvmExits>,
}

impl Counted {
    /// Adds the counts of `operations` operations to a row.
    pub(super) fn add_to(&self, row: Row, operations: u64) -> Row {
        let row = row
            .figure("operations", operations as f64)
            .figure("server_messages", self.done.messages as f64)
            .figure("exits", self.exits as f64)
            .figure("engine_sleeps", self.done.sleeps as f64);

        match self.kvm {
            Some(KvmExits { all, mmio }) => {
                row.figure("kvm_exits", all as f64).figure("kvm_mmio_exits", mmio as f64)
            }
            None => row,
        }
    }
}

/// Calls `work`, and counts the work that it causes in `machine` and in the QEMU processes of
/// `guests`. Waits until `is_complete` returns true for the machine's work since the call, for at
/// most [`TIMEOUT`].
pub(super) fn count(
    machine: &Machine,
    guests: &[&BenchGuest],
    is_complete: impl Fn(&WorkDone) -> bool,
    work: impl FnOnce() -> Result<(), Failure>,
) -> Result<Counted, Failure> {
    let trace = |is_on| guests.iter().try_for_each(|guest| guest.trace_exits(is_on));
    let exits = || guests.iter().try_fold(0, |sum, guest| guest.count_exits().map(|exits| sum + exits));
    let kvm_exits = || -> Result<Option<KvmExits>, Failure> {
        let mut sum = None;
        for guest in guests {
            sum = guest.kvm_exits()?.map(|exits| exits.and(sum.unwrap_or_default()));
        }
        Ok(sum)
    };

    trace(true)?;
    let kvm_before = kvm_exits()?;
    let (done_before, exits_before) = (machine.work_done()?, exits()?);
    work()?;
    let start = Instant::now();

    let done = loop {
        let done = machine.work_done()?.since(&done_before);
        if is_complete(&done) {
            break done;
        }
        if start.elapsed() > TIMEOUT {
            return Err(Failure::result(format!("the machine has done no more than {done:?}")));
        }
        std::thread::sleep(CHECK_INTERVAL);
    };

    // QEMU writes each line of its trace before it continues.
    let exits = exits()? - exits_before;
    let kvm = kvm_exits()?.zip(kvm_before).map(|(after, before)| after.since(before));
    trace(false)?;

    Ok(Counted { done, exits, kvm })
}
