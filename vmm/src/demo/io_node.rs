//! The I/O node of the demonstration. One thread sends, and one receives.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use nicforge_driver::{Cancel, Deadline, Device, environment};
use nicforge_fcnp::{Config, IoNode, Mode};
use sha2::{Digest, Sha256};

use super::{
    Plan, ROUND_TRIP_BYTES, ROUND_TRIPS,
    data::Data,
    report::{Message, View},
};
use crate::failure::{ErrorContext, Failure};

/// The interval between two progress messages to the parent.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Measures the latencies, and streams the data to the compute nodes and back. Returns the exit
/// code.
pub(super) fn main(plan: &Plan, data: &Data) -> Result<u8, Failure> {
    let devices = environment::devices(environment::SOCKET).context(|| "started by hand?".into())?;
    let Some(address) = devices.first() else { return Err(Failure::environment("no device was given")) };
    let device = Device::open_at(address, Default::default()).context(|| address.to_string())?;
    let mode = if plan.interrupts { Mode::Interrupt } else { Mode::Polling };
    let node =
        IoNode::open(device, Config { mode, ..Config::default() }).context(|| "opening FCNP".into())?;

    measure_latency(&node)?;

    let cancel = Cancel::new().context(|| "starting".into())?;
    let start = Instant::now();
    let bytes = std::thread::scope(|scope| {
        // A failure of sending or receiving cancels the other one, which would wait for ever.
        let sender = scope.spawn(|| send(&node, plan, data, &cancel).inspect_err(|_| cancel.cancel()));
        let received = receive(&node, plan, data.bytes(), &cancel).inspect_err(|_| cancel.cancel());
        let sent = sender.join().unwrap_or_else(|_| Err(Failure::environment("the sending thread failed")));
        match (sent, received) {
            (Err(sent), Err(received)) => Err(Failure::environment(format!("{sent}; {received}"))),
            (sent, received) => sent.and(received),
        }
    })?;

    let nanoseconds = start.elapsed().as_nanos() as u64;
    Message::Streamed { bytes, nanoseconds }.print();

    Ok(0)
}

/// Measures round trips of small messages with each node's first core, before the network has other
/// traffic.
fn measure_latency(node: &IoNode) -> Result<(), Failure> {
    for compute_node in 0..super::COMPUTE_NODES {
        let rank = compute_node * super::CORES_PER_NODE;
        let mut times = Vec::with_capacity(ROUND_TRIPS as usize);
        let mut message = [0; ROUND_TRIP_BYTES];

        for _ in 0..ROUND_TRIPS {
            let start = Instant::now();
            node.write(rank, &message).context(|| format!("to core {rank}"))?;
            node.read(rank, &mut message).context(|| format!("from core {rank}"))?;
            times.push(start.elapsed());
        }

        times.sort();
        let half_round_trip_ns = times[times.len() / 2].as_nanos() as u64 / 2;
        Message::Latency { rank, half_round_trip_ns }.print();
    }

    Ok(())
}

/// Sends each message to the next core in turn. An empty message ends a core's stream.
fn send(node: &IoNode, plan: &Plan, data: &Data, cancel: &Cancel) -> Result<(), Failure> {
    let ranks = plan.ranks();
    let mut digests = Digests::new(&ranks);
    let mut reader = data.reader();
    let mut buffer = vec![0; plan.message];

    for &rank in ranks.iter().cycle() {
        let length = reader.fill(&mut buffer)?;
        if length == 0 {
            break;
        }
        digests.add(rank, &buffer[..length]);
        node.write_until(rank, &buffer[..length], Deadline::never(), Some(cancel))
            .context(|| format!("to core {rank}"))?;
    }

    for &rank in &ranks {
        node.write_until(rank, &[], Deadline::never(), Some(cancel))
            .context(|| format!("ending core {rank}'s stream"))?;
    }

    digests.print(View::Sent);
    Ok(())
}

/// Receives the changed data in the order in which it was sent, and undoes the change. Returns the
/// number of bytes.
fn receive(node: &IoNode, plan: &Plan, total: u64, cancel: &Cancel) -> Result<u64, Failure> {
    let ranks = plan.ranks();
    let mut digests = Digests::new(&ranks);
    let mut buffer = vec![0; plan.message];
    let mut bytes = 0;
    let mut last_progress = Instant::now();

    for &rank in ranks.iter().cycle() {
        if bytes >= total {
            break;
        }

        let length = node
            .read_until(rank, &mut buffer, Deadline::never(), Some(cancel))
            .context(|| format!("from core {rank}"))?;
        let change = Plan::change(rank);
        for byte in &mut buffer[..length] {
            *byte = byte.wrapping_sub(change);
        }

        digests.add(rank, &buffer[..length]);
        bytes += length as u64;
        if last_progress.elapsed() >= PROGRESS_INTERVAL {
            last_progress = Instant::now();
            Message::Progress { bytes }.print();
        }
    }

    digests.print(View::Returned);
    Ok(bytes)
}

/// For each core, the number of bytes and the digest of its data.
struct Digests(BTreeMap<u32, (u64, Sha256)>);

impl Digests {
    /// Returns the digests of no data, for the cores of these ranks.
    fn new(ranks: &[u32]) -> Self {
        Self(ranks.iter().map(|&rank| (rank, (0, Sha256::new()))).collect())
    }

    /// Adds data of a core.
    fn add(&mut self, rank: u32, data: &[u8]) {
        if let Some((bytes, digest)) = self.0.get_mut(&rank) {
            *bytes += data.len() as u64;
            digest.update(data);
        }
    }

    /// Prints all digests as messages to the parent.
    fn print(self, view: View) {
        for (rank, (bytes, digest)) in self.0 {
            Message::Digest { rank, view, bytes, digest: super::hexadecimal(&digest.finalize()) }.print();
        }
    }
}
