//! A bare UNIX socket, with messages as long as a region read's request and reply.

use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    thread::yield_now,
    time::Instant,
};

use nicforge::failure::{ErrorContext, Failure};

use super::{Contestant, Effort, Measurement, TIMEOUT, in_a_row, paced, server::ServerProcess};

/// Bytes of a request: header, offset, region and length.
const REQUEST_BYTES: usize = 32;
/// Bytes of a reply: the same fields, and the register.
const REPLY_BYTES: usize = 36;
/// Number of polls of a socket before the thread yields between two polls, as in the client
/// library.
const POLLS_BEFORE_YIELD: u32 = 8;

/// How both ends wait. The first byte of a connection selects it for the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Waiting {
    /// The read blocks in the kernel.
    Blocking = 0,
    /// The read polls the socket, and yields the processor between polls.
    Spinning = 1,
}

/// Returns the path of the server's socket.
fn socket(directory: &Path) -> PathBuf {
    directory.join("pingpong")
}

/// Serves one connection after the other, in a thread of its own.
pub(super) fn serve(directory: &Path) -> Result<(), Failure> {
    let listener = UnixListener::bind(socket(directory)).context(|| "a bare socket".into())?;
    let answer = move || {
        for stream in listener.incoming().flatten() {
            // The end of a connection ends its measurement, and is no error.
            let _ = answer(stream);
        }
    };

    std::thread::Builder::new()
        .name("pingpong".into())
        .spawn(answer)
        .map(drop)
        .context(|| "a thread for a bare socket".into())
}

/// Answers the requests of a connection until its end, which is an error.
fn answer(mut stream: UnixStream) -> std::io::Result<()> {
    let mut mode = [0];
    stream.read_exact(&mut mode)?;
    let waiting = if mode[0] == Waiting::Spinning as u8 { Waiting::Spinning } else { Waiting::Blocking };
    stream.set_nonblocking(waiting == Waiting::Spinning)?;
    let mut request = [0; REQUEST_BYTES];

    loop {
        read(&mut stream, &mut request, waiting)?;
        stream.write_all(&[0; REPLY_BYTES])?;
    }
}

/// Fills `message` from the socket.
fn read(stream: &mut UnixStream, message: &mut [u8], waiting: Waiting) -> std::io::Result<()> {
    if waiting == Waiting::Blocking {
        return stream.read_exact(message);
    }

    let (mut received, mut polls) = (0, 0u32);
    let start = Instant::now();

    while received < message.len() {
        match stream.read(&mut message[received..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => received += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                polls = polls.saturating_add(1);
                if polls < POLLS_BEFORE_YIELD {
                    std::hint::spin_loop();
                } else if start.elapsed() > TIMEOUT {
                    return Err(ErrorKind::TimedOut.into());
                } else {
                    yield_now();
                }
            }
            Err(error) => return Err(error),
        }
    }

    Ok(())
}

/// The client's end. It connects again for each measurement, so that the server blocks in the
/// kernel between measurements.
pub(super) struct PingPong {
    socket: PathBuf,
    waiting: Waiting,
}

impl PingPong {
    /// Returns a client of the server's socket that waits in this way.
    pub(super) fn new(server: &ServerProcess, waiting: Waiting) -> Self {
        Self { socket: socket(server.path()), waiting }
    }
}

impl Contestant for PingPong {
    fn path(&self) -> &'static str {
        match self.waiting {
            Waiting::Blocking => "unix-pingpong",
            Waiting::Spinning => "unix-pingpong-spinning",
        }
    }

    fn measure(&mut self, effort: &Effort) -> Result<Measurement, Failure> {
        let description = || "a bare socket".into();
        let mut stream = UnixStream::connect(&self.socket).context(description)?;
        stream.set_read_timeout(Some(TIMEOUT)).context(description)?;
        stream.write_all(&[self.waiting as u8]).context(description)?;
        stream.set_nonblocking(self.waiting == Waiting::Spinning).context(description)?;
        let mut reply = [0; REPLY_BYTES];
        let waiting = self.waiting;
        let mut exchange = || {
            stream.write_all(&[0; REQUEST_BYTES]).context(description)?;
            read(&mut stream, &mut reply, waiting).context(description)
        };

        match waiting {
            Waiting::Blocking => paced(effort, || Ok(()), exchange),
            Waiting::Spinning => in_a_row(effort, &mut exchange),
        }
    }
}
