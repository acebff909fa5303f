//! Gets in flight: this rank's, and those of other ranks that wait for an answer.

use std::collections::VecDeque;

use nicforge_matching::{Get, Rank, TransportError};

/// Gets of a rank that wait for an answer at most. A rank has no more than 32 in flight.
pub(crate) const MAX_ASKED: usize = 32;

/// The end of a get, for the endpoint.
pub(crate) type Ended = (u64, Result<(), TransportError>);

/// A get in flight.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    get: Get,
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
    pub(crate) key: u32,
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
    in_flight: usize,
    /// Ended gets that the endpoint has not taken.
    ended: VecDeque<Ended>,
    /// Gets of other ranks, oldest first.
    pub(crate) asked: VecDeque<Asked>,
}

/// Bits of a get's number that are the index of its place.
const INDEX_BITS: u32 = 5;
const _: () = assert!(1 << INDEX_BITS == MAX_ASKED);

impl Gets {
    /// Returns the table for at most `places` gets in flight, 1 to 32.
    pub(crate) fn new(places: usize) -> Self {
        Self {
            places: vec![(0, None); places],
            in_flight: 0,
            ended: VecDeque::with_capacity(places),
            asked: VecDeque::new(),
        }
    }

    /// Returns whether a get can be started. The ended ones count until the endpoint takes them.
    pub(crate) fn has_room(&self) -> bool {
        self.in_flight + self.ended.len() < self.places.len()
    }

    /// Adds a get, and returns its number. Returns `None` if there is no room.
    pub(crate) fn add(&mut self, get: Get) -> Option<u32> {
        let index = self.places.iter().position(|(_, place)| place.is_none())?;
        let (uses, place) = &mut self.places[index];
        *uses = uses.wrapping_add(1);
        *place = Some(InFlight { get, state: State::Waiting });
        self.in_flight += 1;
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
        let get = self.find(number, rank)?.get;
        let index = (number & ((1 << INDEX_BITS) - 1)) as usize;
        self.places[index].1 = None;
        self.in_flight -= 1;
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
                self.in_flight -= 1;
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
