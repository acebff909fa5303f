//! Checks of declared registers.

use std::collections::HashSet;

use nicforge_hwi::{
    attachment::control,
    register::{Field, Register},
};
use thiserror::Error;

use super::{BarRange, FunctionSpec, SpecError};

/// Rule that a declared register breaks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RegisterRule {
    /// The name is empty, or has spaces or characters that are not printable ASCII.
    #[error("a name has printable characters of ASCII without spaces")]
    Name,
    /// An earlier register has the same name.
    #[error("an earlier register has the same name")]
    SameName,
    /// The width is not that of an access.
    #[error("it is {width} bytes wide, and 1, 2, 4 or 8 are possible")]
    Width {
        /// Width in bytes.
        width: u8,
    },
    /// The array has no registers, or they overlap.
    #[error("{count} registers {stride:#x} bytes apart: at least 1, and at least {width} bytes apart")]
    Array {
        /// Number of registers.
        count: u32,
        /// Distance in bytes.
        stride: u64,
        /// Width in bytes.
        width: u8,
    },
    /// The offset, or the distance in an array, is not a multiple of the width.
    #[error("offset {offset:#x} and distance {stride:#x} must be multiples of its {width} bytes")]
    Alignment {
        /// Offset in the BAR.
        offset: u64,
        /// Distance of two registers in bytes.
        stride: u64,
        /// Width in bytes.
        width: u8,
    },
    /// It is not in its BAR.
    #[error("it ends at {end:#x} of BAR {bar}, which has {size:#x} bytes")]
    Outside {
        /// Number of the BAR.
        bar: u8,
        /// Offset after the last byte.
        end: u64,
        /// Size of the BAR in bytes, 0 if it does not exist.
        size: u64,
    },
    /// It is where the core has the control page, the MSI-X table or the pending bits.
    #[error("offset {offset:#x} of BAR {bar} belongs to the control page or MSI-X")]
    CorePage {
        /// Number of the BAR.
        bar: u8,
        /// Offset of the core's page or table.
        offset: u64,
    },
    /// It has bytes of another register.
    #[error("it and {other} both have the byte at {offset:#x} of BAR {bar}")]
    Overlap {
        /// Name of the earlier register.
        other: &'static str,
        /// Number of the BAR.
        bar: u8,
        /// Offset of a byte that both have.
        offset: u64,
    },
    /// A field has bits that the register does not have, or its bits are the wrong way round.
    #[error("field {field} is bits {high} to {low} of {bits}: the higher one comes first")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Its highest bit.
        high: u8,
        /// Its lowest bit.
        low: u8,
        /// Number of bits of the register.
        bits: u32,
    },
    /// Two fields have a bit in common, or the same name.
    #[error("the fields {first} and {second} share bits or a name")]
    Fields {
        /// Name of the first one.
        first: &'static str,
        /// Name of the second one.
        second: &'static str,
    },
    /// A named value does not fit the field.
    #[error("field {field} can't have the value {value:#x}, which is called {meaning}")]
    Value {
        /// Name of the field.
        field: &'static str,
        /// The value.
        value: u64,
        /// Its meaning.
        meaning: &'static str,
    },
}

/// Checks the declared registers of a function: each by itself, and that no two have a name or a
/// byte in common.
///
/// # Errors
/// [`SpecError::Register`].
pub(crate) fn validate(spec: &FunctionSpec, registers: &[Register]) -> Result<(), SpecError> {
    let mut names = HashSet::with_capacity(registers.len());
    for (index, register) in registers.iter().enumerate() {
        let checked = match names.insert(register.name) {
            true => check(spec, register).and_then(|()| check_disjoint(register, &registers[..index])),
            false => Err(RegisterRule::SameName),
        };
        checked.map_err(|rule| SpecError::Register { name: register.name, rule })?;
    }

    Ok(())
}

/// Checks a register by itself.
fn check(spec: &FunctionSpec, register: &Register) -> Result<(), RegisterRule> {
    let &Register { name, bar, offset, width, count, stride, fields, .. } = register;
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(RegisterRule::Name);
    }
    if !matches!(width, 1 | 2 | 4 | 8) {
        return Err(RegisterRule::Width { width });
    }
    if count == 0 || stride < width.into() {
        return Err(RegisterRule::Array { count, stride, width });
    }
    if !offset.is_multiple_of(width.into()) || !stride.is_multiple_of(width.into()) {
        return Err(RegisterRule::Alignment { offset, stride, width });
    }

    let size = spec.bar(bar).map_or(0, |spec| spec.size);
    let end = register.end().unwrap_or(u64::MAX);
    if end > size {
        return Err(RegisterRule::Outside { bar, end, size });
    }

    let range = BarRange { bar, offset, length: end - offset };
    if let Some(page) = spec.core_pages().into_iter().flatten().find(|page| page.overlaps(&range)) {
        return Err(RegisterRule::CorePage { bar, offset: page.offset });
    }

    check_fields(fields, 8 * u32::from(width))
}

/// Checks the fields of a register of this many bits.
fn check_fields(fields: &[Field], bits: u32) -> Result<(), RegisterRule> {
    for (index, field) in fields.iter().enumerate() {
        let &Field { name, high, low, values } = field;
        if high < low || u32::from(high) >= bits {
            return Err(RegisterRule::Field { field: name, high, low, bits });
        }

        let shares = |other: &&Field| other.name == name || other.low <= high && low <= other.high;
        if let Some(other) = fields[..index].iter().find(shares) {
            return Err(RegisterRule::Fields { first: other.name, second: name });
        }

        if let Some(&(value, meaning)) = values.iter().find(|(value, _)| *value > field.maximum()) {
            return Err(RegisterRule::Value { field: name, value, meaning });
        }
    }

    Ok(())
}

/// Checks that a register has no byte of earlier ones. All of them have been checked by themselves.
fn check_disjoint(register: &Register, earlier: &[Register]) -> Result<(), RegisterRule> {
    let (start, end) = (register.offset, register.end());
    let is_near = |other: &&Register| {
        other.bar == register.bar && other.offset.max(start) < other.end().min(end).unwrap_or(0)
    };

    for other in earlier.iter().filter(is_near) {
        // Arrays may interleave, so the registers of the shorter one are looked up in the other.
        let (short, long) = if register.count <= other.count { (register, other) } else { (other, register) };
        for index in 0..short.count {
            let first = short.offset_of(index);
            let shared = (first..first + u64::from(short.width)).find(|&byte| long.place_of(byte).is_some());
            if let Some(offset) = shared {
                return Err(RegisterRule::Overlap { other: other.name, bar: other.bar, offset });
            }
        }
    }

    Ok(())
}

impl FunctionSpec {
    /// Returns the ranges of BARs that the core answers: the control page, the MSI-X table and the
    /// pending bits.
    pub(super) fn core_pages(&self) -> [Option<BarRange>; 3] {
        let control = self.rings.map(|rings| BarRange {
            bar: rings.control_bar,
            offset: rings.control_offset.into(),
            length: control::SIZE,
        });
        let table = self.msix.map(|msix| BarRange {
            bar: msix.bar,
            offset: msix.table.into(),
            length: msix.table_bytes(),
        });
        let pending_bits = self.msix.map(|msix| BarRange {
            bar: msix.bar,
            offset: msix.pba.into(),
            length: msix.pending_bytes(),
        });
        [control, table, pending_bits]
    }
}
