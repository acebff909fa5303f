//! The checksum card in process, its companion stepped and on a thread: sums, resets, and a
//! companion that panics or hangs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::{
    sync::{
        Arc, Mutex,
        mpsc::{self, Sender},
    },
    task::Waker,
    time::{Duration, Instant},
};

use nicforge_core::{
    companion::CompanionMode,
    dma::{DmaBacking, DmaPermission},
    ids::{AttachmentId, FunctionId},
    machine::{Access, Machine, region},
    time::Nanos,
};
use nicforge_hwi::proof::checksum::*;
use nicforge_proof::{Checksum, checksum::fnv1a};
use nicforge_shm::SharedMemory;

/// The card.
const CARD: FunctionId = FunctionId(0);
/// The client of most tests.
const USER: AttachmentId = AttachmentId(0);
/// IOVA of each client's memory.
const ADDRESS: u64 = 0x1_0000;
/// Longest wait of a test, and time limit of a companion unless a test sets another.
const LONG: Duration = Duration::from_secs(20);
/// Both ways to run a companion.
const BOTH: [CompanionMode; 2] = [CompanionMode::Stepped, CompanionMode::Threads];
/// First byte of data at which the companion panics.
const PANIC: u8 = 1;
/// First byte of data at which the companion waits until the test lets it continue.
const WAIT: u8 = 2;
/// Offset of the command register in configuration space.
const COMMAND: u64 = 0x04;
/// The command register's bits for memory accesses and for bus mastering.
const MEMORY_AND_BUS_MASTER: u16 = 0x0006;

/// A machine with one card, stepped in real time.
struct Rig {
    machine: Machine,
    memories: Vec<SharedMemory>,
    started: Instant,
    /// A drop of this end lets companions at [`WAIT`] continue.
    release: Option<Sender<()>>,
}

impl Rig {
    /// Returns a card that all of its attachments use.
    fn new(mode: CompanionMode) -> Self {
        let (release, released) = mpsc::channel::<()>();
        let released = Mutex::new(released);
        let algorithm = move |bytes: &[u8]| {
            assert_ne!(bytes[0], PANIC, "broken");
            if bytes[0] == WAIT {
                let _ = released.lock().unwrap().recv();
            }
            fnv1a(bytes)
        };

        let mut machine = Machine::new();
        machine.set_companions(mode, Waker::noop().clone());
        // No test takes this long, unless it sets another limit.
        machine.set_companion_limit(LONG.as_nanos() as u64);
        machine.add_function("sum0", Box::new(Checksum::with_algorithm(Arc::new(algorithm)))).unwrap();
        let mut rig = Self { machine, memories: Vec::new(), started: Instant::now(), release: Some(release) };
        (0..ATTACHMENTS).for_each(|attachment| rig.attach(AttachmentId(attachment)));
        rig
    }

    /// Attaches a client with memory of its own at [`ADDRESS`].
    fn attach(&mut self, attachment: AttachmentId) {
        self.machine.attach(CARD, attachment).unwrap();
        self.enable_bus_master(attachment);
        let memory = SharedMemory::create("client", MAX_LENGTH as usize).unwrap();
        let (length, backing) = (u64::from(MAX_LENGTH), DmaBacking::Memory(memory.whole()));
        self.machine.dma_map(CARD, attachment, ADDRESS, length, DmaPermission::READ_WRITE, backing).unwrap();
        self.memories.push(memory);
    }

    /// Enables memory accesses and DMA, which a reset disables.
    fn enable_bus_master(&mut self, attachment: AttachmentId) {
        self.write(attachment, region::CONFIG, COMMAND, &MEMORY_AND_BUS_MASTER.to_le_bytes());
    }

    /// Writes bytes of a region by a trapped access.
    fn write(&mut self, attachment: AttachmentId, region: u32, offset: u64, data: &[u8]) {
        assert_eq!(self.machine.write(CARD, attachment, region, offset, data).unwrap(), Access::Done);
    }

    /// Reads a 32-bit register.
    fn read(&mut self, attachment: AttachmentId, offset: u64) -> u32 {
        let mut data = [0; 4];
        assert_eq!(
            self.machine.read(CARD, attachment, region::BAR0, offset, &mut data).unwrap(),
            Access::Done
        );
        u32::from_le_bytes(data)
    }

    /// Starts a sum of `bytes`.
    fn start(&mut self, attachment: AttachmentId, bytes: &[u8]) {
        self.memories[usize::from(attachment.0)].write(0, bytes).unwrap();
        self.write(attachment, region::BAR0, REG_ADDRESS, &ADDRESS.to_le_bytes());
        self.write(attachment, region::BAR0, REG_LENGTH, &(bytes.len() as u32).to_le_bytes());
        self.write(attachment, region::BAR0, REG_START, &1_u32.to_le_bytes());
    }

    /// Returns a 64-bit word of a client's mirror.
    fn mirror(&self, attachment: AttachmentId, offset: u64) -> u64 {
        let mirror = self.machine.region(CARD, attachment, 2).unwrap().memory.unwrap();
        mirror.u64(offset).unwrap().load(std::sync::atomic::Ordering::Acquire)
    }

    /// Steps the machine at the present time.
    fn step(&mut self) {
        self.machine.step(Nanos(self.started.elapsed().as_nanos() as u64), 64);
    }

    /// Steps the machine until a condition holds, for [`LONG`] at most.
    #[track_caller]
    fn step_until(&mut self, mut condition: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + LONG;
        while !condition(self) {
            assert!(Instant::now() < deadline, "not in time");
            self.step();
            std::thread::yield_now();
        }
    }

    /// Steps the machine until `starts` starts of the client have ended in all. Returns the status
    /// after the last.
    #[track_caller]
    fn step_until_ended(&mut self, attachment: AttachmentId, starts: u64) -> u32 {
        self.step_until(|rig| rig.mirror(attachment, MIRROR_ENDED) == starts);
        self.read(attachment, REG_STATUS)
    }

    /// Asserts that a sum is right. `ended` starts have ended before it.
    #[track_caller]
    fn assert_sums(&mut self, attachment: AttachmentId, ended: u64) {
        let bytes: Vec<u8> = (0..1000_u32).map(|at| 3 + (at % 200) as u8).collect();
        self.start(attachment, &bytes);
        assert_eq!(self.step_until_ended(attachment, ended + 1), 0);
        assert_eq!(self.mirror(attachment, MIRROR_SUM), fnv1a(&bytes));
    }
}

#[test]
fn sums_of_all_clients_are_right() {
    for mode in BOTH {
        let mut rig = Rig::new(mode);
        let bytes = |attachment: u16, round: u8| {
            vec![10 * round + 3 + attachment as u8; MAX_LENGTH as usize - attachment as usize]
        };
        for round in 0..4 {
            for attachment in 0..ATTACHMENTS {
                rig.start(AttachmentId(attachment), &bytes(attachment, round));
            }
            for attachment in 0..ATTACHMENTS {
                assert_eq!(rig.step_until_ended(AttachmentId(attachment), u64::from(round) + 1), 0);
                assert_eq!(
                    rig.mirror(AttachmentId(attachment), MIRROR_SUM),
                    fnv1a(&bytes(attachment, round))
                );
            }
        }
        assert_eq!(rig.read(USER, REG_EPOCH), 1);
    }
}

#[test]
fn invalid_start_and_memory_that_is_not_mapped_are_errors() {
    let mut rig = Rig::new(CompanionMode::Stepped);
    rig.write(USER, region::BAR0, REG_START, &1_u32.to_le_bytes());
    assert_eq!(rig.step_until_ended(USER, 1), STATUS_BAD_START);

    rig.write(USER, region::BAR0, REG_LENGTH, &8_u32.to_le_bytes());
    rig.write(USER, region::BAR0, REG_START, &1_u32.to_le_bytes());

    assert_eq!(rig.step_until_ended(USER, 2), STATUS_DMA_ERROR);
    rig.assert_sums(USER, 2);
}

#[test]
fn companion_that_panics_fails_all_starts_until_the_function_is_reset() {
    for mode in BOTH {
        let mut rig = Rig::new(mode);
        rig.start(USER, &[PANIC; 8]);

        assert_eq!(rig.step_until_ended(USER, 1), STATUS_HALTED);
        rig.start(USER, &[9; 8]);
        assert_eq!(rig.step_until_ended(USER, 2), STATUS_HALTED);
        assert_eq!(
            rig.machine.companions(CARD)[0].to_string(),
            "checksum (epoch 1) panicked: assertion `left != right` failed: broken left: 1 right: 1"
        );

        rig.machine.reset_function(CARD).unwrap();
        assert_eq!(rig.read(USER, REG_EPOCH), 2);
        rig.assert_sums(USER, 0);
        assert!(rig.machine.device_panic(CARD).is_none());
    }
}

#[test]
fn companion_that_hangs_is_replaced_at_a_reset_and_its_late_sum_dropped() {
    let mut rig = Rig::new(CompanionMode::Threads);
    rig.machine.set_companion_limit(20_000_000);
    rig.start(USER, &[WAIT; 8]);

    assert_eq!(rig.step_until_ended(USER, 1), STATUS_HALTED);
    rig.machine.set_companion_limit(LONG.as_nanos() as u64);
    rig.machine.reset_function(CARD).unwrap();
    rig.assert_sums(USER, 0);

    assert_eq!(rig.machine.companions(CARD)[0].to_string(), "checksum (epoch 2) running, 1 thread abandoned");
    rig.release = None;
    rig.step_until(|rig| rig.machine.companions(CARD)[0].is_healthy());
    rig.assert_sums(USER, 1);
}

#[test]
fn sum_in_progress_at_the_reset_of_its_client_does_not_complete_a_later_start() {
    let mut rig = Rig::new(CompanionMode::Threads);
    rig.start(USER, &[WAIT; 8]);
    rig.step();

    rig.machine.reset_attachment(CARD, USER).unwrap();
    rig.enable_bus_master(USER);
    rig.start(USER, &[7; 64]);
    rig.release = None;

    assert_eq!(rig.step_until_ended(USER, 1), 0);
    assert_eq!(rig.mirror(USER, MIRROR_SUM), fnv1a(&[7; 64]));
    rig.assert_sums(AttachmentId(1), 0);
    assert_eq!(rig.mirror(USER, MIRROR_ENDED), 1);
}

#[test]
fn drop_of_the_machine_does_not_wait_for_a_companion_that_hangs() {
    let mut rig = Rig::new(CompanionMode::Threads);
    rig.start(USER, &[WAIT; 8]);
    rig.step();
    let release = rig.release.take();

    // The wait has no end of its own, so a join would never return.
    drop(rig);

    drop(release);
}
