//! The state that the lock of a kernel protects: allocations and the device control registers.

use std::collections::BTreeSet;

use nicforge_driver::Bar;
use nicforge_hwi::{
    mu::{DEVICE_CONTROL, SUBGROUPS, SUBGROUPS_OF_GROUP},
    nd_dcr,
};

use super::{AddressRange, NETWORK_OFFSET};
use crate::{ClassRoute, Error, Resource};

/// Lowest 20 bits of an address, which range registers do not have.
const WITHIN_MIB: u64 = (1 << 20) - 1;

/// The registers with one bit for each FIFO: one register for each group of subgroups.
#[derive(Clone, Copy)]
pub(super) struct FifoRegister {
    /// Offset of the register of group 0.
    pub(super) offset: u64,
    /// Number of FIFOs of a subgroup.
    pub(super) fifos: u16,
}

/// The registers of address ranges: the offsets of the first registers of lowest and of highest
/// addresses, and of the register of ranges that can only be read; and the number of ranges.
pub(super) struct RangeRegisters {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) read_only: u64,
    pub(super) count: usize,
}

/// Resources that the kernel has allocated: kind, subgroup (0 for those of the node), and number.
#[derive(Default)]
pub(super) struct Allocated(pub(super) BTreeSet<(Resource, u16, u8)>);

/// The state that the lock of a [`Kernel`](super::Kernel) protects.
pub(super) struct State {
    pub(super) registers: Bar,
    pub(super) allocated: Allocated,
}

impl Allocated {
    pub(super) fn allocate(
        &mut self,
        resource: Resource,
        subgroup: u16,
        numbers: &[u8],
    ) -> Result<(), Error> {
        check_numbers(resource, subgroup, numbers)?;
        if let Some(&number) = numbers.iter().find(|number| self.0.contains(&(resource, subgroup, **number)))
        {
            return Err(Error::Taken { resource, number, subgroup });
        }

        self.0.extend(numbers.iter().map(|number| (resource, subgroup, *number)));
        Ok(())
    }

    pub(super) fn release(&mut self, resource: Resource, subgroup: u16, numbers: &[u8]) -> Result<(), Error> {
        let is_missing = |number: &&u8| !self.0.contains(&(resource, subgroup, **number));
        if let Some(&number) = numbers.iter().find(is_missing) {
            return Err(Error::NotAllocated { resource, number, subgroup });
        }

        for number in numbers {
            self.0.remove(&(resource, subgroup, *number));
        }
        Ok(())
    }
}

impl State {
    /// Replaces the bits of `mask` in a register by those of `bits`.
    pub(super) fn set_bits(&self, register: u64, mask: u64, bits: u64) -> Result<(), Error> {
        self.write(register, self.read(register)? & !mask | bits)
    }

    pub(super) fn read(&self, register: u64) -> Result<u64, Error> {
        Ok(self.registers.read64(DEVICE_CONTROL + register)?)
    }

    pub(super) fn write(&self, register: u64, value: u64) -> Result<(), Error> {
        Ok(self.registers.write64(DEVICE_CONTROL + register, value)?)
    }

    /// Sets or clears the bits of a subgroup's FIFOs in a register.
    pub(super) fn set_fifos(
        &mut self,
        register: FifoRegister,
        subgroup: u16,
        fifos: &[u8],
        is_set: bool,
    ) -> Result<(), Error> {
        let (group, index_in_group) = (subgroup / SUBGROUPS_OF_GROUP, subgroup % SUBGROUPS_OF_GROUP);
        let offset = register.offset + 8 * u64::from(group);
        let shift = index_in_group * register.fifos;
        let bits = fifos.iter().fold(0_u64, |bits, fifo| bits | 1 << (u16::from(*fifo) + shift));

        let before = self.read(offset)?;
        self.write(offset, if is_set { before | bits } else { before & !bits })
    }

    /// Writes a class route. Its register, counted from `first` on, also has that of another class.
    pub(super) fn set_class(
        &mut self,
        kind: Resource,
        first: u64,
        class: u8,
        route: ClassRoute,
    ) -> Result<(), Error> {
        if class >= kind.count() {
            return Err(Error::NoSuch { resource: kind, number: class });
        }

        let register = NETWORK_OFFSET + first + 8 * u64::from(class / 2);
        let half = usize::from(class % 2);
        let mut pair = nd_dcr::ClassRoute::of_register(self.read(register)?);
        pair[half] = nd_dcr::ClassRoute { input: route.input, output: route.output };
        self.write(register, nd_dcr::ClassRoute::register(pair))?;

        // A refused write leaves the register unchanged. An empty route has no type there.
        let taken = nd_dcr::ClassRoute::of_register(self.read(register)?)[half];
        let links = |input: u16| input & nd_dcr::LINKS;
        if (links(taken.input), taken.output) == (links(route.input), route.output) {
            return Ok(());
        }
        Err(Error::ClassRouteRefused { class, input: links(route.input), output: route.output })
    }

    /// Writes address ranges. The registers that are left get ranges without addresses.
    pub(super) fn set_ranges(
        &mut self,
        registers: RangeRegisters,
        ranges: &[AddressRange],
    ) -> Result<(), Error> {
        let RangeRegisters { first, last, read_only, count } = registers;
        if ranges.len() > count {
            return Err(Error::TooManyRanges { count: ranges.len(), most: count });
        }

        let mut read_only_ranges = 0;
        for number in 0..count {
            let range = ranges.get(number);
            if range.is_some_and(|range| range.read_only) {
                read_only_ranges |= 1 << number;
            }

            // A range whose highest address is below its lowest permits nothing.
            let (lowest, highest) = range.map_or((1 << 20, 0), |range| (range.first, range.last));
            let offset = 8 * number as u64;
            self.write(last + offset, 0)?;
            self.write(first + offset, lowest & !WITHIN_MIB)?;
            self.write(last + offset, highest & !WITHIN_MIB)?;
        }
        self.write(read_only, read_only_ranges)
    }
}

/// Checks that a subgroup and its resources with these numbers exist.
pub(super) fn check_numbers(resource: Resource, subgroup: u16, numbers: &[u8]) -> Result<(), Error> {
    if subgroup >= SUBGROUPS {
        return Err(Error::NoSuchSubgroup { subgroup });
    }
    match numbers.iter().find(|number| **number >= resource.count()) {
        Some(&number) => Err(Error::NoSuch { resource, number }),
        None => Ok(()),
    }
}
