//! The children's messages to the parent, one JSON object in each line, and the parent's final
//! output.

use std::{collections::BTreeMap, io::Write};

use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use super::{CORES_PER_NODE, Options, Plan};
use crate::{
    failure::{EXIT_RESULT, Failure, print_line, program},
    stat::MachineSnapshot,
};

/// Marks a child's line as a message to the parent.
const MARK: &str = "@nicforge-demo ";
/// Number of views of a core's data.
const VIEWS: usize = 3;
/// Packets in each FIFO of the real machine.
const REAL_FIFO_DEPTH: u32 = 8;
/// Rate of FCNP with large messages on the real machine in Gb/s, in either direction: J. W. Romein,
/// *FCNP: Fast I/O on the Blue Gene/P*, PDPTA 2009.
const REAL_GBIT_S: f64 = 6.54;

/// A message from a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub(super) enum Message {
    /// The number of bytes that have returned.
    Progress {
        /// Bytes so far.
        bytes: u64,
    },
    /// Half the median round trip of a small message with a node's first core, in nanoseconds.
    Latency {
        /// The core's rank in the pset.
        rank: u32,
        /// Half a round trip in nanoseconds.
        half_round_trip_ns: u64,
    },
    /// A digest of all data that was sent to a core, received by it, or returned from it.
    Digest {
        /// The core's rank in the pset.
        rank: u32,
        /// The node whose view of the data was digested.
        view: View,
        /// Number of digested bytes.
        bytes: u64,
        /// SHA-256, in hexadecimal.
        digest: String,
    },
    /// The streaming is over.
    Streamed {
        /// Number of bytes in each direction.
        bytes: u64,
        /// Time from the first sent byte to the last returned byte.
        nanoseconds: u64,
    },
}

/// A view of the data for a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum View {
    /// The I/O node's view of the sent data.
    Sent,
    /// The core's view of the received data.
    Received,
    /// The I/O node's view of the returned data, with the change undone.
    Returned,
}

impl Message {
    /// Prints the message as a line for the parent.
    pub(super) fn print(&self) {
        if let Ok(json) = serde_json::to_string(self) {
            // A parent that has ended also ends this process soon.
            let _ = writeln!(std::io::stdout(), "{MARK}{json}");
        }
    }

    /// Parses a line. Returns `None` if it is no message.
    pub(super) fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line.strip_prefix(MARK)?).ok()
    }
}

/// The end of the streaming: bytes in each direction, and the time that they took.
#[derive(Clone, Copy, Debug)]
struct Streamed {
    bytes: u64,
    nanoseconds: u64,
}

/// All collected messages.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// For each core and view, the number of bytes and their digest.
    digests: BTreeMap<u32, BTreeMap<View, (u64, String)>>,
    /// For each core, half of its round trip in nanoseconds.
    latencies: BTreeMap<u32, u64>,
    streamed: Option<Streamed>,
}

impl Collected {
    /// Collects a message of a node's process.
    pub(super) fn add(&mut self, message: Message) {
        match message {
            Message::Progress { .. } => {}
            Message::Latency { rank, half_round_trip_ns } => {
                self.latencies.insert(rank, half_round_trip_ns);
            }
            Message::Digest { rank, view, bytes, digest } => {
                self.digests.entry(rank).or_default().insert(view, (bytes, digest));
            }
            Message::Streamed { bytes, nanoseconds } => {
                self.streamed = Some(Streamed { bytes, nanoseconds });
            }
        }
    }

    /// Returns the ranks whose three digests do not agree.
    fn ranks_with_wrong_digests(&self, plan: &Plan) -> Vec<u32> {
        let agree = |rank: &u32| {
            self.digests.get(rank).is_some_and(|views| {
                views.len() == VIEWS && views.values().all(|view| Some(view) == views.values().next())
            })
        };
        plan.ranks().into_iter().filter(|rank| !agree(rank)).collect()
    }
}

/// The row of one node.
#[derive(Debug, Serialize)]
struct Row {
    node: String,
    /// Bytes that the node's cores have received.
    bytes: u64,
    gbit_s: f64,
    /// Half a round trip with the node's first core, in microseconds.
    half_round_trip_us: Option<f64>,
    packets_sent: u64,
    packets_received: u64,
    stalls: u64,
    interrupts: u64,
}

/// Prints the result. Returns the exit code, which tells whether all digests agree.
pub(super) fn print(
    collected: &Collected,
    snapshot: &MachineSnapshot,
    plan: &Plan,
    options: &Options,
) -> Result<u8, Failure> {
    let Some(Streamed { bytes, nanoseconds }) = collected.streamed else {
        return Err(Failure::result("the I/O node did not say how long the streaming took"));
    };

    // The lower bound avoids a division by 0.
    let seconds = (nanoseconds as f64 / 1e9).max(1e-9);
    let ranks_with_wrong_digests = collected.ranks_with_wrong_digests(plan);
    let rows: Vec<Row> = snapshot.nodes.iter().map(|node| node_row(collected, node, seconds)).collect();
    let gbit_s = bytes as f64 * 8.0 / seconds / 1e9;

    if options.json {
        let report = serde_json::json!({
            "demo": { "bytes": bytes, "seconds": seconds, "gbit_s_each_way": gbit_s, "message": plan.message,
                "fifo_depth": options.fifo_depth, "digests_agree": ranks_with_wrong_digests.is_empty() },
            "nodes": rows,
        });
        print_line(report)?;
    } else {
        print_line(table(&rows))?;
        print_line(format_args!(
            "{:.1} MB out and back in {seconds:.2} s: {gbit_s:.2} Gb/s in each direction at once, {}-byte messages",
            bytes as f64 / 1e6,
            plan.message
        ))?;
        match ranks_with_wrong_digests.as_slice() {
            [] => print_line("every digest agrees: what was sent, what each core received, what came back")?,
            ranks => print_line(format_args!("DIGESTS DIFFER for the cores of rank {ranks:?}"))?,
        }
        print_line(explanation(options.fifo_depth, gbit_s))?;
    }

    Ok(if ranks_with_wrong_digests.is_empty() { 0 } else { EXIT_RESULT })
}

/// Returns what the result means, beside the real machine's, and commands for the next look.
fn explanation(fifo_depth: u32, gbit_s: f64) -> String {
    let nicforge = program();
    let (other_depth, why) = if fifo_depth == REAL_FIFO_DEPTH {
        (64, "deeper FIFOs, for fewer stalls")
    } else {
        (REAL_FIFO_DEPTH, "the real machine's FIFOs")
    };
    let depth_of_real = match fifo_depth {
        REAL_FIFO_DEPTH => "as in a Blue Gene/P".to_owned(),
        _ => format!("{REAL_FIFO_DEPTH} in a Blue Gene/P"),
    };

    let next = [
        (format!("demo --fifo-depth {other_depth}"), why),
        ("serve machines/pset.toml --dir /tmp/pset".to_owned(), "this machine, for programs of your own"),
        ("boot machines/ethernet.toml --node en0 --shell".to_owned(), "Linux with a NIC of today"),
    ];
    let width = next.iter().map(|(command, _)| command.len()).max().unwrap_or_default();
    let next = next.map(|(command, why)| format!("\n  {nicforge} {command:width$}  {why}")).concat();

    format!(
        "
- FIFOs hold {fifo_depth} packets of 256 bytes ({depth_of_real}). A stall is a packet that waited for room.
- FCNP moved {REAL_GBIT_S} Gb/s in each direction on a Blue Gene/P (Romein, PDPTA 2009). Here it moved {gbit_s:.2},
  with all nodes, the network and the digests on this host's processors.

next:{next}"
    )
}

/// Returns the row of a node. Its bytes are those that its cores have received. For the I/O node,
/// they are those of all compute cores.
fn node_row(collected: &Collected, node: &crate::stat::NodeSnapshot, seconds: f64) -> Row {
    let is_io = node.role == "io";
    let first_rank = node.rank * CORES_PER_NODE;
    let ranks = if is_io { 0..0 } else { first_rank..first_rank + CORES_PER_NODE };
    let bytes: u64 = collected
        .digests
        .iter()
        .filter(|(rank, _)| is_io || ranks.contains(*rank))
        .filter_map(|(_, views)| views.get(&View::Received).map(|(bytes, _)| bytes))
        .sum();

    Row {
        node: node.name.clone(),
        bytes,
        gbit_s: bytes as f64 * 8.0 / seconds / 1e9,
        half_round_trip_us: collected
            .latencies
            .get(&first_rank)
            .filter(|_| !is_io)
            .map(|&nanoseconds| nanoseconds as f64 / 1e3),
        packets_sent: node.counter("sent"),
        packets_received: node.counter("received"),
        stalls: node.counter("stalls"),
        interrupts: node.attachments.iter().map(|attachment| attachment.interrupts).sum(),
    }
}

/// Returns the table of the results.
fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    let titles = [
        "node",
        "MB each way",
        "Gb/s each way",
        "latency us",
        "sent packets",
        "received packets",
        "stalls",
        "interrupts",
    ];
    table.set_header(titles);

    for row in rows {
        table.add_row(vec![
            row.node.clone(),
            format!("{:.1}", row.bytes as f64 / 1e6),
            format!("{:.2}", row.gbit_s),
            row.half_round_trip_us.map_or_else(|| "-".into(), |latency| format!("{latency:.1}")),
            row.packets_sent.to_string(),
            row.packets_received.to_string(),
            row.stalls.to_string(),
            row.interrupts.to_string(),
        ]);
    }

    // The first column has names. All others have numbers.
    for column in 1..titles.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }

    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan { cores: 1, message: 1, interrupts: false };

    fn digest(rank: u32, view: View, digest: &str) -> Message {
        Message::Digest { rank, view, bytes: 1, digest: digest.into() }
    }

    /// Returns the three digests of a core, of which the last one may differ.
    fn messages_of(rank: u32, returned: &str) -> [Message; 3] {
        [
            digest(rank, View::Sent, "a"),
            digest(rank, View::Received, "a"),
            digest(rank, View::Returned, returned),
        ]
    }

    #[test]
    fn digests_that_agree_for_all_ranks_are_right() {
        let mut collected = Collected::default();
        for rank in PLAN.ranks() {
            messages_of(rank, "a").into_iter().for_each(|message| collected.add(message));
        }
        assert!(collected.ranks_with_wrong_digests(&PLAN).is_empty());
    }

    #[test]
    fn a_digest_that_differs_or_is_missing_is_wrong() {
        let mut collected = Collected::default();
        messages_of(0, "b").into_iter().for_each(|message| collected.add(message));
        messages_of(4, "a").into_iter().take(2).for_each(|message| collected.add(message));
        assert_eq!(collected.ranks_with_wrong_digests(&PLAN), PLAN.ranks());
    }

    #[test]
    fn result_is_explained_beside_the_real_machines() {
        let text = explanation(64, 2.345);
        assert!(text.contains("64 packets of 256 bytes (8 in a Blue Gene/P)"), "{text}");
        assert!(text.contains("6.54 Gb/s in each direction") && text.contains("moved 2.35,"), "{text}");
        assert!(text.contains("demo --fifo-depth 8 ") && text.contains("serve machines/pset.toml"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 110), "{text}");

        let real = explanation(8, 1.0);
        assert!(real.contains("(as in a Blue Gene/P)") && real.contains("demo --fifo-depth 64 "), "{real}");
    }

    #[test]
    fn a_message_is_parsed_as_it_is_printed() {
        let line = format!("{MARK}{}", serde_json::to_string(&Message::Progress { bytes: 7 }).unwrap());
        assert!(matches!(Message::parse(&line), Some(Message::Progress { bytes: 7 })));
        assert!(Message::parse("something else").is_none());
    }
}
