//! The start of a packed kernel by the 32-bit entry of Linux's boot protocol
//! (Documentation/arch/x86/boot.rst). The kernel unpacks itself.

use linux_loader::{
    configurator::{BootConfigurator, BootParams, linux::LinuxBootConfigurator},
    loader::{
        BzImage, KernelLoader,
        bootparam::{boot_e820_entry, boot_params, setup_header},
    },
};
use vm_memory::GuestAddress;

use super::{Entry, Image, Initrd, LoadedKernel, Protocol, memory_map};
use crate::{
    error::VmError,
    layout::{BOOT_PARAMETERS, COMMAND_LINE, KERNEL_RAM},
    memory::Ram,
};

/// Least version of the protocol: since 2.10 a kernel's header says how much memory the kernel
/// needs to unpack itself.
const LEAST_VERSION: u16 = 0x20a;
/// The type of a loader that has no number of its own.
const UNKNOWN_LOADER: u8 = 0xff;

/// Loads a bzImage.
pub(super) fn load(ram: &Ram, kernel: &Image) -> Result<LoadedKernel<setup_header>, VmError> {
    let mut source = kernel.source(ram)?;
    let start = GuestAddress(KERNEL_RAM);
    let loaded = BzImage::load(ram.memory(), Some(start), &mut source, Some(start))
        .map_err(|error| kernel.failed(&format!("neither an unpacked kernel nor a bzImage: {error}")))?;

    let header = loaded.setup_header.filter(|header| header.version >= LEAST_VERSION);
    let header = header.ok_or_else(|| kernel.failed(&"the kernel's boot protocol is older than 2.10"))?;
    let end = end_of_unpacked(&header).ok_or_else(|| kernel.failed(&"the kernel's header makes no sense"))?;
    let last_for_initrd = header.initrd_addr_max.into();
    Ok(LoadedKernel { header, end: end.max(loaded.kernel_end), last_for_initrd })
}

/// Returns the end of the memory that the kernel uses while it unpacks itself, before it reads the
/// memory map. It unpacks itself at its preferred address, or at the address where it is, whichever
/// is higher. `None` is an end beyond all addresses.
fn end_of_unpacked(header: &setup_header) -> Option<u64> {
    let alignment = u64::from(header.kernel_alignment).max(1);
    let start = KERNEL_RAM.checked_next_multiple_of(alignment)?.max(header.pref_address);
    start.checked_add(header.init_size.into())
}

/// Writes the boot parameters: the kernel's header, its command line, initramfs, memory map and
/// ACPI tables. Returns how the kernel is entered.
pub(super) fn write_parameters(
    ram: &Ram,
    header: setup_header,
    initrd: Option<Initrd>,
    rsdp: u64,
) -> Result<Entry, VmError> {
    let mut parameters = boot_params { hdr: header, acpi_rsdp_addr: rsdp, ..Default::default() };
    parameters.hdr.type_of_loader = UNKNOWN_LOADER;
    parameters.hdr.cmd_line_ptr = COMMAND_LINE as u32;
    if let Some(Initrd { address, size }) = initrd {
        // The initramfs is in the first range of RAM, below 4 GiB.
        parameters.hdr.ramdisk_image = address as u32;
        parameters.hdr.ramdisk_size = size as u32;
    }

    let map = memory_map(ram);
    parameters.e820_entries = map.len() as u8;
    let mut table = parameters.e820_table;
    for (entry, part) in table.iter_mut().zip(&map) {
        *entry = boot_e820_entry { addr: part.start, size: part.end - part.start, r#type: part.kind as u32 };
    }
    parameters.e820_table = table;

    let written = BootParams::new(&parameters, GuestAddress(BOOT_PARAMETERS));
    LinuxBootConfigurator::write_bootparams(&written, ram.memory())
        .map_err(|error| VmError::Memory(error.to_string()))?;
    Ok(Entry { address: KERNEL_RAM, protocol: Protocol::Linux { parameters: BOOT_PARAMETERS } })
}
