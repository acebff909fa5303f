//! The start of an unpacked kernel by its PVH entry.

use linux_loader::{
    configurator::{BootConfigurator, BootParams, pvh::PvhBootConfigurator},
    loader::{
        KernelLoader,
        elf::{
            Elf, PvhBootCapability,
            start_info::{hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info},
        },
    },
};
use vm_memory::{Address, GuestAddress};

use super::{Entry, Image, Initrd, LoadedKernel, MapEntry, Protocol, memory_map};
use crate::{
    error::VmError,
    layout::{COMMAND_LINE, KERNEL_RAM, MEMORY_MAP, MODULE_LIST, START_INFO},
    memory::Ram,
};

/// The number that marks a start info (Xen, public/arch-x86/hvm/start_info.h).
const START_MAGIC: u32 = 0x336e_c578;

/// The address of a kernel's PVH entry.
#[derive(Clone, Copy)]
pub(super) struct EntryAddress(u64);

/// Loads an unpacked kernel.
pub(super) fn load(ram: &Ram, kernel: &Image) -> Result<LoadedKernel<EntryAddress>, VmError> {
    let mut source = kernel.source(ram)?;
    let loaded = Elf::load(ram.memory(), None, &mut source, Some(GuestAddress(KERNEL_RAM)))
        .map_err(|error| kernel.failed(&error))?;

    match loaded.pvh_boot_cap {
        PvhBootCapability::PvhEntryPresent(entry) => {
            let header = EntryAddress(entry.raw_value());
            Ok(LoadedKernel { header, end: loaded.kernel_end, last_for_initrd: u64::MAX })
        }
        _ => Err(kernel.failed(&"the kernel has no PVH entry")),
    }
}

/// Writes the start info: the kernel's command line, initramfs (a *module* of PVH), memory map and
/// ACPI tables. Returns how the kernel is entered.
pub(super) fn write_start_info(
    ram: &Ram,
    EntryAddress(entry_address): EntryAddress,
    initrd: Option<Initrd>,
    rsdp: u64,
) -> Result<Entry, VmError> {
    let map_entry = |part: &MapEntry| hvm_memmap_table_entry {
        addr: part.start,
        size: part.end - part.start,
        type_: part.kind as u32,
        reserved: 0,
    };
    let map: Vec<_> = memory_map(ram).iter().map(map_entry).collect();
    let module = initrd.map(|Initrd { address, size }| hvm_modlist_entry {
        paddr: address,
        size,
        ..Default::default()
    });

    let info = hvm_start_info {
        magic: START_MAGIC,
        version: 1,
        nr_modules: u32::from(module.is_some()),
        modlist_paddr: module.map_or(0, |_| MODULE_LIST),
        cmdline_paddr: COMMAND_LINE,
        rsdp_paddr: rsdp,
        memmap_paddr: MEMORY_MAP,
        memmap_entries: map.len() as u32,
        ..Default::default()
    };

    let mut parameters = BootParams::new(&info, GuestAddress(START_INFO));
    parameters.set_sections(&map, GuestAddress(MEMORY_MAP));
    if let Some(module) = module {
        parameters.set_modules(&[module], GuestAddress(MODULE_LIST));
    }
    PvhBootConfigurator::write_bootparams(&parameters, ram.memory())
        .map_err(|error| VmError::Memory(error.to_string()))?;
    Ok(Entry { address: entry_address, protocol: Protocol::Pvh { start_info: START_INFO } })
}
