//! A serial port: a 16550A, and a queue of input that does not fit into its FIFO yet.

use std::{
    collections::VecDeque,
    io::Write,
    sync::{Mutex, PoisonError},
};

use vm_superio::{Serial, serial::NoEvents};

use crate::{error::VmError, event::Event, interrupts::Interrupts};

/// Registers.
const DATA: u8 = 0;
const INTERRUPT_ENABLE: u8 = 1;
const INTERRUPT_REASON: u8 = 2;
const LINE_CONTROL: u8 = 3;
const LINE_STATUS: u8 = 5;
/// The bit of the line control by which the first two registers are the divisor of the baud rate.
const DIVISOR: u8 = 1 << 7;
/// The bit of the line status that says that the FIFO has data.
const DATA_READY: u8 = 1;

/// Most bytes of input that wait for the guest.
const MOST_INPUT: usize = 1 << 16;

/// The destination of a port's output. It must not block for long, because the guest waits.
pub(crate) type Output = Box<dyn Write + Send>;

/// A serial port.
pub(crate) struct SerialPort(Mutex<State>);

struct State {
    uart: Serial<Event, NoEvents, Output>,
    /// Input that is not in the UART's FIFO yet.
    input: VecDeque<u8>,
}

impl SerialPort {
    /// Makes a port whose interrupt is this input of the I/O APIC. Its output is dropped until
    /// [`Self::set_output`].
    pub(crate) fn new(interrupts: &Interrupts, pin: u32) -> Result<Self, VmError> {
        let event = Event::new().map_err(VmError::system("an eventfd"))?;
        interrupts.connect_pin(&event, pin)?;
        let uart = Serial::new(event, Box::new(std::io::sink()) as Output);
        Ok(Self(Mutex::new(State { uart, input: VecDeque::new() })))
    }

    /// Sets where the output goes from now on.
    pub(crate) fn set_output(&self, output: Output) {
        *self.lock().uart.writer_mut() = output;
    }

    /// Takes the destination of the output away. Output is dropped from now on.
    pub(crate) fn take_output(&self) -> Output {
        std::mem::replace(self.lock().uart.writer_mut(), Box::new(std::io::sink()))
    }

    /// Queues input for the guest. Returns the number of bytes that were taken.
    pub(crate) fn send(&self, bytes: &[u8]) -> usize {
        let mut state = self.lock();
        let taken = bytes.len().min(MOST_INPUT - state.input.len());
        state.input.extend(&bytes[..taken]);
        state.fill_fifo();
        taken
    }

    /// Reads a register, from 0 to 7. A read of the data register makes room in the FIFO.
    pub(crate) fn read(&self, register: u8) -> u8 {
        let mut state = self.lock();
        let value = state.uart.read(register);
        state.fill_fifo();
        if matches!(register, DATA | INTERRUPT_REASON) {
            state.raise_again();
        }
        value
    }

    /// Writes a register, from 0 to 7. A write may enable or empty the FIFO.
    pub(crate) fn write(&self, register: u8, value: u8) {
        let mut state = self.lock();
        // A port without a reader loses its output, as a line without a terminal does.
        if let Err(error) = state.uart.write(register, value) {
            tracing::debug!(%error, "a serial port");
        }
        state.fill_fifo();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Raises the interrupt for received data again if data are left in the FIFO. The UART's model
    /// drops its reason at each read of the data and of the reason, whereas a 16550A keeps it until
    /// the FIFO is empty. Linux reads at most 256 bytes at a time, and waits for the interrupt of
    /// the rest.
    fn raise_again(&mut self) {
        let has_data = self.uart.read(LINE_STATUS) & DATA_READY != 0;
        if !has_data || self.uart.read(LINE_CONTROL) & DIVISOR != 0 {
            return;
        }

        // A write to this register raises the interrupts that are enabled and have a reason.
        let enabled = self.uart.read(INTERRUPT_ENABLE);
        if let Err(error) = self.uart.write(INTERRUPT_ENABLE, enabled) {
            tracing::debug!(%error, "a serial port");
        }
    }

    /// Moves input to the FIFO as far as it has room. A FIFO in loop-back mode takes none.
    fn fill_fifo(&mut self) {
        while self.uart.fifo_capacity() > 0 && !self.input.is_empty() {
            match self.uart.enqueue_raw_bytes(self.input.as_slices().0) {
                Ok(taken @ 1..) => drop(self.input.drain(..taken)),
                Ok(0) | Err(_) => return,
            }
        }
    }
}
