//! The page of a subgroup in its client's mirror.
//!
//! In: which FIFOs have moved, and their values at the end of a step. Out: stores to the page. May
//! touch: the page.

use nicforge_hwi::{
    mu::{PAGE, RECEPTION_FIFOS, reg},
    mu_packet::CLASSES,
};
use nicforge_shm::{MemoryError, SharedMemory, Window};

use super::subgroup::Subgroup;

/// Words of a page that are shown.
const WORDS: usize = reg::GI_STATUS as usize / 8 + CLASSES;

/// A subgroup's page, and what it shows.
pub(crate) struct Page {
    window: Window,
    shown: [u64; WORDS],
    /// FIFOs that have changed, one bit for each.
    injection: u8,
    reception: u8,
    /// FIFOs may have been enabled or disabled.
    enables: bool,
}

impl Page {
    /// Opens a page of a mirror, whatever an earlier client has left there, and clears it.
    ///
    /// # Errors
    /// The memory is smaller.
    pub(crate) fn open(mirror: &SharedMemory, offset: u64) -> Result<Self, MemoryError> {
        let window = mirror.window(offset, PAGE)?;
        for word in 0..WORDS as u64 {
            window.store_u64_release(word * 8, 0)?;
        }
        Ok(Self { window, shown: [0; WORDS], injection: 0, reception: 0, enables: true })
    }

    /// Records that an injection FIFO has changed.
    #[inline]
    pub(crate) fn mark_injection(&mut self, fifo: usize) {
        self.injection |= 1 << fifo;
        self.enables = true;
    }

    /// Records that a reception FIFO has changed.
    #[inline]
    pub(crate) fn mark_reception(&mut self, fifo: usize) {
        self.reception |= 1 << fifo;
        self.enables = true;
    }

    /// Records that the pointers of an injection FIFO have moved.
    #[inline]
    pub(crate) fn mark_moved_injection(&mut self, fifo: usize) {
        self.injection |= 1 << fifo;
    }

    /// Records that the pointers of a reception FIFO have moved.
    #[inline]
    pub(crate) fn mark_moved_reception(&mut self, fifo: usize) {
        self.reception |= 1 << fifo;
    }

    /// Records that all FIFOs may have changed.
    pub(crate) fn mark_all(&mut self) {
        (self.injection, self.reception, self.enables) = (u8::MAX, u8::MAX, true);
    }

    /// Shows a value. Only a change is stored.
    #[inline]
    pub(crate) fn publish(&mut self, offset: u64, value: u64) {
        let Some(shown) = self.shown.get_mut((offset / 8) as usize) else { return };
        if *shown != value {
            *shown = value;
            // The offset is that of a word of the page.
            let _ = self.window.store_u64_release(offset, value);
        }
    }
}

impl Subgroup {
    /// Shows what has changed.
    pub(crate) fn show_changes(&mut self) {
        let (mut injection, mut reception) = (self.page.injection, self.page.reception);
        (self.page.injection, self.page.reception) = (0, 0);
        while injection != 0 {
            self.show_injection(injection.trailing_zeros() as usize);
            injection &= injection - 1;
        }

        reception &= (1 << RECEPTION_FIFOS) - 1;
        while reception != 0 {
            self.show_reception(reception.trailing_zeros() as usize);
            reception &= reception - 1;
        }

        if std::mem::take(&mut self.page.enables) {
            self.page.publish(reg::IS_ENABLED, self.enabled_injection());
            self.page.publish(reg::RECEPTION_ENABLE, self.enabled_reception());
        }
        self.page.publish(reg::DROPPED, self.dropped);
        self.page.publish(reg::INTERRUPT_STATUS, self.interrupts.status);
    }

    fn show_injection(&mut self, fifo: usize) {
        let base = reg::INJECTION + fifo as u64 * reg::FIFO;
        let state = &self.injection[fifo];
        self.page.publish(base + reg::FAULT, state.fault);
        self.page.publish(base + reg::TAIL, state.ring.tail);
        self.page.publish(base + reg::FREE_SPACE, state.ring.free());
        self.page.publish(base + reg::HEAD, state.ring.head);
        self.page.publish(base + reg::DESCRIPTOR_COUNT, state.descriptors);
    }

    fn show_reception(&mut self, fifo: usize) {
        let base = reg::RECEPTION + fifo as u64 * reg::FIFO;
        let state = &self.reception[fifo];
        self.page.publish(base + reg::FAULT, state.fault);
        self.page.publish(base + reg::HEAD, state.ring.head);
        self.page.publish(base + reg::FREE_SPACE, state.ring.free());
        self.page.publish(base + reg::TAIL, state.ring.tail);
    }
}
