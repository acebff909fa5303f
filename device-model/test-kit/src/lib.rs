//! Helpers for tests of a device model: a machine with a clock, clients, and the far end of a link.
//!
//! A [`Testbed`] is a machine and the time at which it is stepped. A [`Client`] is an attachment's
//! client: it reads and writes registers, has windows and interrupts, and maps memory for DMA.
//! Nothing runs beside the test, so that each run of a test takes the same steps.
//!
//! | type | what it stands for |
//! | --- | --- |
//! | [`Testbed`] | the machine, stepped until it is idle or a condition holds; its virtual clock |
//! | [`Client`] | a client, and its trapped accesses of all widths |
//! | [`PostedRing`] | the producer of a client's posted-write ring |
//! | [`ClientMemory`] | a client's memory for DMA: mapped, or accessed only by DMA messages |
//! | [`InterruptCount`] | an interrupt's sink, which counts |
//! | [`PeerPort`] | the far end of a link of a lone device |
//! | [`LogLines`] | the lines that the device logs about errors, drops and refusals |
//!
//! A call that the machine refuses fails the test, and the failure names the line of the call.
//!
//! # A device and its test
//!
//! The device stores the square of a number into client memory, and raises an interrupt.
//!
//! ```
//! use nicforge_core::{
//!     context::Context,
//!     device::{Device, Reset, Write},
//!     ids::{Address, AttachmentId},
//!     spec::{AttachmentSpec, FunctionSpec, Identity, NicSizes},
//! };
//! use nicforge_test_kit::{Client, Testbed};
//!
//! const REG_ADDRESS: u64 = 0x00; // 64 bits: the IOVA of the result
//! const REG_NUMBER: u64 = 0x08; // 32 bits: a write starts the calculation
//!
//! #[derive(Default)]
//! struct Squarer {
//!     address: u64,
//! }
//!
//! impl Device for Squarer {
//!     fn spec(&self) -> FunctionSpec {
//!         let identity = Identity {
//!             vendor: 0x1234,
//!             device: 1,
//!             subsystem_vendor: 0,
//!             subsystem: 0,
//!             class: 0xff_00_00,
//!             revision: 1,
//!         };
//!         let user = AttachmentSpec { name: "user0".to_owned(), group: 0 };
//!         // 4 KiB of registers, one vector, a ring of 64 cells.
//!         let sizes = NicSizes {
//!             register_bytes: 0x1000,
//!             vectors: 1,
//!             ring_cells: 64,
//!             ..NicSizes::default()
//!         };
//!         FunctionSpec::nic(identity, vec![user], sizes)
//!     }
//!
//!     fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}
//!
//!     fn write(
//!         &mut self,
//!         context: &mut Context<'_>,
//!         from: AttachmentId,
//!         at: Address,
//!         data: &[u8],
//!     ) -> Write {
//!         if let (REG_ADDRESS, Ok(address)) = (at.offset, data.try_into()) {
//!             self.address = u64::from_le_bytes(address);
//!         }
//!         if let (REG_NUMBER, Ok(number)) = (at.offset, data.try_into()) {
//!             let square = u64::from(u32::from_le_bytes(number)).pow(2);
//!             if context.dma_write(from, self.address, &square.to_le_bytes()).is_ok() {
//!                 context.interrupt(from, 0);
//!             }
//!         }
//!
//!         Write::Accepted
//!     }
//!
//!     fn reset(&mut self, _: &mut Context<'_>, _: Reset) {
//!         *self = Self::default();
//!     }
//! }
//!
//! let mut bed = Testbed::new();
//! let card = bed.add("card0", Squarer::default());
//! let client = Client::attach(&mut bed, card, AttachmentId(0));
//! let memory = client.map(&mut bed, 0x10_0000, 4096);
//! let interrupts = client.bind_msix(&mut bed);
//! let mut ring = client.ring(&bed);
//!
//! client.write64(&mut bed, 0, REG_ADDRESS, 0x10_0008);
//! ring.push32(0, REG_NUMBER as u32, 7);
//! bed.run_until_idle();
//!
//! let mut result = [0; 8];
//! memory.read(8, &mut result).unwrap();
//! assert_eq!(u64::from_le_bytes(result), 49);
//! assert_eq!(interrupts[0].get(), 1);
//! ```
//!
//! # Packets
//!
//! [`Testbed::connect`] puts a link between two devices. [`Testbed::peer`] gives the test the far
//! end of a lone device's link:
//!
//! ```no_run
//! # use nicforge_core::{fabric::LinkSpec, ids::FunctionId};
//! # use nicforge_test_kit::{PeerPacket, Testbed};
//! # let (mut bed, card) = (Testbed::new(), FunctionId(0));
//! let peer = bed.peer((card, 0), LinkSpec::default());
//! peer.send(&mut bed, 0, &PeerPacket::new(0, b"ping"));
//! bed.run_until_idle();
//! assert_eq!(peer.take(&mut bed, 0).unwrap().bytes, b"pong");
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper of tests fails the test"
)]

mod client;
mod interrupt;
mod log;
mod memory;
mod peer;
mod ring;
mod testbed;

pub use client::Client;
pub use interrupt::InterruptCount;
pub use log::LogLines;
pub use memory::{ClientMemory, message_id, take_messages};
pub use peer::{PeerPacket, PeerPort};
pub use ring::PostedRing;
pub use testbed::{BUDGET, MAX_STEPS, Testbed, settle};
