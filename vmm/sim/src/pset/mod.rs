//! A Blue Gene/P pset and programs on it, in virtual time.
//!
//! The machine is an I/O node and a compute node with the tree's link. The programs are those of
//! the paper's benchmarks: messages from one side to the other as fast as possible, over FCNP, in
//! bare packets, or through the sockets of the system's daemon.

mod ciod;
mod raw;
mod run;

use std::{cell::Cell, rc::Rc, time::Duration};

use nicforge::failure::Failure;
use nicforge_driver::runtime;
use nicforge_fcnp::{ComputeCore, Config, Error, IoNode, Mode, Poller};
use thiserror::Error;

use self::run::PsetRun;
use crate::{
    interrupted::Interrupted,
    world::{Picos, Profile, WorldError},
};

/// Time for which a core pauses before each call, so that the I/O node's call already waits for it.
const AWAITED_PAUSE: Duration = Duration::from_micros(200);

/// The reason why an experiment has no result.
#[derive(Debug, Error)]
pub enum PsetError {
    /// The simulation did not end.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The machine could not be built.
    #[error("the pset cannot be built: {0}")]
    Machine(String),
    /// A program failed.
    #[error("{program}: {error}")]
    Program {
        /// The program.
        program: &'static str,
        /// Its error.
        error: String,
    },
}

impl From<PsetError> for Failure {
    fn from(error: PsetError) -> Self {
        match error {
            PsetError::World(error) => error.into(),
            _ => Self::result(error.to_string()),
        }
    }
}

/// The modelled machine and its software.
#[derive(Clone, Debug)]
pub struct Pset<'a> {
    /// Keys and values of the section `[pset.link]` of a machine file.
    pub link: String,
    /// Costs of the I/O node's software.
    pub io: Profile,
    /// Costs of a compute core's software.
    pub compute: Profile,
    /// The way in which the I/O node's threads wait.
    pub waiting: Waiting,
    /// Determines the random numbers of the libraries, and how late each core starts.
    pub seed: u64,
    /// The check of whether the user has ended the run.
    pub interrupted: Interrupted<'a>,
}

/// The way in which the I/O node's threads wait for requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// The call polls.
    #[default]
    Polling,
    /// The daemon polls, and sleeps until an interrupt when it has found nothing for 50 us.
    Interrupt,
}

impl Waiting {
    /// Returns the library's settings for this way to wait.
    fn config(self) -> Config {
        let (mode, poller) = match self {
            Self::Polling => (Mode::Polling, Poller::Calls),
            Self::Interrupt => (Mode::Interrupt, Poller::Daemon),
        };
        Config { mode, poller, ..Config::default() }
    }
}

/// The direction of an experiment's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the I/O node to the compute node: the core reads.
    ToCompute,
    /// From the compute node to the I/O node: the core writes.
    ToIo,
}

/// A sequence of messages between the I/O node and one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stream {
    direction: Direction,
    core: u8,
    bytes: usize,
    /// Number of measured messages. One message before them is not measured.
    messages: u32,
    /// Time for which the core pauses before each call. In the pauses, the I/O node's next call
    /// begins to wait.
    pause: Duration,
}

impl Stream {
    /// Runs the I/O node's side: a call for each message.
    fn serve(self, io: &IoNode) -> Result<(), Error> {
        let mut buffer = vec![0; self.bytes];
        for _ in 0..=self.messages {
            match self.direction {
                Direction::ToCompute => io.write(self.core.into(), &buffer)?,
                Direction::ToIo => io.read(self.core.into(), &mut buffer)?,
            };
        }
        Ok(())
    }

    /// Runs the core's side: a call for each message. Returns the mean time of a call, without the
    /// first one.
    fn drive(self, core: &ComputeCore) -> Result<Duration, Error> {
        let mut buffer = vec![0; self.bytes];
        let mut call = || match self.direction {
            Direction::ToCompute => core.read(&mut buffer),
            Direction::ToIo => core.write(&buffer),
        };

        call()?;
        let mut time = Duration::ZERO;
        for _ in 0..self.messages {
            if !self.pause.is_zero() {
                runtime::sleep(self.pause);
            }
            let start = runtime::Instant::now();
            call()?;
            time += start.elapsed();
        }
        Ok(time / self.messages.max(1))
    }
}

impl Pset<'_> {
    /// Sends messages of `bytes` bytes over FCNP as fast as possible. Returns the mean time of
    /// `messages` messages on the core, after a first one.
    ///
    /// # Errors
    /// [`PsetError`].
    pub fn stream(&self, direction: Direction, bytes: usize, messages: u32) -> Result<Picos, PsetError> {
        let streams = [Stream { direction, core: 0, bytes, messages, pause: Duration::ZERO }];
        self.streams(&streams).map(|times| times.into_iter().sum())
    }

    /// Returns the mean time of a message of `bytes` bytes over FCNP for whose request the I/O
    /// node's call already waits.
    ///
    /// # Errors
    /// [`PsetError`].
    pub fn awaited(&self, direction: Direction, bytes: usize, messages: u32) -> Result<Picos, PsetError> {
        let streams = [Stream { direction, core: 0, bytes, messages, pause: AWAITED_PAUSE }];
        self.streams(&streams).map(|times| times.into_iter().sum())
    }

    /// Sends messages of `bytes` bytes in both directions at the same time: one core reads and
    /// another one writes. Returns the mean times of a message to the compute node and to the I/O
    /// node.
    ///
    /// # Errors
    /// [`PsetError`].
    pub fn both_ways(&self, bytes: usize, messages: u32) -> Result<[Picos; 2], PsetError> {
        let stream = |direction, core| Stream { direction, core, bytes, messages, pause: Duration::ZERO };
        let times = self.streams(&[stream(Direction::ToCompute, 0), stream(Direction::ToIo, 1)])?;
        Ok([times.first().copied().unwrap_or_default(), times.get(1).copied().unwrap_or_default()])
    }

    /// Runs streams at the same time. Returns the mean time of a message of each of them.
    fn streams(&self, streams: &[Stream]) -> Result<Vec<Picos>, PsetError> {
        let mut run = PsetRun::new(self)?;
        let config = self.waiting.config();
        run.start_io(config, streams.iter().map(|&stream| move |io: &IoNode| stream.serve(io)));

        let times: Vec<_> = streams.iter().map(|_| Rc::new(Cell::new(Duration::ZERO))).collect();
        for (&stream, time) in streams.iter().zip(&times) {
            let time = time.clone();
            run.start_core(stream.core, config, move |core| {
                time.set(stream.drive(core)?);
                Ok(())
            });
        }

        run.finish()?;
        Ok(times.iter().map(|time| time.get().into()).collect())
    }
}
