//! A transport between ranks of one process, for tests and tutorials. It can imitate everything
//! that a network may do.
//!
//! Input: [`FabricConfig`]. Output: a [`FabricPort`] for each rank; each port may be in a thread of
//! its own. All ports share one lock.
//!
//! With a seed the fabric delays messages and gets by random times, and reports a lack of room now
//! and then. The messages of each pair of ranks stay in order. Time is counted in polls, so a run
//! in one thread is reproducible.

#![allow(unsafe_code, reason = "gets copy between registered memories, as a device would")]

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use nicforge_driver::runtime;

use crate::{
    Access, Get, Gone, Loss, Memory, Rank, Region, RemoteRegion, Taken, Transport, TransportError, wire,
};

/// Properties of the fabric.
#[derive(Clone, Copy, Debug)]
pub struct FabricConfig {
    /// Longest message in bytes, at least [`wire::LEAST_MESSAGE`].
    pub message_bytes: usize,
    /// Longest get in bytes.
    pub get_bytes: usize,
    /// Messages in flight from one rank to another.
    pub credits: usize,
    /// Gets in flight of one rank.
    pub gets: usize,
    /// Regions that a rank may register, at least 2.
    pub regions: usize,
    /// Whether a rank that refuses a message receives none from other ranks either, as with one
    /// receive ring for all.
    pub one_ring: bool,
    /// Seed of random delays and shortages; 0 for none.
    pub seed: u64,
}

impl Default for FabricConfig {
    /// As VELO: messages of 64 bytes, and one receive ring.
    fn default() -> Self {
        let (gets, regions) = (8, 1024);
        Self { message_bytes: 64, get_bytes: 4096, credits: 64, gets, regions, one_ring: true, seed: 0 }
    }
}

/// The fabric of all ranks.
#[derive(Clone)]
pub struct Fabric(Arc<Mutex<State>>);

/// One rank's end of the fabric. Dropping it kills the rank.
pub struct FabricPort {
    fabric: Fabric,
    rank: Rank,
    size: u32,
    config: FabricConfig,
}

struct State {
    config: FabricConfig,
    /// Number of polls so far, which is the time.
    now: u64,
    /// State of the random number generator.
    random: u64,
    ranks: Vec<RankState>,
    /// Key of the next registered region.
    next_key: u64,
}

/// State of one rank.
#[derive(Default)]
struct RankState {
    gone: bool,
    /// Messages to this rank, by source.
    inboxes: Vec<Inbox>,
    /// Dead ranks that this rank has not reported yet.
    unreported_deaths: VecDeque<Rank>,
    regions: BTreeMap<u64, Registered>,
    gets: VecDeque<DelayedGet>,
    /// The source with which the next poll begins.
    next_source: usize,
}

/// Messages from one source.
#[derive(Default)]
struct Inbox {
    messages: VecDeque<DelayedMessage>,
    /// Whether the last poll has refused the first message.
    refused: bool,
}

/// A message on its way.
struct DelayedMessage {
    /// Time of its arrival.
    arrival: u64,
    tag: u8,
    data: Vec<u8>,
}

/// A get that was started.
struct DelayedGet {
    /// Time of its end.
    arrival: u64,
    get: Get,
}

/// A registered region.
struct Registered {
    memory: Memory,
    access: Access,
}

// SAFETY: the memory is only accessed under the fabric's lock, by the contract of
// `Transport::register`.
unsafe impl Send for Registered {}

/// Offset of a region's first byte, for other ranks. It is not 0, so that a transfer which ignores
/// it fails.
const BASE: u64 = 0x1000;
/// With a seed, one of this number of calls reports a lack of room.
const CALLS_PER_SHORTAGE: u64 = 4;
/// With a seed, messages and gets are delayed by less than this number of polls.
const MAX_DELAY: u64 = 20;

impl Fabric {
    /// Creates a fabric of `size` ranks, and their ports in order.
    pub fn new(size: u32, config: FabricConfig) -> (Self, Vec<FabricPort>) {
        let config = FabricConfig { message_bytes: config.message_bytes.max(wire::LEAST_MESSAGE), ..config };
        let rank =
            || RankState { inboxes: (0..size).map(|_| Inbox::default()).collect(), ..RankState::default() };

        let ranks = (0..size).map(|_| rank()).collect();
        let state = State { config, now: 0, random: config.seed, ranks, next_key: 1 };
        let fabric = Self(Arc::new(Mutex::new(state)));
        let ports = (0..size).map(|rank| FabricPort { fabric: fabric.clone(), rank, size, config }).collect();
        (fabric, ports)
    }

    /// Kills a rank. The messages that it has sent arrive, or, with a seed, a random number of
    /// them.
    pub fn kill(&self, rank: Rank) {
        let mut state = self.lock();
        let Some(dead) = state.ranks.get_mut(rank as usize) else { return };
        if std::mem::replace(&mut dead.gone, true) {
            return;
        }

        dead.regions.clear();
        dead.gets.clear();

        for survivor in 0..state.ranks.len() {
            let length = state.ranks[survivor].inboxes[rank as usize].messages.len() as u64;
            let arriving = if state.config.seed == 0 { length } else { state.random(length + 1) };
            let survivor = &mut state.ranks[survivor];
            survivor.inboxes[rank as usize].messages.truncate(arriving as usize);
            survivor.unreported_deaths.push_back(rank);
        }
    }

    /// Locks the state of all ranks.
    fn lock(&self) -> MutexGuard<'_, State> {
        runtime::lock(&self.0)
    }
}

impl State {
    /// Returns a random number below `limit`, by the xorshift method.
    fn random(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit.max(1)
    }

    /// Returns whether a call reports a lack of room.
    fn reports_shortage(&mut self) -> bool {
        self.config.seed != 0 && self.random(CALLS_PER_SHORTAGE) == 0
    }

    /// Returns the time of arrival of a message or get that starts now.
    fn arrival(&mut self) -> u64 {
        self.now + if self.config.seed == 0 { 0 } else { self.random(MAX_DELAY) }
    }

    /// Carries out a get of `rank`: copies the data, if both ends are registered for it.
    fn carry_out_get(&mut self, rank: Rank, get: &Get) -> Result<(), TransportError> {
        let refused = |what, value| Err(TransportError { what, value });

        let length = get.length as u64;
        let offset = get.remote.offset.wrapping_sub(BASE);
        let Some(source) =
            self.ranks.get(get.peer as usize).and_then(|rank| rank.regions.get(&get.remote.key))
        else {
            return refused("the get's source is not registered", get.remote.key);
        };

        let end = offset.checked_add(length);
        if source.access != Access::Source || end.is_none_or(|end| end > source.memory.length as u64) {
            return refused("the get's source is not within its region", get.remote.offset);
        }

        let Some(target) = self.ranks[rank as usize].regions.get(&get.local.handle) else {
            return refused("the get's destination is not registered", get.local.handle);
        };
        let end = get.local_offset.checked_add(get.length);
        if target.access != Access::Destination || end.is_none_or(|end| end > target.memory.length) {
            return refused("the get's destination is not within its region", get.local_offset as u64);
        }

        let from = source.memory.start.as_ptr().wrapping_add(offset as usize);
        let to = target.memory.start.as_ptr().wrapping_add(get.local_offset);
        // SAFETY: both ranges are within registered memory. By the contract of `register` that
        // memory is valid, the source is not written, and the destination is not otherwise
        // accessed. `copy` allows them to overlap.
        unsafe { std::ptr::copy(from, to, get.length) };
        Ok(())
    }
}

// SAFETY: memory is accessed only in `State::carry_out_get`, under the lock, and only while it is
// in `regions`. `deregister`, `kill` and dropping the port remove it from there.
unsafe impl Transport for FabricPort {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn max_message_bytes(&self) -> usize {
        self.config.message_bytes
    }

    fn max_get_bytes(&self) -> usize {
        self.config.get_bytes.max(1)
    }

    fn try_send(&mut self, to: Rank, tag: u8, message: &[u8]) -> Result<bool, TransportError> {
        let mut state = self.fabric.lock();
        if message.len() > self.config.message_bytes {
            return Err(TransportError { what: "a message is too long", value: message.len() as u64 });
        }

        if state.ranks[self.rank as usize].gone || state.ranks.get(to as usize).is_none_or(|rank| rank.gone) {
            return Ok(true);
        }

        if state.reports_shortage() {
            return Ok(false);
        }

        let arrival = state.arrival();
        let inbox = &mut state.ranks[to as usize].inboxes[self.rank as usize].messages;
        if inbox.len() >= self.config.credits {
            return Ok(false);
        }

        // A message arrives after those before it.
        let arrival = inbox.back().map_or(arrival, |before| arrival.max(before.arrival));
        inbox.push_back(DelayedMessage { arrival, tag, data: message.to_vec() });
        Ok(true)
    }

    fn poll(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Rank, u8, &[u8]) -> Taken,
    ) -> Result<usize, TransportError> {
        let mut state = self.fabric.lock();
        state.now += 1;
        let (now, one_ring) = (state.now, state.config.one_ring);
        let rank = &mut state.ranks[self.rank as usize];
        let sources = rank.inboxes.len();

        let mut count = 0;
        for step in 0..sources {
            let source = (rank.next_source + step) % sources;

            let inbox = &mut rank.inboxes[source];
            inbox.refused = false;

            while count < budget {
                let Some(message) = inbox.messages.front() else { break };
                if message.arrival > now {
                    break;
                }
                if sink(source as Rank, message.tag, &message.data) == Taken::NotNow {
                    inbox.refused = true;
                    break;
                }
                inbox.messages.pop_front();
                count += 1;
            }

            if inbox.refused && one_ring {
                // A refused message stays at the head of the ring.
                rank.next_source = source;
                return Ok(count);
            }
        }

        rank.next_source = (rank.next_source + 1) % sources;
        Ok(count)
    }

    unsafe fn register(&mut self, memory: Memory, access: Access) -> Result<Option<Region>, TransportError> {
        let mut state = self.fabric.lock();
        // The last region is reserved for a destination.
        let limit = self.config.regions.max(2) - usize::from(access == Access::Source);
        if state.reports_shortage() || state.ranks[self.rank as usize].regions.len() >= limit {
            return Ok(None);
        }

        let key = state.next_key;
        state.next_key += 1;
        let rank = &mut state.ranks[self.rank as usize];
        if !rank.gone {
            rank.regions.insert(key, Registered { memory, access });
        }

        Ok(Some(Region { handle: key, remote: RemoteRegion { key, offset: BASE } }))
    }

    fn deregister(&mut self, region: Region) {
        self.fabric.lock().ranks[self.rank as usize].regions.remove(&region.handle);
    }

    fn start_get(&mut self, get: &Get) -> Result<bool, TransportError> {
        let mut state = self.fabric.lock();
        if state.reports_shortage() || state.ranks[self.rank as usize].gets.len() >= self.config.gets {
            return Ok(false);
        }

        let arrival = state.arrival();
        state.ranks[self.rank as usize].gets.push_back(DelayedGet { arrival, get: *get });
        Ok(true)
    }

    fn poll_gets(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(u64, Result<(), TransportError>),
    ) -> Result<usize, TransportError> {
        let mut state = self.fabric.lock();
        let (now, mut done) = (state.now, 0);
        for _ in 0..state.ranks[self.rank as usize].gets.len() {
            let Some(delayed) = state.ranks[self.rank as usize].gets.pop_front() else { break };
            if delayed.arrival > now || done >= budget {
                state.ranks[self.rank as usize].gets.push_back(delayed);
                continue;
            }

            done += 1;
            let result = state.carry_out_get(self.rank, &delayed.get);
            sink(delayed.get.cookie, result);
        }
        Ok(done)
    }

    fn poll_gone(&mut self) -> Option<Gone> {
        let mut state = self.fabric.lock();
        let rank = &mut state.ranks[self.rank as usize];
        let &dead = rank.unreported_deaths.front()?;

        let inbox = &mut rank.inboxes[dead as usize];
        if !inbox.messages.is_empty() && !inbox.refused {
            return None;
        }

        inbox.messages.clear();
        rank.unreported_deaths.pop_front().map(|rank| Gone { rank, why: Loss::Ended })
    }
}

impl Drop for FabricPort {
    fn drop(&mut self) {
        self.fabric.kill(self.rank);
    }
}
