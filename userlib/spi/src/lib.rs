//! The SPI of Blue Gene/Q: messages by the Message Unit of a node.
//!
//! A process opens a [`Subgroup`], gives its FIFOs memory, and injects descriptors
//! ([`memory_fifo`], [`direct_put`], [`remote_get`]). The unit reads the payloads, and sends them
//! through the torus. The receiver's unit stores the packets in a reception FIFO, or writes the
//! data and a [`Counter`]. The program that holds the kernel's attachment of a node ([`Kernel`])
//! allocates, and sets class routes. The names of the public SPI (`MUSPI_*`, `Kernel_*`) are in the
//! items' descriptions. The paper is Chen et al., "The IBM Blue Gene/Q Interconnection Network and
//! Message Unit", SC 2011, sections III and IV.
//!
//! ```no_run
//! use std::time::Duration;
//! use nicforge_driver::{Deadline, Device, OpenOptions, environment};
//! use nicforge_spi::{
//!     Counter, DirectPut, Error, InjectionAttributes, Options, Payload, Subgroup, direct_put,
//! };
//!
//! # fn main() -> Result<(), Error> {
//! let device = Device::open_env(environment::SOCKET, OpenOptions::default())?;
//! let mut subgroup = Subgroup::open(&device, Options::default())?;
//! subgroup.open_injection(0, 64, InjectionAttributes::default())?;
//! let memory = subgroup.memory(1 << 20)?;
//! subgroup.set_base_address(0, memory.iova())?;
//! let counter = Counter::new(&memory, 0)?;
//! counter.set(4096);
//!
//! // All nodes run this program, and put to the next one.
//! let position = subgroup.position();
//! let next = (position.rank() + 1) % position.nodes();
//! let next = position.coordinates(next).unwrap_or(position.own);
//! let target = DirectPut {
//!     payload_base: subgroup.base_address_id(0),
//!     offset: 8192,
//!     counter_base: subgroup.base_address_id(0),
//!     counter_offset: counter.offset(memory.iova())?,
//!     ..DirectPut::default()
//! };
//! let block = Payload::memory(memory.iova() + 4096, 4096);
//! let put = direct_put(block, position.dynamic(next), &target)?;
//! let deadline = Deadline::after(Duration::from_secs(1));
//! subgroup.inject(0, &put, deadline, None)?;
//! subgroup.wait_counter(&counter, deadline, None)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Rules
//! - A descriptor's addresses are those of the memory of the subgroup whose injection FIFO holds
//!   it. For the descriptors of a remote get, that is the FIFO which the remote get names.
//! - The payload must not change until [`Injection::check_done`] returns true. The data
//!   are at the target when its counter says so, or its packets are there.
//! - The descriptors of a FIFO are carried out in order. Packets arrive in order only on a way that
//!   keeps it ([`NodePosition::ordered`]).
//! - A descriptor that the unit refuses stops its FIFO: calls return [`Error::Stopped`], until
//!   [`Subgroup::restart_injection`].
//! - A receiver that takes no packets stalls the network in front of it. Waits end at their
//!   deadlines.
//! - A message to a node or subgroup that is gone is lost without a report. The sender and those
//!   receivers that wait for it notice by their deadlines.
//! - A subgroup does not outlive [`nicforge_driver::Device::reset`]: its waits return
//!   [`Error::Reset`]. The process must open it again.
//!
//! # Dependencies
//! Input: a [`nicforge_driver::Device`]. Output: moved data, packets, errors. The crate may use
//! `driver`, `hwi` for the layouts, and `shm` for memory.
#![forbid(unsafe_code)]

mod address;
mod all_to_all;
mod barrier;
mod class_route;
mod counter;
mod descriptor;
mod error;
mod fifo;
mod global;
mod injection;
mod interrupt;
mod kernel;
mod page;
mod position;
mod reception;
mod subgroup;

pub use nicforge_hwi::{
    mu::NO_BASE_ADDRESS,
    mu_packet::{Descriptor, Destination, PacketHeader, fifo_map},
};

pub use self::{
    address::{Load, Store, load_address, store_address, store_offset},
    all_to_all::{Blocks, RandomOrder},
    barrier::Barrier,
    class_route::{Box5, ClassRoute, link},
    counter::Counter,
    descriptor::{
        Collective, CollectiveChannel, CollectiveKind, DirectPut, Hint, MemoryFifo, MessageRoute, Operation,
        Payload, PointToPoint, Reduction, RemoteGet, Routing, SOFTWARE_BYTES, direct_put, local_copy,
        memory_fifo, prefetch, remote_get,
    },
    error::{DescriptorError, Error, Fault, Resource},
    global::GlobalInterrupt,
    injection::Injection,
    interrupt::FifoInterrupts,
    kernel::{AddressRange, Kernel},
    position::{Coordinates, NodePosition},
    reception::{DISPATCH_IDS, Handler, Handlers, Packet},
    subgroup::{InjectionAttributes, Options, Subgroup},
};
