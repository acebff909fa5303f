//! The process in the middle of the relayed paths.
//!
//! - The relay knows nothing of messages. It reads up to [`COPY_BYTES`] bytes from one socket and
//!   writes them to the other. This is the least work that such a process can do.
//! - The forwarder does what CIOD did for the sockets of a compute node, and what the paper
//!   measured. Each `write` and each `read` of the compute process comes as a call. The forwarder
//!   makes the call and answers with its result.
//!
//! Each direction has a thread, as in the other processes. A ping-pong needs only one, and is
//! faster with one.

use std::{
    sync::Arc,
    thread::{JoinHandle, spawn},
};

use nicforge::failure::Failure;

use super::{
    sockets::{CALL_BYTES, Listeners, Stream, WRITE_FLAG, connect},
    task::{Addresses, Direction, Kind, Middle, Task},
};

/// Greatest number of bytes of one copy: more than a Unix socket holds. 16 KB and 64 KB were
/// slower.
const COPY_BYTES: usize = 256 * 1024;
/// The longest message of a forwarded call, in bytes.
const MAX_CALL_BYTES: usize = 16 << 20;

/// The relay's connections, and the threads that copy between them.
pub(super) struct Relay {
    /// The connection to the I/O process.
    io: Arc<Stream>,
    /// The connections of the compute process. A forwarder has one for the calls of each direction.
    compute: Vec<Arc<Stream>>,
    threads: Vec<JoinHandle<Result<(), Failure>>>,
}

impl Relay {
    /// Connects to the I/O process, and accepts the connections of the compute process.
    pub(super) fn open(task: &Task, listeners: &Listeners, io: &Addresses) -> Result<Self, Failure> {
        let io = Arc::new(connect(task.path, io)?);
        let mut compute = vec![Arc::new(listeners.accept(task.path)?)];
        if task.path.middle() == Middle::Forwarder {
            compute.push(Arc::new(listeners.accept(task.path)?));
        }
        Ok(Self { io, compute, threads: Vec::new() })
    }

    /// Starts the threads of each connection of the compute process, and returns at once.
    ///
    /// - In a forwarder, one thread makes the calls of the connection.
    /// - In a relay, one thread copies the messages of a ping-pong in both directions. For any
    ///   other task, each direction has a thread that copies bytes.
    pub(super) fn start_threads(&mut self, task: &Task) {
        for compute in &self.compute {
            if task.path.middle() == Middle::Forwarder {
                let (compute, io) = (compute.clone(), self.io.clone());
                self.threads.push(spawn(move || make_calls(&compute, &io)));
            } else if task.kind == Kind::PingPong {
                let (compute, io) = (compute.clone(), self.io.clone());
                let io_sends_first = task.direction.includes(Direction::IoToCompute);
                let (first, second) = if io_sends_first { (io, compute) } else { (compute, io) };
                let bytes = task.bytes;
                self.threads.push(spawn(move || forward_alternately(&first, &second, bytes)));
            } else {
                self.threads.push(spawn({
                    let (compute, io) = (compute.clone(), self.io.clone());
                    move || copy_bytes(&compute, &io)
                }));
                self.threads.push(spawn({
                    let (compute, io) = (compute.clone(), self.io.clone());
                    move || copy_bytes(&io, &compute)
                }));
            }
        }
    }

    /// Waits until both sides have closed.
    pub(super) fn close(self) -> Result<(), Failure> {
        drop((self.io, self.compute));
        self.threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Failure::environment("a thread of the relay failed")))
        })
    }
}

/// Copies until `from` is closed.
fn copy_bytes(from: &Stream, to: &Stream) -> Result<(), Failure> {
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        match from.read_some(&mut buffer)? {
            0 => break,
            count => to.write_all(&[], &buffer[..count])?,
        }
    }

    to.finish();
    Ok(())
}

/// Copies messages in alternating directions, until one side has closed.
fn forward_alternately(first: &Stream, second: &Stream, bytes: usize) -> Result<(), Failure> {
    let mut message = vec![0; bytes];
    while first.read_all(&mut message)? {
        second.write_all(&[], &message)?;
        if !second.read_all(&mut message)? {
            break;
        }
        first.write_all(&[], &message)?;
    }

    Ok(())
}

/// Makes forwarded calls until the compute process has closed.
fn make_calls(compute: &Stream, io: &Stream) -> Result<(), Failure> {
    let mut call = [0; CALL_BYTES];
    let mut data = Vec::new();

    while compute.read_all(&mut call)? {
        let call = u64::from_le_bytes(call);
        let length = (call & !WRITE_FLAG) as usize;
        if length > MAX_CALL_BYTES {
            return Err(Failure::environment(format!("a forwarded call of {length} bytes")));
        }

        // The buffer grows once, at the first call.
        data.resize(length, 0);
        let answer = (length as u64).to_le_bytes();

        if call & WRITE_FLAG != 0 {
            compute.read_all(&mut data)?;
            io.write_all(&[], &data)?;
            compute.write_all(&answer, &[])?;
        } else {
            io.read_all(&mut data)?;
            compute.write_all(&answer, &data)?;
        }
    }

    Ok(())
}
