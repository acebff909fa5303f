//! The sharing of the receive FIFO among the cores of a compute node.
//!
//! Of the cores that wait for an acknowledgement, one holds the receive lock and polls. It puts an
//! acknowledgement for another core into that core's mailbox. A READ acknowledgement also transfers
//! the lock: it goes to that core without being free in between, and the packet stays first in the
//! FIFO. So neither another core nor the NIC, which discards data of a dead lock owner, can take
//! the data after it for orphans.
//!
//! If a core is killed on the way, the others find a state from which a live core can continue:
//!
//! - *The polling core, before the delivery*: the acknowledgement is still first. Its core polls
//!   it, since the stream word names it.
//! - *The polling core, before the hand-over*: the NIC frees the lock. The new owner takes it and
//!   skips the packet that it has already.
//! - *The new owner of the lock*: the NIC frees the lock and discards the data. If the NIC had seen
//!   the death before the hand-over, the next waiting core frees the lock.
//!
//! The next waiting core also frees the lock if the new owner lives, but its read has ended.

use crate::{
    Error,
    compute::mailbox::{Mailbox, Readers, Stream, StreamWord},
    protocol::{ABORT, Control, CoreName, Kind, Split},
    statistics::Counters,
    tree::{Generation, Held, LockBox, Receiver, TreeChannel},
};
use nicforge_driver::runtime::{Cost, charge};
use nicforge_hwi::tree::{CORES, PAYLOAD};

/// A receiver that holds the node's receive lock.
pub(super) type LockedReceiver<'a> = Receiver<'a, Held<&'a LockBox>>;

/// The result of [`Node::poll`].
#[allow(clippy::large_enum_variant, reason = "lives on the stack for a moment")]
pub(super) enum Polled {
    /// The FIFO is empty.
    Empty,
    /// The acknowledgement that the caller waits for.
    Awaited(Control),
    /// The beginning of another core's or thread's read, which now has the receive lock.
    StreamHandedOver,
    /// Another packet, which has been handled.
    Other,
}

/// Whether a core may touch the receive FIFO of its node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FifoAccess {
    /// No stream is in the way.
    Free,
    /// The process that the stream word names is gone or has given up its read. The core must clear
    /// the stream word first.
    AfterClear,
    /// Another core, or another thread of this core, receives its stream.
    Refused,
}

/// The kind of a control packet within a stream of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interruption {
    /// The packet does not concern the stream.
    None,
    /// The I/O node aborted the read.
    Aborted,
    /// Another read begins, and its acknowledgement is still first in the FIFO. No process sends an
    /// acknowledgement in the middle of a read. So it comes from the I/O node's next process, and
    /// the rest of the stream was lost with the process before.
    Replaced,
}

/// A compute node, as seen by one of its cores.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) channel: TreeChannel,
    /// The identification of this core.
    pub(super) name: CoreName,
    pub(super) counters: Counters,
    stream: StreamWord,
    /// The mailboxes of each core, by [`Kind`].
    mailboxes: Vec<[Mailbox; 3]>,
    readers: Readers,
}

/// This core's entry in [`Readers`] while it reads.
pub(super) struct ReaderEntry<'a>(&'a Node);

impl Drop for ReaderEntry<'_> {
    fn drop(&mut self) {
        self.0.readers.set(self.0.name.core, None);
    }
}

impl Node {
    /// Opens the state that the cores of a compute node share. Fails on an I/O node.
    pub(super) fn new(channel: TreeChannel) -> Result<Self, Error> {
        let info = *channel.info();

        let Some(rank) = info.pset_rank else {
            return Err(Error::WrongDevice {
                expected: "a compute node's core",
                found: format!("node {} is the I/O node of its pset", info.address),
            });
        };

        let name = CoreName { node: info.address, core: info.core, rank_in_pset: rank as u16 };
        let mailbox = |core, kind| Mailbox::new(channel.shared(), core, kind);
        let mailboxes = (0..CORES)
            .map(|core| {
                Ok([mailbox(core, Kind::Read)?, mailbox(core, Kind::Write)?, mailbox(core, Kind::Reset)?])
            })
            .collect::<Result<_, Error>>()?;

        let stream = StreamWord::new(channel.shared())?;
        let readers = Readers::new(channel.shared())?;
        readers.set(name.core, None);
        Ok(Self { name, counters: Counters::default(), stream, mailboxes, readers, channel })
    }

    /// Returns the generation of a core of this node.
    pub(super) fn generation(&self, core: u16) -> Generation {
        self.channel.presence(self.name.node, core)
    }

    /// Enters this core into [`Readers`] until the result is dropped. It is called before the
    /// request of a read is sent.
    pub(super) fn enter_readers(&self) -> ReaderEntry<'_> {
        self.readers.set(self.name.core, Some(self.generation(self.name.core)));
        ReaderEntry(self)
    }

    /// Returns whether process `generation` of `core` is in a read.
    fn is_reading(&self, core: u16, generation: Generation) -> bool {
        self.readers.get(core) == Some(generation)
    }

    /// Returns the mailbox of a core for a kind of acknowledgement.
    fn mailbox(&self, core: u16, kind: Kind) -> &Mailbox {
        &self.mailboxes[usize::from(core % CORES)][kind as usize]
    }

    /// Takes this core's acknowledgement of `kind`, if another core has delivered it.
    #[inline]
    pub(super) fn take_delivered(&self, kind: Kind) -> Result<Option<Control>, Error> {
        let Some(payload) = self.mailbox(self.name.core, kind).take()? else { return Ok(None) };
        // The packet was decoded before it was delivered.
        Ok(Control::decode(&payload).ok())
    }

    /// Discards this core's delivered acknowledgements of `kind`.
    pub(super) fn discard_delivered(&self, kind: Kind) {
        self.mailbox(self.name.core, kind).clear();
    }

    /// Returns whether the process that owns `stream` is gone or has given up its read.
    fn is_abandoned(&self, stream: Stream) -> bool {
        stream.generation != self.generation(stream.core) || !self.is_reading(stream.core, stream.generation)
    }

    /// Returns whether this core may touch the FIFO while it waits for an acknowledgement of kind
    /// `awaited` and the stream word names `stream`.
    fn access_for(&self, stream: Option<Stream>, awaited: Kind) -> FifoAccess {
        match stream {
            None => FifoAccess::Free,
            Some(stream) if self.is_abandoned(stream) => FifoAccess::AfterClear,
            Some(stream) if stream.core != self.name.core => FifoAccess::Refused,
            // The stream is this core's own.
            Some(_) if awaited == Kind::Read => FifoAccess::Free,
            Some(_) => FifoAccess::Refused,
        }
    }

    /// Takes the receive lock, if it is free and a call that waits for an acknowledgement of kind
    /// `awaited` may touch the FIFO.
    #[inline]
    pub(super) fn try_receiver_for(&self, awaited: Kind) -> Option<LockedReceiver<'_>> {
        let stream = self.stream.get();
        if self.access_for(stream, awaited) == FifoAccess::Refused {
            return None;
        }

        // The lock may have been handed over to a core that had died or given up its read already.
        // If that core begins another read meanwhile, the second check below refuses the FIFO.
        if let Some(stream) = stream.filter(|stream| self.is_abandoned(*stream)) {
            self.channel.receive_lock().free_handed(stream.core);
        }

        let receiver = self.try_receiver()?;
        // Another core may have received a READ acknowledgement before this core took the lock.
        let access = self.access_for(self.stream.get(), awaited);
        if access == FifoAccess::AfterClear {
            self.stream.set(None);
        }

        (access != FifoAccess::Refused).then_some(receiver)
    }

    /// Takes the receive lock for the owner of the stream, if it is free or was handed to this
    /// core.
    #[inline]
    pub(super) fn try_receiver(&self) -> Option<LockedReceiver<'_>> {
        let guard = self.channel.receive_lock().try_adopt(self.channel.owner())?;
        Some(self.channel.receiver(guard))
    }

    /// Ends this core's stream. The caller holds the receive lock.
    pub(super) fn end_stream(&self, _receiver: &LockedReceiver<'_>) {
        self.stream.set(None);
    }

    /// Handles the first packet in the FIFO. Takes the acknowledgement of kind `awaited` for this
    /// core, delivers one for another core or call to its mailbox, and discards other packets.
    pub(super) fn poll(&self, receiver: &mut LockedReceiver<'_>, awaited: Kind) -> Result<Polled, Error> {
        let Some(header) = receiver.peek() else {
            self.counters.polls.add(1);
            return Ok(Polled::Empty);
        };

        self.counters.packets_received.add(1);
        if !header.irq() {
            receiver.advance();
            self.counters.orphans.add(1);
            return Ok(Polled::Other);
        }

        let Some((control, payload)) = self.first_control(receiver) else { return Ok(Polled::Other) };

        let number = receiver.position();
        let is_awaited = control.core == self.name && control.kind == awaited;
        let is_read = control.kind == Kind::Read;
        let has_data = is_read && Split::new(control.size, control.size).packets != 0;
        let core = control.core.core;
        let generation = self.generation(core);

        // An abort concerns a stream, and there is none here.
        let is_late_abort = is_read && control.size == ABORT;
        // The core has given up this read, so its data have no reader and are orphans.
        let has_no_reader = is_read && !self.is_reading(core, generation);
        if is_late_abort || !generation.is_up() || has_no_reader {
            receiver.advance();
            self.counters.strays.add(1);
            return Ok(Polled::Other);
        }

        if has_data {
            self.stream.set(Some(Stream { core, generation }));
        }

        if is_awaited {
            receiver.advance();
            return Ok(Polled::Awaited(control));
        }

        self.mailbox(core, control.kind).deliver(number, &payload)?;
        self.counters.hand_overs.add(1);

        if has_data && core != self.name.core {
            // The packet stays first in the FIFO until that core has adopted the lock.
            receiver.publish();
            receiver.held().hand_over(core);
            return Ok(Polled::StreamHandedOver);
        }

        receiver.advance();
        receiver.publish();
        Ok(if has_data { Polled::StreamHandedOver } else { Polled::Other })
    }

    /// Handles the control packet that interrupts this core's stream.
    pub(super) fn handle_interruption(
        &self,
        receiver: &mut LockedReceiver<'_>,
    ) -> Result<Interruption, Error> {
        let Some((control, payload)) = self.first_control(receiver) else {
            self.counters.packets_received.add(1);
            return Ok(Interruption::None);
        };

        if control.kind == Kind::Read && control.size != ABORT {
            return Ok(Interruption::Replaced);
        }

        let number = receiver.position();
        receiver.advance();
        self.counters.packets_received.add(1);

        if control.kind == Kind::Read {
            if control.core == self.name {
                return Ok(Interruption::Aborted);
            }
            self.counters.strays.add(1);
            return Ok(Interruption::None);
        }

        self.mailbox(control.core.core, control.kind).deliver(number, &payload)?;
        self.counters.hand_overs.add(1);
        Ok(Interruption::None)
    }

    /// Returns the control packet at the head of the FIFO, and its payload. Skips the packet and
    /// returns `None` if it is not for this node, or if a core delivered it before it died.
    fn first_control(&self, receiver: &mut LockedReceiver<'_>) -> Option<(Control, [u8; PAYLOAD])> {
        let mut payload = [0; PAYLOAD];
        receiver.payload(&mut payload);
        charge(Cost::ControlPacket, 1);

        let control = Control::decode(&payload).ok().filter(|control| {
            let name = control.core;
            name.node == self.name.node && name.core < CORES && name.rank_in_pset == self.name.rank_in_pset
        });

        match control {
            Some(control) if !self.mailbox(control.core.core, control.kind).has(receiver.position()) => {
                Some((control, payload))
            }
            found => {
                receiver.advance();
                self.counters.strays.add(u64::from(found.is_none()));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
