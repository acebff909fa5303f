//! The device of the other tests, behind a vfio-user socket.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    os::unix::net::UnixListener,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use crate::common::{
    ATTACHMENT, Access, Fake, WINDOW, capability, config,
    server::{Order, Server},
};
use nicforge_driver::{
    Backoff, Cancel, Deadline, Device, DmaMemory, DmaPermission, Error, GoneCause, HugePages, IRQ_INTX,
    IRQ_MSIX, OpenOptions, REGION_CONFIG, Relax,
};
use nicforge_hwi::attachment::mirror;
use nicforge_shm::{MemoryError, SharedMemory};
use nicforge_vfio_user::Errno;

const LONG: Duration = Duration::from_secs(20);

fn options() -> OpenOptions {
    OpenOptions { timeout: LONG, heartbeat: None, ..OpenOptions::default() }
}

fn start() -> (Server, Device) {
    let server = Server::start(Fake::new());
    let device = Device::open_vfio_user(&server.path, options()).unwrap();
    (server, device)
}

#[test]
fn open_reads_the_function_through_the_socket() {
    let (server, device) = start();

    assert_eq!((device.identity().vendor, device.attachment(), device.ring_count()), (0x1efc, ATTACHMENT, 2));
    assert_eq!(server.fake.state().config[4] & 6, 6);
}

#[test]
fn open_of_a_path_without_a_listener_is_an_error_that_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("absent.sock");

    let error = Device::open_vfio_user(&path, options()).map(drop).unwrap_err();

    assert!(matches!(&error, Error::Connection { reason } if reason.contains("absent.sock")), "{error}");
}

#[test]
fn open_of_a_server_that_never_answers_times_out() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("silent.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let hasty = OpenOptions { timeout: Duration::from_millis(20), ..options() };

    let error = Device::open_vfio_user(&path, hasty).map(drop).unwrap_err();

    assert!(matches!(error, Error::Timeout { .. }), "{error}");
}

#[test]
fn open_of_a_slow_server_ends_at_one_deadline() {
    let timeout = Duration::from_secs(1);
    // The first delay ends the connecting, and the second one the opening after it.
    for delay in [timeout * 4 / 5, timeout * 3 / 10] {
        let server = Server::start(Fake::new());
        *server.shared.delay.lock().unwrap() = delay;

        let start = Instant::now();
        let error = Device::open_vfio_user(&server.path, OpenOptions { timeout, ..options() });

        let error = error.map(drop).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(start.elapsed() < timeout * 2);
    }
}

#[test]
fn opened_device_has_the_whole_timeout_for_each_access() {
    let timeout = Duration::from_secs(1);
    let server = Server::start(Fake::new());
    let device = Device::open_vfio_user(&server.path, OpenOptions { timeout, ..options() }).unwrap();
    *server.shared.delay.lock().unwrap() = timeout * 2 / 5;

    for _ in 0..4 {
        assert_eq!(device.bar(0).unwrap().read32(0x40).unwrap(), 0);
    }
}

#[test]
fn registers_are_trapped_and_windows_are_shared_memory() {
    let (server, device) = start();
    let (registers, windows) = (device.bar(0).unwrap(), device.bar(1).unwrap());

    registers.write32(0x40, 0x1234_5678).unwrap();
    registers.write_burst64(0x80, &[9; 64]).unwrap();
    windows.write64(WINDOW + 8, 77).unwrap();
    server.fake.bar2.whole().store_u32_release(0x1004, 88).unwrap();

    assert_eq!(registers.read32(0x40).unwrap(), 0x1234_5678);
    assert_eq!(server.fake.state().registers[0x80..0xc0], [9; 64]);
    assert_eq!(server.fake.bar1.whole().load_u64_acquire(WINDOW + 8).unwrap(), 77);
    assert_eq!(device.bar(2).unwrap().read32(0x1004).unwrap(), 88);
    let error = device.bar(2).unwrap().write32(0x1004, 1).unwrap_err();
    assert_eq!(error, Error::Memory(MemoryError::ReadOnly { offset: 0x1004 }));
}

#[test]
fn part_of_a_region_outside_the_areas_is_trapped() {
    let (server, device) = start();
    let bar = device.bar(1).unwrap();
    server.fake.clear_log();

    bar.read32(WINDOW).unwrap();
    let value = bar.read32(WINDOW + 0x1000).unwrap();

    assert_eq!(value, 0xffff_ffff);
    assert_eq!(server.fake.log(), [Access::Read { region: 1, offset: WINDOW + 0x1000, len: 4 }]);
}

#[test]
fn posted_writes_reach_the_engine_and_flush_waits_for_them() {
    let (server, device) = start();
    let mut poster = device.poster(0).unwrap();

    for value in 0..1000u32 {
        poster.post(0, 8, &value.to_le_bytes()).unwrap();
    }
    device.flush().unwrap();

    let values: Vec<_> = server
        .fake
        .log()
        .into_iter()
        .filter_map(|access| match access {
            Access::Record { data, .. } => Some(u32::from_le_bytes(data.try_into().unwrap())),
            _ => None,
        })
        .collect();
    assert_eq!(values, (0..1000).collect::<Vec<_>>());
}

#[test]
fn store_while_the_engine_sleeps_sends_a_wake() {
    let (server, device) = start();
    server.fake.set_mirror(mirror::SLEEPING, 1);
    server.fake.clear_log();

    device.doorbell().after_store().unwrap();
    device.flush().unwrap();

    let woken = |access: &Access| matches!(access, Access::Write { region: 0, offset, .. } if *offset == crate::common::CONTROL_PAGE);
    assert!(server.fake.log().iter().any(woken), "{:?}", server.fake.log());
}

#[test]
fn stores_for_a_stopped_server_do_not_wait() {
    let server = Server::start(Fake::new());
    let options = OpenOptions { timeout: Duration::from_secs(2), ..options() };
    let device = Device::open_vfio_user(&server.path, options).unwrap();
    let doorbell = device.doorbell();
    server.shared.is_stopped.store(true, Ordering::SeqCst);
    server.fake.set_mirror(mirror::SLEEPING, 1);

    // Each wake is a message, and the socket has room for a few hundred.
    let start = Instant::now();
    for _ in 0..1000 {
        doorbell.after_store().unwrap();
        assert!(start.elapsed() < Duration::from_secs(10), "a store has waited");
    }

    // The server takes the wakes that were sent, and the connection is intact.
    server.shared.is_stopped.store(false, Ordering::SeqCst);
    assert_eq!(device.bar(0).unwrap().read32(0x40).unwrap(), 0);
}

#[test]
fn plain_function_of_another_server_works_without_rings() {
    let server = Server::start(Fake::with_config(config(None), false));
    let device = Device::open_vfio_user(&server.path, options()).unwrap();

    device.bar(0).unwrap().posted_write(4, &[1, 2, 3, 4]).unwrap();
    device.flush().unwrap();

    assert!(!device.has_attachment());
    assert_eq!(server.fake.state().registers[4..8], [1, 2, 3, 4]);
}

#[test]
fn dma_buffer_is_mapped_by_the_server_until_it_is_dropped() {
    let (server, device) = start();
    let buffer = device.dma_buffer(10_000, HugePages::Try).unwrap();
    buffer.write(100, b"from the client").unwrap();

    let mut bytes = [0; 15];
    {
        let mapped = server.shared.mapped.lock().unwrap();
        let (map, memory) = &mapped[&buffer.iova()];
        assert_eq!((map.size, map.flags), (buffer.len(), 3));
        let memory = memory.as_ref().unwrap();
        memory.read(100, &mut bytes).unwrap();
        memory.u32(200).unwrap().store(5, Ordering::Release);
    }
    assert_eq!(&bytes, b"from the client");
    assert_eq!(buffer.u32(200).unwrap().load(Ordering::Acquire), 5);
    drop(buffer);
    assert!(server.shared.mapped.lock().unwrap().is_empty());
}

#[test]
fn refused_dma_mapping_carries_the_servers_number() {
    let (server, device) = start();
    server.fake.state().refuse_dma = true;

    let error = device.dma_buffer(4096, HugePages::Never).map(drop).unwrap_err();
    let private = device.private_dma_buffer(4096).map(drop).unwrap_err();

    let refused = Error::Refused { what: "mapping memory for DMA", errno: Errno::ENOSPC.raw() };
    assert_eq!((error, private), (refused.clone(), refused));
}

#[test]
fn private_buffer_is_served_while_the_client_waits() {
    let (server, device) = start();
    let buffer = device.private_dma_buffer(8192).unwrap();
    buffer.write(4090, b"secret words").unwrap();
    let address = buffer.iova() + 4090;
    server.order(Order::DmaRead { address, len: 12 });
    server.order(Order::DmaWrite { address: buffer.iova(), data: b"an answer".to_vec() });

    let answered = buffer.window().clone();
    device
        .wait_until(Deadline::after(LONG), None, || {
            let mut start = [0; 9];
            answered.read(0, &mut start).unwrap();
            &start == b"an answer" && server.shared.written.lock().unwrap().is_some()
        })
        .unwrap();

    assert_eq!(*server.shared.read.lock().unwrap(), Some(Ok(b"secret words".to_vec())));
    assert_eq!(*server.shared.written.lock().unwrap(), Some(Ok(())));
}

#[test]
fn private_buffer_is_served_while_the_client_blocks_for_an_interrupt() {
    let (server, device) = start();
    let buffer = device.private_dma_buffer(4096).unwrap();
    buffer.write(0, b"block").unwrap();
    let interrupt = device.interrupt(0).unwrap();

    let (count, read) = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| interrupt.wait(Deadline::after(LONG), None));
        server.order(Order::DmaRead { address: buffer.iova(), len: 5 });
        let read = server.wait_for(|shared| shared.read.lock().unwrap().take());
        server.order(Order::Fire { index: IRQ_MSIX, vector: 0 });
        (waiter.join().unwrap(), read)
    });

    assert_eq!((count, read), (Ok(1), Ok(b"block".to_vec())));
}

#[test]
fn many_dma_messages_at_once_are_all_served_by_a_waiter_that_only_sleeps() {
    const MESSAGES: u64 = 50;
    let server = Server::start(Fake::new());
    let backoff = Backoff { spins: 0, poll: Some(Duration::ZERO), ..Backoff::SHARED };
    let device = Device::open_vfio_user(&server.path, OpenOptions { backoff, ..options() }).unwrap();
    let buffer = device.private_dma_buffer(4096).unwrap();
    {
        let mut orders = server.shared.orders.lock().unwrap();
        let order = |at| Order::DmaWrite { address: buffer.iova() + at, data: vec![1] };
        orders.extend((0..MESSAGES).map(order));
    }

    let mut bytes = [0; MESSAGES as usize];
    device
        .wait_until(Deadline::after(LONG), None, || {
            buffer.read(0, &mut bytes).unwrap();
            bytes.iter().all(|byte| *byte == 1)
        })
        .unwrap();

    assert_eq!(bytes, [1; MESSAGES as usize]);
}

#[test]
fn dma_message_outside_of_private_buffers_is_refused() {
    let (server, device) = start();
    let buffer = device.private_dma_buffer(4096).unwrap();
    server.order(Order::DmaRead { address: buffer.iova() + 4090, len: 12 });

    let wait = || server.shared.read.lock().unwrap().is_some();
    device.wait_until(Deadline::after(LONG), None, wait).unwrap();

    assert_eq!(*server.shared.read.lock().unwrap(), Some(Err(Errno::EFAULT)));
}

#[test]
fn dma_message_across_a_private_and_a_shared_buffer_reaches_both() {
    let (server, device) = start();
    let private = device.private_dma_buffer(4096).unwrap();
    let shared = device.dma_buffer(4096, HugePages::Never).unwrap();
    private.write(4092, b"left").unwrap();
    shared.write(0, b"right").unwrap();
    assert_eq!(shared.iova(), private.iova() + 4096);
    server.order(Order::DmaRead { address: private.iova() + 4092, len: 9 });

    let wait = || server.shared.read.lock().unwrap().is_some();
    device.wait_until(Deadline::after(LONG), None, wait).unwrap();

    assert_eq!(*server.shared.read.lock().unwrap(), Some(Ok(b"leftright".to_vec())));
}

#[test]
fn dma_message_that_writes_memory_mapped_read_only_is_refused() {
    let (server, device) = start();
    let memory = SharedMemory::create("constant", 4096).unwrap();
    let buffer = device.map_dma(&memory, 0, 4096, DmaPermission::READ).unwrap();
    server.order(Order::DmaWrite { address: buffer.iova(), data: vec![1; 8] });

    let wait = || server.shared.written.lock().unwrap().is_some();
    device.wait_until(Deadline::after(LONG), None, wait).unwrap();

    assert_eq!(*server.shared.written.lock().unwrap(), Some(Err(Errno::EACCES)));
    assert_eq!(memory.u64(0).unwrap().load(Ordering::Relaxed), 0);
}

#[test]
fn dma_mapping_over_another_is_refused_and_leaves_the_first() {
    let (server, device) = start();
    let buffer = device.private_dma_buffer(8192).unwrap();
    buffer.write(0, b"first").unwrap();
    let other = SharedMemory::create("other", 8192).unwrap();
    let memory = DmaMemory::Private { memory: Arc::new(other.whole()), len: 8192 };

    let overlapping = device.backing().dma_map(buffer.iova() + 4096, memory, DmaPermission::READ_WRITE);
    server.order(Order::DmaRead { address: buffer.iova(), len: 5 });
    let wait = || server.shared.read.lock().unwrap().is_some();
    device.wait_until(Deadline::after(LONG), None, wait).unwrap();

    let refused = Error::Refused { what: "mapping memory for DMA", errno: Errno::EEXIST.raw() };
    assert_eq!(overlapping, Err(refused));
    assert_eq!(*server.shared.read.lock().unwrap(), Some(Ok(b"first".to_vec())));
}

#[test]
fn interrupt_wakes_a_blocked_wait_and_counts() {
    let server = Server::start(Fake::new());
    let device =
        Device::open_vfio_user(&server.path, OpenOptions { spin: Duration::ZERO, ..options() }).unwrap();
    let interrupt = device.interrupt(3).unwrap();

    server.order(Order::Fire { index: IRQ_MSIX, vector: 3 });
    let first = interrupt.wait(Deadline::after(LONG), None);
    let second = interrupt.wait(Deadline::after(Duration::from_millis(5)), None);

    assert_eq!(first, Ok(1));
    assert!(matches!(second, Err(Error::Timeout { .. })), "{second:?}");
}

#[test]
fn wait_any_blocks_for_several_vectors() {
    let (server, device) = start();
    let interrupts = [device.interrupt(0).unwrap(), device.interrupt(2).unwrap(), device.intx().unwrap()];
    let list: Vec<_> = interrupts.iter().collect();

    server.order(Order::Fire { index: IRQ_INTX, vector: 0 });
    let line = device.wait_any(&list, Deadline::after(LONG), None);
    interrupts[2].unmask().unwrap();
    server.order(Order::Fire { index: IRQ_MSIX, vector: 2 });
    let vector = device.wait_any(&list, Deadline::after(LONG), None);
    let timed_out = device.wait_any(&list, Deadline::after(Duration::from_millis(5)), None);

    assert_eq!((line, vector), (Ok((2, 1)), Ok((1, 1))));
    assert!(matches!(timed_out, Err(Error::Timeout { .. })), "{timed_out:?}");
    assert_eq!(*server.shared.unmasked.lock().unwrap(), [(IRQ_INTX, 0, 1)]);
}

#[test]
fn cancel_ends_a_wait_that_blocks_in_the_kernel() {
    let server = Server::start(Fake::new());
    let device =
        Device::open_vfio_user(&server.path, OpenOptions { spin: Duration::ZERO, ..options() }).unwrap();
    let interrupt = device.interrupt(0).unwrap();
    let cancel = Cancel::new().unwrap();

    let (single, any) = std::thread::scope(|scope| {
        let single = scope.spawn(|| interrupt.wait(Deadline::never(), Some(&cancel)));
        let any = scope.spawn(|| device.wait_any(&[&interrupt], Deadline::never(), Some(&cancel)));
        cancel.cancel();
        (single.join().unwrap(), any.join().unwrap())
    });

    assert_eq!((single, any), (Err(Error::Cancelled), Err(Error::Cancelled)));
}

#[test]
fn server_that_hangs_up_ends_every_kind_of_wait() {
    let (server, device) = start();
    let interrupt = device.interrupt(0).unwrap();
    let device_gone = Error::DeviceGone { cause: GoneCause::HungUp };

    let (blocked, spinning) = std::thread::scope(|scope| {
        let blocked = scope.spawn(|| interrupt.wait(Deadline::after(LONG), None));
        let spinning = scope.spawn(|| device.wait_until(Deadline::after(LONG), None, || false));
        server.order(Order::HangUp);
        (blocked.join().unwrap(), spinning.join().unwrap())
    });

    assert_eq!((blocked, spinning), (Err(device_gone.clone()), Err(device_gone.clone())));
    assert_eq!(device.gone_cause(), Some(GoneCause::HungUp));
    assert_eq!(device.bar(0).unwrap().read32(0), Err(device_gone.clone()));
    assert_eq!(device.reset(), Err(device_gone));
}

#[test]
fn interrupt_at_a_hang_up_is_reported_to_a_blocked_wait() {
    for round in 0..100 {
        let server = Server::start(Fake::new());
        let device =
            Device::open_vfio_user(&server.path, OpenOptions { spin: Duration::ZERO, ..options() }).unwrap();
        let interrupt = device.interrupt(3).unwrap();

        let counted = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| match round % 2 {
                0 => interrupt.wait(Deadline::after(LONG), None),
                _ => device.wait_any(&[&interrupt], Deadline::after(LONG), None).map(|(_, count)| count),
            });
            let last = [Order::Fire { index: IRQ_MSIX, vector: 3 }, Order::HangUp];
            server.shared.orders.lock().unwrap().extend(last);
            waiter.join().unwrap()
        });

        assert_eq!(counted, Ok(1), "round {round}");
    }
}

#[test]
fn buffers_can_be_dropped_after_a_hang_up() {
    let (server, device) = start();
    let (buffer, interrupt) =
        (device.dma_buffer(4096, HugePages::Never).unwrap(), device.interrupt(0).unwrap());
    server.order(Order::HangUp);
    let lost = device.wait_until(Deadline::after(LONG), None, || false);

    drop(buffer);
    drop(interrupt);

    assert!(lost.unwrap_err().is_gone());
}

#[test]
fn reset_starts_rings_and_interrupts_again() {
    let (server, device) = start();
    let interrupt = device.interrupt(1).unwrap();
    let mut poster = device.poster(0).unwrap();
    (0..100).for_each(|_| poster.post(0, 8, &[1]).unwrap());

    device.reset().unwrap();
    server.fake.clear_log();
    poster.post(0, 8, &[2]).unwrap();
    device.flush().unwrap();
    server.order(Order::Fire { index: IRQ_MSIX, vector: 1 });

    assert_eq!(interrupt.wait(Deadline::after(LONG), None), Ok(1));
    assert_eq!(device.generation(), 2);
    assert!(server.fake.log().contains(&Access::Record { ring: 0, bar: 0, offset: 8, data: vec![2] }));
}

#[test]
fn second_client_takes_over_when_the_first_is_done() {
    let server = Server::start(Fake::new());
    let first = Device::open_vfio_user(&server.path, options()).unwrap();
    first.bar(0).unwrap().posted_write(8, &[1]).unwrap();
    drop(first);

    let second = Device::open_vfio_user(&server.path, options()).unwrap();
    second.bar(0).unwrap().posted_write(8, &[2]).unwrap();
    second.flush().unwrap();

    assert!(server.fake.log().contains(&Access::Record { ring: 0, bar: 0, offset: 8, data: vec![2] }));
}

#[test]
fn access_beyond_a_region_is_refused_without_asking_the_server() {
    let mut found = capability();
    found.ring_count = 0;
    let server = Server::start(Fake::with_config(config(Some(found)), false));
    let device = Device::open_vfio_user(&server.path, options()).unwrap();

    let info = device.backing().region_info(REGION_CONFIG).unwrap();
    let beyond = device.backing().read(REGION_CONFIG, 4090, &mut [0; 8]).unwrap_err();
    let missing = device.backing().region_info(9).unwrap_err();

    assert!(info.mappable.is_empty());
    assert_eq!(
        beyond,
        Error::OutOfRange { what: "region", index: REGION_CONFIG, offset: 4090, len: 8, size: 4096 }
    );
    assert_eq!(missing, Error::NoSuch { what: "region", index: 9, count: 9 });
}

#[test]
fn open_of_a_server_whose_mappable_area_leaves_its_region_is_refused() {
    let fake = Fake::new();
    fake.state().area = crate::common::BAR1_SIZE + 0x1000;
    let server = Server::start(fake);

    let error = Device::open_vfio_user(&server.path, options()).map(drop).unwrap_err();

    assert!(matches!(&error, Error::Connection { reason } if reason.contains("outside")), "{error}");
}

#[test]
fn relax_with_a_live_server_passes_through_all_its_stages() {
    let (_server, device) = start();
    let mut relax: Relax = device.new_relax();

    for _ in 0..2100 {
        device.relax(&mut relax).unwrap();
    }

    assert_eq!(relax.pauses(), 2100);
}
