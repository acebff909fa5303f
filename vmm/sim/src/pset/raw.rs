//! Bare packets: one side stores packets into its send FIFO, and the other one loads them from its
//! receive FIFO. There is no protocol.

use std::{cell::Cell, error::Error, rc::Rc, time::Duration};

use nicforge_driver::{Relax, runtime};
use nicforge_fcnp::tree::TreeChannel;
use nicforge_hwi::tree::{Header, PAYLOAD};

use super::{Direction, Pset, PsetError, run::PsetRun};
use crate::world::Picos;

/// Packets in a row under the send lock.
const BATCH: usize = 8;
/// Packets that arrive before the measurement begins.
const WARM_UP: usize = 64;

impl Pset<'_> {
    /// Returns the mean time between the arrivals of two successive packets, of `packets` packets.
    ///
    /// # Errors
    /// [`PsetError`].
    pub fn packets(&self, direction: Direction, packets: usize) -> Result<Picos, PsetError> {
        let mut run = PsetRun::new(self)?;
        let time = Rc::new(Cell::new(Duration::ZERO));
        let result = time.clone();

        let receive = move |channel: &TreeChannel| -> Result<(), Box<dyn Error>> {
            receive(channel, WARM_UP)?;
            let start = runtime::Instant::now();
            receive(channel, packets)?;
            result.set(start.elapsed());
            Ok(())
        };
        match direction {
            Direction::ToCompute => run.start_bare(move |io| send(io, WARM_UP + packets), receive),
            Direction::ToIo => run.start_bare(receive, move |core| send(core, WARM_UP + packets)),
        }

        run.finish()?;
        Ok(Picos(Picos::from(time.get()).0 / packets.max(1) as u64))
    }
}

/// Sends packets to the other node.
pub(super) fn send(channel: &TreeChannel, packets: usize) -> Result<(), Box<dyn Error>> {
    let (info, data) = (channel.info(), vec![0; BATCH * PAYLOAD]);
    let header = match info.pset_rank {
        Some(_) => Header::point_to_point(0, info.io_node, false),
        // The compute node has the other one of the two addresses.
        None => Header::to_core(0, 1 - info.io_node, 0, false),
    };

    let (mut sent, mut relax) = (0, Relax::new());
    while sent < packets {
        let maximum = BATCH.min(packets - sent);
        let guard = channel.send_lock().try_lock(channel.owner()).ok_or("the send lock is taken")?;
        let accepted = channel.send_batch(guard).send_data(header, &data, maximum);
        sent += accepted;
        if accepted == 0 {
            channel.relax(&mut relax)?;
        }
    }
    Ok(())
}

/// Receives packets.
pub(super) fn receive(channel: &TreeChannel, packets: usize) -> Result<(), Box<dyn Error>> {
    let mut buffer = vec![0; BATCH * PAYLOAD];
    let (mut taken, mut relax) = (0, Relax::new());
    while taken < packets {
        let maximum = BATCH.min(packets - taken) * PAYLOAD;
        let guard = channel.receive_lock().try_lock(channel.owner()).ok_or("the receive lock is taken")?;
        let now = channel.receiver(guard).take_data(buffer.get_mut(..maximum).unwrap_or_default()).packets;
        taken += now;
        if now == 0 {
            channel.relax(&mut relax)?;
        }
    }
    Ok(())
}
