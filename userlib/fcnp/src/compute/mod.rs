//! FCNP on a compute core.
//!
//! - [`ComputeCore`] (here): the calls, and the link to the process on the I/O node;
//! - `handshake.rs`: the RESET handshake;
//! - `transfer.rs`: the steps of a read and of a write;
//! - `node.rs`: the cores of the node share the receive FIFO;
//! - `mailbox.rs`: their shared state;
//! - `link.rs`: the process at the other end.

mod handshake;
mod link;
mod mailbox;
mod node;
#[cfg(test)]
mod tests;
mod transfer;

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU32, Ordering, fence},
};

use nicforge_driver::{Cancel, Deadline, Device, Error as DriverError, GoneCause};
use nicforge_hwi::tree::{CORES, Header};

pub(crate) use self::transfer::BATCH;
use self::{handshake::first_token, link::IoNodeLink, node::Node};
use crate::{
    Config, Error, Peer, Statistics,
    protocol::{CoreName, Scope},
    tree::{Generation, PresenceWatch, TreeChannel},
    wait::Waiter,
};

/// The tree class (set of routes) of FCNP's point-to-point packets.
pub(crate) const CLASS: u32 = 0;

/// The two kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

impl Direction {
    const BOTH: [Self; 2] = [Self::Read, Self::Write];

    /// Returns the scope of a RESET that concerns only this direction.
    fn scope(self) -> Scope {
        match self {
            Direction::Read => Scope::Read,
            Direction::Write => Scope::Write,
        }
    }

    /// Returns the name of a call of this direction, for errors.
    fn call(self) -> &'static str {
        match self {
            Direction::Read => "a read",
            Direction::Write => "a write",
        }
    }
}

/// The state of the core's calls of one direction.
#[derive(Debug, Default)]
struct DirectionState {
    /// A thread is in a call of this direction.
    busy: AtomicBool,
    /// That call has passed the check of the link.
    running: AtomicBool,
    /// The RESET that withdraws a request was not acknowledged.
    needs_reset: AtomicBool,
    /// [`IoNodeLink::to_word`] of the process on the I/O node with which this direction's calls
    /// communicate. It is 0 once a call has reported the loss of that process.
    known_peer: AtomicU32,
}

/// A flag that this value has set, and clears when it is dropped.
struct FlagGuard<'a>(&'a AtomicBool);

impl<'a> FlagGuard<'a> {
    /// Sets the flag, or returns `None` if it is set already.
    fn set(flag: &'a AtomicBool) -> Option<Self> {
        (!flag.swap(true, Ordering::AcqRel)).then_some(Self(flag))
    }
}

impl Drop for FlagGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// FCNP on one core of a compute node.
///
/// One read and one write may be outstanding at a time, from two threads. A second call of the same
/// kind returns [`Error::Busy`].
#[derive(Debug)]
pub struct ComputeCore {
    node: Node,
    config: Config,
    /// [`IoNodeLink::to_word`] of the current link, or 0.
    link: AtomicU32,
    directions: [DirectionState; 2],
    /// The token of the last RESET. It is locked during a handshake.
    handshake: Mutex<u32>,
}

impl ComputeCore {
    /// Opens the core that `device` is.
    ///
    /// The call waits for the I/O node's process and sends it a RESET. After that, nothing of an
    /// earlier run is left. It takes at most [`Config::open_timeout`].
    ///
    /// # Errors
    /// Returns [`Error::WrongDevice`], [`Error::BadDevice`], [`Error::Device`], or
    /// [`Error::Timeout`] when no process serves the I/O node.
    pub fn open(device: Device, config: Config) -> Result<Self, Error> {
        let deadline = Deadline::after(config.open_timeout);
        Self::open_until(device, config, deadline, None)
    }

    /// Opens the core as [`ComputeCore::open`] does, with a deadline and a cancellation token.
    ///
    /// # Errors
    /// Returns the errors of [`ComputeCore::open`], and [`Error::Cancelled`].
    pub fn open_until(
        device: Device,
        config: Config,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Self, Error> {
        let node = Node::new(TreeChannel::open(device)?)?;

        let core = Self {
            node,
            config,
            link: AtomicU32::new(0),
            directions: Default::default(),
            handshake: Mutex::new(first_token()),
        };

        let mut waiter = Waiter::new(&core.node.channel, deadline, cancel);
        while !core.node.generation(core.node.name.core).is_up() {
            waiter.pause("this core's own entry in the presence table")?;
        }

        let link = core.ensure_linked(&mut waiter)?;
        for state in &core.directions {
            state.known_peer.store(link.to_word(), Ordering::Relaxed);
        }
        Ok(core)
    }

    /// Sends `data` to the I/O node, up to the size that the matching call there accepts. Returns
    /// the number of bytes sent, the lesser of the two sizes. The call takes at most
    /// [`Config::timeout`].
    ///
    /// # Errors
    /// Returns the errors of [`ComputeCore::write_until`].
    pub fn write(&self, data: &[u8]) -> Result<usize, Error> {
        self.write_until(data, self.deadline(), None)
    }

    /// Sends `data` as [`ComputeCore::write`] does, with a deadline and a cancellation token.
    ///
    /// # Errors
    /// Returns [`Error::PeerGone`], also once for each direction when the process on the I/O node
    /// was replaced since the last call. Other errors are [`Error::Timeout`], [`Error::Cancelled`],
    /// [`Error::Busy`] and [`Error::Device`]. In any case, once the next call succeeds, nothing of
    /// this message is left in the network.
    pub fn write_until(
        &self,
        data: &[u8],
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<usize, Error> {
        self.call(Direction::Write, deadline, cancel, |link, waiter| self.perform_write(data, link, waiter))
    }

    /// Receives into `buffer` the data of the matching call on the I/O node, as much as fits.
    /// Returns the number of bytes, the lesser of the two sizes. The call takes at most
    /// [`Config::timeout`].
    ///
    /// # Errors
    /// Returns the errors of [`ComputeCore::read_until`].
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Error> {
        self.read_until(buffer, self.deadline(), None)
    }

    /// Receives as [`ComputeCore::read`] does, with a deadline and a cancellation token.
    ///
    /// # Errors
    /// Returns the errors of [`ComputeCore::write_until`], and [`Error::Aborted`]. After an error,
    /// `buffer` may have been written.
    pub fn read_until(
        &self,
        buffer: &mut [u8],
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<usize, Error> {
        self.call(Direction::Read, deadline, cancel, |link, waiter| self.perform_read(buffer, link, waiter))
    }

    /// Returns the core's rank in its pset, by which the I/O node names it: 4 times the node's
    /// rank, plus the core.
    pub fn rank(&self) -> u32 {
        u32::from(self.node.name.rank_in_pset) * u32::from(CORES) + u32::from(self.node.name.core)
    }

    /// Returns the packet layer below.
    pub fn channel(&self) -> &TreeChannel {
        &self.node.channel
    }

    /// Returns the counters since the core was opened.
    pub fn statistics(&self) -> Statistics {
        self.node.counters.snapshot()
    }

    /// Returns the deadline of a call without a deadline of its own.
    fn deadline(&self) -> Deadline {
        self.config.timeout.map_or(Deadline::never(), Deadline::after)
    }

    /// Returns the other side of every transfer, for errors.
    fn peer(&self) -> Peer {
        Peer::IoNode { address: self.node.channel.info().io_node }
    }

    /// Returns the state of the calls of one direction.
    fn state(&self, direction: Direction) -> &DirectionState {
        &self.directions[direction as usize]
    }

    /// Runs `transfer` as one call. It fails with [`Error::Busy`] if a call of the same direction
    /// runs, waits for a valid link, and withdraws the request if the transfer fails.
    fn call(
        &self,
        direction: Direction,
        deadline: Deadline,
        cancel: Option<&Cancel>,
        transfer: impl FnOnce(IoNodeLink, &mut Waiter<'_>) -> Result<usize, FailedTransfer>,
    ) -> Result<usize, Error> {
        let state = self.state(direction);
        let _busy = FlagGuard::set(&state.busy).ok_or(Error::Busy { what: direction.call() })?;
        let mut waiter = Waiter::new(&self.node.channel, deadline, cancel);
        // A call that has already ended must not send a request: a short message is wholly in it.
        waiter.check("the start of a call")?;

        let (link, _running) = loop {
            let link = self.link_for(direction, &mut waiter)?;
            let running = FlagGuard::set(&state.running);
            // Orders the flag against a RESET of everything, which follows a new peer. Either that
            // RESET waits for this call, or this call sees that its link is no longer valid.
            fence(Ordering::SeqCst);
            if self.link() == Some(link) {
                break (link, running);
            }
        };

        let FailedTransfer { error, sent } = match transfer(link, &mut waiter) {
            Ok(size) => return Ok(size),
            Err(failed) => failed,
        };

        match error {
            Error::PeerGone { .. } => {
                if self.was_reset_since(link) {
                    self.link.store(0, Ordering::Release);
                    return Err(DriverError::DeviceGone { cause: GoneCause::Reset }.into());
                }
                self.record_loss(direction, link);
            }
            Error::Aborted { .. } => {}
            _ if sent == Sent::Request => self.withdraw(direction),
            _ => {}
        }

        Err(error)
    }

    /// Returns the link for a call, or [`Error::PeerGone`] once for each direction when the process
    /// of the last call is gone. That error is needed even if another process is there already:
    /// agreements with the old process do not bind the new one.
    fn link_for(&self, direction: Direction, waiter: &mut Waiter<'_>) -> Result<IoNodeLink, Error> {
        let known = IoNodeLink::from_word(self.state(direction).known_peer.load(Ordering::Relaxed));
        if let Some(known) = known.filter(|known| self.peer_is_gone(*known)) {
            self.record_loss(direction, known);
            return Err(Error::PeerGone { peer: self.peer() });
        }

        match (self.ensure_linked(waiter), known) {
            (Ok(link), Some(known)) if !link.has_peer_of(known) => {
                self.record_loss(direction, known);
                Err(Error::PeerGone { peer: self.peer() })
            }
            (Ok(link), _) => {
                self.state(direction).known_peer.store(link.to_word(), Ordering::Relaxed);
                Ok(link)
            }
            (Err(error @ Error::PeerGone { .. }), Some(known)) => {
                self.record_loss(direction, known);
                Err(error)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Records that the loss of `lost`'s process is reported in `direction`, and drops the current
    /// link if it is to that process.
    #[cold]
    fn record_loss(&self, direction: Direction, lost: IoNodeLink) {
        self.state(direction).known_peer.store(0, Ordering::Relaxed);

        let unlink = |word| IoNodeLink::from_word(word).filter(|link| link.has_peer_of(lost)).map(|_| 0);
        if self.link.fetch_update(Ordering::AcqRel, Ordering::Acquire, unlink).is_ok() {
            self.node.counters.peers_lost.add(1);
        }
    }

    /// Returns the current link, if it is still valid.
    fn link(&self) -> Option<IoNodeLink> {
        IoNodeLink::from_word(self.link.load(Ordering::Acquire)).filter(|link| !self.is_gone(*link))
    }

    /// Returns whether the process of `link` is gone, or whether this core is a new process for it
    /// after a device reset.
    #[inline]
    fn is_gone(&self, link: IoNodeLink) -> bool {
        self.peer_is_gone(link) || self.was_reset_since(link)
    }

    /// Returns the result of [`ComputeCore::is_gone`] at little cost, because a transfer asks for
    /// it after each batch of packets: the presence table is read only after a change.
    #[inline]
    fn check_gone(&self, watch: &mut PresenceWatch, link: IoNodeLink) -> bool {
        self.resets() != link.resets || watch.check_gone(&self.node.channel, || self.is_gone(link))
    }

    /// Returns whether this core's device was reset since `link` was made.
    #[inline]
    fn was_reset_since(&self, link: IoNodeLink) -> bool {
        self.own_generation() != link.own_generation || self.resets() != link.resets
    }

    /// Returns the number of resets of the device, modulo 256.
    #[inline]
    fn resets(&self) -> u8 {
        self.node.channel.device().resets() as u8
    }

    /// Returns whether the process of `link` on the I/O node is gone or was replaced.
    #[inline]
    fn peer_is_gone(&self, link: IoNodeLink) -> bool {
        self.node.channel.presence(self.node.channel.info().io_node, link.core) != link.generation
    }

    /// Returns the generation of this core.
    #[inline]
    fn own_generation(&self) -> Generation {
        self.node.generation(self.node.name.core)
    }

    /// Returns the header of data packets to the I/O node.
    fn data_header(&self) -> Header {
        Header::point_to_point(CLASS, self.node.channel.info().io_node, false)
    }

    /// Returns the header of control packets to the I/O node. These have the irq bit.
    fn control_header(&self) -> Header {
        Header::point_to_point(CLASS, self.node.channel.info().io_node, true)
    }

    /// Returns the identification of this core in packets.
    fn name(&self) -> CoreName {
        self.node.name
    }
}

/// The failure of a call.
struct FailedTransfer {
    error: Error,
    sent: Sent,
}

/// Whether a failed call has sent its request, which must then be withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// The request has not left.
    Nothing,
    /// The request has left.
    Request,
}
