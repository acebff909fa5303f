//! The embedded processor: the device's companion, which runs a [`Program`].
//!
//! ```text
//!   device                        FIFOs                       processor
//!   engines, mailboxes ── Input: an event and its time ──▶  Program::poll
//!   engines, mailboxes ◀── Effect: a call and its time ───  Chip::transmit, receive, ...
//! ```
//!
//! The processor has a time of its own. It handles an event when the event's time has come and the
//! earlier work is done, and [`Chip::charge`] moves its time on. Each effect carries the time of
//! its call, and the device carries it out then, in the order of the calls.
//!
//! The program is polled only when the FIFO has room for the effects of a poll.
//!
//! An effect also carries the highest tenant number that the program has seen. The device thus
//! recognizes commands and memory of a tenant that has detached.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use nicforge_core::{
    companion::{Companion, CompanionEnd, CompanionMode, CompanionSpec, EventSender, SendError},
    device::Progress,
    time::Nanos,
};
use nicforge_hwi::seastar::{CommandResult, Event as EventRecord, INLINE};
use nicforge_kit::{Clock, Server};
use nicforge_seastar_firmware::chip::{
    Chip, Client, Event, Halted, Incarnation, MAX_CALLS, MAX_COUNTERS, MAX_HOST_WRITE, Pieces, Polled,
    Program, Stream, Transmit,
};

/// Maximum number of inputs on their way to the processor.
pub(crate) const INPUTS: usize = 256;
/// Maximum number of effects on their way to the device.
const EFFECTS: usize = 256;

/// Returns the description of the companion. `mode` says whether it may have a thread.
pub(crate) const fn companion_spec(mode: CompanionMode) -> CompanionSpec {
    CompanionSpec { name: "firmware", commands: INPUTS, events: EFFECTS, mode }
}

/// A message to the processor.
#[derive(Debug)]
pub(crate) struct Input {
    /// Time from which the processor can see it.
    pub(crate) time: Nanos,
    pub(crate) content: InputContent,
}

/// The content of a message to the processor.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "most messages are events")]
pub(crate) enum InputContent {
    /// An event for the program.
    Event(Event),
    /// The incarnation that a node shows has changed to this one, 0 for none.
    Incarnation { node: u32, incarnation: u32 },
}

/// A message to the device: a call of the program.
#[derive(Debug)]
pub(crate) struct Effect {
    /// Time of the call.
    pub(crate) time: Nanos,
    /// The highest tenant number that the program had seen at the call.
    pub(crate) latest_tenant: u32,
    pub(crate) call: Call,
}

/// A call of [`Chip`] that has an effect.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "effects are not boxed: none allocates")]
pub(crate) enum Call {
    Answer {
        client: Client,
        number: u32,
        result: CommandResult,
    },
    Transmit(Transmit),
    Receive {
        stream: Stream,
        length: u32,
        pieces: Pieces,
    },
    WriteHost {
        client: Client,
        address: u64,
        bytes: HostBytes,
    },
    Interrupt {
        client: Client,
        vector: u16,
    },
    SetBooted(bool),
    SetTimer(Nanos),
    /// The program has broken the rules of [`Program::poll`]. The device halts it.
    Broken,
}

/// The bytes of a [`Call::WriteHost`].
#[derive(Debug)]
pub(crate) enum HostBytes {
    /// The data of a header packet.
    Inline { length: u8, bytes: [u8; INLINE] },
    /// An event of a process.
    Event([u8; EVENT_BYTES]),
    /// An event of the kernel, or anything else.
    Other { length: u8, bytes: [u8; MAX_HOST_WRITE] },
}

/// Bytes of an event of a process.
pub(crate) const EVENT_BYTES: usize = size_of::<EventRecord>();

// The kinds of bytes are told apart by their length, which is a byte.
const _: () = assert!(INLINE < EVENT_BYTES && MAX_HOST_WRITE <= u8::MAX as usize);

impl HostBytes {
    /// Copies bytes. Returns `None` if there are more than [`MAX_HOST_WRITE`].
    #[inline]
    fn copy_of(bytes: &[u8]) -> Option<Self> {
        if let Ok(event) = bytes.try_into() {
            return Some(Self::Event(event));
        }
        let length = bytes.len() as u8;
        if bytes.len() <= INLINE {
            return padded(bytes).map(|bytes| Self::Inline { length, bytes });
        }
        padded(bytes).map(|bytes| Self::Other { length, bytes })
    }

    /// Returns the bytes.
    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Inline { length, bytes } => &bytes[..usize::from(*length).min(INLINE)],
            Self::Event(bytes) => bytes,
            Self::Other { length, bytes } => &bytes[..usize::from(*length).min(MAX_HOST_WRITE)],
        }
    }
}

/// Returns bytes with zeros after them, or `None` if they are too many.
#[inline]
fn padded<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    let mut padded = [0; N];
    padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(padded)
}

/// The values that a processor gets at its start.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    /// Number of its node.
    pub(crate) node: u32,
    pub(crate) clock: Clock,
    /// The incarnation of each node, 0 for none.
    pub(crate) incarnations: Box<[u32]>,
    /// The number of this node's last incarnation.
    pub(crate) last_incarnation: u32,
    pub(crate) now: Nanos,
}

/// The program's counters, as the device shows them.
pub(crate) type Counters = Arc<[AtomicU64; MAX_COUNTERS]>;

/// The processor and its program.
pub(crate) struct Processor<P> {
    program: P,
    counters: Counters,
    state: State,
    /// The program has said that it has more to do, or was never polled.
    is_busy: bool,
    /// The program has worked, or was never polled: its counters may have changed.
    has_worked: bool,
    /// The program has broken the rules of its calls, and is polled no more.
    is_broken: bool,
}

/// The state of the chip besides its FIFOs.
struct State {
    /// The values at the start. The incarnations in it are kept up to date.
    start: Start,
    /// The processor's work, which takes cycles of its clock.
    server: Server,
    /// The processor's time.
    now: Nanos,
    /// The highest tenant number that the program has seen.
    latest_tenant: u32,
}

impl<P: Program> Processor<P> {
    pub(crate) fn new(program: P, start: Start, counters: Counters) -> Self {
        let (server, now) = (Server::default(), start.now);
        Self {
            program,
            counters,
            state: State { start, server, now, latest_tenant: 0 },
            is_busy: true,
            has_worked: true,
            is_broken: false,
        }
    }
}

impl<P: Program + Send + 'static> Companion for Processor<P> {
    type Command = Input;
    type Event = Effect;

    fn poll(&mut self, end: &mut CompanionEnd<Input, Effect>, budget: u32) -> Progress {
        let progress = self.run(end, budget);
        if std::mem::take(&mut self.has_worked) {
            self.show_counters();
        }
        progress
    }
}

impl<P: Program> Processor<P> {
    /// Stores the program's counters where the device reads them.
    fn show_counters(&self) {
        let count = P::COUNTERS.len().min(MAX_COUNTERS);
        let mut values = [0; MAX_COUNTERS];
        self.program.count(&mut values[..count]);
        for (shown, value) in self.counters.iter().zip(&values[..count]) {
            shown.store(*value, Ordering::Relaxed);
        }
    }

    /// Polls the program, at most `budget` times.
    fn run(&mut self, end: &mut CompanionEnd<Input, Effect>, budget: u32) -> Progress {
        for _ in 0..budget {
            let has_room = end.room() > MAX_CALLS;
            if !has_room || self.is_broken || end.has_ended() {
                return Progress::Idle;
            }

            // The input stays in the FIFO, and is not copied.
            let (input, sender) = end.front();
            let has_input = input.is_some();
            let node_down;
            let event = match input {
                None if !self.is_busy => return Progress::Idle,
                None => None,
                Some(Input { time, content }) => {
                    self.state.now = self.state.now.max(*time);
                    match content {
                        InputContent::Event(event) => {
                            self.state.note_tenant(event);
                            Some(event)
                        }
                        InputContent::Incarnation { node, incarnation } => {
                            let Some(event) = self.state.incarnation_changed(*node, *incarnation) else {
                                drop(sender);
                                end.drop_front();
                                continue;
                            };
                            node_down = event;
                            Some(&node_down)
                        }
                    }
                }
            };

            let mut chip = PolledChip { state: &mut self.state, sender, calls: 0, is_overrun: false };
            let polled = self.program.poll(&mut chip, event);

            self.is_busy = matches!(polled, Ok(Polled::Busy));
            self.has_worked |= event.is_some() || self.is_busy;
            // A program that returns `Halted` although no call of the chip has is as broken as one
            // with too many calls.
            if chip.is_overrun || polled == Err(Halted) && !chip.sender.has_ended() {
                self.is_broken = true;
                chip.send(Call::Broken);
            }
            drop(chip);
            if has_input {
                end.drop_front();
            }
        }
        Progress::Busy
    }
}

/// The chip during one poll of the program: its calls become effects in the FIFO. The FIFO has room
/// for all effects of a poll, and for one more.
struct PolledChip<'a> {
    state: &'a mut State,
    sender: EventSender<'a, Effect>,
    /// Calls of this poll so far.
    calls: usize,
    /// The program has made more than [`MAX_CALLS`] calls, or a call with too many bytes.
    is_overrun: bool,
}

impl PolledChip<'_> {
    /// Sends the effect of a call, unless the program has made too many calls in this poll.
    #[inline]
    fn call(&mut self, call: Call) -> Result<(), Halted> {
        if self.calls >= MAX_CALLS {
            self.is_overrun = true;
            return Err(Halted);
        }

        self.calls += 1;
        self.send(call);
        Ok(())
    }

    /// Sends the effect of a call with the processor's present time.
    #[inline]
    fn send(&mut self, call: Call) {
        let effect = Effect { time: self.state.now, latest_tenant: self.state.latest_tenant, call };
        if let Err(SendError::Full(_)) = self.sender.send(effect) {
            self.is_overrun = true;
        }
    }
}

impl Chip for PolledChip<'_> {
    #[inline]
    fn charge(&mut self, cycles: u32) {
        let state = &mut *self.state;
        if state.start.clock.is_instant() {
            return;
        }
        state.server.work(state.now, state.start.clock, cycles);
        state.now = state.now.max(state.server.idle_at());
    }

    #[inline]
    fn now(&self) -> u64 {
        self.state.now.0
    }

    fn node(&self) -> u32 {
        self.state.start.node
    }

    fn nodes(&self) -> u32 {
        self.state.start.incarnations.len() as u32
    }

    #[inline]
    fn incarnation(&self, node: u32) -> Option<Incarnation> {
        let incarnation = self.state.start.incarnations.get(node as usize).copied().unwrap_or(0);
        (incarnation != 0).then_some(Incarnation(incarnation))
    }

    fn answer(&mut self, client: Client, number: u32, result: CommandResult) -> Result<(), Halted> {
        self.call(Call::Answer { client, number, result })
    }

    fn transmit(&mut self, message: &Transmit) -> Result<(), Halted> {
        self.call(Call::Transmit(*message))
    }

    fn receive(&mut self, stream: Stream, length: u32, pieces: Pieces) -> Result<(), Halted> {
        self.call(Call::Receive { stream, length, pieces })
    }

    fn write_host(&mut self, client: Client, address: u64, bytes: &[u8]) -> Result<(), Halted> {
        let Some(bytes) = HostBytes::copy_of(bytes) else {
            self.is_overrun = true;
            return Err(Halted);
        };
        self.call(Call::WriteHost { client, address, bytes })
    }

    fn interrupt(&mut self, client: Client, vector: u16) -> Result<(), Halted> {
        self.call(Call::Interrupt { client, vector })
    }

    fn set_booted(&mut self, booted: bool) -> Result<(), Halted> {
        self.call(Call::SetBooted(booted))?;

        let start = &mut self.state.start;
        if let Some(incarnation) = start.incarnations.get_mut(start.node as usize)
            && booted != (*incarnation != 0)
        {
            // This is the number that the network's table gives the incarnation when the device
            // carries the effect out.
            start.last_incarnation += u32::from(booted);
            *incarnation = if booted { start.last_incarnation } else { 0 };
        }
        Ok(())
    }

    fn set_timer(&mut self, time: u64) -> Result<(), Halted> {
        self.call(Call::SetTimer(Nanos(time)))
    }
}

impl State {
    /// Records the tenant of an [`Event::Attached`] as seen.
    #[inline]
    fn note_tenant(&mut self, event: &Event) {
        if let Event::Attached { epoch, .. } = event {
            self.latest_tenant = self.latest_tenant.max(*epoch);
        }
    }

    /// Records the incarnation that another node has now. Returns the event that reports the end of
    /// its former one, if it had one.
    fn incarnation_changed(&mut self, node: u32, incarnation: u32) -> Option<Event> {
        let shown = self.start.incarnations.get_mut(node as usize)?;
        let former = std::mem::replace(shown, incarnation);
        (former != 0 && former != incarnation).then_some(Event::NodeDown { node })
    }
}
