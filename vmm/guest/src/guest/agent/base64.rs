//! Base64, in which scripts go to the agent.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes base64 (RFC 4648) with padding, in one line.
pub(super) fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        // Up to three bytes are the upper part of 24 bits, which four digits of 6 bits stand for.
        let word =
            chunk.iter().fold(0_u32, |word, &byte| (word << 8) | u32::from(byte)) << (8 * (3 - chunk.len()));
        for position in 0..4 {
            let digit = (word >> (18 - 6 * position)) & 63;
            text.push(if position <= chunk.len() { char::from(ALPHABET[digit as usize]) } else { '=' });
        }
    }

    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (plain, coded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }
}
