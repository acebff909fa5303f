//! Threads that poll a device: the time at which they see its answer.

use std::{cell::Cell, rc::Rc, time::Duration};

use nicforge_core::machine::Machine;
use nicforge_driver::{
    Device, Relax,
    runtime::{self, Cost, Instant, charge},
};
use nicforge_hwi::proof::slot_fifo;
use nicforge_proof::SlotFifo;
use nicforge_shm::Window;
use nicforge_sim::world::{Devices, Picos, Process, Profile, World};

/// The time between two polls of a thread, in nanoseconds.
const PERIOD: u64 = 10;
/// The time of a unit of the threads' own work, in nanoseconds.
const WORK: u64 = 7_000;

/// A world with a FIFO that answers a message in the instant in which it is sent.
struct FifoWorld {
    world: World,
    process: Process,
    seen: Rc<Cell<Option<Duration>>>,
}

/// The client's side of the FIFO.
struct Client {
    device: Device,
    send: Window,
    receive: Window,
}

impl Client {
    /// Opens the FIFO device.
    fn open(devices: &Devices) -> Self {
        let device = devices.open("fifo", "user0").unwrap();
        let send = device.bar(1).unwrap().window(slot_fifo::WIN_SEND, slot_fifo::SLOT).unwrap();
        let receive = device.bar(2).unwrap().window(slot_fifo::MIRROR_RECEIVE, slot_fifo::SLOT).unwrap();
        Self { device, send, receive }
    }

    fn send(&self) {
        self.send.store_u64_release(0, 1).unwrap();
        self.device.doorbell().after_store().unwrap();
    }

    fn has_answer(&self) -> bool {
        self.receive.load_u64_acquire(0) == Ok(1)
    }

    /// Polls until the answer has arrived, with `work` units of work between two polls.
    fn wait(&self, work: usize) {
        let mut relax = Relax::new();
        while !self.has_answer() {
            charge(Cost::Compute, work);
            self.device.relax(&mut relax).unwrap();
        }
    }
}

impl FifoWorld {
    fn new() -> Self {
        let mut machine = Machine::new();
        machine.add_function("fifo", Box::new(SlotFifo::new())).unwrap();

        let mut world = World::new(machine, 1);
        let profile =
            Profile::default().with_poll(Picos::nanos(PERIOD)).with(Cost::Compute, Picos::nanos(WORK));
        let process = world.add_process(Vec::new(), profile);
        Self { world, process, seen: Rc::default() }
    }

    /// Runs a thread that opens the FIFO. Returns the time that `body` takes.
    fn run(mut self, body: impl FnOnce(Client) + 'static) -> Duration {
        let (devices, observed) = (self.world.devices(), self.seen.clone());
        self.world.start(self.process, "a client", move || {
            let client = Client::open(&devices);
            let start = Instant::now();
            body(client);
            observed.set(Some(start.elapsed()));
        });

        self.world.run(Duration::from_secs(1)).unwrap();
        self.seen.take().unwrap()
    }
}

#[test]
fn an_answer_in_the_instant_of_the_store_is_seen_at_the_next_poll() {
    let time = FifoWorld::new().run(|client| {
        // The first poll is over when the message is sent.
        client.device.relax(&mut Relax::new()).unwrap();
        let start = Instant::now();
        client.send();
        client.wait(0);
        assert_eq!(start.elapsed(), Duration::from_nanos(PERIOD));
    });
    assert!(time >= Duration::from_nanos(PERIOD), "{time:?}");
}

#[test]
fn an_answer_during_the_work_after_a_poll_is_seen_at_the_next_poll() {
    let time = FifoWorld::new().run(|client| {
        let sender = client.send.clone();
        let device = client.device.clone();
        let thread = runtime::spawn("a sender", move || {
            runtime::sleep(Duration::from_nanos(WORK / 2));
            sender.store_u64_release(0, 1).unwrap();
            device.doorbell().after_store().unwrap();
        });

        client.wait(1);
        thread.unwrap().join();
    });
    assert_eq!(time, Duration::from_nanos(WORK + PERIOD));
}

#[test]
fn a_thread_without_an_answer_polls_again_after_two_microseconds() {
    let time = FifoWorld::new().run(|client| {
        for _ in 0..3 {
            client.device.relax(&mut Relax::new()).unwrap();
        }
    });
    assert!((4_000..=6_000).contains(&time.as_nanos()), "{time:?}");
}
