//! What the bench and its ends say to each other: an order a line, and an answer a line.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::bench::{
    fcnp::task::{Measured, Side, Task},
    mmio::Turn,
};

/// What an end is told. Devices are numbers in its list of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Open the three attachments of a device of registers, the first of which is this one.
    OpenRegisters { first: usize },
    /// Measure a path of that device for one turn.
    Turn { path: String, quick: bool },
    /// Open one attachment of such a device, to have its accesses counted.
    OpenCounted { device: usize },
    /// Make accesses.
    Count { kind: Access, times: u32 },
    /// Read back what was posted last.
    Check,
    /// Open this side's end of a tree.
    OpenTree { side: Side, task: Task, device: usize },
    /// Open this side's end of a TCP connection.
    OpenTcp { side: Side, task: Task, address: SocketAddr },
    /// Measure with what is open.
    Go,
    /// Give back all that is open.
    Close,
}

/// Accesses that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Access {
    /// Posted writes of a register.
    Posted,
    /// Trapped reads.
    Read,
    /// Trapped writes.
    Write,
}

/// What an end answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Once at the start.
    Ready,
    /// The order was carried out.
    Done,
    /// To [`Order::Turn`].
    Turn(Turn),
    /// To [`Order::Go`].
    Measured(Measured),
    /// Instead of any of them.
    Failed {
        /// Why.
        message: String,
    },
}
