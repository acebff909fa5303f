//! `DMA_MAP` and `DMA_UNMAP`.

use std::os::fd::AsFd;

use nicforge_shm::SharedMemory;
use nicforge_vfio_user::{
    Client, DMA_FLAG_READ, DMA_FLAG_WRITE, DmaMap, DmaUnmap, Errno, IrqAction, IrqPayload, PCI_MSIX_IRQ,
};

use super::{card::reg, rig::Rig};
use crate::interop::common::{eventfd, signals, with_time_out};

const PAGE: u64 = 0x1000;
/// The DMA address of the bytes to copy.
const SOURCE: u64 = 0x10_0000;
/// The DMA address of the copy.
const TARGET: u64 = 0x50_0000;
/// The flags of memory that the device may read and write.
const READ_WRITE: u32 = DMA_FLAG_READ | DMA_FLAG_WRITE;

/// Returns the mapping of a page from an offset of a file.
fn range(flags: u32, address: u64, offset: u64) -> DmaMap {
    DmaMap { flags, offset, address, size: PAGE }
}

/// Copies `len` bytes from [`SOURCE`] to [`TARGET`] and returns whether that succeeded.
fn copy(client: &Client, len: u32) -> bool {
    let done = eventfd();
    let payload = [Some(done.as_fd())];
    client.set_irqs(PCI_MSIX_IRQ, 0, IrqAction::Trigger, IrqPayload::EventFd(&payload)).unwrap();
    client.region_write(0, reg::SOURCE, &SOURCE.to_le_bytes(), false).unwrap();
    client.region_write(0, reg::TARGET, &TARGET.to_le_bytes(), false).unwrap();
    client.region_write(0, reg::COPY, &len.to_le_bytes(), false).unwrap();

    assert_eq!(signals(&done), 1);

    let mut copied = [0; 4];
    client.region_read(0, reg::COPIED, &mut copied).unwrap();
    u32::from_le_bytes(copied) == 1
}

/// Returns 64 bytes of memory.
fn bytes(memory: &SharedMemory, at: u64) -> [u8; 64] {
    let mut data = [0; 64];
    memory.read(at, &mut data).unwrap();
    data
}

#[test]
fn the_vfio_user_crates_device_copies_within_memory_that_we_mapped() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();
        let memory = SharedMemory::create("ours", 4 * PAGE as usize).unwrap();

        memory.write(PAGE, &[3; 64]).unwrap();
        client.dma_map(range(DMA_FLAG_READ, SOURCE, PAGE), memory.fd()).unwrap();
        client.dma_map(range(READ_WRITE, TARGET, 3 * PAGE), memory.fd()).unwrap();

        assert!(copy(&client, 64));
        assert_eq!(bytes(&memory, 3 * PAGE), [3; 64]);

        let maps = [(DMA_FLAG_READ, SOURCE, PAGE, true), (READ_WRITE, TARGET, PAGE, true)];
        assert_eq!(*rig.seen.maps.lock().unwrap(), maps);
    });
}

#[test]
fn memory_that_we_unmapped_is_out_of_the_vfio_user_crates_reach() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();
        let memory = SharedMemory::create("ours", 2 * PAGE as usize).unwrap();

        memory.write(0, &[3; 64]).unwrap();
        client.dma_map(range(READ_WRITE, SOURCE, 0), memory.fd()).unwrap();
        client.dma_map(range(READ_WRITE, TARGET, PAGE), memory.fd()).unwrap();

        client.dma_unmap(DmaUnmap::Range { address: TARGET, size: PAGE }).unwrap();
        assert!(!copy(&client, 64));
        assert_eq!(bytes(&memory, PAGE), [0; 64]);

        let second_unmap = client.dma_unmap(DmaUnmap::Range { address: TARGET, size: PAGE });
        assert_eq!(second_unmap.unwrap_err().errno(), Errno::EIO);
        assert_eq!(*rig.seen.unmaps.lock().unwrap(), [(0, TARGET, PAGE); 2]);
    });
}

/// "All" is VFIO's flag, bit 1. The `vfio_user` crate passes it on, although it has another name
/// for that bit.
#[test]
fn unmap_all_reaches_the_vfio_user_crates_device_as_vfios_bit() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();
        let memory = SharedMemory::create("ours", PAGE as usize).unwrap();

        client.dma_map(range(READ_WRITE, SOURCE, 0), memory.fd()).unwrap();
        client.dma_unmap(DmaUnmap::All).unwrap();
        assert!(!copy(&client, 0));

        let [(flags, 0, 0)] = rig.seen.unmaps.lock().unwrap()[..] else { panic!("one unmap") };
        assert_eq!(flags, vfio_user::DmaUnmapFlags::GET_DIRTY_PAGE_INFO.bits());
    });
}

/// The `vfio_user` crate's server has no messages by which a device could reach memory that the
/// client maps without a descriptor. It asks the device, and the device refuses.
#[test]
fn the_vfio_user_crates_device_refuses_memory_without_a_descriptor() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();

        let refused = client.dma_map(range(READ_WRITE, SOURCE, 0), None);
        assert_eq!(refused.unwrap_err().errno(), Errno::EIO);
        let has_descriptor = false;
        assert_eq!(*rig.seen.maps.lock().unwrap(), [(READ_WRITE, SOURCE, PAGE, has_descriptor)]);
    });
}
