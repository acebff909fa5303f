//! A process that exchanges messages of 8 bytes with another one.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    time::{Duration, Instant},
};

use nicforge::failure::{ErrorContext, Failure};
use nicforge_bgl_transport::BglTransport;
use nicforge_driver::{Deadline, Device, OpenOptions as DeviceOptions, environment};
use nicforge_extoll_transport::ExtollTransport;
use nicforge_fcnp::{ComputeCore, IoNode};
use nicforge_matching::{self as matching, Envelope, Selector};
use nicforge_mpi_programs::{Buffer, Endpoint, collective};
use nicforge_mu_transport::MuTransport;
use nicforge_portals::{Interface, Kernel, Mode};
use nicforge_velo::Address;

use super::task::{self, Answer, Library, Order};
use crate::{process::carry_out_orders, samples::Samples};

/// Bytes of a message.
pub(super) const BYTES: usize = 8;
/// The greatest number of round trips of an exchange.
const MAX_ROUND_TRIPS: u64 = 20_000;
/// The interval between two attempts to connect to a socket.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// How long the other side may take to listen.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// The matching context of the messages.
const CONTEXT: u32 = 1;
/// The bit of a message that says that it is the last one of an exchange.
const LAST: u64 = 1;

/// A process's end of a connection to its partner. No wait has a limit of its own: the parent kills
/// processes that take too long.
trait Partner {
    /// Sends a message.
    fn send(&mut self, message: [u8; BYTES]) -> Result<(), Failure>;

    /// Waits for a message.
    fn receive(&mut self) -> Result<[u8; BYTES], Failure>;

    /// Waits in a barrier with all ranks of the job.
    fn barrier(&mut self) -> Result<(), Failure> {
        Err(Failure::usage("only ranks of a job have a barrier"))
    }
}

/// Runs the process.
pub(super) fn main(partner: &task::Partner) -> Result<u8, Failure> {
    let mut partner = open(partner)?;
    carry_out_orders(
        &Answer::Ready,
        |message| Answer::Failed { message },
        |order| match order {
            Order::Exchange(time) => exchange(partner.as_mut(), time).map(Answer::Exchanged),
            Order::Echo => echo(partner.as_mut()).map(|()| Answer::Done),
            Order::Barrier => partner.barrier().map(|()| Answer::Done),
        },
    )
}

/// Makes round trips until `time` has passed. Returns the halves of their times. One more comes
/// before them, because the other side may not be ready.
fn exchange(partner: &mut dyn Partner, time: Duration) -> Result<Samples, Failure> {
    let mut samples = Samples::default();
    let start = Instant::now();

    for number in 0..=MAX_ROUND_TRIPS {
        let is_last = number > 0 && (number == MAX_ROUND_TRIPS || start.elapsed() >= time);
        let message = (number << 1 | if is_last { LAST } else { 0 }).to_le_bytes();

        let sent_at = Instant::now();
        partner.send(message)?;
        let echo = partner.receive()?;
        let round_trip = sent_at.elapsed();

        if echo != message {
            return Err(Failure::result(format!("{echo:?} came back instead of {message:?}")));
        }
        if number > 0 {
            samples.add(round_trip / 2);
        }
        if is_last {
            break;
        }
    }
    Ok(samples)
}

/// Returns the messages of an exchange.
fn echo(partner: &mut dyn Partner) -> Result<(), Failure> {
    loop {
        let message = partner.receive()?;
        partner.send(message)?;
        if u64::from_le_bytes(message) & LAST != 0 {
            return Ok(());
        }
    }
}

/// Opens a partner's end of its connection, and waits for the others.
fn open(partner: &task::Partner) -> Result<Box<dyn Partner>, Failure> {
    Ok(match partner {
        task::Partner::Rank { library, rank, ranks, nodes } => {
            let mut opened = open_rank(*library, *rank, *ranks, *nodes)?;
            // A rank that waits for orders calls no library. Others that are still being opened may
            // need an answer of it, so none is ready before all are.
            opened.barrier()?;
            opened
        }
        task::Partner::ComputeCore => {
            Box::new(ComputeCore::open(device()?, Default::default()).context(|| "a compute core".into())?)
        }
        task::Partner::IoNode => {
            Box::new(IoNode::open(device()?, Default::default()).context(|| "an I/O node".into())?)
        }

        task::Partner::Socket { path, listens } => Box::new(open_socket(path, *listens)?),
        task::Partner::Pipes { reads, writes, is_first } => {
            let read = || File::open(reads).context(|| reads.display().to_string());
            let write =
                || OpenOptions::new().write(true).open(writes).context(|| writes.display().to_string());
            // Each open waits for the other process's.
            let (reader, writer) = if *is_first {
                let writer = write()?;
                (read()?, writer)
            } else {
                (read()?, write()?)
            };
            Box::new(Pipes { reader, writer })
        }
    })
}

/// Opens the device of this process.
fn device() -> Result<Device, Failure> {
    Device::open_env(environment::SOCKET, DeviceOptions::default()).context(|| "the device".into())
}

/// Opens a rank of a job, and waits for all others.
fn open_rank(library: Library, rank: u32, ranks: u32, nodes: u32) -> Result<Box<dyn Partner>, Failure> {
    let context = || format!("rank {rank}");
    let never = Deadline::never();
    let boxed: Box<dyn Partner> = match library {
        Library::Extoll => {
            let address = |rank| Address { node: rank % nodes, vpid: (rank / nodes) as u16 };
            let job = nicforge_extoll_transport::Job::new((0..ranks).map(address).collect());
            let mut transport =
                ExtollTransport::open(device()?, &job, Default::default()).context(context)?;
            transport.wait_for_all(never, None).context(context)?;
            matched(transport, rank)?
        }
        Library::Unit => {
            let job = nicforge_mu_transport::Job::of_nodes(ranks, 1);
            let mut transport = MuTransport::open(&device()?, &job, Default::default()).context(context)?;
            transport.wait_for_all(never, None).context(context)?;
            matched(transport, rank)?
        }
        Library::Torus => {
            let job = nicforge_bgl_transport::Job::of_nodes(ranks);
            let mut transport = BglTransport::open(device()?, &job, Default::default()).context(context)?;
            transport.wait_for_all(never, None).context(context)?;
            matched(transport, rank)?
        }
        Library::SeaStar => {
            let node = environment::node().context(context)?;
            let directory = environment::directory().context(context)?;
            let kernel = directory.join("admin").join(format!("{node}.kernel"));
            let kernel = Device::open_named(kernel.as_os_str(), DeviceOptions::default()).context(context)?;
            let kernel = Kernel::boot(kernel, Default::default()).context(context)?;
            let interface = Interface::open(&kernel, device()?, Mode::NicBased).context(context)?;

            let job = nicforge_portals_mpi::Job::of_nodes(ranks, 1);
            let mut endpoint =
                nicforge_portals_mpi::Endpoint::open(interface, &job, Default::default()).context(context)?;
            endpoint.wait_for_all(never, None).context(context)?;
            Box::new(Rank::new(endpoint, rank)?)
        }
    };
    Ok(boxed)
}

/// Returns a rank of a transport of the matching layer.
fn matched<T: matching::Transport + 'static>(transport: T, rank: u32) -> Result<Box<dyn Partner>, Failure> {
    let endpoint = matching::Endpoint::new(transport, Default::default()).context(|| "an endpoint".into())?;
    Ok(Box::new(Rank::new(endpoint, rank)?))
}

/// A rank of a job. Its next receive is posted before each send, as a program does that knows which
/// message comes next.
struct Rank<E: Endpoint> {
    endpoint: E,
    peer: u32,
    posted: Option<E::Request>,
    /// The memory of the last send, and of the last receive.
    send_buffer: Option<E::Buffer>,
    receive_buffer: Option<E::Buffer>,
}

impl<E: Endpoint> Rank<E> {
    /// Returns the rank of an endpoint, which must be `expected`.
    fn new(endpoint: E, expected: u32) -> Result<Self, Failure> {
        if endpoint.rank() != expected {
            let message = format!("the rank is {} instead of {expected}", endpoint.rank());
            return Err(Failure::environment(message));
        }
        Ok(Self {
            peer: 1_u32.saturating_sub(expected),
            endpoint,
            posted: None,
            send_buffer: None,
            receive_buffer: None,
        })
    }

    /// Posts the next receive, unless it is posted already. Returns its request.
    fn post(&mut self) -> Result<E::Request, Failure> {
        if let Some(request) = self.posted {
            return Ok(request);
        }
        let buffer = match self.receive_buffer.take() {
            Some(buffer) => buffer,
            None => self.endpoint.buffer(BYTES).context(|| "a buffer".into())?,
        };
        let from = Selector::exact(self.peer, CONTEXT, 0);
        let request = self.endpoint.irecv(from, buffer, 0).context(|| "a receive".into())?;
        self.posted = Some(request);
        Ok(request)
    }

    /// Waits for the completion of a request. Returns its memory.
    fn wait(&mut self, request: E::Request, description: &'static str) -> Result<E::Buffer, Failure> {
        let context = || description.into();
        let done = self.endpoint.wait(request, Deadline::never()).context(context)?;
        done.result.context(context)?;
        Ok(done.buffer)
    }
}

impl<E: Endpoint> Partner for Rank<E> {
    fn send(&mut self, message: [u8; BYTES]) -> Result<(), Failure> {
        self.post()?;
        let mut buffer = match self.send_buffer.take() {
            Some(buffer) => buffer,
            None => self.endpoint.buffer(BYTES).context(|| "a buffer".into())?,
        };
        if !buffer.write(0, &message) {
            return Err(Failure::environment("a buffer is too short"));
        }

        let to = Envelope::new(self.peer, CONTEXT, 0);
        let request = self.endpoint.isend(to, buffer, 0).context(|| "a send".into())?;
        self.send_buffer = Some(self.wait(request, "a send")?);
        Ok(())
    }

    fn receive(&mut self) -> Result<[u8; BYTES], Failure> {
        let request = self.post()?;
        let buffer = self.wait(request, "a receive")?;
        self.posted = None;

        let mut message = [0; BYTES];
        if !buffer.read(0, &mut message) {
            return Err(Failure::result("a message is too short"));
        }
        self.receive_buffer = Some(buffer);
        Ok(message)
    }

    fn barrier(&mut self) -> Result<(), Failure> {
        collective::barrier(&mut self.endpoint, Deadline::never()).context(|| "the barrier".into())
    }
}

/// The only core of the pset that is used.
const CORE: u32 = 0;

impl Partner for ComputeCore {
    fn send(&mut self, message: [u8; BYTES]) -> Result<(), Failure> {
        self.write_until(&message, Deadline::never(), None).map(drop).context(|| "a write".into())
    }

    fn receive(&mut self) -> Result<[u8; BYTES], Failure> {
        let mut message = [0; BYTES];
        self.read_until(&mut message, Deadline::never(), None).context(|| "a read".into())?;
        Ok(message)
    }
}

impl Partner for IoNode {
    fn send(&mut self, message: [u8; BYTES]) -> Result<(), Failure> {
        self.write_until(CORE, &message, Deadline::never(), None).map(drop).context(|| "a write".into())
    }

    fn receive(&mut self) -> Result<[u8; BYTES], Failure> {
        let mut message = [0; BYTES];
        self.read_until(CORE, &mut message, Deadline::never(), None).context(|| "a read".into())?;
        Ok(message)
    }
}

/// Opens an end of a Unix socket, whose reads block.
fn open_socket(path: &Path, listens: bool) -> Result<UnixStream, Failure> {
    let context = || path.display().to_string();
    if listens {
        let listener = UnixListener::bind(path).context(context)?;
        return Ok(listener.accept().context(context)?.0);
    }

    let start = Instant::now();
    loop {
        match UnixStream::connect(path) {
            Err(_) if start.elapsed() < CONNECT_TIMEOUT => std::thread::sleep(RETRY_INTERVAL),
            stream => return stream.context(context),
        }
    }
}

impl Partner for UnixStream {
    fn send(&mut self, message: [u8; BYTES]) -> Result<(), Failure> {
        self.write_all(&message).context(|| "the socket".into())
    }

    fn receive(&mut self) -> Result<[u8; BYTES], Failure> {
        let mut message = [0; BYTES];
        self.read_exact(&mut message).context(|| "the socket".into())?;
        Ok(message)
    }
}

/// One end of two pipes.
struct Pipes {
    reader: File,
    writer: File,
}

impl Partner for Pipes {
    fn send(&mut self, message: [u8; BYTES]) -> Result<(), Failure> {
        self.writer.write_all(&message).context(|| "a pipe".into())
    }

    fn receive(&mut self) -> Result<[u8; BYTES], Failure> {
        let mut message = [0; BYTES];
        self.reader.read_exact(&mut message).context(|| "a pipe".into())?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchange_makes_a_round_trip_also_without_time() {
        let (mut first, mut second) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let echo = scope.spawn(move || echo(&mut second).is_ok());
            let samples = exchange(&mut first, Duration::ZERO).unwrap_or_default();
            assert_eq!(samples.len(), 1);
            assert!(echo.join().unwrap_or(false));
        });
    }
}
