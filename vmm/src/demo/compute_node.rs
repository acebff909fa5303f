//! A compute node of the demonstration, with one thread for each core.

use nicforge_driver::{Device, DeviceAddress, environment};
use nicforge_fcnp::{ComputeCore, Config};
use sha2::{Digest, Sha256};

use super::{
    Plan, ROUND_TRIP_BYTES, ROUND_TRIPS,
    report::{Message, View},
};
use crate::failure::{ErrorContext, Failure};

/// Runs the cores of a compute node until their streams end. Returns the exit code.
pub(super) fn main(plan: &Plan) -> Result<u8, Failure> {
    let devices = environment::devices(environment::SOCKET).context(|| "started by hand?".into())?;
    std::thread::scope(|scope| {
        let cores: Vec<_> = devices
            .iter()
            .take(plan.cores as usize)
            .enumerate()
            .map(|(core, address)| scope.spawn(move || run(plan, address, core == 0)))
            .collect();

        // All threads are joined, so that the failure of one does not hide another.
        let results: Vec<_> = cores.into_iter().map(|core| core.join()).collect();
        results.into_iter().try_for_each(|result| {
            result.unwrap_or_else(|_| Err(Failure::environment("a core's thread failed")))
        })
    })?;

    Ok(0)
}

/// Runs one core. It changes its stream and sends it back. With `answers_round_trips` it first
/// answers the messages of the latency measurement.
fn run(plan: &Plan, address: &DeviceAddress, answers_round_trips: bool) -> Result<(), Failure> {
    let device = Device::open_at(address, Default::default()).context(|| address.to_string())?;
    let core = ComputeCore::open(device, Config::default()).context(|| "opening FCNP".into())?;
    let rank = core.rank();

    if answers_round_trips {
        let mut message = [0; ROUND_TRIP_BYTES];
        for _ in 0..ROUND_TRIPS {
            core.read(&mut message).context(|| "a round trip".into())?;
            core.write(&message).context(|| "a round trip".into())?;
        }
    }

    let change = Plan::change(rank);
    let (mut bytes, mut digest) = (0, Sha256::new());
    let mut buffer = vec![0; plan.message];

    loop {
        let length = core.read(&mut buffer).context(|| "reading".into())?;
        // An empty message ends the stream.
        if length == 0 {
            break;
        }

        digest.update(&buffer[..length]);
        bytes += length as u64;
        for byte in &mut buffer[..length] {
            *byte = byte.wrapping_add(change);
        }

        core.write(&buffer[..length]).context(|| "writing".into())?;
    }

    Message::Digest { rank, view: View::Received, bytes, digest: super::hexadecimal(&digest.finalize()) }
        .print();
    Ok(())
}
