//! Message rate and bandwidth of pairs, after `osu_mbw_mr` of the OSU micro-benchmarks. The paper
//! about EXTOLL measured its Figure 3 with them.
//!
//! A sender starts a window of messages. It starts the next window when all messages are complete
//! and its receiver has answered. The receiver posts the receives of the next window before it
//! answers.

use nicforge_matching::{Envelope, Rank, Selector};

use crate::{Buffer, Completion, Endpoint, Error, ErrorOf, Program};

/// Tag of messages.
const MESSAGE_TAG: u64 = 1;
/// Tag of the answers to windows.
const ANSWER_TAG: u64 = 2;
/// Cookie of the requests that send or receive answers. Those for messages have the message's
/// number in its window.
const ANSWER_COOKIE: u64 = u64::MAX;
/// Bytes of an answer.
const ANSWER_BYTES: usize = 4;

/// Parameters of a run, the same at both ends of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Length of a message in bytes.
    pub bytes: usize,
    /// Number of messages of a window; 64 is usual.
    pub window: u32,
    /// Number of windows.
    pub windows: u32,
    /// The matching context; each run needs its own.
    pub context: u32,
}

impl Parameters {
    /// Returns the number of messages of a pair.
    pub fn messages(&self) -> u64 {
        u64::from(self.window) * u64::from(self.windows)
    }
}

/// An end of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end that sends messages.
    Sender,
    /// The end that receives messages, and answers each window.
    Receiver,
}

/// State of one end of a pair.
pub struct Side<'a, E: Endpoint> {
    endpoint: &'a mut E,
    end: End,
    peer: Rank,
    parameters: Parameters,
    /// Number of windows that were started.
    started_windows: u32,
    /// Number of outstanding requests for messages.
    outstanding_messages: u32,
    /// Number of outstanding requests for answers.
    outstanding_answers: u32,
    /// Number of completed messages.
    completed: u64,
    /// Buffers of messages that no request uses.
    free: Vec<E::Buffer>,
    /// The buffer for answers, unless a request uses it.
    answer_buffer: Option<E::Buffer>,
}

impl<'a, E: Endpoint> Side<'a, E> {
    /// Creates one end of the pair with `peer`. A receiver posts its first window at once.
    ///
    /// # Errors
    /// [`Error::BadParameter`]; errors of the endpoint.
    pub fn new(
        endpoint: &'a mut E,
        end: End,
        peer: Rank,
        parameters: Parameters,
    ) -> Result<Self, ErrorOf<E>> {
        if parameters.window == 0 {
            return Err(Error::BadParameter { what: "the window", value: 0, rule: "at least 1" });
        }

        // A receiver posts a window while the messages of the previous one complete.
        let buffers = 0..2 * parameters.window;
        let free = buffers.map(|_| zeroed(endpoint, parameters.bytes)).collect::<Result<_, _>>()?;
        let answer_buffer = Some(zeroed(endpoint, ANSWER_BYTES)?);

        let mut side = Self {
            endpoint,
            end,
            peer,
            parameters,
            started_windows: 0,
            outstanding_messages: 0,
            outstanding_answers: 0,
            completed: 0,
            free,
            answer_buffer,
        };

        if end == End::Receiver && parameters.windows > 0 {
            side.start_window()?;
        }
        Ok(side)
    }

    /// Starts the requests of a window: a sender's sends and the receive of the answer, or a
    /// receiver's receives.
    fn start_window(&mut self) -> Result<(), ErrorOf<E>> {
        self.started_windows += 1;

        let parameters = self.parameters;
        for number in 0..u64::from(parameters.window) {
            let mut data = match self.free.pop() {
                Some(data) => data,
                None => zeroed(self.endpoint, parameters.bytes)?,
            };
            if self.end == End::Sender {
                stamp(&mut data, parameters.bytes, number);
                let to = Envelope::new(self.peer, parameters.context, MESSAGE_TAG);
                self.endpoint.isend(to, data, number)?;
            } else {
                self.endpoint.irecv(
                    Selector::exact(self.peer, parameters.context, MESSAGE_TAG),
                    data,
                    number,
                )?;
            }
            self.outstanding_messages += 1;
        }

        if self.end == End::Sender {
            let answer = self.take_answer_buffer()?;
            self.endpoint.irecv(
                Selector::exact(self.peer, parameters.context, ANSWER_TAG),
                answer,
                ANSWER_COOKIE,
            )?;
            self.outstanding_answers += 1;
        }
        Ok(())
    }

    /// Takes the buffer for answers. While a request still uses it, allocates another one.
    fn take_answer_buffer(&mut self) -> Result<E::Buffer, ErrorOf<E>> {
        match self.answer_buffer.take() {
            Some(answer) => Ok(answer),
            None => zeroed(self.endpoint, ANSWER_BYTES),
        }
    }

    /// Handles a receiver's complete window: posts the receives of the next one, and answers the
    /// sender.
    fn answer_window(&mut self) -> Result<(), ErrorOf<E>> {
        if self.started_windows < self.parameters.windows {
            self.start_window()?;
        }

        let answer = self.take_answer_buffer()?;
        let to = Envelope::new(self.peer, self.parameters.context, ANSWER_TAG);
        self.endpoint.isend(to, answer, ANSWER_COOKIE)?;
        self.outstanding_answers += 1;
        Ok(())
    }

    /// Handles the completion of a request. A receiver checks the data.
    fn complete(&mut self, cookie: u64, data: E::Buffer) -> Result<(), ErrorOf<E>> {
        if cookie == ANSWER_COOKIE {
            self.outstanding_answers -= 1;
            self.answer_buffer = Some(data);
            return Ok(());
        }

        if self.end == End::Receiver {
            check_stamp(&data, self.parameters.bytes, cookie)?;
        }

        self.free.push(data);
        self.outstanding_messages -= 1;
        self.completed += 1;
        Ok(())
    }

    /// Returns the number of completed messages.
    pub fn completed(&self) -> u64 {
        self.completed
    }
}

/// Makes a buffer of zeros.
fn zeroed<E: Endpoint>(endpoint: &mut E, bytes: usize) -> Result<E::Buffer, ErrorOf<E>> {
    let mut buffer = endpoint.buffer(bytes)?;
    buffer.write(0, &vec![0; bytes]);
    Ok(buffer)
}

/// Writes the lowest byte of a message's number to the first of its `bytes` bytes, and the
/// complement to the last one, as far as it has them.
#[inline]
fn stamp(data: &mut impl Buffer, bytes: usize, number: u64) {
    if bytes > 0 {
        data.write(0, &[number as u8]);
    }
    if bytes > 1 {
        data.write(bytes - 1, &[!number as u8]);
    }
}

/// Checks the bytes that [`stamp`] has written.
#[inline]
fn check_stamp<E>(data: &impl Buffer, bytes: usize, number: u64) -> Result<(), Error<E>> {
    let check = |offset, expected: u8| {
        let mut found = [0];
        if data.read(offset, &mut found) && found == [expected] {
            return Ok(());
        }
        Err(Error::Wrong { what: "a message", found: found[0].into(), expected: expected.into() })
    };

    if bytes > 0 {
        check(0, number as u8)?;
    }
    if bytes > 1 {
        check(bytes - 1, !number as u8)?;
    }
    Ok(())
}

impl<E: Endpoint> Program for Side<'_, E> {
    type Endpoint = E;

    fn step(&mut self) -> Result<usize, ErrorOf<E>> {
        if self.end == End::Sender
            && self.outstanding_messages == 0
            && self.outstanding_answers == 0
            && self.started_windows < self.parameters.windows
        {
            self.start_window()?;
        }

        let mut steps = self.endpoint.progress()?;
        while let Some(done) = self.endpoint.next_completion() {
            steps += 1;
            let Completion { cookie, result, buffer, .. } = done;
            result?;
            self.complete(cookie, buffer)?;

            // A receiver starts no window before the previous one is complete.
            if self.end == End::Receiver && cookie != ANSWER_COOKIE && self.outstanding_messages == 0 {
                self.answer_window()?;
            }
        }
        Ok(steps)
    }

    fn is_done(&self) -> bool {
        self.completed == self.parameters.messages() && self.outstanding_answers == 0
    }

    fn endpoint(&mut self) -> &mut E {
        self.endpoint
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::{convert::Infallible, time::Duration};

    use nicforge_driver::{Deadline, Relax};
    use nicforge_matching::{
        Config, Endpoint,
        memory::{self, Fabric},
    };

    use super::*;
    use crate::drive;

    #[test]
    fn all_messages_of_all_pairs_arrive() {
        for bytes in [0, 1, 8, 2048, 4096] {
            let (_fabric, ports) =
                Fabric::new(4, memory::FabricConfig { seed: 1, ..memory::FabricConfig::default() });
            let mut endpoints: Vec<_> =
                ports.into_iter().map(|port| Endpoint::new(port, Config::default()).unwrap()).collect();

            let parameters = Parameters { bytes, window: 16, windows: 5, context: 1 };
            let side = |(rank, endpoint)| match rank {
                0 | 1 => Side::new(endpoint, End::Sender, rank + 2, parameters).unwrap(),
                _ => Side::new(endpoint, End::Receiver, rank - 2, parameters).unwrap(),
            };
            let mut sides: Vec<_> = (0..).zip(&mut endpoints).map(side).collect();

            drive(&mut sides, Deadline::after(Duration::from_secs(120)), &mut Relax::new()).unwrap();

            assert!(sides.iter().all(|side| side.completed() == 80), "{bytes} bytes");

            drop(sides);
            assert!(endpoints.iter().all(|endpoint| endpoint.outstanding() == 0));
        }
    }

    #[test]
    fn corrupted_messages_are_detected() {
        let mut data = vec![0; 4];
        let is_right = |data: &Vec<u8>, bytes, number| check_stamp::<Infallible>(data, bytes, number).is_ok();
        stamp(&mut data, 4, 7);
        assert!(is_right(&data, 4, 7) && is_right(&data, 1, 7) && is_right(&data, 0, 7));

        assert!(!is_right(&data, 4, 8));

        data[3] ^= 1;
        assert!(!is_right(&data, 4, 7));
    }
}
