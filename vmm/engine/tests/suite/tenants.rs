//! An old tenant keeps its windows, rings, files and eventfds mapped and open after it loses its
//! attachment, and continues to write to them. The next tenant and the device must see none of
//! that.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]
#![allow(unsafe_code, reason = "a process is forked that keeps what its killed parent had")]

use std::{
    io::{BufRead, BufReader},
    os::fd::AsRawFd,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

use crate::common::{neighbour::Neighbour, *};
use nicforge_engine::EngineConfig;
use nicforge_shm::{Access, Cells, Producer, SharedCells, SharedMemory};
use nicforge_vfio_user::{Client, PCI_MSIX_IRQ};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::eventfd::EventFd,
    unistd::{ForkResult, close, fork, read},
};

/// BAR of the attachment's windows: the posted-write ring of 64 cells, and the device's own part
/// after it.
const WINDOW_BAR: u32 = 1;
const WINDOW: u64 = 0x1_0000;
const RING_BYTES: u64 = 64 * 64;
/// DMA address of the tenants' memory.
const ADDRESS: u64 = 0x10_0000;
/// Value that an old tenant posts to a register that keeps it.
const POISON: u32 = 0xdead_dead;
/// Rounds of the next tenant's work.
const ROUNDS: u32 = 200;

/// Environment variables that pass to [`hold_all_resources_and_fork`] its socket, and whether the
/// fork keeps the connection.
const SOCKET: &str = "NICFORGE_TEST_TENANT_SOCKET";
const KEEPS_CONNECTION: &str = "NICFORGE_TEST_TENANT_KEEPS_CONNECTION";

/// Everything that a tenant keeps besides its connection.
struct TenantResources {
    windows: SharedMemory,
    memory: SharedMemory,
    interrupt: EventFd,
}

impl TenantResources {
    /// Makes a tenant, and returns it with everything that it keeps.
    fn of(path: &Path) -> (Client, Self) {
        let client = Client::connect(path, LONG).unwrap();
        let windows = map_bar(&client, WINDOW_BAR, Access::ReadWrite);
        let memory = memory(0x1000);

        client.dma_map(range(ADDRESS, 0, 0x1000), memory.fd()).unwrap();
        enable(&client);
        let interrupt = bind(&client, PCI_MSIX_IRQ, 0);
        (client, Self { windows, memory, interrupt })
    }

    /// Writes valid records of this phase to every cell of the ring, and other bytes everywhere
    /// else.
    fn write_everywhere(&self, phase: bool) {
        let cells = || SharedCells::new(self.windows.window(0, RING_BYTES).unwrap()).unwrap();
        let mut producer = Producer::resume(cells(), 0, phase);
        let consumed = if phase { 0 } else { cells().count() as u32 };

        while producer.try_push(|| consumed, 0, reg::SCRATCH as u32, &POISON.to_le_bytes()).is_ok() {}
        for offset in (WINDOW..WINDOW + 0x1000).step_by(64) {
            self.windows.write(offset, &[0xee; 64]).unwrap();
        }
        for offset in (0..0x1000).step_by(64) {
            self.memory.write(offset, &[0xdd; 64]).unwrap();
        }
    }
}

/// Asserts that the next tenant's windows are fresh, and that its registers, rings, DMA and
/// interrupts do only what it requests.
fn assert_next_tenant_is_isolated(neighbour: &Neighbour) {
    let served = &neighbour.served;
    let before = served.snapshot().functions[0].attachments[0].counters;
    let (client, next_tenant) = TenantResources::of(&served.path(A));

    assert_eq!(read32(&client, reg::SCRATCH), 0);
    let cells = SharedCells::new(next_tenant.windows.window(0, RING_BYTES).unwrap()).unwrap();
    let mut producer = Producer::new(cells);
    let consumed = || {
        let page = map_bar(&client, 2, Access::ReadOnly);
        page.u32(nicforge_hwi::attachment::mirror::RING_HEAD).unwrap().load(Ordering::Acquire)
    };
    for round in 1..=ROUNDS {
        let mut device_part = [1; 0x1000];
        next_tenant.windows.read(WINDOW, &mut device_part).unwrap();
        assert!(device_part == [0; 0x1000], "another tenant's store is in the windows");
        while producer.try_push(consumed, 0, reg::SCRATCH as u32, &round.to_le_bytes()).is_err() {}
        assert_eq!(read32(&client, reg::SCRATCH), round);
        next_tenant.memory.write(0, &round.to_le_bytes()).unwrap();
        copy(&client, ADDRESS, ADDRESS + 0x800, 4).unwrap();
        assert_eq!(wait_for(&next_tenant.interrupt), 1);
        let mut copied = [0; 4];
        next_tenant.memory.read(0x800, &mut copied).unwrap();
        assert_eq!(copied, round.to_le_bytes());
    }
    let after = served.snapshot().functions[0].attachments[0].counters;

    assert_eq!(after.posted_writes - before.posted_writes, u64::from(ROUNDS));
    assert_eq!(after.malformed_records, before.malformed_records);
    drop(client);
    neighbour.assert_served_and_reusable();
}

/// Lets `end` take attachment A from its tenant, which continues to write to all it had, and checks
/// that the next tenant sees nothing of it.
fn check_with_continuous_writes(config: EngineConfig, end: impl FnOnce(&Served, Client)) {
    let neighbour = Neighbour::start(config);
    let (client, resources) = TenantResources::of(&neighbour.served.path(A));

    resources.write_everywhere(true);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        scope.spawn(|| {
            for phase in (0_u32..).map(|round| round % 2 == 0) {
                resources.write_everywhere(phase);
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        end(&neighbour.served, client);
        neighbour.served.wait_until_free(A);
        // The records that were left in the ring when it ended were its own.
        while resources.interrupt.read().is_ok() {}
        assert_next_tenant_is_isolated(&neighbour);
    });

    assert!(is_unsignalled(&resources.interrupt), "an old tenant got the next one's interrupts");
}

/// Sets a flag when it is dropped, also in a test that fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The fork of a killed process that had the attachment. It keeps all mappings and descriptors, and
/// ends when this is dropped.
struct Fork {
    _input: ChildStdin,
    parent: Child,
}

impl Fork {
    /// Starts a client that forks, and waits until it has forked.
    fn start(path: &Path, keeps_connection: bool) -> Self {
        let mut parent = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "tenants::hold_all_resources_and_fork"])
            .env(SOCKET, path)
            .env(KEEPS_CONNECTION, if keeps_connection { "1" } else { "0" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = parent.stdin.take().unwrap();
        let lines = BufReader::new(parent.stdout.take().unwrap()).lines();

        assert!(lines.map_while(Result::ok).any(|line| line.contains("forked")));
        parent.kill().unwrap();
        parent.wait().unwrap();
        Self { _input: input, parent }
    }
}

both_loops! {
    fn a_tenant_that_left_keeps_writing(config) {
        check_with_continuous_writes(config, |_, client| drop(client));
    }

    fn a_tenant_that_was_evicted_keeps_writing(config) {
        check_with_continuous_writes(config, |served, client| {
            assert!(served.handle.evict(FUNCTION, A, LONG).unwrap());
            drop(client);
        });
    }

    fn a_tenant_whose_connection_broke_keeps_writing(config) {
        check_with_continuous_writes(config, |_, client| {
            let fd = client.socket_fd().as_raw_fd();
            nix::sys::socket::send(fd, &[0xff; 64], nix::sys::socket::MsgFlags::MSG_NOSIGNAL).unwrap();
        });
    }

    fn a_killed_tenants_fork_keeps_writing(config) {
        let neighbour = Neighbour::start(config);
        let fork = Fork::start(&neighbour.served.path(A), false);
        neighbour.served.wait_until_free(A);
        assert_next_tenant_is_isolated(&neighbour);
        drop(fork);
    }

    // A connection belongs to its client until no process has it open. Until then only the operator
    // can end it.
    fn a_killed_tenants_fork_that_keeps_the_connection_is_evicted(config) {
        let neighbour = Neighbour::start(config);
        let fork = Fork::start(&neighbour.served.path(A), true);
        let holder = client_of(&neighbour.served.snapshot(), A).unwrap();

        assert_eq!(holder.pid, fork.parent.id() as i32);
        neighbour.assert_served();
        assert!(neighbour.served.handle.evict(FUNCTION, A, LONG).unwrap());
        assert_next_tenant_is_isolated(&neighbour);
        drop(fork);
    }
}

/// Does nothing unless it runs as a process of its own, started by [`Fork::start`].
#[test]
fn hold_all_resources_and_fork() {
    let Some(path) = std::env::var_os(SOCKET) else { return };
    let keeps_connection = std::env::var(KEEPS_CONNECTION).unwrap() == "1";
    let (client, resources) = TenantResources::of(Path::new(&path));
    let connection = client.socket_fd().as_raw_fd();
    let input = std::io::stdin();

    fcntl(&input, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    // SAFETY: the child stores to existing memory and makes system calls, until it ends without
    // returning.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            if !keeps_connection {
                let _ = close(connection);
            }
            for phase in (0_u32..).map(|round| round % 2 == 0) {
                resources.write_everywhere(phase);
                if read(&input, &mut [0]) != Err(Errno::EAGAIN) {
                    break;
                }
            }
            // SAFETY: this ends the process.
            unsafe { nix::libc::_exit(0) }
        }
        ForkResult::Parent { .. } => {
            println!("forked");
            client.poll_incoming(LONG).unwrap();
        }
    }
}
