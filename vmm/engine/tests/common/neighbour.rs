//! A well-behaved client of attachment B, which works while attachment A is attacked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Instant,
};

use nicforge_engine::EngineConfig;
use nicforge_vfio_user::{Client, PCI_MSIX_IRQ};

use super::*;

const PAGE: u64 = 0x1000;
const SOURCE: u64 = 0x10_0000;
const TARGET: u64 = 0x20_0000;
/// Rounds that show that a neighbour is served.
const ROUNDS: u64 = 3;

/// A served machine with a client that works: it checks registers, DMA and interrupts in each
/// round.
pub struct Neighbour {
    pub served: Served,
    rounds: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbour {
    /// Serves a machine, and starts the neighbour as the client of attachment [`B`].
    pub fn start(config: EngineConfig) -> Self {
        let served = Served::start(config);
        let client = served.client(B);
        let (rounds, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, stopped) = (Arc::clone(&rounds), Arc::clone(&stop));
        let thread = std::thread::spawn(move || work(&client, &counted, &stopped));
        let new = Self { served, rounds, stop, thread: Some(thread) };
        new.assert_served();
        new
    }

    /// Asserts that the neighbour completes some rounds from now on, as the same client as before.
    #[track_caller]
    pub fn assert_served(&self) {
        let (before, started) = (self.rounds.load(Ordering::Relaxed), Instant::now());
        while self.rounds.load(Ordering::Relaxed) < before + ROUNDS {
            assert!(!self.thread.as_ref().unwrap().is_finished(), "the neighbour has failed");
            assert!(started.elapsed() < LONG, "the neighbour is not served");
            std::thread::yield_now();
        }
        assert_eq!(server_of(&self.served.snapshot(), B).clients, 1);
    }

    /// Asserts as [`Neighbour::assert_served`] does, and that attachment A becomes free and works
    /// for the next client.
    #[track_caller]
    pub fn assert_served_and_reusable(&self) {
        self.served.wait_until_free(A);
        let next = self.served.client(A);
        write32(&next, reg::SCRATCH, 0x600d);
        assert_eq!(read32(&next, reg::SCRATCH), 0x600d);
        self.assert_served();
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

/// Uses registers, DMA and an interrupt in rounds until `stop` is set, and counts the rounds.
fn work(client: &Client, rounds: &AtomicU64, stop: &AtomicBool) {
    let memory = memory(2 * PAGE as usize);
    client.dma_map(range(SOURCE, 0, PAGE), memory.fd()).unwrap();
    client.dma_map(range(TARGET, PAGE, PAGE), memory.fd()).unwrap();
    enable(client);
    let done = bind(client, PCI_MSIX_IRQ, 0);

    while !stop.load(Ordering::Relaxed) {
        let round = rounds.load(Ordering::Relaxed) as u32;
        write32(client, reg::SCRATCH, round);
        assert_eq!(read32(client, reg::SCRATCH), round);

        let sent: Vec<u8> = (0..PAGE as u32).map(|at| (at ^ round) as u8).collect();
        memory.write(0, &sent).unwrap();
        copy(client, SOURCE, TARGET, PAGE as u32).unwrap();
        assert_eq!(wait_for(&done), 1);

        let mut received = vec![0; PAGE as usize];
        memory.read(PAGE, &mut received).unwrap();
        assert!(received == sent, "round {round}: the copy is not what was copied");
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}
