//! `nicforge stat` and `nicforge reset`: send requests to a served machine over its control socket.

use std::{
    io::IsTerminal,
    path::Path,
    time::{Duration, Instant},
};

use comfy_table::{CellAlignment, Table, presets};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};

use crate::{
    control::{Request, Response, ask},
    directory::Directory,
    failure::{ErrorContext, Failure, print_line},
    signals::Signals,
};

/// The state of a machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// The machine's name.
    pub machine: String,
    /// Milliseconds since the start of the machine.
    pub uptime_ms: u64,
    /// The engine's event loop: `io_uring` or `epoll`.
    pub event_loop: String,
    /// Number of nodes that are awake: the engine polls their memory all the time.
    pub awake: usize,
    /// The longest time that the engine was busy with one turn, by the wall clock.
    #[serde(default)]
    pub longest_turn: LongestTurn,
    /// Its nodes.
    pub nodes: Vec<NodeSnapshot>,
}

/// The longest time that the engine was busy with one client, or with one step of the machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LongestTurn {
    /// Duration in microseconds.
    pub us: u64,
    /// The client's node and attachment; `None` for a step of the machine.
    pub attachment: Option<String>,
    /// The client's process, 0 for a step of the machine.
    pub pid: i32,
}

impl std::fmt::Display for LongestTurn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let milliseconds = self.us as f64 / 1e3;
        match &self.attachment {
            Some(name) => write!(f, "{milliseconds:.1} ms for {name}, pid {}", self.pid),
            None => write!(f, "{milliseconds:.1} ms, a step of the machine"),
        }
    }
}

/// The state of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeSnapshot {
    /// The node's name.
    pub name: String,
    /// The node's role.
    pub role: String,
    /// Its number among the nodes of its role.
    pub rank: u32,
    /// The panic of the device that took the node out of service, as `panicked in METHOD: MESSAGE`.
    #[serde(default)]
    pub panic: Option<String>,
    /// The device's companions that are halted or have abandoned threads, each with its state.
    #[serde(default)]
    pub companions: Vec<String>,
    /// The device's counters, in the device's order.
    pub counters: Vec<(String, u64)>,
    /// Its attachments.
    pub attachments: Vec<AttachmentSnapshot>,
}

impl NodeSnapshot {
    /// Returns a sentence about the panic of the node's device, if it panicked.
    pub fn report_panic(&self) -> Option<String> {
        self.panic.as_ref().map(|panic| format!("device {} {panic}", self.name))
    }

    /// Returns a sentence about each part of the node's device that does not work.
    fn report_problems(&self) -> Vec<String> {
        let companions =
            self.companions.iter().map(|state| format!("device {}: companion {state}", self.name));
        self.report_panic().into_iter().chain(companions).collect()
    }

    /// Returns the sum of the device's counters called `name` over all its virtual channels
    /// (`vc0_name`, `vc1_name`, ...). Returns `None` when it has none.
    pub fn counter_if_any(&self, name: &str) -> Option<u64> {
        let matches = |counter: &str| match counter.strip_prefix("vc").and_then(|rest| rest.split_once('_')) {
            Some((_, rest)) => rest == name,
            None => counter == name,
        };
        let mut found = self.counters.iter().filter(|(counter, _)| matches(counter)).map(|(_, value)| *value);
        found.next().map(|first| found.fold(first, u64::wrapping_add))
    }

    /// Returns the sum of several counters. Returns `None` when the device has none of them.
    pub fn sum_if_any(&self, names: &[&str]) -> Option<u64> {
        names.iter().filter_map(|name| self.counter_if_any(name)).reduce(u64::wrapping_add)
    }

    /// Returns the same as [`Self::counter_if_any`], or 0 when the device has no such counter.
    pub fn counter(&self, name: &str) -> u64 {
        self.counter_if_any(name).unwrap_or(0)
    }
}

/// The state of an attachment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AttachmentSnapshot {
    /// The attachment's name.
    pub name: String,
    /// The client's process, if there is one.
    pub pid: Option<i32>,
    /// Number of trapped reads and writes.
    pub trapped: u64,
    /// Number of records from posted-write rings.
    pub posted: u64,
    /// Number of writes that were stalled.
    pub stalls: u64,
    /// Number of interrupts raised.
    pub interrupts: u64,
    /// Number of failed DMA accesses and malformed records.
    pub errors: u64,
    /// The longest turn of a client, in microseconds.
    #[serde(default)]
    pub longest_turn_us: u64,
}

/// Runs `nicforge stat`.
pub fn main(directory: &Path, every: Option<Duration>, json: bool, attachments: bool) -> Result<u8, Failure> {
    let directory = find(directory)?;
    let signals = Signals::block().context(|| "signals".into())?;
    let mut last: Option<(Instant, Snapshot)> = None;

    loop {
        let snapshot = match ask(&directory, &Request::Stat)? {
            Response::Stat(snapshot) => snapshot,
            other => return Err(unexpected(&other)),
        };

        let now = Instant::now();
        if json {
            print_line(serde_json::to_string(&snapshot).context(|| "the answer".into())?)?;
        } else {
            let clear = if every.is_some() && std::io::stdout().is_terminal() { "\x1b[2J\x1b[H" } else { "" };
            let since = last.as_ref().map(|(time, old)| (now.duration_since(*time), old));
            print_line(format_args!("{clear}{}", render(&snapshot, since, attachments)))?;
        }

        let Some(every) = every else { return Ok(0) };

        last = Some((now, snapshot));
        let mut fds = [PollFd::new(signals.fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(every).unwrap_or(PollTimeout::MAX);
        if poll(&mut fds, timeout).is_ok_and(|ready| ready > 0) && signals.take().is_some() {
            return Ok(0);
        }
    }
}

/// Runs `nicforge reset`.
pub fn reset(directory: &Path, node: &str) -> Result<u8, Failure> {
    match ask(&find(directory)?, &Request::Reset { node: node.to_owned() })? {
        Response::Done => Ok(0),
        Response::Refused { message, asked_wrongly: true } => Err(Failure::usage(message)),
        other => Err(unexpected(&other)),
    }
}

/// Returns a machine's directory, from its path or from the machine's name.
fn find(given: &Path) -> Result<Directory, Failure> {
    match given.to_str() {
        // A folder of that name may belong to something else, so it must contain a served machine.
        Some(name) if !name.contains('/') && !Directory::is_served(given) => {
            Directory::open(&Directory::default_for(name))
        }
        _ => Directory::open(given),
    }
}

fn unexpected(response: &Response) -> Failure {
    match response {
        Response::Refused { message, .. } => Failure::environment(message.clone()),
        _ => Failure::environment("the server gave an answer that does not fit; is it another version?"),
    }
}

/// Columns of the node table: the title, and the names of the devices' counters for it.
const COLUMNS: [(&str, &[&str]); 7] = [
    ("send fill", &["send_fill"]),
    ("recv fill", &["recv_fill"]),
    ("sent", SENT),
    ("received", RECEIVED),
    ("forwarded", &["forwarded"]),
    ("stalls", &["stalls", "velo_stalls"]),
    ("errors", &["errors"]),
];

/// Counters of sent packets: of the tree, and of VELO.
const SENT: &[&str] = &["sent", "velo_sent"];
/// Counters of received packets: of the tree, and of VELO.
const RECEIVED: &[&str] = &["received", "velo_received"];

fn render(snapshot: &Snapshot, since: Option<(Duration, &Snapshot)>, attachments: bool) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    let mut header = vec!["node".to_owned(), "clients".to_owned()];
    header.extend(COLUMNS.iter().map(|(title, _)| (*title).to_owned()));
    header.extend(["interrupts".to_owned(), "posted".to_owned(), "trapped".to_owned()]);
    if since.is_some() {
        header.push("packets/s".to_owned());
    }

    let columns = header.len();
    table.set_header(header);

    for (index, node) in snapshot.nodes.iter().enumerate() {
        let clients = node.attachments.iter().filter(|attachment| attachment.pid.is_some()).count();
        let sum = |f: fn(&AttachmentSnapshot) -> u64| node.attachments.iter().map(f).sum::<u64>();
        let mut row = vec![node.name.clone(), format!("{clients}/{}", node.attachments.len())];
        row.extend(COLUMNS.iter().map(|(_, counters)| {
            node.sum_if_any(counters).map_or_else(|| "-".into(), |value| value.to_string())
        }));

        row.push(sum(|attachment| attachment.interrupts).to_string());
        row.push(sum(|attachment| attachment.posted).to_string());
        row.push(sum(|attachment| attachment.trapped).to_string());

        if let Some((time, old)) = since {
            let before = old.nodes.get(index).map_or(0, packets);
            let rate = packets(node).saturating_sub(before) as f64 / time.as_secs_f64().max(1e-9);
            row.push(format!("{rate:.0}"));
        }

        table.add_row(row);
        if attachments {
            for attachment in &node.attachments {
                let mut row = vec![
                    format!("  {}", attachment.name),
                    attachment.pid.map_or_else(|| "-".into(), |pid| format!("pid {pid}")),
                ];
                row.extend(COLUMNS.iter().map(|(title, _)| match *title {
                    "stalls" => attachment.stalls.to_string(),
                    "errors" => attachment.errors.to_string(),
                    _ => String::new(),
                }));

                row.push(attachment.interrupts.to_string());
                row.push(attachment.posted.to_string());
                row.push(attachment.trapped.to_string());
                table.add_row(row);
            }
        }
    }

    for column in 2..columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }

    let problems: String = snapshot
        .nodes
        .iter()
        .flat_map(NodeSnapshot::report_problems)
        .map(|line| format!("\n{line}"))
        .collect();

    format!(
        "{} ({}), up {:.1} s, {} of {} nodes awake, longest turn {}\n{table}{problems}",
        snapshot.machine,
        snapshot.event_loop,
        snapshot.uptime_ms as f64 / 1e3,
        snapshot.awake,
        snapshot.nodes.len(),
        snapshot.longest_turn
    )
}

fn packets(node: &NodeSnapshot) -> u64 {
    [SENT, RECEIVED].iter().filter_map(|counters| node.sum_if_any(counters)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        Snapshot {
            machine: "m".into(),
            uptime_ms: 1500,
            event_loop: "epoll".into(),
            awake: 0,
            longest_turn: LongestTurn { us: 2500, attachment: Some("io0.core0".into()), pid: 7 },
            nodes: vec![NodeSnapshot {
                name: "io0".into(),
                role: "io".into(),
                rank: 0,
                panic: None,
                companions: Vec::new(),
                counters: vec![
                    ("vc0_sent".into(), 2),
                    ("vc1_sent".into(), 3),
                    ("vc1_sent_twice".into(), 100),
                ],
                attachments: vec![AttachmentSnapshot {
                    name: "core0".into(),
                    pid: Some(7),
                    ..Default::default()
                }],
            }],
        }
    }

    #[test]
    fn counters_of_all_channels_are_summed_and_others_left_out() {
        assert_eq!(snapshot().nodes[0].counter("sent"), 5);
    }

    #[test]
    fn device_and_companion_that_failed_are_named_below_the_table() {
        let mut snapshot = snapshot();
        snapshot.nodes[0].panic = Some("panicked in dma_done: no such list".into());
        snapshot.nodes[0].companions = vec!["sums (epoch 2) hung".into()];

        let text = render(&snapshot, None, false);

        let lines: Vec<_> = text.lines().rev().take(2).collect();
        let expected =
            ["device io0: companion sums (epoch 2) hung", "device io0 panicked in dma_done: no such list"];
        assert_eq!(lines, expected);
    }

    #[test]
    fn first_line_names_the_client_of_the_longest_turn() {
        let text = render(&snapshot(), None, false);
        assert!(text.lines().next().unwrap().ends_with("longest turn 2.5 ms for io0.core0, pid 7"), "{text}");
    }

    #[test]
    fn table_shows_clients_and_rates() {
        let mut old = snapshot();
        old.nodes[0].counters[0].1 = 1;
        let text = render(&snapshot(), Some((Duration::from_millis(500), &old)), true);

        assert!(text.contains("io0") && text.contains("1/1") && text.contains("pid 7"), "{text}");
        assert!(
            text.lines().any(|line| line.contains("io0") && line.trim_end_matches(['│', ' ']).ends_with('2')),
            "{text}"
        );
    }
}
