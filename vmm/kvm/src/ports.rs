//! The accesses that cause exits of processors: which device answers which address and I/O port.

use std::sync::Arc;

use crate::{
    error::VmError,
    exits::{ExitCounters, count},
    function::Function,
    hypervisor::Hypervisor,
    interrupts::Interrupts,
    layout::{
        ECAM, POWER_OFF, RESET, RESET_VALUE, SERIAL_PORTS, SERIAL_REGISTERS, SLEEP_CONTROL, SLEEP_STATUS,
    },
    memory::Ram,
    pci::{PciBus, Space},
    power::{End, Power},
    serial::SerialPort,
    slots::Slots,
};

/// All that the exits of a machine's processors reach: the bus, the serial ports, and the registers
/// for power.
///
/// A [`crate::Vm`] has one. It is public for tests of the devices without a processor.
pub struct Devices {
    pub(crate) bus: PciBus,
    pub(crate) serial: [SerialPort; SERIAL_PORTS.len()],
    pub(crate) power: Power,
    pub(crate) exits: ExitCounters,
}

impl Devices {
    /// Makes the devices of a machine without functions, and makes the RAM appear in the guest.
    ///
    /// # Errors
    /// [`VmError::Request`], [`VmError::System`], and errors of the hypervisor.
    pub fn new(hypervisor: Arc<dyn Hypervisor>, ram: &Ram) -> Result<Self, VmError> {
        let slots = Arc::new(Slots::new(hypervisor.clone()));
        ram.map(&slots)?;
        let interrupts = Arc::new(Interrupts::new(hypervisor)?);
        let [first, second, third] = SERIAL_PORTS.map(|port| SerialPort::new(&interrupts, port.pin));

        let serial = [first?, second?, third?];
        let bus = PciBus::new(slots, interrupts);
        Ok(Self { bus, serial, power: Power::default(), exits: ExitCounters::default() })
    }

    /// Puts a function into a slot of the bus, 0 to 31, and gives it the RAM for DMA.
    ///
    /// # Errors
    /// [`VmError::Request`] when the slot is not free, [`VmError::Function`].
    pub fn plug(&mut self, slot: u8, function: Arc<dyn Function>, ram: &Ram) -> Result<(), VmError> {
        self.bus.check_free(slot)?;
        function.map_ram(ram).map_err(|error| VmError::Function { slot, error })?;
        self.bus.plug(slot, function)
    }

    /// Sends bytes to a serial port, 0 to 2. Returns the number of bytes that were taken: fewer
    /// than all when the guest does not read.
    pub fn send(&self, port: usize, bytes: &[u8]) -> usize {
        self.serial.get(port).map_or(0, |port| port.send(bytes))
    }

    /// Returns why the machine has ended, if it has.
    pub fn ended(&self) -> Option<End> {
        self.power.ended()
    }

    /// Answers a load from an address without memory, of 1 to 8 bytes. An address that nothing
    /// answers reads as ones.
    pub fn memory_read(&self, address: u64, data: &mut [u8]) {
        self.count_memory_exit(address);

        let access_bytes = access_bytes(data.len());
        for (at, part) in (0..).step_by(access_bytes).zip(data.chunks_mut(access_bytes)) {
            match address.wrapping_add(at) {
                address if ECAM.contains(&address) => self.bus.config_read(address - ECAM.start, part),
                address => self.bus.read(Space::Memory, address, part),
            }
        }
    }

    /// Carries out a store of 1 to 8 bytes to an address without writable memory.
    pub fn memory_write(&self, address: u64, data: &[u8]) {
        self.count_memory_exit(address);

        let access_bytes = access_bytes(data.len());
        for (at, part) in (0..).step_by(access_bytes).zip(data.chunks(access_bytes)) {
            match address.wrapping_add(at) {
                address if ECAM.contains(&address) => self.bus.config_write(address - ECAM.start, part),
                address => self.bus.write(Space::Memory, address, part),
            }
        }
    }

    /// Counts an exit for an access to memory.
    fn count_memory_exit(&self, address: u64) {
        count(if ECAM.contains(&address) { &self.exits.configuration } else { &self.exits.memory });
    }

    /// Answers a read of 1, 2 or 4 bytes from an I/O port. A port that nothing answers reads as
    /// ones.
    pub fn port_read(&self, port: u16, data: &mut [u8]) {
        count(&self.exits.ports);
        match (serial_register(port), &mut *data) {
            // No sleep state has ended in a wake-up.
            (_, [byte]) if port == SLEEP_STATUS => *byte = 0,
            (Some((number, register)), [byte]) => *byte = self.serial[number].read(register),
            // A serial port's registers are read byte by byte.
            (Some(_), bytes) => bytes.fill(0xff),
            (None, bytes) if !matches!(bytes.len(), 1 | 2 | 4) => bytes.fill(0xff),
            (None, bytes) => self.bus.read(Space::Io, port.into(), bytes),
        }
    }

    /// Carries out a write of 1, 2 or 4 bytes to an I/O port.
    pub fn port_write(&self, port: u16, data: &[u8]) {
        count(&self.exits.ports);
        match (port, data) {
            (SLEEP_CONTROL, [POWER_OFF]) => self.power.end(End::PowerOff),
            (RESET, [RESET_VALUE]) => self.power.end(End::Reset),
            (_, bytes) => match (serial_register(port), bytes) {
                (Some((number, register)), [byte]) => self.serial[number].write(register, *byte),
                (None, [_] | [_, _] | [_, _, _, _]) => self.bus.write(Space::Io, port.into(), bytes),
                // A wide write to a serial port, or one of another length: ignored.
                _ => {}
            },
        }
    }
}

/// Returns the size of the device accesses that carry out an exit of `length` bytes. KVM cuts a
/// load or store that crosses pages in two. A part may have 3, 5, 6 or 7 bytes, for which devices
/// have no access, so they get single bytes.
pub(crate) fn access_bytes(length: usize) -> usize {
    if length.is_power_of_two() { length } else { 1 }
}

/// Returns the serial port's number and the register's number that an I/O port belongs to, if any.
fn serial_register(port: u16) -> Option<(usize, u8)> {
    let register_of = |first_port: u16| {
        let register = port.checked_sub(first_port)?;
        (register < SERIAL_REGISTERS).then_some(register as u8)
    };
    SERIAL_PORTS
        .iter()
        .enumerate()
        .find_map(|(number, serial)| Some((number, register_of(serial.first_port)?)))
}
