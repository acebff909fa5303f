//! Derives choices from the bytes of an input.

/// The rest of an input. When it is used up every choice is the first one, so that every input
/// ends.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// Takes the bytes of an input.
    pub fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// Returns whether the input is used up.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes all remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Takes at most `maximum` bytes; fewer at the end.
    pub fn bytes(&mut self, maximum: usize) -> &'a [u8] {
        let (bytes, rest) = self.rest.split_at(maximum.min(self.rest.len()));
        self.rest = rest;
        bytes
    }

    /// Takes exactly `N` bytes, with zeros beyond the end.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    /// Takes a byte.
    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// Takes two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Takes four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Takes eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Takes a Boolean.
    pub fn flag(&mut self) -> bool {
        self.u8() & 1 != 0
    }

    /// Takes a number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u32) -> u32 {
        match limit {
            0..=0x100 => u32::from(self.u8()) % limit.max(1),
            0x101..=0x1_0000 => u32::from(self.u16()) % limit,
            _ => self.u32() % limit,
        }
    }

    /// Takes one of `choices`, which is not empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u32) as usize]
    }

    /// Takes a number that is small, around a power of two, or arbitrary.
    pub fn number(&mut self) -> u64 {
        match self.below(8) {
            0..=3 => self.u8().into(),
            4 => self.u16().into(),
            5 => (1_u64 << self.below(64)).wrapping_add(u64::from(self.below(3))).wrapping_sub(1),
            6 => u64::MAX - u64::from(self.u8()),
            _ => self.u64(),
        }
    }

    /// Takes a number of 32 bits that is small, around a power of two, or arbitrary.
    pub fn number32(&mut self) -> u32 {
        let number = self.number();
        // The low half of a large number would nearly always be large too.
        u32::try_from(number).unwrap_or((number >> 32) as u32)
    }
}
