//! The interrupts that a client has enabled.

/// The enabled interrupts of one attachment, one bit for each vector.
///
/// Bits of vectors that do not exist are never set. `VECTORS` is the number of vectors, 1 to 32.
/// The default, the state of power-on, enables no interrupt.
///
/// Two kinds of NIC differ in what raising does. Where an enabled interrupt stays enabled, the NIC
/// raises what [`InterruptEnables::among`] returns. Where it is raised once for each time it was
/// enabled, the NIC raises it if [`InterruptEnables::take`] returns true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptEnables<const VECTORS: u16>(u32);

impl<const VECTORS: u16> InterruptEnables<VECTORS> {
    /// The bits of all vectors.
    const ALL: u32 = {
        assert!(VECTORS >= 1 && VECTORS <= 32, "an enable register has 1 to 32 vectors");
        u32::MAX >> (32 - VECTORS)
    };

    /// Enables these vectors, and disables all others.
    #[inline]
    pub fn set(&mut self, vectors: u32) {
        self.0 = vectors & Self::ALL;
    }

    /// Returns the enabled vectors.
    #[inline]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Returns whether a vector is enabled.
    #[inline]
    pub fn has(self, vector: u16) -> bool {
        vector < VECTORS && self.0 & (1 << vector) != 0
    }

    /// Returns those of `vectors` that are enabled.
    #[inline]
    pub fn among(self, vectors: u32) -> u32 {
        self.0 & vectors
    }

    /// Disables a vector. Returns whether it was enabled.
    #[inline]
    pub fn take(&mut self, vector: u16) -> bool {
        let was_enabled = self.has(vector);
        if was_enabled {
            self.0 &= !(1 << vector);
        }
        was_enabled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_that_do_not_exist_are_never_enabled() {
        let mut enables = InterruptEnables::<3>::default();
        enables.set(u32::MAX);

        assert_eq!(enables.bits(), 0b111);
        assert!(enables.has(2) && !enables.has(3) && !enables.has(99));
        assert!(!enables.take(3) && !enables.take(u16::MAX));
        assert_eq!(enables.bits(), 0b111);
    }

    #[test]
    fn all_32_vectors_can_be_enabled() {
        let mut enables = InterruptEnables::<32>::default();
        enables.set(u32::MAX);
        assert!(enables.bits() == u32::MAX && enables.take(31) && !enables.has(31));
    }

    #[test]
    fn a_taken_vector_is_disabled_and_the_others_stay() {
        let mut enables = InterruptEnables::<4>::default();
        enables.set(0b1010);

        assert_eq!(enables.among(0b0110), 0b0010);
        assert!(enables.take(1));
        assert!(!enables.take(1) && !enables.take(0));
        assert_eq!(enables.bits(), 0b1000);
    }
}
