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
    Effort, Turn, WINDOW,
    ranks::{STEP_TIMEOUT, open_device},
};
use crate::machine::awake;

/// Bytes of a message.
pub(super) const BYTES: usize = 8;
/// The first VPID. The VPIDs before it belong to ranks.
const VPID: u16 = 12;

/// A sender and its receiver.
struct Pair {
    sender: Port,
    receiver: Port,
    link: PeerLink,
}

/// The pairs of VELO alone.
pub(super) struct Bare(Vec<Pair>);

impl Bare {
    /// Opens the pairs, and connects each sender to its receiver.
    pub(super) fn open(server: &Served, pairs: u16) -> Result<Self, Failure> {
        let port = |node, vpid| -> Result<Port, Failure> {
            let address = Address { node, vpid };
            // Each receiver has as many slots as a rank.
            let config = Config { slots: Some(4096), window: WINDOW, ..Config::default() };
            Port::open(open_device(server, address)?, config).context(|| address.to_string())
        };

        let pair = |number| {
            let (mut sender, receiver) = (port(0, VPID + number)?, port(1, VPID + number)?);
            let link = sender.connect(receiver.address(), Deadline::after(STEP_TIMEOUT), None);
            Ok(Pair { sender, receiver, link: link.context(|| "connecting".into())? })
        };

        (0..pairs).map(pair).collect::<Result<_, _>>().map(Self)
    }

    /// Measures the rate of messages. Each pair sends as many as a pair of ranks does.
    pub(super) fn measure_rate(&mut self, effort: &Effort) -> Result<Turn, Failure> {
        let each = u64::from(effort.windows) * u64::from(WINDOW);
        let (mut sent, mut received) = (vec![0_u64; self.0.len()], vec![0_u64; self.0.len()]);
        let (start, deadline, mut relax) = (Instant::now(), Deadline::after(STEP_TIMEOUT), awake());

        while received.iter().any(|count| *count < each) {
            let mut moved = false;
            for (pair, (sent, received)) in self.0.iter_mut().zip(sent.iter_mut().zip(&mut received)) {
                while *sent < each {
                    match pair.sender.send_nb(pair.link, 0, &sent.to_le_bytes()) {
                        Ok(()) => *sent += 1,
                        Err(Error::WouldBlock) => break,
                        Err(error) => return Err(Failure::result(format!("a sender: {error}"))),
                    }
                }

                while let Some(message) = pair.receiver.poll().context(|| "a receiver".into())? {
                    if message.quadword(0) != *received {
                        return Err(Failure::result(format!("message {} came wrong", *received)));
                    }
                    *received += 1;
                    moved = true;
                }

                pair.sender.progress().context(|| "a sender".into())?;
            }

            if !moved {
                relax.turn().take();
                if deadline.has_passed() {
                    return Err(Failure::result("messages do not come"));
                }
            }
        }

        let messages = each * self.0.len() as u64;
        Ok(Turn::of_rate(messages as f64 / start.elapsed().as_secs_f64()))
    }
}
