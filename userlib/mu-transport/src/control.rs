//! The exchange of ranks and their units beside messages: rows, questions, and the end of a rank.

use std::sync::atomic::Ordering;

use nicforge_driver::{Deadline, Error as DriverError, runtime::Instant};
use nicforge_matching::{Gone, Loss, Rank, TransportError, losses::Health};
use nicforge_spi::Error as SpiError;

use crate::{
    Error, MuTransport,
    fifos::{CONTROL, MESSAGES, RECEPTION},
    peers::{Link, TRIES},
    row::Row,
};

/// Ranks checked in one call.
const RANKS_PER_LOOK: usize = 2;
/// Calls between two looks at the clock.
const CALLS_PER_TIME: u32 = 16;

/// The time, as of the last look at the clock.
pub(crate) struct Clock {
    pub(crate) now: Instant,
    calls: u32,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { now: Instant::now(), calls: 0 }
    }

    /// Counts a call, and returns whether it has looked at the clock.
    fn count(&mut self) -> bool {
        self.calls = self.calls.wrapping_add(1);
        let looks = self.calls.is_multiple_of(CALLS_PER_TIME);
        if looks {
            self.now = Instant::now();
        }
        looks
    }
}

impl MuTransport {
    /// Checks some ranks, and now and then this rank's FIFOs. It is called regularly, because no
    /// message may arrive that would show anything.
    pub(crate) fn look(&mut self) -> Result<(), Error> {
        if self.clock.count() {
            self.check_own()?;
        }

        for _ in 0..RANKS_PER_LOOK.min(self.peers.len()) {
            let rank = self.losses.next_checked(self.peers.len());
            self.check_rank(rank)?;
        }
        self.put_due_rows()
    }

    /// Checks the FIFOs of this rank.
    #[cold]
    fn check_own(&mut self) -> Result<(), Error> {
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

        self.statistics.restarts += u64::from(self.fifos.mend_gets()?);
        if self.staging.has_abandoned() {
            let peers = &self.peers;
            self.staging.free_abandoned(|rank| peers.get(rank as usize).is_none_or(|peer| peer.has_left));
        }
        Ok(())
    }

    /// Checks whether a rank has come or gone, and what it has granted.
    pub(crate) fn check_rank(&mut self, rank: Rank) -> Result<(), Error> {
        if rank == self.rank {
            return Ok(());
        }
        if !self.peers[rank as usize].is_alive() {
            return self.check_silent(rank);
        }

        if let Some(row) = self.fifos.read_row(rank)? {
            self.take_row(rank, row);
        }

        let now = self.clock.now;
        let peer = &mut self.peers[rank as usize];
        if !peer.is_alive() {
            return Ok(());
        }
        if !peer.is_connected() && peer.row.take_repeat(now) {
            self.mark_due(rank);
        }
        self.question(rank)
    }

    /// Checks whether a rank that was silent is known to have left its address, so that the sources
    /// it may have fetched are freed.
    #[cold]
    fn check_silent(&mut self, rank: Rank) -> Result<(), Error> {
        let peer = &mut self.peers[rank as usize];
        let Some(link) = peer.link.filter(|_| !peer.has_left) else { return Ok(()) };

        if let Some(row) = self.fifos.read_row(rank)? {
            peer.has_left = row.is_leaving || row.session != link.session;
        }
        Ok(())
    }

    /// Takes the row that a rank has put.
    #[inline]
    fn take_row(&mut self, rank: Rank, row: Row) {
        let peer = &mut self.peers[rank as usize];
        match &mut peer.link {
            Some(link) if link.session == row.session => {
                link.is_answered |= row.echo == self.fifos.session;
                peer.flow.limit = row.grant;
                if row.is_leaving {
                    self.end(rank, Loss::Ended);
                }
            }
            link => {
                let before = link.filter(|link| link.is_answered).map(|link| link.session);
                match before {
                    Some(previous) => self.end(rank, Loss::Replaced { previous, current: row.session }),
                    None => self.meet(rank, &row),
                }
            }
        }
    }

    /// Meets a process that may be a rank.
    #[cold]
    fn meet(&mut self, rank: Rank, row: &Row) {
        // A process of an earlier job may leave while this job begins.
        if row.is_leaving && row.echo != self.fifos.session {
            return;
        }
        // No question could be put about a session number outside the unit's addresses.
        let route = &self.peers[rank as usize].route;
        if self.fifos.answer(route, row.identity, self.fifos.identity()).is_err() {
            return;
        }

        let link = Link::new(self.fifos.session, row);
        self.peers[rank as usize].meet(Some(link), self.clock.now);
        self.mark_due(rank);
        self.take_row(rank, *row);
    }

    /// Ends the process that is a rank. One that has not answered was no rank of this job.
    #[cold]
    pub(crate) fn end(&mut self, rank: Rank, why: Loss) {
        if !self.peers[rank as usize].is_alive() {
            return;
        }
        // The unit writes a row at once, but shows the tail of the packets before it only at the
        // end of its step. Without the fence a poll could find no packet, and the last ones would
        // be lost. After an error the transport as a whole fails soon.
        if self.peers[rank as usize].is_connected() {
            let _ = self.fifos.fence();
        }

        let (now, mark) = (self.clock.now, self.losses.mark);
        let peer = &mut self.peers[rank as usize];
        if !peer.is_connected() {
            // A silent process is still the one of its row, and may come to know this rank. Its
            // packets count from then on.
            let kept = peer.link.filter(|_| why == Loss::Silent);
            peer.meet(kept, now);
            if kept.is_some() {
                self.mark_due(rank);
            }
            return;
        }

        peer.health = Health::Lost(mark, why);
        peer.has_left = why != Loss::Silent;
        self.losses.add(rank);
    }

    /// Takes the answers of a rank's unit, and asks it again when it is time.
    fn question(&mut self, rank: Rank) -> Result<(), Error> {
        let peer = &mut self.peers[rank as usize];
        let Some(link) = peer.link else { return Ok(()) };
        let (now, step) = (self.clock.now, self.patience / TRIES);

        for serial in peer.questions.answered + 1..=peer.questions.asked {
            match self.fifos.cell(rank, serial)?.load(Ordering::Acquire) {
                0 => {}
                session if session == link.session => {
                    peer.questions.answered = serial;
                    peer.questions.next = now + step;
                }
                tenant => {
                    self.end(rank, Loss::Replaced { previous: link.session, current: tenant });
                    return Ok(());
                }
            }
        }

        if now < peer.questions.next {
            return Ok(());
        }
        if peer.questions.is_hopeless() {
            self.end(rank, Loss::Silent);
            return Ok(());
        }
        self.ask(rank, link)
    }

    #[cold]
    fn ask(&mut self, rank: Rank, link: Link) -> Result<(), Error> {
        let peer = &mut self.peers[rank as usize];
        if !self.fifos.check_done(peer.questions.number)? {
            return Ok(());
        }

        let serial = peer.questions.asked + 1;
        if let Some(number) = self.fifos.ask(rank, &peer.route, link.identity, serial)? {
            peer.questions.asked = serial;
            peer.questions.number = Some(number);
            peer.questions.next = self.clock.now + self.patience / TRIES;
            self.statistics.questions += 1;
        }
        Ok(())
    }

    /// Lets the row for a rank be put soon.
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
            if self.put_row(rank, false)? {
                self.peers[rank as usize].row.is_due = false;
                self.due.swap_remove(index);
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    /// Puts the row for a rank. Returns false when there is no room now.
    pub(crate) fn put_row(&mut self, rank: Rank, is_leaving: bool) -> Result<bool, Error> {
        let peer = &mut self.peers[rank as usize];
        if !self.fifos.check_done(peer.row.number)? {
            return Ok(false);
        }

        let grant = peer.flow.taken.wrapping_add(self.window);
        let row = Row {
            session: self.fifos.session,
            identity: self.fifos.identity(),
            echo: peer.link.map_or(0, |link| link.session),
            grant,
            is_leaving,
        };
        let Some(number) = self.fifos.put_row(rank, &peer.route, row)? else { return Ok(false) };

        peer.row.number = Some(number);
        peer.flow.granted = grant;
        self.statistics.rows += 1;
        Ok(true)
    }

    /// Returns a lost rank whose messages have all been offered.
    pub(crate) fn next_gone(&mut self) -> Option<Gone> {
        let peers = &mut self.peers;
        let (rank, why) = self.losses.take_drained(|rank| peers[rank as usize].health)?;

        let peer = &mut peers[rank as usize];
        peer.health = Health::Gone;
        // The matching layer has refused these messages.
        peer.held.clear();
        self.holding.ranks.retain(|other| *other != rank);
        Some(Gone { rank, why })
    }

    /// Records the first error of the transport as a whole.
    pub(crate) fn fail(&mut self, error: Error) -> TransportError {
        self.failure.get_or_insert(error).short()
    }
}
