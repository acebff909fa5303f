//! Accesses of software to the registers of its subgroup.
//!
//! In: reads and writes, posted or trapped. Out: values, enabled FIFOs, moved pointers, errors. May
//! touch: the subgroup's state.

use nicforge_core::{
    context::Context,
    ids::{Address, AttachmentId},
    posted::Posted,
};
use nicforge_hwi::{
    mu::{ADDRESS_BITS, BAR_REGISTERS, NO_BASE_ADDRESS, USER_SUBGROUPS, atomic, fault, interrupt},
    mu_dcr::{counter, error},
};
use nicforge_kit::RegisterValue;

use super::{
    Unit,
    errors::{Info, Set},
    registers::{FifoRegister, NoRegister, PageRegister, Register, SubgroupRegister},
    ring::{Kind, Ring},
    subgroup::{InjectionFifo, ReceptionFifo, Subgroup},
};
use crate::network::NetworkUnit;

/// The error that a refused access reports: its set of errors, and its number in that set.
pub(super) type Refusal = (Set, u8);

const READ_ONLY: Refusal = (Set::Registers, error::MMREGS_WRITE);
const WRITE_ONLY: Refusal = (Set::Registers, error::MMREGS_READ);
pub(super) const UNDEFINED_BITS: Refusal = (Set::Registers, error::MMREGS_RANGE);
const NO_ADDRESS: Refusal = (Set::SlavePort, error::XS_ADDRESS);

impl Unit {
    /// Handles a read of BAR 0. A refused read leaves `data` unchanged.
    pub(crate) fn read(
        &mut self,
        network: &NetworkUnit,
        context: &mut Context<'_>,
        from: AttachmentId,
        offset: u64,
        data: &mut [u8],
    ) {
        let value = match Register::decode(from, offset, data.len()) {
            Ok(Register::Page(number, register)) => self.read_page(network, number, register),
            Ok(Register::Unit(offset)) => self.read_control(offset).ok_or(NO_ADDRESS),
            Ok(Register::Network(offset)) => {
                network.read_register(&context.ports(), offset).ok_or(NO_ADDRESS)
            }
            Err(refusal) => Err(error_of(refusal)),
        };

        match value {
            Ok(value) => value.answer_read(data),
            Err(refusal) => self.refuse(refusal, offset),
        }
    }

    /// Handles a write of BAR 0. A refused write has no other effect.
    pub(crate) fn write(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        from: AttachmentId,
        offset: u64,
        data: &[u8],
    ) {
        let value = u64::from_write(data).unwrap_or(0);
        let done = match Register::decode(from, offset, data.len()) {
            Ok(Register::Page(number, register)) => {
                self.write_page(network, context, number, register, value)
            }
            Ok(Register::Unit(offset)) => {
                if self.write_control(offset, value) {
                    Ok(())
                } else {
                    Err(NO_ADDRESS)
                }
            }
            Ok(Register::Network(offset)) => {
                network.write_register(&context.ports(), offset, value).map_err(|_| NO_ADDRESS)
            }
            Err(refusal) => Err(error_of(refusal)),
        };

        if let Err(refusal) = done {
            self.refuse(refusal, offset);
        }
    }

    /// Counts a refused access.
    #[cold]
    fn refuse(&mut self, (set, error): Refusal, offset: u64) {
        self.errors.report_about(set, error, Info::Access, offset);
        self.counters[counter::REFUSED] += 1;
    }

    /// Returns the value of a register in the page of a subgroup.
    fn read_page(&self, network: &NetworkUnit, number: u16, register: PageRegister) -> Result<u64, Refusal> {
        let Some(subgroup) = self.subgroups.get(number) else { return Err(NO_ADDRESS) };
        match register {
            PageRegister::Injection(fifo, FifoRegister::DescriptorCount) => {
                Ok(subgroup.injection[fifo].descriptors)
            }
            PageRegister::Injection(fifo, register) => {
                let InjectionFifo { ring, fault, .. } = &subgroup.injection[fifo];
                read_fifo(ring, *fault, register)
            }
            PageRegister::Reception(fifo, register) => {
                let ReceptionFifo { ring, fault, .. } = &subgroup.reception[fifo];
                read_fifo(ring, *fault, register)
            }
            PageRegister::BaseAddress(entry) => Ok(subgroup.base_addresses[entry]),
            PageRegister::BarrierControl(_) => Err(WRITE_ONLY),
            PageRegister::BarrierStatus(class) => Ok(network.completed_barriers(class)),
            PageRegister::GlobalInterruptControl(class) => Ok(network.lines(class).own.into()),
            PageRegister::GlobalInterruptStatus(class) => Ok(network.lines(class).all.into()),
            PageRegister::Subgroup(register) => read_subgroup(subgroup, register),
        }
    }

    fn write_page(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        number: u16,
        register: PageRegister,
        value: u64,
    ) -> Result<(), Refusal> {
        match register {
            PageRegister::Injection(fifo, register) => self.write_injection(number, fifo, register, value),
            PageRegister::Reception(fifo, register) => self.write_reception(number, fifo, register, value),
            PageRegister::Subgroup(register) => self.write_subgroup(number, register, value),
            PageRegister::BaseAddress(entry) => self.set_base_address(number, entry, value),
            PageRegister::BarrierControl(class) => self.enter_barrier(network, context, number, class, value),
            PageRegister::GlobalInterruptControl(class) => {
                self.set_lines(network, context, number, class, value)
            }
            PageRegister::BarrierStatus(_) | PageRegister::GlobalInterruptStatus(_) => Err(READ_ONLY),
        }
    }

    /// Writes a register of an injection FIFO. An enabled one takes a new tail alone.
    fn write_injection(
        &mut self,
        number: u16,
        index: usize,
        register: FifoRegister,
        value: u64,
    ) -> Result<(), Refusal> {
        let Some(subgroup) = self.subgroups.get_mut(number) else { return Err(NO_ADDRESS) };
        let fifo = &mut subgroup.injection[index];
        let is_enabled = fifo.is_enabled();

        match register {
            FifoRegister::Tail if is_enabled => return self.set_injection_tail(number, index, value),
            FifoRegister::FreeSpace => return Err((Set::Injection, error::ICSRAM_FREE_SPACE)),
            FifoRegister::DescriptorCount | FifoRegister::Fault => return Err(READ_ONLY),
            _ if is_enabled => return Err((Set::Injection, error::ICSRAM_RANGE)),
            _ if value >> ADDRESS_BITS != 0 => return Err((Set::Injection, error::ICSRAM_RANGE)),
            FifoRegister::Start => fifo.ring.start = value,
            FifoRegister::Size => fifo.ring.size_1 = value,
            FifoRegister::Head => fifo.ring.head = value,
            FifoRegister::Tail => fifo.ring.tail = value,
        }
        subgroup.page.mark_injection(index);
        self.subgroups.mark_changed(number);
        Ok(())
    }

    /// Moves the tail of an enabled injection FIFO, so that its descriptors are fetched.
    #[inline]
    fn set_injection_tail(&mut self, number: u16, index: usize, tail: u64) -> Result<(), Refusal> {
        let Some(subgroup) = self.subgroups.get_mut(number) else { return Err(NO_ADDRESS) };
        let fifo = number * 8 + index as u16;
        let state = &mut subgroup.injection[index];
        if !state.may_have_tail(tail) {
            self.stop(fifo, fault::POINTERS);
            return Err((Set::Injection, error::ICSRAM_ALIGNMENT));
        }

        state.ring.tail = tail;
        subgroup.page.mark_moved_injection(index);
        let priority = subgroup.priority(index);
        self.active.add(fifo, priority);
        self.subgroups.mark_changed(number);
        // A remote get may wait for the room that a tail which was taken back leaves.
        self.engines.wake_injection(fifo);
        Ok(())
    }

    /// Carries out further writes of the tail of an injection FIFO that was just written, as long
    /// as each is possible and nothing else is to be done than to move the tail. The other writes
    /// are left to [`Unit::write`]. A write of another length than the tail's was refused.
    #[inline]
    pub(crate) fn move_tail_again(
        &mut self,
        from: AttachmentId,
        offset: u64,
        length: usize,
        posted: &mut Posted<'_>,
    ) {
        let Ok(Register::Page(number, PageRegister::Injection(index, FifoRegister::Tail))) =
            Register::decode(from, offset, length)
        else {
            return;
        };
        let Some(subgroup) = self.subgroups.get_mut(number) else { return };
        let fifo = &mut subgroup.injection[index];
        if !fifo.is_enabled() {
            return;
        }

        posted.take_while(|address, data| {
            let is_same = address.is_none_or(|at| at == Address { bar: BAR_REGISTERS, offset });
            let tail = u64::from_write(data).filter(|&tail| is_same && fifo.may_have_tail(tail));
            fifo.ring.tail = tail.unwrap_or(fifo.ring.tail);
            tail.is_some()
        });
    }

    /// Writes a register of a reception FIFO. An enabled one takes a new head alone.
    fn write_reception(
        &mut self,
        number: u16,
        index: usize,
        register: FifoRegister,
        value: u64,
    ) -> Result<(), Refusal> {
        let Some(subgroup) = self.subgroups.get_mut(number) else { return Err(NO_ADDRESS) };
        let fifo = &mut subgroup.reception[index];
        let is_enabled = fifo.is_enabled;

        match register {
            FifoRegister::Head if is_enabled => {
                let is_possible = fifo.ring.holds(Kind::Reception, value) && fifo.ring.may_consume_to(value);
                if !is_possible {
                    return Err((Set::Reception, error::RCSRAM_POINTER));
                }
                fifo.ring.head = value;
                self.engines.wake_reception(number * 4 + index as u16);
            }
            FifoRegister::FreeSpace | FifoRegister::DescriptorCount | FifoRegister::Fault => {
                return Err(READ_ONLY);
            }
            _ if is_enabled || value >> ADDRESS_BITS != 0 => {
                return Err((Set::Reception, error::RCSRAM_POINTER));
            }
            FifoRegister::Start => fifo.ring.start = value,
            FifoRegister::Size => fifo.ring.size_1 = value,
            FifoRegister::Head => fifo.ring.head = value,
            FifoRegister::Tail => fifo.ring.tail = value,
        }
        subgroup.page.mark_reception(index);
        self.subgroups.mark_changed(number);
        Ok(())
    }

    /// Writes a register that concerns a whole subgroup: enables, priority, interrupts, thresholds.
    fn write_subgroup(&mut self, number: u16, register: SubgroupRegister, value: u64) -> Result<(), Refusal> {
        let Some(subgroup) = self.subgroups.get_mut(number) else { return Err(NO_ADDRESS) };
        let max_value = match register {
            SubgroupRegister::InjectionThreshold | SubgroupRegister::ReceptionThreshold => u64::MAX,
            SubgroupRegister::InterruptEnable | SubgroupRegister::ClearInterrupt => interrupt::ALL,
            SubgroupRegister::ReceptionEnable => 0xf,
            SubgroupRegister::IsEnabled | SubgroupRegister::InterruptStatus => return Err(READ_ONLY),
            _ => 0xff,
        };
        if value > max_value {
            return Err(UNDEFINED_BITS);
        }

        match register {
            SubgroupRegister::Enable => self.enable_injection(number, value),
            SubgroupRegister::Disable => self.disable_injection(number, value),
            SubgroupRegister::HighPriority => self.set_high_priority(number, value as u8),
            SubgroupRegister::ClearInterrupt => subgroup.interrupts.status &= !value,
            SubgroupRegister::InterruptEnable => subgroup.interrupts.enable(value),
            SubgroupRegister::RemoteGet => {
                subgroup.remote_get = value as u8;
                // A packet that waits for a FIFO which is no longer for gets must be dropped.
                self.engines.wake_all();
            }
            SubgroupRegister::ReceptionEnable => self.enable_reception(number, value),
            SubgroupRegister::InjectionThreshold => subgroup.thresholds.injection = value,
            SubgroupRegister::ReceptionThreshold => subgroup.thresholds.reception = value,
            SubgroupRegister::IsEnabled | SubgroupRegister::InterruptStatus => return Err(READ_ONLY),
        }
        self.subgroups.mark_changed(number);
        Ok(())
    }

    /// Enables injection FIFOs, whose descriptors are fetched from then on.
    fn enable_injection(&mut self, number: u16, bits: u64) {
        let Some(subgroup) = self.subgroups.get_mut(number) else { return };
        for index in (0..8).filter(|index| bits >> index & 1 == 1) {
            subgroup.injection[index].enable();
            subgroup.page.mark_injection(index);
            if subgroup.injection[index].is_enabled() {
                // A fault may have stopped it while it was parked.
                self.active.remove(number * 8 + index as u16);
                self.active.add(number * 8 + index as u16, subgroup.priority(index));
            }
        }
    }

    /// Disables injection FIFOs. A message in service ends with the packets that have been sent.
    fn disable_injection(&mut self, number: u16, bits: u64) {
        let Some(subgroup) = self.subgroups.get_mut(number) else { return };
        for index in (0..8).filter(|index| bits >> index & 1 == 1) {
            subgroup.injection[index].disable();
            subgroup.page.mark_injection(index);
            self.active.remove(number * 8 + index as u16);
            self.engines.wake_injection(number * 8 + index as u16);
        }
    }

    /// Sets the FIFOs of high priority. Those that are active change their place.
    fn set_high_priority(&mut self, number: u16, bits: u8) {
        let Some(subgroup) = self.subgroups.get_mut(number) else { return };
        subgroup.high_priority = bits;
        for index in 0..8 {
            let fifo = number * 8 + index as u16;
            if subgroup.injection[index].is_enabled() {
                self.active.remove(fifo);
                self.active.add(fifo, subgroup.priority(index));
            }
        }
    }

    /// Enables the reception FIFOs of these bits, and disables the others.
    pub(crate) fn enable_reception(&mut self, number: u16, bits: u64) {
        let Some(subgroup) = self.subgroups.get_mut(number) else { return };
        for (index, fifo) in subgroup.reception.iter_mut().enumerate() {
            if bits >> index & 1 == 1 {
                fifo.enable();
            } else {
                fifo.is_enabled = false;
            }
            subgroup.page.mark_reception(index);
            self.engines.wake_reception(number * 4 + index as u16);
        }
    }

    /// Sets an entry of the base address table.
    fn set_base_address(&mut self, number: u16, entry: usize, value: u64) -> Result<(), Refusal> {
        let Some(subgroup) = self.subgroups.get_mut(number) else { return Err(NO_ADDRESS) };
        if value != NO_BASE_ADDRESS && value >= atomic::INDICATOR << 1 {
            return Err(UNDEFINED_BITS);
        }
        subgroup.base_addresses[entry] = value;
        Ok(())
    }

    /// Enters a barrier on behalf of the node.
    fn enter_barrier(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        number: u16,
        class: u8,
        value: u64,
    ) -> Result<(), Refusal> {
        let refused = (Set::Registers, error::MMREGS_BARRIER);
        let is_systems = self.control.system_barriers >> class & 1 == 1;
        if is_systems && number < USER_SUBGROUPS {
            return Err(refused);
        }
        if value != 1 {
            return Err(UNDEFINED_BITS);
        }

        network.enter_barrier(class).map_err(|_| refused)?;
        self.barriers.enter(class, number);
        context.wake_at(context.now());
        Ok(())
    }
}

fn error_of(refusal: NoRegister) -> Refusal {
    match refusal {
        NoRegister::Width => (Set::SlavePort, error::XS_SIZE),
        NoRegister::Address => NO_ADDRESS,
    }
}

/// Returns the value of a register of a FIFO.
fn read_fifo(ring: &Ring, fault: u64, register: FifoRegister) -> Result<u64, Refusal> {
    match register {
        FifoRegister::Start => Ok(ring.start),
        FifoRegister::Size => Ok(ring.size_1),
        FifoRegister::Head => Ok(ring.head),
        FifoRegister::Tail => Ok(ring.tail),
        FifoRegister::FreeSpace => Ok(ring.free()),
        FifoRegister::Fault => Ok(fault),
        FifoRegister::DescriptorCount => Err(NO_ADDRESS),
    }
}

/// Returns the value of a register that concerns a whole subgroup.
fn read_subgroup(subgroup: &Subgroup, register: SubgroupRegister) -> Result<u64, Refusal> {
    match register {
        SubgroupRegister::IsEnabled => Ok(subgroup.enabled_injection()),
        SubgroupRegister::HighPriority => Ok(subgroup.high_priority.into()),
        SubgroupRegister::InterruptStatus => Ok(subgroup.interrupts.status),
        SubgroupRegister::InterruptEnable => Ok(subgroup.interrupts.enabled),
        SubgroupRegister::RemoteGet => Ok(subgroup.remote_get.into()),
        SubgroupRegister::ReceptionEnable => Ok(subgroup.enabled_reception()),
        SubgroupRegister::InjectionThreshold => Ok(subgroup.thresholds.injection),
        SubgroupRegister::ReceptionThreshold => Ok(subgroup.thresholds.reception),
        SubgroupRegister::Enable | SubgroupRegister::Disable | SubgroupRegister::ClearInterrupt => {
            Err(WRITE_ONLY)
        }
    }
}
