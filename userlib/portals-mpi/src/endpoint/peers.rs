//! Peers: windows of messages, readiness, and the end of one.
//!
//! Portals reports the end of a node for messages to it, and nothing of the end of a process: its
//! messages are dropped. A rank that waits for a peer therefore asks it now and then for an
//! acknowledgement, which its card sends without the process. In host-based mode its kernel does:
//! in the calls of its process, or on a thread of [`nicforge_portals::Kernel::serve`]. A peer that
//! does not answer for [`Config::patience`] is gone.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use nicforge_driver::runtime::Instant;
use nicforge_matching::{Kind, Rank};
use nicforge_portals::{Interface, ProcessId};

use super::{
    Endpoint,
    events::MAX_EVENTS,
    notices::Notice,
    objects::PROBE,
    quota::{Quota, Usage},
    requests::State,
    window::Window,
};
use crate::{Config, Error, Job, Loss, pool::Handle};

/// Number of calls of `progress` between two readings of the clock.
const CALLS_PER_CLOCK_READ: u32 = 64;
/// Number of probes that a silent peer gets within [`Config::patience`].
const PROBES: u32 = 4;
/// Maximum number of probes at a time to ranks that have not answered yet.
const MAX_PROBES: usize = MAX_EVENTS / 2;

/// State of a peer's process, as far as this rank knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    /// It has not answered yet.
    Unknown,
    /// It has answered.
    Ready,
    /// It counts as ended, for this reason.
    Gone(Loss),
}

/// Messages that wait for room to leave for a peer.
#[derive(Default)]
pub(super) struct Waiting {
    /// Notices, in order, with the ids of the messages that they concern.
    pub(super) notices: VecDeque<(Notice, u64)>,
    /// Ids of messages whose data the peer has asked for again.
    pub(super) repeats: VecDeque<u64>,
    /// Sends, in order.
    pub(super) sends: VecDeque<Handle>,
    /// The rank is in the list of those for which something waits.
    pub(super) is_listed: bool,
}

impl Waiting {
    /// Returns whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.notices.is_empty() && self.has_no_data()
    }

    /// Returns whether no message waits that has data.
    fn has_no_data(&self) -> bool {
        self.repeats.is_empty() && self.sends.is_empty()
    }
}

/// How long a peer has not answered.
#[derive(Default)]
struct Silence {
    /// Time of the first probe that the peer has not answered.
    since: Option<Instant>,
    /// Number of probes since then.
    probes: u32,
    /// A probe message has left. Otherwise puts that the peer's card has not taken serve as probes.
    is_probe_sent: bool,
}

/// State of another rank.
pub(super) struct Peer {
    pub(super) process: ProcessId,
    health: Health,
    /// Messages to it that it has not acknowledged.
    pub(super) window: Window,
    pub(super) waiting: Waiting,
    /// Operations in progress with it.
    usage: Usage,
    /// Number of receives that name it as their source, and of fetches from it.
    pub(super) awaited: u32,
    /// Fetches from it in progress.
    pub(super) fetches: u16,
    /// Time at which it was told that its window is full, unless it has answered.
    pub(super) told_full: Option<Instant>,
    silence: Silence,
}

impl Peer {
    /// Makes the state of a rank that has not answered. `window` is the number of messages in its
    /// window.
    fn new(process: ProcessId, window: u16) -> Self {
        Self {
            process,
            health: Health::Unknown,
            window: Window::new(window),
            waiting: Waiting::default(),
            usage: Usage::default(),
            awaited: 0,
            fetches: 0,
            told_full: None,
            silence: Silence::default(),
        }
    }

    /// Returns why the peer counts as gone, or `None` for one that can get messages.
    pub(super) fn loss(&self) -> Option<Loss> {
        match self.health {
            Health::Gone(why) => Some(why),
            Health::Unknown | Health::Ready => None,
        }
    }
}

/// The ranks of the job.
pub(super) struct Peers {
    local_rank: Rank,
    /// The rank of each process.
    ranks: HashMap<ProcessId, Rank>,
    /// State of each rank, this one included.
    peers: Vec<Peer>,
    quota: Quota,
    /// Number of calls of [`Endpoint::progress`], modulo 2^32.
    calls: u32,
    /// Time at which the peers must be checked next.
    next_check: Option<Instant>,
    /// The first rank of the next round of probes to ranks that have not answered.
    next_probed: usize,
}

impl Peers {
    /// Makes the state of a job's ranks, none of which has answered. The interface's process must
    /// be one of them.
    pub(super) fn new(interface: &Interface, job: &Job, config: &Config) -> Result<Self, Error> {
        let ranks = job.ranks()?;
        let process = interface.id();
        let local_rank = *ranks.get(&process).ok_or(Error::NotOfJob { process })?;

        let window = config.window_of(job.size());
        let processes = (0..job.size()).filter_map(|rank| job.process(rank));
        let peers = processes.map(|process| Peer::new(process, window)).collect();
        let quota = Quota::new(interface.operations());
        Ok(Self { local_rank, ranks, peers, quota, calls: 0, next_check: None, next_probed: 0 })
    }

    /// Returns the rank of this process.
    pub(super) fn local_rank(&self) -> Rank {
        self.local_rank
    }

    pub(super) fn size(&self) -> u32 {
        self.peers.len() as u32
    }

    /// Returns the rank of a process.
    pub(super) fn rank_of(&self, process: ProcessId) -> Option<Rank> {
        self.ranks.get(&process).copied()
    }

    pub(super) fn get(&self, rank: Rank) -> Option<&Peer> {
        self.peers.get(rank as usize)
    }

    pub(super) fn get_mut(&mut self, rank: Rank) -> Option<&mut Peer> {
        self.peers.get_mut(rank as usize)
    }

    /// Returns whether all ranks have answered, or have ended since.
    pub(super) fn are_ready(&self) -> bool {
        self.peers.iter().all(|peer| peer.health != Health::Unknown)
    }

    /// Returns the number of messages that their receivers have not acknowledged.
    pub(super) fn unacknowledged(&self) -> usize {
        self.peers.iter().map(|peer| peer.window.len()).sum()
    }

    /// Returns whether a message or a notice has not left, or no card has taken a message yet.
    pub(super) fn has_unsent(&self) -> bool {
        self.peers.iter().any(|peer| !peer.waiting.is_empty() || peer.window.has_put_in_progress())
    }

    /// Returns whether no send waits, and no message that a receiver has asked for.
    pub(super) fn have_no_data_to_send(&self) -> bool {
        self.peers.iter().all(|peer| peer.waiting.has_no_data())
    }

    /// Returns whether a put of data to a rank may begin, or a get from it.
    pub(super) fn has_room(&self, rank: Rank) -> bool {
        self.get(rank).is_some_and(|peer| self.quota.has_room(&peer.usage))
    }

    /// Counts a put that has begun.
    pub(super) fn begin_put(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            self.quota.begin_put(&mut peer.usage);
        }
    }

    /// Counts the end of a put. If only puts served as probes, the peer's silence ends.
    pub(super) fn end_put(&mut self, rank: Rank) {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        self.quota.end_put(&mut peer.usage);
        if !peer.silence.is_probe_sent {
            peer.silence = Silence::default();
        }
    }

    /// Counts a get that has begun.
    pub(super) fn begin_get(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            self.quota.begin_get(&mut peer.usage);
        }
    }

    /// Counts the end of a get.
    pub(super) fn end_get(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            self.quota.end_get(&mut peer.usage);
        }
    }

    /// Records that a rank has answered a probe.
    pub(super) fn record_answer(&mut self, rank: Rank) {
        let Some(peer) = self.get_mut(rank).filter(|peer| peer.loss().is_none()) else { return };
        peer.health = Health::Ready;
        peer.silence = Silence::default();
    }

    /// Counts a call of [`Endpoint::progress`]. Returns whether the check of the peers is due. If
    /// so, the next one is due after `interval`.
    fn take_due_check(&mut self, interval: Duration) -> bool {
        self.calls = self.calls.wrapping_add(1);
        if !self.calls.is_multiple_of(CALLS_PER_CLOCK_READ) {
            return false;
        }

        let now = Instant::now();
        if self.next_check.is_some_and(|time| now < time) {
            return false;
        }
        self.next_check = Some(now + interval);
        true
    }
}

impl Endpoint {
    /// Sends a control message. `bits` tells its kind, and `id` is that of the message that it
    /// concerns. Returns `false` if there is no room for it.
    pub(super) fn send_control(&mut self, to: Rank, bits: u64, id: u64) -> Result<bool, Error> {
        let Peers { peers, quota, .. } = &mut self.peers;
        let Some(peer) = peers.get_mut(to as usize) else { return Ok(true) };
        if !quota.has_room_for_control(&peer.usage) || !self.objects.put_control(peer.process, bits, id)? {
            return Ok(false);
        }
        quota.begin_put(&mut peer.usage);
        Ok(true)
    }

    /// Probes some of the ranks that have not answered yet; the next call goes on with others. A
    /// probe has two events. The bound keeps their number below that of the events which
    /// [`Endpoint::progress`] takes, so that the queue does not fill while many ranks start.
    pub(super) fn probe_unready(&mut self) -> Result<(), Error> {
        let size = self.peers.peers.len();
        let first = self.peers.next_probed.min(size);
        let mut probed = 0;
        for rank in (first..size).chain(0..first) {
            let is_unready = self.peers.peers.get(rank).is_some_and(|peer| peer.health == Health::Unknown);
            // Without room, a later round probes the rank.
            if is_unready && self.send_control(rank as Rank, PROBE, 0)? {
                self.peers.next_probed = rank + 1;
                probed += 1;
            }
            if probed == MAX_PROBES {
                break;
            }
        }
        Ok(())
    }

    /// Probes the peers that this rank waits for, and gives up those that do not answer.
    pub(super) fn check_peers(&mut self) -> Result<(), Error> {
        let patience = self.config.patience;
        if !self.peers.take_due_check(patience / (2 * PROBES)) {
            return Ok(());
        }

        let now = Instant::now();
        for rank in 0..self.size() {
            let Some(peer) = self.peers.get_mut(rank) else { break };
            let is_needed = peer.window.len() > 0 || peer.awaited > 0 || !peer.waiting.sends.is_empty();
            if !is_needed || peer.health != Health::Ready {
                peer.silence = Silence::default();
                continue;
            }

            // The probes are spread evenly over the patience.
            let Silence { probes, since, .. } = peer.silence;
            let waited = now.saturating_duration_since(since.unwrap_or(now));
            if probes > 1 && waited > patience {
                self.lose(rank, Loss::Silent)?;
            } else if waited >= patience / PROBES * probes {
                self.probe(rank, now)?;
            }
        }
        Ok(())
    }

    /// Sends a probe to a peer, whose card or kernel answers it. Without room for it, a put that
    /// the peer's card has not taken serves as the probe: its end shows that the peer answers. So a
    /// peer is also found silent when puts to it have used up the room for probes.
    fn probe(&mut self, rank: Rank, now: Instant) -> Result<(), Error> {
        let has_left = self.send_control(rank, PROBE, 0)?;
        let Some(peer) = self.peers.get_mut(rank) else { return Ok(()) };
        if !has_left && peer.usage.puts == 0 {
            // The next check tries again.
            return Ok(());
        }

        peer.silence.since.get_or_insert(now);
        peer.silence.probes += 1;
        peer.silence.is_probe_sent |= has_left;
        self.ask_for_messages(rank);
        Ok(())
    }

    /// Counts a rank as gone that has answered before: all requests that wait for it fail. The
    /// memory of a message stays in use while the card may read it: a rank that only counts as
    /// silent may still accept the message. The call goes on after an error, and returns the first
    /// one.
    pub(super) fn lose(&mut self, rank: Rank, why: Loss) -> Result<(), Error> {
        let Some(peer) = self.peers.get_mut(rank).filter(|peer| peer.health == Health::Ready) else {
            return Ok(());
        };
        peer.health = Health::Gone(why);
        self.has_work = true;
        let peer_gone = Error::PeerGone { peer: rank, why };
        let mut result = Ok(());

        let queued = std::mem::take(&mut peer.waiting.sends);
        for message in peer.window.drain() {
            result = result.and(self.end_send(rank, message, Err(peer_gone.clone())));
        }
        for handle in queued {
            self.fail(handle, peer_gone.clone());
        }

        for handle in self.requests.receives_of(|source| source == Some(rank)) {
            let is_waiting = self
                .requests
                .get(handle)
                .is_some_and(|entry| matches!(entry.state, State::Pending | State::Posted(_)));
            match if is_waiting { self.withdraw(handle) } else { Ok(false) } {
                Ok(true) => self.fail(handle, peer_gone.clone()),
                Ok(false) => {}
                Err(error) => result = result.and(Err(error)),
            }
        }
        result.and(self.lose_fetches(rank, peer_gone))
    }

    /// Completes a request with an error, unless it is complete already.
    pub(super) fn fail(&mut self, handle: Handle, error: Error) {
        self.complete(handle, 0, Err(error));
    }

    /// Completes a request, unless it is complete already. `length` is the number of bytes sent or
    /// received.
    pub(super) fn complete(&mut self, handle: Handle, length: usize, result: Result<(), Error>) {
        let Some(entry) = self.requests.complete(handle, length, result) else { return };
        if entry.kind != Kind::Receive {
            return;
        }
        match entry.selector.source {
            None => self.receives.from_any = self.receives.from_any.saturating_sub(1),
            Some(source) => {
                if let Some(peer) = self.peers.get_mut(source) {
                    peer.awaited = peer.awaited.saturating_sub(1);
                }
            }
        }
    }
}
