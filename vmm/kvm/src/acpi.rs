//! The ACPI tables: no hardware of a PC, one PCI Express bus, three serial ports.
//!
//! With the flag for reduced hardware, Linux looks for no PIT, no 8259 interrupt controller, no
//! i8042 keyboard controller and no CMOS clock.

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
        ACPI, ECAM, IO_APIC, LOCAL_APIC, PCI_SLOTS, POWER_OFF_TYPE, RESET, RESET_VALUE, SERIAL_PORTS,
        SERIAL_REGISTERS, SLEEP_CONTROL, SLEEP_STATUS, SerialResources, WINDOW_32, WINDOW_64, WINDOW_IO,
        interrupt_line,
    },
    memory::Ram,
};

/// The ids of the tables' maker in each table's header.
const OEM: [u8; 6] = *b"NICFRG";
const OEM_TABLE: [u8; 8] = *b"NICFORGE";
const OEM_REVISION: u32 = 1;

/// Bits of the FADT's `iapc_boot_arch`: no VGA memory, and no CMOS clock. The bit that promises a
/// keyboard controller is clear.
const NO_VGA: u16 = 1 << 2;
const NO_CLOCK: u16 = 1 << 5;

/// Size of a table's header, and the revision of a DSDT whose integers have 64 bits.
const HEADER_SIZE: u32 = 36;
const DSDT_REVISION: u8 = 6;

/// Plug-and-play ids: a PCI Express bus, a PCI bus, a board's reserved resources, a 16550A.
const PCI_EXPRESS_BUS: &str = "PNP0A08";
const PCI_BUS: &str = "PNP0A03";
const RESERVED_RESOURCES: &str = "PNP0C02";
const UART_16550A: &str = "PNP0501";

/// Alignment of tables.
const ALIGNMENT: u64 = 16;

/// Writes all tables, and returns the address of the first one (RSDP). It names the list of tables
/// (XSDT), whose entries are the FADT, MADT and MCFG. The FADT names the DSDT.
pub(crate) fn write(ram: &Ram, processors: u8) -> Result<u64, VmError> {
    let mut tables = Tables { ram, next: ACPI.start };
    let root_pointer = tables.reserve(Rsdp::len() as u64)?;

    let dsdt = tables.add(&dsdt())?;
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, OEM_REVISION);
    xsdt.add_entry(tables.add(&fadt(dsdt))?);
    xsdt.add_entry(tables.add(&madt(processors))?);
    xsdt.add_entry(tables.add(&mcfg())?);

    let xsdt = tables.add(&xsdt)?;
    tables.write(root_pointer, &Rsdp::new(OEM, xsdt))?;
    Ok(root_pointer)
}

/// The writer of the tables, one behind the other, into their part of the RAM.
struct Tables<'a> {
    ram: &'a Ram,
    /// Address of the next table.
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

    /// Writes a table at an address that [`Self::reserve`] has returned.
    fn write(&self, address: u64, table: &dyn Aml) -> Result<(), VmError> {
        let mut bytes = Vec::new();
        table.to_aml_bytes(&mut bytes);
        let written = self.ram.memory().write_slice(&bytes, GuestAddress(address));
        written.map_err(|error| VmError::Memory(error.to_string()))
    }
}

/// Returns the description of the fixed hardware: only the registers for sleep and reset. `dsdt` is
/// the DSDT's address.
fn fadt(dsdt: u64) -> impl Aml {
    // A register of 8 bits, from bit 0 on, in an I/O port.
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

/// Returns the table of processors and interrupt controllers.
fn madt(processors: u8) -> impl Aml {
    let local = LocalInterruptController::Address(LOCAL_APIC);
    let mut madt = MADT::new(OEM, OEM_TABLE, OEM_REVISION, local);
    for number in 0..processors {
        // A processor's number is its local APIC's, too.
        madt.add_structure(ProcessorLocalApic::new(number, number, EnabledStatus::Enabled));
    }
    // The I/O APIC has the next free id, and its first input is interrupt number 0.
    madt.add_structure(IoApic::new(processors, IO_APIC, 0));
    madt
}

/// Returns the table with the address of the configuration space.
fn mcfg() -> impl Aml {
    let mut mcfg = MCFG::new(OEM, OEM_TABLE, OEM_REVISION);
    // PCI segment 0, with bus 0 as its first and last bus.
    mcfg.add_ecam(ECAM.start, 0, 0, 0);
    mcfg
}

/// Returns the table of the devices that Linux cannot find by itself: the bus and the serial ports.
fn dsdt() -> impl Aml {
    let mut bytes = Vec::new();
    // The sleep state S5 is the power-off.
    let power_off = Package::new(vec![&POWER_OFF_TYPE, &0_u8]);
    Name::new("_S5_".into(), &power_off).to_aml_bytes(&mut bytes);

    add_bus(&mut bytes);
    for (number, resources) in (0..).zip(SERIAL_PORTS) {
        add_serial(&mut bytes, number, resources);
    }

    let mut table = Sdt::new(*b"DSDT", HEADER_SIZE, DSDT_REVISION, OEM, OEM_TABLE, OEM_REVISION);
    table.append_slice(&bytes);
    table
}

/// Adds the bus with its windows, and the addresses of its configuration space.
fn add_bus(bytes: &mut Vec<u8>) {
    let uncached = AddressSpaceCacheable::NotCacheable;
    let writable = true;
    let (first_32, last_32) = (WINDOW_32.start as u32, (WINDOW_32.end - 1) as u32);
    let bus_number = AddressSpace::new_bus_number(0_u16, 0_u16);
    let ports = AddressSpace::new_io(WINDOW_IO.start as u16, (WINDOW_IO.end - 1) as u16, None);
    let memory_32 = AddressSpace::new_memory(uncached, writable, first_32, last_32, None);
    let memory_64 = AddressSpace::new_memory(uncached, writable, WINDOW_64.start, WINDOW_64.end - 1, None);

    let resources = ResourceTemplate::new(vec![&bus_number, &ports, &memory_32, &memory_64]);
    add_device(bytes, "PCI0", &[PCI_EXPRESS_BUS, PCI_BUS], 0, &resources);
    add_interrupt_routes(bytes);

    // Linux uses a configuration space only if its addresses are reserved.
    let reserved = Memory32Fixed::new(writable, ECAM.start as u32, (ECAM.end - ECAM.start) as u32);
    add_device(bytes, "MBRD", &[RESERVED_RESOURCES], 0, &ResourceTemplate::new(vec![&reserved]));
}

/// Adds the routes from the interrupt pin A of each slot to an input of the I/O APIC (`_PRT`).
fn add_interrupt_routes(bytes: &mut Vec<u8>) {
    // In an address, the upper half is the slot, and 0xffff stands for all of its functions.
    let addresses: Vec<_> = (0..PCI_SLOTS).map(|slot| u32::from(slot) << 16 | 0xffff).collect();
    let inputs: Vec<_> = (0..PCI_SLOTS).map(interrupt_line).collect();
    // The first 0 is pin A. The second one says that the next field is an input's number.
    let route = |slot: usize| Package::new(vec![&addresses[slot], &0_u8, &0_u8, &inputs[slot]]);
    let routes: Vec<_> = (0..usize::from(PCI_SLOTS)).map(route).collect();

    let routes = Package::new(routes.iter().map(|route| route as &dyn Aml).collect());
    let routes = Name::new("_PRT".into(), &routes);
    Scope::new("_SB_.PCI0".into(), vec![&routes]).to_aml_bytes(bytes);
}

/// Adds a serial port.
fn add_serial(bytes: &mut Vec<u8>, number: u8, SerialResources { first_port, pin }: SerialResources) {
    // The lowest and the highest possible first port are the same, so the alignment does not count.
    let ports = IO::new(first_port, first_port, 0, SERIAL_REGISTERS as u8);
    let (is_consumer, is_edge_triggered, is_active_low, is_shared) = (true, true, false, false);
    let interrupt = Interrupt::new(is_consumer, is_edge_triggered, is_active_low, is_shared, pin);
    let resources = ResourceTemplate::new(vec![&ports, &interrupt]);
    add_device(bytes, &format!("COM{}", number + 1), &[UART_16550A], number, &resources);
}

/// Adds a device. `ids` are its plug-and-play id (`_HID`), and that of a more general device that
/// it is compatible with (`_CID`), if there is one. `number` tells devices of one id apart.
fn add_device(bytes: &mut Vec<u8>, name: &str, ids: &[&str], number: u8, resources: &dyn Aml) {
    let names = ["_HID", "_CID"];
    let ids: Vec<_> =
        names.iter().zip(ids).map(|(name, id)| Name::new((*name).into(), &EISAName::new(id))).collect();
    let number = Name::new("_UID".into(), &number);
    let resources = Name::new("_CRS".into(), resources);

    let mut children: Vec<&dyn Aml> = ids.iter().map(|id| id as &dyn Aml).collect();
    children.extend([&number as &dyn Aml, &resources]);
    let device = Device::new(name.into(), children);
    Scope::new("_SB_".into(), vec![&device]).to_aml_bytes(bytes);
}
