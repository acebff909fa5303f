//! The ways in which a program in a guest reaches its devices: its kernel's VFIO, and the shim.
//!
//! The machine is served outside the guest. When a body needs an operation by the operator, the rig
//! sends its name over a serial line, to [`crate::guest`]. Each request and each answer is one
//! line. Bodies that pass code to the operator cannot run here.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::Path,
    sync::Mutex,
};

use nicforge_core::machine::Machine;
use nicforge_driver::{Device, DeviceAddress, Error, OpenOptions, OpenProblem};

use crate::backing::{Rig, test_deadline};

/// The variable with the guest's attachments: `function.attachment=address`, separated by commas.
pub const DEVICES: &str = "NICFORGE_DEVICES";
/// The serial line to the operator.
pub const OPERATOR: &str = "/dev/ttyS2";

/// Attachments of a machine outside the guest, by name.
pub struct GuestRig {
    devices: HashMap<String, DeviceAddress>,
    operator: Option<Mutex<(File, BufReader<File>)>>,
}

impl GuestRig {
    /// Takes the attachments that the environment names by their PCI addresses, each through the
    /// driver it is bound to. It also opens the line to the operator if there is one.
    pub fn from_env() -> Self {
        let list = std::env::var(DEVICES).expect("the guest's devices are in the environment");
        let parse = |entry: &str| {
            let (name, bdf) = entry.split_once('=').expect("a name and an address");
            (name.to_owned(), address_at(bdf))
        };
        let devices = list.split(',').filter(|entry| !entry.is_empty()).map(parse).collect();
        let line = File::options().read(true).write(true).open(OPERATOR);
        let operator = line.ok().map(|line| {
            let reader = BufReader::new(line.try_clone().expect("a descriptor"));
            Mutex::new((line, reader))
        });

        Self { devices, operator }
    }

    /// Returns an attachment's address.
    pub fn address(&self, function: &str, attachment: &str) -> &DeviceAddress {
        let name = format!("{function}.{attachment}");
        self.devices.get(&name).unwrap_or_else(|| panic!("this guest has no {name} in {:?}", self.devices))
    }

    /// Returns the names of functions and attachments.
    pub fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.devices.keys().filter_map(|name| name.rsplit_once('.'))
    }

    /// Waits until the machine is at rest, and has [`Rig::counter`] count from now on.
    pub fn begin(&self) {
        if self.operator.is_some() {
            self.request("begin");
        }
    }

    /// Sends a request to the operator and returns its answer.
    fn request(&self, request: &str) -> String {
        let operator = self.operator.as_ref().expect("this guest has a line to the operator");
        let mut line = operator.lock().expect("no thread panicked in a request");
        let (writer, reader) = &mut *line;

        writeln!(writer, "{request}").expect("the line takes a request");
        let mut answer = String::new();
        reader.read_line(&mut answer).expect("the line gives an answer");

        let answer = answer.trim();
        match answer.strip_prefix("ok") {
            Some(value) => value.trim().to_owned(),
            None => panic!("{request}: the operator says {answer:?}"),
        }
    }
}

/// Returns how the function with this PCI address is reached: the shim's character device, or VFIO.
fn address_at(bdf: &str) -> DeviceAddress {
    let shim = Path::new("/sys/bus/pci/devices").join(bdf).join("nicforge");
    let device = fs::read_dir(shim).ok().and_then(|mut list| list.next()).and_then(Result::ok);
    match device {
        Some(device) => DeviceAddress::Shim(Path::new("/dev").join(device.file_name())),
        None => DeviceAddress::Vfio(bdf.parse().expect("a PCI address")),
    }
}

impl Rig for GuestRig {
    fn open(&self, function: &str, attachment: &str) -> Device {
        // The kernel may still be closing the device for the previous client.
        let (address, deadline) = (self.address(function, attachment), test_deadline());

        loop {
            match Device::open_at(address, OpenOptions::default()) {
                Ok(device) => return device,
                Err(Error::Open { problem: OpenProblem::Busy, .. }) if !deadline.has_passed() => (),
                Err(error) => panic!("{function}.{attachment}: {error}"),
            }
            std::thread::yield_now();
        }
    }

    fn try_open(&self, function: &str, attachment: &str) -> Result<Device, String> {
        Device::open_at(self.address(function, attachment), OpenOptions::default())
            .map_err(|error| error.to_string())
    }

    fn with_machine(&self, _: Box<dyn FnOnce(&mut Machine) + Send>) {
        panic!("an operator outside the guest cannot be handed code");
    }

    fn evict(&self, function: &str, attachment: &str) {
        panic!("{function}.{attachment}: a guest whose attachment is taken away never gets it back");
    }

    fn reset(&self, function: &str) {
        self.request(&format!("reset {function}"));
    }

    /// An emulated processor is about ten times slower than the host's, so a body repeats its steps
    /// an eighth as often here.
    fn repetitions(&self, maximum: u32) -> u32 {
        maximum.div_ceil(8)
    }

    fn settle(&self) {
        self.request("settle");
    }

    fn counter(&self, function: &str, name: &str) -> u64 {
        self.request(&format!("counter {function} {name}")).parse().expect("a number")
    }
}
