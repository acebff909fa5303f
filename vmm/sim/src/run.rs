//! `nicforge run --virtual`: a parallel program on each node of a machine with EXTOLL cards,
//! SeaStars or Message Units.
//!
//! The programs are those of [`nicforge_mpi_programs`]. They run in this process, on the machine's
//! clock, with the costs of the processors in the papers about EXTOLL, the SeaStar and Blue Gene/Q.

use std::{fmt::Write, path::PathBuf, time::Duration};

use clap::Args;
use nicforge::{
    failure::{EXIT_RESULT, ErrorContext, Failure, print_line},
    signals::Signals,
    table::{TableColumn, TableData},
};
use nicforge_driver::runtime::Cost;
use nicforge_mpi_programs::{Endpoint, message_rate::Parameters};
use nicforge_portals::Mode;
use serde::Serialize;

use crate::{
    cluster::{
        Cards, Cluster, ClusterError, RankError, RankProgram, mu,
        programs::{Passes, Updated, half_round_trip, rate_of, time_of_messages},
        torus,
    },
    interrupted::Interrupted,
    paper::{extoll, seastar},
    world::{Picos, Profile},
};

/// The programs, for help texts and messages.
pub const PROGRAMS: &str = "message_rate [WINDOWS], ping_pong [ROUNDS] and random_access [ORDER]";
/// The programs with their arguments, which the help text shows.
const HELP: &str = "\
Programs:
  message_rate [WINDOWS]   messages of 1 B to 4 KB between pairs of ranks, in windows of 64 [default: 4]
  ping_pong [ROUNDS]       messages of 1 B to 1 MB from the first to the last rank and back [default: 4]
  random_access [ORDER]    updates of a table of 2^ORDER words on each rank, verified [default: 10]";

/// Messages of a window.
const WINDOW: u32 = 64;
/// Sizes in bytes of the messages of `message_rate`, as powers of two.
const RATE_SIZES: std::ops::RangeInclusive<u32> = 0..=12;
/// Sizes in bytes of the messages of `ping_pong`, as powers of two.
const PING_PONG_SIZES: std::ops::RangeInclusive<u32> = 0..=20;
/// Maximum number of windows or round trips.
const MAX_COUNT: u32 = 10_000;
/// Maximum number of words of a rank, as a power of two.
const MAX_ORDER: u32 = 24;

/// The arguments of `nicforge run --virtual`.
#[derive(Clone, Debug, Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    /// The machine file (TOML).
    pub machine: PathBuf,
    /// Start a rank for each VPID, process or subgroup, instead of one for each node.
    #[arg(long)]
    pub per_core: bool,
    /// On SeaStars, let the kernel match messages instead of the card.
    #[arg(long)]
    pub host_based: bool,
    /// The software whose costs are charged.
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Software::Opteron)]
    pub profile: Software,
    /// The seed of all random numbers. The same seed gives the same output.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Write what crosses the boundary of the cards to this file. A name that ends with .json is
    /// written for Perfetto's UI, any other one as text.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
    /// The program and its argument; see below.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<String>,
}

/// The costs of software.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Software {
    /// Those of the papers: an Opteron of 2.5 GHz with EXTOLL, and of 2.0 GHz with a SeaStar. With
    /// a Message Unit, the software of a message on Blue Gene/Q, and with a torus the message layer
    /// of Blue Gene/L, both without matching.
    Opteron,
    /// None: software takes no time.
    None,
}

impl Software {
    /// Returns the costs of the software for these cards.
    fn profile(self, cards: Cards) -> Profile {
        match (self, cards) {
            (Self::Opteron, Cards::Extoll) => extoll::opteron(),
            (Self::Opteron, Cards::SeaStar(_)) => seastar::opteron(),
            (Self::Opteron, Cards::MessageUnit) => mu::a2(),
            (Self::Opteron, Cards::Torus) => torus::ppc440(),
            (Self::None, _) => Profile::default(),
        }
    }
}

/// A program and its parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    MessageRate {
        windows: u32,
    },
    PingPong {
        rounds: u32,
    },
    /// Each rank has 2^`order` words of the table.
    RandomAccess {
        order: u32,
    },
}

impl Program {
    /// Parses the words after `--`.
    fn parse(words: &[String]) -> Result<Self, Failure> {
        let (name, argument) = match words {
            [name] => (name.as_str(), None),
            [name, argument] => (name.as_str(), Some(argument.as_str())),
            _ => {
                return Err(Failure::usage(format!("one program with one argument is possible: {PROGRAMS}")));
            }
        };
        let number_or = |default, argument_name, maximum| match argument {
            None => Ok(default),
            Some(text) => {
                text.parse().ok().filter(|number| (1..=maximum).contains(number)).ok_or_else(|| {
                    Failure::usage(format!("{name}: {argument_name} is {text}; 1 to {maximum} are possible"))
                })
            }
        };

        match name {
            "message_rate" => Ok(Self::MessageRate { windows: number_or(4, "WINDOWS", MAX_COUNT)? }),
            "ping_pong" => Ok(Self::PingPong { rounds: number_or(4, "ROUNDS", MAX_COUNT)? }),
            "random_access" => Ok(Self::RandomAccess { order: number_or(10, "ORDER", MAX_ORDER)? }),
            _ => Err(Failure::usage(format!(
                "there is no program {name} for virtual time; there are {PROGRAMS}"
            ))),
        }
    }
}

/// The rate of messages of one size between some pairs of ranks.
#[derive(Clone, Copy, Debug, Serialize)]
struct RateRow {
    pairs: u32,
    bytes: usize,
    messages_per_s: f64,
    mb_per_s: f64,
}

/// The latency of messages of one size.
#[derive(Clone, Copy, Debug, Serialize)]
struct LatencyRow {
    bytes: usize,
    us: f64,
}

/// The result of RandomAccess: its table, its updates and their rate.
#[derive(Clone, Copy, Debug, Serialize)]
struct UpdatesRow {
    words: u64,
    updates: u64,
    messages: u64,
    us: f64,
    /// Billions of updates per second.
    gups: f64,
    wrong_words: u64,
}

/// The result of a program.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum Rows {
    MessageRate(Vec<RateRow>),
    PingPong(Vec<LatencyRow>),
    RandomAccess([UpdatesRow; 1]),
}

impl Rows {
    /// Returns the row of RandomAccess.
    fn of_updates(updated: Updated) -> Self {
        Self::RandomAccess([UpdatesRow {
            words: updated.words,
            updates: updated.updates,
            messages: updated.messages,
            us: updated.seconds * 1e6,
            gups: updated.updates as f64 / updated.seconds / 1e9,
            wrong_words: updated.wrong.unwrap_or_default(),
        }])
    }

    /// Returns whether the data was right. RandomAccess may have one wrong word of a hundred.
    fn is_good(&self) -> bool {
        match self {
            Self::RandomAccess([row]) => row.wrong_words * 100 <= row.words,
            Self::MessageRate(_) | Self::PingPong(_) => true,
        }
    }

    /// Returns the rows as a table.
    fn table(&self) -> TableData {
        let (names, rows): (&[&str], Vec<Vec<String>>) = match self {
            Self::MessageRate(rows) => {
                (&["pairs", "bytes", "messages/s", "MB/s"], rows.iter().map(RateRow::cells).collect())
            }
            Self::PingPong(rows) => (&["bytes", "us"], rows.iter().map(LatencyRow::cells).collect()),
            Self::RandomAccess(rows) => (
                &["words", "updates", "messages", "us", "GUPS", "wrong words"],
                rows.iter().map(UpdatesRow::cells).collect(),
            ),
        };

        TableData { columns: names.iter().map(|name| TableColumn::new(*name, true)).collect(), rows }
    }
}

impl RateRow {
    /// Returns the cells of the row in the table.
    fn cells(&self) -> Vec<String> {
        let (rate, bytes) = (format!("{:.0}", self.messages_per_s), format!("{:.1}", self.mb_per_s));
        vec![self.pairs.to_string(), self.bytes.to_string(), rate, bytes]
    }
}

impl LatencyRow {
    /// Returns the cells of the row in the table.
    fn cells(&self) -> Vec<String> {
        vec![self.bytes.to_string(), format!("{:.3}", self.us)]
    }
}

impl UpdatesRow {
    /// Returns the cells of the row in the table.
    fn cells(&self) -> Vec<String> {
        let (time, gups) = (format!("{:.1}", self.us), format!("{:.5}", self.gups));
        let [words, updates, messages, wrong] =
            [self.words, self.updates, self.messages, self.wrong_words].map(|count| count.to_string());
        vec![words, updates, messages, time, gups, wrong]
    }
}

/// A kind of work, such as `send-message`, and its time.
#[derive(Clone, Debug, Serialize)]
struct CostRow {
    work: String,
    ns: f64,
}

/// The object of `--json`.
#[derive(Clone, Debug, Serialize)]
struct Report {
    machine: String,
    program: String,
    ranks: usize,
    profile: Software,
    costs: Vec<CostRow>,
    /// Virtual time at the end of the program, with its start, in microseconds.
    virtual_us: f64,
    results: Rows,
}

impl Report {
    /// Returns the report for a terminal.
    fn text(&self) -> String {
        let Self { machine, program, ranks, virtual_us, .. } = self;
        let mut text = format!("{program} on {machine}, {ranks} ranks\n{}\n", self.results.table().table());

        let costs: Vec<_> = self.costs.iter().map(|cost| format!("{} {}", cost.work, cost.ns)).collect();
        let costs = if costs.is_empty() { "software takes no time".to_owned() } else { costs.join(", ") };
        // Writing to a string cannot fail.
        let _ = write!(text, "{virtual_us:.1} us of virtual time; costs in ns: {costs}");
        text
    }
}

/// Runs the command. Returns the exit code.
///
/// # Errors
/// Returns an error when the command line or the machine file is wrong, and when a rank fails.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let program = Program::parse(&arguments.program)?;
    let signals = Signals::block().context(|| "signals".into())?;
    let interrupted = || signals.take().is_some();
    let mut cluster =
        Cluster::read(&arguments.machine, Profile::default(), arguments.seed).map_err(to_failure)?;
    match &mut cluster.cards {
        Cards::SeaStar(mode) if arguments.host_based => *mode = Mode::HostBased,
        Cards::Extoll | Cards::MessageUnit | Cards::Torus if arguments.host_based => {
            return Err(Failure::usage("--host-based is for SeaStars, and the machine has other cards"));
        }
        Cards::SeaStar(_) | Cards::Extoll | Cards::MessageUnit | Cards::Torus => {}
    }
    cluster.profile = arguments.profile.profile(cluster.cards);
    // The user ends a program that takes too long.
    cluster.limit = Duration::MAX;
    cluster.interrupted = Interrupted::new(&interrupted);
    cluster.trace.clone_from(&arguments.trace);

    let per_node = if arguments.per_core { cluster.vpids() } else { 1 };
    let ranks = cluster.nodes() * usize::from(per_node);
    check_ranks(program, ranks)?;

    let (results, end) = run_on(program, &cluster, per_node).map_err(to_failure)?;
    let cost_row = |(kind, time): (Cost, Picos)| CostRow { work: name_of(kind), ns: time.as_nanos() };
    let report = Report {
        machine: cluster.name().to_owned(),
        program: arguments.program.join(" "),
        ranks,
        profile: arguments.profile,
        costs: cluster.profile.costs().map(cost_row).collect(),
        virtual_us: end.as_nanos() / 1e3,
        results,
    };

    if arguments.json {
        print_line(serde_json::to_string_pretty(&report).context(|| "the result".into())?)?;
    } else {
        print_line(report.text())?;
    }
    Ok(if report.results.is_good() { 0 } else { EXIT_RESULT })
}

/// Returns the name of a kind of work, in words with hyphens between them.
fn name_of(kind: Cost) -> String {
    let mut name = String::new();
    for letter in format!("{kind:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

/// Returns the failure of a cluster. Most are defects of the machine file.
fn to_failure(error: ClusterError) -> Failure {
    match error {
        ClusterError::World(_) | ClusterError::Rank { .. } => error.into(),
        _ => Failure::usage(error.to_string()),
    }
}

/// Checks that a program can run on a number of ranks.
fn check_ranks(program: Program, ranks: usize) -> Result<(), Failure> {
    match program {
        Program::RandomAccess { .. } if !ranks.is_power_of_two() => {
            Err(Failure::usage(format!("random_access on {ranks} ranks: a power of two is possible")))
        }
        Program::MessageRate { .. } | Program::PingPong { .. } if ranks < 2 => {
            Err(Failure::usage("the program needs two ranks: add nodes, or give --per-core"))
        }
        _ => Ok(()),
    }
}

/// Runs a program with `per_node` ranks on each node. Returns its result, and the virtual time at
/// its end.
fn run_on(program: Program, cluster: &Cluster, per_node: u16) -> Result<(Rows, Picos), ClusterError> {
    match program {
        Program::MessageRate { windows } => {
            let (times, end) = cluster.run_program(per_node, MessageRates { windows })?;
            Ok((Rows::MessageRate(rates(&times, windows)), end))
        }
        Program::PingPong { rounds } => {
            let (latencies_by_rank, end) = cluster.run_program(per_node, Latencies { rounds })?;
            let latencies = latencies_by_rank.into_iter().next().unwrap_or_default();
            let row = |(order, us)| LatencyRow { bytes: 1_usize << order, us };
            Ok((Rows::PingPong(PING_PONG_SIZES.zip(latencies).map(row).collect()), end))
        }
        Program::RandomAccess { order } => {
            let (updated, end) = cluster.random_access(per_node, order, Passes::WithVerification)?;
            Ok((Rows::of_updates(updated), end))
        }
    }
}

/// A part of `message_rate`: messages of `bytes` bytes between `pairs` pairs of ranks.
#[derive(Clone, Copy)]
struct Exchange {
    pairs: u32,
    bytes: usize,
}

/// Returns the exchanges of `message_rate` on a number of ranks: one pair, two, four and so on,
/// each with all sizes of messages.
fn exchanges(ranks: u32) -> impl Iterator<Item = Exchange> {
    let doubled = std::iter::successors(Some(1_u32), |pairs| pairs.checked_mul(2));
    let counts = doubled.take_while(move |pairs| *pairs <= ranks / 2);
    counts.flat_map(|pairs| RATE_SIZES.map(move |order| Exchange { pairs, bytes: 1 << order }))
}

/// Returns the parameters of an exchange in which each pair sends `windows` windows of messages,
/// with the matching context `context`.
fn parameters(bytes: usize, windows: u32, context: u32) -> Parameters {
    Parameters { bytes, window: WINDOW, windows, context }
}

/// `message_rate` on one rank: all exchanges, one after another.
struct MessageRates {
    windows: u32,
}

impl RankProgram for MessageRates {
    /// The times of the exchanges on this rank.
    type Output = Vec<Duration>;

    fn run<E: Endpoint>(&self, endpoint: &mut E) -> Result<Vec<Duration>, RankError> {
        let (ranks, mut context) = (endpoint.size(), 0);
        // The receivers are the ranks of the upper half.
        let distance = ranks / 2;
        let measure = |Exchange { pairs, bytes }| {
            context += 1;
            time_of_messages(endpoint, pairs, distance, parameters(bytes, self.windows, context))
        };
        exchanges(ranks).map(measure).collect()
    }
}

/// Returns the rates of all exchanges. `times_by_rank` has the times of the exchanges on each rank.
fn rates(times_by_rank: &[Vec<Duration>], windows: u32) -> Vec<RateRow> {
    let row = |(number, Exchange { pairs, bytes }): (usize, Exchange)| {
        let time_of = |times: &Vec<Duration>| times.get(number).copied().unwrap_or_default();
        let sender_times: Vec<_> = times_by_rank.iter().take(pairs as usize).map(time_of).collect();
        let rate = rate_of(&sender_times, parameters(bytes, windows, 0).messages());
        RateRow { pairs, bytes, messages_per_s: rate, mb_per_s: rate * bytes as f64 / 1e6 }
    };
    exchanges(times_by_rank.len() as u32).enumerate().map(row).collect()
}

/// `ping_pong` on one rank: round trips from the first rank to the last one.
struct Latencies {
    rounds: u32,
}

impl RankProgram for Latencies {
    /// The latencies in microseconds, on the first rank.
    type Output = Vec<f64>;

    fn run<E: Endpoint>(&self, endpoint: &mut E) -> Result<Vec<f64>, RankError> {
        let last = endpoint.size() - 1;
        let of_size =
            |order: u32| Ok(half_round_trip(endpoint, last, 1 << order, self.rounds)?.as_secs_f64() * 1e6);
        PING_PONG_SIZES.map(of_size).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_a_name_and_a_number() {
        let parse = |words: &str| Program::parse(&words.split(' ').map(str::to_owned).collect::<Vec<_>>());

        assert_eq!(parse("message_rate").unwrap(), Program::MessageRate { windows: 4 });
        assert_eq!(parse("ping_pong 7").unwrap(), Program::PingPong { rounds: 7 });
        assert_eq!(parse("random_access 12").unwrap(), Program::RandomAccess { order: 12 });
        for wrong in ["./a", "ping_pong x", "ping_pong 0", "random_access 25", "message_rate 1 2"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
