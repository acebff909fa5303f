//! The functions whose instructions are counted. callgrind counts from the entry of such a function
//! to its end, and finds it by its name. They are never inlined, and contain only the work of their
//! figure.

use nicforge_core::{
    machine::{Machine, Next},
    time::Nanos,
};
use nicforge_fcnp::{ComputeCore, Error, IoNode, tree::TreeChannel};
use nicforge_hwi::tree::{Header, PAYLOAD};
use nicforge_shm::{MemoryError, Window};

use super::child::{BATCH, Batch};

/// The path of this module, which is a part of its functions' names.
pub(super) const MODULE: &str = module_path!();
/// The work budget of each function in one step, as in the in-process backing and the engine.
const BUDGET: u32 = 64;

/// Sends a batch. Returns the number of packets sent, which is smaller than the batch when the lock
/// is taken or the FIFO is full.
#[inline(never)]
pub(super) fn send_batch(channel: &TreeChannel, owner: u32, header: Header, data: &Batch) -> usize {
    let Some(guard) = channel.send_lock().try_lock(owner) else { return 0 };
    channel.send_batch(guard).send_data(header, &data.0, BATCH)
}

/// Receives a batch. Returns the number of packets received, which is smaller than the batch when
/// no more have come.
#[inline(never)]
pub(super) fn receive_batch(channel: &TreeChannel, owner: u32, out: &mut Batch) -> usize {
    let Some(guard) = channel.receive_lock().try_lock(owner) else { return 0 };
    channel.receiver(guard).take_data(&mut out.0).packets
}

/// Copies a batch into shared memory, two packets at a time. This is the least cost of a checked
/// copy.
#[inline(never)]
pub(super) fn copy_in(window: &Window, data: &[[u8; 2 * PAYLOAD]; BATCH / 2]) -> Result<(), MemoryError> {
    for (index, packets) in data.iter().enumerate() {
        window.write_array((index * 2 * PAYLOAD) as u64, packets)?;
    }
    Ok(())
}

/// Copies a batch out of shared memory.
#[inline(never)]
pub(super) fn copy_out(window: &Window, out: &mut [[u8; 2 * PAYLOAD]; BATCH / 2]) -> Result<(), MemoryError> {
    for (index, packets) in out.iter_mut().enumerate() {
        window.read_array((index * 2 * PAYLOAD) as u64, packets)?;
    }
    Ok(())
}

/// Makes one step of the machine.
#[inline(never)]
pub(super) fn step_machine(machine: &mut Machine, now: Nanos) -> Next {
    machine.step(now, BUDGET)
}

/// Sends a message from the I/O node.
#[inline(never)]
pub(super) fn fcnp_write(io: &IoNode, core: u32, data: &[u8]) -> Result<usize, Error> {
    io.write(core, data)
}

/// Receives a message on a compute core.
#[inline(never)]
pub(super) fn fcnp_read(core: &ComputeCore, buffer: &mut [u8]) -> Result<usize, Error> {
    core.read(buffer)
}
