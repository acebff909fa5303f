//! Addresses of the virtual machine's memory, registers and I/O ports.

use std::ops::Range;

/// Start of the addresses below 4 GiB that have no RAM: those of BARs, the configuration space and
/// the interrupt controllers.
pub(crate) const HOLE: u64 = 0xc000_0000;
/// First address of the RAM that does not fit below the hole.
pub(crate) const HIGH_RAM: u64 = 1 << 32;

/// Addresses for BARs of 32 bits.
pub(crate) const WINDOW_32: Range<u64> = HOLE..0xe000_0000;
/// Addresses for BARs of 64 bits. Processors with 40 address bits reach them.
pub(crate) const WINDOW_64: Range<u64> = 0x10_0000_0000..0x40_0000_0000;
/// Ports for BARs of I/O ports.
pub(crate) const WINDOW_IO: Range<u64> = 0x1000..0x1_0000;

/// The configuration space of bus 0 (ECAM): 4 KiB for each function.
pub(crate) const ECAM: Range<u64> = 0xe000_0000..0xe010_0000;

/// Guest addresses that KVM uses itself on Intel's processors: a page table for real mode, and the
/// three pages of a task state segment.
pub(crate) const IDENTITY_MAP: u64 = 0xfffb_c000;
pub(crate) const TSS: usize = 0xfffb_d000;
/// Addresses of the registers of KVM's interrupt controllers.
pub(crate) const IO_APIC: u32 = 0xfec0_0000;
pub(crate) const LOCAL_APIC: u32 = 0xfee0_0000;

/// End of the RAM that a PC has below its old video memory.
pub(crate) const LOW_RAM_END: u64 = 0xa_0000;
/// First address of the kernel.
pub(crate) const KERNEL_RAM: u64 = 0x10_0000;

/// The structures of a PVH boot, in low RAM.
pub(crate) const START_INFO: u64 = 0x6000;
pub(crate) const MODULE_LIST: u64 = 0x6100;
pub(crate) const MEMORY_MAP: u64 = 0x7000;
/// The parameters of a bzImage, in low RAM.
pub(crate) const BOOT_PARAMETERS: u64 = 0x8000;
pub(crate) const COMMAND_LINE: u64 = 0x2_0000;
/// Longest command line, with its final zero. Linux has the same limit.
pub(crate) const COMMAND_LINE_SIZE: usize = 2048;
/// The ACPI tables. They are between the two parts of RAM, where no kernel allocates.
pub(crate) const ACPI: Range<u64> = 0xe_0000..RESET_VECTOR;
/// The last 16 bytes below 1 MiB. Kernels jump there in real mode to have the firmware reset the
/// machine. Linux does so where the hardware is reduced and there is no EFI.
pub(crate) const RESET_VECTOR: u64 = 0xf_fff0;

/// The addresses of a serial port.
#[derive(Clone, Copy)]
pub(crate) struct SerialResources {
    /// First of its [`SERIAL_REGISTERS`] I/O ports.
    pub(crate) first_port: u16,
    /// Its input of the I/O APIC.
    pub(crate) pin: u32,
}

/// The serial ports. On a PC the third one shares the first one's interrupt; an interrupt of its
/// own is simpler.
pub(crate) const SERIAL_PORTS: [SerialResources; 3] = [
    SerialResources { first_port: 0x3f8, pin: 4 },
    SerialResources { first_port: 0x2f8, pin: 3 },
    SerialResources { first_port: 0x3e8, pin: 5 },
];
/// Number of registers of a serial port, each in an I/O port of its own.
pub(crate) const SERIAL_REGISTERS: u16 = 8;

/// I/O ports of ACPI's registers for sleep and reset.
pub(crate) const SLEEP_CONTROL: u16 = 0x600;
pub(crate) const SLEEP_STATUS: u16 = 0x601;
pub(crate) const RESET: u16 = 0x602;
/// The value of [`RESET`] that resets the machine.
pub(crate) const RESET_VALUE: u8 = 1;
/// The type of the sleep state S5, power-off.
pub(crate) const POWER_OFF_TYPE: u8 = 5;
/// The value of [`SLEEP_CONTROL`] that switches the machine off: the type from bit 2 on (SLP_TYP),
/// and the bit that enters the state (SLP_EN).
pub(crate) const POWER_OFF: u8 = POWER_OFF_TYPE << 2 | 1 << 5;

/// Number of inputs of KVM's I/O APIC. The first 16 have the numbers of a PC's interrupts; the
/// others are for the slots of the bus.
pub(crate) const IO_APIC_PINS: u32 = 24;
const FIRST_PCI_PIN: u32 = 16;

/// Number of slots of the bus.
pub(crate) const PCI_SLOTS: u8 = 32;

/// Returns the input of the I/O APIC for the interrupt line of a slot. Several slots share an
/// input.
pub(crate) fn interrupt_line(slot: u8) -> u32 {
    FIRST_PCI_PIN + u32::from(slot) % (IO_APIC_PINS - FIRST_PCI_PIN)
}
