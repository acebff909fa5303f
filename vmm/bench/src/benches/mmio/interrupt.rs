//! Measures interrupts, and eventfds alone.

use std::{
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::Instant,
};

use nicforge::failure::{ErrorContext, Failure};
use nicforge_driver::{Bar, Cancel, Deadline, Device, Interrupt, Poster};
use nicforge_hwi::proof::dma_engine::{REG_START, REG_STATUS, VECTOR_ERROR};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};

use super::{Contestant, Effort, Measurement, PAUSE, TIMEOUT, paced, registers::accessing};
use crate::{placement::pin, row::Backing, samples::Samples};

/// The BAR of the registers.
const REGISTERS: u8 = 0;

/// Measures the time from a posted write to an awake engine until a blocking wait in another thread
/// returns.
///
/// The write starts the DMA engine with an empty list. The engine's only answer is an interrupt.
pub(in crate::benches) struct Irq {
    registers: Bar,
    poster: Poster,
    cancel: Cancel,
    /// Gets the time at which each wait returned. It is dropped, and `None`, when the waiting
    /// thread must end.
    returned: Option<Receiver<Result<Instant, nicforge_driver::Error>>>,
    waiter: Option<JoinHandle<()>>,
}

impl Irq {
    /// Starts the waiting thread. The waits of `device` should block at once.
    pub(in crate::benches) fn new(device: &Device) -> Result<Self, Failure> {
        let interrupt = accessing(device.interrupt(VECTOR_ERROR.into()))?;
        let cancel = accessing(Cancel::new())?;
        let (sender, returned) = sync_channel(1);
        let waiter = std::thread::Builder::new()
            .name("interrupt".into())
            .spawn({
                let cancel = cancel.clone();
                move || wait(&interrupt, &cancel, &sender)
            })
            .context(|| "the thread that waits for interrupts".into())?;

        Ok(Self {
            registers: accessing(device.bar(REGISTERS))?,
            poster: accessing(device.poster(0))?,
            cancel,
            returned: Some(returned),
            waiter: Some(waiter),
        })
    }
}

/// Waits for one interrupt after the other until it is cancelled, and sends the time at which each
/// wait returned.
fn wait(
    interrupt: &Interrupt,
    cancel: &Cancel,
    returned: &SyncSender<Result<Instant, nicforge_driver::Error>>,
) {
    loop {
        let result = interrupt.wait(Deadline::never(), Some(cancel)).map(|_| Instant::now());
        let ended = result.is_err();
        if returned.send(result).is_err() || ended {
            return;
        }
    }
}

impl Contestant for Irq {
    fn path(&self) -> &'static str {
        "irq"
    }

    fn backing(&self) -> Option<Backing> {
        Some(Backing::VfioUser)
    }

    fn measure(&mut self, effort: &Effort) -> Result<Measurement, Failure> {
        let Some(returned) = &self.returned else { return Ok(Measurement::default()) };
        let mut samples = Samples::with_capacity(effort.paced);

        for _ in 0..effort.paced {
            // The waiting thread blocks when the pause is over.
            std::thread::sleep(PAUSE);
            // This read wakes the engine.
            accessing(self.registers.read32(REG_STATUS))?;
            let start = Instant::now();
            accessing(self.poster.post(REGISTERS, REG_START, &1u32.to_le_bytes()))?;
            let returned = returned.recv_timeout(TIMEOUT).context(|| "waiting for an interrupt".into())?;
            samples.add(accessing(returned)? - start);
        }

        Ok(Measurement::of_samples(samples))
    }
}

impl Drop for Irq {
    fn drop(&mut self) {
        self.cancel.cancel();
        // The waiting thread may be blocked on a send that was not received.
        self.returned = None;
        if let Some(waiter) = self.waiter.take() {
            // A thread that panicked left nothing to clean up.
            let _ = waiter.join();
        }
    }
}

/// A thread on the server's processor that answers one eventfd with another.
pub(super) struct EventFds {
    request: Arc<EventFd>,
    reply: Arc<EventFd>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl EventFds {
    /// Starts the answering thread on a processor, or anywhere.
    pub(super) fn new(processor: Option<usize>) -> Result<Self, Failure> {
        let description = || "a bare eventfd".into();
        let event =
            || EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC).map(Arc::new).context(description);
        let (request, reply, stop) = (event()?, event()?, Arc::new(AtomicBool::new(false)));
        let thread = std::thread::Builder::new()
            .name("eventfd".into())
            .spawn({
                let (request, reply, stop) = (request.clone(), reply.clone(), stop.clone());
                move || {
                    // A thread that can't be pinned would measure another placement, so it
                    // answers nothing.
                    if processor.is_none_or(|processor| pin(processor).is_ok()) {
                        while request.read().is_ok()
                            && !stop.load(Ordering::Acquire)
                            && reply.write(1).is_ok()
                        {}
                    }
                }
            })
            .context(description)?;

        Ok(Self { request, reply, stop, thread: Some(thread) })
    }
}

impl Contestant for EventFds {
    fn path(&self) -> &'static str {
        "eventfd-pingpong"
    }

    fn measure(&mut self, effort: &Effort) -> Result<Measurement, Failure> {
        let description = || "a bare eventfd".into();
        let limit = PollTimeout::try_from(TIMEOUT).context(description)?;

        paced(
            effort,
            || Ok(()),
            || {
                self.request.write(1).context(description)?;
                // The library waits in the same way: for readiness, and then for the count.
                let mut fds = [PollFd::new(self.reply.as_fd(), PollFlags::POLLIN)];
                if poll(&mut fds, limit).context(description)? == 0 {
                    return Err(Failure::result("the other thread does not answer on a bare eventfd"));
                }
                self.reply.read().map(drop).context(description)
            },
        )
    }
}

impl Drop for EventFds {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The counter is far from its limit, so the write does not block.
        let _ = self.request.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
