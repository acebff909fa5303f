//! The router of a node: a part that a NIC's device owns.
//!
//! The device puts packets into injection FIFOs, calls [`Router::step`] in each of its steps, and
//! takes packets out of reception FIFOs. The router moves packets from links and injection FIFOs to
//! links and reception FIFOs. A [`Policy`] decides where each one goes.
//!
//! ```text
//!   injection FIFOs ──┐                          ┌── reception FIFOs
//!                     ├── policy ── arbitration ─┤
//!   virtual channels ─┘   a packet   an output   └── virtual channels
//!   of the links in                                  of the links out
//! ```
//!
//! # Rules
//!
//! - The buffers of packets from the network are the fabric's lanes. The router sees the first
//!   packet of each lane, as soon as its head has arrived. A virtual output queue is a lane of its
//!   own: a policy that wants some spreads its packets over several virtual channels, and keeps the
//!   packets of a flow on one.
//! - A packet is forwarded when the wire of its output is idle, and the next buffer has room for a
//!   packet of the longest kind. Short packets thus cannot keep out long ones.
//! - Each time a wire falls idle, the output chooses among the inputs that want it. The highest
//!   priority goes first. Inputs of a priority take turns. Between two injected packets, as many
//!   packets from links are sent as the ratio says, while both are waiting.
//! - On a virtual channel with the bubble rule, each packet takes a slot of the longest kind. A
//!   packet that enters a ring needs two free slots, and one that moves along it needs one.
//! - An injection FIFO has one packet in service at a time.
//! - A packet is delivered when its tail has arrived and its reception FIFO has room. Until then it
//!   stays in its lane, and its sender runs out of credits. Nothing is dropped, except for packets
//!   whose route word has no meaning.
//! - A packet with several targets stays in its input until the last of them has a copy. Copies to
//!   links leave when the head has arrived; those for the device are complete when the tail has.
//! - Nothing allocates for a packet. The work of a hop does not depend on the size of the network.
//!
//! # What the device does
//!
//! 1. It takes packets from the reception FIFOs ([`Router::take`]) and puts new ones into the
//!    injection FIFOs ([`Router::inject`]).
//! 2. It calls [`Router::step`], and passes [`Outcome::wake`] to
//!    [`nicforge_core::context::Context::wake_at`].
//! 3. It repeats that after each event of the fabric, and whenever it has done one of the first.
//!
//! The function is woken when a place in an injection FIFO becomes free.
//!
//! | module | contents |
//! | --- | --- |
//! | `policy` | the decision where a packet goes |
//! | `policies` | policies for tori and meshes, and for tables |
//! | `spec` | description of a router, and its errors |
//! | `plan` | the part that routers of one description share |
//! | `requests`, `outputs` | inputs that want an output, and the choice among them |
//! | `links` | the links and packets that a router needs |
//! | `heads` | the first packets of the inputs, with the decisions on them |
//! | `grant` | room behind an output, and the sending |
//! | `fixed` | the sending of packets with one exit, which is shorter |
//! | `slots` | places on rings with the bubble rule |
//! | `step` | the work of a step |
//! | `rows` | packets that follow each other over links that take no time |
//! | `fifo`, `counters` | injection and reception FIFOs; what a router counts |

mod counters;
pub(crate) mod fifo;
mod fixed;
mod grant;
mod heads;
mod links;
mod outputs;
mod plan;
pub mod policies;
mod policy;
mod requests;
mod rows;
mod slots;
mod spec;
mod step;

use std::sync::Arc;

use nicforge_core::{fabric::Packet, time::Nanos};
use thiserror::Error;

pub use self::{
    counters::{InputCounters, Level, OutputCounters, RouterCounters},
    fifo::FifoRoom,
    links::{LinkInput, Links, RoutedPacket},
    plan::RouterPlan,
    policy::{Candidates, Decision, Exit, Policy, Room, Source, Targets},
    rows::{Bypass, Row},
    spec::{FifoSpec, MAX_FIFOS, MAX_INPUTS, MAX_PORTS, PRIORITIES, RouterError, RouterSpec},
};
use self::{
    fifo::{InjectionFifo, ReceptionFifo},
    heads::Heads,
    outputs::Outputs,
    plan::Plan,
    requests::bits,
};

/// Result of [`Router::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Outcome {
    /// Number of packets moved.
    pub moved: u32,
    /// The budget is spent, and more packets can possibly move.
    pub has_more: bool,
    /// Time at which the router has to run again even without an event of the fabric, or
    /// [`Nanos::NEVER`].
    pub wake: Nanos,
}

/// Reason why an injection FIFO does not take a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InjectionRefusal {
    /// The FIFO does not exist.
    #[error("there is no injection FIFO {fifo}: choose one that the router has")]
    NoFifo {
        /// Number of the FIFO.
        fifo: u8,
    },
    /// The packet does not fit now. The function is woken when there is more room.
    #[error("injection FIFO {fifo} is full: inject the packet when it has room")]
    Full {
        /// Number of the FIFO.
        fifo: u8,
    },
    /// The packet is longer than the router's links permit.
    #[error("a packet of {bytes} bytes with its framing: the longest has {longest}")]
    TooLong {
        /// Bytes of the packet with its framing.
        bytes: u32,
        /// Bytes of the longest packet.
        longest: u32,
    },
}

/// A packet that an injection FIFO did not take. It belongs to the caller again.
#[derive(Debug, Error)]
#[error("the packet was not injected: {reason}")]
pub struct NotInjected<K = Packet> {
    /// The packet.
    pub packet: K,
    /// Reason for the refusal.
    pub reason: InjectionRefusal,
}

/// The FIFOs between the router and its device.
#[derive(Debug)]
struct Fifos<K> {
    injection: Vec<InjectionFifo<K>>,
    reception: Vec<ReceptionFifo<K>>,
    /// Bytes of the longest packet that can be injected.
    longest: u32,
    /// Injection FIFOs that are not empty and whose first packet has no decision.
    waiting: u64,
    /// Time before which none of them is served, because all have a packet in service.
    served_until: Nanos,
    /// Reception FIFOs that are not empty, one bit for each.
    received: u64,
    /// A packet of a reception FIFO is complete at this time, or [`Nanos::NEVER`].
    complete: Nanos,
}

impl<K: RoutedPacket> Fifos<K> {
    fn new(spec: &RouterSpec) -> Self {
        Self {
            injection: spec.injection.iter().map(|&fifo| InjectionFifo::new(fifo)).collect(),
            reception: spec.reception.iter().map(|&fifo| ReceptionFifo::new(fifo)).collect(),
            longest: spec.longest_bytes(),
            waiting: 0,
            served_until: Nanos::ZERO,
            received: 0,
            complete: Nanos::NEVER,
        }
    }

    /// Adds a FIFO whose first packet has no decision. Returns the time from which it
    /// can be served.
    #[inline]
    fn add_waiting(&mut self, fifo: u8) -> Nanos {
        let busy_until = self.injection[usize::from(fifo)].busy_until;
        let has_others = self.waiting != 0;
        self.served_until = if has_others { self.served_until.min(busy_until) } else { busy_until };
        self.waiting |= 1 << fifo;
        busy_until
    }

    /// Returns the route word and the bytes of the first packet of an injection FIFO.
    #[inline]
    fn first(&self, fifo: u8) -> Option<(u64, u32)> {
        let packet = self.injection.get(usize::from(fifo))?.front()?;
        Some((packet.word(), packet.wire_bytes()))
    }

    /// Returns the FIFOs that can be served now and whose first packet has no decision.
    fn served(&mut self, now: Nanos) -> u64 {
        let mut served = 0;
        self.served_until = Nanos::NEVER;
        for fifo in bits(self.waiting) {
            let busy_until = self.injection[usize::from(fifo)].busy_until;
            served |= u64::from(busy_until <= now) << fifo;
            self.served_until = self.served_until.min(busy_until);
        }
        served
    }

    /// Updates the time at which the next packet of a reception FIFO is complete.
    #[inline(never)]
    fn update_complete(&mut self, now: Nanos) {
        let fronts = self.reception.iter().filter_map(|fifo| Some(fifo.front()?.1));
        let next = fronts.filter(|&complete| complete > now).min();
        self.complete = next.unwrap_or(Nanos::NEVER);
    }

    /// Empties all FIFOs, and calls `dropped` with each packet.
    fn clear<L: Links<Packet = K>>(&mut self, ports: &mut L, mut dropped: impl FnMut(&K)) {
        let now = ports.now();
        for fifo in &mut self.injection {
            while let Some(packet) = fifo.pop(now) {
                dropped(&packet);
                ports.recycle(packet);
            }
        }
        for fifo in &mut self.reception {
            while let Some(packet) = fifo.pop_any(now) {
                dropped(&packet);
                ports.recycle(packet);
            }
        }
        (self.waiting, self.received, self.complete) = (0, 0, Nanos::NEVER);
    }
}

/// The counters of a router, apart from those of inputs and outputs.
#[derive(Debug, Default)]
struct Counters {
    router: RouterCounters,
    /// The fabric had no packet for a copy in this step.
    lacked_packets: bool,
}

/// A node's router. The module documentation states its rules.
#[derive(Debug)]
pub struct Router<P, K = Packet> {
    plan: Arc<Plan>,
    policy: P,
    heads: Heads,
    outputs: Outputs,
    fifos: Fifos<K>,
    counters: Counters,
}

impl<P: Policy> Router<P> {
    /// Returns a router without packets. The routers of a network should share a plan:
    /// [`Router::with_plan`].
    ///
    /// # Errors
    /// [`RouterError`] names the value that does not fit.
    pub fn new(spec: &RouterSpec, policy: P) -> Result<Self, RouterError> {
        Ok(Self::with_plan(&RouterPlan::new(spec)?, policy))
    }

    /// Returns a router without packets.
    pub fn with_plan(plan: &RouterPlan, policy: P) -> Self {
        Self::of_packets(plan, policy)
    }
}

impl<P: Policy, K: RoutedPacket> Router<P, K> {
    /// Returns a router without packets, for links with packets of any kind.
    pub fn of_packets(plan: &RouterPlan, policy: P) -> Self {
        let plan = Arc::clone(&plan.0);
        Self {
            policy,
            heads: Heads::new(plan.layout.inputs),
            outputs: Outputs::new(&plan),
            fifos: Fifos::new(&plan.spec),
            counters: Counters::default(),
            plan,
        }
    }

    /// Returns the policy.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Returns the policy, to change it. A packet that is first in its input keeps the decision of
    /// the former policy.
    pub fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// Sets the number of packets from links that an output sends between two injected ones
    /// ([`RouterSpec::through_ratio`]). 0 counts as 1.
    pub fn set_through_ratio(&mut self, ratio: u8) {
        self.outputs.through_ratio = ratio.max(1);
    }

    /// Returns [`RouterSpec::through_ratio`] as it is now.
    pub fn through_ratio(&self) -> u8 {
        self.outputs.through_ratio
    }

    /// Returns the room of an injection FIFO; none if it does not exist.
    #[inline]
    pub fn injection_room(&self, fifo: u8, now: Nanos) -> FifoRoom {
        self.fifos.injection.get(usize::from(fifo)).map_or_else(FifoRoom::default, |fifo| fifo.room(now))
    }

    /// Puts a packet into an injection FIFO. [`Router::step`] sends it.
    ///
    /// # Errors
    /// [`NotInjected`] with the packet and the reason.
    #[inline]
    pub fn inject(&mut self, fifo: u8, packet: K, now: Nanos) -> Result<(), NotInjected<K>> {
        let Some(queue) = self.fifos.injection.get_mut(usize::from(fifo)) else {
            return Err(NotInjected { packet, reason: InjectionRefusal::NoFifo { fifo } });
        };

        let (bytes, longest) = (packet.wire_bytes(), self.fifos.longest);
        if bytes > longest {
            return Err(NotInjected { packet, reason: InjectionRefusal::TooLong { bytes, longest } });
        }

        if !queue.room(now).fits(bytes) {
            return Err(NotInjected { packet, reason: InjectionRefusal::Full { fifo } });
        }

        queue.push(packet, now);
        if self.heads.decided >> (self.plan.layout.links + usize::from(fifo)) & 1 == 0 {
            self.fifos.add_waiting(fifo);
        }
        Ok(())
    }

    /// Returns whether [`Router::step`] has nothing to do: no packet arrives, wants an output, or
    /// waits in an injection FIFO. A device may leave the step out then.
    #[inline]
    pub fn is_idle<L: Links<Packet = K>>(&self, ports: &L) -> bool {
        let [whole, heads] = ports.arrived_inputs(self.plan.layout.ports, self.plan.layout.vcs);
        self.awaits_arrivals() && whole | heads == 0
    }

    /// Returns whether only packets that arrive can give [`Router::step`] something to do: no
    /// packet requests an output, waits in an injection FIFO, or is on its way into a reception
    /// FIFO.
    #[inline]
    pub fn awaits_arrivals(&self) -> bool {
        self.heads.decided == 0 && self.fifos.waiting == 0 && self.fifos.complete == Nanos::NEVER
    }

    /// Returns whether [`Router::step`] finds nothing to do unless a packet arrives: all packets
    /// that have a decision wait for outputs, of which none has become free since the last step,
    /// and no packet waits in an injection FIFO or is on its way into a reception FIFO.
    #[inline]
    pub fn is_stalled<L: Links<Packet = K>>(&self, ports: &L) -> bool {
        let Heads { decided, local, dropped, .. } = self.heads;
        let waits_for_output = decided != 0 && (local | dropped) == 0 && self.outputs.open() == 0;
        waits_for_output
            && self.fifos.waiting == 0
            && self.fifos.complete == Nanos::NEVER
            && !self.counters.lacked_packets
            && !ports.has_freed()
    }

    /// Returns the first packet of a reception FIFO, if it is complete.
    #[inline]
    pub fn front(&self, fifo: u8, now: Nanos) -> Option<&K> {
        let (packet, complete) = self.fifos.reception.get(usize::from(fifo))?.front()?;
        (complete <= now).then_some(packet)
    }

    /// Takes the first packet of a reception FIFO, if it is complete. The caller must return it to
    /// the fabric ([`Links::recycle`]), and call [`Router::step`] afterwards: a packet may wait for
    /// the room.
    #[inline]
    pub fn take(&mut self, fifo: u8, now: Nanos) -> Option<K> {
        // The bit mask answers for an empty FIFO without a further cache line.
        if self.fifos.received.checked_shr(fifo.into())? & 1 == 0 {
            return None;
        }
        let queue = self.fifos.reception.get_mut(usize::from(fifo))?;
        let packet = queue.pop(now)?;
        self.note_front(fifo, now);
        Some(packet)
    }

    /// Returns the reception FIFOs that have packets, one bit for each. A first packet need not be
    /// complete.
    #[inline]
    pub fn received(&self) -> u64 {
        self.fifos.received
    }

    /// Empties all FIFOs and forgets all decisions. The device must call [`Router::step`]
    /// afterwards. Packets on links stay there, and are decided upon again. A packet of which some
    /// targets have a copy is then copied to all of them.
    pub fn reset<L: Links<Packet = K>>(&mut self, ports: &mut L) {
        self.reset_with(ports, |_| ());
    }

    /// Resets as [`Router::reset`] does, and calls `dropped` with each packet of a FIFO, for a
    /// device that counts the packets on their way.
    pub fn reset_with<L: Links<Packet = K>>(&mut self, ports: &mut L, dropped: impl FnMut(&K)) {
        self.fifos.clear(ports, dropped);
        self.heads.clear();
        self.outputs.clear();
    }

    /// Returns the counters of an input; zeros if it does not exist.
    pub fn input_counters(&self, source: Source) -> InputCounters {
        let input = self.plan.layout.input(source);
        input.map_or_else(Default::default, |input| self.heads.inputs[input].counters)
    }

    /// Returns the counters of an output port; zeros if it does not exist.
    pub fn output_counters(&self, port: u8) -> OutputCounters {
        self.outputs.ports.get(usize::from(port)).map_or_else(Default::default, |output| output.counters)
    }

    /// Returns the counters that belong to no port.
    pub fn counters(&self) -> RouterCounters {
        self.counters.router
    }

    /// Returns the number of packets in an injection FIFO, with its integral.
    pub fn injection_level(&self, fifo: u8) -> Level {
        self.fifos.injection.get(usize::from(fifo)).map_or_else(Level::default, |fifo| fifo.level)
    }

    /// Returns the number of packets in a reception FIFO, with its integral.
    pub fn reception_level(&self, fifo: u8) -> Level {
        self.fifos.reception.get(usize::from(fifo)).map_or_else(Level::default, |fifo| fifo.level)
    }
}
