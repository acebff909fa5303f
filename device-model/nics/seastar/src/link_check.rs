//! The check of a link: 16 bits of redundancy for each packet, which is sent again when they do not
//! fit (section *SeaStar hardware* of the paper).
//!
//! Memory carries packets between devices without an error. So the check is computed only where a
//! test or an experiment injects errors: [`noisy_link`] makes the hook of such a link.

use nicforge_core::fabric::{Fault, FaultHook};

/// The generator polynomial without its highest bit: that of CCITT. The paper does not name it.
const POLYNOMIAL: u16 = 0x1021;

/// Returns the CRC-16 of a packet's bytes (the polynomial of CCITT, initial value 0xffff).
#[must_use]
pub fn link_check(bytes: &[u8]) -> u16 {
    bytes.iter().fold(u16::MAX, |check, byte| {
        (0..8).fold(check ^ u16::from(*byte) << 8, |check, _| {
            let divides = check & 0x8000 != 0;
            check << 1 ^ if divides { POLYNOMIAL } else { 0 }
        })
    })
}

/// Returns the fault hook of a link with errors. `noise` changes the bytes of a transmission; its
/// second argument is the transmission's number.
///
/// An error that the link check finds costs another transmission. A packet with an error that it
/// misses arrives, and only the end-to-end check of its message can find the error.
pub fn noisy_link(mut noise: impl FnMut(&mut [u8], u64) + Send + 'static) -> FaultHook {
    let mut sent = Vec::new();
    Box::new(move |packet, number| {
        sent.clear();
        sent.extend_from_slice(packet.bytes());
        noise(packet.bytes_mut(), number);

        if link_check(packet.bytes()) == link_check(&sent) {
            return Fault::None;
        }
        // The link repeats the packet as it was sent.
        packet.bytes_mut().copy_from_slice(&sent);
        Fault::Corrupt
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn link_check_is_the_crc_16_of_ccitt() {
        // The value that catalogues of checks give for these digits.
        assert_eq!(link_check(b"123456789"), 0x29b1);
        assert_eq!(link_check(b""), 0xffff);
    }

    proptest! {
        /// Errors of up to 16 bits in a row are always found.
        #[test]
        fn bursts_of_16_bits_are_found(
            bytes in proptest::collection::vec(any::<u8>(), 3..=128),
            error in 1..=u16::MAX,
            place in any::<prop::sample::Index>(),
            shift in 0u32..8,
        ) {
            let mut wrong = bytes.clone();
            let at = place.index(bytes.len() - 2);
            for (byte, bits) in wrong[at..].iter_mut().zip(&(u32::from(error) << shift).to_be_bytes()[1..]) {
                *byte ^= bits;
            }
            prop_assert_ne!(link_check(&wrong), link_check(&bytes));
        }
    }
}
