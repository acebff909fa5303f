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
use nicforge_portals::{Interface, MemoryDescriptor, ProcessId};

use super::{
    Endpoint,
    card::{QUESTION, Source},
    events::MAX_EVENTS,
    requests::State,
};
use crate::{Config, Error, Job, Loss, bits, pool::Handle};

/// Idle calls of `progress` between two looks at the clock.
const IDLE_CALLS: u32 = 64;
/// Questions within the patience.
const QUESTIONS: u32 = 4;
/// Maximum number of questions at once to ranks that have not answered yet.
const MAX_QUESTIONS: usize = MAX_EVENTS / 2;

/// A message that its receiver has not acknowledged.
pub(super) struct InFlight {
    /// Its name for the receiver, of all messages from this rank to that one.
    pub(super) id: u64,
    pub(super) source: Source,
    pub(super) length: u64,
    /// The request, unless that is complete.
    pub(super) request: Option<Handle>,
    /// The descriptor from which the receiver can get a long message.
    pub(super) exposed: Option<MemoryDescriptor>,
    /// Puts of the message whose end the own card has not reported. Until then the card may read
    /// the source.
    pub(super) puts: u32,
}

impl InFlight {
    pub(super) fn new(id: u64, source: Source, length: u64, request: Option<Handle>) -> Self {
        Self { id, source, length, request, exposed: None, puts: 1 }
    }
}

/// Whether a peer can get messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    /// It has not answered yet.
    Unknown,
    /// It has answered.
    Ready,
    /// It counts as ended.
    Gone(Loss),
}

/// State of another rank.
pub(super) struct Peer {
    pub(super) process: ProcessId,
    health: Health,
    /// Messages by number, and the last name of each number.
    window: Vec<Option<InFlight>>,
    ids: Vec<u64>,
    /// Free numbers.
    free: Vec<u8>,
    /// Sends that wait, in order.
    pub(super) queue: VecDeque<Handle>,
    /// Receives that name it, and fetches from it.
    pub(super) awaited: u32,
    /// Time of its last answer, or of the first question that it has not answered.
    heard: Option<Instant>,
    /// Questions since then.
    questions: u32,
}

impl Peer {
    fn new(process: ProcessId, window: u16) -> Self {
        let numbers = 0..usize::from(window);
        Self {
            process,
            health: Health::Unknown,
            window: numbers.clone().map(|_| None).collect(),
            ids: numbers.clone().map(|number| number as u64).collect(),
            free: numbers.rev().map(|number| number as u8).collect(),
            queue: VecDeque::new(),
            awaited: 0,
            heard: None,
            questions: 0,
        }
    }

    /// Returns why the peer counts as gone, or `None` for one that can get messages.
    pub(super) fn loss(&self) -> Option<Loss> {
        match self.health {
            Health::Gone(why) => Some(why),
            Health::Unknown | Health::Ready => None,
        }
    }

    fn in_flight(&self) -> usize {
        self.window.len() - self.free.len()
    }

    /// Returns the name of the next message, if the window is not full.
    pub(super) fn next_id(&self) -> Option<u64> {
        let number = usize::from(*self.free.last()?);
        // The number is below the name's lowest byte; the rest counts its uses.
        Some(self.ids.get(number)?.wrapping_add(1 << bits::NUMBER_BITS))
    }

    /// Enters a message, whose name is that of [`Peer::next_id`].
    pub(super) fn enter(&mut self, message: InFlight) {
        let Some(number) = self.free.pop().map(usize::from) else { return };
        self.ids[number] = message.id;
        self.window[number] = Some(message);
    }

    /// Returns the message of a name.
    pub(super) fn find(&mut self, id: u64) -> Option<&mut InFlight> {
        let message = self.window.get_mut(usize::from(bits::number(id)))?.as_mut()?;
        (message.id == id).then_some(message)
    }

    /// Returns whether there is a message of a name.
    pub(super) fn has(&self, id: u64) -> bool {
        let message = self.window.get(usize::from(bits::number(id))).and_then(Option::as_ref);
        message.is_some_and(|message| message.id == id)
    }

    /// Removes the message of a number.
    pub(super) fn leave(&mut self, number: u8) -> Option<InFlight> {
        let message = self.window.get_mut(usize::from(number))?.take()?;
        self.free.push(number);
        Some(message)
    }
}

/// The ranks of the job.
pub(super) struct Peers {
    own: Rank,
    ranks: HashMap<ProcessId, Rank>,
    peers: Vec<Peer>,
    idle: u32,
    next_look: Option<Instant>,
    /// Rank from which ranks that have not answered are asked next.
    next_asked: usize,
}

impl Peers {
    pub(super) fn new(interface: &Interface, job: &Job, config: &Config) -> Result<Self, Error> {
        let ranks = job.ranks()?;
        let process = interface.id();
        let own = *ranks.get(&process).ok_or(Error::NotOfJob { process })?;

        let window = config.window_of(job.size());
        let processes = (0..job.size()).filter_map(|rank| job.process(rank));
        let peers = processes.map(|process| Peer::new(process, window)).collect();
        Ok(Self { own, ranks, peers, idle: 0, next_look: None, next_asked: 0 })
    }

    /// Returns the rank of this process.
    pub(super) fn own(&self) -> Rank {
        self.own
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

    pub(super) fn unacknowledged(&self) -> usize {
        self.peers.iter().map(Peer::in_flight).sum()
    }

    /// Returns whether a message has not left, or no card has taken it yet.
    pub(super) fn has_unsent(&self) -> bool {
        let is_unsent = |message: &InFlight| message.puts > 0;
        self.peers.iter().any(|peer| !peer.queue.is_empty() || peer.window.iter().flatten().any(is_unsent))
    }

    /// Records that a rank has answered.
    pub(super) fn answered(&mut self, rank: Rank) {
        let Some(peer) = self.get_mut(rank).filter(|peer| peer.loss().is_none()) else { return };
        peer.health = Health::Ready;
        peer.heard = None;
        peer.questions = 0;
    }

    /// Counts an idle call, and begins a look after the peers if it is time. Returns whether it is.
    fn begin_check(&mut self, interval: Duration) -> bool {
        self.idle = self.idle.wrapping_add(1);
        if !self.idle.is_multiple_of(IDLE_CALLS) {
            return false;
        }

        let now = Instant::now();
        if self.next_look.is_some_and(|time| now < time) {
            return false;
        }
        self.next_look = Some(now + interval);
        true
    }
}

impl Endpoint {
    /// Asks some of the ranks that have not answered yet, and others the next time. A question has
    /// two events. The bound keeps their number below that of the events which
    /// [`Endpoint::progress`] takes, so that the queue does not fill while many ranks start.
    pub(super) fn ask_unready(&mut self) -> Result<(), Error> {
        let Peers { peers, next_asked, .. } = &mut self.peers;
        let (before, from) = peers.split_at((*next_asked).min(peers.len()));
        let in_turn = (*next_asked..).zip(from).chain((0..).zip(before));

        let unready = in_turn.filter(|(_, peer)| peer.health == Health::Unknown);
        for (asked, (rank, peer)) in unready.enumerate() {
            // Without room the next round asks.
            if asked == MAX_QUESTIONS || !self.card.control(peer.process, QUESTION, 0)? {
                *next_asked = rank;
                break;
            }
        }
        Ok(())
    }

    /// Asks the peers that this rank waits for, and gives up those that do not answer.
    pub(super) fn check_peers(&mut self) -> Result<(), Error> {
        let interval = self.config.patience / (2 * QUESTIONS);
        if !self.peers.begin_check(interval) {
            return Ok(());
        }

        let now = Instant::now();
        for rank in 0..self.size() {
            let Some(peer) = self.peers.get_mut(rank) else { break };
            let is_needed = peer.in_flight() > 0 || peer.awaited > 0 || !peer.queue.is_empty();
            if !is_needed || peer.health != Health::Ready {
                peer.heard = None;
                peer.questions = 0;
                continue;
            }

            let waited = now.saturating_duration_since(*peer.heard.get_or_insert(now));
            if peer.questions > 1 && waited > self.config.patience {
                self.lose(rank, Loss::Silent)?;
            } else if waited >= self.config.patience / QUESTIONS * peer.questions
                && self.card.control(peer.process, QUESTION, 0)?
            {
                // The patience begins with the first question. Without room none was sent.
                if peer.questions == 0 {
                    peer.heard = Some(now);
                }
                peer.questions += 1;
                self.ask_for_messages(rank)?;
            }
        }
        Ok(())
    }

    /// Ends all that waits for a rank, if it has answered before. The memory of a message stays in
    /// use while the card may read it: a rank that is only taken for silent may still accept it.
    /// Goes on after an error, and returns the first one.
    pub(super) fn lose(&mut self, rank: Rank, why: Loss) -> Result<(), Error> {
        let Some(peer) = self.peers.get_mut(rank).filter(|peer| peer.health == Health::Ready) else {
            return Ok(());
        };
        peer.health = Health::Gone(why);
        self.has_work = true;
        let peer_gone = Error::PeerGone { peer: rank, why };
        let mut result = Ok(());

        let queued = std::mem::take(&mut peer.queue);
        let messages: Vec<_> = peer.window.iter_mut().filter_map(Option::take).collect();
        peer.free = (0..peer.window.len()).map(|number| number as u8).collect();
        for message in messages {
            result = result.and(self.end_send(rank, message, Err(peer_gone.clone())));
        }
        for handle in queued {
            self.fail(handle, peer_gone.clone());
        }

        for handle in self.requests.receives_from(rank) {
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

    /// Completes a request with an error.
    pub(super) fn fail(&mut self, handle: Handle, error: Error) {
        self.complete(handle, 0, Err(error));
    }

    /// Completes a request.
    pub(super) fn complete(&mut self, handle: Handle, length: usize, result: Result<(), Error>) {
        let Some(entry) = self.requests.complete(handle, length, result) else { return };
        if entry.kind == Kind::Receive
            && let Some(source) = entry.selector.source
            && let Some(peer) = self.peers.get_mut(source)
        {
            peer.awaited = peer.awaited.saturating_sub(1);
        }
    }
}
