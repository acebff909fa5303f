//! Gets in flight.
//!
//! Each get has a chunk of the transport's memory, to which the card writes the data. No peer can
//! reach a chunk. When the card reports the end of a get, its data is copied to the destination,
//! unless the destination was deregistered meanwhile.
//!
//! Each chunk has its own registration. After the card has given up a get, its data may still
//! arrive. The chunk then receives another network address before it is used again.

#![allow(unsafe_code, reason = "copies to memory that the matching layer lends")]

use nicforge_driver::{Device, DmaBuffer, HugePages};
use nicforge_matching::{Get, Rank, TransportError, losses::Health};
use nicforge_rma::{Access as Allow, Error as RmaError, Notification, Notify, Port, Region, Role, Status};

use crate::{Config, Error, ExtollTransport};

/// A get in flight.
#[derive(Clone, Copy)]
struct GetInFlight {
    rank: Rank,
    cookie: u64,
    /// Handle of its destination; `None` after the destination was deregistered.
    destination: Option<u64>,
    /// Offset of the data in the destination.
    offset: usize,
    length: usize,
}

/// A get that has ended, and the chunk that received its data.
struct EndedGet {
    chunk: u16,
    get: GetInFlight,
}

/// Memory that receives the data of one get.
struct Chunk {
    /// `None` when the chunk could not be registered again; it is not used any more.
    region: Option<Region>,
    /// The get that uses the chunk.
    get: Option<GetInFlight>,
}

/// All chunks and their gets.
pub(crate) struct Gets {
    /// Declared before the memory, so that the registrations are dropped first.
    chunks: Vec<Chunk>,
    memory: DmaBuffer,
    /// Free chunks.
    free: Vec<u16>,
    chunk_bytes: usize,
    /// Number of gets in flight.
    in_flight: usize,
    /// Whether notifications were lost, so that gets in flight may have ended without one.
    may_lack_notification: bool,
}

/// Allocates and registers the chunks.
impl Gets {
    /// Allocates the chunks that `config` asks for, and registers each of them.
    pub(crate) fn new(device: &Device, rma: &Port, config: &Config) -> Result<Self, Error> {
        let memory = device.dma_buffer(config.gets * config.get_bytes, HugePages::Try)?;
        let mut gets = Self {
            chunks: Vec::with_capacity(config.gets),
            memory,
            free: (0..config.gets as u16).rev().collect(),
            chunk_bytes: config.get_bytes,
            in_flight: 0,
            may_lack_notification: false,
        };

        for chunk in 0..config.gets as u16 {
            let region = Some(gets.register(rma, chunk)?);
            gets.chunks.push(Chunk { region, get: None });
        }
        Ok(gets)
    }

    /// Returns the offset of a chunk in the memory.
    fn offset(&self, chunk: u16) -> u64 {
        u64::from(chunk) * self.chunk_bytes as u64
    }

    /// Registers a chunk, without access for other processes.
    fn register(&self, rma: &Port, chunk: u16) -> Result<Region, RmaError> {
        rma.register_range(self.memory.iova() + self.offset(chunk), self.chunk_bytes as u64, Allow::NONE)
    }

    /// Registers a chunk under a new address. Data may still arrive under its old address.
    #[cold]
    fn renew(&mut self, rma: &Port, chunk: u16) {
        self.chunks[usize::from(chunk)].region = None;
        let region = self.register(rma, chunk).ok();
        if region.is_none() {
            self.free.retain(|free| *free != chunk);
        }
        self.chunks[usize::from(chunk)].region = region;
    }

    /// Returns the bytes that one get fetches at most.
    pub(crate) fn max_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Returns the number of gets from one rank in flight at most.
    fn quota(&self) -> usize {
        self.chunks.len().div_ceil(2)
    }

    /// Ends all writes to a destination.
    pub(crate) fn withdraw(&mut self, handle: u64) {
        for get in self.chunks.iter_mut().filter_map(|chunk| chunk.get.as_mut()) {
            if get.destination == Some(handle) {
                get.destination = None;
            }
        }
    }

    /// Returns the get whose end a notification reports, and frees its chunk.
    fn take_notified(&mut self, notification: &Notification) -> Option<EndedGet> {
        let is_target = |chunk: &Chunk| {
            chunk.region.as_ref().is_some_and(|region| region.address() == notification.address)
        };

        let chunk = self.chunks.iter().position(is_target)?;
        self.take_chunk(chunk as u16)
    }

    /// Frees a chunk, and returns the get that used it.
    fn take_chunk(&mut self, chunk: u16) -> Option<EndedGet> {
        let get = self.chunks.get_mut(usize::from(chunk))?.get.take()?;

        self.free.push(chunk);
        self.in_flight -= 1;
        Some(EndedGet { chunk, get })
    }
}

/// Description of the error of a get whose source rank is gone.
const GONE: &str = "the rank that a get was for is gone";

impl ExtollTransport {
    /// Starts a get. Returns false when no chunk is free, or the posted-write ring is full.
    pub(crate) fn post_get(&mut self, get: &Get) -> Result<bool, TransportError> {
        let refused = |what, value| Err(TransportError { what, value });

        let Some(peer) = self.peers.get(get.peer as usize) else {
            return refused("there is no such rank to get from", get.peer.into());
        };

        if peer.health != Health::Alive || peer.generation == 0 {
            return refused(GONE, get.peer.into());
        }

        let maximum = self.gets.chunk_bytes;
        let destination = self.registered.destination(get.local.handle);
        let within = destination.is_some_and(|to| to.has(get.local_offset, get.length));
        if !(1..=maximum).contains(&get.length) || !within {
            return refused("a get's destination is not within its region", get.local_offset as u64);
        }

        // One rank leaves chunks for others, whose cards may answer sooner.
        if peer.gets >= self.gets.quota() {
            return Ok(false);
        }

        // Without a free chunk, the caller tries again when a get has ended.
        let Some(chunk) = self.gets.free.pop() else {
            return if self.gets.in_flight > 0 {
                Ok(false)
            } else {
                refused("no memory for gets could be registered again", get.peer.into())
            };
        };

        let slot = &mut self.gets.chunks[usize::from(chunk)];
        let Some(to) = slot.region.as_ref().map(Region::address) else { return Ok(false) };
        let addresses = (get.remote.offset, to);

        let (rma, target) = (&mut self.rma, peer.target);
        let posted = self.velo.with_poster(|poster| {
            rma.try_get_through(poster, target, addresses, get.length as u32, Notify::REQUESTER)
        });

        if !matches!(posted, Ok(true)) {
            self.gets.free.push(chunk);
        }

        match posted {
            Ok(true) => {
                slot.get = Some(GetInFlight {
                    rank: get.peer,
                    cookie: get.cookie,
                    destination: Some(get.local.handle),
                    offset: get.local_offset,
                    length: get.length,
                });
                self.gets.in_flight += 1;
                self.peers[get.peer as usize].gets += 1;
                self.statistics.gets += 1;
                Ok(true)
            }
            Ok(false) => Ok(false),
            // The length was checked, so the range of the peer's memory exceeds the address space.
            Err(RmaError::Length { .. }) => refused("a get's source makes no sense", get.remote.offset),
            Err(error) => Err(self.fail(error.into())),
        }
    }

    /// Handles up to `budget` notifications, and reports the completions of gets. Returns the
    /// number of completions.
    pub(crate) fn finish_gets(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(u64, Result<(), TransportError>),
    ) -> Result<usize, TransportError> {
        let mut done = 0;

        for _ in 0..budget {
            match self.rma.probe() {
                Ok(Some(notification)) => {
                    if let Err(error) = self.rma.free() {
                        return Err(self.fail(error.into()));
                    }

                    // Commands of peers may notify this port as responder or completer. Such
                    // notifications are ignored.
                    if notification.role == Role::Requester
                        && let Some(EndedGet { chunk, get }) = self.gets.take_notified(&notification)
                    {
                        self.peers[get.rank as usize].gets -= 1;
                        let result = self.complete_get(chunk, get, notification.status);
                        sink(get.cookie, result);
                        done += 1;
                    }
                }
                Ok(None) => {
                    if self.gets.may_lack_notification {
                        done += self.fail_lost_gets(sink);
                    }
                    break;
                }
                Err(RmaError::Overflow { .. }) => {
                    self.statistics.overflows += 1;
                    self.gets.may_lack_notification = self.gets.in_flight > 0;
                }
                Err(error) => return Err(self.fail(error.into())),
            }
        }
        Ok(done)
    }

    /// Handles the end of a get with this status: copies the data if the get has succeeded.
    fn complete_get(&mut self, chunk: u16, get: GetInFlight, status: Status) -> Result<(), TransportError> {
        let refused = |what, value| Err(TransportError { what, value });

        let result = match status {
            Status::Done => {
                let peer = &self.peers[get.rank as usize];
                let destination = get.destination.and_then(|handle| self.registered.destination(handle));
                if self.velo.tenant_of(peer.address) != peer.generation {
                    // The data may come from the memory of the process that has the address now.
                    refused(GONE, get.rank.into())
                } else if let Some(destination) = destination {
                    let (from, memory) = (self.gets.offset(chunk), &self.gets.memory);
                    // SAFETY: the destination is registered, since `Gets::withdraw` would have
                    // removed it from the get. The range is that of a get whose completion was
                    // not reported, so nothing else accesses it.
                    unsafe { destination.fill(get.offset, memory, from, get.length) }
                        .map_err(|error| Error::from(error).to_transport_error())
                } else {
                    refused("a get's destination was deregistered", get.rank.into())
                }
            }
            Status::TimedOut => {
                self.gets.renew(&self.rma, chunk);
                refused("a rank's card did not answer a get", get.rank.into())
            }
            Status::NoReceiver => refused(GONE, get.rank.into()),
            Status::Withdrawn => refused("memory of a get was taken away", get.rank.into()),
            Status::RemoteAddress => refused("a get's source is not registered", get.rank.into()),
            _ => refused("the card did not carry out a get", get.rank.into()),
        };

        self.statistics.failed_gets += u64::from(result.is_err());
        result
    }

    /// Handles lost notifications: reports gets without one as failed, once no command is in flight
    /// and the queue is empty. Returns the number of gets.
    #[cold]
    fn fail_lost_gets(&mut self, sink: &mut dyn FnMut(u64, Result<(), TransportError>)) -> usize {
        if self.rma.in_flight() > 0 || !matches!(self.rma.probe(), Ok(None)) {
            return 0;
        }

        self.gets.may_lack_notification = false;
        let mut done = 0;
        for chunk in 0..self.gets.chunks.len() as u16 {
            if let Some(EndedGet { get, .. }) = self.gets.take_chunk(chunk) {
                self.peers[get.rank as usize].gets -= 1;
                // The card may have given up this get.
                self.gets.renew(&self.rma, chunk);
                let error =
                    TransportError { what: "the notification of a get was lost", value: get.rank.into() };
                self.statistics.failed_gets += 1;

                sink(get.cookie, Err(error));
                done += 1;
            }
        }
        done
    }
}
