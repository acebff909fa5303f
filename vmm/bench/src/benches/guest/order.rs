//! The orders and answers between the benchmark and its workers, one in each line.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::super::fcnp::task::{FlowTimes, Side, Task};
use crate::contest::Measurement;

/// An order to a worker. Devices are indexes in the worker's list of devices.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Opens three attachments of a device of registers, of which `first` is the first one.
    OpenRegisters { first: usize },
    /// Measures a path of that device once.
    MeasureRegisters { path: String, quick: bool },
    /// Opens one attachment of a device of registers, whose accesses are counted.
    OpenCounted { device: usize },
    /// Makes accesses, which the parent counts.
    Count { kind: Access, times: u32 },
    /// Checks that the register holds the value of the last posted write.
    Check,
    /// Opens this side's end of a tree.
    OpenTree { side: Side, task: Task, device: usize },
    /// Opens this side's end of a connection of VELO.
    OpenVelo { side: Side, task: Task, device: usize },
    /// Opens this side's end of a TCP connection.
    OpenTcp { side: Side, task: Task, address: SocketAddr },
    /// Measures with the open endpoint.
    Measure,
    /// Closes everything that is open.
    Close,
}

/// The kind of counted accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Access {
    /// Posted writes of a register.
    Posted,
    /// Trapped reads.
    Read,
    /// Trapped writes.
    Write,
}

/// An answer from a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The first answer, sent once at the start.
    Ready,
    /// The order was carried out.
    Done,
    /// The answer to [`Order::MeasureRegisters`].
    Measurement(Measurement),
    /// The answer to [`Order::Measure`].
    FlowTimes(FlowTimes),
    /// The answer to any order that failed.
    Failed {
        /// The reason.
        message: String,
    },
}
