//! Where an attacker fights: the sockets it was given, how large it is, and the lines by which it reports.
//!
//! An attacker is a process of its own, with descriptors, memory and limits of its own. It reports on its standard output, a line
//! an event, and goes on until its time is up or it is killed.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use nix::errno::Errno;

/// How long an attacker waits after a round that the server cut short.
const PAUSE: Duration = Duration::from_millis(1);

/// How large an attack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// For a test of seconds.
    Small,
    /// For the load test.
    Large,
}

impl Size {
    /// One of two numbers.
    pub fn pick<T>(self, small: T, large: T) -> T {
        match self {
            Self::Small => small,
            Self::Large => large,
        }
    }

    /// Its name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
        }
    }
}

/// Why an attack, or a round of it, ended.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// It cannot be carried out on this machine.
    #[error("{0}")]
    NotRun(String),
    /// The server or the system ended it.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The device or its driver ended it.
    #[error(transparent)]
    Device(#[from] nicforge_driver::Error),
    /// Shared memory could not be had or reached.
    #[error(transparent)]
    Memory(#[from] nicforge_shm::MemoryError),
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Result of a round.
pub type Round = Result<(), Failed>;

/// What an attacker reports, a line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A round went as the attacker meant it.
    Landed,
    /// The server ended a round early.
    Cut(String),
    /// The attack is impossible here.
    NotRun(String),
}

impl Report {
    /// Reads a line; `None` for one that is no report.
    pub fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "landed" => Some(Self::Landed),
            "cut" => Some(Self::Cut(rest.to_owned())),
            "not-run" => Some(Self::NotRun(rest.to_owned())),
            _ => None,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Landed => write!(f, "landed"),
            Self::Cut(why) => write!(f, "cut {why}"),
            Self::NotRun(why) => write!(f, "not-run {why}"),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Arena {
    directory: PathBuf,
    size: Size,
    until: Instant,
    rounds: AtomicU64,
}

impl Arena {
    /// An attacker's view of the machine that is served in `directory`, for as long as `limit`.
    pub fn new(directory: &Path, size: Size, limit: Duration) -> Self {
        Self {
            directory: directory.to_owned(),
            size,
            until: Instant::now() + limit,
            rounds: AtomicU64::new(0),
        }
    }

    /// The socket with this name, as in `target.user0`.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// How large the attack is.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Whether the attacker's time is not up.
    pub fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    /// Number of rounds so far, for attacks that vary.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Repeats `round` until the time is up, and reports each. A round that the server cuts short is followed by the next one.
    ///
    /// # Errors
    /// [`Failed::NotRun`] as soon as a round says so.
    pub fn repeat(&self, mut round: impl FnMut() -> Round) -> Round {
        while self.goes_on() {
            let result = round();
            self.rounds.fetch_add(1, Ordering::Relaxed);
            match result {
                Ok(()) => println!("{}", Report::Landed),
                Err(Failed::NotRun(why)) => return Err(Failed::NotRun(why)),
                Err(error) => {
                    println!("{}", Report::Cut(error.to_string()));
                    std::thread::sleep(PAUSE);
                }
            }
        }

        Ok(())
    }
}
