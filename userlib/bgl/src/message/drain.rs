//! Application-driven checkpoints (paper, section 5.6): the connections are drained.
//!
//! Packets arrive in any order, so a marker can overtake the packets before it. A marker therefore
//! has the id of the sender's next message, and the receiver acknowledges it only when all earlier
//! messages are complete.

use super::{
    connection::{ConnectionIndex, Marker},
    incoming::Malformed,
    slab::NONE,
    state::State,
    wire::{Kind, MessageId, WINDOW},
};
use crate::{Error, packet::PacketDevice};

impl State {
    /// Begins no more messages, and makes the markers of all connections due.
    pub(super) fn begin_drain(&mut self) {
        self.is_draining = true;
        for index in self.connections.indices() {
            if let Some(connection) = self.connections.get_mut(index).filter(|connection| connection.is_open)
            {
                connection.outgoing.marker = Marker::Due;
                self.connections.make_ready(index);
            }
        }
    }

    /// Lets messages begin again.
    pub(super) fn end_drain(&mut self) {
        self.is_draining = false;
        for index in self.connections.indices() {
            if let Some(connection) = self.connections.get_mut(index) {
                connection.outgoing.marker = Marker::Idle;
                self.connections.make_ready(index);
            }
        }
    }

    /// Returns whether all peers have acknowledged their markers. A connection that was opened
    /// meanwhile has sent no message.
    pub(super) fn is_drained(&self) -> bool {
        let is_pending = |marker| matches!(marker, Marker::Due | Marker::Sent);
        let mut open = self.connections.indices().filter_map(|index| self.connections.get(index));
        self.is_draining
            && !open.any(|connection| connection.is_open && is_pending(connection.outgoing.marker))
    }

    /// Sends a connection's marker and the acknowledgement of its peer's, as they are due. Returns
    /// `false` if there was no room.
    pub(super) fn send_markers<D: PacketDevice>(
        &mut self,
        device: &mut D,
        index: ConnectionIndex,
    ) -> Result<bool, Error> {
        let Some(connection) = self.connections.get(index).filter(|connection| connection.is_open) else {
            return Ok(true);
        };
        let (next_id, marker, peer_marker) =
            (connection.outgoing.next_id, connection.outgoing.marker, connection.incoming.marker);

        if marker == Marker::Due && !self.has_begun_messages(index) {
            if !self.send_control(device, index, (Kind::Marker, next_id), &[])? {
                return Ok(false);
            }
            if let Some(connection) = self.connections.get_mut(index) {
                connection.outgoing.marker = Marker::Sent;
            }
        }

        let Some(id) = peer_marker.filter(|&id| self.oldest_incomplete(index) == id) else { return Ok(true) };
        if !self.send_control(device, index, (Kind::MarkerAcknowledge, id), &[])? {
            return Ok(false);
        }
        if let Some(connection) = self.connections.get_mut(index) {
            connection.incoming.marker = None;
            connection.incoming.mark_oldest_reported(id);
        }
        Ok(true)
    }

    /// Returns whether packets of a connection's first message were sent, but not all.
    fn has_begun_messages(&self, index: ConnectionIndex) -> bool {
        let first = self.connections.get(index).map_or(NONE, |connection| connection.outgoing.first);
        self.sends.get(first).is_some_and(|message| message.id.is_some())
    }

    /// Handles a marker from the peer of a connection.
    pub(super) fn on_marker(&mut self, index: ConnectionIndex, id: MessageId) -> Result<(), Malformed> {
        let connection = self.connections.get_mut(index).ok_or(Malformed)?;
        // Each message before the marker that was not presented holds a place.
        if id.distance_from(connection.incoming.next_id) > WINDOW.into() {
            return Err(Malformed);
        }

        // The marker of a drain that was ended early may come after that of the next drain, which
        // is the one that the sender waits for.
        let is_overtaken =
            connection.incoming.marker.is_some_and(|known| known.distance_from(id) <= WINDOW.into());
        if !is_overtaken {
            connection.incoming.marker = Some(id);
        }
        self.connections.make_ready(index);
        Ok(())
    }

    /// Handles the acknowledgement of a marker.
    pub(super) fn on_marker_acknowledge(
        &mut self,
        index: ConnectionIndex,
        id: MessageId,
    ) -> Result<(), Malformed> {
        let outgoing = &mut self.connections.get_mut(index).ok_or(Malformed)?.outgoing;
        if outgoing.marker != Marker::Sent || id != outgoing.next_id {
            return Err(Malformed);
        }

        outgoing.marker = Marker::Acknowledged;
        outgoing.advance_oldest(id);
        Ok(())
    }
}
