//! The life cycle of a client: connection, accesses, interrupts, DMA, end.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::{
    io::{IoSlice, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::{fs::PermissionsExt, net::UnixStream},
    },
    sync::Arc,
};

use crate::common::*;
use nicforge_core::machine::Machine;
use nicforge_engine::{Engine, EngineConfig, SocketAccess, SocketPlace, Stop};
use nicforge_shm::{Access, Producer, SharedCells};
use nicforge_vfio_user::{
    Client, DmaUnmap, Errno, IrqAction, IrqPayload, PCI_INTX_IRQ, PCI_MSIX_IRQ,
    wire::{Command, HEADER_SIZE, Header},
};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// BAR of the attachment's windows, and the offset of the device's own part in it.
const WINDOW_BAR: u32 = 1;
const WINDOW: u64 = 0x1_0000;
/// The posted-write ring: 64 cells.
const RING_BYTES: u64 = 64 * 64;

/// Returns an engine with a machine of one node.
fn engine(config: EngineConfig) -> Engine {
    let mut machine = Machine::new();
    machine.add_function("node", Box::<TestDevice>::default()).unwrap();
    Engine::new(machine, config).unwrap()
}

both_loops! {
    fn registers_are_read_and_written(config) {
        let served = Served::start(config);
        let client = served.client(A);
        write32(&client, reg::SCRATCH, 0xdead_beef);
        assert_eq!(read32(&client, reg::SCRATCH), 0xdead_beef);
    }

    fn the_engine_reports_its_event_loop(config) {
        let served = Served::start(config);
        assert_eq!(served.snapshot().event_loop, served.event_loop);
    }

    fn configuration_space_shows_the_identity(config) {
        let served = Served::start(config);
        let client = served.client(A);
        let mut header = [0; 256];
        client.region_read(7, 0, &mut header).unwrap();
        assert_eq!(header[..4], [0xfc, 0x1e, 0x57, 0x7e]);
    }

    fn two_attachments_have_clients_at_the_same_time(config) {
        let served = Served::start(config);
        let (first, second) = (served.client(A), served.client(B));
        write32(&first, reg::SCRATCH, 1);
        write32(&second, reg::SCRATCH, 2);
        assert_eq!((read32(&first, reg::SCRATCH), read32(&second, reg::SCRATCH)), (1, 2));
    }

    fn a_second_client_is_refused_with_ebusy_and_the_first_stays_connected(config) {
        let served = Served::start(config);
        let first = served.client(A);
        let second = Client::connect(served.path(A), LONG);
        assert_eq!(second.err().unwrap().errno(), Errno::EBUSY);
        assert_eq!(read32(&first, reg::SCRATCH), 0);
        assert_eq!(server_of(&served.snapshot(), A).refused, 1);
    }

    fn a_client_that_connects_right_after_another_gets_fresh_memory(config) {
        let served = Served::start(config);
        let first = served.client(A);

        first.region_write(WINDOW_BAR, WINDOW, &[7; 64], false).unwrap();
        let first_window = map_bar(&first, WINDOW_BAR, Access::ReadOnly);
        drop(first);
        let second = served.client(A);
        let second_window = map_bar(&second, WINDOW_BAR, Access::ReadOnly);
        let mut bytes = [1; 64];
        second_window.read(WINDOW, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 64]);
        second.region_write(WINDOW_BAR, WINDOW, &[9; 64], false).unwrap();
        first_window.read(WINDOW, &mut bytes).unwrap();

        assert_eq!(bytes, [7; 64]);
    }

    fn an_msix_vector_signals_its_eventfd_and_no_other(config) {
        let served = Served::start(config);
        let client = served.client(A);
        let fds = [0, 1].map(|vector| bind(&client, PCI_MSIX_IRQ, vector));
        write32(&client, reg::RAISE, 1);
        assert_eq!(wait_for(&fds[1]), 1);
        assert!(is_unsignalled(&fds[0]));
    }

    fn a_disabled_vector_does_not_signal(config) {
        let served = Served::start(config);
        let client = served.client(A);
        let fds = [0, 1].map(|vector| bind(&client, PCI_MSIX_IRQ, vector));

        client.set_irqs(PCI_MSIX_IRQ, 0, IrqAction::Trigger, IrqPayload::EventFd(&[None])).unwrap();
        write32(&client, reg::RAISE, 0);
        write32(&client, reg::RAISE, 1);

        assert_eq!(wait_for(&fds[1]), 1);
        assert!(is_unsignalled(&fds[0]));
    }

    fn intx_fires_again_when_it_is_unmasked_by_eventfd(config) {
        let served = Served::start(config);
        let client = served.client(A);
        let line = bind(&client, PCI_INTX_IRQ, 0);
        let unmask = eventfd();
        let payload = [Some(unmask.as_fd())];

        client.set_irqs(PCI_INTX_IRQ, 0, IrqAction::Unmask, IrqPayload::EventFd(&payload)).unwrap();
        write32(&client, reg::LINE, 1);
        assert_eq!(wait_for(&line), 1);
        for _ in 0..3 {
            unmask.write(1).unwrap();
            assert_eq!(wait_for(&line), 1);
        }
    }

    fn a_descriptor_that_is_no_eventfd_is_refused(config) {
        let served = Served::start(config);
        let client = served.client(A);
        let (_reader, writer) = std::io::pipe().unwrap();
        let bound =
            client.set_irqs(PCI_MSIX_IRQ, 0, IrqAction::Trigger, IrqPayload::EventFd(&[Some(writer.as_fd())]));
        assert_eq!(bound.err().unwrap().errno(), Errno::EINVAL);
    }

    fn dma_copies_between_two_ranges_of_one_file(config) {
        let served = Served::start(config);
        let client = served.client(A);
        let memory = memory(0x4000);

        memory.write(0, &[5; 256]).unwrap();
        client.dma_map(range(0x10_0000, 0, 0x1000), memory.fd()).unwrap();
        client.dma_map(range(0x20_0000, 0x2000, 0x2000), memory.fd()).unwrap();
        enable(&client);
        let done = bind(&client, PCI_MSIX_IRQ, 0);
        copy(&client, 0x10_0000, 0x20_1000, 256).unwrap();
        wait_for(&done);
        let mut bytes = [0; 256];
        memory.read(0x3000, &mut bytes).unwrap();
        assert_eq!(bytes, [5; 256]);
        let usage = client_of(&served.snapshot(), A).unwrap();

        assert_eq!((usage.ranges, usage.mapped_bytes), (2, 0x4000));
    }

    fn dma_reaches_memory_without_a_file_by_messages(config) {
        let served = Served::start(config);
        let plain = Arc::new(UnmappedMemory(std::sync::Mutex::new(vec![3; 0x3000])));
        let client = served.client_with_memory(A, plain.clone());

        client.dma_map(range(0, 0, 0x3000), None).unwrap();
        plain.0.lock().unwrap()[0x2000..].fill(0);
        enable(&client);
        copy(&client, 0, 0x2000, 0x800).unwrap();
        let deadline = std::time::Instant::now() + LONG;
        while read64(&client, reg::COPIED) != 1 || plain.0.lock().unwrap()[0x27ff] != 3 {
            assert!(std::time::Instant::now() < deadline, "the copy did not end");
        }

        assert_eq!(plain.0.lock().unwrap()[0x2000..0x2800], [3; 0x800]);
        assert_eq!(server_of(&served.snapshot(), A).dma_messages, 2);
    }

    fn memory_that_was_unmapped_is_not_reached_any_more(config) {
        let served = Served::start(config);
        let client = served.client(A);
        let memory = memory(0x2000);

        client.dma_map(range(0x1000, 0, 0x2000), memory.fd()).unwrap();
        client.dma_unmap(DmaUnmap::Range { address: 0x1000, size: 0x2000 }).unwrap();
        enable(&client);
        let done = bind(&client, PCI_MSIX_IRQ, 0);
        copy(&client, 0x1000, 0x2000, 16).unwrap();
        wait_for(&done);
        assert_eq!(read64(&client, reg::COPIED), reg::ONE_COPY_FAILED);
        let usage = client_of(&served.snapshot(), A).unwrap();

        assert_eq!((usage.ranges, usage.mapped_bytes), (0, 0));
    }

    fn unmapping_an_unmapped_range_is_enoent_and_the_connection_stays_usable(config) {
        let served = Served::start(config);
        let client = served.client(A);
        let size = 1 << 47;
        let unmapped = client.dma_unmap(DmaUnmap::Range { address: 0, size });

        assert_eq!(unmapped.err().unwrap().errno(), Errno::ENOENT);
        client.dma_unmap(DmaUnmap::All).unwrap();

        assert_eq!(read32(&client, reg::SCRATCH), 0);
    }

    fn a_range_that_overlaps_is_eexist(config) {
        let served = Served::start(config);
        let client = served.client(A);
        let memory = memory(0x4000);

        client.dma_map(range(0x1000, 0, 0x2000), memory.fd()).unwrap();
        let overlapping = client.dma_map(range(0x2000, 0, 0x1000), memory.fd());
        assert_eq!(overlapping.err().unwrap().errno(), Errno::EEXIST);
        let remote = client.dma_map(range(0x2000, 0, 0x1000), None);

        assert_eq!(remote.err().unwrap().errno(), Errno::EEXIST);
    }

    fn a_busy_machine_still_serves_its_sockets(config) {
        let served = Served::start(config);
        let client = served.client(A);
        write32(&client, reg::BUSY, 1);
        assert_eq!(read32(&client, reg::SCRATCH), 0);
        assert_eq!(read32(&served.client(B), reg::SCRATCH), 0);
        assert!(served.snapshot().hot_functions == 1);
    }

    fn a_posted_record_is_found_when_its_wake_up_got_lost(config) {
        let served = Served::start(config);
        let client = served.client(A);
        let windows = map_bar(&client, WINDOW_BAR, Access::ReadWrite);
        let cells = SharedCells::new(windows.window(0, RING_BYTES).unwrap()).unwrap();
        let mut producer = Producer::new(cells);

        served.wait_until("the machine sleeps", |snapshot| snapshot.hot_functions == 0);
        producer.try_push(|| 0, 0, reg::SCRATCH as u32, &7_u32.to_le_bytes()).unwrap();
        served.wait_until("the record is carried out", |snapshot| {
            snapshot.functions[0].attachments[0].counters.posted_writes == 1
        });

        assert_eq!(read32(&client, reg::SCRATCH), 7);
    }

    fn thousands_of_small_ranges_of_one_file_cost_one_mapping(config) {
        const RANGES: u64 = 2000;
        let served = Served::start(config);
        let client = served.client(A);
        let memory = memory(RANGES as usize * 0x1000);

        for index in 0..RANGES {
            client.dma_map(range(index * 0x2000, index * 0x1000, 0x1000), memory.fd()).unwrap();
        }
        let usage = client_of(&served.snapshot(), A).unwrap();
        assert_eq!((usage.ranges, usage.mapped_bytes), (RANGES as usize, RANGES * 0x1000));
        client.dma_unmap(DmaUnmap::Range { address: 0, size: RANGES * 0x2000 }).unwrap();
        let usage = client_of(&served.snapshot(), A).unwrap();

        assert_eq!((usage.ranges, usage.mapped_bytes), (0, 0));
    }

    fn requests_that_are_sent_ahead_are_answered_in_order(config) {
        const MAPS: u16 = 20;
        let served = Served::start(config);
        let mut raw = negotiated(&served.path(A));

        for id in 0..MAPS {
            let memory = memory(0x1000);
            send_map(&raw, id, u64::from(id) * 0x1000, memory.fd().unwrap());
        }
        raw.write_all(&Header::request(MAPS, Command::DeviceReset, 0, false).to_bytes()).unwrap();
        for id in 0..=MAPS {
            let mut reply = [0; HEADER_SIZE];
            raw.read_exact(&mut reply).unwrap();
            let reply = Header::parse(&reply).unwrap();
            assert_eq!((reply.id, reply.reply_error()), (id, None));
        }

        assert_eq!(client_of(&served.snapshot(), A).unwrap().ranges, usize::from(MAPS));
    }

    fn reset_clears_the_attachment_and_keeps_its_client(config) {
        let served = Served::start(config);
        let client = served.client(A);
        write32(&client, reg::SCRATCH, 9);
        client.reset().unwrap();
        assert_eq!(read32(&client, reg::SCRATCH), 0);
    }

    fn a_posted_write_right_before_the_end_is_carried_out(config) {
        let served = Served::start(config);
        let (first, second) = (served.client(A), served.client(B));

        write32(&second, reg::CREDITS, 1);
        first.region_write(0, reg::SEND, &[0; 4], true).unwrap();
        drop(first);
        let snapshot = served.wait_until_free(A);

        assert_eq!((counter(&snapshot, "sent"), counter(&snapshot, "closed")), (1, 1));
    }

    fn a_client_that_closed_right_before_the_end_of_the_engine_was_not_evicted(config) {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = engine(config);
        for (attachment, name) in [(A, "a"), (B, "b")] {
            engine.listen(FUNCTION, attachment, folder.path().join(name)).unwrap();
        }

        let (stop, handle) = (Stop::new().unwrap(), engine.handle());
        let engine = std::thread::spawn({
            let stop = stop.clone();
            move || {
                engine.run(&stop).unwrap();
                engine
            }
        });
        let [closed, open] = ["a", "b"].map(|name| Client::connect(folder.path().join(name), LONG).unwrap());

        // On the engine's thread, so that it sees the closed connection only at its end.
        handle
            .call(LONG, move |_| {
                drop(closed);
                stop.stop();
            })
            .unwrap();
        let counters = engine.join().unwrap().machine_mut().counters(FUNCTION);

        let value = |name| counters.iter().find(|counter| counter.name == name).unwrap().value;
        assert_eq!((value("closed"), value("evicted")), (1, 1));
        assert_ended(&open);
    }

    fn a_socket_stays_in_its_directory_although_the_path_leads_elsewhere(config) {
        let folder = tempfile::tempdir().unwrap();
        let [own, moved, other] = ["own", "moved", "other"].map(|name| folder.path().join(name));
        for directory in [&own, &other] {
            std::fs::create_dir(directory).unwrap();
        }
        let socket = own.join("a");
        let place = SocketPlace::open(&socket).unwrap();

        std::fs::rename(&own, &moved).unwrap();
        std::os::unix::fs::symlink(&other, &own).unwrap();
        let mut engine = engine(config);
        engine.listen_at(FUNCTION, A, place, SocketAccess::default()).unwrap();

        assert_eq!(std::fs::metadata(moved.join("a")).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!other.join("a").exists());
        std::fs::write(other.join("a"), "another's").unwrap();
        drop(engine);
        assert!(!moved.join("a").exists() && socket.exists());
    }

    fn a_file_that_has_replaced_a_socket_is_kept(config) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let mut engine = engine(config);
        engine.listen(FUNCTION, A, &path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another's").unwrap();
        drop(engine);
        assert_eq!(std::fs::read(&path).unwrap(), b"another's");
    }

    fn stopping_the_engine_removes_the_sockets(config) {
        let served = Served::start(config);
        let path = served.path(A);
        let client = served.client(A);

        assert!(path.exists());
        drop(served);
        assert!(!path.exists());
        assert_ended(&client);
    }
}

/// Returns a DMA_MAP of one page of a file, for reading and writing.
fn send_map(raw: &UnixStream, id: u16, address: u64, file: BorrowedFd<'_>) {
    let mut message = Header::request(id, Command::DmaMap, 32, false).to_bytes().to_vec();

    message.extend(32_u32.to_le_bytes());
    message.extend(3_u32.to_le_bytes());
    for word in [0, address, 0x1000] {
        message.extend(u64::to_le_bytes(word));
    }
    let fds = [file.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&fds)];
    let sent = sendmsg::<()>(raw.as_raw_fd(), &[IoSlice::new(&message)], &rights, MsgFlags::empty(), None);

    assert_eq!(sent, Ok(message.len()));
}
