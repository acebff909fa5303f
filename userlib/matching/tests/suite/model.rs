//! Compares any interleaving of operations on several ranks with the two lists of the MPI standard.
//! The operations are sends, receives, wildcards, cancels, probes and claims. The fabric delays
//! messages, and has no credits now and then.
//!
//! The content of a rank's lists depends on when messages arrive. A recorder below the endpoint
//! notes the arrivals. So the model of each rank sees exactly the same sequence, and determines
//! which receive gets which message.

#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests; the recorder is a transport"
)]

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
};

use crate::common::{MAX_ROUNDS, pattern};
use nicforge_matching::{
    Access, Completion, Config, Endpoint, Envelope, Error, Get, Gone, Kind, Memory, Message, Mode, Rank,
    Region, Request, Selector, Taken, Transport, TransportError,
    memory::{Fabric, FabricConfig, FabricPort},
    wire,
};
use proptest::prelude::*;

/// Sources of the messages that have arrived, in order.
type Log = Arc<Mutex<Vec<Rank>>>;

/// Records the sources of the messages taken, without fragments.
struct Recorder {
    port: FabricPort,
    log: Log,
}

// SAFETY: the port keeps the contract.
unsafe impl Transport for Recorder {
    fn rank(&self) -> Rank {
        self.port.rank()
    }

    fn size(&self) -> u32 {
        self.port.size()
    }

    fn max_message_bytes(&self) -> usize {
        self.port.max_message_bytes()
    }

    fn max_get_bytes(&self) -> usize {
        self.port.max_get_bytes()
    }

    fn try_send(&mut self, to: Rank, tag: u8, message: &[u8]) -> Result<bool, TransportError> {
        self.port.try_send(to, tag, message)
    }

    fn poll(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Rank, u8, &[u8]) -> Taken,
    ) -> Result<usize, TransportError> {
        self.port.poll(budget, &mut |from, kind, bytes| {
            let taken = sink(from, kind, bytes);

            if taken == Taken::Yes && matches!(kind, wire::FIRST | wire::REQUEST) {
                self.log.lock().unwrap().push(from);
            }
            taken
        })
    }

    unsafe fn register(&mut self, memory: Memory, access: Access) -> Result<Option<Region>, TransportError> {
        // SAFETY: the caller's contract.
        unsafe { self.port.register(memory, access) }
    }

    fn deregister(&mut self, region: Region) {
        self.port.deregister(region);
    }

    fn start_get(&mut self, get: &Get) -> Result<bool, TransportError> {
        self.port.start_get(get)
    }

    fn poll_gets(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(u64, Result<(), TransportError>),
    ) -> Result<usize, TransportError> {
        self.port.poll_gets(budget, sink)
    }

    fn poll_gone(&mut self) -> Option<Gone> {
        self.port.poll_gone()
    }
}

const RANKS: u32 = 3;
/// Lengths around those of a message of the transport and of the eager threshold.
const LENGTHS: [usize; 12] = [0, 1, 31, 32, 33, 48, 49, 199, 200, 201, 1000, 5000];

/// One operation. `which` selects an outstanding request or a claimed message, modulo their number.
#[derive(Clone, Debug)]
enum Step {
    Send { from: Rank, to: Rank, context: u32, tag: u64, length: usize, synchronous: bool },
    Receive { rank: Rank, selector: Selector, capacity: usize },
    Progress { rank: Rank },
    CancelReceive { which: usize },
    CancelSend { which: usize },
    Probe { rank: Rank, selector: Selector },
    Claim { rank: Rank, selector: Selector },
    TakeClaimed { which: usize, capacity: Option<usize> },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let rank = || 0..RANKS;
    let selector = || {
        let ignore = prop::sample::select(vec![0, 0, 0, 1, 2, u64::MAX]);
        (prop::option::of(rank()), 0..2_u32, 0..4_u64, ignore)
            .prop_map(|(source, context, tag, ignore)| Selector { source, context, tag, ignore })
    };

    let length = || prop::sample::select(LENGTHS.to_vec());

    let step = prop_oneof![
        6 => (rank(), rank(), 0..2_u32, 0..4_u64, length(), prop::bool::weighted(0.2)).prop_map(
            |(from, to, context, tag, length, synchronous)| Step::Send { from, to, context, tag, length, synchronous }
        ),
        6 => (rank(), selector(), length())
            .prop_map(|(rank, selector, capacity)| Step::Receive { rank, selector, capacity }),
        8 => rank().prop_map(|rank| Step::Progress { rank }),
        1 => any::<usize>().prop_map(|which| Step::CancelReceive { which }),
        1 => any::<usize>().prop_map(|which| Step::CancelSend { which }),
        1 => (rank(), selector()).prop_map(|(rank, selector)| Step::Probe { rank, selector }),
        1 => (rank(), selector()).prop_map(|(rank, selector)| Step::Claim { rank, selector }),
        1 => (any::<usize>(), prop::option::of(length()))
            .prop_map(|(which, capacity)| Step::TakeClaimed { which, capacity }),
    ];

    prop::collection::vec(step, 0..250)
}

/// A message; `id` is the number of its send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent {
    id: u64,
    from: Rank,
    context: u32,
    tag: u64,
    length: usize,
}

impl Sent {
    fn envelope(&self) -> Envelope {
        Envelope::new(self.from, self.context, self.tag)
    }
}

/// The two lists of a rank.
#[derive(Default)]
struct Lists {
    posted: Vec<(u64, Selector)>,
    stored: Vec<Sent>,
}

struct Claimed {
    rank: Rank,
    message: Message,
    sent: Sent,
}

struct Harness {
    ranks: Vec<Endpoint<Recorder>>,
    logs: Vec<Log>,
    lists: Vec<Lists>,
    /// Messages of each pair of ranks that have not arrived.
    under_way: HashMap<(Rank, Rank), VecDeque<Sent>>,
    /// The message that each receive must get, by the receive's number.
    matches: HashMap<u64, Sent>,
    /// Outstanding receives: number, rank, handle and capacity.
    receives: Vec<(u64, Rank, Request, usize)>,
    /// Outstanding sends: number, source, destination and handle.
    sends: Vec<(u64, Rank, Rank, Request)>,
    claimed: Vec<Claimed>,
    next: u64,
}

impl Harness {
    fn new(fabric_config: FabricConfig, config: Config) -> Self {
        let (_, ports) = Fabric::new(RANKS, fabric_config);
        let logs: Vec<Log> = ports.iter().map(|_| Log::default()).collect();
        let recorders = ports.into_iter().zip(&logs).map(|(port, log)| Recorder { port, log: log.clone() });

        Self {
            ranks: recorders.map(|recorder| Endpoint::new(recorder, config).unwrap()).collect(),
            logs,
            lists: (0..RANKS).map(|_| Lists::default()).collect(),
            under_way: HashMap::new(),
            matches: HashMap::new(),
            receives: Vec::new(),
            sends: Vec::new(),
            claimed: Vec::new(),
            next: 0,
        }
    }

    /// Returns a new number for a request.
    fn new_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Adds an arriving message to a rank's lists.
    fn arrive(&mut self, rank: Rank, sent: Sent) {
        let lists = &mut self.lists[rank as usize];
        match lists.posted.iter().position(|(_, selector)| selector.matches(&sent.envelope())) {
            Some(position) => {
                let (receive, _) = lists.posted.remove(position);
                self.matches.insert(receive, sent);
            }
            None => lists.stored.push(sent),
        }
    }

    /// Makes progress on `rank`, repeats its arrivals in the model, and checks its completions.
    fn progress(&mut self, rank: Rank) {
        self.ranks[rank as usize].progress().unwrap();

        let arrived = std::mem::take(&mut *self.logs[rank as usize].lock().unwrap());
        for from in arrived {
            let sent = self.under_way.get_mut(&(from, rank)).unwrap().pop_front().unwrap();
            self.arrive(rank, sent);
        }

        while let Some(completion) = self.ranks[rank as usize].next_completion() {
            match completion.kind {
                Kind::Send => {
                    self.sends.retain(|&(id, ..)| id != completion.cookie);
                    assert!(matches!(completion.result, Ok(()) | Err(Error::Cancelled)));
                }
                Kind::Receive => self.check_receive(&completion),
            }
        }
    }

    /// Checks that a completed receive has the message that the model has matched with it.
    fn check_receive(&mut self, completion: &Completion) {
        let position = self.receives.iter().position(|&(id, ..)| id == completion.cookie).unwrap();
        let (id, _, _, capacity) = self.receives.swap_remove(position);

        if completion.result == Err(Error::Cancelled) {
            return;
        }

        let sent = self.matches.remove(&id).expect("it has no message in the model");

        assert_eq!(completion.envelope, sent.envelope());

        let expected = if sent.length > capacity {
            Err(Error::Truncated { length: sent.length as u64, capacity })
        } else {
            Ok(())
        };

        assert_eq!(completion.result, expected);
        assert_eq!(completion.length, sent.length.min(capacity));

        let data = &completion.buffer.as_slice()[..completion.length];
        assert!(data == &pattern(sent.id, sent.length)[..completion.length], "wrong data of {sent:?}");
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send { from, to, context, tag, length, synchronous } => {
                let id = self.new_number();

                let sent = Sent { id, from, context, tag, length };
                let mode = if synchronous { Mode::Synchronous } else { Mode::Standard };
                let envelope = Envelope::new(to, context, tag);
                let endpoint = &mut self.ranks[from as usize];
                let request = endpoint.isend(envelope, mode, pattern(id, length), id).unwrap();

                self.sends.push((id, from, to, request));

                if from == to {
                    self.arrive(to, sent);
                } else {
                    self.under_way.entry((from, to)).or_default().push_back(sent);
                }
            }
            Step::Receive { rank, selector, capacity } => {
                let id = self.new_number();
                let request = self.ranks[rank as usize].irecv(selector, vec![0; capacity], id).unwrap();
                self.receives.push((id, rank, request, capacity));

                let lists = &mut self.lists[rank as usize];
                match lists.stored.iter().position(|sent| selector.matches(&sent.envelope())) {
                    Some(position) => {
                        let sent = lists.stored.remove(position);
                        self.matches.insert(id, sent);
                    }
                    None => lists.posted.push((id, selector)),
                }
            }
            Step::Progress { rank } => self.progress(rank),
            Step::CancelReceive { which } if !self.receives.is_empty() => {
                let (id, rank, request, _) = self.receives[which % self.receives.len()];
                let posted = &mut self.lists[rank as usize].posted;
                let position = posted.iter().position(|&(receive, _)| receive == id);

                assert_eq!(self.ranks[rank as usize].cancel(request), Ok(position.is_some()));
                position.map(|position| posted.remove(position));
            }
            Step::CancelSend { which } if !self.sends.is_empty() => {
                let (id, from, to, request) = self.sends[which % self.sends.len()];
                if self.ranks[from as usize].cancel(request).unwrap() {
                    self.under_way.get_mut(&(from, to)).unwrap().retain(|sent| sent.id != id);
                }
            }
            Step::Probe { rank, selector } => {
                let stored = &self.lists[rank as usize].stored;
                let expected = stored.iter().find(|sent| selector.matches(&sent.envelope()));

                let found = self.ranks[rank as usize].probe(&selector);
                assert_eq!(
                    found.map(|found| (found.envelope, found.length as usize)),
                    expected.map(|sent| (sent.envelope(), sent.length))
                );
            }
            Step::Claim { rank, selector } => {
                let stored = &mut self.lists[rank as usize].stored;
                let position = stored.iter().position(|sent| selector.matches(&sent.envelope()));
                let found = self.ranks[rank as usize].claim(&selector);

                assert_eq!(found.is_some(), position.is_some());
                if let (Some((message, arrived)), Some(position)) = (found, position) {
                    let sent = stored.remove(position);
                    assert_eq!((arrived.envelope, arrived.length as usize), (sent.envelope(), sent.length));
                    self.claimed.push(Claimed { rank, message, sent });
                }
            }
            Step::TakeClaimed { which, capacity } if !self.claimed.is_empty() => {
                let Claimed { rank, message, sent } = self.claimed.swap_remove(which % self.claimed.len());

                let endpoint = &mut self.ranks[rank as usize];
                match capacity {
                    Some(capacity) => {
                        self.next += 1;
                        let id = self.next;
                        let request = endpoint.receive_claimed(message, vec![0; capacity], id).unwrap();
                        self.receives.push((id, rank, request, capacity));
                        self.matches.insert(id, sent);
                    }
                    None => endpoint.discard(message).unwrap(),
                }
            }
            Step::CancelReceive { .. } | Step::CancelSend { .. } | Step::TakeClaimed { .. } => {}
        }
    }

    /// Receives all remaining messages, and asserts that nothing is left.
    fn finish(&mut self) {
        for _ in 0..self.claimed.len() {
            self.step(Step::TakeClaimed { which: 0, capacity: Some(100) });
        }

        while let Some(&(id, rank, request, _)) = self
            .receives
            .iter()
            .find(|&&(id, rank, ..)| self.lists[rank as usize].posted.iter().any(|&(posted, _)| posted == id))
        {
            assert_eq!(self.ranks[rank as usize].cancel(request), Ok(true));
            self.lists[rank as usize].posted.retain(|&(posted, _)| posted != id);
        }

        for _ in 0..MAX_ROUNDS {
            for rank in 0..RANKS {
                self.progress(rank);
                while let Some(sent) = self.lists[rank as usize].stored.first().copied() {
                    let selector = Selector::any(sent.context);
                    self.step(Step::Receive { rank, selector, capacity: 6000 });
                }
            }

            // An eager send is complete before its message has arrived.
            let idle = self.under_way.values().all(VecDeque::is_empty)
                && self.lists.iter().all(|lists| lists.stored.is_empty());
            if self.receives.is_empty() && self.sends.is_empty() && idle {
                break;
            }
        }

        assert_eq!((&self.receives, &self.sends), (&vec![], &vec![]), "these never complete");
        assert!(self.under_way.values().all(VecDeque::is_empty));
        for rank in &self.ranks {
            assert_eq!(rank.outstanding(), 0);
            assert_eq!(rank.statistics().strays, 0);
            // Windows are equal, so no sender exceeds one.
            assert_eq!(rank.statistics().refused, 0);
        }
    }
}

fn run(steps: Vec<Step>, fabric_config: FabricConfig, config: Config) {
    let mut harness = Harness::new(fabric_config, config);
    for step in steps {
        harness.step(step);
    }

    harness.finish();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_interleaving_matches_as_two_lists_do(
        steps in steps(),
        seed in 0..u64::MAX,
        message_bytes in prop::sample::select(vec![48, 64, 120, 1000]),
        credits in prop::sample::select(vec![1, 2, 7, 64]),
        get_bytes in prop::sample::select(vec![64, 999, 100_000]),
        one_ring in any::<bool>(),
        window in prop::sample::select(vec![768, 1024, 65_536]),
        budget in prop::sample::select(vec![1, 3, 64]),
    ) {
        let fabric_config = FabricConfig { message_bytes, get_bytes, credits, gets: 3, regions: 4, one_ring, seed };
        run(steps, fabric_config, Config { eager_threshold: 200, window, pool: 1 << 20, budget, gets_in_flight: 2 });
    }
}

/// Runs every sequence of four of these sends, receives and calls of `progress`.
#[test]
fn every_short_interleaving_matches_as_two_lists_do() {
    let receive = |selector| Step::Receive { rank: 1, selector, capacity: 300 };
    let send = |from, tag, length| Step::Send { from, to: 1, context: 0, tag, length, synchronous: false };

    let menu = [
        receive(Selector::exact(0, 0, 1)),
        receive(Selector::any_source(0, 1)),
        receive(Selector::any(0)),
        send(0, 1, 100),
        send(0, 1, 300),
        send(1, 1, 10),
        Step::Progress { rank: 1 },
    ];

    for number in 0..menu.len().pow(4) {
        let digits = (0..4).map(|digit| menu[number / menu.len().pow(digit) % menu.len()].clone());
        let config = Config { eager_threshold: 200, window: 1024, ..Config::default() };
        run(digits.collect(), FabricConfig::default(), config);
    }
}
