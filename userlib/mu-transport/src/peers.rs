//! State of the ranks: absent, connected, gone.
//!
//! A rank's process is known by its *row*, which it puts to this rank's memory. This rank puts a
//! row to each other one, too. A *question* fetches the session number from a rank's memory, to see
//! whether its unit is still there.

use std::{collections::VecDeque, time::Duration};

use nicforge_driver::runtime::Instant;
use nicforge_matching::{Rank, losses::Health};

use crate::{
    fifos::Route,
    row::{Row, connection},
};

/// First time until a row that was not answered is put again. It doubles from row to row.
const FIRST_REPEAT: Duration = Duration::from_millis(1);
/// Longest such time.
const MAX_REPEAT: Duration = Duration::from_millis(64);
/// Number of questions without an answer after which a rank is gone.
pub(crate) const MAX_UNANSWERED: u32 = 4;

/// The process of a rank that has put a row, and the connection to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// Number of the process's session.
    pub(crate) session: u64,
    /// Address of that number in the process's memory.
    pub(crate) session_address: u64,
    /// Whether the process knows this rank's session. Only then are messages sent to it.
    pub(crate) is_answered: bool,
    /// Connection number in the messages that this rank sends.
    pub(crate) send_connection: u32,
    /// Connection number in the messages that this rank receives.
    pub(crate) receive_connection: u32,
}

impl Link {
    /// Returns the link to the process that has put a row.
    pub(crate) fn new(own_session: u64, row: &Row) -> Self {
        Self {
            session: row.session,
            session_address: row.session_address,
            is_answered: false,
            send_connection: connection(own_session, row.session),
            receive_connection: connection(row.session, own_session),
        }
    }
}

/// Packets of a pair of ranks since the beginning, modulo 2^32.
///
/// Invariant: `sent` does not pass `limit`, and the peer's packets in the FIFO, held or taken do
/// not pass `granted`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flow {
    /// Packets sent to the peer.
    pub(crate) sent: u32,
    /// Total number of packets that the peer has granted: `sent` may rise up to it.
    pub(crate) limit: u32,
    /// Packets of the peer that the matching layer has taken.
    pub(crate) taken: u32,
    /// Total number of packets that this rank has granted, in the last row that it has put.
    pub(crate) granted: u32,
}

impl Flow {
    /// Returns whether this rank may send a packet.
    #[inline]
    pub(crate) fn has_credit(&self) -> bool {
        // The counts wrap around, so their difference is compared as a signed number.
        self.limit.wrapping_sub(self.sent) as i32 > 0
    }

    /// Returns whether the peer has used up half of its grant.
    #[inline]
    pub(crate) fn is_grant_due(&self, window: u32) -> bool {
        self.granted.wrapping_sub(self.taken) as i32 <= (window / 2) as i32
    }
}

/// State of the rows that this rank puts to another one.
pub(crate) struct RowState {
    /// Whether the rank is in the transport's list of rows to put.
    pub(crate) is_due: bool,
    /// Sequence number of the last row's descriptor.
    pub(crate) sequence_number: Option<u64>,
    /// Time from which a row that was not answered is put again.
    repeat_at: Instant,
    /// Time from then on until the next repetition.
    repeat_delay: Duration,
}

impl RowState {
    /// Returns the state in which the first row can be put at once.
    pub(crate) fn new(now: Instant) -> Self {
        Self { is_due: false, sequence_number: None, repeat_at: now, repeat_delay: FIRST_REPEAT }
    }

    /// Returns whether a row that was not answered must be put again now, and sets the time of the
    /// next repetition.
    pub(crate) fn take_repeat(&mut self, now: Instant) -> bool {
        if now < self.repeat_at {
            return false;
        }
        self.repeat_at = now + self.repeat_delay;
        self.repeat_delay = (2 * self.repeat_delay).min(MAX_REPEAT);
        true
    }
}

/// Questions to a rank's unit, by serial numbers.
///
/// Invariant: `answered` does not pass `asked`, and they differ by [`MAX_UNANSWERED`] at most.
pub(crate) struct Questions {
    /// Serial number of the last question.
    pub(crate) asked: u64,
    /// Serial number of the last question that was answered. Answers come in the order of
    /// questions.
    pub(crate) answered: u64,
    /// Sequence number of the last question's descriptor.
    pub(crate) sequence_number: Option<u64>,
    /// Time of the next question, or, after the last unanswered one, at which the rank is gone.
    pub(crate) next_at: Instant,
}

impl Questions {
    /// Returns the state without questions, in which the first one can be asked at once.
    fn new(now: Instant) -> Self {
        Self { asked: 0, answered: 0, sequence_number: None, next_at: now }
    }

    /// Returns whether so many questions have no answer that the rank is gone at `next_at`.
    pub(crate) fn is_patience_over(&self) -> bool {
        self.asked - self.answered >= u64::from(MAX_UNANSWERED)
    }
}

/// A message that the matching layer has refused so far.
pub(crate) struct Held {
    pub(crate) tag: u8,
    pub(crate) bytes: Box<[u8]>,
}

/// State of a rank.
pub(crate) struct Peer {
    pub(crate) route: Route,
    /// `None` while no process has put a row.
    pub(crate) link: Option<Link>,
    pub(crate) health: Health,
    /// Whether the process of a lost rank is known to have ended or closed its transport.
    pub(crate) has_left: bool,
    pub(crate) flow: Flow,
    pub(crate) row: RowState,
    pub(crate) questions: Questions,
    /// Messages of the rank that the matching layer has refused so far.
    pub(crate) held: VecDeque<Held>,
    /// Gets from it in flight.
    pub(crate) gets: usize,
}

impl Peer {
    /// Returns the state of a rank that has not come yet.
    pub(crate) fn new(route: Route, now: Instant) -> Self {
        Self {
            route,
            link: None,
            health: Health::Alive,
            has_left: false,
            flow: Flow::default(),
            row: RowState::new(now),
            questions: Questions::new(now),
            held: VecDeque::new(),
            gets: 0,
        }
    }

    /// Returns whether the rank was not lost. It need not have come yet.
    #[inline]
    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.health, Health::Alive)
    }

    /// Returns whether the rank has answered this one.
    pub(crate) fn is_connected(&self) -> bool {
        self.link.is_some_and(|link| link.is_answered)
    }

    /// Returns whether all packets that the rank may send ahead are held. One that keeps to its
    /// grant sends no other then.
    #[inline]
    pub(crate) fn holds_grant(&self, window: u32) -> bool {
        self.held.len() >= window as usize
    }

    /// Begins with another process as the rank, or with none, before any message of it.
    pub(crate) fn replace_process(&mut self, link: Option<Link>, now: Instant) {
        let Questions { asked, sequence_number, .. } = self.questions;
        self.link = link;
        self.flow = Flow::default();
        // The serial numbers go on, so that answers of the process before go to other cells. The
        // unit may still read the last question's descriptor, whose sequence number is kept.
        self.questions = Questions { asked, answered: asked, sequence_number, next_at: now };
    }
}

/// The ranks with messages that the matching layer has refused.
///
/// Invariant: a rank is in `ranks` once while its peer holds messages.
#[derive(Default)]
pub(crate) struct HeldRanks {
    pub(crate) ranks: Vec<Rank>,
}

impl HeldRanks {
    /// Holds a message of a rank.
    #[cold]
    pub(crate) fn hold(&mut self, rank: Rank, peer: &mut Peer, tag: u8, bytes: &[u8]) {
        if peer.held.is_empty() {
            self.ranks.push(rank);
        }
        peer.held.push_back(Held { tag, bytes: bytes.into() });
    }
}

#[cfg(test)]
mod tests {
    use nicforge_spi::NodePosition;

    use super::*;
    use crate::RankAddress;

    fn peer() -> Peer {
        let place = NodePosition { shape: [2, 1, 1, 1, 1], own: [0; 5] };
        Peer::new(Route::new(place, RankAddress { node: 1, subgroup: 0 }), Instant::now())
    }

    #[test]
    fn a_peer_holds_its_grant_when_it_holds_as_many_packets() {
        let (mut peer, mut held_ranks) = (peer(), HeldRanks::default());
        for held in 0..4 {
            assert!(!peer.holds_grant(4), "{held}");
            held_ranks.hold(1, &mut peer, 1, b"packet");
        }
        assert!(peer.holds_grant(4));
        assert_eq!(held_ranks.ranks, [1]);
    }

    #[test]
    fn another_process_is_asked_after_the_descriptor_of_the_question_before() {
        let mut peer = peer();
        (peer.questions.asked, peer.questions.sequence_number) = (3, Some(17));
        peer.replace_process(None, Instant::now());

        let Questions { asked, answered, sequence_number, .. } = peer.questions;
        assert_eq!((asked, answered, sequence_number), (3, 3, Some(17)));
    }

    #[test]
    fn a_grant_is_due_when_half_of_it_is_used_also_round_the_end_of_numbers() {
        for start in [0, u32::MAX - 2] {
            let mut flow = Flow { taken: start, granted: start.wrapping_add(8), ..Flow::default() };
            for taken in 0..8 {
                assert_eq!(flow.is_grant_due(8), taken >= 4, "{taken} from {start}");
                flow.taken = flow.taken.wrapping_add(1);
            }
        }
    }

    #[test]
    fn credit_ends_at_the_limit_also_round_the_end_of_numbers() {
        let mut flow = Flow { sent: u32::MAX, limit: 1, ..Flow::default() };
        assert!(flow.has_credit());
        flow.sent = flow.sent.wrapping_add(2);
        assert!(!flow.has_credit());
    }

    #[test]
    fn rows_are_repeated_more_and_more_seldom() {
        let start = Instant::now();
        let mut timer = RowState::new(start);
        assert!(timer.take_repeat(start) && !timer.take_repeat(start));
        assert!(timer.take_repeat(start + FIRST_REPEAT) && !timer.take_repeat(start + 2 * FIRST_REPEAT));
    }
}
