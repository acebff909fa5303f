//! Panics of devices and of the engine: what clients of the broken function see, and that a client
//! of another function continues.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::sync::{
    atomic::Ordering,
    mpsc::{self, RecvTimeoutError},
};

use crate::common::*;
use nicforge_core::{machine::Machine, panic::DeviceMethod};
use nicforge_engine::{Engine, EngineConfig, EngineError, Stop};
use nicforge_hwi::attachment::mirror;
use nicforge_shm::{Access, Producer, SharedCells, SharedMemory};
use nicforge_vfio_user::{Client, DmaUnmap, Errno, PCI_MSIX_IRQ, PCI_REQ_IRQ};
use nix::sys::eventfd::EventFd;

const RING_BYTES: u64 = 64 * 64;
const PAGE: u64 = 0x1000;
const ADDRESS: u64 = 0x10_0000;

/// A client whose device is going to panic.
struct Victim {
    client: Client,
    request: EventFd,
    mirror: SharedMemory,
    windows: SharedMemory,
}

impl Victim {
    /// Connects the victim, with memory, an eventfd and mapped windows.
    fn of(served: &Served) -> Self {
        let client = served.client(A);
        let memory = memory(PAGE as usize);
        client.dma_map(range(ADDRESS, 0, PAGE), memory.fd()).unwrap();
        enable(&client);
        let request = bind(&client, PCI_REQ_IRQ, 0);
        let mirror = map_bar(&client, 2, Access::ReadOnly);
        let windows = map_bar(&client, 1, Access::ReadWrite);
        Self { client, request, mirror, windows }
    }

    /// Has the device panic in a method, and causes a call of that method.
    fn break_in(&self, served: &Served, method: DeviceMethod) {
        let second = served.client(B);
        let index = METHODS.iter().position(|&other| other == method).unwrap();
        write64(&self.client, reg::PANIC_IN, index as u64);
        match method {
            // The answer of ones is checked with the others.
            DeviceMethod::Read => drop(read32(&self.client, reg::SCRATCH)),
            DeviceMethod::Drain => self.post(reg::SCRATCH),
            DeviceMethod::DmaDone => copy(&self.client, ADDRESS, ADDRESS, 8).unwrap(),
            DeviceMethod::Attached => {
                drop(second);
                served.wait_until_free(B);
                assert_eq!(Client::connect(served.path(B), LONG).err().unwrap().errno(), Errno::EIO);
            }
            DeviceMethod::Detached => drop(second),
            DeviceMethod::Reset => assert_eq!(self.client.reset().unwrap_err().errno(), Errno::EIO),
            DeviceMethod::LeasesEnded => {
                write64(&self.client, reg::LEASE, ADDRESS);
                let leased = DmaUnmap::Range { address: ADDRESS, size: PAGE };
                self.client.dma_unmap(leased).unwrap();
            }
            DeviceMethod::Counters => drop(served.snapshot()),
            _ => write32(&self.client, reg::SCRATCH, 1),
        }
    }

    /// Posts a record, and wakes the function.
    fn post(&self, register: u64) {
        let cells = SharedCells::new(self.windows.window(0, RING_BYTES).unwrap()).unwrap();
        Producer::new(cells).try_push(|| 0, 0, register as u32, &7_u32.to_le_bytes()).unwrap();
        read32(&self.client, reg::COPIED);
    }

    fn is_dead(&self) -> bool {
        self.mirror.u32(mirror::FLAGS).unwrap().load(Ordering::Acquire) & mirror::FLAG_DEAD != 0
    }
}

/// Asserts that a client of another function is served: registers, DMA and interrupts.
#[track_caller]
fn assert_works(client: &Client) {
    let memory = memory(2 * PAGE as usize);
    client.dma_map(range(ADDRESS, 0, 2 * PAGE), memory.fd()).unwrap();
    enable(client);
    let done = bind(client, PCI_MSIX_IRQ, 0);
    memory.write(0, &[7; 64]).unwrap();

    copy(client, ADDRESS, ADDRESS + PAGE, 64).unwrap();

    wait_for(&done);
    let mut copied = [0; 64];
    memory.read(PAGE, &mut copied).unwrap();
    assert_eq!(copied, [7; 64]);
    write32(client, reg::SCRATCH, 0x600d);
    assert_eq!(read32(client, reg::SCRATCH), 0x600d);
}

/// Has the device of one function panic in a method, while another function has a client.
fn assert_contains_panic_in(config: EngineConfig, method: DeviceMethod, also_in_drop: bool) {
    let served = Served::start_nodes(config, 2);
    let other = Client::connect(served.path_of(1, A), LONG).unwrap();
    let victim = Victim::of(&served);
    if also_in_drop {
        write64(&victim.client, reg::PANIC_IN_DROP, 1);
    }

    victim.break_in(&served, method);

    let expected = format!("panicked in {0}: broken in {0}", method.name());
    served.wait_until("the function is out of service", |snapshot| {
        snapshot.functions[0].panic.as_ref().is_some_and(|panic| panic.to_string() == expected)
    });
    assert_eq!(wait_for(&victim.request), 1);
    assert!(victim.is_dead());
    assert_eq!(read32(&victim.client, reg::SCRATCH), u32::MAX);
    write32(&victim.client, reg::SCRATCH, 1);

    served.wait_until_free(B);
    assert_eq!(Client::connect(served.path(B), LONG).err().unwrap().errno(), Errno::EIO);
    let refused = served.handle.reset_function(FUNCTION, LONG).unwrap().unwrap_err().to_string();
    assert!(refused.starts_with(&format!("device node0 {expected}")), "{refused}");
    assert_works(&other);

    drop(victim);
    let snapshot = served.wait_until_free(A);
    assert!(snapshot.functions[1].panic.is_none());
}

both_loops! {
    fn panic_in_read(config) {
        assert_contains_panic_in(config, DeviceMethod::Read, false);
    }

    fn panic_in_write(config) {
        assert_contains_panic_in(config, DeviceMethod::Write, false);
    }

    fn panic_in_drain(config) {
        assert_contains_panic_in(config, DeviceMethod::Drain, false);
    }

    fn panic_in_step(config) {
        assert_contains_panic_in(config, DeviceMethod::Step, false);
    }

    fn panic_in_dma_done(config) {
        assert_contains_panic_in(config, DeviceMethod::DmaDone, false);
    }

    fn panic_in_attached(config) {
        assert_contains_panic_in(config, DeviceMethod::Attached, false);
    }

    fn panic_in_detached(config) {
        assert_contains_panic_in(config, DeviceMethod::Detached, false);
    }

    fn panic_in_reset(config) {
        assert_contains_panic_in(config, DeviceMethod::Reset, false);
    }

    fn panic_in_leases_ended(config) {
        assert_contains_panic_in(config, DeviceMethod::LeasesEnded, false);
    }

    fn panic_in_counters(config) {
        assert_contains_panic_in(config, DeviceMethod::Counters, false);
    }

    fn panic_in_a_method_and_in_the_drop(config) {
        assert_contains_panic_in(config, DeviceMethod::Step, true);
    }

    fn panic_in_the_drop_at_the_end_of_the_engine(config) {
        let served = Served::start_nodes(config, 2);
        write64(&served.client(A), reg::PANIC_IN_DROP, 1);

        // The engine's thread has ended without a panic.
        drop(served);
    }

    fn panic_of_the_engine_ends_it_with_an_error_and_without_sockets(config) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node0.sock");
        let mut machine = Machine::new();
        machine.add_function("node0", Box::<TestDevice>::default()).unwrap();
        let mut engine = Engine::new(machine, config).unwrap();
        engine.listen(FUNCTION, A, &path).unwrap();
        let (stop, handle) = (Stop::new().unwrap(), engine.handle());
        let (ended_sender, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let result = engine.run(&stop);
            drop(engine);
            ended_sender.send(result).unwrap();
        });
        let client = Client::connect(&path, LONG).unwrap();
        let mirror = map_bar(&client, 2, Access::ReadOnly);

        handle.send(|_| panic!("a broken command")).unwrap();
        let result = ended.recv_timeout(LONG);

        assert_ne!(result.as_ref().err(), Some(&RecvTimeoutError::Disconnected));
        let Err(EngineError::Panicked { message }) = result.unwrap() else { panic!("no panic is reported") };
        assert_eq!(message, "a broken command");
        assert_ended(&client);
        let flags = mirror.u32(mirror::FLAGS).unwrap().load(Ordering::Acquire);
        assert_eq!(flags, mirror::FLAG_DEAD);
        assert!(!path.exists(), "the socket is left behind");
    }
}
