//! Configuration of a port.

use std::time::Duration;

/// How a call waits for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Waiting {
    /// The call polls the receive ring, with growing pauses.
    #[default]
    Polling,
    /// The call polls for [`Config::poll_phase`], then sleeps until the card's interrupt.
    Interrupt,
}

/// Configuration of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Slots of the receive ring: a power of two, 64 to 65,536. `None` selects a size that suits
    /// the network, 512 at least.
    pub slots: Option<u32>,
    /// Whether connections have credits. On by default; both ends of a connection must agree.
    pub flow_control: bool,
    /// Credits that a connection is granted at most: messages in flight or unread. 64 by default; 0
    /// has the same effect as 1.
    pub window: u32,
    /// Capacity for kept messages: messages of other tags and senders that arrive while a call
    /// waits for a certain one. `None` selects the number of slots. With 0, a call receives only
    /// the next message in the ring.
    pub kept: Option<u32>,
    /// How calls wait for messages.
    pub waiting: Waiting,
    /// Time that a call polls before it sleeps. 50 us by default.
    pub poll_phase: Duration,
    /// Time that a call sleeps before it polls again without an interrupt. 20 ms by default. A peer
    /// that goes away raises no interrupt.
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
