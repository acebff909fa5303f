//! A subgroup: FIFOs, base addresses and barriers of one thread.

use std::{fmt, sync::Arc, time::Duration};

use nicforge_driver::{
    Cancel, Deadline, Device, DmaBuffer, Error as DriverError, HugePages, Interrupt,
    runtime::{Cost, charge},
};
use nicforge_hwi::{
    mu::{
        BASE_ADDRESSES, DESCRIPTOR, INJECTION_FIFOS, NO_BASE_ADDRESS, RECEPTION_FIFOS, atomic, interrupt,
        reg, vector,
    },
    mu_packet::Descriptor,
};

use crate::{
    Counter, Error, Handlers, Injection, NodePosition, Packet, Resource,
    address::END_OF_ADDRESSES,
    injection,
    page::Page,
    reception::{self, Reception},
};

/// Attributes of injection FIFOs: `Kernel_InjFifoAttributes_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InjectionAttributes {
    /// Remote gets of other nodes may put descriptors into the FIFO. Software must not inject into
    /// it then.
    pub remote_get: bool,
    /// The unit serves the FIFO in front of those of normal priority.
    pub high_priority: bool,
}

/// Times of a subgroup's waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Time that a wait for a packet or a barrier polls before it waits for an interrupt.
    pub spin: Duration,
    /// Time that a wait sleeps before it polls again without an interrupt. A packet interrupts only
    /// if its sender asks for that.
    pub sleep: Duration,
}

impl Default for Options {
    /// 50 us, 10 ms.
    fn default() -> Self {
        Self { spin: Duration::from_micros(50), sleep: Duration::from_millis(10) }
    }
}

/// The interrupts of the subgroup by vector. Each is bound when it is first waited for.
#[derive(Default)]
struct BoundInterrupts([Option<Interrupt>; vector::COUNT as usize]);

impl BoundInterrupts {
    fn get(&mut self, device: &Device, vector: u16) -> Result<Interrupt, Error> {
        match &mut self.0[usize::from(vector)] {
            Some(interrupt) => Ok(interrupt.clone()),
            slot => Ok(slot.insert(device.interrupt(vector.into())?).clone()),
        }
    }
}

/// A subgroup of a node: 8 injection FIFOs, 4 reception FIFOs and 8 base addresses.
///
/// One thread at a time uses a subgroup. Threads that work in parallel have a subgroup each, so
/// that none needs a lock. The FIFOs lie in this process's memory. Dropping the subgroup disables
/// them first.
pub struct Subgroup {
    page: Page,
    position: NodePosition,
    injection: Injection,
    reception: Reception,
    /// The base address table, as this process has set it.
    base_addresses: [u64; BASE_ADDRESSES as usize],
    interrupts: BoundInterrupts,
    options: Options,
}

impl Subgroup {
    /// Opens the application subgroup that `device` is. Its FIFOs are disabled, and have no memory.
    ///
    /// # Errors
    /// [`Error::WrongDevice`]; [`DriverError::RingTaken`] when the device's posted-write ring has
    /// another owner.
    pub fn open(device: &Device, options: Options) -> Result<Self, Error> {
        Self::of_page(Page::of_user(device)?, options)
    }

    pub(crate) fn of_page(page: Page, options: Options) -> Result<Self, Error> {
        let position = page.position()?;
        let poster = page.device().poster(0)?;
        let mut subgroup = Self {
            position,
            injection: Injection::new(page.clone(), poster),
            reception: Reception::new(page.clone()),
            base_addresses: [NO_BASE_ADDRESS; BASE_ADDRESSES as usize],
            interrupts: BoundInterrupts::default(),
            options,
            page,
        };

        // An earlier subgroup of this process may have left FIFOs enabled.
        subgroup.injection.set_enabled(u8::MAX, false)?;
        subgroup.reception.disable_all()?;
        Ok(subgroup)
    }

    /// Returns the number of the subgroup in its node: 0 to 63, or 64 to 67 for the system's.
    pub fn number(&self) -> u16 {
        self.page.subgroup()
    }

    /// Returns the position of the node in the network, and the network's shape.
    pub fn position(&self) -> NodePosition {
        self.position
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        self.page.device()
    }

    /// Returns the number in its node of an injection FIFO: `Rget_Inj_FIFO_Id`.
    pub fn injection_id(&self, fifo: u8) -> u16 {
        self.number() * INJECTION_FIFOS + u16::from(fifo)
    }

    /// Returns the number in its node of a reception FIFO: `Rec_FIFO_Id`.
    pub fn reception_id(&self, fifo: u8) -> u16 {
        self.number() * RECEPTION_FIFOS + u16::from(fifo)
    }

    /// Returns the number in its node of an entry of the base address table.
    pub fn base_address_id(&self, entry: u8) -> u16 {
        self.number() * BASE_ADDRESSES + u16::from(entry)
    }

    /// Allocates memory that the unit reaches, rounded up to whole pages. Its public name is
    /// `Kernel_CreateMemoryRegion`.
    ///
    /// # Errors
    /// [`Error::AddressTooHigh`] where the device's addresses lie above the unit's; errors of the
    /// driver.
    pub fn memory(&self, bytes: usize) -> Result<DmaBuffer, Error> {
        let buffer = self.device().dma_buffer(bytes, HugePages::Try)?;
        match buffer.iova().checked_add(buffer.len()) {
            Some(end) if end <= END_OF_ADDRESSES => Ok(buffer),
            _ => Err(Error::AddressTooHigh { address: buffer.iova() }),
        }
    }

    /// Assigns an injection FIFO memory for `descriptors` at once, and enables it. The public names
    /// are `Kernel_InjFifoInit` and `Kernel_InjFifoActivate`.
    ///
    /// # Errors
    /// [`Error::NoSuch`], [`Error::FifoMemory`]; as [`Subgroup::memory`].
    pub fn open_injection(
        &mut self,
        fifo: u8,
        descriptors: u32,
        attributes: InjectionAttributes,
    ) -> Result<(), Error> {
        injection::check_fifo_number(fifo)?;
        // One slot stays empty, because equal pointers mean an empty FIFO.
        let bytes = (u64::from(descriptors) + 1) * DESCRIPTOR;
        let memory = self.memory(bytes as usize)?;
        self.init_injection(fifo, Arc::new(memory), 0, bytes, attributes)?;
        self.set_injection_enabled(1 << fifo, true)
    }

    /// Assigns an injection FIFO `bytes` at `offset` of a buffer, both multiples of 64. The FIFO is
    /// disabled and empty then. The public name is `Kernel_InjFifoInit`.
    ///
    /// # Errors
    /// [`Error::NoSuch`], [`Error::FifoMemory`].
    pub fn init_injection(
        &mut self,
        fifo: u8,
        memory: Arc<DmaBuffer>,
        offset: u64,
        bytes: u64,
        attributes: InjectionAttributes,
    ) -> Result<(), Error> {
        self.injection.init(fifo, memory, offset, bytes)?;
        self.set_bit(reg::REMOTE_GET, fifo, attributes.remote_get)?;
        self.set_bit(reg::HIGH_PRIORITY, fifo, attributes.high_priority)
    }

    /// Sets or clears a bit of a register.
    fn set_bit(&self, register: u64, bit: u8, is_set: bool) -> Result<(), Error> {
        let before = self.page.read(register)?;
        let after = if is_set { before | 1 << bit } else { before & !(1 << bit) };
        if after == before { Ok(()) } else { self.page.write(register, after) }
    }

    /// Enables or disables the injection FIFOs of these bits. Enabling one clears its fault. The
    /// public name is `Kernel_InjFifoActivate`.
    ///
    /// # Errors
    /// Errors of a trapped access.
    pub fn set_injection_enabled(&mut self, fifos: u8, enabled: bool) -> Result<(), Error> {
        self.injection.set_enabled(fifos, enabled)
    }

    /// Lets an injection FIFO begin anew, empty and enabled: after [`Error::Stopped`], or to
    /// withdraw its descriptors. The unit may have begun with one of them. Sequence numbers go on,
    /// and those of withdrawn descriptors are not given again ([`Error::Withdrawn`]).
    ///
    /// # Errors
    /// [`Error::NotInitialised`], [`Error::NoSuch`]; errors of a trapped access.
    pub fn restart_injection(&mut self, fifo: u8) -> Result<(), Error> {
        self.injection.restart(fifo)
    }

    /// Assigns a reception FIFO `bytes` of memory, a multiple of 32, and enables it. The public
    /// names are `Kernel_RecFifoInit` and `Kernel_RecFifoEnable`.
    ///
    /// # Errors
    /// [`Error::NoSuch`], [`Error::FifoMemory`]; as [`Subgroup::memory`] and
    /// [`Subgroup::set_reception_enabled`].
    pub fn open_reception(&mut self, fifo: u8, bytes: u64) -> Result<(), Error> {
        reception::check_fifo_number(fifo)?;
        let memory = self.memory(usize::try_from(bytes).unwrap_or(usize::MAX).max(1))?;
        self.init_reception(fifo, Arc::new(memory), 0, bytes)?;
        self.set_reception_enabled(1 << fifo, true)
    }

    /// Assigns a reception FIFO `bytes` at `offset` of a buffer, both multiples of 32. The FIFO is
    /// disabled and empty then. The public name is `Kernel_RecFifoInit`.
    ///
    /// # Errors
    /// [`Error::NoSuch`], [`Error::FifoMemory`].
    pub fn init_reception(
        &mut self,
        fifo: u8,
        memory: Arc<DmaBuffer>,
        offset: u64,
        bytes: u64,
    ) -> Result<(), Error> {
        self.reception.init(fifo, memory, offset, bytes)
    }

    /// Enables or disables the reception FIFOs of these bits. Packets for a disabled one are
    /// dropped. The others stay as they are, also those that the unit has stopped. The public names
    /// are `Kernel_RecFifoEnable` and `Kernel_RecFifoDisable`.
    ///
    /// # Errors
    /// [`Error::ReceptionRefused`] for a FIFO that the kernel has disabled; errors of a trapped
    /// access.
    pub fn set_reception_enabled(&mut self, fifos: u8, enabled: bool) -> Result<(), Error> {
        self.reception.set_enabled(fifos, enabled)
    }

    /// Sets an entry of the base address table: an address, or one with an operation
    /// ([`crate::store_address`]). The public name is `MUSPI_SetBaseAddress`.
    ///
    /// # Errors
    /// [`Error::NoSuch`], [`Error::BaseAddressTooHigh`]; errors of a trapped access.
    pub fn set_base_address(&mut self, entry: u8, address: u64) -> Result<(), Error> {
        let index = self.base_address_index(entry)?;
        // The unit refuses bits above the indicator of an operation.
        if address != NO_BASE_ADDRESS && address >= atomic::INDICATOR << 1 {
            return Err(Error::BaseAddressTooHigh { address });
        }
        self.page.write(reg::BASE_ADDRESS + 8 * u64::from(entry), address)?;
        self.base_addresses[index] = address;
        Ok(())
    }

    /// Returns the entry of the base address table as it was set, or [`NO_BASE_ADDRESS`]. The
    /// public name is `MUSPI_GetBaseAddress`.
    ///
    /// # Errors
    /// [`Error::NoSuch`].
    pub fn base_address(&self, entry: u8) -> Result<u64, Error> {
        Ok(self.base_addresses[self.base_address_index(entry)?])
    }

    /// Checks the number of an entry of the base address table, and returns it as an index.
    fn base_address_index(&self, number: u8) -> Result<usize, Error> {
        let index = usize::from(number);
        let refusal = Error::NoSuch { resource: Resource::BaseAddress, number };
        if index < self.base_addresses.len() { Ok(index) } else { Err(refusal) }
    }

    /// Returns the injection FIFOs.
    #[inline]
    pub fn injection(&mut self) -> &mut Injection {
        &mut self.injection
    }

    /// Injects a descriptor if there is room: [`Injection::try_inject`].
    ///
    /// # Errors
    /// As [`Injection::try_inject`].
    #[inline]
    pub fn try_inject(&mut self, fifo: u8, descriptor: &Descriptor) -> Result<Option<u64>, Error> {
        self.injection.try_inject(fifo, descriptor)
    }

    /// Injects all descriptors, in order, or none: see [`Injection::try_inject_all`]. The public
    /// name is `MUSPI_InjFifoInjectMultiple`.
    ///
    /// # Errors
    /// As [`Injection::try_inject_all`].
    #[inline]
    pub fn try_inject_all(&mut self, fifo: u8, descriptors: &[Descriptor]) -> Result<Option<u64>, Error> {
        self.injection.try_inject_all(fifo, descriptors)
    }

    /// Injects a descriptor, and waits for room if necessary: [`Injection::inject`].
    ///
    /// # Errors
    /// As [`Injection::inject`].
    #[inline]
    pub fn inject(
        &mut self,
        fifo: u8,
        descriptor: &Descriptor,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<u64, Error> {
        self.injection.inject(fifo, descriptor, deadline, cancel)
    }

    /// Takes at most `most` packets that are in a FIFO now, and passes each to `handle`, which may
    /// inject. Returns their number. It does not wait.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::NotInitialised`], [`Error::NoSuch`]; errors of the posted-write
    /// ring. Packets that were passed to `handle` are taken also then.
    #[inline]
    pub fn receive(
        &mut self,
        fifo: u8,
        most: u32,
        handle: impl FnMut(&Packet<'_>, &mut Injection),
    ) -> Result<u32, Error> {
        self.reception.receive(fifo, most, &mut self.injection, handle)
    }

    /// Takes at most `most` packets that are in a FIFO now, and calls the function of each packet's
    /// dispatch id. Returns their number. The public name is `MUSPI_RecFifoPoll`.
    ///
    /// # Errors
    /// [`Error::NoHandler`] for the first packet without a function, which is dropped, as others
    /// like it; as [`Subgroup::receive`].
    #[inline]
    pub fn poll(&mut self, fifo: u8, most: u32, handlers: &mut Handlers<'_>) -> Result<u32, Error> {
        let mut first_unhandled = None;
        let taken = self.receive(fifo, most, |packet, injection| {
            if !handlers.call(packet, injection) {
                first_unhandled = first_unhandled.or(Some(packet.dispatch()));
            }
        })?;

        match first_unhandled {
            None => Ok(taken),
            Some(dispatch) => Err(Error::NoHandler { dispatch }),
        }
    }

    /// Returns whether a packet is in a FIFO.
    ///
    /// # Errors
    /// [`Error::ReceptionStopped`], [`Error::Damaged`], [`Error::NotInitialised`],
    /// [`Error::NoSuch`].
    #[inline]
    pub fn has_packet(&self, fifo: u8) -> Result<bool, Error> {
        self.reception.has_packet(fifo)
    }

    /// Waits until a packet is in a FIFO. The call polls first, and then waits for an interrupt.
    ///
    /// # Errors
    /// [`DriverError::Timeout`], [`DriverError::Cancelled`], [`DriverError::DeviceGone`];
    /// [`Error::Reset`]; as [`Subgroup::has_packet`].
    pub fn wait_packet(
        &mut self,
        fifo: u8,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(), Error> {
        loop {
            let device = self.device().clone();
            let polled = device.wait_for(deadline.at_most(self.options.spin), cancel, "a packet", || {
                self.announce_missing_head(fifo)?;
                let has_packet = self.has_packet(fifo)?;
                self.page.check_not_reset()?;
                Ok(has_packet.then_some(()))
            });

            if !ended_by_spin(&polled, deadline) {
                return polled;
            }
            self.sleep_for_packet(fifo, deadline, cancel)?;
        }
    }

    /// Writes the head register of a FIFO if an earlier write is missing, because the ring of
    /// posted writes was full when the packets before the head were taken.
    fn announce_missing_head(&mut self, fifo: u8) -> Result<(), Error> {
        self.reception.receive(fifo, 0, &mut self.injection, |_, _| {}).map(|_| ())
    }

    /// Enables the interrupt of packets in a FIFO, and sleeps until it comes, for a bounded time.
    #[cold]
    fn sleep_for_packet(
        &mut self,
        fifo: u8,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(), Error> {
        let interrupt = self.interrupts.get(self.page.device(), vector::PACKET)?;
        let bit = interrupt::PACKET << fifo;

        // Earlier packets' bits are cleared. A packet that comes from here on interrupts the sleep.
        self.page.write(reg::CLEAR_INTERRUPT, bit)?;
        self.set_bit(reg::INTERRUPT_ENABLE, bit.trailing_zeros() as u8, true)?;
        if !self.has_packet(fifo)? {
            interrupt.sleep(deadline.at_most(self.options.sleep), cancel)?;
        }
        Ok(())
    }

    /// Waits until all bytes that a counter expects are there.
    ///
    /// # Errors
    /// [`DriverError::Timeout`], [`DriverError::Cancelled`], [`DriverError::DeviceGone`];
    /// [`Error::Reset`].
    pub fn wait_counter(
        &self,
        counter: &Counter,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(), Error> {
        let waited = self.device().wait_for(deadline, cancel, "a reception counter", || {
            if counter.is_done() {
                return Ok(Some(()));
            }
            self.page.check_not_reset()?;
            Ok(None)
        });

        charge(Cost::ReceiveMessage, 1);
        waited
    }

    /// Returns the number of packets for this subgroup that were dropped, because they named a FIFO
    /// that is not enabled, a base address that is not set, or memory that is not there.
    ///
    /// # Errors
    /// Only an access to memory that is gone fails.
    pub fn dropped(&self) -> Result<u64, Error> {
        Ok(self.page.word(reg::DROPPED)?.load(std::sync::atomic::Ordering::Acquire))
    }

    pub(crate) fn page(&self) -> &Page {
        &self.page
    }

    /// Sleeps until the interrupt of a vector comes, for [`Options::sleep`] at most.
    #[cold]
    pub(crate) fn sleep_for(
        &mut self,
        vector: u16,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(), Error> {
        let interrupt = self.interrupts.get(self.page.device(), vector)?;
        interrupt.sleep(deadline.at_most(self.options.sleep), cancel)?;
        Ok(())
    }

    pub(crate) fn options(&self) -> Options {
        self.options
    }
}

/// Returns whether only the polling part of a wait has ended, so that it goes on with a sleep.
pub(crate) fn ended_by_spin(polled: &Result<(), Error>, deadline: Deadline) -> bool {
    matches!(polled, Err(Error::Driver(DriverError::Timeout { .. }))) && !deadline.has_passed()
}

impl Drop for Subgroup {
    fn drop(&mut self) {
        // The unit must leave the FIFOs and the memory alone before the memory is unmapped. After a
        // loss or a reset it has done so. In a child of `fork`, both are the parent's.
        if self.page.device().is_inherited() || !self.page.is_current() {
            return;
        }

        let _ = self.injection.set_enabled(u8::MAX, false);
        let _ = self.reception.disable_all();
        for entry in 0..BASE_ADDRESSES as u8 {
            if self.base_addresses[usize::from(entry)] != NO_BASE_ADDRESS {
                let _ = self.set_base_address(entry, NO_BASE_ADDRESS);
            }
        }
    }
}

impl fmt::Debug for Subgroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subgroup").field("number", &self.number()).field("position", &self.position).finish()
    }
}
