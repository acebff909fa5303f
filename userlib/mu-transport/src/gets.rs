//! Gets in flight.
//!
//! Each get has a chunk of the transport's memory. The unit of the source's rank puts the data
//! there, and then its session number. The data is then copied to the destination, unless that was
//! deregistered meanwhile.
//!
//! A get of a rank that is gone is given up. Its data may still arrive, so that its chunk is not
//! used again before the transport is dropped.
//!
//! One rank has half of the chunks at most. A get that takes long is *overdue*: a chunk is
//! allocated in place of its own, so that ranks which do not answer leave chunks for others. Each
//! rank's part bounds the number of these chunks too.

#![allow(unsafe_code, reason = "copies to memory that the matching layer lends")]

use std::{sync::atomic::Ordering, time::Duration};

use nicforge_driver::{
    DmaBuffer,
    runtime::{Instant, note_store},
};
use nicforge_matching::{Get, Loss, TransportError};
use nicforge_shm::SharedU64;
use nicforge_spi::{Counter, Payload, Subgroup};
use zerocopy::IntoBytes;

use crate::{Config, Error, MuTransport, fifos::Fifos, peers::Peer};

/// Offset in a chunk of the reception counter.
const COUNTER: u64 = 0;
/// Offset in a chunk of the cell that receives the session number of the source's rank.
const SESSION_CELL: u64 = 8;
/// Offset in a chunk of the descriptors of the get.
const DESCRIPTORS: u64 = 64;
/// Offset in a chunk of the data, at a page of its own.
const DATA: u64 = 4096;
/// Number of times that a get is sent before it fails.
const MAX_TRIES: u32 = 8;

/// A get in flight.
#[derive(Clone, Copy)]
struct GetInFlight {
    get: Get,
    /// Whether its destination is still registered.
    has_destination: bool,
    /// Serial number of the last question to the rank before the get was sent.
    asked: u64,
    /// Number of times that the get was sent.
    tries: u32,
    /// The time when the get was started.
    started: Instant,
    /// Whether a chunk was allocated in place of its own.
    is_overdue: bool,
}

/// Memory that receives the data of one get.
struct Chunk {
    memory: DmaBuffer,
    /// Counts the bytes of data that have not arrived.
    counter: Counter,
    /// 0 until the session number of the source's rank has arrived.
    session_cell: SharedU64,
}

impl Chunk {
    /// Allocates a chunk for gets of up to `bytes` bytes.
    fn new(subgroup: &Subgroup, bytes: usize) -> Result<Self, Error> {
        let memory = subgroup.memory(DATA as usize + bytes)?;
        let (counter, session_cell) = (Counter::new(&memory, COUNTER)?, memory.u64(SESSION_CELL)?);
        Ok(Self { memory, counter, session_cell })
    }

    /// Sends a get: two descriptors, which the rank's unit carries out. The first puts the data,
    /// and the second the session number at `session_address`. Returns false when there is no room
    /// now.
    fn send(&self, fifos: &mut Fifos, peer: &Peer, get: &Get, session_address: u64) -> Result<bool, Error> {
        let start = self.memory.iova();
        let source = Payload::memory(get.remote.offset, get.length as u64);
        let put_data = fifos.put_back(&peer.route, source, start + DATA, self.counter.address())?;
        let put_session = fifos.answer_descriptor(&peer.route, session_address, start + SESSION_CELL)?;

        let descriptors = [put_data, put_session];
        self.memory.write(DESCRIPTORS, descriptors.as_bytes())?;
        self.session_cell.store(0, Ordering::Release);
        note_store();
        self.counter.set(get.length as u64);

        let bytes = size_of_val(&descriptors) as u64;
        Ok(fifos.send_remote_get(&peer.route, start + DESCRIPTORS, bytes)?.is_some())
    }
}

/// A chunk and its get.
struct Slot {
    /// `None` when the chunk was given up, and no memory was left for another one.
    chunk: Option<Chunk>,
    /// The get in flight, if there is one.
    flight: Option<GetInFlight>,
}

/// All chunks and their gets.
pub(crate) struct Gets {
    slots: Vec<Slot>,
    /// Chunks to which data may still come.
    given_up: Vec<Chunk>,
    /// Bytes of data that fit into a chunk.
    chunk_bytes: usize,
    /// Number of gets from one rank in flight at most.
    quota: usize,
    /// Time after which a get is overdue.
    delay: Duration,
    /// Number of gets in flight.
    in_flight: usize,
}

/// State of a get.
enum Outcome {
    InFlight,
    /// All data has arrived.
    Done,
    /// Its descriptors are lost.
    Lost,
    Failed(TransportError),
}

/// Reason of the failure of a get whose rank was lost.
const GONE: &str = "the rank that a get was for is gone";

/// Returns the error of a get that is refused or has failed.
fn get_error(what: &'static str, value: u64) -> TransportError {
    TransportError { what, value }
}

impl Gets {
    /// Allocates the chunks.
    pub(crate) fn new(subgroup: &Subgroup, config: &Config) -> Result<Self, Error> {
        let slot = |_| Ok(Slot { chunk: Some(Chunk::new(subgroup, config.get_bytes)?), flight: None });
        Ok(Self {
            slots: (0..config.gets).map(slot).collect::<Result<_, Error>>()?,
            given_up: Vec::new(),
            chunk_bytes: config.get_bytes,
            quota: config.gets.div_ceil(2),
            delay: config.get_delay,
            in_flight: 0,
        })
    }

    /// Returns the bytes that one get fetches at most.
    pub(crate) fn max_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Ends all writes to a destination that is deregistered: the data of its gets will not be
    /// copied.
    pub(crate) fn withdraw(&mut self, handle: u64) {
        for flight in self.slots.iter_mut().filter_map(|slot| slot.flight.as_mut()) {
            flight.has_destination &= flight.get.local.handle != handle;
        }
    }

    /// Replaces the chunk of a slot by a new one. The old one is kept, because data may still come
    /// to it.
    #[cold]
    fn give_up(&mut self, slot: usize, subgroup: &Subgroup) {
        let fresh = Chunk::new(subgroup, self.chunk_bytes).ok();
        if let Some(chunk) = std::mem::replace(&mut self.slots[slot].chunk, fresh) {
            self.given_up.push(chunk);
        }
    }

    /// Returns a slot without a get, which has a chunk.
    fn find_free(&self) -> Option<usize> {
        self.slots.iter().position(|slot| slot.flight.is_none() && slot.chunk.is_some())
    }

    /// Allocates a chunk in place of that of an overdue get, and returns its slot. Returns `None`
    /// if no get has become overdue, or there is no memory.
    #[cold]
    fn replace_overdue(&mut self, subgroup: &Subgroup, now: Instant) -> Option<usize> {
        let delay = self.delay;
        let is_late = |flight: &&mut GetInFlight| !flight.is_overdue && flight.started + delay <= now;
        let overdue = self.slots.iter_mut().filter_map(|slot| slot.flight.as_mut()).find(is_late)?;

        let chunk = Chunk::new(subgroup, self.chunk_bytes).ok()?;
        overdue.is_overdue = true;
        self.slots.push(Slot { chunk: Some(chunk), flight: None });
        Some(self.slots.len() - 1)
    }

    /// Allocates a chunk if no slot has one. Memory may have become free since the last one was
    /// given up.
    #[inline]
    fn ensure_chunk(&mut self, subgroup: &Subgroup) {
        if self.slots.iter().all(|slot| slot.chunk.is_none())
            && let Some(slot) = self.slots.first_mut()
        {
            slot.chunk = Chunk::new(subgroup, self.chunk_bytes).ok();
        }
    }
}

impl MuTransport {
    /// Starts a get. Returns false when no chunk is free, or there is no room for descriptors.
    pub(crate) fn post_get(&mut self, get: &Get) -> Result<bool, TransportError> {
        let Some(peer) = self.peers.get(get.peer as usize) else {
            return Err(get_error("there is no such rank to get from", get.peer.into()));
        };
        let Some(link) = peer.link.filter(|link| link.is_answered && peer.is_alive()) else {
            return Err(get_error(GONE, get.peer.into()));
        };

        let destination = self.staging.destination(get.local.handle);
        let is_within = destination.is_some_and(|to| to.has(get.local_offset, get.length));
        if !(1..=self.gets.chunk_bytes).contains(&get.length) || !is_within {
            return Err(get_error("a get's destination is not within its region", get.local_offset as u64));
        }

        if peer.gets >= self.gets.quota {
            return Ok(false);
        }

        self.gets.ensure_chunk(&self.fifos.subgroup);
        let (subgroup, now) = (&self.fifos.subgroup, self.clock.now);
        let free = self.gets.find_free().or_else(|| self.gets.replace_overdue(subgroup, now));
        let Some(slot) = free.map(|index| &mut self.gets.slots[index]) else {
            // The end of a get in flight frees its chunk.
            return if self.gets.in_flight > 0 {
                Ok(false)
            } else {
                Err(get_error("no memory for gets is left", get.peer.into()))
            };
        };
        let Some(chunk) = &slot.chunk else { return Ok(false) };

        match chunk.send(&mut self.fifos, peer, get, link.session_address) {
            Ok(true) => {
                let asked = peer.questions.asked;
                slot.flight = Some(GetInFlight {
                    get: *get,
                    has_destination: true,
                    asked,
                    tries: 1,
                    started: now,
                    is_overdue: false,
                });
                self.gets.in_flight += 1;
                self.peers[get.peer as usize].gets += 1;
                self.statistics.gets += 1;
                Ok(true)
            }
            Ok(false) => Ok(false),
            // The get names an address outside the unit's, which the peer has sent.
            Err(Error::Spi(nicforge_spi::Error::Descriptor(_))) => {
                Err(get_error("a get's source makes no sense", get.remote.offset))
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Reports the completions of up to `budget` gets. Returns their number.
    pub(crate) fn finish_gets(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(u64, Result<(), TransportError>),
    ) -> Result<usize, TransportError> {
        let mut done = 0;
        for index in 0..self.gets.slots.len() {
            if done >= budget || self.gets.in_flight == 0 {
                break;
            }
            let Some(flight) = self.gets.slots[index].flight else { continue };

            let result = match self.outcome(index, &flight) {
                Outcome::InFlight => continue,
                Outcome::Lost => match self.repeat(index, &flight) {
                    Ok(()) => continue,
                    Err(error) => Err(error),
                },
                Outcome::Done => self.copy_data(index, &flight),
                Outcome::Failed(error) => {
                    self.gets.give_up(index, &self.fifos.subgroup);
                    Err(error)
                }
            };

            self.gets.slots[index].flight = None;
            self.gets.in_flight -= 1;
            self.peers[flight.get.peer as usize].gets -= 1;
            self.statistics.failed_gets += u64::from(result.is_err());
            sink(flight.get.cookie, result);
            done += 1;
        }
        Ok(done)
    }

    /// Returns the state of a get.
    fn outcome(&mut self, index: usize, flight: &GetInFlight) -> Outcome {
        let rank = flight.get.peer;
        let Some(chunk) = &self.gets.slots[index].chunk else {
            return Outcome::Failed(get_error("no memory for gets is left", rank.into()));
        };
        let peer = &self.peers[rank as usize];
        let session = peer.link.map_or(0, |link| link.session);

        match chunk.session_cell.load(Ordering::Acquire) {
            0 if !peer.is_alive() => Outcome::Failed(get_error(GONE, rank.into())),
            // The answer to a later question has come. Answers do not overtake data, so the get is
            // lost unless its session number has come since the first look at the cell.
            0 if peer.questions.answered > flight.asked => match chunk.session_cell.load(Ordering::Acquire) {
                0 => Outcome::Lost,
                _ => Outcome::InFlight,
            },
            0 => Outcome::InFlight,
            current if current != session => {
                self.end(rank, Loss::Replaced { previous: session, current });
                Outcome::Failed(get_error(GONE, rank.into()))
            }
            // The session number arrives last. Without the data, the put of the data was lost.
            _ if !chunk.counter.is_done() => Outcome::Lost,
            _ => Outcome::Done,
        }
    }

    /// Repeats a get whose descriptors are lost: they were in the other rank's FIFO for gets when a
    /// descriptor of a third rank stopped it.
    #[cold]
    fn repeat(&mut self, index: usize, flight: &GetInFlight) -> Result<(), TransportError> {
        let GetInFlight { get, tries, .. } = *flight;
        if tries >= MAX_TRIES {
            return Err(get_error("a get's source is not there", get.remote.offset));
        }

        let peer = &self.peers[get.peer as usize];
        let (Some(link), Some(chunk)) = (peer.link, &self.gets.slots[index].chunk) else {
            return Err(get_error(GONE, get.peer.into()));
        };
        match chunk.send(&mut self.fifos, peer, &get, link.session_address) {
            Ok(true) => {
                let asked = peer.questions.asked;
                self.gets.slots[index].flight = Some(GetInFlight { asked, tries: tries + 1, ..*flight });
                self.statistics.repeated_gets += 1;
                Ok(())
            }
            // A later call tries again.
            Ok(false) => Ok(()),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Copies the data of a get to its destination.
    fn copy_data(&self, index: usize, flight: &GetInFlight) -> Result<(), TransportError> {
        let destination = self.staging.destination(flight.get.local.handle);
        let (Some(destination), Some(chunk)) =
            (destination.filter(|_| flight.has_destination), &self.gets.slots[index].chunk)
        else {
            return Err(get_error("a get's destination was deregistered", flight.get.peer.into()));
        };

        // SAFETY: the destination is registered, since `Gets::withdraw` would have cleared
        // `has_destination`. The range is that of a get whose completion was not reported, so
        // nothing else accesses it.
        let copied =
            unsafe { destination.fill(flight.get.local_offset, &chunk.memory, DATA, flight.get.length) };
        copied.map_err(|error| Error::from(error).short())
    }
}
