//! *Slot FIFO*: a loop-back FIFO for each client. It returns each message to the client that sent
//! it.
//!
//! ```text
//!   client writes          device                               client reads
//!   send slots (BAR 1) --> queue of QUEUE messages --> receive slots (BAR 2)
//!   port (BAR 0)       -->        |                --> port (BAR 0)
//! ```
//!
//! The queue has two interfaces:
//!
//! - The *slots* are memory that the client maps. They are fast. A convention keeps them in order:
//!   each slot has a sequence word, and both sides publish their counts of messages taken.
//! - The *port* is a register, and each access to it reaches the device. It is slow and has all the
//!   errors of a real port.
//!
//! No message is ever lost for lack of room. If a client does not take its messages, the receive
//! slots fill up, then the queue, then the send slots. Then the client's own sends have to wait.

use std::{
    collections::VecDeque,
    sync::atomic::{Ordering, fence},
};

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Ended, Progress, Reset, Write},
    fabric::Ports,
    ids::{Address, AttachmentId},
    register::Register,
    spec::{FunctionSpec, NicSizes},
    warning::Warning,
};
use nicforge_hwi::{pci, proof::slot_fifo::*};
use nicforge_kit::RegisterValue;
use nicforge_shm::{MemoryError, SharedU64, Window};

use crate::{identity, users};

/// The data of a message.
type Message = [u8; DATA];

/// The device; the module's documentation describes it.
#[derive(Default)]
pub struct SlotFifo {
    fifos: [ClientFifo; ATTACHMENTS as usize],
    /// Number of messages that were put into receive slots.
    delivered: u64,
    /// Number of errors that were reported.
    errors: u64,
}

/// The FIFO of one client. The default is the state of power-on.
#[derive(Default)]
struct ClientFifo {
    /// `None` while the attachment has no client.
    slots: Option<Slots>,
    queue: VecDeque<Message>,
    /// Number of messages taken, through slots and port.
    taken: u64,
    /// Whether the client has stopped the delivery to its receive slots.
    hold: bool,
    /// The error register.
    error: u32,
    /// Words pushed through the port that are not a whole message yet, fewer than [`WORDS`].
    partial_message: Vec<u64>,
    /// Remaining words of the message that is being read through the port, the next one last.
    unread_words: Vec<u64>,
}

/// The mapped slots of a client's FIFO, and the positions in them.
struct Slots {
    send: Window,
    receive: Window,
    /// The mirror's word for `taken`, by which the client sees free send slots.
    taken_word: SharedU64,
    /// The client's word for its read pointer: the number of messages that it has taken.
    head_word: SharedU64,
    /// Number of messages taken out of the send slots.
    taken: u64,
    /// Number of messages put into the receive slots.
    delivered: u64,
    /// The last valid value of the client's read pointer.
    head: u64,
    /// The last invalid value of the read pointer. It is reported once.
    bad_head: Option<u64>,
}

/// The rule that the width of an access to the port can break.
const WIDTH_RULE: &str = "an access to the port has 8 bytes";

impl SlotFifo {
    /// Builds the card in the state of power-on. It has [`ATTACHMENTS`] attachments.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns an attachment to the state of power-on, with the slots that its client maps.
    fn reset_attachment(&mut self, context: &mut Context<'_>, attachment: AttachmentId) {
        self.fifos[usize::from(attachment.0)] =
            ClientFifo { slots: Slots::open(context, attachment), ..ClientFifo::default() };
        context.set_intx(attachment, false);
    }

    /// Counts and logs an error, and sets its bit. A bit that was not set before raises the
    /// interrupt.
    fn fail(&mut self, context: &mut Context<'_>, attachment: AttachmentId, bit: u32, warning: Warning<'_>) {
        context.warn(attachment, warning);
        self.errors += 1;

        let fifo = &mut self.fifos[usize::from(attachment.0)];
        if fifo.error & bit == 0 {
            fifo.error |= bit;
            context.interrupt(attachment, VECTOR_ERROR);
            // The INTx line serves drivers without MSI-X. It is asserted until the last bit is
            // cleared.
            context.set_intx(attachment, true);
        }
    }
}

impl Device for SlotFifo {
    fn spec(&self) -> FunctionSpec {
        // 4 KiB of registers, two vectors, a ring of 64 cells, 8 KiB of windows, 8 KiB of mirror.
        FunctionSpec::nic(
            identity(pci::DEVICE_SLOT_FIFO),
            users(ATTACHMENTS),
            NicSizes {
                register_bytes: 0x1000,
                vectors: 2,
                ring_cells: 64,
                window_bytes: 0x2000,
                mirror_bytes: 0x2000,
            },
        )
    }

    fn registers(&self) -> &'static [Register] {
        REGISTER_MAP
    }

    fn ports(&self) -> u8 {
        0
    }

    fn attached(&mut self, context: &mut Context<'_>, attachment: AttachmentId) {
        self.reset_attachment(context, attachment);
    }

    fn detached(&mut self, _: &mut Context<'_>, attachment: AttachmentId, _: Ended) {
        // The memory belongs to the client that leaves. From now on `step` skips the FIFO.
        self.fifos[usize::from(attachment.0)] = ClientFifo::default();
    }

    fn reset(&mut self, context: &mut Context<'_>, reach: Reset) {
        for index in 0..self.fifos.len() {
            let attachment = AttachmentId(index as u16);
            // A FIFO without slots has no client, or its client is just leaving, and is in the
            // state of power-on already.
            if reach.reaches(attachment) && self.fifos[index].slots.is_some() {
                self.reset_attachment(context, attachment);
            }
        }
    }

    fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        let is_answered = self.peek(&context.ports(), from, at, data);
        if is_answered || !is_port(at.offset) {
            return;
        }

        if at.offset != REG_PORT || data.len() != 8 {
            return self.fail(context, from, ERROR_WIDTH, Warning::refused(&WIDTH_RULE).register(at));
        }
        match self.fifos[usize::from(from.0)].pop_word() {
            Some(word) => word.answer_read(data),
            None => {
                let warning = Warning::refused(&"the port has a word to read").register(at);
                self.fail(context, from, ERROR_EMPTY, warning);
            }
        }
    }

    fn peek(&self, _: &Ports<'_>, from: AttachmentId, at: Address, data: &mut [u8]) -> bool {
        let fifo = &self.fifos[usize::from(from.0)];
        match at.offset {
            REG_TAKEN => fifo.taken.answer_read(data),
            REG_FILL => (fifo.queue.len() as u32).answer_read(data),
            REG_HOLD => u32::from(fifo.hold).answer_read(data),
            REG_ERROR => fifo.error.answer_read(data),
            _ => return false,
        }
        true
    }

    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write {
        let fifo = &mut self.fifos[usize::from(from.0)];
        match (at.offset, u32::from_write(data), u64::from_write(data)) {
            (REG_HOLD, Some(value), _) => fifo.hold = value & 1 != 0,
            (REG_ERROR, Some(bits), _) => {
                fifo.error &= !bits;
                context.set_intx(from, fifo.error != 0);
            }
            (REG_PORT, _, Some(word)) => {
                let accepted = fifo.push_word(word);
                if !accepted {
                    let warning = Warning::refused(&"the send FIFO has room for a message");
                    self.fail(context, from, ERROR_FULL, warning.register(at).value(word));
                }
            }
            (offset, ..) if is_port(offset) => {
                let warning = Warning::refused(&WIDTH_RULE).register(at).written(data);
                self.fail(context, from, ERROR_WIDTH, warning);
            }
            _ => {}
        }

        Write::Accepted
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let mut progress = Progress::Idle;
        for index in 0..self.fifos.len() {
            let attachment = AttachmentId(index as u16);

            // Deliver first: messages that leave the queue make room in it.
            let delivered = match self.fifos[index].deliver(budget) {
                Ok(delivery) => {
                    self.delivered += delivery.count;
                    if delivery.bad_pointer {
                        let rule = &"the read pointer moves forward, and no further than the messages";
                        self.fail(context, attachment, ERROR_POINTER, Warning::failed(rule));
                    }
                    if delivery.may_sleep {
                        context.interrupt(attachment, VECTOR_RECEIVE);
                    }
                    delivery.count
                }
                // The windows have the sizes of the slots, so no access fails.
                Err(_) => 0,
            };

            let taken = self.fifos[index].take_sent(budget).unwrap_or(0);
            if delivered + taken > 0 {
                progress = Progress::Busy;
            }
        }
        progress
    }

    fn counters(&self) -> Vec<Counter> {
        let taken = self.fifos.iter().map(|fifo| fifo.taken).sum();
        vec![
            Counter { name: "messages_taken", value: taken },
            Counter { name: "messages_delivered", value: self.delivered },
            Counter { name: "errors", value: self.errors },
        ]
    }
}

/// The outcome of [`ClientFifo::deliver`].
#[derive(Default)]
struct Delivery {
    /// Number of messages delivered.
    count: u64,
    /// The client had taken all earlier messages, so it may wait for an interrupt.
    may_sleep: bool,
    /// The client's read pointer has a new invalid value.
    bad_pointer: bool,
}

impl ClientFifo {
    /// Moves messages from the send slots to the queue, until the slots are empty, the queue is
    /// full, or `budget` is reached. Returns the number moved.
    fn take_sent(&mut self, budget: u32) -> Result<u64, MemoryError> {
        let Some(slots) = &mut self.slots else { return Ok(0) };
        let mut count = 0;

        while self.queue.len() < QUEUE && count < u64::from(budget) {
            let slot = slots.taken % SLOTS * SLOT;
            // A slot is full when its sequence word has the number of its next message, from 1 on.
            // Acquire: the data of a slot are there when its sequence word is.
            if slots.send.load_u64_acquire(slot)? != slots.taken + 1 {
                break;
            }

            // The slot is read once. A client that changes it meanwhile garbles only its own
            // message.
            let mut message = [0; DATA];
            slots.send.read_array(slot + 8, &mut message)?;
            self.queue.push_back(message);
            slots.taken += 1;
            count += 1;
        }

        if count > 0 {
            self.taken += count;
            slots.taken_word.store(slots.taken, Ordering::Release);
        }
        Ok(count)
    }

    /// Moves messages from the queue to the receive slots, as far as the client has emptied these.
    fn deliver(&mut self, budget: u32) -> Result<Delivery, MemoryError> {
        let mut delivery = Delivery::default();
        let Some(slots) = &mut self.slots else { return Ok(delivery) };
        delivery.bad_pointer = slots.load_head();

        let delivered_before = slots.delivered;
        while !self.hold && slots.delivered - slots.head < SLOTS && delivery.count < u64::from(budget) {
            let Some(message) = self.queue.pop_front() else { break };
            let slot = slots.delivered % SLOTS * SLOT;
            slots.receive.write_array(slot + 8, &message)?;
            // Release: a reader that sees the sequence word sees the data.
            slots.receive.store_u64_release(slot, slots.delivered + 1)?;
            slots.delivered += 1;
            delivery.count += 1;
        }

        if delivery.count > 0 {
            // The client stores its read pointer, checks for a message once more, and then waits.
            // The order here is the opposite: the messages are stored, then the pointer is loaded.
            // With a fence between the two on either side, one of them sees the other's store.
            fence(Ordering::SeqCst);
            delivery.bad_pointer |= slots.load_head();
            delivery.may_sleep = slots.head >= delivered_before;
        }
        Ok(delivery)
    }

    /// Adds a word from the port to the partial message. When the message has [`WORDS`] words, it
    /// is put into the queue. Returns false if the queue is full: the word is then dropped, and the
    /// words of the partial message stay.
    fn push_word(&mut self, word: u64) -> bool {
        if self.queue.len() >= QUEUE {
            return false;
        }

        self.partial_message.push(word);
        if self.partial_message.len() == WORDS {
            let mut message = [0; DATA];
            for (bytes, word) in message.chunks_exact_mut(8).zip(self.partial_message.drain(..)) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            self.queue.push_back(message);
            self.taken += 1;
        }
        true
    }

    /// Returns the next word for the port; `None` if no message is left. A message leaves the queue
    /// when its first word is read.
    fn pop_word(&mut self) -> Option<u64> {
        if self.unread_words.is_empty() {
            let message = self.queue.pop_front()?;
            self.unread_words.extend(message.chunks_exact(8).rev().filter_map(u64::from_write));
        }
        self.unread_words.pop()
    }
}

impl Slots {
    /// Opens the client's windows; returns `None` if there is no client.
    fn open(context: &Context<'_>, attachment: AttachmentId) -> Option<Self> {
        let (windows, mirror) = (context.memory(attachment, 1)?, context.memory(attachment, 2)?);
        let open = || -> Result<Self, MemoryError> {
            Ok(Self {
                send: windows.window(WIN_SEND, SLOTS * SLOT)?,
                receive: mirror.window(MIRROR_RECEIVE, SLOTS * SLOT)?,
                taken_word: mirror.u64(MIRROR_TAKEN)?,
                head_word: windows.u64(WIN_HEAD)?,
                taken: 0,
                delivered: 0,
                head: 0,
                bad_head: None,
            })
        };
        // The offsets are constants inside the BARs that `spec` asks for, so this succeeds.
        open().ok()
    }

    /// Takes over the client's read pointer if it is valid. Returns whether an invalid value has to
    /// be reported.
    fn load_head(&mut self) -> bool {
        let head = self.head_word.load(Ordering::Acquire);
        if (self.head..=self.delivered).contains(&head) {
            self.head = head;
            return false;
        }

        self.bad_head.replace(head) != Some(head)
    }
}

/// Returns whether an access at `offset` touches the port.
fn is_port(offset: u64) -> bool {
    (REG_PORT..REG_PORT + 8).contains(&offset)
}
