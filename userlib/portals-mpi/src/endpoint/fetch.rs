//! Data that the receiver asks for, after a receive has matched their header.
//!
//! - The data of a long message are fetched by a get. The sender needs no call for it.
//! - For data that found no place, and for data that were damaged, the receiver offers its buffer
//!   to a put that only the sender can make, and sends a request. The sender puts the data again.

use std::collections::VecDeque;

use nicforge_matching::Rank;
use nicforge_portals::{Event, Failure, MemoryDescriptor};

use super::{
    Endpoint,
    card::{IS_THERE, REQUEST},
    notices::Notice,
    requests::State,
};
use crate::{Buffer, Error, Loss, config::MAX_FETCHES, pool::Handle};

/// Attempts to fetch the data of a message, which may be damaged each time.
const ATTEMPTS: u32 = 8;

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
    /// Nothing was done.
    New,
    /// The buffer is offered, but the sender was not asked.
    Offered(MemoryDescriptor),
    /// The sender was asked to put into the offered buffer.
    Requested(MemoryDescriptor),
    /// The get has left.
    Getting,
}

/// A message whose data are fetched.
#[derive(Debug)]
struct Fetch {
    receive: Handle,
    peer: Rank,
    id: u64,
    length: u64,
    method: FetchMethod,
    attempts: u32,
    progress: Progress,
    /// The sender was asked whether it has the message.
    is_asked: bool,
}

/// The fetches of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    /// Those that wait for room.
    waiting: VecDeque<Fetch>,
    /// Those in progress.
    running: Vec<Fetch>,
    /// Buffers that the card may still use, because an operation of a process that is gone is in
    /// progress.
    kept: Vec<Buffer>,
}

impl Fetches {
    /// Keeps a buffer until the endpoint is dropped.
    pub(super) fn keep(&mut self, buffer: Option<Buffer>) {
        self.kept.extend(buffer);
    }
}

impl Endpoint {
    /// Fetches the data of a message into a receive's buffer.
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
        let progress = Progress::New;
        let (attempts, is_asked) = (0, false);
        self.fetches.waiting.push_back(Fetch {
            receive,
            peer,
            id,
            length,
            method,
            attempts,
            progress,
            is_asked,
        });
        self.start_fetches()
    }

    /// Starts fetches that wait, as far as there is room.
    pub(super) fn start_fetches(&mut self) -> Result<(), Error> {
        while self.fetches.running.len() < MAX_FETCHES as usize
            && let Some(mut fetch) = self.fetches.waiting.pop_front()
        {
            match self.advance(&mut fetch) {
                Ok(true) => self.fetches.running.push(fetch),
                no_room_or_error => {
                    self.fetches.waiting.push_front(fetch);
                    return no_room_or_error.map(drop);
                }
            }
        }
        Ok(())
    }

    /// Takes the steps of a fetch. Returns `false` if the card has no room.
    fn advance(&mut self, fetch: &mut Fetch) -> Result<bool, Error> {
        let Some(process) = self.peers.get(fetch.peer).map(|peer| peer.process) else { return Ok(true) };
        let Some(entry) = self.requests.get(fetch.receive) else { return Ok(true) };
        let length = fetch.length.min(entry.buffer.len() as u64);

        if fetch.method == FetchMethod::Get {
            let is_started = self.card.get(&entry.buffer, length, process, fetch.id)?;
            if is_started {
                fetch.progress = Progress::Getting;
            }
            return Ok(is_started);
        }

        if let Progress::New = fetch.progress {
            let user_pointer = fetch.receive.to_bits();
            match self.card.offer(&entry.buffer, process, fetch.id, user_pointer)? {
                Some(descriptor) => fetch.progress = Progress::Offered(descriptor),
                None => return Ok(false),
            }
        }
        if let Progress::Offered(descriptor) = &fetch.progress {
            if !self.card.control(process, REQUEST, fetch.id)? {
                return Ok(false);
            }
            fetch.progress = Progress::Requested(descriptor.clone());
        }
        Ok(true)
    }

    /// Handles the reply to a get.
    pub(super) fn replied(&mut self, from: Rank, event: &Event) -> Result<(), Error> {
        let is_this = |fetch: &Fetch| {
            fetch.peer == from && fetch.id == event.message.match_bits && fetch.method == FetchMethod::Get
        };
        match self.fetches.running.iter().position(is_this) {
            None => Ok(()),
            Some(position) => {
                self.statistics.fetched += 1;
                self.end_fetch(position, event)
            }
        }
    }

    /// Handles a put into an offered buffer.
    pub(super) fn repeated(&mut self, receive: Handle, event: &Event) -> Result<(), Error> {
        match self.fetches.running.iter().position(|fetch| fetch.receive == receive) {
            None => Ok(()),
            Some(position) => {
                self.statistics.repeated += 1;
                self.end_fetch(position, event)
            }
        }
    }

    /// Ends a fetch, or repeats it if the data were damaged.
    fn end_fetch(&mut self, position: usize, event: &Event) -> Result<(), Error> {
        let mut fetch = self.fetches.running.swap_remove(position);
        let Fetch { receive, peer, id, length, method, .. } = fetch;
        fetch.attempts += 1;

        match event.failure {
            None => {
                self.end_wait_for(peer);
                self.received(receive, length, event.message.moved.into());
                Ok(())
            }
            Some(Failure::Node) => {
                self.end_wait_for(peer);
                let why = Loss::NodeEnded;
                self.fail(receive, Error::PeerGone { peer, why });
                self.lose(peer, why)
            }
            // The failed get has ended the exposure of the sender's memory. A request can be
            // repeated.
            Some(_) if method == FetchMethod::Request && fetch.attempts < ATTEMPTS => {
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

    /// Ends a fetch whose message the sender has ended. A put that has begun continues.
    pub(super) fn message_has_ended(&mut self, from: Rank, id: u64) -> Result<(), Error> {
        let is_this = |fetch: &Fetch| fetch.peer == from && fetch.id == id;
        let Some(position) = self.fetches.running.iter().position(is_this) else { return Ok(()) };
        let fetch = &self.fetches.running[position];
        let receive = fetch.receive;
        match &fetch.progress {
            Progress::Requested(descriptor) if self.card.unlink(descriptor)? => {}
            // The sender's card has dropped the get. Only a sender that breaks the protocol could
            // still reply: the buffer is not used again.
            Progress::Getting if fetch.is_asked => {
                self.fetches.keep(self.requests.get_mut(receive).map(|entry| entry.buffer.take()));
            }
            _ => return Ok(()),
        }

        self.fetches.running.swap_remove(position);
        self.end_wait_for(from);
        self.fail(receive, Error::NoLongerThere { peer: from });
        Ok(())
    }

    /// Asks a sender once for each of its messages that this rank gets, whether it is there.
    pub(super) fn ask_for_messages(&mut self, from: Rank) -> Result<(), Error> {
        let Some(process) = self.peers.get(from).map(|peer| peer.process) else { return Ok(()) };
        let is_new = |fetch: &&mut Fetch| {
            fetch.peer == from && !fetch.is_asked && matches!(fetch.progress, Progress::Getting)
        };
        for fetch in self.fetches.running.iter_mut().filter(is_new) {
            // Without room the next look asks.
            if !self.card.control(process, IS_THERE, fetch.id)? {
                break;
            }
            fetch.is_asked = true;
        }
        Ok(())
    }

    fn end_wait_for(&mut self, peer: Rank) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.awaited = peer.awaited.saturating_sub(1);
        }
    }

    /// Ends the fetches from a rank that is gone. Goes on after an error, and returns the first
    /// one.
    pub(super) fn lose_fetches(&mut self, rank: Rank, peer_gone: Error) -> Result<(), Error> {
        let of_rank = |fetch: &mut Fetch| fetch.peer == rank;
        let mut lost: Vec<Fetch> = self.fetches.running.extract_if(.., of_rank).collect();
        let (waiting, others): (VecDeque<_>, _) =
            self.fetches.waiting.drain(..).partition(|fetch| fetch.peer == rank);
        self.fetches.waiting = others;
        lost.extend(waiting);

        let mut result = Ok(());
        for Fetch { receive, id, progress, .. } in lost {
            let is_free = match progress {
                Progress::New => Ok(true),
                Progress::Getting => Ok(false),
                Progress::Offered(descriptor) | Progress::Requested(descriptor) => {
                    self.card.unlink(&descriptor)
                }
            };
            if is_free != Ok(true) {
                self.fetches.keep(self.requests.get_mut(receive).map(|entry| entry.buffer.take()));
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

    /// Notifies a silent rank that its message is not fetched. The rank may still run, and would
    /// wait for the fetch forever, because this rank continues to answer its questions.
    fn give_up_silent(&mut self, peer: Rank, why: Loss, id: u64) {
        if why == Loss::Silent {
            self.notify(peer, Notice::GivenUp, id);
        }
    }
}
