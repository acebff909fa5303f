//! Client memory that a device holds on to between calls.
//!
//! Looking an address up for every packet costs more than the packet. A device that goes on using one place (a receive ring, the source of a
//! transfer under way) takes a lease of it and asks each time whether it still has it. The core takes leases back when the memory is
//! unmapped, when the function loses *bus master*, and when the client ends; from then on nothing of it is touched.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use nicforge_shm::Window;

/// Whether the leases of a mapping, or of a part of it that a device manages itself, are still good. Dropping it takes them back.
#[derive(Debug, Default)]
pub struct Lessor(Option<Arc<AtomicBool>>);

impl Lessor {
    fn token(&mut self) -> Arc<AtomicBool> {
        self.0.get_or_insert_with(|| Arc::new(AtomicBool::new(true))).clone()
    }

    /// Takes back all leases there are. Later ones are new.
    pub fn take_back(&mut self) {
        if let Some(token) = self.0.take() {
            token.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for Lessor {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// A piece of one mapping of client memory, or of a device's own.
///
/// Clones are of the same lease. Whoever drives the machine also unmaps, so that a lease that is good stays good for the length of one call of a
/// device.
#[derive(Clone, Debug)]
pub struct DmaLease {
    window: Window,
    mapping: Arc<AtomicBool>,
    /// Of the device that subleases it.
    device: Option<Arc<AtomicBool>>,
}

impl DmaLease {
    /// A lease of `window`, which `lessor` can take back: of client memory by the map, or of memory that a device itself has.
    pub fn new(window: Window, lessor: &mut Lessor) -> Self {
        Self { window, mapping: lessor.token(), device: None }
    }

    /// The same memory, which `lessor` can take back too. A lease has one such lessor: one that it had is replaced.
    #[must_use]
    pub fn subleased(mut self, lessor: &mut Lessor) -> Self {
        self.device = Some(lessor.token());
        self
    }

    /// A part of it.
    ///
    /// # Errors
    /// When it is not a part.
    pub fn part(&self, offset: u64, length: u64) -> Result<Self, nicforge_shm::MemoryError> {
        Ok(Self { window: self.window.window(offset, length)?, ..self.clone() })
    }

    /// The memory, unless the lease was taken back or the client's file has lost it.
    #[inline]
    pub fn window(&self) -> Option<&Window> {
        let good = self.mapping.load(Ordering::Relaxed)
            && self.device.as_ref().is_none_or(|device| device.load(Ordering::Relaxed))
            && !self.window.faulted();
        good.then_some(&self.window)
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.window.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.window.is_empty()
    }
}
