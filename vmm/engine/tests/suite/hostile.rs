//! Clients that die, stall, cheat, flood or never read, and an operator's means against them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::{
    fs::File,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    os::{
        fd::AsFd,
        unix::{fs::PermissionsExt, net::UnixStream},
    },
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::common::{
    raw::{Raw, access, posted, request},
    *,
};
use nicforge_core::{ids::FunctionId, machine::Machine};
use nicforge_engine::{Engine, EngineConfig, EngineError, EventLoopKind, Quotas};
use nicforge_hwi::attachment::mirror;
use nicforge_shm::{Access, SharedMemory};
use nicforge_vfio_user::{
    Client, ClientConfig, DmaUnmap, Errno, GuestMemory, PCI_MSIX_IRQ,
    wire::{Command as Message, Header},
};
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        signal::{Signal, kill},
    },
    unistd::{Pid, ftruncate},
};

/// BAR of the mirror page.
const MIRROR_BAR: u32 = 2;
/// Environment variable that passes the socket to the process of
/// [`hold_an_attachment_until_killed`].
const HELD_SOCKET: &str = "NICFORGE_TEST_HELD_SOCKET";

both_loops! {
    fn a_stalled_write_ends_when_credits_arrive(config) {
        let served = Served::start(config);
        let (first, second) = (served.client(A), served.client(B));
        let sender = std::thread::spawn(move || {
            first.region_write(0, reg::SEND, &[0; 4], false).unwrap();
            first
        });

        served.wait_until("the write stalls", |snapshot| client_of(snapshot, A).unwrap().stalled);
        write32(&second, reg::CREDITS, 1);
        sender.join().unwrap();

        assert_eq!(served.counter("sent"), 1);
    }

    fn a_write_that_stalls_too_long_returns_eagain_and_the_connection_stays_usable(config) {
        config.stall_limit = Duration::from_millis(50);
        let served = Served::start(config);
        let client = served.client(A);
        let refused = client.region_write(0, reg::SEND, &[0; 4], false);

        assert_eq!(refused.err().unwrap().errno(), Errno::EAGAIN);
        assert_eq!(read32(&client, reg::SCRATCH), 0);
        assert_eq!(server_of(&served.snapshot(), A).stall_timeouts, 1);
    }

    fn a_clients_reset_cancels_its_stalled_write(config) {
        config.stall_limit = LONG * 10;
        let served = Served::start(config);
        let client = served.client(A);

        client.region_write(0, reg::SEND, &[0; 4], true).unwrap();
        client.reset().unwrap();

        assert_eq!(read32(&client, reg::SCRATCH), 0);
        assert_eq!(served.counter("sent"), 0);
    }

    fn an_operators_reset_cancels_a_stalled_write(config) {
        config.stall_limit = LONG * 10;
        let served = Served::start(config);
        let (first, second) = (served.client(A), served.client(B));

        std::thread::scope(|scope| {
            let write = scope.spawn(|| first.region_write(0, reg::SEND, &[0; 4], false));
            served.wait_until("the write stalls", |snapshot| client_of(snapshot, A).unwrap().stalled);
            served.handle.reset_function(FUNCTION, LONG).unwrap().unwrap();
            assert_eq!(write.join().unwrap().unwrap_err().errno(), Errno::ECANCELED);
        });
        write32(&second, reg::CREDITS, 1);

        assert_eq!(read32(&first, reg::SCRATCH), 0);
        assert_eq!(served.counter("sent"), 0);
    }

    fn a_stalled_client_does_not_delay_another(config) {
        config.stall_limit = LONG * 10;
        let served = Served::start(config);
        let (first, second) = (served.client(A), served.client(B));

        first.region_write(0, reg::SEND, &[0; 4], true).unwrap();
        served.wait_until("the write stalls", |snapshot| client_of(snapshot, A).unwrap().stalled);
        write32(&second, reg::SCRATCH, 4);
        assert_eq!(read32(&second, reg::SCRATCH), 4);
        drop(first);
        served.wait_until_free(A);
    }

    fn a_killed_client_frees_its_attachment(config) {
        let served = Served::start(config);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "hostile::hold_an_attachment_until_killed"])
            .env(HELD_SOCKET, served.path(A))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();

        assert!(lines.map_while(Result::ok).any(|line| line.contains("held")));
        assert_eq!(client_of(&served.snapshot(), A).unwrap().pid, child.id() as i32);
        kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL).unwrap();
        child.wait().unwrap();
        served.wait_until_free(A);

        assert_eq!(read32(&served.client(A), reg::SCRATCH), 0);
    }

    fn a_client_that_cuts_its_file_short_loses_the_attachment(config) {
        let served = Served::start(config);
        let (client, other) = (served.client(A), served.client(B));
        let file = memfd_create("cut", MFdFlags::MFD_CLOEXEC).unwrap();
        ftruncate(&file, 0x4000).unwrap();
        client.dma_map(range(0x1000, 0, 0x4000), Some(file.as_fd())).unwrap();
        enable(&client);
        let page = map_bar(&client, MIRROR_BAR, Access::ReadOnly);
        ftruncate(&file, 0).unwrap();
        // The write may fail because the connection ends.
        let _ = copy(&client, 0x1000, 0x3000, 64);
        let snapshot = served.wait_until_free(A);
        assert_eq!(server_of(&snapshot, A).evicted, 1);
        assert_ended(&client);
        let flags = page.u32(mirror::FLAGS).unwrap().load(std::sync::atomic::Ordering::Acquire);

        assert_eq!(flags, mirror::FLAG_DEAD);
        assert_eq!(read32(&other, reg::SCRATCH), 0);
    }

    fn a_file_of_another_file_system_is_not_mapped_and_reached_by_messages(config) {
        let served = Served::start(config);
        let plain = Arc::new(UnmappedMemory(std::sync::Mutex::new([[3; 0x800], [0; 0x800]].concat())));
        let client = served.client_with_memory(A, plain.clone());
        let file = File::open("/sys/kernel/uevent_seqnum").unwrap();

        client.dma_map(range(0, 0, 0x1000), Some(file.as_fd())).unwrap();
        client.dma_map(range(0x1000, 0, 0x1000), Some(file.as_fd())).unwrap();
        enable(&client);
        let done = bind(&client, PCI_MSIX_IRQ, 0);
        copy(&client, 0, 0x800, 0x800).unwrap();
        let deadline = Instant::now() + LONG;
        while plain.0.lock().unwrap()[0xfff] != 3 {
            assert!(Instant::now() < deadline, "the copy did not end");
            client.poll_incoming(Duration::from_millis(10)).unwrap();
        }
        wait_for(&done);
        let snapshot = served.snapshot();
        assert_eq!(plain.0.lock().unwrap()[0x800..], [3; 0x800]);
        assert_eq!((server_of(&snapshot, A).dma_messages, server_of(&snapshot, A).unmappable), (2, 1));
        let client = client_of(&snapshot, A).unwrap();

        assert_eq!((client.ranges, client.mapped_bytes), (2, 0));
    }

    fn a_range_past_the_end_of_its_file_is_refused(config) {
        let served = Served::start(config);
        let client = served.client(A);
        let memory = memory(0x1000);
        let mapped = client.dma_map(range(0, 0x1000, 0x1000), memory.fd());
        assert_eq!(mapped.err().unwrap().errno(), Errno::EINVAL);
    }

    fn quotas_bound_bytes_and_files(config) {
        config.quotas = Quotas { mapped_bytes: 0x3000, files: 2, ranges: 64, ..Quotas::default() };
        let served = Served::start(config);
        let client = served.client(A);
        let large = memory(0x4000);
        let errno = |result: Result<(), nicforge_vfio_user::ClientError>| result.err().map(|error| error.errno());
        let mapped = || client_of(&served.snapshot(), A).unwrap().mapped_bytes;

        // A part of a file counts as the whole of it, and is accessed by DMA messages.
        assert_eq!(errno(client.dma_map(range(0, 0x1000, 0x1000), large.fd())), None);
        assert_eq!(mapped(), 0);

        let small = [(); 3].map(|()| memory(0x1000));
        for (index, file) in (1..).zip(&small[..2]) {
            assert_eq!(errno(client.dma_map(range(index << 16, 0, 0x1000), file.fd())), None);
        }
        assert_eq!(errno(client.dma_map(range(0x4_0000, 0, 0x1000), small[2].fd())), Some(Errno::ENOSPC));
        assert_eq!(mapped(), 0x2000);
    }

    fn a_client_that_stops_reading_is_paused_until_it_reads(config) {
        let served = Served::start(config);
        let mut raw = negotiated(&served.path(A));
        raw.set_nonblocking(true).unwrap();
        let request = region_read(0x1000);
        let mut sent = 0;
        let mut rest: &[u8] = &[];
        let deadline = Instant::now() + LONG;
        // The loop ends when the server has taken no request while it answered several snapshots.
        loop {
            assert!(Instant::now() < deadline, "the server takes requests without end");
            if rest.is_empty() {
                rest = &request;
                sent += 1;
            }
            match raw.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let before = client_of(&served.snapshot(), A).unwrap().messages;
                    for _ in 0..32 {
                        served.snapshot();
                    }
                    if client_of(&served.snapshot(), A).unwrap().messages == before {
                        break;
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(sent < 4096);
        let other = served.client(B);
        assert_eq!(read32(&other, reg::SCRATCH), 0);
        raw.set_nonblocking(false).unwrap();
        raw.set_read_timeout(Some(LONG)).unwrap();
        raw.set_write_timeout(Some(LONG)).unwrap();
        let mut reply = vec![0; 32 + 0x1000];
        for _ in 1..sent {
            raw.read_exact(&mut reply).unwrap();
        }
        raw.write_all(rest).unwrap();
        raw.read_exact(&mut reply).unwrap();

        assert_eq!(Header::parse(&reply).unwrap().size as usize, reply.len());
    }

    fn a_dma_message_without_an_answer_is_an_error_for_the_device(config) {
        config.dma_limit = Duration::from_millis(30);
        let served = Served::start(config);
        let client_config = ClientConfig {
            timeout: LONG,
            memory: Some(Arc::new(Inaccessible)),
            twin_socket: false,
            ..ClientConfig::default()
        };
        let client = Client::connect_with(served.path(A), client_config).unwrap();

        client.dma_map(range(0, 0, 0x1000), None).unwrap();
        enable(&client);
        let done = bind(&client, PCI_MSIX_IRQ, 0);
        copy(&client, 0, 0x800, 64).unwrap();
        // This thread waits for the interrupt only, so no thread answers the message.
        wait_for(&done);

        assert_eq!(server_of(&served.snapshot(), A).dma_timeouts, 1);
        assert_eq!(read64(&client, reg::COPIED), reg::ONE_COPY_FAILED);
    }

    fn a_client_whose_eventfd_blocks_loses_the_attachment_and_no_other_does(config) {
        let served = Served::start(config);
        let (client, other) = (served.client(A), served.client(B));
        let full = bind(&client, PCI_MSIX_IRQ, 0);
        fcntl(&full, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        full.write(u64::MAX - 1).unwrap();
        client.region_write(0, reg::RAISE, &0_u32.to_le_bytes(), true).unwrap();
        assert_eq!(read32(&other, reg::SCRATCH), 0);
        let snapshot = served.wait_until_free(A);

        assert_eq!(server_of(&snapshot, A).evicted, 1);
    }

    fn requests_of_a_client_that_disconnected_without_reading_replies_are_carried_out(config) {
        let served = Served::start(config);

        write32(&served.client(B), reg::CREDITS, 1);
        let mut raw = Raw::negotiated(&served.path(A));
        // The engine reads the messages only when the client has gone.
        let (release, released) = std::sync::mpsc::channel::<()>();
        served.handle.send(move |_| { let _ = released.recv(); }).unwrap();
        raw.send(&request(Message::RegionRead, &access(0, 0, 4, &[])));
        raw.send(&posted(Message::RegionWrite, &access(reg::SEND, 0, 4, &[0; 4])));
        drop(raw);
        drop(release);
        let snapshot = served.wait_until_free(A);

        assert_eq!((counter(&snapshot, "sent"), server_of(&snapshot, A).broken), (1, 0));
    }

    fn a_client_that_sends_no_version_loses_the_attachment(config) {
        config.version_limit = Duration::from_secs(1);
        let served = Served::start(config);
        let speaks = served.client(B);
        let mut silent = Raw::connect(&served.path(A));

        silent.assert_ended();
        let snapshot = served.wait_until_free(A);

        assert_eq!((server_of(&snapshot, A).evicted, server_of(&snapshot, B).evicted), (1, 0));
        assert_eq!(read32(&speaks, reg::SCRATCH), 0);
        assert_eq!(read32(&Client::connect(served.path(A), LONG).unwrap(), reg::SCRATCH), 0);
    }

    fn garbage_ends_its_connection_and_nothing_else(config) {
        let served = Served::start(config);
        let mut raw = UnixStream::connect(served.path(A)).unwrap();
        raw.set_read_timeout(Some(LONG)).unwrap();
        raw.write_all(&[0xff; 4096]).unwrap();
        let mut end = Vec::new();
        // A reset of the connection ends it, too.
        let _ = raw.read_to_end(&mut end);
        served.wait_until_free(A);

        assert_eq!(server_of(&served.snapshot(), A).broken, 1);
        assert_eq!(read32(&served.client(A), reg::SCRATCH), 0);
    }

    fn an_evicted_client_sees_it_in_its_mirror_and_on_its_socket(config) {
        let served = Served::start(config);
        let client = served.client(A);
        let page = map_bar(&client, MIRROR_BAR, Access::ReadOnly);

        assert!(served.handle.evict(FUNCTION, A, LONG).unwrap());
        assert_ended(&client);
        let flags = page.u32(mirror::FLAGS).unwrap().load(std::sync::atomic::Ordering::Acquire);

        assert_eq!(flags, mirror::FLAG_DEAD);
        assert!(!served.handle.evict(FUNCTION, A, LONG).unwrap());
        assert_eq!(served.counter("evicted"), 1);
    }

    fn memory_that_a_device_holds_is_unmapped_and_counts_no_more(config) {
        config.quotas = Quotas { mapped_bytes: 0x3000, ..Quotas::default() };
        let served = Served::start(config);
        let mapped_bytes = || client_of(&served.snapshot(), A).unwrap().mapped_bytes;
        // The tests of both event loops run in one process.
        let own_name = |name: &str| format!("{name}-{:?}-", std::thread::current().id());
        let lease_own_file = |client: &Client, name: &str| {
            let file = SharedMemory::create(&own_name(name), 0x2000).unwrap();
            client.dma_map(range(0, 0, 0x2000), file.fd()).unwrap();
            assert_eq!(mapped_bytes(), 0x2000, "{name} is reached by messages");
            enable(client);
            write32(client, reg::KEEP_LEASES, 1);
            write64(client, reg::LEASE, 0);
        };

        // The device of these tests keeps a lease that has ended, as a packet does. Each call
        // leaves another file: more than the quota of bytes permits at once.
        let first = served.client(A);
        lease_own_file(&first, "test-unmapped");
        first.dma_unmap(DmaUnmap::All).unwrap();
        for _ in 0..10 {
            lease_own_file(&first, "test-again");
            first.dma_unmap(DmaUnmap::All).unwrap();
        }
        wait_until_unmapped(&own_name("test-unmapped"));
        lease_own_file(&first, "test-ended");
        drop(first);
        served.wait_until_free(A);
        wait_until_unmapped(&own_name("test-ended"));

        let next = served.client(A);
        lease_own_file(&next, "test-next");
        write32(&next, reg::RELEASE_LEASES, 1);
        assert_eq!(mapped_bytes(), 0x2000);
    }

    fn an_operators_reset_reaches_clients_that_stay(config) {
        let served = Served::start(config);
        let client = served.client(A);
        write32(&client, reg::SCRATCH, 3);
        served.handle.reset_function(FUNCTION, LONG).unwrap().unwrap();
        assert_eq!(read32(&client, reg::SCRATCH), 0);
        assert!(served.handle.reset_function(FunctionId(9), LONG).unwrap().is_err());
    }
}

/// Waits until no memory file of this name is mapped in this process, which is also the server's.
fn wait_until_unmapped(name: &str) {
    let deadline = Instant::now() + LONG;
    while std::fs::read_to_string("/proc/self/maps").unwrap().contains(name) {
        assert!(Instant::now() < deadline, "{name} is still mapped");
        std::thread::yield_now();
    }
}

#[test]
fn a_socket_has_mode_0600() {
    let served = Served::start(EngineConfig::default());
    let mode = std::fs::metadata(served.path(A)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_socket_of_a_running_server_is_an_error() {
    let served = Served::start(EngineConfig::default());
    let refused = listen_at(&served.path(A));
    assert!(matches!(refused, Err(EngineError::SocketInUse { .. })));
    assert_eq!(read32(&served.client(A), reg::SCRATCH), 0);
}

#[test]
fn a_socket_that_a_dead_server_left_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    listen_at(&path).unwrap();
}

#[test]
fn a_file_that_is_no_socket_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(listen_at(&path), Err(EngineError::NotASocket { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn an_attachment_is_served_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = engine();

    engine.listen(FUNCTION, A, dir.path().join("1")).unwrap();
    let second_listen = engine.listen(FUNCTION, A, dir.path().join("2"));
    assert!(matches!(second_listen, Err(EngineError::AlreadyServed { .. })));
    let missing = engine.listen(FunctionId(7), A, dir.path().join("3"));
    assert!(matches!(missing, Err(EngineError::NoSuchAttachment { function: 7, .. })));
}

/// Does nothing unless it runs as a process of its own, started by
/// [`a_killed_client_frees_its_attachment`].
#[test]
fn hold_an_attachment_until_killed() {
    let Some(path) = std::env::var_os(HELD_SOCKET) else { return };
    let client = Client::connect(path, LONG).unwrap();
    let memory = memory(0x4000);

    client.dma_map(range(0, 0, 0x4000), memory.fd()).unwrap();
    write32(&client, reg::SCRATCH, 77);
    println!("held");
    client.poll_incoming(LONG).unwrap();
}

/// Returns an engine with a machine of one node.
fn engine() -> Engine {
    let mut machine = Machine::new();
    machine.add_function("node", Box::<TestDevice>::default()).unwrap();
    Engine::new(machine, EngineConfig { event_loop: EventLoopKind::Epoll, ..EngineConfig::default() })
        .unwrap()
}

fn listen_at(path: &std::path::Path) -> Result<(), EngineError> {
    engine().listen(FUNCTION, A, path)
}

/// Returns a request to read this many bytes of the windows.
fn region_read(length: u32) -> Vec<u8> {
    let mut message = Header::request(2, Message::RegionRead, 16, false).to_bytes().to_vec();
    message.extend(0_u64.to_le_bytes());
    message.extend(1_u32.to_le_bytes());
    message.extend(length.to_le_bytes());
    message
}

/// Memory that refuses every DMA message.
struct Inaccessible;

impl GuestMemory for Inaccessible {
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::EFAULT)
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::EFAULT)
    }
}
