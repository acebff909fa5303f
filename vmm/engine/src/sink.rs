//! Eventfds that clients bind to interrupts.
//!
//! A write to a client's eventfd must not wait. It is made non-blocking, but the client has the same open file and can undo that,
//! and it can fill the counter: then the write would wait for as long as the client likes. So the engine's writes are watched
//! by the helper thread. When one takes [`PATIENCE`], its client is given up: nothing is written to any eventfd of its any more and
//! none is bound, whatever it has sent, until the engine takes the attachment from it. The write itself is ended by a signal to the
//! thread that waits in it, which the client can't hold up; emptying the counter would be a race against the client's own writes.

use std::{
    collections::HashMap,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use nicforge_core::interrupt::InterruptSink;
use nicforge_vfio_user::Errno;
use nix::{
    errno::Errno as SystemErrno,
    fcntl::{FcntlArg, OFlag, fcntl, readlink},
    unistd::write,
};

use crate::interrupt;

/// What `/proc` calls an eventfd.
const EVENTFD: &str = "anon_inode:[eventfd]";
/// How long a write to an eventfd may take. It takes a microsecond.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// A client as far as its eventfds are concerned.
#[derive(Debug, Default)]
pub(crate) struct Owner {
    /// A write to one of its eventfds did not end by itself: there will be none any more.
    given_up: AtomicBool,
}

impl Owner {
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }
}

/// Knows the eventfds of an engine, and which of them is being written.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// The sink that is being written, 0 for none. Only the engine's thread writes.
    writing: AtomicU64,
    /// That thread.
    writer: AtomicI32,
    /// Writes so far.
    writes: AtomicU64,
    /// Clients that were given up.
    rescues: AtomicU64,
    next: AtomicU64,
    /// Whose each sink is.
    sinks: Mutex<HashMap<u64, Arc<Owner>>>,
}

impl Signals {
    /// How many clients were given up so far.
    pub(crate) fn rescues(&self) -> u64 {
        self.rescues.load(Ordering::Acquire)
    }

    /// The write under way, if it is.
    fn under_way(&self) -> Option<(u64, u64)> {
        let sink = self.writing.load(Ordering::Acquire);
        (sink != 0).then(|| (sink, self.writes.load(Ordering::Acquire)))
    }

    fn sinks(&self) -> MutexGuard<'_, HashMap<u64, Arc<Owner>>> {
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at the engine's writes every now and then.
#[derive(Debug)]
pub(crate) struct Watch {
    signals: Arc<Signals>,
    seen: Option<((u64, u64), Instant)>,
}

impl Watch {
    pub(crate) fn new(signals: Arc<Signals>) -> Self {
        Self { signals, seen: None }
    }

    /// Whether there is anything to watch: while not, nobody need look.
    pub(crate) fn is_needed(&self) -> bool {
        !self.signals.sinks().is_empty()
    }

    /// End a write that takes too long.
    pub(crate) fn look(&mut self, now: Instant) {
        let Some(write) = self.signals.under_way() else {
            self.seen = None;
            return;
        };
        match self.seen {
            Some((seen, since)) if seen == write => {
                // As often as it takes: a signal that comes just before the call ends nothing.
                if now.saturating_duration_since(since) >= PATIENCE {
                    self.rescue(write.0);
                }
            }
            _ => self.seen = Some((write, now)),
        }
    }

    fn rescue(&self, id: u64) {
        let Some(owner) = self.signals.sinks().get(&id).cloned() else { return };
        if !owner.given_up.swap(true, Ordering::AcqRel) {
            self.signals.rescues.fetch_add(1, Ordering::AcqRel);
        }
        if let Err(errno) = interrupt::interrupt(self.signals.writer.load(Ordering::Acquire)) {
            tracing::error!(%errno, "a write to an eventfd that blocks the engine could not be ended");
        }
    }
}

/// A client's eventfd.
#[derive(Debug)]
pub(crate) struct EventFdSink {
    fd: OwnedFd,
    id: u64,
    owner: Arc<Owner>,
    signals: Arc<Signals>,
}

impl EventFdSink {
    /// Anything but an eventfd is refused: a write to another kind of file may take as long as its owner likes. So is everything of
    /// an owner that was given up.
    pub(crate) fn bind(fd: OwnedFd, owner: &Arc<Owner>, signals: &Arc<Signals>) -> Result<Arc<Self>, Errno> {
        if owner.is_given_up() {
            return Err(Errno::EPERM);
        }
        check(&fd)?;
        set_nonblocking(&fd)?;
        let id = signals.next.fetch_add(1, Ordering::Relaxed) + 1;
        signals.sinks().insert(id, Arc::clone(owner));
        Ok(Arc::new(Self { fd, id, owner: Arc::clone(owner), signals: Arc::clone(signals) }))
    }
}

impl Drop for EventFdSink {
    fn drop(&mut self) {
        self.signals.sinks().remove(&self.id);
    }
}

impl InterruptSink for EventFdSink {
    fn signal(&self) {
        if self.owner.is_given_up() {
            return;
        }
        self.signals.writer.store(interrupt::this_thread(), Ordering::Relaxed);
        // One thread writes: neither needs to be an atomic addition.
        let writes = self.signals.writes.load(Ordering::Relaxed);
        self.signals.writes.store(writes.wrapping_add(1), Ordering::Relaxed);
        self.signals.writing.store(self.id, Ordering::Release);
        // A counter at its end means that the client has been told often enough.
        while write(self.fd.as_fd(), &1_u64.to_ne_bytes()) == Err(SystemErrno::EINTR)
            && !self.owner.is_given_up()
        {}
        self.signals.writing.store(0, Ordering::Release);
    }
}

/// Refuses what is no eventfd, without asking the file itself.
pub(crate) fn check(fd: &OwnedFd) -> Result<(), Errno> {
    let target = readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()).as_str())?;
    if target.to_str() == Some(EVENTFD) { Ok(()) } else { Err(Errno::EINVAL) }
}

fn set_nonblocking(fd: &OwnedFd) -> Result<(), SystemErrno> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map(|_| ())
}

#[cfg(test)]
mod tests {
    use nix::sys::eventfd::{EfdFlags, EventFd};

    use super::*;

    fn eventfd() -> (EventFd, OwnedFd) {
        let fd = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC).unwrap();
        let copy = fd.as_fd().try_clone_to_owned().unwrap();
        (fd, copy)
    }

    fn sink(copy: OwnedFd, signals: &Arc<Signals>) -> Arc<EventFdSink> {
        EventFdSink::bind(copy, &Arc::default(), signals).unwrap()
    }

    #[test]
    fn a_write_that_waits_is_ended_and_all_of_its_owner_is_given_up() {
        interrupt::prepare().unwrap();
        let signals = Arc::new(Signals::default());
        let (full, copy) = eventfd();
        let blocked = sink(copy, &signals);
        let owner = Arc::clone(&blocked.owner);
        let (mine, copy) = eventfd();
        let sibling = EventFdSink::bind(copy, &owner, &signals).unwrap();
        let (theirs, copy) = eventfd();
        let stranger = sink(copy, &signals);
        fcntl(&full, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        full.write(u64::MAX - 1).unwrap();
        let mut watch = Watch::new(Arc::clone(&signals));
        let writer = std::thread::spawn(move || blocked.signal());
        let start = Instant::now();
        let deadline = start + Duration::from_secs(20);
        while signals.under_way().is_none() {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        watch.look(start);
        assert_eq!(signals.rescues(), 0);
        // It may not have come to wait yet.
        while !writer.is_finished() {
            assert!(Instant::now() < deadline);
            watch.look(start + PATIENCE);
            std::thread::yield_now();
        }
        writer.join().unwrap();
        assert_eq!(signals.rescues(), 1);
        assert_eq!(full.read(), Ok(u64::MAX - 1));
        sibling.signal();
        stranger.signal();
        assert!(mine.read().is_err());
        assert_eq!(theirs.read(), Ok(1));
        assert_eq!(EventFdSink::bind(eventfd().1, &owner, &signals).err(), Some(Errno::EPERM));
    }

    #[test]
    fn a_full_counter_is_signal_enough() {
        let signals = Arc::new(Signals::default());
        let (full, copy) = eventfd();
        let sink = sink(copy, &signals);
        full.write(u64::MAX - 1).unwrap();
        sink.signal();
        assert_eq!(full.read(), Ok(u64::MAX - 1));
    }

    #[test]
    fn a_sink_that_is_dropped_is_forgotten() {
        let signals = Arc::new(Signals::default());
        let sink = sink(eventfd().1, &signals);
        let watch = Watch::new(Arc::clone(&signals));
        assert!(watch.is_needed());
        drop(sink);
        assert!(!watch.is_needed());
    }
}
