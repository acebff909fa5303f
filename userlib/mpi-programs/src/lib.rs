//! What MPI systems are measured with, over any transport of the matching layer: message rate and latency after the OSU micro-benchmarks,
//! RandomAccess after the HPC Challenge.
//!
//! In: endpoints. Out: counts and times; that the data were right. It may touch the endpoints, nothing else.
//!
//! Each program is a [`Program`], a state machine of one rank which never waits, so that one thread can be several ranks ([`drive`]): on a machine
//! with few processors nothing else measures the network and not the scheduler. A process of its own for each rank works as well: see the examples
//! of `nicforge-extoll-transport`.
//!
//! - [`message_rate`]: windows of messages between pairs (`osu_mbw_mr`);
//! - [`ping_pong`]: one message there and back (`osu_latency`);
//! - [`random_access`]: updates of a distributed table (HPCC's `RandomAccess`, MPI version);
//! - [`collective`]: the little that they need between them: a barrier, a sum, a largest.
#![forbid(unsafe_code)]

pub mod collective;
pub mod message_rate;
pub mod ping_pong;
pub mod random_access;

use nicforge_driver::{Deadline, Relax};
use nicforge_matching::{Completion, Endpoint, Error as MatchingError, Transport};
use thiserror::Error;

/// Why a program ended early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A call or a request failed.
    #[error(transparent)]
    Matching(#[from] MatchingError),
    /// Data that were not sent.
    #[error("{what}: {found:#x} came instead of {expected:#x}")]
    Wrong {
        /// What.
        what: &'static str,
        /// What came.
        found: u64,
        /// What should have.
        expected: u64,
    },
    /// A parameter does not work.
    #[error("{what} is {value}; it must be {rule}")]
    BadParameter {
        /// Which.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What works.
        rule: &'static str,
    },
    /// The deadline passed.
    #[error("timed out while waiting for {what}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
    },
}

/// One rank's part of a program.
pub trait Program {
    /// Its transport.
    type Transport: Transport;

    /// Does what can be done now, and says how many steps that were.
    ///
    /// # Errors
    /// The program can't go on.
    fn step(&mut self) -> Result<usize, Error>;

    /// Whether this rank's part is over.
    fn is_done(&self) -> bool;

    /// Its endpoint.
    fn endpoint(&mut self) -> &mut Endpoint<Self::Transport>;
}

/// Calls of steps between two looks at the clock.
const STEPS: u32 = 256;

/// Drives ranks in turns until all are done.
///
/// # Errors
/// The first of a step; [`Error::Timeout`].
pub fn drive<P: Program>(ranks: &mut [P], deadline: Deadline, relax: &mut Relax) -> Result<(), Error> {
    loop {
        for _ in 0..STEPS {
            let (mut steps, mut done) = (0, true);
            for rank in ranks.iter_mut() {
                steps += rank.step()?;
                done &= rank.is_done();
            }
            if done {
                return Ok(());
            }
            if steps > 0 {
                relax.reset();
            } else if let Some(rank) = ranks.first_mut() {
                rank.endpoint().transport_mut().relax(relax).map_err(MatchingError::from)?;
            }
        }
        if deadline.has_passed() {
            return Err(Error::Timeout { what: "the program's end" });
        }
    }
}

/// A completion, if it is of a request that succeeded.
fn succeeded(completion: Completion) -> Result<Completion, Error> {
    match &completion.result {
        Ok(()) => Ok(completion),
        Err(error) => Err(error.clone().into()),
    }
}

/// The vector of a completed request, for the next one.
fn vector(completion: Completion) -> Vec<u8> {
    completion.buffer.into_vec().unwrap_or_default()
}
