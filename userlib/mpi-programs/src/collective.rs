//! Collective operations through rank 0. They block, so each rank needs a thread of its own.

use nicforge_driver::Deadline;
use nicforge_matching::{Envelope, Selector};

use crate::{Buffer, Endpoint, ErrorOf, succeeded};

/// The matching context of these messages, the last one of 14 bits.
const CONTEXT: u32 = 0x3fff;

fn send<E: Endpoint>(endpoint: &mut E, to: u32, value: u64) -> Result<E::Request, ErrorOf<E>> {
    let mut buffer = endpoint.buffer(size_of::<u64>())?;
    buffer.write(0, &value.to_le_bytes());
    Ok(endpoint.isend(Envelope::new(to, CONTEXT, 0), buffer, 0)?)
}

fn receive<E: Endpoint>(endpoint: &mut E, from: u32, deadline: Deadline) -> Result<u64, ErrorOf<E>> {
    let buffer = endpoint.buffer(size_of::<u64>())?;
    let request = endpoint.irecv(Selector::exact(from, CONTEXT, 0), buffer, 0)?;
    let done = succeeded(endpoint.wait(request, deadline)?)?;

    let mut value = [0; size_of::<u64>()];
    done.buffer.read(0, &mut value);
    Ok(u64::from_le_bytes(value))
}

/// Combines every rank's `value` by `join` on rank 0, and returns the result on all ranks. No rank
/// returns before every rank has called it.
///
/// # Errors
/// Errors of the endpoint, including its time-out.
pub fn all_reduce<E: Endpoint>(
    endpoint: &mut E,
    value: u64,
    join: impl Fn(u64, u64) -> u64,
    deadline: Deadline,
) -> Result<u64, ErrorOf<E>> {
    if endpoint.rank() == 0 {
        let mut result = value;
        for from in 1..endpoint.size() {
            result = join(result, receive(endpoint, from, deadline)?);
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

/// Waits until every rank has called it.
///
/// # Errors
/// As [`all_reduce`].
pub fn barrier<E: Endpoint>(endpoint: &mut E, deadline: Deadline) -> Result<(), ErrorOf<E>> {
    all_reduce(endpoint, 0, |_, _| 0, deadline).map(drop)
}
