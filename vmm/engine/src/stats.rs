//! What an engine tells about itself and its machine.

use std::{path::PathBuf, time::Duration};

use nicforge_core::{
    attachment::AttachmentCounters,
    device::{AttachmentId, Counter, FunctionId},
};

/// What the engine counts for each socket, over all its clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Clients that were given the attachment.
    pub clients: u64,
    /// Connections that were refused because a client was there.
    pub refused: u64,
    /// Connections of other users, closed without a word.
    pub foreign: u64,
    /// Clients that ended by breaking the protocol, or in the middle of a message.
    pub broken: u64,
    /// Clients that the engine or the operator took the attachment from.
    pub evicted: u64,
    /// Accesses that had to wait for the device.
    pub stalled: u64,
    /// Accesses that waited for too long and were answered with `EAGAIN`.
    pub stall_timeouts: u64,
    /// DMA messages sent to the client.
    pub dma_messages: u64,
    /// DMA messages that were not answered in time, or could not even be sent.
    pub dma_timeouts: u64,
    /// The longest turn of a client, by the wall clock.
    pub longest_turn: Duration,
    /// Clients with a DMA file that is not mapped, because it is on neither tmpfs nor hugetlbfs.
    pub unmappable: u64,
}

/// The client of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientSnapshot {
    /// Its process, as it was when it connected.
    pub pid: i32,
    /// How long it has been there.
    pub connected: Duration,
    /// Bytes of its files that are mapped.
    pub mapped_bytes: u64,
    /// Its DMA ranges.
    pub ranges: usize,
    /// Messages taken from it.
    pub messages: u64,
    /// Whether an access of its waits for the device, or is a long read that is being carried out.
    pub stalled: bool,
}

/// An attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentSnapshot {
    /// Its number in the function.
    pub id: AttachmentId,
    /// Its name.
    pub name: String,
    /// Where it is served, if it is.
    pub path: Option<PathBuf>,
    /// Who has it.
    pub client: Option<ClientSnapshot>,
    /// What the core counts.
    pub counters: AttachmentCounters,
    /// What the engine counts.
    pub server: ServerCounters,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSnapshot {
    /// Its number in the machine.
    pub id: FunctionId,
    /// Its name.
    pub name: String,
    /// What the device counts.
    pub counters: Vec<Counter>,
    /// Its attachments.
    pub attachments: Vec<AttachmentSnapshot>,
}

/// The longest time that the engine was busy with one client, or with a step of the machine, by the
/// wall clock: time in which the engine's thread had no processor counts too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongestTurn {
    /// How long it was.
    pub time: Duration,
    /// The attachment of the client; `None` for a step of the machine.
    pub client: Option<(FunctionId, AttachmentId)>,
    /// The client's process, 0 for a step of the machine.
    pub pid: i32,
}

impl LongestTurn {
    pub(crate) fn note(&mut self, time: Duration, client: Option<(FunctionId, AttachmentId)>, pid: i32) {
        if time > self.time {
            *self = Self { time, client, pid };
        }
    }
}

/// The whole machine at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// `io_uring` or `epoll`.
    pub event_loop: &'static str,
    /// How long the machine has been there.
    pub uptime: Duration,
    /// Functions whose mapped memory is looked at every turn.
    pub hot_functions: usize,
    /// Turns of the engine.
    pub turns: u64,
    /// Times the engine slept.
    pub sleeps: u64,
    /// The longest time that the engine was busy with one thing.
    pub longest_turn: LongestTurn,
    /// The functions.
    pub functions: Vec<FunctionSnapshot>,
}
