//! Message rate and bandwidth between pairs of ranks, as `osu_mbw_mr` reports them. `nicforge run
//! machines/extoll.toml -- message_rate [WINDOWS]` starts it on each node; with `--per-core`, on
//! each VPID.
//!
//! Rank `n` of the first half sends to rank `n` of the second half. With more ranks than processors
//! the results depend on the scheduler. `nicforge bench extoll-mpi` runs all ranks in one thread.

use std::time::{Duration, Instant};

use nicforge_driver::{Deadline, Relax};
use nicforge_extoll_transport::{Config, ExtollTransport};
use nicforge_matching::Endpoint;
use nicforge_mpi_programs::{
    collective::{all_reduce, barrier},
    drive,
    message_rate::{End, Parameters, Side},
};

/// The longest message has two to the power of this many bytes.
const LARGEST_POWER: u32 = 12;
/// Messages of a window.
const WINDOW: u32 = 64;
/// Time limit of all waits.
const LIMIT: Duration = Duration::from_secs(600);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let windows = std::env::args().nth(1).map_or(Ok(50), |argument| argument.parse())?;
    let deadline = Deadline::after(LIMIT);
    let transport = ExtollTransport::from_environment(Config::default(), deadline)?;
    let mut endpoint = Endpoint::new(transport, Default::default())?;

    let (rank, half) = (endpoint.rank(), endpoint.size() / 2);
    if rank == 0 {
        println!("{:>6} {:>6} {:>12} {:>14}", "pairs", "bytes", "MB/s", "messages/s");
    }

    let mut context = 0;
    let mut pairs = 1;
    while pairs <= half {
        for bytes in (0..=LARGEST_POWER).map(|power| 1 << power) {
            context += 1;
            let parameters = Parameters { bytes, window: WINDOW, windows, context };

            barrier(&mut endpoint, deadline)?;

            // The first `pairs` ranks of each half take part: the end of this rank, and its peer.
            let role = match rank.checked_sub(half) {
                None if rank < pairs => Some((End::Sender, rank + half)),
                Some(sender) if sender < pairs => Some((End::Receiver, sender)),
                _ => None,
            };

            let mut rate = 0.0;
            if let Some((end, peer)) = role {
                let start = Instant::now();
                let mut side = [Side::new(&mut endpoint, end, peer, parameters)?];
                drive(&mut side, deadline, &mut Relax::new())?;
                if end == End::Sender {
                    rate = parameters.messages() as f64 / start.elapsed().as_secs_f64();
                }
            }

            let rate = all_reduce(&mut endpoint, rate as u64, |one, other| one + other, deadline)?;
            if rank == 0 {
                println!("{pairs:>6} {bytes:>6} {:>12.2} {rate:>14}", rate as f64 * bytes as f64 / 1e6);
            }
        }
        pairs *= 2;
    }

    // A rank that exits earlier would be lost for one that still waits for its messages.
    barrier(&mut endpoint, deadline)?;
    Ok(())
}
