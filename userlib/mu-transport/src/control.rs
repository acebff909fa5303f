//! The exchange between ranks beside messages: rows, questions, and the end of a rank.
//!
//! A *row* is the state of a rank for another one, which the rank puts to the other one's memory. A
//! *question* fetches the session number from the memory of a rank's process. The rank's unit
//! answers it without the process.

use std::sync::atomic::Ordering;

use nicforge_driver::{Deadline, Error as DriverError, runtime::Instant};
use nicforge_matching::{Gone, Loss, Rank, TransportError, losses::Health};
use nicforge_spi::Error as SpiError;

use crate::{
    Error, MuTransport,
    fifos::{CONTROL, MESSAGES, RECEPTION},
    peers::{Link, MAX_UNANSWERED},
    row::Row,
};

/// Number of ranks that one call checks.
const RANKS_PER_CALL: usize = 2;
/// Number of calls from one reading of the clock to the next.
const CALLS_PER_READING: u32 = 16;

/// A clock that is read in some calls only.
pub(crate) struct Clock {
    /// The time when the clock was read last.
    pub(crate) now: Instant,
    /// Number of calls of [`Clock::tick`].
    calls: u32,
}

impl Clock {
    /// Reads the clock for the first time.
    pub(crate) fn new() -> Self {
        Self { now: Instant::now(), calls: 0 }
    }

    /// Counts a call, and reads the clock in some of them. Returns whether it has.
    fn tick(&mut self) -> bool {
        self.calls = self.calls.wrapping_add(1);
        let is_read = self.calls.is_multiple_of(CALLS_PER_READING);
        if is_read {
            self.now = Instant::now();
        }
        is_read
    }
}

/// The intention of a rank that its row states.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// The rank stays.
    Staying,
    /// The rank closes its transport.
    Leaving,
}

impl MuTransport {
    /// Checks some ranks, and now and then this rank's FIFOs. It must be called regularly: a rank
    /// that comes or goes need not send a message.
    pub(crate) fn check_regularly(&mut self) -> Result<(), Error> {
        if self.clock.tick() {
            self.check_own()?;
        }

        for _ in 0..RANKS_PER_CALL.min(self.peers.len()) {
            let rank = self.losses.next_checked(self.peers.len());
            self.check_rank(rank)?;
        }
        self.put_due_rows()
    }

    /// Checks this rank's FIFOs, and frees staging memory of abandoned sources.
    #[cold]
    fn check_own(&mut self) -> Result<(), Error> {
        // A wait that ends at once finds a device that is gone or was reset.
        let subgroup = &mut self.fifos.subgroup;
        match subgroup.wait_packet(RECEPTION, Deadline::now(), None) {
            Ok(()) | Err(SpiError::Driver(DriverError::Timeout { .. })) => {}
            Err(error) => return Err(error.into()),
        }

        for fifo in [MESSAGES, CONTROL] {
            if let Some(fault) = subgroup.injection().fault(fifo)? {
                return Err(SpiError::Stopped { fifo, fault }.into());
            }
        }

        self.statistics.restarts += u64::from(self.fifos.restart_stopped_gets()?);
        if self.staging.has_abandoned() {
            let peers = &self.peers;
            // No unit can still fetch a source once the process of its receiver has left.
            self.staging.free_abandoned(|rank| peers.get(rank as usize).is_none_or(|peer| peer.has_left));
        }
        Ok(())
    }

    /// Checks whether a rank has come or gone, and how many packets it grants.
    pub(crate) fn check_rank(&mut self, rank: Rank) -> Result<(), Error> {
        if rank == self.rank {
            return Ok(());
        }
        if !self.peers[rank as usize].is_alive() {
            return self.check_lost(rank);
        }

        if let Some(row) = self.fifos.read_row(rank)? {
            self.handle_row(rank, row);
        }

        let now = self.clock.now;
        let peer = &mut self.peers[rank as usize];
        if !peer.is_alive() {
            return Ok(());
        }
        // The first rows may have been lost, because the rank had not come.
        if !peer.is_connected() && peer.row.take_repeat(now) {
            self.mark_due(rank);
        }
        self.check_answers(rank)
    }

    /// Checks whether the process of a lost rank has left, as its row shows. Then the sources that
    /// the process may still have fetched can be freed.
    #[cold]
    fn check_lost(&mut self, rank: Rank) -> Result<(), Error> {
        let peer = &mut self.peers[rank as usize];
        let Some(link) = peer.link.filter(|_| !peer.has_left) else { return Ok(()) };

        if let Some(row) = self.fifos.read_row(rank)? {
            peer.has_left = row.is_leaving || row.session != link.session;
        }
        Ok(())
    }

    /// Handles the row that a rank has put: it may be that of the known process, of a successor, or
    /// of the first process.
    #[inline]
    fn handle_row(&mut self, rank: Rank, row: Row) {
        let peer = &mut self.peers[rank as usize];
        match &mut peer.link {
            Some(link) if link.session == row.session => {
                link.is_answered |= row.echoed_session == self.fifos.session;
                peer.flow.limit = row.grant;
                if row.is_leaving {
                    self.end(rank, Loss::Ended);
                }
            }
            link => {
                let previous = link.filter(|link| link.is_answered).map(|link| link.session);
                match previous {
                    Some(previous) => self.end(rank, Loss::Replaced { previous, current: row.session }),
                    None => self.accept_process(rank, &row),
                }
            }
        }
    }

    /// Makes the process that has put a row the rank's process, unless it can't be one of this job.
    #[cold]
    fn accept_process(&mut self, rank: Rank, row: &Row) {
        // A process of an earlier job may leave while this job begins.
        if row.is_leaving && row.echoed_session != self.fifos.session {
            return;
        }
        // A session number outside the unit's addresses could not be fetched by a question.
        let route = &self.peers[rank as usize].route;
        if self.fifos.answer_descriptor(route, row.session_address, self.fifos.session_address()).is_err() {
            return;
        }

        let link = Link::new(self.fifos.session, row);
        self.peers[rank as usize].replace_process(Some(link), self.clock.now);
        self.mark_due(rank);
        self.handle_row(rank, *row);
    }

    /// Records the loss of a rank's process. A process that has not answered was not connected: it
    /// is forgotten, and the rank is not lost.
    #[cold]
    pub(crate) fn end(&mut self, rank: Rank, why: Loss) {
        if !self.peers[rank as usize].is_alive() {
            return;
        }
        // The unit writes a row at once, but publishes the tail of the packets before it only at
        // the end of its step. Without the fence a poll could find no packet, and the rank's last
        // packets would be lost. After an error of the fence, the transport as a whole fails
        // soon.
        if self.peers[rank as usize].is_connected() {
            let _ = self.fifos.fence();
        }

        let (now, mark) = (self.clock.now, self.losses.mark);
        let peer = &mut self.peers[rank as usize];
        if !peer.is_connected() {
            // A silent process may still read this rank's row later. Its link is kept, so that its
            // packets are accepted then.
            let kept = peer.link.filter(|_| why == Loss::Silent);
            peer.replace_process(kept, now);
            if kept.is_some() {
                self.mark_due(rank);
            }
            return;
        }

        peer.health = Health::Lost(mark, why);
        peer.has_left = why != Loss::Silent;
        self.losses.add(rank);
    }

    /// Reads the answers of a rank's unit, and asks it again when it is time.
    fn check_answers(&mut self, rank: Rank) -> Result<(), Error> {
        let peer = &mut self.peers[rank as usize];
        let Some(link) = peer.link else { return Ok(()) };
        // With this interval, the last unanswered question is due when the patience is over.
        let (now, interval) = (self.clock.now, self.patience / MAX_UNANSWERED);

        for serial in peer.questions.answered + 1..=peer.questions.asked {
            match self.fifos.cell(rank, serial)?.load(Ordering::Acquire) {
                0 => {}
                session if session == link.session => {
                    peer.questions.answered = serial;
                    peer.questions.next_at = now + interval;
                }
                current => {
                    self.end(rank, Loss::Replaced { previous: link.session, current });
                    return Ok(());
                }
            }
        }

        if now < peer.questions.next_at {
            return Ok(());
        }
        if peer.questions.is_patience_over() {
            self.end(rank, Loss::Silent);
            return Ok(());
        }
        self.ask(rank, link)
    }

    /// Asks a rank's unit for its session number, if the descriptor of the question before is done
    /// and there is room.
    #[cold]
    fn ask(&mut self, rank: Rank, link: Link) -> Result<(), Error> {
        let peer = &mut self.peers[rank as usize];
        if !self.fifos.check_done(peer.questions.sequence_number)? {
            return Ok(());
        }

        let serial = peer.questions.asked + 1;
        if let Some(number) = self.fifos.ask(rank, &peer.route, link.session_address, serial)? {
            peer.questions.asked = serial;
            peer.questions.sequence_number = Some(number);
            peer.questions.next_at = self.clock.now + self.patience / MAX_UNANSWERED;
            self.statistics.questions += 1;
        }
        Ok(())
    }

    /// Adds a rank to those to which this one will put a row soon.
    pub(crate) fn mark_due(&mut self, rank: Rank) {
        let row = &mut self.peers[rank as usize].row;
        if !row.is_due {
            row.is_due = true;
            self.due.push(rank);
        }
    }

    /// Puts the rows that are due, as far as there is room.
    #[inline]
    pub(crate) fn put_due_rows(&mut self) -> Result<(), Error> {
        let mut index = 0;
        while let Some(&rank) = self.due.get(index) {
            if self.put_row(rank, Presence::Staying)? {
                self.peers[rank as usize].row.is_due = false;
                self.due.swap_remove(index);
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    /// Puts this rank's row to another one. Returns false when there is no room now.
    pub(crate) fn put_row(&mut self, rank: Rank, presence: Presence) -> Result<bool, Error> {
        let peer = &mut self.peers[rank as usize];
        if !self.fifos.check_done(peer.row.sequence_number)? {
            return Ok(false);
        }

        let grant = peer.flow.taken.wrapping_add(self.window);
        let row = Row {
            session: self.fifos.session,
            session_address: self.fifos.session_address(),
            echoed_session: peer.link.map_or(0, |link| link.session),
            grant,
            is_leaving: presence == Presence::Leaving,
        };
        let Some(number) = self.fifos.put_row(rank, &peer.route, row)? else { return Ok(false) };

        peer.row.sequence_number = Some(number);
        peer.flow.granted = grant;
        self.statistics.rows += 1;
        Ok(true)
    }

    /// Returns a lost rank whose messages have all been offered to the matching layer.
    pub(crate) fn next_gone(&mut self) -> Option<Gone> {
        let peers = &mut self.peers;
        let (rank, why) = self.losses.take_drained(|rank| peers[rank as usize].health)?;

        let peer = &mut peers[rank as usize];
        peer.health = Health::Gone;
        // The matching layer has refused these messages.
        peer.held.clear();
        self.held_ranks.ranks.retain(|other| *other != rank);
        Some(Gone { rank, why })
    }

    /// Records the first error of the transport as a whole.
    pub(crate) fn fail(&mut self, error: Error) -> TransportError {
        self.failure.get_or_insert(error).short()
    }
}
