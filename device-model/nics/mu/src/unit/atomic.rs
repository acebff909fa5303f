//! Atomic operations on words of client memory.
//!
//! In: an operation, its word, an operand. Out: a value, or that the word changed too often during
//! the attempts. May touch: client memory.
//!
//! An operation with a condition reads its other word first. It is atomic for the word itself, as
//! no other operation falls between its read and its write.

use nicforge_core::dma::WordUpdate;
use nicforge_hwi::mu::atomic::{AT_BOUND, load, store};

use super::memory::{Memory, MemoryFault, Owner};

/// Attempts to exchange a word that other stores change meanwhile.
const ATTEMPTS: u32 = 64;

/// Reasons why an operation was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotDone {
    /// The word changed in each attempt. The operation can be repeated.
    Contended,
    /// The memory can't be reached, or the operation does not exist.
    Fault(MemoryFault),
}

impl From<MemoryFault> for NotDone {
    fn from(fault: MemoryFault) -> Self {
        Self::Fault(fault)
    }
}

/// Carries out an operation on the payload of a descriptor, and returns the value to be sent.
///
/// # Errors
/// [`NotDone`]: the word is unchanged.
pub(crate) fn load(
    memory: &mut Memory<'_, '_>,
    owner: Owner,
    address: u64,
    operation: u64,
) -> Result<u64, NotDone> {
    // These operations have no condition.
    let always = |memory: &mut Memory<'_, '_>, update| Ok(memory.update(owner, address, update)?);

    match operation {
        load::LOAD => Ok(memory.read_word(owner, address)?),
        load::CLEAR => always(memory, WordUpdate::Swap(0)),
        load::INCREMENT => always(memory, WordUpdate::Add(1)),
        load::DECREMENT => always(memory, WordUpdate::Add(u64::MAX)),
        load::INCREMENT_BOUNDED => {
            let bound = memory.read_word(owner, address + 8)?;
            step_if(memory, owner, address, 1, |value| value != bound)
        }
        load::DECREMENT_BOUNDED => {
            // The bound is in the word before, as that of an increment is in the word behind.
            let bound_address = address.checked_sub(8).ok_or(MemoryFault::Range)?;
            let bound = memory.read_word(owner, bound_address)?;
            step_if(memory, owner, address, u64::MAX, |value| value != bound)
        }
        load::INCREMENT_IF_EQUAL => {
            let expected = memory.read_word(owner, address + 8)?;
            step_if(memory, owner, address, 1, |value| value == expected)
        }
        _ => Err(NotDone::Fault(MemoryFault::Range)),
    }
}

/// Adds to a word if its value meets a condition. Returns the previous value, or [`AT_BOUND`] if
/// the word was left unchanged.
fn step_if(
    memory: &mut Memory<'_, '_>,
    owner: Owner,
    address: u64,
    step: u64,
    condition: impl Fn(u64) -> bool,
) -> Result<u64, NotDone> {
    let previous =
        exchange(memory, owner, address, |value| condition(value).then(|| value.wrapping_add(step)))?;
    Ok(if condition(previous) { previous } else { AT_BOUND })
}

/// Replaces the value of a word by that which `change` returns for it. If `change` returns `None`,
/// the word keeps its value. Returns the previous value.
fn exchange(
    memory: &mut Memory<'_, '_>,
    owner: Owner,
    address: u64,
    change: impl Fn(u64) -> Option<u64>,
) -> Result<u64, NotDone> {
    let mut expected = memory.read_word(owner, address)?;
    for _ in 0..ATTEMPTS {
        let Some(new) = change(expected) else { return Ok(expected) };
        let found = memory.update(owner, address, WordUpdate::CompareSwap { expected, new })?;
        if found == expected {
            return Ok(found);
        }
        expected = found;
    }
    Err(NotDone::Contended)
}

/// Carries out an operation on the target of a put.
///
/// # Errors
/// [`NotDone`]: the word is unchanged.
pub(crate) fn store(
    memory: &mut Memory<'_, '_>,
    owner: Owner,
    address: u64,
    operation: u64,
    operand: u64,
) -> Result<(), NotDone> {
    match operation {
        store::STORE => memory.update(owner, address, WordUpdate::Swap(operand))?,
        store::TWIN => return store_twin(memory, owner, address, operand),
        store::ADD | store::ADD_COHERENCE_ON_ZERO => {
            memory.update(owner, address, WordUpdate::Add(operand))?
        }
        store::OR => memory.update(owner, address, WordUpdate::SetBits(operand))?,
        store::XOR => exchange(memory, owner, address, |value| Some(value ^ operand))?,
        store::MAX_UNSIGNED => {
            exchange(memory, owner, address, |value| (operand > value).then_some(operand))?
        }
        store::MAX_SIGNED => {
            let is_larger = |value| sign_magnitude(operand) > sign_magnitude(value);
            exchange(memory, owner, address, |value| is_larger(value).then_some(operand))?
        }
        _ => return Err(NotDone::Fault(MemoryFault::Range)),
    };
    Ok(())
}

/// Stores a value to a word and to the one behind it, if both are equal.
fn store_twin(memory: &mut Memory<'_, '_>, owner: Owner, address: u64, operand: u64) -> Result<(), NotDone> {
    // A fault of the second word must leave the first one unchanged, so the second is tried first.
    let twin = memory.update(owner, address + 8, WordUpdate::Add(0))?;
    let previous = exchange(memory, owner, address, |value| (value == twin).then_some(operand))?;
    if previous == twin {
        memory.update(owner, address + 8, WordUpdate::Swap(operand))?;
    }
    Ok(())
}

/// Returns the number that a word stands for in sign-magnitude form: a sign bit, and 63 bits of
/// absolute value.
fn sign_magnitude(value: u64) -> i64 {
    let absolute = (value & !(1 << 63)) as i64;
    if value >> 63 == 1 { -absolute } else { absolute }
}
