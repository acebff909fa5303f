//! Lock boxes: the node's hardware mutexes.
//!
//! A box is a word that is 0 when free. Who takes it by compare-and-swap writes its attachment number + 1 into bits 15..0, by
//! which the NIC knows whose boxes to free when an attachment ends, and the number of its thread into bits 31..16.
//!
//! A box can be handed to another core without being free in between ([`Held::hand_over`]): it then belongs to that core, but
//! to no thread of it yet.

use std::sync::{
    MutexGuard,
    atomic::{AtomicU16, Ordering},
};

use nicforge_hwi::tree::window;
use nicforge_shm::{SharedU32, Window};

use crate::{Error, wait::Waiter};

/// Thread number of a box that was handed over and not adopted.
const NO_THREAD: u16 = u16::MAX;

/// A number for the calling thread. Threads of one process have different numbers as long as it starts fewer than 65,535.
///
/// It only says whose lock it is: two threads with the same number exclude each other all the same.
pub fn thread_number() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    thread_local! {
        static NUMBER: u16 = NEXT.fetch_add(1, Ordering::Relaxed) % NO_THREAD;
    }
    NUMBER.with(|number| *number)
}

/// The value by which thread `thread` of attachment `core` owns boxes.
pub(super) fn owner(core: u16, thread: u16) -> u32 {
    (u32::from(core) + 1) | (u32::from(thread) << 16)
}

/// One lock box.
#[derive(Clone, Debug)]
pub struct LockBox {
    word: SharedU32,
    number: u64,
}

impl LockBox {
    /// Box `number` of the channel's windows.
    pub(super) fn new(windows: &Window, number: u64) -> Result<Self, Error> {
        Ok(Self { word: windows.u32(window::LOCK + number * window::LOCK_STRIDE)?, number })
    }

    /// Takes the box if it is free.
    #[inline]
    pub fn try_lock(&self, owner: u32) -> Option<Held<&Self>> {
        if self.take(owner) { Some(Held { lock: self, owner }) } else { None }
    }

    /// The same, with a guard that owns its box.
    pub fn try_lock_owned(&self, owner: u32) -> Option<Held<Self>> {
        if self.take(owner) { Some(Held { lock: self.clone(), owner }) } else { None }
    }

    /// Takes the box if it is free, or was handed to the core of `owner`.
    pub fn try_adopt(&self, owner: u32) -> Option<Held<&Self>> {
        let handed = (owner & 0xffff) | (u32::from(NO_THREAD) << 16);
        let adopted =
            || self.word.compare_exchange(handed, owner, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if adopted() { Some(Held { lock: self, owner }) } else { self.try_lock(owner) }
    }

    /// Frees the box if it was handed to core `core`, which has not adopted it and is known to be gone.
    pub fn free_handed(&self, core: u16) {
        let handed = self::owner(core, NO_THREAD);
        let _ = self.word.compare_exchange(handed, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Waits for the box.
    pub(crate) fn lock(&self, owner: u32, waiter: &mut Waiter<'_>) -> Result<Held<&Self>, Error> {
        loop {
            if let Some(held) = self.try_lock(owner) {
                return Ok(held);
            }
            waiter.turn("a lock box of the node")?;
        }
    }

    /// Whether the box belongs to `owner`, a thread's [`TreeChannel::owner`](super::TreeChannel::owner).
    #[inline]
    pub fn is_owned_by(&self, owner: u32) -> bool {
        self.word.load(Ordering::Relaxed) == owner
    }

    /// The attachment that has the box, if any.
    pub fn attachment(&self) -> Option<u16> {
        ((self.word.load(Ordering::Relaxed) & 0xffff) as u16).checked_sub(1)
    }

    #[inline]
    fn take(&self, owner: u32) -> bool {
        // Looking first keeps the line shared while somebody else has the box.
        self.word.load(Ordering::Relaxed) == 0
            && self.word.compare_exchange(0, owner, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

impl AsRef<LockBox> for LockBox {
    fn as_ref(&self) -> &LockBox {
        self
    }
}

/// Proof that a lock box is held: a [`Held`], or something that lends one out.
pub trait HoldsLock {
    /// Number of the box.
    fn number(&self) -> u64;
}

impl<T: HoldsLock> HoldsLock for &T {
    fn number(&self) -> u64 {
        T::number(self)
    }
}

impl<T: HoldsLock> HoldsLock for MutexGuard<'_, T> {
    fn number(&self) -> u64 {
        T::number(self)
    }
}

/// A lock box that is held; it is free again when this is dropped.
#[derive(Debug)]
pub struct Held<L: AsRef<LockBox>> {
    lock: L,
    owner: u32,
}

impl<L: AsRef<LockBox>> Held<L> {
    /// Makes the box core `core`'s, which takes it with [`LockBox::try_adopt`]. It is never free in between, so that
    /// nobody else gets it. Nothing may be done under this lock afterwards.
    pub fn hand_over(&mut self, core: u16) {
        let word = &self.lock.as_ref().word;
        let handed = owner(core, NO_THREAD);
        let _ = word.compare_exchange(self.owner, handed, Ordering::AcqRel, Ordering::Relaxed);
        // Dropping does nothing to a box that is not ours.
    }
}

impl<L: AsRef<LockBox>> HoldsLock for Held<L> {
    fn number(&self) -> u64 {
        self.lock.as_ref().number
    }
}

impl<L: AsRef<LockBox>> Drop for Held<L> {
    #[inline]
    fn drop(&mut self) {
        // It is not ours any more when the NIC freed it because the attachment was reset.
        let _ = self.lock.as_ref().word.compare_exchange(self.owner, 0, Ordering::Release, Ordering::Relaxed);
    }
}
