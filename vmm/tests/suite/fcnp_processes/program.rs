//! The program that the tests start on the nodes.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use nicforge_driver::{Device, OpenOptions};
use nicforge_fcnp::{ComputeCore, Config, Error, IoNode, Mode, Statistics};

/// The longest wait.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Number of packets after which a transfer is reported as in progress.
const PACKETS_OF_PROGRESS: u64 = 64;

/// A side of FCNP, as its calls see it. A compute core has one peer, so its calls ignore the core
/// number.
pub(crate) enum Side {
    Compute(Box<ComputeCore>),
    Io(IoNode),
}

impl Side {
    /// Opens a side in a role: `compute`, `io` or `io-interrupt`.
    pub(crate) fn open(role: &str, socket: &str) -> Self {
        let config = |mode| Config { mode, open_timeout: LIMIT, ..Config::default() };
        match role {
            "compute" => {
                Self::Compute(Box::new(ComputeCore::open(device(socket), config(Mode::Polling)).unwrap()))
            }
            "io" => Self::Io(IoNode::open(device(socket), config(Mode::Polling)).unwrap()),
            "io-interrupt" => Self::Io(IoNode::open(device(socket), config(Mode::Interrupt)).unwrap()),
            role => panic!("unknown role {role}"),
        }
    }

    pub(crate) fn read(&self, core: u32, buffer: &mut [u8]) -> Result<usize, Error> {
        match self {
            Self::Compute(side) => side.read(buffer),
            Self::Io(side) => side.read(core, buffer),
        }
    }

    pub(crate) fn write(&self, core: u32, data: &[u8]) -> Result<usize, Error> {
        match self {
            Self::Compute(side) => side.write(data),
            Self::Io(side) => side.write(core, data),
        }
    }

    pub(crate) fn statistics(&self) -> Statistics {
        match self {
            Self::Compute(side) => side.statistics(),
            Self::Io(side) => side.statistics(),
        }
    }
}

/// Opens the attachment behind `socket`. It retries, because the server notices the end of the last
/// client only after some time.
pub(crate) fn device(socket: impl AsRef<Path>) -> Device {
    let started = Instant::now();
    loop {
        match Device::open_vfio_user(&socket, OpenOptions::default()) {
            Ok(device) => return device,
            Err(error) => assert!(started.elapsed() < LIMIT, "{}: {error}", socket.as_ref().display()),
        }
        crate::pause();
    }
}

/// Returns the message of `size` bytes that core `rank` sends or receives. Its bytes depend on
/// their position.
pub(crate) fn pattern(rank: u32, size: usize) -> Vec<u8> {
    let start = (rank as usize).wrapping_mul(101).wrapping_add(size);
    (0..size).map(|at| (start + at + (at >> 8) * 3 + (at >> 16)) as u8).collect()
}

/// Returns the answer that reports the result of a call.
pub(crate) fn outcome(name: &str, result: Result<String, Error>) -> String {
    match result {
        Ok(text) => format!("{name} ok {text}"),
        Err(error) if error.is_device_gone() => format!("{name} gone"),
        Err(Error::PeerGone { .. }) => format!("{name} peer gone"),
        Err(Error::Aborted { .. }) => format!("{name} aborted"),
        Err(error) => format!("{name} failed: {error}"),
    }
}

/// Returns whether a call that failed with this error may be repeated.
pub(crate) fn is_repeatable(error: &Error) -> bool {
    matches!(error, Error::PeerGone { .. } | Error::Aborted { .. })
}

/// Makes the core's calls of an exchange: it sends a message and receives it back.
pub(crate) fn exchange(side: &Side, rank: u32, size: usize) -> Result<(), Error> {
    let data = pattern(rank, size);
    let mut buffer = vec![0; size];
    assert_eq!(side.write(rank, &data)?, size);
    assert_eq!(side.read(rank, &mut buffer)?, size);
    assert!(buffer == data, "core {rank} got something else in {size} bytes");
    Ok(())
}

/// Makes the I/O node's calls of an [`exchange`]: it receives a message and sends it back.
pub(crate) fn answer(io: &Side, rank: u32, buffer: &mut [u8]) -> Result<(), Error> {
    let size = io.read(rank, buffer)?;
    assert!(buffer[..size] == pattern(rank, size), "core {rank} sent something else in {size} bytes");
    io.write(rank, &buffer[..size]).map(drop)
}

/// Bytes of the messages that a core receives in the command `persist`.
const PERSIST_BYTES: usize = 30_000;
/// Bytes of the messages in an exchange.
pub(crate) const SIZES: [usize; 8] = [1, 240, 255, 256, 4096, 65_536 + 250, 1000, 30_000];

/// Carries out a command, and returns its answer.
pub(crate) fn carry_out(side: &Side, words: &[&str]) -> String {
    let number = |at: usize| words[at].parse::<usize>().unwrap();
    match words[0] {
        "write" => {
            let data = pattern(number(1) as u32, number(2));
            outcome("write", side.write(number(1) as u32, &data).map(|size| size.to_string()))
        }
        "read" => {
            let mut buffer = vec![0; number(2)];
            let size = side.read(number(1) as u32, &mut buffer);
            outcome(
                "read",
                size.map(|size| {
                    let is_correct = buffer[..size] == pattern(number(1) as u32, size);
                    format!("{size} {}", if is_correct { "good" } else { "bad" })
                }),
            )
        }
        // `exchange rank times` ends early on an error.
        "exchange" => {
            let sizes = SIZES.iter().cycle().take(number(2));
            let result = sizes.into_iter().try_for_each(|&size| exchange(side, number(1) as u32, size));
            outcome("exchange", result.map(|()| side.statistics().hand_overs.to_string()))
        }
        // `persist rank times` exchanges independent messages in both directions. It repeats a
        // message after an error that allows it.
        "persist" => {
            let (rank, mut done, mut lost) = (number(1) as u32, 0, 0);
            let (expected, mut buffer) = (pattern(rank, PERSIST_BYTES), vec![0; PERSIST_BYTES]);
            while done < number(2) {
                let data = pattern(rank, SIZES[done % SIZES.len()]);
                match side.write(rank, &data).and_then(|_| side.read(rank, &mut buffer)) {
                    Ok(size) => {
                        assert!(buffer[..size] == expected, "core {rank} got something else");
                        done += 1;
                    }
                    Err(error) if is_repeatable(&error) => lost += 1,
                    Err(error) => return outcome("persist", Err(error)),
                }
            }
            format!("persist ok {lost}")
        }
        // `serve first end` is the other side of `persist` for a range of cores, until the device
        // is gone. A core's write succeeds when its data is sent. A new process therefore cannot
        // know which direction is next, so each direction has a thread.
        "serve" => {
            let may_repeat = |result: Result<usize, Error>| result.as_ref().err().is_none_or(is_repeatable);
            thread::scope(|scope| {
                for rank in number(1) as u32..number(2) as u32 {
                    scope.spawn(move || {
                        let mut buffer = vec![0; 100_000];
                        loop {
                            let size = side.read(rank, &mut buffer);
                            if let Ok(size) = size {
                                let is_correct = buffer[..size] == pattern(rank, size);
                                assert!(is_correct, "core {rank} sent something else");
                            }
                            if !may_repeat(size) {
                                break;
                            }
                        }
                    });
                    scope.spawn(move || {
                        let data = pattern(rank, PERSIST_BYTES);
                        while may_repeat(side.write(rank, &data)) {}
                    });
                }
            });
            "serve gone".into()
        }
        word => panic!("unknown command {word}"),
    }
}

/// Runs the program on a node, if the environment selects a role. It reads commands from standard
/// input, and answers on standard error.
pub(crate) fn run() {
    let (Ok(role), Ok(socket)) = (std::env::var("FCNP_ROLE"), std::env::var("FCNP_SOCKET")) else { return };
    let side = Side::open(&role, &socket);
    eprintln!("> ready");

    thread::scope(|scope| {
        for line in std::io::stdin().lines() {
            let (line, before, side) = (line.unwrap(), side.statistics(), &side);
            let call = scope.spawn(move || {
                let words: Vec<_> = line.split(' ').collect();
                eprintln!("> {}", carry_out(side, &words));
            });
            scope.spawn(move || {
                let total = |counters: Statistics| counters.packets_sent + counters.packets_received;
                while !call.is_finished() {
                    if total(side.statistics()) > total(before) + PACKETS_OF_PROGRESS {
                        eprintln!("> transferring");
                        break;
                    }
                    crate::pause();
                }
            });
        }
    });
}
