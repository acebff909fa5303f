//! `nicforge serve`: serves a machine on sockets. Other commands use the same code to serve one
//! while they run.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread::JoinHandle,
    time::Duration,
};

use nicforge_core::{ids::FunctionId, machine::Machine, spec::Identity};
use nicforge_engine::{Engine, EngineError, EngineHandle, FunctionSnapshot, Stop};
use nicforge_family::{Families, Plan};
use nicforge_machine::{
    build::{Built, Node, NodeAttachment, NodeFunction, build},
    description,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{
    access::{SocketRules, Word},
    cli::ServeOptions,
    control::{ControlServer, Request, Response},
    descriptors,
    directory::{Directory, SocketFile},
    failure::{EXIT_HELD, ErrorContext, Failure, print_line, program},
    signals::Signals,
    stat::{AttachmentSnapshot, ColumnSnapshot, LongestTurn, NodeSnapshot, Snapshot},
};

/// How long the engine may take to answer. It answers between two steps.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long the engine may take to end before its thread is abandoned.
const LAST_TURN: Duration = Duration::from_millis(1200);

/// A machine that is being served by a thread of this process.
pub struct Served {
    built: Arc<Built>,
    /// The PCI identity of each function, by its number.
    identities: Vec<Identity>,
    directory: Directory,
    sockets: Vec<SocketFile>,
    event_loop: &'static str,
    stop: Stop,
    handle: EngineHandle,
    control: Option<ControlServer>,
    engine: Option<EngineThread>,
}

/// The engine's thread. It is never joined, because a client may hold it in a system call for ever.
struct EngineThread {
    thread: JoinHandle<()>,
    /// The result of the engine. The other end is dropped without a message when the thread
    /// panicked.
    ended: Receiver<Result<(), Failure>>,
}

impl EngineThread {
    fn start(mut engine: Engine, stop: Stop) -> Result<Self, Failure> {
        let (report, ended) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("engine".into()).spawn(move || {
            let result = engine.run(&stop).map_err(failure_of);
            drop(engine);
            // The receiver is gone when the thread was abandoned.
            let _ = report.send(result);
        });

        Ok(Self { thread: thread.context(|| "the engine's thread".into())?, ended })
    }

    /// Waits until the thread has ended, for at most [`LAST_TURN`]. A thread that does not end is
    /// abandoned.
    fn wait(self) -> Result<(), Failure> {
        match self.ended.recv_timeout(LAST_TURN) {
            Ok(result) => result,
            Err(RecvTimeoutError::Disconnected) => Err(Failure::panicked("the engine's thread panicked")),
            Err(RecvTimeoutError::Timeout) => Err(Failure {
                message: format!(
                    "the engine did not end within {} ms: a client holds it in a system call; the sockets are removed",
                    LAST_TURN.as_millis()
                ),
                code: EXIT_HELD,
            }),
        }
    }
}

/// Returns the failure of a server whose engine ended with this error.
fn failure_of(error: EngineError) -> Failure {
    match error {
        EngineError::Panicked { .. } => Failure::panicked(error.to_string()),
        error => Failure::environment(error.to_string()),
    }
}

impl Served {
    /// Serves the machine of a file with the sections of `families`. The sockets are for this user
    /// alone.
    ///
    /// # Errors
    /// Returns a [`Failure`] of usage when the file is wrong, and of the environment otherwise.
    pub fn start(machine: &Path, families: &Families, options: &ServeOptions) -> Result<Self, Failure> {
        Self::start_plan(&read_plan(machine, families)?, options)
    }

    /// Serves the machine of a plan, with sockets for this user alone.
    ///
    /// # Errors
    /// Returns the errors of [`Served::start`].
    pub fn start_plan(plan: &Plan, options: &ServeOptions) -> Result<Self, Failure> {
        let (machine, built) = built(plan)?;
        Self::start_built(machine, built, options)
    }

    /// Serves a machine that was built already, with sockets for this user alone. A machine that
    /// was built without a plan has its nodes from [`Built::of_machine`], or from the caller.
    ///
    /// # Errors
    /// Returns the errors of [`Served::start`].
    pub fn start_built(machine: Machine, built: Built, options: &ServeOptions) -> Result<Self, Failure> {
        Self::start_for(machine, built, options, &[], &[])
    }

    /// Serves a machine with sockets that are given to users and groups.
    ///
    /// # Errors
    /// Returns the errors of [`Served::start`], and a [`Failure`] of usage when a user, group or
    /// attachment does not exist.
    pub fn start_for(
        machine: Machine,
        built: Built,
        options: &ServeOptions,
        owners: &[Word],
        groups: &[Word],
    ) -> Result<Self, Failure> {
        let rules = SocketRules::new(owners, groups, &built)?;
        let path = options.dir.clone().unwrap_or_else(|| Directory::default_for(&built.name));
        let directory = Directory::create(&path)?;
        if !rules.is_empty() {
            directory.let_others_through(&rules.owners())?;
        }

        Self::start_in(directory, machine, Arc::new(built), options, &rules)
    }

    /// Starts the engine and the control socket in `directory`. When it fails, both end before the
    /// directory is removed.
    fn start_in(
        directory: Directory,
        machine: Machine,
        built: Arc<Built>,
        options: &ServeOptions,
        rules: &SocketRules,
    ) -> Result<Self, Failure> {
        let mut places = Vec::new();
        for node in &built.nodes {
            for attachment in &node.attachments {
                let path = directory.socket(&node.name, &attachment.name, attachment.admin)?;
                places.push((attachment.function, attachment.id, path, rules.of(node, attachment)));
            }
        }

        let identity = |number| machine.spec(FunctionId(number)).map(|spec| spec.identity);
        let identities = (0..machine.functions()).filter_map(identity).collect();

        descriptors::raise();
        let config = options.engine();
        let mut engine = Engine::new(machine, config).context(|| "the engine".into())?;
        let stop = Stop::new().context(|| "the engine".into())?;
        let handle = engine.handle();

        // The control socket comes first, because it shows other servers that this one uses the
        // directory.
        let control = ControlServer::start(&directory.control_socket(), {
            let (built, handle) = (built.clone(), handle.clone());
            move |request| answer(&built, &handle, &request)
        })?;

        let mut sockets = Vec::new();
        for (function, attachment, path, access) in &places {
            engine
                .listen_for(*function, *attachment, path, *access)
                .context(|| format!("can't serve {}", path.display()))?;
            sockets.push(SocketFile::of(path)?);
        }

        let event_loop = engine.event_loop_name();
        let engine = Some(EngineThread::start(engine, stop.clone())?);

        Ok(Self {
            built,
            identities,
            directory,
            sockets,
            event_loop,
            stop,
            handle,
            control: Some(control),
            engine,
        })
    }

    /// Returns the nodes of the machine.
    pub fn built(&self) -> &Built {
        &self.built
    }

    /// Returns the PCI identity of a function.
    pub fn identity(&self, function: FunctionId) -> Option<&Identity> {
        self.identities.get(function.0 as usize)
    }

    /// Returns the directory of its sockets.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Returns the name of the engine's event loop.
    pub fn event_loop(&self) -> &'static str {
        self.event_loop
    }

    /// Returns the socket of an attachment.
    pub fn socket(&self, node: &Node, attachment: &NodeAttachment) -> Result<PathBuf, Failure> {
        self.directory.socket(&node.name, &attachment.name, attachment.admin)
    }

    /// Returns a snapshot of the machine's counters and clients.
    pub fn snapshot(&self) -> Result<Snapshot, Failure> {
        snapshot(&self.built, &self.handle).map_err(Failure::environment)
    }

    /// Returns whether the engine has ended by itself, which it never should.
    fn has_failed(&self) -> bool {
        self.engine.as_ref().is_none_or(|engine| engine.thread.is_finished())
    }

    /// Stops serving, and removes the sockets and the directory. It returns within 1.2 s, whatever
    /// a client does.
    ///
    /// # Errors
    /// Returns a [`Failure`] when the engine has failed, and one with [`EXIT_HELD`] when it does
    /// not end. Its thread is then abandoned, and the caller should end the process soon.
    pub fn stop(mut self) -> Result<(), Failure> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Failure> {
        // The sockets are removed first, so that no further client connects.
        self.control = None;
        self.sockets.drain(..).for_each(|socket| socket.remove());
        self.directory.remove_made();

        self.stop.stop();
        self.engine.take().map_or(Ok(()), EngineThread::wait)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // A caller that needs the result calls `stop`.
        let _ = self.end();
    }
}

/// Reads a machine file with the sections of `families`.
///
/// # Errors
/// Returns a [`Failure`] of usage.
pub fn read_plan(machine: &Path, families: &Families) -> Result<Plan, Failure> {
    description::read(machine, families).map_err(|error| Failure::usage(error.to_string()))
}

fn built(plan: &Plan) -> Result<(Machine, Built), Failure> {
    build(plan).map_err(|error| Failure::usage(error.to_string()))
}

/// Runs the command.
pub fn main(
    machine: &Path,
    families: &Families,
    options: &ServeOptions,
    owners: &[Word],
    groups: &[Word],
) -> Result<u8, Failure> {
    let signals = Signals::block().context(|| "signals".into())?;
    let (machine, built) = built(&read_plan(machine, families)?)?;
    let served = Served::start_for(machine, built, &options.for_untrusted(), owners, groups)?;
    print_line(welcome(&served))?;

    loop {
        let mut fds = [PollFd::new(signals.fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, PollTimeout::from(500u16));
        if ready.is_ok_and(|ready| ready > 0) && signals.take().is_some() {
            break;
        }
        if served.has_failed() {
            break;
        }
    }

    served.stop()?;
    Ok(0)
}

/// Returns the description of the served machine for the terminal.
fn welcome(served: &Served) -> String {
    let directory = served.directory.path().display();
    let mut text = format!(
        "serving {} ({} nodes) in {directory} by {}\n",
        served.built.name,
        served.built.nodes.len(),
        served.event_loop
    );

    for node in served.built.nodes.iter().take(8) {
        let users: Vec<_> = node.users().map(|attachment| attachment.name.as_str()).collect();
        let (name, role) = (&node.name, node.role.name());
        if users.is_empty() {
            text.push_str(&format!("  {name}   {role}, without user sockets\n"));
        } else {
            text.push_str(&format!("  {directory}/{name}.{{{}}}   {role}\n", users.join(",")));
        }
    }

    if served.built.nodes.len() > 8 {
        text.push_str(&format!("  ... and {} more nodes\n", served.built.nodes.len() - 8));
    }

    text.push_str(&format!(
        "  {directory}/admin   admin attachments and the control socket\nlook at it: {} stat {directory}   end it: Ctrl-C",
        program()
    ));
    text
}

fn failed(message: String) -> Response {
    Response::Refused { message, asked_wrongly: false }
}

fn answer(built: &Built, handle: &EngineHandle, request: &Request) -> Response {
    match request {
        Request::Stat => match snapshot(built, handle) {
            Ok(snapshot) => Response::Stat(snapshot),
            Err(message) => failed(message),
        },
        Request::Reset { node } => match built.node(node) {
            Some(node) => reset(node, handle),
            None => {
                let names: Vec<_> = built.nodes.iter().take(20).map(|node| node.name.as_str()).collect();
                Response::Refused {
                    message: format!("there is no node {node}; there are {}", names.join(", ")),
                    asked_wrongly: true,
                }
            }
        },
    }
}

/// Resets all functions of a node.
fn reset(node: &Node, handle: &EngineHandle) -> Response {
    for function in &node.functions {
        match handle.reset_function(function.id, PATIENCE) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return failed(error.to_string()),
            Err(error) => return failed(error.to_string()),
        }
    }
    Response::Done
}

fn snapshot(built: &Built, handle: &EngineHandle) -> Result<Snapshot, String> {
    let raw = handle.snapshot(PATIENCE).map_err(|error| error.to_string())?;

    Ok(Snapshot {
        machine: built.name.clone(),
        uptime_ms: raw.uptime.as_millis() as u64,
        event_loop: raw.event_loop.to_owned(),
        awake: raw.hot_functions,
        longest_turn: longest_turn(built, &raw.longest_turn),
        nodes: built.nodes.iter().map(|node| node_snapshot(node, &raw.functions)).collect(),
        columns: built.columns.iter().map(ColumnSnapshot::from).collect(),
    })
}

/// Returns the state of a node. `functions` are those of the machine, by their numbers.
fn node_snapshot(node: &Node, functions: &[FunctionSnapshot]) -> NodeSnapshot {
    let mut snapshot = NodeSnapshot {
        name: node.name.clone(),
        role: node.role.name().to_owned(),
        rank: node.rank,
        functions: node.functions.iter().filter_map(|function| function.name.clone()).collect(),
        panics: Vec::new(),
        companions: Vec::new(),
        counters: Vec::new(),
        attachments: Vec::new(),
    };

    for function in &node.functions {
        let Some(raw) = functions.get(function.id.0 as usize) else { continue };
        snapshot.panics.extend(raw.panic.as_ref().map(|panic| format!("device {} {panic}", raw.name)));
        let halted = raw.companions.iter().filter(|companion| !companion.is_healthy());
        snapshot
            .companions
            .extend(halted.map(|companion| format!("device {}: companion {companion}", raw.name)));

        let counters = raw.counters.iter();
        snapshot
            .counters
            .extend(counters.map(|counter| (name_in_node(function, counter.name), counter.value)));

        snapshot.attachments.extend(raw.attachments.iter().map(|attachment| AttachmentSnapshot {
            name: name_in_node(function, &attachment.name),
            pid: attachment.client.map(|client| client.pid),
            trapped: attachment.counters.trapped_reads + attachment.counters.trapped_writes,
            posted: attachment.counters.posted_writes,
            stalls: attachment.counters.stalls,
            interrupts: attachment.counters.interrupts,
            errors: attachment.counters.dma_errors + attachment.counters.malformed_records,
            longest_turn_us: microseconds(attachment.server.longest_turn),
        }));
    }
    snapshot
}

/// Returns the name of a function's counter or attachment among those of its node.
fn name_in_node(function: &NodeFunction, name: &str) -> String {
    match &function.name {
        Some(function) => format!("{function}.{name}"),
        None => name.to_owned(),
    }
}

fn longest_turn(built: &Built, turn: &nicforge_engine::LongestTurn) -> LongestTurn {
    let name = |(function, id)| {
        let node = built.nodes.iter().find(|node| node.has_function(function))?;
        let is_it = |attachment: &&NodeAttachment| (attachment.function, attachment.id) == (function, id);
        let attachment = node.attachments.iter().find(is_it)?;
        Some(format!("{}.{}", node.name, attachment.name))
    };
    LongestTurn { us: microseconds(turn.time), attachment: turn.client.and_then(name), pid: turn.pid }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{cli::EventLoop, failure::EXIT_PANICKED};

    /// The longest wait for anything in these tests.
    const SOON: Duration = Duration::from_secs(60);
    /// The time within which a server must end after a signal.
    const IN_TIME: Duration = Duration::from_secs(2);

    #[test]
    fn a_server_whose_engine_is_held_removes_its_sockets_and_stops_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let text = "name = \"m\"\n[[function]]\nname = \"fifo0\"\nkind = \"slot-fifo\"\n";
        let plan = description::parse(text, "a test's machine", &nicforge_nics::families()).unwrap();
        let options = ServeOptions::new(Some(folder.path().join("m")), EventLoop::Auto);
        let served = Served::start_plan(&plan, &options).unwrap();

        assert!(folder.path().join("m/fifo0.user0").exists());
        let (held, is_held) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let hold = move |_: &mut nicforge_engine::Control<'_>| {
            held.send(()).unwrap();
            // The receive ends with the test.
            let _ = released.recv();
        };

        served.handle.send(hold).unwrap();
        is_held.recv_timeout(SOON).unwrap();

        let since = Instant::now();
        let failure = served.stop().unwrap_err();

        assert!(since.elapsed() < IN_TIME, "{:?}", since.elapsed());
        assert_eq!(failure.code, EXIT_HELD);
        assert!(!folder.path().join("m").exists(), "the directory is left behind");
        drop(release);
    }
    #[test]
    fn a_server_whose_engine_panics_ends_with_a_code_of_its_own_and_removes_its_sockets() {
        let folder = tempfile::tempdir().unwrap();
        let text = "name = \"m\"\n[[function]]\nname = \"fifo0\"\nkind = \"slot-fifo\"\n";
        let plan = description::parse(text, "a test's machine", &nicforge_nics::families()).unwrap();
        let options = ServeOptions::new(Some(folder.path().join("m")), EventLoop::Auto);
        let served = Served::start_plan(&plan, &options).unwrap();

        served.handle.send(|_| std::panic::panic_any("a broken command")).unwrap();
        let until = Instant::now() + SOON;
        while !served.has_failed() {
            assert!(Instant::now() < until, "the engine goes on");
            std::thread::yield_now();
        }
        let failure = served.stop().unwrap_err();

        assert_eq!(failure.code, EXIT_PANICKED);
        assert!(failure.message.contains("a broken command"), "{failure}");
        assert!(!folder.path().join("m").exists(), "the directory is left behind");
    }
}
