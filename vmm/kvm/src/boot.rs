//! The start of a kernel by its PVH entry.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

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
use vm_memory::{Address, Bytes, GuestAddress};

use crate::{
    acpi,
    error::VmError,
    layout::{
        COMMAND_LINE, COMMAND_LINE_SIZE, ECAM, KERNEL_RAM, LOW_RAM_END, MEMORY_MAP, MODULE_LIST, START_INFO,
    },
    memory::{PAGE, Ram},
};

/// The number that marks a start info (Xen, public/arch-x86/hvm/start_info.h).
const START_MAGIC: u32 = 0x336e_c578;
/// Types of the memory map's entries.
const TYPE_RAM: u32 = 1;
const TYPE_RESERVED: u32 = 2;

/// The software that a machine starts.
#[derive(Clone, Debug)]
pub(crate) struct Software {
    pub(crate) kernel: PathBuf,
    pub(crate) initrd: Option<PathBuf>,
    pub(crate) command_line: String,
}

/// The state in which the first processor starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) address: u64,
    pub(crate) start_info: u64,
}

/// Fills the RAM with a kernel and all that its start needs.
pub(crate) fn load(ram: &Ram, software: &Software, processors: u8) -> Result<Entry, VmError> {
    let (address, kernel_end) = load_kernel(ram, &software.kernel)?;
    let module = match &software.initrd {
        Some(initrd) => Some(load_initrd(ram, initrd, kernel_end)?),
        None => None,
    };

    let mut line = software.command_line.clone().into_bytes();
    line.push(0);
    if line.len() > COMMAND_LINE_SIZE {
        let text = format!("a command line of {} bytes is too long", line.len());
        return Err(VmError::Request(text));
    }
    write(ram, COMMAND_LINE, &line)?;

    write_start_info(ram, module, acpi::write(ram, processors)?)?;
    Ok(Entry { address, start_info: START_INFO })
}

/// Loads a kernel. Returns its PVH entry, and the first address behind it.
fn load_kernel(ram: &Ram, path: &Path) -> Result<(u64, u64), VmError> {
    let failed = |problem: String| VmError::File { path: path.to_owned(), problem };
    let mut file = File::open(path).map_err(|error| failed(error.to_string()))?;
    let loaded = Elf::load(ram.memory(), None, &mut file, Some(GuestAddress(KERNEL_RAM)))
        .map_err(|error| failed(error.to_string()))?;

    match loaded.pvh_boot_cap {
        PvhBootCapability::PvhEntryPresent(entry) => Ok((entry.raw_value(), loaded.kernel_end)),
        _ => Err(failed("the kernel has no PVH entry".into())),
    }
}

/// Loads an initramfs at the end of the low RAM, where the growing kernel comes last.
fn load_initrd(ram: &Ram, path: &Path, kernel_end: u64) -> Result<hvm_modlist_entry, VmError> {
    let failed = |problem: String| VmError::File { path: path.to_owned(), problem };
    let mut content = Vec::new();
    let mut file = File::open(path).map_err(|error| failed(error.to_string()))?;
    file.read_to_end(&mut content).map_err(|error| failed(error.to_string()))?;

    let end = ram.ranges().first().map_or(0, |range| range.size);
    let start = end.checked_sub(content.len() as u64).map(|start| start / PAGE * PAGE);
    let start = start.filter(|start| *start >= kernel_end);
    let start = start.ok_or_else(|| failed("does not fit into the guest's memory".into()))?;

    write(ram, start, &content)?;
    Ok(hvm_modlist_entry { paddr: start, size: content.len() as u64, ..Default::default() })
}

/// Writes the structures that tell the kernel of its memory, modules and tables.
fn write_start_info(ram: &Ram, module: Option<hvm_modlist_entry>, rsdp: u64) -> Result<(), VmError> {
    let map = memory_map(ram);
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
        .map_err(|error| VmError::Memory(error.to_string()))
}

/// Returns the memory map: RAM without the part for ACPI and firmware, and the reserved addresses.
fn memory_map(ram: &Ram) -> Vec<hvm_memmap_table_entry> {
    let entry = |start: u64, end: u64, type_| hvm_memmap_table_entry {
        addr: start,
        size: end - start,
        type_,
        reserved: 0,
    };

    let mut map = vec![entry(0, LOW_RAM_END, TYPE_RAM)];
    for range in ram.ranges() {
        map.push(entry(range.address.max(KERNEL_RAM), range.address + range.size, TYPE_RAM));
    }
    map.push(entry(ECAM.start, ECAM.end, TYPE_RESERVED));
    map
}

fn write(ram: &Ram, address: u64, bytes: &[u8]) -> Result<(), VmError> {
    let written = ram.memory().write_slice(bytes, GuestAddress(address));
    written.map_err(|error| VmError::Memory(error.to_string()))
}
