//! The notifications of a port: taking them, and waiting for them.

use std::{sync::atomic::Ordering, time::Duration};

use nicforge_driver::{Cancel, Deadline, Error as DriverError, Poster};
use nicforge_hwi::extoll::{reg, vector};

use super::{BAR_REGISTERS, Port};
use crate::{Error, Notification, Role};

/// Longest sleep while the interrupt can't be enabled because the posted-write ring is full.
const FULL_RING_SLEEP: Duration = Duration::from_millis(1);

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
        let is_enabled = self.enable_interrupt()?;
        let longest = if is_enabled { self.sleep } else { self.sleep.min(FULL_RING_SLEEP) };

        if interrupt.sleep(deadline.at_most(longest), cancel)? {
            // A raised interrupt is disabled again, even if the engine has not reported the
            // enabling write as done.
            self.last_enable = None;
        }
        Ok(())
    }

    /// Enables the interrupt, and leaves the VPID's other interrupts as they are. Returns false
    /// when the posted-write ring is full.
    ///
    /// The write is posted if the port has a ring. A trapped write drains the ring first, and a
    /// message without credit can stall that. The call posts nothing while the last enabling write
    /// is in the ring.
    fn enable_interrupt(&mut self) -> Result<bool, Error> {
        let enable = 1_u64 << vector::RMA_NOTIFICATION;
        let Some(poster) = &self.poster else {
            self.registers.write64(reg::INTERRUPT_SET, enable)?;
            return Ok(true);
        };

        let last_enable = &mut self.last_enable;
        poster.with(|ring: &mut Poster| {
            if last_enable.is_some_and(|position| !ring.has_passed(position)) {
                return Ok(true);
            }

            match ring.try_post(BAR_REGISTERS, reg::INTERRUPT_SET, &enable.to_le_bytes()) {
                Ok(()) => *last_enable = ring.position(),
                Err(DriverError::RingFull { .. }) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
            Ok(true)
        })
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
