//! A driver of QEMU's `edu` device, a PCI card that nicforge does not serve. It uses registers, an
//! interrupt, and DMA in both directions.
//!
//! QEMU describes the card in `docs/specs/edu`. Run the example in a guest that was started with
//! `-device edu`. Bind the card to `vfio-pci` (with an IOMMU) or to the kernel shim:
//!
//! ```sh
//! edu vfio:0000:00:04.0
//! edu shim:/dev/nicforge0
//! ```

use std::{process::ExitCode, time::Duration};

use nicforge_driver::{Bar, Deadline, Device, DmaBuffer, Error, HugePages, Interrupt, OpenOptions};

/// The card's PCI identity.
const VENDOR: u16 = 0x1234;
const DEVICE: u16 = 0x11e8;

// Offsets of the card's 32-bit registers in BAR 0.
const IDENTIFICATION: u64 = 0x00;
const LIVENESS: u64 = 0x04;
const FACTORIAL: u64 = 0x08;
const STATUS: u64 = 0x20;
const INTERRUPT_STATUS: u64 = 0x24;
const INTERRUPT_RAISE: u64 = 0x60;
const INTERRUPT_ACKNOWLEDGE: u64 = 0x64;
// Offsets of the DMA engine's 64-bit registers in BAR 0.
const DMA_SOURCE: u64 = 0x80;
const DMA_DESTINATION: u64 = 0x88;
const DMA_COUNT: u64 = 0x90;
const DMA_COMMAND: u64 = 0x98;

/// The last byte of the identification: "edu" in hexadecimal digits.
const EDU: u32 = 0xed;
/// Bit of the status register: a factorial is being computed.
const COMPUTING: u32 = 0x01;
/// Bit of the status register: the card interrupts when the factorial is computed.
const INTERRUPT_WHEN_COMPUTED: u32 = 0x80;
/// Bit of the DMA command: start.
const START: u64 = 0x1;
/// Bit of the DMA command: copy from the card to memory.
const TO_MEMORY: u64 = 0x2;
/// Bit of the DMA command: interrupt when done.
const INTERRUPT_WHEN_COPIED: u64 = 0x4;
/// Bit of the interrupt status: a DMA command is done.
const COPIED: u32 = 0x100;
/// Bit of the interrupt status: a factorial was computed.
const COMPUTED: u32 = 0x1;
/// The address of the card's own memory for its DMA engine.
const OWN_MEMORY: u64 = 0x4_0000;
/// Bytes of that memory.
const OWN_MEMORY_SIZE: u64 = 4096;

/// An open card.
struct Edu {
    device: Device,
    registers: Bar,
    interrupt: Interrupt,
}

/// Returns the deadline of a wait for the card that begins now.
fn deadline() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

impl Edu {
    /// Checks that the device is an edu card, and binds its interrupt.
    fn open(device: Device) -> Result<Self, Error> {
        let identity = device.identity();
        let registers = device.bar(0)?;
        let identification = registers.read32(IDENTIFICATION)?;
        if (identity.vendor, identity.device) != (VENDOR, DEVICE) || identification & 0xff != EDU {
            return Err(Error::Protocol { what: "this is no edu card", value: identification.into() });
        }

        // The card has one MSI vector, and no MSI-X.
        let interrupt = device.interrupt(0)?;
        Ok(Self { device, registers, interrupt })
    }

    /// Checks the liveness register, which inverts the value written to it.
    fn is_alive(&self) -> Result<bool, Error> {
        self.registers.write32(LIVENESS, 0x0123_4567)?;
        Ok(self.registers.read32(LIVENESS)? == !0x0123_4567)
    }

    /// Waits for interrupts until one of them has `cause` among its causes.
    fn wait_for(&self, cause: u32) -> Result<(), Error> {
        let deadline = deadline();
        loop {
            self.interrupt.wait(deadline, None)?;
            let causes = self.registers.read32(INTERRUPT_STATUS)?;
            self.registers.write32(INTERRUPT_ACKNOWLEDGE, causes)?;

            if causes & cause != 0 {
                return Ok(());
            }
        }
    }

    /// Has the card compute a factorial, and waits for the result.
    fn factorial(&self, number: u32) -> Result<u32, Error> {
        self.registers.write32(STATUS, INTERRUPT_WHEN_COMPUTED)?;
        self.registers.write32(FACTORIAL, number)?;
        self.wait_for(COMPUTED)?;

        while self.registers.read32(STATUS)? & COMPUTING != 0 {}
        self.registers.read32(FACTORIAL)
    }

    /// Copies `len` bytes from `from` to `to`, one of which is DMA memory and the other the card's.
    /// `direction` is [`TO_MEMORY`], or 0 for a copy to the card.
    fn copy(&self, from: u64, to: u64, len: u64, direction: u64) -> Result<(), Error> {
        self.registers.write64(DMA_SOURCE, from)?;
        self.registers.write64(DMA_DESTINATION, to)?;
        self.registers.write64(DMA_COUNT, len)?;
        self.registers.write64(DMA_COMMAND, START | direction | INTERRUPT_WHEN_COPIED)?;
        self.wait_for(COPIED)
    }

    /// Sends a pattern to the card and fetches it back to another address. Returns whether it came
    /// back unchanged.
    fn loop_back(&self, buffer: &DmaBuffer) -> Result<bool, Error> {
        let sent: Vec<_> = (0..OWN_MEMORY_SIZE).map(|index| ((index * 7) ^ (index >> 8)) as u8).collect();
        buffer.write(0, &sent)?;

        self.copy(buffer.iova(), OWN_MEMORY, OWN_MEMORY_SIZE, 0)?;
        self.copy(OWN_MEMORY, buffer.iova() + OWN_MEMORY_SIZE, OWN_MEMORY_SIZE, TO_MEMORY)?;

        let mut received = vec![0; sent.len()];
        buffer.read(OWN_MEMORY_SIZE, &mut received)?;
        Ok(sent == received)
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("edu: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Error> {
    let mut arguments = std::env::args_os().skip(1);
    let device = match arguments.next() {
        Some(name) => Device::open_named(name, OpenOptions::default())?,
        None => Device::open_env(nicforge_driver::environment::SOCKET, OpenOptions::default())?,
    };

    let edu = Edu::open(device)?;
    println!("alive: {}", edu.is_alive()?);
    println!("10! = {}", edu.factorial(10)?);

    // The card interrupts with the causes that are written to this register.
    const CAUSES: u32 = 0x5000;
    edu.registers.write32(INTERRUPT_RAISE, CAUSES)?;
    edu.wait_for(CAUSES)?;
    println!("interrupted as asked");

    let buffer = edu.device.dma_buffer(2 * OWN_MEMORY_SIZE as usize, HugePages::Never)?;
    println!("4096 bytes to the card and back unchanged: {}", edu.loop_back(&buffer)?);
    Ok(())
}
