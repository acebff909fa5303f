//! An attacker's environment: the sockets it attacks, its scale, and the format of its reports.
//!
//! An attacker is a process of its own, with its own descriptors, memory and limits. It prints one
//! line for each event to its standard output, and continues until its time is up or it is killed.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use nix::errno::Errno;

/// Pause of an attacker after a round that the server cut short.
const PAUSE: Duration = Duration::from_millis(1);

/// The scale of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// For a test of a few seconds.
    Small,
    /// For the load test.
    Large,
}

impl Size {
    /// Returns one of two numbers.
    pub fn pick<T>(self, small: T, large: T) -> T {
        match self {
            Self::Small => small,
            Self::Large => large,
        }
    }

    /// Returns the size's name on a command line.
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
    /// The attack cannot be carried out on this machine.
    #[error("{0}")]
    NotRun(String),
    /// An error of the connection or the system.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// An error of the device or its driver.
    #[error(transparent)]
    Device(#[from] nicforge_driver::Error),
    /// An error of shared memory.
    #[error(transparent)]
    Memory(#[from] nicforge_shm::MemoryError),
    /// An error of Portals.
    #[error(transparent)]
    Portals(#[from] nicforge_portals::Error),
    /// An error of the SPI of Blue Gene/Q.
    #[error(transparent)]
    Spi(#[from] nicforge_spi::Error),
    /// An honest peer, which the attacker's process plays too, was held up or lost something.
    #[error("{0}")]
    Harmed(String),
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Result of a round.
pub type Round = Result<(), Failed>;

/// A report of an attacker, one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A round was carried out completely.
    Landed,
    /// The server ended a round early.
    Cut(String),
    /// The attack is impossible here.
    NotRun(String),
    /// A round harmed an honest peer.
    Harmed(String),
}

impl Report {
    /// Parses a line; `None` for one that is no report.
    pub fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "landed" => Some(Self::Landed),
            "cut" => Some(Self::Cut(rest.to_owned())),
            "not-run" => Some(Self::NotRun(rest.to_owned())),
            "harmed" => Some(Self::Harmed(rest.to_owned())),
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
            Self::Harmed(why) => write!(f, "harmed {why}"),
        }
    }
}

/// The environment of one attacker.
#[derive(Debug)]
pub struct Arena {
    directory: PathBuf,
    size: Size,
    /// When the attacker's time is up.
    until: Instant,
    rounds: AtomicU64,
}

impl Arena {
    /// Creates the arena of an attacker: the machine that is served in `directory`, and a time
    /// limit.
    pub fn new(directory: &Path, size: Size, limit: Duration) -> Self {
        Self {
            directory: directory.to_owned(),
            size,
            until: Instant::now() + limit,
            rounds: AtomicU64::new(0),
        }
    }

    /// Returns the path of the socket with this name, as in `target.user0`.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the scale of the attack.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Returns whether the attacker has time left.
    pub fn has_time_left(&self) -> bool {
        Instant::now() < self.until
    }

    /// Returns the number of rounds so far, for attacks that vary.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Repeats `round` until the time is up, and reports each. After a round that the server cuts
    /// short, the next one follows.
    ///
    /// # Errors
    /// [`Failed::NotRun`] as soon as a round returns it.
    pub fn repeat(&self, mut round: impl FnMut() -> Round) -> Round {
        while self.has_time_left() {
            let result = round();
            self.rounds.fetch_add(1, Ordering::Relaxed);
            match result {
                Ok(()) => println!("{}", Report::Landed),
                Err(Failed::NotRun(why)) => return Err(Failed::NotRun(why)),
                Err(Failed::Harmed(why)) => println!("{}", Report::Harmed(why)),
                Err(error) => {
                    println!("{}", Report::Cut(error.to_string()));
                    std::thread::sleep(PAUSE);
                }
            }
        }

        Ok(())
    }
}
