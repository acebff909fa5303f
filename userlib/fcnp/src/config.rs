//! The options of an endpoint.

use std::time::Duration;

/// The way in which the I/O node's daemon thread waits for requests (FCNP paper, section IV-A).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// The thread polls the receive FIFO all the time.
    #[default]
    Polling,
    /// The thread polls for [`Config::poll_phase`], then sleeps until an irq-marked packet arrives.
    Interrupt,
}

/// The threads of the I/O node that poll the receive FIFO while a call waits for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Poller {
    /// Each waiting call polls the FIFO in its own thread, so that a request is handled without a
    /// wake-up of that thread by the daemon.
    #[default]
    Calls,
    /// Only the daemon polls for requests, and calls sleep until the daemon has taken their
    /// request, as in section IV of the paper. An application whose threads have other work thus
    /// has one thread that polls.
    ///
    /// A call that transfers polls the FIFO itself when it must wait. The daemon pauses while a
    /// call receives data.
    Daemon,
}

/// The options of an endpoint. [`Config::default`] has the paper's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The way in which the daemon thread waits. Compute cores always poll.
    pub mode: Mode,
    /// The threads of the I/O node that poll while calls wait.
    pub poller: Poller,
    /// How long the daemon, or a call that waits on the I/O node, polls the receive FIFO before it
    /// sleeps. The default is 50 us.
    pub poll_phase: Duration,
    /// How long a call without a deadline of its own may take. The default is `None`, which is
    /// without limit.
    pub timeout: Option<Duration>,
    /// How long opening may take. For a compute core this includes the wait for the I/O node's
    /// process. The default is 10 s.
    pub open_timeout: Duration,
    /// How long a call on a compute core may continue after its time-out or cancellation, while it
    /// withdraws its request from the I/O node. It then returns the time-out or cancellation. The
    /// default is 100 ms.
    pub recovery: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::Polling,
            poller: Poller::Calls,
            poll_phase: Duration::from_micros(50),
            timeout: None,
            open_timeout: Duration::from_secs(10),
            recovery: Duration::from_millis(100),
        }
    }
}
