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
    memory: Server,
    injection: [Server; fifo_map::COUNT as usize],
    reception: [Server; reception_fifo::COUNT as usize],
    /// End of the reception of each engine's first packet.
    due: [Option<Nanos>; reception_fifo::COUNT as usize],
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
            due: Default::default(),
        }
    }

    /// Returns the state of power-on with the same clock.
    pub(crate) fn restarted(&self) -> Self {
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

    /// Returns the time from which the message of a descriptor can be sent that is fetched now.
    #[inline]
    pub(crate) fn fetched(&self, now: Nanos) -> Nanos {
        if self.times.latency == 0 { Nanos::ZERO } else { now.after(self.times.latency) }
    }

    /// Returns those of these injection engines that are idle, and asks for a step when another one
    /// is.
    #[inline]
    pub(crate) fn idle(&self, context: &mut Context<'_>, engines: u16) -> u16 {
        if self.clock.is_instant() { engines } else { self.idle_at(context, engines) }
    }

    fn idle_at(&self, context: &mut Context<'_>, engines: u16) -> u16 {
        if !retry::is_due(context, self.memory.idle_at()) {
            return 0;
        }
        let is_chosen = |engine: &u8| engines >> engine & 1 == 1;
        (0..fifo_map::COUNT as u8).filter(is_chosen).fold(0, |idle, engine| {
            let is_idle = retry::is_due(context, self.injection[usize::from(engine)].idle_at());
            idle | u16::from(is_idle) << engine
        })
    }

    /// Charges an injection engine with the packets of a payload.
    #[inline]
    pub(crate) fn inject(&mut self, now: Nanos, engine: u8, address: u64, bytes: u64) {
        if self.clock.is_instant() {
            return;
        }

        let packets = bytes.div_ceil(MAX_PAYLOAD as u64).max(1);
        let is_aligned = address.is_multiple_of(CHUNK as u64) || bytes == 0;
        let chunks = bytes.div_ceil(CHUNK as u64) + packets * (1 + u64::from(!is_aligned));
        if let Some(server) = self.injection.get_mut(usize::from(engine)) {
            server.work(now, self.clock, chunks as u32);
        }
        self.memory.work(now, self.times.memory, bytes as u32);
    }

    /// Lets a reception engine take its first packet, which has `bytes` bytes of payload. Returns
    /// whether it has it. If not, asks for a step when it has.
    #[inline]
    pub(crate) fn receive(&mut self, context: &mut Context<'_>, engine: u8, bytes: u64) -> bool {
        self.clock.is_instant() || self.receive_by_clock(context, engine, bytes)
    }

    fn receive_by_clock(&mut self, context: &mut Context<'_>, engine: u8, bytes: u64) -> bool {
        let Some(due) = self.due.get_mut(usize::from(engine)) else { return true };
        let due = due.get_or_insert_with(|| {
            let packets = bytes.div_ceil(MAX_PAYLOAD as u64).max(1);
            let cycles = (bytes + packets * HEADER as u64) / RECEPTION_BYTES;
            let server = &mut self.reception[usize::from(engine)];
            server.work(context.now(), self.clock, cycles as u32);
            self.memory.work(context.now(), self.times.memory, bytes as u32);
            server.idle_at().max(self.memory.idle_at())
        });
        retry::is_due(context, *due)
    }

    /// Records that a reception engine's first packet is gone.
    #[inline]
    pub(crate) fn taken(&mut self, engine: u8) {
        if let Some(due) = self.due.get_mut(usize::from(engine)) {
            *due = None;
        }
    }
}
