//! Eventfds that clients bind to interrupts.
//!
//! A write to a client's eventfd must not wait. It is made non-blocking, but the client has the same open file and can undo that,
//! and it can fill the counter: then the write would wait for as long as the client likes. So the engine's writes are watched
//! by the helper thread. One that takes [`PATIENCE`] is ended by emptying the counter, and all eventfds of its client are given up
//! at once.

use std::{
    collections::HashMap,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use nicforge_core::interrupt::InterruptSink;
use nicforge_vfio_user::Errno;
use nix::{
    errno::Errno as SystemErrno,
    fcntl::{FcntlArg, OFlag, fcntl, readlink},
    unistd::{read, write},
};

/// What `/proc` calls an eventfd.
const EVENTFD: &str = "anon_inode:[eventfd]";
/// How long a write to an eventfd may take. It takes a microsecond.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// Knows the eventfds of an engine, and which of them is being written.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// The sink that is being written, 0 for none. Only the engine's thread writes.
    writing: AtomicU64,
    /// Writes so far.
    writes: AtomicU64,
    /// Writes that had to be ended.
    rescues: AtomicU64,
    next: AtomicU64,
    sinks: Mutex<HashMap<u64, Weak<EventFdSink>>>,
}

impl Signals {
    /// How many writes had to be ended so far.
    pub(crate) fn rescues(&self) -> u64 {
        self.rescues.load(Ordering::Acquire)
    }

    /// The write under way, if it is.
    fn under_way(&self) -> Option<(u64, u64)> {
        let sink = self.writing.load(Ordering::Acquire);
        (sink != 0).then(|| (sink, self.writes.load(Ordering::Acquire)))
    }

    fn sinks(&self) -> MutexGuard<'_, HashMap<u64, Weak<EventFdSink>>> {
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
                if now.saturating_duration_since(since) >= PATIENCE {
                    self.seen = None;
                    self.rescue(write.0);
                }
            }
            _ => self.seen = Some((write, now)),
        }
    }

    fn rescue(&self, id: u64) {
        let sinks: Vec<_> = self.signals.sinks().values().filter_map(Weak::upgrade).collect();
        let Some(sink) = sinks.iter().find(|sink| sink.id == id).cloned() else { return };
        for theirs in sinks.iter().filter(|other| other.owner == sink.owner) {
            theirs.given_up.store(true, Ordering::Release);
        }
        self.signals.rescues.fetch_add(1, Ordering::AcqRel);
        // On a thread of its own: a client that empties the counter first could make this read wait, until the next write.
        let started =
            std::thread::Builder::new().name("nicforge-unblock".to_owned()).spawn(move || sink.empty());
        if let Err(error) = started {
            tracing::error!(%error, "an eventfd that blocks the engine could not be emptied");
        }
    }
}

/// A client's eventfd.
#[derive(Debug)]
pub(crate) struct EventFdSink {
    fd: OwnedFd,
    id: u64,
    /// Whose it is.
    owner: u64,
    signals: Arc<Signals>,
    /// A write to one of its owner's did not end by itself: there will be none any more.
    given_up: AtomicBool,
}

impl EventFdSink {
    /// Anything but an eventfd is refused: a write to another kind of file may take as long as its owner likes.
    pub(crate) fn bind(fd: OwnedFd, owner: u64, signals: &Arc<Signals>) -> Result<Arc<Self>, Errno> {
        check(&fd)?;
        set_nonblocking(&fd)?;
        let id = signals.next.fetch_add(1, Ordering::Relaxed) + 1;
        let sink =
            Arc::new(Self { fd, id, owner, signals: Arc::clone(signals), given_up: AtomicBool::new(false) });
        signals.sinks().insert(id, Arc::downgrade(&sink));
        Ok(sink)
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    fn empty(&self) {
        if let Err(errno) = set_nonblocking(&self.fd) {
            tracing::warn!(%errno, "an eventfd can't be made non-blocking");
        }
        let _ = read(self.fd.as_fd(), &mut [0; 8]);
    }
}

impl Drop for EventFdSink {
    fn drop(&mut self) {
        self.signals.sinks().remove(&self.id);
    }
}

impl InterruptSink for EventFdSink {
    fn signal(&self) {
        if self.is_given_up() {
            return;
        }
        // One thread writes: neither needs to be an atomic addition.
        let writes = self.signals.writes.load(Ordering::Relaxed);
        self.signals.writes.store(writes.wrapping_add(1), Ordering::Relaxed);
        self.signals.writing.store(self.id, Ordering::Release);
        // A counter at its end means that the client has been told often enough.
        while write(self.fd.as_fd(), &1_u64.to_ne_bytes()) == Err(SystemErrno::EINTR) {}
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

    #[test]
    fn a_write_that_waits_is_ended_and_all_of_its_owner_is_given_up() {
        let signals = Arc::new(Signals::default());
        let (full, copy) = eventfd();
        let blocked = EventFdSink::bind(copy, 1, &signals).unwrap();
        let sibling = EventFdSink::bind(eventfd().1, 1, &signals).unwrap();
        let stranger = EventFdSink::bind(eventfd().1, 2, &signals).unwrap();
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
        watch.look(start + PATIENCE);
        writer.join().unwrap();
        assert_eq!(signals.rescues(), 1);
        assert!(sibling.is_given_up());
        assert!(!stranger.is_given_up());
    }

    #[test]
    fn a_full_counter_is_signal_enough() {
        let signals = Arc::new(Signals::default());
        let (full, copy) = eventfd();
        let sink = EventFdSink::bind(copy, 1, &signals).unwrap();
        full.write(u64::MAX - 1).unwrap();
        sink.signal();
        assert_eq!(full.read(), Ok(u64::MAX - 1));
    }

    #[test]
    fn a_sink_that_is_dropped_is_forgotten() {
        let signals = Arc::new(Signals::default());
        let sink = EventFdSink::bind(eventfd().1, 1, &signals).unwrap();
        let watch = Watch::new(Arc::clone(&signals));
        assert!(watch.is_needed());
        drop(sink);
        assert!(!watch.is_needed());
    }
}
