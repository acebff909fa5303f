//! The name of a process, and how many objects it can have.

use super::objects::{Descriptor, Entry, Operation, Queue};
use super::process::Process;
use super::table::Table;

/// The name of a process in the network (`ptl_process_id_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Its node.
    pub node: u32,
    /// Its number on the node.
    pub process: u16,
}

/// How many objects of each kind a process can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Match entries, at most 65,535.
    pub entries: u16,
    /// Memory descriptors, at most 65,535.
    pub descriptors: u16,
    /// Event queues.
    pub queues: u16,
    /// Operations in progress that other processes have started.
    pub incoming: u16,
    /// Operations in progress that the process has started.
    pub outgoing: u16,
}

impl Limits {
    /// Bytes of a process without objects.
    pub const FIXED_BYTES: usize = size_of::<Process>();

    /// Bytes of each posted receive: a match entry with its descriptor.
    pub const POSTED_RECEIVE_BYTES: usize = Table::<Entry>::bytes(1) + Table::<Descriptor>::bytes(1);

    /// Returns the bytes of memory that a process with these limits takes.
    pub const fn bytes(&self) -> usize {
        let operations = self.incoming as usize + self.outgoing as usize;
        Self::FIXED_BYTES
            + Table::<Entry>::bytes(self.entries)
            + Table::<Descriptor>::bytes(self.descriptors)
            + Table::<Queue>::bytes(self.queues)
            + operations * Table::<Operation>::bytes(1)
    }

    /// Returns these limits with as many posted receives as fit in `bytes`: match entries and
    /// descriptors, besides the other objects.
    pub fn with_receives_in(self, bytes: usize) -> Self {
        let others = Self { entries: 0, descriptors: 0, ..self }.bytes();
        let receives = bytes.saturating_sub(others) / Self::POSTED_RECEIVE_BYTES;
        let receives = receives.min(usize::from(u16::MAX)) as u16;
        Self { entries: receives, descriptors: receives, ..self }
    }
}
