//! The message layer (paper, sections 4.2 and 5): an active message system over packets.
//!
//! [`MessageLayer::init`] makes the layer. [`MessageLayer::postsend`] puts a message into the send
//! queue, and [`MessageLayer::advance`] moves everything on. None of them waits. The program
//! learns of events by its [`Callbacks`]: `recvnew`, `recvdone` and `senddone`.
//!
//! # Parts
//! - The *connection manager* is the table of virtual connections. A connection is
//!   made at its first use, and start-up takes the same time in any machine.
//! - A *virtual connection* has a queue of messages to send, and a list of messages that arrive. It
//!   takes about 50 bytes.
//! - A *message buffer* is a [`Buffer`] with the state of its message.
//! - The *packetizer* makes packets of a message, and the *unpacketizer* the reverse. They send the
//!   aligned middle of a message in place, and copy its ends.
//!
//! # Protocols
//!
//! | protocol | length by default | packets |
//! | --- | --- | --- |
//! | one packet | up to 224 bytes | the message |
//! | eager | up to 1 KiB | all at once; the first has the match information |
//! | mid-size | up to 16 KiB | the first few repeat it; the rest waits to be acknowledged |
//! | rendezvous | any | a request, an acknowledgement, the message |
//!
//! # Order
//! Packets arrive in any order. Each has its message's id. The receiver presents messages strictly
//! in the order of their ids, and stores the packets that it can't use yet.
//!
//! # Bounded memory
//! The paper's eager protocol is "fire and forget": a receiver takes every packet, and allocates
//! memory for those that it can't use. Here a peer must not determine how much memory a receiver
//! allocates, so a sender has [`WINDOW`] *credits* at each receiver:
//! - An unsolicited packet uses up a credit. The receiver has a place for it.
//! - The place is free again when the packet's bytes have reached the program. One place of each
//!   message is kept until the message is complete.
//! - The receiver counts the places that it frees. Packets that go to the sender anyway carry the
//!   count, and if there are none, a packet of its own does.
//!
//! The memory for the places, 8 KiB, is allocated when a connection is made.
//!
//! This can't deadlock. A receiver has a place for every packet that may come, so it always takes
//! all packets from the network, of every kind and from every peer, and the network always moves.
//! A sender sends the unsolicited packets of its messages in the order of the messages, so the
//! packets of a later message never hold the places that an earlier one needs. A place is held on
//! for one reason only: the program has postponed the message, or it is in progress. Then its
//! sender waits, and other connections go on.
//!
//! A postponed message holds a place for each of its unsolicited packets that has arrived. When the
//! postponed messages of a sender hold [`WINDOW`] packets, the program must decide about one of
//! them before that sender goes on. Message ids have a limit too: 16,384 messages may follow a
//! message that is not complete.
//!
//! # Processes that end
//! A connection belongs to one process of the peer, by the [life](nicforge_hwi::torus::presence) of
//! its core. The network drops packets for an earlier life, and the layer drops packets from one.
//! [`MessageLayer::check_peers`] ends the connections with processes that are gone, and messages
//! in progress with them end with [`Error::PeerGone`]. A restarted peer has a new connection, which
//! begins with its first packet or the next `postsend`.
//!
//! # Trust
//! No packet makes the layer panic, loop or allocate without bound. Packets that violate the
//! protocol are dropped and counted ([`Statistics::malformed`]). A peer that sends them can spoil
//! its own messages only.

mod buffer;
mod callbacks;
mod carving;
mod config;
mod connection;
mod drain;
mod incoming;
mod outgoing;
mod peers;
mod pool;
mod present;
mod receive;
mod send;
mod slab;
mod state;
mod statistics;
pub mod wire;

use nicforge_driver::{
    Cancel, Deadline, Error as DriverError, WaitEnd, Waiter,
    runtime::{Cost, charge},
};
use nicforge_hwi::torus::presence;

use self::state::State;
pub use self::{
    buffer::{Buffer, Region},
    callbacks::{Arrival, Callbacks, Disposition, ReceiveHandle, Received, Rejected, SendHandle, Sent},
    config::Config,
    statistics::Statistics,
    wire::{INFORMATION, MAX_MESSAGE, MAX_SINGLE, MatchInformation, WINDOW},
};
use crate::{
    Error,
    packet::{PacketDevice, Place, Rank, Torus},
};

/// Number of questions about unknown senders after which one call of [`MessageLayer::advance`]
/// asks the device no more. A pass over the packets asks about each sender that it has met. The
/// packets of the others wait for the next call.
const MAX_SETTLED: usize = 16;
/// Number of turns of a waiting loop between two checks of the peers.
const TURNS_PER_CHECK: u32 = 4096;
/// Number of turns for which one without progress counts.
const IDLE_TURN: u32 = 64;

/// Outcome of taking the packets that have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reception {
    /// All packets that had arrived at the start were taken.
    Complete,
    /// Packets of unknown senders are left.
    Interrupted,
}

/// The message layer of a rank, on a packet device.
///
/// Only [`MessageLayer::wait_until`] and [`MessageLayer::wait_until_drained`] wait. A program calls
/// [`MessageLayer::advance`] often, also while it only sends: without it, neither acknowledgements
/// nor credits move.
#[derive(Debug)]
pub struct MessageLayer<D> {
    device: D,
    state: State,
    /// Turns of waits since the last check for peers that are gone. It outlives a wait, since a
    /// program may wait for a short time again and again.
    turns_since_check: u32,
}

impl<D: PacketDevice> MessageLayer<D> {
    /// Makes the message layer of a packet device: the paper's `Init`. It contacts no peer.
    ///
    /// # Errors
    /// Returns [`Error::BadConfig`].
    pub fn init(device: D, config: Config) -> Result<Self, Error> {
        config.check()?;
        let state = State::new(device.place(), config);
        Ok(Self { device, state, turns_since_check: 0 })
    }

    /// Returns the rank's place in the machine.
    pub fn place(&self) -> &Place {
        self.device.place()
    }

    /// Returns the packet device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Returns the packet device. Its packets belong to the message layer.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Returns the counters.
    pub fn statistics(&self) -> Statistics {
        self.state.statistics
    }

    /// Returns the number of messages that were posted and have not ended.
    pub fn sends_in_progress(&self) -> usize {
        self.state.sends.len()
    }

    /// Returns the number of messages that have begun to arrive and are not complete.
    pub fn receives_in_progress(&self) -> usize {
        self.state.receives.len()
    }

    /// Returns the number of packets that the layer has memory for.
    pub fn packet_places(&self) -> usize {
        self.state.pool.capacity()
    }

    /// Returns whether all posted messages have ended, nothing is due to any peer, and the network
    /// has all packets. A process that ends before may take packets with it.
    pub fn has_sent_all(&self) -> bool {
        self.state.sends.len() == 0 && self.state.connections.is_quiet() && self.device.has_sent_all()
    }

    /// Posts a message to a rank: the paper's `postsend`. The message's first packets are sent at
    /// once, if the connection has no other message and the device has room. The end of the message
    /// is reported by [`Callbacks::senddone`].
    ///
    /// # Errors
    /// Returns the buffer with the error: [`Error::Unreachable`], [`Error::PeerDown`],
    /// [`Error::MessageTooLong`] or [`Error::Device`].
    pub fn postsend(
        &mut self,
        destination: Rank,
        information: MatchInformation,
        buffer: Buffer,
    ) -> Result<SendHandle, Box<Rejected>> {
        let len = buffer.len();
        if len > MAX_MESSAGE {
            let error = Error::MessageTooLong { len, most: MAX_MESSAGE };
            return Err(Box::new(Rejected { error, buffer }));
        }

        let index = match self.state.connect(&self.device, destination) {
            Ok(index) => index,
            Err(error) => return Err(Box::new(Rejected { error, buffer })),
        };
        let key = self.state.enqueue(index, information, buffer);

        // The message is posted, so the next `advance` reports an error of the device.
        if self.state.send_at_once(&mut self.device, index, key.index).is_ok() {
            let _ = self.device.publish();
        }
        Ok(SendHandle(key))
    }

    /// Moves everything on: takes the packets that have arrived, and sends what can be sent: the
    /// paper's `advance`. Returns the number of packets that were taken or sent.
    ///
    /// The work of one call is bounded: all packets that the device offers, and a few packets of
    /// each connection.
    ///
    /// # Errors
    /// Returns [`Error::Device`] or [`Error::BadDevice`].
    pub fn advance<C: Callbacks>(&mut self, callbacks: &mut C) -> Result<u64, Error> {
        charge(Cost::Progress, 1);
        let before = self.state.statistics;

        self.receive(callbacks)?;
        self.state.send_ready(&mut self.device, callbacks)?;
        self.device.publish()?;

        let after = self.state.statistics;
        let moved = |statistics: Statistics| statistics.packets_received + statistics.packets_sent;
        Ok(moved(after) - moved(before))
    }

    /// Takes the packets that have arrived.
    fn receive<C: Callbacks>(&mut self, callbacks: &mut C) -> Result<Reception, Error> {
        // Bits of a life come back, so the answers about claims hold for one call only.
        self.state.stale.clear();

        let mut asked = 0;
        loop {
            let state = &mut self.state;
            state.unsettled.clear();
            self.device.receive(|header, payload| state.on_packet(header, payload, callbacks))?;

            // Nothing was left unless a sender is unknown.
            if state.unsettled.is_empty() {
                state.put_off.clear();
                return Ok(Reception::Complete);
            }
            if asked >= MAX_SETTLED {
                return Ok(Reception::Interrupted);
            }
            asked += state.unsettled.len();
            state.settle(&self.device, callbacks)?;
        }
    }

    /// Decides about a message for which [`Callbacks::recvnew`] has returned
    /// [`Disposition::Later`]. What has arrived of it is unpacked at once.
    ///
    /// # Errors
    /// Returns [`Error::NoSuchMessage`], also if the message has ended with an error meanwhile.
    pub fn decide<C: Callbacks>(
        &mut self,
        message: ReceiveHandle,
        disposition: Disposition,
        callbacks: &mut C,
    ) -> Result<(), Error> {
        self.state.decide_later(message.0, disposition, callbacks)
    }

    /// Ends the connections with processes that are gone, and returns their number. Messages in
    /// progress with them end with [`Error::PeerGone`].
    ///
    /// All that a process has sent before its end is received first: when the device shows another
    /// life, the packets of the former one have arrived.
    ///
    /// It makes at least one slow access to the device, so it belongs to the path of a program that
    /// waits. [`MessageLayer::wait_until`] calls it.
    ///
    /// Packets of many unknown senders may lie before those of a peer. Then the call does a bounded
    /// part of the work and returns 0, and [`MessageLayer::is_check_complete`] returns `false`.
    ///
    /// # Errors
    /// Returns [`Error::Device`] or [`Error::BadDevice`].
    pub fn check_peers<C: Callbacks>(&mut self, callbacks: &mut C) -> Result<usize, Error> {
        if !self.state.mark_lost_connections(&self.device)? {
            return Ok(0);
        }

        // Packets that a process has sent before it ended are still valid. If some are left because
        // of too many unknown senders, the next call goes on.
        match self.receive(callbacks)? {
            Reception::Complete => Ok(self.state.end_marked_connections(callbacks)),
            Reception::Interrupted => {
                self.state.checked_at = None;
                Ok(0)
            }
        }
    }

    /// Returns whether the last [`MessageLayer::check_peers`] has taken all that peers had sent,
    /// and has judged all of them. Otherwise, a peer that is gone may still have a connection, and
    /// its last messages may not have been presented: the next call goes on.
    ///
    /// It is `false` too after the layer has met a new process, which was not judged yet.
    pub fn is_check_complete(&self) -> bool {
        self.state.checked_at.is_some()
    }

    /// Begins to drain the connections, for a checkpoint: messages that have begun are completed,
    /// and no others begin. Messages may still be posted.
    ///
    /// A checkpoint has these steps on each rank, and all ranks take part:
    /// 1. The rank calls this function.
    /// 2. It advances until [`MessageLayer::is_drained`]. It must decide about the messages that it
    ///    has postponed, because their senders wait for them.
    /// 3. It enters a barrier of the program, by other means than this layer. It advances until it
    ///    leaves the barrier, because other ranks may need its acknowledgements.
    /// 4. No packet is on its way now that any rank needs. The rank takes its checkpoint.
    /// 5. It calls [`MessageLayer::end_drain`] after another barrier.
    pub fn begin_drain(&mut self) {
        self.state.begin_drain();
    }

    /// Returns whether all messages that had begun are complete at their receivers.
    pub fn is_drained(&self) -> bool {
        self.state.is_drained()
    }

    /// Lets messages begin again.
    pub fn end_drain(&mut self) {
        self.state.end_drain();
    }

    /// Returns whether a rank's core has a process. The call makes a slow access to the device.
    ///
    /// # Errors
    /// Returns [`Error::Unreachable`] or [`Error::Device`].
    pub fn is_up(&self, rank: Rank) -> Result<bool, Error> {
        Ok(presence::is_up(self.device.life(rank)?))
    }
}

impl MessageLayer<Torus> {
    /// Advances until a condition of the program holds. Now and then it checks for peers that are
    /// gone.
    ///
    /// # Errors
    /// Returns the errors of [`MessageLayer::advance`]. A wait that ends early returns the driver's
    /// time-out or cancellation in [`Error::Device`].
    pub fn wait_until<C: Callbacks>(
        &mut self,
        callbacks: &mut C,
        deadline: Deadline,
        cancel: Option<&Cancel>,
        mut condition: impl FnMut(&C) -> bool,
    ) -> Result<(), Error> {
        self.wait(callbacks, deadline, cancel, |_, callbacks| condition(callbacks))
    }

    /// Advances until the connections are drained, after [`MessageLayer::begin_drain`].
    ///
    /// # Errors
    /// Returns the errors of [`MessageLayer::wait_until`].
    pub fn wait_until_drained<C: Callbacks>(
        &mut self,
        callbacks: &mut C,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(), Error> {
        self.wait(callbacks, deadline, cancel, |layer, _| layer.is_drained())
    }

    /// Advances until a condition holds. Now and then it checks for peers that are gone.
    fn wait<C: Callbacks>(
        &mut self,
        callbacks: &mut C,
        deadline: Deadline,
        cancel: Option<&Cancel>,
        mut condition: impl FnMut(&Self, &C) -> bool,
    ) -> Result<(), Error> {
        let device = self.device.device().clone();
        let mut waiter = Waiter::new(&device, deadline, cancel);

        loop {
            let moved = self.advance(callbacks)?;
            if condition(self, callbacks) {
                return Ok(());
            }

            self.turns_since_check += if moved == 0 { IDLE_TURN } else { 1 };
            if self.turns_since_check >= TURNS_PER_CHECK {
                self.turns_since_check = 0;
                self.check_peers(callbacks)?;
            }
            waiter.check().map_err(|end| match end {
                WaitEnd::Cancelled => DriverError::Cancelled,
                WaitEnd::Timeout => deadline.timeout("a message"),
            })?;

            if moved == 0 {
                waiter.pause(&device)?;
            } else {
                waiter.progress();
            }
        }
    }
}
