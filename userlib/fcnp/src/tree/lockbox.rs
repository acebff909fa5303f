//! Lock boxes: the node's hardware mutexes, by which its cores share the FIFOs.
//!
//! A lock box is a word that is 0 when free. A thread locks it by compare-and-swap: it writes its
//! attachment number + 1 into bits 15..0 and its thread number into bits 31..16. When an attachment
//! ends, the NIC frees the lock boxes with that attachment's number.
//!
//! A lock box can be handed to another core without being free in between ([`Held::hand_over`]). It
//! then belongs to that core, but to no thread of it yet.

use std::sync::{MutexGuard, atomic::Ordering};

use nicforge_driver::runtime;
use nicforge_hwi::tree::window;
use nicforge_shm::{SharedU32, Window};

use crate::{Error, wait::Waiter};

/// Thread number of a lock box that was handed over and has not been adopted.
const NO_THREAD: u16 = u16::MAX;

/// Returns the calling thread's number. Threads of one process have different numbers while the
/// process starts fewer than 65,535.
///
/// The number only identifies the lock's owner. Two threads with the same number still exclude each
/// other.
pub fn thread_number() -> u16 {
    (runtime::thread_number() % u32::from(NO_THREAD)) as u16
}

/// Returns the word of a lock box that thread `thread` of attachment `core` has locked. It
/// identifies the owner of the lock.
pub(super) fn owner_word(core: u16, thread: u16) -> u32 {
    (u32::from(core) + 1) | (u32::from(thread) << 16)
}

/// One lock box.
#[derive(Clone, Debug)]
pub struct LockBox {
    word: SharedU32,
    number: u64,
}

impl LockBox {
    /// Opens lock box `number` of the channel's windows.
    pub(super) fn new(windows: &Window, number: u64) -> Result<Self, Error> {
        Ok(Self { word: windows.u32(window::LOCK + number * window::LOCK_STRIDE)?, number })
    }

    /// Locks the lock box if it is free.
    #[inline]
    pub fn try_lock(&self, owner: u32) -> Option<Held<&Self>> {
        if self.try_take_word(owner) { Some(Held { lock: self, owner }) } else { None }
    }

    /// Locks the lock box if it is free. The guard has its own clone of the lock box.
    pub fn try_lock_owned(&self, owner: u32) -> Option<Held<Self>> {
        if self.try_take_word(owner) { Some(Held { lock: self.clone(), owner }) } else { None }
    }

    /// Locks the lock box if it is free, or if it was handed to the core of `owner`.
    pub fn try_adopt(&self, owner: u32) -> Option<Held<&Self>> {
        // The word of a lock box that was handed to the core has the core's number, and no
        // thread's.
        let handed = (owner & 0xffff) | (u32::from(NO_THREAD) << 16);
        let is_adopted =
            self.word.compare_exchange(handed, owner, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if is_adopted { Some(Held { lock: self, owner }) } else { self.try_lock(owner) }
    }

    /// Frees the lock box if it was handed to core `core`. The caller knows that the core has gone,
    /// or that the call has ended that would have adopted it.
    pub fn free_handed(&self, core: u16) {
        let handed = owner_word(core, NO_THREAD);
        let _ = self.word.compare_exchange(handed, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Waits until it has locked the lock box.
    pub(crate) fn lock(&self, owner: u32, waiter: &mut Waiter<'_>) -> Result<Held<&Self>, Error> {
        loop {
            if let Some(guard) = self.try_lock(owner) {
                return Ok(guard);
            }

            waiter.pause("a lock box of the node")?;
        }
    }

    /// Returns whether `owner` has locked the lock box. `owner` is a thread's
    /// [`TreeChannel::owner`](super::TreeChannel::owner).
    #[inline]
    pub fn is_owned_by(&self, owner: u32) -> bool {
        self.word.load(Ordering::Relaxed) == owner
    }

    /// Returns the attachment of the core that has locked the lock box, if any core has.
    pub fn attachment(&self) -> Option<u16> {
        ((self.word.load(Ordering::Relaxed) & 0xffff) as u16).checked_sub(1)
    }

    /// Writes `owner` into the word if the lock box is free. Returns whether it did.
    #[inline]
    fn try_take_word(&self, owner: u32) -> bool {
        // A load first keeps the cache line shared while another thread holds the lock.
        self.word.load(Ordering::Relaxed) == 0
            && self.word.compare_exchange(0, owner, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

impl AsRef<LockBox> for LockBox {
    fn as_ref(&self) -> &LockBox {
        self
    }
}

/// Proof that a lock box is held: a [`Held`], or a type that contains one.
pub trait HoldsLock {
    /// Returns the number of the lock box.
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

/// A lock box that is held. It is freed when this is dropped.
#[derive(Debug)]
pub struct Held<L: AsRef<LockBox>> {
    lock: L,
    owner: u32,
}

impl<L: AsRef<LockBox>> Held<L> {
    /// Hands the lock box to core `core`, which locks it with [`LockBox::try_adopt`]. The lock box
    /// is not free at any time, so no other core gets it. From here on the caller must not access
    /// what the lock guards.
    pub fn hand_over(&mut self, core: u16) {
        let word = &self.lock.as_ref().word;
        let handed = owner_word(core, NO_THREAD);
        let _ = word.compare_exchange(self.owner, handed, Ordering::AcqRel, Ordering::Relaxed);
        // The drop does nothing to a lock box of another owner.
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
        // The word has another value if the attachment was reset, because the NIC has freed it
        // then.
        let _ = self.lock.as_ref().word.compare_exchange(self.owner, 0, Ordering::Release, Ordering::Relaxed);
        runtime::note_store();
    }
}
