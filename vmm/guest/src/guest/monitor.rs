//! QEMU's monitor (QMP: one JSON object for each line; QEMU, docs/interop/qmp-spec).

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// The longest line that is read, in bytes.
const MAX_LINE: usize = 1 << 20;
/// Number of events that are kept for later waits.
const MAX_EVENTS: usize = 256;

/// A connection to the monitor.
pub(crate) struct Monitor {
    stream: UnixStream,
    /// Bytes received that are not a whole line yet, or whose line is not taken yet.
    buffer: Vec<u8>,
    /// Events that no wait has taken, the oldest first.
    events: Vec<Value>,
    /// Number of the last command. A late answer must not be taken for the next command's.
    id: u64,
}

/// Why a command of the monitor has no result.
#[derive(Debug)]
pub(crate) enum MonitorError {
    /// QEMU refused it, with this reason.
    Refused(String),
    /// No answer came in time.
    DeadlinePassed,
    /// The connection is gone.
    Gone(io::Error),
}

impl From<io::Error> for MonitorError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::DeadlinePassed,
            _ => Self::Gone(error),
        }
    }
}

impl Monitor {
    /// Opens the monitor on a connection, and negotiates capabilities.
    pub(crate) fn new(stream: UnixStream, until: Instant) -> Result<Self, MonitorError> {
        let mut monitor = Self { stream, buffer: Vec::new(), events: Vec::new(), id: 0 };
        // QEMU begins with a greeting. It accepts other commands after this one.
        monitor.message(until)?;
        monitor.execute("qmp_capabilities", json!({}), until)?;
        Ok(monitor)
    }

    /// Runs a command and returns its result.
    pub(crate) fn execute(
        &mut self,
        command: &str,
        arguments: Value,
        until: Instant,
    ) -> Result<Value, MonitorError> {
        self.id += 1;
        let request = json!({ "execute": command, "arguments": arguments, "id": self.id });
        self.stream.set_write_timeout(Some(remaining(until)?))?;
        self.stream.write_all(format!("{request}\n").as_bytes())?;

        loop {
            let mut message = self.message(until)?;
            // QEMU answers a command that it can't parse with an error without a number.
            let is_answer = match message.get("id") {
                Some(id) => *id == self.id,
                None => message.get("error").is_some(),
            };
            if !is_answer {
                self.store_event(message);
                continue;
            }

            if let Some(result) = message.get_mut("return") {
                return Ok(result.take());
            }

            if let Some(error) = message.get("error") {
                let text = error["desc"].as_str().map_or_else(|| error.to_string(), str::to_owned);
                return Err(MonitorError::Refused(text));
            }
        }
    }

    /// Waits for an event that `wanted` accepts. It may have arrived already.
    pub(crate) fn event(
        &mut self,
        wanted: impl Fn(&str, &Value) -> bool,
        until: Instant,
    ) -> Result<(), MonitorError> {
        let fits = |event: &Value| event["event"].as_str().is_some_and(|name| wanted(name, &event["data"]));
        loop {
            if let Some(index) = self.events.iter().position(&fits) {
                self.events.remove(index);
                return Ok(());
            }
            let message = self.message(until)?;
            self.store_event(message);
        }
    }

    /// Discards the events received so far.
    pub(crate) fn forget_events(&mut self) {
        self.events.clear();
    }

    /// Stores an event, and drops the oldest one when there are too many. Other messages are
    /// dropped.
    fn store_event(&mut self, message: Value) {
        if message.get("event").is_some() {
            if self.events.len() == MAX_EVENTS {
                self.events.remove(0);
            }
            self.events.push(message);
        }
    }

    /// Receives the next message of the monitor.
    fn message(&mut self, until: Instant) -> Result<Value, MonitorError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|error| MonitorError::Gone(error.into()));
            }

            if self.buffer.len() > MAX_LINE {
                return Err(MonitorError::Gone(io::Error::other("the monitor's line has no end")));
            }

            self.stream.set_read_timeout(Some(remaining(until)?))?;
            let mut piece = [0; 4096];
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(MonitorError::Gone(io::ErrorKind::UnexpectedEof.into())),
                Ok(length) => self.buffer.extend_from_slice(&piece[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns the time that is left until a deadline.
fn remaining(until: Instant) -> Result<Duration, MonitorError> {
    let remaining = until.saturating_duration_since(Instant::now());
    if remaining.is_zero() { Err(MonitorError::DeadlinePassed) } else { Ok(remaining) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn monitor(says: &str) -> (Monitor, UnixStream) {
        let (host, mut qemu) = UnixStream::pair().unwrap();
        qemu.write_all(b"{\"QMP\": {}}\n{\"return\": {}, \"id\": 1}\n").unwrap();
        qemu.write_all(says.as_bytes()).unwrap();
        (Monitor::new(host, soon()).unwrap(), qemu)
    }

    #[test]
    fn an_event_before_the_answer_is_kept() {
        let (mut monitor, _qemu) =
            monitor("{\"event\": \"RESET\", \"data\": {}}\n{\"return\": {\"a\": 1}, \"id\": 2}\n");
        assert_eq!(monitor.execute("x", json!({}), soon()).unwrap()["a"], 1);
        monitor.event(|name, _| name == "RESET", soon()).unwrap();
    }

    #[test]
    fn a_refusal_has_qemus_words() {
        let (mut monitor, _qemu) =
            monitor("{\"error\": {\"class\": \"G\", \"desc\": \"no such device\"}, \"id\": 2}\n");
        match monitor.execute("x", json!({}), soon()) {
            Err(MonitorError::Refused(text)) => assert_eq!(text, "no such device"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_late_answer_is_not_taken_for_the_next_commands() {
        let (mut monitor, mut qemu) = monitor("");
        let now = Instant::now() + Duration::from_millis(20);
        assert!(matches!(monitor.execute("slow", json!({}), now), Err(MonitorError::DeadlinePassed)));
        qemu.write_all(b"{\"return\": \"late\", \"id\": 2}\n{\"return\": \"mine\", \"id\": 3}\n").unwrap();
        assert_eq!(monitor.execute("next", json!({}), soon()).unwrap(), "mine");
    }

    #[test]
    fn a_silent_monitor_times_out_and_a_closed_one_is_an_error() {
        let (mut monitor, qemu) = monitor("");
        let now = Instant::now() + Duration::from_millis(20);
        assert!(matches!(monitor.execute("x", json!({}), now), Err(MonitorError::DeadlinePassed)));
        drop(qemu);
        assert!(matches!(monitor.execute("x", json!({}), soon()), Err(MonitorError::Gone(_))));
    }
}
