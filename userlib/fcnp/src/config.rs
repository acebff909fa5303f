//! How an endpoint behaves.

use std::time::Duration;

/// How the I/O node's daemon thread waits for requests (paper, IV-A).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// It polls the receive FIFO all the time.
    #[default]
    Polling,
    /// It polls for [`Config::poll_phase`], then sleeps until an irq-marked packet arrives.
    Interrupt,
}

/// How an endpoint behaves. [`Config::default`] is what the paper describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How the daemon thread waits. Compute cores always poll.
    pub mode: Mode,
    /// How long the receive FIFO is polled before the daemon, or a call that waits on the I/O node, sleeps. 50 us.
    pub poll_phase: Duration,
    /// How long a call without a deadline of its own may take; `None` is for ever.
    pub timeout: Option<Duration>,
    /// How long opening may take, which for a compute core includes waiting for the I/O node's process. 10 s.
    pub open_timeout: Duration,
    /// How long a call on a compute core that timed out or was cancelled goes on, to withdraw its request. 100 ms.
    pub recovery: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::Polling,
            poll_phase: Duration::from_micros(50),
            timeout: None,
            open_timeout: Duration::from_secs(10),
            recovery: Duration::from_millis(100),
        }
    }
}
