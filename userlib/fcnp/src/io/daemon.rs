//! The thread that takes requests while no call does (paper, IV and IV-A).

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use nicforge_driver::{Cancel, Deadline, Interrupt, Relax};

use super::{event::Event, service::Inner};
use crate::{Error, Mode};

/// How long the thread sleeps while a call polls the FIFO or receives data.
const DAEMON_PAUSE: Duration = Duration::from_millis(1);
/// How long the thread sleeps without an interrupt before it checks the FIFO. Data packets without
/// a reader raise no interrupt.
const DAEMON_SLEEP: Duration = Duration::from_millis(100);

/// State by which the calls stop, wake and end the daemon.
///
/// Invariant: while a call polls the FIFO it is counted in `callers`, and the daemon sleeps on
/// `wakeup`.
#[derive(Debug)]
pub(super) struct DaemonControl {
    callers: AtomicU32,
    wakeup: Event,
    stop: Cancel,
}

impl DaemonControl {
    pub(super) fn new() -> Result<Self, Error> {
        Ok(Self { callers: AtomicU32::new(0), wakeup: Event::default(), stop: Cancel::new()? })
    }

    /// Counts a call that polls the FIFO itself.
    pub(super) fn add_caller(&self) {
        self.callers.fetch_add(1, Ordering::AcqRel);
    }

    /// Removes a call from the count. Returns whether no call is left.
    pub(super) fn remove_caller(&self) -> bool {
        self.callers.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Lets the daemon poll from here on.
    pub(super) fn wake(&self) {
        self.wakeup.notify();
    }

    /// Ends the daemon.
    pub(super) fn stop(&self) {
        self.stop.cancel();
        self.wakeup.notify();
    }
}

/// Runs until the endpoint stops or the device is gone. Calls detect the loss of the device
/// themselves.
pub(super) fn run(inner: &Inner, interrupt: Option<&Interrupt>) {
    // Every error here comes from the device, and the next call meets it, too.
    let _ = serve(inner, interrupt);
}

fn serve(inner: &Inner, interrupt: Option<&Interrupt>) -> Result<(), Error> {
    let mut relax: Relax = inner.channel.device().new_relax();
    let mut idle_since = Instant::now();

    let control = &inner.daemon;

    while !control.stop.is_cancelled() {
        let count = control.wakeup.count();
        if control.callers.load(Ordering::Acquire) != 0 || inner.receive.is_read() {
            control.wakeup.sleep(count, DAEMON_PAUSE);
            idle_since = Instant::now();
            continue;
        }

        if inner.service()? {
            relax.reset();
            idle_since = Instant::now();
            continue;
        }

        inner.counters.polls.add(1);
        match interrupt {
            Some(interrupt) if may_sleep(inner) && idle_since.elapsed() > inner.config.poll_phase => {
                sleep(inner, interrupt)?;
                idle_since = Instant::now();
            }
            _ => inner.channel.relax(&mut relax)?,
        }
    }
    Ok(())
}

/// Returns whether every packet that may come raises an interrupt.
fn may_sleep(inner: &Inner) -> bool {
    let draining =
        super::cores::try_lock(&inner.receive.incoming).is_none_or(|incoming| incoming.drain.is_some());
    inner.config.mode == Mode::Interrupt && !draining && !inner.replies.is_pending()
}

/// Sleeps until the interrupt: the dummy read. Enabling raises the interrupt at once if an
/// irq-marked packet is anywhere in the FIFO, so none is missed. The call may return for a packet
/// that another thread has taken, which is harmless.
fn sleep(inner: &Inner, interrupt: &Interrupt) -> Result<(), Error> {
    interrupt.take();

    inner.channel.enable_receive_interrupt(true)?;
    let woken = interrupt.sleep(Deadline::after(DAEMON_SLEEP), Some(&inner.daemon.stop));
    inner.channel.enable_receive_interrupt(false)?;

    if woken? {
        inner.counters.interrupts.add(1);
    }
    Ok(())
}
