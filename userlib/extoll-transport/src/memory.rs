//! Registered memory: areas of the staging memory, which stay or last for one transfer.

use nicforge_driver::{Device, DmaBuffer, Error as DriverError, HugePages};
use nicforge_matching::staging::{Area, Staging};
use nicforge_rma::{Access as Allow, Error as RmaError, Port, Region as Registration};

use crate::{Config, Error};

/// Memory of the transport that a card may reach.
pub(crate) struct RegisteredMemory {
    /// Declared before the memory, so that the registration is dropped first.
    registration: Registration,
    memory: DmaBuffer,
}

impl RegisteredMemory {
    /// Allocates memory, and registers it for gets of other processes.
    fn new(device: &Device, rma: &Port, bytes: usize) -> Result<Self, Error> {
        let memory = device.dma_buffer(bytes, HugePages::Try)?;
        let registration = rma.register(&memory, Allow::READ)?;
        Ok(Self { registration, memory })
    }

    /// Allocates the memory of a source that is too long for the shared area. Returns `None` when
    /// other sources use the card's entries, which they free when they are done.
    pub(crate) fn for_source(
        device: &Device,
        rma: &Port,
        bytes: usize,
        others_have_entries: bool,
    ) -> Result<Option<Self>, Error> {
        match Self::new(device, rma, bytes) {
            Err(Error::Rma(RmaError::Translation { .. })) if others_have_entries => Ok(None),
            result => result.map(Some),
        }
    }
}

impl Area for RegisteredMemory {
    fn memory(&self) -> &DmaBuffer {
        &self.memory
    }

    fn address(&self) -> u64 {
        self.registration.address()
    }
}

/// Allocates and registers the staging memory. It is shorter than configured where the kernel has
/// no such piece of memory, as without an IOMMU.
pub(crate) fn staging(
    device: &Device,
    rma: &Port,
    config: &Config,
) -> Result<Staging<RegisteredMemory>, Error> {
    Staging::new(config.staging, config.longest_staging, |bytes, is_last| {
        match RegisteredMemory::new(device, rma, bytes) {
            Err(Error::Driver(DriverError::Refused { errno, .. }))
                if errno == nix::errno::Errno::ENOMEM as i32 && !is_last =>
            {
                Ok(None)
            }
            found => found.map(Some),
        }
    })
}
