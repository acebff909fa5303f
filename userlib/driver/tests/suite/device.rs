//! Opening a device, registers, memory, loss and reset.

use std::{
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use crate::common::{
    ATTACHMENT, Access, BAR0_SIZE, BAR2_SIZE, CONTROL_PAGE, Fake, WINDOW, capability, config,
};
use nicforge_driver::{
    Cancel, Deadline, Device, DmaMemory, DmaPermission, Error, GoneCause, HugePages, OpenOptions, WriteMode,
};
use nicforge_hwi::{attachment::mirror, pci::AttachmentCapability};
use nicforge_shm::{MemoryError, SharedMemory};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use proptest::prelude::*;

const LONG: Duration = Duration::from_secs(20);

fn open_with_capability(change: impl FnOnce(&mut AttachmentCapability)) -> Result<Device, Error> {
    let mut found = capability();
    change(&mut found);
    Device::from_backing(Fake::with_config(config(Some(found)), true))
}

#[test]
fn open_reads_identity_and_attachment_and_enables_the_function() {
    let fake = Fake::new();

    let device = fake.open();

    let identity = device.identity();
    assert_eq!((identity.vendor, identity.device, identity.subsystem), (0x1efc, 1, 0x42));
    assert_eq!((identity.class, identity.revision), (0x02_80_00, 7));
    assert_eq!((device.attachment(), device.generation(), device.ring_count()), (ATTACHMENT, 1, 2));
    assert_eq!(fake.state().config[4] & 6, 6);
}

#[test]
fn open_of_a_plain_function_finds_no_attachment() {
    let fake = Fake::with_config(config(None), false);

    let device = fake.open();

    assert!(!device.has_attachment());
    assert_eq!((device.attachment(), device.generation(), device.ring_count()), (0, 0, 0));
    device.flush().unwrap();
    device.doorbell().after_store().unwrap();
}

#[test]
fn open_of_a_function_that_reads_as_all_ones_is_refused() {
    let fake = Fake::with_config(vec![0xff; 4096], false);

    let error = Device::from_backing(fake).map(drop).unwrap_err();

    assert!(matches!(error, Error::Protocol { value: 0xffff, .. }), "{error}");
}

#[test]
fn open_with_a_cyclic_capability_list_is_refused() {
    let mut space = config(None);
    space[0x41] = 0x40;

    let error = Device::from_backing(Fake::with_config(space, false)).map(drop).unwrap_err();

    assert!(matches!(error, Error::Protocol { what: "the list of capabilities has no end", .. }), "{error}");
}

#[test]
fn open_with_a_bad_attachment_capability_is_refused() {
    let invalid: [fn(&mut AttachmentCapability); 8] = [
        |capability| capability.control_bar = 6,
        |capability| capability.control_offset = BAR0_SIZE as u32,
        |capability| capability.control_offset = 0x10,
        |capability| capability.mirror_bar = 3,
        |capability| capability.mirror_offset = BAR2_SIZE as u32,
        |capability| capability.ring_cells = 63,
        |capability| capability.ring_cells = 1 << 31,
        |capability| capability.ring_count = 255,
    ];

    for change in invalid {
        let error = open_with_capability(change).map(drop).unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
    }
}

#[test]
fn open_with_rings_or_mirror_in_trapped_space_is_refused() {
    let rings = open_with_capability(|capability| capability.ring_bar = 0).map(drop).unwrap_err();
    let mirror = open_with_capability(|capability| capability.mirror_bar = 0).map(drop).unwrap_err();

    assert!(matches!(rings, Error::NotMapped { region: 0, .. } | Error::Protocol { .. }), "{rings}");
    assert!(matches!(mirror, Error::NotMapped { region: 0, .. }), "{mirror}");
}

#[test]
fn open_with_a_mirror_without_magic_is_refused() {
    let fake = Fake::new();
    fake.set_mirror(mirror::MAGIC, 0xdead);

    let error = Device::from_backing(fake).map(drop).unwrap_err();

    assert!(matches!(error, Error::Protocol { value: 0xdead, .. }), "{error}");
}

#[test]
fn open_of_a_later_version_of_the_capability_finds_a_plain_function() {
    let device = open_with_capability(|capability| capability.version = 2).unwrap();

    assert!(!device.has_attachment());
}

#[test]
fn open_by_an_environment_variable_that_is_not_set_names_it() {
    let error = Device::open_env("NICFORGE_UNSET_VARIABLE", OpenOptions::default()).map(drop).unwrap_err();

    assert!(error.to_string().contains("NICFORGE_UNSET_VARIABLE"), "{error}");
}

#[test]
fn registers_are_read_and_written_in_each_width() {
    let device = Fake::new().open();
    let bar = device.bar(0).unwrap();

    bar.write64(8, 0x1122_3344_5566_7788).unwrap();
    bar.write32(12, 0xaabb_ccdd).unwrap();
    bar.write16(8, 0xeeff).unwrap();
    bar.write8(11, 0x99).unwrap();

    assert_eq!(bar.read64(8).unwrap(), 0xaabb_ccdd_9966_eeff);
    assert_eq!(bar.read32(8).unwrap(), 0x9966_eeff);
    assert_eq!(bar.read16(10).unwrap(), 0x9966);
    assert_eq!(bar.read8(15).unwrap(), 0xaa);
}

#[test]
fn mapped_words_are_read_and_written_without_a_trapped_access() {
    let fake = Fake::new();
    let device = fake.open();
    let bar = device.bar(1).unwrap();
    fake.clear_log();

    bar.write64(WINDOW, 0x1122_3344_5566_7788).unwrap();
    bar.write8(WINDOW, 0x99).unwrap();

    assert_eq!(bar.read64(WINDOW).unwrap(), 0x1122_3344_5566_7799);
    assert_eq!(fake.bar1.whole().load_u16_relaxed(WINDOW + 2).unwrap(), 0x5566);
    assert_eq!(fake.log(), []);
}

#[test]
fn burst_to_registers_is_one_trapped_access_and_to_memory_none() {
    let fake = Fake::new();
    let device = fake.open();
    let (registers, memory) = (device.bar(0).unwrap(), device.bar(1).unwrap());
    fake.clear_log();

    registers.write_burst16(32, &[5; 16]).unwrap();
    registers.write_burst64(64, &[6; 64]).unwrap();
    memory.write_burst16(WINDOW, &[7; 16]).unwrap();
    memory.write_burst64(WINDOW + 64, &[8; 64]).unwrap();

    let write = |offset, data: &[u8]| Access::Write {
        region: 0,
        offset,
        data: data.to_vec(),
        mode: WriteMode::Confirmed,
    };
    assert_eq!(fake.log(), [write(32, &[5; 16]), write(64, &[6; 64])]);
    let mut found = [0; 128];
    fake.bar1.read(WINDOW, &mut found).unwrap();
    assert_eq!((&found[..16], &found[64..]), (&[7; 16][..], &[8; 64][..]));
}

#[test]
fn access_across_the_end_of_a_bar_or_misaligned_is_refused() {
    let device = Fake::new().open();
    let bar = device.bar(0).unwrap();

    let size = BAR0_SIZE;
    let beyond = Error::OutOfRange { what: "BAR", index: 0, offset: size, len: 4, size };
    assert_eq!(bar.read32(size), Err(beyond));
    assert!(matches!(bar.read64(u64::MAX - 7), Err(Error::OutOfRange { .. })));
    assert_eq!(bar.write32(2, 0), Err(Error::Misaligned { offset: 2, width: 4 }));
    assert_eq!(bar.write_burst16(8, &[0; 16]), Err(Error::Misaligned { offset: 8, width: 16 }));
}

#[test]
fn store_to_a_mirror_is_refused() {
    let device = Fake::new().open();

    let error = device.bar(2).unwrap().write32(0x1000, 1).unwrap_err();

    assert_eq!(error, Error::Memory(MemoryError::ReadOnly { offset: 0x1000 }));
}

#[test]
fn window_exists_for_mapped_areas_only() {
    let device = Fake::new().open();

    let inside = device.bar(1).unwrap().window(WINDOW, 0x1000).unwrap();
    let across = device.bar(1).unwrap().window(WINDOW, 0x1001).map(drop).unwrap_err();
    let trapped = device.bar(0).unwrap().window(0, 8).map(drop).unwrap_err();

    assert_eq!(inside.len(), 0x1000);
    assert_eq!(across, Error::NotMapped { region: 1, offset: WINDOW, len: 0x1001 });
    assert_eq!(trapped, Error::NotMapped { region: 0, offset: 0, len: 8 });
}

#[test]
fn bar_that_does_not_exist_is_refused() {
    let device = Fake::new().open();

    assert_eq!(device.bar(3).map(drop), Err(Error::NoSuch { what: "BAR", index: 3, count: 6 }));
    assert_eq!(device.bar(6).map(drop), Err(Error::NoSuch { what: "BAR", index: 6, count: 6 }));
}

#[test]
fn flush_is_a_trapped_read_of_the_control_page() {
    let fake = Fake::new();
    let device = fake.open();
    fake.clear_log();

    device.bar(1).unwrap().flush().unwrap();

    assert_eq!(fake.log(), [Access::Read { region: 0, offset: CONTROL_PAGE + 0x10, len: 4 }]);
}

#[test]
fn dma_buffer_is_the_memory_that_the_device_sees_until_it_is_dropped() {
    let fake = Fake::new();
    let device = fake.open();

    let buffer = device.dma_buffer(5000, HugePages::Never).unwrap();
    buffer.write(4090, b"hello, device").unwrap();

    let mut bytes = [0; 13];
    {
        let state = fake.state();
        let (memory, permission) = &state.dma[&buffer.iova()];
        assert_eq!(*permission, DmaPermission::READ_WRITE);
        let DmaMemory::Shared { memory, offset: 0, len: 8192 } = memory else { panic!("{memory:?}") };
        memory.read(4090, &mut bytes).unwrap();
    }
    assert_eq!(&bytes, b"hello, device");
    drop(buffer);
    assert!(fake.state().dma.is_empty());
}

#[test]
fn private_buffer_is_reached_by_messages() {
    let fake = Fake::new();
    let device = fake.open();

    let buffer = device.private_dma_buffer(4096).unwrap();
    buffer.write(8, b"mine").unwrap();

    let mut bytes = [0; 4];
    let state = fake.state();
    let (DmaMemory::Private { memory, len: 4096 }, _) = &state.dma[&buffer.iova()] else {
        panic!("not private")
    };
    memory.read(8, &mut bytes).unwrap();
    memory.write(16, b"yours").unwrap();
    let beyond = memory.read(4095, &mut bytes).unwrap_err();
    drop(state);
    assert_eq!(&bytes, b"mine");
    assert_eq!(buffer.u32(16).unwrap().load(Ordering::Relaxed), u32::from_le_bytes(*b"your"));
    assert!(matches!(beyond, Error::Memory(MemoryError::OutOfBounds { .. })), "{beyond}");
}

#[test]
fn caller_memory_is_mapped_read_only_when_asked() {
    let fake = Fake::new();
    let device = fake.open();
    let memory = SharedMemory::create("mine", 16384).unwrap();

    let buffer = device.map_dma(&memory, 4096, 8192, DmaPermission::READ).unwrap();
    let odd = device.map_dma(&memory, 100, 4096, DmaPermission::READ).map(drop);
    let beyond = device.map_dma(&memory, 12288, 8192, DmaPermission::READ).map(drop);

    assert_eq!(buffer.len(), 8192);
    assert_eq!(fake.state().dma[&buffer.iova()].1, DmaPermission::READ);
    assert_eq!(odd, Err(Error::Misaligned { offset: 100, width: 4096 }));
    assert!(matches!(beyond, Err(Error::Memory(MemoryError::OutOfBounds { .. }))));
}

#[test]
fn refused_dma_mapping_frees_its_addresses() {
    let fake = Fake::new();
    let device = fake.open();
    fake.state().refuse_dma = true;

    let refused = device.dma_buffer(4096, HugePages::Never).map(drop).unwrap_err();
    fake.state().refuse_dma = false;
    let (first, second) = (
        device.dma_buffer(4096, HugePages::Never).unwrap(),
        device.dma_buffer(4096, HugePages::Try).unwrap(),
    );

    assert!(
        matches!(refused, Error::Refused { errno, .. } if errno == nix::errno::Errno::ENOSPC as i32),
        "{refused}"
    );
    assert_ne!(first.iova(), second.iova());
    assert_eq!(first.iova(), 1 << 20);
}

#[test]
fn dma_mapping_that_is_not_sent_frees_its_addresses() {
    let fake = Fake::new();
    let device = fake.open();

    for error in [Error::Unsupported { what: "this memory" }, Error::Memory(MemoryError::Empty)] {
        fake.state().dma_error = Some(error.clone());
        let failed = device.dma_buffer(4096, HugePages::Never).map(drop).unwrap_err();
        fake.state().dma_error = None;
        let buffer = device.dma_buffer(4096, HugePages::Never).unwrap();

        assert_eq!((failed, buffer.iova()), (error, 1 << 20));
    }
}

#[test]
fn wait_until_ends_with_the_condition() {
    let device = Fake::new().open();
    let mut checks = 0;

    device
        .wait_until(Deadline::after(LONG), None, || {
            checks += 1;
            checks == 100
        })
        .unwrap();

    assert_eq!(checks, 100);
}

#[test]
fn wait_until_times_out_with_the_time_that_it_took() {
    let device = Fake::new().open();

    let error = device.wait_until(Deadline::after(Duration::from_millis(3)), None, || false).unwrap_err();

    assert!(matches!(error, Error::Timeout { waited, .. } if waited >= Duration::from_millis(3)), "{error}");
}

#[test]
fn wait_until_ends_when_cancelled_from_another_thread() {
    let device = Fake::new().open();
    let cancel = Cancel::new().unwrap();
    let waiting = Arc::new(AtomicBool::new(false));

    let result = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            device.wait_until(Deadline::after(LONG), Some(&cancel), || {
                waiting.store(true, Ordering::SeqCst);
                false
            })
        });
        while !waiting.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        cancel.cancel();
        waiter.join().unwrap()
    });

    assert_eq!(result, Err(Error::Cancelled));
    cancel.rearm();
    assert!(!cancel.is_cancelled());
}

#[test]
fn token_rearmed_while_it_is_cancelled_is_not_readable_afterwards() {
    const ROUNDS: u32 = 20_000;
    let cancel = Cancel::new().unwrap();
    let (begun, done) = (AtomicU32::new(0), AtomicU32::new(0));
    let await_round = |count: &AtomicU32, round| {
        while count.load(Ordering::SeqCst) < round {
            std::thread::yield_now();
        }
    };

    let readable = std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                await_round(&begun, round);
                cancel.cancel();
                done.store(round, Ordering::SeqCst);
            }
        });
        (1..=ROUNDS)
            .filter(|&round| {
                begun.store(round, Ordering::SeqCst);
                // This thread polls like a waiter that sees the cancellation at once. It yields
                // later, for hosts with one processor.
                for await_round in 0.. {
                    if cancel.is_cancelled() {
                        break;
                    }
                    if await_round < 10_000 { std::hint::spin_loop() } else { std::thread::yield_now() }
                }
                cancel.rearm();
                await_round(&done, round);
                let readable = poll(&mut [PollFd::new(cancel.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO);
                let readable = readable.unwrap() > 0;
                if readable {
                    cancel.rearm();
                }
                readable
            })
            .count()
    });

    assert_eq!(readable, 0, "of {ROUNDS} rounds");
}

#[test]
fn eviction_ends_waits_and_a_reset_brings_the_device_back() {
    let fake = Fake::new();
    let device = fake.open();
    fake.set_mirror(mirror::FLAGS, mirror::FLAG_DEAD);

    let result = device.wait_until(Deadline::after(LONG), None, || false);
    let cause = device.gone_cause();
    device.reset().unwrap();

    assert_eq!(result, Err(Error::DeviceGone { cause: GoneCause::Evicted }));
    assert_eq!(cause, Some(GoneCause::Evicted));
    assert!(!device.is_gone());
    assert_eq!(device.generation(), 2);
    assert_eq!(fake.state().config[4] & 6, 6);
}

#[test]
fn reset_from_outside_ends_waits() {
    let fake = Fake::new();
    let device = fake.open();
    fake.reset_attachment();

    let result = device.wait_until(Deadline::after(LONG), None, || false);

    assert_eq!(result, Err(Error::DeviceGone { cause: GoneCause::Reset }));
}

#[test]
fn reset_from_outside_while_the_device_is_opened_or_reset_costs_no_time() {
    let fake = Fake::new();
    fake.state().reset_after_generation = true;
    let options = OpenOptions { timeout: LONG, heartbeat: None, ..OpenOptions::default() };
    let start = Instant::now();

    let device = fake.open_with(options);
    fake.state().reset_after_generation = true;
    device.reset().unwrap();

    assert!(start.elapsed() < LONG / 2);
    assert_eq!(device.generation(), 4);
    assert_eq!(fake.state().config[4] & 6, 6, "it is enabled");
    assert!(device.bar(0).unwrap().read32(0).is_ok());
}

#[test]
fn heartbeat_that_stops_for_too_long_ends_waits() {
    let fake = Fake::new();
    let device =
        fake.open_with(OpenOptions { heartbeat: Some(Duration::from_millis(2)), ..OpenOptions::default() });
    fake.state().beats = false;

    let result = device.wait_until(Deadline::after(LONG), None, || false);

    assert_eq!(result, Err(Error::DeviceGone { cause: GoneCause::Stopped }));
}

#[test]
fn hang_up_ends_waits_after_data_that_arrived_before() {
    let fake = Fake::new();
    let device = fake.open();
    fake.state().gone = Some(GoneCause::HungUp);
    let mut checks = 0;

    let arrived = device.wait_until(Deadline::after(LONG), None, || {
        checks += 1;
        checks == 2
    });
    let result = device.wait_until(Deadline::after(LONG), None, || false);

    assert_eq!(arrived, Ok(()));
    assert_eq!(result, Err(Error::DeviceGone { cause: GoneCause::HungUp }));
    assert!(device.reset().unwrap_err().is_gone());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn open_survives_any_configuration_space(
        header in proptest::collection::vec(any::<u8>(), 256),
        keep_list in any::<bool>(),
        body in proptest::collection::vec(any::<u8>(), 24),
    ) {
        let mut space = config(Some(capability()));
        if keep_list {
            space[0x54..0x54 + 24].copy_from_slice(&body);
        } else {
            space[..256].copy_from_slice(&header);
        }

        let result = Device::from_backing(Fake::with_config(space, true));

        prop_assert!(!result.is_err_and(|error| error.is_gone()));
    }
}
