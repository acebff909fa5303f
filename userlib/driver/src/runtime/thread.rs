//! Threads of a library.

use std::{
    io,
    sync::atomic::{AtomicU32, Ordering},
    thread::{Builder, JoinHandle},
};

use nicforge_shm::OwnerProcess;

/// A thread that a library has started.
#[derive(Debug)]
pub struct Thread {
    /// `None` once it was joined.
    kind: Option<Kind>,
    owner: OwnerProcess,
}

/// Where a thread runs.
#[derive(Debug)]
enum Kind {
    /// It is a thread of the operating system.
    System(JoinHandle<()>),
    /// It is the thread of a simulation with this number.
    #[cfg(feature = "virtual-time")]
    Simulated(u32),
}

impl Thread {
    fn new(kind: Kind) -> Self {
        Self { kind: Some(kind), owner: OwnerProcess::current() }
    }

    /// Waits until the thread has ended. A panic ends it, too. A thread of which the caller's
    /// process has only a copy, after `fork`, has ended.
    pub fn join(mut self) {
        if !self.owner.is_current() {
            return;
        }

        match self.kind.take() {
            Some(Kind::System(handle)) => drop(handle.join()),
            #[cfg(feature = "virtual-time")]
            Some(Kind::Simulated(thread)) => {
                super::simulation::with(|simulation| simulation.join(thread));
            }
            None => {}
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // A child of `fork` does not have the thread, and must not detach it.
        if !self.owner.is_current() {
            std::mem::forget(self.kind.take());
        }
    }
}

/// Starts a thread.
///
/// # Errors
/// Returns the operating system's error.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    #[cfg(feature = "virtual-time")]
    if super::simulation::is_entered() {
        let thread = super::simulation::with(|simulation| simulation.spawn(name, Box::new(body)));
        return thread.map(|thread| Thread::new(Kind::Simulated(thread))).ok_or(io::ErrorKind::Other.into());
    }

    Builder::new().name(name.to_owned()).spawn(body).map(|handle| Thread::new(Kind::System(handle)))
}

/// Returns the calling thread's number. The threads of a process have different numbers, as long as
/// it starts fewer than 2^32.
pub fn thread_number() -> u32 {
    #[cfg(feature = "virtual-time")]
    if let Some(thread) = super::simulation::with(|simulation| simulation.thread()) {
        return thread;
    }

    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local! {
        static NUMBER: u32 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}
