//! The incarnations of the nodes of a network: one table, which its devices share.
//!
//! [`Presence`] counts the incarnations. Header packets name the incarnations of both ends, so a
//! packet of an earlier incarnation is recognized whenever it comes. The table thus has no drain
//! time: a change is seen at once.
//!
//! A device looks at the atomic words in its steps. It takes the lock only when it begins or ends
//! an incarnation, and when the number of changes has moved.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use nicforge_core::time::Nanos;
use nicforge_network::presence::Presence;

/// Number of changes that the table keeps for devices that have not seen them. A device that has
/// missed more must look at all nodes.
const KEPT: u64 = 1024;

/// The table of a network.
#[derive(Debug)]
pub(crate) struct Incarnations {
    /// The incarnation of each node, 0 for none.
    shown: Box<[AtomicU32]>,
    /// Number of changes so far.
    changes: AtomicU64,
    record: Mutex<Record>,
}

/// The part of the table that changes under the lock.
#[derive(Debug)]
struct Record {
    presence: Presence,
    /// Nodes of the last changes. Change `n` is at `n` modulo [`KEPT`].
    changed: Box<[u32]>,
}

/// The number of a table's changes that a device has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor(u64);

/// Nodes whose incarnation has changed since a device last looked.
pub(crate) enum Changed {
    /// These nodes. One that has changed several times is named as often.
    Nodes(Vec<u32>),
    /// Possibly all nodes: the table no longer keeps all changes.
    All,
}

impl Incarnations {
    fn new(nodes: u32) -> Self {
        Self {
            shown: (0..nodes).map(|_| AtomicU32::new(0)).collect(),
            changes: AtomicU64::new(0),
            record: Mutex::new(Record {
                presence: Presence::new(nodes, 0, 0),
                changed: vec![0; KEPT as usize].into_boxed_slice(),
            }),
        }
    }

    /// Returns the incarnation that a node shows, 0 if it has none or does not exist.
    #[inline]
    pub(crate) fn shown(&self, node: u32) -> u32 {
        self.shown.get(node as usize).map_or(0, |incarnation| incarnation.load(Ordering::Acquire))
    }

    /// Begins an incarnation of a node, unless it has one. Returns the incarnation that it has
    /// then.
    pub(crate) fn begin(&self, node: u32, now: Nanos) -> u32 {
        self.change(node, |presence| {
            let _ = presence.join(node, now);
            presence.generation(node, now).map_or(0, |generation| generation.0)
        })
    }

    /// Ends the incarnation of a node, if it has one.
    pub(crate) fn end(&self, node: u32, now: Nanos) {
        self.change(node, |presence| {
            let _ = presence.leave(node, now);
            0
        });
    }

    /// Changes the presence of a node under the lock. `update` returns the node's incarnation after
    /// the change, which the table then shows and counts as a change, and which is returned.
    fn change(&self, node: u32, update: impl FnOnce(&mut Presence) -> u32) -> u32 {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let incarnation = update(&mut record.presence);

        if let Some(shown) = self.shown.get(node as usize)
            && shown.swap(incarnation, Ordering::AcqRel) != incarnation
        {
            let count = self.changes.load(Ordering::Relaxed);
            record.changed[(count % KEPT) as usize] = node;
            self.changes.store(count + 1, Ordering::Release);
        }
        incarnation
    }

    /// Returns whether there are changes that a device has not seen.
    #[inline]
    pub(crate) fn has_changed(&self, cursor: Cursor) -> bool {
        self.changes.load(Ordering::Acquire) != cursor.0
    }

    /// Returns the nodes that have changed, and counts their changes as seen.
    pub(crate) fn take_changes(&self, cursor: &mut Cursor) -> Changed {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let (seen, count) = (cursor.0, self.changes.load(Ordering::Acquire));
        *cursor = Cursor(count);

        if count - seen > KEPT {
            return Changed::All;
        }
        Changed::Nodes((seen..count).map(|change| record.changed[(change % KEPT) as usize]).collect())
    }
}

/// The tables of a network: one for each machine that is built of its plan.
///
/// A plan can be built several times, and each machine has a table of its own. A machine has one
/// device of each node. A second device of a node therefore belongs to the next machine.
#[derive(Debug)]
pub(crate) struct SharedIncarnations {
    /// Number of nodes.
    nodes: u32,
    current: Mutex<CurrentTable>,
}

/// The table of the machine that is being built.
#[derive(Debug)]
struct CurrentTable {
    table: Arc<Incarnations>,
    /// Nodes whose devices have the table.
    nodes: BTreeSet<u32>,
}

impl SharedIncarnations {
    /// Returns the tables of a network of this size.
    pub(crate) fn new(nodes: u32) -> Self {
        let table = Arc::new(Incarnations::new(nodes));
        Self { nodes, current: Mutex::new(CurrentTable { table, nodes: BTreeSet::new() }) }
    }

    /// Returns the table for the device of a node.
    pub(crate) fn of_node(&self, node: u32) -> Arc<Incarnations> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if !current.nodes.insert(node) {
            let table = Arc::new(Incarnations::new(self.nodes));
            *current = CurrentTable { table, nodes: BTreeSet::from([node]) };
        }
        Arc::clone(&current.table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incarnations_count_up_and_their_changes_are_seen_once() {
        let incarnations = Incarnations::new(4);
        let mut cursor = Cursor::default();
        assert!(!incarnations.has_changed(cursor));

        assert_eq!(incarnations.begin(2, Nanos(5)), 1);
        assert_eq!(incarnations.begin(2, Nanos(6)), 1);
        assert!(incarnations.has_changed(cursor));
        assert!(matches!(incarnations.take_changes(&mut cursor), Changed::Nodes(nodes) if nodes == [2]));
        assert!(!incarnations.has_changed(cursor));

        incarnations.end(2, Nanos(7));
        assert_eq!(incarnations.shown(2), 0);
        assert_eq!(
            (incarnations.begin(2, Nanos(7)), incarnations.shown(2), incarnations.shown(9)),
            (2, 2, 0)
        );
        assert!(matches!(incarnations.take_changes(&mut cursor), Changed::Nodes(nodes) if nodes == [2, 2]));
    }

    #[test]
    fn device_that_missed_many_changes_looks_at_all_nodes() {
        let (incarnations, mut cursor) = (Incarnations::new(2), Cursor::default());
        for time in 0..KEPT {
            incarnations.begin(0, Nanos(time));
            incarnations.end(0, Nanos(time));
        }

        assert!(matches!(incarnations.take_changes(&mut cursor), Changed::All));
        assert!(!incarnations.has_changed(cursor));
    }

    #[test]
    fn each_machine_of_a_plan_has_a_table_of_its_own() {
        let shared = SharedIncarnations::new(2);
        let first = [shared.of_node(0), shared.of_node(1)];
        let second = [shared.of_node(0), shared.of_node(1)];

        assert!(Arc::ptr_eq(&first[0], &first[1]) && Arc::ptr_eq(&second[0], &second[1]));
        assert!(!Arc::ptr_eq(&first[0], &second[0]));
    }
}
