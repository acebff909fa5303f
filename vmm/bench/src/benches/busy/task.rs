//! The tasks of child processes, and the messages between them and the parent.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{process, samples::Samples};

/// A library for messages with matching, on its NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Library {
    /// Over EXTOLL cards.
    Extoll,
    /// Over Message Units of Blue Gene/Q.
    Unit,
    /// Over the torus of Blue Gene/L.
    Torus,
    /// Over Portals on SeaStars.
    SeaStar,
}

impl Library {
    /// All libraries.
    pub(super) const ALL: [Self; 4] = [Self::Extoll, Self::Unit, Self::Torus, Self::SeaStar];

    /// Returns the name in the rows.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Extoll => "extoll",
            Self::Unit => "unit",
            Self::Torus => "torus",
            Self::SeaStar => "seastar",
        }
    }

    /// Returns the machine of two ranks: two nodes.
    pub(super) const fn small_machine(self) -> &'static str {
        match self {
            Self::Extoll => "[[extoll]]\ntorus = [2]\nvpids = 4\n",
            Self::Unit => "[[bgq]]\ntorus = [2]\n",
            Self::Torus => "[[bgl]]\ntorus = [2]\n",
            Self::SeaStar => "[[seastar]]\ntorus = [2]\n",
        }
    }

    /// Returns the machine of 32 ranks. The cards have four ranks each, all other nodes one.
    pub(super) const fn large_machine(self) -> &'static str {
        match self {
            Self::Extoll => "[[extoll]]\ntorus = [2, 2, 2]\nvpids = 4\n",
            Self::Unit => "[[bgq]]\ntorus = [2, 2, 2, 2, 2]\n",
            Self::Torus => "[[bgl]]\ntorus = [4, 4, 2]\n",
            Self::SeaStar => "[[seastar]]\ntorus = [4, 4, 2]\n",
        }
    }
}

/// The task of a child process, on its command line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// Computes until it is killed.
    Loop,
    /// Becomes another program, which ends with the parent.
    Program(Vec<String>),
    /// Serves a machine in a directory.
    Engine {
        /// The sections of the machine file.
        sections: String,
        directory: PathBuf,
        /// How the engine waits for sockets, as on the command line.
        event_loop: String,
    },
    /// Exchanges messages with another process.
    Partner(Partner),
}

/// A process that exchanges messages, and its way to the other process. Its device is in its
/// environment, as with `nicforge run`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Partner {
    /// A rank of a job. Ranks 0 and 1 exchange messages.
    Rank {
        library: Library,
        rank: u32,
        /// Number of the job's ranks.
        ranks: u32,
        /// Number of the machine's nodes. Ranks are dealt out to them in turn.
        nodes: u32,
    },
    /// The application of a compute core, which calls FCNP.
    ComputeCore,
    /// The application of an I/O node.
    IoNode,
    /// An end of a Unix socket. One end listens.
    Socket { path: PathBuf, listens: bool },
    /// Both ends of two pipes that exist. Both processes open the pipe first that the first one
    /// writes to.
    Pipes { reads: PathBuf, writes: PathBuf, is_first: bool },
}

/// An order from the parent to a child.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Makes round trips until this time has passed, at least one.
    Exchange(Duration),
    /// Returns the messages of the other side's [`Order::Exchange`].
    Echo,
    /// Waits in a barrier with all ranks of the job.
    Barrier,
}

/// An answer from a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The first answer of an engine: the nodes on which programs run.
    Serving(Vec<ServedNode>),
    /// The first answer of a partner: it is connected to the others.
    Ready,
    /// The answer to [`Order::Exchange`]: halves of its round trips.
    Exchanged(Samples),
    /// The answer to any other order.
    Done,
    /// The answer to an order that failed.
    Failed { message: String },
}

impl process::Answer for Answer {
    fn failure(&self) -> Option<&str> {
        match self {
            Self::Failed { message } => Some(message),
            _ => None,
        }
    }
}

/// A node of a served machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ServedNode {
    pub(super) name: String,
    /// Sockets of its user attachments.
    pub(super) users: Vec<PathBuf>,
}
