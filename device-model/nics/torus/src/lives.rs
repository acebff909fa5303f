//! The lives of all cores of a network: which have software, and since when.
//!
//! The chip has no presence. Here processes die, and packets for a process can still be on their
//! way when another one takes its core. So the software of a core has a *life*, a number
//! ([`nicforge_hwi::torus::presence`]). A packet may name the life that it is for, and the card of
//! its destination drops it in any other.
//!
//! In: clients that come and go. Out: lives. May touch: a table that the devices of a network
//! share. Devices of one machine run on one thread, so the order of its accesses is that of the
//! calls.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use nicforge_hwi::torus::presence;

/// A change of a core's software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Software has come or gone.
    ComesOrGoes,
    /// The same client counts as new software, because it was reset.
    Restarts,
}

/// The lives of all cores.
#[derive(Clone, Debug)]
pub(crate) struct Lives {
    /// A word for each node, as [`presence`] describes it.
    words: Arc<[AtomicU32]>,
    /// Number of changes.
    changes: Arc<AtomicU32>,
}

impl Lives {
    /// Returns the table of a network of this many nodes, without software.
    pub(crate) fn new(nodes: u32) -> Self {
        // Life 0 stands for any life in a packet, so the first one is 1.
        let words = (0..nodes).map(|_| AtomicU32::new(0)).collect();
        Self { words, changes: Arc::default() }
    }

    /// Returns the word of a node; `None` if it does not exist.
    #[inline]
    pub(crate) fn word(&self, node: u32) -> Option<u32> {
        Some(self.words.get(node as usize)?.load(Ordering::Relaxed))
    }

    /// Returns the life of a core; 0, which is none, if it does not exist.
    #[inline]
    pub(crate) fn life(&self, node: u32, core: u16) -> u16 {
        self.word(node).map_or(0, |word| presence::life(word, core))
    }

    /// Returns the number of changes, modulo 2^32.
    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Advances the life of a core. Returns the new one.
    pub(crate) fn change(&self, node: u32, core: u16, change: Change) -> u16 {
        let Some(entry) = self.words.get(node as usize) else { return 0 };
        let word = entry.load(Ordering::Relaxed);
        let life = next_life(presence::life(word, core), change);

        let shift = 16 * u32::from(core & 1);
        entry.store(word & !(0xffff << shift) | u32::from(life) << shift, Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::Relaxed);
        life
    }
}

/// Returns the life after a change. It is never 0.
fn next_life(life: u16, change: Change) -> u16 {
    let next = match change {
        Change::ComesOrGoes => life.wrapping_add(1),
        Change::Restarts => life.wrapping_add(2),
    };
    // Only an even life can be 0 here.
    if next == 0 { 2 } else { next }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_odd_while_there_is_software_and_never_0() {
        let lives = Lives::new(2);
        assert_eq!((lives.life(1, 0), lives.life(1, 1), lives.life(2, 0)), (0, 0, 0));

        for _ in 0..40_000 {
            let life = lives.change(1, 1, Change::ComesOrGoes);
            assert!(presence::is_up(life));
            assert_eq!(lives.change(1, 1, Change::Restarts) % 2, 1);
            let life = lives.change(1, 1, Change::ComesOrGoes);
            assert!(!presence::is_up(life) && life != 0);
        }
        assert_eq!((lives.life(1, 0), lives.word(0)), (0, Some(0)));
        assert_eq!(lives.changes(), 120_000);
    }
}
