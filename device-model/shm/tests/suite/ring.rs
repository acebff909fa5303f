//! Tests of the posted-write ring in shared memory: against a model, with hostile contents, and
//! with two threads.
#![allow(clippy::unwrap_used, reason = "a failure to set up is a failed test")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nicforge_hwi::posted::{self, CELL, MAX_DATA, MIN_RING_CELLS, PHASE};
use nicforge_shm::{
    Access, Consumer, Peek, Producer, PushError, RecordRef, RingError, SharedCells, SharedMemory,
};
use proptest::prelude::*;

fn ring(cells: usize) -> (SharedMemory, SharedCells) {
    let memory = SharedMemory::create("ring", cells * CELL).unwrap();
    let window = memory.window(0, (cells * CELL) as u64).unwrap();
    (memory, SharedCells::new(window).unwrap())
}

/// Returns both ends of a ring of the smallest size.
fn ends() -> (SharedMemory, Producer<SharedCells>, Consumer<SharedCells>) {
    let (memory, cells) = ring(MIN_RING_CELLS);
    (memory, Producer::new(cells.clone()), Consumer::new(cells))
}

fn fill(producer: &mut Producer<SharedCells>, consumed: u32) -> usize {
    let mut pushed = 0;
    while producer.try_push(|| consumed, 0, 0, &[1]).is_ok() {
        pushed += 1;
        assert!(pushed <= MIN_RING_CELLS, "a full ring took a record");
    }
    pushed
}

#[test]
fn window_of_a_bad_size_is_refused() {
    let memory = SharedMemory::create("ring", 1 << 16).unwrap();
    for len in [0, 63, 64, 32 * 64, 65 * 64, 96 * 64, 64 * 64 + 8] {
        let error = SharedCells::new(memory.window(0, len).unwrap()).unwrap_err();
        assert_eq!(error, RingError::BadSize { len });
    }
}

#[test]
fn window_that_splits_cache_lines_is_refused() {
    let memory = SharedMemory::create("ring", 1 << 16).unwrap();
    let error = SharedCells::new(memory.window(8, 4096).unwrap()).unwrap_err();
    assert_eq!(error, RingError::Misaligned { address: memory.base_address() as u64 + 8 });
}

#[test]
fn read_only_window_is_refused() {
    let memory = SharedMemory::create("ring", 4096).unwrap();
    let second_mapping = SharedMemory::map(memory.fd().unwrap(), 0, 4096, Access::ReadOnly).unwrap();
    assert_eq!(SharedCells::new(second_mapping.whole()).unwrap_err(), RingError::ReadOnly);
}

#[test]
fn record_is_read_as_it_was_written() {
    let (_memory, mut producer, mut consumer) = ends();
    producer.try_push(|| 0, 4, 0xdead_bee0, b"doorbell").unwrap();
    let expected = RecordRef { bar: 4, offset: 0xdead_bee0, data: b"doorbell" };

    assert_eq!(consumer.peek(), Peek::Record(expected));

    consumer.pop();
    assert_eq!(consumer.peek(), Peek::Empty);
    assert_eq!(consumer.consumed(), 1);
    assert!(producer.is_drained(consumer.consumed()));
}

#[test]
fn cell_layout_in_memory_matches_the_interface() {
    let (memory, mut producer, _consumer) = ends();
    producer.try_push(|| 0, 2, 0x1234, &[1, 2, 3]).unwrap();
    let mut data = [0; 3];
    memory.read(8, &mut data).unwrap();
    let header = memory.u64(0).unwrap().load(Ordering::Acquire);
    assert_eq!(header, PHASE | 2 << 44 | 3 << 32 | 0x1234);
    assert_eq!(data, [1, 2, 3]);
}

#[test]
fn empty_too_long_and_misdirected_records_are_refused() {
    let (_memory, mut producer, mut consumer) = ends();
    assert_eq!(producer.try_push(|| 0, 0, 0, &[]), Err(PushError::BadLength { len: 0 }));
    let long = [0; MAX_DATA + 1];
    assert_eq!(producer.try_push(|| 0, 0, 0, &long), Err(PushError::BadLength { len: MAX_DATA + 1 }));
    assert_eq!(producer.try_push(|| 0, 8, 0, &[0]), Err(PushError::BadBar { bar: 8 }));
    assert_eq!(consumer.peek(), Peek::Empty);
}

#[test]
fn full_ring_refuses_until_cells_are_consumed() {
    let (_memory, mut producer, mut consumer) = ends();
    assert_eq!(fill(&mut producer, 0), MIN_RING_CELLS);
    consumer.peek();
    consumer.pop();
    assert_eq!(fill(&mut producer, consumer.consumed()), 1);
}

#[test]
fn filled_cells_are_those_of_records_that_were_not_popped() {
    let (memory, mut producer, mut consumer) = ends();
    assert_eq!(consumer.count_filled(), 0);

    // Records of three cells, for several laps. A record that was peeked still counts.
    for _ in 0..3 * MIN_RING_CELLS {
        producer.try_push(|| consumer.consumed(), 0, 0, &[1; 120]).unwrap();
        producer.try_push(|| consumer.consumed(), 0, 0, &[2]).unwrap();
        assert_eq!(consumer.count_filled(), 4);
        consumer.peek();
        assert_eq!(consumer.count_filled(), 4);
        consumer.pop();
        assert_eq!(consumer.count_filled(), 1);
        consumer.peek();
        consumer.pop();
    }

    // Headers of any kind fill at most the ring.
    consumer.reset();
    for cell in 0..MIN_RING_CELLS as u64 {
        let header = PHASE | (cell % 3 * 500) << posted::LENGTH_SHIFT;
        memory.u64(cell * CELL as u64).unwrap().store(header, Ordering::Release);
    }
    assert_eq!(consumer.count_filled(), MIN_RING_CELLS as u32);
}

#[test]
fn position_has_passed_when_all_records_before_it_are_consumed() {
    let (_memory, mut producer, mut consumer) = ends();

    assert!(producer.has_passed(consumer.consumed(), producer.position()), "nothing was pushed");

    // Records of two cells, for several laps.
    for _ in 0..3 * MIN_RING_CELLS {
        let before = producer.position();
        producer.try_push(|| consumer.consumed(), 0, 0, &[1; 100]).unwrap();
        let behind = producer.position();
        producer.try_push(|| consumer.consumed(), 0, 0, &[2]).unwrap();
        assert!(producer.has_passed(consumer.consumed(), before));
        assert!(!producer.has_passed(consumer.consumed(), behind));
        for _ in 0..2 {
            assert_ne!(consumer.peek(), Peek::Empty);
            consumer.pop();
            assert!(producer.has_passed(consumer.consumed(), behind));
        }
        assert!(producer.has_passed(consumer.consumed(), producer.position()));
    }
}

#[test]
fn count_beyond_the_pushed_cells_frees_nothing() {
    let (_memory, mut producer, _consumer) = ends();
    fill(&mut producer, 0);
    // The producer is at 64. A count of 65 or more claims cells that were never written.
    for bogus in [65, 66, 100, 127] {
        assert_eq!(producer.try_push(|| bogus, 0, 0, &[1]), Err(PushError::Full), "count {bogus}");
    }
}

#[test]
fn consumer_count_is_loaded_only_when_the_known_free_cells_are_used_up() {
    let (_memory, mut producer, _consumer) = ends();
    producer.try_push(|| 0, 0, 0, &[1]).unwrap();
    for _ in 1..MIN_RING_CELLS {
        producer.try_push(|| panic!("asked"), 0, 0, &[1]).unwrap();
    }
}

#[test]
fn peeked_record_does_not_change_when_its_memory_does() {
    let (memory, mut producer, mut consumer) = ends();
    producer.try_push(|| 0, 1, 8, &[5; 100]).unwrap();
    let expected = Peek::Record(RecordRef { bar: 1, offset: 8, data: &[5; 100] });

    assert_eq!(consumer.peek(), expected);

    memory.write(0, &[0xff; 256]).unwrap();
    assert_eq!(consumer.peek(), expected);

    consumer.pop();
    assert_eq!(consumer.consumed(), 2);
}

#[test]
fn pop_without_a_record_does_nothing() {
    let (_memory, _producer, mut consumer) = ends();
    consumer.peek();
    consumer.pop();
    consumer.pop();
    assert_eq!(consumer.consumed(), 0);
    assert_eq!(consumer.state(), (0, true));
}

#[test]
fn malformed_headers_take_one_cell_each() {
    let (memory, _producer, mut consumer) = ends();
    let headers = [PHASE, PHASE | posted::header(7, 9, MAX_DATA + 1), u64::MAX];
    for (cell, header) in headers.iter().enumerate() {
        memory.u64((cell * CELL) as u64).unwrap().store(*header, Ordering::Release);
    }

    for header in headers {
        assert_eq!(consumer.peek(), Peek::Malformed { header });
        assert_eq!(consumer.peek(), Peek::Malformed { header });
        consumer.pop();
    }

    assert_eq!(consumer.peek(), Peek::Empty);
    assert_eq!(consumer.consumed(), 3);
}

#[test]
fn ring_full_of_garbage_is_consumed_in_bounded_steps() {
    let (memory, _producer, mut consumer) = ends();
    memory.write(0, &[0xff; MIN_RING_CELLS * CELL]).unwrap();
    let mut steps = 0;
    while consumer.peek() != Peek::Empty {
        consumer.pop();
        steps += 1;
        assert!(steps <= MIN_RING_CELLS);
    }

    assert_eq!(consumer.state(), (0, false));
}

#[test]
fn reset_empties_the_ring_and_starts_it_again() {
    let (_memory, mut producer, mut consumer) = ends();
    fill(&mut producer, 0);
    consumer.peek();
    consumer.pop();
    consumer.peek();
    consumer.reset();
    let emptied = consumer.peek() == Peek::Empty;
    let mut producer = Producer::new(consumer.cells().clone());
    producer.try_push(|| consumer.consumed(), 3, 16, &[7]).unwrap();

    assert!(emptied);
    assert_eq!(consumer.state(), (0, true));
    assert_eq!(consumer.peek(), Peek::Record(RecordRef { bar: 3, offset: 16, data: &[7] }));
}

#[test]
fn resumed_producer_starts_at_the_consumer_position() {
    let (_memory, mut producer, mut consumer) = ends();

    // A lap and a half, so that the phase has changed.
    for at in 0..96u32 {
        producer.try_push(|| consumer.consumed(), 0, at, &[1]).unwrap();
        consumer.peek();
        consumer.pop();
    }

    let (cell, phase) = consumer.state();
    let mut resumed = Producer::resume(consumer.cells().clone(), cell, phase);
    resumed.try_push(|| consumer.consumed(), 5, 77, &[9; 60]).unwrap();

    assert_eq!((cell, phase), (32, false));
    assert_eq!(consumer.peek(), Peek::Record(RecordRef { bar: 5, offset: 77, data: &[9; 60] }));
    assert_eq!(resumed.state(), (34, false));
}

#[test]
fn half_a_record_of_a_killed_producer_is_not_seen_after_resume() {
    let (memory, _killed, mut consumer) = ends();

    // A producer killed before its first header leaves two continuation cells after an invalid
    // first cell.
    for cell in [1, 2] {
        memory.u64((cell * CELL) as u64).unwrap().store(PHASE, Ordering::Release);
    }

    let (cell, phase) = consumer.state();
    let mut resumed = Producer::resume(consumer.cells().clone(), cell, phase);
    resumed.try_push(|| consumer.consumed(), 0, 4, &[1]).unwrap();

    assert_eq!(consumer.peek(), Peek::Record(RecordRef { bar: 0, offset: 4, data: &[1] }));

    consumer.pop();
    assert_eq!(consumer.peek(), Peek::Empty);
}

#[test]
fn counts_survive_their_wrap_around() {
    // 2^32 cells take too long. The laps of the smallest ring wrap often enough to meet every
    // phase.
    let (_memory, mut producer, mut consumer) = ends();
    for at in 0..10_000u32 {
        let len = 1 + (at as usize * 7) % MAX_DATA;
        producer.try_push(|| consumer.consumed(), 0, at, &[at as u8; MAX_DATA][..len]).unwrap();
        let expected = RecordRef { bar: 0, offset: at, data: &[at as u8; MAX_DATA][..len] };
        assert_eq!(consumer.peek(), Peek::Record(expected));
        consumer.pop();
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push {
        bar: u8,
        offset: u32,
        data: Vec<u8>,
    },
    Peek,
    Pop,
    /// A run of at most so many records. `take` refuses the record with the given number.
    Take(u32, u32),
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    let data = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 1..=56),
        2 => prop::collection::vec(any::<u8>(), 57..=MAX_DATA),
        1 => Just(vec![0x5a; 8]),
    ];
    let similar_records =
        prop::collection::vec(any::<u8>(), 8).prop_map(|data| Step::Push { bar: 1, offset: 64, data });

    prop_oneof![
        20 => (0u8..8, any::<u32>(), data).prop_map(|(bar, offset, data)| Step::Push { bar, offset, data }),
        10 => similar_records,
        6 => Just(Step::Peek),
        12 => Just(Step::Pop),
        3 => (0u32..20, 0u32..20).prop_map(|(most, refused)| Step::Take(most, refused)),
        1 => Just(Step::Reset),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn ring_behaves_like_a_queue(steps in prop::collection::vec(step(), 1..400)) {
        let (_memory, mut producer, mut consumer) = ends();
        let mut head = consumer.head();
        let mut model: VecDeque<(u8, u32, Vec<u8>)> = VecDeque::new();
        let mut used = 0;
        for step in steps {
            let is_push = matches!(step, Step::Push { .. });
            match step {
                Step::Push { bar, offset, data } => {
                    let cells = posted::cells(data.len());
                    let pushed = producer.try_push(|| consumer.consumed(), bar, offset, &data);
                    if used + cells <= MIN_RING_CELLS {
                        prop_assert_eq!(pushed, Ok(()));
                        used += cells;
                        model.push_back((bar, offset, data));
                    } else {
                        prop_assert_eq!(pushed, Err(PushError::Full));
                    }
                }
                Step::Peek | Step::Pop => {
                    let expected = model.front().map_or(Peek::Empty, |(bar, offset, data)| {
                        Peek::Record(RecordRef { bar: *bar, offset: *offset, data })
                    });
                    prop_assert_eq!(consumer.peek(), expected);
                    if matches!(step, Step::Pop) {
                        consumer.pop();
                        used -= model.pop_front().map_or(0, |(_, _, data)| posted::cells(data.len()));
                    }
                }
                Step::Take(most, accepted) => {
                    let mut records = Vec::new();
                    let count = consumer.take_while(most, |record, is_like_previous| {
                        let last = records.last().map(|(bar, offset, data): &(u8, u32, Vec<u8>)| (*bar, *offset, data.len()));
                        assert_eq!(is_like_previous, last == Some((record.bar, record.offset, record.data.len())));
                        records.push((record.bar, record.offset, record.data.to_vec()));
                        records.len() as u32 <= accepted
                    });
                    let short = model.iter().take_while(|(_, _, data)| posted::cells(data.len()) == 1).count() as u32;
                    prop_assert_eq!(count, short.min(most).min(accepted));
                    prop_assert!(records.iter().eq(model.iter().take(records.len())));
                    model.drain(..count as usize);
                    used -= count as usize;
                }
                Step::Reset => {
                    consumer.reset();
                    producer = Producer::new(consumer.cells().clone());
                    model.clear();
                    used = 0;
                }
            }

            // A head follows the producer's pushes by itself; only the consumer's moves must be
            // passed on.
            if !is_push {
                head.follow(&consumer);
            }
            prop_assert_eq!(head.is_empty(), consumer.is_empty());
            prop_assert_eq!(head.is_empty(), model.is_empty());
        }
    }

    #[test]
    fn garbage_never_faults_nor_stalls(words in prop::collection::vec(any::<u64>(), 0..512)) {
        let (memory, _producer, mut consumer) = ends();
        for (at, word) in words.iter().enumerate() {
            memory.write(at as u64 * 8, &word.to_le_bytes()).unwrap();
        }

        let mut steps = 0;
        while consumer.peek() != Peek::Empty && steps < 10 * MIN_RING_CELLS {
            if steps % 3 == 0 {
                steps += consumer.take_while(5, |record, _| record.data.len() <= posted::CELL_DATA) as usize;
                prop_assert_eq!(consumer.is_empty(), consumer.peek() == Peek::Empty);
                if consumer.is_empty() {
                    break;
                }
            }
            if let Peek::Record(record) = consumer.peek() {
                prop_assert!((1..=MAX_DATA).contains(&record.data.len()));
            }
            consumer.pop();
            steps += 1;
        }

        prop_assert!(consumer.consumed() as usize >= steps);
    }
}

#[test]
fn two_threads_transfer_every_record_in_order() {
    const RECORDS: u32 = 100_000;
    let (_memory, cells) = ring(256);
    let (mut producer, mut consumer) = (Producer::new(cells.clone()), Consumer::new(cells));
    let head = AtomicU32::new(0);
    let deadline = Instant::now() + Duration::from_secs(60);
    let data = |record: u32| {
        let len = if record.is_multiple_of(16) { 1 + record as usize % MAX_DATA } else { 8 };
        (len, record.wrapping_mul(0x9e37_79b9).to_le_bytes())
    };

    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0u8; MAX_DATA];
            for record in 0..RECORDS {
                let (len, word) = data(record);
                buffer.chunks_mut(4).for_each(|piece| piece.copy_from_slice(&word));
                while producer.try_push(|| head.load(Ordering::Acquire), 1, record, &buffer[..len]).is_err() {
                    assert!(Instant::now() < deadline, "record {record} never fitted");
                    std::thread::yield_now();
                }
            }
        });
        for record in 0..RECORDS {
            while consumer.peek() == Peek::Empty {
                assert!(Instant::now() < deadline, "record {record} never came");
                std::thread::yield_now();
            }
            let Peek::Record(found) = consumer.peek() else { panic!("record {record} is malformed") };
            let (len, word) = data(record);
            assert_eq!((found.bar, found.offset, found.data.len()), (1, record, len));
            assert!(found.data.chunks(4).all(|piece| *piece == word[..piece.len()]), "record {record}");
            consumer.pop();
            head.store(consumer.consumed(), Ordering::Release);
        }
    });

    assert_eq!(consumer.peek(), Peek::Empty);
}
