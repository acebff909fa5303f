//! Descriptors and processor time. These tests measure the whole process, so they run one after
//! another.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod common;

use std::{
    io::Read,
    os::{
        fd::{AsFd, AsRawFd},
        unix::net::UnixStream,
    },
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use common::{neighbour::Neighbour, *};
use nicforge_core::ids::FunctionId;
use nicforge_vfio_user::{Client, Errno, IrqAction, IrqPayload, PCI_MSIX_IRQ};
use nix::{
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket},
    },
    time::{ClockId, clock_gettime},
};

/// Greatest share of a processor that an engine with idle clients may take.
const MAXIMUM_IDLE_SHARE: f64 = 0.02;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn hold_other_tests_back() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

both_loops! {
    holding hold_other_tests_back;

    fn ten_thousand_connections_leak_nothing_and_disturb_no_client(config) {
        let neighbour = Neighbour::start(config);
        let served = &neighbour.served;
        let connect_and_leave = |count| {
            for _ in 0..count {
                drop(UnixStream::connect(served.path(A)).unwrap());
            }
            // A later client is served after all earlier ones.
            drop(patient_client(served));
            served.wait_until_free(A);
        };

        connect_and_leave(100);
        let before = count_descriptors();
        for _ in 0..10 {
            connect_and_leave(1_000);
            neighbour.assert_served();
        }

        assert_descriptors(before);
    }

    fn a_client_with_its_quota_full_holds_few_descriptors(config) {
        let neighbour = Neighbour::start(config);
        let client = neighbour.served.client(A);
        let files: Vec<_> = (0..config.quotas.files).map(|_| memory(0x1000)).collect();

        // The server's first answer passed a descriptor. It has closed its own copy of that
        // descriptor when it gives the next answer.
        assert_eq!(read32(&client, reg::SCRATCH), 0);
        let before = count_descriptors();
        for (address, file) in (0..).step_by(0x1000).zip(&files) {
            client.dma_map(range(address, 0, 0x1000), file.fd()).unwrap();
        }
        // A mapped file need not stay open.
        assert_descriptors(before);
        let one_more = memory(0x1000);
        let refused = client.dma_map(range(1 << 40, 0, 0x1000), one_more.fd());
        assert_eq!(refused.err().unwrap().errno(), Errno::ENOSPC);
        drop(one_more);
        // New eventfds replace the earlier ones.
        for _ in 0..100 {
            let fds = [(); 4].map(|()| eventfd());
            let fds: Vec<_> = fds.iter().map(|fd| Some(fd.as_fd())).collect();
            client.set_irqs(PCI_MSIX_IRQ, 0, IrqAction::Trigger, IrqPayload::EventFd(&fds)).unwrap();
        }

        assert_descriptors(before + 4);
        neighbour.assert_served();
        drop((client, files));
        neighbour.assert_served_and_reusable();
    }

    fn a_thousand_whole_clients_leak_nothing(config) {
        let served = Served::start(config);
        let memory = memory(0x2000);
        let connect_and_leave = |count| {
            for _ in 0..count {
                let client = served.client(A);
                client.dma_map(range(0, 0, 0x2000), memory.fd()).unwrap();
                bind(&client, PCI_MSIX_IRQ, 0);
                write32(&client, reg::SCRATCH, 1);
            }
            served.wait_until_free(A);
        };

        connect_and_leave(10);
        let (before, mappings) = (count_descriptors(), count_mappings());
        connect_and_leave(1_000);
        assert_descriptors(before);
        // A thread of the engine unmaps later.
        let deadline = Instant::now() + LONG;
        while count_mappings() > mappings + 8 {
            assert!(Instant::now() < deadline, "{} mappings, {mappings} before", count_mappings());
            std::thread::yield_now();
        }
    }

    fn connections_beyond_the_first_are_all_refused(config) {
        let served = Served::start(config);
        let first = served.client(A);
        let before = count_descriptors();
        let crowd: Vec<_> = (0..200).map(|_| UnixStream::connect(served.path(A)).unwrap()).collect();

        for mut second in crowd {
            second.set_read_timeout(Some(LONG)).unwrap();
            assert_eq!(second.read(&mut [0]).unwrap_or(0), 0);
        }

        assert_eq!(read32(&first, reg::SCRATCH), 0);
        assert_descriptors(before);
    }

    fn clients_are_refused_while_no_descriptors_are_free(config) {
        let served = Served::start(config);
        let flags = SockFlag::SOCK_CLOEXEC;
        let early = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        let address = UnixAddr::new(&served.path(A)).unwrap();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();

        setrlimit(Resource::RLIMIT_NOFILE, early.as_raw_fd() as u64 + 1, hard).unwrap();
        let connected = connect(early.as_raw_fd(), &address);
        let mut early = UnixStream::from(early);
        early.set_read_timeout(Some(LONG)).unwrap();
        let end = early.read(&mut [0]);
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        connected.unwrap();

        assert_eq!(end.unwrap_or(0), 0);
        assert_eq!(read32(&patient_client(&served), reg::SCRATCH), 0);
    }

    fn an_idle_machine_of_65_nodes_uses_no_processor_time(config) {
        let served = Served::start_nodes(config, 65);

        let share = idle_share(&served, 0.0);
        assert_eq!(share, 0.0, "without clients nothing is to be done at all");
        let clients: Vec<_> = (0..65)
            .map(|node| Client::connect(served.dir.path().join(format!("node{node}-0.sock")), LONG).unwrap())
            .collect();
        let share = idle_share(&served, MAXIMUM_IDLE_SHARE);
        println!("{}: {:.2} % with 65 idle clients", served.event_loop, share * 100.0);

        assert!(share <= MAXIMUM_IDLE_SHARE, "{share}");
        assert!(clients.iter().all(Client::is_alive));
        assert_eq!(served.handle.call(LONG, |control| control.machine().functions()).unwrap(), 65);
        assert!(served.handle.reset_function(FunctionId(64), LONG).unwrap().is_ok());
    }
}

/// Returns the share of a processor that an unused engine takes, once that is at most `maximum`.
///
/// On a slow machine the end of the connects can last into the first intervals. An engine that does
/// not become idle shows its last share.
fn idle_share(served: &Served, maximum: f64) -> f64 {
    let deadline = Instant::now() + LONG;
    loop {
        let share = busy_share(served);
        if share <= maximum || Instant::now() > deadline {
            return share;
        }
    }
}

/// Returns the share of a processor that an engine takes in an interval, rounded down to a
/// thousandth.
fn busy_share(served: &Served) -> f64 {
    const INTERVAL: Duration = Duration::from_millis(500);
    let used =
        || served.handle.call(LONG, |_| clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap()).unwrap();
    let before = used();

    // The sleep is the interval of the measurement; it waits for no event.
    std::thread::sleep(INTERVAL);
    let used = Duration::from(used()) - Duration::from(before);
    (used.as_secs_f64() / INTERVAL.as_secs_f64() * 1000.0).floor() / 1000.0
}

/// Returns a client that tries again while the attachment is taken.
fn patient_client(served: &Served) -> Client {
    let deadline = Instant::now() + LONG;

    loop {
        match Client::connect(served.path(A), LONG) {
            Ok(client) => return client,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

/// Asserts that soon at most this many descriptors are open.
///
/// Other threads close the descriptors of clients, also those of the test before, so a count may
/// fall by itself.
#[track_caller]
fn assert_descriptors(maximum: usize) {
    let deadline = Instant::now() + LONG;
    while count_descriptors() > maximum {
        assert!(
            Instant::now() < deadline,
            "{} descriptors are open; expected at most {maximum}",
            count_descriptors()
        );
        std::thread::yield_now();
    }
}

fn count_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn count_mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}
