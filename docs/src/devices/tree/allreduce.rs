//! The example of the chapter "The Blue Gene tree NIC": a sum over the compute nodes of a pset,
//! made in the network.

// ANCHOR: body
use std::time::Duration;

use nicforge_driver::{Deadline, Device};
use nicforge_fcnp::{Error, tree::TreeChannel};
use nicforge_hwi::tree::{Header, PAYLOAD, opcode};

/// The class of the compute nodes of each pset.
const COMPUTE_NODES: u32 = 3;

/// The sum of `number` over all compute nodes, modulo 2^64. Every one of them calls this.
pub fn allreduce(device: Device, number: u64) -> Result<u64, Error> {
    let channel = TreeChannel::open(device)?;
    let (mine, deadline) = (channel.owner(), Deadline::after(Duration::from_secs(20)));

    // One operand of four 16-bit words, and zeros behind it, in which the sum is zero.
    let mut payload = [0; PAYLOAD];
    payload[..8].copy_from_slice(&number.to_be_bytes());
    let header = Header::collective(COMPUTE_NODES, opcode::ADD, 4, 0, false);
    channel.device().wait_for(deadline, None, "room in the send FIFO", || {
        let Some(lock) = channel.send_lock().try_lock(mine) else { return Ok(None) };
        Ok::<_, Error>(channel.send_batch(lock).try_send(header, &payload).then_some(()))
    })?;

    channel.device().wait_for(deadline, None, "the sum", || {
        let Some(lock) = channel.receive_lock().try_lock(mine) else { return Ok(None) };
        let mut receiver = channel.receiver(lock);
        if receiver.peek().is_none() {
            return Ok(None);
        }
        receiver.payload(&mut payload);
        receiver.advance();
        let [a, b, c, d, e, f, g, h, ..] = payload;
        Ok::<_, Error>(Some(u64::from_be_bytes([a, b, c, d, e, f, g, h])))
    })
}
// ANCHOR_END: body

#[cfg(test)]
mod tests {
    use nicforge_machine::{build::build, description::parse};
    use nicforge_nics::families;
    use nicforge_tests::backing::{InProcess, Rig};

    use super::allreduce;

    #[test]
    fn every_compute_node_gets_the_sum_of_all() {
        let file = "name = \"p\"\n[[pset]]\ncompute_nodes = 4\n";
        let machine = build(&parse(file, "p.toml", &families()).unwrap()).unwrap().0;
        let rig = InProcess::new(machine);
        let devices = [0, 1, 2, 3].map(|node| rig.open(&format!("cn{node}"), "core0"));

        let sums = std::thread::scope(|scope| {
            let threads =
                devices.each_ref().map(|device| scope.spawn(move || allreduce(device.clone(), 1 << 40 | 5)));
            threads.map(|thread| thread.join().unwrap().unwrap())
        });

        assert_eq!(sums, [4 * (1 << 40 | 5); 4]);
    }
}
