//! Turns of a cold function whose clients sleep on.
//!
//! Most functions of a large network only pass packets of others on. To wake and to cool their
//! clients for each packet would cost more than the turn itself, because the clients' memory is in
//! no cache. A device can thus have its clients left asleep while packets and timers have its
//! function run ([`Device::lets_clients_sleep`](crate::device::Device::lets_clients_sleep)). The
//! function becomes hot when a step does more than pass packets on.

use super::{FunctionSlot, PollState, active::ActiveFunction, schedule::Schedule};

impl Schedule {
    /// Has a function run in the next step, for a packet or a timer, which need not concern its
    /// clients. If they sleep and the device lets them, they are not woken.
    #[inline]
    pub(super) fn wake_for_event(&mut self, slot: &mut FunctionSlot) {
        if slot.poll_state != PollState::Cold || !slot.state.lets_clients_sleep {
            self.wake(slot);
        } else if !slot.queued {
            slot.queued = true;
            self.hot.push_back(slot.state.id);
        }
    }
}

impl ActiveFunction<'_> {
    /// Runs a turn of a function whose clients sleep, and which is at this place of the queue of
    /// hot ones. Wakes the clients if it did more than pass packets on. Removes the function from
    /// the queue if it did nothing. Returns whether it did work.
    pub(super) fn run_with_sleeping_clients(&mut self, place: usize, budget: u32) -> bool {
        let state = &mut self.slot.state;
        (state.clients_sleep, state.is_transit) = (true, false);
        let busy = self.drain_and_step(budget);
        self.slot.state.clients_sleep = false;

        if !busy && self.slot.poll_state == PollState::Cold {
            self.leave_queue(place);
            return false;
        }

        if !self.slot.state.is_transit {
            self.wake();
        }
        busy
    }
}
