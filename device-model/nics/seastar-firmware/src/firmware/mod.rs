//! The firmware's program: its polling loop, and what it does for each event.
//!
//! ```text
//!   chip's events --> poll --+--> commands --> outbox: send queues ---> transmit engine
//!                            +--> headers ---> matching, streams -----> receive engine
//!                            +--> ends ------> events of processes and of the kernel
//! ```
//!
//! A poll handles one event and at most `STEPS_PER_POLL` pieces of other work. So reception never
//! waits for transmission, and long work, such as failing a thousand messages, extends over many
//! polls.

mod commands;
mod headers;
mod kernel;
mod node;
mod outbox;
mod pairs;
mod pending;
mod process;
mod streams;

use nicforge_hwi::seastar::{DEFAULT_PROCESSES, KERNEL, MAX_PROCESSES};

use self::{node::Node, streams::Streams};
use crate::{
    chip::{
        Chip, Client, Event, Halted, Incarnation, Pieces, Polled, Program, Stream, TransferStatus,
        Transmission,
    },
    costs,
    scratch::{MAILBOX, Scratch},
};

/// Steps of the outbox that a poll makes, besides handling its event.
const STEPS_PER_POLL: usize = 2;
/// Maximum number of streams without a destination that a poll discards.
const DISCARDS_PER_POLL: usize = 4;
/// Failure code of an event whose operation has succeeded, beside those of
/// [`nicforge_hwi::seastar::failure`].
const NO_FAILURE: u16 = 0;
/// The default time after which a silent node is taken to be off.
pub const TIMEOUT_NS: u64 = 10_000_000_000;

/// Settings of the firmware, which a machine chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of processes that the node can have, at most [`MAX_PROCESSES`].
    pub processes: u16,
    /// Messages of one packet are acknowledged implicitly where the paper's rule allows it. They
    /// are lost if the target restarts, or has no room for an event of the kernel.
    pub implicit_acknowledgements: bool,
    /// Messages are acknowledged, and repeated when they are refused. Without it a message is
    /// complete when the DMA engine has sent it, and one that finds no stream or no room is lost.
    /// That is for measurements of what the protocol costs.
    pub flow_control: bool,
    /// Time in nanoseconds after which a node that answers nothing is taken to be off.
    pub timeout: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            processes: DEFAULT_PROCESSES,
            implicit_acknowledgements: false,
            flow_control: true,
            timeout: TIMEOUT_NS,
        }
    }
}

/// Counters of the firmware since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages that were taken.
    pub messages: u64,
    /// Messages that the hardware has dropped because all streams were in use.
    pub dropped: u64,
    /// Messages that were refused, because a table or queue was full, or after a dropped one.
    pub refused: u64,
    /// Messages without an acknowledgement that were lost, because a table or queue was full, or
    /// all streams were in use.
    pub lost: u64,
    /// Messages for another incarnation of this node.
    pub stale: u64,
    /// Messages for a process that does not exist, or of a kind that does not.
    pub without_process: u64,
    /// Transmissions, and those among them that repeat a message.
    pub transmissions: u64,
    /// Negative acknowledgements that have moved a send queue back.
    pub repetitions: u64,
    /// Messages of this node that have failed.
    pub failed: u64,
    /// Commands that were refused.
    pub refused_commands: u64,
    /// Nodes that were taken to be off.
    pub timeouts: u64,
}

/// Result of carrying out a command. The inner error is the [`nicforge_hwi::seastar::code`] with
/// which the command is refused; the outer one tells that the firmware is halted.
type CommandOutcome<T> = Result<Result<T, u32>, Halted>;

/// The firmware of a SeaStar.
pub struct Firmware {
    settings: Settings,
    scratch: Scratch,
    streams: Streams,
    /// The state of the node's incarnation, if it has booted.
    node: Option<Node>,
    /// Number of boots, modulo 2^16.
    generation: u16,
    /// Number of messages on the data channel in the transmit DMA engine.
    in_engine: u16,
    /// Time for which the chip's timer is set, if it is set.
    timer: Option<u64>,
    statistics: Statistics,
}

impl Firmware {
    /// Makes the firmware of a node that has not booted.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let settings = Settings {
            processes: settings.processes.min(MAX_PROCESSES),
            timeout: settings.timeout.max(1_000),
            ..settings
        };
        let mut scratch = Scratch::new();
        let mailboxes = (usize::from(settings.processes) + 1) * MAILBOX as usize;
        // The mailboxes of 16 clients and all streams always fit.
        let _ = scratch.take(mailboxes + Streams::BYTES);

        Self {
            settings,
            scratch,
            streams: Streams::new(),
            node: None,
            generation: 0,
            in_engine: 0,
            timer: None,
            statistics: Statistics::default(),
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Returns the number of free bytes of the scratch memory.
    #[must_use]
    pub fn free_scratch(&self) -> u32 {
        self.scratch.free()
    }

    /// Returns the number of messages that are being sent, and are not complete.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.node.as_ref().map_or(0, |node| node.outbox.count())
    }

    /// Returns whether the node has booted.
    #[must_use]
    pub fn is_booted(&self) -> bool {
        self.node.is_some()
    }

    /// Handles an event of the chip.
    fn handle<C: Chip>(&mut self, chip: &mut C, event: &Event) -> Result<(), Halted> {
        match event {
            Event::Attached { .. } => {}
            Event::Detached { client, .. } => return self.handle_detached(chip, *client),
            Event::Command { client: Client(KERNEL), number, bytes } => {
                return self.kernel_command(chip, *number, bytes);
            }
            Event::Command { client, number, bytes } => {
                return self.process_command(chip, *client, *number, bytes);
            }
            Event::Header { packet, incarnation, stream } => {
                return self.handle_header(chip, packet, *incarnation, *stream);
            }
            Event::Dropped { packet, incarnation } => return self.handle_dropped(chip, packet, *incarnation),
            Event::Stale { packet } => return self.handle_stale(chip, packet),
            Event::Received { stream, status } => return self.handle_received(chip, *stream, *status),

            // The work that these events cause is deferred: see `do_deferred_work`.
            Event::Transmitted { names, status } => self.handle_transmitted(chip, names.names(), *status),
            Event::NodeDown { node } => {
                if let Some(local) = &mut self.node {
                    local.record_node_down(*node);
                }
            }
            Event::Timer => {
                self.timer = None;
                if let Some(node) = &mut self.node {
                    node.outbox.begin_due_scan(chip.now());
                }
            }
        }
        Ok(())
    }

    /// Handles messages that the transmit DMA engine has finished, or given up.
    fn handle_transmitted<C: Chip>(
        &mut self,
        chip: &mut C,
        transmissions: &[Transmission],
        status: TransferStatus,
    ) {
        for &transmission in transmissions {
            chip.charge(costs::TRANSMITTED);
            self.in_engine = self.in_engine.saturating_sub(1);
            if let Some(node) = &mut self.node {
                node.outbox.transmitted(transmission, status, chip.now());
                node.outbox.resume_stalled_queue();
            }
        }
    }

    /// Ends the process and the streams of a client that has detached.
    fn handle_detached<C: Chip>(&mut self, chip: &mut C, client: Client) -> Result<(), Halted> {
        if client.0 == KERNEL {
            return self.end_incarnation(chip);
        }
        if let Some(process) = process::process_of(client) {
            self.process_detached(chip, process);
        }
        Ok(())
    }

    /// Ends the incarnation of the node. Its messages are forgotten, because the processes that
    /// sent them end with it.
    fn end_incarnation<C: Chip>(&mut self, chip: &mut C) -> Result<(), Halted> {
        let Some(node) = self.node.take() else { return Ok(()) };
        node.give_back(&mut self.scratch);
        self.streams.detach(None);
        chip.charge(costs::SCAN * u32::from(nicforge_hwi::seastar::STREAMS));
        chip.set_booted(false)
    }

    /// Discards the data of streams whose process has ended before the kernel set a destination.
    fn discard_streams<C: Chip>(&mut self, chip: &mut C) -> Result<(), Halted> {
        for _ in 0..DISCARDS_PER_POLL {
            let Some(stream) = self.streams.take_orphan() else { break };
            self.discard(chip, stream)?;
        }
        Ok(())
    }

    /// Discards the data of a stream.
    fn discard<C: Chip>(&mut self, chip: &mut C, stream: Stream) -> Result<(), Halted> {
        chip.charge(costs::RECEIVE);
        chip.receive(stream, 0, Pieces::None)
    }

    /// Sets the chip's timer to the next time at which the firmware has work.
    fn set_timer<C: Chip>(&mut self, chip: &mut C) -> Result<(), Halted> {
        let next = self.node.as_ref().and_then(|node| node.outbox.next_time());
        match (next, self.timer) {
            (Some(next), timer) if timer.is_none_or(|timer| next < timer) => {
                self.timer = Some(next);
                chip.set_timer(next)
            }
            _ => Ok(()),
        }
    }

    /// Returns whether there is work besides events.
    fn has_work(&self, now: u64) -> bool {
        self.streams.has_orphan() || self.node.as_ref().is_some_and(|node| node.has_work(self.in_engine, now))
    }

    /// Returns the incarnation of this node, if it has booted.
    fn incarnation(&self) -> Option<Incarnation> {
        self.node.as_ref().map(|node| node.incarnation)
    }
}

impl Program for Firmware {
    const COUNTERS: &'static [&'static str] = &[
        "firmware_messages",
        "firmware_refused",
        "firmware_lost",
        "firmware_without_process",
        "firmware_transmissions",
        "firmware_repetitions",
        "firmware_failed",
        "firmware_refused_commands",
        "firmware_timeouts",
        "firmware_free_scratch",
    ];

    fn count(&self, values: &mut [u64]) {
        let statistics = &self.statistics;
        let current = [
            statistics.messages,
            statistics.refused,
            statistics.lost,
            statistics.without_process,
            statistics.transmissions,
            statistics.repetitions,
            statistics.failed,
            statistics.refused_commands,
            statistics.timeouts,
            self.scratch.free().into(),
        ];
        for (value, current) in values.iter_mut().zip(current) {
            *value = current;
        }
    }

    fn poll<C: Chip>(&mut self, chip: &mut C, event: Option<&Event>) -> Result<Polled, Halted> {
        if event.is_none() && !self.has_work(chip.now()) {
            return Ok(Polled::Idle);
        }
        chip.charge(costs::POLL);

        if let Some(event) = event {
            self.handle(chip, event)?;
        }
        if self.streams.has_orphan() {
            self.discard_streams(chip)?;
        } else {
            self.do_deferred_work(chip)?;
        }
        self.set_timer(chip)?;
        Ok(Polled::Busy)
    }
}
