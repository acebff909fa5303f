//! Test bodies of the proof devices, one module a device.
//!
//! Each body gets a machine of its own ([`machine`]) behind some door.

pub mod addressed_send;
pub mod dma_engine;
pub mod slot_fifo;

use std::time::{Duration, Instant};

use nicforge_core::{device::FunctionId, machine::Machine};
use nicforge_driver::Device;
use nicforge_proof::{AddressedSend, DmaEngine, SlotFifo};

use crate::backing::soon;

/// A machine with one proof device of each kind: `fifo0`, `dma0` and `send0`, for clients `user0` to `user3` each.
pub fn machine() -> Machine {
    let mut machine = Machine::new();
    machine.add_function("fifo0", Box::new(SlotFifo::new())).unwrap();
    machine.add_function("dma0", Box::new(DmaEngine::new())).unwrap();
    machine.add_function("send0", Box::new(AddressedSend::new())).unwrap();
    machine
}

/// The function's number in [`machine`].
const SEND: FunctionId = FunctionId(2);

/// Waits until `condition` holds, driving the machine if that is this thread's business.
fn until(device: &Device, condition: impl FnMut() -> bool) {
    device.wait_until(soon(), None, condition).expect("the condition comes true");
}

/// Lets a little time pass, another one each round, so that what others do meanwhile comes at all moments of it.
fn pause(round: u64) {
    let (begin, time) = (Instant::now(), Duration::from_nanos(round * 37 % 3000));
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}
