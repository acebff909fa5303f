//! Atomic operations on payloads and targets.

use std::sync::atomic::{AtomicBool, Ordering};

use nicforge_hwi::mu::{
    atomic::{self, AT_BOUND, load, store},
    fault, reg,
};

use crate::common::{COUNTERS, DATA, MEMORY, PAYLOAD, Rig, User, Way};

const WAY: Way = Way { from: 0, to: 1 };
/// The word of an operation. The words before and after it are its bounds.
const WORD: u64 = PAYLOAD + 0x100;

/// Sends the result of an operation, and returns what arrives.
fn load_by(rig: &mut Rig, users: &mut [User; 2], operation: u64) -> u64 {
    users[1].write64(COUNTERS, 8);
    let put = WAY.put(0, 0x40, 0, atomic::INDICATOR | WORD | operation, 8);
    users[0].inject(&mut rig.bed, 0, &put);
    rig.until(|_| users[1].read64(COUNTERS) == 0);
    users[1].read64(DATA + 0x40)
}

#[test]
fn loads_return_the_old_value_and_change_the_word() {
    let (mut rig, mut users) = Rig::pair();
    for (operation, before, [below, above], sent, after) in [
        (load::LOAD, 7, [0, 0], 7, 7),
        (load::CLEAR, 7, [0, 0], 7, 0),
        (load::INCREMENT, u64::MAX, [0, 0], u64::MAX, 0),
        (load::DECREMENT, 0, [0, 0], 0, u64::MAX),
        (load::INCREMENT_BOUNDED, 7, [0, 8], 7, 8),
        (load::INCREMENT_BOUNDED, 8, [0, 8], AT_BOUND, 8),
        (load::DECREMENT_BOUNDED, 7, [6, 0], 7, 6),
        (load::DECREMENT_BOUNDED, 6, [6, 0], AT_BOUND, 6),
        (load::INCREMENT_IF_EQUAL, 7, [0, 7], 7, 8),
        (load::INCREMENT_IF_EQUAL, 7, [7, 0], AT_BOUND, 7),
    ] {
        users[0].write64(WORD - 8, below);
        users[0].write64(WORD, before);
        users[0].write64(WORD + 8, above);
        let found = load_by(&mut rig, &mut users, operation);
        assert_eq!((found, users[0].read64(WORD)), (sent, after), "operation {operation} on {before}");
    }
}

#[test]
fn the_operation_without_meaning_stops_the_fifo() {
    let (mut rig, mut users) = Rig::pair();
    users[0].inject(&mut rig.bed, 0, &WAY.put(0, 0, 0, atomic::INDICATOR | WORD | 7, 8));
    rig.settle();
    assert_eq!((users[0].fault(0), users[0].read64(WORD)), (fault::RANGE, 0));
}

/// Puts a value to a word by an operation.
fn store_by(rig: &mut Rig, users: &mut [User; 2], operation: u64, value: u64) {
    let target = atomic::INDICATOR | (DATA + 0x80) | operation;
    users[1].set(&mut rig.bed, reg::BASE_ADDRESS + 16, target);
    users[1].write64(COUNTERS, 8);
    users[0].write64(PAYLOAD, value);
    let mut put = WAY.put(0, 0, 0, PAYLOAD, 8);
    put.packet_header.unit.set_payload_base_address(2);
    users[0].inject(&mut rig.bed, 0, &put);
    rig.until(|_| users[1].read64(COUNTERS) == 0);
}

#[test]
fn stores_combine_the_payload_with_the_word() {
    let (mut rig, mut users) = Rig::pair();
    const NEGATIVE: u64 = 1 << 63;
    for (operation, [before, behind], value, [after, then]) in [
        (store::STORE, [1, 2], 9, [9, 2]),
        (store::TWIN, [5, 5], 9, [9, 9]),
        (store::TWIN, [5, 6], 9, [5, 6]),
        (store::ADD, [u64::MAX, 2], 3, [2, 2]),
        (store::ADD_COHERENCE_ON_ZERO, [4, 2], u64::MAX, [3, 2]),
        (store::OR, [0b0101, 2], 0b0011, [0b0111, 2]),
        (store::XOR, [0b0101, 2], 0b0011, [0b0110, 2]),
        (store::MAX_UNSIGNED, [7, 2], NEGATIVE | 1, [NEGATIVE | 1, 2]),
        (store::MAX_UNSIGNED, [7, 2], 6, [7, 2]),
        (store::MAX_SIGNED, [7, 2], NEGATIVE | 9, [7, 2]),
        (store::MAX_SIGNED, [NEGATIVE | 9, 2], NEGATIVE | 8, [NEGATIVE | 8, 2]),
        (store::MAX_SIGNED, [NEGATIVE | 9, 2], 1, [1, 2]),
    ] {
        users[1].write64(DATA + 0x80, before);
        users[1].write64(DATA + 0x88, behind);
        store_by(&mut rig, &mut users, operation, value);
        let found = [users[1].read64(DATA + 0x80), users[1].read64(DATA + 0x88)];
        assert_eq!(found, [after, then], "operation {operation} on {before:#x} and {value:#x}");
    }
}

#[test]
fn an_offset_chooses_the_word_of_an_atomic_entry() {
    let (mut rig, mut users) = Rig::pair();
    users[1].set(&mut rig.bed, reg::BASE_ADDRESS, atomic::INDICATOR | DATA | store::ADD);
    users[1].write64(COUNTERS + 16, 16);
    users[0].write64(PAYLOAD, 5);
    for _ in 0..2 {
        users[0].inject(&mut rig.bed, 0, &WAY.put(0, 64, 2, PAYLOAD, 8));
    }
    rig.until(|_| users[1].read64(COUNTERS + 16) == 0);
    assert_eq!([0, 64, 72].map(|offset| users[1].read64(DATA + offset)), [0, 10, 0]);
}

#[test]
fn reception_counters_are_decremented_atomically() {
    const PUTS: u64 = 20_000;
    const BYTES: u64 = 8;

    let (mut rig, mut users) = Rig::pair();
    let counter = users[1].memory.u64(COUNTERS - MEMORY).unwrap();
    let is_over = AtomicBool::new(false);
    let added = std::thread::scope(|scope| {
        let adder = scope.spawn(|| {
            let mut added = 0_u64;
            while !is_over.load(Ordering::Acquire) {
                counter.fetch_add(3, Ordering::AcqRel);
                added += 3;
            }
            added
        });

        for put in 1..=PUTS {
            users[0].inject(&mut rig.bed, 0, &WAY.put(0, 0, 0, PAYLOAD, BYTES as usize));
            if put.is_multiple_of(32) {
                rig.until(|_| users[0].done(0) == put);
            }
        }
        rig.until(|rig| rig.counter(1, "put_packets") == PUTS);
        is_over.store(true, Ordering::Release);
        adder.join().unwrap()
    });
    assert_eq!(counter.load(Ordering::Acquire), added.wrapping_sub(PUTS * BYTES));
}
