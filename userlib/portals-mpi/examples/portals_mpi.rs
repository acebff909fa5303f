//! The programs that MPI systems are measured with, over Portals on SeaStars. `nicforge run
//! machines/seastar.toml -- portals_mpi PROGRAM [NUMBER] [host]` starts a program on each node:
//!
//! - `message_rate [WINDOWS]`: rank `n` of the first half sends to rank `n` of the second half;
//! - `ping_pong [ROUNDS]`: between the first and the last rank;
//! - `random_access [ORDER]`: 2^ORDER words on each node, verified.
//!
//! With the argument `host`, the kernel of each node matches the messages instead of the card.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use nicforge_driver::{Deadline, Relax};
use nicforge_mpi_programs::{
    collective::{all_reduce, barrier},
    drive, message_rate, ping_pong,
    random_access::{Table, Updates},
};
use nicforge_portals::Mode;
use nicforge_portals_mpi::{Config, Endpoint};

/// Messages of a window.
const WINDOW: u32 = 64;
/// Time limit of all waits.
const LIMIT: Duration = Duration::from_secs(600);

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<ExitCode, Failure> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let is_host_based = words.last().is_some_and(|word| word == "host");
    let words = &words[..words.len() - usize::from(is_host_based)];
    let number = |default| words.get(1).map_or(Ok(default), |word| word.parse::<u32>());

    let mode = if is_host_based { Mode::HostBased } else { Mode::NicBased };
    let deadline = Deadline::after(LIMIT);
    let mut endpoint = Endpoint::from_environment(mode, Config::default(), deadline)?;
    let has_succeeded = match words.first().map(String::as_str) {
        Some("message_rate") => rates(&mut endpoint, number(50)?, deadline)?,
        Some("ping_pong") => latencies(&mut endpoint, number(200)?, deadline)?,
        Some("random_access") => updates(&mut endpoint, number(14)?, deadline)?,
        _ => return Err("give message_rate, ping_pong or random_access".into()),
    };

    // A rank that exits before the others would count as gone for one that still waits for it.
    barrier(&mut endpoint, deadline)?;
    Ok(if has_succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the message rates of one pair of ranks, of two, four and so on, by message size.
fn rates(endpoint: &mut Endpoint, windows: u32, deadline: Deadline) -> Result<bool, Failure> {
    let (rank, half) = (endpoint.rank(), endpoint.size() / 2);
    if rank == 0 {
        println!("{:>6} {:>6} {:>12} {:>14}", "pairs", "bytes", "MB/s", "messages/s");
    }

    let mut context = 0;
    let mut pairs = 1;
    while pairs <= half {
        for bytes in (0..=12).map(|power| 1 << power) {
            context += 1;
            let parameters = message_rate::Parameters { bytes, window: WINDOW, windows, context };
            barrier(endpoint, deadline)?;

            // The first `pairs` ranks of either half take part.
            let part = match rank.checked_sub(half) {
                None if rank < pairs => Some((message_rate::End::Sender, rank + half)),
                Some(sender) if sender < pairs => Some((message_rate::End::Receiver, sender)),
                _ => None,
            };
            let mut rate = 0.0;
            if let Some((end, peer)) = part {
                let start = Instant::now();
                let mut side = [message_rate::Side::new(endpoint, end, peer, parameters)?];
                drive(&mut side, deadline, &mut Relax::new())?;
                if end == message_rate::End::Sender {
                    rate = parameters.messages() as f64 / start.elapsed().as_secs_f64();
                }
            }

            let rate = all_reduce(endpoint, rate as u64, |one, other| one + other, deadline)?;
            if rank == 0 {
                println!("{pairs:>6} {bytes:>6} {:>12.2} {rate:>14}", rate as f64 * bytes as f64 / 1e6);
            }
        }
        pairs *= 2;
    }
    Ok(true)
}

/// Prints the median and the 99th percentile of the times between the first and the last rank, by
/// message size.
fn latencies(endpoint: &mut Endpoint, rounds: u32, deadline: Deadline) -> Result<bool, Failure> {
    let (rank, last) = (endpoint.rank(), endpoint.size() - 1);
    if rank == 0 {
        println!("{:>8} {:>12} {:>12}", "bytes", "p50 us", "p99 us");
    }

    for power in 0..=20 {
        let bytes = 1 << power;
        if last == 0 || (rank != 0 && rank != last) {
            continue;
        }
        let mut side = [ping_pong::Side::new(endpoint, rank == 0, last - rank, bytes, rounds, power)?];
        drive(&mut side, deadline, &mut Relax::new())?;

        let mut times = side[0].times().to_vec();
        times.sort_unstable();
        let micros = |time: &Duration| time.as_nanos() as f64 / 1e3;
        if let (Some(median), Some(tail)) = (times.get(times.len() / 2), times.get(times.len() * 99 / 100)) {
            println!("{bytes:>8} {:>12.2} {:>12.2}", micros(median), micros(tail));
        }
    }
    Ok(true)
}

/// Updates a table, and restores it by the same updates. Returns whether at most 1 % of it is
/// wrong.
fn updates(endpoint: &mut Endpoint, order: u32, deadline: Deadline) -> Result<bool, Failure> {
    let (rank, size) = (endpoint.rank(), endpoint.size());
    let mut table = Table::new(rank, size, order)?;
    let (words, updates) = (table.len() * u64::from(size), table.updates() * u64::from(size));
    let mut took = Duration::ZERO;

    for pass in 0..2 {
        barrier(endpoint, deadline)?;
        let start = Instant::now();
        drive(&mut [Updates::new(endpoint, &mut table, pass)?], deadline, &mut Relax::new())?;
        barrier(endpoint, deadline)?;
        if pass == 0 {
            took = start.elapsed();
        }
    }

    let wrong = all_reduce(endpoint, table.count_wrong(), |one, other| one + other, deadline)?;
    if rank == 0 {
        let (seconds, percent) = (took.as_secs_f64(), wrong as f64 * 100.0 / words as f64);
        let gups = updates as f64 / seconds / 1e9;
        println!("{size} ranks, {words} words, {updates} updates in {seconds:.3} s: {gups:.6} GUPS");
        println!("{wrong} words are wrong ({percent:.4} %)");
    }
    Ok(wrong * 100 <= words)
}
