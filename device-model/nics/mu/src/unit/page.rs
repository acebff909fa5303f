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
    /// The values in the page.
    shown: [u64; WORDS],
    /// Injection FIFOs that have changed, one bit for each.
    changed_injection: u8,
    /// Reception FIFOs that have changed, one bit for each.
    changed_reception: u8,
    /// FIFOs may have been enabled or disabled.
    enables_changed: bool,
}

impl Page {
    /// Opens the page at an offset of a mirror, and clears what an earlier client's subgroup has
    /// left there.
    ///
    /// # Errors
    /// [`MemoryError`]: the page is not inside the mirror.
    pub(crate) fn open(mirror: &SharedMemory, offset: u64) -> Result<Self, MemoryError> {
        let window = mirror.window(offset, PAGE)?;
        for word in 0..WORDS as u64 {
            window.store_u64_release(word * 8, 0)?;
        }
        Ok(Self {
            window,
            shown: [0; WORDS],
            changed_injection: 0,
            changed_reception: 0,
            enables_changed: true,
        })
    }

    /// Records that an injection FIFO has changed, and may have been enabled or disabled.
    #[inline]
    pub(crate) fn mark_injection(&mut self, index: usize) {
        self.changed_injection |= 1 << index;
        self.enables_changed = true;
    }

    /// Records that a reception FIFO has changed, and may have been enabled or disabled.
    #[inline]
    pub(crate) fn mark_reception(&mut self, index: usize) {
        self.changed_reception |= 1 << index;
        self.enables_changed = true;
    }

    /// Records that the pointers of an injection FIFO have moved.
    #[inline]
    pub(crate) fn mark_moved_injection(&mut self, index: usize) {
        self.changed_injection |= 1 << index;
    }

    /// Records that the pointers of a reception FIFO have moved.
    #[inline]
    pub(crate) fn mark_moved_reception(&mut self, index: usize) {
        self.changed_reception |= 1 << index;
    }

    /// Records that all FIFOs may have changed.
    pub(crate) fn mark_all(&mut self) {
        (self.changed_injection, self.changed_reception, self.enables_changed) = (u8::MAX, u8::MAX, true);
    }

    /// Sets the word at an offset of the page to a value. Stores nothing if it has the value
    /// already.
    #[inline]
    pub(crate) fn publish(&mut self, offset: u64, value: u64) {
        let Some(shown) = self.shown.get_mut((offset / 8) as usize) else { return };
        if *shown != value {
            *shown = value;
            // The offset is that of a word of the page, so the store can't fail.
            let _ = self.window.store_u64_release(offset, value);
        }
    }
}

impl Subgroup {
    /// Publishes the values that have changed since the last call in the page.
    pub(crate) fn publish_changes(&mut self) {
        let mut injection = std::mem::take(&mut self.page.changed_injection);
        let mut reception = std::mem::take(&mut self.page.changed_reception);
        while injection != 0 {
            self.publish_injection(injection.trailing_zeros() as usize);
            injection &= injection - 1;
        }

        // [`Page::mark_all`] sets all bits, and there are fewer reception FIFOs.
        reception &= (1 << RECEPTION_FIFOS) - 1;
        while reception != 0 {
            self.publish_reception(reception.trailing_zeros() as usize);
            reception &= reception - 1;
        }

        if std::mem::take(&mut self.page.enables_changed) {
            self.page.publish(reg::IS_ENABLED, self.enabled_injection());
            self.page.publish(reg::RECEPTION_ENABLE, self.enabled_reception());
        }
        self.page.publish(reg::DROPPED, self.dropped);
        self.page.publish(reg::INTERRUPT_STATUS, self.interrupts.status);
    }

    /// Publishes the registers of an injection FIFO. The head and the count come after the free
    /// space that belongs to them. A fault comes last: software that sees it must also see the
    /// count of the descriptors before it, so that it takes none of these for one that was not
    /// done.
    fn publish_injection(&mut self, index: usize) {
        let base = reg::INJECTION + index as u64 * reg::FIFO;
        let fifo = &self.injection[index];
        self.page.publish(base + reg::TAIL, fifo.ring.tail);
        self.page.publish(base + reg::FREE_SPACE, fifo.ring.free());
        self.page.publish(base + reg::HEAD, fifo.ring.head);
        self.page.publish(base + reg::DESCRIPTOR_COUNT, fifo.descriptors_done);
        self.page.publish(base + reg::FAULT, fifo.fault);
    }

    /// Publishes the registers of a reception FIFO. The tail comes after the free space that
    /// belongs to it, and a fault after the tail of the packets that came before it.
    fn publish_reception(&mut self, index: usize) {
        let base = reg::RECEPTION + index as u64 * reg::FIFO;
        let fifo = &self.reception[index];
        self.page.publish(base + reg::HEAD, fifo.ring.head);
        self.page.publish(base + reg::FREE_SPACE, fifo.ring.free());
        self.page.publish(base + reg::TAIL, fifo.ring.tail);
        self.page.publish(base + reg::FAULT, fifo.fault);
    }
}
