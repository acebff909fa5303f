//! Test bodies of the DMA engine.

use std::cell::RefCell;

use nicforge_driver::{
    Device, DmaBuffer, DmaMemory, DmaPermission, Error, HugePages, REGION_CONFIG, WriteMode,
};
use nicforge_hwi::proof::dma_engine::*;
use nicforge_proof_driver::dma_engine::{DmaEngine, Outcome, piece};
use nicforge_shm::SharedMemory;
use nicforge_test_body::body;
use proptest::prelude::*;

use super::{MACHINE, wait_until};
use crate::{
    backing::{Rig, test_deadline},
    pattern::pattern,
    random::runner,
};

/// The number of bytes that the engine moves at once.
const PIECE: usize = 65536;
/// The outcome of a list of one descriptor without errors.
const GOOD: Outcome = Outcome { done: 1, errors: 0 };
/// An address without a buffer: the driver allocates addresses from 1 MiB to 512 GiB.
const NOWHERE: u64 = 1 << 40;
/// Offset of the command register in configuration space.
const COMMAND: u64 = 4;
/// Value of the command register with memory decoding but without DMA.
const MEMORY_ONLY: u16 = 0x0002;
/// Offset of the MSI-X pending bits in BAR 0: after 4 KiB of registers, the control page, and the
/// table.
const PENDING: u64 = 0x3000;

/// Opens an attachment of the card, and its driver.
fn open(rig: &dyn Rig, user: &str) -> (Device, DmaEngine) {
    let device = rig.open("dma0", user);
    let engine = DmaEngine::open(&device).unwrap();
    (device, engine)
}

/// Returns memory for DMA, which the device maps, or accesses by DMA messages if it is private.
fn buffer(device: &Device, len: usize, is_private: bool) -> DmaBuffer {
    if is_private { device.private_dma_buffer(len) } else { device.dma_buffer(len, HugePages::Never) }
        .unwrap()
}

/// Returns bytes of a buffer.
fn read(buffer: &DmaBuffer, offset: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    buffer.read(offset, &mut data).unwrap();
    data
}

/// Copies `len` bytes between two offsets, and checks them and the bytes around them.
fn copy_and_check(engine: &mut DmaEngine, from: &DmaBuffer, to: &DmaBuffer, offsets: (u64, u64), len: usize) {
    let (source, destination) = offsets;
    let data = pattern(len as u64, len);
    from.write(source, &data).unwrap();
    to.write(0, &vec![0; to.len() as usize]).unwrap();

    let outcome = engine
        .copy(&[piece(from.iova() + source, to.iova() + destination, len as u32)], test_deadline())
        .unwrap();

    assert_eq!(outcome, GOOD, "{len} bytes from {source} to {destination}");

    let all = read(to, 0, to.len() as usize);
    let (before, rest) = all.split_at(destination as usize);
    let (copied, after) = rest.split_at(len);

    assert!(copied == data, "{len} bytes from {source} to {destination} differ");
    let zeros = vec![0; to.len() as usize];
    assert!(zeros.starts_with(before) && zeros.starts_with(after), "bytes around {len} were written");
}

/// Lengths around every boundary.
const LENGTHS: [usize; 14] =
    [0, 1, 3, 63, 64, 4095, 4096, 4097, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5, 1_048_575, 1_048_576];

/// Copies each of [`LENGTHS`] between two buffers, at unaligned offsets, and checks the result.
fn copies(rig: &dyn Rig, private_source: bool, private_destination: bool) {
    let (device, mut engine) = open(rig, "user0");
    let available = MAX_LENGTH as usize + 4096;
    let from = buffer(&device, available, private_source);
    let to = buffer(&device, available, private_destination);

    for (round, len) in LENGTHS.into_iter().enumerate() {
        let offsets = (round as u64 * 5 % 64, round as u64 * 11 % 4096);
        copy_and_check(&mut engine, &from, &to, offsets, len);
    }
}

/// Copies every length, unaligned, in memory that the device maps.
#[body]
pub fn copies_within_mapped_memory(rig: &dyn Rig) {
    copies(rig, false, false);
}

/// Copies from memory that the device reads by DMA messages.
#[body]
pub fn copies_from_private_memory(rig: &dyn Rig) {
    copies(rig, true, false);
}

/// Copies to memory that the device writes by DMA messages. The interrupt comes after the data.
#[body]
pub fn copies_to_private_memory(rig: &dyn Rig) {
    copies(rig, false, true);
}

/// Copies where both sides are accessed by DMA messages.
#[body]
pub fn copies_within_private_memory(rig: &dyn Rig) {
    copies(rig, true, true);
}

/// Copies across the border of two adjacent buffers, of the same and of different kinds.
#[body(not_through(shim) = NO_PROTECTION)]
pub fn copies_across_buffers_side_by_side(rig: &dyn Rig) {
    let (device, mut engine) = open(rig, "user0");
    for (left, right) in [(false, false), (true, true), (false, true), (true, false)] {
        let buffers =
            [buffer(&device, 4096, left), buffer(&device, 4096, right), buffer(&device, 4096, false)];
        let [left, right, other] = &buffers;

        assert_eq!(left.iova() + 4096, right.iova());

        let data = pattern(1, 200);
        other.write(0, &data).unwrap();

        let to_border = piece(other.iova(), right.iova() - 150, 200);
        let from_border = piece(right.iova() - 150, other.iova() + 2048, 200);
        let outcome = engine.copy(&[to_border, from_border], test_deadline()).unwrap();

        assert_eq!(outcome, Outcome { done: 2, errors: 0 });
        assert_eq!([read(left, 4096 - 150, 150), read(right, 0, 50)].concat(), data);
        assert_eq!(read(other, 2048, 200), data);
    }
}

/// The driver may poll the mirror instead of waiting for the interrupt. A later wait still works.
#[body]
pub fn the_end_can_be_polled_for(rig: &dyn Rig) {
    let (device, mut engine) = open(rig, "user0");
    let memory = buffer(&device, 8192, false);
    let list = [piece(memory.iova(), memory.iova() + 4096, 100)];

    for _ in 0..3 {
        engine.start(&list).unwrap();
        assert_eq!(engine.poll(test_deadline(), None).unwrap(), GOOD);
    }

    assert_eq!(engine.copy(&list, test_deadline()).unwrap(), GOOD);
}

/// The longest list, whose pieces depend on each other, is copied in order.
#[body]
pub fn a_list_of_all_descriptors_is_copied_in_order(rig: &dyn Rig) {
    let (device, mut engine) = open(rig, "user0");
    let memory = buffer(&device, 64 * (MAX_DESCRIPTORS as usize + 1), false);
    memory.write(0, &pattern(7, 64)).unwrap();

    let list: Vec<_> = (0..u64::from(MAX_DESCRIPTORS))
        .map(|n| memory.iova() + n * 64)
        .map(|at| piece(at, at + 64, 64))
        .collect();

    let outcome = engine.copy(&list, test_deadline()).unwrap();
    assert_eq!(outcome, Outcome { done: MAX_DESCRIPTORS, errors: 0 });
    assert_eq!(read(&memory, u64::from(MAX_DESCRIPTORS) * 64, 64), pattern(7, 64));
}

/// More writes by message than may be in flight at a time: the engine finds the core busy and
/// retries.
#[body]
pub fn more_pieces_than_messages_in_flight_are_all_copied(rig: &dyn Rig) {
    let (device, mut engine) = open(rig, "user0");
    let count = u64::from(MAX_DESCRIPTORS);
    let from = buffer(&device, 16 * count as usize, false);
    let to = buffer(&device, 16 * count as usize, true);
    let data = pattern(3, 16 * count as usize);

    from.write(0, &data).unwrap();
    // In reverse order, so that a piece that was skipped or copied twice is noticed.
    let list: Vec<_> =
        (0..count).map(|n| piece(from.iova() + 16 * n, to.iova() + 16 * (count - 1 - n), 16)).collect();

    let outcome = engine.copy(&list, test_deadline()).unwrap();
    assert_eq!(outcome, Outcome { done: MAX_DESCRIPTORS, errors: 0 });

    let reversed: Vec<u8> = data.chunks(16).rev().flatten().copied().collect();
    assert!(read(&to, 0, reversed.len()) == reversed);
}

/// Expects the second of three pieces to fail, the first to be done and the third not.
fn expect_failure(rig: &dyn Rig, errors: u32, failing_piece: impl FnOnce(&Device, u64) -> Descriptor) {
    let (device, mut engine) = open(rig, "user0");
    let memory = buffer(&device, 12288, false);
    memory.write(0, &[5; 4096]).unwrap();

    let at = memory.iova();
    let list = [piece(at, at + 4096, 4096), failing_piece(&device, at), piece(at, at + 8192, 4096)];
    let outcome = engine.copy(&list, test_deadline()).unwrap();

    assert_eq!(outcome, Outcome { done: 1, errors });
    assert_eq!(read(&memory, 4096, 4096), [5; 4096]);
    assert_eq!(read(&memory, 8192, 4096), [0; 4096]);
    assert_eq!(engine.copy(&list[..1], test_deadline()).unwrap(), GOOD);
}

/// A descriptor's length exceeds the maximum by one byte.
#[body]
pub fn a_descriptor_that_is_too_long_is_refused(rig: &dyn Rig) {
    expect_failure(rig, STATUS_BAD_DESCRIPTOR, |_, at| piece(at, at, MAX_LENGTH + 1));
}

/// A descriptor's reserved field is not zero.
#[body]
pub fn a_descriptor_with_reserved_bits_is_refused(rig: &dyn Rig) {
    expect_failure(rig, STATUS_BAD_DESCRIPTOR, |_, at| Descriptor { reserved: 1, ..piece(at, at, 1) });
}

/// The source address is not mapped.
#[body]
pub fn an_unmapped_source_ends_the_list_with_an_error(rig: &dyn Rig) {
    expect_failure(rig, STATUS_DMA_ERROR, |_, at| piece(NOWHERE, at, 1));
}

/// The destination address is not mapped.
#[body]
pub fn an_unmapped_destination_ends_the_list_with_an_error(rig: &dyn Rig) {
    expect_failure(rig, STATUS_DMA_ERROR, |_, at| piece(at, NOWHERE, 1));
}

/// The source's last byte is not mapped.
#[body(not_through(shim) = NO_PROTECTION)]
pub fn a_source_that_leaves_its_buffer_ends_the_list_with_an_error(rig: &dyn Rig) {
    expect_failure(rig, STATUS_DMA_ERROR, |_, at| piece(at + 12288 - 10, at + 8192, 11));
}

/// The source's addresses wrap around.
#[body]
pub fn a_source_that_wraps_ends_the_list_with_an_error(rig: &dyn Rig) {
    expect_failure(rig, STATUS_DMA_ERROR, |_, at| piece(u64::MAX - 5, at + 8192, 100));
}

/// The destination's addresses wrap around.
#[body]
pub fn a_destination_that_wraps_ends_the_list_with_an_error(rig: &dyn Rig) {
    expect_failure(rig, STATUS_DMA_ERROR, |_, at| piece(at, u64::MAX - 5, 100));
}

/// The destination's addresses wrap around after a first part that is mapped: no byte is copied.
#[body(not_through(guests) = "chooses an address that no IOMMU translates")]
pub fn a_transfer_whose_destination_range_wraps_is_refused_before_it_starts(rig: &dyn Rig) {
    let (device, mut engine) = open(rig, "user0");
    let source = buffer(&device, 2 * PIECE, false);
    source.write(0, &[1; 2 * PIECE]).unwrap();

    let last = SharedMemory::create("last-pages", PIECE).unwrap();
    let at = (PIECE as u64).wrapping_neg();
    let memory = DmaMemory::Shared { memory: last.clone(), offset: 0, len: PIECE as u64 };

    device.backing().dma_map(at, memory, DmaPermission::READ_WRITE).unwrap();
    let wraps = engine.copy(&[piece(source.iova(), at, 2 * PIECE as u32)], test_deadline()).unwrap();
    let mut begun = vec![0; PIECE];
    last.read(0, &mut begun).unwrap();

    let fits = engine.copy(&[piece(source.iova(), at, PIECE as u32)], test_deadline()).unwrap();
    assert_eq!(wraps, Outcome { done: 0, errors: STATUS_DMA_ERROR });
    assert_eq!(fits, GOOD);
    assert!(begun.iter().all(|byte| *byte == 0));
}

/// The device may only read the destination.
#[body(not_through(shim) = NO_PROTECTION)]
pub fn a_read_only_destination_ends_the_list_with_an_error(rig: &dyn Rig) {
    let mut mapping = None;
    expect_failure(rig, STATUS_DMA_ERROR, |device, at| {
        let memory = SharedMemory::create("read-only", 4096).unwrap();
        let target = mapping.insert(device.map_dma(&memory, 0, 4096, DmaPermission::READ).unwrap());
        piece(at, target.iova(), 1)
    });
}

/// The list is at an unmapped address, or wraps around the end of the address space.
#[body(not_through(shim) = NO_PROTECTION)]
pub fn an_unmapped_or_wrapping_list_ends_with_an_error(rig: &dyn Rig) {
    let (device, mut engine) = open(rig, "user0");
    let registers = device.bar(0).unwrap();

    for list in [NOWHERE, u64::MAX - 15, 0] {
        registers.write64(REG_LIST, list).unwrap();

        let outcome = engine.copy(&[piece(0, 0, 1), piece(0, 0, 1)], test_deadline()).unwrap();
        assert_eq!(outcome, Outcome { done: 0, errors: STATUS_DMA_ERROR }, "list at {list:#x}");
    }
}

/// Invalid counts and list addresses are refused.
#[body]
pub fn a_bad_start_is_refused(rig: &dyn Rig) {
    let (device, mut engine) = open(rig, "user0");
    let registers = device.bar(0).unwrap();
    let memory = buffer(&device, 4096, false);
    let list = registers.read64(REG_LIST).unwrap();

    // The previous start's error must not be reported again.
    assert_eq!(
        engine.copy(&[piece(NOWHERE, memory.iova(), 1)], test_deadline()).unwrap().errors,
        STATUS_DMA_ERROR
    );
    assert_eq!(engine.copy(&[], test_deadline()).unwrap().errors, STATUS_BAD_START);

    registers.write64(REG_LIST, list + 4).unwrap();
    assert_eq!(engine.copy(&[piece(0, 0, 1)], test_deadline()).unwrap().errors, STATUS_BAD_START);

    registers.write64(REG_LIST, list).unwrap();
    let error = device.interrupt(VECTOR_ERROR.into()).unwrap();
    registers.write32(REG_COUNT, MAX_DESCRIPTORS + 1).unwrap();
    registers.write32(REG_START, 1).unwrap();

    assert_eq!(error.wait(test_deadline(), None).unwrap(), 1);
    assert_eq!(registers.read32(REG_STATUS).unwrap(), STATUS_BAD_START);
    assert!(matches!(
        engine.start(&[piece(0, 0, 0); MAX_DESCRIPTORS as usize + 1]),
        Err(Error::BadLength { .. })
    ));

    device.reset().unwrap();
    let mut engine = DmaEngine::open(&device).unwrap();
    assert_eq!(engine.copy(&[piece(memory.iova(), memory.iova(), 1)], test_deadline()).unwrap(), GOOD);
}

/// A start after another start in the same ring: the first continues, the second is refused.
#[body(not_through(guests) = REAL_PROCESSORS_TIMES)]
pub fn a_start_while_busy_is_refused_and_disturbs_nothing(rig: &dyn Rig) {
    let (device, mut engine) = open(rig, "user0");
    let memory = buffer(&device, 1 << 20, true);
    memory.write(0, &[3; 1000]).unwrap();

    let half = memory.len() / 2;
    let registers = device.bar(0).unwrap();
    let mirror = device.bar(2).unwrap();

    engine.start(&[piece(memory.iova(), memory.iova() + half, half as u32)]).unwrap();
    registers.posted_write(REG_START, &1u32.to_le_bytes()).unwrap();
    wait_until(&device, || mirror.read64(MIRROR_ENDED) == Ok(2));

    // The memory is written by DMA messages, and the trapped read is answered after them.
    assert_eq!(registers.read32(REG_STATUS).unwrap(), STATUS_BAD_START);
    assert_eq!(registers.read32(REG_DONE).unwrap(), 1);

    wait_until(&device, || read(&memory, half, 1000) == [3; 1000]);
}

/// Without bus mastering there is no DMA.
#[body(not_through(guests) = "an interrupt is a bus master's write, too")]
pub fn a_function_without_bus_mastering_reaches_nothing(rig: &dyn Rig) {
    let (device, mut engine) = open(rig, "user0");
    let memory = buffer(&device, 4096, false);
    let list = [piece(memory.iova(), memory.iova(), 1)];
    let backing = device.backing();
    let mut command = [0; 2];

    backing.read(REGION_CONFIG, COMMAND, &mut command).unwrap();
    backing.write(REGION_CONFIG, COMMAND, &MEMORY_ONLY.to_le_bytes(), WriteMode::Confirmed).unwrap();
    assert_eq!(engine.copy(&list, test_deadline()).unwrap(), Outcome { done: 0, errors: STATUS_DMA_ERROR });

    backing.write(REGION_CONFIG, COMMAND, &command, WriteMode::Confirmed).unwrap();
    assert_eq!(engine.copy(&list, test_deadline()).unwrap(), GOOD);
}

/// An unbound vector sets its pending bit, and the mirror shows the end all the same.
#[body(not_through(shim, shim_iommu) = "the shim keeps the MSI-X table and its pending bits to itself")]
pub fn an_unbound_vector_leaves_its_pending_bit(rig: &dyn Rig) {
    let device = rig.open("dma0", "user0");
    let registers = device.bar(0).unwrap();
    let mirror = device.bar(2).unwrap();

    registers.write32(REG_START, 1).unwrap();
    wait_until(&device, || mirror.read64(MIRROR_ENDED) == Ok(1));

    assert_eq!(registers.read64(PENDING).unwrap(), 1 << VECTOR_ERROR);
}

/// The same address refers to different memory for another client.
#[body(not_through(shim) = NO_PROTECTION)]
pub fn clients_have_address_spaces_of_their_own(rig: &dyn Rig) {
    let (first_device, mut first) = open(rig, "user0");
    let (second_device, mut second) = open(rig, "user1");
    let first_buffer = buffer(&first_device, 8192, false);
    let second_buffer = buffer(&second_device, 8192, false);

    assert_eq!(first_buffer.iova(), second_buffer.iova());

    first_buffer.write(0, &[1; 100]).unwrap();
    second_buffer.write(0, &[2; 100]).unwrap();
    let list = [piece(first_buffer.iova(), first_buffer.iova() + 4096, 100)];

    first.start(&list).unwrap();
    second.start(&list).unwrap();

    assert_eq!(first.wait(test_deadline(), None).unwrap(), GOOD);
    assert_eq!(second.wait(test_deadline(), None).unwrap(), GOOD);
    assert_eq!(
        (read(&first_buffer, 4096, 100), read(&second_buffer, 4096, 100)),
        (vec![1; 100], vec![2; 100])
    );
}

/// Released memory can't be reached any more.
#[body(not_through(shim) = NO_PROTECTION)]
pub fn dropped_memory_is_out_of_reach(rig: &dyn Rig) {
    let (device, mut engine) = open(rig, "user0");
    let memory = buffer(&device, 4096, false);
    let list = [piece(memory.iova(), memory.iova() + 100, 100)];

    assert_eq!(engine.copy(&list, test_deadline()).unwrap(), GOOD);

    let window = memory.window().clone();
    drop(memory);
    window.write(0, &[1; 100]).unwrap();
    assert_eq!(engine.copy(&list, test_deadline()).unwrap(), Outcome { done: 0, errors: STATUS_DMA_ERROR });

    let mut copy = [9; 100];
    window.read(100, &mut copy).unwrap();

    assert_eq!(copy, [0; 100]);
}

/// A reset while messages are in flight discards them, and the next list is copied.
#[body]
pub fn a_reset_ends_a_list_and_the_next_one_is_copied(rig: &dyn Rig) {
    let (device, mut engine) = open(rig, "user0");
    let memory = buffer(&device, 1 << 20, true);
    let half = memory.len() / 2;

    for _ in 0..10 {
        engine.start(&[piece(memory.iova(), memory.iova() + half, half as u32)]).unwrap();
        device.reset().unwrap();
        engine = DmaEngine::open(&device).unwrap();
        assert_eq!(engine.outcome(), Some(Outcome { done: 0, errors: 0 }));
    }

    memory.write(0, &pattern(1, 1000)).unwrap();
    let outcome = engine.copy(&[piece(memory.iova(), memory.iova() + half, 1000)], test_deadline()).unwrap();

    assert_eq!(outcome, GOOD);
    assert_eq!(read(&memory, half, 1000), pattern(1, 1000));
}

/// Bytes in each of the two buffers of [`any_descriptor_list_equals_its_copies_in_order`].
const ARENA: usize = 3 * PIECE;

/// Any list over a mapped and a private buffer has the same effect as the same copies in a byte
/// array.
#[body]
pub fn any_descriptor_list_equals_its_copies_in_order(rig: &dyn Rig) {
    let (device, engine) = open(rig, "user0");
    let engine = RefCell::new(engine);
    let buffers = [buffer(&device, ARENA, false), buffer(&device, ARENA, true)];
    let slice = || (0..2usize, 0..ARENA);
    let lengths = prop_oneof![0..64usize, 0..ARENA];
    let lists = prop::collection::vec((slice(), slice(), lengths), 1..16);
    let mut runner = runner(rig, 64);

    let outcome = runner.run(&lists, |list| {
        let mut model = [pattern(0, ARENA), pattern(0x50, ARENA)];
        for (buffer, bytes) in buffers.iter().zip(&model) {
            buffer.write(0, bytes).unwrap();
        }

        let mut descriptors = Vec::new();
        for ((from, source), (to, destination), length) in list {
            let length = length.min(ARENA - source).min(ARENA - destination);
            descriptors.push(piece(
                buffers[from].iova() + source as u64,
                buffers[to].iova() + destination as u64,
                length as u32,
            ));

            for at in (0..length).step_by(PIECE) {
                let part = PIECE.min(length - at);
                let moved = model[from][source + at..source + at + part].to_vec();
                model[to][destination + at..destination + at + part].copy_from_slice(&moved);
            }
        }

        let outcome = engine.borrow_mut().copy(&descriptors, test_deadline()).unwrap();
        prop_assert_eq!(outcome, Outcome { done: descriptors.len() as u32, errors: 0 });
        for (buffer, bytes) in buffers.iter().zip(&model) {
            prop_assert!(read(buffer, 0, ARENA) == *bytes);
        }

        Ok(())
    });

    outcome.unwrap();
}
