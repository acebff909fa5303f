//! The servers, in a child process.
//!
//! The parent's argument names how the engine waits, the processor for all threads, and the
//! directory for the sockets. The child writes `ready` when the sockets exist. It ends when its
//! standard input is closed, also when the parent was killed.

use std::{
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use clap::ValueEnum;
use nicforge::{
    cli::EventLoop,
    directory::{Directory, ServedDirectory},
    failure::{ErrorContext, Failure, print_line},
};
use nicforge_core::{ids::AttachmentId, machine::Machine};
use nicforge_engine::{Engine, EngineConfig, EngineHandle, Stop};

use super::{BENCH, TIMEOUT, device::DeepRing, peers};
use crate::{placement::pin, process};

/// Number of served attachments of the device.
const ATTACHMENTS: u16 = 3;
/// The line on standard output when the sockets exist.
const READY: &str = "ready";
/// The interval between two checks whether something has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// The word for servers that may run on any processor.
const ANYWHERE: &str = "any";

/// The parent's handle of the child. Dropping it ends the child.
pub(super) struct ServerProcess {
    child: Child,
    directory: ServedDirectory,
}

impl ServerProcess {
    /// Starts the child on `processor`, or on any, and waits until it serves.
    pub(super) fn start(event_loop: EventLoop, processor: Option<usize>) -> Result<Self, Failure> {
        let name = format!("bench-mmio-{}", std::process::id());
        let directory = ServedDirectory::create(&Directory::default_for(&name))?;
        let kind =
            event_loop.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let processor = processor.map_or_else(|| ANYWHERE.to_owned(), |processor| processor.to_string());
        let task = format!("{kind}:{processor}:{}", directory.path().display());
        let child = process::child_command(BENCH.name, &task)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Only the parent acts on Ctrl-C.
            .process_group(0)
            .spawn()
            .context(|| "can't start the servers".into())?;

        let mut server = Self { child, directory };
        server.wait_ready()?;

        Ok(server)
    }

    /// Waits until the child says that its sockets exist.
    fn wait_ready(&mut self) -> Result<(), Failure> {
        let mut line = String::new();
        if let Some(output) = self.child.stdout.take() {
            BufReader::new(output).read_line(&mut line).context(|| "the servers' process".into())?;
        }

        if line.trim_end() == READY {
            Ok(())
        } else {
            Err(Failure::environment("the servers' process did not start; its message is above"))
        }
    }

    /// Returns the directory of the sockets.
    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the socket of attachment `number` of the device.
    pub(super) fn attachment(&self, number: u16) -> PathBuf {
        attachment_socket(self.path(), number)
    }

    /// Ends the child, and returns an error if it has failed.
    pub(super) fn stop(mut self) -> Result<(), Failure> {
        self.end()
    }

    /// Closes the child's input, and waits for its end. A child that does not end is killed.
    fn end(&mut self) -> Result<(), Failure> {
        drop(self.child.stdin.take());
        let start = Instant::now();
        let mut status = self.child.try_wait().context(|| "the servers' process".into())?;

        while status.is_none() && start.elapsed() < TIMEOUT {
            std::thread::sleep(CHECK_INTERVAL);
            status = self.child.try_wait().context(|| "the servers' process".into())?;
        }

        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(Failure::environment(format!("the servers' process ended with {status}"))),
            None => {
                // The child has ended after this, whether or not the kill was needed.
                let _ = self.child.kill();
                let _ = self.child.wait();
                Err(Failure::environment("the servers' process did not end on request"))
            }
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // A caller that needs the result calls `stop`.
        let _ = self.end();
        // The bare peers leave their sockets behind. Only this process uses the directory, because
        // its name contains the process number.
        let _ = std::fs::remove_dir_all(self.directory.path());
    }
}

/// Returns the socket of attachment `number` of the device.
fn attachment_socket(directory: &Path, number: u16) -> PathBuf {
    directory.join(format!("dma0.{number}"))
}

/// Runs the child process.
pub(super) fn main(text: &str) -> Result<u8, Failure> {
    let unknown = || Failure::usage(format!("{text} is not event loop, processor and directory"));
    let mut parts = text.splitn(3, ':');
    let (Some(kind), Some(processor), Some(directory)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(unknown());
    };
    let event_loop = EventLoop::from_str(kind, false).map_err(|_| unknown())?;
    let directory = Path::new(directory);

    // The engine chooses its polling times by the number of usable processors, so this comes before
    // the pinning.
    let config = EngineConfig { event_loop: event_loop.into(), ..EngineConfig::default() };
    if processor != ANYWHERE {
        pin(processor.parse().map_err(|_| unknown())?)?;
    }

    let mut machine = Machine::new();
    let function = machine
        .add_function("dma0", Box::new(DeepRing::default()))
        .context(|| "the machine under test".into())?;
    let mut engine = Engine::new(machine, config).context(|| "the engine".into())?;

    for number in 0..ATTACHMENTS {
        engine
            .listen(function, AttachmentId(number), attachment_socket(directory, number))
            .context(|| "the engine".into())?;
    }

    let (stop, handle) = (Stop::new().context(|| "the engine".into())?, engine.handle());
    let thread = std::thread::Builder::new()
        .name("engine".into())
        .spawn({
            let stop = stop.clone();
            move || engine.run(&stop).map_err(|error| error.to_string())
        })
        .context(|| "the engine's thread".into())?;

    // These threads end with the process.
    peers::serve(directory)?;
    #[cfg(feature = "bench-peers")]
    super::vfio_user_crate::serve(directory)?;

    print_line(READY)?;
    // The parent sends nothing. The read returns when the parent's end of the pipe is closed.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());

    wait_until_clients_have_detached(&handle);
    stop.stop();
    let ended = thread.join().unwrap_or_else(|_| Err("the engine's thread panicked".into()));

    ended.map(|()| 0).map_err(Failure::environment)
}

/// Waits until the engine has noticed that the parent has closed its devices.
fn wait_until_clients_have_detached(engine: &EngineHandle) {
    let start = Instant::now();
    while start.elapsed() < TIMEOUT
        && let Ok(snapshot) = engine.snapshot(TIMEOUT)
        && snapshot
            .functions
            .iter()
            .flat_map(|function| &function.attachments)
            .any(|user| user.client.is_some())
    {
        std::thread::sleep(CHECK_INTERVAL);
    }
}
