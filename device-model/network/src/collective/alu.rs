//! Operations on operands.

use std::ops::BitOrAssign;

/// An operation of the ALU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Bitwise OR.
    Or,
    /// Bitwise AND.
    And,
    /// Bitwise exclusive OR.
    Xor,
    /// The lesser operand.
    Min,
    /// The greater operand.
    Max,
    /// The sum.
    Add,
}

/// Numbers that operands represent. Bitwise operations ignore them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Number {
    /// Unsigned integers.
    Unsigned,
    /// Integers in two's complement.
    Signed,
    /// IEEE 754 double-precision numbers of 8 bytes.
    Float,
}

/// Order of the bytes of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// The most significant byte first.
    Big,
    /// The least significant byte first.
    Little,
}

/// The kind of the operands of a packet, whose content is an array of them.
///
/// If the content does not hold a whole number of operands, the bytes that are left at its end are
/// a shorter operand. With floating-point numbers, they are not combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Kind of number.
    pub number: Number,
    /// Bytes of an operand, at least 1. Floating-point numbers have 8.
    pub bytes: u16,
    /// Order of its bytes.
    pub order: ByteOrder,
}

impl Operand {
    /// A floating-point number in the order of the machine's own bytes.
    pub const FLOAT: Self = Self { number: Number::Float, bytes: 8, order: ByteOrder::Little };

    /// Returns a number of 8 bytes, which are in this operand's order.
    #[inline]
    fn load(self, bytes: [u8; 8]) -> u64 {
        match self.order {
            ByteOrder::Big => u64::from_be_bytes(bytes),
            ByteOrder::Little => u64::from_le_bytes(bytes),
        }
    }

    /// Returns the 8 bytes of a number in this operand's order.
    #[inline]
    fn store(self, number: u64) -> [u8; 8] {
        match self.order {
            ByteOrder::Big => number.to_be_bytes(),
            ByteOrder::Little => number.to_le_bytes(),
        }
    }
}

/// Exceptions of a collective operation. They travel with the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags {
    /// A result is not a number.
    pub not_a_number: bool,
    /// An integer sum did not fit, or a sum of finite numbers is infinite.
    pub overflow: bool,
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Self) {
        self.not_a_number |= other.not_a_number;
        self.overflow |= other.overflow;
    }
}

/// The bits of every floating-point result that is not a number: the quiet NaN of IEEE 754. Without
/// this constant, the bits would depend on the processor.
const NOT_A_NUMBER: u64 = 0x7ff8_0000_0000_0000;

/// Combines the operands of `other` into those of `result`. If the lengths differ, the bytes of the
/// longer one that the other lacks are left out. Returns the exceptions.
pub fn combine(operation: Operation, operand: Operand, result: &mut [u8], other: &[u8]) -> Flags {
    match (operation, operand.number) {
        (Operation::Or, _) => bitwise(result, other, |a, b| a | b),
        (Operation::And, _) => bitwise(result, other, |a, b| a & b),
        (Operation::Xor, _) => bitwise(result, other, |a, b| a ^ b),
        (_, Number::Float) => floats(operation, operand, result, other),
        (_, Number::Unsigned | Number::Signed) => integers(operation, operand, result, other),
    }
}

/// Applies `operation` to each pair of bytes.
fn bitwise(result: &mut [u8], other: &[u8], operation: impl Fn(u8, u8) -> u8) -> Flags {
    for (a, b) in result.iter_mut().zip(other) {
        *a = operation(*a, *b);
    }
    Flags::default()
}

/// Combines floating-point numbers. A result that is not a number and a sum of finite numbers that
/// is infinite are exceptions.
fn floats(operation: Operation, operand: Operand, result: &mut [u8], other: &[u8]) -> Flags {
    let mut flags = Flags::default();
    for (a, b) in result.as_chunks_mut::<8>().0.iter_mut().zip(other.as_chunks::<8>().0) {
        let (left, right) = (f64::from_bits(operand.load(*a)), f64::from_bits(operand.load(*b)));
        let combined = match operation {
            _ if left.is_nan() || right.is_nan() => f64::NAN,
            Operation::Min => {
                if right < left {
                    right
                } else {
                    left
                }
            }
            Operation::Max => {
                if right > left {
                    right
                } else {
                    left
                }
            }
            _ => left + right,
        };

        let bits = if combined.is_nan() { NOT_A_NUMBER } else { combined.to_bits() };
        flags.not_a_number |= combined.is_nan();
        flags.overflow |= combined.is_infinite() && left.is_finite() && right.is_finite();
        *a = operand.store(bits);
    }
    flags
}

/// Combines integers of any length. A sum that does not fit is an exception.
fn integers(operation: Operation, operand: Operand, result: &mut [u8], other: &[u8]) -> Flags {
    let size = usize::from(operand.bytes.max(1));
    let is_signed = operand.number == Number::Signed;
    let length = result.len().min(other.len());

    let mut flags = Flags::default();
    let pairs = result[..length].chunks_mut(size).zip(other[..length].chunks(size));
    for (a, b) in pairs {
        match operation {
            Operation::Add => flags.overflow |= add(operand.order, is_signed, a, b),
            // The minimum or the maximum.
            _ => {
                let is_b_less = is_less(operand.order, is_signed, b, a);
                if is_b_less == (operation == Operation::Min) {
                    a.copy_from_slice(b);
                }
            }
        }
    }
    flags
}

/// Adds an integer of the same length to `a`, byte by byte. Returns whether the sum does not fit.
fn add(order: ByteOrder, is_signed: bool, a: &mut [u8], b: &[u8]) -> bool {
    let top = most_significant(order, a.len());
    let (sign_of_a, sign_of_b) = (a[top] >> 7, b[top] >> 7);

    let mut carry = 0;
    for index in 0..a.len() {
        let at = if order == ByteOrder::Little { index } else { a.len() - 1 - index };
        let sum = u16::from(a[at]) + u16::from(b[at]) + carry;
        a[at] = sum as u8;
        carry = sum >> 8;
    }

    // A signed sum does not fit if its sign is not that of both operands.
    if is_signed { sign_of_a == sign_of_b && a[top] >> 7 != sign_of_a } else { carry != 0 }
}

/// Returns whether `a` is less than `b`, an integer of the same length.
fn is_less(order: ByteOrder, is_signed: bool, a: &[u8], b: &[u8]) -> bool {
    let top = most_significant(order, a.len());
    // With the sign bit inverted, signed bytes are in the order of unsigned ones.
    let sign_bit = if is_signed { 0x80 } else { 0 };
    let (top_of_a, top_of_b) = (a[top] ^ sign_bit, b[top] ^ sign_bit);

    // The other bytes, from the most significant one. With equal top bytes, a comparison of all
    // bytes has the same result.
    let below = match order {
        ByteOrder::Big => a.iter().cmp(b),
        ByteOrder::Little => a[..top].iter().rev().cmp(b[..top].iter().rev()),
    };
    if top_of_a == top_of_b { below.is_lt() } else { top_of_a < top_of_b }
}

/// Returns the index of the most significant byte of an integer of `length` bytes.
fn most_significant(order: ByteOrder, length: usize) -> usize {
    match order {
        ByteOrder::Big => 0,
        ByteOrder::Little => length - 1,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(number: i128, size: usize, order: ByteOrder) -> Vec<u8> {
        match order {
            ByteOrder::Little => number.to_le_bytes()[..size].to_vec(),
            ByteOrder::Big => number.to_be_bytes()[16 - size..].to_vec(),
        }
    }

    /// Returns the result of combining two integers, and whether it overflowed.
    fn combined(
        operation: Operation,
        number: Number,
        size: usize,
        order: ByteOrder,
        a: i128,
        b: i128,
    ) -> (Vec<u8>, bool) {
        let operand = Operand { number, bytes: size as u16, order };
        let mut result = bytes(a, size, order);
        let flags = combine(operation, operand, &mut result, &bytes(b, size, order));
        (result, flags.overflow)
    }

    proptest! {
        #[test]
        fn integers_equal_wide_arithmetic(
            a in any::<i64>(), b in any::<i64>(), size in 1_usize..=8, is_signed in any::<bool>(), is_big in any::<bool>(),
        ) {
            let order = if is_big { ByteOrder::Big } else { ByteOrder::Little };
            let number = if is_signed { Number::Signed } else { Number::Unsigned };
            let bits = 8 * size as u32;
            let narrow = |value: i64| {
                let shifted = i128::from(value) << (128 - bits);
                if is_signed { shifted >> (128 - bits) } else { (shifted as u128 >> (128 - bits)) as i128 }
            };
            let (a, b) = (narrow(a), narrow(b));
            let range = if is_signed { -(1 << (bits - 1))..1 << (bits - 1) } else { 0..1 << bits };

            let run = |operation| combined(operation, number, size, order, a, b);

            prop_assert_eq!(run(Operation::Add), (bytes(a + b, size, order), !range.contains(&(a + b))));
            prop_assert_eq!(run(Operation::Min), (bytes(a.min(b), size, order), false));
            prop_assert_eq!(run(Operation::Max), (bytes(a.max(b), size, order), false));
            prop_assert_eq!(run(Operation::Xor), (bytes(a ^ b, size, order), false));
        }
    }

    #[test]
    fn sums_of_long_integers_carry_through() {
        let operand = Operand { number: Number::Unsigned, bytes: 24, order: ByteOrder::Little };
        let (mut ones, mut one) = ([0xff; 24], [0; 24]);
        one[0] = 1;

        let flags = combine(Operation::Add, operand, &mut ones, &one);

        assert_eq!((ones, flags.overflow), ([0; 24], true));
    }

    #[test]
    fn exceptions_of_floating_point_numbers_are_flagged() {
        let run = |operation, a: f64, b: f64| {
            let mut result = a.to_le_bytes();
            let flags = combine(operation, Operand::FLOAT, &mut result, &b.to_le_bytes());
            (f64::from_le_bytes(result), flags)
        };
        let flags = |not_a_number, overflow| Flags { not_a_number, overflow };

        assert_eq!(run(Operation::Add, 0.5, 0.25), (0.75, flags(false, false)));
        assert_eq!(run(Operation::Add, f64::MAX, f64::MAX), (f64::INFINITY, flags(false, true)));
        assert_eq!(run(Operation::Min, -1.0, 2.0), (-1.0, flags(false, false)));
        assert_eq!(run(Operation::Max, -1.0, 2.0), (2.0, flags(false, false)));

        let (result, set) = run(Operation::Add, f64::INFINITY, f64::NEG_INFINITY);
        assert_eq!((result.to_bits(), set), (NOT_A_NUMBER, flags(true, false)));
        assert_eq!(run(Operation::Max, f64::NAN, 1.0).0.to_bits(), NOT_A_NUMBER);
    }
}
