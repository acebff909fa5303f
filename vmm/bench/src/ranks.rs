//! Ranks with matching, all in one thread.

use std::time::Duration;

use nicforge::failure::{ErrorContext, Failure};
use nicforge_driver::Deadline;
use nicforge_matching::{Config, Endpoint, Taken, Transport};

use crate::machine::never_sleeping_wait;

/// Maximum number of events of a rank that one poll takes.
const MAX_EVENTS: usize = 64;

/// Waits until all ranks of a job have found each other, and returns their endpoints.
/// `is_complete` asks a rank whether it has found all others.
///
/// # Errors
/// Returns an error of a rank, and one when they have not found each other within `time_out`.
pub fn endpoints_of<T: Transport>(
    mut ranks: Vec<T>,
    is_complete: impl Fn(&T) -> bool,
    time_out: Duration,
) -> Result<Vec<Endpoint<T>>, Failure> {
    let (deadline, mut idle) = (Deadline::after(time_out), never_sleeping_wait());
    while !ranks.iter().all(&is_complete) {
        for rank in &mut ranks {
            // No message is taken yet: it waits until its rank has an endpoint.
            rank.poll_gone();
            rank.poll(MAX_EVENTS, &mut |_, _, _| Taken::NotNow).context(|| "a rank".into())?;
            rank.relax(&mut idle).context(|| "the machine".into())?;
        }
        if deadline.has_passed() {
            return Err(Failure::result("the ranks do not find each other"));
        }
    }

    let endpoint = |rank| Endpoint::new(rank, Config::default()).context(|| "an endpoint".into());
    ranks.into_iter().map(endpoint).collect()
}
