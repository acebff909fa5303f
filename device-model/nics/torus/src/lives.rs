//! The lives of all cores of a network: which have software, and since when.
//!
//! The chip has no presence. Here processes die, and packets for a process can still be on their
//! way when another one takes its core. So the software of a core has a *life*, a number
//! ([`nicforge_hwi::torus::presence`]). A packet may name the life that it is for, and the card of
//! its destination drops it in any other.
//!
//! A change of a life is *shown* to the other cores when all packets of the former life have
//! arrived. Each packet carries the place and the life of its sender in its trailer
//! ([`Sender`]), and the table counts those in flight. A card that waits too long for a receiver
//! that takes nothing shows the change all the same. Until it is shown, the new life sends nothing.
//!
//! In: clients that come and go, packets that leave and arrive. Out: lives. May touch: a table that
//! the devices of a network in one machine share. They run on one thread, so the order of its
//! accesses is that of the calls. A lock is taken only while devices are made.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU16, AtomicU32, Ordering},
    },
};

use nicforge_hwi::torus::{CORES, TRAILER, presence};

/// A change of a core's software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Software has come or gone.
    ComesOrGoes,
    /// The same client counts as new software, because it was reset.
    Restarts,
}

/// The sender of a packet, as the trailer of the packet has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sender {
    pub(crate) node: u32,
    pub(crate) core: u16,
    pub(crate) life: u16,
}

impl Sender {
    /// Returns the trailer.
    #[inline]
    pub(crate) fn to_trailer(self) -> [u8; TRAILER] {
        let [place, life] = [self.node as u16 * CORES + self.core, self.life].map(u16::to_le_bytes);
        [place[0], place[1], life[0], life[1]]
    }

    /// Returns the sender that a trailer names.
    #[inline]
    pub(crate) fn of_trailer(trailer: [u8; TRAILER]) -> Self {
        let [a, b, c, d] = trailer;
        let place = u16::from_le_bytes([a, b]);
        Self { node: u32::from(place / CORES), core: place % CORES, life: u16::from_le_bytes([c, d]) }
    }
}

/// A core.
#[derive(Debug, Default)]
struct Entry {
    /// The present life.
    life: AtomicU16,
    /// The life that other cores see: the present one, or the last that was shown.
    shown: AtomicU16,
    /// Packets of the present life in flight.
    in_flight: AtomicU32,
    /// Packets of former lives in flight.
    former_in_flight: AtomicU32,
}

impl Entry {
    /// Counts a packet that has arrived, or was dropped.
    fn count_arrival(&self, life: u16) {
        let is_present = life == self.life.load(Ordering::Relaxed);
        let in_flight = if is_present { &self.in_flight } else { &self.former_in_flight };
        let count = in_flight.load(Ordering::Relaxed);
        in_flight.store(count.saturating_sub(1), Ordering::Relaxed);
    }

    /// Returns whether the present life is the one that other cores see.
    fn is_shown(&self) -> bool {
        self.shown.load(Ordering::Relaxed) == self.life.load(Ordering::Relaxed)
    }
}

/// The lives of all cores of a network in one machine.
#[derive(Clone, Debug)]
pub(crate) struct Lives {
    /// [`CORES`] for each node.
    entries: Arc<[Entry]>,
    /// Number of changes that were shown.
    changes: Arc<AtomicU32>,
}

impl Lives {
    /// Returns the table of a network of this many nodes, without software.
    pub(crate) fn new(nodes: u32) -> Self {
        // Life 0 stands for any life in a packet, so the first one is 1.
        let cores = nodes as usize * usize::from(CORES);
        Self { entries: (0..cores).map(|_| Entry::default()).collect(), changes: Arc::default() }
    }

    /// Returns a core's entry, if it exists.
    #[inline]
    fn entry(&self, node: u32, core: u16) -> Option<&Entry> {
        self.entries.get(node as usize * usize::from(CORES) + usize::from(core))
    }

    /// Returns the lives of a node's cores that other cores see, as a word of
    /// [`nicforge_hwi::torus::presence`]; `None` if the node does not exist.
    pub(crate) fn shown(&self, node: u32) -> Option<u32> {
        let shown = |core| Some(self.entry(node, core)?.shown.load(Ordering::Relaxed));
        Some(u32::from(shown(0)?) | u32::from(shown(1)?) << 16)
    }

    /// Returns the present life of a core; 0, which is none, if it does not exist.
    #[inline]
    pub(crate) fn life(&self, node: u32, core: u16) -> u16 {
        self.entry(node, core).map_or(0, |entry| entry.life.load(Ordering::Relaxed))
    }

    /// Returns whether other cores see the present life of a core.
    #[inline]
    pub(crate) fn is_shown(&self, node: u32, core: u16) -> bool {
        self.entry(node, core).is_none_or(Entry::is_shown)
    }

    /// Returns the number of changes that were shown, modulo 2^32.
    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Counts a packet that a core sends. Returns its sender for the trailer.
    #[inline]
    pub(crate) fn count_sent(&self, node: u32, core: u16) -> Sender {
        let Some(entry) = self.entry(node, core) else { return Sender { node, core, life: 0 } };
        entry.in_flight.fetch_add(1, Ordering::Relaxed);
        Sender { node, core, life: entry.life.load(Ordering::Relaxed) }
    }

    /// Counts a packet that has arrived, or was dropped. The last one of a former life shows the
    /// present one.
    #[inline]
    pub(crate) fn count_arrival(&self, sender: Sender) {
        let Some(entry) = self.entry(sender.node, sender.core) else { return };
        entry.count_arrival(sender.life);
        if !entry.is_shown() && entry.former_in_flight.load(Ordering::Relaxed) == 0 {
            self.show(sender.node, sender.core);
        }
    }

    /// Advances the life of a core, and shows it unless packets of the former one are in flight.
    pub(crate) fn change(&self, node: u32, core: u16, change: Change) {
        let Some(entry) = self.entry(node, core) else { return };
        let in_flight = entry.in_flight.swap(0, Ordering::Relaxed);
        let former = entry.former_in_flight.fetch_add(in_flight, Ordering::Relaxed) + in_flight;

        let life = next_life(entry.life.load(Ordering::Relaxed), change);
        entry.life.store(life, Ordering::Relaxed);
        if former == 0 {
            self.show(node, core);
        }
    }

    /// Shows the present life of a core, although packets of a former one may be in flight.
    pub(crate) fn show(&self, node: u32, core: u16) {
        let Some(entry) = self.entry(node, core) else { return };
        entry.shown.store(entry.life.load(Ordering::Relaxed), Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }
}

/// The tables of a network: one for each machine that is built of its plan.
///
/// A plan can be built several times, and each machine has a table of its own. A machine has one
/// device of each node. A second device of a node therefore belongs to the next machine.
#[derive(Debug)]
pub(crate) struct SharedLives {
    /// Number of nodes.
    nodes: u32,
    current: Mutex<CurrentTable>,
}

/// The table of the machine that is being built.
#[derive(Debug)]
struct CurrentTable {
    lives: Lives,
    /// Nodes whose devices have the table.
    nodes: BTreeSet<u32>,
}

impl SharedLives {
    /// Returns the tables of a network of this many nodes.
    pub(crate) fn new(nodes: u32) -> Self {
        let current = CurrentTable { lives: Lives::new(nodes), nodes: BTreeSet::new() };
        Self { nodes, current: Mutex::new(current) }
    }

    /// Returns the table for the device of a node.
    pub(crate) fn of_node(&self, node: u32) -> Lives {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if !current.nodes.insert(node) {
            *current = CurrentTable { lives: Lives::new(self.nodes), nodes: BTreeSet::from([node]) };
        }
        current.lives.clone()
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

const _: () = assert!(CORES == 2 && presence::is_up(1));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_odd_while_there_is_software_and_never_0() {
        let lives = Lives::new(2);
        assert_eq!((lives.life(1, 0), lives.life(1, 1), lives.life(2, 0)), (0, 0, 0));

        for _ in 0..40_000 {
            lives.change(1, 1, Change::ComesOrGoes);
            assert!(presence::is_up(lives.life(1, 1)));
            lives.change(1, 1, Change::Restarts);
            assert!(presence::is_up(lives.life(1, 1)));
            lives.change(1, 1, Change::ComesOrGoes);
            assert!(!presence::is_up(lives.life(1, 1)) && lives.life(1, 1) != 0);
        }
        assert_eq!((lives.life(1, 0), lives.shown(0), lives.shown(2)), (0, Some(0), None));
        assert_eq!(lives.changes(), 120_000);
    }

    #[test]
    fn a_change_is_shown_when_the_former_life_has_no_packet_in_flight() {
        let lives = Lives::new(1);
        lives.change(0, 0, Change::ComesOrGoes);
        let sent = [(), ()].map(|()| lives.count_sent(0, 0));

        lives.change(0, 0, Change::ComesOrGoes);
        lives.change(0, 0, Change::ComesOrGoes);
        assert_eq!((lives.life(0, 0), lives.shown(0)), (3, Some(1)));
        let of_successor = lives.count_sent(0, 0);
        lives.count_arrival(of_successor);
        lives.count_arrival(sent[0]);
        assert_eq!(lives.shown(0), Some(1));
        lives.count_arrival(sent[1]);
        assert_eq!((lives.shown(0), lives.is_shown(0, 0)), (Some(3), true));
    }

    #[test]
    fn a_trailer_names_its_sender() {
        let sender = Sender { node: 4095, core: 1, life: 0xfffe };
        assert_eq!(Sender::of_trailer(sender.to_trailer()), sender);
    }
}
