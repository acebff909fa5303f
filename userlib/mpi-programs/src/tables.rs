//! The programs of one rank that has a thread of its own, with their results as lines of text.
//!
//! All ranks call the same function with the same arguments. Rank 0 passes the lines to `print`.

use std::time::Duration;

use nicforge_driver::{Deadline, Relax, runtime::Instant};

use crate::{
    Endpoint, ErrorOf, all_to_all,
    collective::{all_reduce, barrier},
    drive, message_rate, ping_pong,
    random_access::{Table, Updates},
};

/// Number of messages of a window.
const WINDOW: u32 = 64;
/// Bytes of the blocks of the all-to-alls.
const BLOCK_BYTES: [usize; 4] = [8, 512, 2048, 20_001];

/// Prints the messages per second of one pair, two, four and so on, by size. Rank `n` of the first
/// half sends to rank `n` of the second half.
///
/// # Errors
/// Errors of the endpoint, including its time-out.
pub fn rates<E: Endpoint>(
    endpoint: &mut E,
    windows: u32,
    deadline: Deadline,
    print: &mut dyn FnMut(String),
) -> Result<(), ErrorOf<E>> {
    let (rank, half) = (endpoint.rank(), endpoint.size() / 2);
    if rank == 0 {
        print(format!("{:>6} {:>6} {:>12} {:>14}", "pairs", "bytes", "MB/s", "messages/s"));
    }

    let mut context = 0;
    let pair_counts = std::iter::successors(Some(1), |pairs| Some(2 * pairs));
    for pairs in pair_counts.take_while(|pairs| *pairs <= half) {
        for bytes in (0..=12).map(|power| 1 << power) {
            context += 1;
            let parameters = message_rate::Parameters { bytes, window: WINDOW, windows, context };
            barrier(endpoint, deadline)?;

            let own_rate = rate_of_pair(endpoint, pairs, half, parameters, deadline)?;
            let rate = all_reduce(endpoint, own_rate as u64, |sum, rate| sum + rate, deadline)?;
            if rank == 0 {
                print(format!("{pairs:>6} {bytes:>6} {:>12.2} {rate:>14}", rate as f64 * bytes as f64 / 1e6));
            }
        }
    }
    Ok(())
}

/// Runs the pair of this rank, if it is one of the first `pairs` pairs. Returns the messages per
/// second that this rank has sent; 0 if it has sent none.
fn rate_of_pair<E: Endpoint>(
    endpoint: &mut E,
    pairs: u32,
    half: u32,
    parameters: message_rate::Parameters,
    deadline: Deadline,
) -> Result<f64, ErrorOf<E>> {
    let rank = endpoint.rank();
    // Rank `n` of the first half and rank `half + n` are a pair.
    let (end, peer) = match rank.checked_sub(half) {
        None if rank < pairs => (message_rate::End::Sender, rank + half),
        Some(sender) if sender < pairs => (message_rate::End::Receiver, sender),
        _ => return Ok(0.0),
    };

    let start = Instant::now();
    drive(&mut [message_rate::Side::new(endpoint, end, peer, parameters)?], deadline, &mut Relax::new())?;
    Ok(match end {
        message_rate::End::Sender => parameters.messages() as f64 / start.elapsed().as_secs_f64(),
        message_rate::End::Receiver => 0.0,
    })
}

/// Prints half of the round-trip times between the first and the last rank, by size.
///
/// # Errors
/// Errors of the endpoint, including its time-out.
pub fn latencies<E: Endpoint>(
    endpoint: &mut E,
    rounds: u32,
    deadline: Deadline,
    print: &mut dyn FnMut(String),
) -> Result<(), ErrorOf<E>> {
    let (rank, last) = (endpoint.rank(), endpoint.size() - 1);
    if rank == 0 {
        print(format!("{:>8} {:>12} {:>12}", "bytes", "p50 us", "p99 us"));
    }
    if last == 0 || (rank != 0 && rank != last) {
        return Ok(());
    }

    for power in 0..=20 {
        let (bytes, peer, context) = (1 << power, last - rank, power);
        let mut side = [ping_pong::Side::new(endpoint, rank == 0, peer, bytes, rounds, context)?];
        drive(&mut side, deadline, &mut Relax::new())?;

        let mut times = side[0].times().to_vec();
        times.sort_unstable();
        let micros = |time: &Duration| time.as_nanos() as f64 / 1e3;
        if let (Some(p50), Some(p99)) = (times.get(times.len() / 2), times.get(times.len() * 99 / 100)) {
            print(format!("{bytes:>8} {:>12.2} {:>12.2}", micros(p50), micros(p99)));
        }
    }
    Ok(())
}

/// Updates a table with 2^`order` words on each rank, restores it by the same updates, and prints
/// the rate. Returns whether at most 1 % of the words are wrong afterwards.
///
/// # Errors
/// Errors of the endpoint, including its time-out; [`crate::Error::Wrong`].
pub fn updates<E: Endpoint>(
    endpoint: &mut E,
    order: u32,
    deadline: Deadline,
    print: &mut dyn FnMut(String),
) -> Result<bool, ErrorOf<E>> {
    let (rank, size) = (endpoint.rank(), endpoint.size());
    let mut table = Table::new(rank, size, order).map_err(endpoint_error)?;
    let (words, updates) = (table.len() * u64::from(size), table.updates() * u64::from(size));
    let mut duration = Duration::ZERO;

    // The second pass undoes the first one. Only the first is timed.
    for pass in 0..2 {
        barrier(endpoint, deadline)?;
        let start = Instant::now();
        drive(&mut [Updates::new(endpoint, &mut table, pass)?], deadline, &mut Relax::new())?;
        barrier(endpoint, deadline)?;
        if pass == 0 {
            duration = start.elapsed();
        }
    }

    let wrong = all_reduce(endpoint, table.count_wrong(), |sum, count| sum + count, deadline)?;
    if rank == 0 {
        let (seconds, percent) = (duration.as_secs_f64(), wrong as f64 * 100.0 / words as f64);
        let gups = updates as f64 / seconds / 1e9;
        print(format!("{size} ranks, {words} words, {updates} updates in {seconds:.3} s: {gups:.6} GUPS"));
        print(format!("{wrong} words are wrong ({percent:.4} %)"));
    }
    Ok(wrong * 100 <= words)
}

/// Turns an error of [`Table::new`], which uses no endpoint, into one of a program on endpoints.
fn endpoint_error<E>(error: crate::Error<std::convert::Infallible>) -> crate::Error<E> {
    match error {
        crate::Error::BadParameter { what, value, rule } => crate::Error::BadParameter { what, value, rule },
        crate::Error::Wrong { what, found, expected } => crate::Error::Wrong { what, found, expected },
        crate::Error::Timeout { what } => crate::Error::Timeout { what },
        crate::Error::Endpoint(never) => match never {},
    }
}

/// Sends blocks of several sizes from each rank to each other one, checks them, and prints the
/// bytes that each rank sends in a second.
///
/// # Errors
/// Errors of the endpoint, including its time-out; [`crate::Error::Wrong`] for wrong data.
pub fn blocks<E: Endpoint>(
    endpoint: &mut E,
    rounds: u32,
    deadline: Deadline,
    print: &mut dyn FnMut(String),
) -> Result<(), ErrorOf<E>> {
    let (rank, size) = (endpoint.rank(), endpoint.size());
    if rank == 0 {
        print(format!("{:>8} {:>12} {:>14}", "bytes", "blocks", "MB/s a rank"));
    }

    for (context, bytes) in (1..).zip(BLOCK_BYTES) {
        barrier(endpoint, deadline)?;
        let start = Instant::now();
        let parameters = all_to_all::Parameters { bytes, rounds, context };
        drive(&mut [all_to_all::Blocks::new(endpoint, parameters)?], deadline, &mut Relax::new())?;
        barrier(endpoint, deadline)?;

        if rank == 0 {
            let sent = u64::from(size - 1) * u64::from(rounds) * bytes as u64;
            let blocks = u64::from(size) * u64::from(size - 1) * u64::from(rounds);
            let rate = sent as f64 / start.elapsed().as_secs_f64() / 1e6;
            print(format!("{bytes:>8} {blocks:>12} {rate:>14.2}"));
        }
    }
    Ok(())
}
