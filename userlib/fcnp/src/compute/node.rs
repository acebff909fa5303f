//! The cores of a compute node taking turns at the receive FIFO.
//!
//! Of the cores that wait for an acknowledgement, one has the receive lock and polls. An acknowledgement for another core
//! goes to that core's mailbox. With a READ acknowledgement goes the lock: it is made that core's without being free in
//! between, and the packet stays first in the FIFO, so that neither another core nor the NIC (which discards data that a dead
//! lock owner left) can take the data behind it for orphans. Whoever is killed on the way, the next one finds a state that
//! some live core can go on from:
//!
//! | killed | what the others find |
//! | --- | --- |
//! | before the delivery | the acknowledgement is still first; the core it is for, whose stream it is, polls it itself |
//! | before the lock is handed over | the NIC frees the lock; the core takes it and passes the packet it has already |
//! | the core it is handed to | the NIC frees the lock and discards the data; or, when the NIC had seen the death before the hand-over, whoever waits next frees it |

use crate::{
    Error,
    compute::mailbox::{Mailbox, Readers, Stream, StreamWord},
    protocol::{ABORT, Control, CoreName, Kind, Split},
    statistics::Counters,
    tree::{Generation, Held, LockBox, Receiver, TreeChannel},
};
use nicforge_hwi::tree::{CORES, PAYLOAD};

/// The right to receive.
pub(super) type Right<'a> = Receiver<'a, Held<&'a LockBox>>;

/// What the first packet in the FIFO was.
#[allow(clippy::large_enum_variant, reason = "lives on the stack for a moment")]
pub(super) enum Polled {
    /// There is none.
    Empty,
    /// What was wanted.
    Mine(Control),
    /// The beginning of another core's or thread's read: the right is that one's now.
    StreamPassed,
    /// Something else, which was dealt with.
    Other,
}

/// What interrupted a stream of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interruption {
    /// Nothing to do with it.
    None,
    /// The I/O node gave the read up.
    Aborted,
    /// Another read begins, whose acknowledgement is first in the FIFO still: no process sends that in the middle of one, so this is
    /// the next process, and the end of the stream was lost with the one before.
    Replaced,
}

/// A compute node as one of its cores sees it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) channel: TreeChannel,
    /// This core.
    pub(super) name: CoreName,
    pub(super) counters: Counters,
    stream: StreamWord,
    mailboxes: Vec<[Mailbox; 3]>,
    readers: Readers,
}

/// This core's entry in [`Readers`] for as long as its read is on.
pub(super) struct Reading<'a>(&'a Node);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.readers.set(self.0.name.core, None);
    }
}

impl Node {
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

    pub(super) fn generation(&self, core: u16) -> Generation {
        self.channel.presence(self.name.node, core)
    }

    /// A read of this core begins, whose request has not been sent.
    pub(super) fn reading(&self) -> Reading<'_> {
        self.readers.set(self.name.core, Some(self.generation(self.name.core)));
        Reading(self)
    }

    /// Whether a read of `core`, whose process is `generation`, is on.
    fn is_reading(&self, core: u16, generation: Generation) -> bool {
        self.readers.get(core) == Some(generation)
    }

    fn mailbox(&self, core: u16, kind: Kind) -> &Mailbox {
        &self.mailboxes[usize::from(core % CORES)][kind as usize]
    }

    /// This core's acknowledgement of `kind`, if another one has delivered it.
    #[inline]
    pub(super) fn delivered(&self, kind: Kind) -> Result<Option<Control>, Error> {
        let Some(payload) = self.mailbox(self.name.core, kind).take()? else { return Ok(None) };
        // It was decoded before it was delivered.
        Ok(Control::decode(&payload).ok())
    }

    /// Forgets this core's acknowledgements of `kind`.
    pub(super) fn forget(&self, kind: Kind) {
        self.mailbox(self.name.core, kind).clear();
    }

    /// Whether the owner of a stream is gone.
    fn is_stale(&self, stream: Stream) -> bool {
        stream.generation != self.generation(stream.core)
    }

    /// Whether one who waits for an acknowledgement of `want` may touch the FIFO, and whether the stream word must be cleared first.
    fn admits(&self, stream: Option<Stream>, want: Kind) -> (bool, bool) {
        match stream {
            None => (true, false),
            Some(stream) if self.is_stale(stream) => (true, true),
            Some(stream) if stream.core != self.name.core => (false, false),
            Some(stream) if self.is_reading(stream.core, stream.generation) => (want == Kind::Read, false),
            Some(_) => (true, true),
        }
    }

    /// The right to receive, if it is free and `want` may have it.
    #[inline]
    pub(super) fn try_right(&self, want: Kind) -> Option<Right<'_>> {
        let stream = self.stream.get();
        if !self.admits(stream, want).0 {
            return None;
        }
        if let Some(stream) = stream.filter(|stream| self.is_stale(*stream)) {
            self.channel.receive_lock().free_handed(stream.core);
        }
        let right = self.try_any_right()?;
        // Somebody may have received a READ acknowledgement before we had the lock.
        let (admitted, clear) = self.admits(self.stream.get(), want);
        if clear {
            self.stream.set(None);
        }
        admitted.then_some(right)
    }

    /// The right to receive for the owner of the stream, if it is free or was handed to this core.
    #[inline]
    pub(super) fn try_any_right(&self) -> Option<Right<'_>> {
        let held = self.channel.receive_lock().try_adopt(self.channel.owner())?;
        Some(self.channel.receiver(held))
    }

    /// Ends this core's stream. The caller has the right to receive.
    pub(super) fn end_stream(&self, _right: &Right<'_>) {
        self.stream.set(None);
    }

    /// Deals with the first packet in the FIFO.
    pub(super) fn poll(&self, right: &mut Right<'_>, want: Kind) -> Result<Polled, Error> {
        let Some(header) = right.peek()? else {
            self.counters.polls.add(1);
            return Ok(Polled::Empty);
        };
        self.counters.packets_received.add(1);
        if !header.irq() {
            right.advance();
            self.counters.orphans.add(1);
            return Ok(Polled::Other);
        }
        let Some((control, payload)) = self.control(right)? else { return Ok(Polled::Other) };
        let number = right.position();
        let mine = control.core == self.name && control.kind == want;
        let streams = control.kind == Kind::Read && Split::new(control.size, control.size).packets != 0;
        let generation = self.generation(control.core.core);
        let core = control.core.core;
        // Of a read that was given up: nobody would take the data, which are orphans then.
        let unwanted = control.kind == Kind::Read && !self.is_reading(core, generation);
        if control.kind == Kind::Read && control.size == ABORT || !generation.is_up() || unwanted {
            right.advance();
            self.counters.strays.add(1);
            return Ok(Polled::Other);
        }
        if streams {
            self.stream.set(Some(Stream { core, generation }));
        }
        if mine {
            right.advance();
            return Ok(Polled::Mine(control));
        }
        self.mailbox(core, control.kind).deliver(number, &payload)?;
        self.counters.hand_overs.add(1);
        if streams && core != self.name.core {
            right.publish();
            right.held().hand_over(core);
            return Ok(Polled::StreamPassed);
        }
        right.advance();
        right.publish();
        Ok(if streams { Polled::StreamPassed } else { Polled::Other })
    }

    /// Deals with the control packet that interrupts this core's stream.
    pub(super) fn interruption(&self, right: &mut Right<'_>) -> Result<Interruption, Error> {
        let Some((control, payload)) = self.control(right)? else {
            self.counters.packets_received.add(1);
            return Ok(Interruption::None);
        };
        if control.kind == Kind::Read && control.size != ABORT {
            return Ok(Interruption::Replaced);
        }
        let number = right.position();
        right.advance();
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

    /// The control packet at the head of the FIFO, read once; `None` when it was none of this node's, or a dead core had
    /// delivered it already, and it has been passed.
    fn control(&self, right: &mut Right<'_>) -> Result<Option<(Control, [u8; PAYLOAD])>, Error> {
        let mut payload = [0; PAYLOAD];
        right.payload(&mut payload)?;
        let control = Control::decode(&payload).ok().filter(|control| {
            let name = control.core;
            name.node == self.name.node && name.core < CORES && name.rank_in_pset == self.name.rank_in_pset
        });
        match control {
            Some(control) if !self.mailbox(control.core.core, control.kind).has(right.position()) => {
                Ok(Some((control, payload)))
            }
            found => {
                right.advance();
                self.counters.strays.add(u64::from(found.is_none()));
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests;
