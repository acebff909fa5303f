//! `nicforge serve`: serves a machine on sockets. Other commands use the same code to serve one
//! while they run.

mod control;
#[cfg(test)]
mod tests;
mod tracer;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread::JoinHandle,
    time::Duration,
};

use nicforge_core::{
    ids::{AttachmentId, FunctionId},
    machine::Machine,
    spec::Identity,
};
use nicforge_engine::{Engine, EngineError, EngineHandle, SocketAccess, SocketFile, SocketPlace, Stop};
use nicforge_family::{Families, Plan};
use nicforge_machine::{
    build::{Built, Node, NodeAttachment, build},
    description,
};
use nicforge_trace::Names;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use self::tracer::{FileThread, Tracer};
use crate::{
    access::{SocketGrant, SocketRules},
    cli::ServeOptions,
    control::ControlServer,
    descriptors,
    directory::{Directory, ServedDirectory},
    failure::{EXIT_HELD, ErrorContext, Failure, counted, print_line, program},
    signals::Signals,
    stat::MachineSnapshot,
};

/// How long the engine may take to end before its thread is abandoned.
const END_TIMEOUT: Duration = Duration::from_millis(1200);
/// Interval at which `serve` checks whether the engine has ended by itself, in milliseconds.
const CHECK_INTERVAL: u16 = 500;

/// A machine that is being served by a thread of this process.
pub struct Served {
    built: Arc<Built>,
    /// The PCI identity of each function, by its number.
    identities: Vec<Identity>,
    directory: ServedDirectory,
    /// The files of the attachments' sockets.
    sockets: Vec<SocketFile>,
    /// The name of the engine's event loop.
    event_loop: &'static str,
    stop: Stop,
    handle: EngineHandle,
    /// The threads that write the trace and the captures, until the end.
    files: Vec<FileThread>,
    /// The control socket, until the end.
    control: Option<ControlServer>,
    /// The engine's thread, until the end.
    engine: Option<EngineThread>,
}

/// The socket of one attachment, before the engine listens on it.
struct Endpoint {
    function: FunctionId,
    attachment: AttachmentId,
    place: SocketPlace,
    access: SocketAccess,
}

/// The engine's thread. It is never joined, because a client may hold it in a system call for ever.
struct EngineThread {
    thread: JoinHandle<()>,
    /// The result of the engine. The other end is dropped without a message when the thread
    /// panicked.
    ended: Receiver<Result<(), Failure>>,
}

impl EngineThread {
    /// Starts the thread that runs the engine until `stop` is signalled.
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

    /// Waits until the thread has ended, for at most [`END_TIMEOUT`]. A thread that does not end is
    /// abandoned.
    fn wait(self) -> Result<(), Failure> {
        match self.ended.recv_timeout(END_TIMEOUT) {
            Ok(result) => result,
            Err(RecvTimeoutError::Disconnected) => Err(Failure::panicked("the engine's thread panicked")),
            Err(RecvTimeoutError::Timeout) => Err(Failure {
                message: format!(
                    "the engine did not end within {} ms: a client holds it in a system call; the sockets are removed",
                    END_TIMEOUT.as_millis()
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
        let (machine, built) = build_plan(plan)?;
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
        owners: &[SocketGrant],
        groups: &[SocketGrant],
    ) -> Result<Self, Failure> {
        let rules = SocketRules::new(owners, groups, &built)?;
        let path = options.dir.clone().unwrap_or_else(|| Directory::default_for(&built.name));
        let directory = ServedDirectory::create(&path)?;
        if !rules.is_empty() {
            directory.allow_traversal(&rules.owners())?;
        }

        Self::start_in(directory, machine, Arc::new(built), options, &rules)
    }

    /// Starts the engine and the control socket in `directory`. When it fails, both end before the
    /// directory is removed.
    fn start_in(
        directory: ServedDirectory,
        mut machine: Machine,
        built: Arc<Built>,
        options: &ServeOptions,
        rules: &SocketRules,
    ) -> Result<Self, Failure> {
        let mut endpoints = Vec::new();
        for node in &built.nodes {
            for attachment in &node.attachments {
                endpoints.push(Endpoint {
                    function: attachment.function,
                    attachment: attachment.id,
                    place: directory.place(&node.name, &attachment.name, attachment.admin)?,
                    access: rules.access_of(node, attachment),
                });
            }
        }

        let identities = identities(&machine);

        let kept = options.trace_records();
        if let Some(records) = kept {
            tracer::keep_records(&mut machine, records);
        }
        options.captures.iter().try_for_each(|option| tracer::capture(&mut machine, option))?;
        let trace = options.trace.as_deref().map(|path| (path, Names::of(&mut machine)));

        descriptors::raise();
        let config = options.engine();
        let mut engine = Engine::new(machine, config).context(|| "the engine".into())?;
        let stop = Stop::new().context(|| "the engine".into())?;
        let handle = engine.handle();

        // The control socket comes first, because it shows other servers that this one uses the
        // directory.
        let control = ControlServer::start(directory.control_place(), {
            let (built, handle) = (built.clone(), handle.clone());
            let tracer = Tracer::new(handle.clone(), kept.is_some());
            move |request| control::answer(&built, &handle, &tracer, &request)
        })?;

        let mut sockets = Vec::new();
        for Endpoint { function, attachment, place, access } in endpoints {
            let path = place.path().to_owned();
            let socket = engine.listen_at(function, attachment, place, access);
            sockets.push(socket.context(|| format!("can't serve {}", path.display()))?);
        }

        let mut files = Vec::new();
        if let Some((path, names)) = trace {
            files.push(FileThread::of_trace(path, names, handle.clone())?);
        }
        for (number, option) in options.captures.iter().enumerate() {
            files.push(FileThread::of_capture(number, &option.file, handle.clone())?);
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
            files,
            control: Some(control),
            engine,
        })
    }

    /// Returns the nodes of the machine.
    pub fn built(&self) -> &Built {
        &self.built
    }

    /// Returns the PCI identity of each function, by its number.
    pub fn identities(&self) -> &[Identity] {
        &self.identities
    }

    /// Returns the directory of its sockets.
    pub fn directory(&self) -> &Directory {
        self.directory.names()
    }

    /// Returns the name of the engine's event loop.
    pub fn event_loop(&self) -> &'static str {
        self.event_loop
    }

    /// Returns the socket of an attachment.
    pub fn socket(&self, node: &Node, attachment: &NodeAttachment) -> Result<PathBuf, Failure> {
        self.directory.names().socket(&node.name, &attachment.name, attachment.admin)
    }

    /// Returns a snapshot of the machine's counters and clients.
    pub fn snapshot(&self) -> Result<MachineSnapshot, Failure> {
        control::snapshot(&self.built, &self.handle).map_err(Failure::environment)
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

    /// Stops serving, removes the sockets, and returns the engine's error. A further call has no
    /// effect.
    fn end(&mut self) -> Result<(), Failure> {
        // The sockets are removed first, so that no further client connects.
        self.control = None;
        self.sockets.drain(..).for_each(|socket| socket.remove());
        self.directory.remove_created();
        // The last records are written while the engine still answers.
        FileThread::end_all(std::mem::take(&mut self.files));

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

/// Builds the machine of a plan. Returns it with the description of its nodes.
///
/// # Errors
/// Returns a [`Failure`] of usage.
pub(crate) fn build_plan(plan: &Plan) -> Result<(Machine, Built), Failure> {
    build(plan).map_err(|error| Failure::usage(error.to_string()))
}

/// Returns the PCI identity of each function of a machine, by its number.
pub(crate) fn identities(machine: &Machine) -> Vec<Identity> {
    let identity = |number| machine.spec(FunctionId(number)).map(|spec| spec.identity);
    (0..machine.functions()).filter_map(identity).collect()
}

/// Runs `nicforge serve` until a signal comes or the engine ends by itself. Returns the exit code.
pub fn main(
    machine: &Path,
    families: &Families,
    options: &ServeOptions,
    owners: &[SocketGrant],
    groups: &[SocketGrant],
) -> Result<u8, Failure> {
    let signals = Signals::block().context(|| "signals".into())?;
    let (machine, built) = build_plan(&read_plan(machine, families)?)?;
    let served = Served::start_for(machine, built, options, owners, groups)?;
    print_line(startup_text(&served))?;

    loop {
        let mut fds = [PollFd::new(signals.fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, PollTimeout::from(CHECK_INTERVAL));
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

/// Maximum number of nodes that the description of a served machine lists.
const MAX_LISTED_NODES: usize = 8;

/// Returns the description of the served machine for the terminal.
fn startup_text(served: &Served) -> String {
    let directory = served.directory.path().display();
    let mut text = format!(
        "serving {} ({}) in {directory} by {}\n",
        served.built.name,
        counted(served.built.nodes.len(), "node"),
        served.event_loop
    );

    for node in served.built.nodes.iter().take(MAX_LISTED_NODES) {
        let users: Vec<_> = node.users().map(|attachment| attachment.name.as_str()).collect();
        let (name, role) = (&node.name, node.role.name());
        if users.is_empty() {
            text.push_str(&format!("  {name}   {role}, without user sockets\n"));
        } else {
            text.push_str(&format!("  {directory}/{name}.{{{}}}   {role}\n", users.join(",")));
        }
    }

    if served.built.nodes.len() > MAX_LISTED_NODES {
        let others = served.built.nodes.len() - MAX_LISTED_NODES;
        text.push_str(&format!("  ... and {others} more nodes\n"));
    }

    text.push_str(&format!(
        "  {directory}/admin   admin attachments and the control socket\nlook at it: {} stat {directory}   end it: Ctrl-C",
        program()
    ));
    text
}
