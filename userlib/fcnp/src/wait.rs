//! Waiting: deadline, cancellation, and the machine going on meanwhile.

use nicforge_driver::{Cancel, Deadline, Relax};

use crate::{Error, tree::TreeChannel};

/// The state of one call's waiting loops.
pub(crate) struct Waiter<'a> {
    channel: &'a TreeChannel,
    deadline: Deadline,
    cancel: Option<&'a Cancel>,
    relax: Relax,
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(channel: &'a TreeChannel, deadline: Deadline, cancel: Option<&'a Cancel>) -> Self {
        Self { channel, deadline, cancel, relax: channel.device().new_relax() }
    }

    /// Something happened: the next turn is a short one again.
    #[inline]
    pub(crate) fn progress(&mut self) {
        self.relax.reset();
    }

    /// Whether the call must end.
    pub(crate) fn check(&self, what: &'static str) -> Result<(), Error> {
        if self.cancel.is_some_and(Cancel::is_cancelled) {
            return Err(Error::Cancelled { what });
        }
        if self.deadline.has_passed() {
            return Err(Error::Timeout { what });
        }
        Ok(())
    }

    /// One turn of a loop that waits for `what`.
    pub(crate) fn turn(&mut self, what: &'static str) -> Result<(), Error> {
        self.check(what)?;
        self.channel.relax(&mut self.relax)
    }
}
