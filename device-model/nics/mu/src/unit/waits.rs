//! The waits of the reception engines: which engine waits for which FIFO in memory.
//!
//! An engine has the number of its network reception FIFO.
//!
//! In: packets that find no room, FIFOs that get room. Out: the engines that wait. May touch: its
//! own state.

use nicforge_hwi::mu_packet::reception_fifo;

/// A FIFO in memory that a packet waits for, by its number on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Reception(u16),
    Injection(u16),
}

/// The waits of all reception engines, and the turn among them.
#[derive(Debug, Default)]
pub(crate) struct ReceptionWaits {
    /// The FIFO that the first packet of each engine waits for.
    waits: [Option<Wait>; reception_fifo::COUNT as usize],
    /// Engines that wait, one bit for each.
    waiting: u16,
    /// Engine that is served first among those of the same priority.
    pub(crate) turn: u8,
}

impl ReceptionWaits {
    /// Returns the engines that wait, one bit for each.
    #[inline]
    pub(crate) fn waiting(&self) -> u16 {
        self.waiting
    }

    /// Records that the first packet of an engine waits for a FIFO.
    pub(crate) fn wait(&mut self, engine: u8, wait: Wait) {
        if let Some(entry) = self.waits.get_mut(usize::from(engine)) {
            *entry = Some(wait);
            self.waiting |= 1 << engine;
        }
    }

    /// Wakes the engines that wait for a reception FIFO.
    pub(crate) fn wake_for_reception(&mut self, fifo: u16) {
        self.wake(Wait::Reception(fifo));
    }

    /// Wakes the engines that wait for an injection FIFO.
    pub(crate) fn wake_for_injection(&mut self, fifo: u16) {
        self.wake(Wait::Injection(fifo));
    }

    /// Wakes all engines.
    pub(crate) fn wake_all(&mut self) {
        (self.waits, self.waiting) = (Default::default(), 0);
    }

    /// Wakes the engines whose wait is this one.
    fn wake(&mut self, wait: Wait) {
        if self.waiting == 0 {
            return;
        }
        for (entry, engine) in self.waits.iter_mut().zip(0..) {
            if *entry == Some(wait) {
                *entry = None;
                self.waiting &= !(1 << engine);
            }
        }
    }
}
