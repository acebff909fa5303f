//! Declarations of registers: names, places, fields, and the meaning of values.
//!
//! A card declares each register once, as data. Traces, `nicforge regs` and refusals then show it
//! by name and field. A declaration changes nothing of what an access does: that is the device's
//! own.
//!
//! ```
//! use nicforge_hwi::register::{Field, Register, show};
//!
//! static REGISTERS: &[Register] = &[
//!     Register::rw32("CTRL", 0, 0x0000).about("device control").fields(&[
//!         Field::bit("RST", 26),
//!         Field::bits("SPEED", 7, 6).values(&[(0, "10 Mb/s"), (1, "1000 Mb/s")]),
//!     ]),
//!     Register::rw32("RAL", 0, 0x5400).array(16, 8).about("receive address, low half"),
//! ];
//!
//! let value = 0x0400_0040_u32.to_le_bytes();
//! let shown = show(REGISTERS, 0, 0x0000, &value);
//! assert_eq!(shown.to_string(), "CTRL 0x04000040 RST SPEED=1000 Mb/s");
//! assert_eq!(show(REGISTERS, 0, 0x5408, &[1, 0, 0, 0]).to_string(), "RAL[1] 0x00000001");
//! ```
//!
//! The table is a `static`, or a `const`: a table that is built in a function is not `'static`.
//!
//! [`find`] looks at each declaration in turn, because arrays of registers may interleave. A card
//! has some hundred of them at most, and no access waits for a name: names are looked up when
//! something is shown.

use core::fmt;

/// The effect that accesses of a register have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads return what was written, as far as the register keeps it.
    ReadWrite,
    /// Writes have no effect.
    ReadOnly,
    /// Reads return nothing of use.
    WriteOnly,
    /// A read returns the value and clears it, or a part of it.
    ReadClears,
    /// A write clears the bits that are 1 in it.
    WriteOneClears,
    /// A port of a FIFO: a read pops, or a write pushes.
    Fifo,
    /// The access itself has an effect, whatever its value.
    Strobe,
}

impl Access {
    /// Returns the abbreviation in tables: `rw`, `ro`, `wo`, `rc`, `w1c`, `fifo` or `strobe`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadWrite => "rw",
            Self::ReadOnly => "ro",
            Self::WriteOnly => "wo",
            Self::ReadClears => "rc",
            Self::WriteOneClears => "w1c",
            Self::Fifo => "fifo",
            Self::Strobe => "strobe",
        }
    }

    /// Returns whether the register has a value that stays until the next access or event.
    pub const fn has_value(self) -> bool {
        !matches!(self, Self::WriteOnly | Self::Fifo | Self::Strobe)
    }
}

/// Bits of a register that mean something together. Bits are numbered from the least significant
/// one, 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Number of the highest bit.
    pub high: u8,
    /// Number of the lowest bit.
    pub low: u8,
    /// Values that have a meaning of their own, and the meanings.
    pub values: &'static [(u64, &'static str)],
}

impl Field {
    /// Declares a field of one bit.
    pub const fn bit(name: &'static str, bit: u8) -> Self {
        Self::bits(name, bit, bit)
    }

    /// Declares a field of the bits from `high` down to `low`.
    pub const fn bits(name: &'static str, high: u8, low: u8) -> Self {
        Self { name, high, low, values: &[] }
    }

    /// Declares the field of the bits that are 1 in a mask.
    ///
    /// # Panics
    /// If the mask has no bits, or a gap between them. In a table, the compiler reports it.
    pub const fn mask(name: &'static str, mask: u64) -> Self {
        assert!(mask != 0, "the mask of a field has bits");
        let (high, low) = (63 - mask.leading_zeros(), mask.trailing_zeros());
        assert!(high - low + 1 == mask.count_ones(), "the mask of a field has no gap");
        Self::bits(name, high as u8, low as u8)
    }

    /// Adds the meanings of values.
    #[must_use]
    pub const fn values(mut self, values: &'static [(u64, &'static str)]) -> Self {
        self.values = values;
        self
    }

    /// Returns the field's part of a register's value. Bits above bit 63 are 0.
    pub const fn of(&self, value: u64) -> u64 {
        let Some(shifted) = value.checked_shr(self.low as u32) else { return 0 };
        shifted & self.maximum()
    }

    /// Returns the greatest value of the field.
    pub const fn maximum(&self) -> u64 {
        match 1_u64.checked_shl(self.high.saturating_sub(self.low) as u32 + 1) {
            Some(first_too_large) => first_too_large - 1,
            None => u64::MAX,
        }
    }

    /// Returns the meaning of a value of the field, if it has one of its own.
    pub fn meaning(&self, of_field: u64) -> Option<&'static str> {
        self.values.iter().find(|(value, _)| *value == of_field).map(|(_, meaning)| *meaning)
    }
}

/// A register, or an array of equal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// Its name: printable characters of ASCII without spaces.
    pub name: &'static str,
    /// Number of its BAR.
    pub bar: u8,
    /// Offset in the BAR in bytes, a multiple of the width. That of the first one of an array.
    pub offset: u64,
    /// Width in bytes: 1, 2, 4 or 8. Values are little-endian.
    pub width: u8,
    /// The effect of accesses.
    pub access: Access,
    /// Number of registers.
    pub count: u32,
    /// Distance between two registers of an array in bytes.
    pub stride: u64,
    /// Its fields. Bits that mean nothing need none.
    pub fields: &'static [Field],
    /// Its meaning in a few words, for tables. It may be empty.
    pub about: &'static str,
}

macro_rules! declarations {
    ($($name:ident, $bytes:literal, $access:ident, $about:literal;)*) => {
        impl Register {
            $(
                #[doc = $about]
                pub const fn $name(name: &'static str, bar: u8, offset: u64) -> Self {
                    Self::new(name, bar, offset, $bytes, Access::$access)
                }
            )*
        }
    };
}

declarations! {
    rw8, 1, ReadWrite, "Declares a register of 8 bits that is read and written.";
    rw16, 2, ReadWrite, "Declares a register of 16 bits that is read and written.";
    rw32, 4, ReadWrite, "Declares a register of 32 bits that is read and written.";
    rw64, 8, ReadWrite, "Declares a register of 64 bits that is read and written.";
    ro8, 1, ReadOnly, "Declares a register of 8 bits that is only read.";
    ro16, 2, ReadOnly, "Declares a register of 16 bits that is only read.";
    ro32, 4, ReadOnly, "Declares a register of 32 bits that is only read.";
    ro64, 8, ReadOnly, "Declares a register of 64 bits that is only read.";
    wo8, 1, WriteOnly, "Declares a register of 8 bits that is only written.";
    wo16, 2, WriteOnly, "Declares a register of 16 bits that is only written.";
    wo32, 4, WriteOnly, "Declares a register of 32 bits that is only written.";
    wo64, 8, WriteOnly, "Declares a register of 64 bits that is only written.";
}

impl Register {
    /// Declares a register without fields.
    pub const fn new(name: &'static str, bar: u8, offset: u64, width: u8, access: Access) -> Self {
        Self { name, bar, offset, width, access, count: 1, stride: width as u64, fields: &[], about: "" }
    }

    /// Makes it an array of `count` registers, `stride` bytes apart.
    #[must_use]
    pub const fn array(mut self, count: u32, stride: u64) -> Self {
        (self.count, self.stride) = (count, stride);
        self
    }

    /// Sets the effect of accesses.
    #[must_use]
    pub const fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Adds the fields.
    #[must_use]
    pub const fn fields(mut self, fields: &'static [Field]) -> Self {
        self.fields = fields;
        self
    }

    /// Adds a few words for tables.
    #[must_use]
    pub const fn about(mut self, about: &'static str) -> Self {
        self.about = about;
        self
    }

    /// Returns the offset of a register of the array, modulo 2^64.
    pub const fn offset_of(&self, index: u32) -> u64 {
        self.offset.wrapping_add(self.stride.wrapping_mul(index as u64))
    }

    /// Returns the offset after the last byte, or `None` if it is beyond 2^64.
    pub const fn end(&self) -> Option<u64> {
        let Some(last) = self.stride.checked_mul(self.count.saturating_sub(1) as u64) else { return None };
        let Some(start_of_last) = self.offset.checked_add(last) else { return None };
        start_of_last.checked_add(self.width as u64)
    }

    /// Returns the place in the register of a byte of its BAR; `None` if the byte is not in it.
    pub fn place_of(&self, offset: u64) -> Option<Found<'_>> {
        let distance = offset.checked_sub(self.offset)?;
        let stride = self.stride.max(1);
        let (index, byte) = (distance / stride, distance % stride);
        let is_inside = index < u64::from(self.count) && byte < u64::from(self.width);
        is_inside.then_some(Found { register: self, index: index as u32, byte: byte as u8 })
    }

    /// Returns the fields of a value for display, such as `RST SPEED=1000 Mb/s`. See
    /// [`FieldsOf`].
    pub const fn fields_of(&self, value: u64) -> FieldsOf<'_> {
        FieldsOf { register: self, value }
    }
}

/// A byte of a declared register. It is displayed as the register's name with the index in an
/// array, and with the number of the byte if that is not the first: `CTRL`, `RAL[1]`, `RAL[1]+2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// The register, or the array.
    pub register: &'a Register,
    /// Number of the register in the array, 0 for a single one.
    pub index: u32,
    /// Number of the byte in the register.
    pub byte: u8,
}

impl Found<'_> {
    /// Writes the name, without the number of the byte.
    fn write_name(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.register.name)?;
        if self.register.count > 1 {
            write!(f, "[{}]", self.index)?;
        }
        Ok(())
    }
}

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_name(f)?;
        if self.byte > 0 {
            write!(f, "+{}", self.byte)?;
        }
        Ok(())
    }
}

/// Returns the declarations of several tables as one. `N` is the number of all.
///
/// # Panics
/// If `N` is another number. In a table, the compiler reports it.
pub const fn joined<const N: usize>(tables: &[&[Register]]) -> [Register; N] {
    let mut all = [Register::ro8("", 0, 0); N];
    let (mut count, mut table) = (0, 0);
    while table < tables.len() {
        let mut index = 0;
        while index < tables[table].len() {
            all[count] = tables[table][index];
            (count, index) = (count + 1, index + 1);
        }
        table += 1;
    }

    assert!(count == N, "the number of declarations is that of the tables");
    all
}

/// Returns the declared register that has the byte at an offset of a BAR.
pub fn find(registers: &[Register], bar: u8, offset: u64) -> Option<Found<'_>> {
    registers.iter().filter(|register| register.bar == bar).find_map(|register| register.place_of(offset))
}

/// The fields of a value. Displayed, they are separated by spaces, in the order of the declaration:
///
/// - a field whose value has a meaning: `SPEED=1000 Mb/s`;
/// - another field of one bit: its name if the bit is 1;
/// - another field of several bits: `COUNT=0x3`, unless it is 0.
#[derive(Clone, Copy, Debug)]
pub struct FieldsOf<'a> {
    register: &'a Register,
    value: u64,
}

impl fmt::Display for FieldsOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for field in self.register.fields {
            let value = field.of(self.value);
            match field.meaning(value) {
                Some(meaning) => write!(f, "{separator}{}={meaning}", field.name)?,
                None if value == 0 => continue,
                None if field.high == field.low => write!(f, "{separator}{}", field.name)?,
                None => write!(f, "{separator}{}={value:#x}", field.name)?,
            }
            separator = " ";
        }
        Ok(())
    }
}

/// Number of registers that an access shows at most. A long write of data would fill lines
/// otherwise.
const SHOWN_PIECES: usize = 4;
/// Largest number of bytes that are shown as one number.
const MAX_PIECE: usize = 8;

/// Returns the data of an access at an offset of a BAR for display, by names of registers and
/// fields.
///
/// A register that the access covers is shown as `NAME VALUE FIELDS`, and a part of one as
/// `NAME+BYTE VALUE`. Bytes outside all registers are shown as `BAR0+0x1234 VALUE`. An access that
/// covers several registers shows the first four, separated by commas, and the number of bytes
/// behind them.
pub const fn show<'a>(registers: &'a [Register], bar: u8, offset: u64, data: &'a [u8]) -> Shown<'a> {
    Shown { registers, bar, offset, data }
}

/// The result of [`show`].
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    registers: &'a [Register],
    bar: u8,
    offset: u64,
    data: &'a [u8],
}

impl Shown<'_> {
    /// Writes the front of the data, `data`, which lies at `offset`: as much as one register has,
    /// or as lies before the next one. Returns its length.
    fn write_piece(&self, f: &mut fmt::Formatter<'_>, offset: u64, data: &[u8]) -> Result<usize, fmt::Error> {
        let Some(found) = find(self.registers, self.bar, offset) else {
            let is_free =
                |&byte: &usize| find(self.registers, self.bar, offset.wrapping_add(byte as u64)).is_none();
            let length = (0..data.len().min(MAX_PIECE)).take_while(is_free).count();
            write!(f, "BAR{}+{offset:#x} {}", self.bar, Number(&data[..length]))?;
            return Ok(length);
        };

        let width = usize::from(found.register.width);
        let length = data.len().min(width - usize::from(found.byte));
        found.write_name(f)?;
        if length < width {
            write!(f, "+{}", found.byte)?;
        }
        let number = Number(&data[..length]);
        write!(f, " {number}")?;

        if length == width {
            let mut fields = NonEmpty { f, has_text: false };
            fmt::Write::write_fmt(&mut fields, format_args!("{}", found.register.fields_of(number.value())))?;
        }
        Ok(length)
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut done = 0;
        for piece in 0..SHOWN_PIECES {
            if done == self.data.len() {
                return Ok(());
            }
            if piece > 0 {
                f.write_str(", ")?;
            }
            done += self.write_piece(f, self.offset.wrapping_add(done as u64), &self.data[done..])?;
        }

        match self.data.len() - done {
            0 => Ok(()),
            rest => write!(f, ", and {rest} bytes"),
        }
    }
}

/// A little-endian number of at most 8 bytes, displayed in hexadecimal digits, two for each byte.
struct Number<'a>(&'a [u8]);

impl Number<'_> {
    fn value(&self) -> u64 {
        self.0.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
    }
}

impl fmt::Display for Number<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:0digits$x}", self.value(), digits = 2 * self.0.len())
    }
}

/// A writer that puts a space before its first text.
struct NonEmpty<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    has_text: bool,
}

impl fmt::Write for NonEmpty<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if !self.has_text && !text.is_empty() {
            self.f.write_str(" ")?;
            self.has_text = true;
        }
        self.f.write_str(text)
    }
}
