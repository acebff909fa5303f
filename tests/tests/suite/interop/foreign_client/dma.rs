//! `DMA_MAP`, `DMA_UNMAP`, and a device that reads and writes the `vfio_user` crate's memory.

use std::os::fd::AsRawFd;

use nicforge_hwi::proof::dma_engine::*;
use nicforge_shm::SharedMemory;
use nicforge_tests::backing::Served;
use nicforge_vfio_user::PCI_MSIX_IRQ;
use nix::sys::eventfd::EventFd;
use vfio_bindings::bindings::vfio::{VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD};
use vfio_user::Client;

use super::{attachment, connect, enable, proof, read32, write32};
use crate::interop::common::{eventfd, signals, with_time_out};

const PAGE: u64 = 0x1000;

/// Where the client's memory has something.
struct Place {
    /// The address for the device.
    address: u64,
    /// The offset in the file.
    offset: u64,
}

/// The scatter list.
const LIST: Place = Place { address: 0x10_0000, offset: 2 * PAGE };
/// The bytes to copy, on the page after the list's.
const SOURCE: Place = Place { address: LIST.address + PAGE, offset: LIST.offset + PAGE };
/// The copy.
const DESTINATION: Place = Place { address: 0x70_0000, offset: 0 };

/// A client of the DMA engine that has mapped two ranges of one file. It has eventfds for the end
/// of a list and for errors.
struct Engine {
    client: Client,
    memory: SharedMemory,
    done: EventFd,
    error: EventFd,
}

impl Engine {
    /// Connects, maps both ranges, binds the eventfds and enables the card.
    fn open(served: &Served) -> Self {
        let mut client = connect(served, "dma0", "user0");
        let memory = SharedMemory::create("foreign", 5 * PAGE as usize).unwrap();
        let fd = memory.fd().unwrap().as_raw_fd();

        client.dma_map(LIST.offset, LIST.address, 2 * PAGE, fd).unwrap();
        client.dma_map(DESTINATION.offset, DESTINATION.address, PAGE, fd).unwrap();
        let (done, error) = (eventfd(), eventfd());
        let flags = VFIO_IRQ_SET_ACTION_TRIGGER | VFIO_IRQ_SET_DATA_EVENTFD;

        client.set_irqs(PCI_MSIX_IRQ, flags, 0, 2, &[done.as_raw_fd(), error.as_raw_fd()]).unwrap();
        enable(&mut client);
        Self { client, memory, done, error }
    }

    /// Starts copying `len` bytes from [`SOURCE`] to [`DESTINATION`].
    fn start(&mut self, len: u64) {
        let descriptor = [SOURCE.address, DESTINATION.address, len].map(u64::to_le_bytes).concat();
        self.memory.write(LIST.offset, &descriptor).unwrap();
        self.client.region_write(0, REG_LIST, &LIST.address.to_le_bytes()).unwrap();
        write32(&mut self.client, 0, REG_COUNT, 1);
        write32(&mut self.client, 0, REG_START, 1);
    }

    /// Returns `len` bytes of the file.
    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.memory.read(at, &mut data).unwrap();
        data
    }
}

#[test]
fn the_device_copies_within_memory_that_the_vfio_user_crate_mapped() {
    with_time_out(|| {
        let served = proof();
        let mut engine = Engine::open(&served);
        let data: Vec<u8> = (0..1000_u32).map(|at| (at * 31) as u8).collect();

        engine.memory.write(SOURCE.offset, &data).unwrap();
        engine.start(1000);

        assert_eq!(signals(&engine.done), 1);
        assert_eq!(engine.bytes(DESTINATION.offset, 1000), data);
        assert_eq!(engine.bytes(DESTINATION.offset + 1000, 8), [0; 8]);
        assert_eq!(read32(&mut engine.client, 0, REG_STATUS), 0);

        let attachment = attachment(&served, "dma0", "user0");
        assert_eq!(attachment.client.unwrap().ranges, 2);

        // The device used the mapping alone: the `vfio_user` crate could not answer a message.
        assert_eq!(attachment.server.dma_messages, 0);
    });
}

#[test]
fn memory_that_the_vfio_user_crate_unmapped_is_out_of_reach() {
    with_time_out(|| {
        let served = proof();
        let mut engine = Engine::open(&served);
        engine.memory.write(SOURCE.offset, &[7; 64]).unwrap();

        engine.client.dma_unmap(DESTINATION.address, PAGE).unwrap();
        engine.start(64);

        assert_eq!(signals(&engine.error), 1);
        assert_eq!(read32(&mut engine.client, 0, REG_STATUS), STATUS_DMA_ERROR);
        assert_eq!(engine.bytes(DESTINATION.offset, 64), [0; 64]);
        assert_eq!(attachment(&served, "dma0", "user0").client.unwrap().ranges, 1);
    });
}

/// The server refuses an overlapping mapping with `EEXIST`. The `vfio_user` crate does not examine
/// the error of a reply and reports success. The earlier mapping stays in effect.
#[test]
fn the_vfio_user_crate_takes_a_refused_map_for_a_success_and_nothing_is_mapped() {
    with_time_out(|| {
        let served = proof();
        let mut engine = Engine::open(&served);
        engine.memory.write(SOURCE.offset, &[7; 64]).unwrap();

        let overlapping = SharedMemory::create("other", PAGE as usize).unwrap();
        assert!(
            engine.client.dma_map(0, SOURCE.address, PAGE, overlapping.fd().unwrap().as_raw_fd()).is_ok()
        );

        engine.start(64);
        assert_eq!(signals(&engine.done), 1);
        assert_eq!(engine.bytes(DESTINATION.offset, 64), [7; 64]);
        assert_eq!(attachment(&served, "dma0", "user0").client.unwrap().ranges, 2);
    });
}
