//! The engine and its loop.

use std::{
    collections::{HashMap, VecDeque},
    fs::File,
    path::Path,
    sync::{
        Arc,
        mpsc::{self, Receiver, SyncSender},
    },
    time::{Duration, Instant},
};

use nicforge_core::{
    ids::{AttachmentId, FunctionId},
    machine::{Machine, Next},
    time::Nanos,
};
use nicforge_shm::SharedMemory;

use crate::{
    client::{BackOff, Closing, MAX_PORTS, Port, Watched},
    closer::{CloseQueue, Closers},
    command::{Command, Control, EngineHandle, MAX_COMMANDS},
    config::EngineConfig,
    error::EngineError,
    helper::Helper,
    interrupt,
    sink::Signals,
    socket::{Listener, SocketAccess},
    stats::{AttachmentSnapshot, ClientSnapshot, FunctionSnapshot, LongestTurn, ServerCounters, Snapshot},
    stop::{Stop, Waker},
    wait::{self, Event, EventLoop, Interest},
    watchdog::Watchdog,
};

/// Turns with work between two checks of the sockets, where a check is a system call.
const BUSY_TURNS: u32 = 16;
/// Turns without work between two such checks. With a system call in each turn, the engine would
/// spin much longer before it yields its processor to the application that it waits for.
const IDLE_TURNS: u32 = 8;

/// Steps a machine and serves its attachments. See the crate's documentation.
pub struct Engine {
    pub(crate) machine: Machine,
    pub(crate) config: EngineConfig,
    pub(crate) events: Box<dyn EventLoop>,
    pub(crate) helper: Helper,
    pub(crate) signals: Arc<Signals>,
    pub(crate) ports: Vec<Port>,
    pub(crate) served: HashMap<(FunctionId, AttachmentId), usize>,
    /// Number of clients.
    pub(crate) clients: usize,
    pub(crate) closers: Closers,
    /// Memory of ended clients that devices still hold.
    pub(crate) orphans: Vec<(Arc<CloseQueue>, SharedMemory)>,
    /// Clients to be served in this round.
    pub(crate) ready: VecDeque<usize>,
    /// Clients to be served for which system calls take long; one of them is served in each round.
    pub(crate) slow: VecDeque<usize>,
    /// Attachments that wait until fewer of their items are to be closed.
    pub(crate) held: Vec<usize>,
    /// Clients with an access that waits for the device.
    pub(crate) stalled: VecDeque<usize>,
    /// Time of the next event that is due by the clock.
    pub(crate) deadline: Option<Instant>,
    /// Whether a socket has more connections to accept.
    pub(crate) accept_soon: bool,
    /// Descriptor that is freed when the process has none left.
    pub(crate) reserve: Option<File>,
    waker: Waker,
    commands: Receiver<Command>,
    sender: SyncSender<Command>,
    start: Instant,
    /// Time of the last check of everything, since `start`.
    scanned: Duration,
    seen_faults: u64,
    seen_rescues: u64,
    turns: u64,
    sleeps: u64,
    pub(crate) longest_turn: LongestTurn,
    /// The watchdog, which ends with the engine.
    _watchdog: Watchdog,
}

impl Engine {
    /// Makes an engine that serves nothing yet, and logs which event loop it uses. The process gets
    /// a handler for SIGURG that does nothing: that signal ends a write to a client's eventfd that
    /// would block the engine.
    ///
    /// # Errors
    /// [`EngineError`] when the requested event loop, a thread or a descriptor is not available.
    pub fn new(mut machine: Machine, config: EngineConfig) -> Result<Self, EngineError> {
        let events = wait::choose(config.event_loop)?;
        tracing::info!(event_loop = events.name(), "the engine's event loop");
        interrupt::prepare()
            .map_err(|errno| EngineError::System { what: "setting a handler for SIGURG", errno })?;

        let waker = Waker::new()?;
        let signals = Arc::new(Signals::default());
        let helper = Helper::start(waker.clone())?;
        let watchdog = Watchdog::start(Arc::clone(&signals))?;

        if let Some(thread) = watchdog.thread() {
            signals.set_watchdog(thread);
        }

        let (sender, commands) = mpsc::sync_channel(MAX_COMMANDS);
        machine.set_cool_after(nanoseconds(config.cool_after));

        Ok(Self {
            machine,
            config,
            events,
            helper,
            signals,
            ports: Vec::new(),
            served: HashMap::new(),
            clients: 0,
            closers: Closers::new(),
            orphans: Vec::new(),
            ready: VecDeque::new(),
            slow: VecDeque::new(),
            held: Vec::new(),
            stalled: VecDeque::new(),
            deadline: None,
            accept_soon: false,
            reserve: File::open("/dev/null").ok(),
            waker,
            commands,
            sender,
            start: Instant::now(),
            scanned: Duration::ZERO,
            seen_rescues: 0,
            seen_faults: nicforge_shm::guard_faults(),
            turns: 0,
            sleeps: 0,
            longest_turn: LongestTurn::default(),
            _watchdog: watchdog,
        })
    }

    /// Returns `io_uring` or `epoll`.
    pub fn event_loop_name(&self) -> &'static str {
        self.events.name()
    }

    /// Returns the machine, while the engine does not run.
    pub fn machine_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// Returns a handle that reaches the engine while it runs.
    pub fn handle(&self) -> EngineHandle {
        EngineHandle::new(self.sender.clone(), self.waker.clone())
    }

    /// Serves an attachment at a socket of mode 0600. The socket's file exists when this returns;
    /// clients are answered once the engine runs. A socket that a dead server left behind is
    /// replaced.
    ///
    /// # Errors
    /// [`EngineError::NoSuchAttachment`], [`EngineError::AlreadyServed`], [`EngineError::TooMany`],
    /// [`EngineError::SocketInUse`], [`EngineError::NotASocket`], or the system's error.
    pub fn listen(
        &mut self,
        function: FunctionId,
        attachment: AttachmentId,
        path: impl AsRef<Path>,
    ) -> Result<(), EngineError> {
        self.listen_for(function, attachment, path, SocketAccess::default())
    }

    /// Serves an attachment as [`Engine::listen`] does, for another user or a group too.
    ///
    /// # Errors
    /// As [`Engine::listen`].
    pub fn listen_for(
        &mut self,
        function: FunctionId,
        attachment: AttachmentId,
        path: impl AsRef<Path>,
        access: SocketAccess,
    ) -> Result<(), EngineError> {
        let missing = EngineError::NoSuchAttachment { function: function.0, attachment: attachment.0 };
        let known = self
            .machine
            .spec(function)
            .is_some_and(|spec| usize::from(attachment.0) < spec.attachments.len());
        if !known {
            return Err(missing);
        }

        if let Some(&index) = self.served.get(&(function, attachment)) {
            let path = self.ports[index].listener.path().to_owned();
            return Err(EngineError::AlreadyServed { function: function.0, attachment: attachment.0, path });
        }
        if self.ports.len() >= MAX_PORTS {
            return Err(EngineError::TooMany { limit: MAX_PORTS });
        }

        let mut listener = Listener::bind_for(path.as_ref(), access)?;
        let closing = Closing::new(&self.waker, &self.closers);
        listener.set_closer(closing.closer());
        self.served.insert((function, attachment), self.ports.len());
        self.ports.push(Port {
            function,
            who: attachment,
            listener,
            client: None,
            generation: 0,
            accepting: false,
            back_off: BackOff::default(),
            closing,
            counters: ServerCounters::default(),
        });
        Ok(())
    }

    /// Steps the machine and serves clients until `stop` is used. Clients that are still connected
    /// lose their attachments then; the sockets are removed when the engine is dropped. The thread
    /// must not block SIGBUS, which reports truncated files. This function unblocks SIGURG.
    ///
    /// # Errors
    /// [`EngineError::Wait`] when the event loop fails.
    pub fn run(&mut self, stop: &Stop) -> Result<(), EngineError> {
        interrupt::allow().map_err(|errno| EngineError::System { what: "unblocking SIGURG", errno })?;

        let result = self.watch_all(stop).and_then(|()| self.turn_until(stop));
        self.end_all();

        for (index, port) in self.ports.iter().enumerate() {
            self.events.unwatch(port.listener.fd(), Watched::Listener(index).token());
        }
        self.events.unwatch(self.waker.fd(), Watched::Waker.token());
        self.events.unwatch(stop.fd(), Watched::Stop.token());

        result
    }

    /// Ends all clients and returns the machine.
    pub fn into_machine(mut self) -> Machine {
        self.end_all();
        self.machine
    }

    fn watch_all(&mut self, stop: &Stop) -> Result<(), EngineError> {
        let name = self.events.name();
        let failed = |reason| EngineError::Wait { event_loop: name, reason };
        self.events.watch(stop.fd(), Watched::Stop.token(), Interest::READ).map_err(failed)?;
        self.events.watch(self.waker.fd(), Watched::Waker.token(), Interest::READ).map_err(failed)?;
        for (index, port) in self.ports.iter().enumerate() {
            let token = Watched::Listener(index).token();
            self.events.watch(port.listener.fd(), token, Interest::READ).map_err(failed)?;
        }
        Ok(())
    }

    fn turn_until(&mut self, stop: &Stop) -> Result<(), EngineError> {
        let mut events = Vec::with_capacity(64);
        // Turns in a row that found no work, and turns since the sockets were checked.
        let (mut empty, mut unlooked) = (0, 0);
        let mut asleep = false;
        while !stop.is_stopped() {
            self.turns += 1;
            let before = self.start.elapsed();

            let next = self.step(before, asleep);
            asleep = matches!(next, Next::At(_));
            let now = Instant::now();

            let step_time = now.saturating_duration_since(self.start).saturating_sub(before);
            self.longest_turn.note(step_time, None, 0);
            self.route(now);

            if !self.stalled.is_empty() {
                self.retry_stalled(now);
            }

            let mut look = true;
            match next {
                _ if self.has_queued() || self.accept_soon => empty = 0,
                Next::Now => {
                    empty = 0;
                    unlooked += 1;
                    look = self.events.poll_is_cheap() || unlooked >= BUSY_TURNS;
                }
                Next::Poll => {
                    empty = self.rest(empty);
                    unlooked += 1;
                    look = self.events.poll_is_cheap() || unlooked >= IDLE_TURNS;
                }
                Next::At(_) if !self.stalled.is_empty() => empty = self.rest(empty),
                Next::At(time) => match self.sleep_time(time, now) {
                    Some(time) if time < self.events.shortest_sleep() => empty = self.rest(empty),
                    time => {
                        self.sleeps += 1;
                        self.events.wait(time, &mut events).map_err(|reason| self.failed(reason))?;
                        look = false;
                        empty = 0;
                    }
                },
            }

            if look {
                unlooked = 0;
                self.events.poll(&mut events).map_err(|reason| self.failed(reason))?;
            }
            self.handle_events(&mut events);
        }
        Ok(())
    }

    /// Takes one step of the machine. After each `safety_timeout` it checks everything, since a
    /// client's wake-up can get lost. If the whole machine was asleep, functions without work go
    /// back to sleep at once.
    fn step(&mut self, now: Duration, asleep: bool) -> Next {
        let time = Nanos(nanoseconds(now));
        let has_clients = self.clients > 0 || !self.orphans.is_empty();
        if !has_clients || now.saturating_sub(self.scanned) < self.config.safety_timeout {
            return self.machine.step(time, self.config.budget);
        }

        self.scanned = now;
        self.sweep();
        if asleep {
            self.machine.set_cool_after(0);
        }

        self.machine.rescan();
        let next = self.machine.step(time, self.config.budget);
        self.machine.set_cool_after(nanoseconds(self.config.cool_after));
        next
    }

    fn has_queued(&self) -> bool {
        !self.ready.is_empty() || !self.slow.is_empty()
    }

    /// Spins after an empty step, and from the `spin`th one on yields the processor.
    fn rest(&self, empty: u32) -> u32 {
        if empty >= self.config.spin {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        empty.saturating_add(1)
    }

    /// Returns how long to sleep: until the machine has work or an event is due, and with clients
    /// no longer than the safety time-out. `None` means until a report comes. A sleep is rounded up
    /// to whole sleeps of the event loop, unless the machine's own time ends it.
    fn sleep_time(&self, machine: Nanos, now: Instant) -> Option<Duration> {
        let since_start = now.saturating_duration_since(self.start);
        let safety = (self.clients > 0 || !self.orphans.is_empty())
            .then(|| self.config.safety_timeout.saturating_sub(since_start.saturating_sub(self.scanned)));
        let deadline = self.deadline.map(|deadline| deadline.saturating_duration_since(now));
        // Rounded up to whole sleeps: a remainder would be one more.
        let shortest = self.events.shortest_sleep();
        let whole = |time: Duration| {
            let sleeps = time.as_nanos().div_ceil(shortest.as_nanos().max(1)).max(1);
            shortest.saturating_mul(u32::try_from(sleeps).unwrap_or(u32::MAX))
        };
        let coarse = [safety, deadline].into_iter().flatten().min().map(whole);

        let machine =
            (machine < Nanos::NEVER).then(|| Duration::from_nanos(machine.0).saturating_sub(since_start));
        [coarse, machine].into_iter().flatten().min()
    }

    fn handle_events(&mut self, events: &mut Vec<Event>) {
        for event in events.drain(..) {
            match Watched::from_token(event.token) {
                Some(Watched::Waker) => self.on_wake(),
                Some(Watched::Listener(index)) => self.accept(index, Instant::now()),
                Some(Watched::Client(index, generation)) => self.on_client(index, generation, &event),
                Some(Watched::Twin(index, generation)) => self.on_twin(index, generation),
                Some(Watched::Unmask(index, generation)) => self.on_unmask(index, generation),
                // The loop checks the flag.
                Some(Watched::Stop) | None => {}
            }
        }
        if self.accept_soon {
            self.accept_soon = false;
            for index in 0..self.ports.len() {
                if self.ports[index].accepting {
                    self.accept(index, Instant::now());
                }
            }
        }
        self.serve_queued();

        let faults = nicforge_shm::guard_faults();
        if faults != self.seen_faults {
            self.seen_faults = faults;
            self.end_faulted();
        }
        let rescues = self.signals.rescues();
        if rescues != self.seen_rescues {
            self.seen_rescues = rescues;
            self.end_blocking();
        }
        if let Some(deadline) = self.deadline {
            let now = Instant::now();
            if deadline <= now {
                self.on_deadline(now);
            }
        }
    }

    fn on_wake(&mut self) {
        self.waker.clear();
        while let Some(mapped) = self.helper.take_done() {
            self.on_mapped(mapped);
        }
        self.release_held();

        for _ in 0..MAX_COMMANDS {
            let Ok(command) = self.commands.try_recv() else { return };
            command(&mut Control { engine: self });
        }
        // There may be more commands than the queue holds at a time.
        self.waker.wake();
    }

    pub(crate) fn note_deadline(&mut self, deadline: Instant) {
        self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
    }

    fn failed(&self, reason: std::io::Error) -> EngineError {
        EngineError::Wait { event_loop: self.events.name(), reason }
    }

    /// Returns a snapshot of the engine and its machine.
    pub fn snapshot(&self) -> Snapshot {
        let functions = (0..self.machine.functions()).map(FunctionId).map(|id| FunctionSnapshot {
            id,
            name: self.machine.name(id).unwrap_or_default().to_owned(),
            counters: self.machine.counters(id),
            attachments: self.attachments(id),
        });
        Snapshot {
            event_loop: self.events.name(),
            uptime: self.start.elapsed(),
            hot_functions: self.machine.hot_functions(),
            turns: self.turns,
            sleeps: self.sleeps,
            longest_turn: self.longest_turn,
            functions: functions.collect(),
        }
    }

    fn attachments(&self, function: FunctionId) -> Vec<AttachmentSnapshot> {
        let Some(spec) = self.machine.spec(function) else { return Vec::new() };
        let one = |(number, name): (usize, &String)| {
            let id = AttachmentId(number as u16);
            let port = self.served.get(&(function, id)).map(|&index| &self.ports[index]);
            AttachmentSnapshot {
                id,
                name: name.clone(),
                path: port.map(|port| port.listener.path().to_owned()),
                client: port.and_then(|port| port.client.as_ref()).map(|client| ClientSnapshot {
                    pid: client.pid,
                    connected: client.since.elapsed(),
                    mapped_bytes: client.session.memory.mapped_bytes(),
                    ranges: client.session.memory.ranges(),
                    messages: client.connection.counters().messages,
                    stalled: client.session.stalled.is_some(),
                }),
                counters: self.machine.attachment_counters(function, id).unwrap_or_default(),
                server: port.map(|port| port.counters).unwrap_or_default(),
            }
        };
        spec.attachments.iter().map(|attachment| &attachment.name).enumerate().map(one).collect()
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
