//! Moves a stream over TCP, inside a guest, and checks every byte of it.
//!
//! ```text
//! guest-net receive PORT BYTES            # from the first connection
//! guest-net send ADDRESS:PORT BYTES
//! ```
//!
//! Both print the number of bytes and the same checksum. The exit status is 0 when all bytes came
//! and the connection ended properly.

use std::{
    error::Error,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    process::ExitCode,
    time::{Duration, Instant},
};

/// The result of the program, or the text of its failure.
type Outcome = Result<(), Box<dyn Error>>;

/// Time limit of a connection, and of a wait for the next byte. It is generous enough for an
/// emulated processor on a loaded machine, and for an interface that is gone for a while.
const LIMIT: Duration = Duration::from_secs(120);
/// Bytes of one read or write.
const PIECE: usize = 1 << 16;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["receive", port, bytes] => receive(port, bytes),
        ["send", address, bytes] => send(address, bytes),
        _ => Err("usage: guest-net receive PORT BYTES | send ADDRESS:PORT BYTES".into()),
    };

    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("failed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The stream: numbers of a generator (xorshift64), and their checksum.
struct Stream {
    state: u64,
    checksum: u64,
}

impl Stream {
    /// Returns the stream at its start.
    fn new() -> Self {
        Self { state: 0x9e37_79b9_7f4a_7c15, checksum: 0 }
    }

    /// Returns the next 8 bytes of the stream.
    fn next(&mut self) -> [u8; 8] {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.checksum = (self.checksum.rotate_left(5) ^ self.state).wrapping_mul(0x0100_0000_01b3);
        self.state.to_le_bytes()
    }
}

/// Returns a number of bytes that is a multiple of the stream's unit.
fn length(bytes: &str) -> Result<usize, Box<dyn Error>> {
    let bytes: usize = bytes.parse()?;
    if bytes.is_multiple_of(8) { Ok(bytes) } else { Err("BYTES is no multiple of 8".into()) }
}

/// Accepts one connection, and checks that it carries the stream and no more.
fn receive(port: &str, bytes: &str) -> Outcome {
    let (port, bytes) = (port.parse()?, length(bytes)?);
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    println!("listening");

    let (mut connection, _) = listener.accept()?;
    connection.set_read_timeout(Some(LIMIT))?;
    let (mut stream, mut piece) = (Stream::new(), vec![0; PIECE]);
    let mut remaining = bytes;
    while remaining > 0 {
        let now = remaining.min(PIECE);
        connection.read_exact(&mut piece[..now])?;
        for (number, unit) in piece[..now].chunks_exact(8).enumerate() {
            if unit != stream.next() {
                return Err(format!("byte {} is wrong", bytes - remaining + 8 * number).into());
            }
        }
        remaining -= now;
    }

    if connection.read(&mut piece)? != 0 {
        return Err("there are more bytes than expected".into());
    }
    println!("{bytes} bytes, checksum {:016x}", stream.checksum);
    Ok(())
}

/// Sends the stream to a receiver, and waits until the receiver has ended the connection.
fn send(address: &str, bytes: &str) -> Outcome {
    let (address, bytes) = (address.parse()?, length(bytes)?);
    let mut connection = connect(address)?;
    connection.set_write_timeout(Some(LIMIT))?;

    let mut stream = Stream::new();
    let mut remaining = bytes;
    while remaining > 0 {
        let now = remaining.min(PIECE);
        let piece: Vec<u8> = (0..now / 8).flat_map(|_| stream.next()).collect();
        connection.write_all(&piece)?;
        remaining -= now;
    }

    // The receiver ends its side after it has read and checked all bytes.
    connection.shutdown(Shutdown::Write)?;
    connection.set_read_timeout(Some(LIMIT))?;
    if connection.read(&mut [0])? != 0 {
        return Err("the receiver answered".into());
    }
    println!("{bytes} bytes, checksum {:016x}", stream.checksum);
    Ok(())
}

/// Connects to a receiver that may not listen yet.
fn connect(address: SocketAddr) -> Result<TcpStream, Box<dyn Error>> {
    let start = Instant::now();
    loop {
        match TcpStream::connect_timeout(&address, LIMIT) {
            Ok(connection) => return Ok(connection),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && start.elapsed() < LIMIT => {}
            Err(error) => return Err(error.into()),
        }
    }
}
