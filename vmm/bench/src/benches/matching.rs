//! `nicforge bench matching`: the cost of matching by the number of waiting receives or messages.
//!
//! A rank sends to itself, so neither a transport nor a protocol takes part. One operation is a
//! receive, a send of 8 bytes, and both completions. `depth` is the number of receives (or
//! messages) in the queue during the search, with the operation's own. The operation's own entry is
//! the last one of a list, which is the worst case.
//!
//! - `posted`: each receive names its source and another tag; the message matches the last receive;
//! - `posted-wildcard`: the same from any source; the last receive also ignores some bits of the
//!   tag;
//! - `unexpected`: the messages come first; the receive takes the last message;
//! - `unexpected-wildcard`: the same with a receive from any source;
//! - `list-posted`: the search alone, in a plain list, for comparison.

use std::{collections::LinkedList, hint::black_box, time::Instant};

use nicforge::failure::Failure;
use nicforge_matching::{
    Completion, Config, Endpoint, Envelope, Error, Mode, Selector,
    memory::{Fabric, FabricConfig, FabricPort},
};

use crate::{
    bench::{Bench, Run},
    contest,
    placement::Placement,
    row::{Goal, Outcome, Row},
    samples::median,
};

/// The bench.
pub const BENCH: Bench =
    Bench::new("matching", "what matching a message costs, by the number of others that wait", run);

/// Numbers of entries in the searched queue.
const DEPTHS: [u32; 5] = [1, 10, 100, 1_000, 10_000];
/// Bytes of a message.
const BYTES: usize = 8;
/// The tag of the operation's own receive and message. The other tags are smaller.
const TAG: u64 = 1 << 40;
/// Operations before the measurement, in which tables and pools grow to their final sizes.
const WARM_UP: u32 = 10;
/// Bits that the wildcards ignore.
const IGNORED_BITS: u64 = 0xff << 48;
/// The greatest ratio of the time at the largest depth to the time at small depths.
const MAX_DEPTH_RATIO: f64 = 1.5;
/// Nanoseconds that SeaStar's firmware took for each list entry that it searched.
const SEASTAR_NANOSECONDS: f64 = 30.0;

/// A searched queue, and the kind of receive that takes part. The book uses the names of
/// [`Path::name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// Posted receives from a named source.
    Posted,
    /// Posted receives from any source.
    PostedWildcard,
    /// Unexpected messages, and a receive from a named source.
    Unexpected,
    /// Unexpected messages, and a receive from any source.
    UnexpectedWildcard,
    /// A plain list of receives, which is searched alone.
    List,
}

const PATHS: [Path; 5] =
    [Path::Posted, Path::PostedWildcard, Path::Unexpected, Path::UnexpectedWildcard, Path::List];

impl Path {
    /// Returns the name in the rows.
    fn name(self) -> &'static str {
        match self {
            Self::Posted => "posted",
            Self::PostedWildcard => "posted-wildcard",
            Self::Unexpected => "unexpected",
            Self::UnexpectedWildcard => "unexpected-wildcard",
            Self::List => "list-posted",
        }
    }

    /// Returns the selector of a receive for `tag`.
    fn selector(self, tag: u64) -> Selector {
        match self {
            Self::PostedWildcard | Self::UnexpectedWildcard if tag == TAG => {
                Selector::any_source(0, tag).ignoring(IGNORED_BITS)
            }
            Self::PostedWildcard => Selector::any_source(0, tag),
            _ => Selector::exact(0, 0, tag),
        }
    }
}

/// A path at one depth, with its queue.
struct Contestant {
    path: Path,
    depth: u32,
    queue: Queue,
}

impl Contestant {
    /// Returns a path at a depth, with a filled queue.
    fn new(path: Path, depth: u32) -> Result<Self, Error> {
        Ok(Self { path, depth, queue: Queue::new(path, depth)? })
    }
}

/// Runs the benchmark.
fn run(run: &Run<'_>) -> Result<Outcome, Failure> {
    let (rounds, operations): (usize, u32) = if run.quick { (3, 200) } else { (41, 5_000) };
    run.steps((rounds * PATHS.len() * DEPTHS.len()) as u64);
    let contestants: Result<Vec<_>, _> = PATHS
        .iter()
        .flat_map(|&path| DEPTHS.map(|depth| Contestant::new(path, depth).map_err(failure)))
        .collect();
    let times = contest::run(run, rounds, contestants?, |Contestant { path, depth, queue }, _| {
        run.step(format!("{}, {depth} deep", path.name()))?;
        // The search of a list of 10,000 is slow, so it is repeated less often.
        let operations = if *path == Path::List { operations.div_ceil(1 + *depth / 100) } else { operations };
        queue.measure(operations).map_err(failure)
    })?;

    let mut rows = Vec::new();
    let mut medians = Vec::new();

    for (&Contestant { path, depth, .. }, times) in times.iter() {
        let median = median(times);
        medians.push(MedianTime { path, depth, nanoseconds: median });

        rows.push(
            Row {
                placement: Some(Placement::free().text()),
                bytes: Some(BYTES as u64),
                rate_per_s: (median > 0.0).then_some(1e9 / median),
                ..Row::new(path.name())
            }
            .figure("depth", f64::from(depth))
            .figure("nanoseconds", median),
        );
    }

    let goals = PATHS.iter().filter(|&&path| path != Path::List).map(|&path| goal(path, &medians)).collect();
    let notes = vec![
        "one operation is a receive, a send of the rank to itself, and both completions; list-posted is the search alone".into(),
        format!(
            "SeaStar's list took {SEASTAR_NANOSECONDS} ns an entry: {} us at a depth of 10,000",
            SEASTAR_NANOSECONDS * 10_000.0 / 1e3
        ),
        "one thread; medians of rounds, taken in turns; the operation's own entries stay in the cache".into(),
    ];

    Ok(Outcome { rows, goals, notes })
}

/// The median time of one operation.
struct MedianTime {
    path: Path,
    depth: u32,
    nanoseconds: f64,
}

/// Returns the goal for one path: the search time at a depth of 10,000 entries is at most
/// [`MAX_DEPTH_RATIO`] times the mean of those at 1 and at 10.
fn goal(path: Path, medians: &[MedianTime]) -> Goal {
    let median_at = |expected: u32| {
        medians
            .iter()
            .find(|median| median.path == path && median.depth == expected)
            .map_or(f64::NAN, |median| median.nanoseconds)
    };

    let ratio = median_at(10_000) / f64::midpoint(median_at(1), median_at(10));
    Goal::at_most(
        format!("{}: time at a depth of 10,000, times that at 1 and 10", path.name()),
        MAX_DEPTH_RATIO,
        ratio,
    )
}

/// Returns the failure of an endpoint's error.
fn failure(error: Error) -> Failure {
    Failure::environment(error.to_string())
}

/// A queue of one depth.
enum Queue {
    /// The queues of a rank, and two free buffers for the operation's own receive and message.
    Endpoint { path: Path, endpoint: Box<Endpoint<FabricPort>>, memory: Vec<Vec<u8>> },
    /// A plain list of receives.
    List { list: LinkedList<Selector> },
}

impl Queue {
    /// Creates the queue with `depth` - 1 waiting entries. The operation adds the last one. A list
    /// has all entries.
    fn new(path: Path, depth: u32) -> Result<Self, Error> {
        let tags = 1..u64::from(depth);
        if path == Path::List {
            return Ok(Self::List { list: tags.chain([TAG]).map(|tag| path.selector(tag)).collect() });
        }

        let (_, mut ports) = Fabric::new(1, FabricConfig::default());
        let port = ports.pop().ok_or(Error::NoSuchPeer { peer: 0, size: 0 })?;
        // The window is large enough for all waiting messages to be eager.
        let config = Config { window: 16 << 20, ..Config::default() };
        let mut endpoint = Box::new(Endpoint::new(port, config)?);

        for tag in tags {
            match path {
                Path::Posted | Path::PostedWildcard => {
                    endpoint.irecv(path.selector(tag), vec![0; BYTES], 0)?;
                }
                _ => {
                    endpoint.isend(Envelope::new(0, 0, tag), Mode::Standard, vec![0; BYTES], 0)?;
                    endpoint.next_completion();
                }
            }
        }

        let memory = vec![vec![0; BYTES], vec![0; BYTES]];
        let mut queue = Self::Endpoint { path, endpoint, memory };
        queue.measure(WARM_UP)?;

        Ok(queue)
    }

    /// Returns the nanoseconds that one of `operations` operations takes on average.
    fn measure(&mut self, operations: u32) -> Result<f64, Error> {
        let start;
        match self {
            Self::List { list } => {
                let envelope = Envelope::new(0, 0, TAG);
                start = Instant::now();
                for _ in 0..operations {
                    black_box(list.iter().position(|selector| selector.matches(black_box(&envelope))));
                }
            }
            Self::Endpoint { path, endpoint, memory } => {
                start = Instant::now();
                for _ in 0..operations {
                    let (incoming, outgoing) =
                        (memory.pop().unwrap_or_default(), memory.pop().unwrap_or_default());
                    let envelope = Envelope::new(0, 0, TAG);

                    if matches!(path, Path::Posted | Path::PostedWildcard) {
                        endpoint.irecv(path.selector(TAG), incoming, 0)?;
                        endpoint.isend(envelope, Mode::Standard, outgoing, 0)?;
                    } else {
                        endpoint.isend(envelope, Mode::Standard, outgoing, 0)?;
                        endpoint.irecv(path.selector(TAG), incoming, 0)?;
                    }

                    for _ in 0..2 {
                        let Some(Completion { result, buffer, .. }) = endpoint.next_completion() else {
                            return Err(Error::Timeout { what: "a message of a rank to itself" });
                        };
                        result?;
                        memory.extend(buffer.into_vec());
                    }
                }
            }
        }

        Ok(start.elapsed().as_nanos() as f64 / f64::from(operations))
    }
}
