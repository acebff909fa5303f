//! Reception FIFOs: the unit stores packets, and software takes them in order.

use std::sync::{Arc, atomic::Ordering};

use nicforge_driver::{
    DmaBuffer, Error as DriverError,
    runtime::{Cost, charge},
};
use nicforge_hwi::{
    mu::{BAR_REGISTERS, CHUNK, MAX_FIFO, MIN_RECEPTION_FIFO, RECEPTION_FIFOS, fault, reg},
    mu_packet::{HEADER, MAX_PACKET, MAX_PAYLOAD, PacketHeader},
};
use nicforge_shm::{SharedU64, Window};
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    Error, Fault, Injection, Resource, SOFTWARE_BYTES,
    fifo::{Ring, Sizes},
    page::Page,
};

/// Sizes that reception FIFOs may have.
const SIZES: Sizes = Sizes { min: MIN_RECEPTION_FIFO, max: MAX_FIFO, alignment: CHUNK };
/// Number of dispatch ids: `MUSPI_MAX_FUNCTION_IDS`.
pub const DISPATCH_IDS: usize = 256;

/// A packet in a reception FIFO. It is copied from there by [`Packet::read`].
pub struct Packet<'a> {
    ring: &'a Ring,
    /// Offset of the payload in the FIFO's memory.
    payload_offset: u64,
    header: PacketHeader,
}

impl Packet<'_> {
    /// Returns the header.
    pub fn header(&self) -> &PacketHeader {
        &self.header
    }

    /// Returns the dispatch id: the number of the function that handles the packet.
    #[inline]
    pub fn dispatch(&self) -> u8 {
        self.software()[0]
    }

    /// Returns the software bytes. The first one is the dispatch id.
    #[inline]
    pub fn software(&self) -> [u8; SOFTWARE_BYTES] {
        self.header.unit.software_bytes()
    }

    /// Returns the put offset: that of the descriptor, and the bytes of the message in front of
    /// this packet.
    #[inline]
    pub fn put_offset(&self) -> u64 {
        self.header.unit.put_offset()
    }

    /// Returns the number of bytes of the payload, a multiple of 32. Those after the end of the
    /// message are zeros.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.header.payload_bytes().min(MAX_PAYLOAD)
    }

    /// Copies the first bytes of the payload into `out`, and returns their number: the smaller of
    /// `out` and the payload.
    ///
    /// # Errors
    /// Only an access to memory that is gone fails.
    #[inline]
    pub fn read(&self, out: &mut [u8]) -> Result<usize, Error> {
        let length = self.payload_len().min(out.len());
        self.ring.read(self.payload_offset, &mut out[..length])?;
        Ok(length)
    }

    /// Copies the first `length` bytes of the payload, or all if they are fewer, to a place in
    /// other memory. Returns their number.
    ///
    /// # Errors
    /// [`Error::Driver`] for a range outside that memory.
    #[inline]
    pub fn copy_to(&self, length: usize, to: &Window, at: u64) -> Result<usize, Error> {
        let length = self.payload_len().min(length);
        self.ring.copy_to(self.payload_offset, length as u64, to, at)?;
        Ok(length)
    }
}

/// A function that handles packets. It may inject.
pub type Handler<'h> = Box<dyn FnMut(&Packet<'_>, &mut Injection) + 'h>;

/// Functions by dispatch id. The public name is `MUSPI_RecvInfoTable_t`.
pub struct Handlers<'h> {
    table: Vec<Option<Handler<'h>>>,
}

impl Default for Handlers<'_> {
    fn default() -> Self {
        Self { table: std::iter::repeat_with(|| None).take(DISPATCH_IDS).collect() }
    }
}

impl<'h> Handlers<'h> {
    /// Creates a table without functions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the function of a dispatch id, in place of an earlier one. The public name is
    /// `MUSPI_RegisterRecvFunction`.
    pub fn register(&mut self, dispatch: u8, handler: impl FnMut(&Packet<'_>, &mut Injection) + 'h) {
        self.table[usize::from(dispatch)] = Some(Box::new(handler));
    }

    /// Sets the function of the lowest free dispatch id, and returns the id, or `None` when all are
    /// in use. The public name is `MUSPI_RegisterReceiveFunction`.
    pub fn register_free(&mut self, handler: impl FnMut(&Packet<'_>, &mut Injection) + 'h) -> Option<u8> {
        let free = self.table.iter().position(Option::is_none)?;
        self.table[free] = Some(Box::new(handler));
        Some(free as u8)
    }

    /// Removes the function of a dispatch id, and returns whether there was one. The public name is
    /// `MUSPI_DeRegisterReceiveFunction`.
    pub fn deregister(&mut self, dispatch: u8) -> bool {
        self.table[usize::from(dispatch)].take().is_some()
    }

    /// Calls the function of a packet, and returns whether there is one.
    #[inline]
    pub(crate) fn call(&mut self, packet: &Packet<'_>, injection: &mut Injection) -> bool {
        match &mut self.table[usize::from(packet.dispatch())] {
            Some(handler) => {
                handler(packet, injection);
                true
            }
            None => false,
        }
    }
}

/// A reception FIFO with memory. Its public name is `MUSPI_RecFifo_t`.
struct ReceptionFifo {
    ring: Ring,
    /// Offset of the first packet.
    head: u64,
    /// The last value written to the head register.
    announced_head: u64,
    /// Mirror of the unit's tail, an address.
    tail: SharedU64,
    /// Mirror of the reason why the unit has stopped the FIFO.
    fault: SharedU64,
}

impl ReceptionFifo {
    /// Returns the number of bytes of complete packets. `fifo` is the FIFO's number, for errors.
    #[inline]
    fn available(&self, fifo: u8) -> Result<u64, Error> {
        let tail = self.tail.load(Ordering::Acquire).wrapping_sub(self.ring.start());
        if tail >= self.ring.size() || !tail.is_multiple_of(CHUNK) {
            return self.without_tail(fifo, tail);
        }
        Ok(if tail >= self.head { tail - self.head } else { tail + self.ring.size() - self.head })
    }

    /// Returns the number of available bytes for an offset of the tail that is not in the FIFO.
    /// There are none while the mirror has no tail yet; any other offset is an error.
    #[cold]
    fn without_tail(&self, fifo: u8, tail: u64) -> Result<u64, Error> {
        // The mirrored register is 0.
        if tail == 0_u64.wrapping_sub(self.ring.start()) {
            return Ok(0);
        }
        Err(Error::Damaged { fifo, what: "its tail", value: tail })
    }

    /// Reads the header of the packet at the head, and checks the packet's length.
    #[inline]
    fn header(&self, fifo: u8, available: u64) -> Result<PacketHeader, Error> {
        // The start of the FIFO and all packets are multiples of a header's size, so that a header
        // does not go around the end.
        let mut bytes = [0; HEADER];
        self.ring.window().read_array(self.head, &mut bytes)?;
        let header = PacketHeader::read_from_bytes(&bytes).unwrap_or_default();

        let length = (HEADER + header.payload_bytes()) as u64;
        if length > MAX_PACKET as u64 || length > available {
            return Err(Error::Damaged { fifo, what: "a packet's length", value: length });
        }
        Ok(header)
    }
}

/// The reception FIFOs of a subgroup.
pub(crate) struct Reception {
    page: Page,
    fifos: [Option<ReceptionFifo>; RECEPTION_FIFOS as usize],
}

impl Reception {
    /// Returns FIFOs without memory.
    pub(crate) fn new(page: Page) -> Self {
        Self { page, fifos: [const { None }; RECEPTION_FIFOS as usize] }
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

        let base = reg::RECEPTION + u64::from(fifo) * reg::FIFO;
        self.page.write(base + reg::START, ring.start())?;
        self.page.write(base + reg::SIZE_1, ring.size() - 1)?;
        self.page.write(base + reg::HEAD, ring.start())?;
        self.page.write(base + reg::TAIL, ring.start())?;
        // Until the unit has updated the mirror, it shows an earlier tail.
        self.page.await_mirror(base + reg::TAIL)?;

        self.fifos[usize::from(fifo)] = Some(ReceptionFifo {
            ring,
            head: 0,
            announced_head: 0,
            tail: self.page.word(base + reg::TAIL)?,
            fault: self.page.word(base + reg::FAULT)?,
        });
        Ok(())
    }

    /// Enables or disables the FIFOs of these bits, and no others.
    pub(crate) fn set_enabled(&mut self, fifos: u8, enabled: bool) -> Result<(), Error> {
        // The unit and the kernel may have disabled other FIFOs, which must stay so.
        let before = self.page.read(reg::RECEPTION_ENABLE)?;
        let bits = u64::from(fifos);
        let after = if enabled { before | bits } else { before & !bits };
        self.page.write(reg::RECEPTION_ENABLE, after)?;
        if !enabled {
            return Ok(());
        }

        let enabled = self.page.read(reg::RECEPTION_ENABLE)?;
        let has_memory = |fifo: &u8| fifos >> fifo & 1 == 1 && self.fifos[usize::from(*fifo)].is_some();
        for fifo in (0..RECEPTION_FIFOS as u8).filter(has_memory) {
            self.check_enabled(fifo, enabled >> fifo & 1 == 1)?;
        }
        Ok(())
    }

    /// Checks that the unit has enabled a FIFO, and waits until the mirror shows no earlier fault.
    fn check_enabled(&self, fifo: u8, is_enabled: bool) -> Result<(), Error> {
        let fault = reg::RECEPTION + u64::from(fifo) * reg::FIFO + reg::FAULT;
        // A FIFO that is disabled without a fault was not enabled. One with a fault has stopped.
        if !is_enabled && self.page.read(fault)? == fault::NONE {
            return Err(Error::ReceptionRefused { fifo });
        }
        self.page.await_mirror(fault)
    }

    /// Returns a FIFO that has memory.
    #[inline]
    fn fifo(&mut self, fifo: u8) -> Result<&mut ReceptionFifo, Error> {
        match self.fifos.get_mut(usize::from(fifo)) {
            Some(Some(state)) => Ok(state),
            Some(None) => Err(not_initialised(fifo)),
            None => Err(no_fifo(fifo)),
        }
    }

    /// Returns whether a packet is there.
    ///
    /// # Errors
    /// [`Error::ReceptionStopped`] when the unit has stopped the FIFO, and it is empty.
    #[inline]
    pub(crate) fn has_packet(&self, fifo: u8) -> Result<bool, Error> {
        let state = match self.fifos.get(usize::from(fifo)) {
            Some(Some(state)) => state,
            Some(None) => return Err(not_initialised(fifo)),
            None => return Err(no_fifo(fifo)),
        };
        if state.available(fifo)? > 0 {
            return Ok(true);
        }
        match Fault::from_register(state.fault.load(Ordering::Acquire)) {
            None => Ok(false),
            // The unit publishes the last tail before the fault.
            Some(_) if state.available(fifo)? > 0 => Ok(true),
            Some(fault) => Err(Error::ReceptionStopped { fifo, fault }),
        }
    }

    /// Takes at most `most` packets that are there now, passes each to `handle`, and returns their
    /// number. Then it announces the head to the unit, if it has moved since the last announcement.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        fifo: u8,
        most: u32,
        injection: &mut Injection,
        mut handle: impl FnMut(&Packet<'_>, &mut Injection),
    ) -> Result<u32, Error> {
        let head_register = self.page.offset(reg::RECEPTION + u64::from(fifo) * reg::FIFO + reg::HEAD);
        let state = self.fifo(fifo)?;
        let mut available = state.available(fifo)?;
        let mut taken = 0;

        while available > 0 && taken < most {
            let header = state.header(fifo, available)?;
            let length = (HEADER + header.payload_bytes()) as u64;
            let payload_offset = state.ring.advance(state.head, HEADER as u64);

            charge(Cost::ReceivePacket, 1);
            handle(&Packet { ring: &state.ring, payload_offset, header }, injection);

            state.head = state.ring.advance(state.head, length);
            available -= length;
            taken += 1;

            // The unit can reuse the memory of taken packets only once the head is announced. In a
            // long batch this happens after each quarter of the FIFO, so that senders can go on.
            let unannounced = state.ring.advance(state.ring.size() - state.announced_head, state.head);
            if unannounced >= state.ring.size() / 4 {
                state.announce_head(injection, head_register)?;
            }
        }

        if state.head != state.announced_head {
            state.announce_head(injection, head_register)?;
        }
        Ok(taken)
    }

    /// Disables all FIFOs.
    pub(crate) fn disable_all(&mut self) -> Result<(), Error> {
        self.page.write(reg::RECEPTION_ENABLE, 0)
    }
}

impl ReceptionFifo {
    /// Writes the FIFO's head register by a posted write, so that the unit can reuse the memory
    /// before it. When the ring of posted writes is full, the write is left to a later call.
    #[inline]
    fn announce_head(&mut self, injection: &mut Injection, register: u64) -> Result<(), Error> {
        let address = self.ring.start() + self.head;
        match injection.poster.try_post(BAR_REGISTERS, register, address.as_bytes()) {
            Ok(()) => self.announced_head = self.head,
            Err(DriverError::RingFull { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// Checks the number of a reception FIFO in its subgroup.
pub(crate) fn check_fifo_number(fifo: u8) -> Result<(), Error> {
    if u16::from(fifo) < RECEPTION_FIFOS { Ok(()) } else { Err(no_fifo(fifo)) }
}

/// Returns the error for a FIFO without memory.
#[cold]
fn not_initialised(number: u8) -> Error {
    Error::NotInitialised { resource: Resource::ReceptionFifo, number }
}

/// Returns the error for a FIFO that does not exist.
#[cold]
fn no_fifo(number: u8) -> Error {
    Error::NoSuch { resource: Resource::ReceptionFifo, number }
}
