//! Pairs of ports, with both ends in one thread.

use std::time::{Duration, Instant};

use nicforge::{
    failure::{ErrorContext, Failure},
    serve::Served,
};
use nicforge_driver::{Deadline, OpenOptions, Relax};
use nicforge_velo::{Address, Config, Error, PeerLink, Port};

use super::{super::cards::vpid_at, BYTES, Effort, Measurement};
use crate::{
    contest::samples_within,
    machine::{never_sleeping_wait, open},
    samples::Samples,
};

/// Number of sends in a timed batch.
pub(super) const BATCH: u32 = 32;
/// Number of messages that are sent, and then polled for, at a time.
const BURST: u32 = 64;
/// Number of rounds of all pairs between two readings of the clock.
const ROUNDS_PER_CHECK: u32 = 64;
/// The greatest number of messages of a pair in flight.
const WINDOW: u32 = 256;
/// Number of slots in a receiver's ring.
const SLOTS: u32 = 2048;
/// The longest wait for a message.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// A sender and its receiver.
pub(super) struct Pair {
    sender: Port,
    receiver: Port,
    link: PeerLink,
    sent: u64,
    received: u64,
}

/// Returns the configuration of the benchmark's ports.
pub(super) fn config() -> Config {
    Config { slots: Some(SLOTS), window: WINDOW, ..Config::default() }
}

/// Connects a sender to a receiver, and waits until the receiver has granted credits.
pub(super) fn connect(sender: &mut Port, receiver: &mut Port) -> Result<PeerLink, Failure> {
    let address = receiver.address();
    let link = sender
        .connect(address, Deadline::after(STEP_TIMEOUT), None)
        .context(|| format!("connecting {address}"))?;
    let (deadline, mut relax) = (Deadline::after(STEP_TIMEOUT), Relax::new());

    while sender.credits(link) == Some(0) {
        receiver.progress().context(|| "a receiver".into())?;
        sender.progress().context(|| "a sender".into())?;
        sender.device().relax(&mut relax).context(|| "the machine".into())?;
        if deadline.has_passed() {
            return Err(Failure::result(format!("{address} grants no credits")));
        }
    }

    Ok(link)
}

impl Pair {
    /// Connects a sender to its receiver.
    pub(super) fn new(mut sender: Port, mut receiver: Port) -> Result<Self, Failure> {
        let link = connect(&mut sender, &mut receiver)?;
        Ok(Self { sender, receiver, link, sent: 0, received: 0 })
    }

    /// Sends up to `maximum` messages. Returns the number of messages sent.
    #[inline]
    pub(super) fn send(&mut self, maximum: u32) -> Result<u32, Failure> {
        let mut sent = 0;
        while sent < maximum {
            let data: [u8; BYTES] = self.sent.to_le_bytes();
            match self.sender.send_nb(self.link, 0, &data) {
                Ok(()) => {}
                Err(Error::WouldBlock) => break,
                Err(error) => return Err(Failure::result(format!("a sender: {error}"))),
            }
            self.sent += 1;
            sent += 1;
        }

        Ok(sent)
    }

    /// Receives up to `maximum` messages, and checks their contents. Returns the number of messages
    /// received.
    #[inline]
    pub(super) fn receive(&mut self, maximum: u32) -> Result<u32, Failure> {
        let mut received = 0;
        while received < maximum {
            // The error is handled apart. Passing the whole result on would copy each message.
            let message = match self.receiver.poll() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => return Err(error).context(|| "a receiver".into()),
            };

            if message.quadword(0) != self.received {
                let (found, expected) = (message.quadword(0), self.received);
                return Err(Failure::result(format!("message {found} came instead of {expected}")));
            }

            self.received += 1;
            received += 1;
        }

        Ok(received)
    }

    /// Takes returned credits.
    #[inline]
    pub(super) fn progress(&mut self) -> Result<(), Failure> {
        self.sender.progress().context(|| "a sender".into())
    }

    /// Receives all messages in flight.
    fn drain(&mut self) -> Result<(), Failure> {
        let (deadline, mut idle) = (Deadline::after(STEP_TIMEOUT), never_sleeping_wait());
        while self.received < self.sent {
            if self.receive(BURST)? == 0 {
                if deadline.has_passed() {
                    return Err(Failure::result(format!(
                        "{} of {} messages arrived",
                        self.received, self.sent
                    )));
                }
                self.sender.device().relax(&mut idle).context(|| "the machine".into())?;
            }
        }

        self.progress()
    }
}

/// The pairs of a served machine: sender `n` on the first card, and receiver `n` on the second.
pub(super) struct Pairs(Vec<Pair>);

impl Pairs {
    /// Opens the ports of `count` pairs, and connects them.
    pub(super) fn open(server: &Served, count: usize) -> Result<Self, Failure> {
        let port = |address: Address| -> Result<Port, Failure> {
            let device = open(&vpid_at(server, address)?, OpenOptions::default(), STEP_TIMEOUT)?;
            Port::open(device, config()).context(|| address.to_string())
        };

        let pairs = (0..count as u16)
            .map(|vpid| Pair::new(port(Address { node: 0, vpid })?, port(Address { node: 1, vpid })?));
        pairs.collect::<Result<_, _>>().map(Self)
    }

    /// Measures the message rate of the first `count` pairs, in turns.
    pub(super) fn measure_rate(&mut self, count: usize, effort: &Effort) -> Result<Measurement, Failure> {
        let pairs = &mut self.0[..count];
        let before: u64 = pairs.iter().map(|pair| pair.received).sum();
        let start = Instant::now();
        let mut idle = never_sleeping_wait();

        loop {
            let mut messages = 0;
            for _ in 0..ROUNDS_PER_CHECK {
                for pair in pairs.iter_mut() {
                    messages += pair.send(BURST)?;
                    messages += pair.receive(BURST)?;
                    pair.progress()?;
                }
            }

            if messages == 0 {
                idle.pause();
            }
            if start.elapsed() >= effort.sustained {
                break;
            }
        }

        let received = pairs.iter().map(|pair| pair.received).sum::<u64>() - before;
        let rate = received as f64 / start.elapsed().as_secs_f64();
        for pair in pairs {
            pair.drain()?;
        }

        Ok(Measurement::of_rate(rate))
    }

    /// Measures the mean time of a send in a batch. The ring has room for the whole batch.
    pub(super) fn measure_send(&mut self, effort: &Effort) -> Result<Measurement, Failure> {
        let pair = &mut self.0[0];
        let mut samples = Samples::with_capacity(effort.batches as usize);
        for _ in 0..effort.batches {
            let start = Instant::now();
            let sent = pair.send(BATCH)?;
            samples.add_mean(start.elapsed(), sent);
            pair.drain()?;
        }

        Ok(Measurement::of_samples(samples))
    }

    /// Measures the time from the send of a message until its receiver has it.
    pub(super) fn measure_latency(&mut self, effort: &Effort) -> Result<Measurement, Failure> {
        let pair = &mut self.0[0];
        let measurement = samples_within(effort.latency_messages, effort.sustained, || {
            let start = Instant::now();
            while pair.send(1)? == 0 {
                pair.progress()?;
            }

            while pair.receive(1)? == 0 {
                std::hint::spin_loop();
                if start.elapsed() > STEP_TIMEOUT {
                    return Err(Failure::result("a message does not arrive"));
                }
            }

            Ok(start.elapsed())
        })?;

        pair.drain()?;
        Ok(measurement)
    }
}
