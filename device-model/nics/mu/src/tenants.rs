//! The tenants of all subgroups of a network, as senders and receivers know them.
//!
//! A packet can be on its way, or wait in a network FIFO, while the client that it is for leaves
//! and another one comes. So each message to one node carries the number of the tenant that its
//! target had when its descriptor was fetched, and a receiver drops packets with another number.
//! For the descriptors of a remote get, it is the number when the requester's unit read them. On
//! Blue Gene/Q, the kernel drains the network between two jobs instead.
//!
//! In: clients that come and go. Out: numbers. May touch: a table that the devices of a network
//! share. Devices of one machine run on one thread, so the order of its accesses is that of the
//! calls.

use std::sync::{
    Arc,
    atomic::{AtomicU16, Ordering},
};

use nicforge_hwi::mu::SUBGROUPS;

/// Numbers of the present tenants: [`SUBGROUPS`] for each node, in the order of nodes.
#[derive(Clone, Debug)]
pub(crate) struct Tenants(Arc<[AtomicU16]>);

impl Tenants {
    /// Returns the table of a network of this many nodes.
    pub(crate) fn new(nodes: u32) -> Self {
        Self((0..nodes as usize * usize::from(SUBGROUPS)).map(|_| AtomicU16::new(1)).collect())
    }

    /// Returns the number of a subgroup's tenant, for changes.
    fn entry(&self, node: u32, subgroup: u16) -> Option<&AtomicU16> {
        let exists = subgroup < SUBGROUPS;
        let index = node as usize * usize::from(SUBGROUPS) + usize::from(subgroup);
        self.0.get(index).filter(|_| exists)
    }

    /// Returns the number of a subgroup's tenant; 0 if there is no such subgroup.
    #[inline]
    pub(crate) fn number(&self, node: u32, subgroup: u16) -> u16 {
        self.entry(node, subgroup).map_or(0, |entry| entry.load(Ordering::Relaxed))
    }

    /// Records that a subgroup's tenant has changed. Its number is never 0.
    pub(crate) fn change(&self, node: u32, subgroup: u16) {
        if let Some(entry) = self.entry(node, subgroup) {
            let next = entry.load(Ordering::Relaxed).wrapping_add(1);
            entry.store(next.max(1), Ordering::Relaxed);
        }
    }
}

/// Returns the mark of a packet: a hash of the number of the tenant that it is for. A put is for
/// two tenants, those of its payload and of its counter; for other packets, `second` is 0. A mark
/// is never 0, which stands for a packet without one.
#[inline]
pub(crate) fn mark(first: u16, second: u16) -> u16 {
    // The factor makes the mark change if both numbers change by the same amount.
    first.wrapping_mul(3).wrapping_add(second).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_subgroups_are_apart_and_never_0() {
        let tenants = Tenants::new(2);
        for _ in 0..70_000 {
            tenants.change(1, 67);
            assert_ne!(tenants.number(1, 67), 0);
        }
        assert_eq!((tenants.number(1, 66), tenants.number(0, 67), tenants.number(0, 0)), (1, 1, 1));
        assert_eq!((tenants.number(2, 0), tenants.number(0, 68)), (0, 0));
    }

    #[test]
    fn a_change_of_either_tenant_changes_the_mark() {
        for (a, b) in [(1, 1), (7, 9), (u16::MAX, 5)] {
            assert_ne!(mark(a, b), mark(a.wrapping_add(1), b));
            assert_ne!(mark(a, b), mark(a, b.wrapping_add(1)));
            assert_ne!(mark(a, a), mark(a.wrapping_add(1), a.wrapping_add(1)));
            assert_ne!(mark(a, b), 0);
        }
    }
}
