//! Who is up in the machine.

/// The generation of a core: counts up whenever a process takes or leaves it, modulo 256, and is odd while one is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation(pub u8);

impl Generation {
    /// Whether a process is there.
    #[inline]
    pub const fn is_up(self) -> bool {
        self.0 & 1 == 1
    }
}
