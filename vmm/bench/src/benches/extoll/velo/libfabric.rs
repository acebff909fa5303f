//! Runs libfabric's own ping-pong over shared memory, `fi_pingpong -p shm`, if it is installed. It
//! consists of two foreign processes.

use std::{
    env,
    ffi::OsStr,
    io::Read,
    net::{Ipv4Addr, TcpListener},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nicforge::failure::{ErrorContext, Failure};

use super::{BYTES, Effort, Measurement};
use crate::{placement::Placement, samples::Samples};

/// The name of libfabric's program.
const PROGRAM: &str = "fi_pingpong";
/// The column with half a round trip, in microseconds.
const COLUMN: &str = "usec/xfer";
/// The longest wait for a result.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);
/// The interval between two checks of a process.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Returns the program's path, if it is installed.
pub(super) fn find() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(PROGRAM)).find(|program| program.is_file())
}

/// A process that is killed when this value is dropped.
struct Process(Child);

impl Process {
    /// Starts the program, whose output is read by [`Process::output`].
    fn start<'a>(program: &PathBuf, arguments: impl IntoIterator<Item = &'a OsStr>) -> Result<Self, Failure> {
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        Ok(Self(child.context(|| PROGRAM.into())?))
    }

    /// Returns the output of a process that has ended successfully. Returns `None` when it has
    /// failed, or has not ended at `deadline`.
    fn output(&mut self, deadline: Instant) -> Result<Option<String>, Failure> {
        loop {
            if let Some(status) = self.0.try_wait().context(|| PROGRAM.into())? {
                let mut text = String::new();
                if let Some(output) = &mut self.0.stdout {
                    // The output is a few lines, which fit into the pipe.
                    output.read_to_string(&mut text).context(|| PROGRAM.into())?;
                }
                return Ok(status.success().then_some(text));
            }

            if Instant::now() >= deadline {
                return Ok(None);
            }

            thread::sleep(CHECK_INTERVAL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may already have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures half a round trip as the mean of a run. The server runs on the engine's processor.
pub(super) fn measure_shm(
    program: &PathBuf,
    placement: &Placement,
    effort: &Effort,
) -> Result<Measurement, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context(|| "a free port".into())?;
    let port = listener.local_addr().context(|| "a free port".into())?.port().to_string();
    drop(listener);
    let (bytes, rounds) = (BYTES.to_string(), effort.latency_messages.to_string());
    let common = ["-p", "shm", "-e", "rdm", "-S", &bytes, "-I", &rounds].map(OsStr::new);
    // The server listens at the port (-B), and the client connects to it (-P).
    let arguments =
        |port_option: &'static str| common.into_iter().chain([OsStr::new(port_option), OsStr::new(&port)]);
    let _server = placement.within("engine", || Process::start(program, arguments("-B")))?;
    let deadline = Instant::now() + STEP_TIMEOUT;

    // The client is refused until the server listens.
    while Instant::now() < deadline {
        let mut client = Process::start(program, arguments("-P").chain([OsStr::new("127.0.0.1")]))?;
        if let Some(time) = client.output(deadline)?.as_deref().and_then(half_round_trip) {
            let mut samples = Samples::with_capacity(1);
            samples.add(time);
            return Ok(Measurement::of_samples(samples));
        }
        thread::sleep(CHECK_INTERVAL);
    }

    Err(Failure::result(format!("{PROGRAM} -p shm has not given a time within {STEP_TIMEOUT:?}")))
}

/// Reads half a round trip from the program's table.
fn half_round_trip(text: &str) -> Option<Duration> {
    let mut lines = text.lines().map(|line| line.split_whitespace());
    let column = lines.find_map(|mut heading| heading.position(|word| word == COLUMN))?;
    let microseconds: f64 = lines.find_map(|mut line| line.nth(column)?.parse().ok())?;
    Some(Duration::from_nanos((microseconds * 1e3) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latency_is_parsed_from_the_table() {
        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    8       10k     =10k     156k        0.24s      0.67      11.88       0.08\n";
        assert_eq!(half_round_trip(text), Some(Duration::from_nanos(11_880)));
        assert_eq!(half_round_trip("nothing\n"), None);
        assert_eq!(half_round_trip(""), None);
    }
}
