//! The ACPI tables: no hardware of a PC, one PCI Express bus, three serial ports.
//!
//! With the flag for reduced hardware, Linux looks for no timer chip, no old interrupt controller,
//! no keyboard controller and no clock chip.

use acpi_tables::{
    Aml,
    aml::{
        AddressSpace, AddressSpaceCacheable, Device, EISAName, IO, Interrupt, Memory32Fixed, Name, Package,
        ResourceTemplate, Scope,
    },
    fadt::{FADTBuilder, Flags},
    gas::{AccessSize, AddressSpace as RegisterSpace, GAS},
    madt::{EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic},
    mcfg::MCFG,
    rsdp::Rsdp,
    sdt::Sdt,
    xsdt::XSDT,
};
use vm_memory::{Bytes, GuestAddress};

use crate::{
    error::VmError,
    layout::{
        ACPI, ECAM, IO_APIC, LOCAL_APIC, PCI_SLOTS, POWER_OFF_TYPE, RESET, RESET_VALUE, SERIAL, SERIAL_PORTS,
        SLEEP_CONTROL, SLEEP_STATUS, WINDOW_32, WINDOW_64, WINDOW_IO, interrupt_line,
    },
    memory::Ram,
};

const OEM: [u8; 6] = *b"NICFRG";
const OEM_TABLE: [u8; 8] = *b"NICFORGE";
const OEM_REVISION: u32 = 1;

/// Bits of the FADT's `iapc_boot_arch`: no video memory of a PC, no clock chip. That of a keyboard
/// controller is clear.
const NO_VGA: u16 = 1 << 2;
const NO_CLOCK: u16 = 1 << 5;

/// Alignment of tables.
const ALIGNMENT: u64 = 16;

/// Writes all tables, and returns the address of the first (RSDP).
pub(crate) fn write(ram: &Ram, processors: u8) -> Result<u64, VmError> {
    let mut tables = Tables { ram, next: ACPI.start };
    let root_pointer = tables.reserve(Rsdp::len() as u64)?;

    let dsdt = tables.add(&dsdt())?;
    let mut list = XSDT::new(OEM, OEM_TABLE, OEM_REVISION);
    list.add_entry(tables.add(&fadt(dsdt))?);
    list.add_entry(tables.add(&madt(processors))?);
    list.add_entry(tables.add(&mcfg())?);

    let list = tables.add(&list)?;
    tables.write(root_pointer, &Rsdp::new(OEM, list))?;
    Ok(root_pointer)
}

/// The tables that are written so far.
struct Tables<'a> {
    ram: &'a Ram,
    next: u64,
}

impl Tables<'_> {
    /// Reserves room for a table, and returns its address.
    fn reserve(&mut self, size: u64) -> Result<u64, VmError> {
        let address = self.next;
        self.next = (address + size).next_multiple_of(ALIGNMENT);
        match self.next <= ACPI.end {
            true => Ok(address),
            false => Err(VmError::Memory("the ACPI tables do not fit".into())),
        }
    }

    /// Writes a table behind the last one, and returns its address.
    fn add(&mut self, table: &dyn Aml) -> Result<u64, VmError> {
        let mut bytes = Vec::new();
        table.to_aml_bytes(&mut bytes);
        let address = self.reserve(bytes.len() as u64)?;
        self.write(address, table)?;
        Ok(address)
    }

    fn write(&self, address: u64, table: &dyn Aml) -> Result<(), VmError> {
        let mut bytes = Vec::new();
        table.to_aml_bytes(&mut bytes);
        let written = self.ram.memory().write_slice(&bytes, GuestAddress(address));
        written.map_err(|error| VmError::Memory(error.to_string()))
    }
}

/// Returns the description of the fixed hardware: only the registers for sleep and reset.
fn fadt(dsdt: u64) -> impl Aml {
    let register = |port: u16| GAS::new(RegisterSpace::SystemIo, 8, 0, AccessSize::ByteAccess, port.into());
    let mut fadt = FADTBuilder::new(OEM, OEM_TABLE, OEM_REVISION)
        .dsdt_64(dsdt)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::ResetRegSup)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton);

    fadt.iapc_boot_arch = (NO_VGA | NO_CLOCK).into();
    fadt.reset_reg = register(RESET);
    fadt.reset_value = RESET_VALUE;
    fadt.sleep_control_reg = register(SLEEP_CONTROL);
    fadt.sleep_status_reg = register(SLEEP_STATUS);
    fadt.finalize()
}

/// Processors and interrupt controllers.
fn madt(processors: u8) -> impl Aml {
    let local = LocalInterruptController::Address(LOCAL_APIC);
    let mut madt = MADT::new(OEM, OEM_TABLE, OEM_REVISION, local);
    for number in 0..processors {
        madt.add_structure(ProcessorLocalApic::new(number, number, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(processors, IO_APIC, 0));
    madt
}

/// The configuration space of bus 0.
fn mcfg() -> impl Aml {
    let mut mcfg = MCFG::new(OEM, OEM_TABLE, OEM_REVISION);
    mcfg.add_ecam(ECAM.start, 0, 0, 0);
    mcfg
}

/// The devices that cannot be found otherwise.
fn dsdt() -> impl Aml {
    let mut bytes = Vec::new();
    let power_off = Package::new(vec![&POWER_OFF_TYPE, &0_u8]);
    Name::new("_S5_".into(), &power_off).to_aml_bytes(&mut bytes);

    add_bus(&mut bytes);
    for (number, (port, pin)) in (0..).zip(SERIAL) {
        add_serial(&mut bytes, number, port, pin);
    }

    let mut table = Sdt::new(*b"DSDT", 36, 6, OEM, OEM_TABLE, OEM_REVISION);
    table.append_slice(&bytes);
    table
}

/// Adds the bus with its windows, and the addresses of its configuration space.
fn add_bus(bytes: &mut Vec<u8>) {
    let uncached = AddressSpaceCacheable::NotCacheable;
    let (low, high) = (WINDOW_32.start as u32, (WINDOW_32.end - 1) as u32);
    let number = AddressSpace::new_bus_number(0_u16, 0_u16);
    let ports = AddressSpace::new_io(WINDOW_IO.start as u16, (WINDOW_IO.end - 1) as u16, None);
    let memory_32 = AddressSpace::new_memory(uncached, true, low, high, None);
    let memory_64 = AddressSpace::new_memory(uncached, true, WINDOW_64.start, WINDOW_64.end - 1, None);

    let resources = ResourceTemplate::new(vec![&number, &ports, &memory_32, &memory_64]);
    add_device(bytes, "PCI0", &["PNP0A08", "PNP0A03"], 0, &resources);
    add_lines(bytes);

    // Linux uses a configuration space only if its addresses are reserved.
    let reserved = Memory32Fixed::new(true, ECAM.start as u32, (ECAM.end - ECAM.start) as u32);
    add_device(bytes, "MBRD", &["PNP0C02"], 0, &ResourceTemplate::new(vec![&reserved]));
}

/// Adds the inputs of the I/O APIC for the interrupt pins A of all slots.
fn add_lines(bytes: &mut Vec<u8>) {
    let addresses: Vec<_> = (0..PCI_SLOTS).map(|slot| u32::from(slot) << 16 | 0xffff).collect();
    let inputs: Vec<_> = (0..PCI_SLOTS).map(interrupt_line).collect();
    let line = |slot: usize| Package::new(vec![&addresses[slot], &0_u8, &0_u8, &inputs[slot]]);
    let lines: Vec<_> = (0..usize::from(PCI_SLOTS)).map(line).collect();

    let lines = Package::new(lines.iter().map(|line| line as &dyn Aml).collect());
    let routes = Name::new("_PRT".into(), &lines);
    Scope::new("_SB_.PCI0".into(), vec![&routes]).to_aml_bytes(bytes);
}

/// Adds a serial port.
fn add_serial(bytes: &mut Vec<u8>, number: u8, port: u16, pin: u32) {
    let ports = IO::new(port, port, 0, SERIAL_PORTS as u8);
    let interrupt = Interrupt::new(true, true, false, false, pin);
    let resources = ResourceTemplate::new(vec![&ports, &interrupt]);
    add_device(bytes, &format!("COM{}", number + 1), &["PNP0501"], number, &resources);
}

/// Adds a device of these kinds, the most special first.
fn add_device(bytes: &mut Vec<u8>, name: &str, kinds: &[&str], number: u8, resources: &dyn Aml) {
    let names = ["_HID", "_CID"];
    let kinds: Vec<_> =
        names.iter().zip(kinds).map(|(name, kind)| Name::new((*name).into(), &EISAName::new(kind))).collect();
    let number = Name::new("_UID".into(), &number);
    let resources = Name::new("_CRS".into(), resources);

    let mut children: Vec<&dyn Aml> = kinds.iter().map(|kind| kind as &dyn Aml).collect();
    children.extend([&number as &dyn Aml, &resources]);
    let device = Device::new(name.into(), children);
    Scope::new("_SB_".into(), vec![&device]).to_aml_bytes(bytes);
}
