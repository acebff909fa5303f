//! Gets in flight: this rank's, and those of other ranks that wait for an answer.

use std::{collections::VecDeque, time::Duration};

use nicforge_driver::runtime::Instant;
use nicforge_matching::{Get, Rank, TransportError};

/// Gets of a rank that wait for an answer at most. A rank has no more than 16 in flight to another.
pub(crate) const MAX_ASKED: usize = 32;

/// The end of a get, for the endpoint.
pub(crate) type Ended = (u64, Result<(), TransportError>);

/// A get in flight.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    get: Get,
    /// The number of the period in which it was started.
    period: u64,
    /// It has waited for so long that it takes no place of others.
    is_overdue: bool,
    /// Its destination was deregistered, or its answer is on its way into a buffer.
    state: State,
}

/// State of a get in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It waits for an answer.
    Waiting,
    /// Its data are arriving.
    Arriving,
}

/// A get of another rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) rank: Rank,
    /// Number of the get at that rank.
    pub(crate) get: u32,
    pub(crate) key: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

/// The gets of this rank, and the questions of others.
///
/// A number of a get is the index of its place, and how often the place was used before, so that a
/// late answer finds no other get.
#[derive(Debug)]
pub(crate) struct Gets {
    places: Vec<(u32, Option<InFlight>)>,
    /// Number of gets in flight that are not overdue.
    in_flight: usize,
    /// Greatest such number.
    limit: usize,
    /// Number of gets in flight from each rank, overdue or not.
    of_rank: Vec<usize>,
    /// Time after which a get is overdue.
    delay: Duration,
    /// Number of the present period. A period ends when there is no room for a get.
    period: u64,
    /// The time at which gets of all periods before this one are overdue.
    overdue_at: Option<Instant>,
    /// Ended gets that the endpoint has not taken.
    ended: VecDeque<Ended>,
    /// Gets of other ranks, oldest first.
    pub(crate) asked: VecDeque<Asked>,
}

/// Bits of a get's number that are the index of its place.
const INDEX_BITS: u32 = 16;

impl Gets {
    /// Returns the table for at most `limit` gets in flight, 1 to 32, of `ranks` ranks. A get is
    /// overdue after `delay`.
    pub(crate) fn new(limit: usize, ranks: usize, delay: Duration) -> Self {
        Self {
            places: vec![(0, None); limit],
            in_flight: 0,
            limit,
            of_rank: vec![0; ranks],
            delay,
            period: 1,
            overdue_at: None,
            ended: VecDeque::with_capacity(limit),
            asked: VecDeque::new(),
        }
    }

    /// Returns whether a get from a rank can be started. The ended ones count until the endpoint
    /// takes them.
    pub(crate) fn has_room(&mut self, rank: Rank) -> bool {
        let has_quota = self.of_rank.get(rank as usize).is_some_and(|gets| *gets < self.limit.div_ceil(2));
        has_quota && (self.has_place() || self.set_overdue_aside())
    }

    /// Returns whether the gets in flight leave a place.
    fn has_place(&self) -> bool {
        self.in_flight + self.ended.len() < self.limit
    }

    /// Sets gets aside that are overdue, so that others can be started. Returns whether there is a
    /// place then. Each rank's quota bounds the number of gets that were set aside.
    #[cold]
    fn set_overdue_aside(&mut self) -> bool {
        let now = Instant::now();
        let overdue_at = *self.overdue_at.get_or_insert_with(|| {
            self.period += 1;
            now + self.delay
        });
        if now < overdue_at {
            return false;
        }

        self.overdue_at = None;
        for (_, place) in &mut self.places {
            if let Some(in_flight) = place
                && in_flight.period < self.period
                && !std::mem::replace(&mut in_flight.is_overdue, true)
            {
                self.in_flight -= 1;
            }
        }
        self.has_place()
    }

    /// Adds a get, and returns its number. Returns `None` if there is no room.
    pub(crate) fn add(&mut self, get: Get) -> Option<u32> {
        let index = match self.places.iter().position(|(_, place)| place.is_none()) {
            Some(index) => index,
            None if self.places.len() < 1 << INDEX_BITS => {
                self.places.push((0, None));
                self.places.len() - 1
            }
            None => return None,
        };
        let (uses, place) = &mut self.places[index];
        *uses = uses.wrapping_add(1);
        *place = Some(InFlight { get, period: self.period, is_overdue: false, state: State::Waiting });
        self.in_flight += 1;
        *self.of_rank.get_mut(get.peer as usize)? += 1;
        Some(*uses << INDEX_BITS | index as u32)
    }

    /// Returns the place of a get that is in flight to `rank`.
    fn find(&mut self, number: u32, rank: Rank) -> Option<&mut InFlight> {
        let index = number & ((1 << INDEX_BITS) - 1);
        let (uses, place) = self.places.get_mut(index as usize)?;
        let is_same = *uses << INDEX_BITS == number & !((1 << INDEX_BITS) - 1);
        place.as_mut().filter(|in_flight| is_same && in_flight.get.peer == rank)
    }

    /// Notes that the answer to a get begins to arrive from `rank`, with `length` bytes. Returns
    /// whether there is such a get, of so many bytes, that waits for it.
    pub(crate) fn begin_arrival(&mut self, number: u32, rank: Rank, length: usize) -> bool {
        match self.find(number, rank) {
            Some(in_flight) if in_flight.state == State::Waiting && in_flight.get.length == length => {
                in_flight.state = State::Arriving;
                true
            }
            _ => false,
        }
    }

    /// Ends a get that is in flight to `rank`, and returns it. Its end must be reported by
    /// [`Gets::report`].
    pub(crate) fn end(&mut self, number: u32, rank: Rank) -> Option<Get> {
        let InFlight { get, is_overdue, .. } = *self.find(number, rank)?;
        let index = (number & ((1 << INDEX_BITS) - 1)) as usize;
        self.places[index].1 = None;
        self.in_flight -= usize::from(!is_overdue);
        self.of_rank[rank as usize] -= 1;
        Some(get)
    }

    /// Reports the end of a get to the endpoint.
    pub(crate) fn report(&mut self, cookie: u64, result: Result<(), TransportError>) {
        self.ended.push_back((cookie, result));
    }

    /// Ends all gets in flight to a rank that is lost, with an error. Returns their number.
    pub(crate) fn fail_all(&mut self, rank: Rank) -> u64 {
        let mut failed = 0;
        for (_, place) in &mut self.places {
            if let Some(in_flight) = place.take_if(|in_flight| in_flight.get.peer == rank) {
                let error = TransportError { what: "the rank of a get is lost", value: rank.into() };
                self.ended.push_back((in_flight.get.cookie, Err(error)));
                self.in_flight -= usize::from(!in_flight.is_overdue);
                self.of_rank[rank as usize] -= 1;
                failed += 1;
            }
        }
        failed
    }

    /// Takes the end of a get for the endpoint.
    pub(crate) fn take_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }
}
