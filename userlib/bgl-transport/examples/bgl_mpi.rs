//! The programs that MPI systems are measured with, over Blue Gene/L's torus. `nicforge run
//! machines/bgl.toml -- bgl_mpi PROGRAM [NUMBER]` starts a program on each node:
//!
//! - `message_rate [WINDOWS]`: rank `n` of the first half sends to rank `n` of the second half;
//! - `ping_pong [ROUNDS]`: between the first and the last rank;
//! - `all_to_all [ROUNDS]`: a block from each rank to each other one, verified;
//! - `random_access [ORDER]`: 2^ORDER words on each node, verified.

use std::{process::ExitCode, time::Duration};

use nicforge_bgl_transport::{BglTransport, Config};
use nicforge_driver::Deadline;
use nicforge_matching::Endpoint;
use nicforge_mpi_programs::{collective::barrier, tables};

/// Time limit of all waits.
const LIMIT: Duration = Duration::from_secs(600);

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let number = |default| words.get(1).map_or(Ok(default), |word| word.parse::<u32>());

    let deadline = Deadline::after(LIMIT);
    let transport = BglTransport::from_environment(Config::default(), deadline)?;
    let mut endpoint = Endpoint::new(transport, Default::default())?;
    let mut print = |line: String| println!("{line}");

    let mut is_verified = true;
    match words.first().map(String::as_str) {
        Some("message_rate") => tables::rates(&mut endpoint, number(50)?, deadline, &mut print)?,
        Some("ping_pong") => tables::latencies(&mut endpoint, number(200)?, deadline, &mut print)?,
        Some("all_to_all") => tables::blocks(&mut endpoint, number(4)?, deadline, &mut print)?,
        Some("random_access") => {
            is_verified = tables::updates(&mut endpoint, number(12)?, deadline, &mut print)?;
        }
        _ => return Err("give message_rate, ping_pong, all_to_all or random_access".into()),
    }

    // A rank that exits before the others have received its messages would be lost for them.
    barrier(&mut endpoint, deadline)?;
    Ok(if is_verified { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
