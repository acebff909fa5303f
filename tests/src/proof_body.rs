//! Test bodies of the proof devices, one module for each device.
//!
//! Each body gets a machine of its own ([`machine`]) behind some door.

pub mod addressed_send;
pub mod dma_engine;
pub mod slot_fifo;

use std::time::{Duration, Instant};

use nicforge_core::{ids::FunctionId, machine::Machine};
use nicforge_driver::Device;
use nicforge_proof::{AddressedSend, DmaEngine, SlotFifo};

use crate::{
    backing::test_deadline,
    bodies::{GuestDoor, Guests, TestMachine},
};

/// The machine of all bodies of the proof devices.
pub static MACHINE: TestMachine = TestMachine {
    name: "proof",
    make: machine,
    guests: Guests::Booted {
        attachments: &[(&["fifo0", "dma0", "send0"], &["user0", "user1", "user2", "user3"])],
        doors: &[GuestDoor::Vfio, GuestDoor::Shim],
    },
};

/// Returns a machine with one proof device of each kind: `fifo0`, `dma0` and `send0`, each with
/// attachments `user0` to `user3`.
pub fn machine() -> Machine {
    let mut machine = Machine::new();
    machine.add_function("fifo0", Box::new(SlotFifo::new())).unwrap();
    machine.add_function("dma0", Box::new(DmaEngine::new())).unwrap();
    machine.add_function("send0", Box::new(AddressedSend::new())).unwrap();
    machine
}

/// The number of `send0` in [`machine`].
const SEND: FunctionId = FunctionId(2);

/// Waits until `condition` holds. The wait drives the machine if this thread has to.
fn wait_until(device: &Device, condition: impl FnMut() -> bool) {
    device.wait_until(test_deadline(), None, condition).expect("the condition comes true");
}

/// Pauses for a time that depends on `round`, so that concurrent events meet the test in each of
/// its states.
fn pause(round: u64) {
    let (begin, time) = (Instant::now(), Duration::from_nanos(round * 37 % 3000));
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}
