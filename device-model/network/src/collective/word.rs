//! The header word of a collective packet.

use super::{ByteOrder, CLASSES, Flags, Number, Operand, Operation};

/// The kind of a collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One node's packet reaches all members. It is not combined.
    Broadcast,
    /// The combination of all members' packets reaches one member.
    Reduce,
    /// The combination of all members' packets reaches all members.
    Allreduce,
}

/// The header word of a collective packet, in [`nicforge_core::fabric::Contents::header`].
///
/// | bits | contents |
/// | --- | --- |
/// | 0 to 3 | class |
/// | 4, 5 | kind: 0 broadcast, 1 reduce, 2 allreduce |
/// | 6 to 8 | operation: OR, AND, XOR, min, max, add |
/// | 9, 10 | number: 0 unsigned, 1 signed, 2 floating point |
/// | 11 | bytes of an operand: 0 big-endian, 1 little-endian |
/// | 12 to 21 | bytes of an operand, 1 to 1023 |
/// | 22 to 38 | node that gets the result of a reduce |
/// | 39 | the packet is on its way down |
/// | 40, 41 | exceptions: not a number, overflow |
/// | 42 to 63 | zero |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CollectiveWord {
    /// Number of the class, 0 to 15.
    pub class: u8,
    /// Kind of the operation.
    pub kind: Kind,
    /// Operation of the ALU. A broadcast has one that is not used.
    pub operation: Operation,
    /// Operands of the content.
    pub operand: Operand,
    /// Node that gets the result of [`Kind::Reduce`].
    pub target: u32,
    /// Exceptions so far.
    pub flags: Flags,
    /// Whether the packet is on its way down. Contributions are not.
    pub is_down: bool,
}

// Positions of the lowest bits of the fields.
const KIND_SHIFT: u32 = 4;
const OPERATION_SHIFT: u32 = 6;
const NUMBER_SHIFT: u32 = 9;
const LITTLE_SHIFT: u32 = 11;
const BYTES_SHIFT: u32 = 12;
const TARGET_SHIFT: u32 = 22;
const DOWN_SHIFT: u32 = 39;
const NAN_SHIFT: u32 = 40;
const OVERFLOW_SHIFT: u32 = 41;
/// The first of the bits that must be zero.
const RESERVED_SHIFT: u32 = 42;
// Widths of the longer fields.
const CLASS_BITS: u32 = 4;
const BYTES_BITS: u32 = 10;
const TARGET_BITS: u32 = 17;

impl CollectiveWord {
    /// Returns the word of a contribution to an allreduce.
    pub const fn allreduce(class: u8, operation: Operation, operand: Operand) -> Self {
        let flags = Flags { not_a_number: false, overflow: false };
        Self { class, kind: Kind::Allreduce, operation, operand, target: 0, flags, is_down: false }
    }

    /// Returns the bits. Values that are too large for their field lose their upper bits.
    pub fn bits(self) -> u64 {
        let kind = match self.kind {
            Kind::Broadcast => 0,
            Kind::Reduce => 1,
            Kind::Allreduce => 2,
        };
        let operation = match self.operation {
            Operation::Or => 0,
            Operation::And => 1,
            Operation::Xor => 2,
            Operation::Min => 3,
            Operation::Max => 4,
            Operation::Add => 5,
        };
        let number = match self.operand.number {
            Number::Unsigned => 0,
            Number::Signed => 1,
            Number::Float => 2,
        };

        (u64::from(self.class) % CLASSES as u64)
            | (kind << KIND_SHIFT)
            | operation << OPERATION_SHIFT
            | number << NUMBER_SHIFT
            | u64::from(self.operand.order == ByteOrder::Little) << LITTLE_SHIFT
            | u64::from(self.operand.bytes & ((1 << BYTES_BITS) - 1)) << BYTES_SHIFT
            | u64::from(self.target & ((1 << TARGET_BITS) - 1)) << TARGET_SHIFT
            | u64::from(self.is_down) << DOWN_SHIFT
            | u64::from(self.flags.not_a_number) << NAN_SHIFT
            | u64::from(self.flags.overflow) << OVERFLOW_SHIFT
    }

    /// Returns the word with these bits, or `None` if a field has a value without a meaning.
    pub fn from_bits(bits: u64) -> Option<Self> {
        let field = |first: u32, width: u32| bits >> first & ((1 << width) - 1);
        if bits >> RESERVED_SHIFT != 0 {
            return None;
        }

        let kind = match field(KIND_SHIFT, 2) {
            0 => Kind::Broadcast,
            1 => Kind::Reduce,
            2 => Kind::Allreduce,
            _ => return None,
        };
        let operation = match field(OPERATION_SHIFT, 3) {
            0 => Operation::Or,
            1 => Operation::And,
            2 => Operation::Xor,
            3 => Operation::Min,
            4 => Operation::Max,
            5 => Operation::Add,
            _ => return None,
        };
        let operand = operand(
            field(NUMBER_SHIFT, 2),
            field(BYTES_SHIFT, BYTES_BITS) as u16,
            field(LITTLE_SHIFT, 1) == 1,
        )?;

        Some(Self {
            class: field(0, CLASS_BITS) as u8,
            kind,
            operation,
            operand,
            target: field(TARGET_SHIFT, TARGET_BITS) as u32,
            flags: Flags { not_a_number: field(NAN_SHIFT, 1) == 1, overflow: field(OVERFLOW_SHIFT, 1) == 1 },
            is_down: field(DOWN_SHIFT, 1) == 1,
        })
    }
}

/// Returns the operands that the fields of a word describe, or `None` if there are none such.
fn operand(number: u64, bytes: u16, is_little: bool) -> Option<Operand> {
    let number = match number {
        0 => Number::Unsigned,
        1 => Number::Signed,
        2 => Number::Float,
        _ => return None,
    };
    if bytes == 0 || number == Number::Float && bytes != 8 {
        return None;
    }

    let order = if is_little { ByteOrder::Little } else { ByteOrder::Big };
    Some(Operand { number, bytes, order })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_survives_its_bits() {
        let word = CollectiveWord {
            class: 11,
            kind: Kind::Reduce,
            operation: Operation::Max,
            operand: Operand { number: Number::Signed, bytes: 256, order: ByteOrder::Big },
            target: 98_304,
            flags: Flags { not_a_number: true, overflow: true },
            is_down: true,
        };

        assert_eq!(CollectiveWord::from_bits(word.bits()), Some(word));
    }

    #[test]
    fn bits_that_are_no_word_are_refused() {
        let word = CollectiveWord::allreduce(3, Operation::Add, Operand::FLOAT).bits();

        assert!(CollectiveWord::from_bits(word).is_some());
        for wrong in [
            word | 1 << 42,
            word | 3 << KIND_SHIFT,
            word | 7 << OPERATION_SHIFT,
            word & !(0x3ff << BYTES_SHIFT),
        ] {
            assert_eq!(CollectiveWord::from_bits(wrong), None, "{wrong:#x}");
        }
    }
}
