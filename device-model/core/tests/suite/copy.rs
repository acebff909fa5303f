//! Tests of accesses to client memory that end within the call, and of the order of writes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::{
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use crate::{common::*, dma::in_step};
use nicforge_core::{
    context::Context,
    dma::{DmaBacking, DmaError, DmaPermission, MAX_DMA, WordUpdate},
    ids::{AttachmentId, FunctionId},
    machine::{Machine, Next, Outgoing, region},
    time::Nanos,
    trace::{Event, TraceSink},
};
use nicforge_shm::SharedMemory;
use proptest::prelude::*;

/// A deadline that no healthy machine misses.
const DEADLINE: Duration = Duration::from_secs(60);

/// Has the device copy `length` bytes of client memory in a step.
fn copy_from(machine: &mut Machine, probe: &Probe, iova: u64, length: usize) -> Result<Vec<u8>, DmaError> {
    in_step(machine, probe, move |context| {
        let mut out = vec![0xee; length];
        context.copy_from(A, iova, &mut out).map(|()| out)
    })
}

/// Has the device copy bytes to client memory in a step.
fn copy_to(machine: &mut Machine, probe: &Probe, iova: u64, data: &[u8]) -> Result<(), DmaError> {
    let data = data.to_vec();
    in_step(machine, probe, move |context| context.copy_to(A, iova, &data))
}

/// Has the device update a word of client memory in a step. Returns the previous value.
fn update(machine: &mut Machine, probe: &Probe, iova: u64, update: WordUpdate) -> Result<u64, DmaError> {
    in_step(machine, probe, move |context| context.update_u64(A, iova, update))
}

#[test]
fn copies_and_updates_of_mapped_memory_end_within_the_call() {
    let (mut machine, probe) = attached();
    let memory = map_local(&mut machine, A, 0x1000, 0x1000);
    memory.write(8, b"descriptor").unwrap();

    let (read, word, word_after) = in_step(&mut machine, &probe, |context| {
        let mut read = [0; 10];
        context.copy_from(A, 0x1008, &mut read).unwrap();
        context.copy_to(A, 0x1020, &7u64.to_ne_bytes()).unwrap();
        let word = context.update_u64(A, 0x1020, WordUpdate::Add(5)).unwrap();
        let mut word_after = [0; 8];
        context.copy_from(A, 0x1020, &mut word_after).unwrap();
        (read, word, u64::from_ne_bytes(word_after))
    });

    assert_eq!((&read, word, word_after), (b"descriptor", 7, 12));
    assert_eq!(probe.done(), []);
    let counters = machine.attachment_counters(F, A).unwrap();
    assert_eq!((counters.dma_read_bytes, counters.dma_written_bytes), (10 + 8 + 8, 8 + 8));
    assert_eq!(counters.dma_errors, 0);
}

#[test]
fn each_update_returns_the_previous_value_and_stores_the_next() {
    let (mut machine, probe) = attached();
    let memory = map_local(&mut machine, A, 0x1000, 0x1000);
    let word = memory.u64(0x10).unwrap();

    let cases = [
        (WordUpdate::Swap(0xf0), 0xf0),
        (WordUpdate::Add(u64::MAX), 0xef),
        (WordUpdate::SetBits(0x10), 0xff),
        (WordUpdate::ClearBits(0x0f), 0xf0),
        (WordUpdate::CompareSwap { expected: 1, new: 2 }, 0xf0),
        (WordUpdate::CompareSwap { expected: 0xf0, new: 3 }, 3),
    ];
    let mut before = 0;
    for (change, after) in cases {
        assert_eq!(update(&mut machine, &probe, 0x1010, change), Ok(before), "{change:?}");
        assert_eq!(word.load(std::sync::atomic::Ordering::Relaxed), after, "{change:?}");
        before = after;
    }
}

#[test]
fn updates_of_misaligned_or_split_words_are_refused() {
    let (mut machine, probe) = attached();
    let memory = SharedMemory::create("client", 0x1000).unwrap();
    for (iova, length) in [(0x1000, 0x14), (0x1014, 0x10)] {
        let window = memory.window(iova - 0x1000, length).unwrap();
        machine.dma_map(F, A, iova, length, DmaPermission::READ_WRITE, DmaBacking::Memory(window)).unwrap();
    }
    let window = memory.window(0x800, 8).unwrap();
    machine.dma_map(F, A, 0x1800, 8, DmaPermission::READ, DmaBacking::Memory(window)).unwrap();

    // The word at 0x1010 lies in two mappings.
    for iova in [0x1001, 0x1004, 0x1010] {
        let refused = update(&mut machine, &probe, iova, WordUpdate::Add(1));
        assert_eq!(refused, Err(DmaError::NoWord { iova }));
    }
    let permission = update(&mut machine, &probe, 0x1800, WordUpdate::Add(1));
    let unmapped = update(&mut machine, &probe, 0x1020, WordUpdate::Add(1));

    assert_eq!(permission, Err(DmaError::Permission { iova: 0x1800, length: 8, write: true }));
    assert_eq!(unmapped, Err(DmaError::Unmapped { iova: 0x1024, length: 4 }));
    assert_eq!(machine.attachment_counters(F, A).unwrap().dma_errors, 5);
    let mut all = [0; 0x1000];
    memory.read(0, &mut all).unwrap();
    assert!(all.iter().all(|&byte| byte == 0));
}

#[test]
fn copies_of_remote_memory_are_refused_without_an_error_and_messages_reach_it() {
    let (mut machine, probe) = attached();
    map_remote(&mut machine, A, 0x1000, 0x1000);

    let (read, write, word) = in_step(&mut machine, &probe, |context| {
        let read = context.copy_from(A, 0x1010, &mut [0; 4]);
        let write = context.copy_to(A, 0x1010, &[1]);
        let word = context.update_u64(A, 0x1010, WordUpdate::Swap(1));
        if matches!(read, Err(DmaError::Remote { .. })) {
            context.dma_read(A, 0x1010, 4, nicforge_core::ids::DmaToken(1)).unwrap();
        }
        (read, write, word)
    });

    let remote = DmaError::Remote { iova: 0x1010 };
    assert_eq!((read, write, word), (Err(remote), Err(remote), Err(remote)));
    assert_eq!(machine.attachment_counters(F, A).unwrap().dma_errors, 0);
    assert!(matches!(outgoing(&mut machine)[..], [Outgoing::DmaRead { iova: 0x1010, length: 4, .. }]));
}

#[test]
fn no_copy_without_bus_master_or_client() {
    let (mut machine, probe) = attached();
    map_local(&mut machine, A, 0x1000, 0x1000);
    let copies = |context: &mut Context<'_>, attachment_id: AttachmentId| {
        [
            context.copy_from(attachment_id, 0x1000, &mut [0; 4]),
            context.copy_to(attachment_id, 0x1000, &[1]),
            context.update_u64(attachment_id, 0x1000, WordUpdate::Add(1)).map(drop),
        ]
    };

    let results =
        in_step(&mut machine, &probe, move |context| [copies(context, B), copies(context, AttachmentId(77))]);
    write(&mut machine, A, region::CONFIG, 0x04, &[0, 0]);
    let no_master = in_step(&mut machine, &probe, move |context| copies(context, A));

    assert_eq!(results, [[Err(DmaError::Gone); 3]; 2]);
    assert_eq!(no_master, [Err(DmaError::NotBusMaster); 3]);
    assert_eq!(machine.attachment_counters(F, A).unwrap().dma_errors, 3);
}

#[test]
fn truncated_file_is_seen_by_copies() {
    nicforge_shm::install_sigbus_guard().unwrap();
    let (mut machine, probe) = attached();
    let file = nix::sys::memfd::memfd_create(c"client", nix::sys::memfd::MFdFlags::empty()).unwrap();
    nix::unistd::ftruncate(&file, 0x1000).unwrap();
    let access = nicforge_shm::Access::ReadWrite;
    let memory = SharedMemory::map_guarded(std::os::fd::AsFd::as_fd(&file), 0, 0x1000, access).unwrap();
    let backing = DmaBacking::Memory(memory.whole());
    machine.dma_map(F, A, 0x1000, 0x1000, DmaPermission::READ_WRITE, backing).unwrap();
    nix::unistd::ftruncate(&file, 0).unwrap();

    let word = update(&mut machine, &probe, 0x1000, WordUpdate::Add(1));
    let read = copy_from(&mut machine, &probe, 0x1008, 8);
    let write = copy_to(&mut machine, &probe, 0x1000, &[1]);

    let faulted = DmaError::Faulted { iova: 0x1000 };
    assert_eq!((word, write), (Err(faulted), Err(faulted)));
    assert_eq!(read, Err(DmaError::Faulted { iova: 0x1008 }));
    assert!(machine.is_faulted(F, A));
}

/// A write to mapped memory must not overtake one that is in progress as a message.
#[test]
fn writes_to_mapped_memory_wait_for_writes_by_message() {
    let (mut machine, probe) = attached();
    let memory = map_local(&mut machine, A, 0x1000, 0x1000);
    map_remote(&mut machine, A, 0x2000, 0x1000);

    let early = in_step(&mut machine, &probe, |context| {
        context.dma_write(A, 0x2000, b"data").unwrap();
        [
            context.dma_write(A, 0x1000, &[1]),
            context.copy_to(A, 0x1000, &[1]),
            context.update_u64(A, 0x1000, WordUpdate::Add(1)).map(drop),
            context.copy_to(A, 0x2000, &[1]),
            context.copy_from(A, 0x1000, &mut [0]),
        ]
    });
    let unchanged = memory.u64(0).unwrap().load(std::sync::atomic::Ordering::Relaxed);
    let id = id_of(&outgoing(&mut machine)[0]);
    machine.dma_write_done(F, A, id, Ok(())).unwrap();
    let late = copy_to(&mut machine, &probe, 0x1000, &[1]);

    let (busy, remote) = (Err(DmaError::Busy), Err(DmaError::Remote { iova: 0x2000 }));
    assert_eq!(early, [busy, busy, busy, remote, Ok(())]);
    assert_eq!((unchanged, late), (0, Ok(())));
    assert_eq!(machine.attachment_counters(F, A).unwrap().dma_errors, 0);
}

/// The events of a trace.
#[derive(Clone, Default)]
struct Trace(Arc<Mutex<Vec<String>>>);

impl TraceSink for Trace {
    fn event(&mut self, _: Nanos, _: FunctionId, _: Option<AttachmentId>, event: &Event<'_>) {
        self.0.lock().unwrap().push(format!("{event:?}"));
    }
}

#[test]
fn copies_are_traced_like_other_dma() {
    let (mut machine, probe) = attached();
    map_local(&mut machine, A, 0x1000, 0x1000);
    map_remote(&mut machine, A, 0x2000, 0x1000);
    let trace = Trace::default();
    machine.set_trace(Some(Box::new(trace.clone())));

    in_step(&mut machine, &probe, |context| {
        context.copy_from(A, 0x1000, &mut [0; 4]).unwrap();
        context.copy_to(A, 0x1004, &[0; 5]).unwrap();
        context.update_u64(A, 0x1008, WordUpdate::Add(1)).unwrap();
        context.copy_to(A, 0x2000, &[1]).unwrap_err();
        context.copy_to(A, 0, &[1]).unwrap_err();
    });

    let expected = [
        Event::DmaRead { iova: 0x1000, length: 4, outcome: Ok(&[0; 4]) },
        Event::DmaWrite { iova: 0x1004, data: &[0; 5], outcome: Ok(()) },
        Event::DmaUpdate { iova: 0x1008, update: WordUpdate::Add(1), outcome: Ok(0) },
        Event::DmaWrite { iova: 0, data: &[1], outcome: Err(DmaError::Unmapped { iova: 0, length: 1 }) },
    ];
    assert_eq!(trace.0.lock().unwrap()[..], expected.map(|event| format!("{event:?}")));
}

/// Copied bytes use up the step's allowance: functions after this one wait for the next step.
#[test]
fn bytes_copied_count_against_the_step() {
    let (mut machine, probe) = attached();
    let (other, other_probe) = add(&mut machine, "node1", spec());
    map_local(&mut machine, A, 0x1000, MAX_DMA);
    let now = go_cold(&mut machine, 0);
    probe.queue_action(|context| {
        let mut data = vec![0; MAX_DMA];
        for _ in 0..8 {
            context.copy_from(A, 0x1000, &mut data).unwrap();
        }
    });
    other_probe.steps();

    machine.wake(F);
    machine.wake(other);
    let next = machine.step(Nanos(now), 64);
    let before = other_probe.steps();
    machine.step(Nanos(now), 64);

    assert_eq!((next, before, other_probe.steps()), (Next::Now, 0, 1));
}

/// Runs a device that writes as fast as it can, and a driver on another thread that polls.
/// `write` gets the context and the number of the round, from 1 on. `last_round_seen` returns the
/// last round of which the driver has read the data.
fn race(
    (mut machine, probe): (Machine, Probe),
    rounds: u64,
    mut write: impl FnMut(&mut Context<'_>, u64) + Send + 'static,
    mut last_round_seen: impl FnMut() -> u64 + Send + 'static,
) {
    let driver = thread::spawn(move || {
        let end = Instant::now() + DEADLINE;
        while last_round_seen() < rounds {
            assert!(Instant::now() < end, "the last round was not seen");
            std::hint::spin_loop();
        }
    });

    in_step(&mut machine, &probe, move |context| (1..=rounds).for_each(|round| write(context, round)));
    driver.join().unwrap();
}

/// Offset of the data. The word that announces them is at offset 0.
const DATA: u64 = 0x80;

/// Checks that a driver that sees the word of a round also sees its data. The data lie in two
/// mappings if they have more than 0x80 bytes.
fn check_data_before_word(length: usize, writes_by_update: bool) {
    let rig = attached();
    let (mut machine, probe) = rig;
    let memory = SharedMemory::create("client", 0x3000).unwrap();
    for (offset, length) in [(0, 0x100), (0x100, 0x2f00)] {
        let backing = DmaBacking::Memory(memory.window(offset, length).unwrap());
        machine.dma_map(F, A, 0x1000 + offset, length, DmaPermission::READ_WRITE, backing).unwrap();
    }

    let words = length as u64 / 8;
    race(
        (machine, probe),
        20_000,
        move |context, round| {
            let data = round.to_ne_bytes().repeat(words as usize);
            context.copy_to(A, 0x1000 + DATA, &data).unwrap();
            if writes_by_update {
                context.update_u64(A, 0x1000, WordUpdate::Add(1)).unwrap();
            } else {
                context.dma_write(A, 0x1000, &round.to_ne_bytes()).unwrap();
            }
        },
        move || {
            let window = memory.whole();
            let round = window.load_u64_acquire(0).unwrap();
            for word in [0, words / 2, words - 1] {
                let data = window.load_u64_relaxed(DATA + 8 * word).unwrap();
                assert!(data >= round, "word {word} of round {round} has {data}");
            }
            round
        },
    );
}

/// A driver that reads the flag word with *acquire* order also sees the data that the device
/// copied before it.
#[test]
fn driver_that_sees_the_word_sees_one_word_of_data() {
    check_data_before_word(8, false);
    check_data_before_word(8, true);
}

#[test]
fn driver_that_sees_the_word_sees_data_in_two_mappings() {
    check_data_before_word(0x180, false);
    check_data_before_word(0x180, true);
}

#[test]
fn driver_that_sees_the_word_sees_data_of_string_copies() {
    check_data_before_word(0x2000, false);
    check_data_before_word(0x2000, true);
}

#[test]
fn aligned_words_are_written_in_one_piece() {
    for width in [2usize, 4, 8] {
        let (mut machine, probe) = attached();
        let memory = map_local(&mut machine, A, 0x1000, 0x1000);

        // The words lie at the end of 16 bytes, where a copy would use its narrow steps.
        race(
            (machine, probe),
            100_000,
            move |context, round| {
                let bytes = [if round % 2 == 0 { 0xff } else { 0 }; 8];
                context.copy_to(A, 0x1010 - width as u64, &bytes[..width]).unwrap();
                context.copy_to(A, 0x1800, &round.to_ne_bytes()).unwrap();
            },
            move || {
                let window = memory.whole();
                let offset = 0x10 - width as u64;
                let word = match width {
                    2 => window.load_u16_relaxed(offset).map(|word| word as i16 as i64),
                    4 => window.load_u32_relaxed(offset).map(|word| word as i32 as i64),
                    _ => window.load_u64_relaxed(offset).map(|word| word as i64),
                };
                assert!([0, -1].contains(&word.unwrap()), "a word of {width} bytes was torn");
                window.load_u64_acquire(0x800).unwrap()
            },
        );
    }
}

/// The other direction: a descriptor is complete when its word is there.
#[test]
fn device_that_sees_the_word_sees_the_data() {
    const ROUNDS: u64 = 20_000;

    let (mut machine, probe) = attached();
    let memory = map_local(&mut machine, A, 0x1000, 0x1000);
    let driver = thread::spawn(move || {
        let window = memory.whole();
        for round in 1..=ROUNDS {
            window.write(0x40, &round.to_ne_bytes().repeat(8)).unwrap();
            window.store_u64_release(0, round).unwrap();
        }
    });

    let end = Instant::now() + DEADLINE;
    in_step(&mut machine, &probe, move |context| {
        loop {
            let (mut word, mut data) = ([0; 8], [0; 64]);
            context.copy_from(A, 0x1000, &mut word).unwrap();
            context.copy_from(A, 0x1040, &mut data).unwrap();
            let round = u64::from_ne_bytes(word);
            for word in data.chunks_exact(8) {
                assert!(u64::from_ne_bytes(word.try_into().unwrap()) >= round);
            }
            if round == ROUNDS {
                return;
            }
            assert!(Instant::now() < end, "the last round was not seen");
        }
    });
    driver.join().unwrap();
}

#[test]
fn updates_of_device_and_driver_lose_nothing() {
    const UPDATES: u64 = 50_000;

    let (mut machine, probe) = attached();
    let memory = map_local(&mut machine, A, 0x1000, 0x1000);
    let word = memory.u64(0x20).unwrap();
    let drivers_word = word.clone();
    let driver = thread::spawn(move || {
        for _ in 0..UPDATES {
            drivers_word.fetch_add(1 << 32, std::sync::atomic::Ordering::Relaxed);
        }
    });
    in_step(&mut machine, &probe, |context| {
        for _ in 0..UPDATES {
            context.update_u64(A, 0x1020, WordUpdate::Add(1)).unwrap();
        }
    });
    driver.join().unwrap();

    assert_eq!(word.load(std::sync::atomic::Ordering::Relaxed), UPDATES << 32 | UPDATES);
}

/// The kind of a piece of the DMA map of the property test.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Mapped,
    ReadOnly,
    Remote,
    Hole,
}

/// An access of the property test.
#[derive(Clone, Copy, Debug)]
enum Access {
    /// A copy from client memory.
    From,
    /// A copy of bytes to client memory that begin with this value and count up.
    To(u8),
    /// An addition to a word of client memory.
    Add(u64),
}

/// First IOVA of the map.
const BASE: u64 = 0x10_0000;

/// Returns the result that an access of `length` bytes at `at` must have. `map` has the kind of
/// each byte, and the number of its piece.
fn expected_result(map: &[(Kind, usize)], at: usize, length: usize, write: bool) -> Result<(), DmaError> {
    if length > MAX_DMA {
        return Err(DmaError::TooLong { length });
    }
    let byte = |index: usize| map.get(index).map_or(Kind::Hole, |&(kind, _)| kind);
    for index in at..at + length {
        let (iova, length) = (BASE + index as u64, at + length - index);
        match byte(index) {
            Kind::Hole => return Err(DmaError::Unmapped { iova, length }),
            Kind::ReadOnly if write => return Err(DmaError::Permission { iova, length, write }),
            _ => {}
        }
    }
    match (at..at + length).find(|&index| byte(index) == Kind::Remote) {
        Some(index) => Err(DmaError::Remote { iova: BASE + index as u64 }),
        None => Ok(()),
    }
}

/// Pieces of a map, with their lengths.
fn pieces() -> impl Strategy<Value = Vec<(Kind, usize)>> {
    let kind = prop_oneof![
        6 => Just(Kind::Mapped),
        1 => Just(Kind::ReadOnly),
        1 => Just(Kind::Remote),
        1 => Just(Kind::Hole),
    ];
    let length = prop_oneof![6 => 1usize..40, 2 => 1usize..5000, 1 => MAX_DMA..MAX_DMA + 9];
    prop::collection::vec((kind, length), 1..8)
}

/// Accesses, with their positions and lengths.
fn accesses() -> impl Strategy<Value = Vec<(Access, prop::sample::Index, usize)>> {
    let access = prop_oneof![
        Just(Access::From),
        any::<u8>().prop_map(Access::To),
        any::<u64>().prop_map(Access::Add),
    ];
    let length = prop_oneof![
        8 => 0usize..20,
        4 => 20usize..5000,
        1 => prop::sample::select(vec![0, 1, MAX_DMA, MAX_DMA + 1]),
    ];
    prop::collection::vec((access, any::<prop::sample::Index>(), length), 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn copies_agree_with_a_model(pieces in pieces(), accesses in accesses()) {
        let (mut machine, probe) = attached();
        let total: usize = pieces.iter().map(|(_, length)| length).sum();
        let memory = SharedMemory::create("client", total.next_multiple_of(4096)).unwrap();

        let (mut map, mut model) = (Vec::new(), vec![0u8; total]);
        for (number, &(kind, length)) in pieces.iter().enumerate() {
            let (offset, bytes) = (map.len() as u64, length as u64);
            map.extend(std::iter::repeat_n((kind, number), length));
            let permission =
                if kind == Kind::ReadOnly { DmaPermission::READ } else { DmaPermission::READ_WRITE };
            let backing = match kind {
                Kind::Hole => continue,
                Kind::Remote => DmaBacking::Remote,
                _ => DmaBacking::Memory(memory.window(offset, bytes).unwrap()),
            };
            machine.dma_map(F, A, BASE + offset, bytes, permission, backing).unwrap();
        }

        for (access, at, length) in accesses {
            let at = at.index(total);
            let iova = BASE + at as u64;
            match access {
                Access::From => {
                    let read = copy_from(&mut machine, &probe, iova, length);
                    let expected = expected_result(&map, at, length, false).map(|()| model[at..at + length].to_vec());
                    prop_assert_eq!(read, expected);
                }
                Access::To(seed) => {
                    let data: Vec<u8> = (0..length).map(|index| seed.wrapping_add(index as u8)).collect();
                    let expected = expected_result(&map, at, length, true);
                    prop_assert_eq!(copy_to(&mut machine, &probe, iova, &data), expected);
                    if expected.is_ok() {
                        model[at..at + length].copy_from_slice(&data);
                    }
                }
                Access::Add(value) => {
                    let at = at & !7;
                    let iova = BASE + at as u64;
                    let one_piece = || map[at].1 == map[at + 7].1;
                    let expected = expected_result(&map, at, 8, false).or_else(|error| match error {
                        // Remote memory is found after a missing permission.
                        DmaError::Remote { .. } => Ok(()),
                        error => Err(error),
                    });
                    let expected = expected.and_then(|()| expected_result(&map, at, 8, true)).and_then(|()| {
                        if !one_piece() {
                            return Err(DmaError::NoWord { iova });
                        }
                        Ok(u64::from_ne_bytes(model[at..at + 8].try_into().unwrap()))
                    });
                    prop_assert_eq!(update(&mut machine, &probe, iova, WordUpdate::Add(value)), expected);
                    if let Ok(before) = expected {
                        model[at..at + 8].copy_from_slice(&before.wrapping_add(value).to_ne_bytes());
                    }
                }
            }
        }

        // No other byte was changed.
        let mut all = vec![0; total];
        memory.read(0, &mut all).unwrap();
        prop_assert_eq!(all, model);
    }
}
