//! The start of a kernel: an unpacked one by its PVH entry, or a bzImage by Linux's boot protocol.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod.rs` | the files, and what both ways have in common |
//! | `pvh.rs` | an unpacked kernel (`vmlinux`) |
//! | `bzimage.rs` | a packed kernel (`bzImage`, `vmlinuz`) |
//! | `source.rs` | how a file gets into the RAM |

mod bzimage;
mod pvh;
mod source;

use std::{
    fs::File,
    io::{self, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::PathBuf,
};

use vm_memory::{Bytes, GuestAddress};

use self::source::Source;
use crate::{
    acpi,
    error::VmError,
    layout::{
        COMMAND_LINE, COMMAND_LINE_SIZE, ECAM, KERNEL_RAM, LOW_RAM_END, RESET, RESET_VALUE, RESET_VECTOR,
    },
    memory::{PAGE, Ram},
};

/// The first bytes of an unpacked kernel.
const ELF: [u8; 4] = *b"\x7fELF";

/// The software that a machine starts.
#[derive(Clone, Debug)]
pub(crate) struct Software {
    pub(crate) kernel: PathBuf,
    pub(crate) initrd: Option<PathBuf>,
    pub(crate) command_line: String,
}

/// The open files of the software. A machine that starts anew reads them again.
pub(crate) struct Images {
    kernel: Image,
    initrd: Option<Image>,
}

/// One open file of the software. The path is for error texts.
struct Image {
    path: PathBuf,
    file: File,
}

impl Images {
    /// Opens the files.
    pub(crate) fn open(software: &Software) -> Result<Self, VmError> {
        let kernel = Image::open(&software.kernel)?;
        let initrd = software.initrd.as_ref().map(Image::open).transpose()?;
        Ok(Self { kernel, initrd })
    }
}

impl Image {
    fn open(path: &PathBuf) -> Result<Self, VmError> {
        let failed = |error: io::Error| VmError::File { path: path.clone(), problem: error.to_string() };
        Ok(Self { path: path.clone(), file: File::open(path).map_err(failed)? })
    }

    /// Returns the file as what is to be read into RAM, from its beginning on.
    fn source<'a>(&self, ram: &'a Ram) -> Result<Source<'a>, VmError> {
        let mut file = self.file.try_clone().map_err(|error| self.failed(&error))?;
        file.seek(SeekFrom::Start(0)).map_err(|error| self.failed(&error))?;
        Ok(Source { file, ram })
    }

    /// Returns whether the file is an unpacked kernel.
    fn is_elf(&self) -> Result<bool, VmError> {
        let mut start = [0; ELF.len()];
        self.file.read_exact_at(&mut start, 0).map_err(|error| self.failed(&error))?;
        Ok(start == ELF)
    }

    /// Returns an error about the file.
    fn failed(&self, problem: &dyn std::fmt::Display) -> VmError {
        VmError::File { path: self.path.clone(), problem: problem.to_string() }
    }
}

/// The state in which the first processor starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) address: u64,
    pub(crate) protocol: Protocol,
}

/// The boot protocols, which differ in how a kernel finds its parameters. Both begin in 32-bit
/// protected mode without paging.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Protocol {
    /// The register EBX has the address of the start info.
    Pvh { start_info: u64 },
    /// The register ESI has the address of the boot parameters.
    Linux { parameters: u64 },
}

/// An initramfs in RAM.
#[derive(Clone, Copy)]
struct Initrd {
    address: u64,
    size: u64,
}

/// A kernel in RAM.
struct LoadedKernel<H> {
    /// The part of its file that the writing of its parameters needs: a bzImage's header, or the
    /// address of the PVH entry.
    header: H,
    /// First address that neither the loaded file nor the kernel's unpacking uses.
    end: u64,
    /// Last address where the kernel can read an initramfs.
    last_for_initrd: u64,
}

/// A part of the memory map.
struct MapEntry {
    start: u64,
    /// First address behind the part.
    end: u64,
    kind: MapKind,
}

/// The kinds of the memory map's parts, with the numbers of ACPI and of both protocols.
#[derive(Clone, Copy)]
enum MapKind {
    Ram = 1,
    Reserved = 2,
}

/// Fills the RAM with a kernel and all that its start needs. Returns how the first processor enters
/// the kernel.
pub(crate) fn load(ram: &Ram, images: &Images, command_line: &str, processors: u8) -> Result<Entry, VmError> {
    let mut line = command_line.as_bytes().to_vec();
    line.push(0);
    if line.len() > COMMAND_LINE_SIZE {
        let text = format!("a command line of {} bytes is too long", line.len());
        return Err(VmError::Request(text));
    }
    write(ram, COMMAND_LINE, &line)?;
    write(ram, RESET_VECTOR, &reset_code())?;
    let rsdp = acpi::write(ram, processors)?;

    if images.kernel.is_elf()? {
        let kernel = pvh::load(ram, &images.kernel)?;
        let initrd = load_initrd(ram, images, &kernel)?;
        pvh::write_start_info(ram, kernel.header, initrd, rsdp)
    } else {
        let kernel = bzimage::load(ram, &images.kernel)?;
        let initrd = load_initrd(ram, images, &kernel)?;
        bzimage::write_parameters(ram, kernel.header, initrd, rsdp)
    }
}

/// Loads the initramfs, if there is one, as high as possible below 4 GiB, because the kernel
/// allocates memory behind itself while it starts.
fn load_initrd<H>(ram: &Ram, images: &Images, kernel: &LoadedKernel<H>) -> Result<Option<Initrd>, VmError> {
    let Some(initrd) = &images.initrd else { return Ok(None) };
    let mut source = initrd.source(ram)?;
    let size = source.file.metadata().map_err(|error| initrd.failed(&error))?.len();

    let low_ram_end = ram.ranges().first().map_or(0, |range| range.size);
    let end = low_ram_end.min(kernel.last_for_initrd.saturating_add(1));
    let start = end.checked_sub(size).map(|start| start / PAGE * PAGE);
    let start = start.filter(|start| *start >= kernel.end);
    let start = start.ok_or_else(|| initrd.failed(&"does not fit into the guest's memory"))?;

    let read = ram.memory().read_exact_volatile_from(GuestAddress(start), &mut source, size as usize);
    read.map_err(|error| initrd.failed(&error))?;
    Ok(Some(Initrd { address: start, size }))
}

/// Returns the memory map: RAM without the part for ACPI and firmware, and the reserved addresses.
fn memory_map(ram: &Ram) -> Vec<MapEntry> {
    let mut map = vec![MapEntry { start: 0, end: LOW_RAM_END, kind: MapKind::Ram }];
    for range in ram.ranges() {
        let (start, end) = (range.address.max(KERNEL_RAM), range.address + range.size);
        map.push(MapEntry { start, end, kind: MapKind::Ram });
    }
    map.push(MapEntry { start: ECAM.start, end: ECAM.end, kind: MapKind::Reserved });
    map
}

/// Returns the machine code at the reset vector, for real mode: it resets the machine.
fn reset_code() -> [u8; 9] {
    let [low, high] = RESET.to_le_bytes();
    // mov dx, RESET; mov al, RESET_VALUE; out dx, al; hlt; jmp to the hlt
    [0xba, low, high, 0xb0, RESET_VALUE, 0xee, 0xf4, 0xeb, 0xfd]
}

/// Writes bytes at a guest address.
fn write(ram: &Ram, address: u64, bytes: &[u8]) -> Result<(), VmError> {
    let written = ram.memory().write_slice(bytes, GuestAddress(address));
    written.map_err(|error| VmError::Memory(error.to_string()))
}
