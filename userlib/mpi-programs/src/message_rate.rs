//! Message rate and bandwidth of pairs, after `osu_mbw_mr` of the OSU micro-benchmarks, which the
//! paper used for Figure 3.
//!
//! A sender starts a window of messages. It starts the next window when all messages are complete
//! and its receiver has answered. The receiver posts the receives of the next window before it
//! answers.

use nicforge_matching::{Envelope, Rank, Selector};

use crate::{Buffer, Completion, Endpoint, Error, ErrorOf, Program};

/// Tags of messages, and of the answers to windows.
const MESSAGE: u64 = 1;
const ANSWER: u64 = 2;
/// Cookie of the requests that send or receive answers. Those for messages have the message's
/// number in its window.
const ANSWER_COOKIE: u64 = u64::MAX;
/// Bytes of an answer.
const ANSWER_BYTES: usize = 4;

/// Parameters of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Length of a message in bytes.
    pub bytes: usize,
    /// Messages of a window; 64 is usual.
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
    terms: Parameters,
    /// Windows started.
    started: u32,
    /// Outstanding requests of messages.
    messages: u32,
    /// Outstanding requests of answers.
    answers: u32,
    /// Completed messages.
    completed: u64,
    /// Buffers that no request uses.
    free: Vec<E::Buffer>,
    /// The buffer for answers, unless a request uses it.
    answer: Option<E::Buffer>,
}

impl<'a, E: Endpoint> Side<'a, E> {
    /// Creates one end of the pair with `peer`. A receiver posts its first window at once.
    ///
    /// # Errors
    /// [`Error::BadParameter`]; errors of the endpoint.
    pub fn new(endpoint: &'a mut E, end: End, peer: Rank, terms: Parameters) -> Result<Self, ErrorOf<E>> {
        if terms.window == 0 {
            return Err(Error::BadParameter { what: "the window", value: 0, rule: "at least 1" });
        }

        // A receiver posts a window while the messages of the previous one complete.
        let buffers = 0..2 * terms.window;
        let free = buffers.map(|_| zeroed(endpoint, terms.bytes)).collect::<Result<_, _>>()?;
        let answer = Some(zeroed(endpoint, ANSWER_BYTES)?);

        let mut side = Self {
            endpoint,
            end,
            peer,
            terms,
            started: 0,
            messages: 0,
            answers: 0,
            completed: 0,
            free,
            answer,
        };

        if end == End::Receiver && terms.windows > 0 {
            side.start()?;
        }
        Ok(side)
    }

    /// Starts the sends of a window and the receive of its answer, or the receives of a window.
    fn start(&mut self) -> Result<(), ErrorOf<E>> {
        self.started += 1;

        let terms = self.terms;
        for number in 0..u64::from(terms.window) {
            let mut data = match self.free.pop() {
                Some(data) => data,
                None => zeroed(self.endpoint, terms.bytes)?,
            };
            if self.end == End::Sender {
                stamp(&mut data, terms.bytes, number);
                let to = Envelope::new(self.peer, terms.context, MESSAGE);
                self.endpoint.isend(to, data, number)?;
            } else {
                self.endpoint.irecv(Selector::exact(self.peer, terms.context, MESSAGE), data, number)?;
            }
            self.messages += 1;
        }

        if self.end == End::Sender {
            let answer = self.take_answer()?;
            self.endpoint.irecv(Selector::exact(self.peer, terms.context, ANSWER), answer, ANSWER_COOKIE)?;
            self.answers += 1;
        }
        Ok(())
    }

    /// Returns the buffer for answers, which is allocated at its first use.
    fn take_answer(&mut self) -> Result<E::Buffer, ErrorOf<E>> {
        match self.answer.take() {
            Some(answer) => Ok(answer),
            None => zeroed(self.endpoint, ANSWER_BYTES),
        }
    }

    /// Handles a receiver's complete window: posts the next one, and answers the sender.
    fn answer(&mut self) -> Result<(), ErrorOf<E>> {
        if self.started < self.terms.windows {
            self.start()?;
        }

        let answer = self.take_answer()?;
        let to = Envelope::new(self.peer, self.terms.context, ANSWER);
        self.endpoint.isend(to, answer, ANSWER_COOKIE)?;
        self.answers += 1;
        Ok(())
    }

    /// Handles the completion of a request.
    fn complete(&mut self, cookie: u64, data: E::Buffer) -> Result<(), ErrorOf<E>> {
        if cookie == ANSWER_COOKIE {
            self.answers -= 1;
            self.answer = Some(data);
            return Ok(());
        }

        if self.end == End::Receiver {
            check_stamp(&data, self.terms.bytes, cookie)?;
        }

        self.free.push(data);
        self.messages -= 1;
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

/// Writes the number of a message of `bytes` bytes to its first and last byte, as far as there is
/// room.
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
            && self.messages == 0
            && self.answers == 0
            && self.started < self.terms.windows
        {
            self.start()?;
        }

        let mut steps = self.endpoint.progress()?;
        while let Some(done) = self.endpoint.next_completion() {
            steps += 1;
            let Completion { cookie, result, buffer, .. } = done;
            result?;
            self.complete(cookie, buffer)?;

            // A receiver starts no window before the previous one is complete.
            if self.end == End::Receiver && cookie != ANSWER_COOKIE && self.messages == 0 {
                self.answer()?;
            }
        }
        Ok(steps)
    }

    fn is_done(&self) -> bool {
        self.completed == self.terms.messages() && self.answers == 0
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
            let (_fabric, ports) = Fabric::new(4, memory::Terms { seed: 1, ..memory::Terms::default() });
            let mut endpoints: Vec<_> =
                ports.into_iter().map(|port| Endpoint::new(port, Config::default()).unwrap()).collect();

            let terms = Parameters { bytes, window: 16, windows: 5, context: 1 };
            let side = |(rank, endpoint)| match rank {
                0 | 1 => Side::new(endpoint, End::Sender, rank + 2, terms).unwrap(),
                _ => Side::new(endpoint, End::Receiver, rank - 2, terms).unwrap(),
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
