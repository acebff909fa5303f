//! FCNP on the I/O node.
//!
//! - [`IoNode`] (here): the calls;
//! - `call.rs`: the steps of a call;
//! - `service.rs`: processing of the receive FIFO, and the control packets that are due;
//! - `daemon.rs`: the thread that does this while no call does;
//! - `cores.rs`: the state of each compute core, and the pset's read and write slots;
//! - `fifos.rs`: the locks of the two FIFOs;
//! - `replies.rs`: the cores to which control packets are due.

mod call;
mod cores;
mod daemon;
mod fifos;
mod replies;
mod service;

use std::{sync::Arc, time::Duration};

use nicforge_driver::{
    Cancel, Deadline, Device,
    runtime::{self, Event, Thread},
};
use nicforge_hwi::tree::CORES;

use self::{
    call::Call,
    cores::{Core, Direction, Slot},
    daemon::DaemonControl,
    fifos::{ReceiveFifo, SendLock},
    replies::ReplyQueue,
    service::{Inner, Ownership},
};
use crate::{
    Config, Error, Mode, Statistics,
    statistics::Counters,
    tree::{Held, LockBox, TreeChannel},
    wait::Waiter,
};

/// How long opening waits for the lock boxes of a process that has just died.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// FCNP on the I/O node of a pset.
///
/// Any number of threads may call at once for different cores. For the same core, one thread may
/// read and one may write. At most one message moves in each direction of the pset at a time. The
/// other calls wait in the order of their arrival.
///
/// When the device is reset, every call ends with [`Error::Device`]. The `IoNode` must then be
/// dropped before another one is opened on the device.
///
/// Dropping it resets the device, unless that has happened already. The compute cores then report
/// [`Error::PeerGone`], also if another `IoNode` is opened on the same device.
#[derive(Debug)]
pub struct IoNode {
    inner: Arc<Inner>,
    daemon: Option<Thread>,
}

impl IoNode {
    /// Starts to serve FCNP on the I/O node whose core is `device`. From then on, the process owns
    /// the node's user channel.
    ///
    /// # Errors
    /// Returns [`Error::WrongDevice`], [`Error::BadDevice`], [`Error::AlreadyServed`],
    /// [`Error::Device`] or [`Error::Thread`].
    pub fn open(device: Device, config: Config) -> Result<Self, Error> {
        let channel = TreeChannel::open(device)?;
        let info = *channel.info();

        if let Some(rank) = info.pset_rank {
            return Err(Error::WrongDevice {
                expected: "an I/O node's core",
                found: format!("node {} is compute node {rank} of its pset", info.address),
            });
        }

        let interrupt = match config.mode {
            Mode::Polling => None,
            Mode::Interrupt => Some(channel.receive_interrupt()?),
        };

        let mut waiter = Waiter::new(&channel, Deadline::after(config.open_timeout), None);
        while !channel.presence(info.address, info.core).is_up() {
            waiter.pause("this core's own entry in the presence table")?;
        }

        let guard = lock_for_serving(&channel, channel.receive_lock())?;
        let send = lock_for_serving(&channel, channel.send_lock())?;

        let cores = (info.pset_size * u32::from(CORES)) as usize;
        let inner = Arc::new(Inner {
            config,
            cores: (0..cores).map(|_| Core::default()).collect(),
            ownership: Ownership::of(&channel),
            slots: [Slot::new(cores), Slot::new(cores)],
            send: SendLock::new(send),
            receive: ReceiveFifo::new(guard),
            replies: ReplyQueue::new(cores),
            event: Event::default(),
            daemon: DaemonControl::new()?,
            counters: Counters::default(),
            channel,
        });

        let served = inner.clone();
        let daemon = runtime::spawn("fcnp", move || daemon::run(&served, interrupt.as_ref()))
            .map_err(|error| Error::Thread { errno: error.raw_os_error().unwrap_or(0) })?;
        Ok(Self { inner, daemon: Some(daemon) })
    }

    /// Receives into `buffer` the data that compute core `core` writes, as much as fits. `core` is
    /// 4 times the node's rank in the pset, plus the core.
    ///
    /// The call waits for the core's request. It returns the number of bytes, the lesser of the two
    /// sizes. It takes at most [`Config::timeout`].
    ///
    /// # Errors
    /// Returns the errors of [`IoNode::read_until`].
    pub fn read(&self, core: u32, buffer: &mut [u8]) -> Result<usize, Error> {
        self.read_until(core, buffer, self.deadline(), None)
    }

    /// Receives as [`IoNode::read`] does, with a deadline and a cancellation token.
    ///
    /// # Errors
    /// Returns [`Error::NoSuchCore`], [`Error::Busy`], [`Error::PeerGone`], [`Error::Timeout`],
    /// [`Error::Cancelled`] or [`Error::Device`]. [`Error::Aborted`] means that the core has
    /// withdrawn its write in the middle. If the deadline, the cancellation token or the device
    /// ends the call in the middle of a message, the rest is discarded as it arrives. After an
    /// error, `buffer` may have been written.
    pub fn read_until(
        &self,
        core: u32,
        buffer: &mut [u8],
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<usize, Error> {
        Call::begin(&self.inner, core, Direction::Write, deadline, cancel)?.receive(buffer)
    }

    /// Sends `data` to compute core `core`, up to the size that the core requests. The call waits
    /// for the core's request. It returns the number of bytes, the lesser of the two sizes. It
    /// takes at most [`Config::timeout`].
    ///
    /// # Errors
    /// Returns the errors of [`IoNode::write_until`].
    pub fn write(&self, core: u32, data: &[u8]) -> Result<usize, Error> {
        self.write_until(core, data, self.deadline(), None)
    }

    /// Sends as [`IoNode::write`] does, with a deadline and a cancellation token.
    ///
    /// # Errors
    /// Returns the errors of [`IoNode::read_until`]. If a message is interrupted in the middle, the
    /// core's call fails with [`Error::Aborted`].
    pub fn write_until(
        &self,
        core: u32,
        data: &[u8],
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<usize, Error> {
        Call::begin(&self.inner, core, Direction::Read, deadline, cancel)?.send(data)
    }

    /// Returns the number of compute cores in the pset, which is 4 for each node.
    pub fn cores(&self) -> u32 {
        self.inner.cores.len() as u32
    }

    /// Returns the packet layer below.
    pub fn channel(&self) -> &TreeChannel {
        &self.inner.channel
    }

    /// Returns the counters since the node was opened.
    pub fn statistics(&self) -> Statistics {
        self.inner.counters.snapshot()
    }

    /// Returns the deadline of a call without a deadline of its own.
    fn deadline(&self) -> Deadline {
        self.inner.config.timeout.map_or(Deadline::never(), Deadline::after)
    }
}

impl Drop for IoNode {
    fn drop(&mut self) {
        // In a child of `fork`, the node and the daemon are the parent's.
        if self.inner.channel.device().is_inherited() {
            return;
        }

        self.inner.daemon.stop();
        if let Some(daemon) = self.daemon.take() {
            daemon.join();
        }

        // The next `IoNode` on this device knows no link. After a reset, the compute cores see that
        // this one is gone, and link again. They see it anyway if the device is lost.
        let device = self.inner.channel.device();
        if !self.inner.is_reset() && !device.is_gone() {
            let _ = device.reset();
        }
    }
}

/// Locks a lock box for as long as this process serves the node. Returns [`Error::AlreadyServed`]
/// if another process holds it for [`LOCK_WAIT`].
fn lock_for_serving(channel: &TreeChannel, lock: &LockBox) -> Result<Held<LockBox>, Error> {
    let mut waiter = Waiter::new(channel, Deadline::after(LOCK_WAIT), None);
    loop {
        if let Some(guard) = lock.try_lock_owned(channel.owner()) {
            return Ok(guard);
        }

        if let Err(error) = waiter.pause("a lock box of the node") {
            let owner = lock.attachment().unwrap_or(channel.info().core).into();
            return Err(if error.is_timeout_or_cancel() { Error::AlreadyServed { owner } } else { error });
        }
    }
}
