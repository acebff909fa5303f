//! `nicforge stat` and `nicforge reset`: send requests to a served machine over its control socket.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use comfy_table::{CellAlignment, Table, presets};
use nicforge_family::CounterColumn;
use serde::{Deserialize, Serialize};

use crate::{
    control::{Request, Response, ask},
    directory::Directory,
    escape,
    failure::{ErrorContext, Failure, counted},
    samples,
};

/// The state of a machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MachineSnapshot {
    /// The machine's name.
    pub machine: String,
    /// Milliseconds since the start of the machine.
    pub uptime_ms: u64,
    /// The engine's event loop: `io_uring` or `epoll`.
    pub event_loop: String,
    /// Number of functions that are awake: the engine polls their memory in each turn.
    pub awake: usize,
    /// The longest time that the engine was busy with one turn, by the wall clock.
    #[serde(default)]
    pub longest_turn: LongestTurn,
    /// What the engine's thread has done.
    #[serde(default)]
    pub engine: EngineActivity,
    /// Its nodes.
    pub nodes: Vec<NodeSnapshot>,
    /// The columns of its devices. They are left out of the printed JSON.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<ColumnSnapshot>,
}

/// A column of the node table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnSnapshot {
    /// Its title.
    pub title: String,
    /// The names of the devices' counters for it.
    pub counters: Vec<String>,
    /// Whether the counters count packets.
    pub packets: bool,
}

impl From<&CounterColumn> for ColumnSnapshot {
    fn from(column: &CounterColumn) -> Self {
        Self {
            title: column.title.to_owned(),
            counters: column.counters.iter().map(|&counter| counter.to_owned()).collect(),
            packets: column.packets,
        }
    }
}

/// How the engine's thread has passed its time so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EngineActivity {
    /// Turns, each with a step of the machine.
    pub turns: u64,
    /// Turns in which the machine found work.
    pub worked: u64,
    /// Turns after which the engine yielded its processor.
    pub yields: u64,
    /// Yields after which the processor came back late, because other programs had it.
    pub late_yields: u64,
    /// Sleeps.
    pub sleeps: u64,
    /// Wake-ups of clients that waited for their device.
    pub client_wakes: u64,
    /// Share of the host's processors that other programs take, in per cent, where these delay the
    /// machine.
    pub others_percent: Option<u64>,
}

impl std::fmt::Display for EngineActivity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { turns, worked, yields, late_yields, sleeps, client_wakes, others_percent } = self;
        write!(
            f,
            "engine: {turns} turns, {worked} with work; {yields} yields, {late_yields} late; {sleeps} sleeps; \
             {client_wakes} wakes of clients"
        )?;
        match others_percent {
            Some(share) => write!(f, "\nthe host's other work takes {share} % of the processors"),
            None => Ok(()),
        }
    }
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

impl MachineSnapshot {
    /// Puts each text in one line without control characters. The texts are those of whoever
    /// answered at the control socket.
    pub(crate) fn escape_texts(&mut self) {
        let Self { machine, uptime_ms: _, event_loop, awake: _, longest_turn, nodes, columns, engine: _ } =
            self;
        let of_nodes = nodes.iter_mut().flat_map(NodeSnapshot::texts_mut);
        let of_columns = columns.iter_mut().flat_map(|column| {
            let ColumnSnapshot { title, counters, packets: _ } = column;
            std::iter::once(title).chain(counters)
        });

        let own = [machine, event_loop].into_iter().chain(&mut longest_turn.attachment);
        own.chain(of_nodes).chain(of_columns).for_each(escape::put_in_one_line);
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
    /// The functions that have a name of their own in the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<String>,
    /// The devices that panicked, each in a sentence: `device NAME panicked in METHOD: MESSAGE`.
    #[serde(default)]
    pub panics: Vec<String>,
    /// The companions of devices that are halted or have abandoned threads, each in a sentence.
    #[serde(default)]
    pub companions: Vec<String>,
    /// The devices' counters, in the devices' order. The name of a counter begins with that of its
    /// function and a dot, if the function has a name of its own.
    pub counters: Vec<(String, u64)>,
    /// Its attachments. Their names begin in the same way.
    pub attachments: Vec<AttachmentSnapshot>,
}

impl NodeSnapshot {
    /// Returns all texts of the node.
    fn texts_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let Self { name, role, rank: _, functions, panics, companions, counters, attachments } = self;
        let of_counters = counters.iter_mut().map(|(name, _)| name);
        let of_attachments = attachments.iter_mut().map(|attachment| &mut attachment.name);
        let own = [name, role].into_iter().chain(functions).chain(panics).chain(companions);
        own.chain(of_counters).chain(of_attachments)
    }

    /// Returns the sum of the counters called `name`, over all functions of the node and all their
    /// virtual channels (`vc0_name`, `vc1_name`, ...). Returns `None` when there is none.
    pub fn counter_if_any(&self, name: &str) -> Option<u64> {
        let matches = |counter: &str| {
            // The part before a dot is the function's name.
            let counter = counter.rsplit_once('.').map_or(counter, |(_, own)| own);
            match counter.strip_prefix("vc").and_then(|rest| rest.split_once('_')) {
                Some((_, rest)) => rest == name,
                None => counter == name,
            }
        };
        let mut found = self.counters.iter().filter(|(counter, _)| matches(counter)).map(|(_, value)| *value);
        found.next().map(|first| found.fold(first, u64::wrapping_add))
    }

    /// Returns the sum of several counters. Returns `None` when the node has none of them.
    pub fn sum_if_any<N: AsRef<str>>(&self, names: &[N]) -> Option<u64> {
        names.iter().filter_map(|name| self.counter_if_any(name.as_ref())).reduce(u64::wrapping_add)
    }

    /// Returns the part of the node that is one of its functions.
    fn function_part(&self, function: &str) -> Self {
        let is_own = |name: &str| name.split_once('.').is_some_and(|(first, _)| first == function);
        Self {
            name: format!("  {function}"),
            role: self.role.clone(),
            rank: self.rank,
            functions: Vec::new(),
            panics: Vec::new(),
            companions: Vec::new(),
            counters: self.counters.iter().filter(|(name, _)| is_own(name)).cloned().collect(),
            attachments: self.attachments.iter().filter(|one| is_own(&one.name)).cloned().collect(),
        }
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

/// Runs `nicforge stat`: once, or `every` so often until a signal comes. With `json` it prints one
/// object for each sample, and with `attachments` the table has a row for each attachment.
pub fn main(directory: &Path, every: Option<Duration>, json: bool, attachments: bool) -> Result<u8, Failure> {
    let directory = find_directory(directory)?;
    let mut last: Option<(Instant, MachineSnapshot)> = None;

    samples::print(every, !json, || {
        let mut snapshot = ask_for_snapshot(&directory)?;
        let now = Instant::now();
        let text = if json {
            snapshot.columns.clear();
            serde_json::to_string(&snapshot).context(|| "the answer".into())?
        } else {
            let since = last.as_ref().map(|(time, old)| (now.duration_since(*time), old));
            render(&snapshot, since, attachments)
        };

        last = Some((now, snapshot));
        Ok(text)
    })
}

/// Returns the state of a served machine.
pub(crate) fn ask_for_snapshot(directory: &Directory) -> Result<MachineSnapshot, Failure> {
    match ask(directory, &Request::Stat)? {
        Response::Stat(snapshot) => Ok(snapshot),
        other => Err(unexpected_answer(&other)),
    }
}

/// Runs `nicforge reset`.
pub fn reset(directory: &Path, node: &str) -> Result<u8, Failure> {
    match ask(&find_directory(directory)?, &Request::Reset { node: node.to_owned() })? {
        Response::Done => Ok(0),
        other => Err(unexpected_answer(&other)),
    }
}

/// Returns a machine's directory, from its path or from the machine's name.
pub(crate) fn find_directory(target: &Path) -> Result<Directory, Failure> {
    match target.to_str() {
        // A folder of that name may belong to something else, so it must contain a served machine.
        Some(name) if !name.contains('/') && !Directory::is_served(target) => {
            Directory::open(&Directory::default_for(name))
        }
        _ => Directory::open(target),
    }
}

/// Returns the failure for an answer that does not fit the request, or refuses it.
pub(crate) fn unexpected_answer(response: &Response) -> Failure {
    match response {
        Response::Refused { message, is_usage_error: true } => Failure::usage(message.clone()),
        Response::Refused { message, .. } => Failure::environment(message.clone()),
        _ => Failure::environment("the server gave an answer that does not fit; is it another version?"),
    }
}

/// Columns of every machine. The columns of its devices stand before them, or add counters to them.
const COLUMNS: [CounterColumn; 4] = [
    CounterColumn::packets("sent", &["sent"]),
    CounterColumn::packets("received", &["received"]),
    CounterColumn::new(STALLS, &["stalls"]),
    CounterColumn::new(ERRORS, &["errors"]),
];

/// Title of the column that also has the stalled writes of each attachment.
const STALLS: &str = "stalls";
/// Title of the column that also has the errors of each attachment.
const ERRORS: &str = "errors";

/// Returns the columns of a machine, each title once: those of its devices, then [`COLUMNS`].
pub(crate) fn columns(of_devices: &[ColumnSnapshot]) -> Vec<ColumnSnapshot> {
    // These two come last, also where a device adds counters to them.
    let is_last = |column: &ColumnSnapshot| [STALLS, ERRORS].contains(&column.title.as_str());
    let general: Vec<_> = COLUMNS.iter().map(ColumnSnapshot::from).collect();
    let all = of_devices.iter().chain(&general);
    let ordered = all.clone().filter(|column| !is_last(column)).chain(all.filter(|column| is_last(column)));

    let mut columns: Vec<ColumnSnapshot> = Vec::new();
    for column in ordered {
        match columns.iter_mut().find(|known| known.title == column.title) {
            Some(known) => {
                known.packets |= column.packets;
                let new = column.counters.iter().filter(|counter| !known.counters.contains(counter));
                let new: Vec<_> = new.cloned().collect();
                known.counters.extend(new);
            }
            None => columns.push(column.clone()),
        }
    }
    columns
}

/// Returns the table of a snapshot as text. `since` is the previous snapshot and the time since
/// then, for rates. With `attachments`, each attachment has a row.
fn render(
    snapshot: &MachineSnapshot,
    since: Option<(Duration, &MachineSnapshot)>,
    attachments: bool,
) -> String {
    let columns = columns(&snapshot.columns);
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);

    let mut header = vec!["node".to_owned(), "clients".to_owned()];
    header.extend(columns.iter().map(|column| column.title.clone()));
    header.extend(["interrupts".to_owned(), "posted".to_owned(), "trapped".to_owned()]);
    if since.is_some() {
        header.push("packets/s".to_owned());
    }

    let width = header.len();
    table.set_header(header);

    for (index, node) in snapshot.nodes.iter().enumerate() {
        let mut row = node_row(node, &columns);
        if let Some((elapsed, old)) = since {
            let before = old.nodes.get(index).map_or(0, |node| count_packets(node, &columns));
            let packets = count_packets(node, &columns).saturating_sub(before);
            // The lower bound avoids a division by 0.
            let rate = packets as f64 / elapsed.as_secs_f64().max(1e-9);
            row.push(format!("{rate:.0}"));
        }
        table.add_row(row);

        for function in &node.functions {
            table.add_row(node_row(&node.function_part(function), &columns));
        }
        if attachments {
            for attachment in &node.attachments {
                table.add_row(attachment_row(attachment, &columns));
            }
        }
    }

    // The first two columns have names and clients. All others have numbers.
    for column in 2..width {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }

    let problems: String = snapshot
        .nodes
        .iter()
        .flat_map(|node| node.panics.iter().chain(&node.companions))
        .map(|line| format!("\n{line}"))
        .collect();

    format!(
        "{} ({}), up {:.1} s, {}, longest turn {}\n{}\n{table}{problems}",
        snapshot.machine,
        snapshot.event_loop,
        snapshot.uptime_ms as f64 / 1e3,
        describe_activity(snapshot),
        snapshot.longest_turn,
        snapshot.engine
    )
}

/// Returns the number of functions that do not sleep, as text. A machine of nodes with one function
/// each counts nodes.
pub(crate) fn describe_activity(snapshot: &MachineSnapshot) -> String {
    let (awake, nodes) = (snapshot.awake, snapshot.nodes.len());
    if snapshot.nodes.iter().all(|node| node.functions.is_empty()) {
        format!("{awake} of {nodes} nodes awake")
    } else {
        format!("{}, {} awake", counted(nodes, "node"), counted(awake, "function"))
    }
}

/// Returns the row of a node, or of one of its functions.
fn node_row(node: &NodeSnapshot, columns: &[ColumnSnapshot]) -> Vec<String> {
    let clients = node.attachments.iter().filter(|attachment| attachment.pid.is_some()).count();
    let sum = |f: fn(&AttachmentSnapshot) -> u64| {
        node.attachments.iter().map(f).fold(0, u64::wrapping_add).to_string()
    };

    let mut row = vec![node.name.clone(), format!("{clients}/{}", node.attachments.len())];
    row.extend(columns.iter().map(|column| {
        node.sum_if_any(&column.counters).map_or_else(|| "-".into(), |value| value.to_string())
    }));
    row.push(sum(|attachment| attachment.interrupts));
    row.push(sum(|attachment| attachment.posted));
    row.push(sum(|attachment| attachment.trapped));
    row
}

/// Returns the row of an attachment. Only some columns have a value of an attachment's own.
fn attachment_row(attachment: &AttachmentSnapshot, columns: &[ColumnSnapshot]) -> Vec<String> {
    let client = attachment.pid.map_or_else(|| "-".into(), |pid| format!("pid {pid}"));

    let mut row = vec![format!("  {}", attachment.name), client];
    row.extend(columns.iter().map(|column| match column.title.as_str() {
        STALLS => attachment.stalls.to_string(),
        ERRORS => attachment.errors.to_string(),
        _ => String::new(),
    }));
    row.push(attachment.interrupts.to_string());
    row.push(attachment.posted.to_string());
    row.push(attachment.trapped.to_string());
    row
}

/// Returns the number of a node's stalls: what its devices count as such.
pub(crate) fn sum_of_stalls(node: &NodeSnapshot, columns: &[ColumnSnapshot]) -> u64 {
    sum_of_column(node, columns, STALLS)
}

/// Returns the number of a node's errors: what its devices count as such.
pub(crate) fn sum_of_errors(node: &NodeSnapshot, columns: &[ColumnSnapshot]) -> u64 {
    sum_of_column(node, columns, ERRORS)
}

/// Returns a node's value in the column of a title, 0 if it has none.
fn sum_of_column(node: &NodeSnapshot, columns: &[ColumnSnapshot], title: &str) -> u64 {
    let column = columns.iter().find(|column| column.title == title);
    column.and_then(|column| node.sum_if_any(&column.counters)).unwrap_or(0)
}

/// Returns the number of packets that a node has sent and received.
pub(crate) fn count_packets(node: &NodeSnapshot, columns: &[ColumnSnapshot]) -> u64 {
    columns
        .iter()
        .filter(|column| column.packets)
        .filter_map(|column| node.sum_if_any(&column.counters))
        .fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a machine of one node with a client.
    fn snapshot() -> MachineSnapshot {
        let counters = [("vc0_sent", 2), ("vc1_sent", 3), ("vc1_sent_twice", 100)];
        let client = AttachmentSnapshot { name: "core0".into(), pid: Some(7), ..Default::default() };

        let node = NodeSnapshot {
            name: "io0".into(),
            role: "io".into(),
            rank: 0,
            functions: Vec::new(),
            panics: Vec::new(),
            companions: Vec::new(),
            counters: counters.map(|(name, value)| (name.into(), value)).into(),
            attachments: vec![client],
        };

        MachineSnapshot {
            machine: "m".into(),
            uptime_ms: 1500,
            event_loop: "epoll".into(),
            awake: 0,
            longest_turn: LongestTurn { us: 2500, attachment: Some("io0.core0".into()), pid: 7 },
            engine: EngineActivity { turns: 9, others_percent: Some(83), ..EngineActivity::default() },
            nodes: vec![node],
            columns: Vec::new(),
        }
    }

    #[test]
    fn counters_of_all_channels_are_summed_and_others_left_out() {
        assert_eq!(snapshot().nodes[0].counter("sent"), 5);
    }

    #[test]
    fn device_and_companion_that_failed_are_named_below_the_table() {
        let mut snapshot = snapshot();
        snapshot.nodes[0].panics = vec!["device io0 panicked in dma_done: no such list".into()];
        snapshot.nodes[0].companions = vec!["device io0: companion sums (epoch 2) hung".into()];

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
    fn engine_and_the_load_of_the_host_have_lines_of_their_own() {
        let text = render(&snapshot(), None, false);
        let lines: Vec<_> = text.lines().skip(1).take(2).collect();
        assert!(lines[0].starts_with("engine: 9 turns, 0 with work; "), "{text}");
        assert_eq!(lines[1], "the host's other work takes 83 % of the processors");
    }

    #[test]
    fn table_shows_clients_and_rates() {
        let mut old = snapshot();
        old.nodes[0].counters[0].1 = 1;
        let text = render(&snapshot(), Some((Duration::from_millis(500), &old)), true);

        assert!(text.contains("io0") && text.contains("1/1") && text.contains("pid 7"), "{text}");
        // The last column is the rate: one packet more in half a second.
        assert!(
            text.lines().any(|line| line.contains("io0") && line.trim_end_matches(['│', ' ']).ends_with('2')),
            "{text}"
        );
    }

    #[test]
    fn columns_of_a_device_join_those_of_every_machine() {
        let own = [
            CounterColumn::new("fill", &["fill"]),
            CounterColumn::packets("sent", &["sent", "card_sent"]),
            CounterColumn::new("stalls", &["card_stalls"]),
        ];
        let columns = columns(&own.iter().map(ColumnSnapshot::from).collect::<Vec<_>>());

        let shown: Vec<_> = columns.iter().map(|column| column.title.as_str()).collect();
        assert_eq!(shown, ["fill", "sent", "received", "stalls", "errors"]);
        assert_eq!(columns[1].counters, ["sent", "card_sent"]);
        assert_eq!(columns[3].counters, ["card_stalls", "stalls"]);
    }

    #[test]
    fn functions_of_a_node_have_rows_of_their_own_below_their_sum() {
        let mut snapshot = snapshot();
        let node = &mut snapshot.nodes[0];
        node.functions = vec!["torus".into(), "tree".into()];
        node.counters = vec![("torus.vc0_sent".into(), 30), ("tree.sent".into(), 12)];
        node.attachments[0].name = "tree.core0".into();
        let text = render(&snapshot, None, false);

        let row = |start: &str| text.lines().find(|line| line.contains(start)).unwrap().to_owned();
        assert!(row(" io0 ").contains("42") && row(" io0 ").contains("1/1"), "{text}");
        assert!(row("  torus").contains("30") && row("  torus").contains("0/0"), "{text}");
        assert!(row("  tree").contains("12") && row("  tree").contains("1/1"), "{text}");
        assert!(text.starts_with("m (epoll), up 1.5 s, 1 node, 0 functions awake"), "{text}");
    }
}
