//! The waits of one call of a library.

use crate::{Cancel, Deadline, Device, Error, Relax};

/// The reason why a call must stop waiting before its awaited event has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// The call's token is cancelled.
    Cancelled,
    /// The call's deadline has passed.
    Timeout,
}

/// The state of one call's waits: its deadline, its cancel token, and the pauses of its loops.
///
/// A waiting loop polls for its event, calls [`Waiter::check`], and calls [`Waiter::pause`]. Such a
/// loop is [`Device::wait_for`]. A library has a loop of its own where it does other work between
/// two polls, or returns its own error at the end.
#[derive(Debug)]
pub struct Waiter<'a> {
    deadline: Deadline,
    /// The call's cancel token, if it has one.
    cancel: Option<&'a Cancel>,
    /// The pauses so far.
    pub(crate) relax: Relax,
}

impl<'a> Waiter<'a> {
    /// Returns the state of a call that has not waited yet, with the back-off of `device`.
    pub fn new(device: &Device, deadline: Deadline, cancel: Option<&'a Cancel>) -> Self {
        Self::with_relax(device.new_relax(), deadline, cancel)
    }

    /// Returns the state of a call, with the given state of its pauses.
    pub(crate) const fn with_relax(mut relax: Relax, deadline: Deadline, cancel: Option<&'a Cancel>) -> Self {
        relax.deadline = deadline;
        Self { deadline, cancel, relax }
    }

    /// Lets the call wait for stores of other programs and threads, too: see
    /// [`Relax::wait_for_programs_too`].
    pub fn wait_for_programs_too(mut self) -> Self {
        self.relax.wait_for_programs_too();
        self
    }

    /// Returns the call's deadline.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Returns the call's cancel token.
    pub fn cancel(&self) -> Option<&'a Cancel> {
        self.cancel
    }

    /// Records that the loop has made progress: its next pauses are short again.
    #[inline]
    pub fn progress(&mut self) {
        self.relax.reset();
    }

    /// Checks whether the call must stop waiting: first whether its token is cancelled, then
    /// whether its deadline has passed.
    ///
    /// # Errors
    /// Returns the reason.
    #[inline]
    pub fn check(&self) -> Result<(), WaitEnd> {
        if self.cancel.is_some_and(Cancel::is_cancelled) {
            return Err(WaitEnd::Cancelled);
        }

        if self.deadline.has_passed() {
            return Err(WaitEnd::Timeout);
        }
        Ok(())
    }

    /// Checks as [`Waiter::check`] does, and returns this library's error for the reason.
    /// `operation` names the awaited event in a time-out.
    #[inline]
    pub(crate) fn check_for(&self, operation: &'static str) -> Result<(), Error> {
        self.check().map_err(|end| match end {
            WaitEnd::Cancelled => Error::Cancelled,
            WaitEnd::Timeout => self.deadline.timeout(operation),
        })
    }

    /// Pauses once. This does not check the deadline or the token.
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`].
    #[inline]
    pub fn pause(&mut self, device: &Device) -> Result<(), Error> {
        device.relax(&mut self.relax)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(deadline: Deadline, cancel: Option<&Cancel>) -> Waiter<'_> {
        Waiter::with_relax(Relax::new(), deadline, cancel)
    }

    #[test]
    fn a_cancelled_call_ends_as_cancelled_even_after_its_deadline() {
        let cancel = Cancel::new().unwrap();
        let (late, pending) =
            (waiter(Deadline::now(), Some(&cancel)), waiter(Deadline::never(), Some(&cancel)));
        assert_eq!([late.check(), pending.check()], [Err(WaitEnd::Timeout), Ok(())]);

        cancel.cancel();
        assert_eq!([late.check(), pending.check()], [Err(WaitEnd::Cancelled); 2]);
        assert_eq!(late.check_for("it"), Err(Error::Cancelled));
    }

    #[test]
    fn the_librarys_error_names_the_event() {
        let late = waiter(Deadline::now(), None);
        assert!(matches!(late.check_for("it"), Err(Error::Timeout { what: "it", .. })));
    }

    #[test]
    fn progress_resets_the_back_off() {
        let mut waiter = waiter(Deadline::never(), None);
        let first = waiter.relax.next_pause();
        for _ in 0..200 {
            waiter.relax.next_pause();
        }
        assert_ne!(waiter.relax.next_pause(), first);

        waiter.progress();
        assert_eq!(waiter.relax.next_pause(), first);
    }
}
