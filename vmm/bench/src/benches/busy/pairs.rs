//! Messages between two processes, beside a number of processes that compute.

use nicforge::failure::Failure;

use super::{
    Extent, goal,
    group::{Contestant, Entrant},
    loops::Loops,
};
use crate::{
    bench::Run,
    contest,
    row::{Outcome, Row},
};

/// The goal for half a round trip, as a multiple of a socket pair's with the same work beside it.
const MAX_OF_SOCKET: f64 = 3.0;

/// Measures all contestants in turns, with each number of processes beside them.
pub(super) fn measure(run: &Run<'_>, extent: &Extent) -> Result<Outcome, Failure> {
    let mut outcome = Outcome {
        notes: vec![
            "mean, p50, p99: half a round trip of 8 bytes between two processes; of socket: its mean, of the mean of \
             socket-pair beside as many loops"
                .into(),
            "voluntary, involuntary: context switches a message of the process that sends first, of the second one, and of \
             the engine's; their firmware's threads are counted with the engine"
                .into(),
        ],
        ..Outcome::default()
    };

    for &count in extent.loops {
        measure_beside(run, extent, count, &mut outcome)?;
    }
    Ok(outcome)
}

/// Measures all contestants beside `count` processes, and adds their rows and goals to `outcome`.
fn measure_beside(run: &Run<'_>, extent: &Extent, count: u32, outcome: &mut Outcome) -> Result<(), Failure> {
    // The contestants start before the loops, so that only exchanges are measured beside these.
    let mut entrants = Vec::new();
    for &contestant in extent.contestants {
        run.step(format!("{}: starting", contestant.name()))?;
        entrants.push(Entrant::of_pair(run, contestant, extent.limit)?);
    }

    let loops = Loops::start(count)?;
    let results = contest::run(run, extent.rounds, entrants, |entrant, _| {
        run.step(format!("{} beside {count} loops", entrant.name))?;
        entrant.turn(run, extent.turn)
    })?;
    drop(loops);

    let rows: Vec<_> = results.iter().map(|(entrant, exchanges)| (entrant, entrant.row(exchanges))).collect();
    let socket = rows.iter().find(|(entrant, _)| entrant.name == Contestant::SocketPair.name());
    let reference = socket.and_then(|(_, row)| row.mean_us);

    for ((entrant, row), contestant) in rows.into_iter().zip(extent.contestants) {
        let row = row.figure("beside_loops", f64::from(count));
        let Some(reference) = reference else {
            outcome.rows.push(row);
            continue;
        };

        if contestant.has_device() {
            let description = format!(
                "{} beside {count} loops, half a round trip, of a socket pair's, times",
                entrant.name
            );
            outcome.goals.push(goal(description, MAX_OF_SOCKET, &row, entrant.mean_us(&row) / reference));
        }
        outcome.rows.push(of_socket(row, reference));
    }
    Ok(())
}

/// Fills in the mean of a row as a multiple of the socket pair's.
fn of_socket(row: Row, reference: f64) -> Row {
    match row.mean_us {
        Some(mean) => row.figure("of_socket", mean / reference),
        None => row,
    }
}
