//! The pauses of calls that wait.

use nicforge_driver::{Cancel, Deadline, Waiter as DriverWaiter, runtime::Instant};

use crate::{Error, Port, interrupt::ReceiveInterrupt};

/// State of one call that waits.
pub(crate) struct Waiter<'a> {
    waits: DriverWaiter<'a>,
    /// Time from which the call may sleep. `None` when it only polls.
    sleep_from: Option<Instant>,
}

impl<'a> Waiter<'a> {
    /// Starts to wait.
    pub(crate) fn new(port: &Port, deadline: Deadline, cancel: Option<&'a Cancel>) -> Self {
        let sleep_from = port.interrupt.as_ref().map(ReceiveInterrupt::polling_deadline);
        Self { waits: DriverWaiter::new(&port.device, deadline, cancel), sleep_from }
    }

    /// Pauses once in a loop that waits for `operation`: polls, or sleeps once the time for polling
    /// is over. Returns an error when the loop must end.
    pub(crate) fn pause(&mut self, port: &mut Port, operation: &'static str) -> Result<(), Error> {
        self.waits.check().map_err(|end| Error::of_wait(end, operation))?;

        // The caller takes messages that arrived before it evaluates this error.
        if port.device.resets() != port.resets || !port.is_tenant() {
            return Err(port.end_reason());
        }

        match &mut port.interrupt {
            Some(interrupt) if self.sleep_from.is_some_and(|from| Instant::now() >= from) => {
                // A message that has arrived since the last poll raises the interrupt at once.
                interrupt.arm(&mut port.path)?;
                interrupt.sleep(&self.waits, port.flow.has_pending() || port.flow.has_waiting())
            }
            _ => Ok(self.waits.pause(&port.device)?),
        }
    }
}
