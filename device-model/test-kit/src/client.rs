//! A client of one attachment.

use std::sync::Arc;

use nicforge_core::{
    device::Ended,
    dma::{DmaBacking, DmaPermission},
    ids::{Address, AttachmentId, FunctionId},
    interrupt::{MSIX, Sink},
    machine::{Access, AccessError, Machine, region},
};
use nicforge_shm::SharedMemory;

use crate::{InterruptCount, PostedRing};

/// Offset of the command register in configuration space.
const COMMAND: u64 = 0x04;
/// The command register's bits for memory accesses and for bus mastering.
const MEMORY_AND_BUS_MASTER: u16 = 0x0006;

/// One client of a machine, by function and attachment.
///
/// It is a pair of numbers and can be copied. The machine holds the client's state, and each
/// method takes the machine. A method fails the test when the machine refuses the call, unless the
/// method says otherwise.
///
/// A *region* is a VFIO index: 0 to 5 are the BARs, and [`region::CONFIG`] is configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// The function.
    pub function: FunctionId,
    /// The attachment of the function.
    pub attachment: AttachmentId,
}

/// Makes a read and a write of each width.
macro_rules! widths {
    ($($read:ident $write:ident $value:ty, $bits:literal;)+) => {$(
        #[doc = concat!("Reads ", $bits, " bits, in little-endian order, by a trapped access.")]
        #[track_caller]
        pub fn $read(self, machine: &mut Machine, region: u32, offset: u64) -> $value {
            <$value>::from_le_bytes(self.read(machine, region, offset))
        }

        #[doc = concat!("Writes ", $bits, " bits, in little-endian order, by a trapped access.")]
        #[track_caller]
        pub fn $write(self, machine: &mut Machine, region: u32, offset: u64, value: $value) {
            self.write(machine, region, offset, &value.to_le_bytes());
        }
    )+};
}

impl Client {
    /// Names a client without attaching it.
    pub const fn new(function: FunctionId, attachment: AttachmentId) -> Self {
        Self { function, attachment }
    }

    /// Takes an attachment, and enables memory accesses and DMA as a driver does at its start.
    #[track_caller]
    pub fn attach(machine: &mut Machine, function: FunctionId, attachment: AttachmentId) -> Self {
        let client = Self::new(function, attachment);
        machine.attach(function, attachment).unwrap();
        client.enable_bus_master(machine);
        client
    }

    /// Ends the attachment as if the client had closed it or died.
    #[track_caller]
    pub fn detach(self, machine: &mut Machine) {
        machine.detach(self.function, self.attachment, Ended::Closed).unwrap();
    }

    /// Enables memory accesses and DMA. A function-level reset disables them.
    #[track_caller]
    pub fn enable_bus_master(self, machine: &mut Machine) {
        self.write16(machine, region::CONFIG, COMMAND, MEMORY_AND_BUS_MASTER);
    }

    /// Reads `N` bytes by a trapped access, which must not stall.
    #[track_caller]
    pub fn read<const N: usize>(self, machine: &mut Machine, region: u32, offset: u64) -> [u8; N] {
        let mut data = [0; N];
        assert_eq!(self.try_read(machine, region, offset, &mut data).unwrap(), Access::Done);
        data
    }

    /// Writes by a trapped access, which must not stall.
    #[track_caller]
    pub fn write(self, machine: &mut Machine, region: u32, offset: u64, data: &[u8]) {
        assert_ne!(self.try_write(machine, region, offset, data).unwrap(), Access::Stalled);
    }

    /// Reads by a trapped access. Returns the machine's result.
    pub fn try_read(
        self,
        machine: &mut Machine,
        region: u32,
        offset: u64,
        data: &mut [u8],
    ) -> Result<Access, AccessError> {
        machine.read(self.function, self.attachment, region, offset, data)
    }

    /// Writes by a trapped access. Returns the machine's result.
    pub fn try_write(
        self,
        machine: &mut Machine,
        region: u32,
        offset: u64,
        data: &[u8],
    ) -> Result<Access, AccessError> {
        machine.write(self.function, self.attachment, region, offset, data)
    }

    widths! {
        read8 write8 u8, "8";
        read16 write16 u16, "16";
        read32 write32 u32, "32";
        read64 write64 u64, "64";
    }

    /// Reads each register that the function declares and can be peeked at, and checks that the
    /// read returns the value of the peek. Returns the names of these registers. A read may have an
    /// effect, such as that of a register which it clears.
    #[track_caller]
    pub fn compare_peeks(self, machine: &mut Machine) -> Vec<&'static str> {
        let with_value =
            machine.registers(self.function).iter().filter(|register| register.access.has_value());
        let mut compared = Vec::new();
        for register in with_value {
            for index in 0..register.count {
                let at = Address { bar: register.bar, offset: register.offset_of(index) };
                let width = usize::from(register.width);
                let (mut peeked, mut read) = ([0; 8], [0; 8]);
                if !machine.peek(self.function, self.attachment, at, &mut peeked[..width]) {
                    continue;
                }

                let access = self.try_read(machine, at.bar.into(), at.offset, &mut read[..width]);
                assert_eq!(access.unwrap(), Access::Done);
                assert_eq!(read, peeked, "{}[{index}]", register.name);
                if compared.last() != Some(&register.name) {
                    compared.push(register.name);
                }
            }
        }
        compared
    }

    /// Returns the memory behind a BAR as this client sees it: windows, rings, mirror. The BAR must
    /// have mapped or mirrored memory.
    #[track_caller]
    pub fn memory(self, machine: &Machine, bar: u32) -> SharedMemory {
        machine.region(self.function, self.attachment, bar).unwrap().memory.unwrap()
    }

    /// Maps new zeroed memory of `length` bytes at `iova` for DMA, for reading and writing. The
    /// device reaches it directly. Both are multiples of 4096.
    ///
    /// [`crate::ClientMemory`] holds several such ranges, and ranges that only messages reach.
    #[track_caller]
    pub fn map(self, machine: &mut Machine, iova: u64, length: usize) -> SharedMemory {
        self.map_for(machine, iova, length, DmaPermission::READ_WRITE)
    }

    /// Maps memory as [`Client::map`] does, with these permissions.
    #[track_caller]
    pub fn map_for(
        self,
        machine: &mut Machine,
        iova: u64,
        length: usize,
        permission: DmaPermission,
    ) -> SharedMemory {
        let memory = SharedMemory::create("client", length).unwrap();
        let backing = DmaBacking::Memory(memory.whole());
        machine.dma_map(self.function, self.attachment, iova, length as u64, permission, backing).unwrap();
        memory
    }

    /// Maps a range for DMA, for reading and writing, that only messages reach. The test answers
    /// the messages; [`crate::ClientMemory`] does so from memory of its own.
    #[track_caller]
    pub fn map_remote(self, machine: &mut Machine, iova: u64, length: u64) {
        let (permission, backing) = (DmaPermission::READ_WRITE, DmaBacking::Remote);
        machine.dma_map(self.function, self.attachment, iova, length, permission, backing).unwrap();
    }

    /// Binds a new sink to one interrupt of a VFIO index, such as
    /// [`nicforge_core::interrupt::INTX`].
    #[track_caller]
    pub fn bind(self, machine: &mut Machine, index: u32, vector: u32) -> Arc<InterruptCount> {
        let count = Arc::new(InterruptCount::default());
        let sinks = vec![Some(count.clone() as _)];
        machine.bind_interrupts(self.function, self.attachment, index, vector, sinks).unwrap();
        count
    }

    /// Binds a new sink to each MSI-X vector. The result is indexed by vector.
    #[track_caller]
    pub fn bind_msix(self, machine: &mut Machine) -> Vec<Arc<InterruptCount>> {
        let info = machine.irq_info(self.function, self.attachment, MSIX).unwrap();
        let counts: Vec<_> = (0..info.count).map(|_| Arc::new(InterruptCount::default())).collect();
        let sinks: Vec<Sink> = counts.iter().map(|count| Some(count.clone() as _)).collect();
        machine.bind_interrupts(self.function, self.attachment, MSIX, 0, sinks).unwrap();
        counts
    }

    /// Returns the producer of the client's first posted-write ring.
    #[track_caller]
    pub fn ring(self, machine: &Machine) -> PostedRing {
        PostedRing::new(machine, self.function, self.attachment)
    }
}
