//! The threads of a simulation, and the times at which they run next.

use std::collections::{BTreeMap, BTreeSet};

use nicforge_core::ids::FunctionId;

use super::{Picos, Profile, fiber::Fiber};

/// Number of a simulated thread.
pub(super) type ThreadId = u32;

/// The longest time between two polls of a thread that the simulation carries out. It bounds the
/// delay of a deadline, and of a store that the library does not report.
const LONGEST_POLL: Picos = Picos::nanos(2_000);

/// The latest time at which a thread can run. It is after the end of every run, so a thread that
/// waits for ever is scheduled then.
const LATEST: Picos = Picos(u64::MAX - 1);
/// The latest end of a run.
pub(super) const LATEST_END: Picos = Picos(LATEST.0 - 1);

/// The event for which a thread waits. The thread also continues at the time at which it is
/// scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// None: the thread waits for its time alone.
    Time,
    /// Work of a function, which it polls since a time.
    Poll { function: FunctionId, since: Picos },
    /// A notification of an event.
    Event(usize),
    /// The end of a thread.
    End(ThreadId),
}

/// A process of a simulation: threads that use the same functions on the same processors.
pub(super) struct Process {
    /// Functions of which the process has attachments, and whose memory it stores to.
    pub(super) functions: Vec<FunctionId>,
    pub(super) profile: Profile,
}

/// A simulated thread.
pub(super) struct SimulatedThread {
    pub(super) name: String,
    pub(super) process: usize,
    /// `None` while the thread runs, and after its end.
    pub(super) fiber: Option<Fiber>,
    pub(super) has_ended: bool,
    wait: Wait,
    /// Time at which it runs next.
    at: Picos,
    /// For each function that it polls: [`Polled::activity`] when it last returned from a poll.
    seen_activity: BTreeMap<FunctionId, u64>,
}

/// The threads of a simulation, in the order in which they run.
///
/// Invariant: a thread that neither runs nor has ended is in `order`, at its time.
#[derive(Default)]
pub(super) struct Agenda {
    pub(super) processes: Vec<Process>,
    pub(super) threads: Vec<SimulatedThread>,
    order: BTreeSet<(Picos, ThreadId)>,
    /// The functions that have run or that threads poll.
    polled: BTreeMap<FunctionId, Polled>,
}

/// The threads that poll a function, and when the function has run.
#[derive(Default)]
struct Polled {
    /// The threads that wait in a poll of it.
    threads: Vec<ThreadId>,
    /// Number of times at which the function has run.
    activity: u64,
    /// The last of these times.
    last: Picos,
}

impl Agenda {
    /// Adds a thread that runs from `at` on.
    pub(super) fn add(&mut self, process: usize, name: &str, fiber: Fiber, at: Picos) -> ThreadId {
        let id = self.threads.len() as ThreadId;
        self.threads.push(SimulatedThread {
            name: name.to_owned(),
            process,
            fiber: Some(fiber),
            has_ended: false,
            wait: Wait::Time,
            at,
            seen_activity: BTreeMap::new(),
        });
        self.order.insert((at, id));
        id
    }

    /// Returns the time of the thread that runs next, if there is one.
    pub(super) fn next_time(&self) -> Option<Picos> {
        self.order.first().map(|&(at, _)| at)
    }

    /// Removes the thread that runs next from the order, and ends its wait. The caller runs it, and
    /// then calls [`Agenda::end_turn`].
    pub(super) fn take_next(&mut self) -> Option<(ThreadId, Fiber)> {
        let (_, id) = self.order.pop_first()?;
        let thread = &mut self.threads[id as usize];
        if let Wait::Poll { function, .. } = std::mem::replace(&mut thread.wait, Wait::Time)
            && let Some(polled) = self.polled.get_mut(&function)
        {
            polled.threads.retain(|&poller| poller != id);
            thread.seen_activity.insert(function, polled.activity);
        }
        Some((id, thread.fiber.take()?))
    }

    /// Ends the turn of a thread at `now`: stores its fiber until the thread continues, or records
    /// that the thread has ended.
    pub(super) fn end_turn(&mut self, id: ThreadId, fiber: Fiber, has_ended: bool, now: Picos) {
        let thread = &mut self.threads[id as usize];
        if has_ended {
            thread.has_ended = true;
            self.notify(Wait::End(id), now);
        } else {
            thread.fiber = Some(fiber);
        }
    }

    /// Puts a thread that runs back into the order. It waits for an event, until `at` at the
    /// latest.
    pub(super) fn schedule(&mut self, id: ThreadId, wait: Wait, at: Picos) {
        let at = at.min(LATEST);
        let thread = &mut self.threads[id as usize];
        (thread.wait, thread.at) = (wait, at);
        self.order.insert((at, id));
        if let Wait::Poll { function, .. } = wait {
            self.polled.entry(function).or_default().threads.push(id);
        }
    }

    /// Puts a thread that runs back into the order, as one that polls a function.
    ///
    /// If the thread has not polled since the function's last activity, it polls again after one
    /// period. Otherwise a poll would find nothing new, and it polls again after the function's
    /// next activity ([`Agenda::note_activity`]), or after [`LONGEST_POLL`].
    pub(super) fn schedule_poll(&mut self, id: ThreadId, function: FunctionId, now: Picos) {
        let (activity, last_activity) =
            self.polled.get(&function).map_or((0, Picos::ZERO), |polled| (polled.activity, polled.last));
        let has_seen = self.threads[id as usize].seen_activity.get(&function) == Some(&activity);
        let earliest = if has_seen { now + LONGEST_POLL } else { last_activity };

        let at = next_poll(now, self.profile(id).poll(), earliest);
        self.schedule(id, Wait::Poll { function, since: now }, at);
    }

    /// Records that a function has run at `time`. The threads that poll it poll after that at the
    /// latest.
    pub(super) fn note_activity(&mut self, function: FunctionId, time: Picos) {
        let polled = self.polled.entry(function).or_default();
        polled.activity += 1;
        polled.last = time;

        for &id in &polled.threads {
            let thread = &mut self.threads[id as usize];
            let Wait::Poll { since, .. } = thread.wait else { continue };
            let at = next_poll(since, self.processes[thread.process].profile.poll(), time);
            if at < thread.at {
                self.order.remove(&(thread.at, id));
                thread.at = at;
                self.order.insert((at, id));
            }
        }
    }

    /// Ends the waits for an event at `now`. Each of the threads runs after the time that its
    /// processor takes to wake it.
    pub(super) fn notify(&mut self, event: Wait, now: Picos) {
        for (id, thread) in self.threads.iter_mut().enumerate() {
            if thread.wait == event && !thread.has_ended {
                let at = thread.at.min(now + self.processes[thread.process].profile.wake());
                self.order.remove(&(thread.at, id as ThreadId));
                (thread.wait, thread.at) = (Wait::Time, at);
                self.order.insert((at, id as ThreadId));
            }
        }
    }

    /// Returns the profile of the processors on which a thread runs.
    pub(super) fn profile(&self, id: ThreadId) -> &Profile {
        &self.processes[self.threads[id as usize].process].profile
    }

    /// Returns the names of the threads that have not ended.
    pub(super) fn waiting(&self) -> Vec<String> {
        let waiting = self.threads.iter().filter(|thread| !thread.has_ended);
        waiting.map(|thread| thread.name.clone()).collect()
    }
}

/// Returns the time of the first poll after `since`, in steps of `period`, that is not before
/// `earliest`.
fn next_poll(since: Picos, period: Picos, earliest: Picos) -> Picos {
    let steps = earliest.since(since).0.div_ceil(period.0.max(1)).max(1);
    since + period * steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_is_a_multiple_of_the_period_after_the_first_one() {
        let poll = |time| next_poll(Picos(100), Picos(30), Picos(time)).0;
        assert_eq!(
            [poll(0), poll(100), poll(101), poll(130), poll(131), poll(400)],
            [130, 130, 130, 130, 160, 400]
        );
    }
}
