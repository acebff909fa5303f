//! The check codes of a link (section II.F of the paper).
//!
//! A packet has five Reed-Solomon words of 10 bits that each hop computes anew, and a fixed one
//! that follows the packet through the network. Any five wrong symbols of 10 bits are found, and
//! the packet is sent again. Beside them, sender and receiver have CRCs of all packets that passed.
//! At the end of a run they must be equal; else the codes have missed an error.
//!
//! Memory carries packets between devices without an error. So all of this is computed only where a
//! test or an experiment injects errors: [`noisy_link`] makes the hook of such a link.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU32, Ordering},
    },
};

use crc32fast::Hasher;
use nicforge_core::fabric::{Fault, FaultHook};
use nicforge_hwi::mu_packet::{PacketHeader, channel};
use zerocopy::FromBytes;

/// Bits of a symbol.
const SYMBOL_BITS: u32 = 10;
/// The polynomial of the field of symbols, x^10 + x^3 + 1. The paper does not name it.
const POLYNOMIAL: u16 = 1 << 10 | 1 << 3 | 1;
/// Check words that each hop computes anew.
pub const HOP_WORDS: usize = 5;

/// Returns the symbols of a packet, from the lowest bit of its first byte on. Zeros fill up the
/// last symbol.
fn symbols(bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
    let count = (bytes.len() * 8).div_ceil(SYMBOL_BITS as usize);
    (0..count).map(move |symbol| {
        let (at, shift) = (symbol * SYMBOL_BITS as usize / 8, symbol * SYMBOL_BITS as usize % 8);
        // A symbol of 10 bits lies in two bytes.
        let byte = |at| u16::from(bytes.get(at).copied().unwrap_or(0));
        (byte(at) | byte(at + 1) << 8) >> shift & ((1 << SYMBOL_BITS) - 1)
    })
}

/// Multiplies an element of the field with a power of its generator, which is 2: doubles it `power`
/// times.
fn times_power(element: u16, power: usize) -> u16 {
    (0..power).fold(element, |element, _| {
        let doubled = element << 1;
        doubled ^ if doubled >> SYMBOL_BITS == 1 { POLYNOMIAL } else { 0 }
    })
}

/// Returns a check word: the value of the packet, as a polynomial whose coefficients are its
/// symbols, at a power of the field's generator.
fn check_word(bytes: &[u8], power: usize) -> u16 {
    symbols(bytes).fold(0, |sum, symbol| times_power(sum, power) ^ symbol)
}

/// Returns the words that each hop computes anew.
#[must_use]
pub fn hop_check(bytes: &[u8]) -> [u16; HOP_WORDS] {
    std::array::from_fn(|power| check_word(bytes, power))
}

/// Returns the word that follows a packet through the network.
#[must_use]
pub fn fixed_check(bytes: &[u8]) -> u16 {
    check_word(bytes, HOP_WORDS)
}

/// The CRCs of a link in one direction: `SE_LINK_CRC_*` of its sender, and `RE_LINK_CRC_*` of its
/// receiver. Index 0 has those of users' packets, and 1 those of the system's: in each, first the
/// sender's.
#[derive(Clone, Debug, Default)]
pub struct LinkChecks(Arc<[[AtomicU32; 2]; 2]>);

/// A CRC of the sender, and one of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paired {
    /// Of the packets as they were sent.
    pub sent: u32,
    /// Of the packets as they arrived.
    pub received: u32,
}

impl LinkChecks {
    /// Returns the CRCs of users' packets.
    #[must_use]
    pub fn user(&self) -> Paired {
        self.paired(false)
    }

    /// Returns the CRCs of the system's packets.
    #[must_use]
    pub fn system(&self) -> Paired {
        self.paired(true)
    }

    /// Returns whether sender and receiver agree.
    #[must_use]
    pub fn agree(&self) -> bool {
        [self.user(), self.system()].iter().all(|paired| paired.sent == paired.received)
    }

    /// Returns the CRCs of users' or of the system's packets.
    fn paired(&self, is_system: bool) -> Paired {
        let [sent, received] = &self.0[usize::from(is_system)];
        Paired { sent: sent.load(Ordering::Acquire), received: received.load(Ordering::Acquire) }
    }

    /// Adds a packet that has passed to the CRCs, with its bytes at both ends.
    fn add(&self, is_system: bool, sent: &[u8], received: &[u8]) {
        for (crc, bytes) in self.0[usize::from(is_system)].iter().zip([sent, received]) {
            let mut hasher = Hasher::new_with_initial(crc.load(Ordering::Acquire));
            hasher.update(bytes);
            crc.store(hasher.finalize(), Ordering::Release);
        }
    }
}

/// The end of a link at which a CRC is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Sender,
    Receiver,
}

/// The CRCs of links, by node, port and end.
type ByEnd = BTreeMap<(u32, u8, End), LinkChecks>;

/// The CRCs of a network's links, as far as they are computed. The devices of a network share them,
/// and look them up when a register is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckTable(Arc<RwLock<ByEnd>>);

impl CheckTable {
    /// Sets the CRCs of an end.
    pub(crate) fn set(&self, node: u32, port: u8, end: End, checks: LinkChecks) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert((node, port, end), checks);
    }

    /// Returns the CRC of an end; 0 if none is computed.
    pub(crate) fn crc(&self, node: u32, port: u8, end: End, is_system: bool) -> u32 {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let paired = table.get(&(node, port, end)).map(|checks| checks.paired(is_system));
        match end {
            End::Sender => paired.map_or(0, |paired| paired.sent),
            End::Receiver => paired.map_or(0, |paired| paired.received),
        }
    }
}

/// Returns whether a packet is on a channel of the system.
fn is_system(bytes: &[u8]) -> bool {
    PacketHeader::read_from_prefix(bytes)
        .is_ok_and(|(header, _)| matches!(header.channel(), channel::SYSTEM | channel::SYSTEM_COLLECTIVE))
}

/// Returns the fault hook of a link with errors, and its CRCs: `noise` changes the bytes of a
/// transmission, whose number it gets. An error that the codes find costs another transmission. One
/// that they miss arrives, and the CRCs of sender and receiver differ from then on.
///
/// Of a packet that refers to client memory, the bytes are the header and the reference.
pub fn noisy_link(mut noise: impl FnMut(&mut [u8], u64) + Send + 'static) -> (FaultHook, LinkChecks) {
    let checks = LinkChecks::default();
    let (shared, mut sent) = (checks.clone(), Vec::new());
    let hook: FaultHook = Box::new(move |packet, number| {
        sent.clear();
        sent.extend_from_slice(packet.bytes());
        noise(packet.bytes_mut(), number);

        let received = packet.bytes_mut();
        // Bytes that differ are an error. The codes find it if one of them differs, too.
        let is_found = *received != sent[..]
            && (hop_check(received) != hop_check(&sent) || fixed_check(received) != fixed_check(&sent));
        if is_found {
            received.copy_from_slice(&sent);
            return Fault::Corrupt;
        }

        shared.add(is_system(&sent), &sent, received);
        Fault::None
    });
    (hook, checks)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Changes the bits of a symbol.
    fn disturb(bytes: &mut [u8], symbol: usize, error: u16) {
        let (at, shift) = (symbol * SYMBOL_BITS as usize / 8, symbol * SYMBOL_BITS as usize % 8);
        let wide = error << shift;
        bytes[at] ^= wide as u8;
        bytes[at + 1] ^= (wide >> 8) as u8;
    }

    #[test]
    fn generator_has_all_powers() {
        let mut power = 1;
        for exponent in 1..1023 {
            power = times_power(power, 1);
            assert_ne!(power, 1, "{exponent}");
        }
        assert_eq!(times_power(power, 1), 1);
    }

    proptest! {
        /// Errors in up to five symbols are always found, by the words of a hop alone.
        #[test]
        fn five_wrong_symbols_are_found(
            bytes in proptest::collection::vec(any::<u8>(), 32..=544),
            errors in proptest::collection::vec((any::<prop::sample::Index>(), 1_u16..1 << 10), 1..=5),
        ) {
            let mut wrong = bytes.clone();
            let mut places = std::collections::BTreeSet::new();
            for (place, error) in errors {
                // The last symbol may have bits after the packet.
                let symbol = place.index(bytes.len() * 8 / SYMBOL_BITS as usize - 1);
                if places.insert(symbol) {
                    disturb(&mut wrong, symbol, error);
                }
            }
            prop_assert_ne!(hop_check(&wrong), hop_check(&bytes));
        }
    }
}
