//! Combining the payloads of collective packets.
//!
//! The payload is an array of operands, unsigned and big-endian; the packet header states their
//! size (Blue Gene/L paper, section 2). Where the payload does not hold a whole number of operands,
//! the rest at its end is an operand of its own.

use nicforge_hwi::tree::{PAYLOAD, opcode};

/// Returns whether an opcode combines. The others (0, and the two that the hardware does not
/// define) only route packets.
#[inline]
pub fn combines(operation: u32) -> bool {
    matches!(operation, opcode::OR | opcode::AND | opcode::XOR | opcode::MAX | opcode::ADD)
}

/// Combines the payload `operand` into `result`. Both are arrays of operands of `size` bytes each
/// (2 to 256, even). An operation that does not combine leaves `result` unchanged.
pub fn combine(operation: u32, size: usize, result: &mut [u8; PAYLOAD], operand: &[u8; PAYLOAD]) {
    match operation {
        opcode::OR => bitwise(result, operand, |a, b| a | b),
        opcode::AND => bitwise(result, operand, |a, b| a & b),
        opcode::XOR => bitwise(result, operand, |a, b| a ^ b),
        opcode::MAX => each(size, result, operand, maximum),
        opcode::ADD => each(size, result, operand, add),
        _ => {}
    }
}

/// Applies `operation` to each pair of bytes.
fn bitwise(result: &mut [u8; PAYLOAD], operand: &[u8; PAYLOAD], operation: impl Fn(u8, u8) -> u8) {
    for (a, b) in result.iter_mut().zip(operand) {
        *a = operation(*a, *b);
    }
}

/// Applies `operation` to each pair of operands of `size` bytes.
fn each(
    size: usize,
    result: &mut [u8; PAYLOAD],
    operand: &[u8; PAYLOAD],
    operation: impl Fn(&mut [u8], &[u8]),
) {
    let size = size.clamp(1, PAYLOAD);
    for (a, b) in result.chunks_mut(size).zip(operand.chunks(size)) {
        operation(a, b);
    }
}

/// Keeps the greater operand. Big-endian numbers of the same length compare as their bytes do.
fn maximum(result: &mut [u8], operand: &[u8]) {
    if *result < *operand {
        result.copy_from_slice(operand);
    }
}

/// Adds from the least significant end, 8 bytes at a time, then the rest byte by byte.
fn add(result: &mut [u8], operand: &[u8]) {
    let mut carry = false;
    // The bytes from here on are added already.
    let mut end = result.len();

    while let (Some(a), Some(b)) = (last_word(result, end), last_word(operand, end)) {
        let (sum, carry_of_sum) = a.overflowing_add(b);
        let (sum, carry_of_carry) = sum.overflowing_add(carry.into());
        carry = carry_of_sum | carry_of_carry;
        result[end - 8..end].copy_from_slice(&sum.to_be_bytes());
        end -= 8;
    }

    for (a, b) in result[..end].iter_mut().zip(&operand[..end]).rev() {
        let sum = u16::from(*a) + u16::from(*b) + u16::from(carry);
        *a = sum as u8;
        carry = sum > 0xff;
    }
}

/// Returns the 8 bytes before `end`.
#[inline]
fn last_word(bytes: &[u8], end: usize) -> Option<u64> {
    bytes.get(..end)?.last_chunk::<8>().map(|word| u64::from_be_bytes(*word))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Generates a payload.
    fn payload() -> impl Strategy<Value = [u8; PAYLOAD]> {
        // Runs of ones and zeros make long carries, which random bytes almost never do.
        let byte = prop_oneof![Just(0u8), Just(0xff), any::<u8>()];
        prop::collection::vec(byte, PAYLOAD).prop_map(|bytes| bytes.try_into().unwrap())
    }

    /// Returns the expected result for one pair of operands, computed byte by byte.
    fn model(operation: u32, a: &[u8], b: &[u8]) -> Vec<u8> {
        match operation {
            opcode::MAX => a.max(b).to_vec(),
            opcode::ADD => {
                let mut carry = 0u32;
                let mut sum = vec![0; a.len()];
                for index in (0..a.len()).rev() {
                    let digit = u32::from(a[index]) + u32::from(b[index]) + carry;
                    sum[index] = (digit % 256) as u8;
                    carry = digit / 256;
                }
                sum
            }
            _ => a
                .iter()
                .zip(b)
                .map(|(a, b)| match operation {
                    opcode::OR => a | b,
                    opcode::AND => a & b,
                    opcode::XOR => a ^ b,
                    _ => *a,
                })
                .collect(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn combine_equals_schoolbook_arithmetic(a in payload(), b in payload(), operation in 0u32..8, words in 1usize..=128) {
            let size = words * 2;
            let mut result = a;

            combine(operation, size, &mut result, &b);

            let expected: Vec<u8> =
                a.chunks(size).zip(b.chunks(size)).flat_map(|(a, b)| model(operation, a, b)).collect();
            prop_assert_eq!(&result[..], &expected[..]);
        }

        #[test]
        fn operands_of_128_bits_equal_u128(a in any::<[u128; 16]>(), b in any::<[u128; 16]>()) {
            let bytes = |numbers: &[u128; 16]| -> [u8; PAYLOAD] {
                numbers.iter().flat_map(|number| number.to_be_bytes()).collect::<Vec<u8>>().try_into().unwrap()
            };
            let (mut sum, mut maximum) = (bytes(&a), bytes(&a));

            combine(opcode::ADD, 16, &mut sum, &bytes(&b));
            combine(opcode::MAX, 16, &mut maximum, &bytes(&b));

            let expect = |f: fn(u128, u128) -> u128| bytes(&std::array::from_fn(|i| f(a[i], b[i])));
            prop_assert_eq!(sum, expect(u128::wrapping_add));
            prop_assert_eq!(maximum, expect(u128::max));
        }

        #[test]
        fn the_order_of_operands_does_not_matter(a in payload(), b in payload(), operation in 0u32..8, words in 1usize..=128) {
            prop_assume!(combines(operation));
            let (mut first, mut second) = (a, b);

            combine(operation, words * 2, &mut first, &b);
            combine(operation, words * 2, &mut second, &a);

            prop_assert_eq!(first, second);
        }
    }

    #[test]
    fn opcode_none_does_not_change_the_result() {
        let mut result = [7; PAYLOAD];

        combine(opcode::NONE, 4, &mut result, &[9; PAYLOAD]);

        assert_eq!(result, [7; PAYLOAD]);
    }

    #[test]
    fn a_carry_out_of_the_operand_is_lost() {
        let mut result = [0xff; PAYLOAD];
        let mut one = [0; PAYLOAD];
        one[3] = 1;

        combine(opcode::ADD, 4, &mut result, &one);

        assert_eq!(&result[..8], &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    }
}
