//! Tests of copies into, out of and between shared memory. They compare with copies of slices, for
//! all alignments and lengths.
#![allow(clippy::unwrap_used, reason = "a failure to set up is a failed test")]

use nicforge_shm::SharedMemory;
use proptest::prelude::*;

/// Size of the memories under test in bytes.
const SIZE: usize = 8192;

fn pattern(seed: u8) -> Vec<u8> {
    (0..SIZE).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8).wrapping_add(seed)).collect()
}

fn memory_with(bytes: &[u8]) -> SharedMemory {
    let memory = SharedMemory::create("test", SIZE).unwrap();
    memory.write(0, bytes).unwrap();
    memory
}

fn contents(memory: &SharedMemory) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

/// Returns lengths around every block size of the loops, and some that the string instruction
/// copies.
fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 0usize..600, 1 => 2000usize..2100, 1 => 4000usize..4100]
}

#[test]
fn read_of_every_short_length_and_alignment_equals_the_slice() {
    let bytes = pattern(1);
    let memory = memory_with(&bytes);
    let mut out = vec![0xaau8; 256];
    for offset in 0..64usize {
        for len in 0..160usize {
            out.fill(0xaa);
            memory.read(offset as u64, &mut out[3..3 + len]).unwrap();
            assert_eq!(out[..3], [0xaa; 3], "offset {offset} len {len}");
            assert_eq!(out[3..3 + len], bytes[offset..offset + len], "offset {offset} len {len}");
            assert!(out[3 + len..].iter().all(|byte| *byte == 0xaa), "offset {offset} len {len}");
        }
    }
}

#[test]
fn write_of_every_short_length_and_alignment_equals_the_slice() {
    let memory = SharedMemory::create("test", SIZE).unwrap();
    let bytes = pattern(2);
    let mut found = vec![0u8; 256];
    for offset in 0..64usize {
        for len in 0..160usize {
            memory.write(0, &[0xaa; 256]).unwrap();
            memory.write(offset as u64, &bytes[5..5 + len]).unwrap();
            memory.read(0, &mut found).unwrap();
            let mut expected = vec![0xaa; 256];
            expected[offset..offset + len].copy_from_slice(&bytes[5..5 + len]);
            assert_eq!(found, expected, "offset {offset} len {len}");
        }
    }
}

#[test]
fn copy_of_every_pair_of_alignments_equals_the_slice() {
    let bytes = pattern(3);
    let source = memory_with(&bytes).whole();
    let target = SharedMemory::create("test", SIZE).unwrap();
    let window = target.whole();
    let mut found = vec![0u8; 256];
    for from in 0..32usize {
        for to in 0..32usize {
            for len in [0, 1, 7, 8, 15, 31, 32, 33, 63, 64, 100, 130] {
                target.write(0, &[0xaa; 256]).unwrap();
                source.copy_to(from as u64, &window, to as u64, len as u64).unwrap();
                target.read(0, &mut found).unwrap();
                let mut expected = vec![0xaa; 256];
                expected[to..to + len].copy_from_slice(&bytes[from..from + len]);
                assert_eq!(found, expected, "from {from} to {to} len {len}");
            }
        }
    }
}

#[test]
fn copy_between_two_mappings_of_one_file_moves_the_bytes() {
    let bytes = pattern(4);
    let memory = memory_with(&bytes);
    let other = SharedMemory::map(memory.fd().unwrap(), 0, SIZE, nicforge_shm::Access::ReadWrite).unwrap();
    memory.whole().copy_to(0, &other.whole(), 4096, 3000).unwrap();
    assert_eq!(contents(&memory)[4096..7096], bytes[..3000]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn read_equals_the_slice(offset in 0usize..200, skew in 0usize..64, len in lengths()) {
        let bytes = pattern(5);
        let memory = memory_with(&bytes);
        let mut out = vec![0u8; skew + len];
        memory.read(offset as u64, &mut out[skew..]).unwrap();
        prop_assert_eq!(&out[skew..], &bytes[offset..offset + len]);
    }

    #[test]
    fn write_equals_the_slice(offset in 0usize..200, skew in 0usize..64, len in lengths()) {
        let (before, data) = (pattern(6), pattern(7));
        let memory = memory_with(&before);
        memory.write(offset as u64, &data[skew..skew + len]).unwrap();
        let mut expected = before;
        expected[offset..offset + len].copy_from_slice(&data[skew..skew + len]);
        prop_assert_eq!(contents(&memory), expected);
    }

    #[test]
    fn copy_equals_the_slice(from in 0usize..200, to in 0usize..200, len in lengths()) {
        let (before, data) = (pattern(8), pattern(9));
        let memory = memory_with(&before);
        memory_with(&data).whole().copy_to(from as u64, &memory.whole(), to as u64, len as u64).unwrap();
        let mut expected = before;
        expected[to..to + len].copy_from_slice(&data[from..from + len]);
        prop_assert_eq!(contents(&memory), expected);
    }

    #[test]
    fn zero_equals_the_slice(offset in 0usize..200, len in lengths()) {
        let before = pattern(10);
        let memory = memory_with(&before);
        memory.zero(offset as u64, len as u64).unwrap();
        let mut expected = before;
        expected[offset..offset + len].fill(0);
        prop_assert_eq!(contents(&memory), expected);
    }

    #[test]
    fn arrays_equal_the_slice(from in 0usize..80, to in 0usize..80) {
        let bytes = pattern(11);
        let memory = memory_with(&bytes);
        let (mut packet, mut header, mut odd) = ([0u8; 256], [0u8; 64], [0u8; 77]);
        let window = memory.whole();
        window.read_array(from as u64, &mut packet).unwrap();
        window.read_array(from as u64, &mut header).unwrap();
        window.read_array(from as u64, &mut odd).unwrap();
        window.write_array(2000 + to as u64, &packet).unwrap();
        window.write_array(3000 + to as u64, &header).unwrap();
        window.write_array(4000 + to as u64, &odd).unwrap();
        let mut expected = bytes.clone();
        expected[2000 + to..2256 + to].copy_from_slice(&bytes[from..from + 256]);
        expected[3000 + to..3064 + to].copy_from_slice(&bytes[from..from + 64]);
        expected[4000 + to..4077 + to].copy_from_slice(&bytes[from..from + 77]);

        prop_assert_eq!(contents(&memory), expected);
    }
}
