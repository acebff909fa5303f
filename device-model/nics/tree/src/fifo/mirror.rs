//! The words of the mirror that change with the packets.

use std::sync::atomic::Ordering;

use super::memory::MirrorWords;

/// The values of the words in the mirror. A word is stored only when its value changes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) send_head: u32,
    pub(super) recv_tail: u32,
    pub(super) irq: u32,
    pub(super) status: u32,
    pub(super) error: u32,
}

impl Shown {
    /// Shows the receive tail ahead of the other words.
    pub(super) fn show_recv_tail(&mut self, words: &MirrorWords, tail: u32) {
        if self.recv_tail != tail {
            self.recv_tail = tail;
            words.recv_tail.store(tail, Ordering::Release);
        }
    }

    /// Shows the values of `now`.
    #[inline]
    pub(super) fn show(&mut self, words: &MirrorWords, now: &Self) {
        for (word, now, shown) in [
            (&words.send_head, now.send_head, &mut self.send_head),
            (&words.recv_tail, now.recv_tail, &mut self.recv_tail),
            (&words.irq, now.irq, &mut self.irq),
            (&words.status, now.status, &mut self.status),
            (&words.error, now.error, &mut self.error),
        ] {
            if now != *shown {
                *shown = now;
                word.store(now, Ordering::Release);
            }
        }
    }
}
