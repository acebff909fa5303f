//! A subgroup of the node: its memory, and what this program has allocated of it.

use std::sync::Arc;

use nicforge_driver::DmaBuffer;
use nicforge_spi::{Barrier, InjectionAttributes, Resource, Subgroup};

use super::{
    failure::{failure, invalid},
    types::{BGQ_COLL_CLASS_MAX_CLASSROUTES, BGQ_MU_NUM_INJ_FIFOS_PER_SUBGROUP},
};
use crate::support::{Failure, Handle, HasHandle};

/// A subgroup of the node. One thread at a time uses it.
pub struct nicforge_spi_subgroup(Handle<Inner>);

impl HasHandle for nicforge_spi_subgroup {
    type Object = Inner;

    fn handle(&self) -> &Handle<Inner> {
        &self.0
    }
}

impl nicforge_spi_subgroup {
    /// Returns the handle of an open subgroup.
    pub(super) fn new(subgroup: Subgroup) -> Result<Self, Failure> {
        Ok(Self(Handle::new(Inner::new(subgroup))?))
    }
}

/// The Rust side of a [`nicforge_spi_subgroup`].
pub(crate) struct Inner {
    pub(super) subgroup: Subgroup,
    /// Memory that the program has allocated.
    memory: Vec<Arc<DmaBuffer>>,
    /// Bit masks of the allocated injection FIFOs, reception FIFOs and base addresses, in this
    /// order.
    allocated: [u8; 3],
    /// Attributes of the injection FIFOs, kept from their allocation to their initialisation.
    pub(super) attributes: [InjectionAttributes; BGQ_MU_NUM_INJ_FIFOS_PER_SUBGROUP],
    /// The barriers of the class routes, each from its first use on.
    barriers: [Option<Barrier>; BGQ_COLL_CLASS_MAX_CLASSROUTES as usize],
}

/// Returns the index of a resource in [`Inner::allocated`].
fn index(resource: Resource) -> usize {
    match resource {
        Resource::InjectionFifo => 0,
        Resource::ReceptionFifo => 1,
        _ => 2,
    }
}

impl Inner {
    /// Returns a subgroup of which nothing is allocated.
    fn new(subgroup: Subgroup) -> Self {
        Self {
            subgroup,
            memory: Vec::new(),
            allocated: [0; 3],
            attributes: [InjectionAttributes::default(); BGQ_MU_NUM_INJ_FIFOS_PER_SUBGROUP],
            barriers: [const { None }; BGQ_COLL_CLASS_MAX_CLASSROUTES as usize],
        }
    }

    /// Returns the bit mask of these numbers. Refuses numbers that the resource does not have.
    fn bit_mask(resource: Resource, numbers: &[u32]) -> Result<u8, Failure> {
        let mut bits = 0;
        for &number in numbers {
            if number >= resource.count().into() {
                return Err(invalid(format!("there is no {resource} {number}")));
            }
            bits |= 1 << number;
        }
        Ok(bits)
    }

    /// Allocates all numbers, or none.
    pub(super) fn allocate(&mut self, resource: Resource, numbers: &[u32]) -> Result<(), Failure> {
        let bits = Self::bit_mask(resource, numbers)?;
        let allocated = &mut self.allocated[index(resource)];
        if *allocated & bits != 0 {
            let text = format!("{resource}s {:#04x} are allocated already", *allocated & bits);
            return Err(Failure::new(libc::EBUSY, text));
        }

        *allocated |= bits;
        Ok(())
    }

    /// Frees all numbers, or none if one is not allocated. FIFOs are stopped, and base addresses
    /// are cleared.
    pub(super) fn free(&mut self, resource: Resource, numbers: &[u32]) -> Result<(), Failure> {
        let bits = self.allocated_bits(resource, numbers)?;
        match resource {
            Resource::InjectionFifo => self.subgroup.set_injection_enabled(bits, false).map_err(failure)?,
            Resource::ReceptionFifo => self.subgroup.set_reception_enabled(bits, false).map_err(failure)?,
            _ => {
                for &number in numbers {
                    let cleared = nicforge_spi::NO_BASE_ADDRESS;
                    self.subgroup.set_base_address(number as u8, cleared).map_err(failure)?;
                }
            }
        }
        self.allocated[index(resource)] &= !bits;
        Ok(())
    }

    /// Returns the bit mask of these numbers. Refuses numbers that are not allocated.
    pub(super) fn allocated_bits(&self, resource: Resource, numbers: &[u32]) -> Result<u8, Failure> {
        let bits = Self::bit_mask(resource, numbers)?;
        let missing = bits & !self.allocated[index(resource)];
        if missing != 0 {
            return Err(Failure::new(libc::ENXIO, format!("{resource}s {missing:#04x} are not allocated")));
        }
        Ok(bits)
    }

    /// Returns the numbers that are not allocated.
    pub(super) fn unallocated(&self, resource: Resource) -> impl Iterator<Item = u32> + use<> {
        let allocated = self.allocated[index(resource)];
        (0..u32::from(resource.count())).filter(move |number| allocated >> number & 1 == 0)
    }

    /// Allocates memory, and returns the address of its first byte in this process.
    pub(super) fn allocate_memory(&mut self, bytes: usize) -> Result<usize, Failure> {
        let buffer = self.subgroup.memory(bytes).map_err(failure)?;
        let address = buffer.window().base_address();
        self.memory.push(Arc::new(buffer));
        Ok(address)
    }

    /// Returns the allocated memory that contains these bytes of this process, and their offset in
    /// it.
    pub(super) fn find_memory(&self, address: usize, bytes: usize) -> Option<(Arc<DmaBuffer>, u64)> {
        self.memory.iter().find_map(|buffer| {
            let offset = address.checked_sub(buffer.window().base_address())? as u64;
            let end = offset.checked_add(bytes as u64)?;
            (end <= buffer.len()).then(|| (buffer.clone(), offset))
        })
    }

    /// Opens the barrier of a class route, in place of an earlier one.
    pub(super) fn init_barrier(&mut self, class: u64) -> Result<(), Failure> {
        let slot = barrier_slot(&mut self.barriers, class)?;
        *slot = Some(self.subgroup.barrier(class as u8).map_err(failure)?);
        Ok(())
    }

    /// Returns the subgroup and its barrier of a class route, which the first call opens.
    pub(super) fn barrier(&mut self, class: u64) -> Result<(&mut Subgroup, &mut Barrier), Failure> {
        let slot = barrier_slot(&mut self.barriers, class)?;
        let barrier = match slot {
            Some(barrier) => barrier,
            None => slot.insert(self.subgroup.barrier(class as u8).map_err(failure)?),
        };
        Ok((&mut self.subgroup, barrier))
    }
}

/// Returns the place of the barrier of a class route.
fn barrier_slot(barriers: &mut [Option<Barrier>], class: u64) -> Result<&mut Option<Barrier>, Failure> {
    let slot = usize::try_from(class).ok().and_then(|class| barriers.get_mut(class));
    slot.ok_or_else(|| invalid(format!("there is no class route {class}")))
}
