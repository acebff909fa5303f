//! Programs for a virtual machine: 32-bit code without an operating system, in a kernel's file.
//!
//! A program starts at the PVH entry, as Linux does. It writes its results to the first serial
//! port, one byte each.

use std::{io::Write, path::Path};

/// Address of the code.
const CODE: u32 = 0x10_0000;
/// Offset of the code in the file: after the headers and the note.
const CODE_OFFSET: usize = 0x100;

/// The first serial port, and the port that switches the machine off, with its value.
const SERIAL: u16 = 0x3f8;
const SLEEP: u16 = 0x600;
const POWER_OFF: u8 = 0x34;
/// The port that resets the machine.
const RESET: u16 = 0x602;

/// A program under construction. Each method appends instructions.
#[derive(Default)]
pub(crate) struct Payload(Vec<u8>);

impl Payload {
    /// Writes `count` bytes at an address to the serial port by one instruction: `rep outsb`.
    pub(crate) fn say_string(mut self, address: u32, count: u32) -> Self {
        self.0.push(0xbe);
        self = self.append(&[address]);
        self.0.push(0xb9);
        self = self.append(&[count]);
        self.0.extend([0x66, 0xba]);
        self.0.extend(SERIAL.to_le_bytes());
        self.0.extend([0xf3, 0x6e]);
        self
    }

    /// Reads `count` bytes from a port to an address by one instruction: `rep insb`.
    pub(crate) fn read_string(mut self, port: u16, address: u32, count: u32) -> Self {
        self.0.push(0xbf);
        self = self.append(&[address]);
        self.0.push(0xb9);
        self = self.append(&[count]);
        self.0.extend([0x66, 0xba]);
        self.0.extend(port.to_le_bytes());
        self.0.extend([0xf3, 0x6c]);
        self
    }

    /// Appends another program.
    pub(crate) fn then(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// `mov dword [address], value`
    pub(crate) fn store(mut self, address: u32, value: u32) -> Self {
        self.0.extend([0xc7, 0x05]);
        self.append(&[address, value])
    }

    /// Stores the numbers from `count` to 1 to an address, one after the other.
    pub(crate) fn store_countdown(mut self, address: u32, count: u32) -> Self {
        // mov ecx, count
        self.0.push(0xb9);
        self = self.append(&[count]);
        // mov [address], ecx
        self.0.extend([0x89, 0x0d]);
        self = self.append(&[address]);
        // loop to the store, which has six bytes
        self.0.extend([0xe2, 0xf8]);
        self
    }

    /// `mov word [address], value`
    pub(crate) fn store_16(mut self, address: u32, value: u16) -> Self {
        self.0.extend([0x66, 0xc7, 0x05]);
        self = self.append(&[address]);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// `mov byte [address], value`
    pub(crate) fn store_8(mut self, address: u32, value: u8) -> Self {
        self.0.extend([0xc6, 0x05]);
        self = self.append(&[address]);
        self.0.push(value);
        self
    }

    /// `mov eax, [address]`
    pub(crate) fn load(mut self, address: u32) -> Self {
        self.0.push(0xa1);
        self.append(&[address])
    }

    /// Loads a word and writes its four bytes to the serial port, the lowest first.
    pub(crate) fn show(self, address: u32) -> Self {
        let mut shown = self.load(address);
        for _ in 0..4 {
            shown = shown.out(SERIAL);
            // shr eax, 8
            shown.0.extend([0xc1, 0xe8, 8]);
        }
        shown
    }

    /// Waits until any of these bits of a word is set.
    pub(crate) fn wait_for(self, address: u32, bits: u32) -> Self {
        let mut waiting = self.load(address);
        // test eax, bits; jz to the load
        waiting.0.push(0xa9);
        waiting = waiting.append(&[bits]);
        waiting.0.extend([0x74, 0xf4]);
        waiting
    }

    /// Writes a byte to the serial port.
    pub(crate) fn say(mut self, byte: u8) -> Self {
        self.0.extend([0xb0, byte]);
        self.out(SERIAL)
    }

    /// Resets the machine, and appends what a processor does that was not stopped.
    pub(crate) fn reset(mut self) -> Self {
        self.0.extend([0xb0, 1]);
        self = self.out(RESET);
        // jmp to itself
        self.0.extend([0xeb, 0xfe]);
        self
    }

    /// Switches the machine off, and appends what a processor does that was not stopped.
    pub(crate) fn power_off(mut self) -> Self {
        self.0.extend([0xb0, POWER_OFF]);
        self = self.out(SLEEP);
        // jmp to itself
        self.0.extend([0xeb, 0xfe]);
        self
    }

    /// An instruction that no processor has. Without a table of exceptions, this ends in a triple
    /// fault.
    pub(crate) fn fail(mut self) -> Self {
        self.0.extend([0x0f, 0x0b]);
        self
    }

    /// `mov dx, port; out dx, al`
    fn out(mut self, port: u16) -> Self {
        self.0.extend([0x66, 0xba]);
        self.0.extend(port.to_le_bytes());
        self.0.push(0xee);
        self
    }

    fn append(mut self, words: &[u32]) -> Self {
        self.0.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self
    }

    /// `mov [address], esi`
    pub(crate) fn store_esi(mut self, address: u32) -> Self {
        self.0.extend([0x89, 0x35]);
        self.append(&[address])
    }

    /// Writes the program as a packed kernel, which asks for `init_size` bytes to unpack itself.
    pub(crate) fn write_packed(&self, path: &Path, init_size: u32) {
        // One sector for the boot sector, and one for the setup.
        let mut file = vec![0; 1024];
        let mut put = |offset: usize, bytes: &[u8]| file[offset..offset + bytes.len()].copy_from_slice(bytes);
        put(0x1f1, &[1]);
        put(0x1fe, &[0x55, 0xaa]);
        put(0x202, b"HdrS");
        put(0x206, &0x20f_u16.to_le_bytes());
        // Loaded high: at 1 MiB.
        put(0x211, &[1]);
        put(0x214, &CODE.to_le_bytes());
        put(0x22c, &0x7fff_ffff_u32.to_le_bytes());
        put(0x230, &0x1000_u32.to_le_bytes());
        put(0x258, &u64::from(CODE).to_le_bytes());
        put(0x260, &init_size.to_le_bytes());

        file.extend(&self.0);
        std::fs::write(path, file).unwrap();
    }

    /// Writes the program as a kernel: a 64-bit ELF file with a note that names the entry.
    pub(crate) fn write(&self, path: &Path) {
        let mut file = vec![0; CODE_OFFSET];
        let mut put = |offset: usize, bytes: &[u8]| file[offset..offset + bytes.len()].copy_from_slice(bytes);
        let size = self.0.len() as u64;

        // The file's header, with two program headers of 56 bytes at 64.
        put(0, b"\x7fELF\x02\x01\x01");
        put(16, &[2, 0, 62, 0, 1]);
        put(24, &u64::from(CODE).to_le_bytes());
        put(32, &64_u64.to_le_bytes());
        put(52, &[64, 0, 56, 0, 2]);

        // The code, which is loaded, and the note.
        for (at, kind, offset, size) in [(64, 1_u32, CODE_OFFSET as u64, size), (120, 4, 176, 20)] {
            put(at, &kind.to_le_bytes());
            put(at + 8, &offset.to_le_bytes());
            put(at + 24, &u64::from(CODE).to_le_bytes());
            put(at + 32, &size.to_le_bytes());
            put(at + 40, &size.to_le_bytes());
        }
        for (at, word) in [(176, 4), (180, 4), (184, 18), (188, u32::from_le_bytes(*b"Xen\0")), (192, CODE)] {
            put(at, &word.to_le_bytes());
        }

        file.extend(&self.0);
        std::fs::File::create(path).unwrap().write_all(&file).unwrap();
    }
}
