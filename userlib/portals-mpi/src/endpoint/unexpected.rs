//! Messages that arrive before their receive, and the memory for them.
//!
//! The buffers are filled in turn: a buffer without room for the longest message, or with as many
//! messages as it may have, unlinks itself. It is posted again, after the others, when receives
//! have taken all its messages. While all buffers are in use, only the headers of messages are
//! taken; their data are fetched when a receive matches.
//!
//! Messages are listed in the order of their starts, which is that of matching. A message may end
//! later than one that started after it.

use std::collections::VecDeque;

use nicforge_matching::{Envelope, Rank, Selector};
use nicforge_portals::Event;

use super::{
    Endpoint,
    fetch::FetchMethod,
    objects::{POINTER_OF_BUFFERS, POINTER_OF_LONG, POINTER_OF_OVERFLOW},
    requests::State,
};
use crate::{
    Error, bits,
    pool::{Handle, Pool},
};

/// Where the data of a message are in a buffer.
#[derive(Clone, Copy, Debug)]
struct BufferPosition {
    buffer: u8,
    offset: u64,
}

/// Where the data of a message are.
#[derive(Clone, Copy, Debug)]
enum Data {
    /// They arrive in a buffer.
    Arriving,
    /// They are in a buffer.
    Stored(BufferPosition),
    /// The sender has them.
    Remote(FetchMethod),
}

/// A message that has arrived before its receive.
#[derive(Debug)]
struct Message {
    envelope: Envelope,
    length: u64,
    /// Its id among the messages of its sender to this rank.
    id: u64,
    data: Data,
    /// Its sender has taken it out of its window, or will.
    is_kept: bool,
    /// The receive that has matched it while its data were arriving.
    receive: Option<Handle>,
}

/// State of a buffer for unexpected messages.
#[derive(Clone, Copy, Debug)]
enum Buffer {
    /// It has no messages, and must be posted.
    Idle,
    /// It is posted. This number of messages in it were not taken by receives.
    Posted(u32),
    /// It is full. This number of messages in it were not taken by receives.
    Full(u32),
}

/// A message whose data are arriving in a buffer.
#[derive(Debug)]
struct ArrivingMessage {
    /// The link of its events.
    link: u32,
    position: BufferPosition,
    /// `None` for a message that is ignored.
    handle: Option<Handle>,
}

/// The messages that have arrived before their receive.
#[derive(Debug)]
pub(super) struct Messages {
    pool: Pool<Message>,
    /// Those that no receive has matched, in the order of their starts.
    list: VecDeque<Handle>,
    /// Those whose data are arriving.
    arriving: Vec<ArrivingMessage>,
    /// State of each buffer.
    buffers: Vec<Buffer>,
    remote: RemoteCounts,
    /// Ranks whose windows are full of messages whose data only they have. Some may have room
    /// again.
    pub(super) full: VecDeque<Rank>,
}

/// The listed messages of a rank whose data only the rank has.
#[derive(Clone, Copy, Debug, Default)]
struct RemoteCount {
    /// Number of those in the rank's window. A rank that keeps to the protocol has no more than a
    /// window of them.
    in_window: u16,
    /// Number of those that the rank has taken out of its window, or will.
    kept: u32,
    /// The rank is in [`Messages::full`].
    is_listed: bool,
}

/// For each rank, the number of its listed messages whose data only the rank has.
#[derive(Debug)]
struct RemoteCounts {
    /// The counts of each rank.
    counts: Vec<RemoteCount>,
    /// Number of messages of all ranks that are kept.
    kept: u32,
    /// Number of messages in a window.
    window: u16,
}

impl RemoteCounts {
    /// Counts a message. Returns `false`, and counts nothing, if it exceeds its sender's window.
    fn add(&mut self, rank: Rank) -> bool {
        let count = self.counts.get_mut(rank as usize).filter(|count| count.in_window < self.window);
        count.map(|count| count.in_window += 1).is_some()
    }

    /// Uncounts a message.
    fn remove(&mut self, rank: Rank, is_kept: bool) {
        let Some(count) = self.counts.get_mut(rank as usize) else { return };
        if is_kept {
            count.kept = count.kept.saturating_sub(1);
            self.kept = self.kept.saturating_sub(1);
        } else {
            count.in_window = count.in_window.saturating_sub(1);
        }
    }

    /// Counts a message of a window as kept.
    fn keep(&mut self, rank: Rank) {
        let Some(count) = self.counts.get_mut(rank as usize) else { return };
        count.in_window = count.in_window.saturating_sub(1);
        count.kept += 1;
        self.kept += 1;
    }

    /// Returns whether a rank's window is full.
    fn is_full(&self, rank: Rank) -> bool {
        self.counts.get(rank as usize).is_some_and(|count| count.in_window >= self.window)
    }
}

impl Messages {
    pub(super) fn new(buffers: u8, ranks: u32, window: u16) -> Self {
        Self {
            pool: Pool::default(),
            list: VecDeque::new(),
            arriving: Vec::new(),
            buffers: vec![Buffer::Idle; buffers.into()],
            remote: RemoteCounts { counts: vec![RemoteCount::default(); ranks as usize], kept: 0, window },
            full: VecDeque::new(),
        }
    }

    /// Removes the oldest message that a selector matches from the list, and returns it.
    pub(super) fn take_match(&mut self, selector: &Selector) -> Option<Handle> {
        let matches =
            |handle: &Handle| self.pool.get(*handle).is_some_and(|found| selector.matches(&found.envelope));
        let position = self.list.iter().position(matches)?;
        let handle = self.list.remove(position)?;
        self.uncount(handle);
        Some(handle)
    }

    /// Adds a message to the list. Returns `false`, and forgets the message, if only its sender has
    /// the data and it exceeds its sender's window.
    fn add_to_list(&mut self, handle: Handle) -> bool {
        if let Some(Message { envelope, data: Data::Remote(_), .. }) = self.pool.get(handle) {
            let rank = envelope.peer;
            if !self.remote.add(rank) {
                self.pool.remove(handle);
                return false;
            }
            self.list_if_full(rank);
        }
        self.list.push_back(handle);
        true
    }

    /// Uncounts a message that was removed from the list.
    fn uncount(&mut self, handle: Handle) {
        if let Some(Message { envelope, data: Data::Remote(_), is_kept, .. }) = self.pool.get(handle) {
            self.remote.remove(envelope.peer, *is_kept);
        }
    }

    /// Lists a rank whose window is full.
    fn list_if_full(&mut self, rank: Rank) {
        if self.remote.is_full(rank)
            && let Some(count) = self.remote.counts.get_mut(rank as usize)
            && !std::mem::replace(&mut count.is_listed, true)
        {
            self.full.push_back(rank);
        }
    }

    /// Records that a rank is no longer in [`Messages::full`].
    pub(super) fn unlist_full(&mut self, rank: Rank) {
        if let Some(count) = self.remote.counts.get_mut(rank as usize) {
            count.is_listed = false;
        }
    }

    /// Returns whether the window of a rank is full of messages whose data only the rank has.
    pub(super) fn is_full(&self, rank: Rank) -> bool {
        self.remote.is_full(rank)
    }

    /// Returns whether `count` more headers of a rank may be kept, of `limit` headers of all ranks.
    /// A rank may have as many as it leaves free.
    pub(super) fn has_room(&self, limit: u32, rank: Rank, count: u32) -> bool {
        let own = self.remote.counts.get(rank as usize).map_or(0, |counts| counts.kept);
        own + count <= limit.saturating_sub(self.remote.kept + count)
    }

    /// Returns the messages of a rank that are in its window, and whose data only the rank has.
    /// They are the last ones of the rank.
    pub(super) fn list_unkept(&self, rank: Rank) -> Vec<(Handle, u64)> {
        let unkept = self.list.iter().rev().filter_map(|&handle| match self.pool.get(handle)? {
            Message { envelope, id, data: Data::Remote(_), is_kept: false, .. } if envelope.peer == rank => {
                Some((handle, *id))
            }
            _ => None,
        });
        unkept.take(self.remote.window.into()).collect()
    }

    /// Keeps the header of a message.
    pub(super) fn keep(&mut self, handle: Handle) {
        if let Some(message) = self.pool.get_mut(handle) {
            message.is_kept = true;
            self.remote.keep(message.envelope.peer);
        }
    }

    /// Removes a message from the list and from the pool.
    fn forget(&mut self, handle: Handle) {
        self.list.retain(|listed| *listed != handle);
        self.pool.remove(handle);
    }

    /// Counts a message whose data arrive in a buffer.
    fn hold_buffer(&mut self, buffer: u8) {
        if let Some(Buffer::Posted(messages) | Buffer::Full(messages)) =
            self.buffers.get_mut(usize::from(buffer))
        {
            *messages += 1;
        }
    }

    /// Uncounts a message whose data in a buffer are no longer needed. A full buffer without
    /// messages becomes idle.
    fn release_buffer(&mut self, buffer: u8) {
        let Some(state) = self.buffers.get_mut(usize::from(buffer)) else { return };
        match state {
            Buffer::Full(1) => *state = Buffer::Idle,
            Buffer::Posted(messages) | Buffer::Full(messages) => *messages = messages.saturating_sub(1),
            Buffer::Idle => {}
        }
    }

    /// Records that a buffer has unlinked itself because it is full.
    fn record_full(&mut self, buffer: u8) {
        if let Some(state) = self.buffers.get_mut(usize::from(buffer)) {
            *state = match *state {
                Buffer::Posted(0) => Buffer::Idle,
                Buffer::Posted(messages) => Buffer::Full(messages),
                other => other,
            };
        }
    }
}

/// Returns the buffer that an event's descriptor is of, or `None` if it is of none.
fn buffer_of(event: &Event) -> Option<u8> {
    event.user_pointer.checked_sub(POINTER_OF_BUFFERS).map(|buffer| buffer as u8)
}

impl Endpoint {
    /// Posts the idle buffers, as far as the card has room.
    pub(super) fn post_idle_buffers(&mut self) -> Result<(), Error> {
        for buffer in 0..self.config.unexpected.buffers {
            if matches!(self.messages.buffers.get(usize::from(buffer)), Some(Buffer::Idle)) {
                if !self.objects.post_buffer(buffer)? {
                    return Ok(());
                }
                self.messages.buffers[usize::from(buffer)] = Buffer::Posted(0);
            }
        }
        Ok(())
    }

    /// Handles the start of an unexpected message.
    pub(super) fn handle_unexpected_start(&mut self, event: &Event) -> Result<(), Error> {
        let position = buffer_of(event).map(|buffer| BufferPosition { buffer, offset: event.message.offset });
        if let Some(BufferPosition { buffer, .. }) = position {
            self.messages.hold_buffer(buffer);
        }

        let envelope = bits::envelope(event.message.match_bits);
        let data = match (event.user_pointer, position) {
            (_, Some(_)) => Data::Arriving,
            (POINTER_OF_LONG, None) => Data::Remote(FetchMethod::Get),
            (POINTER_OF_OVERFLOW, None) => Data::Remote(FetchMethod::Request),
            _ => return Ok(()),
        };
        // A message under another rank's number is ignored. Its data arrive in the buffer all the
        // same.
        let is_authentic = self.peers.rank_of(event.peer) == Some(envelope.peer);
        let handle = is_authentic.then(|| {
            let (length, id) = (event.message.requested.into(), event.message.header_data);
            self.messages.pool.insert(Message { envelope, length, id, data, is_kept: false, receive: None })
        });
        if let Some(position) = position {
            self.messages.arriving.push(ArrivingMessage { link: event.link, position, handle });
        }

        let Some(handle) = handle else {
            self.statistics.refused += 1;
            return Ok(());
        };
        self.statistics.unexpected += 1;
        if matches!(data, Data::Remote(FetchMethod::Request)) {
            self.statistics.overflowed += 1;
        }
        match self.take_pending(&envelope) {
            Some(receive) => self.match_message(handle, receive),
            None => {
                self.statistics.refused += u64::from(!self.messages.add_to_list(handle));
                Ok(())
            }
        }
    }

    /// Handles the end of the data of an unexpected message.
    pub(super) fn handle_unexpected_end(&mut self, event: &Event) -> Result<(), Error> {
        let is_this = |arriving: &ArrivingMessage| arriving.link == event.link;
        let Some(index) = self.messages.arriving.iter().position(is_this) else { return Ok(()) };
        let ArrivingMessage { position, handle, .. } = self.messages.arriving.swap_remove(index);
        let Some(message) = handle.and_then(|handle| self.messages.pool.get_mut(handle)) else {
            // The message is ignored: only its place in the buffer is freed.
            self.messages.release_buffer(position.buffer);
            return Ok(());
        };

        let Some(handle) = handle else { return Ok(()) };
        let (receive, source) = (message.receive, message.envelope.peer);
        message.data = Data::Stored(position);
        if event.failure.is_some() {
            // The data are damaged. The sender still has them, and sends them again on request.
            message.data = Data::Remote(FetchMethod::Request);
            self.messages.release_buffer(position.buffer);
            if receive.is_none() {
                if self.messages.remote.add(source) {
                    self.messages.list_if_full(source);
                } else {
                    self.messages.forget(handle);
                    self.statistics.refused += 1;
                }
            }
        }
        receive.map_or(Ok(()), |receive| self.match_message(handle, receive))
    }

    /// Handles the event that a buffer has unlinked itself.
    pub(super) fn handle_buffer_unlinked(&mut self, event: &Event) {
        if let Some(buffer) = buffer_of(event) {
            self.messages.record_full(buffer);
        }
    }

    /// Assigns a message that is not in the list to a receive that matches it. If the data are
    /// still arriving, the receive waits for them.
    pub(super) fn match_message(&mut self, handle: Handle, receive: Handle) -> Result<(), Error> {
        let Some(message) = self.messages.pool.get_mut(handle) else { return Ok(()) };
        let Message { envelope, length, id, data, .. } = *message;
        if let Data::Arriving = data {
            message.receive = Some(receive);
        } else {
            self.messages.pool.remove(handle);
        }

        let Some(entry) = self.requests.get_mut(receive) else { return Ok(()) };
        entry.envelope = envelope;
        match data {
            Data::Arriving => {
                entry.state = State::Arriving;
                Ok(())
            }
            Data::Stored(position) => {
                self.deliver(receive, position, length);
                Ok(())
            }
            Data::Remote(method) => self.fetch(receive, envelope.peer, id, length, method),
        }
    }

    /// Copies a message out of its buffer, and completes its receive.
    fn deliver(&mut self, receive: Handle, position: BufferPosition, length: u64) {
        let Some(entry) = self.requests.get(receive) else { return };
        let count = length.min(entry.buffer.len() as u64);
        let copied = self.objects.copy_out(position.buffer, position.offset, &entry.buffer, count);
        self.messages.release_buffer(position.buffer);
        self.has_work = true;
        match copied {
            Ok(()) => self.complete_receive(receive, length, count),
            Err(error) => self.fail(receive, error),
        }
    }

    /// Completes a receive of a message of `length` bytes, of which `count` are in its buffer.
    pub(super) fn complete_receive(&mut self, receive: Handle, length: u64, count: u64) {
        let is_truncated = count < length;
        let result = if is_truncated { Err(Error::Truncated { length, capacity: count }) } else { Ok(()) };
        self.complete(receive, count as usize, result);
    }

    /// Returns the rank that a message comes from. It is an error if the match bits name another
    /// rank than that of the process which has sent the message.
    pub(super) fn source_of(&self, event: &Event) -> Result<Rank, Error> {
        let claimed = bits::envelope(event.message.match_bits).peer;
        if self.peers.rank_of(event.peer) == Some(claimed) {
            return Ok(claimed);
        }
        Err(Error::WrongSource { process: event.peer, claimed })
    }
}
