//! Records by name, as people and other programs read them.

use std::fmt::Write;

use nicforge_core::{
    dma::WordUpdate,
    ids::{Address, FunctionId},
    interrupt::Raised,
};
use serde::{Deserialize, Serialize};

use crate::{
    names::Names,
    record::{Bytes, Kind, Record, What},
};

/// An event with the names of its machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Number of the event among those that the filter has let pass.
    pub sequence: u64,
    /// Time of the event in nanoseconds: since the server has started, or in virtual time.
    pub time_ns: u64,
    /// The function.
    pub node: String,
    /// The attachment, unless the event concerns the whole function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<String>,
    /// Kind of the event.
    pub kind: Kind,
    /// The event in words, without the names of node, attachment and kind.
    pub text: String,
    /// Whether the event is one that a driver should not cause: a failed DMA, a lost interrupt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
    /// Of a packet, where it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crossed: Option<Crossed>,
}

/// A packet's way over one link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crossed {
    /// The ends of the link, the sender first: `cn0:1 > io0:0`.
    pub link: String,
    /// Number of the packet, the same on all links that it crosses.
    pub packet: u64,
    /// Time at which its last byte arrives, in nanoseconds.
    pub arrives_ns: u64,
}

impl Entry {
    /// Returns all texts, which come from the machine and its devices.
    pub fn texts_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let Self { node, attachment, text, crossed, sequence: _, time_ns: _, kind: _, is_error: _ } = self;
        let of_packet = crossed.iter_mut().map(|crossed| &mut crossed.link);
        [node, text].into_iter().chain(attachment).chain(of_packet)
    }

    /// Returns the source of the event: `cn0.core1`, or `cn0`.
    pub fn source(&self) -> String {
        match &self.attachment {
            Some(attachment) => format!("{}.{attachment}", self.node),
            None => self.node.clone(),
        }
    }
}

/// Returns the length of data and its start in hexadecimal digits.
fn data_text(bytes: &Bytes) -> String {
    let (kept, length) = (bytes.start(), bytes.length());
    let mut text = format!("{length} bytes");
    for (number, byte) in kept.iter().enumerate() {
        let separator = match number {
            0 => ": ",
            _ if number.is_multiple_of(4) => " ",
            _ => "",
        };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}{byte:02x}");
    }
    if !kept.is_empty() && length as usize > kept.len() {
        text.push_str(" ...");
    }
    text
}

/// Returns a change of a word.
fn update_text(update: WordUpdate) -> String {
    match update {
        WordUpdate::Swap(value) => format!("= {value:#x}"),
        WordUpdate::Add(value) => format!("+= {value:#x}"),
        WordUpdate::SetBits(bits) => format!("|= {bits:#x}"),
        WordUpdate::ClearBits(bits) => format!("&= !{bits:#x}"),
        WordUpdate::CompareSwap { expected, new } => format!("= {new:#x} if {expected:#x}"),
    }
}

impl Names {
    /// Returns a record with the names of its machine.
    pub fn entry(&self, record: &Record) -> Entry {
        let Record { sequence, time, function, attachment, what } = *record;
        let mut is_error = false;
        let mut crossed = None;

        let (kind, text) = match what {
            What::Attached => (Kind::Client, "attached".to_owned()),
            What::Detached => (Kind::Client, "detached".to_owned()),
            What::Reset => (Kind::Reset, "reset".to_owned()),
            What::Read { at, data } => (Kind::Read, self.access_text(function, at, &data)),
            What::Write { at, data } => (Kind::Write, self.access_text(function, at, &data)),
            What::Posted { at, data } => (Kind::Posted, self.access_text(function, at, &data)),
            What::Stalled { at } => (Kind::Stall, format!("{} waits", self.place(function, at))),
            What::Resumed { at } => (Kind::Stall, format!("{} was carried out", self.place(function, at))),
            What::Interrupt { vector, raised } => {
                is_error = raised == Raised::Spurious;
                let outcome = match raised {
                    Raised::Delivered => "delivered",
                    Raised::Held => "waits for DMA writes",
                    Raised::Pending => "pending: masked, or no client listens",
                    Raised::Spurious => "lost: there is no such vector",
                };
                (Kind::Interrupt, format!("vector {vector} {outcome}"))
            }
            What::Intx { asserted } => {
                (Kind::Interrupt, format!("INTx {}", if asserted { "asserted" } else { "deasserted" }))
            }
            What::DmaRead { iova, length, outcome } => {
                is_error = outcome.is_err();
                let result = match outcome {
                    Ok(data) if data.start().is_empty() => format!("{length} bytes by message"),
                    Ok(data) => data_text(&data),
                    Err(error) => format!("{length} bytes failed: {error}"),
                };
                (Kind::Dma, format!("read {iova:#x} {result}"))
            }
            What::DmaWrite { iova, data, outcome } => {
                is_error = outcome.is_err();
                let failure = outcome.err().map_or_else(String::new, |error| format!(" failed: {error}"));
                (Kind::Dma, format!("write {iova:#x} {}{failure}", data_text(&data)))
            }
            What::DmaUpdate { iova, update, outcome } => {
                is_error = outcome.is_err();
                let result = match outcome {
                    Ok(before) => format!("was {before:#x}"),
                    Err(error) => error.to_string(),
                };
                (Kind::Dma, format!("update {iova:#x} {}: {result}", update_text(update)))
            }
            What::Packet { link, direction, channel, packet, header, arrives, repeats, data } => {
                let link = self.link(link, direction);
                let mut text = format!(
                    "{link} channel {channel} packet {packet} header {header:#x} {}",
                    data_text(&data)
                );
                if repeats > 0 {
                    let _ = write!(text, " (sent {} times)", repeats + 1);
                }
                crossed = Some(Crossed { link, packet, arrives_ns: arrives.0 });
                (Kind::Packet, text)
            }
            What::Warning { effect, rule, register, value } => {
                is_error = true;
                let mut text = effect.to_owned();
                if let Some(at) = register {
                    let _ = write!(text, " {}", self.place(function, at));
                }
                if let Some(value) = value {
                    let _ = write!(text, " value {value:#x}");
                }
                let _ = write!(text, ": {}", rule.as_str());
                (Kind::Warning, text)
            }
            What::Device { name, values, count } => {
                let mut text = name.to_owned();
                for (name, value) in &values[..usize::from(count)] {
                    let _ = write!(text, " {name}={value:#x}");
                }
                (Kind::Device, text)
            }
        };

        Entry {
            sequence,
            time_ns: time.0,
            node: self.function(function),
            attachment: attachment.map(|attachment| self.attachment(function, attachment)),
            kind,
            text,
            is_error,
            crossed,
        }
    }

    /// Returns an access to a BAR by names, with a note of the bytes that were not kept.
    fn access_text(&self, function: FunctionId, Address { bar, offset }: Address, data: &Bytes) -> String {
        let mut text = self.access(function, bar, offset, data.start());
        if data.length() as usize > data.start().len() {
            let _ = write!(text, " ... ({} bytes)", data.length());
        }
        text
    }
}
