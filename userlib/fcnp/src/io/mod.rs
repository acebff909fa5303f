//! FCNP on the I/O node.
//!
//! - [`IoNode`] (here): the calls;
//! - `call.rs`: what a call does;
//! - `service.rs`: taking packets out of the receive FIFO, and the control packets that are owed;
//! - `daemon.rs`: the thread that does so while no call does;
//! - `cores.rs`: what is known of each compute core, and the pset's read and write slots;
//! - `event.rs`: where threads sleep.

mod call;
mod cores;
mod daemon;
mod event;
mod service;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

use nicforge_driver::{Cancel, Deadline, Device};
use nicforge_hwi::tree::CORES;

use self::{
    call::Call,
    cores::{Core, Direction, Slot},
    event::Event,
    service::{Incoming, Inner, NOT_EMPTY, SendRight},
};
use crate::{
    Config, Error, Mode, Statistics,
    statistics::Counters,
    tree::{Held, LockBox, TreeChannel},
    wait::Waiter,
};

/// How long opening waits for the lock boxes of a process that has just died.
const TAKE_OVER: Duration = Duration::from_secs(1);

/// FCNP on the I/O node of a pset.
///
/// Any number of threads may call at once, for different cores, and one to read and one to write for the same core. At most
/// one message goes each way at a time in the pset; the others wait for it, first come, first served.
///
/// When its device is reset every call ends with [`Error::Device`]. Drop it then, before another one is opened on the device.
#[derive(Debug)]
pub struct IoNode {
    inner: Arc<Inner>,
    daemon: Option<JoinHandle<()>>,
}

impl IoNode {
    /// Starts to serve FCNP on the I/O node whose core `device` is. The process owns the node's user channel from here on.
    ///
    /// # Errors
    /// [`Error::WrongDevice`], [`Error::BadDevice`], [`Error::Served`], [`Error::Device`], [`Error::Thread`].
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
            waiter.turn("this core's own entry in the presence table")?;
        }
        let held = take_over(&channel, channel.receive_lock())?;
        let send = take_over(&channel, channel.send_lock())?;
        let cores = (info.pset_size * u32::from(CORES)) as usize;
        let inner = Arc::new(Inner {
            config,
            cores: (0..cores).map(|_| Core::default()).collect(),
            resets: channel.device().resets(),
            owner: channel.owner(),
            slots: [Slot::new(cores), Slot::new(cores)],
            send: SendRight::new(send),
            incoming: Mutex::new(Incoming { held, drain: None }),
            reading: AtomicBool::new(false),
            empty_at: AtomicU64::new(NOT_EMPTY),
            outbox: Mutex::new(VecDeque::with_capacity(cores)),
            owed: AtomicUsize::new(0),
            callers: AtomicU32::new(0),
            event: Event::default(),
            doze: Event::default(),
            stop: Cancel::new()?,
            counters: Counters::default(),
            channel,
        });
        let served = inner.clone();
        let daemon = Builder::new()
            .name("fcnp".into())
            .spawn(move || daemon::run(&served, interrupt.as_ref()))
            .map_err(|error| Error::Thread { errno: error.raw_os_error().unwrap_or(0) })?;
        Ok(Self { inner, daemon: Some(daemon) })
    }

    /// Receives into `buffer` what compute core `core` writes, as much as fits: waits for its request. `core` is 4 times the
    /// node's rank in the pset, plus the core. Gives the number of bytes, the lesser of the two sizes. Takes
    /// [`Config::timeout`] at most.
    ///
    /// # Errors
    /// As [`IoNode::read_until`].
    pub fn read(&self, core: u32, buffer: &mut [u8]) -> Result<usize, Error> {
        self.read_until(core, buffer, self.deadline(), None)
    }

    /// As [`IoNode::read`], with a deadline and a token.
    ///
    /// # Errors
    /// [`Error::NoSuchCore`], [`Error::Busy`], [`Error::PeerGone`], [`Error::Aborted`] when the core withdrew its write in
    /// the middle, [`Error::Timeout`], [`Error::Cancelled`], [`Error::Device`]. When a message is interrupted in the middle
    /// by one of the last three the rest of it is discarded as it comes. After an error `buffer` may have been written.
    pub fn read_until(
        &self,
        core: u32,
        buffer: &mut [u8],
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<usize, Error> {
        Call::begin(&self.inner, core, Direction::Write, deadline, cancel)?.receive(buffer)
    }

    /// Sends `data` to compute core `core`, as much of it as the core asks for: waits for its request. Gives the number of
    /// bytes, the lesser of the two sizes. Takes [`Config::timeout`] at most.
    ///
    /// # Errors
    /// As [`IoNode::write_until`].
    pub fn write(&self, core: u32, data: &[u8]) -> Result<usize, Error> {
        self.write_until(core, data, self.deadline(), None)
    }

    /// As [`IoNode::write`], with a deadline and a token.
    ///
    /// # Errors
    /// As [`IoNode::read_until`]. When a message is interrupted in the middle the core's call fails with
    /// [`Error::Aborted`].
    pub fn write_until(
        &self,
        core: u32,
        data: &[u8],
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<usize, Error> {
        Call::begin(&self.inner, core, Direction::Read, deadline, cancel)?.send(data)
    }

    /// Compute cores of the pset: 4 a node.
    pub fn cores(&self) -> u32 {
        self.inner.cores.len() as u32
    }

    /// The packet layer below.
    pub fn channel(&self) -> &TreeChannel {
        &self.inner.channel
    }

    /// Counters since the node was opened.
    pub fn statistics(&self) -> Statistics {
        self.inner.counters.snapshot()
    }

    fn deadline(&self) -> Deadline {
        self.inner.config.timeout.map_or(Deadline::never(), Deadline::after)
    }
}

impl Drop for IoNode {
    fn drop(&mut self) {
        self.inner.stop.cancel();
        self.inner.doze.tell();
        if let Some(daemon) = self.daemon.take() {
            // It does not panic; if it did it has ended as well.
            let _ = daemon.join();
        }
    }
}

/// A lock box for as long as this process serves.
fn take_over(channel: &TreeChannel, lock: &LockBox) -> Result<Held<LockBox>, Error> {
    let mut waiter = Waiter::new(channel, Deadline::after(TAKE_OVER), None);
    loop {
        if let Some(held) = lock.try_lock_owned(channel.owner()) {
            return Ok(held);
        }
        if let Err(error) = waiter.turn("a lock box of the node") {
            let owner = lock.attachment().unwrap_or(channel.info().core).into();
            return Err(if error.is_interrupted() { Error::Served { owner } } else { error });
        }
    }
}
