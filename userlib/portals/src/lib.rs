//! Portals 3.3 on the Cray SeaStar: one-sided messages with matching (Brightwell et al., "SeaStar
//! Interconnect: Balanced Bandwidth for Scalable Performance").
//!
//! Input: a [`nicforge_driver::Device`] for the kernel's attachment and one for each process, and
//! the calls of Portals. Output: data in memory, and events in queues.
//!
//! A [`Kernel`] boots a node. An [`Interface`] is a process's access to the network. The process
//! allocates [`Region`]s of memory, covers them with memory descriptors, and puts these into match
//! lists. A put or get of another process finds a descriptor by its match bits, and moves data
//! without a copy. An [`EventQueue`] reports the progress and the end of operations.
//!
//! ```no_run
//! use nicforge_driver::{Deadline, Device};
//! use nicforge_portals::{
//!     Ack, Criteria, Descriptor, Error, Interface, Kernel, KernelConfig, Mode, Options, Position,
//!     ProcessId, Target, Unlink,
//! };
//!
//! # fn run(kernel_device: Device, process_device: Device) -> Result<(), Error> {
//! let kernel = Kernel::boot(kernel_device, KernelConfig::default())?;
//! let interface = Interface::open(&kernel, process_device, Mode::NicBased)?;
//! let (memory, queue) = (interface.allocate(4096)?, interface.allocate_queue(64)?);
//!
//! let (options, queued) = (Options::PUT, Some(&queue));
//! let receive = Descriptor { options, queue: queued, ..Descriptor::over(&memory) };
//! interface.post(Position::Tail(4), Criteria::bits(7), Unlink::Automatic, &receive, None)?;
//! let send = interface.bind_descriptor(&Descriptor::over(&memory))?;
//! let target = Target::new(ProcessId { node: 1, process: 0 }, 4, 7);
//! interface.put_region(&send, 0, 64, Ack::No, &target, 0)?;
//! let event = queue.wait(Deadline::never(), None)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Modes
//! [`Mode`] says where messages are matched. The calls are the same in both.
//! - *NIC-based*: calls are commands in the process's mailbox. The card matches messages and writes
//!   events into the process's memory. Scratch memory of the card bounds the number of objects.
//! - *Host-based*: calls go to the kernel, which matches messages when the card interrupts it.
//!   Regions may consist of pieces.
//!
//! # Names
//! Each call names its counterpart of the standard, as `PtlMDBind`. The chapter *Portals* of the
//! book has a table of all of them.
//!
//! | module | content |
//! | --- | --- |
//! | `interface.rs`, `queue.rs`, `region.rs` | the calls, event queues, memory |
//! | `link.rs`, `mailbox.rs` | the way of a call to the card or to the kernel |
//! | `kernel` | boot, processes, and matching in host-based mode |
//! | `types.rs`, `config.rs`, `error.rs` | types of the interface |
#![forbid(unsafe_code)]

mod config;
mod error;
mod interface;
mod kernel;
mod link;
mod mailbox;
mod queue;
mod region;
mod types;

pub use config::{KernelConfig, Mode};
pub use error::{Error, Refusal};
pub use interface::{Interface, MemoryDescriptor};
pub use kernel::{Kernel, KernelBacklog};
pub use nicforge_seastar_firmware::matching::Limits;
pub use queue::EventQueue;
pub use region::Region;
pub use types::{
    Access, Ack, Criteria, Descriptor, DescriptorId, Event, EventKind, Failure, Initiator, MatchEntry,
    Options, Position, ProcessId, Status, Target, Threshold, Transfer, Unlink,
};
