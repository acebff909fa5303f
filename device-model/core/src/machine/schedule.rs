//! Stepping the machine, and when it may rest.
//!
//! A function is *hot* while its mapped memory is looked at every turn, *cold* otherwise. It goes
//! cold when nothing was found for a while: the machine sets the sleeping word of all its clients,
//! makes that visible to every running thread with one barrier for all the functions that go cold
//! together, and looks once more. From then on a client that stores something finds the word set
//! and wakes the function by a trapped write. So the writer needs no fence.

use std::{cmp::Reverse, collections::VecDeque, sync::atomic::Ordering};

use super::{Heat, Machine, Slot};
use crate::{
    context::Context,
    device::{AttachmentId, FunctionId, Progress},
    time::Nanos,
};

/// How long a function stays hot without work, in nanoseconds, unless [`Machine::set_cool_after`]
/// says otherwise.
pub(super) const COOL_AFTER: u64 = 50_000;
/// How often the heartbeat of every client's mirror moves, in nanoseconds.
const HEARTBEAT: u64 = 50_000_000;

/// When to step again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At once: there is more to do.
    Now,
    /// Soon: nothing was found, but clients may write to memory that is looked at.
    Poll,
    /// At the time given, or when a client wakes the machine by an access; [`Nanos::NEVER`] for
    /// "not by itself".
    At(Nanos),
}

impl Machine {
    /// Do work for about `budget` packets a function (at least 1), for each function once.
    ///
    /// While there are clients, call it every 50 ms or so whatever it said last: it moves the
    /// heartbeat in their mirrors.
    pub fn step(&mut self, now: Nanos, budget: u32) -> Next {
        self.shared.now = self.shared.now.max(now);
        let now = self.shared.now;
        let budget = budget.max(1);
        self.beat(now);
        while let Some((time, function)) = self.next_timer()
            && time <= now
        {
            self.timers.pop();
            self.slots[function.0 as usize].timer = Nanos::NEVER;
            self.wake(function);
        }

        self.collect_woken();
        let mut busy = false;
        for _ in 0..self.hot.len() {
            let Some(function) = self.hot.pop_front() else { break };
            busy |= self.turn(function, budget);
            // Whom this turn gave packets to runs in this step too, if its turn is still to come,
            // else in the next.
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

    /// How long a function without work stays hot, in nanoseconds.
    pub fn set_cool_after(&mut self, nanoseconds: u64) {
        self.cool_after = nanoseconds;
    }

    /// Look at the mapped memory of every function that has a client, whatever it promised. Who
    /// lets the machine sleep calls this every 10 ms or so: it covers clients that the barrier does
    /// not reach (a guest's processors).
    pub fn rescan(&mut self) {
        for index in 0..self.slots.len() {
            if self.slots[index].state.attachments.iter().any(|attachment| attachment.tenant.is_some()) {
                self.wake(FunctionId(index as u32));
            }
        }
    }

    /// Look at a function in the next step, and for a while afterwards.
    #[inline]
    pub fn wake(&mut self, function: FunctionId) {
        wake(&mut self.slots, &mut self.hot, function);
    }

    /// Take over a device's wish for a step.
    #[inline]
    pub(super) fn arm(&mut self, function: FunctionId) {
        let Some(slot) = self.slots.get_mut(function.0 as usize) else { return };
        let wish = std::mem::replace(&mut slot.state.wake_at, Nanos::NEVER);
        if wish < slot.timer {
            slot.timer = wish;
            self.add_timer(wish, function);
        }
    }

    /// Apart from [`Machine::arm`], which every step calls and which seldom comes here.
    #[inline(never)]
    fn add_timer(&mut self, wish: Nanos, function: FunctionId) {
        self.timers.push(Reverse((wish, function)));

        // Stale entries are dropped when their time comes, or here when they are many.
        if self.timers.len() > 2 * self.slots.len() + 64 {
            self.timers.clear();
            for (index, slot) in self.slots.iter().enumerate() {
                if slot.timer < Nanos::NEVER {
                    self.timers.push(Reverse((slot.timer, FunctionId(index as u32))));
                }
            }
        }
    }

    /// The first timer that is not stale. It stays in the heap.
    fn next_timer(&mut self) -> Option<(Nanos, FunctionId)> {
        while let Some(&Reverse((time, function))) = self.timers.peek() {
            if self.slots.get(function.0 as usize).is_some_and(|slot| slot.timer == time) {
                return Some((time, function));
            }
            self.timers.pop();
        }
        None
    }

    #[inline]
    fn collect_woken(&mut self) {
        self.fabric.advance(self.shared.now);
        let (slots, hot) = (&mut self.slots, &mut self.hot);
        self.fabric.take_woken(|function| wake(slots, hot, function));
    }

    /// Give a function its turn and queue it again unless it may go cold. True when it did
    /// something.
    fn turn(&mut self, function: FunctionId, budget: u32) -> bool {
        let busy = self.run(function, budget);
        let now = self.shared.now;
        let cool_after = self.cool_after;
        let Some(slot) = self.slots.get_mut(function.0 as usize) else { return false };
        let Heat::Hot { idle_since } = &mut slot.heat else {
            slot.queued = false;
            self.fabric.let_rest(function);
            return busy;
        };

        if busy {
            *idle_since = Some(now);
        } else if now >= idle_since.get_or_insert(now).after(cool_after) {
            slot.queued = false;
            // What it was woken for in this turn is found by the look that follows.
            self.fabric.let_rest(function);
            self.cooling.push(function);
            return false;
        }

        self.hot.push_back(function);

        busy
    }

    /// Rings, completions and the device itself. True when anything moved.
    #[inline(always)]
    fn run(&mut self, function: FunctionId, budget: u32) -> bool {
        let handed_over = self.complete(function, budget);
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

        // Most steps wish for no timer and end no DMA.
        let (wishes, ended) = (slot.state.wake_at < Nanos::NEVER, !slot.state.completions.is_empty());
        if wishes {
            self.arm(function);
        }

        busy | (ended && self.complete_some(function, budget - handed_over) > 0)
    }

    /// The next ring in which there is something, from a place on (a client among the function's
    /// clients, and a ring of it), which then is the one behind it. Most nodes on a packet's way
    /// have no client, and most clients have nothing to say.
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

    /// Hand finished DMA reads to the device, no more than `most`. Gives how many there were.
    #[inline]
    fn complete(&mut self, function: FunctionId, most: u32) -> u32 {
        let any = self.slots.get(function.0 as usize).is_some_and(|slot| !slot.state.completions.is_empty());
        if any { self.complete_some(function, most) } else { 0 }
    }

    fn complete_some(&mut self, function: FunctionId, most: u32) -> u32 {
        for done in 0..most {
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
                    self.shared.give_back(filled.buffer);
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

    /// Let the functions in `cooling` go cold, unless a client wrote something in the meantime.
    fn cool_down(&mut self, budget: u32) -> bool {
        // Those that somebody woke after their turn have another one.
        let slots = &mut self.slots;
        self.cooling.retain(|function| !slots[function.0 as usize].queued);
        for function in &self.cooling {
            let slot = &mut slots[function.0 as usize];
            slot.heat = Heat::Cold;
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

    fn beat(&mut self, now: Nanos) {
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

/// See [`Machine::wake`].
#[inline]
fn wake(slots: &mut [Slot], hot: &mut VecDeque<FunctionId>, function: FunctionId) {
    let Some(slot) = slots.get_mut(function.0 as usize) else { return };
    if slot.heat == Heat::Cold {
        wake_up(slot);
    }

    slot.heat = Heat::Hot { idle_since: None };
    if !slot.queued {
        slot.queued = true;
        hot.push_back(function);
    }
}

#[cold]
fn wake_up(slot: &Slot) {
    for attachment in &slot.state.attachments {
        attachment.set_sleeping(false);
    }
}
