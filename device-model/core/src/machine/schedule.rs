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
//!
//! A packet or a timer makes a cold function hot too, unless its device lets its clients sleep: see
//! [`super::sleepers`].

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use super::{FunctionSlot, Machine, PollState, active::ActiveFunction};
use crate::{
    context::{Context, FilledBuffer},
    device::Progress,
    ids::{AttachmentId, DmaToken, FunctionId},
    panic::DeviceMethod,
    time::Nanos,
};

/// Default time without work after which a function goes cold, in nanoseconds.
/// [`Machine::set_cool_after`] changes it.
const COOL_AFTER: u64 = 50_000;
/// Bytes of client memory that DMA may touch in a step. Beyond them the remaining functions wait
/// for the next step. The kernel may have to allocate each page first, which takes far longer than
/// the copy.
const MAX_TOUCHED: usize = 512 << 10;

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

/// Which functions run in the next turns, and the timers of the others.
pub(super) struct Schedule {
    /// Functions to run in the next turns.
    pub(super) hot: VecDeque<FunctionId>,
    /// Timers of the functions, earliest first. Some entries are stale: see
    /// [`FunctionSlot::timer`].
    timers: BinaryHeap<Reverse<(Nanos, FunctionId)>>,
    /// Time without work after which a function goes cold, in nanoseconds.
    cool_after: u64,
    /// Functions that go cold at the end of this step.
    cooling: Vec<FunctionId>,
    /// Number of timers from which on stale ones are removed.
    most_timers: usize,
    /// There are more timers than that.
    crowded: bool,
    /// Functions with changed links, and a bit mask of their ports. It is empty between calls.
    link_changes: Vec<(FunctionId, u64)>,
}

impl Schedule {
    pub(super) fn new() -> Self {
        Self {
            hot: VecDeque::new(),
            timers: BinaryHeap::new(),
            cool_after: COOL_AFTER,
            cooling: Vec::new(),
            most_timers: 0,
            crowded: false,
            link_changes: Vec::new(),
        }
    }

    /// Makes room for the timers of this number of functions.
    pub(super) fn set_functions(&mut self, functions: usize) {
        self.most_timers = 2 * functions + 64;
    }

    /// Makes a function hot: see [`Machine::wake`].
    #[inline]
    pub(super) fn wake(&mut self, slot: &mut FunctionSlot) {
        if slot.poll_state == PollState::Cold {
            slot.set_sleeping(false);
        }

        slot.poll_state = PollState::Hot { idle_since: None };
        if !slot.queued {
            slot.queued = true;
            self.hot.push_back(slot.state.id);
        }
    }

    /// Makes a function hot whose turn may have ended without putting it back into the queue.
    #[cold]
    pub(super) fn requeue(&mut self, slot: &mut FunctionSlot) {
        slot.queued = self.hot.contains(&slot.state.id);
        self.wake(slot);
    }

    /// Takes over a device's timer request.
    #[inline(always)]
    pub(super) fn update_timer(&mut self, slot: &mut FunctionSlot) {
        let request = std::mem::replace(&mut slot.state.wake_at, Nanos::NEVER);
        if request < slot.timer {
            slot.timer = request;
            self.add_timer(request, slot.state.id);
        }
    }

    /// Adds a timer. It is apart from [`Schedule::update_timer`], which every step calls and which
    /// rarely needs it.
    #[inline(never)]
    fn add_timer(&mut self, request: Nanos, function: FunctionId) {
        self.timers.push(Reverse((request, function)));
        self.crowded |= self.timers.len() > self.most_timers;
    }

    /// Returns the first timer that is not stale. It stays in the heap.
    pub(super) fn next_timer(&mut self, slots: &[FunctionSlot]) -> Option<(Nanos, FunctionId)> {
        while let Some(&Reverse((time, function))) = self.timers.peek() {
            if slots.get(function.0 as usize).is_some_and(|slot| slot.timer == time) {
                return Some((time, function));
            }
            self.timers.pop();
        }
        None
    }

    /// Removes the stale timers, after many have been added. Otherwise they leave when their time
    /// comes.
    #[cold]
    fn remove_stale_timers(&mut self, slots: &[FunctionSlot]) {
        self.crowded = false;
        self.timers.clear();
        let set = slots.iter().filter(|slot| slot.timer < Nanos::NEVER);
        self.timers.extend(set.map(|slot| Reverse((slot.timer, slot.state.id))));
    }
}

impl FunctionSlot {
    /// Sets or clears the sleeping words of the function's clients.
    #[cold]
    fn set_sleeping(&self, sleeping: bool) {
        for (_, attachment) in self.state.attachments.iter() {
            attachment.set_sleeping(sleeping);
        }
    }
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

        if self.virtual_time.is_on {
            self.end_virtual_time();
        }
        self.fire_timers();

        let mut busy = false;
        self.shared.touched = 0;
        let mut turns = None;
        // All turns share the cost of containment. After the panic of a device, reports of links
        // that it interrupted follow, and then the other turns.
        while self.guarded(|machine| busy |= machine.run_turns(&mut turns, budget)).is_err() {
            busy = true;
            while self.guarded(Self::wake_named).is_err() {}
        }

        let has_companions = !self.shared.companions.is_empty();
        if has_companions {
            busy |= self.step_companions(budget);
        }

        if busy || !self.shared.outgoing.is_empty() {
            Next::Now
        } else if !self.schedule.hot.is_empty() {
            Next::Poll
        } else {
            let timer = self.schedule.next_timer(&self.slots).map_or(Nanos::NEVER, |(time, _)| time);
            let time = timer.min(self.fabric.next_event());
            if has_companions {
                self.end_step_with_companions(time).map_or(Next::Now, Next::At)
            } else {
                Next::At(time)
            }
        }
    }

    /// Wakes the functions whose timers are due.
    #[inline(always)]
    pub(super) fn fire_timers(&mut self) {
        if self.schedule.crowded {
            self.schedule.remove_stale_timers(&self.slots);
        }

        while let Some((time, function)) = self.schedule.next_timer(&self.slots)
            && time <= self.shared.now
        {
            self.schedule.timers.pop();
            let slot = &mut self.slots[function.0 as usize];
            slot.timer = Nanos::NEVER;
            self.schedule.wake_for_event(slot);
        }
    }

    /// Runs the turns of the functions that are hot now, and then lets functions cool down. Returns
    /// whether there was work.
    ///
    /// `remaining` is `None` at first, and then the number of turns to come. A call after the panic
    /// of a device continues with it.
    #[inline(always)]
    fn run_turns(&mut self, remaining: &mut Option<usize>, budget: u32) -> bool {
        let mut busy = false;
        if remaining.is_none() {
            self.collect_woken();
        }

        let turns = remaining.get_or_insert(self.schedule.hot.len());
        while *turns > 0 {
            *turns -= 1;
            if self.shared.touched >= MAX_TOUCHED {
                *turns = 0;
                busy = true;
                break;
            }

            let Some(function) = self.schedule.hot.pop_front() else { break };
            busy |= self.active(function).is_some_and(|mut active| active.run_and_requeue(budget));
            // A function that got packets from this turn runs in this step if its turn is still to
            // come, and in the next step otherwise.
            self.collect_woken();
        }

        if !self.schedule.cooling.is_empty() {
            busy |= self.cool_down(budget);
            self.collect_woken();
        }

        busy
    }

    /// Sets the time without work after which a function goes cold, in nanoseconds.
    pub fn set_cool_after(&mut self, nanoseconds: u64) {
        self.schedule.cool_after = nanoseconds;
    }

    /// Polls the mapped memory of every function that has a client, in the next step.
    ///
    /// A caller that lets the machine sleep should call this every 10 ms or so. It finds the stores
    /// of clients that the barrier does not reach, such as a guest's processors.
    pub fn rescan(&mut self) {
        for slot in &mut self.slots {
            if !slot.state.clients.is_empty() {
                self.schedule.wake(slot);
            }
        }
    }

    /// Makes a function hot: the next step runs it, and polling continues for a while afterwards.
    #[inline]
    pub fn wake(&mut self, function: FunctionId) {
        if let Some(slot) = self.slots.get_mut(function.0 as usize) {
            self.schedule.wake(slot);
        }
    }

    /// Delivers the fabric's due packets, and wakes the functions that have received some.
    #[inline(always)]
    fn collect_woken(&mut self) {
        self.fabric.advance(self.shared.now);
        if self.fabric.has_woken() {
            self.wake_named();
        }
    }

    /// Wakes the functions that the fabric names, and reports changes of their links.
    #[inline(never)]
    pub(super) fn wake_named(&mut self) {
        loop {
            let (slots, schedule) = (&mut self.slots, &mut self.schedule);
            self.fabric.take_woken(|function, changed| {
                let Some(slot) = slots.get_mut(function.0 as usize) else { return };
                schedule.wake_for_event(slot);
                if changed != 0 {
                    schedule.link_changes.push((function, changed));
                }
            });

            // A device may send packets in the call, and wake others.
            let Some((function, ports)) = self.schedule.link_changes.pop() else { return };
            self.report_links(function, ports);
        }
    }

    /// Reports to a device that the links at these ports have changed.
    #[cold]
    pub(super) fn report_links(&mut self, function: FunctionId, mut ports: u64) {
        let now = self.shared.now;
        let Some(mut active) = self.active(function) else { return };
        while ports != 0 {
            let port = ports.trailing_zeros() as u8;
            ports &= ports - 1;
            let up = active.fabric.ports(function, now).is_up(port);
            active.call(DeviceMethod::LinkChanged, |device, context| device.link_changed(context, port, up));
        }
    }

    /// Makes the functions that are cooling cold, unless a client has written in the meantime.
    /// Returns whether any of them found work.
    fn cool_down(&mut self, budget: u32) -> bool {
        // A function that an event woke after its turn stays hot and runs again.
        let slots = &mut self.slots;
        self.schedule.cooling.retain(|function| !slots[function.0 as usize].queued);
        for function in &self.schedule.cooling {
            let slot = &mut slots[function.0 as usize];
            slot.poll_state = PollState::Cold;
            slot.set_sleeping(true);
        }

        self.sleeper.barrier();

        let mut busy = false;
        while let Some(function) = self.schedule.cooling.pop() {
            let Some(mut active) = self.active(function) else { continue };
            if active.drain_and_step(budget) {
                active.wake();
                busy = true;
            }
        }

        busy
    }
}

impl ActiveFunction<'_> {
    /// Runs the function for one turn, and queues it for the next unless it may go cold. Returns
    /// whether it did work.
    #[inline(always)]
    fn run_and_requeue(&mut self, budget: u32) -> bool {
        if self.slot.poll_state == PollState::Cold && self.slot.state.lets_clients_sleep {
            return self.run_with_sleeping_clients(budget);
        }

        let busy = self.drain_and_step(budget);
        let now = self.shared.now;
        let function = self.id();

        let PollState::Hot { idle_since } = &mut self.slot.poll_state else {
            self.slot.queued = false;
            self.fabric.end_polling(function);
            return busy;
        };

        if busy {
            *idle_since = Some(now);
        } else if now >= idle_since.get_or_insert(now).after(self.schedule.cool_after) {
            self.slot.queued = false;
            // Events of this turn need no wake-up: the machine looks once more before the function
            // is cold.
            self.fabric.end_polling(function);
            self.schedule.cooling.push(function);
            return false;
        }

        self.schedule.hot.push_back(function);

        busy
    }

    /// Runs one turn: drains the rings, delivers DMA results and steps the device. Returns whether
    /// there was work.
    #[inline(always)]
    pub(super) fn drain_and_step(&mut self, budget: u32) -> bool {
        let state = &mut self.slot.state;
        let (mut busy, mut handed_over) = (false, 0);
        if (state.clients.is_empty() || state.clients_sleep) && state.completions.is_empty() {
            state.contended &= state.clients_sleep;
        } else {
            (busy, handed_over) = self.drain(budget);
        }

        let FunctionSlot { state, device, under_way, .. } = &mut *self.slot;
        let mut context = Context { function: state, shared: self.shared, fabric: self.fabric };
        *under_way = Some(DeviceMethod::Step);
        busy |= device.step(&mut context, budget) == Progress::Busy;
        *under_way = None;

        // Most steps set no timer and finish no DMA.
        let ended = !self.slot.state.completions.is_empty();
        if self.slot.state.wake_at < Nanos::NEVER {
            self.update_timer();
        }
        busy | (ended && self.deliver_queued_results(budget - handed_over) > 0)
    }

    /// Delivers DMA results and drains the rings. Returns whether there was work, and the number of
    /// results.
    #[inline(always)]
    fn drain(&mut self, budget: u32) -> (bool, u32) {
        let handed_over = self.deliver_results(budget);
        let mut busy = handed_over > 0;
        let mut from = 0;
        let mut stalled = false;

        while let Some((attachment_id, ring)) = self.slot.state.next_posted(&mut from) {
            let drained = self.drain_ring(attachment_id, ring, budget);
            busy |= drained.moved;
            stalled |= drained.stalled;
        }

        let state = &mut self.slot.state;
        state.contended = stalled && state.clients.len() > 1;
        if state.contended {
            state.reorder_clients(budget);
        }
        (busy, handed_over)
    }

    /// Delivers finished DMA reads to the device, at most `maximum` and within the bytes that a
    /// step may touch. Returns their number.
    #[inline(always)]
    fn deliver_results(&mut self, maximum: u32) -> u32 {
        if self.slot.state.completions.is_empty() { 0 } else { self.deliver_queued_results(maximum) }
    }

    /// Slow path of [`ActiveFunction::deliver_results`]: there are results to deliver.
    fn deliver_queued_results(&mut self, maximum: u32) -> u32 {
        for done in 0..maximum {
            if self.shared.touched >= MAX_TOUCHED {
                return done;
            }
            let Some(completion) = self.slot.state.completions.pop_front() else { return done };
            let (attachment_id, token) = (completion.attachment_id, completion.token);

            if let Ok(attachment) = self.attachment(attachment_id) {
                attachment.waiting_reads = attachment.waiting_reads.saturating_sub(1);
            }

            match completion.result {
                Ok(filled) => self.deliver_data(attachment_id, token, filled),
                Err(error) => self.call(DeviceMethod::DmaDone, |device, context| {
                    device.dma_done(context, attachment_id, token, Err(error));
                }),
            }
        }

        maximum
    }

    /// Delivers the data of a DMA read to the device, and returns the buffer to the pool.
    fn deliver_data(&mut self, attachment_id: AttachmentId, token: DmaToken, filled: FilledBuffer) {
        let FunctionSlot { state, device, under_way, lent, .. } = &mut *self.slot;
        let filled = lent.data.insert(filled);
        let data = &filled.buffer[..filled.length];

        let mut context = Context { function: state, shared: self.shared, fabric: self.fabric };
        *under_way = Some(DeviceMethod::DmaDone);
        device.dma_done(&mut context, attachment_id, token, Ok(data));
        *under_way = None;

        if let Some(filled) = lent.data.take() {
            self.shared.return_buffer(filled.buffer);
        }
        self.update_timer();
    }
}
