//! Benchmark programs of MPI systems: message rate and latency after the OSU micro-benchmarks,
//! all-to-all, RandomAccess after the HPC Challenge.
//!
//! Input: endpoints. Output: counts, times, and verification of the data. The crate uses only the
//! endpoints. An [`Endpoint`] is one of the matching layer, over any transport, or one of the
//! library over Portals.
//!
//! Each program is a [`Program`]: a state machine of one rank that never blocks. Thus one thread
//! can drive several ranks ([`drive`]). On a machine with few processors only this measures the
//! network instead of the scheduler. A process for each rank works as well: the examples of
//! `nicforge-extoll-transport`, `nicforge-mu-transport` and `nicforge-portals-mpi` do that.
//!
//! - [`message_rate`]: windows of messages between pairs (`osu_mbw_mr`);
//! - [`ping_pong`]: one message there and back (`osu_latency`);
//! - [`all_to_all`]: a block from each rank to each other one (`MPI_Alltoall`);
//! - [`random_access`]: updates of a distributed table (HPCC's `RandomAccess`, MPI version);
//! - [`collective`]: a barrier and a reduction, for use between the programs;
//! - [`tables`]: the programs with their results as lines of text, for a process for each rank.
#![forbid(unsafe_code)]

pub mod all_to_all;
pub mod collective;
mod endpoint;
pub mod message_rate;
pub mod ping_pong;
pub mod random_access;
pub mod tables;

use nicforge_driver::{Deadline, Relax};
use thiserror::Error;

pub use self::endpoint::{Buffer, Completion, Endpoint};

/// Error of a program on endpoints whose errors are of type `E`.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error<E> {
    /// A call or a request failed.
    #[error(transparent)]
    Endpoint(#[from] E),
    /// Received data differs from the data sent.
    #[error("{what}: {found:#x} came instead of {expected:#x}")]
    Wrong {
        /// Description of the data.
        what: &'static str,
        /// The received value.
        found: u64,
        /// The expected value.
        expected: u64,
    },
    /// A parameter is out of range.
    #[error("{what} is {value}; it must be {rule}")]
    BadParameter {
        /// Name of the parameter.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The rule that it violates.
        rule: &'static str,
    },
    /// The deadline passed.
    #[error("timed out while waiting for {what}")]
    Timeout {
        /// The awaited event.
        what: &'static str,
    },
}

/// One rank's part of a program.
pub trait Program {
    /// Its endpoint.
    type Endpoint: Endpoint;

    /// Carries out the steps that are possible now, without blocking. Returns the number of steps.
    ///
    /// # Errors
    /// The program can't continue.
    fn step(&mut self) -> Result<usize, ErrorOf<Self::Endpoint>>;

    /// Returns the endpoint.
    fn endpoint(&mut self) -> &mut Self::Endpoint;

    /// Returns whether this rank's part of the program is complete.
    fn is_done(&self) -> bool;
}

/// Error of a program on endpoints of type `E`.
pub type ErrorOf<E> = Error<<E as Endpoint>::Error>;

/// Number of steps of each rank between two checks of the deadline.
const STEPS_PER_CHECK: u32 = 256;

/// Drives several ranks in turn until all are done.
///
/// # Errors
/// The first error of a step; [`Error::Timeout`].
pub fn drive<P: Program>(
    ranks: &mut [P],
    deadline: Deadline,
    relax: &mut Relax,
) -> Result<(), ErrorOf<P::Endpoint>> {
    loop {
        for _ in 0..STEPS_PER_CHECK {
            let (mut steps, mut all_done) = (0, true);
            for rank in ranks.iter_mut() {
                steps += rank.step()?;
                all_done &= rank.is_done();
            }

            if all_done {
                return Ok(());
            }

            // Ranks that could do nothing wait for the network.
            if steps > 0 {
                relax.reset();
            } else if let Some(rank) = ranks.first_mut() {
                rank.endpoint().relax(relax)?;
            }
        }

        if deadline.has_passed() {
            return Err(Error::Timeout { what: "the program's end" });
        }
    }
}

/// Returns the completion of a request that has succeeded, and else the request's error.
fn succeeded<E: Endpoint>(mut completion: Completion<E>) -> Result<Completion<E>, ErrorOf<E>> {
    std::mem::replace(&mut completion.result, Ok(()))?;
    Ok(completion)
}
