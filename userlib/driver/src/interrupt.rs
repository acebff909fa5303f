//! Interrupts: a wait polls first, and blocks in the kernel last.

use std::{
    collections::BTreeMap,
    fmt,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, PoisonError, RwLock, Weak},
    time::Duration,
};

use nicforge_shm::pace;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::time::TimeSpec,
};

use crate::{
    Backing, Cancel, Deadline, Error, IRQ_INTX, InterruptSource, IrqInfo, Relax, Waiter,
    device::{Shared, lock},
};

/// The awaited event, in the text of a time-out.
const AWAITED: &str = "an interrupt";

/// A bound vector and its current source.
pub(crate) struct Bound {
    shared: Arc<Shared>,
    /// VFIO index of the vector's kind.
    index: u32,
    vector: u32,
    /// Description of the kind.
    info: IrqInfo,
    /// The present source, which a reset of the device replaces.
    source: RwLock<Arc<dyn InterruptSource>>,
}

impl Bound {
    /// Returns the present source.
    fn source(&self) -> Arc<dyn InterruptSource> {
        self.source.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Binds a new source, after a reset has removed the old one.
    pub(crate) fn rebind(&self) -> Result<(), Error> {
        self.shared.check_owner()?;
        let source = self.shared.note_loss(self.shared.backing.interrupt(self.index, self.vector))?;
        *self.source.write().unwrap_or_else(PoisonError::into_inner) = source;
        Ok(())
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // In a child of `fork`, the vector is bound for its parent.
        if self.shared.is_inherited() {
            return;
        }

        let mut bound = lock(&self.shared.interrupts);

        // Another thread may have bound the vector again meanwhile.
        if bound.get(&(self.index, self.vector)).is_some_and(|other| other.strong_count() == 0) {
            bound.remove(&(self.index, self.vector));
        }

        if !bound.keys().any(|(index, _)| *index == self.index) {
            // An error means that the server is gone, which has unbound the vectors.
            let _ = self.shared.note_loss(self.shared.backing.unbind_interrupts(self.index));
        }
    }
}

/// One interrupt vector of the device. Clones share the vector.
///
/// Vectors are unbound when the last `Interrupt` of their kind is dropped. [`crate::Device::reset`]
/// keeps them bound.
#[derive(Clone)]
pub struct Interrupt(Arc<Bound>);

impl Interrupt {
    /// Binds a vector of the kind that `info` describes.
    pub(crate) fn bind(shared: &Arc<Shared>, index: u32, info: IrqInfo, vector: u32) -> Result<Self, Error> {
        if vector >= info.count {
            return Err(Error::NoSuch { what: "interrupt vector", index: vector, count: info.count });
        }

        shared.check_owner()?;
        // A vector that is bound already is shared.
        let mut bound: std::sync::MutexGuard<'_, BTreeMap<_, Weak<Bound>>> = lock(&shared.interrupts);
        if let Some(present) = bound.get(&(index, vector)).and_then(Weak::upgrade) {
            return Ok(Self(present));
        }

        let source = RwLock::new(shared.note_loss(shared.backing.interrupt(index, vector))?);
        let created = Arc::new(Bound { shared: shared.clone(), index, vector, info, source });
        bound.insert((index, vector), Arc::downgrade(&created));
        Ok(Self(created))
    }

    /// Returns the vector's number among those of its kind.
    pub fn vector(&self) -> u32 {
        self.0.vector
    }

    /// Returns the number of interrupts since the last call or wait, and resets it. It does not
    /// block.
    pub fn take(&self) -> u64 {
        // A child of `fork` would take the interrupts of its parent.
        if self.0.shared.is_inherited() { 0 } else { self.0.source().take() }
    }

    /// Waits until the vector fires, takes its interrupts and returns their number.
    ///
    /// The wait polls for [`crate::OpenOptions::spin`] first. Then it blocks in the kernel until
    /// the vector's descriptor is readable, as the *dummy read* of the papers does. If several
    /// threads wait, each interrupt is delivered to one of them.
    ///
    /// # Errors
    /// Returns [`Error::Timeout`], [`Error::Cancelled`] or [`Error::DeviceGone`].
    pub fn wait(&self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<u64, Error> {
        let shared = &self.0.shared;
        shared.check_owner()?;
        if let Some((_, count)) = poll_first(shared, &[self], deadline, cancel)? {
            return Ok(count);
        }

        // The wait blocks for a slice of time, and then checks the device.
        loop {
            let source = self.0.source();
            let ended = match source.wait(deadline.at_most(Shared::SLICE), cancel) {
                Ok(count) => return Ok(count),
                Err(Error::Timeout { .. }) => shared.check_alive(),
                Err(error) => shared.note_loss(Err(error)),
            };

            if let Err(error) = ended {
                return take_before_error(&*source, error);
            }

            if deadline.has_passed() {
                return Err(deadline.timeout(AWAITED));
            }
        }
    }

    /// Sleeps until the vector fires, and takes its interrupts. Returns whether it has fired.
    ///
    /// The sleep also ends at the deadline and by the token. That is no error here: a loop checks
    /// for its event once more, and then checks both itself, as [`crate::Waiter::check`] does.
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`].
    pub fn sleep(&self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<bool, Error> {
        match self.wait(deadline, cancel) {
            Ok(_) => Ok(true),
            Err(Error::Timeout { .. } | Error::Cancelled) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Re-enables the vector after it has masked itself, as INTx does, or after
    /// [`Interrupt::mask`]. A driver of INTx first makes the device withdraw its request. The call
    /// does nothing for a kind that cannot be masked.
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`] or [`Error::Refused`].
    pub fn unmask(&self) -> Result<(), Error> {
        let bound = &*self.0;
        if !bound.info.maskable && !bound.info.automasked {
            return Ok(());
        }

        bound.shared.check_owner()?;
        bound.shared.note_loss(bound.shared.backing.unmask(bound.index, bound.vector, 1))
    }

    /// Masks the vector. An interrupt that it would signal stays pending until
    /// [`Interrupt::unmask`].
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] for a kind that cannot be masked, [`Error::DeviceGone`] or
    /// [`Error::Refused`].
    pub fn mask(&self) -> Result<(), Error> {
        let bound = &*self.0;
        if !bound.info.maskable {
            return Err(Error::Unsupported { what: "masking this kind of interrupt" });
        }

        bound.shared.check_owner()?;
        bound.shared.note_loss(bound.shared.backing.mask(bound.index, bound.vector, 1))
    }

    /// Returns whether this is the INTx line.
    pub fn is_intx(&self) -> bool {
        self.0.index == IRQ_INTX
    }

    /// Returns the vector's current source, for event loops of the caller's own. A reset of the
    /// device replaces it.
    pub fn source(&self) -> Arc<dyn InterruptSource> {
        self.0.source()
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupt").field("index", &self.0.index).field("vector", &self.0.vector).finish()
    }
}

/// Takes the interrupts of the first vector that has fired. Returns its position and their number.
fn take_any(interrupts: &[&Interrupt]) -> Option<(usize, u64)> {
    interrupts.iter().enumerate().find_map(|(at, interrupt)| match interrupt.take() {
        0 => None,
        count => Some((at, count)),
    })
}

/// Polls the vectors for as long as the options say, and at least once. Returns the position of the
/// first that has fired and its number of interrupts, or `None` if the wait must block.
fn poll_first(
    shared: &Shared,
    interrupts: &[&Interrupt],
    deadline: Deadline,
    cancel: Option<&Cancel>,
) -> Result<Option<(usize, u64)>, Error> {
    // On a busy host the wait blocks at once.
    let spin = if pace::is_busy() { Duration::ZERO } else { shared.options.spin };
    let relax = Relax::with_backoff(shared.options.backoff.polling());

    match shared.wait_with(relax, deadline.at_most(spin), cancel, AWAITED, || Ok(take_any(interrupts))) {
        Ok(found) => Ok(Some(found)),
        Err(Error::Timeout { .. }) if deadline.has_passed() => Err(deadline.timeout(AWAITED)),
        Err(Error::Timeout { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits for any of several interrupts of one device. Returns the position of the first that has
/// fired and its number of interrupts.
pub(crate) fn wait_any(
    shared: &Shared,
    interrupts: &[&Interrupt],
    deadline: Deadline,
    cancel: Option<&Cancel>,
) -> Result<(usize, u64), Error> {
    shared.check_owner()?;
    if let Some(found) = poll_first(shared, interrupts, deadline, cancel)? {
        return Ok(found);
    }

    loop {
        let sources: Vec<_> = interrupts.iter().map(|interrupt| interrupt.source()).collect();
        let fds: Option<Vec<_>> = sources.iter().map(|source| source.raw_fd()).collect();

        let Some(fds) = fds.filter(|_| shared.backing.event_fd().is_some()) else {
            // Without a descriptor, time passes in `relax` only.
            return shared.wait_for(deadline, cancel, AWAITED, || Ok(take_any(interrupts)));
        };

        let slice = deadline.at_most(Shared::SLICE);
        let ended = shared.note_loss(block(&*shared.backing, &fds, slice.remaining(), cancel));
        let ended = ended.and_then(|()| shared.check_alive());

        // An interrupt that arrived before the end still counts.
        if let Some(found) = take_any(interrupts) {
            return Ok(found);
        }

        ended?;
        if deadline.has_passed() {
            return Err(deadline.timeout(AWAITED));
        }
    }
}

/// Maximum number of descriptors for which a wait does not allocate.
const FEW: usize = 4;

/// Blocks until one of `fds` may be readable, the backing has work, or `timeout` has passed. The
/// backing does its work before the call returns.
pub(crate) fn block<B: Backing + ?Sized>(
    backing: &B,
    fds: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
    cancel: Option<&Cancel>,
) -> Result<(), Error> {
    if let Some(cancel) = cancel {
        cancel.check()?;
    }
    if backing.event_fd().is_some() {
        // Another call may have read an event already, for which the descriptor is not readable.
        backing.handle_events()?;
    }
    block_in_kernel(backing, fds, timeout, cancel)
}

/// Blocks as [`block`] does, without handling events first.
pub(crate) fn block_in_kernel<B: Backing + ?Sized>(
    backing: &B,
    fds: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
    cancel: Option<&Cancel>,
) -> Result<(), Error> {
    let event = backing.event_fd();
    let all = fds.iter().copied().chain(event).chain(cancel.map(AsFd::as_fd));
    let (mut few, mut many);
    let polled = match (all.clone().count(), all.clone().next()) {
        // Loops that move packets wait here, too, so that this case must not allocate. Unused
        // entries of the array repeat the first descriptor.
        (count @ 1..=FEW, Some(first)) => {
            let mut all = all;
            few = std::array::from_fn::<_, FEW, _>(|_| {
                PollFd::new(all.next().unwrap_or(first), PollFlags::POLLIN)
            });
            &mut few[..count]
        }
        _ => {
            many = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect::<Vec<_>>();
            many.as_mut_slice()
        }
    };

    match ppoll(polled, timeout.map(TimeSpec::from_duration), None) {
        Ok(_) | Err(Errno::EINTR) => (),
        Err(errno) => return Err(Error::system("waiting for descriptors", errno)),
    }

    if let Some(cancel) = cancel {
        cancel.check()?;
    }

    // The backing's descriptor comes after the caller's.
    let is_ready = |at: usize| polled.get(at).is_some_and(|fd| fd.any().unwrap_or(true));
    if event.is_some() && is_ready(fds.len()) { backing.handle_events() } else { Ok(()) }
}

/// Waits for one source, as [`InterruptSource::wait`] must. It blocks in the kernel if the source
/// has a descriptor, and calls [`Backing::relax`] otherwise. Backings use it to implement
/// `InterruptSource`.
///
/// # Errors
/// Returns [`Error::Timeout`], [`Error::Cancelled`] or [`Error::DeviceGone`].
pub fn wait_source(
    backing: &dyn Backing,
    source: &dyn InterruptSource,
    deadline: Deadline,
    cancel: Option<&Cancel>,
) -> Result<u64, Error> {
    let mut waiter = Waiter::with_relax(Relax::new(), deadline, cancel);

    loop {
        match source.take() {
            0 => (),
            count => return Ok(count),
        }

        waiter.check_for(AWAITED)?;

        let ended = match source.raw_fd() {
            Some(fd) => block(backing, &[fd], deadline.at_most(Shared::SLICE).remaining(), cancel),
            None => backing.relax(&mut waiter.relax),
        };

        if let Err(error) = ended {
            return take_before_error(source, error);
        }
    }
}

/// Takes the interrupts that arrived before an error ended the wait. A device may signal and vanish
/// between two checks.
fn take_before_error(source: &dyn InterruptSource, ended: Error) -> Result<u64, Error> {
    match source.take() {
        0 => Err(ended),
        count => Ok(count),
    }
}
