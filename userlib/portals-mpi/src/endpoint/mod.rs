//! The endpoint: requests, and the protocols that complete them.
//!
//! Input: calls of the application, events of Portals. Output: completions.
//!
//! | module | content |
//! | --- | --- |
//! | `mod.rs` | the interface for the application |
//! | `objects.rs` | the process's objects of Portals: queues, descriptors, entries |
//! | `requests.rs` | requests, and the queue of those that are complete |
//! | `peers.rs` | peers: windows, readiness, the end of one |
//! | `send.rs` | messages to other ranks |
//! | `receive.rs` | the posting of receives |
//! | `unexpected.rs` | messages that arrive before their receive, and the memory for them |
//! | `fetch.rs` | data that the receiver asks for |
//! | `notices.rs` | messages that are given up, or no longer there |
//! | `window.rs` | messages to a peer that it has not acknowledged |
//! | `room.rs` | windows that are full while a receive waits |
//! | `quota.rs` | operations in progress, and their division among peers |
//! | `events.rs` | what an event means |

mod events;
mod fetch;
mod notices;
mod objects;
mod peers;
mod quota;
mod receive;
mod requests;
mod room;
mod send;
mod unexpected;
mod window;

use std::{fmt, sync::Arc, time::Duration};

use nicforge_driver::{
    Cancel, Deadline, Device, OpenOptions, Relax, Waiter, environment,
    runtime::{self, Cost, charge},
};
use nicforge_hwi::seastar::MAX_MESSAGE;
use nicforge_matching::{Envelope, Kind, Rank, Selector};
use nicforge_portals::{Error as PortalsError, Interface, Kernel, KernelConfig, Mode, Region};

use self::{
    fetch::Fetches,
    objects::PortalsObjects,
    peers::Peers,
    receive::Receives,
    requests::{Entry, Requests, State},
    send::Sends,
    unexpected::Messages,
};
use crate::{Buffer, Config, Error, Job, Segment, Statistics, bits, memory::Space, pool::Handle};

/// Time between two rounds of probes to ranks that have not opened their endpoints.
const PROBE_PERIOD: Duration = Duration::from_micros(200);
/// The longest time for which the drop of an endpoint waits until its messages have left.
const MAX_LINGER: Duration = Duration::from_secs(1);

/// Handle of an outstanding request of one endpoint. It is invalid after the completion was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request(Handle);

/// The completion of a request.
#[derive(Debug)]
pub struct Completion {
    /// The request.
    pub request: Request,
    /// Its kind.
    pub kind: Kind,
    /// The value given to the call that made the request.
    pub cookie: u64,
    /// Envelope of the message. A receive that has not matched returns what it asked for, with rank
    /// 0 for any source.
    pub envelope: Envelope,
    /// Bytes sent, or bytes in the buffer.
    pub length: usize,
    /// The result of the request.
    pub result: Result<(), Error>,
    /// The memory of the request. After a failure it has no bytes if the card may still use the
    /// former ones. Those of a send are free again when [`Endpoint::retained`] no longer counts it,
    /// those of a receive when the transfer has ended that wrote to them.
    pub buffer: Buffer,
}

/// One rank's end of Portals, with the semantics of MPI. One thread at a time uses it.
///
/// Posted receives, and long messages whose receive comes later, need no call of the sender. All
/// else advances inside calls: an application that computes for long should call
/// [`Endpoint::progress`] now and then.
///
/// Dropping the endpoint waits for at most a second until the cards of its peers have taken the
/// messages that were sent. A short message is complete at once, but it is lost if its receiver has
/// no memory for it then: call [`Endpoint::flush`] first.
pub struct Endpoint {
    // This field is dropped first. The card then uses the memory in the other fields no more.
    objects: PortalsObjects,
    config: Config,
    /// The segments of memory in which buffers lie.
    space: Arc<Space>,
    requests: Requests,
    peers: Peers,
    sends: Sends,
    receives: Receives,
    /// Messages that arrived before their receive.
    messages: Messages,
    fetches: Fetches,
    /// An error that occurred after a request had begun. The next call of `progress` returns it.
    deferred: Option<Error>,
    /// Something that waits for room may find it now.
    has_work: bool,
    statistics: Statistics,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("rank", &self.rank())
            .field("outstanding", &self.outstanding())
            .field("unacknowledged", &self.unacknowledged())
            .field("receives", &self.receives)
            .field("fetches", &self.fetches)
            .field("messages", &self.messages)
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Creates the endpoint of the job's rank whose process `interface` belongs to. Messages can be
    /// sent after [`Endpoint::wait_for_all`].
    ///
    /// # Errors
    /// [`Error::BadConfig`]; [`Error::BadSize`], [`Error::SameProcess`], [`Error::NotOfJob`];
    /// [`Error::Portals`] if the card has no room for its objects.
    pub fn open(interface: Interface, job: &Job, config: Config) -> Result<Self, Error> {
        config.check()?;
        let peers = Peers::new(&interface, job, &config)?;

        let space = Space::allocate(&interface, config.space)?;
        let objects = PortalsObjects::open(interface, &space, &config, peers.size())?;
        let mut endpoint = Self {
            requests: Requests::default(),
            sends: Sends::new(config.slots),
            receives: Receives::default(),
            messages: Messages::new(config.unexpected.buffers, job.size(), config.window_of(job.size())),
            fetches: Fetches::default(),
            deferred: None,
            has_work: false,
            statistics: Statistics::default(),
            objects,
            config,
            space,
            peers,
        };

        endpoint.post_idle_buffers()?;
        endpoint.objects.post_probe_entry()?;
        Ok(endpoint)
    }

    /// Opens the rank of a program that `nicforge run` has started on each node of a machine with
    /// SeaStars, and waits for the others. The program boots its node, and is its first process.
    ///
    /// # Errors
    /// As [`Endpoint::open`] and [`Endpoint::wait_for_all`];
    /// [`nicforge_driver::Error::Environment`].
    pub fn from_environment(mode: Mode, config: Config, deadline: Deadline) -> Result<Self, Error> {
        let attachment = format!("{}.kernel", environment::node()?);
        let kernel = environment::directory()?.join("admin").join(attachment);
        let kernel = Device::open_named(kernel.as_os_str(), OpenOptions::default())?;
        let process = Device::open_env(environment::SOCKET, OpenOptions::default())?;

        let kernel = Kernel::boot(kernel, KernelConfig::default())?;
        let interface = Interface::open(&kernel, process, mode)?;
        let job = Job::of_nodes(interface.nodes(), 1);
        let mut endpoint = Self::open(interface, &job, config)?;
        endpoint.wait_for_all(deadline, None)?;
        Ok(endpoint)
    }

    /// Waits until all ranks have opened their endpoints.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Interrupted`]; errors of Portals.
    pub fn wait_for_all(&mut self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<(), Error> {
        const AWAITED: &str = "all ranks";
        loop {
            self.probe_unready()?;
            runtime::sleep(PROBE_PERIOD);
            self.progress()?;

            if self.peers.are_ready() {
                return Ok(());
            }
            let waiter = Waiter::new(self.objects.interface.device(), deadline, cancel);
            waiter.check().map_err(|end| Error::of_wait(end, AWAITED))?;
        }
    }

    /// Probes the ranks that have not answered yet, and returns whether all have opened their
    /// endpoints. It is the step of [`Endpoint::wait_for_all`] for a thread with several ranks.
    ///
    /// # Errors
    /// Errors of Portals.
    pub fn poll_for_all(&mut self) -> Result<bool, Error> {
        self.progress()?;
        if !self.peers.are_ready() {
            self.probe_unready()?;
        }
        Ok(self.peers.are_ready())
    }

    /// Returns this rank.
    pub fn rank(&self) -> Rank {
        self.peers.local_rank()
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> u32 {
        self.peers.size()
    }

    /// Returns where messages are matched.
    pub fn mode(&self) -> Mode {
        self.objects.interface.mode()
    }

    /// Returns the interface.
    pub fn interface(&self) -> &Interface {
        &self.objects.interface
    }

    /// Returns the counters.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Returns the number of requests whose completions have not been taken.
    pub fn outstanding(&self) -> usize {
        self.requests.len()
    }

    /// Returns the number of sent messages that their receivers have not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.peers.unacknowledged()
    }

    /// Returns the number of messages that have failed, and whose memory the card may still read: a
    /// rank that counts as silent may accept a message later, and one that fetches a message may
    /// do so slowly. A short message counts too, whose send was complete when it was copied. The
    /// card's report of the transfer's end, which [`Endpoint::progress`] handles, frees the memory.
    /// It comes when the receiver's card has taken the message, and when the receiver's node ends
    /// or is found to be off.
    pub fn retained(&self) -> usize {
        self.sends.retained()
    }

    /// Allocates a buffer in the heap.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        self.space.buffer(bytes as u64)
    }

    /// Returns the memory of a segment.
    pub fn segment(&self, segment: Segment) -> &Region {
        self.space.region(segment)
    }

    /// Makes a buffer of `length` bytes of a segment at `offset`. The caller divides the segment.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn lend(&self, segment: Segment, offset: usize, length: usize) -> Result<Buffer, Error> {
        self.space.lend(segment, offset as u64, length as u64)
    }

    /// Starts a send of `buffer` to `to.peer`, which may be this rank. The completion returns
    /// `cookie`. A short message is complete when it was copied, another one when its data are at
    /// the receiver.
    ///
    /// # Errors
    /// [`Error::NoSuchPeer`], [`Error::BadTag`], [`Error::BadContext`], [`Error::ForeignBuffer`];
    /// [`Error::Portals`], also for a message that is too long. These drop the buffer.
    pub fn isend(&mut self, to: Envelope, buffer: Buffer, cookie: u64) -> Result<Request, Error> {
        self.check_arguments(to, &buffer)?;
        let length = buffer.len() as u64;
        if length > u64::from(MAX_MESSAGE) {
            return Err(PortalsError::TooLong { length }.into());
        }

        let selector = Selector::exact(to.peer, to.context, to.tag);
        let handle = self.requests.insert(Entry::new(Kind::Send, cookie, selector, to, buffer));
        self.start_send(handle, to.peer)?;
        Ok(Request(handle))
    }

    /// Starts a receive into `buffer` of the oldest message that `selector` matches. The completion
    /// returns `cookie`.
    ///
    /// # Errors
    /// As [`Endpoint::isend`]. If the card fails after the receive has begun, the next
    /// [`Endpoint::progress`] returns the error.
    pub fn irecv(&mut self, selector: Selector, buffer: Buffer, cookie: u64) -> Result<Request, Error> {
        // The envelope until a message matches.
        let peer = selector.source.unwrap_or(0);
        let tag = if selector.ignore == u64::MAX { 0 } else { selector.tag };
        let envelope = Envelope::new(peer, selector.context, tag);
        self.check_arguments(envelope, &buffer)?;

        let handle = self.requests.insert(Entry::new(Kind::Receive, cookie, selector, envelope, buffer));
        match self.start_receive(handle, selector) {
            Err(error) if self.take_back_receive(handle) => return Err(error),
            // The receive has begun, and its completion will report its own end.
            Err(error) => _ = self.deferred.get_or_insert(error),
            Ok(()) => {}
        }
        Ok(Request(handle))
    }

    /// Checks the arguments of a send or receive.
    fn check_arguments(&self, envelope: Envelope, buffer: &Buffer) -> Result<(), Error> {
        let (peer, size) = (envelope.peer, self.size());
        if peer >= size {
            return Err(Error::NoSuchPeer { peer, size });
        }
        if !bits::is_tag(envelope.tag) {
            return Err(Error::BadTag { tag: envelope.tag });
        }
        if !bits::is_context(envelope.context) {
            return Err(Error::BadContext { context: envelope.context });
        }
        if buffer.belongs_to(&self.space) { Ok(()) } else { Err(Error::ForeignBuffer) }
    }

    /// Cancels a receive that has not matched, or a send of which nothing has left. Returns whether
    /// it has cancelled the request.
    ///
    /// A cancelled request completes with [`Error::Cancelled`]. Any other request completes as
    /// usual.
    ///
    /// # Errors
    /// [`Error::NoSuchRequest`]; errors of Portals.
    pub fn cancel(&mut self, request: Request) -> Result<bool, Error> {
        let Request(handle) = request;
        let is_cancelled = match &self.requests.find(handle)?.state {
            State::Queued => self.remove_queued(handle),
            State::Pending | State::Posted(_) => self.withdraw(handle)?,
            State::InFlight | State::Arriving | State::Fetching | State::Done => false,
        };

        if is_cancelled {
            self.fail(handle, Error::Cancelled);
        }
        Ok(is_cancelled)
    }

    /// Returns the completion of `request`, if it is complete. The handle finds nothing afterwards.
    /// This call makes no progress.
    ///
    /// # Errors
    /// [`Error::NoSuchRequest`].
    pub fn test(&mut self, request: Request) -> Result<Option<Completion>, Error> {
        let is_done = matches!(self.requests.find(request.0)?.state, State::Done);
        Ok(if is_done { self.requests.take(request.0) } else { None })
    }

    /// Returns the oldest completion in the completion queue. [`Endpoint::test`] and
    /// [`Endpoint::wait`] remove the completions that they return.
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.requests.take_first()
    }

    /// Makes progress until `request` is complete.
    ///
    /// # Errors
    /// [`Error::Timeout`] and [`Error::Interrupted`]: the request is still outstanding.
    /// [`Error::NoSuchRequest`], [`Error::Portals`]. The completion reports the failure of the
    /// request itself.
    pub fn wait(
        &mut self,
        request: Request,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Completion, Error> {
        self.wait_until("a request", deadline, cancel, |endpoint| endpoint.test(request))
    }

    /// Makes progress until a completion is in the queue.
    ///
    /// # Errors
    /// As [`Endpoint::wait`].
    pub fn wait_next(&mut self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<Completion, Error> {
        self.wait_until("any request", deadline, cancel, |endpoint| Ok(endpoint.next_completion()))
    }

    /// Makes progress until all sent messages are in memory of their receivers.
    ///
    /// # Errors
    /// As [`Endpoint::wait`].
    pub fn flush(&mut self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<(), Error> {
        self.wait_until("the receivers", deadline, cancel, |endpoint| {
            let is_flushed = endpoint.unacknowledged() == 0 && endpoint.peers.have_no_data_to_send();
            Ok(is_flushed.then_some(()))
        })
    }

    /// Makes progress until `check` returns a result.
    fn wait_until<R>(
        &mut self,
        operation: &'static str,
        deadline: Deadline,
        cancel: Option<&Cancel>,
        mut check: impl FnMut(&mut Self) -> Result<Option<R>, Error>,
    ) -> Result<R, Error> {
        let mut relax = Relax::new();
        loop {
            if let Some(value) = check(self)? {
                return Ok(value);
            }
            if self.progress()? > 0 {
                relax.reset();
                if !deadline.has_passed() && !cancel.is_some_and(Cancel::is_cancelled) {
                    continue;
                }
            }

            if let Some(value) = check(self)? {
                return Ok(value);
            }
            let waiter = Waiter::new(self.objects.interface.device(), deadline, cancel);
            waiter.check().map_err(|end| Error::of_wait(end, operation))?;
            self.relax(&mut relax)?;
        }
    }

    /// Pauses in one iteration of a loop that waits for the endpoint.
    ///
    /// # Errors
    /// Those of a lost card.
    pub fn relax(&self, relax: &mut Relax) -> Result<(), Error> {
        Ok(self.objects.interface.device().relax(relax)?)
    }

    /// Handles arrived events, and sends queued messages as far as possible. Returns the number of
    /// steps. Never blocks.
    ///
    /// # Errors
    /// Those of a lost card, and of events that were lost, for which the endpoint as a whole has
    /// failed.
    pub fn progress(&mut self) -> Result<usize, Error> {
        charge(Cost::Progress, 1);
        if let Some(error) = self.deferred.take() {
            return Err(error);
        }
        let mut steps = self.take_unexpected()?;
        steps += self.take_events()?;

        if std::mem::take(&mut self.has_work) {
            self.post_idle_buffers()?;
            self.start_fetches()?;
            self.send_waiting()?;
            self.post_pending()?;
        }
        if !self.messages.full.is_empty() {
            self.relieve_full_windows();
        }
        self.check_peers()?;
        Ok(steps)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // In a child of `fork`, the messages are the parent's.
        if self.objects.interface.device().is_inherited() {
            return;
        }

        let deadline = Deadline::after(MAX_LINGER.min(self.config.patience));
        while self.peers.has_unsent() && !deadline.has_passed() {
            if self.progress().is_err() {
                return;
            }
            runtime::sleep(Duration::from_micros(10));
        }
    }
}
