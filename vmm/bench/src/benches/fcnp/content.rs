//! The contents of the messages, by which a wrong message is detected.
//!
//! A message begins with its number and ends with the number's complement. Both are written and
//! checked in each message at little cost. The bytes between them are a pattern. The pattern is
//! checked in the first message of a measurement, before the clock starts.

use nicforge::failure::Failure;

/// Bytes of a number.
const NUMBER_BYTES: usize = 8;

/// Returns a buffer with the pattern. `bytes` must be at least 16.
pub(super) fn message(bytes: usize) -> Vec<u8> {
    (0..bytes).map(pattern_byte).collect()
}

/// Returns the byte of the pattern at an offset. Neighbouring bytes differ.
fn pattern_byte(offset: usize) -> u8 {
    // The multiplier is 2^32 divided by the golden ratio, which spreads successive offsets.
    const MULTIPLIER: u32 = 0x9e37_79b1;
    (offset as u32).wrapping_mul(MULTIPLIER).to_be_bytes()[0]
}

/// Writes the number of a message into it: at its start, and the complement at its end.
pub(super) fn stamp(message: &mut [u8], number: u64) {
    if let Some(start) = message.first_chunk_mut() {
        *start = number.to_le_bytes();
    }
    if let Some(end) = message.last_chunk_mut() {
        *end = (!number).to_le_bytes();
    }
}

/// Checks that `message` is message `number` of its flow.
pub(super) fn check_number(message: &[u8], number: u64) -> Result<(), Failure> {
    let start = message.first_chunk().copied().map(u64::from_le_bytes);
    let end = message.last_chunk().copied().map(u64::from_le_bytes);
    if start == Some(number) && end == Some(!number) {
        return Ok(());
    }

    Err(Failure::result(format!(
        "message {number} of {} bytes came as {start:#x?}, ending with {end:#x?}",
        message.len()
    )))
}

/// Checks the pattern between both numbers.
pub(super) fn check_pattern(message: &[u8]) -> Result<(), Failure> {
    let last = message.len() - NUMBER_BYTES;
    match (NUMBER_BYTES..last).find(|&at| message[at] != pattern_byte(at)) {
        None => Ok(()),
        Some(at) => Err(Failure::result(format!(
            "byte {at} of a message of {} is {:#x} instead of {:#x}",
            message.len(),
            message[at],
            pattern_byte(at)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_passes_only_the_check_of_its_own_number() {
        for bytes in [2 * NUMBER_BYTES, 256, 1000] {
            let mut data = message(bytes);
            stamp(&mut data, 7);
            assert!(check_number(&data, 7).is_ok() && check_pattern(&data).is_ok());
            assert!(check_number(&data, 8).is_err());
        }
    }

    #[test]
    fn a_wrong_byte_anywhere_is_noticed() {
        for at in 0..300 {
            let mut data = message(300);
            stamp(&mut data, 0);
            data[at] ^= 1;
            assert!(check_number(&data, 0).is_err() || check_pattern(&data).is_err(), "{at}");
        }
    }
}
