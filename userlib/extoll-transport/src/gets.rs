//! Gets under way.
//!
//! Each has a chunk of the transport's memory, to which the card brings the data; nobody else can reach it. When the card says that a get has
//! ended, its data are copied to where they belong, unless that was deregistered meanwhile.
//!
//! Each chunk is registered for itself: one to which data may still come, because the card has only given up waiting for them, gets another network
//! address before it is used again.

#![allow(unsafe_code, reason = "copies to memory that the matching layer lends")]

use nicforge_driver::{Device, DmaBuffer, HugePages};
use nicforge_matching::{Get, Rank, TransportError};
use nicforge_rma::{Access as Allow, Error as RmaError, Notification, Notify, Port, Region, Role, Status};

use crate::{Config, Error, ExtollTransport, peers::Health};

/// A get under way.
#[derive(Clone, Copy)]
struct Flight {
    rank: Rank,
    cookie: u64,
    /// Handle of its destination; `None` when that was deregistered.
    destination: Option<u64>,
    offset: usize,
    length: usize,
}

/// Where data come to.
struct Chunk {
    /// `None` when it could not be registered again: it is not used any more.
    region: Option<Region>,
    flight: Option<Flight>,
}

/// All of them.
pub(crate) struct Gets {
    /// Before the memory, so that they are taken back first.
    chunks: Vec<Chunk>,
    memory: DmaBuffer,
    /// Chunks that are free.
    free: Vec<u16>,
    chunk_bytes: usize,
    /// Gets under way.
    under_way: usize,
    /// Notifications were lost: what is under way may have ended without one.
    lost: bool,
}

impl Gets {
    pub(crate) fn new(device: &Device, rma: &Port, config: &Config) -> Result<Self, Error> {
        let memory = device.dma_buffer(config.gets * config.get_bytes, HugePages::Try)?;
        let mut gets = Self {
            chunks: Vec::with_capacity(config.gets),
            memory,
            free: (0..config.gets as u16).rev().collect(),
            chunk_bytes: config.get_bytes,
            under_way: 0,
            lost: false,
        };
        for chunk in 0..config.gets as u16 {
            let region = Some(gets.register(rma, chunk)?);
            gets.chunks.push(Chunk { region, flight: None });
        }
        Ok(gets)
    }

    /// Where a chunk begins in the memory.
    fn offset(&self, chunk: u16) -> u64 {
        u64::from(chunk) * self.chunk_bytes as u64
    }

    /// Registers a chunk, for this side of transfers alone.
    fn register(&self, rma: &Port, chunk: u16) -> Result<Region, RmaError> {
        rma.register_range(self.memory.iova() + self.offset(chunk), self.chunk_bytes as u64, Allow::NONE)
    }

    /// Registers a chunk anew, to which something may still come under its old address.
    #[cold]
    fn renew(&mut self, rma: &Port, chunk: u16) {
        self.chunks[usize::from(chunk)].region = None;
        let region = self.register(rma, chunk).ok();
        if region.is_none() {
            self.free.retain(|free| *free != chunk);
        }
        self.chunks[usize::from(chunk)].region = region;
    }

    /// The most that one get brings.
    pub(crate) fn most(&self) -> usize {
        self.chunk_bytes
    }

    /// A destination is not to be written any more.
    pub(crate) fn withdraw(&mut self, handle: u64) {
        for flight in self.chunks.iter_mut().filter_map(|chunk| chunk.flight.as_mut()) {
            if flight.destination == Some(handle) {
                flight.destination = None;
            }
        }
    }

    /// The get that a notification is about.
    fn take(&mut self, told: &Notification) -> Option<(u16, Flight)> {
        let here =
            |chunk: &Chunk| chunk.region.as_ref().is_some_and(|region| region.address() == told.address);
        let chunk = self.chunks.iter().position(here)?;
        self.take_chunk(chunk as u16)
    }

    fn take_chunk(&mut self, chunk: u16) -> Option<(u16, Flight)> {
        let flight = self.chunks.get_mut(usize::from(chunk))?.flight.take()?;
        self.free.push(chunk);
        self.under_way -= 1;
        Some((chunk, flight))
    }
}

const GONE: &str = "the rank that a get was for is gone";

impl ExtollTransport {
    pub(crate) fn start(&mut self, get: &Get) -> Result<bool, TransportError> {
        let refused = |what, value| Err(TransportError { what, value });
        let Some(peer) = self.peers.get(get.peer as usize) else {
            return refused("there is no such rank to get from", get.peer.into());
        };
        if peer.health != Health::Alive || peer.tenant == 0 {
            return refused(GONE, get.peer.into());
        }
        let most = self.gets.chunk_bytes;
        let within =
            |length: usize| get.local_offset.checked_add(get.length).is_some_and(|end| end <= length);
        if !(1..=most).contains(&get.length)
            || !self.registered.destination(get.local.handle).is_some_and(|place| within(place.length))
        {
            return refused("a get's destination is not within its region", get.local_offset as u64);
        }
        let Some(chunk) = self.gets.free.pop() else {
            return if self.gets.under_way > 0 {
                Ok(false)
            } else {
                refused("no memory for gets could be registered again", get.peer.into())
            };
        };
        let place = &mut self.gets.chunks[usize::from(chunk)];
        let Some(to) = place.region.as_ref().map(Region::address) else { return Ok(false) };
        let ends = (get.remote.offset, to);
        let (rma, target) = (&mut self.rma, peer.target);
        let posted = self.velo.with_poster(|poster| {
            rma.try_get_through(poster, target, ends, get.length as u32, Notify::REQUESTER)
        });
        if !matches!(posted, Ok(true)) {
            self.gets.free.push(chunk);
        }
        match posted {
            Ok(true) => {
                place.flight = Some(Flight {
                    rank: get.peer,
                    cookie: get.cookie,
                    destination: Some(get.local.handle),
                    offset: get.local_offset,
                    length: get.length,
                });
                self.gets.under_way += 1;
                self.statistics.gets += 1;
                Ok(true)
            }
            Ok(false) => Ok(false),
            // What the peer gave as its address.
            Err(RmaError::Length { .. }) => refused("a get's source makes no sense", get.remote.offset),
            Err(error) => Err(self.fail(error.into())),
        }
    }

    pub(crate) fn finish_gets(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(u64, Result<(), TransportError>),
    ) -> Result<usize, TransportError> {
        let mut done = 0;
        for _ in 0..budget {
            match self.rma.probe() {
                Ok(Some(told)) => {
                    if let Err(error) = self.rma.free() {
                        return Err(self.fail(error.into()));
                    }
                    // Whoever gets from or puts to us may have notifications come here. Nothing depends on them.
                    if told.role == Role::Requester
                        && let Some((chunk, flight)) = self.gets.take(&told)
                    {
                        let result = self.bring(chunk, flight, told.status);
                        sink(flight.cookie, result);
                        done += 1;
                    }
                }
                Ok(None) => {
                    if self.gets.lost {
                        done += self.give_up(sink);
                    }
                    break;
                }
                Err(RmaError::Overflow { .. }) => {
                    self.statistics.overflows += 1;
                    self.gets.lost = self.gets.under_way > 0;
                }
                Err(error) => return Err(self.fail(error.into())),
            }
        }
        Ok(done)
    }

    /// A get has ended: its data are copied, if they are what was asked for.
    fn bring(&mut self, chunk: u16, flight: Flight, status: Status) -> Result<(), TransportError> {
        let refused = |what, value| Err(TransportError { what, value });
        let result = match status {
            Status::Done => {
                let peer = &self.peers[flight.rank as usize];
                let destination = flight.destination.and_then(|handle| self.registered.destination(handle));
                if self.velo.tenant_of(peer.address) != peer.tenant {
                    // It may have been a successor's memory.
                    refused(GONE, flight.rank.into())
                } else if let Some(destination) = destination {
                    let (from, memory) = (self.gets.offset(chunk), &self.gets.memory);
                    // SAFETY: the destination is registered: `Gets::withdraw` would have taken it from the flight. The range is that of
                    // a get that has not been completed, which nobody else accesses.
                    unsafe { destination.fill(flight.offset, memory, from, flight.length) }
                        .map_err(|error| error.short())
                } else {
                    refused("a get's destination was deregistered", flight.rank.into())
                }
            }
            Status::TimedOut => {
                self.gets.renew(&self.rma, chunk);
                refused("a rank's card did not answer a get", flight.rank.into())
            }
            Status::NoReceiver => refused(GONE, flight.rank.into()),
            Status::Withdrawn => refused("memory of a get was taken away", flight.rank.into()),
            Status::RemoteAddress => refused("a get's source is not registered", flight.rank.into()),
            _ => refused("the card did not carry out a get", flight.rank.into()),
        };
        self.statistics.failed_gets += u64::from(result.is_err());
        result
    }

    /// Notifications were lost. When nothing is under way any more, what has not been told of has ended, nobody knows how.
    #[cold]
    fn give_up(&mut self, sink: &mut dyn FnMut(u64, Result<(), TransportError>)) -> usize {
        if self.rma.under_way() > 0 || !matches!(self.rma.probe(), Ok(None)) {
            return 0;
        }
        self.gets.lost = false;
        let mut done = 0;
        for chunk in 0..self.gets.chunks.len() as u16 {
            if let Some((_, flight)) = self.gets.take_chunk(chunk) {
                // It may be one that the card has given up.
                self.gets.renew(&self.rma, chunk);
                let error =
                    TransportError { what: "the notification of a get was lost", value: flight.rank.into() };
                self.statistics.failed_gets += 1;
                sink(flight.cookie, Err(error));
                done += 1;
            }
        }
        done
    }
}
