//! The thread that takes requests while no call does (paper, IV and IV-A).

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use nicforge_driver::{Deadline, Error as DriverError, Interrupt, Relax};

use super::service::Inner;
use crate::{Error, Mode};

/// How long the thread sleeps while a call polls the FIFO or receives data.
const DAEMON_PAUSE: Duration = Duration::from_millis(1);
/// How long the thread sleeps without an interrupt before it checks the FIFO. Data packets without
/// a reader raise no interrupt.
const DAEMON_SLEEP: Duration = Duration::from_millis(100);

/// Runs until the endpoint stops or the device is gone. Calls detect the loss of the device
/// themselves.
pub(super) fn run(inner: &Inner, interrupt: Option<&Interrupt>) {
    // Every error here comes from the device, and the next call meets it, too.
    let _ = serve(inner, interrupt);
}

fn serve(inner: &Inner, interrupt: Option<&Interrupt>) -> Result<(), Error> {
    let mut relax: Relax = inner.channel.device().new_relax();
    let mut idle_since = Instant::now();

    while !inner.stop.is_cancelled() {
        let count = inner.daemon_wakeup.count();
        if inner.callers.load(Ordering::Acquire) != 0 || inner.reading.load(Ordering::Acquire) {
            inner.daemon_wakeup.sleep(count, DAEMON_PAUSE);
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
    let draining = super::cores::try_lock(&inner.incoming).is_none_or(|incoming| incoming.drain.is_some());
    inner.config.mode == Mode::Interrupt && !draining && !inner.has_pending_replies()
}

/// Sleeps until the interrupt: the dummy read. Enabling raises the interrupt at once if an
/// irq-marked packet is anywhere in the FIFO, so none is missed. The call may return for a packet
/// that another thread has taken, which is harmless.
fn sleep(inner: &Inner, interrupt: &Interrupt) -> Result<(), Error> {
    interrupt.take();

    inner.channel.enable_receive_interrupt(true)?;
    let woken = interrupt.wait(Deadline::after(DAEMON_SLEEP), Some(&inner.stop));
    inner.channel.enable_receive_interrupt(false)?;

    match woken {
        Ok(_) => inner.counters.interrupts.add(1),
        Err(DriverError::Timeout { .. } | DriverError::Cancelled) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
