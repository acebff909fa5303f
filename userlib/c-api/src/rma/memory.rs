//! Buffers and regions.
//!
//! UNSAFETY: as in the module above.

use std::ffi::c_void;

use nicforge_driver::{Cancel, DmaBuffer, HugePages};
use nicforge_rma::{Access, Error, Port, Region};

use super::{failure::failure, rma_port};
use crate::support::{
    Failure, guarded_status, inherited, opened, release, store_opened, take_opened, with_object,
};

/// Access of other processes to a region: they may get from it. The owner may both read and write.
pub const RMA_READ: u32 = 1;
/// Access of other processes to a region: they may put to it.
pub const RMA_WRITE: u32 = 2;

/// Memory that a card can reach.
pub struct rma_buffer(DmaBuffer);

/// Registered memory.
pub struct rma_region(Region);

/// Allocates memory that the card can reach: `size` bytes rounded up to whole pages, zeroed. The
/// pages have 2 MiB if the system has enough of them and the memory fills half of them or more,
/// otherwise 4096 bytes. Returns 0 and stores the handle in `*buffer`, or returns a negative error
/// number.
///
/// # Safety
/// `port` is a handle; `buffer` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_allocate(
    port: *const rma_port,
    size: usize,
    buffer: *mut *mut rma_buffer,
) -> i32 {
    guarded_status(|| {
        let allocate = |port: &mut Port, _: &Cancel| {
            let buffer = port.device().dma_buffer(size, HugePages::Try)?;
            Ok(rma_buffer(buffer))
        };
        // SAFETY: NULL or valid by this function's contract.
        let allocated = || unsafe { with_object(port, allocate) };
        // SAFETY: NULL or valid by this function's contract.
        unsafe { store_opened(buffer, "buffer", allocated) }
    })
}

/// Releases a buffer. Its regions become invalid; commands that use them end with RMA_WITHDRAWN.
/// NULL is allowed.
///
/// # Safety
/// `buffer` is NULL or a handle; neither it nor its memory is used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_release(buffer: *mut rma_buffer) {
    guarded_status(|| {
        // SAFETY: NULL, or it came from `store_opened`, and is not used any more.
        unsafe { release(buffer) };
        Ok(())
    });
}

/// Returns the address of a buffer's memory; NULL for NULL. Other processes write to the memory by
/// puts. The data of a put is valid after the put's notification.
///
/// # Safety
/// `buffer` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_buffer_memory(buffer: *const rma_buffer) -> *mut c_void {
    // SAFETY: by this function's contract.
    let buffer = unsafe { buffer.as_ref() };
    buffer.map_or(std::ptr::null_mut(), |buffer| {
        std::ptr::with_exposed_provenance_mut(buffer.0.window().base_address())
    })
}

/// Returns the length of a buffer in bytes; 0 for NULL.
///
/// # Safety
/// `buffer` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_buffer_size(buffer: *const rma_buffer) -> usize {
    // SAFETY: by this function's contract.
    unsafe { buffer.as_ref() }.map_or(0, |buffer| buffer.0.len() as usize)
}

/// Registers `length` bytes at `offset` of a buffer of this port, both multiples of 4096. `access`
/// selects what other processes may do: RMA_READ, RMA_WRITE, both or neither. Returns 0 and stores
/// the handle in `*region`, or returns a negative error number. -ENOMEM means that the card
/// refused; the text has the reason.
///
/// # Safety
/// `port` and `buffer` are handles; `region` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_register(
    port: *const rma_port,
    buffer: *const rma_buffer,
    offset: u64,
    length: u64,
    access: u32,
    region: *mut *mut rma_region,
) -> i32 {
    guarded_status(|| {
        if access & !(RMA_READ | RMA_WRITE) != 0 {
            return Err(Failure::new(
                libc::EINVAL,
                format!("access {access:#x}: RMA_READ and RMA_WRITE are known"),
            ));
        }

        let access = Access { read: access & RMA_READ != 0, write: access & RMA_WRITE != 0 };

        // SAFETY: by this function's contract.
        let buffer = &unsafe { opened(buffer) }?.0;

        let register = |port: &mut Port, _: &Cancel| {
            let size = buffer.len();
            match offset.checked_add(length) {
                Some(end) if end <= size => {}
                _ => return Err(failure(Error::OutsideRegion { offset, length, size })),
            }
            port.register_range(buffer.iova() + offset, length, access).map(rma_region).map_err(failure)
        };

        // SAFETY: NULL or valid by this function's contract.
        let registered = || unsafe { with_object(port, register) };
        // SAFETY: NULL or valid by this function's contract.
        unsafe { store_opened(region, "region", registered) }
    })
}

/// Deregisters a region, and releases its handle whatever the result. After a result of 0 no card
/// accesses the memory any more. NULL is allowed. Returns a negative error number when the card did
/// not know the region any more.
///
/// # Safety
/// `region` is NULL or a handle that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_deregister(region: *mut rma_region) -> i32 {
    guarded_status(|| {
        if region.is_null() {
            return Ok(());
        }

        // SAFETY: it came from `store_opened`, and is not used any more.
        let region = unsafe { take_opened(region) }.ok_or_else(inherited)?;
        region.0.deregister().map_err(failure)
    })
}

/// Returns a region's first network address, which the owner passes to its partners; 0 for NULL.
/// The addresses of the other bytes follow.
///
/// # Safety
/// `region` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_address(region: *const rma_region) -> u64 {
    // SAFETY: by this function's contract.
    unsafe { region.as_ref() }.map_or(0, |region| region.0.address())
}
