//! Reproducible inputs for the tests, and the first inputs of a fuzzer.

use crate::Body;

/// A sequence of 64-bit numbers (Steele, Lea, Flood: *SplitMix*).
struct Numbers(u64);

impl Numbers {
    /// Returns the next number.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns 0 to `longest` bytes.
    fn bytes(&mut self, longest: usize) -> Vec<u8> {
        let length = self.next() as usize % (longest + 1);
        let words = (0..length.div_ceil(8)).flat_map(|_| self.next().to_le_bytes());
        words.take(length).collect()
    }
}

/// Returns the inputs of a body's test, of 0 to [`Body::longest`] bytes each.
pub fn inputs(body: Body) -> impl Iterator<Item = Vec<u8>> {
    let mut numbers = Numbers(2005);
    (0..body.cases).map(move |_| numbers.bytes(body.longest))
}
