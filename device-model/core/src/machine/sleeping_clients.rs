//! Turns of a cold function whose clients stay asleep.
//!
//! Most functions of a large network only forward packets of others. Waking and cooling their
//! clients for each packet would cost more than the turn itself, because the clients' memory is in
//! no cache. A device can thus let its clients sleep while its function runs for packets and timers
//! ([`Device::lets_clients_sleep`](crate::device::Device::lets_clients_sleep)). The function
//! becomes hot when a step does more than forward packets.

use super::{FunctionSlot, PollState, active::ActiveFunction, schedule::Schedule};

impl Schedule {
    /// Queues a function for the next step, because of a packet or a timer. Its clients are not
    /// woken if they sleep and the device lets them.
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
    /// Runs a turn of a function whose clients sleep. Removes it from `queue_index` of the queue of
    /// hot functions if it did nothing. Wakes the clients if it did more than forward packets.
    /// Returns whether it did work.
    pub(super) fn run_with_sleeping_clients(&mut self, queue_index: usize, budget: u32) -> bool {
        let state = &mut self.slot.state;
        (state.clients_sleep, state.is_transit) = (true, false);
        let busy = self.drain_and_step(budget);
        self.slot.state.clients_sleep = false;

        if !busy && self.slot.poll_state == PollState::Cold {
            self.leave_queue(queue_index);
            return false;
        }

        if !self.slot.state.is_transit {
            self.wake();
        }
        busy
    }
}
