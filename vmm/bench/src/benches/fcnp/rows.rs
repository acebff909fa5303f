//! Makes rows and goals from measurements.

use super::{
    DEPTHS, LATENCY_BYTES, TWO_OUTSTANDING_BYTES,
    task::{Direction, Kind, Middle, Path, Task},
};
use crate::{
    contest::{Measurement, ratio_in_rounds},
    row::{Backing, Goal, Outcome, Row},
};

/// The message size by which the bandwidth of a single stream is judged.
const LARGE_BYTES: usize = 1 << 20;
/// The least bandwidth of FCNP as a share of the bandwidth of raw packets.
const MIN_SHARE_OF_RAW: f64 = 0.97;
/// The paper's ratio of FCNP to CIOD's sockets, at the paper's largest messages.
const PAPER_RATIO: f64 = 3.27;

/// A contestant of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contestant {
    pub(super) path: Path,
    pub(super) backing: Option<Backing>,
    /// Packets in each FIFO of the device, if there is one.
    pub(super) depth: Option<u32>,
    /// Number of compute cores, each with one outstanding request.
    pub(super) compute_cores: u32,
}

impl Contestant {
    /// Returns a task of about `count` messages, which the compute cores share.
    pub(super) fn task(&self, direction: Direction, bytes: usize, kind: Kind, count: u32) -> Task {
        Task {
            path: self.path,
            direction,
            kind,
            bytes,
            count: count.div_ceil(self.compute_cores),
            compute_cores: self.compute_cores,
        }
    }
}

/// All measurements of a contestant with one direction and message size.
struct Entry {
    contestant: Contestant,
    direction: Direction,
    bytes: usize,
    measurements: Vec<Measurement>,
}

/// All measurements.
pub(super) struct Results {
    placement: String,
    entries: Vec<Entry>,
}

impl Results {
    /// Returns an empty list of measurements, which all have this placement.
    pub(super) fn new(placement: String) -> Self {
        Self { placement, entries: Vec::new() }
    }

    /// Adds a contestant's measurements.
    pub(super) fn add(
        &mut self,
        contestant: Contestant,
        direction: Direction,
        bytes: usize,
        measurements: Vec<Measurement>,
    ) {
        self.entries.push(Entry { contestant, direction, bytes, measurements });
    }

    /// Returns rows and goals. `tried` are the placements with the bandwidth of raw packets.
    pub(super) fn outcome(mut self, tried: &[(String, f64)]) -> Outcome {
        self.entries.sort_by_key(|entry| {
            let Contestant { path, backing, depth, compute_cores } = entry.contestant;
            (path, backing != Some(Backing::VfioUser), depth, compute_cores, entry.direction, entry.bytes)
        });
        let rows = self.entries.iter().map(|entry| self.row(entry)).collect();
        let mut notes = vec![
            "gbit_s of `both` is the sum of the two directions; latencies are half round trips".to_owned(),
            "the sockets are waited for as the devices are: a few polls, then yielding, then asleep"
                .to_owned(),
        ];

        let tried: Vec<_> = tried.iter().map(|(text, gbit_s)| format!("{text}: {gbit_s:.2}")).collect();
        notes.push(format!("raw packets, Gb/s (geometric mean) by placement: {}", tried.join("; ")));
        // Relayed sockets have no goal: a kernel that copies 1 MB at once is faster than CIOD was.
        // `nicforge paper fcnp` has that comparison, in virtual time.
        let mut goals = self.goals_of_raw();
        goals.extend(self.goals_of_forwarded_sockets());

        notes.extend(self.notes_of_paper());
        Outcome { rows, goals, notes }
    }

    /// Returns the row of a contestant's measurements.
    fn row(&self, entry: &Entry) -> Row {
        let Contestant { path, backing, depth, compute_cores } = entry.contestant;
        let row = Row {
            backing,
            placement: Some(self.placement.clone()),
            fifo_depth: depth,
            direction: Some(entry.direction.name()),
            ..Row::new(path.name()).with_measurements(&entry.measurements).with_bandwidth(entry.bytes)
        }
        .figure("rounds", entry.measurements.len() as f64);

        if matches!(path, Path::FcnpPoll | Path::FcnpIrq) {
            row.figure("outstanding", compute_cores.into())
        } else {
            row
        }
    }

    /// Returns a contestant's measurements of a direction and message size.
    fn find(&self, contestant: Contestant, direction: Direction, bytes: usize) -> Option<&Entry> {
        self.entries.iter().find(|entry| {
            entry.contestant == contestant && entry.direction == direction && entry.bytes == bytes
        })
    }

    /// Returns the ratio of two bandwidths in the same round, as the median over all rounds.
    fn ratio(
        &self,
        first: Contestant,
        second: Contestant,
        direction: Direction,
        bytes: usize,
    ) -> Option<f64> {
        let (first, second) = (self.find(first, direction, bytes)?, self.find(second, direction, bytes)?);
        Some(ratio_in_rounds(&first.measurements, &second.measurements))
    }

    /// Returns the goals for FCNP compared with raw packets: one large stream, and two smaller ones
    /// at once.
    fn goals_of_raw(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        for (bytes, compute_cores) in [(LARGE_BYTES, 1), (TWO_OUTSTANDING_BYTES, 2)] {
            for depth in DEPTHS {
                for direction in Direction::ALL {
                    let raw = served_contestant(Path::Raw, depth, 1);
                    let fcnp = served_contestant(Path::FcnpPoll, depth, compute_cores);
                    let Some(ratio) = self.ratio(fcnp, raw, direction, bytes) else { continue };
                    let description = format!(
                        "fcnp-poll to raw, times: {bytes} bytes, {compute_cores} outstanding, FIFOs of {depth}, {}",
                        direction.name()
                    );
                    goals.push(Goal::at_least(description, MIN_SHARE_OF_RAW, ratio));
                }
            }
        }

        goals
    }

    /// Returns the goals for FCNP compared with the faster forwarded sockets, for each FIFO depth
    /// and message size. The ratio is the worst of all directions.
    fn goals_of_forwarded_sockets(&self) -> Vec<Goal> {
        let mut sizes: Vec<_> = self.entries.iter().map(|entry| entry.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut goals = Vec::new();

        for depth in DEPTHS {
            for &bytes in &sizes {
                let worst = Direction::ALL
                    .into_iter()
                    .filter_map(|direction| self.ratio_to_sockets(Middle::Forwarder, depth, direction, bytes))
                    .min_by(f64::total_cmp);
                if let Some(ratio) = worst {
                    let what =
                        format!("fcnp-poll to the best forwarded, times: {bytes} bytes, FIFOs of {depth}");
                    goals.push(Goal::at_least(what, 1.0, ratio));
                }
            }
        }

        goals
    }

    /// Returns the ratio of FCNP's bandwidth to that of the fastest sockets with this process in
    /// the middle.
    fn ratio_to_sockets(
        &self,
        middle: Middle,
        depth: u32,
        direction: Direction,
        bytes: usize,
    ) -> Option<f64> {
        let socket_paths = Path::ALL.into_iter().filter(|path| path.middle() == middle);
        socket_paths
            .filter_map(|path| {
                let sockets = Contestant { path, backing: None, depth: None, compute_cores: 1 };
                self.ratio(served_contestant(Path::FcnpPoll, depth, 1), sockets, direction, bytes)
            })
            .min_by(f64::total_cmp)
    }

    /// Returns the paper's comparison as notes: the ratio to sockets at the largest messages, and
    /// the latencies.
    fn notes_of_paper(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let Some(largest) = self.entries.iter().map(|entry| entry.bytes).max() else { return notes };

        for (middle, name) in [(Middle::Relay, "relayed"), (Middle::Forwarder, "forwarded")] {
            let ratios: Vec<_> = DEPTHS
                .into_iter()
                .filter_map(|depth| {
                    let ratio = self.ratio_to_sockets(middle, depth, Direction::IoToCompute, largest)?;
                    Some(format!("{ratio:.2} with FIFOs of {depth}"))
                })
                .collect();

            notes.push(format!(
                "fcnp-poll to the best {name} sockets at {largest} bytes, io-to-compute: {} (the paper: {PAPER_RATIO})",
                ratios.join(", ")
            ));
        }

        notes.extend(self.note_of_latencies());
        notes
    }

    /// Returns the latencies of FCNP, relayed and forwarded sockets as a note, if all of them were
    /// measured.
    fn note_of_latencies(&self) -> Option<String> {
        let half_round_trip = |path, depth| {
            let contestant = match depth {
                Some(depth) => served_contestant(path, depth, 1),
                None => Contestant { path, backing: None, depth: None, compute_cores: 1 },
            };
            let entry = self.find(contestant, Direction::IoToCompute, LATENCY_BYTES)?;
            self.row(entry).p50_us
        };

        let fcnp = half_round_trip(Path::FcnpPoll, Some(DEPTHS[0]))?;
        let relayed = half_round_trip(Path::UnixRelayed, None)?;
        let forwarded = half_round_trip(Path::UnixForwarded, None)?;
        Some(format!(
            "half a round trip of {LATENCY_BYTES} bytes, us: fcnp-poll {fcnp:.1}, unix-relayed {relayed:.1}, unix-forwarded {forwarded:.1}"
        ))
    }
}

/// Returns a contestant with a served device.
pub(super) fn served_contestant(path: Path, depth: u32, compute_cores: u32) -> Contestant {
    Contestant { path, backing: Some(Backing::VfioUser), depth: Some(depth), compute_cores }
}
