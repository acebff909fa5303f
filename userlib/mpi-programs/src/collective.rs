//! Collective operations through rank 0. They block, so each rank needs a thread of its own.

use nicforge_driver::Deadline;
use nicforge_matching::{Endpoint, Envelope, Mode, Request, Selector, Transport};

use crate::{Error, succeeded};

/// The matching context of these messages.
const CONTEXT: u32 = 0xc011;

fn send<T: Transport>(endpoint: &mut Endpoint<T>, to: u32, value: u64) -> Result<Request, Error> {
    let envelope = Envelope::new(to, CONTEXT, 0);
    Ok(endpoint.isend(envelope, Mode::Standard, value.to_le_bytes().to_vec(), 0)?)
}

fn receive<T: Transport>(endpoint: &mut Endpoint<T>, from: u32, deadline: Deadline) -> Result<u64, Error> {
    let request = endpoint.irecv(Selector::exact(from, CONTEXT, 0), vec![0; 8], 0)?;
    let done = succeeded(endpoint.wait(request, deadline, None)?)?;
    Ok(done.buffer.as_slice().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
}

/// Combines every rank's `value` by `join` on rank 0, and returns the result on all ranks. No rank
/// returns before every rank has called it.
///
/// # Errors
/// Errors of the endpoint, including its time-out.
pub fn all_reduce<T: Transport>(
    endpoint: &mut Endpoint<T>,
    value: u64,
    join: impl Fn(u64, u64) -> u64,
    deadline: Deadline,
) -> Result<u64, Error> {
    if endpoint.rank() == 0 {
        let mut result = value;
        for from in 1..endpoint.size() {
            result = join(result, receive(endpoint, from, deadline)?);
        }

        let sends =
            (1..endpoint.size()).map(|to| send(endpoint, to, result)).collect::<Result<Vec<_>, _>>()?;

        for request in sends {
            succeeded(endpoint.wait(request, deadline, None)?)?;
        }

        return Ok(result);
    }

    let request = send(endpoint, 0, value)?;
    succeeded(endpoint.wait(request, deadline, None)?)?;
    receive(endpoint, 0, deadline)
}

/// Waits until every rank has called it.
///
/// # Errors
/// As [`all_reduce`].
pub fn barrier<T: Transport>(endpoint: &mut Endpoint<T>, deadline: Deadline) -> Result<(), Error> {
    all_reduce(endpoint, 0, |_, _| 0, deadline).map(drop)
}
