//! Tests of the ring and the wake protocol under every interleaving that the memory model allows.
//!
//! Run with:
//! ```sh
//! RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p nicforge-shm --test loom --release
//! ```
//!
//! The data of a cell is plain memory here, so that an access which the headers do not order is an
//! error. The checker has no asymmetric barrier. A sequentially consistent fence on both sides
//! replaces it. Together with the writer's program order, that orders no more than `membarrier`
//! does.
#![allow(clippy::unwrap_used, reason = "a failure to set up is a failed test")]
#![cfg(loom)]

use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Notify};
use loom::thread;

use nicforge_shm::posted::CELL_WORDS;
use nicforge_shm::wake::{SleepFlag, Sleeper, SleeperBarrier, WriterBarrier, must_kick, take_sleeper};
use nicforge_shm::{Cells, Consumer, Peek, Producer, RecordRef};

struct ModelCell {
    header: AtomicU64,
    data: UnsafeCell<[u64; CELL_WORDS]>,
}

#[derive(Clone)]
struct ModelCells(Arc<Vec<ModelCell>>);

// As in shared memory, both threads access the cells' data. The checker verifies the order.
#[allow(unsafe_code)]
// SAFETY: `loom::cell::UnsafeCell` fails the test when two threads' accesses are not ordered.
unsafe impl Send for ModelCells {}

impl ModelCells {
    fn new(count: usize) -> Self {
        let cell = || ModelCell { header: AtomicU64::new(0), data: UnsafeCell::new([0; CELL_WORDS]) };
        ModelCells(Arc::new((0..count).map(|_| cell()).collect()))
    }

    fn at(&self, position: u32) -> &ModelCell {
        &self.0[position as usize % self.0.len()]
    }
}

#[allow(unsafe_code)]
impl Cells for ModelCells {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn header_acquire(&self, position: u32) -> u64 {
        self.at(position).header.load(Ordering::Acquire)
    }
    fn set_header_release(&self, position: u32, header: u64) {
        self.at(position).header.store(header, Ordering::Release);
    }
    fn set_header_relaxed(&self, position: u32, header: u64) {
        self.at(position).header.store(header, Ordering::Relaxed);
    }
    fn data_read(&self, position: u32, data: &mut [u64; CELL_WORDS]) {
        // SAFETY: checked by the model.
        self.at(position).data.with(|from| *data = unsafe { *from });
    }
    fn data_write(&self, position: u32, data: &[u64; CELL_WORDS]) {
        // SAFETY: checked by the model.
        self.at(position).data.with_mut(|to| unsafe { *to = *data });
    }
}

struct Fence;

impl SleeperBarrier for Fence {
    fn barrier(&self) {
        fence(Ordering::SeqCst);
    }
}

impl WriterBarrier for Fence {
    fn barrier(&self) {
        fence(Ordering::SeqCst);
    }
}

struct Nothing;

impl WriterBarrier for Nothing {
    fn barrier(&self) {}
}

struct Flag(AtomicU32);

impl SleepFlag for Flag {
    fn set(&self, sleeping: bool) {
        self.0.store(sleeping.into(), Ordering::Relaxed);
    }
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

/// Returns record `index`, whose data fills `cells` cells and identifies the record.
fn data(index: u32, cells: usize) -> Vec<u8> {
    vec![index as u8 + 1; cells * 56 - 3]
}

fn push(producer: &mut Producer<ModelCells>, head: &AtomicU32, index: u32, cells: usize) {
    let data = data(index, cells);
    while producer.try_push(|| head.load(Ordering::Acquire), 1, index, &data).is_err() {
        thread::yield_now();
    }
}

fn pop(consumer: &mut Consumer<ModelCells>, head: &AtomicU32, index: u32, cells: usize) {
    while consumer.peek() == Peek::Empty {
        thread::yield_now();
    }
    let expected = data(index, cells);
    assert_eq!(consumer.peek(), Peek::Record(RecordRef { bar: 1, offset: index, data: &expected }));
    consumer.pop();
    head.store(consumer.consumed(), Ordering::Release);
}

/// Transfers records of the given numbers of cells through a ring of `count` cells.
fn transfer(count: usize, records: &'static [usize]) {
    loom::model(move || {
        let cells = ModelCells::new(count);
        let head = Arc::new(AtomicU32::new(0));
        let (mut producer, mut consumer) = (Producer::new(cells.clone()), Consumer::new(cells));
        let consumed = head.clone();

        let writer = thread::spawn(move || {
            for (index, cells) in records.iter().enumerate() {
                push(&mut producer, &consumed, index as u32, *cells);
            }
        });

        for (index, cells) in records.iter().enumerate() {
            pop(&mut consumer, &head, index as u32, *cells);
        }

        writer.join().unwrap();

        assert_eq!(consumer.peek(), Peek::Empty);
    });
}

#[test]
fn records_of_one_cell_arrive_whole_and_in_order() {
    transfer(2, &[1, 1]);
}

#[test]
fn records_taken_in_a_row_arrive_whole_and_in_order_around_the_end_of_the_ring() {
    loom::model(|| {
        let cells = ModelCells::new(2);
        let head = Arc::new(AtomicU32::new(0));
        let (mut producer, mut consumer) = (Producer::new(cells.clone()), Consumer::new(cells));
        let consumed = head.clone();

        let writer = thread::spawn(move || (0..3).for_each(|index| push(&mut producer, &consumed, index, 1)));
        let mut next = 0;
        while next < 3 {
            let first = next;
            let count = consumer.take_while(2, |record, _| {
                assert_eq!(record, RecordRef { bar: 1, offset: next, data: &data(next, 1) });
                next += 1;
                true
            });
            assert_eq!(count, next - first);
            head.store(consumer.consumed(), Ordering::Release);
            if count == 0 {
                thread::yield_now();
            }
        }

        writer.join().unwrap();

        assert!(consumer.is_empty());
    });
}

#[test]
fn cells_are_used_again_only_after_they_were_read() {
    transfer(1, &[1, 1, 1]);
}

#[test]
fn record_of_two_cells_arrives_whole_around_the_end_of_the_ring() {
    transfer(2, &[1, 2]);
}

#[test]
fn record_is_not_seen_where_a_longer_one_was_continued() {
    transfer(2, &[2, 1]);
}

/// Runs a writer that kicks and a consumer that sleeps without a time-out: a lost kick is a
/// deadlock.
fn sleep_and_kick<B: WriterBarrier + Send + Sync + 'static>(barrier: fn() -> B, records: u32) {
    loom::model(move || {
        let cells = ModelCells::new(2);
        let head = Arc::new(AtomicU32::new(0));
        let sleeping = Arc::new(Flag(AtomicU32::new(0)));
        let kick = Arc::new(Notify::new());
        let (mut producer, mut consumer) = (Producer::new(cells.clone()), Consumer::new(cells));
        let writer = {
            let (head, sleeping, kick) = (head.clone(), sleeping.clone(), kick.clone());
            thread::spawn(move || {
                for index in 0..records {
                    push(&mut producer, &head, index, 1);
                    if must_kick(&*sleeping, &barrier()) {
                        kick.notify();
                    }
                }
            })
        };

        let sleeper = Sleeper::new(Fence);
        let mut next = 0;
        while next < records {
            if let Peek::Record(record) = consumer.peek() {
                assert_eq!(record.offset, next);
                next += 1;
                consumer.pop();
                head.store(consumer.consumed(), Ordering::Release);
            } else {
                let work = || consumer.peek() != Peek::Empty;
                sleeper.sleep([&*sleeping].into_iter(), work, |_: Duration| kick.wait());
            }
        }

        writer.join().unwrap();
    });
}

#[test]
fn kick_for_one_record_is_never_lost() {
    sleep_and_kick(|| Fence, 1);
}

#[test]
fn kicks_for_two_records_are_never_lost() {
    sleep_and_kick(|| Fence, 2);
}

#[test]
#[should_panic(expected = "deadlock")]
fn writer_without_any_barrier_loses_a_kick() {
    sleep_and_kick(|| Nothing, 1);
}

#[test]
fn ring_that_is_reset_takes_records_of_the_next_producer() {
    loom::model(|| {
        let cells = ModelCells::new(2);
        let head = Arc::new(AtomicU32::new(0));
        let mut consumer = Consumer::new(cells.clone());
        let consumed = head.clone();

        // The first client leaves a record, which the consumer may have seen.
        let first = {
            let cells = cells.clone();
            thread::spawn(move || push(&mut Producer::new(cells), &consumed, 7, 1))
        };

        let _ = consumer.peek();
        first.join().unwrap();
        consumer.reset();
        head.store(consumer.consumed(), Ordering::Release);
        let consumed = head.clone();

        let second = thread::spawn(move || {
            let mut producer = Producer::new(cells);
            push(&mut producer, &consumed, 0, 1);
            push(&mut producer, &consumed, 1, 2);
        });

        pop(&mut consumer, &head, 0, 1);
        pop(&mut consumer, &head, 1, 2);
        second.join().unwrap();
    });
}

#[test]
fn producer_that_attaches_to_an_emptied_ring_resumes_at_its_position() {
    loom::model(|| {
        let cells = ModelCells::new(2);
        let head = Arc::new(AtomicU32::new(0));
        let mut consumer = Consumer::new(cells.clone());
        let consumed = head.clone();
        let first = {
            let cells = cells.clone();
            thread::spawn(move || push(&mut Producer::new(cells), &consumed, 0, 1))
        };

        pop(&mut consumer, &head, 0, 1);
        first.join().unwrap();
        let (cell, phase) = consumer.state();
        let consumed = head.clone();

        let second = thread::spawn(move || push(&mut Producer::resume(cells, cell, phase), &consumed, 1, 2));
        pop(&mut consumer, &head, 1, 2);
        second.join().unwrap();

        assert_eq!(consumer.state(), (1, false));
    });
}

/// A tenant posts and leaves at once. Its end arrives on its socket, and ends a sleep as a kick
/// does. The records that it posted before are carried out, and its ring is not read later.
#[test]
fn record_posted_right_before_the_end_of_an_attachment_is_taken() {
    loom::model(|| {
        let cells = ModelCells::new(1);
        let sleeping = Arc::new(Flag(AtomicU32::new(0)));
        let (remaining, kick) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
        let tenant = {
            let (cells, sleeping, remaining, kick) =
                (cells.clone(), sleeping.clone(), remaining.clone(), kick.clone());
            thread::spawn(move || {
                Producer::new(cells).try_push(|| 0, 1, 0, &data(0, 1)).unwrap();
                if must_kick(&*sleeping, &Fence) {
                    kick.notify();
                }
                remaining.store(1, Ordering::Release);
                kick.notify();
            })
        };

        let mut consumer = Consumer::new(cells);
        let sleeper = Sleeper::new(Fence);
        let mut count = 0;
        while remaining.load(Ordering::Acquire) == 0 {
            if consumer.peek() == Peek::Empty {
                let work = || consumer.peek() != Peek::Empty || remaining.load(Ordering::Acquire) != 0;
                sleeper.sleep([&*sleeping].into_iter(), work, |_: Duration| kick.wait());
            } else {
                consumer.pop();
                count += 1;
            }
        }

        // Detach drains the ring once more.
        if consumer.peek() != Peek::Empty {
            consumer.pop();
            count += 1;
        }

        assert_eq!(count, 1);
        tenant.join().unwrap();
    });
}

/// One tenant stays while another attachment's tenant leaves and the next one comes. One sleeper
/// serves both. It sets different flags from sleep to sleep, and must lose no kick of the tenant
/// that stays.
#[test]
fn kick_is_not_lost_while_another_ring_is_detached_and_attached() {
    loom::model(|| {
        let stays = ModelCells::new(1);
        let flags = Arc::new([(); 3].map(|()| Flag(AtomicU32::new(0))));
        let kick = Arc::new(Notify::new());
        let writer = {
            let (cells, flags, kick) = (stays.clone(), flags.clone(), kick.clone());
            thread::spawn(move || {
                Producer::new(cells).try_push(|| 0, 1, 0, &data(0, 1)).unwrap();
                if must_kick(&flags[0], &Fence) {
                    kick.notify();
                }
            })
        };

        // The end of the connection wakes the sleeper, whether or not the flag is set.
        let leaver = {
            let kick = kick.clone();
            thread::spawn(move || kick.notify())
        };

        let sleeper = Sleeper::new(Fence);
        let mut consumer = Consumer::new(stays);

        // Flag 1 belongs to the tenant that leaves, flag 2 to the next one.
        let mut leaving_or_next = 1;
        while consumer.peek() == Peek::Empty {
            let set = [&flags[0], &flags[leaving_or_next]];
            let work = || consumer.peek() != Peek::Empty;
            sleeper.sleep(set.into_iter(), work, |_: Duration| kick.wait());
            leaving_or_next = 2;
        }

        writer.join().unwrap();
        leaver.join().unwrap();

        assert!(flags.iter().all(|flag| !flag.is_set()));
    });
}

/// A poller serves one ring all the time, and stops looking at another one that is idle. It sets
/// the flag of that ring's writer, looks once more after the barrier, and returns to the ring when
/// it is kicked. It never sleeps, so the kick is a word that it polls.
#[test]
fn record_in_a_ring_that_is_no_longer_polled_is_found_by_the_last_look_or_kicked() {
    loom::model(|| {
        let idle = ModelCells::new(1);
        let flag = Arc::new(Flag(AtomicU32::new(0)));
        let kicked = Arc::new(Flag(AtomicU32::new(0)));
        let writer = {
            let (cells, flag, kicked) = (idle.clone(), flag.clone(), kicked.clone());
            thread::spawn(move || {
                Producer::new(cells).try_push(|| 0, 1, 0, &data(0, 1)).unwrap();
                if must_kick(&*flag, &Fence) {
                    kicked.set(true);
                }
            })
        };

        let mut consumer = Consumer::new(idle);
        flag.set(true);
        Sleeper::new(Fence).barrier();
        if consumer.peek() == Peek::Empty {
            // The poller serves its other ring here.
            while !kicked.is_set() {
                thread::yield_now();
            }
        }
        flag.set(false);

        // The kick of a trapped write comes after the record.
        fence(Ordering::SeqCst);
        assert_ne!(consumer.peek(), Peek::Empty);
        writer.join().unwrap();
    });
}

/// A reset happens while the client pushes: the record is lost, or comes out whole. The client sees
/// the reset in its generation, reads the ring's state and resumes there.
#[test]
fn push_during_a_reset_is_whole_or_lost_and_the_next_generation_works() {
    loom::model(|| {
        let cells = ModelCells::new(2);
        let head = Arc::new(AtomicU32::new(0));
        let mut consumer = Consumer::new(cells.clone());
        let before = {
            let cells = cells.clone();
            thread::spawn(move || Producer::new(cells).try_push(|| 0, 1, 7, &data(7, 1)).unwrap())
        };

        consumer.reset();
        head.store(consumer.consumed(), Ordering::Release);
        before.join().unwrap();

        // The push came after the reset, or was lost.
        let expected = data(7, 1);
        let late = match consumer.peek() {
            Peek::Empty => false,
            found => {
                assert_eq!(found, Peek::Record(RecordRef { bar: 1, offset: 7, data: &expected }));
                true
            }
        };

        if late {
            consumer.pop();
            head.store(consumer.consumed(), Ordering::Release);
        }

        let (cell, phase) = consumer.state();
        let after = {
            let head = head.clone();
            thread::spawn(move || push(&mut Producer::resume(cells, cell, phase), &head, 0, 1))
        };

        pop(&mut consumer, &head, 0, 1);
        after.join().unwrap();

        assert_eq!(consumer.peek(), Peek::Empty);
    });
}

/// A descriptor in a ring in client memory: its data, and the word that says who owns it.
struct ModelDescriptor {
    data: UnsafeCell<u64>,
    owner: AtomicU64,
}

// As in shared memory, both threads access the data. The checker verifies the order.
#[allow(unsafe_code)]
// SAFETY: `loom::cell::UnsafeCell` fails the test when two threads' accesses are not ordered.
unsafe impl Sync for ModelDescriptor {}

/// Hands a descriptor from a driver to a device and back. The device accesses memory as the core's
/// DMA does: `after_read` follows each read, and `before_write` precedes each write. A word is one
/// relaxed access.
#[allow(unsafe_code)]
fn pass_descriptor_to_device_and_back(after_read: fn(), before_write: fn()) {
    const DEVICE: u64 = 1;
    const DRIVER: u64 = 2;

    loom::model(move || {
        let descriptor =
            Arc::new(ModelDescriptor { data: UnsafeCell::new(0), owner: AtomicU64::new(DRIVER) });
        let drivers_descriptor = descriptor.clone();

        let driver = thread::spawn(move || {
            // SAFETY: checked by the model.
            drivers_descriptor.data.with_mut(|data| unsafe { *data = 7 });
            drivers_descriptor.owner.store(DEVICE, Ordering::Release);
            while drivers_descriptor.owner.load(Ordering::Acquire) != DRIVER {
                thread::yield_now();
            }
            // SAFETY: checked by the model.
            drivers_descriptor.data.with(|data| assert_eq!(unsafe { *data }, 8));
        });

        loop {
            let owner = descriptor.owner.load(Ordering::Relaxed);
            after_read();
            if owner == DEVICE {
                break;
            }
            thread::yield_now();
        }

        // SAFETY: checked by the model.
        let data = descriptor.data.with(|data| unsafe { *data });
        after_read();
        before_write();
        // SAFETY: checked by the model.
        descriptor.data.with_mut(|to| unsafe { *to = data + 1 });
        before_write();
        descriptor.owner.store(DRIVER, Ordering::Relaxed);

        driver.join().unwrap();
    });
}

#[test]
fn descriptor_passes_to_the_device_and_back_with_its_data() {
    pass_descriptor_to_device_and_back(|| fence(Ordering::Acquire), || fence(Ordering::Release));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn device_without_a_fence_after_its_reads_misses_data() {
    pass_descriptor_to_device_and_back(|| {}, || fence(Ordering::Release));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn device_without_a_fence_before_writes_publishes_too_early() {
    pass_descriptor_to_device_and_back(|| fence(Ordering::Acquire), || {});
}

/// A client that waits for the last of `count` stores as [`nicforge_shm::wake`]'s sleeper does, and
/// a machine that wakes it after each store. A wake-up that is lost lets the client wait for ever,
/// which the checker reports.
fn wait_for_machine(count: u32) {
    loom::model(move || {
        let shared = Arc::new((AtomicU32::new(0), Flag(AtomicU32::new(0)), Notify::new()));

        let machine = thread::spawn({
            let shared = shared.clone();
            move || {
                let (data, waiting, event) = &*shared;
                for value in 1..=count {
                    data.store(value, Ordering::Release);
                    if take_sleeper(waiting, &Fence) {
                        event.notify();
                    }
                }
            }
        });

        let (data, waiting, event) = &*shared;
        while data.load(Ordering::Acquire) != count {
            waiting.set(true);
            SleeperBarrier::barrier(&Fence);
            if data.load(Ordering::Acquire) != count {
                event.wait();
            }
        }
        machine.join().unwrap();
    });
}

#[test]
fn client_that_waits_while_the_machine_works_is_woken() {
    wait_for_machine(1);
    wait_for_machine(3);
}
