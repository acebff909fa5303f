//! Posted writes: register writes through a ring in mapped memory, without a system call.
//!
//! Each write becomes a record {BAR, offset, data} in one of the attachment's rings. A device
//! without rings gets trapped writes instead.

use std::{
    cell::Cell,
    fmt,
    marker::PhantomData,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use nicforge_hwi::{attachment::mirror, posted};
use nicforge_shm::{Producer, PushError, SharedCells, SharedU32};

use crate::{
    Cancel, Deadline, Error, WriteMode,
    device::{EngineWaker, Shared, capability, lock},
    runtime::note_store,
};

/// The producer's end of a ring, with all that a post needs.
pub(crate) struct Ring {
    /// Number of the ring.
    index: u8,
    producer: Producer<SharedCells>,
    /// Number of cells that the engine has consumed, modulo 2^32, in the mirror.
    consumed: SharedU32,
    waker: EngineWaker,
    /// Number of resets after which the ring was opened: see [`Shared::epoch`].
    epoch: u32,
    /// Maximum number of data bytes of a record.
    max_data: usize,
}

impl Ring {
    /// Opens ring `index` at the record that the engine reads next.
    pub(crate) fn open(shared: &Shared, index: u8) -> Result<Self, Error> {
        let count = shared.rings.len() as u32;
        let none = || Error::NoSuch { what: "posted-write ring", index: index.into(), count };
        let capability = shared.capability.filter(|found| index < found.ring_count).ok_or_else(none)?;

        let bytes = capability::ring_bytes(&capability);
        let offset = u64::from(capability.ring_offset) + u64::from(index) * bytes;
        let window = shared.region(capability.ring_bar)?.window(offset, bytes)?;

        let head = u64::from(capability.mirror_offset)
            + mirror::RING_HEAD
            + u64::from(index) * mirror::RING_HEAD_STRIDE;
        let consumed = shared.region(capability.mirror_bar)?.window(head, 4)?.u32(0)?;
        let cells = SharedCells::new(window)
            .map_err(|_| Error::Protocol { what: "the ring's memory cannot be a ring", value: bytes })?;

        let waker = shared.engine_waker().ok_or_else(none)?;
        let epoch = shared.epoch(Ordering::Acquire);
        let RingState { cell, phase } = shared.ring_state(index)?;
        let producer = Producer::resume(cells, cell, phase);
        Ok(Self { index, producer, consumed, waker, epoch, max_data: capability::max_data(&capability) })
    }

    /// Posts a write if that takes only a few instructions: if the ring is of this epoch and has
    /// room, and the arguments are valid. Otherwise it does nothing.
    #[inline(always)]
    fn post_quickly(&mut self, shared: &Shared, bar: u8, offset: u32, data: &[u8]) -> QuickPost {
        if self.epoch != shared.epoch(Ordering::Relaxed) || data.len() > self.max_data {
            return QuickPost::NotPosted;
        }

        let consumed = &self.consumed;
        if self.producer.try_push(|| consumed.load(Ordering::Acquire), bar, offset, data).is_err() {
            return QuickPost::NotPosted;
        }

        note_store();
        if self.waker.must_wake() { QuickPost::MustWake } else { QuickPost::Posted }
    }

    /// Posts a write, and wakes the engine if it sleeps. After a reset of the device, the ring is
    /// opened again first.
    fn try_post(&mut self, shared: &Shared, bar: u8, offset: u32, data: &[u8]) -> Result<(), Error> {
        shared.check_owner()?;
        if self.epoch != shared.epoch(Ordering::Relaxed) {
            *self = Self::open(shared, self.index)?;
        }

        if data.len() > self.max_data {
            return Err(Error::BadLength { len: data.len(), most: self.max_data });
        }

        let consumed = &self.consumed;
        match self.producer.try_push(|| consumed.load(Ordering::Acquire), bar, offset, data) {
            Ok(()) => shared.after_store_with(&self.waker),
            // The engine need not be woken: it was, if it slept, for the records in the ring.
            Err(PushError::Full) => Err(Error::RingFull { ring: self.index }),
            Err(PushError::BadLength { len }) => Err(Error::BadLength { len, most: self.max_data }),
            Err(PushError::BadBar { bar }) => Err(Error::NoSuch { what: "BAR", index: bar.into(), count: 6 }),
        }
    }
}

/// Where the engine reads the next record of a posted-write ring.
pub(crate) struct RingState {
    /// Index of the cell.
    pub(crate) cell: u32,
    /// The phase bit of a record that is new there.
    pub(crate) phase: bool,
}

/// Outcome of [`Poster::post_quickly`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum QuickPost {
    /// The write is posted, and the engine is awake.
    Posted,
    /// The write is posted, but the engine sleeps: the caller must call [`Poster::wake_engine`].
    MustWake,
    /// Nothing was posted. [`Poster::try_post`] posts the write, or returns the reason why not.
    NotPosted,
}

/// A position in the sequence of records of a posted-write ring: see [`Poster::position`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPosition {
    /// Epoch of the ring: see [`Shared::epoch`].
    epoch: u32,
    /// Number of cells that the producer had written, modulo 2^32.
    position: u32,
}

/// The slot in which a device keeps a ring while no [`Poster`] holds it.
#[derive(Default)]
pub(crate) struct RingSlot(Mutex<Option<Ring>>);

impl RingSlot {
    /// Puts the ring of a dropped poster back.
    pub(crate) fn put(&self, ring: Ring) {
        *lock(&self.0) = Some(ring);
    }
}

/// Returns whether a write lies in its BAR.
#[inline(always)]
fn fits(shared: &Shared, bar: u8, offset: u64, data: &[u8]) -> bool {
    // The sum saturates for no offset that a record can have, because slices are shorter than 2^63.
    offset.saturating_add(data.len() as u64) <= shared.bar_size(bar)
}

/// Returns the offset of a posted write as a record has it. The write must lie in its BAR.
fn record_offset(shared: &Shared, bar: u8, offset: u64, data: &[u8]) -> Result<u32, Error> {
    match u32::try_from(offset) {
        Ok(short) if fits(shared, bar, offset, data) => Ok(short),
        _ => {
            let (len, size) = (data.len() as u64, shared.bar_size(bar));
            Err(Error::OutOfRange { what: "BAR", index: bar.into(), offset, len, size })
        }
    }
}

/// Makes a posted write of a device without rings: a trapped write.
fn post_trapped(shared: &Shared, bar: u8, offset: u32, data: &[u8]) -> Result<(), Error> {
    if data.is_empty() || data.len() > posted::MAX_DATA {
        return Err(Error::BadLength { len: data.len(), most: posted::MAX_DATA });
    }
    shared.write(bar.into(), offset.into(), data, WriteMode::Confirmed)
}

/// Tries to post to a full ring again and again, for `timeout` at most. The caller has made the
/// first attempt.
#[cold]
fn wait_for_room(
    shared: &Shared,
    timeout: Duration,
    cancel: Option<&Cancel>,
    mut post: impl FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    shared.wait_for(Deadline::after(timeout), cancel, "room in a posted-write ring", || match post() {
        Ok(()) => Ok(Some(())),
        Err(Error::RingFull { .. }) => Ok(None),
        Err(error) => Err(error),
    })
}

/// Posts a write to ring 0, which all callers share by a lock.
pub(crate) fn post_shared(shared: &Shared, bar: u8, offset: u64, data: &[u8]) -> Result<(), Error> {
    shared.check_owner()?;
    let offset = record_offset(shared, bar, offset, data)?;
    let Some(slot) = shared.rings.first() else { return post_trapped(shared, bar, offset, data) };

    // The lock is released between attempts, so that no other thread waits for it without a
    // deadline.
    let post = || match &mut *lock(&slot.0) {
        Some(ring) => ring.try_post(shared, bar, offset, data),
        None => Err(Error::RingTaken { ring: 0 }),
    };

    match post() {
        Err(Error::RingFull { .. }) => wait_for_room(shared, shared.options.timeout, None, post),
        result => result,
    }
}

/// The producer of one posted-write ring.
///
/// A ring belongs to one lock domain, so a `Poster` is not `Sync`. Threads that order their writes
/// by a lock put one poster behind that lock, or use a [`SharedPoster`].
///
/// A post makes no system call, takes no lock and allocates nothing, as long as the ring has room
/// and the engine is awake. Records of one poster take effect in the order they were posted. They
/// are not ordered with direct stores, DMA or other rings.
pub struct Poster {
    shared: Arc<Shared>,
    /// `None` while the poster is being dropped, and for a device without rings, whose posted
    /// writes are trapped.
    ring: Option<Ring>,
    /// How long a post waits for room.
    timeout: Duration,
    /// The token that ends a wait for room.
    cancel: Option<Cancel>,
    /// Makes the poster usable by one thread at a time.
    _one_thread: PhantomData<Cell<()>>,
}

impl Poster {
    /// Takes ring `ring` out of its slot: see [`Device::poster`](crate::Device::poster).
    pub(crate) fn new(shared: &Arc<Shared>, ring: u8) -> Result<Self, Error> {
        shared.check_owner()?;
        let held = match shared.rings.get(usize::from(ring)) {
            Some(slot) => Some(lock(&slot.0).take().ok_or(Error::RingTaken { ring })?),
            None if shared.rings.is_empty() && ring == 0 => None,
            None => {
                let count = shared.rings.len() as u32;
                return Err(Error::NoSuch { what: "posted-write ring", index: ring.into(), count });
            }
        };

        let timeout = shared.options.timeout;
        Ok(Self { shared: shared.clone(), ring: held, timeout, cancel: None, _one_thread: PhantomData })
    }

    /// Sets how long [`Poster::post`] waits for room.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Sets the token that ends a wait for room.
    pub fn set_cancel(&mut self, cancel: Option<Cancel>) {
        self.cancel = cancel;
    }

    /// Posts a write of `data` (1 to 512 bytes) to `offset` in BAR `bar`. It waits for room while
    /// the ring is full.
    ///
    /// # Errors
    /// A post to a full ring ends with [`Error::Timeout`], [`Error::Cancelled`] or
    /// [`Error::DeviceGone`]. The record has then not been posted. [`Error::DeviceGone`] is also
    /// returned when the record was posted but the sleeping engine could not be woken. Bad
    /// arguments return [`Error::OutOfRange`] or [`Error::BadLength`].
    #[inline]
    pub fn post(&mut self, bar: u8, offset: u64, data: &[u8]) -> Result<(), Error> {
        match self.try_post(bar, offset, data) {
            // This builds a new result. Returning the old one would copy a whole `Error` right
            // after the store of its tag.
            Ok(()) => Ok(()),
            Err(Error::RingFull { .. }) => self.post_when_room(bar, offset, data),
            Err(error) => Err(error),
        }
    }

    /// Waits for room in the ring, and posts a write.
    #[cold]
    fn post_when_room(&mut self, bar: u8, offset: u64, data: &[u8]) -> Result<(), Error> {
        let (shared, cancel, timeout) = (self.shared.clone(), self.cancel.clone(), self.timeout);
        wait_for_room(&shared, timeout, cancel.as_ref(), || self.try_post(bar, offset, data))
    }

    /// Posts a write as [`Poster::post`] does, but never waits.
    ///
    /// # Errors
    /// Returns [`Error::RingFull`] when the ring has no room, and otherwise the errors of
    /// [`Poster::post`].
    #[inline(always)]
    pub fn try_post(&mut self, bar: u8, offset: u64, data: &[u8]) -> Result<(), Error> {
        match self.post_quickly(bar, offset, data) {
            QuickPost::Posted => Ok(()),
            QuickPost::MustWake => self.wake_engine(),
            QuickPost::NotPosted => self.try_post_slowly(bar, offset, data),
        }
    }

    /// Posts a write that [`Poster::post_quickly`] has not posted, or returns the reason why not.
    #[cold]
    fn try_post_slowly(&mut self, bar: u8, offset: u64, data: &[u8]) -> Result<(), Error> {
        let offset = record_offset(&self.shared, bar, offset, data)?;

        match &mut self.ring {
            Some(ring) => ring.try_post(&self.shared, bar, offset, data),
            None => post_trapped(&self.shared, bar, offset, data),
        }
    }

    /// Posts a write if the ring has room, the arguments are valid, and the device was not reset.
    ///
    /// It is for callers to which each instruction counts: the result fits into a register, unlike
    /// a whole [`Error`].
    #[inline(always)]
    pub fn post_quickly(&mut self, bar: u8, offset: u64, data: &[u8]) -> QuickPost {
        let Some(ring) = &mut self.ring else { return QuickPost::NotPosted };
        match u32::try_from(offset) {
            Ok(short) if fits(&self.shared, bar, offset, data) => {
                ring.post_quickly(&self.shared, bar, short, data)
            }
            _ => QuickPost::NotPosted,
        }
    }

    /// Wakes the engine after [`QuickPost::MustWake`].
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`] when the engine could not be woken.
    #[cold]
    pub fn wake_engine(&self) -> Result<(), Error> {
        self.shared.kick()
    }

    /// Returns the position after the last record posted. It is `None` for a device without rings,
    /// whose posted writes have taken effect when they return.
    pub fn position(&self) -> Option<RingPosition> {
        self.ring.as_ref().map(|ring| RingPosition { epoch: ring.epoch, position: ring.producer.position() })
    }

    /// Returns whether the device has finished all records before `position`, which must be a
    /// position in this ring. The answer is as recent as the engine's last update of the mirror
    /// page. A write that stalls in the device is not finished. After a reset of the device, all
    /// earlier positions have passed.
    pub fn has_passed(&self, position: RingPosition) -> bool {
        self.ring.as_ref().is_none_or(|ring| {
            position.epoch != ring.epoch
                || ring.producer.has_passed(ring.consumed.load(Ordering::Acquire), position.position)
        })
    }
}

impl Drop for Poster {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.take()
            && !self.shared.is_inherited()
            && let Some(slot) = self.shared.rings.get(usize::from(ring.index))
        {
            slot.put(ring);
        }
    }
}

impl fmt::Debug for Poster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poster").field("ring", &self.ring.as_ref().map(|ring| ring.index)).finish()
    }
}

/// A [`Poster`] behind a lock, for the threads of one lock domain. Clones share the ring.
#[derive(Clone, Debug)]
pub struct SharedPoster(Arc<Mutex<Poster>>);

impl SharedPoster {
    /// Puts `poster` behind a lock.
    pub fn new(poster: Poster) -> Self {
        Self(Arc::new(Mutex::new(poster)))
    }

    /// Posts a write as [`Poster::post`] does. The lock is not held while the ring is full.
    ///
    /// # Errors
    /// Returns the errors of [`Poster::post`].
    pub fn post(&self, bar: u8, offset: u64, data: &[u8]) -> Result<(), Error> {
        let (shared, cancel, timeout) = {
            let mut poster = lock(&self.0);
            match poster.try_post(bar, offset, data) {
                Err(Error::RingFull { .. }) => (poster.shared.clone(), poster.cancel.clone(), poster.timeout),
                result => return result,
            }
        };

        wait_for_room(&shared, timeout, cancel.as_ref(), || lock(&self.0).try_post(bar, offset, data))
    }

    /// Calls `call` with the poster. The lock is held meanwhile, so `call` must not wait.
    pub fn with<R>(&self, call: impl FnOnce(&mut Poster) -> R) -> R {
        call(&mut lock(&self.0))
    }
}

/// Wakes a sleeping engine, for drivers that store into mapped windows themselves.
///
/// A doorbell is cheap to clone and to call. A call loads a cache line that changes only when the
/// engine falls asleep or wakes.
#[derive(Clone)]
pub struct Doorbell(pub(crate) Arc<Shared>);

impl Doorbell {
    /// Wakes the engine if it sleeps. The caller first stores, with release order, the word that
    /// the device polls. The call does nothing on a plain PCI function.
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`] when the engine sleeps and cannot be woken.
    #[inline]
    pub fn after_store(&self) -> Result<(), Error> {
        self.0.after_store()
    }
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Doorbell")
    }
}
