//! A machine of core devices in this process, for a virtual machine's own virtio devices.
//!
//! One thread runs the machine. Accesses to its functions take effect on the calling thread, under
//! the machine's lock, and then wake the machine's thread. That thread sleeps while the machine has
//! nothing to do. An event ends the sleep: an access, a doorbell, a message of a companion, or a
//! serviced interrupt line.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod.rs` | the machine, its lock and its thread |
//! | `function.rs` | one of its functions on the bus |

mod function;

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard},
    task::{Wake, Waker},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nicforge_core::{
    companion::CompanionMode,
    ids::{AttachmentId, FunctionId},
    interrupt::INTX,
    machine::{Access, Machine, Next},
    time::Nanos,
};
use nix::{
    errno::Errno,
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
};

use crate::{event::Event, function::FunctionError};
pub use function::LocalFunction;

/// Work of each function in a step, in descriptors or packets.
const BUDGET: u32 = 64;
/// Longest sleep of a machine whose functions have mapped memory: drivers write to it without an
/// access, so nothing wakes the thread.
const RESCAN_INTERVAL: Duration = Duration::from_millis(10);
/// Token in the epoll of the event that wakes the thread. Sources have the tokens from 1 on.
const WAKE: u64 = 0;
/// Most events that one wait returns.
const MOST_EVENTS: usize = 16;

/// A machine in this process, with the thread that runs it. The thread ends with the last
/// reference, and so do the machine's companions.
pub struct LocalMachine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// State that the machine's thread shares with the callers of its functions.
struct Shared {
    state: Mutex<State>,
    started: Instant,
    waker: Arc<MachineWaker>,
    epoll: Epoll,
    /// Whether functions have mapped memory, which the machine polls every [`RESCAN_INTERVAL`].
    has_memory: bool,
}

/// The machine, and what its lock protects besides.
struct State {
    machine: Machine,
    /// The watched eventfds, by their tokens in the epoll.
    sources: BTreeMap<u64, Source>,
    /// The token given last. None is given twice.
    last_token: u64,
    /// The thread waits, or is about to. The next access wakes it.
    is_asleep: bool,
    /// When the machine last polled the mapped memory of all functions.
    last_rescan: Instant,
    /// The machine was dropped: its thread ends.
    has_ended: bool,
}

/// The client of one attachment of a function. Each function on the bus is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Client {
    function: FunctionId,
    attachment: AttachmentId,
}

/// An eventfd that the thread watches for a client.
struct Source {
    client: Client,
    kind: SourceKind,
}

/// The meaning of a watched eventfd's signal.
enum SourceKind {
    /// The guest has written to the register of a queue, whose number is the value for the device.
    Doorbell { event: Event, bar: u8, offset: u64, queue: u16 },
    /// The guest has serviced the interrupt line.
    Serviced(File),
}

/// Wakes the thread. Companions do so when a device has a message.
struct MachineWaker(Event);

impl Wake for MachineWaker {
    fn wake(self: Arc<Self>) {
        self.0.signal();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.signal();
    }
}

impl LocalMachine {
    /// Starts a machine: its thread, and a thread for each companion that its devices start. Its
    /// functions get clients by [`LocalMachine::function`].
    ///
    /// # Errors
    /// [`FunctionError::System`]
    pub fn start(mut machine: Machine) -> Result<Arc<Self>, FunctionError> {
        let waker = Event::new().map_err(FunctionError::system("an eventfd"))?;
        let waker = Arc::new(MachineWaker(waker));
        machine.set_companions(CompanionMode::Threads, Waker::from(waker.clone()));
        // Virtio drivers notify a function of new work. It need not be polled, so an idle one costs
        // no processor time.
        machine.set_cool_after(0);

        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(system("an epoll"))?;
        let added = epoll.add(waker.0.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, WAKE));
        added.map_err(system("watching an eventfd"))?;

        let has_memory = has_memory(&machine);
        let sources = BTreeMap::new();
        let started = Instant::now();
        let state = Mutex::new(State {
            machine,
            sources,
            last_token: WAKE,
            is_asleep: false,
            last_rescan: started,
            has_ended: false,
        });
        let shared = Arc::new(Shared { state, started, waker, epoll, has_memory });

        let builder = thread::Builder::new().name("nicforge-devices".to_owned());
        let run = {
            let shared = shared.clone();
            move || shared.run()
        };
        let thread = builder.spawn(run).map_err(FunctionError::system("the devices' thread"))?;
        Ok(Arc::new(Self { shared, thread: Some(thread) }))
    }

    /// Returns a function of the machine, as the client of one of its attachments. The attachment
    /// is free again when the function is dropped.
    ///
    /// # Errors
    /// [`FunctionError::Machine`] when there is no such attachment or it has a client,
    /// [`FunctionError::System`].
    pub fn function(
        self: &Arc<Self>,
        function: FunctionId,
        attachment: AttachmentId,
    ) -> Result<LocalFunction, FunctionError> {
        LocalFunction::attach(self.clone(), Client { function, attachment })
    }

    /// Calls `f` with the machine itself, for example to read counters.
    ///
    /// # Errors
    /// [`FunctionError::Broken`]
    pub fn with<R>(&self, f: impl FnOnce(&mut Machine) -> R) -> Result<R, FunctionError> {
        self.shared.with(|state| Ok(f(&mut state.machine)))
    }
}

impl Drop for LocalMachine {
    fn drop(&mut self) {
        let _ = self.shared.with(|state| {
            state.has_ended = true;
            Ok(())
        });
        // After a panic under the lock, the thread may wait without a time-out.
        self.shared.waker.0.signal();

        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the devices panicked");
        }
    }
}

impl Shared {
    /// Calls `f` under the machine's lock. Then it wakes the machine's thread if that sleeps,
    /// because `f` may have made work.
    fn with<R>(&self, f: impl FnOnce(&mut State) -> Result<R, FunctionError>) -> Result<R, FunctionError> {
        let mut state = self.lock()?;
        let result = f(&mut state);
        if std::mem::take(&mut state.is_asleep) {
            self.waker.0.signal();
        }
        result
    }

    /// Locks the state. An error means that a thread panicked under the lock.
    fn lock(&self) -> Result<MutexGuard<'_, State>, FunctionError> {
        self.state.lock().map_err(|_| FunctionError::Broken)
    }

    /// Returns the machine's time, which began with its start.
    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Watches an eventfd until [`Shared::unwatch`].
    fn watch(&self, source: Source) -> Result<(), FunctionError> {
        self.with(|state| {
            state.last_token += 1;
            let token = state.last_token;
            let added = self.epoll.add(source.fd(), EpollEvent::new(EpollFlags::EPOLLIN, token));
            added.map_err(system("watching an eventfd"))?;
            state.sources.insert(token, source);
            Ok(())
        })
    }

    /// Stops watching those of a client's eventfds that `unwanted` selects.
    fn unwatch(&self, client: Client, unwanted: impl Fn(&SourceKind) -> bool) -> Result<(), FunctionError> {
        self.with(|state| {
            let mut deleted = Ok(());
            state.sources.retain(|_, source| {
                let is_unwanted = source.client == client && unwanted(&source.kind);
                if is_unwanted {
                    deleted = deleted.and(self.epoll.delete(source.fd()));
                }
                !is_unwanted
            });
            deleted.map_err(system("watching an eventfd no more"))
        })
    }

    /// Runs the machine until its end.
    fn run(&self) {
        let mut events = [EpollEvent::empty(); MOST_EVENTS];
        while let Some(timeout) = self.step() {
            match self.epoll.wait(&mut events, timeout) {
                Ok(count) => self.handle_events(&events[..count]),
                Err(Errno::EINTR) => {}
                Err(error) => return tracing::error!(%error, "the devices' thread cannot wait"),
            }
        }
    }

    /// Steps the machine once. Returns the time to wait before the next step, or `None` at the end.
    fn step(&self) -> Option<EpollTimeout> {
        let mut state = self.lock().ok()?;
        if state.has_ended {
            return None;
        }

        let next = state.machine.step(self.now(), BUDGET);
        state.is_asleep = matches!(next, Next::At(_));
        drop(state);
        match next {
            Next::Now => Some(EpollTimeout::ZERO),
            Next::Poll => {
                thread::yield_now();
                Some(EpollTimeout::ZERO)
            }
            Next::At(time) => Some(self.timeout(time)),
        }
    }

    /// Returns the time to wait for an event of the machine at `time`, [`Nanos::NEVER`] for none.
    fn timeout(&self, time: Nanos) -> EpollTimeout {
        let left = (time != Nanos::NEVER).then(|| Duration::from_nanos(time.0.saturating_sub(self.now().0)));
        let rescan = self.has_memory.then_some(RESCAN_INTERVAL);

        let Some(left) = left.into_iter().chain(rescan).min() else { return EpollTimeout::NONE };
        let milliseconds = left.as_nanos().div_ceil(1_000_000);
        EpollTimeout::from(u16::try_from(milliseconds).unwrap_or(u16::MAX))
    }

    /// Handles the signals of watched eventfds, and polls mapped memory when it is time.
    fn handle_events(&self, events: &[EpollEvent]) {
        let Ok(mut state) = self.lock() else { return };
        state.is_asleep = false;
        // This is done by the clock, not only after a wait without events: frequent events of one
        // function must not keep another one's memory from being polled.
        if self.has_memory && state.last_rescan.elapsed() >= RESCAN_INTERVAL {
            state.last_rescan = Instant::now();
            state.machine.rescan();
        }

        let State { machine, sources, .. } = &mut *state;
        for event in events {
            match sources.get(&event.data()) {
                Some(source) => source.handle(machine),
                // The event that wakes the thread, whose counter goes back to 0. The token of a
                // source that is watched no more has no effect besides.
                None => drop(self.waker.0.take()),
            }
        }
    }
}

impl Source {
    fn fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            SourceKind::Doorbell { event, .. } => event.as_fd(),
            SourceKind::Serviced(file) => file.as_fd(),
        }
    }

    /// Resets the eventfd, and carries out what its signal means.
    fn handle(&self, machine: &mut Machine) {
        let Client { function, attachment } = self.client;

        match &self.kind {
            SourceKind::Doorbell { event, bar, offset, queue } => {
                event.take();
                let region = u32::from(*bar);
                match machine.write(function, attachment, region, *offset, &queue.to_le_bytes()) {
                    Ok(Access::Done | Access::BusMasteringLost) => {}
                    // The thread handles the event again after the next step, which makes room.
                    Ok(Access::Stalled) => event.signal(),
                    Err(error) => tracing::debug!(%error, "a doorbell"),
                }
            }
            SourceKind::Serviced(file) => {
                // The read resets the counter. Unmasking the line, which is interrupt 0 and the
                // only one, raises the interrupt again if the line is still asserted.
                let mut count = [0; 8];
                let mut file: &File = file;
                if file.read_exact(&mut count).is_ok()
                    && let Ok(interrupts) = machine.interrupts(function, attachment)
                    && let Err(error) = interrupts.unmask(INTX, 0, 1)
                {
                    tracing::debug!(%error, "a serviced interrupt line");
                }
            }
        }
    }
}

/// Returns whether a function of a machine has mapped or mirrored memory in its BARs.
fn has_memory(machine: &Machine) -> bool {
    let specs = (0..machine.functions()).filter_map(|function| machine.spec(FunctionId(function)));
    specs.flat_map(|spec| spec.bars.iter().flatten()).any(|bar| !bar.areas.is_empty())
}

/// Returns a function that adds the name of a system call to its error.
fn system(call: &'static str) -> impl Fn(Errno) -> FunctionError {
    move |errno| FunctionError::System { call, error: io::Error::from(errno) }
}
