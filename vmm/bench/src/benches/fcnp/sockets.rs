//! The paths through sockets.
//!
//! A thread waits for a socket as FCNP waits for its device: it first polls, then yields the
//! processor, and at last sleeps in `poll`. With few processors this is faster than blocking at
//! once, so the comparison is with sockets at their best.

use std::{
    io::{ErrorKind, IoSlice, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    time::{Duration, Instant},
};

use nicforge::failure::{ErrorContext, Failure};
use nicforge_driver::{Pause, Relax};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{
    flow::{Endpoint, Receiver, Sender},
    task::{Addresses, Middle, Path, Side},
};

/// The interval between two attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// How long the other side may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a call's header on the way to a forwarder, and of its answer.
pub(super) const CALL_BYTES: usize = 8;
/// Flag in a call: the data that follows is to be written. Without it the call reads as many bytes.
pub(super) const WRITE_FLAG: u64 = 1 << 63;

/// The longest sleep of a waiting loop, which is practically for ever.
const MAX_SLEEP: Duration = Duration::from_secs(3600);

/// The listening sockets of both kinds.
pub(super) struct Listeners {
    unix: UnixListener,
    tcp: TcpListener,
    path: PathBuf,
}

impl Drop for Listeners {
    fn drop(&mut self) {
        // The parent removes the folder at the end, so an error here does no harm.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Listeners {
    /// Listens at a path and at a free port of loopback.
    pub(super) fn bind(path: PathBuf) -> Result<(Self, Addresses), Failure> {
        let unix = UnixListener::bind(&path).context(|| path.display().to_string())?;
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context(|| "a port of loopback".into())?;
        let address = tcp.local_addr().context(|| "a port of loopback".into())?;
        Ok((Self { unix, tcp, path: path.clone() }, Addresses { unix: path, tcp: address }))
    }

    /// Accepts a connection of the path's kind.
    pub(super) fn accept(&self, path: Path) -> Result<Stream, Failure> {
        let context = || "accepting a connection".into();
        if path.is_tcp() {
            wait(self.tcp.as_fd(), PollFlags::POLLIN, CONNECT_TIMEOUT)?;
            Stream::tcp(self.tcp.accept().context(context)?.0)
        } else {
            wait(self.unix.as_fd(), PollFlags::POLLIN, CONNECT_TIMEOUT)?;
            Stream::unix(self.unix.accept().context(context)?.0)
        }
    }
}

/// Connects to a process with a socket of the path's kind.
pub(super) fn connect(path: Path, to: &Addresses) -> Result<Stream, Failure> {
    if path.is_tcp() {
        Stream::tcp(TcpStream::connect_timeout(&to.tcp, CONNECT_TIMEOUT).context(|| to.tcp.to_string())?)
    } else {
        Stream::unix(UnixStream::connect(&to.unix).context(|| to.unix.display().to_string())?)
    }
}

/// Waits in the kernel until a socket is ready, for at most `maximum`.
fn wait(fd: BorrowedFd<'_>, flags: PollFlags, maximum: Duration) -> Result<(), Failure> {
    let mut fds = [PollFd::new(fd, flags)];
    let timeout = PollTimeout::try_from(maximum).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, timeout) {
        Ok(0) => Err(Failure::environment(format!("a socket was not ready within {maximum:?}"))),
        ready => ready.map(|_| ()).context(|| "waiting for a socket".into()),
    }
}

/// A connection, used by one thread that sends and one that receives.
pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// Makes a Unix socket non-blocking.
    fn unix(stream: UnixStream) -> Result<Self, Failure> {
        stream.set_nonblocking(true).context(|| "a Unix socket".into())?;
        Ok(Self::Unix(stream))
    }

    /// Makes a TCP socket non-blocking, and lets it send short messages at once.
    fn tcp(stream: TcpStream) -> Result<Self, Failure> {
        stream
            .set_nonblocking(true)
            .and_then(|()| stream.set_nodelay(true))
            .context(|| "a TCP socket".into())?;
        Ok(Self::Tcp(stream))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }

    /// Reads at least one byte, and at most as many as `buffer` holds. Returns 0 when the other
    /// side has closed.
    pub(super) fn read_some(&self, buffer: &mut [u8]) -> Result<usize, Failure> {
        let mut idle = Relax::new();
        loop {
            let read = match self {
                Self::Unix(stream) => (&mut &*stream).read(buffer),
                Self::Tcp(stream) => (&mut &*stream).read(buffer),
            };

            match read {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.pause(&mut idle, PollFlags::POLLIN)?;
                }
                // A side that closes while data for it is in flight resets the connection.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(0),
                read => return read.context(|| "reading from a socket".into()),
            }
        }
    }

    /// Fills `buffer`. Returns false when the other side has closed before the first byte.
    pub(super) fn read_all(&self, buffer: &mut [u8]) -> Result<bool, Failure> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read_some(&mut buffer[filled..])? {
                0 if filled == 0 => return Ok(false),
                0 => {
                    return Err(Failure::environment("the other side has closed in the middle of a message"));
                }
                count => filled += count,
            }
        }

        Ok(true)
    }

    /// Writes `head` and then `data`.
    pub(super) fn write_all(&self, head: &[u8], data: &[u8]) -> Result<(), Failure> {
        let mut idle = Relax::new();
        let mut done = 0;
        let length = head.len() + data.len();

        while done < length {
            let slices = if done < head.len() {
                [IoSlice::new(&head[done..]), IoSlice::new(data)]
            } else {
                [IoSlice::new(&data[done - head.len()..]), IoSlice::new(&[])]
            };

            let written = match self {
                Self::Unix(stream) => (&mut &*stream).write_vectored(&slices),
                Self::Tcp(stream) => (&mut &*stream).write_vectored(&slices),
            };

            match written {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.pause(&mut idle, PollFlags::POLLOUT)?;
                }
                written => {
                    done += written.context(|| "writing to a socket".into())?;
                    idle.reset();
                }
            }
        }

        Ok(())
    }

    /// Closes the connection for writing.
    pub(super) fn finish(&self) {
        // The call fails when the other side has already closed, which is no error here.
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(std::net::Shutdown::Write),
            Self::Tcp(stream) => stream.shutdown(std::net::Shutdown::Write),
        };
    }

    /// Makes one pause of a waiting loop. A pause that sleeps ends when the socket is ready.
    fn pause(&self, idle: &mut Relax, flags: PollFlags) -> Result<(), Failure> {
        match idle.next_pause() {
            // The parent kills children that take too long.
            Pause::Sleep(_) => wait(self.fd(), flags, MAX_SLEEP),
            pause => {
                pause.take();
                Ok(())
            }
        }
    }
}

/// Opens a side's end of a path: the I/O side accepts a connection, and the compute side connects
/// to `peer`.
pub(super) fn open(
    side: Side,
    path: Path,
    listeners: &Listeners,
    peer: Option<&Addresses>,
) -> Result<Box<dyn Endpoint + Send>, Failure> {
    match (side, peer) {
        (Side::Io, _) => Ok(Box::new(Direct(listeners.accept(path)?))),
        (Side::Compute, Some(peer)) if path.middle() == Middle::Forwarder => {
            // Each connection has at most one call in flight.
            let [sends, receives] = [connect(path, peer)?, connect(path, peer)?];
            Ok(Box::new(Forwarded { sends, receives }))
        }
        (Side::Compute, Some(peer)) => Ok(Box::new(Direct(connect(path, peer)?))),
        _ => Err(Failure::environment("the order names no peer to connect to")),
    }
}

/// Opens one end of a TCP connection between machines. The I/O side listens at `address`. The
/// compute side connects to it, and retries for up to [`CONNECT_TIMEOUT`].
pub(in crate::benches) fn open_tcp(
    side: Side,
    address: SocketAddr,
) -> Result<Box<dyn Endpoint + Send>, Failure> {
    let context = || address.to_string();
    if side == Side::Io {
        let listener = TcpListener::bind(address).context(context)?;
        wait(listener.as_fd(), PollFlags::POLLIN, CONNECT_TIMEOUT)?;
        return Ok(Box::new(Direct(Stream::tcp(listener.accept().context(context)?.0)?)));
    }

    let start = Instant::now();
    loop {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Err(_) if start.elapsed() < CONNECT_TIMEOUT => std::thread::sleep(RETRY_INTERVAL),
            stream => return Ok(Box::new(Direct(Stream::tcp(stream.context(context)?)?))),
        }
    }
}

/// A socket that the messages go through directly.
struct Direct(Stream);

impl Endpoint for Direct {
    fn sender(&self) -> Result<Box<dyn Sender + '_>, Failure> {
        Ok(Box::new(self))
    }

    fn receiver(&self) -> Result<Box<dyn Receiver + '_>, Failure> {
        Ok(Box::new(self))
    }
}

impl Sender for &Direct {
    fn send(&mut self, _: u32, message: &[u8]) -> Result<(), Failure> {
        self.0.write_all(&[], message)
    }
}

impl Receiver for &Direct {
    fn receive(&mut self, _: u32, message: &mut [u8]) -> Result<(), Failure> {
        if self.0.read_all(message)? { Ok(()) } else { Err(closed()) }
    }
}

/// Connections to a forwarder, which makes this process's calls.
struct Forwarded {
    /// The connection of calls that write.
    sends: Stream,
    /// The connection of calls that read.
    receives: Stream,
}

impl Endpoint for Forwarded {
    fn sender(&self) -> Result<Box<dyn Sender + '_>, Failure> {
        Ok(Box::new(self))
    }

    fn receiver(&self) -> Result<Box<dyn Receiver + '_>, Failure> {
        Ok(Box::new(self))
    }
}

impl Sender for &Forwarded {
    fn send(&mut self, _: u32, message: &[u8]) -> Result<(), Failure> {
        self.sends.write_all(&(message.len() as u64 | WRITE_FLAG).to_le_bytes(), message)?;
        check_answer(&self.sends, message.len())
    }
}

impl Receiver for &Forwarded {
    fn receive(&mut self, _: u32, message: &mut [u8]) -> Result<(), Failure> {
        self.receives.write_all(&(message.len() as u64).to_le_bytes(), &[])?;
        check_answer(&self.receives, message.len())?;
        if self.receives.read_all(message)? { Ok(()) } else { Err(closed()) }
    }
}

/// Reads and checks the result of a forwarded call.
fn check_answer(stream: &Stream, expected: usize) -> Result<(), Failure> {
    let mut answer = [0; CALL_BYTES];
    if !stream.read_all(&mut answer)? {
        return Err(closed());
    }

    match u64::from_le_bytes(answer) {
        transferred if transferred == expected as u64 => Ok(()),
        transferred => {
            Err(Failure::result(format!("a forwarded call moved {transferred} bytes instead of {expected}")))
        }
    }
}

/// Returns the failure of a connection that the other side has closed.
fn closed() -> Failure {
    Failure::environment("the other side has closed its socket")
}
