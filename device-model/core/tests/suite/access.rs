//! Tests of trapped accesses: widths, alignments, kinds of space and the borders between them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::common::*;
use nicforge_core::{
    ids::Address,
    machine::{Access, AccessError, Machine, region},
    spec::BarSpec,
};
use nicforge_hwi::attachment::control;

/// Returns what the device returns for a read at this offset.
fn pattern(offset: u64, length: usize) -> Vec<u8> {
    (0..length).map(|index| (offset as usize + index) as u8).collect()
}

#[test]
fn register_reads_of_every_width_and_alignment_reach_the_device() {
    let (mut machine, probe) = attached();
    for length in 1..=64 {
        for offset in 0x100..0x108 {
            let mut data = vec![0; length];

            let access = machine.read(F, A, 0, offset, &mut data).unwrap();

            assert_eq!((access, data), (Access::Done, pattern(offset, length)));
            assert_eq!(probe.calls(), [Call::Read(A, Address { bar: 0, offset }, length)]);
        }
    }
}

#[test]
fn io_ports_are_sized_by_configuration_space_and_reach_the_device() {
    let mut machine = Machine::new();
    let mut with_ports = spec();
    with_ports.bars[5] = Some(BarSpec::io(32));
    let (_, probe) = add(&mut machine, "card0", with_ports);
    attach(&mut machine, A);
    probe.calls();

    write(&mut machine, A, region::CONFIG, 0x24, &[0xff; 4]);
    let size = u32::from_le_bytes(read(&mut machine, A, region::CONFIG, 0x24));
    write(&mut machine, A, 5, 8, &[0x5a]);
    let word = read::<2>(&mut machine, A, 5, 30);

    // 32 ports, and the bit of I/O BARs.
    assert_eq!(size, !31 | 1);
    assert_eq!(word.to_vec(), pattern(30, 2));

    let at = |offset| Address { bar: 5, offset };
    assert_eq!(probe.calls(), [Call::Write(A, at(8), vec![0x5a]), Call::Read(A, at(30), 2)]);
    assert!(matches!(try_read(&mut machine, 5, 31, 2), Err(AccessError::OutOfRange { .. })));
}

#[test]
fn long_register_reads_come_in_natural_pieces() {
    let (mut machine, probe) = attached();
    let mut data = vec![0; 100];

    let access = machine.read(F, A, 0, 0x101, &mut data).unwrap();

    assert_eq!((access, data), (Access::Done, pattern(0x101, 100)));

    for call in probe.calls() {
        let Call::Read(_, at, length) = call else { panic!("{call:?}") };
        assert!(length <= 64 && (length > 8 || at.offset % (length as u64).next_power_of_two() == 0));
    }
}

#[test]
fn register_writes_of_every_width_reach_the_device_in_one_piece() {
    let (mut machine, probe) = attached();
    for length in [1, 2, 3, 4, 7, 8, 16, 64, 511, 512] {
        for offset in [0, 1, 4, 0x123] {
            let data = pattern(offset, length);

            write(&mut machine, A, 0, offset, &data);

            assert_eq!(probe.calls(), [Call::Write(A, Address { bar: 0, offset }, data)]);
        }
    }
}

#[test]
fn register_write_above_512_bytes_is_refused_without_effect() {
    let (mut machine, probe) = attached();

    let outcome = machine.write(F, A, 0, 0, &[0; 513]);

    assert!(matches!(outcome, Err(AccessError::TooWide { region: 0, length: 513 })));
    assert_eq!(probe.calls(), []);
}

#[test]
fn read_across_registers_and_memory_gives_each_its_own() {
    let (mut machine, probe) = attached();
    memory(&machine, A, BAR_MIXED).write(0x1000, &[0xaa; 8]).unwrap();
    memory(&machine, A, BAR_MIXED).write(0x1ff8, &[0xbb; 8]).unwrap();

    let into: [u8; 16] = read(&mut machine, A, BAR_MIXED, 0xff8);
    let out_of: [u8; 16] = read(&mut machine, A, BAR_MIXED, 0x1ff8);

    assert_eq!((&into[..8], &into[8..]), (&pattern(0xff8, 8)[..], &[0xaa; 8][..]));
    assert_eq!((&out_of[..8], &out_of[8..]), (&[0xbb; 8][..], &pattern(0x2000, 8)[..]));
    assert_eq!(probe.calls().len(), 2);
}

#[test]
fn read_across_registers_control_page_and_msix_gives_each_its_own() {
    let (mut machine, _) = attached();

    let all: [u8; 0x4000] = read(&mut machine, A, 0, 0);

    assert_eq!(all[0xfff], 0xff);
    assert_eq!(all[0x1000 + control::ATTACHMENT as usize..][..4], [0; 4]);
    assert_eq!(all[0x1000 + 0x100..][..4], [0xff; 4]);

    // The vectors are masked after power-on. The space after the last one belongs to the device.
    assert_eq!(all[0x2000 + 12..][..4], [1, 0, 0, 0]);
    assert_eq!(all[0x2000 + 64..][..2], [0x40, 0x41]);
    assert_eq!(all[0x3000..][..9], [0, 0, 0, 0, 0, 0, 0, 0, 8]);
}

#[test]
fn write_across_a_border_is_refused_without_effect() {
    let (mut machine, probe) = attached();
    let borders = [
        (0, CONTROL - 4, 8),
        (0, MSIX_TABLE - 4, 8),
        (0, MSIX_TABLE + 60, 8),
        (0, PENDING_BITS + 4, 8),
        (BAR_MIXED, 0xffc, 8),
        (BAR_MIXED, 0x1ffc, 8),
    ];
    for (bar, offset, length) in borders {
        let outcome = machine.write(F, A, bar, offset, &vec![1; length]);

        assert!(matches!(outcome, Err(AccessError::OutOfRange { .. })), "{bar} {offset:#x}");
    }

    let mut bytes = [9; 4];
    memory(&machine, A, BAR_MIXED).read(0x1ffc, &mut bytes).unwrap();

    assert_eq!(bytes, [0; 4]);
    assert_eq!(probe.calls(), []);
}

#[test]
fn register_write_across_pages_of_registers_is_one_write() {
    let (mut machine, probe) = attached();

    write(&mut machine, A, BAR_MIXED, 0x2ffc, &[1; 8]);

    let at = Address { bar: 4, offset: 0x2ffc };
    assert_eq!(probe.calls(), [Call::Write(A, at, vec![1; 8])]);
}

#[test]
fn memory_is_read_and_written_by_trapped_accesses_too() {
    let (mut machine, probe) = attached();

    write(&mut machine, A, 1, WINDOWS + 1, &[7; 1000]);

    assert_eq!(read(&mut machine, A, 1, WINDOWS), {
        let mut expected = [7; 1002];
        (expected[0], expected[1001]) = (0, 0);
        expected
    });

    assert_eq!(probe.calls(), []);
}

#[test]
fn mirror_can_be_read_and_not_written() {
    let (mut machine, _) = attached();

    let outcome = machine.write(F, A, 2, 0, &[0; 4]);

    assert!(matches!(outcome, Err(AccessError::ReadOnly { region: 2 })));
    assert_eq!(&read::<4>(&mut machine, A, 2, 0), b"NICF");
}

#[test]
fn accesses_of_no_bytes_do_nothing() {
    let (mut machine, probe) = attached();
    let before = machine.attachment_counters(F, A);

    assert_eq!(machine.read(F, A, 0, 0x4000, &mut []).unwrap(), Access::Done);
    assert_eq!(machine.write(F, A, 2, 0, &[]).unwrap(), Access::Done);
    assert_eq!(machine.write(F, A, region::CONFIG, 4096, &[]).unwrap(), Access::Done);

    assert_eq!((machine.attachment_counters(F, A), probe.calls()), (before, vec![]));
}

#[test]
fn accesses_out_of_a_region_are_refused() {
    let (mut machine, probe) = attached();
    let outside = [
        (0, 0x4000, 1),
        (0, 0x3fff, 2),
        (0, u64::MAX, 1),
        (0, u64::MAX - 3, 8),
        (1, 0x2_0000, 1),
        (5, 0, 1),
        (5, 0, 0),
        (6, 0, 1),
        (8, 0, 0),
        (region::CONFIG, 4096, 1),
        (region::CONFIG, 4095, 2),
        (9, 0, 4),
        (256, 0, 0),
        (u32::MAX, 0, 4),
    ];
    for (index, offset, length) in outside {
        let read = machine.read(F, A, index, offset, &mut vec![0; length]);
        let write = machine.write(F, A, index, offset, &vec![0; length]);

        assert!(matches!(read, Err(AccessError::OutOfRange { .. })), "{index} {offset:#x}");
        assert!(matches!(write, Err(AccessError::OutOfRange { .. })), "{index} {offset:#x}");
    }

    assert_eq!(probe.calls(), []);
}

#[test]
fn regions_have_the_sizes_of_the_description() {
    let (machine, _) = attached();

    let views: Vec<_> = (0..region::COUNT).map(|index| machine.region(F, A, index).unwrap()).collect();

    let sizes: Vec<_> = views.iter().map(|view| view.size).collect();

    assert_eq!(sizes, [0x4000, 0x2_0000, 0x2000, 0x1000, 0x4000, 0, 0, 4096, 0]);

    let mapped: Vec<_> = views.iter().map(|view| view.memory.is_some()).collect();
    assert_eq!(mapped, [false, true, true, true, true, false, false, false, false]);
    assert_eq!((views[4].areas[0].offset, views[4].areas[0].length), (0x1000, 0x1000));
    assert!(views[4].writable && !views[2].writable && !views[5].readable);
}

#[test]
fn control_page_takes_aligned_words_only() {
    let (mut machine, _) = attached();
    let select = |machine: &mut _| read_control(machine, A, control::RING_SELECT);

    write(&mut machine, A, 0, CONTROL + control::RING_SELECT, &[5]);
    write(&mut machine, A, 0, CONTROL + control::RING_SELECT, &[5, 0]);
    write(&mut machine, A, 0, CONTROL + control::RING_SELECT + 1, &[5, 0, 0, 0]);
    let refused = select(&mut machine);
    write(&mut machine, A, 0, CONTROL + control::RING_RESET, &[9, 0, 0, 0, 6, 0, 0, 0, 1]);

    assert_eq!((refused, select(&mut machine)), (0, 6));
}

#[test]
fn control_page_is_read_in_pieces_of_any_width() {
    let (mut machine, _) = attached();
    write_control(&mut machine, A, control::RING_SELECT, 0x0403_0201);

    let bytes: [u8; 6] = read(&mut machine, A, 0, CONTROL + control::RING_SELECT - 1);

    assert_eq!(bytes, [0xff, 1, 2, 3, 4, 0xff]);
    assert_eq!(read::<1>(&mut machine, A, 0, CONTROL + control::RING_SELECT + 2), [3]);
}

#[test]
fn msix_table_is_written_and_pending_bits_are_not() {
    let (mut machine, probe) = attached();

    write(&mut machine, A, 0, MSIX_TABLE + 16, &0xfee0_0000u64.to_le_bytes());
    write(&mut machine, A, 0, PENDING_BITS, &[0xff; 8]);

    assert_eq!(read(&mut machine, A, 0, MSIX_TABLE + 16), 0xfee0_0000u64.to_le_bytes());
    assert_eq!(read::<8>(&mut machine, A, 0, PENDING_BITS), [0; 8]);
    assert_eq!(probe.calls(), []);
}

#[test]
fn configuration_space_is_each_attachments_own() {
    let (mut machine, _) = attached();
    attach(&mut machine, B);

    write(&mut machine, A, region::CONFIG, 0x3c, &[11]);

    assert_eq!(read::<4>(&mut machine, A, region::CONFIG, 0), [0x34, 0x12, 0x78, 0x56]);
    assert_eq!(read::<1>(&mut machine, A, region::CONFIG, 0x3c), [11]);
    assert_eq!(read::<1>(&mut machine, B, region::CONFIG, 0x3c), [0]);
}

#[test]
fn stalled_write_has_no_effect_until_it_is_offered_again() {
    let (mut machine, probe) = attached();
    probe.script().stalled.push(A);

    for _ in 0..3 {
        assert_eq!(machine.write(F, A, 0, 0x20, &[1]).unwrap(), Access::Stalled);
    }

    let refused = probe.calls();
    probe.script().stalled.clear();
    write(&mut machine, A, 0, 0x20, &[1]);

    let counters = machine.attachment_counters(F, A).unwrap();

    assert_eq!(refused, []);
    assert_eq!(probe.calls(), [Call::Write(A, Address { bar: 0, offset: 0x20 }, vec![1])]);
    assert_eq!((counters.stalls, counters.trapped_writes), (1, 1));
}

#[test]
fn trapped_accesses_are_counted() {
    let (mut machine, _) = attached();

    read::<4>(&mut machine, A, 0, 0);
    write(&mut machine, A, 0, 0, &[1; 4]);
    write(&mut machine, A, 1, WINDOWS, &[1; 4]);
    write_control(&mut machine, A, control::WAKE, 1);

    let counters = machine.attachment_counters(F, A).unwrap();

    assert_eq!((counters.trapped_reads, counters.trapped_writes, counters.wakes), (1, 3, 1));
}
