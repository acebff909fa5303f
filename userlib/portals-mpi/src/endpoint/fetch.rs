//! Data that the receiver asks for, after a receive has matched their header.
//!
//! - The data of a long message are fetched by a get. The sender needs no call for it.
//! - For data that found no place, and for data that were damaged, the receiver offers its buffer
//!   to a put that only the sender can make, and sends a request. The sender puts the data again.

use std::collections::VecDeque;

use nicforge_matching::Rank;
use nicforge_portals::{Event, Failure, MemoryDescriptor};

use super::{Endpoint, notices::Notice, objects::REQUEST, requests::State};
use crate::{Buffer, Error, Loss, config::MAX_FETCHES, pool::Handle};

/// Maximum number of attempts to fetch the data of a message, which may be damaged each time.
const MAX_ATTEMPTS: u32 = 8;

/// How a receiver fetches the data of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FetchMethod {
    /// A get of memory that the sender exposes.
    Get,
    /// A request to the sender.
    Request,
}

/// Progress of a fetch.
#[derive(Debug)]
enum Progress {
    /// Nothing was done yet, or the fetch is repeated from the start.
    New,
    /// The buffer is offered to a put of the sender, which was not asked for it yet.
    Offered(MemoryDescriptor),
    /// The sender was asked to put into the offered buffer.
    Requested(MemoryDescriptor),
    /// A get with this descriptor has left. Nothing else uses the descriptor.
    Getting(MemoryDescriptor),
}

/// Outcome of an attempt to start a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// The fetch is in progress.
    Started,
    /// The sender has as many operations in progress as it may have.
    SenderIsFull,
    /// The card has no room.
    CardIsFull,
}

/// A message whose data are fetched.
#[derive(Debug)]
struct Fetch {
    /// The receive that has matched the message.
    receive: Handle,
    /// The sender.
    peer: Rank,
    /// Id of the message among those of its sender to this rank.
    id: u64,
    /// Length of the message.
    length: u64,
    method: FetchMethod,
    /// Number of transfers that have ended.
    attempts: u32,
    progress: Progress,
    /// The sender was asked whether it has the message.
    is_asked: bool,
}

/// The fetches of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    /// Those that wait for room to start.
    waiting: VecDeque<Fetch>,
    /// Those in progress.
    running: Vec<Fetch>,
    /// Buffers of receives that have failed while the card may write to them, until the end of that
    /// operation.
    kept: Vec<(Handle, Buffer)>,
}

impl Fetches {
    /// Frees the kept buffer of a receive that has failed, because the operation that wrote to it
    /// has ended. Returns whether there was one.
    pub(super) fn release_kept(&mut self, receive: Handle) -> bool {
        let position = self.kept.iter().position(|(kept, _)| *kept == receive);
        position.map(|position| self.kept.swap_remove(position)).is_some()
    }
}

impl Endpoint {
    /// Fetches the data of a message from `peer` into the buffer of a receive that has matched it.
    /// `id` and `length` are those of the message.
    pub(super) fn fetch(
        &mut self,
        receive: Handle,
        peer: Rank,
        id: u64,
        length: u64,
        method: FetchMethod,
    ) -> Result<(), Error> {
        let Some(entry) = self.requests.get_mut(receive) else { return Ok(()) };
        entry.state = State::Fetching;
        let Some(source) = self.peers.get_mut(peer) else { return Ok(()) };
        if let Some(why) = source.loss() {
            self.fail(receive, Error::PeerGone { peer, why });
            self.give_up_silent(peer, why, id);
            return Ok(());
        }

        source.awaited += 1;
        self.fetches.waiting.push_back(Fetch {
            receive,
            peer,
            id,
            length,
            method,
            attempts: 0,
            progress: Progress::New,
            is_asked: false,
        });
        self.start_fetches()
    }

    /// Starts fetches that wait, as far as there is room.
    pub(super) fn start_fetches(&mut self) -> Result<(), Error> {
        for _ in 0..self.fetches.waiting.len() {
            if self.fetches.running.len() >= MAX_FETCHES as usize {
                break;
            }
            let Some(mut fetch) = self.fetches.waiting.pop_front() else { break };

            // No rank has more requests to handle than a window of them, so that its events have
            // room.
            let window = self.config.window_of(self.size());
            if self.peers.get(fetch.peer).is_some_and(|peer| peer.fetches >= window) {
                self.fetches.waiting.push_back(fetch);
                continue;
            }

            match self.start_fetch(&mut fetch) {
                Ok(Start::Started) => {
                    if let Some(peer) = self.peers.get_mut(fetch.peer) {
                        peer.fetches += 1;
                    }
                    self.fetches.running.push(fetch);
                }
                Ok(Start::SenderIsFull) => self.fetches.waiting.push_back(fetch),
                full_or_error => {
                    self.fetches.waiting.push_front(fetch);
                    return full_or_error.map(drop);
                }
            }
        }
        Ok(())
    }

    /// Starts a fetch, or as much of it as there is room for: the next call continues.
    fn start_fetch(&mut self, fetch: &mut Fetch) -> Result<Start, Error> {
        let Some(process) = self.peers.get(fetch.peer).map(|peer| peer.process) else {
            return Ok(Start::Started);
        };
        let Some(entry) = self.requests.get(fetch.receive) else { return Ok(Start::Started) };
        let length = fetch.length.min(entry.buffer.len() as u64);
        let user_pointer = fetch.receive.to_bits();

        if fetch.method == FetchMethod::Get {
            if !self.peers.has_room(fetch.peer) {
                return Ok(Start::SenderIsFull);
            }
            let got = self.objects.get(&entry.buffer, length, process, fetch.id, user_pointer)?;
            let Some(descriptor) = got else { return Ok(Start::CardIsFull) };
            fetch.progress = Progress::Getting(descriptor);
            self.peers.begin_get(fetch.peer);
            return Ok(Start::Started);
        }

        if let Progress::New = fetch.progress {
            match self.objects.offer(&entry.buffer, process, fetch.id, user_pointer)? {
                Some(descriptor) => fetch.progress = Progress::Offered(descriptor),
                None => return Ok(Start::CardIsFull),
            }
        }
        if let Progress::Offered(descriptor) = &fetch.progress {
            if !self.send_control(fetch.peer, REQUEST, fetch.id)? {
                return Ok(Start::SenderIsFull);
            }
            fetch.progress = Progress::Requested(descriptor.clone());
        }
        Ok(Start::Started)
    }

    /// Handles the end of a fetch's transfer: the reply to a get, or a put into an offered buffer.
    pub(super) fn handle_fetched(&mut self, receive: Handle, event: &Event) -> Result<(), Error> {
        if self.fetches.release_kept(receive) {
            return Ok(());
        }
        let Some(position) = self.fetches.running.iter().position(|fetch| fetch.receive == receive) else {
            return Ok(());
        };

        let counter = match self.fetches.running[position].method {
            FetchMethod::Get => &mut self.statistics.fetched,
            FetchMethod::Request => &mut self.statistics.repeated,
        };
        *counter += 1;
        self.end_fetch(position, event)
    }

    /// Ends the fetch at a position of those in progress, or repeats it if the data were damaged.
    fn end_fetch(&mut self, position: usize, event: &Event) -> Result<(), Error> {
        let mut fetch = self.remove_running(position);
        let Fetch { receive, peer, id, length, method, .. } = fetch;
        fetch.attempts += 1;

        match event.failure {
            None => {
                self.end_wait_for(peer);
                self.complete_receive(receive, length, event.message.moved.into());
                Ok(())
            }
            Some(Failure::Node) => {
                self.end_wait_for(peer);
                let why = Loss::NodeEnded;
                self.fail(receive, Error::PeerGone { peer, why });
                self.lose(peer, why)
            }
            // Only a request can be repeated: a get that has failed has used up the descriptor of
            // the sender's memory.
            Some(_) if method == FetchMethod::Request && fetch.attempts < MAX_ATTEMPTS => {
                fetch.progress = Progress::New;
                self.fetches.waiting.push_back(fetch);
                self.start_fetches()
            }
            Some(failure) => {
                self.end_wait_for(peer);
                self.fail(receive, Error::Failed(failure));
                if method == FetchMethod::Request {
                    self.notify(peer, Notice::GivenUp, id);
                }
                Ok(())
            }
        }
    }

    /// Removes a fetch from those in progress.
    fn remove_running(&mut self, position: usize) -> Fetch {
        let fetch = self.fetches.running.swap_remove(position);
        if let Some(peer) = self.peers.get_mut(fetch.peer) {
            peer.fetches = peer.fetches.saturating_sub(1);
        }
        if let Progress::Getting(_) = fetch.progress {
            self.peers.end_get(fetch.peer);
        }
        fetch
    }

    /// Handles a sender's notice that it no longer has a message: ends the fetch of it. A transfer
    /// that has begun goes on.
    pub(super) fn handle_no_longer_there(&mut self, from: Rank, id: u64) -> Result<(), Error> {
        let is_this = |fetch: &Fetch| fetch.peer == from && fetch.id == id;
        let Some(position) = self.fetches.running.iter().position(is_this) else { return Ok(()) };
        let is_ended = match &self.fetches.running[position].progress {
            // Unlinking a get's descriptor ends the get: a late reply finds no operation.
            Progress::Requested(descriptor) | Progress::Getting(descriptor) => {
                self.objects.unlink(descriptor)?
            }
            Progress::New | Progress::Offered(_) => false,
        };
        if !is_ended {
            return Ok(());
        }

        let Fetch { receive, .. } = self.remove_running(position);
        self.end_wait_for(from);
        self.fail(receive, Error::NoLongerThere { peer: from });
        self.has_work = true;
        Ok(())
    }

    /// Asks a sender about each of its messages that this rank fetches by a get, whether the sender
    /// still has it. Each question is asked once.
    pub(super) fn ask_for_messages(&mut self, from: Rank) {
        let is_unasked = |fetch: &&Fetch| {
            fetch.peer == from && !fetch.is_asked && matches!(fetch.progress, Progress::Getting(_))
        };
        let ids: Vec<_> = self.fetches.running.iter().filter(is_unasked).map(|fetch| fetch.id).collect();
        for id in ids {
            // Without room, a later call asks.
            if !self.notify(from, Notice::IsThere, id) {
                break;
            }
            for fetch in self.fetches.running.iter_mut().filter(|fetch| fetch.peer == from && fetch.id == id)
            {
                fetch.is_asked = true;
            }
        }
    }

    /// Counts that this rank waits for one thing less from a peer.
    fn end_wait_for(&mut self, peer: Rank) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.awaited = peer.awaited.saturating_sub(1);
        }
    }

    /// Ends the fetches from a rank that is gone: their receives fail with `peer_gone`. The call
    /// goes on after an error, and returns the first one.
    pub(super) fn lose_fetches(&mut self, rank: Rank, peer_gone: Error) -> Result<(), Error> {
        let of_rank = |fetch: &mut Fetch| fetch.peer == rank;
        let mut lost: Vec<Fetch> = self.fetches.running.extract_if(.., of_rank).collect();
        if let Some(peer) = self.peers.get_mut(rank) {
            peer.fetches = 0;
        }
        for _ in lost.iter().filter(|fetch| matches!(fetch.progress, Progress::Getting(_))) {
            self.peers.end_get(rank);
        }
        let (waiting, others): (VecDeque<_>, _) =
            self.fetches.waiting.drain(..).partition(|fetch| fetch.peer == rank);
        self.fetches.waiting = others;
        lost.extend(waiting);

        let mut result = Ok(());
        for Fetch { receive, id, progress, .. } in lost {
            // The buffer is kept if the card may still write to it.
            let is_free = match progress {
                Progress::New => Ok(true),
                Progress::Offered(descriptor)
                | Progress::Requested(descriptor)
                | Progress::Getting(descriptor) => self.objects.unlink(&descriptor),
            };
            if is_free != Ok(true)
                && let Some(entry) = self.requests.get_mut(receive)
            {
                self.fetches.kept.push((receive, entry.buffer.take()));
            }
            result = result.and(is_free.map(drop));
            self.end_wait_for(rank);
            self.fail(receive, peer_gone.clone());
            if let Error::PeerGone { why, .. } = peer_gone {
                self.give_up_silent(rank, why, id);
            }
        }
        result
    }

    /// Notifies a rank that counts as silent that its message will not be fetched. The rank may
    /// still run. It would wait for the fetch forever, because this rank's card still answers its
    /// probes.
    fn give_up_silent(&mut self, peer: Rank, why: Loss, id: u64) {
        if why == Loss::Silent {
            self.notify(peer, Notice::GivenUp, id);
        }
    }
}
