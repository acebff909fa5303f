//! Direct puts: data for memory, by the base address table.
//!
//! In: packets of puts. Out: data in client memory, and then a decremented counter. May touch:
//! client memory.

use nicforge_core::{context::Context, dma::DmaLease};
use nicforge_hwi::{
    mu::{
        ADDRESS_BITS, ALL_BASE_ADDRESSES, BASE_ADDRESSES, NO_BASE_ADDRESS, USER_SUBGROUPS, atomic as address,
    },
    mu_dcr::{counter, error},
};
use zerocopy::FromBytes;

use super::{
    Unit,
    atomic::{self, NotDone},
    errors::ErrorSet,
    memory::{Memory, Owner},
    receive::{Arrival, Undelivered},
    reference::{self, PayloadPlace},
    subgroup::owner_of,
};

/// Highest address, including the bit that marks an atomic one.
const MAX_ADDRESS: u64 = (1 << (ADDRESS_BITS + 1)) - 1;

/// An address in the memory of a subgroup's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) subgroup_id: u16,
    /// The address. That of an atomic operation includes the indicator and the operation.
    pub(crate) address: u64,
}

impl Target {
    /// Returns the client whose memory this is.
    pub(crate) fn owner(self) -> Owner {
        owner_of(self.subgroup_id)
    }

    /// Returns the operation of an atomic address.
    fn operation(self) -> Option<u64> {
        (self.address & address::INDICATOR != 0).then_some(self.address & address::OPERATION)
    }

    /// Returns the address of the word of an atomic address.
    fn word(self) -> u64 {
        self.address & !address::INDICATOR & !address::OPERATION
    }
}

impl Unit {
    /// Writes the payload of a put to memory, and decrements its counter.
    pub(crate) fn deliver_put(
        &mut self,
        context: &mut Context<'_>,
        arrival: &Arrival<'_>,
    ) -> Result<(), Undelivered> {
        let unit = arrival.unit();
        let valid = usize::from(unit.valid_bytes());
        let Some(data) = arrival.payload().get(..valid).filter(|data| !data.is_empty()) else {
            return Err(self.drop_for_header(arrival.engine));
        };

        let entry = unit.payload_base_address();
        let target = self.base_address(arrival, entry, unit.put_offset(), error::RPUTSRAM_SYSTEM_PAYLOAD)?;
        let entry = unit.counter_base_address();
        let put_counter =
            self.base_address(arrival, entry, unit.counter_offset(), error::RPUTSRAM_SYSTEM_COUNTER)?;
        // A counter's address must be an atomic one whose operation adds.
        let operation = put_counter.operation();
        if !matches!(operation, Some(address::store::ADD | address::store::ADD_COHERENCE_ON_ZERO)) {
            return Err(self.drop_put(put_counter.subgroup_id, error::RPUTSRAM_COUNTER));
        }

        match target.operation() {
            Some(operation) => self.put_atomic(context, target, operation, data)?,
            None => self.put_data(context, target, data)?,
        }
        self.decrement(context, put_counter, valid as u64)?;
        self.counters[counter::PUT_PACKETS] += 1;
        self.counters[counter::BYTES_RECEIVED] += valid as u64;
        Ok(())
    }

    /// Copies the payload to which a put refers, and decrements its counter.
    pub(crate) fn deliver_referring_put(
        &mut self,
        context: &mut Context<'_>,
        arrival: &Arrival<'_>,
        lease: &DmaLease,
    ) -> Result<(), Undelivered> {
        let Ok(place) = PayloadPlace::read_from_bytes(arrival.payload()) else {
            return Err(self.drop_for_header(arrival.engine));
        };
        let unit = arrival.unit();
        let entry = unit.payload_base_address();
        let target = self.base_address(arrival, entry, unit.put_offset(), error::RPUTSRAM_SYSTEM_PAYLOAD)?;
        let put_counter = self.put_counter(arrival)?;

        let PayloadPlace { length, .. } = place;
        if target.operation().is_some() {
            return Err(self.drop_put(target.subgroup_id, error::RPUTSRAM_ATOMIC_LENGTH));
        }
        if target.address + length > 1 << ADDRESS_BITS {
            return Err(self.drop_put(target.subgroup_id, error::RPUTSRAM_CROSSING));
        }

        let owner = target.owner();
        let mut memory = Memory { context, ranges: &self.control.ranges };
        memory
            .copy_lease(owner, target.address, lease, place)
            .map_err(|fault| self.drop_for_memory(target, fault))?;
        self.decrement(context, put_counter, length)?;
        self.counters[counter::PUT_PACKETS] += reference::packet_count(length);
        self.counters[counter::BYTES_RECEIVED] += length;
        Ok(())
    }

    /// Returns the address of a put's counter. It must be an atomic one whose operation adds.
    fn put_counter(&mut self, arrival: &Arrival<'_>) -> Result<Target, Undelivered> {
        let unit = arrival.unit();
        let entry = unit.counter_base_address();
        let put_counter =
            self.base_address(arrival, entry, unit.counter_offset(), error::RPUTSRAM_SYSTEM_COUNTER)?;
        match put_counter.operation() {
            Some(address::store::ADD | address::store::ADD_COHERENCE_ON_ZERO) => Ok(put_counter),
            _ => Err(self.drop_put(put_counter.subgroup_id, error::RPUTSRAM_COUNTER)),
        }
    }

    /// Returns the address at an offset from the base address in an entry of the table. A packet
    /// whose entry may not be used is dropped with `error`.
    fn base_address(
        &mut self,
        arrival: &Arrival<'_>,
        entry: u16,
        offset: u64,
        error: u8,
    ) -> Result<Target, Undelivered> {
        let (subgroup_id, index) = (entry / BASE_ADDRESSES, usize::from(entry % BASE_ADDRESSES));
        // Only packets of the system reach the entries of its subgroups.
        if entry >= ALL_BASE_ADDRESSES || subgroup_id >= USER_SUBGROUPS && !arrival.is_system {
            self.errors.report(ErrorSet::Put, error);
            return Err(self.drop_packet());
        }

        let Some(subgroup) = self.subgroups.get(subgroup_id) else { return Err(self.drop_without_client()) };
        let base = subgroup.base_addresses[index];
        if base == NO_BASE_ADDRESS {
            return Err(self.drop_put(subgroup_id, error));
        }
        match base.checked_add(offset) {
            Some(address) if address <= MAX_ADDRESS => Ok(Target { subgroup_id, address }),
            _ => Err(self.drop_put(subgroup_id, error::RPUTSRAM_OVERFLOW)),
        }
    }

    /// Writes data to memory.
    fn put_data(
        &mut self,
        context: &mut Context<'_>,
        target: Target,
        data: &[u8],
    ) -> Result<(), Undelivered> {
        if target.address + data.len() as u64 > 1 << ADDRESS_BITS {
            return Err(self.drop_put(target.subgroup_id, error::RPUTSRAM_CROSSING));
        }

        let Some(subgroup) = self.subgroups.get_mut(target.subgroup_id) else {
            return Err(self.drop_without_client());
        };
        let mut memory = Memory { context, ranges: &self.control.ranges };
        memory
            .write_by(&mut subgroup.put_view, target.owner(), target.address, data)
            .map_err(|fault| self.drop_for_memory(target, fault))
    }

    /// Carries out an atomic operation with the 8 bytes of a put.
    fn put_atomic(
        &mut self,
        context: &mut Context<'_>,
        target: Target,
        operation: u64,
        data: &[u8],
    ) -> Result<(), Undelivered> {
        let Ok(operand) = data.try_into().map(u64::from_le_bytes) else {
            return Err(self.drop_put(target.subgroup_id, error::RPUTSRAM_ATOMIC_LENGTH));
        };

        let mut memory = Memory { context, ranges: &self.control.ranges };
        match atomic::store(&mut memory, target.owner(), target.word(), operation, operand) {
            Ok(()) => {
                self.counters[counter::ATOMICS] += 1;
                Ok(())
            }
            Err(NotDone::Contended) => Err(Undelivered::Contended),
            Err(NotDone::Fault(fault)) => Err(self.drop_for_memory(target, fault)),
        }
    }

    /// Subtracts the bytes of a put from its counter, after they have been written.
    fn decrement(
        &mut self,
        context: &mut Context<'_>,
        target: Target,
        bytes: u64,
    ) -> Result<(), Undelivered> {
        let Some(subgroup) = self.subgroups.get_mut(target.subgroup_id) else {
            return Err(self.drop_without_client());
        };
        let mut memory = Memory { context, ranges: &self.control.ranges };
        memory
            .add_by(&mut subgroup.counter_view, target.owner(), target.word(), bytes.wrapping_neg())
            .map_err(|fault| self.drop_for_memory(target, fault))
    }
}
