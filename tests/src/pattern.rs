//! Contents of messages and buffers.

/// Returns `bytes` bytes that depend on the seed and on their position. No word of 8 bytes is the
/// same as another one of the buffer, so that misplaced data are detected. The start of the bytes
/// does not depend on their number.
///
/// Bodies check megabytes also in guests that an emulated processor runs, so that a whole word is
/// made at a time.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = seed.wrapping_mul(0xd6e8_feb8_6659_fd93);
    let mut data = Vec::with_capacity(bytes.next_multiple_of(8));

    while data.len() < bytes {
        state = state.wrapping_add(STEP);
        data.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }

    data.truncate(bytes);
    data
}
