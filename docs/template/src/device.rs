//! The model of the card.
//!
//! Each direction is a small state machine, because a read of client memory may take a message to
//! the client: it is started in one call, and its data come in another. A doorbell that is written
//! while its direction is busy stalls. The machine offers the write again, so that nothing is lost.

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Progress, Reset, Write},
    dma::DmaError,
    fabric::{Packet, Ports},
    ids::{Address, AttachmentId, DmaToken},
    register::Register,
    spec::{AttachmentSpec, FunctionSpec, Identity, NicSizes},
};
use nicforge_kit::{RegisterValue, retry};

use crate::registers::{
    DEVICE, Descriptor, MAX_FRAME, REG_RECEIVE, REG_RECEIVED, REG_SEND, REG_SENT, REGISTERS, VECTOR_RECEIVED,
    VECTOR_SENT, VECTORS, VENDOR, status,
};

/// The only attachment.
const USER: AttachmentId = AttachmentId(0);
/// The only port, and its virtual channel.
const PORT: u8 = 0;
const CHANNEL: usize = 0;

/// Tokens by which [`Device::dma_done`] tells the DMA reads apart.
const SEND_DESCRIPTOR: DmaToken = DmaToken(0);
const SEND_FRAME: DmaToken = DmaToken(1);
const RECEIVE_DESCRIPTOR: DmaToken = DmaToken(2);

/// The result of a descriptor, which the card writes into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WorkResult {
    /// Length of the frame.
    length: u32,
    /// One of [`status`].
    status: u32,
}

/// The next step of a direction. `at` is the address of the descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Work {
    /// Wait for a doorbell.
    #[default]
    Idle,
    /// Start the read of the descriptor.
    Fetch { at: u64 },
    /// Wait for the descriptor.
    Fetching { at: u64 },
    /// Start the read of the frame to send.
    Load { at: u64, descriptor: Descriptor },
    /// Wait for the frame to send.
    Loading { at: u64, length: u32 },
    /// Send the frame, when there is a credit.
    Send { at: u64, length: u32 },
    /// Store a frame, when one has arrived.
    Store { at: u64, descriptor: Descriptor },
    /// Write the result into the descriptor.
    Report { at: u64, result: WorkResult },
}

/// The card.
#[derive(Debug, Default)]
pub struct Courier {
    sending: Work,
    receiving: Work,
    /// The frame to send.
    frame: Vec<u8>,
    /// A frame that was taken from the link and waits for its memory, which is busy.
    arrived: Option<Packet>,
    /// Numbers of frames sent and received, and of descriptors that failed.
    sent: u64,
    received: u64,
    errors: u64,
}

// ANCHOR: device
impl Device for Courier {
    fn spec(&self) -> FunctionSpec {
        let identity = Identity {
            vendor: VENDOR,
            device: DEVICE,
            subsystem_vendor: VENDOR,
            subsystem: 0,
            class: 0x02_80_00,
            revision: 1,
        };
        let user = AttachmentSpec { name: "user0".to_owned(), group: 0 };

        // 4 KiB of registers, the interrupt vectors, and a posted-write ring of 64 cells. The
        // device has no windows beside the ring, and no values in the mirror page.
        FunctionSpec::nic(
            identity,
            vec![user],
            NicSizes { register_bytes: 0x1000, vectors: VECTORS, ring_cells: 64, ..NicSizes::default() },
        )
    }

    fn ports(&self) -> u8 {
        1
    }

    fn registers(&self) -> &'static [Register] {
        REGISTERS
    }

    fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        // `data` comes filled with ones, the value of reads that no register answers.
        self.peek(&context.ports(), from, at, data);
    }

    fn peek(&self, _: &Ports<'_>, _: AttachmentId, at: Address, data: &mut [u8]) -> bool {
        match at.offset {
            REG_SENT => self.sent.answer_read(data),
            REG_RECEIVED => self.received.answer_read(data),
            _ => return false,
        }
        true
    }

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, at: Address, data: &[u8]) -> Write {
        let work = match at.offset {
            REG_SEND => &mut self.sending,
            REG_RECEIVE => &mut self.receiving,
            _ => return Write::Accepted,
        };

        let Some(descriptor) = u64::from_write(data) else { return Write::Accepted };
        if *work != Work::Idle {
            return Write::Stalled;
        }

        *work = Work::Fetch { at: descriptor };
        Write::Accepted
    }

    fn dma_done(
        &mut self,
        context: &mut Context<'_>,
        _: AttachmentId,
        token: DmaToken,
        result: Result<&[u8], DmaError>,
    ) {
        match token {
            SEND_DESCRIPTOR => {
                self.sending = self.on_descriptor(context, self.sending, result, Self::begin_send);
            }
            RECEIVE_DESCRIPTOR => {
                self.receiving = self.on_descriptor(context, self.receiving, result, Self::begin_receive);
            }
            SEND_FRAME => self.on_frame(result),
            _ => {}
        }
    }

    fn step(&mut self, context: &mut Context<'_>, _: u32) -> Progress {
        let before = (self.sending, self.receiving);
        self.sending = self.send(context);
        self.receiving = self.receive(context);

        if (self.sending, self.receiving) == before { Progress::Idle } else { Progress::Busy }
    }

    fn reset(&mut self, context: &mut Context<'_>, _: Reset) {
        // A DMA read that is in progress ends without a call of `dma_done`. The counts continue.
        (self.sending, self.receiving) = (Work::Idle, Work::Idle);
        if let Some(packet) = self.arrived.take() {
            context.ports().recycle(packet);
        }
    }

    fn counters(&self) -> Vec<Counter> {
        vec![
            Counter { name: "sent", value: self.sent },
            Counter { name: "received", value: self.received },
            Counter { name: "errors", value: self.errors },
        ]
    }
}
// ANCHOR_END: device

// ANCHOR: work
impl Courier {
    /// Does the next step of sending, and returns the step after it.
    fn send(&mut self, context: &mut Context<'_>) -> Work {
        match self.sending {
            Work::Fetch { at } => fetch(context, at, SEND_DESCRIPTOR),
            Work::Load { at, descriptor } => {
                let length = descriptor.length;
                match context.dma_read(USER, descriptor.address, length as usize, SEND_FRAME) {
                    Ok(()) => Work::Loading { at, length },
                    Err(_) => retry_later(context, self.sending),
                }
            }
            Work::Send { at, length } => {
                // The return of a credit causes the next step.
                let mut ports = context.ports();
                if !ports.ready(PORT, CHANNEL) {
                    return self.sending;
                }
                let Ok(mut packet) = ports.new_packet(self.frame.len()) else {
                    retry::when_starved(context);
                    return self.sending;
                };

                packet.bytes_mut().copy_from_slice(&self.frame);
                if let Err(unsent) = ports.send(PORT, CHANNEL, packet) {
                    ports.recycle(unsent.packet);
                    return self.sending;
                }
                self.sent += 1;
                Work::Report { at, result: WorkResult { length, status: status::DONE } }
            }
            Work::Report { at, result } => self.report(context, at, result, VECTOR_SENT),
            waiting => waiting,
        }
    }

    /// Does the next step of receiving, and returns the step after it. A frame without a descriptor
    /// stays in the link's buffer. When the buffers are full, the sender waits.
    fn receive(&mut self, context: &mut Context<'_>) -> Work {
        match self.receiving {
            Work::Fetch { at } => fetch(context, at, RECEIVE_DESCRIPTOR),
            Work::Store { at, descriptor } => {
                let packet = self.arrived.take().or_else(|| context.ports().take(PORT, CHANNEL));
                let Some(packet) = packet else { return self.receiving };

                let length = packet.len() as u32;
                let status = if length > descriptor.length {
                    status::BAD_LENGTH
                } else {
                    match context.dma_write(USER, descriptor.address, packet.bytes()) {
                        Ok(()) => {
                            self.received += 1;
                            status::DONE
                        }
                        Err(DmaError::Busy) => {
                            self.arrived = Some(packet);
                            return retry_later(context, self.receiving);
                        }
                        Err(_) => status::BAD_ADDRESS,
                    }
                };

                context.ports().recycle(packet);
                Work::Report { at, result: WorkResult { length, status } }
            }
            Work::Report { at, result } => self.report(context, at, result, VECTOR_RECEIVED),
            waiting => waiting,
        }
    }

    /// Handles the end of the read of a descriptor, and returns the step after it, which `begin`
    /// chooses. If the read has failed there is no place for a result, so only the count of errors
    /// shows it.
    fn on_descriptor(
        &mut self,
        context: &mut Context<'_>,
        work: Work,
        read: Result<&[u8], DmaError>,
        begin: fn(u64, Descriptor) -> Work,
    ) -> Work {
        let Work::Fetching { at } = work else { return work };
        match read.map(TryInto::try_into) {
            Ok(Ok(bytes)) => {
                let descriptor = Descriptor::from_bytes(bytes);
                let Descriptor { address, length, .. } = descriptor;
                // A trace shows how the card has understood the bytes.
                context.trace(
                    Some(USER),
                    "descriptor",
                    &[("at", at), ("address", address), ("length", length.into())],
                );
                begin(at, descriptor)
            }
            _ => {
                self.errors += 1;
                Work::Idle
            }
        }
    }

    /// Returns the first step with a descriptor of sending.
    fn begin_send(at: u64, descriptor: Descriptor) -> Work {
        let length = descriptor.length;
        if (1..=MAX_FRAME as u32).contains(&length) {
            Work::Load { at, descriptor }
        } else {
            Work::Report { at, result: WorkResult { length, status: status::BAD_LENGTH } }
        }
    }

    /// Returns the first step with a descriptor of receiving.
    fn begin_receive(at: u64, descriptor: Descriptor) -> Work {
        Work::Store { at, descriptor }
    }

    /// Handles the end of the read of the frame to send.
    fn on_frame(&mut self, read: Result<&[u8], DmaError>) {
        let Work::Loading { at, length } = self.sending else { return };
        self.sending = match read {
            Ok(bytes) => {
                self.frame.clear();
                self.frame.extend_from_slice(bytes);
                Work::Send { at, length }
            }
            Err(_) => Work::Report { at, result: WorkResult { length, status: status::BAD_ADDRESS } },
        };
    }

    /// Writes the result into the descriptor, and then raises the interrupt. The interrupt does not
    /// overtake the write.
    fn report(&mut self, context: &mut Context<'_>, at: u64, result: WorkResult, vector: u16) -> Work {
        let word = Descriptor::result(result.length, result.status).to_le_bytes();
        let written = context.dma_write(USER, at.wrapping_add(Descriptor::RESULT), &word);
        if written == Err(DmaError::Busy) {
            return retry_later(context, Work::Report { at, result });
        }

        self.errors += u64::from(result.status != status::DONE || written.is_err());
        context.interrupt(USER, vector);
        Work::Idle
    }
}

/// Starts the read of a descriptor.
fn fetch(context: &mut Context<'_>, at: u64, token: DmaToken) -> Work {
    match context.dma_read(USER, at, Descriptor::SIZE, token) {
        Ok(()) => Work::Fetching { at },
        Err(_) => retry_later(context, Work::Fetch { at }),
    }
}

/// Asks for another step after the time in which busy memory may answer, and returns `work`, which
/// that step repeats.
fn retry_later(context: &mut Context<'_>, work: Work) -> Work {
    context.wake_at(context.now().after(retry::MEMORY_BUSY));
    work
}
// ANCHOR_END: work
