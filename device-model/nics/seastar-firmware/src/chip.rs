//! The hardware that the firmware sees: mailboxes, DMA engines, scratch memory, host interrupts.
//!
//! All that happens to the firmware is an [`Event`] of one queue. All that it does is a call of
//! [`Chip`], which takes effect at the processor's time of that call, in the order of the calls. A
//! write to a host's memory is ordered after the deposits whose end the firmware has seen.

use nicforge_hwi::seastar::{COMMAND_BYTES, CommandResult, HeaderPacket, PIECES, Piece};

/// The firmware's incarnation is over: the device was reset, or is gone. The firmware returns from
/// [`Program::poll`] at once, and is called no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halted;

/// A message stream of the receiver, 0 to [`nicforge_hwi::seastar::STREAMS`] - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(pub u16);

/// A client of the device, whose memory and mailbox have this attachment number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client(pub u16);

/// The number by which the firmware knows a message that it has passed to the transmit DMA engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transmission(pub u32);

/// Maximum number of transmissions that one [`Event::Transmitted`] reports.
pub const MAX_TRANSMISSIONS_IN_EVENT: usize = 8;

/// The transmissions that one [`Event::Transmitted`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmissions {
    names: [Transmission; MAX_TRANSMISSIONS_IN_EVENT],
    count: u8,
}

impl Transmissions {
    /// Makes a list of one transmission.
    #[must_use]
    #[inline]
    pub const fn one(name: Transmission) -> Self {
        Self { names: [name; MAX_TRANSMISSIONS_IN_EVENT], count: 1 }
    }

    /// Adds a transmission. A full list stays as it is.
    #[inline]
    pub fn push(&mut self, name: Transmission) {
        if let Some(slot) = self.names.get_mut(usize::from(self.count)) {
            *slot = name;
            self.count += 1;
        }
    }

    /// Returns the names, in the order in which the transmissions have ended.
    #[must_use]
    #[inline]
    pub fn names(&self) -> &[Transmission] {
        self.names.get(..usize::from(self.count)).unwrap_or_default()
    }
}

/// Number of a node's incarnation, from 1. A node begins an incarnation when its kernel boots it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u32);

/// Virtual channels on the send side. The receiver merges them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Messages.
    Data,
    /// Acknowledgements of flow control, of one packet each.
    Control,
}

/// Memory of clients that a message comes from or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// No memory: the header packet has all data, or there are none.
    None,
    /// One contiguous range.
    One(Piece),
    /// The first `count` of these pieces. The others are ignored.
    Few {
        /// Number of pieces.
        count: u8,
        /// The pieces.
        pieces: [Piece; PIECES],
    },
    /// `count` pieces, which the DMA engine reads from a list in the kernel's memory: its *command
    /// list*. Each names its attachment.
    List {
        /// Address of the list in the kernel's memory.
        address: u64,
        /// Number of pieces, 1 to [`nicforge_hwi::seastar::MAX_PIECES`].
        count: u16,
    },
}

/// A message for the transmit DMA engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Its name in [`Event::Transmitted`].
    pub name: Transmission,
    /// The target node.
    pub target: u32,
    /// The incarnation of the target for which it is meant; `Incarnation(0)` if the target has none
    /// as far as this node sees. The target's device discards the data of a message for another
    /// incarnation, and shows its header as [`Event::Stale`], also while the target has no
    /// incarnation.
    pub target_incarnation: Incarnation,
    /// The virtual channel.
    pub channel: Channel,
    /// The header packet. The engine puts the data of a message of 1 to
    /// [`nicforge_hwi::seastar::INLINE`] bytes into it, if `pieces` names any.
    pub packet: HeaderPacket,
    /// The data, [`nicforge_hwi::seastar::TrustedHeader::length`] bytes in all.
    pub pieces: Pieces,
}

/// How the transfer of a message's data by a DMA engine has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferStatus {
    /// All bytes were moved.
    Complete,
    /// The end-to-end check failed, or the sender could not read its memory and sent filler in
    /// place of the rest.
    Corrupt,
    /// Memory of this node could not be accessed. The sender fills the rest of the message; the
    /// receiver discards it.
    MemoryFault,
    /// The sender's incarnation ended in the middle of the message: the rest will never come.
    Cut,
}

/// An event of the hardware, in the order in which they happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client has attached. `epoch` is the number of its attachment's tenant.
    Attached {
        /// The client.
        client: Client,
        /// Number of the tenant, which increases.
        epoch: u32,
    },
    /// A client is gone. Its memory can't be accessed any more, and no command of it follows.
    Detached {
        /// The client.
        client: Client,
        /// Number of the tenant.
        epoch: u32,
    },
    /// A command, as it was when the device copied it from the mailbox.
    Command {
        /// The client.
        client: Client,
        /// Number of the command in its mailbox.
        number: u32,
        /// The command.
        bytes: [u8; COMMAND_BYTES],
    },
    /// A header packet of a message has arrived. If it has a stream, the firmware must call
    /// [`Chip::receive`] once; the receiver waits for that.
    Header {
        /// The packet.
        packet: HeaderPacket,
        /// The incarnation of this node for which the message was meant. It may have ended since
        /// the event was queued; the firmware then handles the packet as a stale one.
        incarnation: Incarnation,
        /// The stream of its data, or `None` if the packet has them all.
        stream: Option<Stream>,
    },
    /// The header packet of a message that the receiver has dropped, because all streams are in
    /// use.
    Dropped {
        /// The packet.
        packet: HeaderPacket,
        /// The incarnation of this node for which the message was meant.
        incarnation: Incarnation,
    },
    /// The header packet of a message for an earlier incarnation of this node. Its data are
    /// discarded.
    Stale {
        /// The packet.
        packet: HeaderPacket,
    },
    /// The transmit engine has finished some messages. Those that end at the same time are reported
    /// together.
    Transmitted {
        /// The messages.
        names: Transmissions,
        /// Status of each of them: [`TransferStatus::Complete`], [`TransferStatus::MemoryFault`],
        /// or [`TransferStatus::Cut`] if this node's incarnation ended before all was sent.
        status: TransferStatus,
    },
    /// All data of a stream's message have arrived, or no more will. The stream is free again.
    Received {
        /// The stream.
        stream: Stream,
        /// How the transfer has ended.
        status: TransferStatus,
    },
    /// An incarnation of another node has ended. Nothing follows of its messages that are still on
    /// their way.
    NodeDown {
        /// The node.
        node: u32,
    },
    /// The time of [`Chip::set_timer`] has come.
    Timer,
}

/// The SeaStar as its firmware sees it.
///
/// The chip has room for [`MAX_CALLS`] calls that have effects before it polls the firmware.
pub trait Chip {
    /// Lets the processor's time advance by the cycles, of 2 ns each, that a step of the firmware
    /// takes.
    fn charge(&mut self, cycles: u32);

    /// Returns the processor's time in nanoseconds.
    fn now(&self) -> u64;

    /// Returns the number of this node.
    fn node(&self) -> u32;

    /// Returns the number of nodes of the network.
    fn nodes(&self) -> u32;

    /// Returns the incarnation that a node has as far as this node sees, or `None` if it has none.
    fn incarnation(&self, node: u32) -> Option<Incarnation>;

    /// Answers a command of a mailbox. Its number is filled in by the chip.
    ///
    /// # Errors
    /// [`Halted`].
    fn answer(&mut self, client: Client, number: u32, result: CommandResult) -> Result<(), Halted>;

    /// Passes a message to the transmit DMA engine. [`Event::Transmitted`] follows, except for a
    /// message on [`Channel::Control`].
    ///
    /// The firmware has at most [`MAX_TRANSMISSIONS`] messages on [`Channel::Data`] in the engine,
    /// and sends at most one message on [`Channel::Control`] for each event.
    ///
    /// The engine sends the messages of a channel in the order of these calls.
    ///
    /// # Errors
    /// [`Halted`].
    fn transmit(&mut self, message: &Transmit) -> Result<(), Halted>;

    /// Programs the receive DMA engine: the first `length` bytes of a stream go to `pieces`, and
    /// the rest is discarded. With `length` 0, all is discarded. [`Event::Received`] follows.
    ///
    /// # Errors
    /// [`Halted`].
    fn receive(&mut self, stream: Stream, length: u32, pieces: Pieces) -> Result<(), Halted>;

    /// Writes 1 to [`MAX_HOST_WRITE`] bytes to a client's memory. The device counts a write that
    /// fails.
    ///
    /// The last 4 bytes are written behind the others, as the word that hands an event over: in one
    /// piece if `address` and the length are multiples of 4, as those of events are.
    ///
    /// # Errors
    /// [`Halted`].
    fn write_host(&mut self, client: Client, address: u64, bytes: &[u8]) -> Result<(), Halted>;

    /// Raises an interrupt of a client, after all writes so far.
    ///
    /// # Errors
    /// [`Halted`].
    fn interrupt(&mut self, client: Client, vector: u16) -> Result<(), Halted>;

    /// Begins (`true`) or ends (`false`) an incarnation of this node. Other nodes see the change.
    ///
    /// From the end of an incarnation on, the device discards what it receives for it, and what
    /// remains of its messages on [`Channel::Data`]. [`Event::Transmitted`] and [`Event::Received`]
    /// follow for each of these all the same. Messages on [`Channel::Control`] answer other nodes,
    /// and are sent without an incarnation, too.
    ///
    /// # Errors
    /// [`Halted`].
    fn set_booted(&mut self, booted: bool) -> Result<(), Halted>;

    /// Requests [`Event::Timer`] at a time in nanoseconds. There is one timer: a later call
    /// replaces the request.
    ///
    /// # Errors
    /// [`Halted`].
    fn set_timer(&mut self, time: u64) -> Result<(), Halted>;
}

/// Maximum number of messages on [`Channel::Data`] that the firmware has in the transmit DMA
/// engine.
pub const MAX_TRANSMISSIONS: u16 = 32;

/// Maximum number of bytes of [`Chip::write_host`].
pub const MAX_HOST_WRITE: usize = 128;

/// Maximum number of calls with effects that the firmware makes in a poll.
pub const MAX_CALLS: usize = 16;

/// Maximum number of counters of a program.
pub const MAX_COUNTERS: usize = 32;

/// The result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// The program has handled an event, or has more to do.
    Busy,
    /// The program has nothing to do until the next event.
    Idle,
}

/// A program of the embedded processor: its polling loop.
pub trait Program {
    /// Names of the program's counters in tables: lower-case words joined by `_`, at most
    /// [`MAX_COUNTERS`].
    const COUNTERS: &'static [&'static str] = &[];

    /// Stores the values of the counters in `values`, in the order of [`Self::COUNTERS`]. The slice
    /// has a place for each.
    fn count(&self, values: &mut [u64]) {
        let _ = values;
    }

    /// Makes one turn of the loop: handles the next event, if there is one, and makes at most
    /// [`MAX_CALLS`] calls with effects. The event stays in the chip's memory, and is not copied.
    ///
    /// # Errors
    /// [`Halted`], as the chip has answered.
    fn poll<C: Chip>(&mut self, chip: &mut C, event: Option<&Event>) -> Result<Polled, Halted>;
}
