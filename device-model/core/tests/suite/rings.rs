//! Tests of posted-write rings.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::common::*;
use nicforge_core::{
    ids::{Address, AttachmentId},
    machine::{Access, Machine, Next},
    time::Nanos,
};
use nicforge_hwi::{attachment::control, posted};
use nicforge_shm::PushError;

#[test]
fn records_reach_the_device_in_order_with_their_address_and_data() {
    let (mut machine, probe) = attached();
    let mut ring = Ring::new(&machine, F, A);
    ring.push(0, 0x18, &[1]).unwrap();
    ring.push(4, 0x2ff0, &[2; 512]).unwrap();
    ring.push(0, 0xfff, &[3]).unwrap();

    machine.step(Nanos(0), 64);

    let write = |bar, offset, data: &[u8]| Call::Write(A, Address { bar, offset }, data.to_vec());
    let expected = [write(0, 0x18, &[1]), write(4, 0x2ff0, &[2; 512]), write(0, 0xfff, &[3])];

    assert_eq!(probe.calls(), expected);
    assert_eq!(machine.attachment_counters(F, A).unwrap().posted_writes, 3);
}

#[test]
fn full_ring_has_room_again_when_the_machine_has_stepped() {
    let (mut machine, probe) = attached();
    let mut ring = Ring::new(&machine, F, A);
    for number in 0..RING_CELLS {
        ring.push_number(number);
    }

    assert_eq!(ring.push(0, 0, &[1]), Err(PushError::Full));

    step_until_idle(&mut machine, 0);
    ring.push_number(RING_CELLS);
    step_until_idle(&mut machine, 0);

    assert_eq!(numbers(&probe), (0..=RING_CELLS).collect::<Vec<_>>());
}

#[test]
fn trapped_access_follows_all_posted_records() {
    let (mut machine, probe) = attached();
    let mut ring = Ring::new(&machine, F, A);
    for number in 0..RING_CELLS {
        ring.push_number(number);
    }

    read::<4>(&mut machine, A, 0, 0x30);
    ring.push_number(99);
    write(&mut machine, A, 0, 0x30, &[7]);

    let calls = probe.calls();

    assert_eq!(calls.len(), RING_CELLS as usize + 3);
    assert!(matches!(calls[RING_CELLS as usize], Call::Read(..)));
    assert!(matches!(&calls[RING_CELLS as usize + 2], Call::Write(_, _, data) if *data == [7]));
}

#[test]
fn trapped_access_follows_all_posted_records_in_a_large_ring() {
    let mut machine = Machine::new();
    let mut large = spec();
    large.bars[1].as_mut().unwrap().size = 1 << 22;
    large.bars[1].as_mut().unwrap().areas[0].length = 1 << 22;
    large.rings.as_mut().unwrap().cells = posted::MAX_RING_CELLS as u32;
    let (_, probe) = add(&mut machine, "node0", large);
    attach(&mut machine, A);
    let cells = memory(&machine, A, 1).whole();
    let mut producer = nicforge_shm::Producer::new(nicforge_shm::SharedCells::new(cells).unwrap());
    for number in 0..posted::MAX_RING_CELLS as u32 {
        producer.try_push(|| 0, 0, 0x10, &number.to_le_bytes()).unwrap();
    }

    read::<4>(&mut machine, A, 0, 0x30);

    let calls = probe.calls();

    assert!(matches!(calls.last(), Some(Call::Read(..))));

    // The first call is the attach; then come the records.
    assert_eq!(calls.len(), posted::MAX_RING_CELLS + 2);
}

#[test]
fn accesses_wait_behind_a_stalled_record_and_the_control_page_passes() {
    let (mut machine, probe) = attached();
    Ring::new(&machine, F, A).push_number(1);
    probe.script().stalled.push(A);

    let read_waits = try_read(&mut machine, 0, 0x30, 4).unwrap();
    let memory_waits = try_read(&mut machine, 1, WINDOWS, 4).unwrap();
    let write_waits = machine.write(F, A, 1, WINDOWS, &[1]).unwrap();
    let state = read_control(&mut machine, A, control::RING_STATE);
    write_control(&mut machine, A, control::WAKE, 1);

    assert_eq!([read_waits, memory_waits, write_waits], [Access::Stalled; 3]);
    // The engine reads cell 0 next. Bit 31 is the phase that it expects there.
    assert_eq!(state, 1 << 31);
    assert_eq!(read::<1>(&mut machine, A, 7, 0), [0x34]);
}

/// Returns a machine whose second client waits for a resource that the device lacks.
fn contended() -> (Machine, Probe, Ring) {
    let (mut machine, probe) = attached();
    attach(&mut machine, B);
    Ring::new(&machine, F, B).push_number(100);
    probe.script().stalled.push(B);
    machine.step(Nanos(0), 64);
    probe.calls();
    let ring = Ring::new(&machine, F, A);

    (machine, probe, ring)
}

#[test]
fn an_access_takes_nothing_out_of_turn_while_another_client_waits() {
    let (mut machine, probe, mut ring) = contended();
    (0..3).for_each(|number| ring.push_number(number));

    let before = try_read(&mut machine, 0, 0x30, 4).unwrap();
    let taken = numbers(&probe);
    machine.step(Nanos(0), 2);
    let between = try_read(&mut machine, 0, 0x30, 4).unwrap();
    machine.step(Nanos(0), 2);

    assert_eq!((before, taken, between), (Access::Stalled, vec![], Access::Stalled));
    assert_eq!(numbers(&probe), [0, 1, 2]);

    read::<4>(&mut machine, A, 0, 0x30);

    // No client waits from here on.
    probe.script().stalled.clear();
    machine.step(Nanos(0), 64);
    probe.calls();
    ring.push_number(3);
    read::<4>(&mut machine, A, 0, 0x30);

    assert!(matches!(&probe.calls()[..], [Call::Write(..), Call::Read(..)]));
}

#[test]
fn an_access_waits_for_no_more_than_a_ring_of_records() {
    let (mut machine, probe, mut ring) = contended();
    let mut number = 0;
    let mut fill = |ring: &mut Ring| {
        while ring.push(0, 0x10, &u32::to_le_bytes(number)).is_ok() {
            number += 1;
        }
    };

    fill(&mut ring);

    // This access is given up, and has no effect on the next one.
    assert_eq!(try_read(&mut machine, 0, 0x30, 4).unwrap(), Access::Stalled);

    machine.step(Nanos(0), 16);
    machine.give_up_access(F, A).unwrap();

    for pass in 0..RING_CELLS / 16 {
        fill(&mut ring);
        assert_eq!(try_read(&mut machine, 0, 0x30, 4).unwrap(), Access::Stalled, "turn {pass}");
        machine.step(Nanos(0), 16);
    }

    fill(&mut ring);

    assert_eq!(try_read(&mut machine, 0, 0x30, 4).unwrap(), Access::Done);
    assert_eq!(numbers(&probe).len() as u32, RING_CELLS + 16);
}

#[test]
fn reading_the_generation_in_any_width_is_a_flush() {
    let (mut machine, probe) = attached();
    Ring::new(&machine, F, A).push_number(1);
    probe.script().stalled.push(A);
    let touching =
        [(control::GENERATION, 4), (control::GENERATION + 3, 1), (control::RING_STATE, 8), (0, 0x20)];

    let waiting =
        touching.map(|(offset, length)| try_read(&mut machine, 0, CONTROL + offset, length).unwrap());
    let others = [(control::RING_STATE, 4), (control::ATTACHMENT, 4), (0, 0x10)]
        .map(|(offset, length)| try_read(&mut machine, 0, CONTROL + offset, length).unwrap());
    let beyond = try_read(&mut machine, 0, CONTROL + control::ATTACHMENT, 0x1000).unwrap();

    assert_eq!(waiting, [Access::Stalled; 4]);
    assert_eq!((others, beyond), ([Access::Done; 3], Access::Stalled));
}

#[test]
fn stalled_record_is_offered_until_it_is_taken_and_nothing_passes_it() {
    let (mut machine, probe) = attached();
    attach(&mut machine, B);
    let (mut of_a, mut of_b) = (Ring::new(&machine, F, A), Ring::new(&machine, F, B));
    for number in 0..3 {
        of_a.push_number(number);
        of_b.push_number(10 + number);
    }

    probe.script().stalled.push(A);
    probe.calls();

    step_until_idle(&mut machine, 0);
    let while_stalled = numbers(&probe);
    probe.script().stalled.clear();
    step_until_idle(&mut machine, 0);

    assert_eq!((while_stalled, numbers(&probe)), (vec![10, 11, 12], vec![0, 1, 2]));
    assert_eq!(machine.attachment_counters(F, A).unwrap().stalls, 1);
}

#[test]
fn each_record_that_stalls_is_counted_once() {
    let (mut machine, probe) = attached();
    let mut ring = Ring::new(&machine, F, A);
    for number in 0..3 {
        ring.push_number(number);
        probe.script().stalled.push(A);
        step_until_idle(&mut machine, 0);
        step_until_idle(&mut machine, 0);
        probe.script().stalled.clear();
        step_until_idle(&mut machine, 0);
    }

    assert_eq!(numbers(&probe), [0, 1, 2]);
    assert_eq!(machine.attachment_counters(F, A).unwrap().stalls, 3);
}

#[test]
fn ring_reset_drops_a_stalled_record_and_state_shows_the_next_cell() {
    let (mut machine, probe) = attached();
    let mut ring = Ring::new(&machine, F, A);
    for number in 0..5 {
        ring.push_number(number);
    }

    step_until_idle(&mut machine, 0);
    ring.push_number(5);
    probe.script().stalled.push(A);
    step_until_idle(&mut machine, 0);
    let state = read_control(&mut machine, A, control::RING_STATE);
    probe.calls();

    write_control(&mut machine, A, control::RING_RESET, 0);
    probe.script().stalled.clear();
    ring.restart();
    ring.push_number(6);
    read::<4>(&mut machine, A, 0, CONTROL + GENERATION);

    assert_eq!(state, 5 | 1 << 31);
    assert_eq!(numbers(&probe), [6]);
    assert_eq!(read_control(&mut machine, A, control::RING_STATE), 1 | 1 << 31);
}

#[test]
fn rings_that_do_not_exist_have_no_state_and_no_reset() {
    let (mut machine, probe) = attached();
    Ring::new(&machine, F, A).push_number(1);

    for number in [1, 8, u32::MAX] {
        write_control(&mut machine, A, control::RING_SELECT, number);
        write_control(&mut machine, A, control::RING_RESET, number);

        assert_eq!(read_control(&mut machine, A, control::RING_SELECT), number);
        assert_eq!(read_control(&mut machine, A, control::RING_STATE), u32::MAX);
    }

    step_until_idle(&mut machine, 0);

    assert_eq!(numbers(&probe), [1]);
}

#[test]
fn records_to_anything_but_registers_are_counted_and_skipped() {
    let (mut machine, probe) = attached();
    let mut ring = Ring::new(&machine, F, A);
    let elsewhere = [
        (0, CONTROL as u32, 4),
        (0, CONTROL as u32 - 1, 2),
        (0, MSIX_TABLE as u32, 16),
        (0, PENDING_BITS as u32, 8),
        (0, 0x3fff, 2),
        (0, u32::MAX, 1),
        (1, WINDOWS as u32, 8),
        (2, 0, 4),
        (3, 0, 4),
        (4, 0x0fff, 2),
        (4, 0x1fff, 2),
        (5, 0, 1),
        (6, 0, 1),
        (7, 0, 1),
    ];
    for (bar, offset, length) in elsewhere {
        ring.push(bar, offset, &vec![1; length]).unwrap();
    }

    ring.push_number(42);

    let next = machine.step(Nanos(0), 64);

    let counters = machine.attachment_counters(F, A).unwrap();

    assert_eq!((next, numbers(&probe)), (Next::Now, vec![42]));
    assert_eq!((counters.malformed_records, counters.posted_writes), (elsewhere.len() as u64, 1));
    assert_eq!(read_control(&mut machine, A, GENERATION), 1);
}

#[test]
fn malformed_cells_are_counted_and_skipped_one_by_one() {
    let (mut machine, probe) = attached();
    let cells = memory(&machine, A, 1);

    // Headers with the phase of the first lap and invalid lengths: 0 and 1023.
    for (cell, length) in [(0, 0u64), (1, 0x3ff)] {
        let header = posted::PHASE | length << posted::LENGTH_SHIFT;
        cells.write(cell * posted::CELL as u64, &header.to_le_bytes()).unwrap();
    }

    let header = posted::PHASE | posted::header(0, 0x10, 4);
    cells.write(2 * posted::CELL as u64 + 8, &42u32.to_le_bytes()).unwrap();
    cells.write(2 * posted::CELL as u64, &header.to_le_bytes()).unwrap();

    step_until_idle(&mut machine, 0);

    assert_eq!(machine.attachment_counters(F, A).unwrap().malformed_records, 2);
    assert_eq!(numbers(&probe), [42]);
}

#[test]
fn several_rings_keep_their_order_and_their_numbers() {
    let mut machine = Machine::new();
    let mut many = spec();
    many.rings.as_mut().unwrap().count = 8;
    let (_, probe) = add(&mut machine, "node0", many);
    attach(&mut machine, A);
    let cells = memory(&machine, A, 1);
    let bytes = u64::from(RING_CELLS) * posted::CELL as u64;
    let mut producers: Vec<_> = (0..8)
        .map(|ring| cells.window(ring * bytes, bytes).unwrap())
        .map(|window| nicforge_shm::Producer::new(nicforge_shm::SharedCells::new(window).unwrap()))
        .collect();
    for lap in 0..3u32 {
        for (ring, producer) in producers.iter_mut().enumerate() {
            // Ring 3 receives only one record.
            if ring != 3 || lap == 0 {
                producer.try_push(|| 0, 0, 0x10, &(ring as u32 * 10 + lap).to_le_bytes()).unwrap();
            }
        }
        step_until_idle(&mut machine, 0);
    }

    write_control(&mut machine, A, control::RING_SELECT, 3);
    let of_3 = read_control(&mut machine, A, control::RING_STATE);
    write_control(&mut machine, A, control::RING_SELECT, 7);
    let of_7 = read_control(&mut machine, A, control::RING_STATE);

    let received = numbers(&probe);

    assert_eq!((of_3, of_7), (1 | 1 << 31, 3 | 1 << 31));

    for ring in 0..8 {
        let of_ring: Vec<_> = received.iter().filter(|number| **number / 10 == ring).copied().collect();
        let expected: Vec<_> = (0..if ring == 3 { 1 } else { 3 }).map(|lap| ring * 10 + lap).collect();
        assert_eq!(of_ring, expected);
    }
}

#[test]
fn a_client_whose_write_stalled_is_served_first_in_the_next_turn() {
    let (mut machine, probe) = attached();
    attach(&mut machine, B);
    attach(&mut machine, C);
    let mut rings = [A, B, C].map(|attachment_id| Ring::new(&machine, F, attachment_id));

    // Runs a turn in which the writes of the clients in `stalled` stall. Returns the clients that
    // wrote, in order.
    let mut writers_in_turn = |stalled: &[AttachmentId]| {
        rings.iter_mut().for_each(|ring| ring.push_number(0));
        probe.script().stalled = stalled.to_vec();
        probe.calls();
        machine.step(Nanos(0), 1);
        let writers = probe.calls().into_iter().filter_map(|call| match call {
            Call::Write(attachment_id, ..) => Some(attachment_id),
            _ => None,
        });
        writers.collect::<Vec<_>>()
    };

    assert_eq!(writers_in_turn(&[A]), [B, C]);
    assert_eq!(writers_in_turn(&[]), [A, B, C], "the client that stalled is first");
    assert_eq!(writers_in_turn(&[]), [A, B, C], "no client waited, so the order stays");

    // The records that C had carried out before count against it once.
    assert_eq!(writers_in_turn(&[C]), [A, B]);
    assert_eq!(writers_in_turn(&[C]), [A, B]);
    assert_eq!(writers_in_turn(&[]), [C, A, B]);
}
