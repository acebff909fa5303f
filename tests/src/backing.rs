//! The doors to a machine: the ways in which a test reaches its attachments.

use std::{
    collections::VecDeque,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use nicforge_core::{
    ids::{AttachmentId, FunctionId},
    machine::{Machine, Next},
    time::Nanos,
};
use nicforge_driver::{Deadline, Device, Error, OpenOptions};
pub use nicforge_engine::EventLoopKind;
use nicforge_engine::{Engine, EngineConfig, EngineHandle, EngineSnapshot, Stop};
use nicforge_machine::in_process::LocalMachine;
use tempfile::TempDir;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::filter::LevelFilter;

/// Deadline of waits in tests, generous enough for a loaded machine.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Number of steps after which a busy machine is considered never to come to rest.
const MANY_STEPS: usize = 1_000_000;

/// The variable with the number of times [`LIMIT`] that a wait may take, for a nested guest.
pub const PATIENCE: &str = "NICFORGE_TEST_PATIENCE";

/// Returns [`LIMIT`], or as many times that as the environment says.
pub fn limit() -> Duration {
    let patience = std::env::var(PATIENCE).ok().and_then(|text| text.parse::<u32>().ok());
    LIMIT * patience.unwrap_or(1)
}

/// Returns the usual deadline of a wait in a test.
pub fn test_deadline() -> Deadline {
    Deadline::after(limit())
}

/// A machine, and access to its attachments.
pub trait Rig: Send + Sync {
    /// Opens an attachment by the names of function and attachment. It waits for a while if a
    /// previous client has just left it.
    ///
    /// # Panics
    /// When it can't be opened.
    fn open(&self, function: &str, attachment: &str) -> Device;

    /// As [`Rig::open`], but an attachment in use is an error at once.
    ///
    /// # Errors
    /// The door's error, as text.
    fn try_open(&self, function: &str, attachment: &str) -> Result<Device, String>;

    /// Runs `action` on the machine itself, as an operator would, and returns after it.
    fn with_machine(&self, action: Box<dyn FnOnce(&mut Machine) + Send>);

    /// Takes an attachment away from its client.
    fn evict(&self, function: &str, attachment: &str);

    /// Resets a function, as an operator would.
    fn reset(&self, function: &str);

    /// Returns the number of repetitions of a step that a body repeats `maximum` times where
    /// accesses are fast.
    fn repetitions(&self, maximum: u32) -> u32 {
        maximum
    }

    /// Waits until the machine is at rest. An event that has not occurred by then never will by
    /// itself.
    fn settle(&self) {
        let rests = ask(self, |machine| {
            machine.rescan();
            // A time before the machine's own counts as the machine's own.
            (0..MANY_STEPS).any(|_| machine.step(Nanos::ZERO, 64) != Next::Now)
        });
        assert!(rests, "the machine does not come to rest");
    }

    /// Returns the increase of a function's counter since the body began. On the host, each body
    /// has a machine of its own, whose counters begin at 0.
    fn counter(&self, function: &str, name: &str) -> u64 {
        let (function, name) = (function.to_owned(), name.to_owned());
        ask(self, move |machine| {
            let counters = machine.counters(find(machine, &function));
            counters.into_iter().find(|counter| counter.name == name).expect("the counter exists").value
        })
    }
}

/// Runs a query on the machine, as an operator, and returns its result.
pub fn ask<R: Send + 'static>(
    rig: &(impl Rig + ?Sized),
    question: impl FnOnce(&mut Machine) -> R + Send + 'static,
) -> R {
    let (answer, answers) = mpsc::channel();
    rig.with_machine(Box::new(move |machine| {
        // The receiver is gone only if the caller has failed already.
        let _ = answer.send(question(machine));
    }));
    answers.recv_timeout(limit()).expect("the operator gets an answer")
}

/// Returns a function's number.
fn find(machine: &Machine, function: &str) -> FunctionId {
    (0..machine.functions())
        .map(FunctionId)
        .find(|&id| machine.name(id) == Some(function))
        .unwrap_or_else(|| panic!("there is no function {function}"))
}

/// Returns the path of an attachment's socket: `function-attachment` in a directory of its own.
fn socket(directory: &Path, function: &str, attachment: &str) -> PathBuf {
    directory.join(format!("{function}-{attachment}"))
}

/// The last log lines of one engine, which only a failing test shows.
#[derive(Clone, Default)]
struct EngineLog(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl EngineLog {
    /// Number of lines that are kept.
    const LINES: usize = 1_000;

    /// Collects the log of the current thread until the result is dropped.
    fn collect(&self) -> DefaultGuard {
        let lines = self.clone();
        let log = tracing_subscriber::fmt().with_max_level(LevelFilter::INFO).with_ansi(false);
        tracing::subscriber::set_default(log.with_writer(move || lines.clone()).finish())
    }

    /// Returns the lines that are kept.
    fn lines(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prints the lines, under the name of the current test.
    fn show(&self) {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        let lines: String = self.lines().iter().map(|line| String::from_utf8_lossy(line)).collect();
        eprintln!("The engine of {test} logged:\n{lines}");
    }
}

/// Takes one line with each write, as `tracing_subscriber` writes them.
impl Write for EngineLog {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut lines = self.lines();
        if lines.len() == Self::LINES {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());

        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A machine that a thread of this process serves, one socket for each attachment. It ends on drop.
pub struct Served {
    directory: TempDir,
    handle: EngineHandle,
    stop: Stop,
    engine: Option<JoinHandle<()>>,
    log: EngineLog,
    /// The functions' names by number, each with the names of its attachments.
    names: Vec<(String, Vec<String>)>,
}

impl Served {
    /// Serves `machine` by an engine with the given event loop.
    pub fn new(machine: Machine, event_loop: EventLoopKind) -> Self {
        Self::with_config(machine, EngineConfig { event_loop, ..EngineConfig::default() })
    }

    /// Serves `machine` by an engine with the given configuration. The engine's thread is named
    /// `engine`.
    pub fn with_config(machine: Machine, config: EngineConfig) -> Self {
        let log = EngineLog::default();
        let directory = TempDir::new().expect("a directory for sockets");
        let names: Vec<_> = (0..machine.functions())
            .map(|number| {
                let id = FunctionId(number);
                let attachments = &machine.spec(id).expect("the function is there").attachments;
                let attachments =
                    attachments.iter().map(|attachment| attachment.name.clone()).collect::<Vec<_>>();
                (machine.name(id).expect("the function is there").to_owned(), attachments)
            })
            .collect();

        // Lines of the engine's start come from this thread.
        let collected = log.collect();
        let mut engine = Engine::new(machine, config).expect("an engine");
        for (number, (function, attachments)) in names.iter().enumerate() {
            for (index, attachment) in attachments.iter().enumerate() {
                let path = socket(directory.path(), function, attachment);
                engine
                    .listen(FunctionId(number as u32), AttachmentId(index as u16), &path)
                    .expect("a socket");
            }
        }

        drop(collected);

        let (handle, stop) = (engine.handle(), Stop::new().expect("an eventfd"));
        let (stop_of_engine, its_log) = (stop.clone(), log.clone());
        let run = move || {
            let _collected = its_log.collect();
            engine.run(&stop_of_engine).expect("the engine runs until it is stopped");
        };
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(run).expect("a thread");

        Self { directory, handle, stop, engine: Some(thread), log, names }
    }

    /// Returns the path of an attachment's socket, for a test's own client.
    pub fn socket(&self, function: &str, attachment: &str) -> PathBuf {
        socket(self.directory.path(), function, attachment)
    }

    /// Returns the functions' names.
    pub fn functions(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|(function, _)| function.as_str())
    }

    /// Returns the engine's statistics of itself and its machine.
    pub fn snapshot(&self) -> EngineSnapshot {
        self.handle.snapshot(limit()).expect("the engine answers")
    }

    /// Returns a function's number.
    fn function(&self, name: &str) -> FunctionId {
        let number = self.names.iter().position(|(function, _)| function == name);
        FunctionId(number.unwrap_or_else(|| panic!("there is no function {name}")) as u32)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.stop();
        let panicked = self.engine.take().is_some_and(|engine| engine.join().is_err());

        if std::thread::panicking() {
            self.log.show();
        } else if panicked {
            self.log.show();
            panic!("the engine panicked");
        }
    }
}

impl Rig for Served {
    fn open(&self, function: &str, attachment: &str) -> Device {
        // The server notices a client's disconnection only after a while.
        let deadline = test_deadline();

        loop {
            match self.try_open(function, attachment) {
                Ok(device) => return device,
                Err(error) => assert!(!deadline.has_passed(), "{function}-{attachment}: {error}"),
            }
            std::thread::yield_now();
        }
    }

    fn try_open(&self, function: &str, attachment: &str) -> Result<Device, String> {
        Device::open_vfio_user(self.socket(function, attachment), OpenOptions::default())
            .map_err(|error| error.to_string())
    }

    fn with_machine(&self, action: Box<dyn FnOnce(&mut Machine) + Send>) {
        self.handle.call(limit(), move |control| action(control.machine())).expect("the engine answers");
    }

    fn evict(&self, function: &str, attachment: &str) {
        let id = self.function(function);
        let index = self.names[id.0 as usize].1.iter().position(|name| name == attachment);
        let index =
            AttachmentId(index.unwrap_or_else(|| panic!("there is no attachment {attachment}")) as u16);

        assert!(
            self.handle.evict(id, index, limit()).expect("the engine answers"),
            "the attachment has a client"
        );
    }

    fn reset(&self, function: &str) {
        let reset = self.handle.reset_function(self.function(function), limit()).expect("the engine answers");
        reset.expect("the function is there");
    }
}

/// A machine in this process.
pub struct InProcess(Arc<LocalMachine>);

impl InProcess {
    /// Wraps `machine`.
    pub fn new(machine: Machine) -> Self {
        Self(LocalMachine::new(machine))
    }
}

impl Rig for InProcess {
    fn open(&self, function: &str, attachment: &str) -> Device {
        self.try_open(function, attachment).expect("the attachment is free")
    }

    fn try_open(&self, function: &str, attachment: &str) -> Result<Device, String> {
        let backing = self.0.open_named(function, attachment).map_err(|error| error.to_string())?;
        Device::from_backing(backing).map_err(|error: Error| error.to_string())
    }

    fn with_machine(&self, action: Box<dyn FnOnce(&mut Machine) + Send>) {
        self.0.with(action);
    }

    fn evict(&self, function: &str, attachment: &str) {
        self.0.evict_named(function, attachment).expect("the attachment has a client");
    }

    fn reset(&self, function: &str) {
        self.0
            .with(|machine| machine.reset_function(find(machine, function)))
            .expect("the function is there");
    }
}
