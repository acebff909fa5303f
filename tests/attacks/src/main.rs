//! The program of the attacks: the load test, and the processes that it starts.

use std::{io, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand, ValueEnum};
use nicforge_attacks::{
    arena::{Arena, Failed, Report, Size},
    attack::{self, ATTACKS, Attack},
    contest::Setting,
    load::{self, Limits, Row},
};
use nicforge_driver::{DeviceAddress, environment};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};

/// Attack a served machine, and measure the effect on other clients.
#[derive(Debug, Parser)]
#[command(name = "nicforge-attack")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run attacks one after the other, with a polite tenant beside them.
    Load(Load),
    /// Name the attacks.
    List,
    /// Be one attacker; the load test starts it.
    One(One),
    /// Serve the file system of process PID, whose device is the standard input; an attacker starts
    /// it.
    FileSystem {
        #[arg(value_name = "PID")]
        process: u32,
    },
    /// Be a polite tenant; a guest starts it.
    Polite(Polite),
}

#[derive(Debug, clap::Args)]
struct Load {
    /// The program `nicforge`.
    #[arg(long)]
    server: PathBuf,
    /// Seconds of each attack.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Only this attack; may be given several times.
    #[arg(long)]
    only: Vec<String>,
    /// Event loop.
    #[arg(long = "loop", value_enum, default_value_t = Loops::Both)]
    event_loop: Loops,
    /// How large attacks are.
    #[arg(long, value_enum, default_value_t = SizeName::Large)]
    size: SizeName,
    /// Leave times out of the verdict.
    #[arg(long)]
    untimed: bool,
    /// Print one JSON object for each attack instead of a table.
    #[arg(long)]
    json: bool,
    /// The polite tenant is a program in a guest.
    #[arg(long)]
    guest: bool,
    /// Where the servers log.
    #[arg(long)]
    log: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct One {
    name: String,
    #[arg(long)]
    dir: PathBuf,
    #[arg(long, value_enum)]
    size: SizeName,
    #[arg(long)]
    seconds: u64,
}

#[derive(Debug, clap::Args)]
struct Polite {
    /// The device, as drivers name it [default: the one in NICFORGE_SOCKET].
    device: Option<String>,
    #[arg(long)]
    seconds: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Loops {
    Epoll,
    #[value(name = "io_uring")]
    IoUring,
    Both,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SizeName {
    Small,
    Large,
}

impl From<SizeName> for Size {
    fn from(name: SizeName) -> Self {
        match name {
            SizeName::Small => Self::Small,
            SizeName::Large => Self::Large,
        }
    }
}

impl Loops {
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Epoll => &["epoll"],
            Self::IoUring => &["io_uring"],
            Self::Both => &["epoll", "io_uring"],
        }
    }
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Load(load) => run_load(&load),
        Task::One(one) => run_one(&one),
        Task::Polite(polite) => run_polite(&polite),
        Task::FileSystem { process } => serve_files(process),
        Task::List => {
            for attack in ATTACKS {
                println!("{:<20} {}", attack.name, attack.aimed_at);
            }
            Ok(ExitCode::SUCCESS)
        }
    };

    result.unwrap_or_else(|error| {
        eprintln!("nicforge-attack: {error}");
        ExitCode::from(3)
    })
}

/// Runs an attack in this process, and prints its reports.
fn run_one(arguments: &One) -> Result<ExitCode, Failed> {
    // An attacker does not outlive the test that started it.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    let attack = find(&arguments.name)?;
    let arena = Arena::new(&arguments.dir, arguments.size.into(), Duration::from_secs(arguments.seconds));
    if let Err(error) = (attack.run)(&arena) {
        println!("{}", Report::NotRun(error.to_string()));
    }

    Ok(ExitCode::SUCCESS)
}

/// Serves the file system of an attacker's process.
fn serve_files(process: u32) -> Result<ExitCode, Failed> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    attack::fuse::serve(process)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the polite tenant in this process, and prints its observations.
fn run_polite(polite: &Polite) -> Result<ExitCode, Failed> {
    let address = match &polite.device {
        Some(name) => DeviceAddress::parse(name)?,
        None => environment::devices(environment::SOCKET)?
            .into_iter()
            .next()
            .ok_or_else(|| Failed::NotRun(format!("{} names no device", environment::SOCKET)))?,
    };

    let observed = nicforge_attacks::polite::work(&address, Duration::from_secs(polite.seconds))?;
    println!("{}", serde_json::to_string(&observed).map_err(io::Error::from)?);
    Ok(ExitCode::SUCCESS)
}

/// Runs the load test. It fails if a limit was missed.
fn run_load(load: &Load) -> Result<ExitCode, Failed> {
    let signals = Signals::block()?;
    let attacks = chosen(&load.only)?;
    let mut rows = Vec::new();

    for &event_loop in load.event_loop.names() {
        let setting = Setting {
            server: load.server.clone(),
            attacker: std::env::current_exe()?,
            event_loop,
            size: load.size.into(),
            log: load.log.clone(),
            guest: load.guest.then(|| Duration::from_secs(load.seconds)),
        };

        for attack in &attacks {
            if signals.has_arrived() {
                return Ok(ExitCode::from(130));
            }
            let row = run_attack(load, &setting, attack, &signals)?;
            if load.json {
                println!("{}", serde_json::to_string(&row).map_err(io::Error::from)?);
            }
            rows.push(row);
        }
    }

    if !load.json {
        println!("{}", load::table(&rows));
    }

    let are_limits_kept = rows.iter().all(|row| row.missed.is_empty());
    Ok(if are_limits_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs one attack, and prints lines before and after. An attack that could not be started is a row
/// too.
fn run_attack(load: &Load, setting: &Setting, attack: &Attack, signals: &Signals) -> Result<Row, Failed> {
    eprint!("{:<20} {:<9} ", attack.name, setting.event_loop);
    let limits = Limits { times: !load.untimed };
    let result =
        load::run(setting, attack, Duration::from_secs(load.seconds), limits, &|| signals.has_arrived());
    let row = result.unwrap_or_else(|error| Row {
        attack: attack.name,
        event_loop: setting.event_loop,
        missed: vec![error.to_string()],
        ..Row::default()
    });

    eprintln!("worst {:>8.1} ms  {}", row.worst_ms, load::verdict(&row));
    for reason in &row.reasons {
        eprintln!("{:>31}cut: {reason}", "");
    }

    Ok(row)
}

/// Returns the attacks with these names; all attacks if there is no name.
fn chosen(only: &[String]) -> Result<Vec<&'static Attack>, Failed> {
    if only.is_empty() { Ok(ATTACKS.iter().collect()) } else { only.iter().map(|name| find(name)).collect() }
}

/// Returns the attack with this name. The error lists all names.
fn find(name: &str) -> Result<&'static Attack, Failed> {
    attack::find(name).ok_or_else(|| {
        let names: Vec<_> = ATTACKS.iter().map(|attack| attack.name).collect();
        Failed::Io(io::Error::other(format!("there is no attack {name}; there are {}", names.join(", "))))
    })
}

/// Ctrl-C and SIGTERM, polled between steps, so that all started processes are ended first.
struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals in this thread and all later ones, so that they can be polled.
    fn block() -> Result<Self, Failed> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGINT);
        set.add(Signal::SIGTERM);
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// Returns whether a signal has arrived.
    fn has_arrived(&self) -> bool {
        use std::os::fd::AsFd;
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}
