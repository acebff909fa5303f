//! The callbacks of the message layer: where messages go, and what their ends mean.

use std::collections::VecDeque;

use nicforge_bgl::message::{Arrival, Buffer, Callbacks, Disposition, MAX_SINGLE, Received, Sent};
use nicforge_matching::{Rank, TransportError};
use zerocopy::FromBytes;

use crate::{
    Core, Statistics,
    gets::{Asked, Gets, MAX_ASKED},
    information::{Information, Kind, Question},
    peers::{Held, Message, Peer, Presence},
    regions::Regions,
};

/// The tags that the matching layer gives its messages.
pub(crate) const TAGS: std::ops::RangeInclusive<u8> = 1..=7;

/// All of the transport but the message layer, which calls it.
#[derive(Debug)]
pub(crate) struct Program {
    /// State of each rank. The entry of this one has no meaning.
    pub(crate) peers: Vec<Peer>,
    /// The rank of each core; `None` for cores outside the job.
    ranks_of_cores: Vec<Option<Rank>>,
    pub(crate) regions: Regions,
    pub(crate) gets: Gets,
    pub(crate) pool: Pool,
    /// Ranks with messages in their inbox, each once, in the order of their turns.
    pub(crate) ready: VecDeque<Rank>,
    /// Ranks of `ready` whose message the endpoint has refused in this poll. Empty outside a poll.
    pub(crate) refused: Vec<Rank>,
    /// A rank has come with a message, so its life was not read. It may have ended already.
    pub(crate) must_look: bool,
    /// This rank's life.
    life: u16,
    /// Maximum number of messages in an inbox.
    window: usize,
    pub(crate) statistics: Statistics,
}

/// Memory of messages that have ended, for new ones. The path of a message then allocates nothing.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Memory of messages of one packet.
    small: Vec<Vec<u8>>,
    /// Memory of gets.
    large: Vec<Vec<u8>>,
    /// Bytes of `large`.
    large_bytes: usize,
    /// Greatest number of these bytes.
    max_large_bytes: usize,
}

/// Pieces of memory of each kind that are kept.
const KEPT: usize = 64;

impl Pool {
    /// Returns a pool that keeps up to `max_large_bytes` bytes of gets.
    fn new(max_large_bytes: usize) -> Self {
        Self { small: Vec::new(), large: Vec::new(), large_bytes: 0, max_large_bytes }
    }

    /// Returns empty memory for a message of so many bytes.
    pub(crate) fn take(&mut self, length: usize) -> Vec<u8> {
        if length <= MAX_SINGLE {
            return self.small.pop().unwrap_or_else(|| Vec::with_capacity(MAX_SINGLE));
        }
        let memory = self.large.pop().unwrap_or_default();
        self.large_bytes -= memory.capacity();
        memory
    }

    /// Returns a buffer of so many bytes, to receive into.
    fn buffer(&mut self, length: usize) -> Buffer {
        let mut memory = self.take(length);
        memory.resize(length, 0);
        Buffer::from(memory)
    }

    /// Keeps the memory of a message that has ended.
    pub(crate) fn give(&mut self, mut memory: Vec<u8>) {
        memory.clear();
        let bytes = memory.capacity();
        if bytes <= MAX_SINGLE {
            if self.small.len() < KEPT && bytes > 0 {
                self.small.push(memory);
            }
        } else if self.large.len() < KEPT && bytes <= self.max_large_bytes - self.large_bytes {
            self.large_bytes += bytes;
            self.large.push(memory);
        }
    }
}

impl Program {
    /// Returns the state of a job in which no rank has come yet.
    pub(crate) fn new(cores: &[Core], all_cores: u16, life: u16, config: &crate::Config) -> Self {
        let mut ranks_of_cores = vec![None; all_cores.into()];
        for (rank, core) in (0..).zip(cores) {
            if let Some(entry) = ranks_of_cores.get_mut(usize::from(core.0)) {
                *entry = Some(rank);
            }
        }

        Self {
            peers: cores.iter().map(|&core| Peer::new(core)).collect(),
            ranks_of_cores,
            regions: Regions::default(),
            gets: Gets::new(config.gets, cores.len(), config.get_delay),
            pool: Pool::new(config.gets * config.get_bytes + config.longest_answer()),
            ready: VecDeque::with_capacity(cores.len()),
            refused: Vec::with_capacity(cores.len()),
            must_look: false,
            life,
            window: config.window,
            statistics: Statistics::default(),
        }
    }

    /// Returns the rank of a core of the job.
    fn rank_of(&self, core: Core) -> Option<Rank> {
        *self.ranks_of_cores.get(usize::from(core.0))?
    }

    /// Admits the first process that sends as `rank`. Returns whether this process is the admitted
    /// one.
    ///
    /// The core of a rank that has ended may have other software before the loss is noticed.
    fn admit(&mut self, rank: Rank, life: u16) -> bool {
        let peer = &mut self.peers[rank as usize];
        if peer.presence == Presence::Absent {
            peer.presence = Presence::Present(life);
            self.must_look = true;
        }
        peer.life() == Some(life)
    }

    /// Returns the disposition of a message of the matching layer.
    fn place_message(&mut self, rank: Rank, arrival: &Arrival) -> Disposition {
        let peer = &mut self.peers[rank as usize];
        if peer.has_room(self.window) && peer.held.is_empty() {
            return Disposition::Receive(self.pool.buffer(arrival.length));
        }
        peer.held.push_back(Held { handle: arrival.handle, length: arrival.length });
        self.statistics.held += 1;
        Disposition::Later
    }

    /// Returns the next message that the message layer keeps for a rank's inbox, if that has room,
    /// with a buffer for it.
    pub(crate) fn next_held(&mut self, rank: Rank) -> Option<(Held, Buffer)> {
        let peer = &mut self.peers[rank as usize];
        if !peer.has_room(self.window) {
            return None;
        }
        let held = peer.held.pop_front()?;
        Some((held, self.pool.buffer(held.length)))
    }

    /// Puts a message of the matching layer into its inbox.
    fn store_message(&mut self, rank: Rank, tag: u8, bytes: Vec<u8>) {
        let peer = &mut self.peers[rank as usize];
        if peer.inbox.is_empty() {
            self.ready.push_back(rank);
        }
        peer.inbox.push_back(Message { tag, bytes });
    }

    /// Notes a get of another rank.
    fn store_question(&mut self, rank: Rank, information: &Information, bytes: &[u8]) {
        let Ok(question) = Question::read_from_bytes(bytes) else { return };
        let peer = &mut self.peers[rank as usize];
        if peer.asked >= MAX_ASKED {
            self.statistics.strays += 1;
            return;
        }
        peer.asked += 1;
        self.gets.asked.push_back(Asked {
            rank,
            get: information.get.get(),
            key: question.key.get(),
            offset: question.offset.get(),
            length: information.length.get(),
        });
    }

    /// Ends a get with its data, or with an error if there are none.
    fn finish_get(&mut self, rank: Rank, number: u32, data: Option<&[u8]>) {
        let Some(get) = self.gets.end(number, rank) else { return };
        let offset = get.local.remote.offset + get.local_offset as u64;
        let is_written = data.is_some_and(|data| self.regions.write(get.local.handle, offset, data));

        let refused = TransportError { what: "a get was refused", value: get.remote.key };
        let result = if is_written { Ok(()) } else { Err(refused) };
        self.statistics.failed_gets += u64::from(result.is_err());
        self.gets.report(get.cookie, result);
    }
}

impl Callbacks for Program {
    fn recvnew(&mut self, arrival: &Arrival) -> Disposition {
        let information = Information::of_bytes(arrival.information);
        let (rank, kind) = (self.rank_of(arrival.source), information.kind());
        if let (Some(rank), Some(kind), true) = (rank, kind, information.life.get() == self.life)
            && self.admit(rank, arrival.life)
        {
            match kind {
                Kind::Message if arrival.length <= MAX_SINGLE && TAGS.contains(&information.tag) => {
                    return self.place_message(rank, arrival);
                }
                Kind::Get if arrival.length == size_of::<Question>() => {
                    return Disposition::Receive(self.pool.buffer(arrival.length));
                }
                Kind::Data if self.gets.begin_arrival(information.get.get(), rank, arrival.length) => {
                    return Disposition::Receive(self.pool.buffer(arrival.length));
                }
                Kind::Refusal => {
                    self.finish_get(rank, information.get.get(), None);
                    return Disposition::Discard;
                }
                Kind::Message | Kind::Get | Kind::Data => {}
            }
        }
        self.statistics.strays += 1;
        Disposition::Discard
    }

    fn recvdone(&mut self, received: Received) {
        let Received { source, information, buffer, result, handle, .. } = received;
        let Some(rank) = self.rank_of(source) else { return };
        let information = Information::of_bytes(information);
        // A message that ends while it is held has failed: its connection has ended.
        self.peers[rank as usize].held.retain(|held| held.handle != handle);
        let Some(memory) = buffer.map(Buffer::into_memory) else { return };
        if result.is_err() {
            // The gets of a lost rank end with its loss.
            self.pool.give(memory);
            return;
        }

        match information.kind() {
            Some(Kind::Message) => {
                self.store_message(rank, information.tag, memory);
                return;
            }
            Some(Kind::Get) => self.store_question(rank, &information, &memory),
            Some(Kind::Data) => self.finish_get(rank, information.get.get(), Some(&memory)),
            Some(Kind::Refusal) | None => {}
        }
        self.pool.give(memory);
    }

    fn senddone(&mut self, sent: Sent) {
        if let Some(rank) = self.rank_of(sent.destination) {
            let peer = &mut self.peers[rank as usize];
            peer.sends = peer.sends.saturating_sub(1);
            // All other messages are shorter.
            if sent.buffer.len() > MAX_SINGLE {
                peer.answering = peer.answering.saturating_sub(sent.buffer.len());
            }
        }
        self.pool.give(sent.buffer.into_memory());
    }
}
