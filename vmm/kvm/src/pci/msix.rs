//! MSI-X: the table that the guest writes, and the eventfds that make its messages.
//!
//! The table is kept here, and every write is also forwarded to the function. A vector gets an
//! eventfd when it is unmasked for the first time. While a vector is masked, its eventfd keeps the
//! interrupts of the function, and KVM sends one when the vector is connected again.

use std::{ops::Range, os::fd::AsFd, sync::Arc};

use crate::{
    error::VmError,
    event::Event,
    function::{Function, FunctionError},
    hypervisor::Message,
    interrupts::{Interrupts, MessageNumber},
};

use super::capability;

/// The capability's number.
const CAPABILITY: u8 = 0x11;
/// Bits of the message control register.
const CONTROL_ENABLE: u16 = 1 << 15;
const CONTROL_MASK: u16 = 1 << 14;
const CONTROL_SIZE: u16 = 0x7ff;
/// The bit of a vector's control word that masks it.
const VECTOR_MASK: u32 = 1;
/// Size of a table entry.
const ENTRY: usize = 16;

/// The place of a function's MSI-X capability and table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// The message control register.
    pub(crate) control: u16,
    vectors: usize,
    /// The BAR with the table, and the table's offsets in it.
    pub(crate) bar: u8,
    pub(crate) table: Range<u64>,
}

impl Location {
    /// Finds the MSI-X capability of a function, if it has one.
    pub(crate) fn find(function: &dyn Function) -> Result<Option<Self>, FunctionError> {
        let Some(at) = capability::find(function, CAPABILITY)? else { return Ok(None) };
        let control = at + 2;
        let size = u16::from_le_bytes(capability::read(function, control)?) & CONTROL_SIZE;
        let vectors = usize::from(size) + 1;

        let table = u32::from_le_bytes(capability::read(function, at + 4)?);
        let start = u64::from(table & !7);
        let table_range = start..start + (vectors * ENTRY) as u64;
        Ok(Some(Self { control, vectors, bar: table as u8 & 7, table: table_range }))
    }

    /// Returns whether the table has the first byte of an access to a BAR.
    pub(crate) fn contains(&self, bar: u8, offset: u64) -> bool {
        self.bar == bar && self.table.contains(&offset)
    }
}

/// The MSI-X state of a function.
pub(crate) struct Msix {
    function: Arc<dyn Function>,
    interrupts: Arc<Interrupts>,
    location: Location,
    control: u16,
    table: Vec<u8>,
    vectors: Vec<Vector>,
}

/// The source of a vector's messages.
#[derive(Default)]
struct Vector {
    number: Option<MessageNumber>,
    wiring: Wiring,
}

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

impl Msix {
    pub(crate) fn new(function: Arc<dyn Function>, interrupts: Arc<Interrupts>, location: Location) -> Self {
        let table = masked_table(location.vectors);
        let vectors = (0..location.vectors).map(|_| Vector::default()).collect();
        Self { function, interrupts, location, control: 0, table, vectors }
    }

    /// Returns to the state after a reset of the function, which has masked all vectors.
    pub(crate) fn reset(&mut self) {
        self.set_control(0);
        self.table = masked_table(self.location.vectors);
    }

    /// Sets the message control register as the guest wrote it.
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

    /// Writes to the table, at an offset from its start.
    pub(crate) fn write_table(&mut self, offset: u64, data: &[u8]) {
        let offset = offset as usize;
        for (at, byte) in (offset..).zip(data) {
            if let Some(entry) = self.table.get_mut(at) {
                *entry = *byte;
            }
        }

        let last = (offset + data.len()).div_ceil(ENTRY).min(self.vectors.len());
        (offset / ENTRY..last).for_each(|vector| self.refresh(vector));

        // The function learns of an unmasked vector when its eventfd is there.
        let at = self.location.table.start + offset as u64;
        report("a write to the MSI-X table", self.function.bar_write(self.location.bar, at, data));
    }

    fn is_enabled(&self) -> bool {
        self.control & CONTROL_ENABLE != 0
    }

    fn word(&self, vector: usize, word: usize) -> u32 {
        let start = vector * ENTRY + 4 * word;
        let bytes = self.table[start..start + 4].try_into();
        u32::from_le_bytes(bytes.unwrap_or_default())
    }

    /// Connects or disconnects a vector, as the table and the control register say.
    fn refresh(&mut self, vector: usize) {
        let masked = self.control & CONTROL_MASK != 0 || self.word(vector, 3) & VECTOR_MASK != 0;
        let wanted = self.is_enabled() && !masked;

        let changed = match (&self.vectors[vector].wiring, wanted) {
            (Wiring::Connected(_), true) => self.route(vector),
            (Wiring::None | Wiring::Masked(_), false) => Ok(()),
            (Wiring::None | Wiring::Masked(_), true) => self.connect(vector),
            (Wiring::Connected(_), false) => self.disconnect(vector),
        };
        report("a vector's eventfd", changed);
    }

    /// Returns the message of a vector.
    fn message(&self, vector: usize) -> Message {
        let address = u64::from(self.word(vector, 1)) << 32 | u64::from(self.word(vector, 0));
        Message { address, data: self.word(vector, 2) }
    }

    /// Sends the present message of a vector that is connected.
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
    table.chunks_mut(ENTRY).for_each(|entry| entry[12] = VECTOR_MASK as u8);
    table
}

/// Logs an error that the guest cannot be told of.
fn report<E: std::fmt::Display>(what: &str, result: Result<(), E>) {
    if let Err(error) = result {
        tracing::warn!(%error, "{what}");
    }
}
