//! The handling of events.

use nicforge_matching::Rank;
use nicforge_portals::{Event, EventKind, Failure};

use super::{
    Endpoint,
    fetch::FetchMethod,
    objects::{
        BLOCKED, CONTROL, GIVEN_UP, IS_THERE, KEPT, MESSAGES, NO_LONGER_THERE, POINTER_OF_EXPOSED,
        POINTER_OF_REQUESTS, POINTER_OF_SENDS, REPEATED, REQUEST, WINDOW_FULL,
    },
    requests::State,
};
use crate::{Error, Loss, bits, pool::Handle};

/// Maximum number of events of sends and receives in one call of `progress`.
pub(super) const MAX_EVENTS: usize = 64;

impl Endpoint {
    /// Handles all events of unexpected messages. Their number is bounded by the memory for such
    /// messages and by the windows of the peers. Returns the number of events.
    pub(super) fn take_unexpected(&mut self) -> Result<usize, Error> {
        let maximum = self.objects.unexpected.capacity() as usize;
        let mut count = 0;
        while count < maximum
            && let Some(event) = self.objects.unexpected.get()?
        {
            count += 1;
            match event.kind {
                EventKind::PutStart => self.handle_unexpected_start(&event)?,
                EventKind::PutEnd => self.handle_unexpected_end(&event)?,
                EventKind::Unlink => self.handle_buffer_unlinked(&event),
                _ => {}
            }
        }
        self.has_work |= count > 0;
        Ok(count)
    }

    /// Handles events of sends, receives and fetches. Returns their number.
    pub(super) fn take_events(&mut self) -> Result<usize, Error> {
        let mut count = 0;
        while count < MAX_EVENTS
            && let Some(event) = self.objects.events.get()?
        {
            count += 1;

            match (event.user_pointer, event.kind) {
                (POINTER_OF_SENDS, EventKind::SendEnd) => self.handle_put_end(&event)?,
                (POINTER_OF_SENDS, EventKind::Ack) => self.handle_acknowledgement(&event)?,
                (POINTER_OF_EXPOSED, EventKind::GetEnd) => self.handle_exposed_get_end(&event)?,
                (POINTER_OF_REQUESTS, EventKind::PutEnd) => {
                    if let Some(rank) = self.peers.rank_of(event.peer) {
                        self.handle_control_message(rank, &event)?;
                    }
                }
                // The other user pointers are handles of receives.
                (bits, EventKind::PutEnd) => self.handle_matched_receive(Handle::from_bits(bits), &event)?,
                (bits, EventKind::ReplyEnd) => self.handle_fetched(Handle::from_bits(bits), &event)?,
                _ => {}
            }
        }

        self.has_work |= count > 0;
        Ok(count)
    }

    /// Handles a control message: a request for data, or a notice.
    fn handle_control_message(&mut self, from: Rank, event: &Event) -> Result<(), Error> {
        let id = event.message.header_data;
        match event.message.match_bits {
            REQUEST => self.handle_request(from, id),
            GIVEN_UP => self.handle_given_up(from, id)?,
            NO_LONGER_THERE => self.handle_no_longer_there(from, id)?,
            IS_THERE => {
                self.deny_if_absent(from, id);
            }
            KEPT => self.handle_kept(from, id),
            WINDOW_FULL => self.handle_full(from),
            BLOCKED => self.handle_blocked(from)?,
            _ => {}
        }
        Ok(())
    }

    /// Handles the end of the sending of a put.
    fn handle_put_end(&mut self, event: &Event) -> Result<(), Error> {
        let Some(rank) = self.peers.rank_of(event.peer) else { return Ok(()) };
        self.peers.end_put(rank);
        // A control message is none of the window: it carries the id of a message of the receiver.
        if event.message.portal != CONTROL {
            self.end_put_of_message(rank, event.message.header_data, event.failure)?;
        }

        match event.failure {
            Some(Failure::Node) => self.lose(rank, Loss::NodeEnded),
            _ => Ok(()),
        }
    }

    /// Handles Portals' acknowledgement of a put.
    fn handle_acknowledgement(&mut self, event: &Event) -> Result<(), Error> {
        let Some(rank) = self.peers.rank_of(event.peer) else { return Ok(()) };
        let match_bits = event.message.match_bits;
        match event.message.portal {
            CONTROL => self.peers.record_answer(rank),
            MESSAGES => {
                let id = self.peers.get(rank).and_then(|peer| peer.window.id_of(match_bits));
                id.map_or(Ok(()), |id| self.acknowledged(rank, id))?;
            }
            // Data that are sent again have the message's id as match bits.
            REPEATED => self.acknowledged(rank, match_bits)?,
            _ => {}
        }
        Ok(())
    }

    /// Handles the end of a receiver's get of an exposed message.
    fn handle_exposed_get_end(&mut self, event: &Event) -> Result<(), Error> {
        let Some(rank) = self.peers.rank_of(event.peer) else { return Ok(()) };
        self.end_get_of_message(rank, event)?;
        match event.failure {
            Some(Failure::Node) => self.lose(rank, Loss::NodeEnded),
            _ => Ok(()),
        }
    }

    /// Handles the end of a put into the buffer of a receive: a message that has matched it, or
    /// data that the receiver has asked for. The put may also end the wait for a receive that has
    /// failed.
    fn handle_matched_receive(&mut self, receive: Handle, event: &Event) -> Result<(), Error> {
        // A kept buffer is released even if its request is gone.
        if self.fetches.release_kept(receive) {
            return Ok(());
        }
        let Some(entry) = self.requests.get_mut(receive) else { return Ok(()) };
        if matches!(entry.state, State::Fetching) {
            return self.handle_fetched(receive, event);
        }
        if !matches!(entry.state, State::Posted(_)) {
            return Ok(());
        }
        entry.envelope = bits::envelope(event.message.match_bits);
        self.receives.posted -= 1;

        let source = match self.source_of(event) {
            Ok(source) => source,
            Err(error) => {
                self.statistics.refused += 1;
                self.fail(receive, error);
                return Ok(());
            }
        };
        let length = event.message.requested.into();
        if event.failure.is_some() {
            // The data are damaged. The sender still has them, and sends them again on request.
            return self.fetch(receive, source, event.message.header_data, length, FetchMethod::Request);
        }
        self.complete_receive(receive, length, event.message.moved.into());
        Ok(())
    }
}
