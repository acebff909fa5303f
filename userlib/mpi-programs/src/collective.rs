//! Collective operations through rank 0. They block, so each rank needs a thread of its own.

use std::collections::VecDeque;

use nicforge_driver::Deadline;
use nicforge_matching::{Envelope, Selector};

use crate::{Buffer, Endpoint, ErrorOf, succeeded};

/// The matching context of these messages: the highest one, because contexts have 14 bits. No
/// message of a program may have it.
pub const CONTEXT: u32 = 0x3fff;

/// Starts a send of `value` to rank `to`.
fn send<E: Endpoint>(endpoint: &mut E, to: u32, value: u64) -> Result<E::Request, ErrorOf<E>> {
    let mut buffer = endpoint.buffer(size_of::<u64>())?;
    buffer.write(0, &value.to_le_bytes());
    Ok(endpoint.isend(Envelope::new(to, CONTEXT, 0), buffer, 0)?)
}

/// Posts a receive of a value from rank `from`.
fn post_receive<E: Endpoint>(endpoint: &mut E, from: u32) -> Result<E::Request, ErrorOf<E>> {
    let buffer = endpoint.buffer(size_of::<u64>())?;
    Ok(endpoint.irecv(Selector::exact(from, CONTEXT, 0), buffer, 0)?)
}

/// Waits for a value from rank `from`.
fn receive<E: Endpoint>(endpoint: &mut E, from: u32, deadline: Deadline) -> Result<u64, ErrorOf<E>> {
    let request = post_receive(endpoint, from)?;
    let done = succeeded(endpoint.wait(request, deadline)?)?;

    let mut value = [0; size_of::<u64>()];
    done.buffer.read(0, &mut value);
    Ok(u64::from_le_bytes(value))
}

/// Combines every rank's `value` by `combine` on rank 0, and returns the result on all ranks. No
/// rank returns before every rank has called it.
///
/// # Errors
/// Errors of the endpoint, including its time-out.
pub fn all_reduce<E: Endpoint>(
    endpoint: &mut E,
    value: u64,
    combine: impl Fn(u64, u64) -> u64,
    deadline: Deadline,
) -> Result<u64, ErrorOf<E>> {
    if endpoint.rank() == 0 {
        let mut result = value;
        for from in 1..endpoint.size() {
            result = combine(result, receive(endpoint, from, deadline)?);
        }

        let sends =
            (1..endpoint.size()).map(|to| send(endpoint, to, result)).collect::<Result<Vec<_>, _>>()?;

        for request in sends {
            succeeded(endpoint.wait(request, deadline)?)?;
        }

        return Ok(result);
    }

    let request = send(endpoint, 0, value)?;
    succeeded(endpoint.wait(request, deadline)?)?;
    receive(endpoint, 0, deadline)
}

/// Waits until every rank has called it. A program that goes on after a time-out needs a
/// [`Barrier`].
///
/// # Errors
/// As [`all_reduce`].
pub fn barrier<E: Endpoint>(endpoint: &mut E, deadline: Deadline) -> Result<(), ErrorOf<E>> {
    Barrier::default().wait(endpoint, deadline)
}

/// A barrier that can be waited for in several calls: each rank sends a message to rank 0, which
/// answers all of them when it has the last one.
#[derive(Debug)]
pub struct Barrier<R> {
    stage: Stage<R>,
}

/// The stage of this rank's part of a barrier.
#[derive(Debug)]
enum Stage<R> {
    /// No message of this barrier is sent or expected.
    Idle,
    /// Rank 0 has the messages of the ranks below `from`, and waits for that of `from`.
    Gathering { from: u32, receive: R },
    /// Rank 0 sends its answers.
    Answering { sends: VecDeque<R> },
    /// Another rank sends its message to rank 0.
    Reporting { send: R },
    /// Another rank waits for rank 0's answer.
    Awaiting { receive: R },
}

impl<R> Default for Barrier<R> {
    fn default() -> Self {
        Self { stage: Stage::Idle }
    }
}

impl<R: Copy> Barrier<R> {
    /// Waits until every rank waits, or has waited, for this barrier. After a time-out, the next
    /// call continues the same barrier. After success, it begins the next one.
    ///
    /// # Errors
    /// Errors of the endpoint. After an error other than a time-out or an interruption, every later
    /// call fails too.
    pub fn wait<E>(&mut self, endpoint: &mut E, deadline: Deadline) -> Result<(), ErrorOf<E>>
    where
        E: Endpoint<Request = R>,
    {
        loop {
            self.stage = match &mut self.stage {
                Stage::Idle if endpoint.rank() == 0 => Self::gather_from(endpoint, 1)?,
                Stage::Idle => Stage::Reporting { send: send(endpoint, 0, 0)? },

                Stage::Gathering { from, receive } => {
                    succeeded(endpoint.wait(*receive, deadline)?)?;
                    Self::gather_from(endpoint, *from + 1)?
                }
                Stage::Reporting { send } => {
                    succeeded(endpoint.wait(*send, deadline)?)?;
                    Stage::Awaiting { receive: post_receive(endpoint, 0)? }
                }

                Stage::Answering { sends } => {
                    while let Some(&send) = sends.front() {
                        succeeded(endpoint.wait(send, deadline)?)?;
                        sends.pop_front();
                    }
                    break;
                }
                Stage::Awaiting { receive } => {
                    succeeded(endpoint.wait(*receive, deadline)?)?;
                    break;
                }
            };
        }

        self.stage = Stage::Idle;
        Ok(())
    }

    /// Posts rank 0's receive of the message of rank `from`. Starts its answers when there is no
    /// such rank, because then all messages have come.
    fn gather_from<E>(endpoint: &mut E, from: u32) -> Result<Stage<R>, ErrorOf<E>>
    where
        E: Endpoint<Request = R>,
    {
        if from < endpoint.size() {
            return Ok(Stage::Gathering { from, receive: post_receive(endpoint, from)? });
        }

        let sends = (1..endpoint.size()).map(|to| send(endpoint, to, 0)).collect::<Result<_, _>>()?;
        Ok(Stage::Answering { sends })
    }
}
