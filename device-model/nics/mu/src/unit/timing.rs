//! The time that the engines take, in cycles of the Message Unit's clock.
//!
//! An injection engine gets 32 bytes from memory in a cycle, and one more chunk for a payload that
//! is not aligned (section III.C of the paper). A reception engine takes 4 bytes from its network
//! FIFO in a cycle (section III.D). Each engine does one packet after another. Without a clock, all
//! of this takes no time.
//!
//! The first packet of a message comes a latency after the fetch of its descriptor: see
//! [`Times::latency`]. A bandwidth of memory is shared by all engines, for reads and writes.
//!
//! In: packets. Out: the engines that are idle, and when others are. May touch: its own state.

use nicforge_core::{context::Context, time::Nanos};
use nicforge_hwi::mu_packet::{CHUNK, HEADER, MAX_PAYLOAD, fifo_map, reception_fifo};
use nicforge_kit::{Clock, Server, retry};

use crate::config::Times;

/// Bytes that a reception engine takes in a cycle.
const RECEPTION_BYTES: u64 = 4;

/// The engines of a node.
#[derive(Debug)]
pub(crate) struct Timing {
    clock: Clock,
    times: Times,
    /// The memory that all engines share.
    memory: Server,
    injection: [Server; fifo_map::COUNT as usize],
    reception: [Server; reception_fifo::COUNT as usize],
    /// Time at which each reception engine has taken its first packet, once it has begun.
    reception_ends: [Option<Nanos>; reception_fifo::COUNT as usize],
}

impl Timing {
    /// Returns idle engines.
    pub(crate) fn new(clock: Clock, times: Times) -> Self {
        Self {
            clock,
            times,
            memory: Server::default(),
            injection: Default::default(),
            reception: Default::default(),
            reception_ends: Default::default(),
        }
    }

    /// Returns idle engines with the same clock and times.
    pub(crate) fn after_reset(&self) -> Self {
        Self::new(self.clock, self.times)
    }

    /// Returns whether all of the engines' work takes no time.
    #[inline]
    pub(crate) fn is_instant(&self) -> bool {
        self.clock.is_instant() && self.times.latency == 0
    }

    /// Returns whether engines take time for packets.
    #[inline]
    pub(crate) fn has_clock(&self) -> bool {
        !self.clock.is_instant()
    }

    /// Returns the time from which a message can be sent whose descriptor is fetched now.
    #[inline]
    pub(crate) fn ready_time(&self, now: Nanos) -> Nanos {
        if self.times.latency == 0 { Nanos::ZERO } else { now.after(self.times.latency) }
    }

    /// Returns those of these injection engines that are idle. Asks for a step at the time when
    /// each of the others becomes idle.
    #[inline]
    pub(crate) fn idle_engines(&self, context: &mut Context<'_>, engines: u16) -> u16 {
        if self.clock.is_instant() { engines } else { self.idle_by_clock(context, engines) }
    }

    /// Does what [`Timing::idle_engines`] does, with a clock.
    fn idle_by_clock(&self, context: &mut Context<'_>, engines: u16) -> u16 {
        if !retry::is_due(context, self.memory.idle_at()) {
            return 0;
        }
        let is_chosen = |engine: &u8| engines >> engine & 1 == 1;
        (0..fifo_map::COUNT as u8).filter(is_chosen).fold(0, |idle, engine| {
            let is_idle = retry::is_due(context, self.injection[usize::from(engine)].idle_at());
            idle | u16::from(is_idle) << engine
        })
    }

    /// Keeps an injection engine and the memory busy for the time that a payload's packets take.
    #[inline]
    pub(crate) fn charge_injection(&mut self, now: Nanos, engine: u8, address: u64, bytes: u64) {
        if self.clock.is_instant() {
            return;
        }

        let packets = bytes.div_ceil(MAX_PAYLOAD as u64).max(1);
        let is_aligned = address.is_multiple_of(CHUNK as u64) || bytes == 0;
        // Each packet has a chunk of header, and one more chunk of payload if that is not aligned.
        let chunks = bytes.div_ceil(CHUNK as u64) + packets * (1 + u64::from(!is_aligned));
        if let Some(server) = self.injection.get_mut(usize::from(engine)) {
            server.work(now, self.clock, chunks as u32);
        }
        self.memory.work(now, self.times.memory, bytes as u32);
    }

    /// Lets a reception engine take its first packet, which has `bytes` bytes of payload. Returns
    /// whether the engine has the whole packet now. If not, asks for a step at the time when it
    /// has.
    #[inline]
    pub(crate) fn take_first(&mut self, context: &mut Context<'_>, engine: u8, bytes: u64) -> bool {
        self.clock.is_instant() || self.take_by_clock(context, engine, bytes)
    }

    /// Does what [`Timing::take_first`] does, with a clock.
    fn take_by_clock(&mut self, context: &mut Context<'_>, engine: u8, bytes: u64) -> bool {
        let Some(end) = self.reception_ends.get_mut(usize::from(engine)) else { return true };
        let end = end.get_or_insert_with(|| {
            let packets = bytes.div_ceil(MAX_PAYLOAD as u64).max(1);
            let cycles = (bytes + packets * HEADER as u64) / RECEPTION_BYTES;
            let server = &mut self.reception[usize::from(engine)];
            server.work(context.now(), self.clock, cycles as u32);
            self.memory.work(context.now(), self.times.memory, bytes as u32);
            server.idle_at().max(self.memory.idle_at())
        });
        retry::is_due(context, *end)
    }

    /// Records that a reception engine's first packet has left its network FIFO.
    #[inline]
    pub(crate) fn end_first(&mut self, engine: u8) {
        if let Some(end) = self.reception_ends.get_mut(usize::from(engine)) {
            *end = None;
        }
    }
}
