//! State of the ranks: absent, connected, gone.

use std::{collections::VecDeque, time::Duration};

use nicforge_driver::runtime::Instant;
use nicforge_matching::{Rank, losses::Health};

use crate::{
    fifos::Route,
    row::{Row, connection},
};

/// Time until a row that was not answered is put again, at first and at last.
const FIRST_REPEAT: Duration = Duration::from_millis(1);
const LAST_REPEAT: Duration = Duration::from_millis(64);
/// Questions without an answer after which a rank is gone.
pub(crate) const TRIES: u32 = 4;

/// The process that is a rank, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) session: u64,
    /// Address of its session number in its memory.
    pub(crate) identity: u64,
    /// Whether it knows this rank's session. Only then are messages sent to it.
    pub(crate) is_answered: bool,
    pub(crate) sends: u32,
    pub(crate) receives: u32,
}

impl Link {
    pub(crate) fn new(own_session: u64, row: &Row) -> Self {
        Self {
            session: row.session,
            identity: row.identity,
            is_answered: false,
            sends: connection(own_session, row.session),
            receives: connection(row.session, own_session),
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
    /// The peer's grant.
    pub(crate) limit: u32,
    /// Packets of the peer that the matching layer has taken.
    pub(crate) taken: u32,
    /// The grant that the peer was put.
    pub(crate) granted: u32,
}

impl Flow {
    #[inline]
    pub(crate) fn has_credit(&self) -> bool {
        self.limit.wrapping_sub(self.sent) as i32 > 0
    }

    /// Returns whether the peer has used up half of its grant.
    #[inline]
    pub(crate) fn is_grant_due(&self, window: u32) -> bool {
        self.granted.wrapping_sub(self.taken) as i32 <= (window / 2) as i32
    }
}

/// Time of the next row for a rank.
pub(crate) struct RowTimer {
    /// Whether the rank is in the transport's list of rows to put.
    pub(crate) is_due: bool,
    /// The last row's descriptor.
    pub(crate) number: Option<u64>,
    repeat_at: Instant,
    delay: Duration,
}

impl RowTimer {
    pub(crate) fn new(now: Instant) -> Self {
        Self { is_due: false, number: None, repeat_at: now, delay: FIRST_REPEAT }
    }

    /// Returns whether a row that was not answered must be put again.
    pub(crate) fn take_repeat(&mut self, now: Instant) -> bool {
        if now < self.repeat_at {
            return false;
        }
        self.repeat_at = now + self.delay;
        self.delay = (2 * self.delay).min(LAST_REPEAT);
        true
    }
}

/// Questions to a rank's unit, by serial numbers.
///
/// Invariant: `answered` does not pass `asked`, and they differ by [`TRIES`] at most.
pub(crate) struct Questions {
    pub(crate) asked: u64,
    /// The last question that was answered. Answers come in the order of questions.
    pub(crate) answered: u64,
    /// The last question's descriptor.
    pub(crate) number: Option<u64>,
    /// Time of the next question, or of the end of the patience.
    pub(crate) next: Instant,
}

impl Questions {
    fn new(now: Instant) -> Self {
        Self { asked: 0, answered: 0, number: None, next: now }
    }

    /// Returns whether the patience with the rank is over, when it is time for the next question.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.asked - self.answered >= u64::from(TRIES)
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
    /// `None` while the rank has not come.
    pub(crate) link: Option<Link>,
    pub(crate) health: Health,
    /// Whether the process that was the rank is known to have left its address.
    pub(crate) has_left: bool,
    pub(crate) flow: Flow,
    pub(crate) row: RowTimer,
    pub(crate) questions: Questions,
    pub(crate) held: VecDeque<Held>,
}

impl Peer {
    pub(crate) fn new(route: Route, now: Instant) -> Self {
        Self {
            route,
            link: None,
            health: Health::Alive,
            has_left: false,
            flow: Flow::default(),
            row: RowTimer::new(now),
            questions: Questions::new(now),
            held: VecDeque::new(),
        }
    }

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

    /// Begins with another process as the rank, before any message.
    pub(crate) fn meet(&mut self, link: Option<Link>, now: Instant) {
        let Questions { asked, number, .. } = self.questions;
        self.link = link;
        self.flow = Flow::default();
        // Answers of the process before go to cells of their own. The unit may still read the last
        // question's descriptor.
        self.questions = Questions { asked, answered: asked, number, next: now };
    }
}

/// The ranks with messages that the matching layer has refused.
///
/// Invariant: a rank is in `ranks` once while its peer holds messages.
#[derive(Default)]
pub(crate) struct Holding {
    pub(crate) ranks: Vec<Rank>,
}

impl Holding {
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
        let (mut peer, mut holding) = (peer(), Holding::default());
        for held in 0..4 {
            assert!(!peer.holds_grant(4), "{held}");
            holding.hold(1, &mut peer, 1, b"packet");
        }
        assert!(peer.holds_grant(4));
        assert_eq!(holding.ranks, [1]);
    }

    #[test]
    fn another_process_is_asked_after_the_descriptor_of_the_question_before() {
        let mut peer = peer();
        (peer.questions.asked, peer.questions.number) = (3, Some(17));
        peer.meet(None, Instant::now());

        let Questions { asked, answered, number, .. } = peer.questions;
        assert_eq!((asked, answered, number), (3, 3, Some(17)));
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
        let mut timer = RowTimer::new(start);
        assert!(timer.take_repeat(start) && !timer.take_repeat(start));
        assert!(timer.take_repeat(start + FIRST_REPEAT) && !timer.take_repeat(start + 2 * FIRST_REPEAT));
    }
}
