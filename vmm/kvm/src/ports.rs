//! The exits of processors: who answers which address and which port.

use crate::{
    error::VmError,
    exits::{ExitCounters, count},
    interrupts::Interrupts,
    layout::{ECAM, POWER_OFF, RESET, RESET_VALUE, SERIAL, SERIAL_PORTS, SLEEP_CONTROL, SLEEP_STATUS},
    pci::{PciBus, Space},
    power::{End, Power},
    serial::SerialPort,
};

/// All that is reached by exits.
pub(crate) struct Devices {
    pub(crate) bus: PciBus,
    pub(crate) serial: [SerialPort; 2],
    pub(crate) power: Power,
    pub(crate) exits: ExitCounters,
}

impl Devices {
    pub(crate) fn new(bus: PciBus, interrupts: &Interrupts) -> Result<Self, VmError> {
        let [first, second] = SERIAL.map(|(_, pin)| SerialPort::new(interrupts, pin));
        Ok(Self { bus, serial: [first?, second?], power: Power::default(), exits: ExitCounters::default() })
    }

    pub(crate) fn memory_read(&self, address: u64, data: &mut [u8]) {
        if ECAM.contains(&address) {
            count(&self.exits.configuration);
            self.bus.config_read(address - ECAM.start, data);
        } else {
            count(&self.exits.memory);
            self.bus.read(Space::Memory, address, data);
        }
    }

    pub(crate) fn memory_write(&self, address: u64, data: &[u8]) {
        if ECAM.contains(&address) {
            count(&self.exits.configuration);
            self.bus.config_write(address - ECAM.start, data);
        } else {
            count(&self.exits.memory);
            self.bus.write(Space::Memory, address, data);
        }
    }

    pub(crate) fn port_read(&self, port: u16, data: &mut [u8]) {
        count(&self.exits.ports);
        match (serial_port(port), &mut *data) {
            (_, [byte]) if port == SLEEP_STATUS => *byte = 0,
            // A string of bytes may come in one exit.
            (Some((number, register)), bytes) => {
                bytes.iter_mut().for_each(|byte| *byte = self.serial[number].read(register));
            }
            _ => self.bus.read(Space::Io, port.into(), data),
        }
    }

    pub(crate) fn port_write(&self, port: u16, data: &[u8]) {
        count(&self.exits.ports);
        match (port, data) {
            (SLEEP_CONTROL, [POWER_OFF]) => self.power.end(End::PowerOff),
            (RESET, [RESET_VALUE]) => self.power.end(End::Reset),
            (_, bytes) => match serial_port(port) {
                // A string of bytes may come in one exit.
                Some((number, register)) => {
                    bytes.iter().for_each(|byte| self.serial[number].write(register, *byte));
                }
                None => self.bus.write(Space::Io, port.into(), data),
            },
        }
    }
}

/// Returns the serial port and its register at an I/O port.
fn serial_port(port: u16) -> Option<(usize, u8)> {
    let at = |first: u16| port.checked_sub(first).filter(|register| *register < SERIAL_PORTS);
    SERIAL.iter().enumerate().find_map(|(number, (first, _))| Some((number, at(*first)? as u8)))
}
