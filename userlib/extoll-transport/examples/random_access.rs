//! RandomAccess with the rules of the HPC Challenge, verified. `nicforge run machines/extoll.toml
//! -- random_access [ORDER]` starts it on each node with 2^ORDER words. The number of nodes must be
//! a power of two.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use nicforge_driver::{Deadline, Relax};
use nicforge_extoll_transport::{Config, ExtollTransport};
use nicforge_matching::Endpoint;
use nicforge_mpi_programs::{
    collective::{all_reduce, barrier},
    drive,
    random_access::{Table, Updates},
};

/// Time limit of all waits.
const LIMIT: Duration = Duration::from_secs(600);

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let order = std::env::args().nth(1).map_or(Ok(14), |argument| argument.parse())?;
    let deadline = Deadline::after(LIMIT);
    let transport = ExtollTransport::from_environment(Config::default(), deadline)?;
    let mut endpoint = Endpoint::new(transport, Default::default())?;

    let (rank, size) = (endpoint.rank(), endpoint.size());

    let mut table = Table::new(rank, size, order)?;
    let (words, updates) = (table.len() * u64::from(size), table.updates() * u64::from(size));
    let mut duration = Duration::ZERO;

    // The second pass restores the table.
    for pass in 0..2 {
        barrier(&mut endpoint, deadline)?;
        let start = Instant::now();
        drive(&mut [Updates::new(&mut endpoint, &mut table, pass)?], deadline, &mut Relax::new())?;
        barrier(&mut endpoint, deadline)?;

        if pass == 0 {
            duration = start.elapsed();
        }
    }

    let wrong_words = all_reduce(&mut endpoint, table.count_wrong(), |sum, count| sum + count, deadline)?;
    if rank == 0 {
        let gups = updates as f64 / duration.as_secs_f64() / 1e9;
        println!(
            "{size} ranks, {words} words, {updates} updates in {:.3} s: {gups:.6} GUPS",
            duration.as_secs_f64()
        );
        println!("{wrong_words} words are wrong ({:.4} %)", wrong_words as f64 * 100.0 / words as f64);
    }

    barrier(&mut endpoint, deadline)?;
    Ok(if wrong_words * 100 > words { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
