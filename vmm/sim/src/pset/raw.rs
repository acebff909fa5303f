//! Bare packets: one side stores packets into its send FIFO, and the other one loads them from its
//! receive FIFO. There is no protocol.

use std::{cell::Cell, error::Error, rc::Rc, time::Duration};

use nicforge_driver::{Relax, runtime};
use nicforge_fcnp::tree::TreeChannel;
use nicforge_hwi::tree::{Header, PAYLOAD};

use super::{Direction, Pset, PsetError, run::PsetRun};
use crate::world::Picos;

/// Maximum number of packets that a side moves while it holds a lock.
const BATCH: usize = 8;
/// The class route of the packets.
const CLASS: u32 = 0;
/// The core that receives the packets on the compute node.
const CORE: u16 = 0;
/// Packets that arrive before the measurement begins.
const WARM_UP: usize = 64;

impl Pset<'_> {
    /// Returns the mean time between the arrivals of two successive bare packets, measured with
    /// `packets` packets after a warm-up.
    ///
    /// # Errors
    /// [`PsetError`].
    pub fn packets(&self, direction: Direction, packets: usize) -> Result<Picos, PsetError> {
        let mut run = PsetRun::new(self)?;
        let time = Rc::new(Cell::new(Duration::ZERO));
        let measured_time = time.clone();

        let receive = move |channel: &TreeChannel| -> Result<(), Box<dyn Error>> {
            receive(channel, WARM_UP)?;
            let start = runtime::Instant::now();
            receive(channel, packets)?;
            measured_time.set(start.elapsed());
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

/// Sends packets to the other node, and waits while the send FIFO is full.
pub(super) fn send(channel: &TreeChannel, packets: usize) -> Result<(), Box<dyn Error>> {
    let (info, data) = (channel.info(), vec![0; BATCH * PAYLOAD]);
    let interrupts = false;
    let header = match info.pset_rank {
        Some(_) => Header::point_to_point(CLASS, info.io_node, interrupts),
        // On the I/O node. The compute node has the other one of the addresses 0 and 1.
        None => Header::to_core(CLASS, 1 - info.io_node, CORE, interrupts),
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

/// Receives packets, and waits while the receive FIFO is empty.
pub(super) fn receive(channel: &TreeChannel, packets: usize) -> Result<(), Box<dyn Error>> {
    let mut buffer = vec![0; BATCH * PAYLOAD];
    let (mut taken, mut relax) = (0, Relax::new());
    while taken < packets {
        let maximum = BATCH.min(packets - taken) * PAYLOAD;
        let guard = channel.receive_lock().try_lock(channel.owner()).ok_or("the receive lock is taken")?;
        let available = buffer.get_mut(..maximum).unwrap_or_default();
        let received = channel.receiver(guard).take_data(available).packets;
        taken += received;
        if received == 0 {
            channel.relax(&mut relax)?;
        }
    }
    Ok(())
}
