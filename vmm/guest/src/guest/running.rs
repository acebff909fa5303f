//! A job that runs in a guest.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    agent::{AgentChannel, Outcome, Output},
    ended_error,
    logs::Logs,
    process::Process,
};
use crate::error::{ErrorContext, GuestError};

/// A job that runs in a guest.
pub struct Running {
    pub(super) node: String,
    pub(super) agent: Arc<AgentChannel>,
    pub(super) process: Arc<Process>,
    pub(super) logs: Logs,
    /// The job's number on the channel.
    pub(super) number: u64,
    /// The job's description for errors.
    pub(super) what: String,
}

impl Running {
    /// Waits for the job's end.
    ///
    /// # Errors
    /// [`GuestError::Timeout`] (the job is killed then), [`GuestError::Ended`],
    /// [`GuestError::Restarted`].
    pub fn wait(&self, limit: Duration) -> Result<Output, GuestError> {
        match self.wait_for(limit)? {
            Some(output) => Ok(output),
            None => {
                self.kill()?;
                let what = format!("{} (which said: {:?})", self.what, self.agent.output_so_far(self.number));
                Err(GuestError::Timeout { node: self.node.clone(), what, limit, end: self.logs.ends() })
            }
        }
    }

    /// Waits at most `limit` for the job's end. Returns `None` when it still runs.
    ///
    /// # Errors
    /// [`GuestError::Ended`], [`GuestError::Restarted`].
    pub fn wait_for(&self, limit: Duration) -> Result<Option<Output>, GuestError> {
        match self.agent.wait(self.number, Instant::now() + limit) {
            Outcome::Done(output) => Ok(Some(output)),
            Outcome::TimedOut => Ok(None),
            Outcome::Restarted => {
                Err(GuestError::Restarted { node: self.node.clone(), what: self.what.clone() })
            }
            Outcome::Gone => Err(ended_error(&self.node, &self.what, &self.process, &self.logs)),
        }
    }

    /// Returns whether the guest has begun the job. A guest that hangs does not begin it.
    pub fn has_begun(&self) -> bool {
        self.agent.has_begun(self.number)
    }

    /// Kills the job's process group. Processes that made a group of their own survive. The job
    /// ends with status 137 soon after.
    ///
    /// # Errors
    /// [`GuestError::Io`] when the guest accepts no requests.
    pub fn kill(&self) -> Result<(), GuestError> {
        self.agent.kill(self.number).context(|| format!("{}: kill {}", self.node, self.what))
    }

    /// Returns the job's output so far.
    pub fn output_so_far(&self) -> Output {
        self.agent.output_so_far(self.number)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.agent.forget(self.number);
    }
}
