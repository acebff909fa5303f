//! A client's memory for DMA, and DMA by messages over the socket.

use std::collections::BTreeMap;

use nicforge_core::{
    dma::DmaError,
    machine::{Machine, Outgoing},
};
use nicforge_shm::SharedMemory;

use crate::Client;

/// `EFAULT`: a message asks for memory that the client does not have.
const BAD_ADDRESS: i32 = 14;

/// The memory of one client, by IOVA.
///
/// Each range is either mapped into the machine, as a host program's memory is, or reached by
/// messages, as memory without a file is. The test reads and writes both in the same way.
///
/// The machine queues a message for each DMA that touches a range of the second kind. The test
/// answers the queue with [`ClientMemory::answer`], at the moment that it chooses.
pub struct ClientMemory {
    client: Client,
    /// The ranges, by their first address.
    ranges: BTreeMap<u64, SharedMemory>,
}

impl ClientMemory {
    /// Returns the memory of a client that has none yet.
    pub const fn new(client: Client) -> Self {
        Self { client, ranges: BTreeMap::new() }
    }

    /// Adds a zeroed range of `length` bytes that the machine maps. `iova` and `length` are
    /// multiples of 4096.
    #[track_caller]
    pub fn map(&mut self, machine: &mut Machine, iova: u64, length: usize) {
        let memory = self.client.map(machine, iova, length);
        self.ranges.insert(iova, memory);
    }

    /// Adds a zeroed range of `length` bytes that only messages reach. `iova` and `length` are
    /// multiples of 4096.
    #[track_caller]
    pub fn map_remote(&mut self, machine: &mut Machine, iova: u64, length: usize) {
        self.client.map_remote(machine, iova, length as u64);
        self.ranges.insert(iova, SharedMemory::create("client", length).unwrap());
    }

    /// Removes the range that begins at `iova`. A DMA message for it is refused from now on.
    #[track_caller]
    pub fn unmap(&mut self, machine: &mut Machine, iova: u64) {
        let memory = self.ranges.remove(&iova).expect("no range begins at this address");
        let Client { function, attachment } = self.client;
        machine.dma_unmap(function, attachment, iova, memory.len() as u64).unwrap();
    }

    /// Returns the bytes at `iova`, which lie in one range or in adjacent ones.
    #[track_caller]
    pub fn read(&self, iova: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        assert!(self.copy_out(iova, &mut bytes), "{length} bytes at {iova:#x} lie in no range");
        bytes
    }

    /// Returns the 32 bits at `iova`, in little-endian order.
    #[track_caller]
    pub fn read32(&self, iova: u64) -> u32 {
        u32::from_le_bytes(self.read(iova, 4).try_into().unwrap())
    }

    /// Returns the 64 bits at `iova`, in little-endian order.
    #[track_caller]
    pub fn read64(&self, iova: u64) -> u64 {
        u64::from_le_bytes(self.read(iova, 8).try_into().unwrap())
    }

    /// Stores bytes at `iova`, in one range or in adjacent ones.
    #[track_caller]
    pub fn write(&self, iova: u64, bytes: &[u8]) {
        assert!(self.copy_in(iova, bytes), "{} bytes at {iova:#x} lie in no range", bytes.len());
    }

    /// Answers the client's queued DMA messages, in order, and returns their number. The device
    /// gets the results in a later step.
    #[track_caller]
    pub fn answer(&self, machine: &mut Machine) -> usize {
        let messages = machine.take_outgoing(self.client.function, self.client.attachment);
        for message in &messages {
            self.answer_message(machine, message);
        }

        messages.len()
    }

    /// Carries out the access of one message of this client, and answers it. The test has taken it
    /// from the machine's queue, and may have kept it for a while.
    #[track_caller]
    pub fn answer_message(&self, machine: &mut Machine, message: &Outgoing) {
        let refused = DmaError::Refused { errno: BAD_ADDRESS };

        match message {
            Outgoing::DmaRead { id, function, attachment, iova, length } => {
                let mut bytes = vec![0; *length];
                let found = self.copy_out(*iova, &mut bytes);
                let result = if found { Ok(bytes.as_slice()) } else { Err(refused) };
                machine.dma_read_done(*function, *attachment, *id, result).unwrap();
            }
            Outgoing::DmaWrite { id, function, attachment, iova, data } => {
                let result = if self.copy_in(*iova, data) { Ok(()) } else { Err(refused) };
                machine.dma_write_done(*function, *attachment, *id, result).unwrap();
            }
        }
    }

    /// Copies bytes out. Returns false unless all of them lie in ranges.
    fn copy_out(&self, iova: u64, bytes: &mut [u8]) -> bool {
        self.pieces(iova, bytes.len(), |memory, offset, range| {
            memory.read(offset, &mut bytes[range]).unwrap()
        })
    }

    /// Copies bytes in. Returns false unless all of them lie in ranges.
    fn copy_in(&self, iova: u64, bytes: &[u8]) -> bool {
        self.pieces(iova, bytes.len(), |memory, offset, range| memory.write(offset, &bytes[range]).unwrap())
    }

    /// Calls `access` with the memory, the offset in it, and the bytes of each piece of an access.
    /// A piece lies in one range. Returns false at the first address without memory.
    fn pieces(
        &self,
        iova: u64,
        length: usize,
        mut access: impl FnMut(&SharedMemory, u64, std::ops::Range<usize>),
    ) -> bool {
        let mut done = 0;
        while done < length {
            let Some(at) = iova.checked_add(done as u64) else { return false };
            let Some((start, memory)) = self.ranges.range(..=at).next_back() else { return false };
            let offset = at - start;
            let remaining = (memory.len() as u64).saturating_sub(offset);
            if remaining == 0 {
                return false;
            }

            let next = length.min(done.saturating_add(usize::try_from(remaining).unwrap_or(usize::MAX)));
            access(memory, offset, done..next);
            done = next;
        }

        true
    }
}

/// Removes and returns all DMA messages that the machine has queued for clients, for a test that
/// answers them itself.
pub fn take_messages(machine: &mut Machine) -> Vec<Outgoing> {
    std::iter::from_fn(|| machine.pop_outgoing()).collect()
}

/// Returns the number by which the answer to a message names it.
pub fn message_id(message: &Outgoing) -> u64 {
    match message {
        Outgoing::DmaRead { id, .. } | Outgoing::DmaWrite { id, .. } => *id,
    }
}
