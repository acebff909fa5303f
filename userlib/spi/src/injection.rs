//! Injection FIFOs: software stores descriptors, and the unit carries them out in order.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use nicforge_driver::{
    Cancel, Deadline, DmaBuffer, Error as DriverError, Poster,
    runtime::{Cost, charge},
};
use nicforge_hwi::{
    mu::{BAR_REGISTERS, DESCRIPTOR, INJECTION_FIFOS, MAX_FIFO, MIN_INJECTION_FIFO, reg},
    mu_packet::Descriptor,
};
use nicforge_shm::SharedU64;
use zerocopy::transmute;

use crate::{
    Error, Fault, Resource,
    fifo::{Ring, Sizes},
    page::Page,
};

/// Sizes that injection FIFOs may have.
const SIZES: Sizes = Sizes { min: MIN_INJECTION_FIFO, max: MAX_FIFO, alignment: DESCRIPTOR };

/// An injection FIFO with memory. Its public name is `MUSPI_InjFifo_t`.
struct InjectionFifo {
    ring: Ring,
    /// Offset after the last descriptor.
    tail: u64,
    /// Number of descriptors that fit at once.
    capacity: u64,
    /// Sequence number of the last descriptor that was injected.
    injected: u64,
    /// Sequence number of the last descriptor that is known to be done, or withdrawn.
    done: u64,
    /// Difference between the sequence number of a descriptor and the unit's count when it is done,
    /// modulo 2^64. The unit does not count withdrawn descriptors.
    uncounted: u64,
    /// Sequence numbers of descriptors that restarts have withdrawn, in order. Ranges that touch
    /// are one.
    withdrawn: Vec<Range<u64>>,
    /// Mirror of the unit's count of descriptors that are done.
    count: SharedU64,
    /// Mirror of the reason why the unit has stopped the FIFO.
    fault: SharedU64,
}

impl InjectionFifo {
    /// Returns the number of descriptors for which there is room. Reads the unit's count only if
    /// that is less than `wanted` by what is known.
    #[inline]
    fn room(&mut self, wanted: u64) -> u64 {
        let room = self.capacity - (self.injected - self.done);
        if room >= wanted {
            return room;
        }

        self.update_done();
        self.capacity - (self.injected - self.done)
    }

    /// Reads the unit's count of descriptors that are done. An impossible count is ignored.
    #[inline]
    fn update_done(&mut self) {
        let number = self.count.load(Ordering::Acquire).wrapping_add(self.uncounted);
        if number > self.done && number <= self.injected {
            self.done = number;
        }
    }

    /// Withdraws the descriptors that the unit has not done, when it has done `count`. The next one
    /// gets the number after the last one that was given.
    fn withdraw(&mut self, count: u64) {
        let done = count.wrapping_add(self.uncounted);
        // The count of a FIFO for gets is not that of the descriptors that software has injected.
        if (self.done..self.injected).contains(&done) {
            let end = self.injected + 1;
            match self.withdrawn.last_mut() {
                Some(last) if last.end == done + 1 => last.end = end,
                _ => self.withdrawn.push(done + 1..end),
            }
        }

        (self.tail, self.done) = (0, self.injected);
        self.uncounted = self.injected.wrapping_sub(count);
    }

    /// Returns whether a descriptor is done whose number is not above [`InjectionFifo::done`]. If a
    /// restart has withdrawn it, returns an error.
    #[inline]
    fn check_not_withdrawn(&self, fifo: u8, number: u64) -> Result<bool, Error> {
        if self.withdrawn.iter().any(|range| range.contains(&number)) {
            return Err(Error::Withdrawn { fifo, number });
        }
        Ok(true)
    }

    /// Returns the reason why the unit has stopped the FIFO, if it has.
    fn fault(&self) -> Option<Fault> {
        Fault::from_register(self.fault.load(Ordering::Acquire))
    }
}

/// The injection FIFOs of a subgroup, and the posted-write ring by which their tails move.
///
/// A FIFO's descriptors are carried out in order, and those of different FIFOs in parallel. An
/// injection stores 64 bytes and posts one write. It takes no lock, allocates nothing, and makes no
/// system call while the engine is awake.
pub struct Injection {
    pub(crate) poster: Poster,
    page: Page,
    fifos: [Option<InjectionFifo>; INJECTION_FIFOS as usize],
}

/// Returns the offset in the page of an injection FIFO's registers.
fn registers_of(fifo: u8) -> u64 {
    reg::INJECTION + u64::from(fifo) * reg::FIFO
}

impl Injection {
    /// Returns FIFOs without memory.
    pub(crate) fn new(page: Page, poster: Poster) -> Self {
        Self { poster, page, fifos: [const { None }; INJECTION_FIFOS as usize] }
    }

    /// Assigns a FIFO `bytes` of memory at `offset` of a buffer. The FIFO is disabled and empty
    /// then.
    pub(crate) fn init(
        &mut self,
        fifo: u8,
        buffer: Arc<DmaBuffer>,
        offset: u64,
        bytes: u64,
    ) -> Result<(), Error> {
        check_fifo_number(fifo)?;
        let ring = Ring::new(buffer, offset, bytes, SIZES)?;
        self.set_enabled(1 << fifo, false)?;

        let base = registers_of(fifo);
        self.page.write(base + reg::START, ring.start())?;
        self.page.write(base + reg::SIZE_1, ring.size() - 1)?;
        self.page.write(base + reg::HEAD, ring.start())?;
        self.page.write(base + reg::TAIL, ring.start())?;

        let injected = self.page.read(base + reg::DESCRIPTOR_COUNT)?;
        self.fifos[usize::from(fifo)] = Some(InjectionFifo {
            // One slot stays empty, because equal pointers mean an empty FIFO.
            capacity: ring.size() / DESCRIPTOR - 1,
            tail: 0,
            injected,
            done: injected,
            uncounted: 0,
            withdrawn: Vec::new(),
            count: self.page.word(base + reg::DESCRIPTOR_COUNT)?,
            fault: self.page.word(base + reg::FAULT)?,
            ring,
        });
        Ok(())
    }

    /// Enables or disables the FIFOs of these bits.
    pub(crate) fn set_enabled(&mut self, fifos: u8, enabled: bool) -> Result<(), Error> {
        self.page.write(if enabled { reg::ENABLE } else { reg::DISABLE }, fifos.into())?;

        // Enabling clears a fault. Until the unit has updated the mirror, it still shows the fault.
        let is_changed = |fifo: &u8| fifos >> fifo & 1 == 1 && self.fifos[usize::from(*fifo)].is_some();
        for fifo in (0..INJECTION_FIFOS as u8).filter(is_changed).filter(|_| enabled) {
            self.page.await_mirror(registers_of(fifo) + reg::FAULT)?;
        }
        Ok(())
    }

    /// Returns a FIFO that has memory.
    #[inline]
    fn fifo(&mut self, fifo: u8) -> Result<&mut InjectionFifo, Error> {
        find(&mut self.fifos, fifo)
    }

    /// Injects a descriptor if there is room. Returns its sequence number, with which
    /// [`Injection::check_done`] asks for its end; or `None`, when nothing was injected. The public
    /// name is `MUSPI_InjFifoInject`.
    ///
    /// # Errors
    /// [`Error::Stopped`] when the unit has stopped a full FIFO; [`Error::NotInitialised`],
    /// [`Error::NoSuch`]; errors of the posted-write ring.
    #[inline]
    pub fn try_inject(&mut self, fifo: u8, descriptor: &Descriptor) -> Result<Option<u64>, Error> {
        self.try_inject_all(fifo, std::slice::from_ref(descriptor))
    }

    /// Injects all descriptors, in order, or none: as [`Injection::try_inject`]. The sequence
    /// number is that of the last one. The public name is `MUSPI_InjFifoInjectMultiple`.
    ///
    /// # Errors
    /// [`Error::Batch`] for more descriptors than the FIFO holds; as [`Injection::try_inject`].
    #[inline]
    pub fn try_inject_all(&mut self, fifo: u8, descriptors: &[Descriptor]) -> Result<Option<u64>, Error> {
        let tail_register = self.page.offset(registers_of(fifo) + reg::TAIL);
        let state = find(&mut self.fifos, fifo)?;

        let count = descriptors.len() as u64;
        if state.room(count) < count {
            return state.without_room(fifo, count);
        }

        let mut tail = state.tail;
        for descriptor in descriptors {
            let bytes: [u8; DESCRIPTOR as usize] = transmute!(*descriptor);
            state.ring.window().store_64(tail, bytes)?;
            tail = state.ring.advance(tail, DESCRIPTOR);
        }

        if count > 0 {
            charge(Cost::SendMessage, descriptors.len());
            let address = state.ring.start() + tail;
            match self.poster.try_post(BAR_REGISTERS, tail_register, &address.to_le_bytes()) {
                Ok(()) => {}
                // The descriptors lie behind the tail, where the unit does not see them.
                Err(DriverError::RingFull { .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            state.tail = tail;
            state.injected += count;
        }
        Ok(Some(state.injected))
    }

    /// Injects a descriptor, and waits for room if necessary. Returns its sequence number.
    ///
    /// # Errors
    /// As [`Injection::try_inject`]; [`DriverError::Timeout`], [`DriverError::Cancelled`],
    /// [`DriverError::DeviceGone`]; [`Error::Reset`].
    #[inline]
    pub fn inject(
        &mut self,
        fifo: u8,
        descriptor: &Descriptor,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<u64, Error> {
        match self.try_inject(fifo, descriptor)? {
            Some(number) => Ok(number),
            None => self.inject_when_room(fifo, descriptor, deadline, cancel),
        }
    }

    /// Waits for room, and injects a descriptor.
    #[cold]
    fn inject_when_room(
        &mut self,
        fifo: u8,
        descriptor: &Descriptor,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<u64, Error> {
        let device = self.page.device().clone();
        device.wait_for(deadline, cancel, "room in an injection FIFO", || {
            self.page.check_not_reset()?;
            self.try_inject(fifo, descriptor)
        })
    }

    /// Returns whether the descriptor with this sequence number is done, which means that the unit
    /// has read its payload. The public name is `MUSPI_CheckDescComplete`.
    ///
    /// # Errors
    /// [`Error::Stopped`] when the unit has stopped the FIFO before; [`Error::Withdrawn`] when a
    /// restart has withdrawn the descriptor; [`Error::NotInitialised`], [`Error::NoSuch`].
    #[inline]
    pub fn check_done(&mut self, fifo: u8, number: u64) -> Result<bool, Error> {
        let state = self.fifo(fifo)?;
        if number <= state.done {
            return state.check_not_withdrawn(fifo, number);
        }

        state.update_done();
        if number <= state.done {
            return Ok(true);
        }
        match state.fault() {
            None => Ok(false),
            Some(fault) => state.check_done_before(fifo, number, fault),
        }
    }

    /// Waits until the descriptor with this sequence number is done.
    ///
    /// # Errors
    /// As [`Injection::check_done`]; [`DriverError::Timeout`], [`DriverError::Cancelled`],
    /// [`DriverError::DeviceGone`]; [`Error::Reset`].
    pub fn wait_done(
        &mut self,
        fifo: u8,
        number: u64,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(), Error> {
        let device = self.page.device().clone();
        device.wait_for(deadline, cancel, "the end of a descriptor", || {
            self.page.check_not_reset()?;
            Ok(self.check_done(fifo, number)?.then_some(()))
        })
    }

    /// Returns the number of descriptors that fit into a FIFO now. The public name is
    /// `MUSPI_getHwFreeSpace`.
    ///
    /// # Errors
    /// [`Error::NotInitialised`], [`Error::NoSuch`].
    pub fn room(&mut self, fifo: u8) -> Result<u64, Error> {
        Ok(self.fifo(fifo)?.room(u64::MAX))
    }

    /// Returns the sequence number of the last descriptor. The public name is
    /// `MUSPI_getNumInjected`.
    ///
    /// # Errors
    /// [`Error::NotInitialised`], [`Error::NoSuch`].
    pub fn injected(&mut self, fifo: u8) -> Result<u64, Error> {
        Ok(self.fifo(fifo)?.injected)
    }

    /// Returns why the unit has stopped a FIFO, or `None` while it works.
    ///
    /// # Errors
    /// [`Error::NotInitialised`], [`Error::NoSuch`].
    pub fn fault(&mut self, fifo: u8) -> Result<Option<Fault>, Error> {
        Ok(self.fifo(fifo)?.fault())
    }

    /// Empties a FIFO and enables it again: after [`Error::Stopped`], or to withdraw its
    /// descriptors. The unit may have begun the first of the withdrawn descriptors.
    pub(crate) fn restart(&mut self, fifo: u8) -> Result<(), Error> {
        let start = self.fifo(fifo)?.ring.start();
        let base = registers_of(fifo);
        self.set_enabled(1 << fifo, false)?;
        self.page.write(base + reg::HEAD, start)?;
        self.page.write(base + reg::TAIL, start)?;

        let count = self.page.read(base + reg::DESCRIPTOR_COUNT)?;
        self.fifo(fifo)?.withdraw(count);
        self.set_enabled(1 << fifo, true)
    }
}

impl InjectionFifo {
    /// Returns the result of an injection of `count` descriptors that found no room: an error, if
    /// there will be none, or `None`.
    #[cold]
    fn without_room(&self, fifo: u8, count: u64) -> Result<Option<u64>, Error> {
        if count > self.capacity {
            return Err(Error::Batch { count: count as usize, most: self.capacity });
        }
        match self.fault() {
            None => Ok(None),
            Some(fault) => Err(Error::Stopped { fifo, fault }),
        }
    }

    /// Returns whether a FIFO that a fault has stopped had done a descriptor before. If not,
    /// returns the fault as an error.
    #[cold]
    fn check_done_before(&mut self, fifo: u8, number: u64, fault: Fault) -> Result<bool, Error> {
        self.update_done();
        if number <= self.done { Ok(true) } else { Err(Error::Stopped { fifo, fault }) }
    }
}

/// Returns a FIFO that has memory.
#[inline]
fn find(fifos: &mut [Option<InjectionFifo>], fifo: u8) -> Result<&mut InjectionFifo, Error> {
    match fifos.get_mut(usize::from(fifo)) {
        Some(Some(state)) => Ok(state),
        Some(None) => Err(Error::NotInitialised { resource: Resource::InjectionFifo, number: fifo }),
        None => Err(no_fifo(fifo)),
    }
}

/// Checks the number of an injection FIFO in its subgroup.
pub(crate) fn check_fifo_number(fifo: u8) -> Result<(), Error> {
    if u16::from(fifo) < INJECTION_FIFOS { Ok(()) } else { Err(no_fifo(fifo)) }
}

/// Returns the error for a FIFO that does not exist.
#[cold]
fn no_fifo(number: u8) -> Error {
    Error::NoSuch { resource: Resource::InjectionFifo, number }
}
