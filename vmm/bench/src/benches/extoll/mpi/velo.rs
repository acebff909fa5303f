//! Measures VELO without the layers above it, driven by one thread. The difference to the ranks is
//! the cost of matching.

use std::time::Instant;

use nicforge::{
    failure::{ErrorContext, Failure},
    serve::Served,
};
use nicforge_driver::Deadline;
use nicforge_velo::{Address, Config, Error, PeerLink, Port};

use super::{
    Effort, Measurement, WINDOW,
    ranks::{STEP_TIMEOUT, open_device},
};
use crate::machine::never_sleeping_wait;

/// Bytes of a message.
pub(super) const BYTES: usize = 8;
/// The first VPID. The VPIDs before it belong to ranks.
const FIRST_VPID: u16 = 12;
/// Slots of a receiver, as many as a rank has.
const SLOTS: u32 = 4096;

/// A sender and its receiver.
struct Pair {
    sender: Port,
    receiver: Port,
    link: PeerLink,
}

/// Numbers of messages of a pair in one measurement.
#[derive(Clone, Copy, Default)]
struct Counts {
    sent: u64,
    received: u64,
}

/// The pairs of VELO alone.
pub(super) struct BarePairs(Vec<Pair>);

impl BarePairs {
    /// Opens the pairs, and connects each sender to its receiver.
    pub(super) fn open(server: &Served, pairs: u16) -> Result<Self, Failure> {
        let port = |node, vpid| -> Result<Port, Failure> {
            let address = Address { node, vpid };
            let config = Config { slots: Some(SLOTS), window: WINDOW, ..Config::default() };
            Port::open(open_device(server, address)?, config).context(|| address.to_string())
        };

        let pair = |number| {
            let (mut sender, receiver) = (port(0, FIRST_VPID + number)?, port(1, FIRST_VPID + number)?);
            let link = sender.connect(receiver.address(), Deadline::after(STEP_TIMEOUT), None);
            Ok(Pair { sender, receiver, link: link.context(|| "connecting".into())? })
        };

        (0..pairs).map(pair).collect::<Result<_, _>>().map(Self)
    }

    /// Measures the rate of messages. Each pair sends as many as a pair of ranks does.
    pub(super) fn measure_rate(&mut self, effort: &Effort) -> Result<Measurement, Failure> {
        let per_pair = u64::from(effort.windows) * u64::from(WINDOW);
        let mut counts = vec![Counts::default(); self.0.len()];
        let (start, deadline) = (Instant::now(), Deadline::after(STEP_TIMEOUT));
        let mut idle = never_sleeping_wait();

        while counts.iter().any(|counts| counts.received < per_pair) {
            let mut received_any = false;
            for (pair, counts) in self.0.iter_mut().zip(&mut counts) {
                pair.send(&mut counts.sent, per_pair)?;
                received_any |= pair.receive(&mut counts.received)?;
                pair.sender.progress().context(|| "a sender".into())?;
            }

            if !received_any {
                idle.pause();
                if deadline.has_passed() {
                    return Err(Failure::result("messages do not arrive"));
                }
            }
        }

        let messages = per_pair * self.0.len() as u64;
        Ok(Measurement::of_rate(messages as f64 / start.elapsed().as_secs_f64()))
    }
}

impl Pair {
    /// Sends messages until `maximum` are sent or no credit is left, and counts them in `sent`.
    #[inline]
    fn send(&mut self, sent: &mut u64, maximum: u64) -> Result<(), Failure> {
        while *sent < maximum {
            match self.sender.send_nb(self.link, 0, &sent.to_le_bytes()) {
                Ok(()) => *sent += 1,
                Err(Error::WouldBlock) => break,
                Err(error) => return Err(Failure::result(format!("a sender: {error}"))),
            }
        }
        Ok(())
    }

    /// Receives the messages that have arrived, and counts them in `received`. Returns whether
    /// there were any.
    #[inline]
    fn receive(&mut self, received: &mut u64) -> Result<bool, Failure> {
        let before = *received;
        while let Some(message) = self.receiver.poll().context(|| "a receiver".into())? {
            if message.quadword(0) != *received {
                return Err(Failure::result(format!("message {} arrived out of order", *received)));
            }
            *received += 1;
        }
        Ok(*received > before)
    }
}
