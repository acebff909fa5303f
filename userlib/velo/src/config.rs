//! How a port behaves.

use std::time::Duration;

/// How a call waits for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Waiting {
    /// It looks at the receive ring all the time, less and less often.
    #[default]
    Polling,
    /// It looks for [`Config::poll_phase`], then sleeps until the card's interrupt.
    Interrupt,
}

/// How a port behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Slots of the receive ring, a power of two, 64 to 65,536. `None`: what suits the network, 512 at least.
    pub slots: Option<u32>,
    /// Whether connections have credits of their own. On; both ends of a connection must agree.
    pub flow_control: bool,
    /// Messages that a connection may have on its way and unread, at most. 64.
    pub window: u32,
    /// Messages of other tags and senders that are kept while a call waits for a certain one. `None`: as many as there are slots.
    pub kept: Option<u32>,
    /// How calls wait for messages.
    pub waiting: Waiting,
    /// How long a call polls before it sleeps. 50 us.
    pub poll_phase: Duration,
    /// How long a call sleeps before it looks again without having been woken: who goes away raises no interrupt at those that wait for it. 20 ms.
    pub sleep: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            slots: None,
            flow_control: true,
            window: 64,
            kept: None,
            waiting: Waiting::Polling,
            poll_phase: Duration::from_micros(50),
            sleep: Duration::from_millis(20),
        }
    }
}
