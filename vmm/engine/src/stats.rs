//! Snapshots of an engine and its machine.

use std::{path::PathBuf, time::Duration};

use nicforge_core::{
    attachment::AttachmentCounters,
    companion::CompanionReport,
    device::Counter,
    ids::{AttachmentId, FunctionId},
    panic::DevicePanic,
};

use nicforge_shm::pace;

use crate::{client::Client, engine::Engine};

/// Counters of each socket, over all its clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Clients that were given the attachment.
    pub clients: u64,
    /// Connections that were refused, because a client had the attachment, the attachment was in
    /// its back-off after a client that held up the engine, the machine refused, or no descriptor
    /// was left.
    pub refused: u64,
    /// Connections of other users, closed without an answer.
    pub foreign: u64,
    /// Clients that ended by breaking the protocol, or in the middle of a message.
    pub broken: u64,
    /// Clients that lost the attachment to the engine or the operator.
    pub evicted: u64,
    /// Accesses that had to wait for the device.
    pub stalled: u64,
    /// Accesses that waited too long and were answered with `EAGAIN`.
    pub stall_timeouts: u64,
    /// DMA messages sent to the client.
    pub dma_messages: u64,
    /// DMA messages without an answer in time, whether they could be sent or not.
    pub dma_timeouts: u64,
    /// The longest turn of a client, by the wall clock.
    pub longest_turn: Duration,
    /// Clients with a DMA file that is not mapped, because it is on neither tmpfs nor hugetlbfs,
    /// has pages of more than 2 MiB, or is beyond the quota of mapped bytes.
    pub unmappable: u64,
}

/// The client of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientSnapshot {
    /// Its process, as it was when it connected.
    pub pid: i32,
    /// Time since the client connected.
    pub connected: Duration,
    /// Bytes of its files that are mapped.
    pub mapped_bytes: u64,
    /// Its DMA ranges.
    pub ranges: usize,
    /// Messages taken from it.
    pub messages: u64,
    /// Whether one of its accesses waits for the device, or a long read is in progress.
    pub stalled: bool,
}

/// An attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentSnapshot {
    /// Its number in the function.
    pub id: AttachmentId,
    /// Its name.
    pub name: String,
    /// Path of its socket, if it is served.
    pub path: Option<PathBuf>,
    /// The client that has it.
    pub client: Option<ClientSnapshot>,
    /// Counters of the core.
    pub counters: AttachmentCounters,
    /// Counters of the engine.
    pub server: ServerCounters,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSnapshot {
    /// Its number in the machine.
    pub id: FunctionId,
    /// Its name.
    pub name: String,
    /// The panic of the device that took the function out of service.
    pub panic: Option<DevicePanic>,
    /// Companions of the device.
    pub companions: Vec<CompanionReport>,
    /// Counters of the device; none if the function is out of service.
    pub counters: Vec<Counter>,
    /// Its attachments.
    pub attachments: Vec<AttachmentSnapshot>,
}

/// The longest time that the engine was busy with one client, or with a step of the machine. It is
/// wall-clock time, so time without a processor counts too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongestTurn {
    /// Length of that time.
    pub time: Duration,
    /// The attachment of the client; `None` for a step of the machine.
    pub client: Option<(FunctionId, AttachmentId)>,
    /// The client's process, 0 for a step of the machine.
    pub pid: i32,
}

impl LongestTurn {
    /// Records the time of a step of the machine, if it is the longest time so far.
    pub(crate) fn record_step(&mut self, time: Duration) {
        if time > self.time {
            *self = Self { time, client: None, pid: 0 };
        }
    }

    /// Records the time of a turn of the client of an attachment, if it is the longest time so far.
    pub(crate) fn record_client_turn(
        &mut self,
        time: Duration,
        attachment: (FunctionId, AttachmentId),
        pid: i32,
    ) {
        if time > self.time {
            *self = Self { time, client: Some(attachment), pid };
        }
    }
}

/// Counters of the engine's rounds.
#[derive(Debug, Default)]
pub(crate) struct RoundCounters {
    pub(crate) rounds: u64,
    /// Rounds in whose step the machine worked.
    pub(crate) worked: u64,
    /// Rounds without work that yielded the processor.
    pub(crate) yields: u64,
    /// Rounds in which the engine slept.
    pub(crate) sleeps: u64,
    /// The longest step or client turn of all rounds.
    pub(crate) longest: LongestTurn,
}

/// The whole machine at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSnapshot {
    /// `io_uring` or `epoll`.
    pub event_loop: &'static str,
    /// Time since the machine's engine was made.
    pub uptime: Duration,
    /// Functions whose mapped memory is checked in every round.
    pub hot_functions: usize,
    /// Rounds of the engine.
    pub turns: u64,
    /// Rounds in whose step the machine found work.
    pub worked: u64,
    /// Times the engine yielded its processor.
    pub yields: u64,
    /// Yields of the server's threads that came back late, because other programs had the
    /// processors.
    pub late_yields: u64,
    /// Times the engine slept.
    pub sleeps: u64,
    /// Times the engine woke a client that waited for its device.
    pub client_wakes: u64,
    /// Whether the engine avoids yields, because other programs take the processors.
    pub host_is_busy: bool,
    /// The longest time that the engine was busy with one client or step.
    pub longest_turn: LongestTurn,
    /// The functions.
    pub functions: Vec<FunctionSnapshot>,
}

impl Engine {
    /// Returns a snapshot of the engine and its machine.
    pub fn snapshot(&mut self) -> EngineSnapshot {
        let functions = (0..self.machine.functions()).map(|id| self.function_snapshot(FunctionId(id)));
        let functions = functions.collect();

        EngineSnapshot {
            event_loop: self.events.name(),
            uptime: self.clock.elapsed(),
            hot_functions: self.machine.hot_functions(),
            turns: self.round_counters.rounds,
            worked: self.round_counters.worked,
            yields: self.round_counters.yields,
            late_yields: pace::late_yields(),
            sleeps: self.round_counters.sleeps,
            client_wakes: self.machine.client_wakes(),
            host_is_busy: pace::is_busy(),
            longest_turn: self.round_counters.longest,
            functions,
        }
    }

    /// Returns the state of a function and its attachments.
    fn function_snapshot(&mut self, id: FunctionId) -> FunctionSnapshot {
        // The counters come first: the device may panic there.
        let counters = self.machine.counters(id);

        FunctionSnapshot {
            id,
            name: self.machine.name(id).unwrap_or_default().to_owned(),
            panic: self.machine.device_panic(id).cloned(),
            companions: self.machine.companions(id),
            counters,
            attachments: self.attachment_snapshots(id),
        }
    }

    /// Returns the state of all attachments of a function.
    fn attachment_snapshots(&self, function: FunctionId) -> Vec<AttachmentSnapshot> {
        let Some(spec) = self.machine.spec(function) else { return Vec::new() };
        let snapshot_of = |(number, name): (usize, &String)| {
            let id = AttachmentId(number as u16);
            let served = self.attachments.find(function, id).map(|index| &self.attachments[index]);
            AttachmentSnapshot {
                id,
                name: name.clone(),
                path: served.map(|served| served.listener.path().to_owned()),
                client: served.and_then(|served| served.client.as_ref()).map(ClientSnapshot::of),
                counters: self.machine.attachment_counters(function, id).unwrap_or_default(),
                server: served.map(|served| served.counters).unwrap_or_default(),
            }
        };
        spec.attachments.iter().map(|attachment| &attachment.name).enumerate().map(snapshot_of).collect()
    }
}

impl ClientSnapshot {
    /// Returns the state of a client at this moment.
    fn of(client: &Client) -> Self {
        Self {
            pid: client.pid,
            connected: client.since.elapsed(),
            mapped_bytes: client.state.memory.mapped_bytes(),
            ranges: client.state.memory.count_ranges(),
            messages: client.connection.counters().messages,
            stalled: client.state.deferred.is_some(),
        }
    }
}
