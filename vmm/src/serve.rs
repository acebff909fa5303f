//! `nicforge serve`: a machine on sockets, and the same for the commands that serve one while they run.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use nicforge_core::machine::Machine;
use nicforge_engine::{Engine, EngineConfig, EngineHandle, Stop};
use nicforge_machine::{
    build::{Built, Node, NodeAttachment, build},
    description::Description,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{
    cli::ServeOptions,
    control::{ControlServer, Request, Response},
    descriptors,
    directory::Directory,
    failure::{Doing, Failure, say},
    signals::Signals,
    stat::{AttachmentSnapshot, NodeSnapshot, Snapshot},
};

/// How long the engine may take to answer. It looks between two steps.
const PATIENCE: Duration = Duration::from_secs(1);

/// A machine that is being served by a thread of this process.
pub struct Served {
    built: Arc<Built>,
    directory: Directory,
    event_loop: &'static str,
    stop: Stop,
    handle: EngineHandle,
    control: Option<ControlServer>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Served {
    /// Serve the machine of a file.
    pub fn start(machine: &Path, options: &ServeOptions) -> Result<Self, Failure> {
        let description = Description::read(machine).map_err(|error| Failure::usage(error.to_string()))?;
        Self::start_description(&description, options)
    }

    /// Serve a described machine.
    pub fn start_description(description: &Description, options: &ServeOptions) -> Result<Self, Failure> {
        let (machine, built) = build(description).map_err(|error| Failure::usage(error.to_string()))?;
        let built = Arc::new(built);
        let path = options.dir.clone().unwrap_or_else(|| Directory::default_for(&built.name));
        Self::start_in(Directory::create(&path)?, machine, built, options)
    }

    /// When it fails, what was started ends before the directory is given up.
    fn start_in(
        directory: Directory,
        machine: Machine,
        built: Arc<Built>,
        options: &ServeOptions,
    ) -> Result<Self, Failure> {
        let mut sockets = Vec::new();
        for node in &built.nodes {
            for attachment in &node.attachments {
                let socket = directory.socket(&node.name, &attachment.name, attachment.admin)?;
                sockets.push((node.function, attachment.id, socket));
            }
        }
        descriptors::raise();
        let config = EngineConfig { event_loop: options.event_loop.into(), ..EngineConfig::default() };
        let mut engine = Engine::new(machine, config).doing(|| "the engine".into())?;
        let stop = Stop::new().doing(|| "the engine".into())?;
        let handle = engine.handle();
        // The control socket comes first: it is what tells that somebody else serves here.
        let control = ControlServer::start(&directory.control(), {
            let (built, handle) = (built.clone(), handle.clone());
            move |request| answer(&built, &handle, &request)
        })?;
        for (function, attachment, socket) in &sockets {
            engine
                .listen(*function, *attachment, socket)
                .doing(|| format!("can't serve {}", socket.display()))?;
        }
        let event_loop = engine.event_loop_name();
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn({
                let stop = stop.clone();
                move || engine.run(&stop).map_err(|error| error.to_string())
            })
            .doing(|| "the engine's thread".into())?;
        Ok(Self { built, directory, event_loop, stop, handle, control: Some(control), thread: Some(thread) })
    }

    /// Who is in it.
    pub fn built(&self) -> &Built {
        &self.built
    }

    /// Where its sockets are.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// How the engine waits.
    pub fn event_loop(&self) -> &'static str {
        self.event_loop
    }

    /// The socket of an attachment.
    pub fn socket(&self, node: &Node, attachment: &NodeAttachment) -> Result<PathBuf, Failure> {
        self.directory.socket(&node.name, &attachment.name, attachment.admin)
    }

    /// What it is doing.
    pub fn snapshot(&self) -> Result<Snapshot, Failure> {
        snapshot(&self.built, &self.handle).map_err(Failure::environment)
    }

    /// Whether the engine has ended by itself, which it never should.
    fn has_failed(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stop serving, remove the sockets and the directory, and say whether the engine was well until now.
    pub fn stop(mut self) -> Result<(), Failure> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Failure> {
        self.control = None;
        self.stop.stop();
        let ended = match self.thread.take() {
            Some(thread) => thread.join().unwrap_or_else(|_| Err("the engine's thread panicked".into())),
            None => Ok(()),
        };
        ended.map_err(Failure::environment)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Whoever wants to know how it ended calls `stop`.
        let _ = self.end();
    }
}

/// The command.
pub fn main(machine: &Path, options: &ServeOptions) -> Result<u8, Failure> {
    let signals = Signals::block().doing(|| "signals".into())?;
    let served = Served::start(machine, options)?;
    say(welcome(&served))?;
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

/// What is where, for a person.
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
        text.push_str(&format!(
            "  {directory}/{}.{{{}}}   {}\n",
            node.name,
            users.join(","),
            node.role.name()
        ));
    }
    if served.built.nodes.len() > 8 {
        text.push_str(&format!("  ... and {} more nodes\n", served.built.nodes.len() - 8));
    }
    text.push_str(&format!(
        "  {directory}/admin   admin attachments and the control socket\nlook at it: nicforge stat {directory}   end it: Ctrl-C"
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
            Some(node) => match handle.reset_function(node.function, PATIENCE) {
                Ok(Ok(())) => Response::Done,
                Ok(Err(error)) => failed(error.to_string()),
                Err(error) => failed(error.to_string()),
            },
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

fn snapshot(built: &Built, handle: &EngineHandle) -> Result<Snapshot, String> {
    let raw = handle.snapshot(PATIENCE).map_err(|error| error.to_string())?;
    let nodes = built
        .nodes
        .iter()
        .zip(&raw.functions)
        .map(|(node, function)| NodeSnapshot {
            name: node.name.clone(),
            role: node.role.name().to_owned(),
            rank: node.rank,
            counters: function
                .counters
                .iter()
                .map(|counter| (counter.name.to_owned(), counter.value))
                .collect(),
            attachments: function
                .attachments
                .iter()
                .map(|attachment| AttachmentSnapshot {
                    name: attachment.name.clone(),
                    pid: attachment.client.map(|client| client.pid),
                    trapped: attachment.counters.trapped_reads + attachment.counters.trapped_writes,
                    posted: attachment.counters.posted_writes,
                    stalls: attachment.counters.stalls,
                    interrupts: attachment.counters.interrupts,
                    errors: attachment.counters.dma_errors + attachment.counters.malformed_records,
                })
                .collect(),
        })
        .collect();
    Ok(Snapshot {
        machine: built.name.clone(),
        uptime_ms: raw.uptime.as_millis() as u64,
        event_loop: raw.event_loop.to_owned(),
        awake: raw.hot_functions,
        nodes,
    })
}
