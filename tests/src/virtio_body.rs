//! Test bodies of the virtio network device and of the switch between them.
//!
//! Each body gets a machine of its own behind some door: three devices at a switch
//! ([`machine`]), or two that are connected directly ([`direct_machine`]). Its driver is that of
//! `driver`.

pub mod checksums;
pub(crate) mod driver;
pub mod frames;
pub mod hostile;
pub mod interrupts;
pub mod lifecycle;
pub mod registers;
pub mod switch;

use nicforge_core::{
    fabric::{LinkId, LinkSpec},
    ids::FunctionId,
    machine::Machine,
};
use nicforge_virtio_net::{MacAddress, NicConfig, Switch, SwitchConfig, VirtioNet, nic::HOLD};

use crate::bodies::{Guests, TestMachine};

/// Three devices, `en0` to `en2`, at the switch `sw0`.
pub static MACHINE: TestMachine = TestMachine {
    name: "virtio",
    make: machine,
    guests: Guests::None("in a guest, Linux drives the device with its own driver"),
};

/// Two devices, `en0` and `en1`, connected directly.
pub static DIRECT: TestMachine = TestMachine {
    name: "virtio_direct",
    make: direct_machine,
    guests: Guests::None("in a guest, Linux drives the device with its own driver"),
};

/// Two devices as those of [`DIRECT`], whose received frames wait for buffers as long as a test.
pub static PATIENT: TestMachine = TestMachine {
    name: "virtio_patient",
    make: patient_machine,
    guests: Guests::None("in a guest, Linux drives the device with its own driver"),
};

/// The network's MTU.
const MTU: u16 = 1500;
/// Bytes of the longest frame: header, VLAN tag, and the MTU.
const LONGEST: usize = nicforge_virtio_net::max_frame(MTU);
/// Bytes of the shortest frame.
const SHORTEST: usize = nicforge_virtio_net::ETHERNET_HEADER;
/// Packets on a link in each direction.
const CREDITS: u32 = 32;
/// The links of the devices to the switch, in the order of the devices.
const LINKS: [LinkId; 3] = [LinkId(0), LinkId(1), LinkId(2)];

/// Returns the links between devices and switch.
fn link() -> LinkSpec {
    LinkSpec { credits: vec![CREDITS], ..LinkSpec::default() }
}

/// Returns the address of a device.
fn mac(number: u32) -> MacAddress {
    MacAddress::derived(number)
}

/// Adds device `en{number}`, whose received frames wait for buffers for `hold` nanoseconds.
fn add_nic(machine: &mut Machine, number: u32, hold: u64) -> FunctionId {
    let nic = VirtioNet::new(NicConfig { mtu: MTU, hold, ..NicConfig::new(mac(number)) }).unwrap();
    machine.add_function(&format!("en{number}"), Box::new(nic)).unwrap()
}

/// Returns the machine of [`MACHINE`].
pub fn machine() -> Machine {
    let mut machine = Machine::new();
    let nics = [0, 1, 2].map(|number| add_nic(&mut machine, number, HOLD));
    let switch = Switch::new(SwitchConfig::default()).unwrap();
    let switch = machine.add_function("sw0", Box::new(switch)).unwrap();

    for (port, nic) in nics.into_iter().enumerate() {
        machine.fabric().connect((nic, 0), (switch, port as u8), link()).unwrap();
    }

    machine
}

/// Returns the machine of [`DIRECT`].
pub fn direct_machine() -> Machine {
    pair(HOLD)
}

/// Returns the machine of [`PATIENT`].
pub fn patient_machine() -> Machine {
    pair(1_000 * HOLD)
}

/// Returns a machine of two devices whose received frames wait for buffers for `hold` nanoseconds.
fn pair(hold: u64) -> Machine {
    let mut machine = Machine::new();
    let nics = [0, 1].map(|number| add_nic(&mut machine, number, hold));
    machine.fabric().connect((nics[0], 0), (nics[1], 0), link()).unwrap();
    machine
}

/// Returns a frame of `length` bytes, at least a header, whose content depends on `seed`.
fn frame(to: MacAddress, from: MacAddress, length: usize, seed: usize) -> Vec<u8> {
    let mut frame = [&to.0[..], &from.0[..], &[0x88, 0xb5]].concat();
    frame.extend((frame.len()..length).map(|at| (at ^ (at >> 8) ^ seed.wrapping_mul(37)) as u8));
    frame
}
