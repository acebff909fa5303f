//! The sockets of CIOD, the system's daemon on the I/O node (paper, V and VI).
//!
//! A core's `write` is a system call that the compute node's kernel forwards to CIOD, in packets.
//! CIOD writes the data to a socket of the application on the I/O node, which reads them. Each
//! chunk of a message thus passes two system calls on the I/O node, two copies between user memory
//! and the kernel, and a change of threads. CIOD is modelled with these costs, on the same packets.

use std::{
    cell::Cell,
    error::Error,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use nicforge_driver::runtime::{self, Cost, Event, charge};
use nicforge_fcnp::tree::TreeChannel;
use nicforge_hwi::tree::PAYLOAD;

use super::{Pset, PsetError, raw, run::PsetRun};
use crate::world::Picos;

/// Bytes that CIOD forwards at a time.
const CHUNK: usize = 64 << 10;
/// The longest sleep of a side that waits for a change of the socket.
const MAX_SLEEP: Duration = Duration::from_secs(1);

impl Pset<'_> {
    /// Returns the mean time of a message of `bytes` bytes from the core to the application on the
    /// I/O node, through CIOD.
    ///
    /// # Errors
    /// [`PsetError`].
    pub fn ciod(&self, bytes: usize, messages: u32) -> Result<Picos, PsetError> {
        let mut run = PsetRun::new(self)?;
        let time = Rc::new(Cell::new(Duration::ZERO));
        let measured_time = time.clone();
        // One more message before those that are measured.
        let total = bytes * (messages as usize + 1);

        let daemon = move |channel: &TreeChannel| -> Result<(), Box<dyn Error>> {
            let socket = Arc::new(Socket::default());
            let reader = socket.clone();
            let application = runtime::spawn("the application", move || reader.read_all(total))?;

            let mut start = runtime::Instant::now();
            for message in 0..=messages {
                for chunk in chunks(bytes) {
                    raw::receive(channel, chunk.div_ceil(PAYLOAD))?;
                    socket.write(chunk);
                }
                if message == 0 {
                    start = runtime::Instant::now();
                }
            }

            application.join();
            measured_time.set(start.elapsed());
            Ok(())
        };
        run.start_bare(daemon, move |core| {
            for chunk in (0..=messages).flat_map(|_| chunks(bytes)) {
                charge(Cost::SystemCall, 1);
                raw::send(core, chunk.div_ceil(PAYLOAD))?;
            }
            Ok(())
        });

        run.finish()?;
        Ok(Picos(Picos::from(time.get()).0 / u64::from(messages.max(1))))
    }
}

/// Returns the lengths of the chunks of a message.
fn chunks(bytes: usize) -> impl Iterator<Item = usize> {
    (0..bytes.div_ceil(CHUNK)).map(move |chunk| CHUNK.min(bytes - chunk * CHUNK))
}

/// A stream socket between CIOD and the application. It holds one chunk.
#[derive(Default)]
struct Socket {
    /// Bytes of the chunk that it holds, or 0.
    bytes: AtomicUsize,
    changed: Event,
}

impl Socket {
    /// Writes a chunk, once the one before has been read.
    fn write(&self, bytes: usize) {
        self.wait_until(|held| held == 0);
        charge(Cost::SystemCall, 1);
        charge(Cost::CopyByte, bytes);
        self.set(bytes);
    }

    /// Reads a number of bytes, a chunk at a time.
    fn read_all(&self, mut bytes: usize) {
        while bytes > 0 {
            let held = self.wait_until(|held| held > 0);
            charge(Cost::SystemCall, 1);
            charge(Cost::CopyByte, held);
            self.set(0);
            bytes = bytes.saturating_sub(held);
        }
    }

    /// Waits until the number of bytes in the socket satisfies `condition`, and returns the number.
    fn wait_until(&self, condition: impl Fn(usize) -> bool) -> usize {
        loop {
            // The count is read first, so that a change after it ends the sleep at once.
            let changes = self.changed.count();
            let held = self.bytes.load(Ordering::Acquire);
            if condition(held) {
                return held;
            }
            self.changed.sleep(changes, MAX_SLEEP);
        }
    }

    /// Sets the number of bytes in the socket, and wakes the other side.
    fn set(&self, bytes: usize) {
        self.bytes.store(bytes, Ordering::Release);
        self.changed.notify();
    }
}
