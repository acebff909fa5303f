//! The served machines: two psets with one compute node each, two EXTOLL cards, two network devices
//! at a switch, and a device of registers.

use std::{path::PathBuf, thread::JoinHandle, time::Duration};

use nicforge::{
    cli::EventLoop,
    directory::{Directory, ServedDirectory},
    failure::{ErrorContext, Failure},
};
use nicforge_core::ids::AttachmentId;
use nicforge_engine::{Engine, EngineConfig, EngineHandle, Stop};

use super::{super::mmio::device::DeepRing, BENCH};
use crate::machine::{build, describe};

/// Number of packets in each FIFO.
pub(super) const FIFO_DEPTH: u32 = 256;
/// Addresses of the network devices. Those of QEMU's network devices begin with 52.
const STATION_ADDRESSES: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
/// Attachments of the device of registers.
const REGISTER_USERS: u16 = 3;
/// How long the engine may take to answer.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(10);

/// A machine that a thread of this process serves.
pub(super) struct Machine {
    directory: ServedDirectory,
    handle: EngineHandle,
    stop: Stop,
    thread: Option<JoinHandle<Result<(), String>>>,
}

/// The work of a machine since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkDone {
    /// Messages taken from the clients that are attached now.
    pub(super) messages: u64,
    /// Posted writes carried out.
    pub(super) posted: u64,
    /// Packets that left a node.
    pub(super) packets: u64,
    /// Number of times that the engine went to sleep.
    pub(super) sleeps: u64,
}

impl Machine {
    /// Serves a machine. `polls_for` is the time for which its engine polls after the last work, or
    /// `None` for the default.
    pub(super) fn serve(
        name: &str,
        event_loop: EventLoop,
        polls_for: Option<Duration>,
    ) -> Result<Self, Failure> {
        let pset = format!("[[pset]]\ncompute_nodes = 1\nfifo_depth = {FIFO_DEPTH}\n");
        let ethernet = format!("[[ethernet]]\nstations = 2\nmacs = {STATION_ADDRESSES:?}\n");
        let cards = "[[extoll]]\nmesh = 2\nvpids = 1\n";
        let networks = format!("{pset}{pset}{cards}{ethernet}");
        let description = describe(&format!("{}-{name}", BENCH.name), &networks)?;
        let (mut machine, built) = build(&description)?;
        let registers =
            machine.add_function("dma0", Box::new(DeepRing::default())).context(|| "the machine".into())?;
        let default_config = EngineConfig::default();
        let config = EngineConfig {
            event_loop: event_loop.into(),
            cool_after: polls_for.unwrap_or(default_config.cool_after),
            ..default_config
        };

        let engine = || "the engine".to_owned();

        // The directory is created before the engine, so that it is removed after it.
        let directory = ServedDirectory::create(&Directory::default_for(&built.name))?;
        let (mut serving, stop) =
            (Engine::new(machine, config).context(engine)?, Stop::new().context(engine)?);
        let users =
            (0..REGISTER_USERS).map(|number| (registers, AttachmentId(number), format!("dma0.{number}")));
        let cores = built.nodes.iter().flat_map(|node| {
            let cores = node.users().take(1);
            cores.map(|core| (core.function, core.id, format!("{}.{}", node.name, core.name)))
        });

        for (function, attachment, name) in users.chain(cores) {
            serving.listen(function, attachment, directory.path().join(name)).context(engine)?;
        }

        let handle = serving.handle();
        let thread = std::thread::Builder::new().name("engine".into()).spawn({
            let stop = stop.clone();
            move || serving.run(&stop).map_err(|error| error.to_string())
        });

        Ok(Self { directory, handle, stop, thread: Some(thread.context(engine)?) })
    }

    /// Returns the socket of an attachment, such as `io0.core0`.
    pub(super) fn socket(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the work that the machine has done.
    pub(super) fn work_done(&self) -> Result<WorkDone, Failure> {
        let snapshot = self.handle.snapshot(SNAPSHOT_TIMEOUT).context(|| "the engine".into())?;
        let mut done = WorkDone { sleeps: snapshot.sleeps, ..WorkDone::default() };

        for function in &snapshot.functions {
            let sent = function.counters.iter().filter(|counter| counter.name.ends_with("_sent"));
            done.packets += sent.map(|counter| counter.value).sum::<u64>();
            for attachment in &function.attachments {
                done.messages += attachment.client.map_or(0, |client| client.messages);
                done.posted += attachment.counters.posted_writes;
            }
        }

        Ok(done)
    }

    /// Stops the engine, and returns its error if it has failed.
    pub(super) fn stop(mut self) -> Result<(), Failure> {
        self.end()
    }

    /// Stops the engine if it still runs. Returns its error if it has failed.
    fn end(&mut self) -> Result<(), Failure> {
        self.stop.stop();
        let ended = match self.thread.take() {
            Some(thread) => thread.join().unwrap_or_else(|_| Err("the engine's thread panicked".into())),
            None => Ok(()),
        };
        ended.map_err(Failure::environment)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // A caller that needs the result calls `stop`.
        let _ = self.end();
    }
}

impl WorkDone {
    /// Returns the work that was done after `then`.
    pub(super) fn since(&self, then: &Self) -> Self {
        Self {
            messages: self.messages - then.messages,
            posted: self.posted - then.posted,
            packets: self.packets - then.packets,
            sleeps: self.sleeps - then.sleeps,
        }
    }
}
