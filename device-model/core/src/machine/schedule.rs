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
//! Clients of a hot function can go cold, too: see `clients.rs`. A packet or a timer makes a cold
//! function hot, unless its device lets its clients sleep: see `sleeping_clients.rs`.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    ops::Range,
};

use super::{FunctionSlot, Machine, PollState, active::ActiveFunction, rings::DrainedTurn};
use crate::{
    context::{Context, FunctionState},
    device::Progress,
    ids::FunctionId,
    panic::DeviceMethod,
    time::Nanos,
};

/// Default time without work after which a function goes cold, in nanoseconds.
/// [`Machine::set_cool_after`] changes it.
const COOL_AFTER: u64 = 50_000;
/// Bytes of client memory that DMA may touch in a step. Beyond them the remaining functions wait
/// for the next step. The kernel may have to allocate each page first, which takes far longer than
/// the copy.
pub(super) const MAX_TOUCHED: usize = 512 << 10;

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

/// A function or clients that go cold at the end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cooling {
    /// A function, with all its clients.
    Function(FunctionId),
    /// Some clients of a function that stays hot.
    Clients(FunctionId),
}

/// Marks an entry of the queue of hot functions whose function went cold during this step.
const NO_FUNCTION: FunctionId = FunctionId(u32::MAX);

/// Which functions run in the next turns, and the timers of the others.
pub(super) struct Schedule {
    /// Functions to run in the next turns.
    pub(super) hot: VecDeque<FunctionId>,
    /// Some entries of `hot` are [`NO_FUNCTION`].
    has_gaps: bool,
    /// Timers of the functions, earliest first. Some entries are stale: see
    /// [`FunctionSlot::timer`].
    timers: BinaryHeap<Reverse<(Nanos, FunctionId)>>,
    /// Time without work after which a function goes cold, in nanoseconds.
    cool_after: u64,
    /// Such a time for functions whose clients can be woken, if it is shorter.
    near_cool_after: u64,
    /// The value to which `cool_after` returns at the end of this step, if it is another one.
    usual_cool_after: Option<u64>,
    /// Functions and clients that go cold at the end of this step.
    cooling: Vec<Cooling>,
    /// Number of timers above which the stale ones are removed.
    timer_limit: usize,
    /// There are more than `timer_limit` timers.
    has_many_timers: bool,
    /// Functions with changed links, and a bit mask of their ports. It is empty between calls.
    link_changes: Vec<(FunctionId, u64)>,
    /// Functions with waiting clients that have worked since these were woken last.
    pub(super) worked: Vec<FunctionId>,
    /// Time of the step in which the first of these worked.
    pub(super) worked_since: Option<Nanos>,
    /// Number of wake-ups of waiting clients.
    pub(super) client_wakes: u64,
}

impl Schedule {
    pub(super) fn new() -> Self {
        Self {
            hot: VecDeque::new(),
            has_gaps: false,
            timers: BinaryHeap::new(),
            cool_after: COOL_AFTER,
            near_cool_after: u64::MAX,
            usual_cool_after: None,
            cooling: Vec::new(),
            timer_limit: 0,
            has_many_timers: false,
            link_changes: Vec::new(),
            worked: Vec::new(),
            worked_since: None,
            client_wakes: 0,
        }
    }

    /// Prepares for a machine of this many functions. Stale timers are removed above twice their
    /// number, and a few for small machines. The lists of a step have room for all of them, so that
    /// no step allocates.
    pub(super) fn set_functions(&mut self, functions: usize) {
        self.timer_limit = 2 * functions + 64;
        self.worked.reserve(functions);
        self.cooling.reserve(functions);
    }

    /// Returns the time without work after which a function goes cold.
    #[inline]
    fn cool_after_of(&self, state: &FunctionState) -> u64 {
        match state.client_wakers.is_empty() {
            true => self.cool_after,
            false => self.cool_after.min(self.near_cool_after),
        }
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

    /// Makes a function hot whose turn did not end, so that its mark [`FunctionSlot::queued`] may
    /// be wrong.
    #[cold]
    pub(super) fn requeue(&mut self, slot: &mut FunctionSlot) {
        slot.queued = self.hot.contains(&slot.state.id);
        self.wake(slot);
    }

    /// Removes the function at an index of the queue. The queue keeps its length until
    /// [`Schedule::close_gaps`].
    #[inline]
    fn remove_hot(&mut self, queue_index: usize) {
        if let Some(function) = self.hot.get_mut(queue_index) {
            *function = NO_FUNCTION;
            self.has_gaps = true;
        }
    }

    /// Closes the gaps of the queue.
    #[cold]
    fn close_gaps(&mut self) {
        self.hot.retain(|function| *function != NO_FUNCTION);
        self.has_gaps = false;
    }

    /// Returns the time without records after which a client goes cold at first, in nanoseconds. It
    /// is at least the default for functions, even if functions go cold earlier: the function of an
    /// idle client is hot, because other clients keep it busy.
    pub(super) fn cool_client_after(&self) -> u64 {
        self.cool_after.max(COOL_AFTER)
    }

    /// Lets a function or clients go cold at the end of the step.
    pub(super) fn cool(&mut self, cooling: Cooling) {
        self.cooling.push(cooling);
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
        self.has_many_timers |= self.timers.len() > self.timer_limit;
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
        self.has_many_timers = false;
        self.timers.clear();
        let slots_with_timer = slots.iter().filter(|slot| slot.timer < Nanos::NEVER);
        self.timers.extend(slots_with_timer.map(|slot| Reverse((slot.timer, slot.state.id))));
    }
}

impl Machine {
    /// Runs one turn of each function that is awake, and returns the time of the next step.
    /// `budget` is the approximate number of packets for each function, at least 1. Functions that
    /// companions have woken also have short turns, from a budget of 4 on less than two together.
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
        let mut remaining_turns = None;
        // One `guarded` call is around all turns, so that they share its cost. After the panic of a
        // device, the reports of links that it interrupted follow, and then the other turns.
        while self.guarded(|machine| busy |= machine.run_turns(&mut remaining_turns, budget)).is_err() {
            busy = true;
            while self.guarded(Self::wake_for_fabric).is_err() {}
        }

        let has_companions = !self.shared.companions.is_empty();
        if has_companions {
            busy |= self.step_companions(budget);
        }
        self.wake_waiting_clients(busy);
        if let Some(usual) = self.schedule.usual_cool_after.take() {
            self.schedule.cool_after = usual;
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
        if self.schedule.has_many_timers {
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
    /// `remaining` is `None` at first, and then the range of the queue of hot functions whose turns
    /// are still to come. A call after the panic of a device continues with it.
    #[inline(always)]
    fn run_turns(&mut self, remaining: &mut Option<Range<usize>>, budget: u32) -> bool {
        let mut busy = false;
        if remaining.is_none() {
            self.collect_woken();
        }

        let turns = remaining.get_or_insert(0..self.schedule.hot.len());
        while let Some(queue_index) = turns.next() {
            if self.shared.touched >= MAX_TOUCHED {
                // The functions that have had no turn are the first ones of the next step.
                self.schedule.hot.rotate_left(queue_index);
                *turns = 0..0;
                busy = true;
                break;
            }

            let Some(&function) = self.schedule.hot.get(queue_index) else { break };
            busy |= self.active(function).is_some_and(|mut active| active.run_or_cool(queue_index, budget));
            // A function that got packets from this turn runs in this step if its turn is still to
            // come, and in the next step otherwise.
            self.collect_woken();
        }

        if self.schedule.has_gaps {
            self.schedule.close_gaps();
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

    /// Sets a shorter such time for functions whose clients wait by [`ClientWaker`], or `u64::MAX`
    /// for none. Those clients are processes of this host, for which a wake-up of the machine costs
    /// little. A guest's costs an exit.
    ///
    /// [`ClientWaker`]: crate::machine::ClientWaker
    pub fn set_near_cool_after(&mut self, nanoseconds: u64) {
        self.schedule.near_cool_after = nanoseconds;
    }

    /// Lets the functions that the next step finds without work go cold in it, so that a client's
    /// store wakes them.
    pub fn cool_in_next_step(&mut self) {
        let usual = std::mem::replace(&mut self.schedule.cool_after, 0);
        self.schedule.usual_cool_after.get_or_insert(usual);
    }

    /// Lets the idle times of all hot functions begin anew. A caller that had no processor for a
    /// while calls this: the functions would otherwise go cold for lack of polls, not of work.
    pub fn restart_idle_times(&mut self) {
        for function in &self.schedule.hot {
            if let Some(slot) = self.slots.get_mut(function.0 as usize)
                && let PollState::Hot { idle_since } = &mut slot.poll_state
            {
                *idle_since = None;
            }
        }
    }

    /// Polls the mapped memory of every function that has a client, in the next step.
    ///
    /// A caller that lets the machine sleep should call this every 10 ms or so. It finds the stores
    /// of clients that the barrier does not reach, such as a guest's processors.
    pub fn rescan(&mut self) {
        let (now, cool_after) = (self.shared.now, self.schedule.cool_client_after());
        for slot in &mut self.slots {
            if !slot.state.clients.is_empty() {
                slot.wake_clients_with_records(now, cool_after);
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
    pub(super) fn collect_woken(&mut self) {
        self.fabric.advance(self.shared.now);
        if self.fabric.has_woken() {
            self.wake_for_fabric();
        }
    }

    /// Wakes the functions that the fabric's events concern, and reports changes of their links.
    #[inline(never)]
    pub(super) fn wake_for_fabric(&mut self) {
        loop {
            let (slots, schedule) = (&mut self.slots, &mut self.schedule);
            self.fabric.take_woken(|function, changed_ports| {
                let Some(slot) = slots.get_mut(function.0 as usize) else { return };
                schedule.wake_for_event(slot);
                if changed_ports != 0 {
                    schedule.link_changes.push((function, changed_ports));
                }
            });

            // A device may send packets when it gets the report, so the loop looks at the fabric
            // again.
            let Some((function, changed_ports)) = self.schedule.link_changes.pop() else { return };
            self.report_links(function, changed_ports);
        }
    }

    /// Reports to a device that the links at some ports have changed: those of the bit mask.
    #[cold]
    pub(super) fn report_links(&mut self, function: FunctionId, mut changed_ports: u64) {
        let now = self.shared.now;
        let Some(mut active) = self.active(function) else { return };
        while changed_ports != 0 {
            let port = changed_ports.trailing_zeros() as u8;
            changed_ports &= changed_ports - 1;
            let up = active.fabric.ports(function, now).is_up(port);
            active.call(DeviceMethod::LinkChanged, |device, context| device.link_changed(context, port, up));
        }
    }

    /// Makes cooling functions and clients cold, unless a client has written in the meantime.
    /// Returns whether a function found work.
    fn cool_down(&mut self, budget: u32) -> bool {
        // A function that an event woke after its turn stays hot and runs again.
        let slots = &mut self.slots;
        self.schedule.cooling.retain(|cooling| match cooling {
            Cooling::Function(function) => !slots[function.0 as usize].queued,
            Cooling::Clients(_) => true,
        });
        for cooling in &self.schedule.cooling {
            // The sleeping words of single clients have been set by `begin_cooling_of_clients`.
            let Cooling::Function(function) = cooling else { continue };
            let slot = &mut slots[function.0 as usize];
            slot.poll_state = PollState::Cold;
            slot.set_sleeping(true);
        }

        // A client that stores to its memory from here on finds the word set. Stores before are
        // found by the last look below.
        self.sleeper.barrier();

        let mut busy = false;
        while let Some(cooling) = self.schedule.cooling.pop() {
            let (Cooling::Function(function) | Cooling::Clients(function)) = cooling;
            let Some(mut active) = self.active(function) else { continue };
            let has_work = match cooling {
                Cooling::Function(_) => active.drain_and_step(budget),
                Cooling::Clients(_) => active.end_cooling_of_clients(),
            };
            if has_work {
                active.wake();
                busy = true;
            }
        }

        busy
    }
}

impl ActiveFunction<'_> {
    /// Runs the function, which is at `queue_index` of the queue of hot ones, for one turn. Removes
    /// it from there if it may go cold. Returns whether it did work.
    #[inline(always)]
    fn run_or_cool(&mut self, queue_index: usize, budget: u32) -> bool {
        if self.slot.poll_state == PollState::Cold && self.slot.state.lets_clients_sleep {
            return self.run_with_sleeping_clients(queue_index, budget);
        }

        let busy = self.drain_and_step(budget);
        let now = self.shared.now;

        let PollState::Hot { idle_since } = &mut self.slot.poll_state else {
            // A cold function is not polled again.
            self.leave_queue(queue_index);
            return busy;
        };

        if busy {
            *idle_since = Some(now);
        } else if now >= idle_since.get_or_insert(now).after(self.schedule.cool_after_of(&self.slot.state)) {
            // Events of this turn need no wake-up: the machine looks once more before the function
            // is cold.
            self.leave_queue(queue_index);
            self.schedule.cool(Cooling::Function(self.slot.state.id));
            return false;
        }

        self.cool_idle_clients();
        busy
    }

    /// Removes the function from `queue_index` of the queue of hot ones. The fabric's next event
    /// wakes it again.
    #[cold]
    pub(super) fn leave_queue(&mut self, queue_index: usize) {
        self.slot.queued = false;
        self.schedule.remove_hot(queue_index);
        self.fabric.end_polling(self.slot.state.id);
    }

    /// Runs one turn: drains the rings, delivers DMA results and steps the device. Returns whether
    /// there was work.
    #[inline(always)]
    pub(super) fn drain_and_step(&mut self, budget: u32) -> bool {
        let state = &mut self.slot.state;
        let mut drained = DrainedTurn::default();
        if (state.clients.is_empty() || state.clients_sleep) && state.completions.is_empty() {
            // No ring is drained. Clients that sleep may still compete, but a function without
            // clients has no competition.
            state.contended &= state.clients_sleep;
        } else {
            drained = self.drain(budget);
        }
        let DrainedTurn { mut busy, results } = drained;

        let FunctionSlot { state, device, method_in_progress, .. } = &mut *self.slot;
        let mut context = Context { function: state, shared: self.shared, fabric: self.fabric };
        *method_in_progress = Some(DeviceMethod::Step);
        busy |= device.step(&mut context, budget) == Progress::Busy;
        *method_in_progress = None;
        context.trace_packets();

        // Most steps set no timer and finish no DMA.
        let has_results = !self.slot.state.completions.is_empty();
        if self.slot.state.wake_at < Nanos::NEVER {
            self.update_timer();
        }
        busy |= has_results && self.deliver_queued_results(budget - results) > 0;

        // Packets that are only passed on concern no client.
        let state = &self.slot.state;
        if state.has_touched_clients || busy && !(state.clients_sleep && state.is_transit) {
            self.note_work();
        }
        busy
    }

    /// Delivers DMA results and drains the rings.
    #[inline(always)]
    fn drain(&mut self, budget: u32) -> DrainedTurn {
        let results = self.deliver_results(budget);
        let mut busy = results > 0;
        let mut stalled = false;

        // Most rings are empty. To see that takes one entry of the list and one header in memory.
        let mut next_ring = 0;
        while let Some(ring) = self.slot.state.rings.get(next_ring) {
            next_ring += 1;
            if !ring.head.is_empty() {
                let (attachment_id, number) = (ring.attachment_id, ring.number);
                let drained = self.drain_ring(attachment_id, number, budget);
                busy |= drained.moved;
                stalled |= drained.stalled;
            }
        }

        let state = &mut self.slot.state;
        state.contended = stalled && state.clients.len() > 1;
        if state.contended {
            state.reorder_clients(budget);
        }
        DrainedTurn { busy, results }
    }
}
