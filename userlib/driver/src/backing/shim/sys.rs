//! The ioctls of the kernel shim (`kmod-shim/include/uapi/nicforge_shim.h`, in Rust
//! `nicforge_hwi::shim`).
//!
//! UNSAFETY: the module calls `ioctl`, which reads and writes the struct behind its argument. Each
//! function here passes the struct whose size is in its request number.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use nicforge_hwi::shim;
use nix::{
    errno::Errno,
    libc::{c_ulong, ioctl},
};

/// Makes a request whose argument is a struct, which the kernel may change.
fn call<T>(file: BorrowedFd<'_>, request: u32, argument: &mut T) -> Result<(), Errno> {
    // SAFETY: `argument` is the struct that the request takes. The callers below pass the matching
    // one.
    let result = unsafe { ioctl(file.as_raw_fd(), c_ulong::from(request), std::ptr::from_mut(argument)) };
    Errno::result(result).map(drop)
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident: $request:ident, $argument:ident;)*) => {
        $(
            $(#[$doc])*
            pub(super) fn $name(file: BorrowedFd<'_>, mut argument: shim::$argument) -> Result<shim::$argument, Errno> {
                call(file, shim::$request, &mut argument)?;
                Ok(argument)
            }
        )*
    };
}

calls! {
    /// Returns the function's identity and what it supports.
    info: GET_INFO, Info;
    /// Describes a region.
    region: GET_REGION, Region;
    /// Describes the interrupts of a kind.
    irq: GET_IRQ, Irq;
    /// Binds vectors to an eventfd.
    bind: BIND_IRQ, IrqBind;
    /// Unbinds vectors.
    unbind: UNBIND_IRQ, IrqRange;
    /// Masks vectors.
    mask: MASK_IRQ, IrqRange;
    /// Unmasks vectors.
    unmask: UNMASK_IRQ, IrqRange;
    /// Allocates coherent memory.
    allocate: ALLOC_DMA, DmaAlloc;
    /// Pins memory of this process as one segment.
    pin: PIN_DMA, DmaPin;
    /// Frees or unpins memory.
    free: FREE_DMA, DmaFree;
}

/// Resets the function.
pub(super) fn reset(file: BorrowedFd<'_>) -> Result<(), Errno> {
    call(file, shim::RESET, &mut ())
}
