//! The receive interrupt of a port that sleeps.

use std::time::Duration;

use nicforge_driver::{Device, Error as DriverError, Interrupt, RingPosition, Waiter, runtime::Instant};
use nicforge_hwi::extoll::{reg, vector};

use crate::{Config, Error, card::BAR_REGISTERS, send_path::SendPath};

/// The interrupt that the card raises for a message, and the write that enables it.
///
/// Invariant: at most one enabling write is in flight. A raised interrupt is disabled, so the next
/// sleep needs another write.
pub(crate) struct ReceiveInterrupt {
    interrupt: Interrupt,
    /// Ring position after the last write that enables the interrupt. It is `None` after the
    /// interrupt was raised, and on a device without rings.
    last_enable: Option<RingPosition>,
    /// Time that a call polls before it sleeps.
    poll_phase: Duration,
    /// Time that a call sleeps before it polls again without an interrupt.
    longest_sleep: Duration,
}

/// Longest sleep while a control message waits for room in the posted-write ring.
const PENDING_SLEEP: Duration = Duration::from_millis(1);

impl ReceiveInterrupt {
    /// Binds the interrupt. It stays disabled until [`ReceiveInterrupt::arm`].
    pub(crate) fn bind(device: &Device, config: &Config) -> Result<Self, Error> {
        let interrupt = device.interrupt(vector::VELO_RECEIVE.into())?;
        Ok(Self { interrupt, last_enable: None, poll_phase: config.poll_phase, longest_sleep: config.sleep })
    }

    /// Returns the time from which a call that starts now may sleep.
    pub(crate) fn polling_deadline(&self) -> Instant {
        Instant::now() + self.poll_phase
    }

    /// Enables the interrupt, and leaves the VPID's other interrupts as they are.
    ///
    /// The write is posted. A trapped write drains the posted-write ring first, and a message
    /// without credit can stall that for any time.
    ///
    /// The call posts nothing while the last enabling write is in flight. When the ring is full, it
    /// posts nothing either, and the caller sleeps without the interrupt: see
    /// [`ReceiveInterrupt::sleep`] for the limit.
    pub(crate) fn arm(&mut self, path: &mut SendPath) -> Result<(), Error> {
        let last_enable = &mut self.last_enable;
        path.with_poster_mut(|poster| {
            if last_enable.is_some_and(|position| !poster.has_passed(position)) {
                return Ok(());
            }

            let enable = 1_u64 << vector::VELO_RECEIVE;
            match poster.try_post(BAR_REGISTERS, reg::INTERRUPT_SET, &enable.to_le_bytes()) {
                Ok(()) => *last_enable = poster.position(),
                Err(DriverError::RingFull { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            Ok(())
        })
    }

    /// Sleeps until the interrupt, the deadline or a cancellation, for at most `longest_sleep`.
    /// If the flow control `has_pending` work, it sleeps for at most [`PENDING_SLEEP`]: no
    /// interrupt announces room for control messages in the ring, or the death of a tenant with
    /// credits.
    pub(crate) fn sleep(&mut self, waits: &Waiter<'_>, has_pending: bool) -> Result<(), Error> {
        let longest = if has_pending { self.longest_sleep.min(PENDING_SLEEP) } else { self.longest_sleep };

        if self.interrupt.sleep(waits.deadline().at_most(longest), waits.cancel())? {
            // A raised interrupt is disabled again, even if the engine has not reported the
            // enabling write as done.
            self.last_enable = None;
        }
        Ok(())
    }
}
