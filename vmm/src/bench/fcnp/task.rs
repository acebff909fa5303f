//! What is measured once, and what the processes of the bench say to each other about it.

use std::{net::SocketAddr, path::PathBuf};

use serde::{Deserialize, Serialize};

/// The way that messages take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(in crate::bench) enum Path {
    /// Packets of the tree NIC without a protocol.
    Raw,
    /// FCNP, the I/O node's daemon polling.
    FcnpPoll,
    /// FCNP, the I/O node's daemon waiting for interrupts.
    FcnpIrq,
    /// A Unix socket.
    Unix,
    /// A TCP connection over loopback.
    Tcp,
    /// Two Unix sockets and a process that copies from one to the other.
    UnixRelayed,
    /// Two TCP connections and such a process.
    TcpRelayed,
    /// Unix sockets to a process that makes the compute process's calls for it, as CIOD does.
    UnixForwarded,
    /// TCP connections to such a process.
    TcpForwarded,
}

/// How the middle of a path is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum Middle {
    /// There is none: one connection.
    None,
    /// A process that copies bytes.
    Relay,
    /// A process that makes calls for another one.
    Forwarder,
}

impl Path {
    pub(in crate::bench) const ALL: [Self; 9] = [
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

    pub(in crate::bench) const fn name(self) -> &'static str {
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
        }
    }

    /// Whether it goes through the tree NIC.
    pub(in crate::bench) const fn has_device(self) -> bool {
        matches!(self, Self::Raw | Self::FcnpPoll | Self::FcnpIrq)
    }

    pub(in crate::bench) const fn middle(self) -> Middle {
        match self {
            Self::UnixRelayed | Self::TcpRelayed => Middle::Relay,
            Self::UnixForwarded | Self::TcpForwarded => Middle::Forwarder,
            _ => Middle::None,
        }
    }

    /// Whether its sockets are TCP's.
    pub(in crate::bench) const fn is_tcp(self) -> bool {
        matches!(self, Self::Tcp | Self::TcpRelayed | Self::TcpForwarded)
    }
}

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(in crate::bench) enum Direction {
    /// The I/O node.
    IoToCompute,
    /// The compute node.
    ComputeToIo,
    /// Both at once, each as much as the other.
    Both,
}

impl Direction {
    pub(in crate::bench) const ALL: [Self; 3] = [Self::IoToCompute, Self::ComputeToIo, Self::Both];

    pub(in crate::bench) const fn name(self) -> &'static str {
        match self {
            Self::IoToCompute => "io-to-compute",
            Self::ComputeToIo => "compute-to-io",
            Self::Both => "both",
        }
    }

    pub(in crate::bench) const fn has(self, one: Self) -> bool {
        matches!((self, one), (Self::Both, _))
            || matches!(
                (self, one),
                (Self::IoToCompute, Self::IoToCompute) | (Self::ComputeToIo, Self::ComputeToIo)
            )
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::bench) enum Kind {
    /// Messages one after the other, as fast as they go.
    Stream,
    /// Messages to and fro; the direction's sender begins.
    PingPong,
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::bench) struct Task {
    pub(in crate::bench) path: Path,
    pub(in crate::bench) direction: Direction,
    pub(in crate::bench) kind: Kind,
    /// Bytes of a message, at least 16.
    pub(in crate::bench) bytes: usize,
    /// Messages, or round trips, of each lane and direction, after a first one that is not measured.
    pub(in crate::bench) count: u32,
    /// Lanes: compute cores that each have a request outstanding. More than one only for FCNP.
    pub(in crate::bench) lanes: u32,
}

/// Which of the processes, or threads, of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::bench) enum Side {
    /// The application on the I/O node.
    Io,
    /// The application on the compute node.
    Compute,
    /// The process between two sockets.
    Relay,
}

impl Side {
    /// The role of a placement, and the word on the command line.
    pub(in crate::bench) const fn name(self) -> &'static str {
        match self {
            Self::Io => "io",
            Self::Compute => "compute",
            Self::Relay => "relay",
        }
    }

    pub(in crate::bench) fn from_name(name: &str) -> Option<Self> {
        [Self::Io, Self::Compute, Self::Relay].into_iter().find(|side| side.name() == name)
    }
}

/// Where a process can be reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::bench) struct Addresses {
    pub(in crate::bench) unix: PathBuf,
    pub(in crate::bench) tcp: SocketAddr,
}

/// What the parent tells a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::bench) enum Order {
    /// Get ready for a measurement. All children are told before any of them has to answer.
    Open {
        task: Task,
        /// The processor to run on.
        processor: Option<usize>,
        /// Sockets of the device's attachments.
        device: Vec<PathBuf>,
        /// Whom to connect to.
        peer: Option<Addresses>,
    },
    /// Measure.
    Go,
    /// Give everything back.
    Close,
}

/// What a child answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::bench) enum Answer {
    /// Once at the start.
    Listening(Addresses),
    /// To [`Order::Open`].
    Opened,
    /// To [`Order::Go`].
    Done(Measured),
    /// To [`Order::Close`].
    Closed,
    /// Instead of any of them.
    Failed {
        /// Why.
        message: String,
    },
}

/// What one side measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(in crate::bench) struct Measured {
    /// Of each flow that this side received, nanoseconds on the machine's monotonic clock: when its first message was there, which is
    /// not counted, and when the last one was.
    pub(in crate::bench) spans: Vec<(u64, u64)>,
    /// Round trips in nanoseconds.
    pub(in crate::bench) round_trips: Vec<u64>,
}

impl Measured {
    /// What both sides measured.
    pub(in crate::bench) fn and(mut self, other: Self) -> Self {
        self.spans.extend(other.spans);
        self.round_trips.extend(other.round_trips);
        self
    }

    /// From the first flow's start to the last one's end, in seconds.
    pub(in crate::bench) fn seconds(&self) -> f64 {
        let start = self.spans.iter().map(|span| span.0).min().unwrap_or(0);
        let end = self.spans.iter().map(|span| span.1).max().unwrap_or(0);
        end.saturating_sub(start).max(1) as f64 / 1e9
    }
}

impl Task {
    /// Bits of the users' data in a second, both directions together.
    pub(in crate::bench) fn bandwidth(&self, measured: &Measured) -> f64 {
        let directions = if self.direction == Direction::Both { 2.0 } else { 1.0 };
        let messages = directions * f64::from(self.count) * f64::from(self.lanes);
        8.0 * self.bytes as f64 * messages / measured.seconds()
    }
}
