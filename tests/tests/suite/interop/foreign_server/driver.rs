//! The driver library at the server of the `vfio_user` crate: a plain PCI function, without
//! nicforge's extensions.

use nicforge_driver::{Device, Error, GoneCause, HugePages, OpenOptions};
use nicforge_tests::backing::test_deadline;

use super::{
    card::{AREAS, FILE_OFFSET, LARGE, MEMORY, REGISTERS, UNDIVIDED, VECTORS, reg},
    rig::Rig,
};
use crate::interop::common::with_time_out;

/// Opens the served card by the driver library.
fn open(rig: &Rig) -> Device {
    Device::open_vfio_user(&rig.path, OpenOptions::default()).unwrap()
}

#[test]
fn the_driver_opens_a_device_of_the_vfio_user_crates_server() {
    with_time_out(|| {
        let rig = Rig::start();
        let device = open(&rig);
        let identity = device.identity();

        assert_eq!((identity.vendor, identity.device), (0x1efc, 0x7799));
        assert_eq!((identity.class, identity.revision), (0x02_80_00, 3));
        assert!(!device.has_attachment());

        let sizes = [0, 1, 2, 3].map(|bar| device.bar(bar).unwrap().size());
        assert_eq!(sizes, [REGISTERS, MEMORY, UNDIVIDED, LARGE]);
        assert!(matches!(device.bar(4), Err(Error::NoSuch { .. })));

        // Memory decoding and bus mastering are enabled.
        let mut command = [0; 2];
        device.backing().read(nicforge_driver::REGION_CONFIG, 4, &mut command).unwrap();

        assert_eq!(u16::from_le_bytes(command), 6);
    });
}

#[test]
fn the_driver_reads_and_writes_bars_of_the_vfio_user_crates_server() {
    with_time_out(|| {
        let rig = Rig::start();
        let device = open(&rig);
        let registers = device.bar(0).unwrap();

        registers.write8(reg::SCRATCH, 0x11).unwrap();
        registers.write16(reg::SCRATCH + 2, 0x3322).unwrap();
        registers.write32(reg::SCRATCH + 4, 0x7766_5544).unwrap();

        assert_eq!(registers.read64(reg::SCRATCH).unwrap(), 0x7766_5544_3322_0011);

        registers.write64(reg::SCRATCH + 8, 1 << 63).unwrap();
        assert_eq!(registers.read8(reg::SCRATCH + 15).unwrap(), 0x80);
        assert_eq!(registers.read16(reg::SCRATCH + 14).unwrap(), 0x8000);

        // Without a ring, posted writes are trapped ones.
        registers.posted_write(reg::SCRATCH, &7_u32.to_le_bytes()).unwrap();
        registers.flush().unwrap();

        assert_eq!(registers.read32(reg::SCRATCH).unwrap(), 7);
        assert!(registers.read32(REGISTERS).is_err());
    });
}

#[test]
fn the_driver_maps_the_areas_that_the_vfio_user_crates_server_gives_and_traps_the_rest() {
    with_time_out(|| {
        let rig = Rig::start();
        let device = open(&rig);
        let bar = device.bar(1).unwrap();

        for (offset, len) in AREAS {
            let window = bar.window(offset, len).unwrap();
            window.store_u64_release(0x40, offset ^ 0x1234).unwrap();
            let observed = rig.seen.memory.whole();
            assert_eq!(observed.load_u64_acquire(FILE_OFFSET + offset + 0x40), Ok(offset ^ 0x1234));
            observed.store_u64_release(FILE_OFFSET + offset + 0x80, 77).unwrap();
            assert_eq!(window.load_u64_acquire(0x80), Ok(77));
        }

        assert!(bar.window(0, 0x1000).is_err());

        bar.write32(0x10, 0xabcd).unwrap();
        assert_eq!(rig.seen.memory.whole().load_u32_acquire(FILE_OFFSET + 0x10), Ok(0xabcd));
        assert_eq!(bar.read32(0x10).unwrap(), 0xabcd);

        // The region has the mappable flag, but no descriptor.
        let undivided = device.bar(2).unwrap();
        assert!(undivided.window(0, UNDIVIDED).is_err());

        undivided.write32(0, 5).unwrap();
        assert_eq!(undivided.read32(0).unwrap(), 5);
    });
}

#[test]
fn the_driver_gets_interrupts_of_the_vfio_user_crates_server() {
    with_time_out(|| {
        let rig = Rig::start();
        let device = open(&rig);
        let registers = device.bar(0).unwrap();
        let vectors = [0, 1, 2, 3].map(|vector| device.interrupt(vector).unwrap());

        registers.write32(reg::RAISE, 2).unwrap();
        let fired = device.wait_any(&vectors.each_ref(), test_deadline(), None).unwrap();

        assert_eq!(fired, (2, 1));
        assert!(matches!(device.interrupt(VECTORS), Err(Error::NoSuch { .. })));

        let line = device.intx().unwrap();
        registers.write32(reg::LINE, 1).unwrap();
        assert_eq!(line.wait(test_deadline(), None).unwrap(), 1);

        registers.write32(reg::LINE, 0).unwrap();
        line.unmask().unwrap();
        assert_eq!(line.take(), 0);

        registers.write32(reg::LINE, 1).unwrap();
        assert_eq!(line.wait(test_deadline(), None).unwrap(), 1);
    });
}

#[test]
fn the_vfio_user_crates_device_copies_within_the_drivers_buffers() {
    with_time_out(|| {
        let rig = Rig::start();
        let device = open(&rig);
        let registers = device.bar(0).unwrap();
        let done = device.interrupt(0).unwrap();
        let buffer = || device.dma_buffer(8192, HugePages::Never).unwrap();
        let (source, target) = (buffer(), buffer());

        source.write(0, &[0x5a; 5000]).unwrap();
        registers.write64(reg::SOURCE, source.iova()).unwrap();
        registers.write64(reg::TARGET, target.iova() + 8).unwrap();
        registers.write32(reg::COPY, 5000).unwrap();

        assert_eq!(done.wait(test_deadline(), None).unwrap(), 1);

        let mut copied = vec![0; 5016];
        target.read(0, &mut copied).unwrap();

        assert!(copied[8..5008] == [0x5a; 5000]);
        assert_eq!((&copied[..8], &copied[5008..]), (&[0; 8][..], &[0; 8][..]));

        // A dropped buffer is unmapped.
        let iova = target.iova();
        drop(target);

        assert_eq!(*rig.seen.unmaps.lock().unwrap(), [(0, iova, 8192)]);

        registers.write32(reg::COPY, 16).unwrap();
        assert_eq!(done.wait(test_deadline(), None).unwrap(), 1);
        assert_eq!(registers.read32(reg::COPIED).unwrap(), 0);
    });
}

#[test]
fn private_buffers_are_refused_by_the_vfio_user_crates_device() {
    with_time_out(|| {
        let rig = Rig::start();
        let device = open(&rig);

        let refused = device.private_dma_buffer(4096);
        assert!(matches!(refused, Err(Error::Refused { .. })));
        assert!(!device.is_gone());
    });
}

#[test]
fn the_driver_resets_a_device_of_the_vfio_user_crates_server_if_it_can_be_reset() {
    with_time_out(|| {
        let rig = Rig::start();
        let device = open(&rig);
        let registers = device.bar(0).unwrap();
        let vector = device.interrupt(1).unwrap();

        registers.write32(reg::SCRATCH, 9).unwrap();
        device.reset().unwrap();
        assert_eq!(registers.read32(reg::SCRATCH).unwrap(), 0);

        registers.write32(reg::RAISE, 1).unwrap();
        assert_eq!(vector.wait(test_deadline(), None).unwrap(), 1);

        let rig = Rig::start_with(false);
        assert!(matches!(open(&rig).reset(), Err(Error::Unsupported { .. })));
    });
}

#[test]
fn the_driver_detects_the_end_of_the_vfio_user_crates_server() {
    with_time_out(|| {
        let rig = Rig::start();
        let device = open(&rig);
        let vector = device.interrupt(0).unwrap();

        assert!(device.bar(0).unwrap().write32(reg::LEAVE, 1).is_err());

        assert_eq!(device.gone_cause(), Some(GoneCause::HungUp));
        assert!(matches!(
            vector.wait(test_deadline(), None),
            Err(Error::DeviceGone { cause: GoneCause::HungUp })
        ));
    });
}
