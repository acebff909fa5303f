//! Half of the round-trip time between the first and the last rank, as `osu_latency` reports it.
//! `nicforge run machines/extoll.toml -- ping_pong [ROUNDS]` starts it on each node.

use std::time::Duration;

use nicforge_driver::{Deadline, Relax};
use nicforge_extoll_transport::{Config, ExtollTransport};
use nicforge_matching::Endpoint;
use nicforge_mpi_programs::{collective::barrier, drive, ping_pong::Side};

/// The longest message has two to the power of this many bytes.
const LARGEST_POWER: u32 = 20;
/// Time limit of all waits.
const LIMIT: Duration = Duration::from_secs(600);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(200), |argument| argument.parse())?;
    let deadline = Deadline::after(LIMIT);
    let transport = ExtollTransport::from_environment(Config::default(), deadline)?;
    let mut endpoint = Endpoint::new(transport, Default::default())?;

    let (rank, last) = (endpoint.rank(), endpoint.size() - 1);
    if rank == 0 {
        println!("{:>8} {:>12} {:>12}", "bytes", "p50 us", "p99 us");
    }

    for power in 0..=LARGEST_POWER {
        let bytes = 1 << power;
        if last > 0 && (rank == 0 || rank == last) {
            let (sends_first, peer, context) = (rank == 0, last - rank, power);
            let mut side = [Side::new(&mut endpoint, sends_first, peer, bytes, rounds, context)?];
            drive(&mut side, deadline, &mut Relax::new())?;

            // The side that answers has no times.
            let mut times = side[0].times().to_vec();
            times.sort_unstable();

            if let (Some(p50), Some(p99)) = (times.get(times.len() / 2), times.get(times.len() * 99 / 100)) {
                println!(
                    "{bytes:>8} {:>12.2} {:>12.2}",
                    p50.as_nanos() as f64 / 1e3,
                    p99.as_nanos() as f64 / 1e3
                );
            }
        }
    }

    barrier(&mut endpoint, deadline)?;
    Ok(())
}
