//! The engine and its loop.

use std::{
    any::Any,
    panic::{self, AssertUnwindSafe},
    path::Path,
    time::Duration,
};

use nicforge_core::{
    ids::{AttachmentId, FunctionId},
    machine::Machine,
    panic::{CONTAINS_PANICS, message_of},
};

use crate::{
    accept::DescriptorReserve,
    attachment::{CloseBacklogs, ServedAttachment, ServedAttachments},
    clock::EngineClock,
    closer::Closers,
    command::{CommandQueue, EngineHandle},
    config::EngineConfig,
    end::EndReason,
    error::EngineError,
    mapper::Mapper,
    memory::FaultMonitor,
    service_queues::ServiceQueues,
    sigurg,
    socket::{Listener, SocketAccess, SocketFile, SocketPlace},
    stats::RoundCounters,
    stop::Stop,
    wait::{self, EventLoop, Interest},
    watchdog::Watchdog,
    watched::{MAX_ATTACHMENTS, Watched},
};

/// Steps a machine and serves its attachments. See the crate's documentation.
pub struct Engine {
    pub(crate) machine: Machine,
    pub(crate) config: EngineConfig,
    pub(crate) events: Box<dyn EventLoop>,
    pub(crate) attachments: ServedAttachments,
    pub(crate) queues: ServiceQueues,
    pub(crate) commands: CommandQueue,
    pub(crate) mapper: Mapper,
    /// The threads that close what belongs to clients.
    pub(crate) closers: Closers,
    pub(crate) watchdog: Watchdog,
    pub(crate) clock: EngineClock,
    pub(crate) round_counters: RoundCounters,
    pub(crate) reserve: DescriptorReserve,
    pub(crate) faults: FaultMonitor,
}

impl Engine {
    /// Makes an engine that serves nothing yet, and logs which event loop it uses. It logs a
    /// warning if the build can't contain panics of devices. The process gets a handler for SIGURG
    /// that does nothing: that signal ends a write to a client's eventfd that would block the
    /// engine.
    ///
    /// # Errors
    /// [`EngineError`] when the requested event loop, a thread or a descriptor is not available.
    pub fn new(mut machine: Machine, config: EngineConfig) -> Result<Self, EngineError> {
        let events = wait::choose(config.event_loop)?;
        tracing::info!(event_loop = events.name(), "the engine's event loop");
        if !CONTAINS_PANICS {
            tracing::warn!(
                "built with panic = \"abort\": a panic of one device ends the server and all its clients; \
                 build with panic = \"unwind\" to contain it"
            );
        }

        sigurg::set_handler()
            .map_err(|errno| EngineError::System { what: "setting a handler for SIGURG", errno })?;

        // Before this engine has threads, and long before it has clients.
        crate::waiting::is_reached();
        let commands = CommandQueue::new()?;
        let mapper = Mapper::start(commands.waker().clone())?;
        machine.set_cool_after(nanoseconds(config.cool_after));
        machine.set_companions(config.companions.mode, commands.waker().for_companions());
        machine.set_companion_limit(nanoseconds(config.companions.limit));

        Ok(Self {
            machine,
            config,
            events,
            attachments: ServedAttachments::default(),
            queues: ServiceQueues::default(),
            commands,
            mapper,
            closers: Closers::new(),
            watchdog: Watchdog::start()?,
            clock: EngineClock::new(),
            round_counters: RoundCounters::default(),
            reserve: DescriptorReserve::new(),
            faults: FaultMonitor::new(),
        })
    }

    /// Returns `io_uring` or `epoll`.
    pub fn event_loop_name(&self) -> &'static str {
        self.events.name()
    }

    /// Returns the machine. [`Engine::run`] borrows the engine, so this is for the time before and
    /// after it.
    pub fn machine_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// Returns a handle that reaches the engine while it runs.
    pub fn handle(&self) -> EngineHandle {
        self.commands.handle()
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
        let place = SocketPlace::open(path.as_ref())?;
        self.listen_at(function, attachment, place, SocketAccess::default()).map(drop)
    }

    /// Serves an attachment as [`Engine::listen`] does, at a place, and for another user or a group
    /// too. Returns the socket's file, which the engine removes when it is dropped.
    ///
    /// # Errors
    /// As [`Engine::listen`].
    pub fn listen_at(
        &mut self,
        function: FunctionId,
        attachment: AttachmentId,
        place: SocketPlace,
        access: SocketAccess,
    ) -> Result<SocketFile, EngineError> {
        let missing = EngineError::NoSuchAttachment { function: function.0, attachment: attachment.0 };
        let known = self
            .machine
            .spec(function)
            .is_some_and(|spec| usize::from(attachment.0) < spec.attachments.len());
        if !known {
            return Err(missing);
        }

        if let Some(index) = self.attachments.find(function, attachment) {
            let path = self.attachments[index].listener.path().to_owned();
            return Err(EngineError::AlreadyServed { function: function.0, attachment: attachment.0, path });
        }
        if self.attachments.is_full() {
            return Err(EngineError::TooMany { limit: MAX_ATTACHMENTS });
        }

        let mut listener = Listener::bind_at(place, access)?;
        let file = listener.file().clone();
        let backlogs = CloseBacklogs::new(self.commands.waker(), &self.closers);
        listener.set_closer(backlogs.listener_closer());
        self.attachments.add(ServedAttachment::new(function, attachment, listener, backlogs));
        self.queues.add_attachment();
        Ok(file)
    }

    /// Steps the machine and serves clients until `stop` is used. Clients that are still connected
    /// lose their attachments then; the sockets are removed when the engine is dropped. The thread
    /// must not block SIGBUS, which reports truncated files. This function unblocks SIGURG.
    ///
    /// # Errors
    /// [`EngineError::Wait`] when the event loop fails. [`EngineError::Panicked`] when code of the
    /// engine or the machine panics; the caller should drop the engine then. A panic of a device is
    /// contained, and no error.
    pub fn run(&mut self, stop: &Stop) -> Result<(), EngineError> {
        sigurg::unblock().map_err(|errno| EngineError::System { what: "unblocking SIGURG", errno })?;

        // After a panic the engine only ends its clients. Panics of that are caught too.
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
            self.watch_all(stop).and_then(|()| self.run_rounds(stop))
        }));
        let result = match outcome {
            Ok(result) => result,
            Err(payload) => return Err(self.end_after_panic(payload)),
        };
        self.end_all();

        for (index, attachment) in self.attachments.iter().enumerate() {
            self.events.unwatch(attachment.listener.fd(), Watched::Listener(index).token());
        }
        self.events.unwatch(self.commands.waker().fd(), Watched::Waker.token());
        self.events.unwatch(stop.fd(), Watched::Stop.token());

        result
    }

    /// Reports to all clients that they lost their attachments, and ends them, as far as that works
    /// after a panic.
    #[cold]
    fn end_after_panic(&mut self, payload: Box<dyn Any + Send>) -> EngineError {
        let message = message_of(payload);
        tracing::error!(message, "the engine panicked");

        for index in 0..self.attachments.len() {
            let marked = panic::catch_unwind(AssertUnwindSafe(|| {
                let attachment = &self.attachments[index];
                // The error of an attachment without a client does not matter.
                let _ = self.machine.mark_dead(attachment.function, attachment.id);
            }));
            let ended = panic::catch_unwind(AssertUnwindSafe(|| {
                self.end(index, EndReason::Evicted("the engine panicked"));
            }));
            for payload in [marked.err(), ended.err()].into_iter().flatten() {
                tracing::error!(message = message_of(payload), "a client was not ended after a panic");
            }
        }

        EngineError::Panicked { message }
    }

    /// Ends all clients and returns the machine.
    pub fn into_machine(mut self) -> Machine {
        self.end_all();
        self.machine
    }

    /// Watches the descriptors of the engine itself, and all listening sockets.
    fn watch_all(&mut self, stop: &Stop) -> Result<(), EngineError> {
        let name = self.events.name();
        let failed = |reason| EngineError::Wait { event_loop: name, reason };
        let mut watch =
            |fd, owner: Watched| self.events.watch(fd, owner.token(), Interest::READ).map_err(failed);

        watch(stop.fd(), Watched::Stop)?;
        watch(self.commands.waker().fd(), Watched::Waker)?;
        for (index, attachment) in self.attachments.iter().enumerate() {
            watch(attachment.listener.fd(), Watched::Listener(index))?;
        }
        Ok(())
    }
}

/// Returns a duration in nanoseconds, the machine's unit of time.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
