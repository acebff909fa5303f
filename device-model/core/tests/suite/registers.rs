//! Tests of declared registers: which are refused, and what a peek shows.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use nicforge_core::{
    context::Context,
    device::{Device, Reset, Write},
    fabric::Ports,
    ids::{Address, AttachmentId},
    machine::{Access, Machine, RingState},
    register::{Field, Register, find},
    spec::{FunctionSpec, RegisterRule, SpecError},
};
use nicforge_hwi::attachment::mirror;

use crate::common::{
    A, B, CONTROL, F, GENERATION, MSIX_TABLE, RING_CELLS, Ring, WINDOWS, attach, read, spec, write,
};

/// A device with one register in trapped space, which counts its reads.
struct Counting {
    registers: &'static [Register],
    reads: u32,
}

/// The register of [`Counting`].
const READS: u64 = 0x10;

impl Device for Counting {
    fn spec(&self) -> FunctionSpec {
        spec()
    }

    fn registers(&self) -> &'static [Register] {
        self.registers
    }

    fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        self.peek(&context.ports(), from, at, data);
        self.reads += 1;
    }

    fn peek(&self, _: &Ports<'_>, _: AttachmentId, at: Address, data: &mut [u8]) -> bool {
        if at.offset == READS {
            data.copy_from_slice(&self.reads.to_le_bytes()[..data.len()]);
        }
        at.offset == READS
    }

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Stalled
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {}
}

/// Returns a machine of one device with these declarations.
fn machine_with(registers: &'static [Register]) -> Result<Machine, SpecError> {
    let mut machine = Machine::new();
    machine.add_function("node0", Box::new(Counting { registers, reads: 0 }))?;
    Ok(machine)
}

/// Returns the rule that the second one of two declarations breaks.
#[track_caller]
fn rule_of(first: Register, second: Register) -> RegisterRule {
    let Err(error) = machine_with(vec![first, second].leak()) else { panic!("{second:?} is accepted") };
    let SpecError::Register { name, rule } = error else { panic!("{error}") };
    assert_eq!(name, second.name);
    rule
}

/// A declaration that no other one disturbs.
const APART: Register = Register::rw32("APART", 0, 0xffc);

#[test]
fn declared_registers_are_kept_and_found() {
    static REGISTERS: &[Register] = &[
        Register::rw32("FIRST", 0, 0),
        Register::rw64("WIDE", 0, 8).fields(&[Field::bit("ON", 63), Field::bits("LEVEL", 7, 0)]),
        // Two arrays that interleave.
        Register::rw32("LOW", 0, 0x100).array(8, 16),
        Register::rw32("HIGH", 0, 0x108).array(8, 16),
        Register::rw64("WINDOW", 1, WINDOWS),
    ];
    let machine = machine_with(REGISTERS).unwrap();

    assert_eq!(machine.registers(F), REGISTERS);
    assert_eq!(find(machine.registers(F), 0, 0x118).unwrap().to_string(), "HIGH[1]");
    assert!(machine.registers(nicforge_core::ids::FunctionId(7)).is_empty());
}

#[test]
fn a_register_has_a_name_of_its_own() {
    for name in ["", "A B", "Ä", "A\n"] {
        assert_eq!(rule_of(APART, Register::rw32(name, 0, 0)), RegisterRule::Name, "{name:?}");
    }
    assert_eq!(rule_of(APART, Register::rw32("APART", 0, 0)), RegisterRule::SameName);
}

#[test]
fn a_register_is_aligned_and_as_wide_as_an_access() {
    let of = |register| rule_of(APART, register);
    let three = Register { width: 3, ..Register::rw32("A", 0, 0) };

    assert_eq!(of(three), RegisterRule::Width { width: 3 });
    let misaligned = RegisterRule::Alignment { offset: 4, stride: 8, width: 8 };
    assert_eq!(of(Register::rw64("A", 0, 4)), misaligned);
    let misaligned = RegisterRule::Alignment { offset: 0, stride: 6, width: 4 };
    assert_eq!(of(Register::rw32("A", 0, 0).array(2, 6)), misaligned);
    for (count, stride) in [(0, 4), (2, 2), (1, 0)] {
        let rule = RegisterRule::Array { count, stride, width: 4 };
        assert_eq!(of(Register::rw32("A", 0, 0).array(count, stride)), rule);
    }
}

#[test]
fn a_register_is_in_its_bar_and_not_in_a_page_of_the_core() {
    let of = |register| rule_of(APART, register);

    let size = 0x4000;
    assert_eq!(of(Register::rw32("A", 0, size)), RegisterRule::Outside { bar: 0, end: size + 4, size });
    assert_eq!(of(Register::rw32("A", 5, 0)), RegisterRule::Outside { bar: 5, end: 4, size: 0 });
    assert_eq!(of(Register::rw32("A", 9, 0)), RegisterRule::Outside { bar: 9, end: 4, size: 0 });
    let huge = of(Register::rw32("A", 0, 0).array(u32::MAX, 1 << 62));
    assert_eq!(huge, RegisterRule::Outside { bar: 0, end: u64::MAX, size });

    for offset in [CONTROL, MSIX_TABLE] {
        assert_eq!(of(Register::rw32("A", 0, offset)), RegisterRule::CorePage { bar: 0, offset });
    }
    let across = of(Register::rw32("A", 0, 0).array(3, CONTROL));
    assert_eq!(across, RegisterRule::CorePage { bar: 0, offset: CONTROL });
}

#[test]
fn registers_have_no_byte_in_common() {
    let shared = |offset| RegisterRule::Overlap { other: "FIRST", bar: 0, offset };

    assert_eq!(rule_of(Register::rw32("FIRST", 0, 4), Register::rw64("A", 0, 0)), shared(4));
    let array = Register::rw32("FIRST", 0, 0x100).array(8, 16);
    assert_eq!(rule_of(array, Register::rw16("A", 0, 0x132)), shared(0x132));
    assert_eq!(rule_of(array, Register::rw64("A", 0, 0x108).array(2, 0x28)), shared(0x130));
    // The same offset of another BAR is another place.
    let mut both = vec![array, Register::rw32("A", 1, 0x100)];
    assert!(machine_with(both.clone().leak()).is_ok());
    both[1].bar = 0;
    assert!(machine_with(both.leak()).is_err());
}

#[test]
fn fields_are_in_their_register_and_apart() {
    let of = |fields: &'static [Field]| rule_of(APART, Register::rw16("A", 0, 0).fields(fields));

    let rule = RegisterRule::Field { field: "F", high: 16, low: 3, bits: 16 };
    assert_eq!(of(&[Field { name: "F", high: 16, low: 3, values: &[] }]), rule);
    let rule = RegisterRule::Field { field: "F", high: 3, low: 4, bits: 16 };
    assert_eq!(of(&[Field { name: "F", high: 3, low: 4, values: &[] }]), rule);

    let shared = RegisterRule::Fields { first: "F", second: "G" };
    assert_eq!(of(vec![Field::bits("F", 7, 4), Field::bits("G", 4, 0)].leak()), shared);
    let shared = RegisterRule::Fields { first: "F", second: "F" };
    assert_eq!(of(vec![Field::bit("F", 7), Field::bit("F", 0)].leak()), shared);

    let rule = RegisterRule::Value { field: "F", value: 4, meaning: "four" };
    assert_eq!(of(vec![Field::bits("F", 1, 0).values(&[(3, "three"), (4, "four")])].leak()), rule);
}

#[test]
fn a_refusal_says_the_rule_and_the_values() {
    let error = machine_with(vec![Register::rw32("TDT", 0, 0x4000)].leak()).err().unwrap();

    let expected = "register TDT: it ends at 0x4004 of BAR 0, which has 0x4000 bytes";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_peek_of_a_register_has_no_effect() {
    let mut machine = machine_with(&[]).unwrap();
    let peek = |machine: &mut Machine, offset| {
        let mut data = [0; 4];
        let is_known = machine.peek(F, A, Address { bar: 0, offset }, &mut data);
        is_known.then_some(u32::from_le_bytes(data))
    };

    // Without a client, the device can answer too.
    assert_eq!(peek(&mut machine, READS), Some(0));
    attach(&mut machine, A);
    assert_eq!(read::<4>(&mut machine, A, 0, READS), [0; 4]);
    let counters = machine.attachment_counters(F, A).unwrap();

    assert_eq!((peek(&mut machine, READS), peek(&mut machine, READS)), (Some(1), Some(1)));
    assert_eq!(peek(&mut machine, READS + 4), None);
    assert_eq!(machine.attachment_counters(F, A).unwrap(), counters);
}

#[test]
fn a_peek_shows_memory_and_the_pages_of_the_core() {
    let mut machine = machine_with(&[]).unwrap();
    attach(&mut machine, A);
    write(&mut machine, A, 1, WINDOWS, &[1, 2, 3, 4]);
    let mut peek = |bar, offset, length: usize| {
        let mut data = vec![0; length];
        machine.peek(F, A, Address { bar, offset }, &mut data).then_some(data)
    };

    assert_eq!(peek(1, WINDOWS, 4), Some(vec![1, 2, 3, 4]));
    assert_eq!(peek(2, mirror::MAGIC, 4), Some(mirror::MAGIC_VALUE.to_le_bytes().to_vec()));
    assert_eq!(peek(0, CONTROL + GENERATION, 4), Some(vec![1, 0, 0, 0]));
    assert_eq!(peek(0, MSIX_TABLE + 12, 4), Some(vec![1, 0, 0, 0]));

    // Nothing is beyond a BAR, across spaces, or in memory of an attachment without a client.
    assert_eq!((peek(0, CONTROL - 4, 8), peek(0, u64::MAX, 4), peek(7, 0, 4)), (None, None, None));
    assert!(!machine.peek(F, B, Address { bar: 1, offset: WINDOWS }, &mut [0; 4]));
    assert!(!machine.peek(F, AttachmentId(99), Address { bar: 0, offset: READS }, &mut [0; 4]));
}

#[test]
fn a_peek_leaves_posted_records_in_their_ring() {
    let mut machine = machine_with(&[]).unwrap();
    attach(&mut machine, A);
    let mut ring = Ring::new(&machine, F, A);
    let state = |tail, is_stalled| vec![RingState { cells: RING_CELLS, head: 0, tail, is_stalled }];
    assert_eq!(machine.rings(F, A), state(0, false));

    ring.push32(0, 0, 1);
    // A record of two cells.
    ring.push(0, 0, &[7; 100]).unwrap();
    assert!(machine.peek(F, A, Address { bar: 0, offset: READS }, &mut [0; 4]));
    assert_eq!(machine.rings(F, A), state(3, false));

    // A read drains the ring first, and the device refuses the first record.
    let stalled = machine.read(F, A, 0, READS, &mut [0; 4]).unwrap();
    assert_eq!(stalled, Access::Stalled);
    assert_eq!(machine.rings(F, A), state(3, true));
    assert!(machine.rings(F, B).is_empty() && machine.rings(F, AttachmentId(99)).is_empty());
}
