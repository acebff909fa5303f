//! Rings of packet slots, for packet FIFOs in mapped memory.
//!
//! A slot is a control word of 8 bytes, followed by a payload. Packets are numbered modulo 2^32.
//! Packet `n` lies in slot `n` modulo the ring's length, which is a power of two.
//!
//! Every number thus leads to a slot of the ring. The bounds are checked once, at construction; a
//! [`Window`] checks each access. The low half of a full slot's control word is the packet's number
//! plus 1, modulo 2^32. An old packet's control word is therefore never taken for the next
//! packet's.
//!
//! UNSAFETY: dereferences addresses in a mapping. Each is the ring's base plus a slot's offset
//! below the ring's length. The constructor has compared that length with the window's, and checked
//! the alignment.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(target_arch = "x86_64")]
use crate::copy::WideMoves;
use crate::copy::{self, Moves, NarrowMoves};
use crate::error::MemoryError;
use crate::window::Window;

/// Alignment of a ring, its slots and their payloads in bytes: a cache line, and the widest vector.
const ALIGN: usize = 64;

/// Number of packets in one iteration of the copy loops, which the compiler unrolls. They share the
/// loop's overhead.
const UNROLLED: usize = 4;

/// A ring of slots of `STRIDE` bytes. Each has a payload of `N` bytes, `PAYLOAD_AT` bytes after
/// the start of its control word.
///
/// Stores are ordered: a load of a control word with acquire order also sees the payload stored
/// before it.
#[derive(Clone)]
pub struct Slots<const STRIDE: usize, const PAYLOAD_AT: usize, const N: usize> {
    window: Window,
    /// Number of slots minus 1.
    mask: u32,
    /// Number of slots if stores are allowed, otherwise 0.
    writable: u32,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "always false there"))]
    /// The processor has 32-byte moves that the program was not compiled for.
    has_wide_moves: bool,
}

impl<const STRIDE: usize, const PAYLOAD_AT: usize, const N: usize> Slots<STRIDE, PAYLOAD_AT, N> {
    const LAYOUT: () = {
        assert!(
            STRIDE.is_multiple_of(ALIGN) && PAYLOAD_AT.is_multiple_of(ALIGN),
            "slots of whole cache lines"
        );
        assert!(PAYLOAD_AT >= 8 && PAYLOAD_AT + N <= STRIDE, "a slot holds its control word and its payload");
        assert!(N.is_multiple_of(16) && N <= 512, "payloads that copies are unrolled for");
    };

    /// Returns the ring of `count` slots, a power of two, at `offset` of `window`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::Misaligned`] if the ring is not aligned to 64
    /// bytes in memory, [`MemoryError::SlotCount`].
    pub fn new(window: &Window, offset: u64, count: u32) -> Result<Self, MemoryError> {
        let () = Self::LAYOUT;
        if !count.is_power_of_two() {
            return Err(MemoryError::SlotCount { count });
        }

        // A length that does not fit 64 bits fits no window either.
        let len = u64::from(count).saturating_mul(STRIDE as u64);
        let window = window.window(offset, len)?;
        if !window.base_address().is_multiple_of(ALIGN) {
            return Err(MemoryError::Misaligned { offset, align: ALIGN as u64 });
        }

        let writable = if window.is_writable() { count } else { 0 };

        Ok(Self { window, mask: count - 1, writable, has_wide_moves: copy::has_wide_moves() })
    }

    /// Returns the number of slots.
    #[inline]
    pub fn count(&self) -> u32 {
        self.mask + 1
    }

    /// Returns the address of packet `number`'s slot.
    #[inline]
    fn slot(&self, number: u32) -> *mut u8 {
        let offset = (number & self.mask) as usize * STRIDE;
        // SAFETY: a slot below the count, all of which are in the window.
        unsafe { self.window.base_pointer().add(offset) }
    }

    /// Loads the control word of packet `number`'s slot with acquire order.
    #[inline]
    pub fn control(&self, number: u32) -> u64 {
        // SAFETY: in bounds and aligned; the mapping is alive as long as `self`.
        unsafe { AtomicU64::from_ptr(self.slot(number).cast()) }.load(Ordering::Acquire)
    }

    /// Loads the control word as [`Slots::control`] does, and returns it if the slot holds packet
    /// `number`.
    #[inline]
    pub fn holds(&self, number: u32) -> Option<u64> {
        let control = self.control(number);
        (control as u32 == number.wrapping_add(1)).then_some(control)
    }

    /// Copies the payload of packet `number`'s slot.
    #[inline]
    pub fn payload(&self, number: u32, out: &mut [u8; N]) {
        let source = self.slot(number).wrapping_add(PAYLOAD_AT);
        #[cfg(target_arch = "x86_64")]
        if self.has_wide_moves {
            // SAFETY: the source is in bounds and aligned, and the target is a private array. The
            // processor has AVX.
            return unsafe { Self::payload_wide(source, out) };
        }

        // SAFETY: the source is in bounds and aligned, and the target is a private array.
        unsafe { NarrowMoves::from_shared::<N>(out.as_mut_ptr(), source) };
    }

    /// Copies the first bytes of the payload of packet `number`'s slot: the length of `out`, at
    /// most `N`.
    #[inline]
    pub fn payload_start(&self, number: u32, out: &mut [u8]) {
        let len = out.len().min(N);
        // SAFETY: the source is in bounds, and the target is a private slice that is not shorter.
        unsafe {
            copy::copy_from_shared(out.as_mut_ptr(), self.slot(number).wrapping_add(PAYLOAD_AT), len);
        };
    }

    /// Fills packet `number`'s slot. It writes the payload, and then the control word, with `tag`
    /// in its upper half, with release order. In memory that is mapped read-only it has no effect.
    #[inline]
    pub fn put(&self, number: u32, tag: u32, payload: &[u8; N]) {
        if self.writable != 0 {
            let control = (u64::from(tag) << 32) | u64::from(number.wrapping_add(1));
            #[cfg(target_arch = "x86_64")]
            if self.has_wide_moves {
                // SAFETY: the slot belongs to the ring, which is writable. The processor has AVX.
                return unsafe { Self::fill_wide(self.slot(number), control, payload) };
            }
            // SAFETY: the slot belongs to the ring, which is writable.
            unsafe { Self::fill::<NarrowMoves>(self.slot(number), control, payload) };
        }
    }

    /// Fills slots as [`Slots::put`] does, for packets from `number` on. Returns the number of
    /// packets put. The run ends at the ring's last slot; the caller continues after it with
    /// another call. Returns 0 if the memory is mapped read-only.
    #[inline]
    pub fn put_run(&self, number: u32, tag: u32, payloads: &[[u8; N]]) -> usize {
        if self.writable == 0 {
            return 0;
        }

        let slots_to_end = (self.writable - (number & self.mask)) as usize;
        let count = payloads.len().min(slots_to_end);
        let payloads = &payloads[..count];
        if self.is_last_lap(number) {
            return self.put_one_by_one(number, tag, payloads);
        }

        // One addition for each packet gives its control word: it counts up the number, and carries
        // nothing into the tag above it before the last lap.
        let control_before = (u64::from(tag) << 32) | u64::from(number);
        let slot = self.slot(number);
        #[cfg(target_arch = "x86_64")]
        if self.has_wide_moves {
            // SAFETY: the ring has as many slots left as there are payloads, and is writable. The
            // processor has AVX.
            unsafe { Self::put_wide(slot, control_before, payloads) };
            return count;
        }

        // SAFETY: the ring has as many slots left as there are payloads, and is writable.
        unsafe { Self::put_all::<NarrowMoves>(slot, control_before, payloads) };

        count
    }

    /// Copies the payloads of packets from `number` on into `targets`. The run ends at a slot that
    /// does not hold its packet, or whose control word has a bit of `stop` in its upper half.
    ///
    /// Returns the number of packets copied. The run also ends at the ring's last slot; the caller
    /// continues after it with another call.
    #[inline]
    pub fn take_run(&self, number: u32, stop: u32, targets: &mut [[u8; N]]) -> usize {
        let slots_to_end = (self.count() - (number & self.mask)) as usize;
        let count = targets.len().min(slots_to_end);
        let targets = &mut targets[..count];
        // In these bits, a control word must equal the packet's number plus 1.
        let mask = (u64::from(stop) << 32) | u64::from(u32::MAX);
        if self.is_last_lap(number) {
            return self.take_one_by_one(number, mask, targets);
        }

        let (slot, control_before) = (self.slot(number), u64::from(number));
        #[cfg(target_arch = "x86_64")]
        if self.has_wide_moves {
            // SAFETY: the ring has as many slots left as there are targets. The processor has AVX.
            return unsafe { Self::take_wide(slot, mask, control_before, targets) };
        }

        // SAFETY: the ring has as many slots left as there are targets.
        unsafe { Self::take_all::<NarrowMoves>(slot, mask, control_before, targets) }
    }

    /// Returns whether the numbers wrap to 0 after the ring's last slot.
    #[inline]
    fn is_last_lap(&self, number: u32) -> bool {
        number | self.mask == u32::MAX
    }

    /// Fills slots one after the other, and returns their number. It is for the last lap before the
    /// packet numbers wrap to 0.
    #[cold]
    fn put_one_by_one(&self, number: u32, tag: u32, payloads: &[[u8; N]]) -> usize {
        for (payload, ahead) in payloads.iter().zip(0..) {
            self.put(number.wrapping_add(ahead), tag, payload);
        }
        payloads.len()
    }

    /// Copies packets one after the other, up to the first slot that does not match in the bits of
    /// `mask`. Returns the number copied. It is for the last lap before the packet numbers wrap to
    /// 0.
    #[cold]
    fn take_one_by_one(&self, number: u32, mask: u64, targets: &mut [[u8; N]]) -> usize {
        let mut count = 0;
        for target in targets {
            let number = number.wrapping_add(count);
            let expected = number.wrapping_add(1).into();
            // SAFETY: the slot belongs to the ring.
            if !unsafe { Self::take_slot::<NarrowMoves>(self.slot(number), mask, expected, target) } {
                break;
            }
            count += 1;
        }

        count as usize
    }

    /// Copies a payload by [`WideMoves`].
    ///
    /// # Safety
    /// `source` must be the payload of a slot of a ring; the processor must have AVX.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx")]
    unsafe fn payload_wide(source: *const u8, out: &mut [u8; N]) {
        // SAFETY: by this function's contract; the target is a private array.
        unsafe { WideMoves::from_shared::<N>(out.as_mut_ptr(), source) };
    }

    /// Does the work of [`Slots::fill`] by [`WideMoves`].
    ///
    /// # Safety
    /// As [`Slots::fill`]; the processor must have AVX.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx")]
    unsafe fn fill_wide(slot: *mut u8, control: u64, payload: &[u8; N]) {
        // SAFETY: by this function's contract.
        unsafe { Self::fill::<WideMoves>(slot, control, payload) };
    }

    /// Does the work of [`Slots::put_all`] by [`WideMoves`].
    ///
    /// # Safety
    /// As [`Slots::put_all`]; the processor must have AVX.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx")]
    unsafe fn put_wide(slot: *mut u8, control_before: u64, payloads: &[[u8; N]]) {
        // SAFETY: by this function's contract.
        unsafe { Self::put_all::<WideMoves>(slot, control_before, payloads) };
    }

    /// Does the work of [`Slots::take_all`] by [`WideMoves`].
    ///
    /// # Safety
    /// As [`Slots::take_all`]; the processor must have AVX.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx")]
    unsafe fn take_wide(slot: *mut u8, mask: u64, control_before: u64, targets: &mut [[u8; N]]) -> usize {
        // SAFETY: by this function's contract.
        unsafe { Self::take_all::<WideMoves>(slot, mask, control_before, targets) }
    }

    /// Fills slots from `slot` on. The first control word is `control_before` plus 1.
    ///
    /// # Safety
    /// `slot` and the slots after it must be writable slots of a ring, as many as there are
    /// payloads.
    #[inline(always)]
    unsafe fn put_all<M: Moves>(mut slot: *mut u8, control_before: u64, payloads: &[[u8; N]]) {
        let mut control = control_before;
        let (groups, rest) = payloads.as_chunks::<UNROLLED>();
        for group in groups {
            for payload in group {
                control += 1;
                // SAFETY: by this function's contract.
                unsafe { Self::fill::<M>(slot, control, payload) };
                slot = slot.wrapping_add(STRIDE);
            }
        }

        for payload in rest {
            control += 1;
            // SAFETY: by this function's contract.
            unsafe { Self::fill::<M>(slot, control, payload) };
            slot = slot.wrapping_add(STRIDE);
        }
    }

    /// Copies packets from `slot` on, up to the first whose control word does not match in the bits
    /// of `mask`. The first control word must be `control_before` plus 1. Returns the number of
    /// packets copied.
    ///
    /// # Safety
    /// `slot` and the slots after it must be slots of a ring, as many as there are targets.
    #[inline(always)]
    unsafe fn take_all<M: Moves>(
        mut slot: *mut u8,
        mask: u64,
        control_before: u64,
        targets: &mut [[u8; N]],
    ) -> usize {
        let mut expected = control_before;
        let (groups, rest) = targets.as_chunks_mut::<UNROLLED>();
        for group in groups {
            for target in group {
                expected += 1;
                // SAFETY: by this function's contract.
                if !unsafe { Self::take_slot::<M>(slot, mask, expected, target) } {
                    return (expected - 1 - control_before) as usize;
                }
                slot = slot.wrapping_add(STRIDE);
            }
        }

        for target in rest {
            expected += 1;
            // SAFETY: by this function's contract.
            if !unsafe { Self::take_slot::<M>(slot, mask, expected, target) } {
                return (expected - 1 - control_before) as usize;
            }
            slot = slot.wrapping_add(STRIDE);
        }

        (expected - control_before) as usize
    }

    /// Fills a slot: copies the payload, and then stores the control word with release order.
    ///
    /// # Safety
    /// `slot` must be a writable slot of a ring.
    #[inline(always)]
    unsafe fn fill<M: Moves>(slot: *mut u8, control: u64, payload: &[u8; N]) {
        // SAFETY: the slot's payload is aligned, and the source is a private array.
        unsafe { M::to_shared::<N>(slot.wrapping_add(PAYLOAD_AT), payload.as_ptr()) };
        // SAFETY: the slot's control word is aligned.
        unsafe { AtomicU64::from_ptr(slot.cast()) }.store(control, Ordering::Release);
    }

    /// Copies the payload if the control word equals `expected` in the bits of `mask`. Returns
    /// whether it does.
    ///
    /// # Safety
    /// `slot` must be a slot of a ring.
    #[inline(always)]
    unsafe fn take_slot<M: Moves>(slot: *mut u8, mask: u64, expected: u64, target: &mut [u8; N]) -> bool {
        // SAFETY: the slot's control word is aligned.
        let control = unsafe { AtomicU64::from_ptr(slot.cast()) }.load(Ordering::Acquire);
        if control & mask != expected {
            return false;
        }

        // SAFETY: the slot's payload is aligned, and the target is a private array.
        unsafe { M::from_shared::<N>(target.as_mut_ptr(), slot.wrapping_add(PAYLOAD_AT)) };

        true
    }
}

impl<const STRIDE: usize, const PAYLOAD_AT: usize, const N: usize> fmt::Debug
    for Slots<STRIDE, PAYLOAD_AT, N>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").field("count", &self.count()).field("window", &self.window).finish()
    }
}
