//! Messages between two ranks while the other ranks of their job wait.

use nicforge::failure::Failure;

use super::{Extent, goal, group::Entrant, task::Library};
use crate::{bench::Run, contest, row::Outcome};

/// The ranks of the job in which all but two wait.
const RANKS: u32 = 32;
/// The goal for half a round trip, as a multiple of that of two ranks alone.
const MAX_OF_ALONE: f64 = 1.3;

/// Returns the number of steps.
pub(super) const fn steps(extent: &Extent) -> usize {
    Library::ALL.len() * 2 * (extent.rounds + 1)
}

/// Measures the first two of 32 ranks, and two ranks alone on such a machine, in turns.
pub(super) fn measure(run: &Run<'_>, extent: &Extent) -> Result<Outcome, Failure> {
    let mut outcome = Outcome {
        notes: vec![format!(
            "-waiting: {RANKS} ranks, of which all but two wait in a barrier; -alone: a job of two ranks on such a machine; \
             others: context switches of all that wait, together, a message of the two"
        )],
        ..Outcome::default()
    };

    for library in Library::ALL {
        let mut entrants = Vec::new();
        for (ranks, suffix) in [(2, "alone"), (RANKS, "waiting")] {
            let name = format!("{}-{suffix}", library.name());
            run.step(format!("{name}: starting"))?;
            entrants.push(Entrant::of_ranks(run, library, ranks, name, extent.limit)?);
        }

        let results = contest::run(run, extent.rounds, entrants, |entrant, _| {
            run.step(entrant.name.clone())?;
            entrant.turn(run, extent.turn)
        })?;
        let rows: Vec<_> =
            results.iter().map(|(entrant, exchanges)| (entrant, entrant.row(exchanges))).collect();

        if let [(_, alone), (waiting, row)] = rows.as_slice()
            && let Some(reference) = alone.mean_us
        {
            let description =
                format!("{}, half a round trip of two ranks, of two ranks' alone, times", waiting.name);
            outcome.goals.push(goal(description, MAX_OF_ALONE, row, waiting.mean_us(row) / reference));
        }
        outcome.rows.extend(rows.into_iter().map(|(_, row)| row.figure("beside_loops", 0.0)));
    }
    Ok(outcome)
}
