//! A PCI function, as the bus of a virtual machine sees it.

use std::{fs::File, io, os::fd::BorrowedFd, sync::Arc, time::Duration};

use crate::{event::Event, memory::Ram};

/// Why a function did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum FunctionError {
    /// The server of the function failed or refused.
    #[error(transparent)]
    Client(#[from] nicforge_vfio_user::ClientError),
    /// The function's own description makes no sense.
    #[error("the function makes no sense: {0}")]
    Malformed(String),
    /// A file of the function cannot be mapped.
    #[error("an area of the function cannot be mapped: {0}")]
    Map(String),
    /// A machine in this process refused.
    #[error(transparent)]
    Machine(#[from] nicforge_core::machine::MachineError),
    /// A machine in this process refused an access.
    #[error(transparent)]
    Access(#[from] nicforge_core::machine::AccessError),
    /// The device took no access for this time.
    #[error("the device took no access for {0:?}")]
    Stalled(Duration),
    /// The code of a machine in this process panicked, so its state is undefined.
    #[error("the devices' machine panicked")]
    Broken,
    /// A thread or an eventfd cannot be made.
    #[error("{call}: {error}")]
    System {
        /// The call.
        call: &'static str,
        /// Its error.
        #[source]
        error: io::Error,
    },
}

impl FunctionError {
    /// Returns a function that adds the name of a system call to its error.
    pub(crate) fn system(call: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::System { call, error }
    }
}

/// The kind of a BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarKind {
    /// I/O ports.
    Io,
    /// Memory with an address of 32 bits.
    Memory32,
    /// Memory with an address of 64 bits. Its upper half is in the next BAR's register.
    Memory64,
}

/// A part of a BAR that is memory.
#[derive(Clone, Debug)]
pub struct Area {
    /// Start in the BAR, in bytes, a multiple of 4096.
    pub offset: u64,
    /// Size in bytes, a multiple of 4096.
    pub size: u64,
    /// The memory.
    pub file: Arc<File>,
    /// Start in the file, in bytes, a multiple of 4096.
    pub file_offset: u64,
    /// Whether the guest's stores change it. Otherwise they are exits, and reach
    /// [`Function::bar_write`].
    pub writable: bool,
}

/// A BAR of a function.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Its number, from 0 to 5.
    pub index: u8,
    /// Its kind.
    pub kind: BarKind,
    /// Size in bytes, a power of two.
    pub size: u64,
    /// The parts that are memory. They do not overlap.
    pub areas: Vec<Area>,
}

/// A register for which only counts that it was written, not the value. The guest's writes to it,
/// of any value and width, signal an eventfd, and do not reach [`Function::bar_write`].
#[derive(Clone, Debug)]
pub struct Doorbell {
    /// Number of the BAR, from 0 to 5.
    pub bar: u8,
    /// Offset in the BAR, in bytes.
    pub offset: u64,
    /// The eventfd, which the function watches.
    pub event: Event,
}

/// A PCI function.
///
/// The bus calls it from the threads of all processors at once. A call that fails reads as ones in
/// the guest, and its error is logged. The bus itself keeps the BARs' addresses and the MSI-X
/// table; it also forwards every write to them.
pub trait Function: Send + Sync {
    /// Returns the BARs. They do not change.
    fn bars(&self) -> Vec<Bar>;

    /// Returns the doorbells. They do not change. A write that KVM cannot turn into a signal still
    /// reaches [`Function::bar_write`].
    fn doorbells(&self) -> Vec<Doorbell> {
        Vec::new()
    }

    /// Reads 1, 2 or 4 bytes of the configuration space.
    ///
    /// # Errors
    /// [`FunctionError`]
    fn config_read(&self, offset: u16, data: &mut [u8]) -> Result<(), FunctionError>;

    /// Writes 1, 2 or 4 bytes of the configuration space.
    ///
    /// # Errors
    /// [`FunctionError`]
    fn config_write(&self, offset: u16, data: &[u8]) -> Result<(), FunctionError>;

    /// Reads 1, 2, 4 or 8 bytes of a BAR.
    ///
    /// # Errors
    /// [`FunctionError`]
    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) -> Result<(), FunctionError>;

    /// Writes 1, 2, 4 or 8 bytes of a BAR.
    ///
    /// # Errors
    /// [`FunctionError`]
    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) -> Result<(), FunctionError>;

    /// Sets the eventfd of an MSI-X vector. The function writes to it at each interrupt.
    ///
    /// # Errors
    /// [`FunctionError`]
    fn bind_vector(&self, vector: u16, event: BorrowedFd<'_>) -> Result<(), FunctionError>;

    /// Removes the eventfds of all MSI-X vectors. It does nothing if the function has none.
    ///
    /// # Errors
    /// [`FunctionError`]
    fn release_vectors(&self) -> Result<(), FunctionError>;

    /// Sets the eventfds of the interrupt line (INTx): the function writes to `raised` when it
    /// asserts its line. After each write to `serviced` it writes to `raised` again if its line is
    /// still asserted. The bus calls it for functions whose configuration space names an interrupt
    /// pin.
    ///
    /// # Errors
    /// [`FunctionError`]
    fn bind_line(&self, raised: BorrowedFd<'_>, serviced: BorrowedFd<'_>) -> Result<(), FunctionError>;

    /// Sets the RAM that the function may reach by DMA, at its guest addresses. It replaces RAM of
    /// an earlier call.
    ///
    /// # Errors
    /// [`FunctionError`]
    fn map_ram(&self, ram: &Ram) -> Result<(), FunctionError>;

    /// Resets the function as a reset of its bus does. The eventfds and the RAM for DMA stay.
    ///
    /// # Errors
    /// [`FunctionError`]
    fn reset(&self) -> Result<(), FunctionError>;
}
