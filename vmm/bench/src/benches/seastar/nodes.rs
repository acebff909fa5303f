//! The machine of the bench, its processes, and a sender with its receiver.

use std::{sync::Arc, time::Duration};

use nicforge::failure::{ErrorContext, Failure};
use nicforge_driver::{Deadline, Device};
use nicforge_machine::in_process::LocalMachine;
use nicforge_portals::{
    Ack, Criteria, Descriptor, Error, Event, EventKind, EventQueue, Interface, Kernel, KernelConfig,
    MemoryDescriptor, Mode, Options, Position, ProcessId, Region, Target, Unlink,
};

use super::BENCH;
use crate::{
    bench::Run,
    machine::{AttachmentOfNode, Host, build, describe},
    placement::Placement,
};

/// The portal of all messages.
pub(super) const PORTAL: u8 = 4;
/// Match bits of all messages that do not name a receive.
pub(super) const MATCH_BITS: u64 = 0x5ea5;
/// Maximum number of events that a receiver has not taken.
const EVENTS: u32 = 4095;
/// The longest wait for an event, and for a device.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// An idle time that no run reaches, in nanoseconds: nodes stay hot.
const NEVER_COLD: u64 = 1 << 62;

/// A machine of SeaStars with two processes each.
pub(super) struct SeaStars(Host);

impl SeaStars {
    /// Builds a torus in this process.
    pub(super) fn in_process(torus: &[u32]) -> Result<Self, Failure> {
        Host::in_process(&describe(BENCH.name, &section(torus))?).map(Self)
    }

    /// Builds a torus in this process whose nodes never go cold, for counts of instructions. The
    /// time of a node without work is measured by the clock, and a program under callgrind is so
    /// slow that its nodes would go cold between any two puts.
    pub(super) fn never_cold(torus: &[u32]) -> Result<Self, Failure> {
        let (mut machine, _) = build(&describe(BENCH.name, &section(torus))?)?;
        machine.set_cool_after(NEVER_COLD);
        Ok(Self(Host::InProcess(LocalMachine::new(machine))))
    }

    /// Serves a torus, with the engine on its processor. The firmware of the first
    /// `firmware_threads` nodes has a thread each.
    pub(super) fn served(
        run: &Run<'_>,
        torus: &[u32],
        firmware_threads: u32,
        placement: &Placement,
    ) -> Result<Self, Failure> {
        let text = format!("{}firmware_threads = {firmware_threads}\n", section(torus));
        let plan = describe(&format!("{}-{firmware_threads}", BENCH.name), &text)?;
        Host::served(run, &plan, placement).map(Self)
    }

    /// Ends the engine, if there is one. All devices must have been dropped.
    pub(super) fn stop(self) -> Result<(), Failure> {
        self.0.stop()
    }

    /// Boots a node.
    pub(super) fn boot(&self, node: u32) -> Result<Arc<Kernel>, Failure> {
        let device = self.open(node, "kernel", 0)?;
        Kernel::boot(device, KernelConfig::default()).context(|| format!("the kernel of ss{node}"))
    }

    /// Opens the attachment of a process of a node. The kernel's attachment is before those of the
    /// processes.
    fn process(&self, node: u32, number: u16) -> Result<Device, Failure> {
        self.open(node, &format!("p{number}"), usize::from(number) + 1)
    }

    /// Opens an attachment of a node, by its name and its index in the node.
    fn open(&self, node: u32, name: &str, index: usize) -> Result<Device, Failure> {
        self.0.open(&format!("ss{node}"), AttachmentOfNode { name, index }, STEP_TIMEOUT)
    }
}

/// Returns the section of a machine file for a torus. Links and firmware take no time.
fn section(torus: &[u32]) -> String {
    format!("[[seastar]]\ntorus = {torus:?}\nprocesses = 2\n")
}

/// A process with memory.
pub(super) struct Process {
    pub(super) interface: Interface,
    pub(super) memory: Region,
}

impl Process {
    /// Opens a process, and allocates `bytes` of touched memory.
    pub(super) fn open(
        machine: &SeaStars,
        kernel: &Arc<Kernel>,
        number: u16,
        mode: Mode,
        bytes: usize,
    ) -> Result<Self, Failure> {
        let name = || format!("process {number} of ss{}", kernel.node());
        let device = machine.process(kernel.node(), number)?;
        let interface = Interface::open(kernel, device, mode).context(name)?;
        let memory = interface.allocate(bytes as u64).context(name)?;

        // All pages are allocated before any measurement.
        if let Some(buffer) = memory.buffer() {
            buffer.window().zero(0, buffer.len()).context(|| "touching memory".into())?;
        }
        Ok(Self { interface, memory })
    }
}

/// A process that sends its memory. It has no events of its own.
pub(super) struct Sender {
    process: Process,
    /// The descriptor of the memory.
    descriptor: MemoryDescriptor,
}

impl Sender {
    /// Binds a descriptor of the process's memory.
    pub(super) fn new(process: Process) -> Result<Self, Failure> {
        let values = Descriptor::over(&process.memory);
        let descriptor =
            process.interface.bind_descriptor(&values).context(|| "a sender's descriptor".into())?;
        Ok(Self { process, descriptor })
    }

    /// Puts a part of the memory. The event at the target has `number` in its header data.
    #[inline]
    pub(super) fn put(&self, offset: u64, bytes: u64, target: &Target, number: u64) -> Result<(), Error> {
        self.process.interface.put_region(&self.descriptor, offset, bytes, Ack::No, target, number)
    }
}

/// A process with an event queue. Each put that arrives has one event.
pub(super) struct Receiver {
    // The queue is freed before the interface ends.
    pub(super) queue: EventQueue,
    pub(super) process: Process,
}

impl Receiver {
    /// Allocates the process's event queue.
    pub(super) fn new(process: Process) -> Result<Self, Failure> {
        let queue = process.interface.allocate_queue(EVENTS).context(|| "an event queue".into())?;
        Ok(Self { queue, process })
    }

    /// Returns the process's id: its node and its number.
    pub(super) fn id(&self) -> ProcessId {
        self.process.interface.id()
    }

    /// Returns the values of a descriptor of the whole memory, which receives puts.
    pub(super) fn receive(&self, options: Options) -> Descriptor<'_> {
        Descriptor {
            options: options | Options::PUT | Options::START_DISABLE,
            queue: Some(&self.queue),
            ..Descriptor::over(&self.process.memory)
        }
    }

    /// Accepts all messages, at the offsets that their senders choose.
    pub(super) fn open_memory(&self) -> Result<(), Failure> {
        let values = self.receive(Options::MANAGE_REMOTE);
        let (position, criteria) = (Position::Tail(PORTAL), Criteria::bits(MATCH_BITS));
        let posted = self.process.interface.post(position, criteria, Unlink::Retain, &values, None);
        posted.map(drop).context(|| "a receiver's descriptor".into())
    }

    /// Waits for the next put, which has `bytes` bytes, and returns its event.
    #[inline]
    pub(super) fn next(&self, bytes: u64) -> Result<Event, Failure> {
        let found = match self.queue.get() {
            Ok(None) => self.queue.wait(Deadline::after(STEP_TIMEOUT), None),
            Ok(Some(event)) => Ok(event),
            Err(error) => Err(error),
        };

        match found {
            Ok(event) if is_whole(&event, bytes) => Ok(event),
            Ok(event) => Err(Failure::result(format!("unexpected event: {event:?}"))),
            Err(error) => Err(error).context(|| "a receiver".into()),
        }
    }
}

/// Returns whether the event is the end of a put of `bytes` that has arrived whole.
#[inline]
fn is_whole(event: &Event, bytes: u64) -> bool {
    event.kind == EventKind::PutEnd && event.failure.is_none() && u64::from(event.message.moved) == bytes
}

/// A sender on one node and a receiver on the next one, in NIC-based mode.
pub(super) struct Pair {
    sender: Sender,
    receiver: Receiver,
    target: Target,
    /// Number of puts sent, and of those that have arrived.
    sent: u64,
    received: u64,
}

impl Pair {
    /// Opens a pair on the first two nodes, with `bytes` of memory at each side.
    pub(super) fn open(machine: &SeaStars, bytes: usize) -> Result<Self, Failure> {
        let kernels = [machine.boot(0)?, machine.boot(1)?];
        let process = |kernel| Process::open(machine, kernel, 0, Mode::NicBased, bytes);
        let sender = Sender::new(process(&kernels[0])?)?;
        let receiver = Receiver::new(process(&kernels[1])?)?;
        receiver.open_memory()?;

        let target = Target::new(receiver.id(), PORTAL, MATCH_BITS);
        Ok(Self { sender, receiver, target, sent: 0, received: 0 })
    }

    /// Puts `bytes` from `offset` to the same offset.
    #[inline]
    pub(super) fn put(&mut self, offset: u64, bytes: u64) -> Result<(), Failure> {
        self.target.offset = offset;
        self.sender.put(offset, bytes, &self.target, self.sent).context(|| "a put".into())?;
        self.sent += 1;
        Ok(())
    }

    /// Waits until the next put has arrived, and checks that it has `bytes` bytes and the next
    /// number.
    #[inline]
    pub(super) fn arrive(&mut self, bytes: u64) -> Result<(), Failure> {
        let event = self.receiver.next(bytes)?;
        let (found, expected) = (event.message.header_data, self.received);
        if found != expected {
            return Err(Failure::result(format!("put {found} came instead of {expected}")));
        }

        self.received += 1;
        Ok(())
    }
}
