//! The processes of a contestant, and its measurements with a time limit.

use std::{
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use nicforge::failure::{EXIT_INTERRUPTED, ErrorContext, Failure};
use nicforge_driver::environment;
use nix::{sys::stat::Mode, unistd::mkfifo};
use tempfile::TempDir;

use super::{
    BENCH,
    partner::BYTES,
    switches::Switches,
    task::{Answer, Library, Order, Partner, ServedNode, Task},
};
use crate::{
    bench::Run,
    process::{self, Workers},
    row::{Backing, Row},
    samples::Samples,
};

/// How long all processes of a group may take to start.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long the ranks that are not measured have to begin to wait.
const SETTLE: Duration = Duration::from_millis(200);
/// The indices of the processes that exchange messages. The ranks of a job come first, and the
/// engine last.
const FIRST: usize = 0;
const SECOND: usize = 1;

/// Two processes that exchange messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contestant {
    /// Two ranks of a library for messages.
    Library(Library),
    /// A compute core and its I/O node.
    Fcnp,
    /// A Unix socket, whose reads block.
    SocketPair,
    /// Two pipes, whose reads block.
    PipePair,
}

impl Contestant {
    /// Returns the name in the rows.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Library(library) => library.name(),
            Self::Fcnp => "fcnp",
            Self::SocketPair => "socket-pair",
            Self::PipePair => "pipe-pair",
        }
    }

    /// Whether the messages go through a served machine.
    pub(super) const fn has_device(self) -> bool {
        matches!(self, Self::Library(_) | Self::Fcnp)
    }
}

/// Returns the command of a child process.
pub(super) fn child_command(task: &Task) -> Result<Command, Failure> {
    let task = serde_json::to_string(task).context(|| "a task".into())?;
    process::child_command(BENCH.name, &task)
}

/// The running processes of a contestant. Dropping this ends them.
struct Group {
    workers: Workers<Answer>,
    /// The indices of all partners. The first two exchange messages.
    partners: Vec<usize>,
    engine: Option<usize>,
    /// The folder of sockets and pipes. It is removed after the processes have ended.
    folder: TempDir,
}

impl Group {
    /// Returns a group without processes.
    fn new() -> Result<Self, Failure> {
        // The folder is accessible to this user only.
        let folder = tempfile::Builder::new().prefix("nicforge-bench-").tempdir();
        let folder = folder.context(|| "a directory for the bench's sockets".into())?;
        Ok(Self { workers: Workers::default(), partners: Vec::new(), engine: None, folder })
    }

    /// Starts the two processes of a contestant, and its engine.
    fn of_pair(run: &Run<'_>, contestant: Contestant) -> Result<Self, Failure> {
        if let Contestant::Library(library) = contestant {
            return Self::of_ranks(run, library, library.small_machine(), 2);
        }

        let mut group = Self::new()?;
        let partners = match contestant {
            Contestant::Fcnp => {
                let nodes = group.serve(run, "[[pset]]\ncompute_nodes = 1\n")?;
                // An I/O node of the pset comes before its compute node.
                let [io, compute] = nodes.as_slice() else { return Err(missing("two nodes")) };
                [(Partner::ComputeCore, Some((compute, 0))), (Partner::IoNode, Some((io, 0)))]
                    .map(|(partner, place)| (partner, place.map(|(node, user)| (node.clone(), user))))
            }
            Contestant::PipePair => {
                let [there, back] = ["there", "back"].map(|name| group.folder.path().join(name));
                make_pipe(&there)?;
                make_pipe(&back)?;
                let first = Partner::Pipes { reads: back.clone(), writes: there.clone(), is_first: true };
                let second = Partner::Pipes { reads: there, writes: back, is_first: false };
                [(first, None), (second, None)]
            }
            _ => {
                let path = group.folder.path().join("socket");
                let end = |listens| Partner::Socket { path: path.clone(), listens };
                [(end(true), None), (end(false), None)]
            }
        };

        for (partner, place) in partners {
            group.start_partner(partner, place.as_ref().map(|(node, user)| (node, *user)))?;
        }
        group.await_partners(run)?;
        Ok(group)
    }

    /// Starts the ranks of a job and their engine. The ranks are dealt out to the nodes in turn.
    fn of_ranks(run: &Run<'_>, library: Library, machine: &str, ranks: u32) -> Result<Self, Failure> {
        let mut group = Self::new()?;
        let served = group.serve(run, machine)?;
        let nodes = served.len() as u32;

        for rank in 0..ranks {
            let node = served.get((rank % nodes.max(1)) as usize).ok_or_else(|| missing("a node"))?;
            let user = (rank / nodes) as usize;
            group.start_partner(Partner::Rank { library, rank, ranks, nodes }, Some((node, user)))?;
        }
        group.await_partners(run)?;
        Ok(group)
    }

    /// Starts the engine, and waits until it serves. Returns the nodes of the machine.
    fn serve(&mut self, run: &Run<'_>, machine: &str) -> Result<Vec<ServedNode>, Failure> {
        let event_loop =
            run.event_loop.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let task = Task::Engine { sections: machine.to_owned(), directory: self.directory(), event_loop };
        let engine = self.workers.start(child_command(&task)?, "engine")?;
        self.engine = Some(engine);

        match self.workers.collect(run, &[engine], START_LIMIT, "its start")?.pop() {
            Some((_, Answer::Serving(nodes))) => Ok(nodes),
            _ => Err(not_started()),
        }
    }

    /// Returns the directory of the machine's sockets.
    fn directory(&self) -> PathBuf {
        self.folder.path().join("machine")
    }

    /// Starts a partner, on a user attachment of a node if it has a device.
    fn start_partner(
        &mut self,
        partner: Partner,
        place: Option<(&ServedNode, usize)>,
    ) -> Result<(), Failure> {
        let mut command = child_command(&Task::Partner(partner))?;
        if let Some((node, user)) = place {
            let socket = node.users.get(user).ok_or_else(|| missing("an attachment"))?;
            command.env(environment::SOCKET, socket);
            command.env(environment::NODE, &node.name);
            command.env(environment::DIRECTORY, self.directory());
        }
        self.partners.push(self.workers.start(command, format!("partner {}", self.partners.len()))?);
        Ok(())
    }

    /// Waits until all partners are connected.
    fn await_partners(&self, run: &Run<'_>) -> Result<(), Failure> {
        let ready = self.workers.collect(run, &self.partners, START_LIMIT, "its start")?;
        if ready.len() == self.partners.len() { Ok(()) } else { Err(not_started()) }
    }

    /// Makes one exchange of the first two partners, while all others wait in a barrier. Returns
    /// `None` if it was not done within `limit`. Some process may then never answer.
    fn exchange(
        &mut self,
        run: &Run<'_>,
        turn: Duration,
        limit: Duration,
        name: &str,
    ) -> Result<Option<Exchange>, Failure> {
        let start = Instant::now();
        let (pair, others) = (self.partners[..2].to_vec(), self.partners[2..].to_vec());
        for &other in &others {
            self.workers.send(other, &Order::Barrier)?;
        }
        if !others.is_empty() {
            thread::sleep(SETTLE);
        }

        let before = self.switches();
        self.workers.send(pair[SECOND], &Order::Echo)?;
        self.workers.send(pair[FIRST], &Order::Exchange(turn))?;
        let answers = self.workers.collect(run, &pair, limit.saturating_sub(start.elapsed()), name)?;
        let switches = self.switches().since(before);
        if answers.len() < pair.len() {
            return Ok(None);
        }

        if !others.is_empty() {
            for &partner in &pair {
                self.workers.send(partner, &Order::Barrier)?;
            }
            let left = limit.saturating_sub(start.elapsed());
            if self.workers.collect(run, &self.partners, left, name)?.len() < self.partners.len() {
                return Ok(None);
            }
        }

        let samples = answers.into_iter().find_map(|(_, answer)| match answer {
            Answer::Exchanged(samples) => Some(samples),
            _ => None,
        });
        Ok(samples.map(|samples| Exchange { samples, switches }))
    }

    /// Returns the context switches of all processes so far.
    fn switches(&self) -> GroupSwitches {
        let of = |index| self.workers.id(index).map(Switches::of).unwrap_or_default();
        let sum = |indices: &[usize]| {
            indices.iter().map(|&index| of(index)).fold(Switches::default(), |a, b| a + b)
        };
        GroupSwitches {
            engine: self.engine.map(of),
            pair: [FIRST, SECOND].map(|index| of(self.partners[index])),
            others: (self.partners.len() > 2).then(|| sum(&self.partners[2..])),
        }
    }
}

/// Makes a named pipe for this user.
fn make_pipe(path: &Path) -> Result<(), Failure> {
    mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR).context(|| path.display().to_string())
}

/// Returns the failure of a machine that lacks something.
fn missing(what: &str) -> Failure {
    Failure::environment(format!("the machine has not {what}"))
}

/// Returns the failure of processes that did not start in time.
fn not_started() -> Failure {
    Failure::environment(format!("not started in {} s", START_LIMIT.as_secs()))
}

/// One exchange of messages.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    /// Halves of the round trips.
    samples: Samples,
    switches: GroupSwitches,
}

/// Context switches of a group's processes.
#[derive(Clone, Copy, Debug, Default)]
struct GroupSwitches {
    engine: Option<Switches>,
    /// Those of the two processes that exchange messages.
    pair: [Switches; 2],
    /// Those of all other ranks together.
    others: Option<Switches>,
}

impl GroupSwitches {
    /// Returns the differences from `earlier` counts.
    fn since(self, earlier: Self) -> Self {
        let since =
            |now: Option<Switches>, then: Option<Switches>| now.zip(then).map(|(now, then)| now - then);
        Self {
            engine: since(self.engine, earlier.engine),
            pair: [FIRST, SECOND].map(|index| self.pair[index] - earlier.pair[index]),
            others: since(self.others, earlier.others),
        }
    }
}

/// A contestant of a contest. Its processes run until it is dropped, or until a turn has failed.
pub(super) struct Entrant {
    pub(super) name: String,
    has_device: bool,
    ranks: Option<u32>,
    group: Option<Group>,
    /// The time that is left for its turns.
    left: Duration,
    limit: Duration,
    /// Why it has no further turns.
    not_measured: Option<String>,
}

impl Entrant {
    /// Starts the processes of a pair. `limit` is the time for all its turns together.
    ///
    /// A pair that does not start is an entrant, too, which has no turns.
    ///
    /// # Errors
    /// Returns an error when the user has ended the run.
    pub(super) fn of_pair(run: &Run<'_>, contestant: Contestant, limit: Duration) -> Result<Self, Failure> {
        let group = Group::of_pair(run, contestant);
        Self::new(contestant.name().into(), contestant.has_device(), None, group, limit)
    }

    /// Starts the ranks of a job on the large machine of a library. If there are more than two, the
    /// others wait in a barrier while the first two exchange messages.
    ///
    /// # Errors
    /// As [`Entrant::of_pair`].
    pub(super) fn of_ranks(
        run: &Run<'_>,
        library: Library,
        ranks: u32,
        name: String,
        limit: Duration,
    ) -> Result<Self, Failure> {
        let group = Group::of_ranks(run, library, library.large_machine(), ranks);
        Self::new(name, true, Some(ranks), group, limit)
    }

    /// Returns the entrant of a group, which may have failed to start.
    fn new(
        name: String,
        has_device: bool,
        ranks: Option<u32>,
        group: Result<Group, Failure>,
        limit: Duration,
    ) -> Result<Self, Failure> {
        let (group, not_measured) = match group {
            Ok(group) => (Some(group), None),
            Err(failure) => (None, Some(reason(failure)?)),
        };
        Ok(Self { name, has_device, ranks, group, left: limit, limit, not_measured })
    }

    /// Makes one exchange that takes about `turn`. Returns `None` if there is no time left, or if
    /// this or an earlier turn has failed.
    ///
    /// # Errors
    /// Returns an error when the user has ended the run.
    pub(super) fn turn(&mut self, run: &Run<'_>, turn: Duration) -> Result<Option<Exchange>, Failure> {
        let Some(group) = &mut self.group else { return Ok(None) };
        let start = Instant::now();
        let exchanged = group.exchange(run, turn, self.left, &self.name);
        self.left = self.left.saturating_sub(start.elapsed());

        match exchanged {
            Ok(Some(exchange)) => return Ok(Some(exchange)),
            Ok(None) => self.not_measured = Some(format!("not done in {} s", self.limit.as_secs())),
            Err(failure) => self.not_measured = Some(reason(failure)?),
        }
        // The processes of a turn that is not done may never answer.
        self.group = None;
        Ok(None)
    }

    /// Returns the row of this entrant's exchanges, with counts for each message.
    pub(super) fn row(&self, exchanges: &[Option<Exchange>]) -> Row {
        let mut samples = Samples::default();
        for exchange in exchanges.iter().flatten() {
            samples.append(exchange.samples.clone());
        }

        let messages = 2.0 * samples.len() as f64;
        let mut row = Row {
            backing: self.has_device.then_some(Backing::VfioUser),
            bytes: Some(BYTES as u64),
            not_measured: self.not_measured.clone(),
            ..Row::new(&self.name)
        };
        if let Some(ranks) = self.ranks {
            row = row.figure("ranks", f64::from(ranks));
        }
        if samples.is_empty() {
            return row;
        }

        row.mean_us = Some(samples.mean_us());
        row.p50_us = Some(samples.p50_us());
        row.p99_us = Some(samples.p99_us());
        let sum = |of: fn(&GroupSwitches) -> Option<Switches>| {
            exchanges.iter().flatten().filter_map(|exchange| of(&exchange.switches)).reduce(|a, b| a + b)
        };
        let counts = [
            (sum(|switches| switches.engine), "engine_voluntary", "engine_involuntary"),
            (sum(|switches| Some(switches.pair[FIRST])), "first_voluntary", "first_involuntary"),
            (sum(|switches| Some(switches.pair[SECOND])), "second_voluntary", "second_involuntary"),
            (sum(|switches| switches.others), "others_voluntary", "others_involuntary"),
        ];
        for (switches, voluntary, involuntary) in counts {
            if let Some(switches) = switches {
                row = row
                    .figure(voluntary, switches.voluntary as f64 / messages)
                    .figure(involuntary, switches.involuntary as f64 / messages);
            }
        }
        row.figure("messages", messages)
    }

    /// Returns the mean of half a round trip in microseconds for a goal: that of a row, or the
    /// limit if the row was not measured to its end.
    pub(super) fn mean_us(&self, row: &Row) -> f64 {
        match &self.not_measured {
            None => row.mean_us.unwrap_or(0.0),
            Some(_) => self.limit.as_secs_f64() * 1e6 / 2.0,
        }
    }
}

/// Returns the reason why a contestant could not be measured. An interrupted run stays an error.
fn reason(failure: Failure) -> Result<String, Failure> {
    if failure.code == EXIT_INTERRUPTED { Err(failure) } else { Ok(failure.message) }
}
