//! The tenancy of a device: its generation, and whether it is lost.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use nicforge_shm::SharedU32;

use crate::{Error, GoneCause};

/// The generation that this process expects, and the loss of the device.
///
/// Invariant: `gone` is 0, or the code of the cause recorded last. A completed reset by this
/// process clears it.
#[derive(Default)]
pub(super) struct Tenancy {
    /// The generation that this process expects.
    generation: AtomicU32,
    gone: AtomicU8,
}

/// Returns the code of a cause.
fn encode(cause: GoneCause) -> u8 {
    match cause {
        GoneCause::HungUp => 1,
        GoneCause::Evicted => 2,
        GoneCause::Reset => 3,
        GoneCause::Stopped => 4,
        GoneCause::Withdrawn => 5,
    }
}

/// Returns the cause with a code, or `None` for 0.
fn decode(code: u8) -> Option<GoneCause> {
    Some(match code {
        0 => return None,
        1 => GoneCause::HungUp,
        2 => GoneCause::Evicted,
        3 => GoneCause::Reset,
        4 => GoneCause::Stopped,
        _ => GoneCause::Withdrawn,
    })
}

impl Tenancy {
    /// Returns the generation that this process expects.
    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Sets the generation that this process expects.
    pub(super) fn set_generation(&self, generation: u32) {
        self.generation.store(generation, Ordering::Release);
    }

    /// Records that the device is lost.
    pub(super) fn record_loss(&self, cause: GoneCause) {
        self.gone.store(encode(cause), Ordering::Release);
    }

    /// Returns the cause of the loss, if the device is lost.
    pub(super) fn loss_cause(&self) -> Option<GoneCause> {
        decode(self.gone.load(Ordering::Acquire))
    }

    /// Records that the device is usable again.
    pub(super) fn clear_loss(&self) {
        self.gone.store(0, Ordering::Release);
    }

    /// Records that the mirror's generation `present` is not the expected one, and returns the
    /// error: the attachment was reset by another party, or by another thread of this process. In
    /// the second case that reset may have completed by now, and the device is then not recorded as
    /// lost.
    #[cold]
    pub(super) fn handle_changed_generation(&self, present: &SharedU32) -> Error {
        let cause = GoneCause::Reset;
        self.gone.swap(encode(cause), Ordering::AcqRel);

        // The generations agree if this process has just adopted the new one.
        if present.load(Ordering::Acquire) == self.generation() {
            let _ = self.gone.compare_exchange(encode(cause), 0, Ordering::AcqRel, Ordering::Relaxed);
        }

        Error::DeviceGone { cause }
    }
}
