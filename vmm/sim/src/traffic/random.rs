//! Random numbers of one node.

/// A SplitMix64 generator: a counter of 64 bits, whose values are mixed (Steele, Lea and Flood,
/// 2014).
///
/// Each node has its own, so that a node's numbers do not depend on the order in which nodes run.
/// All functions use integers, or operations on floating-point numbers that have the same result on
/// each machine.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

/// Returns a number with all bits mixed: the last step of SplitMix64.
fn mix(mut number: u64) -> u64 {
    number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

impl Random {
    /// Returns the generator of a node.
    pub(super) fn of_node(seed: u64, node: u32) -> Self {
        Self(mix(seed) ^ mix(u64::from(node) + 1).rotate_left(32))
    }

    /// Returns the next number.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `limit`, or 0 if that is 0.
    pub(super) fn below(&mut self, limit: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u32
    }

    /// Returns a random interval of a Poisson process: exponentially distributed with the mean
    /// `mean`.
    pub(super) fn interval(&mut self, mean: f64) -> f64 {
        // A number in (0, 1], with 53 bits.
        let uniform = ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        -logarithm(uniform) * mean
    }
}

/// Returns the natural logarithm of a number in (0, 1], to about 12 digits.
///
/// The library's function is not the same on each platform. This one has only additions,
/// multiplications and divisions.
fn logarithm(number: f64) -> f64 {
    const LN_2: f64 = std::f64::consts::LN_2;
    /// Bits of the fraction of a double-precision number, below its exponent.
    const FRACTION_BITS: u32 = f64::MANTISSA_DIGITS - 1;
    /// The exponent field of numbers from 0.5 to below 1.
    const EXPONENT_OF_HALF: u64 = 1022;
    /// Terms of the series.
    const TERMS: u32 = 12;

    // The number is `mantissa` times 2^`exponent`, with a mantissa in [0.5, 1).
    let (field, fraction) =
        (number.to_bits() >> FRACTION_BITS, number.to_bits() & ((1 << FRACTION_BITS) - 1));
    let exponent = field as i64 - EXPONENT_OF_HALF as i64;
    let mantissa = f64::from_bits(fraction | EXPONENT_OF_HALF << FRACTION_BITS);

    // ln(m) = 2 artanh((m - 1) / (m + 1)), and the argument is at most 1/3.
    let x = (mantissa - 1.0) / (mantissa + 1.0);
    let square = x * x;
    let mut sum = 0.0;
    for term in (0..TERMS).rev() {
        sum = sum * square + 1.0 / f64::from(2 * term + 1);
    }
    2.0 * x * sum + exponent as f64 * LN_2
}

/// A random order of the numbers below a limit, which is computed and not stored.
///
/// Four rounds of a Feistel network permute the numbers of an even number of bits. A result that is
/// not below the limit is permuted again, until it is.
#[derive(Clone, Debug)]
pub(super) struct Permutation {
    limit: u32,
    /// Bits of each half of a number.
    half: u32,
    /// The keys of the rounds.
    keys: [u64; 4],
}

impl Permutation {
    /// Returns a permutation of the numbers below `limit`, which is at least 1.
    pub(super) fn new(limit: u32, random: &mut Random) -> Self {
        let bits = u32::BITS - limit.saturating_sub(1).leading_zeros();
        Self { limit, half: bits.div_ceil(2).max(1), keys: std::array::from_fn(|_| random.next()) }
    }

    /// Returns the number at a position.
    pub(super) fn at(&self, position: u32) -> u32 {
        let mut number = self.permute(position);
        // The cycle of a position leads back to that position, which is below the limit, so the
        // loop ends.
        while number >= self.limit {
            number = self.permute(number);
        }
        number
    }

    /// Returns the number that takes the place of `number`, by a Feistel network on its halves.
    fn permute(&self, number: u32) -> u32 {
        let mask = (1_u64 << self.half) - 1;
        let (mut left, mut right) = (u64::from(number) >> self.half, u64::from(number) & mask);
        for key in self.keys {
            (left, right) = (right, left ^ mix(right ^ key) & mask);
        }
        (left << self.half | right) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_has_each_number_once() {
        let mut random = Random::of_node(1, 0);
        for limit in [1, 2, 3, 7, 8, 63, 511, 1000] {
            let permutation = Permutation::new(limit, &mut random);
            let mut numbers: Vec<_> = (0..limit).map(|position| permutation.at(position)).collect();
            numbers.sort_unstable();
            assert_eq!(numbers, (0..limit).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_logarithm_is_that_of_the_library() {
        for number in [1.0, 0.999, 0.75, 0.5, 0.499_999, 0.1, 1e-3, 1e-9, f64::EPSILON] {
            let (computed, library) = (logarithm(number), number.ln());
            assert!(
                (computed - library).abs() <= 1e-11 * library.abs().max(1.0),
                "{number}: {computed}, {library}"
            );
        }
    }

    #[test]
    fn intervals_have_their_mean() {
        let mut random = Random::of_node(7, 3);
        let sum: f64 = (0..100_000).map(|_| random.interval(50.0)).sum();
        assert!((sum / 100_000.0 - 50.0).abs() < 1.0, "{sum}");
    }

    #[test]
    fn nodes_have_different_numbers() {
        let first = |node| Random::of_node(42, node).next();
        assert_ne!(first(0), first(1));
        assert_ne!(Random::of_node(42, 0).next(), Random::of_node(43, 0).next());
    }
}
