//! Tests of sleeping and waking with the kernel's own barrier.
#![allow(clippy::unwrap_used, reason = "a failure to set up is a failed test")]

use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use nicforge_hwi::posted::CELL;
use nicforge_shm::wake::{
    BarrierKind, Membarrier, NoFence, SleepFlag, Sleeper, SleeperBarrier, Slept, must_kick,
};
use nicforge_shm::{
    Consumer, Peek, Producer, SAFETY_TIMEOUT, SharedCells, SharedMemory, register_membarrier,
};

struct CompilerBarrier;

impl SleeperBarrier for CompilerBarrier {
    fn barrier(&self) {}
}

#[test]
fn registration_and_the_expedited_barrier_agree() {
    // Linux has both since 4.16, unless a filter forbids both.
    let registered = register_membarrier().unwrap();
    let second_registration = register_membarrier().unwrap();
    assert_eq!(registered, second_registration);
    assert_eq!(registered, Membarrier::open().kind() == BarrierKind::GlobalExpedited);
}

#[test]
fn sleeper_that_finds_work_in_the_last_scan_does_not_sleep() {
    let memory = SharedMemory::create("wake", CELL).unwrap();
    let flag = memory.u32(0).unwrap();
    let slept = Sleeper::new(CompilerBarrier).sleep([&flag].into_iter(), || true, |_| panic!("slept"));
    assert_eq!(slept, Slept::FoundWork);
    assert!(!flag.is_set());
}

#[test]
fn flags_are_set_while_asleep_and_clear_afterwards() {
    let memory = SharedMemory::create("wake", 2 * CELL).unwrap();
    let flags = [memory.u32(0).unwrap(), memory.u32(CELL as u64).unwrap()];
    let mut timeout = Duration::ZERO;
    let slept = Sleeper::open().sleep(
        flags.iter(),
        || false,
        |at_most| {
            timeout = at_most;
            assert!(flags.iter().all(|flag| must_kick(flag, &NoFence)));
        },
    );

    assert_eq!(slept, Slept::Woken);
    assert_eq!(timeout, SAFETY_TIMEOUT);
    assert!(flags.iter().all(|flag| !must_kick(flag, &NoFence)));
}

#[test]
fn every_record_reaches_a_consumer_that_sleeps_repeatedly() {
    const RECORDS: u32 = 5_000;
    register_membarrier().unwrap();
    let memory = SharedMemory::create("wake", 64 * CELL + 0x1000).unwrap();
    let cells = SharedCells::new(memory.window(0, 64 * CELL as u64).unwrap()).unwrap();
    let (mut producer, mut consumer) = (Producer::new(cells.clone()), Consumer::new(cells));
    let head = memory.u32(64 * CELL as u64).unwrap();
    let sleeping = memory.u32(65 * CELL as u64).unwrap();
    let (kicked, kick) = (Mutex::new(false), Condvar::new());
    let deadline = Instant::now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for record in 0..RECORDS {
                while producer.try_push(|| head.load(Ordering::Acquire), 0, record, &[0; 8]).is_err() {
                    assert!(Instant::now() < deadline, "record {record} never fitted");
                    std::thread::yield_now();
                }
                if must_kick(&sleeping, &NoFence) {
                    *kicked.lock().unwrap() = true;
                    kick.notify_one();
                }
            }
        });
        let sleeper = Sleeper::open();
        let mut next = 0;
        while next < RECORDS {
            assert!(Instant::now() < deadline, "record {next} never came");
            while let Peek::Record(record) = consumer.peek() {
                assert_eq!(record.offset, next);
                next += 1;
                consumer.pop();
                head.store(consumer.consumed(), Ordering::Release);
            }
            if next < RECORDS {
                sleeper.sleep(
                    [&sleeping].into_iter(),
                    || consumer.peek() != Peek::Empty,
                    |at_most| {
                        let guard = kicked.lock().unwrap();
                        let mut guard = kick.wait_timeout_while(guard, at_most, |kicked| !*kicked).unwrap().0;
                        *guard = false;
                    },
                );
            }
        }
    });
}
