//! One measurement, and the messages about it between the benchmark's processes.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{process, samples::Samples};

/// The path of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(in crate::benches) enum Path {
    /// Raw packets of the tree NIC.
    Raw,
    /// FCNP. The I/O node's daemon polls.
    FcnpPoll,
    /// FCNP. The I/O node's daemon waits for interrupts.
    FcnpIrq,
    /// A Unix socket.
    Unix,
    /// A TCP connection over loopback.
    Tcp,
    /// Two Unix sockets and a process that copies from one to the other.
    UnixRelayed,
    /// Two TCP connections and a process that copies from one to the other.
    TcpRelayed,
    /// Unix sockets to a forwarder, which makes the compute process's calls as CIOD does.
    UnixForwarded,
    /// TCP connections to a forwarder.
    TcpForwarded,
    /// VELO, which is measured in guests alone.
    Velo,
}

/// The process in the middle of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::benches) enum Middle {
    /// None: the path is one connection.
    None,
    /// A process that copies bytes.
    Relay,
    /// A process that makes calls for the compute process.
    Forwarder,
}

impl Path {
    /// The paths that are measured on a host.
    pub(in crate::benches) const ALL: [Self; 9] = [
        Self::Raw,
        Self::FcnpPoll,
        Self::FcnpIrq,
        Self::Unix,
        Self::Tcp,
        Self::UnixRelayed,
        Self::TcpRelayed,
        Self::UnixForwarded,
        Self::TcpForwarded,
    ];

    /// Returns the name in the rows.
    pub(in crate::benches) const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::FcnpPoll => "fcnp-poll",
            Self::FcnpIrq => "fcnp-irq",
            Self::Unix => "unix",
            Self::Tcp => "tcp",
            Self::UnixRelayed => "unix-relayed",
            Self::TcpRelayed => "tcp-relayed",
            Self::UnixForwarded => "unix-forwarded",
            Self::TcpForwarded => "tcp-forwarded",
            Self::Velo => "velo",
        }
    }

    /// Returns whether the path goes through the tree NIC.
    pub(in crate::benches) const fn has_device(self) -> bool {
        matches!(self, Self::Raw | Self::FcnpPoll | Self::FcnpIrq)
    }

    /// Returns the process in the middle of the path.
    pub(in crate::benches) const fn middle(self) -> Middle {
        match self {
            Self::UnixRelayed | Self::TcpRelayed => Middle::Relay,
            Self::UnixForwarded | Self::TcpForwarded => Middle::Forwarder,
            _ => Middle::None,
        }
    }

    /// Returns whether the path's sockets are TCP sockets.
    pub(in crate::benches) const fn is_tcp(self) -> bool {
        matches!(self, Self::Tcp | Self::TcpRelayed | Self::TcpForwarded)
    }
}

/// The sending node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(in crate::benches) enum Direction {
    /// The I/O node.
    IoToCompute,
    /// The compute node.
    ComputeToIo,
    /// Both nodes send at once, and each sends as much as the other.
    Both,
}

impl Direction {
    /// All directions.
    pub(in crate::benches) const ALL: [Self; 3] = [Self::IoToCompute, Self::ComputeToIo, Self::Both];

    /// Returns the name in the rows.
    pub(in crate::benches) const fn name(self) -> &'static str {
        match self {
            Self::IoToCompute => "io-to-compute",
            Self::ComputeToIo => "compute-to-io",
            Self::Both => "both",
        }
    }

    /// Returns whether messages flow in `direction`, which is not [`Direction::Both`].
    pub(in crate::benches) const fn includes(self, direction: Self) -> bool {
        matches!((self, direction), (Self::Both, _))
            || matches!(
                (self, direction),
                (Self::IoToCompute, Self::IoToCompute) | (Self::ComputeToIo, Self::ComputeToIo)
            )
    }
}

/// The kind of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::benches) enum Kind {
    /// A stream of messages at the highest possible rate.
    Stream,
    /// Messages in alternating directions. The direction's sender begins.
    PingPong,
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::benches) struct Task {
    pub(in crate::benches) path: Path,
    pub(in crate::benches) direction: Direction,
    pub(in crate::benches) kind: Kind,
    /// Bytes of a message, at least 16.
    pub(in crate::benches) bytes: usize,
    /// Number of messages, or round trips, of each compute core and direction. One more precedes
    /// them, and is not measured.
    pub(in crate::benches) count: u32,
    /// Number of compute cores, each with one outstanding request. Only FCNP uses more than one.
    pub(in crate::benches) compute_cores: u32,
}

/// A process, or thread, of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::benches) enum Side {
    /// The application on the I/O node.
    Io,
    /// The application on the compute node.
    Compute,
    /// The process between two sockets.
    Relay,
}

impl Side {
    /// Returns the role in a placement, which is also the word on the command line.
    pub(in crate::benches) const fn name(self) -> &'static str {
        match self {
            Self::Io => "io",
            Self::Compute => "compute",
            Self::Relay => "relay",
        }
    }

    /// Returns the side with a name.
    pub(in crate::benches) fn from_name(name: &str) -> Option<Self> {
        [Self::Io, Self::Compute, Self::Relay].into_iter().find(|side| side.name() == name)
    }
}

/// The addresses at which a process listens.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::benches) struct Addresses {
    pub(in crate::benches) unix: PathBuf,
    pub(in crate::benches) tcp: SocketAddr,
}

/// An order from the parent to a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::benches) enum Order {
    /// Opens a measurement. The parent sends this to all children before it waits for any answer.
    Open {
        task: Task,
        /// The processor to run on.
        processor: Option<usize>,
        /// Sockets of the attachments of the device; empty for a path without one.
        device: Vec<PathBuf>,
        /// The addresses to connect to.
        peer: Option<Addresses>,
    },
    /// Measures with what [`Order::Open`] has opened.
    Measure,
    /// Closes everything that is open.
    Close,
}

/// An answer from a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::benches) enum Answer {
    /// The first answer, sent once at the start.
    Listening(Addresses),
    /// The answer to [`Order::Open`].
    Opened,
    /// The answer to [`Order::Measure`].
    Done(FlowTimes),
    /// The answer to [`Order::Close`].
    Closed,
    /// The answer to any order that failed.
    Failed {
        /// The reason.
        message: String,
    },
}

impl process::Answer for Answer {
    fn failure(&self) -> Option<&str> {
        match self {
            Self::Failed { message } => Some(message),
            _ => None,
        }
    }
}

/// A period, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(in crate::benches) struct Span {
    pub(in crate::benches) start: u64,
    pub(in crate::benches) end: u64,
}

/// The times of the flows and round trips that one side has measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(in crate::benches) struct FlowTimes {
    /// One span for each flow that this side received. It begins when the first message has come,
    /// which is not counted, and ends when the last one has.
    pub(in crate::benches) spans: Vec<Span>,
    /// Round trips in nanoseconds.
    pub(in crate::benches) round_trips: Vec<u64>,
}

impl FlowTimes {
    /// Returns the times of both sides together.
    pub(in crate::benches) fn and(mut self, other: Self) -> Self {
        self.spans.extend(other.spans);
        self.round_trips.extend(other.round_trips);
        self
    }

    /// Returns the time from the first flow's start to the last flow's end, in seconds.
    pub(in crate::benches) fn seconds(&self) -> f64 {
        let start = self.spans.iter().map(|span| span.start).min().unwrap_or(0);
        let end = self.spans.iter().map(|span| span.end).max().unwrap_or(0);
        end.saturating_sub(start).max(1) as f64 / 1e9
    }

    /// Returns the halves of all round trips.
    pub(in crate::benches) fn latencies(&self) -> Samples {
        let mut samples = Samples::with_capacity(self.round_trips.len());
        for nanoseconds in &self.round_trips {
            samples.add(Duration::from_nanos(nanoseconds / 2));
        }
        samples
    }
}

impl Task {
    /// Returns the messages per second, as the sum of both directions.
    pub(in crate::benches) fn rate(&self, measured: &FlowTimes) -> f64 {
        let directions = if self.direction == Direction::Both { 2.0 } else { 1.0 };
        let messages = directions * f64::from(self.count) * f64::from(self.compute_cores);
        messages / measured.seconds()
    }

    /// Returns the payload of `rate` messages per second, in bits per second.
    pub(super) fn bandwidth(&self, rate: f64) -> f64 {
        8.0 * self.bytes as f64 * rate
    }
}
