//! The machine of the bench: two nodes, with a sender on the first one and a receiver on the
//! second.

use std::{sync::Arc, time::Duration};

use nicforge::failure::{ErrorContext, Failure};
use nicforge_driver::{Deadline, Device, DmaBuffer, HugePages, Relax};
use nicforge_family::Plan;
use nicforge_hwi::mu::{
    BAR_REGISTERS, DESCRIPTOR, FIRST_SUBGROUP, INJECTION_FIFOS, PAGE, SUBGROUPS_OF_GROUP, reg,
};
use nicforge_spi::{
    Counter, DirectPut, InjectionAttributes, MemoryFifo, Options, Payload, Subgroup, direct_put, memory_fifo,
};

use super::BENCH;
use crate::machine::{AttachmentOfNode, Host, describe, never_sleeping_wait};

/// Packets of buffer at the receiving end of a virtual channel of Blue Gene/Q.
pub(super) const CREDITS: u32 = 7;
/// Bytes of a short message.
pub(super) const BYTES: u64 = 8;
/// The longest wait for a message, and for a device.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Descriptors of the sender's FIFO.
const DESCRIPTORS: u32 = 255;
/// Messages whose descriptors are injected together.
const TOGETHER: usize = 8;
/// Bytes of the receiver's FIFO.
const RECEPTION: u64 = 64 << 10;
/// The injection FIFO of the sender, and the reception FIFO of the receiver.
const FIFO: u8 = 0;
/// The entry of the base address table that the receiver uses.
const BASE: u8 = 0;
/// Bytes at the end of each memory that hold the counter, and no payload.
const COUNTER_BYTES: u64 = 64;
/// All injection FIFOs of a subgroup, one bit for each.
const ALL_FIFOS: u64 = 0xff;

/// Describes two nodes with this many application subgroups each, and this many packets of buffer
/// at the receiving end of a virtual channel.
pub(super) fn two_nodes(subgroups: u16, credits: u32) -> Result<Plan, Failure> {
    let table = format!("[[bgq]]\ntorus = [2]\nsubgroups = {subgroups}\nlink = {{ credits = {credits} }}\n");
    describe(BENCH.name, &table)
}

/// Opens a pair between the two nodes of a machine.
pub(super) fn open_pair(machine: &Host, bytes: u64) -> Result<Pair, Failure> {
    let attachment = AttachmentOfNode { name: "s0", index: FIRST_SUBGROUP.into() };
    let open = |node| machine.open(node, attachment, STEP_TIMEOUT);
    Pair::open(&open("bgq0")?, &open("bgq1")?, bytes)
}

/// A subgroup with memory.
struct End {
    subgroup: Subgroup,
    memory: DmaBuffer,
}

impl End {
    /// Opens a subgroup, and allocates `bytes` of touched memory.
    fn open(device: &Device, bytes: u64) -> Result<Self, Failure> {
        let subgroup = Subgroup::open(device, Options::default()).context(|| "a subgroup".into())?;
        let memory = subgroup.memory((bytes + COUNTER_BYTES) as usize).context(|| "memory".into())?;

        // All pages are allocated before any measurement.
        memory.window().zero(0, memory.len()).context(|| "touching memory".into())?;
        Ok(Self { subgroup, memory })
    }
}

/// A sender on one node and a receiver on the other, with the same thread at both ends.
pub(super) struct Pair {
    sender: End,
    receiver: End,
    counter: Counter,
    /// Slots for messages in the sender's memory.
    slots: u64,
    /// Number of memory-FIFO messages sent, and of those received.
    sent: u64,
    received: u64,
}

impl Pair {
    /// Opens a pair, with `bytes` of memory for payload at each side.
    pub(super) fn open(sender: &Device, receiver: &Device, bytes: u64) -> Result<Self, Failure> {
        let mut sender = End::open(sender, bytes)?;
        let attributes = InjectionAttributes::default();
        sender.subgroup.open_injection(FIFO, DESCRIPTORS, attributes).context(|| "a sender's FIFO".into())?;

        let mut receiver = End::open(receiver, bytes)?;
        let (subgroup, base) = (&mut receiver.subgroup, receiver.memory.iova());
        subgroup.open_reception(FIFO, RECEPTION).context(|| "a receiver's FIFO".into())?;
        subgroup.set_base_address(BASE, base).context(|| "a receiver's base address".into())?;

        let counter = Counter::new(&receiver.memory, bytes).context(|| "a counter".into())?;
        Ok(Self { sender, receiver, counter, slots: bytes / BYTES, sent: 0, received: 0 })
    }

    /// Enables the other injection FIFOs of the sender's subgroup, which stay empty.
    pub(super) fn enable_other_fifos(&mut self) -> Result<(), Failure> {
        enable_idle(&mut self.sender.subgroup, FIFO + 1)
    }

    /// Sends up to `maximum` memory-FIFO messages of 8 bytes with their numbers. Returns the number
    /// of messages that found room.
    #[inline]
    pub(super) fn send(&mut self, maximum: u32) -> Result<u32, Failure> {
        let sender_position = self.sender.subgroup.position();
        let to = sender_position.ordered(self.receiver.subgroup.position().own);
        let target = MemoryFifo { fifo: self.receiver.subgroup.reception_id(FIFO), ..MemoryFifo::default() };

        // The messages differ in the address of the payload alone.
        let (memory, first) = (&self.sender.memory, self.sender.memory.iova());
        let message = memory_fifo(Payload::memory(first, BYTES), to, &target);
        let mut messages = [message.context(|| "a message".into())?; TOGETHER];
        let mut sent = 0;

        while sent < maximum {
            let count = (maximum - sent).min(TOGETHER as u32);
            let messages = &mut messages[..count as usize];
            for (message, number) in messages.iter_mut().zip(self.sent..) {
                let offset = number % self.slots * BYTES;
                message.pa_payload = first + offset;
                memory.write(offset, &number.to_le_bytes()).context(|| "a payload".into())?;
            }

            match self.sender.subgroup.try_inject_all(FIFO, messages) {
                Ok(Some(_)) => (sent, self.sent) = (sent + count, self.sent + u64::from(count)),
                Ok(None) => break,
                Err(error) => return Err(error).context(|| "a sender".into()),
            }
        }
        Ok(sent)
    }

    /// Takes up to `maximum` messages, and checks their numbers. Returns the number taken.
    #[inline]
    pub(super) fn receive(&mut self, maximum: u32) -> Result<u32, Failure> {
        let (expected, mut wrong) = (&mut self.received, None);
        let taken = self.receiver.subgroup.receive(FIFO, maximum, |packet, _| {
            let mut number = [0; BYTES as usize];
            let is_whole = packet.read(&mut number).is_ok_and(|bytes| bytes == number.len());
            let found = u64::from_le_bytes(number);
            if !is_whole || found != *expected {
                wrong = wrong.or(Some((found, *expected)));
            }
            *expected += 1;
        });

        match wrong {
            None => taken.context(|| "a receiver".into()),
            Some((found, expected)) => {
                Err(Failure::result(format!("message {found} came instead of {expected}")))
            }
        }
    }

    /// Takes all messages that have been sent.
    pub(super) fn drain(&mut self) -> Result<(), Failure> {
        let (deadline, mut idle) = (Deadline::after(STEP_TIMEOUT), never_sleeping_wait());
        while self.received < self.sent {
            if self.receive(u32::MAX)? == 0 {
                if deadline.has_passed() {
                    let Self { sent, received, .. } = self;
                    return Err(Failure::result(format!("{received} of {sent} messages arrived")));
                }
                self.receiver.subgroup.device().relax(&mut idle).context(|| "the machine".into())?;
            }
        }
        Ok(())
    }

    /// Adds to the number of bytes that the counter expects.
    #[inline]
    pub(super) fn expect(&self, bytes: u64) {
        self.counter.expect(bytes);
    }

    /// Puts `bytes` bytes from an offset of the sender's memory to the same offset of the
    /// receiver's. Returns whether the injection FIFO had room.
    #[inline]
    pub(super) fn put(&mut self, offset: u64, bytes: u64) -> Result<bool, Failure> {
        let to = self.sender.subgroup.position().dynamic(self.receiver.subgroup.position().own);
        let base = self.receiver.subgroup.base_address_id(BASE);
        let target = DirectPut {
            payload_base: base,
            offset,
            counter_base: base,
            counter_offset: self
                .counter
                .offset(self.receiver.memory.iova())
                .context(|| "a counter".into())?,
            ..DirectPut::default()
        };

        let payload = Payload::memory(self.sender.memory.iova() + offset, bytes);
        let put = direct_put(payload, to, &target).context(|| "a put".into())?;
        let injected = self.sender.subgroup.try_inject(FIFO, &put).context(|| "a sender".into())?;
        Ok(injected.is_some())
    }

    /// Returns the number of bytes that the counter still expects.
    #[inline]
    pub(super) fn left(&self) -> u64 {
        self.counter.left()
    }

    /// Waits a moment, in which a machine in this process makes a step.
    pub(super) fn relax(&self, relax: &mut Relax) -> Result<(), Failure> {
        self.receiver.subgroup.device().relax(relax).context(|| "the machine".into())
    }
}

/// Bytes of an idle FIFO: four descriptors.
const IDLE_FIFO_BYTES: u64 = 4 * DESCRIPTOR;

/// Subgroups of which all injection FIFOs are enabled and empty: 63 of users, and the system's.
pub(super) struct IdleFifos {
    _users: Vec<Subgroup>,
    /// The system's memory, and the device that it belongs to.
    _system: (DmaBuffer, Device),
}

impl IdleFifos {
    /// Enables the FIFOs of the users' and the system's subgroups.
    pub(super) fn enable(users: &[Device], kernel: Device) -> Result<Self, Failure> {
        let open = |device: &Device| {
            let mut subgroup = Subgroup::open(device, Options::default()).context(|| "a subgroup".into())?;
            enable_idle(&mut subgroup, 0)?;
            Ok::<_, Failure>(subgroup)
        };
        let users = users.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { _users: users, _system: (system_fifos(&kernel)?, kernel) })
    }
}

/// Enables the injection FIFOs of a subgroup from number `first` on, with memory. They stay empty.
fn enable_idle(subgroup: &mut Subgroup, first: u8) -> Result<(), Failure> {
    let name = || "idle FIFOs".to_owned();
    let memory = subgroup.memory((u64::from(INJECTION_FIFOS) * IDLE_FIFO_BYTES) as usize).context(name)?;
    let memory = Arc::new(memory);

    for fifo in first..INJECTION_FIFOS as u8 {
        let (memory, offset) = (Arc::clone(&memory), u64::from(fifo) * IDLE_FIFO_BYTES);
        let attributes = InjectionAttributes::default();
        subgroup.init_injection(fifo, memory, offset, IDLE_FIFO_BYTES, attributes).context(name)?;
    }
    subgroup.set_injection_enabled(u8::MAX << first, true).context(name)
}

/// Enables the injection FIFOs of the system's four subgroups, with memory, which is returned. The
/// library opens one of these subgroups at a time, so this writes their registers.
fn system_fifos(kernel: &Device) -> Result<DmaBuffer, Failure> {
    let name = || "the system's FIFOs".to_owned();
    let subgroups = u64::from(SUBGROUPS_OF_GROUP);
    let bytes = subgroups * u64::from(INJECTION_FIFOS) * IDLE_FIFO_BYTES;
    let memory = kernel.dma_buffer(bytes as usize, HugePages::Never).context(name)?;
    let registers = kernel.bar(BAR_REGISTERS).context(name)?;

    let mut start = memory.iova();
    for page in (0..subgroups).map(|subgroup| subgroup * PAGE) {
        for fifo in 0..u64::from(INJECTION_FIFOS) {
            let base = page + reg::INJECTION + fifo * reg::FIFO;
            let values = [
                (reg::START, start),
                (reg::SIZE_1, IDLE_FIFO_BYTES - 1),
                (reg::HEAD, start),
                (reg::TAIL, start),
            ];
            for (register, value) in values {
                registers.write64(base + register, value).context(name)?;
            }
            start += IDLE_FIFO_BYTES;
        }
        registers.write64(page + reg::ENABLE, ALL_FIFOS).context(name)?;
        let enabled = registers.read64(page + reg::IS_ENABLED).context(name)?;
        if enabled != ALL_FIFOS {
            return Err(Failure::result(format!("of the system's FIFOs only {enabled:#x} are enabled")));
        }
    }
    Ok(memory)
}
