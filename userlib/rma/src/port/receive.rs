//! The notifications of a port: taking them, and waiting for them.

use std::sync::atomic::Ordering;

use nicforge_driver::{Cancel, Deadline, Error as DriverError};
use nicforge_hwi::extoll::{reg, vector};

use super::Port;
use crate::{Error, Notification, Role};

impl Port {
    /// Returns the oldest notification, and leaves it in the queue. Does not wait.
    ///
    /// # Errors
    /// [`Error::Overflow`], once for all lost notifications; [`Error::Reset`] when no notification
    /// will arrive any more.
    #[inline]
    pub fn probe(&mut self) -> Result<Option<Notification>, Error> {
        if let Some(entry) = self.queue.peek()? {
            self.returned = true;
            return Ok(Some(entry.into()));
        }

        // Lost notifications are reported after those in the queue have been taken.
        let overflows = self.overflows.load(Ordering::Acquire);
        if overflows != self.reported_overflows {
            let lost = overflows.wrapping_sub(self.reported_overflows);
            self.reported_overflows = overflows;
            return Err(Error::Overflow { lost });
        }

        self.check_reset()?;
        Ok(None)
    }

    /// Waits for a notification, and leaves it in the queue. The call polls first, and then waits
    /// for an interrupt.
    ///
    /// # Errors
    /// [`DriverError::Timeout`], [`DriverError::Cancelled`], [`DriverError::DeviceGone`],
    /// [`Error::QueueGone`], [`Error::Overflow`], [`Error::Reset`].
    pub fn wait(&mut self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<Notification, Error> {
        loop {
            let device = self.device.clone();
            let polled =
                device.wait_for(deadline.at_most(self.spin), cancel, "a notification", || self.probe());

            match polled {
                Err(Error::Driver(DriverError::Timeout { what, .. })) if deadline.has_passed() => {
                    return Err(deadline.timeout(what).into());
                }
                Err(Error::Driver(DriverError::Timeout { .. })) => {}
                other => return other,
            }

            self.sleep(deadline, cancel)?;
        }
    }

    /// Enables the interrupt and sleeps until it comes, but at most for [`Options::sleep`]. The
    /// caller then polls for a notification again, and checks for a cancellation.
    ///
    /// [`Options::sleep`]: crate::Options::sleep
    #[cold]
    fn sleep(&mut self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<(), Error> {
        self.check_queue()?;

        let interrupt = match &self.interrupt {
            Some(interrupt) => interrupt.clone(),
            None => self.interrupt.insert(self.device.interrupt(vector::RMA_NOTIFICATION.into())?).clone(),
        };

        // A notification that has arrived before raises the interrupt at once.
        self.registers.write64(reg::INTERRUPT_SET, 1 << vector::RMA_NOTIFICATION)?;

        interrupt.sleep(deadline.at_most(self.sleep), cancel)?;
        Ok(())
    }

    /// Frees the notification that [`Port::probe`] or [`Port::wait`] has returned since the last
    /// call, if any. A notification that neither has returned stays in the queue.
    ///
    /// # Errors
    /// Only an access to memory that is gone fails.
    #[inline]
    pub fn free(&mut self) -> Result<(), Error> {
        if std::mem::take(&mut self.returned) {
            self.queue.free()?;
        }
        Ok(())
    }

    /// Waits for a notification and takes it: [`Port::wait`], then [`Port::free`].
    ///
    /// # Errors
    /// As [`Port::wait`].
    #[inline]
    pub fn next(&mut self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<Notification, Error> {
        let notification = match self.probe()? {
            Some(notification) => notification,
            None => self.wait(deadline, cancel)?,
        };

        self.free()?;
        Ok(notification)
    }

    /// Waits for the end of the `commands` that one call of [`Port::put`] or [`Port::get`] with
    /// [`Notify::REQUESTER`](crate::Notify::REQUESTER) has posted. No other command may be in
    /// flight.
    ///
    /// Passes notifications with other roles to `on_other`. Returns the first command that failed,
    /// if any.
    ///
    /// # Errors
    /// As [`Port::wait`].
    pub fn finish(
        &mut self,
        commands: u64,
        deadline: Deadline,
        cancel: Option<&Cancel>,
        mut on_other: impl FnMut(Notification),
    ) -> Result<Option<Notification>, Error> {
        let mut failed = None;
        let mut remaining = commands;

        while remaining > 0 {
            let notification = self.next(deadline, cancel)?;
            if notification.role != Role::Requester {
                on_other(notification);
                continue;
            }

            remaining -= 1;
            if !notification.is_done() {
                failed = failed.or(Some(notification));
            }
        }

        Ok(failed)
    }
}
