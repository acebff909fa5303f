//! Wake-ups of clients that wait for their device.
//!
//! A client that has polled its memory in vain sets its *waiting word*, executes the barrier, looks
//! at its memory once more, and blocks on an eventfd. The machine loads the word after its client's
//! function has worked. If the word is set, the machine clears it and signals the eventfd. No
//! device knows of it.
//!
//! The machine does this once it has nothing more to do, or [`LONGEST_DELAY`] after the first work.
//! A client that is woken by the first packet of several would handle that one and sleep again.
//!
//! The barrier is the client's, so the machine executes no fence. Either the client's last look
//! finds what the step has stored, or the machine's load comes after the barrier and finds the word
//! set. See [`nicforge_shm::wake`], where machine and client have the other roles.
//!
//! A client only shortens or lengthens its own sleep by what it stores in the word.

use super::{Machine, MachineError, active::ActiveFunction};
use crate::{
    attachment::ClientWaker,
    ids::{AttachmentId, FunctionId},
};

/// Longest time for which a client waits while the machine has more to do, in nanoseconds: about
/// the time of a wake-up.
const LONGEST_DELAY: u64 = 20_000;

impl Machine {
    /// Sets how a client is woken that waits for its device, or `None` if it is not. The end of the
    /// client removes it.
    ///
    /// # Errors
    /// [`MachineError::NoSuchAttachment`], [`MachineError::NotAttached`].
    pub fn set_client_waker(
        &mut self,
        function: FunctionId,
        attachment_id: AttachmentId,
        waker: Option<ClientWaker>,
    ) -> Result<(), MachineError> {
        let active = self.active_for_client(function, attachment_id)?;
        let wakers = &mut active.slot.state.client_wakers;
        wakers.retain(|(owner, _)| *owner != attachment_id);
        wakers.extend(waker.map(|waker| (attachment_id, waker)));
        Ok(())
    }

    /// Returns the number of wake-ups of clients so far.
    pub fn client_wakes(&self) -> u64 {
        self.schedule.client_wakes
    }

    /// Wakes the clients that wait at functions that have worked, at the end of a step. `busy`
    /// tells whether there is more work at once.
    #[inline(always)]
    pub(super) fn wake_waiting_clients(&mut self, busy: bool) {
        if !self.schedule.worked.is_empty() {
            self.wake_clients_of_worked(busy);
        }
    }

    #[inline(never)]
    fn wake_clients_of_worked(&mut self, busy: bool) {
        let since = *self.schedule.worked_since.get_or_insert(self.shared.now);
        if busy && self.shared.now < since.after(LONGEST_DELAY) {
            return;
        }
        self.schedule.worked_since = None;

        let mut wakes = 0;
        for function in self.schedule.worked.drain(..) {
            let Some(slot) = self.slots.get_mut(function.0 as usize) else { continue };
            slot.has_worked = false;
            let woken = slot.state.client_wakers.iter().filter(|(_, waker)| waker.wake()).count();
            wakes += woken as u64;
        }
        self.schedule.client_wakes += wakes;
    }
}

impl ActiveFunction<'_> {
    /// Records that the function has worked, so that the end of the step wakes its waiting clients.
    #[inline(always)]
    pub(super) fn note_work(&mut self) {
        self.slot.state.has_touched_clients = false;
        if !self.slot.state.client_wakers.is_empty() && !self.slot.has_worked {
            self.slot.has_worked = true;
            self.schedule.worked.push(self.slot.state.id);
        }
    }
}
