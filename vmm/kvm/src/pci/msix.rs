//! MSI-X: the table that the guest writes, and the eventfds that make its messages.
//!
//! The table is kept here, and every write is also forwarded to the function. A vector gets an
//! eventfd when it is unmasked for the first time. While a vector is masked, its eventfd keeps the
//! interrupts of the function, and KVM sends one when the vector is connected again.
//!
//! The pending bits are those of the function, which sets them for vectors without an eventfd, and
//! those of masked vectors whose eventfd has an interrupt.

use std::{ops::Range, os::fd::AsFd, sync::Arc};

use crate::{
    error::VmError,
    event::Event,
    function::{Function, FunctionError},
    hypervisor::Message,
    interrupts::{Interrupts, MessageNumber},
    ports::access_bytes,
};

use super::capability;

/// The capability's id.
const CAPABILITY: u8 = 0x11;
/// Offsets in the capability: the message control register, and the places of the table and of the
/// pending bits.
const CONTROL: u16 = 2;
const TABLE: u16 = 4;
const PENDING: u16 = 8;
/// Bits of the message control register. The size is the number of vectors, less one.
const CONTROL_ENABLE: u16 = 1 << 15;
const CONTROL_MASK: u16 = 1 << 14;
const CONTROL_SIZE: u16 = 0x7ff;
/// Bits of a place that are the number of its BAR. The others are its offset.
const PLACE_BAR: u32 = 7;
/// Size of a table entry in bytes.
const ENTRY: usize = 16;
/// The words of an entry, of 4 bytes each: the message's address, its data, and the vector control.
const ADDRESS_LOW: usize = 0;
const ADDRESS_HIGH: usize = 1;
const DATA: usize = 2;
const VECTOR_CONTROL: usize = 3;
/// The bit of the vector control that masks the vector.
const VECTOR_MASK: u32 = 1;

/// Bytes of a word of pending bits, each of which has those of 64 vectors.
const PENDING_WORD: usize = 8;

/// The place of a function's MSI-X capability, table and pending bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MsixLocation {
    /// Offset of the message control register in the configuration space.
    pub(crate) control: u16,
    /// Number of vectors.
    vectors: usize,
    /// The BAR with the table.
    pub(crate) bar: u8,
    /// The table's offsets in the BAR.
    pub(crate) table: Range<u64>,
    /// The BAR with the pending bits.
    pending_bar: u8,
    /// The offsets of the pending bits in that BAR.
    pending: Range<u64>,
}

impl MsixLocation {
    /// Finds the MSI-X capability of a function, if it has one.
    pub(crate) fn find(function: &dyn Function) -> Result<Option<Self>, FunctionError> {
        let Some(at) = capability::find(function, CAPABILITY)? else { return Ok(None) };
        let control = at + CONTROL;
        let size = u16::from_le_bytes(capability::read(function, control)?) & CONTROL_SIZE;
        let vectors = usize::from(size) + 1;

        let place = |register: u16, bytes: usize| {
            let place = u32::from_le_bytes(capability::read(function, at + register)?);
            let start = u64::from(place & !PLACE_BAR);
            Ok::<_, FunctionError>(((place & PLACE_BAR) as u8, start..start + bytes as u64))
        };
        let (bar, table) = place(TABLE, vectors * ENTRY)?;
        let words = vectors.div_ceil(8 * PENDING_WORD);
        let (pending_bar, pending) = place(PENDING, words * PENDING_WORD)?;

        Ok(Some(Self { control, vectors, bar, table, pending_bar, pending }))
    }

    /// Returns whether an access to a BAR at `offset` begins in the table.
    pub(crate) fn contains(&self, bar: u8, offset: u64) -> bool {
        self.bar == bar && self.table.contains(&offset)
    }

    /// Returns whether an access of `length` bytes to a BAR at `offset` has a byte of pending bits.
    pub(crate) fn reaches_pending(&self, bar: u8, offset: u64, length: usize) -> bool {
        let end = offset.saturating_add(length as u64);
        self.pending_bar == bar && offset < self.pending.end && self.pending.start < end
    }
}

/// The MSI-X state of a function.
pub(crate) struct Msix {
    function: Arc<dyn Function>,
    interrupts: Arc<Interrupts>,
    location: MsixLocation,
    /// The bits of the message control register that the guest sets.
    control: u16,
    /// The table's bytes as the guest reads them.
    table: Vec<u8>,
    vectors: Vec<Vector>,
}

/// The source of a vector's messages.
#[derive(Default)]
struct Vector {
    /// The number of its message, from the time when it is first unmasked.
    number: Option<MessageNumber>,
    wiring: Wiring,
}

/// The connection from the function to KVM by a vector's eventfd.
#[derive(Default)]
enum Wiring {
    /// The function has no eventfd.
    #[default]
    None,
    /// The function's eventfd keeps the interrupts.
    Masked(Event),
    /// KVM sends a message for each write to the eventfd.
    Connected(Event),
}

impl Vector {
    /// Returns whether the vector is masked and its eventfd has an interrupt.
    fn is_pending(&self) -> bool {
        matches!(&self.wiring, Wiring::Masked(event) if event.is_signalled())
    }
}

impl Msix {
    /// Makes the state after a reset: MSI-X is disabled, and all vectors are masked.
    pub(crate) fn new(
        function: Arc<dyn Function>,
        interrupts: Arc<Interrupts>,
        location: MsixLocation,
    ) -> Self {
        let table = masked_table(location.vectors);
        let vectors = (0..location.vectors).map(|_| Vector::default()).collect();
        Self { function, interrupts, location, control: 0, table, vectors }
    }

    /// Sets the state after a reset of the function, which has masked all vectors in its own table.
    pub(crate) fn reset(&mut self) {
        self.set_control(0);
        self.table = masked_table(self.location.vectors);
    }

    /// Sets the message control register to the guest's value. When the guest disables MSI-X, the
    /// function's vectors lose their eventfds.
    pub(crate) fn set_control(&mut self, value: u16) {
        let was_enabled = self.is_enabled();
        self.control = value & (CONTROL_ENABLE | CONTROL_MASK);
        (0..self.vectors.len()).for_each(|vector| self.refresh(vector));

        if was_enabled && !self.is_enabled() {
            self.vectors.iter_mut().for_each(|vector| vector.wiring = Wiring::None);
            report("releasing the vectors", self.function.release_vectors());
        }
    }

    /// Reads from the table, at an offset from its start. Bytes beyond its end are zero.
    pub(crate) fn read_table(&self, offset: u64, data: &mut [u8]) {
        for (at, byte) in (offset as usize..).zip(data) {
            *byte = self.table.get(at).copied().unwrap_or(0);
        }
    }

    /// Writes to the table, at an offset from its start. Bytes beyond its end are ignored.
    pub(crate) fn write_table(&mut self, offset: u64, data: &[u8]) {
        let offset = offset as usize;
        let inside = self.table.len().saturating_sub(offset).min(data.len());
        let data = &data[..inside];
        for (at, byte) in (offset..).zip(data) {
            if let Some(entry) = self.table.get_mut(at) {
                *entry = *byte;
            }
        }

        let last = (offset + data.len()).div_ceil(ENTRY).min(self.vectors.len());
        (offset / ENTRY..last).for_each(|vector| self.refresh(vector));

        // The function gets the write last: when it unmasks a vector, the eventfd is there. A
        // server would refuse a write across the table's end.
        let start = self.location.table.start + offset as u64;
        let access_bytes = access_bytes(data.len());
        for (at, part) in (start..).step_by(access_bytes).zip(data.chunks(access_bytes)) {
            report("a write to the MSI-X table", self.function.bar_write(self.location.bar, at, part));
        }
    }

    /// Sets the pending bits of masked vectors whose eventfd has an interrupt, in `data` that the
    /// function has returned for a read at an offset of the BAR.
    pub(crate) fn add_pending(&self, offset: u64, data: &mut [u8]) {
        for (at, byte) in (offset..).zip(data) {
            let Some(index) = at.checked_sub(self.location.pending.start) else { continue };
            let first = (index as usize).saturating_mul(8);
            let vectors = self.vectors.iter().skip(first).take(8);
            for (bit, vector) in vectors.enumerate() {
                *byte |= u8::from(vector.is_pending()) << bit;
            }
        }
    }

    /// Returns whether the guest has enabled MSI-X.
    fn is_enabled(&self) -> bool {
        self.control & CONTROL_ENABLE != 0
    }

    /// Returns a word of a vector's table entry.
    fn word(&self, vector: usize, word: usize) -> u32 {
        let start = vector * ENTRY + 4 * word;
        let bytes = self.table[start..start + 4].try_into();
        u32::from_le_bytes(bytes.unwrap_or_default())
    }

    /// Connects or disconnects a vector, as the table and the control register say. A vector that
    /// is connected already gets its present message.
    fn refresh(&mut self, vector: usize) {
        let masked = self.control & CONTROL_MASK != 0 || self.word(vector, VECTOR_CONTROL) & VECTOR_MASK != 0;
        let is_active = self.is_enabled() && !masked;

        let changed = match (&self.vectors[vector].wiring, is_active) {
            (Wiring::Connected(_), true) => self.route(vector),
            (Wiring::None | Wiring::Masked(_), false) => Ok(()),
            (Wiring::None | Wiring::Masked(_), true) => self.connect(vector),
            (Wiring::Connected(_), false) => self.disconnect(vector),
        };
        report("a vector's eventfd", changed);
    }

    /// Returns the message of a vector.
    fn message(&self, vector: usize) -> Message {
        let address =
            u64::from(self.word(vector, ADDRESS_HIGH)) << 32 | u64::from(self.word(vector, ADDRESS_LOW));
        Message { address, data: self.word(vector, DATA) }
    }

    /// Sets the message of a connected vector's interrupt number to that in the table.
    fn route(&self, vector: usize) -> Result<(), VmError> {
        let number = self.vectors[vector].number;
        number.map_or(Ok(()), |number| self.interrupts.route(number, self.message(vector)))
    }

    /// Lets a vector's eventfd send its message. The first time, the function gets the eventfd.
    fn connect(&mut self, index: usize) -> Result<(), VmError> {
        let message = self.message(index);
        let vector = &mut self.vectors[index];
        let number = match vector.number {
            Some(number) => number,
            None => *vector.number.insert(self.interrupts.reserve()?),
        };
        let event = match std::mem::take(&mut vector.wiring) {
            Wiring::Masked(event) | Wiring::Connected(event) => event,
            Wiring::None => {
                let event = Event::new().map_err(VmError::system("an eventfd"))?;
                self.function.bind_vector(index as u16, event.as_fd())?;
                event
            }
        };

        let connected =
            self.interrupts.route(number, message).and_then(|()| self.interrupts.connect(&event, number));
        vector.wiring = if connected.is_ok() { Wiring::Connected(event) } else { Wiring::Masked(event) };
        connected
    }

    /// Masks a vector: its eventfd keeps the interrupts of the function.
    fn disconnect(&mut self, index: usize) -> Result<(), VmError> {
        let vector = &mut self.vectors[index];
        match (std::mem::take(&mut vector.wiring), vector.number) {
            (Wiring::Connected(event), Some(number)) => {
                let disconnected = self.interrupts.disconnect(&event, number);
                vector.wiring = Wiring::Masked(event);
                disconnected
            }
            (wiring, _) => {
                vector.wiring = wiring;
                Ok(())
            }
        }
    }
}

/// Returns a table whose vectors are all masked, as after a reset.
fn masked_table(vectors: usize) -> Vec<u8> {
    let mut table = vec![0; vectors * ENTRY];
    table.chunks_mut(ENTRY).for_each(|entry| entry[4 * VECTOR_CONTROL] = VECTOR_MASK as u8);
    table
}

/// Logs an error of an operation that the guest's access started: the access itself cannot fail. A
/// guest can cause any number of them, so they are not in the log by default.
fn report<E: std::fmt::Display>(operation: &str, result: Result<(), E>) {
    if let Err(error) = result {
        tracing::debug!(%error, "{operation}");
    }
}
