//! A device with a companion, served on sockets: sums come while the engine sleeps, and a companion
//! that panics or hangs halts neither the engine nor other clients.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::{
    sync::{
        Arc, Mutex,
        mpsc::{self, Sender},
    },
    thread::JoinHandle,
    time::Duration,
};

use crate::common::*;
use nicforge_core::{companion::CompanionMode, machine::Machine};
use nicforge_engine::{CompanionConfig, Engine, EngineConfig, EngineHandle, Stop};
use nicforge_hwi::proof::checksum::*;
use nicforge_proof::{Checksum, checksum::fnv1a};
use nicforge_shm::SharedMemory;
use nicforge_vfio_user::{Client, PCI_MSIX_IRQ};
use nix::sys::eventfd::EventFd;

const ADDRESS: u64 = 0x10_0000;
/// First bytes of data that make the companion panic, or wait until the test lets it continue.
const PANIC: u8 = 1;
const WAIT: u8 = 2;

/// A served checksum card.
struct Card {
    handle: EngineHandle,
    stop: Stop,
    dir: tempfile::TempDir,
    thread: Option<JoinHandle<()>>,
    release: Option<Sender<()>>,
}

impl Card {
    /// Serves a device whose companion panics at data that begin with [`PANIC`], and hangs at data
    /// that begin with [`WAIT`] until it is released.
    fn serve(mut config: EngineConfig, mode: CompanionMode, limit: Duration) -> Self {
        let (release, released) = mpsc::channel::<()>();
        let released = Mutex::new(released);
        let algorithm = move |bytes: &[u8]| {
            assert!(bytes[0] != PANIC, "broken");
            if bytes[0] == WAIT {
                let _ = released.lock().unwrap().recv();
            }
            fnv1a(bytes)
        };

        let mut machine = Machine::new();
        machine.add_function("sum0", Box::new(Checksum::with_algorithm(Arc::new(algorithm)))).unwrap();
        config.companions = CompanionConfig { mode, limit };
        let mut engine = Engine::new(machine, config).unwrap();
        let dir = tempfile::tempdir().unwrap();
        for attachment in [A, B] {
            engine.listen(FUNCTION, attachment, dir.path().join(format!("{}.sock", attachment.0))).unwrap();
        }

        let (stop, handle) = (Stop::new().unwrap(), engine.handle());
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || engine.run(&stopped).unwrap());
        Self { handle, stop, dir, thread: Some(thread), release: Some(release) }
    }

    /// Connects a client to attachment `number`, with mapped memory and both interrupts bound.
    fn user(&self, number: u16) -> User {
        let client = Client::connect(self.dir.path().join(format!("{number}.sock")), LONG).unwrap();
        let memory = memory(MAX_LENGTH as usize);
        client.dma_map(range(ADDRESS, 0, u64::from(MAX_LENGTH)), memory.fd()).unwrap();
        enable(&client);
        let done = bind(&client, PCI_MSIX_IRQ, u32::from(VECTOR_DONE));
        let failed = bind(&client, PCI_MSIX_IRQ, u32::from(VECTOR_ERROR));
        User { client, memory, done, failed }
    }

    /// Returns the state of the card's companion.
    fn companion(&self) -> String {
        self.handle.snapshot(LONG).unwrap().functions[0].companions[0].to_string()
    }

    fn reset(&self) {
        self.handle.reset_function(FUNCTION, LONG).unwrap().unwrap();
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        self.stop.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

/// A client of the card.
struct User {
    client: Client,
    memory: SharedMemory,
    done: EventFd,
    failed: EventFd,
}

impl User {
    /// Starts the checksum of `bytes`.
    fn start(&self, bytes: &[u8]) {
        self.memory.write(0, bytes).unwrap();
        write64(&self.client, REG_ADDRESS, ADDRESS);
        write32(&self.client, REG_LENGTH, bytes.len() as u32);
        write32(&self.client, REG_START, 1);
    }

    /// Asserts that the card returns the right checksum ten times.
    #[track_caller]
    fn assert_sums(&self) {
        for round in 0..10 {
            let bytes = vec![3 + round; 5000];
            self.start(&bytes);
            wait_for(&self.done);
            assert_eq!(read64(&self.client, REG_SUM), fnv1a(&bytes));
        }
    }
}

both_loops! {
    fn companions_return_checksums_in_both_modes(config) {
        for mode in [CompanionMode::Stepped, CompanionMode::Threads] {
            let card = Card::serve(config, mode, LONG);
            let (user, other) = (card.user(0), card.user(1));

            user.assert_sums();
            other.assert_sums();

            assert_eq!(card.companion(), "checksum (epoch 1) running");
        }
    }

    fn companion_that_panics_works_again_after_a_reset(config) {
        for mode in [CompanionMode::Stepped, CompanionMode::Threads] {
            let card = Card::serve(config, mode, LONG);
            let user = card.user(0);
            user.start(&[PANIC; 8]);

            wait_for(&user.failed);
            assert_eq!(read32(&user.client, REG_STATUS), STATUS_HALTED);
            assert_eq!(card.companion(), "checksum (epoch 1) panicked: broken");
            card.reset();

            user.assert_sums();
            assert_eq!(read32(&user.client, REG_EPOCH), 2);
        }
    }

    fn companion_that_hangs_delays_no_other_client_and_works_again_after_a_reset(config) {
        // The engine sleeps meanwhile, so it must find the companion by its own clock.
        let mut card = Card::serve(config, CompanionMode::Threads, Duration::from_millis(500));
        let (user, other) = (card.user(0), card.user(1));
        user.start(&[WAIT; 8]);
        write64(&other.client, REG_ADDRESS, 7);
        assert_eq!(read64(&other.client, REG_ADDRESS), 7);

        wait_for(&user.failed);
        assert_eq!(read32(&user.client, REG_STATUS), STATUS_HALTED);
        card.reset();
        user.assert_sums();
        assert_eq!(card.companion(), "checksum (epoch 2) running, 1 thread abandoned");

        card.release = None;
        let deadline = std::time::Instant::now() + LONG;
        while card.companion() != "checksum (epoch 2) running" {
            assert!(std::time::Instant::now() < deadline, "the thread does not return");
            std::thread::yield_now();
        }
    }

    fn engine_ends_while_a_companion_waits(config) {
        let mut card = Card::serve(config, CompanionMode::Threads, LONG);
        let user = card.user(0);
        user.start(&[WAIT; 8]);
        let release = card.release.take();

        // The wait has no end of its own, so a join of its thread would never return.
        drop(card);

        drop(release);
    }
}
