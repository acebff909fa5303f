//! Waits for room in the posted-write ring, and for commands to end.

use std::time::Duration;

use nicforge_driver::{Cancel, Deadline, Error as DriverError, Poster, SharedPoster};
use nicforge_hwi::{
    extoll::reg,
    extoll_rma::{Command, MAX_COMMANDS},
};
use zerocopy::IntoBytes;

use super::{BAR_REGISTERS, Port};
use crate::Error;

/// Time that posting a command waits while as many commands are in flight as a card accepts, or
/// while the posted-write ring is full.
const ROOM_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of the check that the card still has the queue, while a call waits for commands to end.
const QUEUE_CHECK_INTERVAL: Duration = Duration::from_millis(10);

impl Port {
    /// Waits until the posted-write ring has room, and posts a command. Other threads can lock the
    /// ring meanwhile.
    #[cold]
    pub(super) fn post_when_room(&self, poster: &SharedPoster, command: &Command) -> Result<(), Error> {
        let bytes = command.as_bytes();
        let post = || match poster.with(|ring| ring.try_post(BAR_REGISTERS, reg::RMA_COMMAND, bytes)) {
            Ok(()) => Ok(Some(())),
            Err(DriverError::RingFull { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        };

        let deadline = Deadline::after(ROOM_TIMEOUT);
        self.device.wait_for(deadline, self.cancel.as_ref(), "room in a posted-write ring", post)
    }

    /// Checks that the device was not reset since the port was opened.
    #[inline]
    pub(super) fn check_reset(&self) -> Result<(), Error> {
        if self.device.resets() == self.resets { Ok(()) } else { Err(Error::Reset) }
    }

    /// Waits until fewer commands are in flight than the card accepts. Without this wait, the card
    /// would stall the ring, and with it everything else that is posted there.
    #[cold]
    pub(super) fn wait_for_room(&self) -> Result<(), Error> {
        self.wait_for_ends(MAX_COMMANDS as u64 - 1, Deadline::after(ROOM_TIMEOUT), self.cancel.as_ref())
    }

    /// Waits until every posted command has ended, successfully or not.
    ///
    /// # Errors
    /// [`DriverError::Timeout`], [`DriverError::Cancelled`], [`DriverError::DeviceGone`];
    /// [`Error::Reset`], [`Error::QueueGone`].
    pub fn drain(&self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<(), Error> {
        self.wait_for_ends(0, deadline, cancel)
    }

    /// Waits until no more than `maximum` commands are in flight, and checks now and then that the
    /// card still has the queue.
    fn wait_for_ends(&self, maximum: u64, deadline: Deadline, cancel: Option<&Cancel>) -> Result<(), Error> {
        loop {
            let waited = self.device.wait_for(
                deadline.at_most(QUEUE_CHECK_INTERVAL),
                cancel,
                "commands to end",
                || {
                    self.check_reset()?;
                    Ok((self.in_flight() <= maximum).then_some(()))
                },
            );
            match waited {
                // After a reset by the administrator the VPID counts from 0 again, so the awaited
                // count would never be reached.
                Err(Error::Driver(DriverError::Timeout { what, .. })) => {
                    self.check_queue()?;
                    if deadline.has_passed() {
                        return Err(deadline.timeout(what).into());
                    }
                }
                other => return other,
            }
        }
    }

    /// Checks that the card still has the queue.
    ///
    /// A trapped read drains the posted-write ring first, and a record of a message without credit
    /// can stall that. So the call reads no register while records are in the ring. It then notices
    /// a reset of the VPID, but not that the queue's memory is gone.
    pub(super) fn check_queue(&self) -> Result<(), Error> {
        // An enabled queue may be that of another port.
        if !self.epoch.is_current() {
            return Err(Error::QueueGone);
        }
        if self.has_records_in_ring() {
            return Ok(());
        }

        let is_enabled = self.registers.read64(reg::RMA_QUEUE_ENABLE)? != 0;
        if is_enabled && self.epoch.is_current() { Ok(()) } else { Err(Error::QueueGone) }
    }

    /// Returns whether the posted-write ring has records that the card has not finished.
    fn has_records_in_ring(&self) -> bool {
        let is_unfinished = |ring: &mut Poster| ring.position().is_some_and(|last| !ring.has_passed(last));
        self.poster.as_ref().is_some_and(|poster| poster.with(is_unfinished))
    }
}
