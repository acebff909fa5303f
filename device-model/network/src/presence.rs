//! Presence: which nodes have software, and since which generation.
//!
//! A *life* of a node is the time from the start of its software to its end. One table beside the
//! links has the lives of all nodes of a machine. A change of the table sends no packets, so it
//! does not depend on their order. It is shown to peers only when no packet of the former life is
//! in flight. That is so after the *drain time*, the largest delay of a path:
//!
//! ```text
//!   life 1                 │ leave                              join │        life 2
//!   ───────────────────────┤                                         ├──────────────────
//!   peers see life 1            │ peers see no life      │ quiet       peers see life 2
//!   ────────────────────────────┤────────────────────────┤─────────────────┤────────────
//!                          ├────┤ drain: packets from it │
//!                               ├────────────────────────┤ drain: packets to it
//! ```
//!
//! 1. After [`Presence::leave`], packets that the node sent are in flight for a drain time. Peers
//!    see the life until then, so they get its last packets from a node that they know.
//! 2. Until peers see the end, they send packets to the node. These are in flight for another drain
//!    time. The node is *quiet* then.
//! 3. After [`Presence::join`], the new life is shown when the node is quiet. It has the next
//!    generation. It must not send before it is shown ([`Presence::generation`] of the node
//!    itself).
//!
//! A network that can tell that no packet is left need not wait: [`Presence::drained`] ends the
//! drain times of a node.
//!
//! Changes are shown at *barriers of time*, multiples of a period. All parts of a machine that is
//! run in parts then see them at the same time, if each part ends at a barrier.
//!
//! The table has no clock, thread or lock. The view of a peer is a function of the time, so nothing
//! has to run for a change to be seen. The owner of the machine or its family shares the table
//! among the devices.

use nicforge_core::time::Nanos;
use thiserror::Error;

/// The number of a node's life, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u32);

/// State of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// No life. Peers see the former one until its end is shown, and nothing of it is in flight
    /// from `quiet` on.
    Absent { former: Former, quiet: Nanos },
    /// A life, which peers see from `shown` on. Until then they see the former one until its end is
    /// shown, and none afterwards.
    Present { former: Former, shown: Nanos },
}

/// The last life of a node that peers have seen, before the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Former {
    generation: u32,
    /// Time from which peers see its end.
    end: Nanos,
}

/// A node's entry.
#[derive(Clone, Copy, Debug)]
struct Entry {
    life: Life,
    /// Generation of this life, or of the last one, seen or not; 0 before the first.
    generation: u32,
}

/// Reasons why a change of presence is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PresenceError {
    /// The node does not exist.
    #[error("there is no node {node}: the table has {nodes}")]
    NoNode {
        /// The node.
        node: u32,
        /// Number of nodes.
        nodes: u32,
    },
    /// The node has a life.
    #[error("node {node} has a life: it must leave first")]
    Present {
        /// The node.
        node: u32,
    },
    /// The node has no life.
    #[error("node {node} has no life: it must join first")]
    Absent {
        /// The node.
        node: u32,
    },
    /// The node has had as many lives as can be counted.
    #[error("node {node} has had {} lives: there are no more generations", u32::MAX)]
    NoGeneration {
        /// The node.
        node: u32,
    },
}

/// The presence of the nodes of a machine. The module documentation states the rules.
#[derive(Clone, Debug)]
pub struct Presence {
    entries: Box<[Entry]>,
    /// The largest time for which a packet is in flight, in nanoseconds.
    drain: u64,
    /// Time between two barriers, in nanoseconds, at least 1.
    period: u64,
    /// Number of calls that have changed the table.
    changes: u64,
}

impl Presence {
    /// Returns a table of nodes without lives. A packet is in flight for at most `drain`
    /// nanoseconds, and changes are shown at multiples of `period` nanoseconds. With 0, they are
    /// shown at any time.
    pub fn new(nodes: u32, drain: u64, period: u64) -> Self {
        // Peers have seen no life before the first: the end of life 0 is shown from time 0 on.
        let former = Former { generation: 0, end: Nanos::ZERO };
        let life = Life::Absent { former, quiet: Nanos::ZERO };
        let entries = vec![Entry { life, generation: 0 }; nodes as usize].into_boxed_slice();
        Self { entries, drain, period: period.max(1), changes: 0 }
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Begins a life of a node. Returns its generation, and the time from which peers see it.
    ///
    /// # Errors
    /// [`PresenceError::NoNode`], [`PresenceError::Present`], [`PresenceError::NoGeneration`].
    pub fn join(&mut self, node: u32, now: Nanos) -> Result<(Generation, Nanos), PresenceError> {
        let (period, nodes) = (self.period, self.nodes());
        let entry = self.entries.get_mut(node as usize).ok_or(PresenceError::NoNode { node, nodes })?;
        let Life::Absent { former, quiet } = entry.life else {
            return Err(PresenceError::Present { node });
        };

        let generation = entry.generation.checked_add(1).ok_or(PresenceError::NoGeneration { node })?;
        let shown = next_barrier(now.max(quiet), period);
        *entry = Entry { life: Life::Present { former, shown }, generation };
        self.changes += 1;

        Ok((Generation(generation), shown))
    }

    /// Ends the life of a node. Returns the time from which peers see that.
    ///
    /// A life that ends before it was shown is never shown.
    ///
    /// # Errors
    /// [`PresenceError::NoNode`], [`PresenceError::Absent`].
    pub fn leave(&mut self, node: u32, now: Nanos) -> Result<Nanos, PresenceError> {
        let (drain, period, nodes) = (self.drain, self.period, self.nodes());
        let entry = self.entries.get_mut(node as usize).ok_or(PresenceError::NoNode { node, nodes })?;
        let Life::Present { former, shown } = entry.life else {
            return Err(PresenceError::Absent { node });
        };

        let (former, quiet) = if now < shown {
            // Peers have not seen this life, and nothing of it is in flight.
            (former, shown)
        } else {
            let end = next_barrier(now.after(drain), period);
            (Former { generation: entry.generation, end }, end.after(drain))
        };
        entry.life = Life::Absent { former, quiet };
        self.changes += 1;

        Ok(former.end.max(now))
    }

    /// Ends the drain times of a node, after the caller has made sure that no packet from it or to
    /// it is in flight. A change that is not shown yet is shown from the next barrier. Without such
    /// a change, the call has no effect on what peers see.
    ///
    /// # Errors
    /// [`PresenceError::NoNode`].
    pub fn drained(&mut self, node: u32, now: Nanos) -> Result<(), PresenceError> {
        let (period, nodes) = (self.period, self.nodes());
        let entry = self.entries.get_mut(node as usize).ok_or(PresenceError::NoNode { node, nodes })?;
        let barrier = next_barrier(now, period);

        let end_by_barrier = |former: Former| Former { end: former.end.min(barrier), ..former };
        entry.life = match entry.life {
            Life::Absent { former, quiet } => {
                Life::Absent { former: end_by_barrier(former), quiet: quiet.min(barrier) }
            }
            Life::Present { former, shown } => {
                Life::Present { former: end_by_barrier(former), shown: shown.min(barrier) }
            }
        };
        self.changes += 1;
        Ok(())
    }

    /// Returns the generation of the life that peers see at a node, or `None` if they see none or
    /// the node does not exist. The node itself may send while this is its own generation.
    #[inline]
    pub fn generation(&self, node: u32, now: Nanos) -> Option<Generation> {
        let entry = self.entries.get(node as usize)?;
        let former = match entry.life {
            Life::Present { shown, .. } if now >= shown => return Some(Generation(entry.generation)),
            Life::Present { former, .. } | Life::Absent { former, .. } => former,
        };
        (now < former.end).then_some(Generation(former.generation))
    }

    /// Returns the time of the next change that peers see at a node after `now`, or
    /// [`Nanos::NEVER`]. A device asks for a call at that time.
    pub fn next_change(&self, node: u32, now: Nanos) -> Nanos {
        let Some(entry) = self.entries.get(node as usize) else { return Nanos::NEVER };
        let times = match entry.life {
            Life::Absent { former, .. } => [former.end, Nanos::NEVER],
            Life::Present { former, shown } => [former.end, shown],
        };
        times.into_iter().find(|&time| time > now).unwrap_or(Nanos::NEVER)
    }

    /// Returns a counter that changes with each call that changes the table.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.changes
    }
}

/// Returns the first multiple of a period that is not before `time`.
fn next_barrier(time: Nanos, period: u64) -> Nanos {
    Nanos(time.0.div_ceil(period).saturating_mul(period))
}
