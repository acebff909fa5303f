//! The programs of the paper's experiments, and their results.

use std::time::Duration;

use nicforge_driver::{Deadline, Relax, runtime::Instant};
use nicforge_mpi_programs::{
    Endpoint,
    collective::{all_reduce, barrier},
    drive, message_rate, ping_pong,
    random_access::{Table, Updates},
};

use super::{Cluster, ClusterError, RankError, RankProgram};
use crate::world::{Picos, mix};

/// The matching context of a program's first phase. Further phases have the next ones.
const CONTEXT: u32 = 1;
/// Windows before a measurement.
const WARM_UP_WINDOWS: u32 = 1;
/// The earliest position at which a run begins in the random sequence of RandomAccess. A short run
/// makes the updates of a part of that long sequence.
const FIRST_POSITION: u64 = 1_000_000_000_000_007;
/// Bits of the number that the seed adds to that position.
const POSITION_BITS: u32 = 40;
/// Round trips before a measurement and after it that are not counted, because messages of a
/// barrier can delay the first and the last one.
const EXTRA_ROUNDS: u32 = 1;

/// Messages of one direction between pairs of ranks on two nodes (`osu_mbw_mr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairs {
    /// Number of pairs: each has a sender on the first node and a receiver on the second.
    pub pairs: u16,
    /// Length of a message in bytes.
    pub bytes: usize,
    /// Messages of a window.
    pub window: u32,
    /// Number of windows of each pair.
    pub windows: u32,
}

/// The result of [`Cluster::random_access`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Updated {
    /// Number of ranks.
    pub ranks: u32,
    /// Number of words of the table.
    pub words: u64,
    /// Number of updates of all ranks.
    pub updates: u64,
    /// Number of messages with updates.
    pub messages: u64,
    /// Time of the updates in seconds.
    pub seconds: f64,
    /// Number of words that the second pass did not restore. `None` without a second pass.
    pub wrong: Option<u64>,
}

/// The passes of RandomAccess over its updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    /// The updates, which are measured.
    UpdatesOnly,
    /// The updates, and a second pass over them that restores and verifies the table.
    WithVerification,
}

impl Cluster<'_> {
    /// Returns the messages per second of all pairs together.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub fn message_rate(&self, pairs: Pairs) -> Result<f64, ClusterError> {
        if self.nodes() < 2 {
            return Err(self.size_error("message_rate", "2 or more"));
        }

        let Pairs { bytes, window, windows, .. } = pairs;
        let parameters = message_rate::Parameters { bytes, window, windows, context: CONTEXT };
        let count = u32::from(pairs.pairs);

        let (times, _) = self.run_program(pairs.pairs, MessageRate { pairs: count, parameters })?;
        Ok(rate_of(times.get(..count as usize).unwrap_or_default(), parameters.messages()))
    }

    /// Returns half the mean time of a round trip of messages of `bytes` bytes in seconds, between
    /// the first ranks of node 0 and of node `to`.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub fn ping_pong(&self, to: u32, bytes: usize, rounds: u32) -> Result<f64, ClusterError> {
        if to == 0 || to as usize >= self.nodes() {
            return Err(self.size_error("ping_pong", "2 or more"));
        }

        let (times, _) = self.run_program(1, PingPong { to, bytes, rounds })?;
        Ok(times.first().copied().unwrap_or_default().as_secs_f64())
    }

    /// Runs RandomAccess with `per_node` ranks on each node and 2^`order` words on each rank.
    /// Returns its result, and the virtual time at the end.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub fn random_access(
        &self,
        per_node: u16,
        order: u32,
        passes: Passes,
    ) -> Result<(Updated, Picos), ClusterError> {
        let position = FIRST_POSITION + (mix(self.seed) >> (u64::BITS - POSITION_BITS));
        let (results, end) = self.run_program(per_node, RandomAccess { order, position, passes })?;
        let sum = |field: fn(&Updated) -> u64| results.iter().map(field).sum::<u64>();

        let updated = Updated {
            ranks: results.len() as u32,
            words: sum(|rank| rank.words),
            updates: sum(|rank| rank.updates),
            messages: sum(|rank| rank.messages),
            seconds: results.iter().map(|rank| rank.seconds).fold(0.0, f64::max),
            wrong: results.iter().map(|rank| rank.wrong).sum(),
        };
        Ok((updated, end))
    }

    /// Returns the error of a cluster with too few nodes for a program.
    fn size_error(&self, program: &'static str, needed: &'static str) -> ClusterError {
        ClusterError::Size { what: "nodes", found: self.nodes(), program, needed }
    }
}

/// The program of [`Cluster::message_rate`].
struct MessageRate {
    pairs: u32,
    parameters: message_rate::Parameters,
}

impl RankProgram for MessageRate {
    type Output = Duration;

    fn run<E: Endpoint>(&self, endpoint: &mut E) -> Result<Duration, RankError> {
        time_of_messages(endpoint, self.pairs, self.pairs, self.parameters)
    }
}

/// The program of [`Cluster::ping_pong`].
struct PingPong {
    to: u32,
    bytes: usize,
    rounds: u32,
}

impl RankProgram for PingPong {
    type Output = Duration;

    fn run<E: Endpoint>(&self, endpoint: &mut E) -> Result<Duration, RankError> {
        half_round_trip(endpoint, self.to, self.bytes, self.rounds)
    }
}

/// The program of [`Cluster::random_access`].
struct RandomAccess {
    order: u32,
    position: u64,
    passes: Passes,
}

impl RankProgram for RandomAccess {
    type Output = Updated;

    fn run<E: Endpoint>(&self, endpoint: &mut E) -> Result<Updated, RankError> {
        run_updates(endpoint, self.order, self.position, self.passes)
    }
}

/// Measures the exchange of messages between `pairs` pairs, after a warm-up and a barrier of all
/// ranks. Rank i sends to rank i + `distance`, for each i below `pairs`. Returns the time on the
/// ranks of the pairs, and zero on other ranks.
///
/// The warm-up has twice the context of `parameters`, and the measurement the context after that.
pub(crate) fn time_of_messages<E: Endpoint>(
    endpoint: &mut E,
    pairs: u32,
    distance: u32,
    parameters: message_rate::Parameters,
) -> Result<Duration, RankError> {
    let measured = message_rate::Parameters { context: 2 * parameters.context + 1, ..parameters };
    let warm_up =
        message_rate::Parameters { windows: WARM_UP_WINDOWS, context: 2 * parameters.context, ..parameters };

    send_messages(endpoint, pairs, distance, warm_up)?;
    barrier(endpoint, Deadline::never())?;
    send_messages(endpoint, pairs, distance, measured)
}

/// Returns the messages per second of all pairs together, by the mean of their senders' times, or 0
/// if they took no time. Each pair has sent `messages`.
pub(crate) fn rate_of(sender_times: &[Duration], messages: u64) -> f64 {
    let pairs = sender_times.len() as f64;
    let mean = sender_times.iter().map(Duration::as_secs_f64).sum::<f64>() / pairs;
    if mean > 0.0 { pairs * messages as f64 / mean } else { 0.0 }
}

/// Takes part in the exchange of messages of [`time_of_messages`]. Returns the time, which is zero
/// on a rank of no pair.
fn send_messages<E: Endpoint>(
    endpoint: &mut E,
    pairs: u32,
    distance: u32,
    parameters: message_rate::Parameters,
) -> Result<Duration, RankError> {
    let rank = endpoint.rank();
    let (end, peer) = match rank.checked_sub(distance) {
        None if rank < pairs => (message_rate::End::Sender, rank + distance),
        Some(sender) if sender < pairs => (message_rate::End::Receiver, sender),
        _ => return Ok(Duration::ZERO),
    };

    let start = Instant::now();
    let side = message_rate::Side::new(endpoint, end, peer, parameters)?;
    drive(&mut [side], Deadline::never(), &mut Relax::new())?;
    Ok(start.elapsed())
}

/// Takes part in round trips between rank 0 and rank `to`. Returns half of the mean time on rank 0,
/// and zero on other ranks.
pub(crate) fn half_round_trip<E: Endpoint>(
    endpoint: &mut E,
    to: u32,
    bytes: usize,
    rounds: u32,
) -> Result<Duration, RankError> {
    let rank = endpoint.rank();
    let sends_first = rank == 0;
    let peer = if sends_first { to } else { 0 };
    let mut times = Vec::new();
    if sends_first || rank == to {
        let rounds = rounds + 2 * EXTRA_ROUNDS;
        let mut sides = [ping_pong::Side::new(endpoint, sends_first, peer, bytes, rounds, CONTEXT)?];
        drive(&mut sides, Deadline::never(), &mut Relax::new())?;
        times = sides[0].times().to_vec();
    }

    barrier(endpoint, Deadline::never())?;
    let extra = EXTRA_ROUNDS as usize;
    let measured = times.get(extra..times.len().saturating_sub(extra)).unwrap_or_default();
    Ok(measured.iter().sum::<Duration>() / measured.len().max(1) as u32)
}

/// Makes the updates of a rank, which has 2^`order` words of the table. The updates begin at
/// `position` of the random sequence that all ranks share. Returns the rank's part of the result;
/// rank 0 has all wrong words.
fn run_updates<E: Endpoint>(
    endpoint: &mut E,
    order: u32,
    position: u64,
    passes: Passes,
) -> Result<Updated, RankError> {
    let mut table = Table::new(endpoint.rank(), endpoint.size(), order)?;
    let mut messages = 0;
    let mut seconds = 0.0;

    // An update is undone by its repetition, so the second pass restores the table.
    let verifies = passes == Passes::WithVerification;
    for pass in 0..if verifies { 2 } else { 1 } {
        let start = Instant::now();
        let mut updates = [Updates::new(endpoint, &mut table, CONTEXT + pass)?.starting_at(position)];
        drive(&mut updates, Deadline::never(), &mut Relax::new())?;
        if pass == 0 {
            seconds = start.elapsed().as_secs_f64();
            messages = updates[0].messages();
        }
        barrier(endpoint, Deadline::never())?;
    }

    let wrong = all_reduce(endpoint, table.count_wrong(), |sum, count| sum + count, Deadline::never())?;
    let is_first = endpoint.rank() == 0;
    Ok(Updated {
        ranks: 1,
        words: table.len(),
        updates: table.updates(),
        messages,
        seconds,
        wrong: verifies.then_some(if is_first { wrong } else { 0 }),
    })
}

/// Returns the number of messages of `bytes` bytes in a window: 64, or as many as a megabyte has,
/// at least 4.
pub fn window_of(bytes: usize) -> u32 {
    ((1 << 20) / bytes.max(1)).clamp(4, 64) as u32
}
