//! Interrupts of a machine in this process: counters that the machine increments and a client's
//! thread takes.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use nicforge_core::{ids::FunctionId, interrupt::InterruptSink};
use nicforge_driver::{
    Cancel, Deadline, Error, GoneCause, InterruptSource, Relax,
    runtime::{Cost, charge},
};

use super::{LocalMachine, Sleepers};

/// The machine's end of an interrupt. It does not hold the machine, because the machine holds it.
pub(super) struct Counter {
    count: AtomicU64,
    sleepers: Arc<Sleepers>,
}

impl Counter {
    pub(super) fn new(sleepers: Arc<Sleepers>) -> Arc<Self> {
        Arc::new(Self { count: AtomicU64::new(0), sleepers })
    }
}

impl InterruptSink for Counter {
    fn signal(&self) {
        // Release ordering: a thread that takes the count sees the DMA writes and mirror words from
        // before the interrupt.
        self.count.fetch_add(1, Ordering::Release);
        self.sleepers.wake();
    }
}

/// The client's end of an interrupt.
pub(super) struct Source {
    pub(super) counter: Arc<Counter>,
    pub(super) machine: Arc<LocalMachine>,
    pub(super) function: FunctionId,
    /// Set when the attachment has ended.
    pub(super) is_lost: Arc<AtomicBool>,
}

impl InterruptSource for Source {
    fn take(&self) -> u64 {
        // A plain load keeps the cache line shared while there is no interrupt.
        if self.counter.count.load(Ordering::Relaxed) == 0 {
            return 0;
        }

        self.counter.count.swap(0, Ordering::Acquire)
    }

    fn wait(&self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<u64, Error> {
        let mut relax = Relax::new();
        loop {
            let count = self.take();
            if count > 0 {
                charge(Cost::InterruptWake, 1);
                return Ok(count);
            }

            if let Some(cancel) = cancel {
                cancel.check()?;
            }

            if self.is_lost.load(Ordering::Acquire) {
                return Err(Error::DeviceGone { cause: GoneCause::Evicted });
            }

            if deadline.has_passed() {
                return Err(deadline.timeout("an interrupt"));
            }

            self.machine.relax(self.function, &mut relax)?;
        }
    }
}
