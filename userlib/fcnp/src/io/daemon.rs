//! The thread that takes requests while no call does (FCNP paper, sections IV and IV-A).

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use nicforge_driver::{
    Cancel, Deadline, Interrupt, Relax,
    runtime::{Cost, Event, Instant, charge},
};

use super::service::Inner;
use crate::{Error, Mode};

/// How long the thread sleeps before it checks again whether a call polls the FIFO or receives
/// data.
const CALLER_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// How long the thread sleeps without an interrupt before it checks the FIFO. Data packets without
/// a reader raise no interrupt.
const FIFO_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// State by which the calls stop, wake and end the daemon.
///
/// Invariant: with [`Poller::Calls`], a call is counted in `callers` while it may poll the FIFO,
/// and the daemon sleeps on `wakeup`.
///
/// [`Poller::Calls`]: crate::Poller::Calls
#[derive(Debug)]
pub(super) struct DaemonControl {
    callers: AtomicU32,
    /// Number of requests that calls have acknowledged.
    acknowledged: AtomicU32,
    wakeup: Event,
    stop: Cancel,
    /// The error that has ended the daemon.
    failure: OnceLock<Error>,
}

impl DaemonControl {
    /// Returns the state of a daemon that runs, without calls.
    pub(super) fn new() -> Result<Self, Error> {
        Ok(Self {
            callers: AtomicU32::new(0),
            acknowledged: AtomicU32::new(0),
            wakeup: Event::default(),
            stop: Cancel::new()?,
            failure: OnceLock::new(),
        })
    }

    /// Counts a call that polls the FIFO itself.
    pub(super) fn add_caller(&self) {
        self.callers.fetch_add(1, Ordering::AcqRel);
        charge(Cost::HandOff, 1);
    }

    /// Removes a call from the count. Returns whether no call is left.
    pub(super) fn remove_caller(&self) -> bool {
        self.callers.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Counts an acknowledged request. The daemon's poll phase then starts again, because the
    /// core's next request often follows soon.
    pub(super) fn count_acknowledged(&self) {
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
    }

    /// Starts the polling of the daemon.
    pub(super) fn wake(&self) {
        self.wakeup.notify();
    }

    /// Returns the error that has ended the daemon, if any.
    pub(super) fn failure(&self) -> Option<&Error> {
        self.failure.get()
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
    // A call that polls gets the device's error itself. A sleeping call gets it from here.
    if let Err(error) = serve(inner, interrupt) {
        let _ = inner.daemon.failure.set(error);
        inner.notify();
    }
}

/// Receives packets for all calls until the daemon must stop. While calls poll themselves, it
/// pauses.
fn serve(inner: &Inner, interrupt: Option<&Interrupt>) -> Result<(), Error> {
    let mut relax: Relax = inner.channel.device().new_relax();
    relax.wait_for_programs_too();
    let mut idle_since = Instant::now();

    let control = &inner.daemon;
    let mut acknowledged = 0;

    while !control.stop.is_cancelled() {
        let wakeup_count = control.wakeup.count();
        if control.callers.load(Ordering::Acquire) != 0 || inner.receive.has_reader() {
            control.wakeup.sleep(wakeup_count, CALLER_CHECK_INTERVAL);
            relax.reset();
            idle_since = Instant::now();
            continue;
        }

        if inner.service()? {
            relax.reset();
            idle_since = Instant::now();
            continue;
        }

        // Without a packet, an acknowledgement by a call also starts the poll phase again.
        let now_acknowledged = control.acknowledged.load(Ordering::Relaxed);
        if std::mem::replace(&mut acknowledged, now_acknowledged) != now_acknowledged {
            relax.reset();
            idle_since = Instant::now();
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

/// Returns whether the thread may sleep until an interrupt: in interrupt mode, if no data are being
/// discarded, which raise no interrupt, and no control packet waits for room.
fn may_sleep(inner: &Inner) -> bool {
    let may_drain =
        super::cores::try_lock(&inner.receive.incoming).is_none_or(|incoming| incoming.drain.is_some());
    inner.config.mode == Mode::Interrupt && !may_drain && !inner.replies.is_pending()
}

/// Sleeps until the interrupt, as the dummy read in the FCNP paper does. Enabling raises the
/// interrupt at once if an irq-marked packet is anywhere in the FIFO, so none is missed. The sleep
/// may end for a packet that another thread has taken, which is harmless.
fn sleep(inner: &Inner, interrupt: &Interrupt) -> Result<(), Error> {
    interrupt.take();

    inner.channel.enable_receive_interrupt(true)?;
    let woken = interrupt.sleep(Deadline::after(FIFO_CHECK_INTERVAL), Some(&inner.daemon.stop));
    inner.channel.enable_receive_interrupt(false)?;

    if woken? {
        inner.counters.interrupts.add(1);
    }
    Ok(())
}
