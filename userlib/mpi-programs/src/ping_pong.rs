//! Latency: one message there and back, after `osu_latency`.

use std::time::Duration;

use nicforge_driver::runtime::Instant;
use nicforge_matching::{Envelope, Kind, Rank, Selector};

use crate::{Buffer, Endpoint, Error, ErrorOf, Program, succeeded};

/// One end of a pair. The end that sends first measures the time.
pub struct Side<'a, E: Endpoint> {
    endpoint: &'a mut E,
    /// This end sends the first message of each round. The other end sends it back.
    sends_first: bool,
    peer: Rank,
    /// The matching context of the messages.
    context: u32,
    /// Bytes of a message.
    bytes: usize,
    /// Number of round trips.
    rounds: u32,
    /// Number of rounds whose message has arrived at this end.
    received: u32,
    /// Number of requests that are not complete.
    outstanding: u32,
    /// Buffers for further sends.
    send_buffers: Vec<E::Buffer>,
    /// Time at which the last message was sent.
    sent_at: Instant,
    /// Half of each round trip.
    times: Vec<Duration>,
}

impl<'a, E: Endpoint> Side<'a, E> {
    /// Creates one end of `rounds` round trips with `peer`. Messages have `bytes` bytes and their
    /// own matching context.
    ///
    /// # Errors
    /// Errors of the endpoint.
    pub fn new(
        endpoint: &'a mut E,
        sends_first: bool,
        peer: Rank,
        bytes: usize,
        rounds: u32,
        context: u32,
    ) -> Result<Self, ErrorOf<E>> {
        let send_buffers = vec![endpoint.buffer(bytes)?, endpoint.buffer(bytes)?];
        let mut side = Self {
            endpoint,
            sends_first,
            peer,
            context,
            bytes,
            rounds,
            received: 0,
            outstanding: 0,
            send_buffers,
            sent_at: Instant::now(),
            times: Vec::with_capacity(if sends_first { rounds as usize } else { 0 }),
        };

        if rounds > 0 {
            let buffer = side.endpoint.buffer(bytes)?;
            side.receive(buffer)?;
            if sends_first {
                side.send()?;
            }
        }
        Ok(side)
    }

    /// Posts the receive of the peer's next message.
    fn receive(&mut self, buffer: E::Buffer) -> Result<(), ErrorOf<E>> {
        self.endpoint.irecv(Selector::exact(self.peer, self.context, 0), buffer, 0)?;
        self.outstanding += 1;
        Ok(())
    }

    /// Sends a message whose first byte has the round's number.
    fn send(&mut self) -> Result<(), ErrorOf<E>> {
        let mut data = match self.send_buffers.pop() {
            Some(data) => data,
            None => self.endpoint.buffer(self.bytes)?,
        };
        if self.bytes > 0 {
            data.write(0, &[self.received as u8]);
        }

        self.sent_at = Instant::now();
        self.endpoint.isend(Envelope::new(self.peer, self.context, 0), data, 0)?;
        self.outstanding += 1;
        Ok(())
    }

    /// Returns half of the time of each round trip, for the end that sends first.
    pub fn times(&self) -> &[Duration] {
        &self.times
    }
}

impl<E: Endpoint> Program for Side<'_, E> {
    type Endpoint = E;

    fn step(&mut self) -> Result<usize, ErrorOf<E>> {
        let mut steps = self.endpoint.progress()?;

        while let Some(done) = self.endpoint.next_completion() {
            steps += 1;
            self.outstanding -= 1;

            let done = succeeded(done)?;
            let data = done.buffer;
            if done.kind == Kind::Send {
                self.send_buffers.push(data);
                continue;
            }

            if self.sends_first {
                self.times.push(self.sent_at.elapsed() / 2);
            }

            // Both ends stamp their messages with the number of the round.
            let expected = self.received as u8;
            let mut found = [0];
            if self.bytes > 0 && !(data.read(0, &mut found) && found == [expected]) {
                let found = found[0].into();
                return Err(Error::Wrong { what: "an echo", found, expected: expected.into() });
            }

            if !self.sends_first {
                self.send()?;
            }

            self.received += 1;
            if self.received < self.rounds {
                self.receive(data)?;
                if self.sends_first {
                    self.send()?;
                }
            }
        }
        Ok(steps)
    }

    fn is_done(&self) -> bool {
        self.received == self.rounds && self.outstanding == 0
    }

    fn endpoint(&mut self) -> &mut E {
        self.endpoint
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use nicforge_driver::{Deadline, Relax};
    use nicforge_matching::{
        Config, Endpoint,
        memory::{Fabric, FabricConfig},
    };

    use super::*;
    use crate::drive;

    #[test]
    fn every_round_is_timed() {
        for bytes in [0, 1, 5000] {
            let (_fabric, ports) = Fabric::new(2, FabricConfig::default());
            let mut endpoints: Vec<_> =
                ports.into_iter().map(|port| Endpoint::new(port, Config::default()).unwrap()).collect();

            let mut sides: Vec<_> = (0..)
                .zip(&mut endpoints)
                .map(|(rank, endpoint)| Side::new(endpoint, rank == 0, 1 - rank, bytes, 100, 3).unwrap())
                .collect();

            drive(&mut sides, Deadline::after(Duration::from_secs(120)), &mut Relax::new()).unwrap();

            assert_eq!((sides[0].times().len(), sides[1].times().len()), (100, 0));
        }
    }
}
