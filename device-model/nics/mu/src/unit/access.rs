//! Accesses of software to the registers of its subgroup.
//!
//! `index` is a FIFO's number in its subgroup, and `fifo` its number among all of the node.
//!
//! In: reads and writes, posted or trapped. Out: values, enabled FIFOs, moved pointers, errors. May
//! touch: the subgroup's state.

use nicforge_core::{
    context::Context,
    fabric::Ports,
    ids::{Address, AttachmentId},
    posted::Posted,
    warning::Warning,
};
use nicforge_hwi::{
    mu::{
        ADDRESS_BITS, BAR_REGISTERS, INJECTION_FIFOS, NO_BASE_ADDRESS, RECEPTION_FIFOS, USER_SUBGROUPS,
        atomic, fault, interrupt,
    },
    mu_dcr::{counter, error},
};
use nicforge_kit::RegisterValue;

use super::{
    Unit,
    errors::{ErrorInfo, ErrorSet, warning},
    inject::injection_fifo,
    receive::reception_fifo,
    registers::{FifoRegister, NoRegister, PageRegister, Register, SubgroupRegister},
    ring::{Kind, Ring},
    subgroup::{InjectionFifo, ReceptionFifo, Subgroup},
};
use crate::network::NetworkUnit;

/// The error that a refused access reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    set: ErrorSet,
    /// Number of the error in its set.
    error: u8,
}

impl Refusal {
    /// Returns the refusal that reports an error of a set.
    const fn new(set: ErrorSet, error: u8) -> Self {
        Self { set, error }
    }

    /// Returns the line of the log for an access of the register at `offset`.
    fn warning(self, offset: u64) -> Warning<'static> {
        warning(self.set, self.error).register(Address { bar: BAR_REGISTERS, offset })
    }
}

/// A write of a register that can only be read.
const READ_ONLY: Refusal = Refusal::new(ErrorSet::Registers, error::MMREGS_WRITE);
/// A read of a register that can only be written.
const WRITE_ONLY: Refusal = Refusal::new(ErrorSet::Registers, error::MMREGS_READ);
/// A write of bits that the register does not have.
pub(super) const UNDEFINED_BITS: Refusal = Refusal::new(ErrorSet::Registers, error::MMREGS_RANGE);
/// A write that concerns a barrier class of the system, or one of which the node is no member.
pub(super) const BARRIER_REFUSED: Refusal = Refusal::new(ErrorSet::Registers, error::MMREGS_BARRIER);
/// An access of an address without a register.
const NO_ADDRESS: Refusal = Refusal::new(ErrorSet::SlavePort, error::XS_ADDRESS);
/// A write of an injection FIFO's pointer that its state does not permit.
const INJECTION_RANGE: Refusal = Refusal::new(ErrorSet::Injection, error::ICSRAM_RANGE);
/// A write of a reception FIFO's pointer that its state does not permit.
const RECEPTION_POINTER: Refusal = Refusal::new(ErrorSet::Reception, error::RCSRAM_POINTER);

/// A bit for each injection FIFO of a subgroup.
const ALL_INJECTION: u64 = (1 << INJECTION_FIFOS) - 1;
/// A bit for each reception FIFO of a subgroup.
const ALL_RECEPTION: u64 = (1 << RECEPTION_FIFOS) - 1;

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
        match self.register_value(network, &context.ports(), from, offset, data.len()) {
            Ok(value) => value.answer_read(data),
            Err(refusal) => {
                self.refuse(refusal, offset);
                context.warn(from, refusal.warning(offset));
            }
        }
    }

    /// Answers a read of BAR 0 without counting a refusal. Returns false if it is refused.
    pub(crate) fn peek(
        &self,
        network: &NetworkUnit,
        ports: &Ports<'_>,
        from: AttachmentId,
        offset: u64,
        data: &mut [u8],
    ) -> bool {
        let value = self.register_value(network, ports, from, offset, data.len());
        value.map(|value| value.answer_read(data)).is_ok()
    }

    /// Returns the value of the register that a read of BAR 0 names.
    fn register_value(
        &self,
        network: &NetworkUnit,
        ports: &Ports<'_>,
        from: AttachmentId,
        offset: u64,
        length: usize,
    ) -> Result<u64, Refusal> {
        match Register::decode(from, offset, length) {
            Ok(Register::Page(subgroup_id, register)) => self.read_page(network, subgroup_id, register),
            Ok(Register::Unit(offset)) => self.read_control(offset).ok_or(NO_ADDRESS),
            Ok(Register::Network(offset)) => network.read_register(ports, offset).ok_or(NO_ADDRESS),
            Err(reason) => Err(refusal_of(reason)),
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
        // Data of another length than 8 bytes is refused by `decode`.
        let value = u64::from_write(data).unwrap_or(0);
        let outcome = match Register::decode(from, offset, data.len()) {
            Ok(Register::Page(subgroup_id, register)) => {
                self.write_page(network, context, subgroup_id, register, value)
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
            Err(reason) => Err(refusal_of(reason)),
        };

        if let Err(refusal) = outcome {
            self.refuse(refusal, offset);
            context.warn(from, refusal.warning(offset).written(data));
        }
    }

    /// Reports and counts a refused access of an offset.
    #[cold]
    fn refuse(&mut self, Refusal { set, error }: Refusal, offset: u64) {
        self.errors.record_with_info(set, error, ErrorInfo::Access, offset);
        self.counters[counter::REFUSED] += 1;
    }

    /// Returns the value of a register in the page of a subgroup.
    fn read_page(
        &self,
        network: &NetworkUnit,
        subgroup_id: u16,
        register: PageRegister,
    ) -> Result<u64, Refusal> {
        let Some(subgroup) = self.subgroups.get(subgroup_id) else { return Err(NO_ADDRESS) };
        match register {
            PageRegister::Injection(fifo, FifoRegister::DescriptorCount) => {
                Ok(subgroup.injection[fifo].descriptors_done)
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
            PageRegister::BarrierControl(class) => Ok(network.has_entered_barrier(class).into()),
            PageRegister::BarrierStatus(class) => Ok(network.completed_barriers(class)),
            PageRegister::GlobalInterruptControl(class) => Ok(network.lines(class).own.into()),
            PageRegister::GlobalInterruptStatus(class) => Ok(network.lines(class).all.into()),
            PageRegister::Subgroup(register) => read_subgroup(subgroup, register),
        }
    }

    /// Writes a register in the page of a subgroup.
    fn write_page(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        subgroup_id: u16,
        register: PageRegister,
        value: u64,
    ) -> Result<(), Refusal> {
        match register {
            PageRegister::Injection(fifo, register) => {
                self.write_injection(subgroup_id, fifo, register, value)
            }
            PageRegister::Reception(fifo, register) => {
                self.write_reception(subgroup_id, fifo, register, value)
            }
            PageRegister::Subgroup(register) => self.write_subgroup(subgroup_id, register, value),
            PageRegister::BaseAddress(entry) => self.set_base_address(subgroup_id, entry, value),
            PageRegister::BarrierControl(class) => {
                self.enter_barrier(network, context, subgroup_id, class, value)
            }
            PageRegister::GlobalInterruptControl(class) => {
                self.set_lines(network, context, subgroup_id, class, value)
            }
            PageRegister::BarrierStatus(_) | PageRegister::GlobalInterruptStatus(_) => Err(READ_ONLY),
        }
    }

    /// Writes a register of an injection FIFO. While the FIFO is enabled, only its tail can be
    /// written.
    fn write_injection(
        &mut self,
        subgroup_id: u16,
        index: usize,
        register: FifoRegister,
        value: u64,
    ) -> Result<(), Refusal> {
        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { return Err(NO_ADDRESS) };
        let fifo = &mut subgroup.injection[index];
        let is_enabled = fifo.is_enabled();

        match register {
            FifoRegister::Tail if is_enabled => return self.set_injection_tail(subgroup_id, index, value),
            FifoRegister::FreeSpace => {
                return Err(Refusal::new(ErrorSet::Injection, error::ICSRAM_FREE_SPACE));
            }
            FifoRegister::DescriptorCount | FifoRegister::Fault => return Err(READ_ONLY),
            _ if is_enabled || value >> ADDRESS_BITS != 0 => return Err(INJECTION_RANGE),
            FifoRegister::Start => fifo.ring.start = value,
            FifoRegister::Size => fifo.ring.size_minus_1 = value,
            FifoRegister::Head => fifo.ring.head = value,
            FifoRegister::Tail => fifo.ring.tail = value,
        }
        subgroup.page.mark_injection(index);
        self.subgroups.mark_changed(subgroup_id);
        Ok(())
    }

    /// Moves the tail of an enabled injection FIFO, so that its descriptors are fetched.
    #[inline]
    fn set_injection_tail(&mut self, subgroup_id: u16, index: usize, tail: u64) -> Result<(), Refusal> {
        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { return Err(NO_ADDRESS) };
        let fifo = injection_fifo(subgroup_id, index);
        let target = &mut subgroup.injection[index];
        if !target.may_have_tail(tail) {
            self.stop(fifo, fault::POINTERS);
            return Err(Refusal::new(ErrorSet::Injection, error::ICSRAM_ALIGNMENT));
        }

        target.ring.tail = tail;
        subgroup.page.mark_moved_injection(index);
        let priority = subgroup.priority(index);
        self.active.add(fifo, priority);
        self.subgroups.mark_changed(subgroup_id);
        // Software can also move the tail back, which makes room for a remote get that waits.
        self.reception_waits.wake_for_injection(fifo);
        Ok(())
    }

    /// Carries out posted writes that follow a write of `length` bytes at `offset` and name the
    /// same register, if that is the tail of an enabled injection FIFO. The first write has marked
    /// the FIFO as active and changed, so each of the others only moves the tail. Writes of other
    /// registers, and of impossible tails, are left to [`Unit::write`].
    #[inline]
    pub(crate) fn repeat_tail_writes(
        &mut self,
        from: AttachmentId,
        offset: u64,
        length: usize,
        posted: &mut Posted<'_>,
    ) {
        let Ok(Register::Page(subgroup_id, PageRegister::Injection(index, FifoRegister::Tail))) =
            Register::decode(from, offset, length)
        else {
            return;
        };
        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { return };
        let fifo = &mut subgroup.injection[index];
        if !fifo.is_enabled() {
            return;
        }

        posted.take_while(|address, data| {
            // There is no address if it is that of the record before.
            let is_same = address.is_none_or(|at| at == Address { bar: BAR_REGISTERS, offset });
            let tail = u64::from_write(data).filter(|&tail| is_same && fifo.may_have_tail(tail));
            fifo.ring.tail = tail.unwrap_or(fifo.ring.tail);
            tail.is_some()
        });
    }

    /// Writes a register of a reception FIFO. While the FIFO is enabled, only its head can be
    /// written.
    fn write_reception(
        &mut self,
        subgroup_id: u16,
        index: usize,
        register: FifoRegister,
        value: u64,
    ) -> Result<(), Refusal> {
        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { return Err(NO_ADDRESS) };
        let fifo = &mut subgroup.reception[index];
        let is_enabled = fifo.is_enabled;

        match register {
            FifoRegister::Head if is_enabled => {
                let is_valid = fifo.ring.holds(Kind::Reception, value) && fifo.ring.may_consume_to(value);
                if !is_valid {
                    return Err(RECEPTION_POINTER);
                }
                fifo.ring.head = value;
                self.reception_waits.wake_for_reception(reception_fifo(subgroup_id, index));
            }
            FifoRegister::FreeSpace | FifoRegister::DescriptorCount | FifoRegister::Fault => {
                return Err(READ_ONLY);
            }
            _ if is_enabled || value >> ADDRESS_BITS != 0 => return Err(RECEPTION_POINTER),
            FifoRegister::Start => fifo.ring.start = value,
            FifoRegister::Size => fifo.ring.size_minus_1 = value,
            FifoRegister::Head => fifo.ring.head = value,
            FifoRegister::Tail => fifo.ring.tail = value,
        }
        subgroup.page.mark_reception(index);
        self.subgroups.mark_changed(subgroup_id);
        Ok(())
    }

    /// Writes a register that concerns a whole subgroup: enables, priority, interrupts, thresholds.
    fn write_subgroup(
        &mut self,
        subgroup_id: u16,
        register: SubgroupRegister,
        value: u64,
    ) -> Result<(), Refusal> {
        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { return Err(NO_ADDRESS) };
        let max_value = match register {
            SubgroupRegister::InjectionThreshold | SubgroupRegister::ReceptionThreshold => u64::MAX,
            SubgroupRegister::InterruptEnable | SubgroupRegister::ClearInterrupt => interrupt::ALL,
            SubgroupRegister::ReceptionEnable => ALL_RECEPTION,
            SubgroupRegister::IsEnabled | SubgroupRegister::InterruptStatus => return Err(READ_ONLY),
            _ => ALL_INJECTION,
        };
        if value > max_value {
            return Err(UNDEFINED_BITS);
        }

        match register {
            SubgroupRegister::Enable => self.enable_injection(subgroup_id, value),
            SubgroupRegister::Disable => self.disable_injection(subgroup_id, value),
            SubgroupRegister::HighPriority => self.set_high_priority(subgroup_id, value as u8),
            SubgroupRegister::ClearInterrupt => subgroup.interrupts.status &= !value,
            SubgroupRegister::InterruptEnable => subgroup.interrupts.enable(value),
            SubgroupRegister::RemoteGet => {
                subgroup.remote_get = value as u8;
                // A packet that waits for a FIFO which is no longer for gets must be dropped.
                self.reception_waits.wake_all();
            }
            SubgroupRegister::ReceptionEnable => {
                let denied = self.control.denied_receptions.get(usize::from(subgroup_id));
                let permitted = value & !u64::from(denied.copied().unwrap_or(0));
                self.enable_reception(subgroup_id, permitted);
            }
            SubgroupRegister::InjectionThreshold => subgroup.thresholds.injection = value,
            SubgroupRegister::ReceptionThreshold => subgroup.thresholds.reception = value,
            SubgroupRegister::IsEnabled | SubgroupRegister::InterruptStatus => return Err(READ_ONLY),
        }
        self.subgroups.mark_changed(subgroup_id);
        Ok(())
    }

    /// Enables injection FIFOs, whose descriptors are fetched from then on.
    fn enable_injection(&mut self, subgroup_id: u16, bits: u64) {
        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { return };
        for index in (0..usize::from(INJECTION_FIFOS)).filter(|index| bits >> index & 1 == 1) {
            subgroup.injection[index].enable();
            subgroup.page.mark_injection(index);
            if subgroup.injection[index].is_enabled() {
                // A FIFO that a fault stopped while it was parked is still in a list, in its old
                // place.
                let fifo = injection_fifo(subgroup_id, index);
                self.active.remove(fifo);
                self.active.add(fifo, subgroup.priority(index));
            }
        }
    }

    /// Disables injection FIFOs. A message in service ends with the packets that have been sent.
    fn disable_injection(&mut self, subgroup_id: u16, bits: u64) {
        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { return };
        for index in (0..usize::from(INJECTION_FIFOS)).filter(|index| bits >> index & 1 == 1) {
            subgroup.injection[index].disable();
            subgroup.page.mark_injection(index);
            // A remote get that waits for room must find that the FIFO is disabled.
            let fifo = injection_fifo(subgroup_id, index);
            self.active.remove(fifo);
            self.reception_waits.wake_for_injection(fifo);
        }
    }

    /// Sets the injection FIFOs of high priority. Enabled ones move to the list of their new
    /// priority.
    fn set_high_priority(&mut self, subgroup_id: u16, bits: u8) {
        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { return };
        subgroup.high_priority = bits;
        for index in 0..usize::from(INJECTION_FIFOS) {
            let fifo = injection_fifo(subgroup_id, index);
            if subgroup.injection[index].is_enabled() {
                self.active.remove(fifo);
                self.active.add(fifo, subgroup.priority(index));
            }
        }
    }

    /// Enables the reception FIFOs of these bits, and disables the others.
    pub(crate) fn enable_reception(&mut self, subgroup_id: u16, bits: u64) {
        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { return };
        for (index, fifo) in subgroup.reception.iter_mut().enumerate() {
            if bits >> index & 1 == 1 {
                fifo.enable();
            } else {
                fifo.is_enabled = false;
            }
            subgroup.page.mark_reception(index);
            self.reception_waits.wake_for_reception(reception_fifo(subgroup_id, index));
        }
    }

    /// Sets an entry of the base address table.
    fn set_base_address(&mut self, subgroup_id: u16, entry: usize, value: u64) -> Result<(), Refusal> {
        let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { return Err(NO_ADDRESS) };
        // The highest bit of an address is the indicator of an atomic one.
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
        subgroup_id: u16,
        class: u8,
        value: u64,
    ) -> Result<(), Refusal> {
        let is_system_class = self.control.system_barriers >> class & 1 == 1;
        if is_system_class && subgroup_id < USER_SUBGROUPS {
            return Err(BARRIER_REFUSED);
        }
        if value != 1 {
            return Err(UNDEFINED_BITS);
        }

        network.enter_barrier(class).map_err(|_| BARRIER_REFUSED)?;
        self.barriers.enter(class, subgroup_id);
        context.wake_at(context.now());
        Ok(())
    }
}

/// Returns the error that an access without a register reports.
fn refusal_of(reason: NoRegister) -> Refusal {
    match reason {
        NoRegister::Width => Refusal::new(ErrorSet::SlavePort, error::XS_SIZE),
        NoRegister::Address => NO_ADDRESS,
    }
}

/// Returns the value of a register of a FIFO.
fn read_fifo(ring: &Ring, fault: u64, register: FifoRegister) -> Result<u64, Refusal> {
    match register {
        FifoRegister::Start => Ok(ring.start),
        FifoRegister::Size => Ok(ring.size_minus_1),
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
