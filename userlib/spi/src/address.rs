//! Addresses of the Message Unit: plain ones, and atomic ones that carry an operation.

use nicforge_hwi::mu::{ADDRESS_BITS, atomic};

use crate::DescriptorError;

/// Operations on 8 bytes that become the payload of a message: `MUHWI_ATOMIC_OPCODE_LOAD_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Load {
    /// The value.
    Load = atomic::load::LOAD,
    /// The value, which becomes 0.
    Clear = atomic::load::CLEAR,
    /// The value, which is incremented.
    Increment = atomic::load::INCREMENT,
    /// The value, which is decremented.
    Decrement = atomic::load::DECREMENT,
    /// The value, which is incremented unless it equals the following 8 bytes.
    IncrementBounded = atomic::load::INCREMENT_BOUNDED,
    /// The value, which is decremented unless it equals the 8 bytes before it.
    DecrementBounded = atomic::load::DECREMENT_BOUNDED,
    /// The value, which is incremented if it equals the following 8 bytes.
    IncrementIfEqual = atomic::load::INCREMENT_IF_EQUAL,
}

/// Operations that a put of 8 bytes applies to its target: `MUHWI_ATOMIC_OPCODE_STORE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Store {
    /// The value is replaced.
    Store = atomic::store::STORE,
    /// The value and the following one are replaced if they are equal.
    Twin = atomic::store::TWIN,
    /// The payload is added.
    Add = atomic::store::ADD,
    /// The payload is added. On Blue Gene/Q, caches are notified only when the sum is 0.
    AddCoherenceOnZero = atomic::store::ADD_COHERENCE_ON_ZERO,
    /// Bitwise or.
    Or = atomic::store::OR,
    /// Bitwise exclusive or.
    Xor = atomic::store::XOR,
    /// The larger of two unsigned numbers.
    MaxUnsigned = atomic::store::MAX_UNSIGNED,
    /// The larger of two numbers of a sign bit and 63 bits of absolute value.
    MaxSigned = atomic::store::MAX_SIGNED,
}

/// The first number that is no address of the unit: it has more bits.
pub(crate) const END_OF_ADDRESSES: u64 = 1 << ADDRESS_BITS;

/// Checks that `length` bytes at `address` have addresses of the unit.
pub(crate) fn check_range(address: u64, length: u64) -> Result<(), DescriptorError> {
    match address.checked_add(length) {
        Some(end) if end <= END_OF_ADDRESSES => Ok(()),
        _ => Err(DescriptorError::Address { address, length }),
    }
}

/// Checks the address of 8 bytes, and returns it with an operation, as an atomic address.
fn with_operation(address: u64, operation: u64) -> Result<u64, DescriptorError> {
    check_range(address, 8)?;
    if !address.is_multiple_of(8) {
        return Err(DescriptorError::AtomicAlignment { address });
    }

    Ok(address | operation | atomic::INDICATOR)
}

/// Returns the atomic address of the 8 bytes at `address` for a load. The public name is
/// `MUSPI_GetAtomicAddress`.
///
/// # Errors
/// [`DescriptorError::Address`]; [`DescriptorError::AtomicAlignment`] unless `address` is a
/// multiple of 8.
pub fn load_address(address: u64, operation: Load) -> Result<u64, DescriptorError> {
    with_operation(address, operation as u64)
}

/// Returns the atomic address of the 8 bytes at `address` for a store, as an entry of the base
/// address table has it. The public name is `MUSPI_GetAtomicAddress`.
///
/// # Errors
/// As [`load_address`].
pub fn store_address(address: u64, operation: Store) -> Result<u64, DescriptorError> {
    with_operation(address, operation as u64)
}

/// Returns the offset that makes the store at `base + offset` atomic, for a plain base address that
/// is a multiple of 8. The public name is `MUSPI_GetAtomicOffsetFromBaseAddress`.
///
/// # Errors
/// As [`load_address`], for the offset.
pub fn store_offset(offset: u64, operation: Store) -> Result<u64, DescriptorError> {
    with_operation(offset, operation as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_atomic_address_has_the_indicator_and_the_operation() {
        assert_eq!(load_address(0x1000, Load::Increment), Ok(0x10_0000_1002));
        assert_eq!(store_address(0x1008, Store::Add), Ok(0x10_0000_100a));
        assert_eq!(store_offset(0, Store::MaxSigned), Ok(0x10_0000_0007));
    }

    #[test]
    fn an_odd_or_high_atomic_address_is_an_error() {
        assert_eq!(
            load_address(0x1004, Load::Load),
            Err(DescriptorError::AtomicAlignment { address: 0x1004 })
        );
        let high = END_OF_ADDRESSES;
        assert_eq!(
            store_offset(high, Store::Add),
            Err(DescriptorError::Address { address: high, length: 8 })
        );
    }

    #[test]
    fn a_range_ends_with_the_addresses_of_the_unit() {
        assert_eq!(check_range(END_OF_ADDRESSES - 8, 8), Ok(()));
        assert!(check_range(END_OF_ADDRESSES - 8, 9).is_err());
        assert!(check_range(u64::MAX, 1).is_err());
    }
}
