//! The list of capabilities in a function's configuration space.

use crate::function::{Function, FunctionError};

/// Register with the offset of the first capability.
const FIRST_POINTER: u16 = 0x34;
/// Most capabilities that fit. It bounds the search in a list that is a ring.
const MOST: usize = 48;
/// End of the header. No capability begins before.
const HEADER_END: u16 = 0x40;

/// Returns the offset of the first capability whose id is `wanted`, if there is one.
pub(super) fn find(function: &dyn Function, wanted: u8) -> Result<Option<u16>, FunctionError> {
    let byte = |offset| read::<1>(function, offset).map(|[byte]| byte);
    // Each capability begins with its id and the offset of the next one. The low bits of an offset
    // are reserved.
    let mut at = u16::from(byte(FIRST_POINTER)? & !3);

    for _ in 0..MOST {
        if at < HEADER_END {
            break;
        }
        if byte(at)? == wanted {
            return Ok(Some(at));
        }
        at = u16::from(byte(at + 1)? & !3);
    }
    Ok(None)
}

/// Reads 1, 2 or 4 bytes of a function's configuration space.
pub(super) fn read<const N: usize>(function: &dyn Function, offset: u16) -> Result<[u8; N], FunctionError> {
    let mut data = [0; N];
    function.config_read(offset, &mut data)?;
    Ok(data)
}
