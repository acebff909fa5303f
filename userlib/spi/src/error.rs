//! Errors.

use std::fmt;

use nicforge_driver::Error as DriverError;
use nicforge_hwi::mu::{self, fault};
use nicforge_shm::MemoryError;
use thiserror::Error;

/// A field of a descriptor that has no meaning. The builders check what the unit would check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DescriptorError {
    /// The payload or an offset does not lie in the unit's addresses of 36 bits.
    #[error("{length} bytes at {address:#x} are outside the unit's 36 bits of address")]
    Address {
        /// First address.
        address: u64,
        /// Length in bytes.
        length: u64,
    },
    /// An atomic operation needs 8 aligned bytes.
    #[error("an atomic operation at {address:#x}: its address must be a multiple of 8")]
    AtomicAlignment {
        /// The address.
        address: u64,
    },
    /// The length does not fit the kind of message.
    #[error("a {kind} of {length} bytes: {possible}")]
    Length {
        /// Kind of the message.
        kind: &'static str,
        /// Length in bytes.
        length: u64,
        /// The possible lengths.
        possible: &'static str,
    },
    /// The map of network injection FIFOs is empty, or has FIFOs of another channel.
    #[error("network injection FIFOs {map:#06x}: packets of this channel may use some of {allowed:#06x}")]
    FifoMap {
        /// The requested bits.
        map: u64,
        /// The possible bits.
        allowed: u64,
    },
    /// There is no memory FIFO of this number.
    #[error("there is no {kind} memory FIFO {fifo}: they are 0 to {last}")]
    Fifo {
        /// "injection" or "reception".
        kind: &'static str,
        /// The number.
        fifo: u16,
        /// The last number.
        last: u16,
    },
    /// There is no entry of this number in the base address table.
    #[error("there is no base address {entry}: they are 0 to {last}")]
    BaseAddress {
        /// The number.
        entry: u16,
        /// The last number.
        last: u16,
    },
    /// A put offset has more than 37 bits.
    #[error("a put offset of {offset:#x}: it has at most 37 bits")]
    PutOffset {
        /// The offset.
        offset: u64,
    },
    /// There are four zones, 0 to 3.
    #[error("there is no zone {zone}: they are 0 to 3")]
    Zone {
        /// The number.
        zone: u8,
    },
    /// There is no class route of this number.
    #[error("there is no class route {class}: they are 0 to 15")]
    Class {
        /// The number.
        class: u8,
    },
    /// The words of a reduction have 4 to 512 bytes, a power of two; 8 for floating point.
    #[error("words of {bytes} bytes: 4 to 512 are possible, a power of two, and 8 for floating point")]
    Word {
        /// Bytes of a word.
        bytes: u16,
    },
    /// A coordinate has more than 6 bits.
    #[error("there is no node at {coordinates:?}: a coordinate has 6 bits")]
    Coordinates {
        /// The coordinates.
        coordinates: [u8; 5],
    },
}

/// Why the unit has stopped a FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// Start, size, head or tail are not possible.
    Pointers,
    /// The FIFO or a payload lies outside the ranges that the kernel permits, or in memory that
    /// only messages reach.
    Range,
    /// A field of the descriptor has no meaning.
    Descriptor,
    /// A user's descriptor names a FIFO or a channel of the system.
    Permission,
    /// The memory of the FIFO or of a payload is not mapped.
    Unmapped,
    /// The destination does not exist, or the partition does not lead there.
    Destination,
    /// Another value of the register.
    Other(u64),
}

impl Fault {
    /// Returns the fault that a register reports, if there is one.
    pub(crate) fn from_register(value: u64) -> Option<Self> {
        Some(match value {
            fault::NONE => return None,
            fault::POINTERS => Self::Pointers,
            fault::RANGE => Self::Range,
            fault::DESCRIPTOR => Self::Descriptor,
            fault::PERMISSION => Self::Permission,
            fault::UNMAPPED => Self::Unmapped,
            fault::DESTINATION => Self::Destination,
            other => Self::Other(other),
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pointers => "its start, size, head or tail is not possible",
            Self::Range => "memory outside the permitted ranges, or that only messages reach",
            Self::Descriptor => "a field of the descriptor has no meaning",
            Self::Permission => "a FIFO or channel of the system",
            Self::Unmapped => "memory that is not mapped",
            Self::Destination => "no such destination in this partition",
            Self::Other(value) => return write!(f, "reason {value}"),
        })
    }
}

/// A resource that the kernel allocates and subgroups have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Injection memory FIFOs, 8 of a subgroup.
    InjectionFifo,
    /// Reception memory FIFOs, 4 of a subgroup.
    ReceptionFifo,
    /// Entries of the base address table, 8 of a subgroup.
    BaseAddress,
    /// Class routes of collectives, 16 of a node.
    CollectiveClass,
    /// Class routes of barriers, 16 of a node.
    BarrierClass,
}

impl Resource {
    /// Returns how many of them a subgroup has, or a node for class routes.
    pub fn count(self) -> u8 {
        match self {
            Self::InjectionFifo => mu::INJECTION_FIFOS as u8,
            Self::ReceptionFifo => mu::RECEPTION_FIFOS as u8,
            Self::BaseAddress => mu::BASE_ADDRESSES as u8,
            Self::CollectiveClass | Self::BarrierClass => nicforge_hwi::mu_packet::CLASSES as u8,
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InjectionFifo => "injection FIFO",
            Self::ReceptionFifo => "reception FIFO",
            Self::BaseAddress => "base address",
            Self::CollectiveClass => "collective class route",
            Self::BarrierClass => "barrier class route",
        })
    }
}

/// Error of a call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The device is not an attachment of the required kind.
    #[error("this is not {wanted}: it is {found}")]
    WrongDevice {
        /// The required attachment.
        wanted: &'static str,
        /// The device.
        found: String,
    },
    /// There is no resource of this number.
    #[error("there is no {resource} {number}: they are 0 to {}", resource.count() - 1)]
    NoSuch {
        /// Kind of the resource.
        resource: Resource,
        /// The number.
        number: u8,
    },
    /// There is no such subgroup.
    #[error("there is no subgroup {subgroup}: they are 0 to {}", mu::SUBGROUPS - 1)]
    NoSuchSubgroup {
        /// The number.
        subgroup: u16,
    },
    /// More ranges of addresses than there are registers.
    #[error("{count} ranges of addresses: there are registers for {most}")]
    TooManyRanges {
        /// Number of ranges.
        count: usize,
        /// Number of registers.
        most: usize,
    },
    /// The kernel has allocated the resource already.
    #[error("{resource} {number} of subgroup {subgroup} is allocated already")]
    Taken {
        /// Kind of the resource.
        resource: Resource,
        /// The number.
        number: u8,
        /// The subgroup; 0 for class routes.
        subgroup: u16,
    },
    /// The kernel has not allocated the resource.
    #[error("{resource} {number} of subgroup {subgroup} is not allocated")]
    NotAllocated {
        /// Kind of the resource.
        resource: Resource,
        /// The number.
        number: u8,
        /// The subgroup; 0 for class routes.
        subgroup: u16,
    },
    /// The FIFO has no memory yet.
    #[error("{resource} {number} has no memory: initialise it first")]
    NotInitialised {
        /// Kind of the FIFO.
        resource: Resource,
        /// The number.
        number: u8,
    },
    /// A FIFO cannot have this memory.
    #[error(
        "a FIFO of {bytes} bytes at {address:#x}: {least} to {most} are possible, in multiples of {unit}, \
         and the address has at most 36 bits"
    )]
    FifoMemory {
        /// Address for the unit.
        address: u64,
        /// Size in bytes.
        bytes: u64,
        /// Smallest size in bytes.
        least: u64,
        /// Largest size in bytes.
        most: u64,
        /// Required multiple of address and size.
        unit: u64,
    },
    /// The memory has addresses above 36 bits, which the unit does not have.
    #[error("memory at {address:#x} is outside the unit's 36 bits of address")]
    AddressTooHigh {
        /// The address.
        address: u64,
    },
    /// A base address has bits above the 36 of an address and the indicator of an operation.
    #[error("a base address of {address:#x}: it has at most 37 bits")]
    BaseAddressTooHigh {
        /// The address.
        address: u64,
    },
    /// The batch is longer than the FIFO.
    #[error("{count} descriptors at once: the FIFO holds {most}")]
    Batch {
        /// Number of descriptors.
        count: usize,
        /// Maximum that the FIFO holds.
        most: u64,
    },
    /// The unit has stopped the FIFO.
    #[error("the unit has stopped injection FIFO {fifo}: {fault}")]
    Stopped {
        /// The FIFO in its subgroup.
        fifo: u8,
        /// The reason.
        fault: Fault,
    },
    /// A restart of the injection FIFO has withdrawn the descriptor. The unit may have begun it.
    #[error("descriptor {number} of injection FIFO {fifo} was withdrawn by a restart")]
    Withdrawn {
        /// The FIFO in its subgroup.
        fifo: u8,
        /// The descriptor's sequence number.
        number: u64,
    },
    /// The unit has stopped the reception FIFO.
    #[error("the unit has stopped reception FIFO {fifo}: {fault}")]
    ReceptionStopped {
        /// The FIFO in its subgroup.
        fifo: u8,
        /// The reason.
        fault: Fault,
    },
    /// The kernel does not permit the reception FIFO: it has disabled it, and not enabled it since.
    #[error("the kernel has disabled reception FIFO {fifo}: it must enable it first")]
    ReceptionRefused {
        /// The FIFO in its subgroup.
        fifo: u8,
    },
    /// The unit reports a value about a reception FIFO that is not possible.
    #[error("reception FIFO {fifo} is damaged: {what} is {value:#x}")]
    Damaged {
        /// The FIFO in its subgroup.
        fifo: u8,
        /// The wrong value's name.
        what: &'static str,
        /// The wrong value.
        value: u64,
    },
    /// A packet has arrived for which no function is registered.
    #[error("a packet for dispatch id {dispatch}, for which no function is registered, was dropped")]
    NoHandler {
        /// The packet's dispatch id.
        dispatch: u8,
    },
    /// The node is in a barrier of this class route already.
    #[error("the node is in the barrier of class route {class}: wait for its end")]
    InBarrier {
        /// The class route.
        class: u8,
    },
    /// The unit has not let this node enter the barrier, or the node's part of the class route was
    /// set since: the class route has no part of this node, or is the system's.
    #[error("the node is not in the barrier of class route {class}: give it a part in the class route")]
    BarrierRefused {
        /// The class route.
        class: u8,
    },
    /// A class route has no such line of global interrupts.
    #[error("there is no line {line} of global interrupts: they are 0 to 2")]
    NoLine {
        /// The line.
        line: u8,
    },
    /// The unit does not let this subgroup change a line: the class route has no part of this node,
    /// or is the system's.
    #[error("the unit refuses line {line} of class route {class}: give the node a part in it")]
    LineRefused {
        /// The class route.
        class: u8,
        /// The line.
        line: u8,
    },
    /// The node or the box of a class route is not possible.
    #[error("{what}: node {node:?} in {first:?} to {last:?} with root {root:?}")]
    ClassRoute {
        /// The value that is not possible.
        what: &'static str,
        /// The node.
        node: [u8; 5],
        /// First corner of the box.
        first: [u8; 5],
        /// Last corner of the box.
        last: [u8; 5],
        /// The root.
        root: [u8; 5],
    },
    /// A node can't have such a part of a class route.
    #[error(
        "inputs {input:#05x} and output {output:#05x} of class route {class}: at most one output, which is \
         no input"
    )]
    ClassRouteRefused {
        /// The class route.
        class: u8,
        /// The links by which packets come.
        input: u16,
        /// The links by which the combined packet goes.
        output: u16,
    },
    /// The device was reset since it was opened.
    #[error("the device was reset: open it, its FIFOs and its base addresses anew")]
    Reset,
    /// A descriptor's field has no meaning.
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
    /// An error of the driver library.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl From<MemoryError> for Error {
    fn from(error: MemoryError) -> Self {
        Self::Driver(error.into())
    }
}
