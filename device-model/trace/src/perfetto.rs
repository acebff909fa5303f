//! The JSON trace format that Perfetto's UI opens: a process for each node with a thread for each
//! attachment, and one process whose threads are the links. A packet is a slice on its link, and a
//! flow connects its slices.
//!
//! Source: "Trace Event Format", and Perfetto's documentation of the formats that it imports.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use serde_json::{Value, json};

use crate::{
    entry::{Crossed, Entry},
    record::Kind,
};

/// The process of the links.
const LINKS: u32 = 1;
/// The thread of a node's events that concern no attachment.
const NODE_THREAD: &str = "node";

/// The state of a document.
#[derive(Debug, Default)]
pub(crate) struct Perfetto {
    /// Numbers of the processes of the nodes.
    nodes: HashMap<String, u32>,
    /// The process of the links has its name.
    has_links: bool,
    /// Numbers of the threads, by process and name.
    threads: HashMap<(u32, String), u32>,
    /// Largest number of a packet so far. Numbers are given in the order of first crossings.
    last_packet: u64,
    /// Time of the last event, in nanoseconds.
    last_ns: u64,
    has_begun: bool,
}

impl Perfetto {
    /// Writes an entry.
    pub(crate) fn write(&mut self, out: &mut impl Write, entry: &Entry) -> io::Result<()> {
        self.last_ns = entry.time_ns;
        if let Some(crossed) = &entry.crossed {
            return self.write_packet(out, entry, crossed);
        }

        let process = self.process(out, &entry.node)?;
        let thread = self.thread(out, process, entry.attachment.as_deref().unwrap_or(NODE_THREAD))?;
        self.event(
            out,
            &json!({
                "ph": "i", "s": "t", "pid": process, "tid": thread, "ts": microseconds(entry.time_ns),
                "cat": entry.kind.name(), "name": title(entry),
                "args": { "text": entry.text, "sequence": entry.sequence, "error": entry.is_error },
            }),
        )
    }

    /// Writes a packet as a slice of its link, and its flow from the link before.
    fn write_packet(&mut self, out: &mut impl Write, entry: &Entry, crossed: &Crossed) -> io::Result<()> {
        if !std::mem::replace(&mut self.has_links, true) {
            self.name_process(out, LINKS, "links")?;
        }
        let process = LINKS;
        let thread = self.thread(out, process, &crossed.link)?;
        // A slice needs a length to be seen, and to be an end of a flow.
        let length = crossed.arrives_ns.saturating_sub(entry.time_ns).max(1);
        let ts = microseconds(entry.time_ns);
        self.event(
            out,
            &json!({
                "ph": "X", "pid": process, "tid": thread, "ts": ts, "dur": microseconds(length),
                "cat": Kind::Packet.name(), "name": format!("packet {}", crossed.packet),
                "args": { "text": entry.text, "sequence": entry.sequence },
            }),
        )?;

        let is_first = crossed.packet > self.last_packet;
        self.last_packet = self.last_packet.max(crossed.packet);
        self.event(
            out,
            &json!({
                "ph": if is_first { "s" } else { "t" }, "pid": process, "tid": thread, "ts": ts,
                "cat": "flow", "name": "packet", "id": crossed.packet,
            }),
        )
    }

    /// Notes that events were lost.
    pub(crate) fn note_lost(&mut self, out: &mut impl Write, count: u64) -> io::Result<()> {
        let ts = microseconds(self.last_ns);
        let name = format!("{count} events were lost");
        self.event(out, &json!({ "ph": "i", "s": "g", "pid": LINKS, "tid": 0, "ts": ts, "name": name }))
    }

    /// Completes the document.
    pub(crate) fn finish(&mut self, out: &mut impl Write) -> io::Result<()> {
        let end = if self.has_begun { "\n]}\n" } else { "{\"traceEvents\":[]}\n" };
        out.write_all(end.as_bytes())
    }

    /// Returns the process of a node.
    fn process(&mut self, out: &mut impl Write, node: &str) -> io::Result<u32> {
        if let Some(&process) = self.nodes.get(node) {
            return Ok(process);
        }
        let number = LINKS + 1 + self.nodes.len() as u32;
        self.nodes.insert(node.to_owned(), number);
        self.name_process(out, number, node)?;
        Ok(number)
    }

    /// Gives a process its name.
    fn name_process(&mut self, out: &mut impl Write, number: u32, name: &str) -> io::Result<()> {
        self.event(
            out,
            &json!({ "ph": "M", "pid": number, "name": "process_name", "args": { "name": name } }),
        )
    }

    /// Returns the thread of this name in a process.
    fn thread(&mut self, out: &mut impl Write, process: u32, name: &str) -> io::Result<u32> {
        let key = (process, name.to_owned());
        if let Some(&thread) = self.threads.get(&key) {
            return Ok(thread);
        }
        let number = self.threads.len() as u32 + 1;
        self.threads.insert(key, number);
        self.event(
            out,
            &json!({
                "ph": "M", "pid": process, "tid": number, "name": "thread_name", "args": { "name": name },
            }),
        )?;
        Ok(number)
    }

    /// Writes one event of the document.
    fn event(&mut self, out: &mut impl Write, event: &Value) -> io::Result<()> {
        let separator =
            if self.has_begun { ",\n" } else { "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n" };
        self.has_begun = true;
        out.write_all(separator.as_bytes())?;
        serde_json::to_writer(out, event)?;
        Ok(())
    }
}

/// Returns what an event is called: its kind and the first word of its text, or the words of a
/// device's own event.
fn title(entry: &Entry) -> String {
    let words = entry.text.split(' ');
    match entry.kind {
        Kind::Device => words.take_while(|word| !word.contains('=')).collect::<Vec<_>>().join(" "),
        kind => format!("{} {}", kind.name(), words.take(1).collect::<String>()),
    }
}

/// Returns a time in microseconds, the unit of the format.
fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}
