//! The companions of a machine: starting, polling, supervision.

use std::{sync::Arc, task::Waker, thread};

use super::{
    COMPANION_LIMIT, Companion, CompanionError, CompanionMode, CompanionReport, CompanionSpec,
    CompanionStatus, DeviceEnd, MAX_ABANDONED, MAX_COMPANIONS, MAX_MESSAGES,
    ends::new_ends,
    incarnation::{Body, Incarnation, MachineFlags, Phase, TypedBody},
    signal::Awake,
    signals::FlagGroups,
};
use crate::{ids::FunctionId, progress::Progress, time::Nanos};

/// Number of times that the machine checks a thread within the limit of a poll. The time between
/// two checks counts as at most this fraction of the limit: if the machine was not running for
/// longer, the thread may not have run either.
const CHECKS_PER_LIMIT: u64 = 8;

/// The companions of all functions of a machine.
pub(crate) struct Companions {
    /// Where companions run that start from now on.
    mode: CompanionMode,
    machine_flags: Arc<MachineFlags>,
    /// Longest poll on a thread, in nanoseconds.
    limit: u64,
    companions: Vec<NamedCompanion>,
    /// The flags of the companions, by their index in `companions`.
    companion_flags: FlagGroups,
    /// The functions of the last [`Companions::take_woken`], each once.
    woken: Vec<FunctionId>,
    /// A companion has been started on a thread.
    has_threads: bool,
    /// Time of the next check of the threads.
    next_check: Nanos,
}

/// A companion, with all of its incarnations that are not over.
struct NamedCompanion {
    function: FunctionId,
    name: &'static str,
    /// Number of incarnations so far.
    epoch: u32,
    current: Option<Supervised>,
    /// Threads of earlier incarnations.
    earlier: Vec<Arc<Incarnation>>,
}

/// The current incarnation of a companion.
struct Supervised {
    incarnation: Arc<Incarnation>,
    /// Where the incarnation runs.
    mode: CompanionMode,
    /// The companion, if the machine's steps poll it and it has not panicked.
    stepped: Option<Box<dyn Body>>,
    /// Number of polls at the last check.
    polls: u64,
    /// Nanoseconds that the poll in progress has taken, as far as the checks measured.
    time_in_poll: u64,
    last_check: Nanos,
}

impl Companions {
    pub(crate) fn new() -> Self {
        Self {
            mode: CompanionMode::Stepped,
            machine_flags: new_machine_flags(Waker::noop().clone()),
            limit: COMPANION_LIMIT,
            companions: Vec::new(),
            companion_flags: FlagGroups::default(),
            woken: Vec::new(),
            has_threads: false,
            next_check: Nanos::ZERO,
        }
    }

    /// Sets where incarnations run that begin from now on, and the waker of the machine's holder.
    pub(crate) fn set_mode(&mut self, mode: CompanionMode, waker: Waker) {
        self.mode = mode;
        self.machine_flags = new_machine_flags(waker);
    }

    /// Sets the longest poll on a thread, at least [`CHECKS_PER_LIMIT`] nanoseconds.
    pub(crate) fn set_limit(&mut self, nanoseconds: u64) {
        self.limit = nanoseconds.max(CHECKS_PER_LIMIT);
    }

    /// Returns whether no function has a companion.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.companions.is_empty()
    }

    /// Begins an incarnation of a companion of `function`.
    pub(crate) fn start<C: Companion>(
        &mut self,
        function: FunctionId,
        spec: CompanionSpec,
        companion: C,
    ) -> Result<DeviceEnd<C::Command, C::Event>, CompanionError> {
        let name = spec.name;
        let allowed_sizes = 1..=MAX_MESSAGES;
        if !allowed_sizes.contains(&spec.commands) || !allowed_sizes.contains(&spec.events) {
            return Err(CompanionError::Size { name });
        }

        let mode = if self.mode == CompanionMode::Threads { spec.mode } else { CompanionMode::Stepped };
        let machine_flags = Arc::clone(&self.machine_flags);
        let index = self.index_of(function, name)?;
        let companion_flags = self.companion_flags.flags_of(index);
        let entry = &mut self.companions[index];
        entry.end_current();
        let abandoned = entry.earlier.len();
        if abandoned >= MAX_ABANDONED {
            return Err(CompanionError::Abandoned { name, count: abandoned });
        }

        entry.epoch = entry.epoch.wrapping_add(1);
        let is_stepped = mode == CompanionMode::Stepped;
        let incarnation = Arc::new(Incarnation::new(entry.epoch, machine_flags, companion_flags, is_stepped));
        let (device_end, end) = new_ends(&spec, &incarnation);
        let body: Box<dyn Body> = Box::new(TypedBody { companion, end });

        let stepped = match mode {
            CompanionMode::Stepped => Some(body),
            CompanionMode::Threads => {
                run_on_thread(name, &incarnation, body)?;
                self.has_threads = true;
                None
            }
        };
        entry.current = Some(Supervised {
            incarnation,
            mode,
            stepped,
            polls: 0,
            time_in_poll: 0,
            last_check: Nanos::NEVER,
        });
        self.next_check = Nanos::ZERO;

        Ok(device_end)
    }

    /// Returns the index of a companion, and adds it if it is new.
    fn index_of(&mut self, function: FunctionId, name: &'static str) -> Result<usize, CompanionError> {
        let has_name = |entry: &NamedCompanion| entry.function == function && entry.name == name;
        if let Some(index) = self.companions.iter().position(has_name) {
            return Ok(index);
        }

        if self.companions.iter().filter(|entry| entry.function == function).count() >= MAX_COMPANIONS {
            return Err(CompanionError::TooMany { name });
        }

        self.companions.push(NamedCompanion { function, name, epoch: 0, current: None, earlier: Vec::new() });

        Ok(self.companions.len() - 1)
    }

    /// Reports that the machine is awake: it looks at the incarnations in this step.
    pub(crate) fn begin_step(&self) {
        self.machine_flags.awake.begin_step();
    }

    /// Polls the stepped companions that have work. Returns whether one of them has more.
    pub(crate) fn poll(&mut self, budget: u32) -> bool {
        let (mut busy, companions) = (false, &mut self.companions);
        self.companion_flags.take_work(|index| {
            let Some(entry) = companions.get_mut(index) else { return };
            if entry.current.as_ref().is_some_and(|current| current.incarnation.has_ended()) {
                entry.end_current();
            }
            busy |= entry.current.as_mut().is_some_and(|current| current.poll(budget));
        });
        busy
    }

    /// Returns whether a stepped companion has work, or a companion has an unreported event for its
    /// device.
    pub(crate) fn has_work(&self) -> bool {
        self.companion_flags.has_any()
    }

    /// Calls `wake` with each function whose companion has sent an event or halted.
    pub(crate) fn take_woken(&mut self, mut wake: impl FnMut(FunctionId)) {
        let Self { companion_flags, companions, woken, .. } = self;
        woken.clear();
        companion_flags.take_signals(|index| {
            if let Some(entry) = companions.get(index) {
                woken.push(entry.function);
                wake(entry.function);
            }
        });

        // A function may have several companions.
        woken.sort_unstable();
        woken.dedup();
    }

    /// Returns the functions of the last [`Companions::take_woken`], each once.
    #[inline]
    pub(crate) fn woken(&self) -> &[FunctionId] {
        &self.woken
    }

    /// Checks the threads if that is due: declares those hung that have been in one poll for too
    /// long, and removes incarnations that are over.
    pub(crate) fn supervise(&mut self, now: Nanos) {
        if now < self.next_check {
            return;
        }

        self.next_check = now.after(self.limit / CHECKS_PER_LIMIT);
        for entry in &mut self.companions {
            entry.earlier.retain(|incarnation| incarnation.phase() != Phase::Over);
            if let Some(current) = &mut entry.current
                && current.measure_poll(now, self.limit)
            {
                tracing::error!("companion {} hangs; it is halted", entry.name);
                current.incarnation.set_hung();
                current.incarnation.wake_device();
            }
        }
    }

    /// Reports that the machine may sleep until `time`. Returns the time at which it must step
    /// again at the latest, or `None` if it must step at once, because a companion has sent an
    /// event.
    pub(crate) fn end_step(&self, time: Nanos) -> Option<Nanos> {
        self.machine_flags.awake.end_step();
        if self.companion_flags.has_signal() {
            return None;
        }

        // A poll on a thread may hang, so the machine must step for the next check of the threads.
        let mut current = self.companions.iter().filter_map(|entry| entry.current.as_ref());
        let needs_check = self.has_threads && current.any(Supervised::needs_check);
        Some(if needs_check { time.min(self.next_check) } else { time })
    }

    /// Returns the companions of a function.
    pub(crate) fn report(&self, function: FunctionId) -> Vec<CompanionReport> {
        let of_function = self.companions.iter().filter(|entry| entry.function == function);
        let reports = of_function.map(|entry| {
            let current = entry.current.as_ref();
            CompanionReport {
                name: entry.name,
                epoch: entry.epoch,
                mode: current.map_or(CompanionMode::Stepped, |current| current.mode),
                status: current.map_or(CompanionStatus::Ended, |current| current.incarnation.status()),
                abandoned: entry
                    .earlier
                    .iter()
                    .filter(|incarnation| incarnation.phase() != Phase::Over)
                    .count(),
            }
        });
        reports.collect()
    }
}

impl NamedCompanion {
    /// Ends the current incarnation. Its thread is among the earlier ones until it returns.
    fn end_current(&mut self) {
        self.earlier.retain(|incarnation| incarnation.phase() != Phase::Over);
        let Some(mut current) = self.current.take() else { return };
        current.incarnation.end();
        match current.stepped.take() {
            Some(body) => current.incarnation.drop_body(body),
            // A thread drops its companion itself.
            None if current.incarnation.phase() == Phase::Over => {}
            None => self.earlier.push(Arc::clone(&current.incarnation)),
        }
    }
}

impl Supervised {
    /// Polls a stepped companion that has work. Returns whether it has more.
    fn poll(&mut self, budget: u32) -> bool {
        let Some(mut body) = self.stepped.take() else { return false };

        let busy = self.incarnation.poll(body.as_mut(), budget) == Progress::Busy;
        if self.incarnation.has_panicked() {
            self.incarnation.drop_body(body);
            return false;
        }

        self.stepped = Some(body);
        if busy {
            self.incarnation.wake_companion();
        }
        busy
    }

    /// Returns whether the companion is in a poll on its thread, so that the machine must check
    /// again.
    fn needs_check(&self) -> bool {
        self.stepped.is_none() && !self.incarnation.is_hung() && self.incarnation.phase() == Phase::Polling
    }

    /// Adds the time since the last check to that of the poll in progress. Returns whether the poll
    /// has become too long.
    fn measure_poll(&mut self, now: Nanos, limit: u64) -> bool {
        let polls = self.incarnation.polls();
        let counted_time = now.0.saturating_sub(self.last_check.0).min(limit / CHECKS_PER_LIMIT);
        self.last_check = now;
        if !self.needs_check() || polls != self.polls {
            (self.polls, self.time_in_poll) = (polls, 0);
            return false;
        }

        self.time_in_poll += counted_time;
        // The limit, rounded down to what whole checks can add up to.
        self.time_in_poll >= limit / CHECKS_PER_LIMIT * CHECKS_PER_LIMIT
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.incarnation.end();
        if let Some(body) = self.stepped.take() {
            self.incarnation.drop_body(body);
        }
    }
}

/// Returns the flags of a machine that is awake and whose holder has this waker.
fn new_machine_flags(waker: Waker) -> Arc<MachineFlags> {
    Arc::new(MachineFlags { awake: Awake::new(), waker })
}

/// Runs a companion on a thread of its own, which is never joined.
fn run_on_thread(
    name: &'static str,
    incarnation: &Arc<Incarnation>,
    body: Box<dyn Body>,
) -> Result<(), CompanionError> {
    let shared = Arc::clone(incarnation);
    let started = thread::Builder::new().name(name.to_owned()).spawn(move || shared.run(body));
    // The handle is dropped, which detaches the thread.
    let handle = started.map_err(|reason| CompanionError::Thread { name, reason })?;
    incarnation.set_thread(handle.thread().clone());

    Ok(())
}
