//! The console device (5.3): one port, which is a line to a client of a socket or to a file.
//!
//! - Bytes of the host's end wait for a buffer of the driver: at most some 16 KB here, and those in
//!   the socket's buffer. A client that sends more waits.
//! - As many bytes of the driver wait for the host's end. If it takes none for [`HOLD`], they are
//!   dropped until it does: a driver may keep a processor busy until its buffer returns.
//! - Without a client the driver's bytes are dropped and counted.
//! - A reset drops the bytes for the driver that have been read from the far end.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod.rs` | the device: buffers and chunks of bytes |
//! | `line.rs` | the host's end |
//! | `companion.rs` | the companions, which may wait for it |

mod companion;
pub mod line;

use std::sync::Arc;

use nicforge_core::{
    companion::{DeviceEnd, SendError},
    context::Context,
    device::Counter,
    time::Nanos,
};
use nicforge_kit::retry;
use nicforge_virtio::{
    Backend, Buffer, Direction, Function, Model, QueueError, VirtioDevice, registers::feature,
};

use self::{
    companion::{CheckInput, READER, Reader, SpaceAvailable, WRITER, Writer},
    line::{CHUNK, Chunk, Line},
};

/// Number of the type (5.3.1).
pub const DEVICE_TYPE: u16 = 3;
/// PCI class "communication device, other".
pub const CLASS: u32 = 0x07_80_00;
/// Number of the queue with buffers for bytes of the host's end (5.3.2).
pub const RECEIVE: usize = 0;
/// Number of the queue with bytes of the driver (5.3.2).
pub const TRANSMIT: usize = 1;
/// Time for which the driver's bytes wait for the host's end, in nanoseconds.
pub const HOLD: u64 = 1_000_000_000;

/// The configuration (5.3.4): size, ports and emergency register, which need features that the
/// device does not offer.
const CONFIG: [u8; 12] = [0; 12];

/// The type of device.
const MODEL: Model = Model {
    device_type: DEVICE_TYPE,
    class: CLASS,
    features: feature::COMMON,
    queues: &[Direction::Write, Direction::Read],
    config_bytes: CONFIG.len(),
};

/// The device; the module's documentation describes it.
pub struct VirtioConsole {
    line: Arc<Line>,
    reader: Option<DeviceEnd<CheckInput, Chunk>>,
    writer: Option<DeviceEnd<Chunk, SpaceAvailable>>,
    /// Bytes of the reader's next chunk that the driver has got already.
    taken: usize,
    /// The driver's buffer whose bytes are being sent.
    sending: Option<Sending>,
    /// Time since which the writer has had no room.
    full_since: Option<Nanos>,
    /// Bytes of the driver that were passed to the writer.
    sent: u64,
    /// Bytes of the host's end that the driver got.
    received: u64,
}

/// A buffer of the driver whose bytes are being sent.
struct Sending {
    buffer: Buffer,
    /// Bytes of it that were sent or lost.
    done: u64,
}

impl VirtioConsole {
    /// Builds the device in the state of power-on.
    pub fn device(line: Line) -> VirtioDevice<Self> {
        VirtioDevice::new(Self {
            line: Arc::new(line),
            reader: None,
            writer: None,
            taken: 0,
            sending: None,
            full_since: None,
            sent: 0,
            received: 0,
        })
    }

    /// Starts the reader and the writer unless they run. Without them no bytes are exchanged.
    fn ensure_companions(&mut self, context: &mut Context<'_>) {
        if self.reader.is_none() && self.line.has_input() {
            let reader = Reader { line: Arc::clone(&self.line), unsent: None };
            self.reader = context.start_companion(READER, reader).ok();
        }
        if self.writer.is_none() {
            let writer = Writer { line: Arc::clone(&self.line), current: None };
            self.writer = context.start_companion(WRITER, writer).ok();
        }
    }

    /// Copies bytes of the host's end to buffers. Returns the number of descriptors used.
    fn receive(
        &mut self,
        context: &mut Context<'_>,
        function: &mut Function,
        budget: u32,
    ) -> Result<u32, QueueError> {
        let Some(reader) = &mut self.reader else { return Ok(0) };
        let Some((queue, memory)) = function.queue_with_memory(context, RECEIVE) else { return Ok(0) };

        let mut work = 0;
        while work < budget
            && let Some(chunk) = reader.front()
        {
            // Bytes that were read for an earlier driver are dropped.
            if chunk.incarnation != self.line.incarnation() {
                reader.drop_front();
                work += 1;
                continue;
            }

            let Some(buffer) = queue.take_or_ask(&memory)? else { break };
            work += queue.descriptors() as u32;

            let rest = &chunk.bytes()[self.taken..];
            let count = buffer.writable.min(rest.len() as u64) as usize;
            queue.write(&memory, 0, &rest[..count])?;
            queue.give_back(&memory, buffer, count as u32)?;

            self.received += count as u64;
            self.taken += count;
            if count == rest.len() {
                self.taken = 0;
                reader.drop_front();
            }
        }

        // If the FIFO is full, an earlier command makes the reader check the line.
        let _ = reader.send(CheckInput);
        Ok(work)
    }

    /// Passes bytes of buffers to the writer. Returns the number of descriptors and chunks used.
    fn transmit(
        &mut self,
        context: &mut Context<'_>,
        function: &mut Function,
        budget: u32,
    ) -> Result<u32, QueueError> {
        let mut hold_is_over = self.full_since.is_some_and(|since| retry::is_due(context, since.after(HOLD)));
        let now = context.now();
        let Some((queue, memory)) = function.queue_with_memory(context, TRANSMIT) else { return Ok(0) };
        // Events of the writer only cause this step.
        while self.writer.as_mut().and_then(DeviceEnd::receive).is_some() {}

        let mut work = 0;
        while work < budget {
            let Sending { buffer, done } = match self.sending.take() {
                Some(sending) => sending,
                None => {
                    let Some(buffer) = queue.take_or_ask(&memory)? else { break };
                    work += queue.descriptors() as u32;
                    Sending { buffer, done: 0 }
                }
            };

            let rest = buffer.readable - done;
            let length = rest.min(CHUNK as u64);
            let chunk = Chunk::filled(length as usize, |bytes| queue.read(&memory, done, bytes))?;
            let sent = match &mut self.writer {
                Some(writer) => writer.send(chunk),
                None => Err(SendError::Ended(chunk)),
            };
            let done = match sent {
                Ok(()) => {
                    (self.full_since, hold_is_over) = (None, false);
                    self.sent += length;
                    done + length
                }
                Err(SendError::Full(_)) if !hold_is_over => {
                    self.sending = Some(Sending { buffer, done });
                    self.full_since = self.full_since.or(Some(now));
                    break;
                }
                // The time is over or there is no writer, so the rest of the buffer is lost.
                Err(_) => {
                    self.line.count_lost(rest as usize);
                    buffer.readable
                }
            };

            work += 1;
            if done < buffer.readable {
                self.sending = Some(Sending { buffer, done });
            } else {
                queue.give_back(&memory, buffer, 0)?;
            }
        }

        // A step must follow when the time is over. After that no bytes wait, and the driver's next
        // buffer causes a step.
        if let Some(since) = self.full_since
            && !hold_is_over
        {
            context.wake_at(since.after(HOLD));
        }
        Ok(work)
    }
}

impl Drop for VirtioConsole {
    fn drop(&mut self) {
        self.line.close();
    }
}

impl Backend for VirtioConsole {
    fn model(&self) -> Model {
        MODEL
    }

    fn config(&self) -> &[u8] {
        &CONFIG
    }

    fn serve(
        &mut self,
        context: &mut Context<'_>,
        function: &mut Function,
        budget: u32,
    ) -> Result<u32, QueueError> {
        self.ensure_companions(context);
        let mut work = self.receive(context, function, budget)?;
        work += self.transmit(context, function, budget)?;

        function.interrupt_for_used_buffers(context, RECEIVE)?;
        function.interrupt_for_used_buffers(context, TRANSMIT)?;
        Ok(work)
    }

    fn reset(&mut self, _: &mut Context<'_>) {
        (self.taken, self.sending, self.full_since) = (0, None, None);

        // Companions that are halted are replaced when the next driver needs them.
        if self.reader.as_ref().is_some_and(|reader| reader.halt().is_some()) {
            self.reader = None;
        }
        if self.writer.as_ref().is_some_and(|writer| writer.halt().is_some()) {
            self.writer = None;
        }

        // Chunks that wait, and one that the reader may hold, belong to the driver that is gone.
        self.line.begin_incarnation();
    }

    fn counters(&self) -> Vec<Counter> {
        [("sent_bytes", self.sent), ("received_bytes", self.received), ("lost_bytes", self.line.lost())]
            .map(|(name, value)| Counter { name, value })
            .to_vec()
    }
}
