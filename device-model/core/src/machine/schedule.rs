//! Stepping the machine, and the decision when it may sleep.
//!
//! A function is *hot* while the machine polls its mapped memory in every turn, and *cold*
//! otherwise. It goes cold after a time without work:
//!
//! 1. The machine sets the sleeping word in the mirror of each of the function's clients.
//! 2. One barrier makes the words visible to every running thread. Functions that go cold together
//!    share it.
//! 3. The machine looks once more at the memory, and wakes the function if it finds work.
//!
//! From then on, a client that stores to the memory finds the word set, and wakes the function by a
//! trapped write. The client needs no fence for this.

use std::{cmp::Reverse, collections::VecDeque, sync::atomic::Ordering};

use super::{FunctionSlot, Machine, PollState};
use crate::{
    context::Context,
    device::Progress,
    ids::{AttachmentId, FunctionId},
    time::Nanos,
};

/// Default time without work after which a function goes cold, in nanoseconds.
/// [`Machine::set_cool_after`] changes it.
pub(super) const COOL_AFTER: u64 = 50_000;
/// Bytes of client memory that DMA may touch in a step. Beyond them the remaining functions wait
/// for the next step. The kernel may have to allocate each page first, which takes far longer than
/// the copy.
const MOST_TOUCHED: usize = 512 << 10;
/// Interval of the heartbeat in every client's mirror, in nanoseconds.
const HEARTBEAT: u64 = 50_000_000;

/// Time of the next [`Machine::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At once, because there is more to do.
    Now,
    /// Soon. The step found no work, but clients may write to memory that the machine polls.
    Poll,
    /// At the given time, or earlier when a client's access wakes the machine. [`Nanos::NEVER`]
    /// means that only an access causes work.
    At(Nanos),
}

impl Machine {
    /// Runs one turn of each function that is awake, and returns the time of the next step.
    /// `budget` is the approximate number of packets for each function, at least 1.
    ///
    /// `now` is the current time; a time earlier than before counts as the time before. While there
    /// are clients, the caller should step every 50 ms or so, whatever the last result: a step
    /// advances the heartbeat in their mirrors.
    pub fn step(&mut self, now: Nanos, budget: u32) -> Next {
        self.shared.now = self.shared.now.max(now);
        let now = self.shared.now;
        let budget = budget.max(1);
        self.update_heartbeats(now);

        while let Some((time, function)) = self.next_timer()
            && time <= now
        {
            self.timers.pop();
            self.slots[function.0 as usize].timer = Nanos::NEVER;
            self.wake(function);
        }

        self.collect_woken();

        let mut busy = false;
        self.shared.touched = 0;
        for _ in 0..self.hot.len() {
            if self.shared.touched >= MOST_TOUCHED {
                busy = true;
                break;
            }
            let Some(function) = self.hot.pop_front() else { break };
            busy |= self.turn(function, budget);
            // A function that got packets from this turn runs in this step if its turn is still to
            // come, and in the next step otherwise.
            self.collect_woken();
        }

        if !self.cooling.is_empty() {
            busy |= self.cool_down(budget);
            self.collect_woken();
        }

        if busy || !self.shared.outgoing.is_empty() {
            Next::Now
        } else if !self.hot.is_empty() {
            Next::Poll
        } else {
            let timer = self.next_timer().map_or(Nanos::NEVER, |(time, _)| time);
            Next::At(timer.min(self.fabric.next_event()))
        }
    }

    /// Sets the time without work after which a function goes cold, in nanoseconds.
    pub fn set_cool_after(&mut self, nanoseconds: u64) {
        self.cool_after = nanoseconds;
    }

    /// Polls the mapped memory of every function that has a client, in the next step.
    ///
    /// A caller that lets the machine sleep should call this every 10 ms or so. It finds the stores
    /// of clients that the barrier does not reach, such as a guest's processors.
    pub fn rescan(&mut self) {
        for index in 0..self.slots.len() {
            if self.slots[index].state.attachments.iter().any(|attachment| attachment.tenant.is_some()) {
                self.wake(FunctionId(index as u32));
            }
        }
    }

    /// Makes a function hot: the next step runs it, and polling goes on for a while afterwards.
    #[inline]
    pub fn wake(&mut self, function: FunctionId) {
        wake(&mut self.slots, &mut self.hot, function);
    }

    /// Takes over the device's timer request.
    #[inline]
    pub(super) fn update_timer(&mut self, function: FunctionId) {
        let Some(slot) = self.slots.get_mut(function.0 as usize) else { return };
        let request = std::mem::replace(&mut slot.state.wake_at, Nanos::NEVER);
        if request < slot.timer {
            slot.timer = request;
            self.add_timer(request, function);
        }
    }

    /// Adds a timer. It is apart from [`Machine::update_timer`], which every step calls and which
    /// rarely needs it.
    #[inline(never)]
    fn add_timer(&mut self, request: Nanos, function: FunctionId) {
        self.timers.push(Reverse((request, function)));

        // Stale entries leave when their time comes, or here when there are many of them.
        if self.timers.len() > 2 * self.slots.len() + 64 {
            self.timers.clear();
            for (index, slot) in self.slots.iter().enumerate() {
                if slot.timer < Nanos::NEVER {
                    self.timers.push(Reverse((slot.timer, FunctionId(index as u32))));
                }
            }
        }
    }

    /// Returns the first timer that is not stale. It stays in the heap.
    fn next_timer(&mut self) -> Option<(Nanos, FunctionId)> {
        while let Some(&Reverse((time, function))) = self.timers.peek() {
            if self.slots.get(function.0 as usize).is_some_and(|slot| slot.timer == time) {
                return Some((time, function));
            }
            self.timers.pop();
        }
        None
    }

    /// Delivers the fabric's due packets, and wakes the functions that have received some.
    #[inline]
    fn collect_woken(&mut self) {
        self.fabric.advance(self.shared.now);
        let (slots, hot) = (&mut self.slots, &mut self.hot);
        self.fabric.take_woken(|function| wake(slots, hot, function));
    }

    /// Runs a function for one turn, and queues it for the next unless it may go cold. Returns
    /// whether it did work.
    fn turn(&mut self, function: FunctionId, budget: u32) -> bool {
        let busy = self.run(function, budget);
        let now = self.shared.now;
        let cool_after = self.cool_after;
        let Some(slot) = self.slots.get_mut(function.0 as usize) else { return false };

        let PollState::Hot { idle_since } = &mut slot.poll_state else {
            slot.queued = false;
            self.fabric.end_polling(function);
            return busy;
        };

        if busy {
            *idle_since = Some(now);
        } else if now >= idle_since.get_or_insert(now).after(cool_after) {
            slot.queued = false;
            // Events of this turn need no wake-up: the machine looks once more before the function
            // is cold.
            self.fabric.end_polling(function);
            self.cooling.push(function);
            return false;
        }

        self.hot.push_back(function);

        busy
    }

    /// Runs one turn: drains the rings, delivers DMA results and steps the device. Returns whether
    /// there was work.
    #[inline(always)]
    fn run(&mut self, function: FunctionId, budget: u32) -> bool {
        let handed_over = self.deliver_results(function, budget);
        let mut busy = handed_over > 0;
        let mut from = (0, 0);
        let mut stalled = false;

        while let Some((who, ring)) = self.next_posted(function, &mut from) {
            let drained = self.drain_ring(function, who, ring, budget);
            busy |= drained.moved;
            stalled |= drained.stalled;
        }

        let Some(slot) = self.slots.get_mut(function.0 as usize) else { return busy };
        slot.state.contended = stalled && slot.state.clients.len() > 1;
        if slot.state.contended {
            slot.state.reorder_clients(budget);
        }

        let mut context =
            Context { function: &mut slot.state, shared: &mut self.shared, fabric: &mut self.fabric };
        busy |= slot.device.step(&mut context, budget) == Progress::Busy;

        // Most steps set no timer and finish no DMA.
        let (requested, ended) = (slot.state.wake_at < Nanos::NEVER, !slot.state.completions.is_empty());
        if requested {
            self.update_timer(function);
        }

        busy | (ended && self.deliver_queued_results(function, budget - handed_over) > 0)
    }

    /// Returns the next ring that has records, and advances `from` past it. `from` is an index into
    /// the function's clients, and a ring of that client.
    ///
    /// The search is on the packet path: most functions there have no client, and most clients no
    /// records.
    #[inline]
    fn next_posted(&self, function: FunctionId, from: &mut (usize, usize)) -> Option<(AttachmentId, usize)> {
        let state = &self.slots.get(function.0 as usize)?.state;
        while let Some(&who) = state.clients.get(from.0) {
            let attachment = state.attachments.get(usize::from(who.0));
            let tenant = attachment.and_then(|attachment| attachment.tenant.as_ref());
            while let Some(ring) = tenant.and_then(|tenant| tenant.rings.get(from.1)) {
                from.1 += 1;
                if !ring.consumer.is_empty() {
                    return Some((who, from.1 - 1));
                }
            }
            *from = (from.0 + 1, 0);
        }

        None
    }

    /// Delivers finished DMA reads to the device, at most `most` and within the bytes that a step
    /// may touch. Returns their number.
    #[inline]
    fn deliver_results(&mut self, function: FunctionId, most: u32) -> u32 {
        let any = self.slots.get(function.0 as usize).is_some_and(|slot| !slot.state.completions.is_empty());
        if any { self.deliver_queued_results(function, most) } else { 0 }
    }

    /// Slow path of [`Machine::deliver_results`]: there are results to deliver.
    fn deliver_queued_results(&mut self, function: FunctionId, most: u32) -> u32 {
        for done in 0..most {
            if self.shared.touched >= MOST_TOUCHED {
                return done;
            }
            let Some(completion) =
                self.slots.get_mut(function.0 as usize).and_then(|slot| slot.state.completions.pop_front())
            else {
                return done;
            };

            if let Ok(attachment) = self.attachment_mut(function, completion.who) {
                attachment.waiting_reads = attachment.waiting_reads.saturating_sub(1);
            }

            match completion.result {
                Ok(filled) => {
                    let data = &filled.buffer[..filled.length];
                    self.call(function, |device, context| {
                        device.dma_done(context, completion.who, completion.token, Ok(data));
                    });
                    self.shared.return_buffer(filled.buffer);
                }
                Err(error) => {
                    self.call(function, |device, context| {
                        device.dma_done(context, completion.who, completion.token, Err(error));
                    });
                }
            }
        }

        most
    }

    /// Makes the functions in `cooling` cold, unless a client has written in the meantime. Returns
    /// whether any of them found work.
    fn cool_down(&mut self, budget: u32) -> bool {
        // A function that an event woke after its turn stays hot and runs again.
        let slots = &mut self.slots;
        self.cooling.retain(|function| !slots[function.0 as usize].queued);
        for function in &self.cooling {
            let slot = &mut slots[function.0 as usize];
            slot.poll_state = PollState::Cold;
            for attachment in &slot.state.attachments {
                attachment.set_sleeping(true);
            }
        }

        self.sleeper.barrier();

        let mut busy = false;
        while let Some(function) = self.cooling.pop() {
            if self.run(function, budget) {
                self.wake(function);
                busy = true;
            }
        }

        busy
    }

    /// Advances the heartbeat in every client's mirror when it is due.
    fn update_heartbeats(&mut self, now: Nanos) {
        if now < self.heartbeat_due {
            return;
        }

        self.heartbeat_due = now.after(HEARTBEAT);
        self.heartbeat += 1;
        for slot in &self.slots {
            for attachment in &slot.state.attachments {
                if let Some(words) = attachment.tenant.as_ref().and_then(|tenant| tenant.mirror.as_ref()) {
                    words.heartbeat.store(self.heartbeat, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Makes a function hot: see [`Machine::wake`]. The arguments are parts of the machine, so that the
/// fabric can stay borrowed.
#[inline]
fn wake(slots: &mut [FunctionSlot], hot: &mut VecDeque<FunctionId>, function: FunctionId) {
    let Some(slot) = slots.get_mut(function.0 as usize) else { return };
    if slot.poll_state == PollState::Cold {
        wake_up(slot);
    }

    slot.poll_state = PollState::Hot { idle_since: None };
    if !slot.queued {
        slot.queued = true;
        hot.push_back(function);
    }
}

/// Clears the sleeping words of a function's clients.
#[cold]
fn wake_up(slot: &FunctionSlot) {
    for attachment in &slot.state.attachments {
        attachment.set_sleeping(false);
    }
}
