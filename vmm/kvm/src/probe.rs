//! A trial of KVM with a 64-bit program of a few instructions.
//!
//! An accessible `/dev/kvm` proves little: a host without hardware virtualisation may offer a KVM
//! that runs 32-bit code alone. The trial takes milliseconds, where a trial with Linux takes
//! seconds.

use std::{
    fs::File,
    io::Write,
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::{
    error::VmError,
    layout::KERNEL_RAM,
    power::End,
    vm::{Vm, VmConfig},
};

/// Time limit of the trial. Where the processor is emulated it takes about 10 ms.
const LIMIT: Duration = Duration::from_secs(5);
/// RAM of the trial machine in bytes.
const RAM: u64 = 2 << 20;
/// Offsets in the trial's ELF file: the program headers behind the file's own header, the note with
/// the entry, and the program.
const LOAD_HEADER: usize = 64;
const NOTE_HEADER: usize = LOAD_HEADER + 56;
const NOTE: usize = NOTE_HEADER + 56;
const CODE: usize = 256;
/// Types of program headers: of a segment to load, and of notes (elf.h).
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
/// The type of the note that names the PVH entry (Xen, public/elfnote.h: `PHYS32_ENTRY`).
const PHYS32_ENTRY: u32 = 18;

/// The program, at [`KERNEL_RAM`]. From the PVH entry on, it enters 64-bit mode with pages of 2 MiB
/// and a table of interrupts. It takes a breakpoint, returns from it, and exchanges 16 bytes in
/// memory, all of which Linux does too. When all of it works, it switches the machine off.
///
/// ```text
/// mov dword [0x110000], 0x111003    tables of pages at 0x110000, 0x111000, 0x112000
/// mov dword [0x111000], 0x112003
/// mov dword [0x112000], 0x83
/// lgdt [gdt_pointer]
/// cr4 |= 0x220; cr3 = 0x110000      PAE, OSFXSR
/// msr 0xc0000080 |= 0x100           EFER.LME
/// cr0 |= 0x80000000; jmp 8:long     CR0.PG
/// long: mov esp, 0x1ff000
/// [0x113030] = gate of `handler`    vector 3
/// lidt [idt_pointer]
/// xor ebx, ebx; int3
/// cmp ebx, 1; jne fail
/// rax = rdx = rcx = 0; cmpxchg16b [0x114030]
/// cmp qword [0x114030], 1; jne fail
/// mov al, 0x34; mov dx, 0x600; out dx, al; jmp $
/// fail: ud2
/// handler: inc ebx; iretq
/// gdt: 0, 0x00af9b000000ffff, 0x00cf93000000ffff
/// gdt_pointer: 23, gdt
/// idt_pointer: 0xff, 0x113000
/// ```
#[rustfmt::skip]
const PROGRAM: [u8; 224] = [
    0xc7, 0x05, 0x00, 0x00, 0x11, 0x00, 0x03, 0x10, 0x11, 0x00, 0xc7, 0x05, 0x00, 0x10, 0x11, 0x00,
    0x03, 0x20, 0x11, 0x00, 0xc7, 0x05, 0x00, 0x20, 0x11, 0x00, 0x83, 0x00, 0x00, 0x00, 0x0f, 0x01,
    0x15, 0xd0, 0x00, 0x10, 0x00, 0x0f, 0x20, 0xe0, 0x0d, 0x20, 0x02, 0x00, 0x00, 0x0f, 0x22, 0xe0,
    0xb8, 0x00, 0x00, 0x11, 0x00, 0x0f, 0x22, 0xd8, 0xb9, 0x80, 0x00, 0x00, 0xc0, 0x0f, 0x32, 0x0d,
    0x00, 0x01, 0x00, 0x00, 0x0f, 0x30, 0x0f, 0x20, 0xc0, 0x0d, 0x00, 0x00, 0x00, 0x80, 0x0f, 0x22,
    0xc0, 0xea, 0x58, 0x00, 0x10, 0x00, 0x08, 0x00, 0xbc, 0x00, 0xf0, 0x1f, 0x00, 0x48, 0x8d, 0x05,
    0x49, 0x00, 0x00, 0x00, 0xbf, 0x30, 0x30, 0x11, 0x00, 0x66, 0x89, 0x07, 0xc7, 0x47, 0x02, 0x08,
    0x00, 0x00, 0x8e, 0xc1, 0xe8, 0x10, 0x66, 0x89, 0x47, 0x06, 0x0f, 0x01, 0x1d, 0x55, 0x00, 0x00,
    0x00, 0x31, 0xdb, 0xcc, 0x83, 0xfb, 0x01, 0x75, 0x22, 0x31, 0xc0, 0x31, 0xd2, 0x31, 0xc9, 0x48,
    0x0f, 0xc7, 0x8f, 0x00, 0x10, 0x00, 0x00, 0xbf, 0x30, 0x40, 0x11, 0x00, 0x48, 0x83, 0x3f, 0x01,
    0x75, 0x09, 0xb0, 0x34, 0x66, 0xba, 0x00, 0x06, 0xee, 0xeb, 0xfe, 0x0f, 0x0b, 0xff, 0xc3, 0x48,
    0xcf, 0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0xff, 0xff, 0x00, 0x00, 0x00, 0x9b, 0xaf, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x93, 0xcf, 0x00,
    0x17, 0x00, 0xb8, 0x00, 0x10, 0x00, 0xff, 0x00, 0x00, 0x30, 0x11, 0x00, 0x00, 0x00, 0x00, 0x00,
];

/// Tries whether KVM runs 64-bit code on this host.
///
/// # Errors
/// Returns why it does not: [`VmError::NoKvm`], or [`VmError::Request`] with the end of the trial.
pub fn probe() -> Result<(), VmError> {
    let mut file = File::from(
        memfd_create(c"nicforge-probe", MFdFlags::MFD_CLOEXEC)
            .map_err(|error| VmError::Memory(error.to_string()))?,
    );
    file.write_all(&kernel()).map_err(VmError::system("the file of a trial"))?;

    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let running = Vm::new(&VmConfig::new(path).memory(RAM))?.start()?;
    let begin = Instant::now();
    match running.wait(LIMIT) {
        Some(End::PowerOff) => {
            tracing::debug!(time = ?begin.elapsed(), "KVM runs 64-bit code");
            Ok(())
        }
        Some(end) => Err(VmError::Request(format!("KVM runs no 64-bit code here: {}", reason(&end)))),
        None => Err(VmError::Request(format!("a 64-bit program did not end within {LIMIT:?}"))),
    }
}

/// Returns why the trial ended. The text of a failed processor ends with its registers, behind a
/// semicolon: they are left out.
fn reason(end: &End) -> String {
    match end {
        End::Failed(text) => text.split(';').next().unwrap_or_default().to_owned(),
        end => format!("{end:?}"),
    }
}

/// Returns the program as a kernel: a 64-bit ELF file with a note that names its entry.
fn kernel() -> Vec<u8> {
    let mut file = vec![0; CODE];
    let mut put = |offset: usize, bytes: &[u8]| file[offset..offset + bytes.len()].copy_from_slice(bytes);

    // The file's header: 64 bits, little-endian; an executable (2) for x86-64 (62).
    put(0, b"\x7fELF\x02\x01\x01");
    put(16, &[2, 0, 62, 0, 1]);
    // The entry, and the offset of the program headers.
    put(24, &KERNEL_RAM.to_le_bytes());
    put(32, &(LOAD_HEADER as u64).to_le_bytes());
    // The sizes of this header and of a program header, and the number of program headers.
    put(52, &[64, 0, 56, 0, 2]);

    // The note: the sizes of its name and contents, its type, the name, and the entry's address.
    let note = [4, 4, PHYS32_ENTRY, u32::from_le_bytes(*b"Xen\0"), KERNEL_RAM as u32];
    let note = note.map(u32::to_le_bytes);
    put(NOTE, note.as_flattened());

    // Of a program header: the type, the offset in the file, the physical address, and the sizes in
    // the file and in memory.
    let mut put_program_header = |at: usize, type_: u32, offset: usize, size: usize| {
        put(at, &type_.to_le_bytes());
        put(at + 8, &(offset as u64).to_le_bytes());
        put(at + 24, &KERNEL_RAM.to_le_bytes());
        put(at + 32, &(size as u64).to_le_bytes());
        put(at + 40, &(size as u64).to_le_bytes());
    };
    put_program_header(LOAD_HEADER, PT_LOAD, CODE, PROGRAM.len());
    put_program_header(NOTE_HEADER, PT_NOTE, NOTE, note.as_flattened().len());

    file.extend(PROGRAM);
    file
}
