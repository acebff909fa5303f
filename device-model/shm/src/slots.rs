//! Rings of packet slots: the accessor of a packet FIFO in mapped memory.
//!
//! A slot is a control word of 8 bytes at its start and a payload behind. Packets have numbers
//! modulo 2^32, and packet `n` lies in slot `n` modulo the ring's length, a power of two, so that
//! no number leads out of the ring: what an accessor of a [`Window`] has to compare once a word, a
//! ring has settled when it is made. A full slot's control word has the packet's number and one,
//! modulo 2^32, in its low half; an old packet's number is therefore never taken for the next
//! one's.
//!
//! UNSAFETY: dereferences addresses in a mapping. Each is the ring's base and a slot's offset below
//! the ring's length, which was compared with the window's length, and whose alignment was checked,
//! when the ring was made.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(target_arch = "x86_64")]
use crate::copy::Wide;
use crate::copy::{self, Moves, Narrow};
use crate::error::MemoryError;
use crate::window::Window;

/// Alignment of a ring, its slots and their payloads in bytes: a cache line, and the widest vector.
const ALIGN: usize = 64;

/// Packets in one turn of the loops of a run, so that what is not copying is counted once for them.
const UNROLLED: usize = 4;

/// Slots of `STRIDE` bytes each with payloads of `N` bytes, `PAYLOAD_AT` bytes behind the control
/// word.
///
/// Stores are in order: whoever loads a control word with acquire order sees the payload that was
/// stored before it.
#[derive(Clone)]
pub struct Slots<const STRIDE: usize, const PAYLOAD_AT: usize, const N: usize> {
    window: Window,
    /// Slots, less one.
    mask: u32,
    /// Slots when stores are allowed, and 0 when not.
    writable: u32,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "always false there"))]
    /// Whether this processor moves 32 bytes at once, which the program need not have been built
    /// for.
    wide: bool,
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

    /// The ring of `count` slots, a power of two, at `offset` of `window`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`]; [`MemoryError::Misaligned`] when it is not aligned to 64 bytes
    /// in memory; [`MemoryError::SlotCount`].
    pub fn new(window: &Window, offset: u64, count: u32) -> Result<Self, MemoryError> {
        let () = Self::LAYOUT;
        if !count.is_power_of_two() {
            return Err(MemoryError::SlotCount { count });
        }

        // What does not fit 64 bits fits no window either.
        let len = u64::from(count).saturating_mul(STRIDE as u64);
        let window = window.window(offset, len)?;
        if !window.base_address().is_multiple_of(ALIGN) {
            return Err(MemoryError::Misaligned { offset, align: ALIGN as u64 });
        }

        let writable = if window.is_writable() { count } else { 0 };

        Ok(Self { window, mask: count - 1, writable, wide: copy::has_wide_moves() })
    }

    /// How many there are.
    #[inline]
    pub fn count(&self) -> u32 {
        self.mask + 1
    }

    /// The slot of packet `number`.
    #[inline]
    fn slot(&self, number: u32) -> *mut u8 {
        let offset = (number & self.mask) as usize * STRIDE;
        // SAFETY: a slot below the count, all of which are in the window.
        unsafe { self.window.base_pointer().add(offset) }
    }

    /// The control word of the slot of packet `number`, loaded with acquire order.
    #[inline]
    pub fn control(&self, number: u32) -> u64 {
        // SAFETY: in bounds and aligned; the mapping is alive as long as `self`.
        unsafe { AtomicU64::from_ptr(self.slot(number).cast()) }.load(Ordering::Acquire)
    }

    /// As [`Slots::control`], if the slot holds packet `number`.
    #[inline]
    pub fn holds(&self, number: u32) -> Option<u64> {
        let control = self.control(number);
        (control as u32 == number.wrapping_add(1)).then_some(control)
    }

    /// Copies the payload of the slot of packet `number`.
    #[inline]
    pub fn payload(&self, number: u32, out: &mut [u8; N]) {
        let source = self.slot(number).wrapping_add(PAYLOAD_AT);
        #[cfg(target_arch = "x86_64")]
        if self.wide {
            // SAFETY: the source is in bounds and aligned, the target is an array of ours; the
            // processor was asked.
            return unsafe { Self::payload_wide(source, out) };
        }

        // SAFETY: the source is in bounds and aligned, the target is an array of ours.
        unsafe { Narrow::from_shared::<N>(out.as_mut_ptr(), source) };
    }

    /// Copies the first bytes of the payload of the slot of packet `number`: as many as `out`
    /// takes, `N` at most.
    #[inline]
    pub fn payload_start(&self, number: u32, out: &mut [u8]) {
        let len = out.len().min(N);
        // SAFETY: the source is in bounds, the target is a slice of ours that is not shorter.
        unsafe {
            copy::copy_from_shared(out.as_mut_ptr(), self.slot(number).wrapping_add(PAYLOAD_AT), len);
        };
    }

    /// Fills the slot of packet `number`: the payload, then, with release order, the control word,
    /// with `tag` in its upper half. Stores have no effect in memory that is mapped read-only.
    #[inline]
    pub fn put(&self, number: u32, tag: u32, payload: &[u8; N]) {
        if self.writable != 0 {
            let control = (u64::from(tag) << 32) | u64::from(number.wrapping_add(1));
            #[cfg(target_arch = "x86_64")]
            if self.wide {
                // SAFETY: a slot of the ring, which is writable; the processor was asked.
                return unsafe { Self::fill_wide(self.slot(number), control, payload) };
            }
            // SAFETY: a slot of the ring, which is writable.
            unsafe { Self::fill::<Narrow>(self.slot(number), control, payload) };
        }
    }

    /// As [`Slots::put`], for packets one after the other. Gives how many were put: fewer than
    /// there are where the ring's last slot was reached, from where another call goes on; none when
    /// the memory is mapped read-only.
    #[inline]
    pub fn put_run(&self, number: u32, tag: u32, payloads: &[[u8; N]]) -> usize {
        if self.writable == 0 {
            return 0;
        }

        let left = (self.writable - (number & self.mask)) as usize;
        let many = payloads.len().min(left);
        if self.is_last_lap(number) {
            return self.put_one_by_one(number, tag, &payloads[..many]);
        }

        // Counted up in one go with the tag above: there is no carry before the last number.
        let control = (u64::from(tag) << 32) | u64::from(number);
        let (slot, payloads) = (self.slot(number), &payloads[..many]);
        #[cfg(target_arch = "x86_64")]
        if self.wide {
            // SAFETY: as many slots as there are payloads are left in the ring, which is writable;
            // the processor was asked.
            unsafe { Self::put_wide(slot, control, payloads) };
            return many;
        }

        // SAFETY: as many slots as there are payloads are left in the ring, which is writable.
        unsafe { Self::put_all::<Narrow>(slot, control, payloads) };

        many
    }

    /// Copies the payloads of packet `number` and those behind it, as long as there are targets and
    /// the slots hold these packets without any bit of `stop` in the upper half of their control
    /// words. Gives how many were copied: fewer also where the ring's last slot was reached, from
    /// where another call goes on.
    #[inline]
    pub fn take_run(&self, number: u32, stop: u32, targets: &mut [[u8; N]]) -> usize {
        let left = (self.count() - (number & self.mask)) as usize;
        let many = targets.len().min(left);
        let mask = (u64::from(stop) << 32) | u64::from(u32::MAX);
        if self.is_last_lap(number) {
            return self.take_one_by_one(number, mask, &mut targets[..many]);
        }

        let (slot, expected, targets) = (self.slot(number), u64::from(number), &mut targets[..many]);
        #[cfg(target_arch = "x86_64")]
        if self.wide {
            // SAFETY: as many slots as there are targets are left in the ring; the processor was
            // asked.
            return unsafe { Self::take_wide(slot, mask, expected, targets) };
        }

        // SAFETY: as many slots as there are targets are left in the ring.
        unsafe { Self::take_all::<Narrow>(slot, mask, expected, targets) }
    }

    /// Whether one of the numbers from here to the ring's last slot is the last one, behind which
    /// they begin at 0 again.
    #[inline]
    fn is_last_lap(&self, number: u32) -> bool {
        number | self.mask == u32::MAX
    }

    #[cold]
    fn put_one_by_one(&self, number: u32, tag: u32, payloads: &[[u8; N]]) -> usize {
        for (payload, ahead) in payloads.iter().zip(0..) {
            self.put(number.wrapping_add(ahead), tag, payload);
        }
        payloads.len()
    }

    #[cold]
    fn take_one_by_one(&self, number: u32, mask: u64, targets: &mut [[u8; N]]) -> usize {
        let mut taken = 0;
        for target in targets {
            let number = number.wrapping_add(taken);
            // SAFETY: a slot of the ring.
            if !unsafe {
                Self::take::<Narrow>(self.slot(number), mask, number.wrapping_add(1).into(), target)
            } {
                break;
            }
            taken += 1;
        }

        taken as usize
    }

    /// # Safety
    /// `source` must be the payload of a slot of a ring; the processor must have AVX.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx")]
    unsafe fn payload_wide(source: *const u8, out: &mut [u8; N]) {
        // SAFETY: passed on; the target is an array of ours.
        unsafe { Wide::from_shared::<N>(out.as_mut_ptr(), source) };
    }

    /// # Safety
    /// As [`Slots::fill`]; the processor must have AVX.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx")]
    unsafe fn fill_wide(slot: *mut u8, control: u64, payload: &[u8; N]) {
        // SAFETY: passed on.
        unsafe { Self::fill::<Wide>(slot, control, payload) };
    }

    /// # Safety
    /// As [`Slots::put_all`]; the processor must have AVX.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx")]
    unsafe fn put_wide(slot: *mut u8, control: u64, payloads: &[[u8; N]]) {
        // SAFETY: passed on.
        unsafe { Self::put_all::<Wide>(slot, control, payloads) };
    }

    /// # Safety
    /// As [`Slots::take_all`]; the processor must have AVX.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx")]
    unsafe fn take_wide(slot: *mut u8, mask: u64, expected: u64, targets: &mut [[u8; N]]) -> usize {
        // SAFETY: passed on.
        unsafe { Self::take_all::<Wide>(slot, mask, expected, targets) }
    }

    /// Fills slots, the control word of the first of which is one more than `control`.
    ///
    /// # Safety
    /// As many writable slots of a ring as there are payloads must begin at `slot`.
    #[inline(always)]
    unsafe fn put_all<M: Moves>(mut slot: *mut u8, mut control: u64, payloads: &[[u8; N]]) {
        let (groups, rest) = payloads.as_chunks::<UNROLLED>();
        for group in groups {
            for payload in group {
                control += 1;
                // SAFETY: passed on.
                unsafe { Self::fill::<M>(slot, control, payload) };
                slot = slot.wrapping_add(STRIDE);
            }
        }

        for payload in rest {
            control += 1;
            // SAFETY: passed on.
            unsafe { Self::fill::<M>(slot, control, payload) };
            slot = slot.wrapping_add(STRIDE);
        }
    }

    /// Takes packets out of slots, the control word of the first of which is to be one more than
    /// `before`. Gives how many.
    ///
    /// # Safety
    /// As many slots of a ring as there are targets must begin at `slot`.
    #[inline(always)]
    unsafe fn take_all<M: Moves>(
        mut slot: *mut u8,
        mask: u64,
        before: u64,
        targets: &mut [[u8; N]],
    ) -> usize {
        let mut expected = before;
        let (groups, rest) = targets.as_chunks_mut::<UNROLLED>();
        for group in groups {
            for target in group {
                expected += 1;
                // SAFETY: passed on.
                if !unsafe { Self::take::<M>(slot, mask, expected, target) } {
                    return (expected - 1 - before) as usize;
                }
                slot = slot.wrapping_add(STRIDE);
            }
        }

        for target in rest {
            expected += 1;
            // SAFETY: passed on.
            if !unsafe { Self::take::<M>(slot, mask, expected, target) } {
                return (expected - 1 - before) as usize;
            }
            slot = slot.wrapping_add(STRIDE);
        }

        (expected - before) as usize
    }

    /// # Safety
    /// `slot` must be a writable slot of a ring.
    #[inline(always)]
    unsafe fn fill<M: Moves>(slot: *mut u8, control: u64, payload: &[u8; N]) {
        // SAFETY: the slot's payload, aligned; the source is an array of ours.
        unsafe { M::to_shared::<N>(slot.wrapping_add(PAYLOAD_AT), payload.as_ptr()) };
        // SAFETY: the slot's control word, aligned.
        unsafe { AtomicU64::from_ptr(slot.cast()) }.store(control, Ordering::Release);
    }

    /// Copies the payload if the control word, as far as `mask` goes, is the one expected.
    ///
    /// # Safety
    /// `slot` must be a slot of a ring.
    #[inline(always)]
    unsafe fn take<M: Moves>(slot: *mut u8, mask: u64, expected: u64, target: &mut [u8; N]) -> bool {
        // SAFETY: the slot's control word, aligned.
        let control = unsafe { AtomicU64::from_ptr(slot.cast()) }.load(Ordering::Acquire);
        if control & mask != expected {
            return false;
        }

        // SAFETY: the slot's payload, aligned; the target is an array of ours.
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
