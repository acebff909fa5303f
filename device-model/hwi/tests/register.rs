//! Tests of declared registers: where they are found, and how values are shown.
#![allow(clippy::unwrap_used, reason = "tests")]

use nicforge_hwi::register::{Access, Field, Register, find, joined, show};
use proptest::prelude::*;

/// Registers of an Ethernet card: the device control, an array, and two that follow each other.
static CARD: &[Register] = &[
    Register::rw32("CTRL", 0, 0x0000).fields(&[
        Field::bit("RST", 26),
        Field::bits("SPEED", 7, 6).values(&[(0, "10 Mb/s"), (1, "100 Mb/s"), (2, "1000 Mb/s")]),
        Field::bits("RATE", 11, 8),
        Field::bit("DUPLEX", 0).values(&[(0, "half"), (1, "full")]),
    ]),
    Register::rw32("RAL", 0, 0x5400).array(16, 8),
    Register::rw32("RAH", 0, 0x5404).array(16, 8).fields(&[Field::bit("AV", 31)]),
    Register::wo64("TDT", 0, 0x3818),
    Register::ro8("STATE", 0, 0x3820),
    Register::rw16("PORT", 2, 0x3818),
];

fn shown(bar: u8, offset: u64, data: &[u8]) -> String {
    show(CARD, bar, offset, data).to_string()
}

#[test]
fn value_is_shown_by_name_and_field() {
    let control = |value: u32| shown(0, 0, &value.to_le_bytes());

    assert_eq!(control(0x0400_0080), "CTRL 0x04000080 RST SPEED=1000 Mb/s DUPLEX=half");
    assert_eq!(control(0x0000_0ac1), "CTRL 0x00000ac1 SPEED=0x3 RATE=0xa DUPLEX=full");
    assert_eq!(shown(0, 0x3818, &[1, 0, 0, 0, 0, 0, 0, 0x80]), "TDT 0x8000000000000001");
    assert_eq!(shown(0, 0x3820, &[7]), "STATE 0x07");
    assert_eq!(shown(2, 0x3818, &[7, 0]), "PORT 0x0007");
}

#[test]
fn register_of_an_array_has_its_index() {
    assert_eq!(shown(0, 0x5478, &[1, 2, 3, 4]), "RAL[15] 0x04030201");
    assert_eq!(shown(0, 0x5404, &[0, 0, 0, 0x80]), "RAH[0] 0x80000000 AV");
    assert!(find(CARD, 0, 0x5480).is_none());
}

#[test]
fn part_of_a_register_has_its_byte_and_no_fields() {
    assert_eq!(shown(0, 2, &[0, 4]), "CTRL+2 0x0400");
    assert_eq!(shown(0, 0, &[1]), "CTRL+0 0x01");
    assert_eq!(find(CARD, 0, 0x540f).unwrap().to_string(), "RAH[1]+3");
}

#[test]
fn access_of_several_registers_shows_each() {
    let data = [1, 0, 0, 0, 2, 0, 0, 0x80, 3, 0, 0, 0];
    assert_eq!(shown(0, 0x5400, &data), "RAL[0] 0x00000001, RAH[0] 0x80000002 AV, RAL[1] 0x00000003");
    // The second half of one register, a whole one, and bytes of none.
    let data = [1, 0, 0, 0, 2, 9, 9];
    assert_eq!(shown(0, 0x381c, &data), "TDT+4 0x00000001, STATE 0x02, BAR0+0x3821 0x0909");
}

#[test]
fn bytes_without_a_register_are_shown_by_their_offset() {
    assert_eq!(shown(0, 0x1234, &[0xcd, 0xab]), "BAR0+0x1234 0xabcd");
    assert_eq!(shown(1, 0, &[1; 4]), "BAR1+0x0 0x01010101");
    // They end where the next register begins.
    assert_eq!(shown(0, 0x3816, &[1, 2, 3]), "BAR0+0x3816 0x0201, TDT+0 0x03");
    assert_eq!(shown(1, u64::MAX, &[1, 2]), "BAR1+0xffffffffffffffff 0x0201");
    assert_eq!(shown(0, 0, &[]), "");
}

#[test]
fn long_data_is_cut() {
    let expected = "BAR3+0x0 0x0101010101010101, BAR3+0x8 0x0101010101010101, \
                    BAR3+0x10 0x0101010101010101, BAR3+0x18 0x0101010101010101, and 480 bytes";
    assert_eq!(shown(3, 0, &[1; 512]), expected);
}

#[test]
fn tables_are_joined_in_order() {
    let all: [Register; 7] = joined(&[CARD, &[], &[Register::ro8("LAST", 5, 0)]]);

    assert_eq!((&all[..6], all[6].name), (CARD, "LAST"));
}

#[test]
fn field_of_a_mask_has_its_bits() {
    let field = Field::mask("F", 0x0ff0);
    assert_eq!((field.high, field.low, field.maximum(), field.of(0x1234)), (11, 4, 0xff, 0x23));

    let whole = Field::mask("F", u64::MAX);
    assert_eq!((whole.high, whole.low, whole.maximum(), whole.of(7)), (63, 0, u64::MAX, 7));
    for gap in [0, 0b101, 1 << 63 | 1] {
        assert!(std::panic::catch_unwind(|| Field::mask("F", gap)).is_err(), "{gap:#x}");
    }
}

#[test]
fn accesses_have_abbreviations_and_some_have_a_value() {
    use Access::*;
    let all = [ReadWrite, ReadOnly, WriteOnly, ReadClears, WriteOneClears, Fifo, Strobe];

    assert_eq!(all.map(Access::name), ["rw", "ro", "wo", "rc", "w1c", "fifo", "strobe"]);
    let with_value = all.into_iter().filter(|access| access.has_value());
    assert!(with_value.eq([ReadWrite, ReadOnly, ReadClears, WriteOneClears]));
}

/// Returns any declaration, also one that a machine refuses.
fn any_register() -> impl Strategy<Value = Register> {
    let small = 0..0x40_u64;
    let offset = prop_oneof![small.clone(), any::<u64>()];
    let stride = prop_oneof![small, any::<u64>()];
    let field = (any::<u8>(), any::<u8>()).prop_map(|(high, low)| {
        let fields: &'static [Field] = vec![Field { name: "F", high, low, values: &[(0, "none")] }].leak();
        fields
    });
    (0..2_u8, offset, any::<u8>(), 0..4_u32, stride, field).prop_map(
        |(bar, offset, width, count, stride, fields)| Register {
            width,
            ..Register::rw8("R", bar, offset).array(count, stride).fields(fields)
        },
    )
}

proptest! {
    #[test]
    fn each_byte_of_a_valid_register_is_found_and_no_other(
        offset in 0..0x100_u64, width in 1..=8_u8, count in 1..5_u32, gap in 0..8_u64, at in 0..0x200_u64,
    ) {
        let register = Register {
            width,
            ..Register::rw8("R", 0, offset).array(count, u64::from(width) + gap)
        };

        let expected = (0..count)
            .flat_map(|index| (0..width).map(move |byte| (index, byte)))
            .find(|&(index, byte)| register.offset_of(index) + u64::from(byte) == at);
        let found = find(std::slice::from_ref(&register), 0, at);
        prop_assert_eq!(found.map(|found| (found.index, found.byte)), expected);
        prop_assert_eq!(register.end(), Some(register.offset_of(count - 1) + u64::from(width)));
    }

    #[test]
    fn any_declaration_shows_any_access(
        registers in proptest::collection::vec(any_register(), 0..4),
        bar in 0..2_u8,
        offset in prop_oneof![0..0x40_u64, any::<u64>()],
        data in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let text = show(&registers, bar, offset, &data).to_string();
        prop_assert_eq!(text.is_empty(), data.is_empty());
        for register in &registers {
            let _ = register.end();
        }
    }

    #[test]
    fn fields_make_up_the_value(value in any::<u64>(), split in 1..63_u8) {
        let (low, high) = (Field::bits("L", split - 1, 0), Field::bits("H", 63, split));
        prop_assert_eq!(high.of(value) << split | low.of(value), value);
        prop_assert!(low.of(value) <= low.maximum() && high.of(value) <= high.maximum());
    }
}
