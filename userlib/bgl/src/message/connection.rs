//! Virtual connections, and the table of them (paper, section 5.5).

use std::collections::VecDeque;

use nicforge_hwi::torus::{PacketHeader, presence};
use zerocopy::little_endian::U32;

use super::{
    slab::NONE,
    wire::{MessageId, WINDOW, life_bits},
};
use crate::packet::Rank;

/// Distance of the ids of a sender's first incomplete and next message at which it waits. Ids of
/// messages in progress are thus distinguishable.
pub(super) const MAX_ID_DISTANCE: u16 = MessageId::COUNT / 2;
/// Distance of the ids of a receiver's next message and the first that it has reported as
/// incomplete, at which it reports again.
pub(super) const REPORT_DISTANCE: u16 = MAX_ID_DISTANCE / 2;
/// Number of freed places that are reported without a packet that goes there anyway.
const REPORT_PLACES: u8 = WINDOW / 4;

/// Number of a connection in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionIndex(u16);

/// The virtual connection with one peer.
///
/// Sending and receiving are independent. A connection is *open* while it belongs to a process of
/// the peer.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    /// The hardware's words of packets to the peer, with the peer's life.
    hardware: [U32; 2],
    pub(super) rank: Rank,
    /// Whether the process with this life may still send or receive.
    pub(super) is_open: bool,
    /// Whether the connection is in [`Connections::ready`].
    is_ready: bool,
    /// Whether the peer's process was seen to be gone, and its last packets must still be taken.
    pub(super) is_ending: bool,
    /// The sending side.
    pub(super) outgoing: Outgoing,
    /// The receiving side.
    pub(super) incoming: Incoming,
}

/// The state of the marker that a drain sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    /// No marker is needed.
    Idle,
    /// It must be sent when the messages that have begun are sent.
    Due,
    /// It was sent.
    Sent,
    /// All messages before it are complete at the receiver.
    Acknowledged,
}

/// The sending side of a connection.
///
/// Invariant: at most [`WINDOW`] packets are sent and not freed.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    /// The first message that has not ended, or [`NONE`].
    pub(super) first: u32,
    /// The last message.
    pub(super) last: u32,
    /// The id of the next message.
    pub(super) next_id: MessageId,
    /// The first message that the receiver may not have completed.
    pub(super) oldest_id: MessageId,
    /// The marker of a drain.
    pub(super) marker: Marker,
    /// Unsolicited packets that were sent, and whose places the receiver has not freed.
    outstanding: u8,
    /// Places that the receiver has freed, modulo 2^16.
    freed: u16,
}

/// The receiving side of a connection.
///
/// Invariant: `held` is the sum of the places that its messages hold, and at most [`WINDOW`].
#[derive(Clone, Debug)]
pub(super) struct Incoming {
    /// The first message that has arrived in part, or [`NONE`].
    pub(super) first: u32,
    /// The id of the message that is presented next.
    pub(super) next_id: MessageId,
    /// The first incomplete message that the sender knows of.
    reported_oldest: MessageId,
    /// The sender's marker, if it was not acknowledged.
    pub(super) marker: Option<MessageId>,
    /// Places in use.
    held: u8,
    /// Places that were freed, modulo 2^16.
    freed: u16,
    /// Freed places that the sender does not know of.
    unreported: u8,
    /// Number of acknowledgements that are due.
    pub(super) acknowledgements_due: u8,
    /// Whether a packet must carry the first incomplete message to the sender.
    pub(super) is_oldest_due: bool,
}

impl Outgoing {
    /// Returns the sending side of a new connection.
    fn new() -> Self {
        let id = MessageId::new(0);
        Self {
            first: NONE,
            last: NONE,
            next_id: id,
            oldest_id: id,
            marker: Marker::Idle,
            outstanding: 0,
            freed: 0,
        }
    }

    /// Returns whether a credit is left.
    #[inline]
    fn has_credit(&self) -> bool {
        self.outstanding < WINDOW
    }

    /// Returns whether an unsolicited packet of a message may be sent.
    #[inline]
    pub(super) fn may_send(&self, id: MessageId) -> bool {
        self.has_credit() && id.distance_from(self.oldest_id) < MAX_ID_DISTANCE
    }

    /// Counts an unsolicited packet.
    #[inline]
    pub(super) fn spend_credit(&mut self) {
        self.outstanding += 1;
    }

    /// Takes over the receiver's count of freed places. Returns whether it was news. A count that
    /// was overtaken by a later one is beyond the packets sent, and is ignored.
    ///
    /// Nothing bounds the time that a packet takes, so the count has as many bits as its packet has
    /// room for: it is mistaken for a new one only if some 65,500 places were freed meanwhile.
    #[inline]
    pub(super) fn add_credit(&mut self, freed: u16) -> bool {
        let new = freed.wrapping_sub(self.freed);
        let is_valid = new != 0 && new <= self.outstanding.into();
        if is_valid {
            self.freed = freed;
            self.outstanding -= new as u8;
        }
        is_valid
    }

    /// Takes over the receiver's first incomplete message. Returns whether it was news.
    pub(super) fn advance_oldest(&mut self, oldest: MessageId) -> bool {
        let advance = oldest.distance_from(self.oldest_id);
        let is_valid = advance != 0 && advance <= self.next_id.distance_from(self.oldest_id);
        if is_valid {
            self.oldest_id = oldest;
        }
        is_valid
    }
}

impl Incoming {
    /// Returns the receiving side of a new connection.
    fn new() -> Self {
        let id = MessageId::new(0);
        Self {
            first: NONE,
            next_id: id,
            reported_oldest: id,
            marker: None,
            held: 0,
            freed: 0,
            unreported: 0,
            acknowledgements_due: 0,
            is_oldest_due: false,
        }
    }

    /// Returns whether a place is free.
    #[inline]
    pub(super) fn has_place(&self) -> bool {
        self.held < WINDOW
    }

    /// Takes a place.
    #[inline]
    pub(super) fn take_place(&mut self) {
        self.held += 1;
    }

    /// Frees places.
    #[inline]
    pub(super) fn free_places(&mut self, places: u8) {
        self.held = self.held.saturating_sub(places);
        self.freed = self.freed.wrapping_add(places.into());
        self.unreported = self.unreported.saturating_add(places);
    }

    /// Returns whether a packet must carry the count of freed places to the sender.
    ///
    /// They are reported when they are many, or when the sender has few credits left. A sender
    /// without credit has all its packets here or on their way, so the last of them finds that
    /// a report is due.
    #[inline]
    pub(super) fn is_credit_due(&self) -> bool {
        let is_nearly_full = self.held.saturating_add(self.unreported) > WINDOW - REPORT_PLACES;
        self.unreported >= REPORT_PLACES || self.unreported != 0 && is_nearly_full
    }

    /// Returns the number of freed places for a packet to the sender.
    #[inline]
    pub(super) fn freed(&self) -> u16 {
        self.freed
    }

    /// Records that a packet with [`Incoming::freed`] was sent.
    #[inline]
    pub(super) fn mark_reported(&mut self) {
        self.unreported = 0;
    }

    /// Records that a packet with the first incomplete message was sent.
    pub(super) fn mark_oldest_reported(&mut self, oldest: MessageId) {
        self.reported_oldest = oldest;
        self.is_oldest_due = false;
    }

    /// Decides whether the first incomplete message must be reported.
    pub(super) fn update_oldest_due(&mut self, oldest: MessageId) {
        self.is_oldest_due |= oldest != self.reported_oldest;
    }

    /// Returns whether the first incomplete message that the sender knows of is long past.
    #[inline]
    pub(super) fn is_report_overdue(&self) -> bool {
        self.next_id.distance_from(self.reported_oldest) >= REPORT_DISTANCE
    }
}

impl Connection {
    /// Returns the connection with the process of a life. `route` is the header of packets to it.
    pub(super) fn new(rank: Rank, route: PacketHeader, life: u16) -> Self {
        let header = route.for_life(life);
        Self {
            hardware: [header.hardware0, header.hardware1],
            rank,
            is_open: true,
            is_ready: false,
            is_ending: false,
            outgoing: Outgoing::new(),
            incoming: Incoming::new(),
        }
    }

    /// Returns the header of a packet to the peer, without the software's words.
    #[inline]
    pub(super) fn header(&self) -> PacketHeader {
        let [hardware0, hardware1] = self.hardware;
        PacketHeader { hardware0, hardware1, software: [U32::ZERO; 2] }
    }

    /// Returns the life of the peer's core.
    #[inline]
    pub(super) fn life(&self) -> u16 {
        self.header().life()
    }

    /// Returns whether the connection belongs to the process that sends packets with these bits of
    /// its life.
    #[inline]
    pub(super) fn is_with(&self, bits: u8) -> bool {
        self.is_open && life_bits(self.life()) == bits
    }
}

/// Returns the life of the process that sent a packet with `bits` of its life, if it is the present
/// or the last process of its core. `life` is the core's present life.
///
/// A process may send and end: what it has sent is still valid.
pub(super) fn life_of_sender(life: u16, bits: u8) -> Option<u16> {
    let sender = if presence::is_up(life) { life } else { life.wrapping_sub(1) };
    (life_bits(sender) == bits).then_some(sender)
}

/// The connections of a rank.
///
/// A possible connection takes two bytes of the table. A connection is made when it is first used,
/// and its memory then serves all later processes of the peer.
#[derive(Debug)]
pub(super) struct Connections {
    /// For each rank, the number of its connection plus 1, or 0 without one.
    table: Vec<u16>,
    list: Vec<Connection>,
    /// Connections that have something to send, which may have to wait.
    ready: VecDeque<ConnectionIndex>,
}

impl Connections {
    /// Returns the table for a number of ranks.
    pub(super) fn new(ranks: u16) -> Self {
        Self { table: vec![0; ranks.into()], list: Vec::new(), ready: VecDeque::new() }
    }

    /// Returns the connection with a rank, open or not.
    #[inline]
    pub(super) fn find(&self, rank: Rank) -> Option<ConnectionIndex> {
        self.table.get(usize::from(rank.0))?.checked_sub(1).map(ConnectionIndex)
    }

    /// Returns a connection.
    #[inline]
    pub(super) fn get(&self, index: ConnectionIndex) -> Option<&Connection> {
        self.list.get(usize::from(index.0))
    }

    /// Returns a connection.
    #[inline]
    pub(super) fn get_mut(&mut self, index: ConnectionIndex) -> Option<&mut Connection> {
        self.list.get_mut(usize::from(index.0))
    }

    /// Returns all connections.
    pub(super) fn indices(&self) -> impl Iterator<Item = ConnectionIndex> + use<> {
        (0..self.list.len() as u16).map(ConnectionIndex)
    }

    /// Returns whether no connection has anything to send.
    pub(super) fn is_quiet(&self) -> bool {
        self.ready.is_empty()
    }

    /// Adds the first connection with a rank of the machine.
    pub(super) fn add(&mut self, connection: Connection) -> ConnectionIndex {
        let index = ConnectionIndex(self.list.len() as u16);
        if let Some(entry) = self.table.get_mut(usize::from(connection.rank.0)) {
            *entry = index.0 + 1;
        }
        self.list.push(connection);
        // The queue has each connection once.
        self.ready.reserve(self.list.len() - self.ready.len());
        index
    }

    /// Replaces an ended connection.
    pub(super) fn replace(&mut self, index: ConnectionIndex, connection: Connection) {
        if let Some(old) = self.list.get_mut(usize::from(index.0)) {
            let is_ready = old.is_ready;
            *old = Connection { is_ready, ..connection };
        }
    }

    /// Puts a connection into the queue of those that have something to send.
    #[inline]
    pub(super) fn make_ready(&mut self, index: ConnectionIndex) {
        if let Some(connection) = self.list.get_mut(usize::from(index.0))
            && !std::mem::replace(&mut connection.is_ready, true)
        {
            self.ready.push_back(index);
        }
    }

    /// Returns the number of connections in the queue.
    pub(super) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// Takes the first connection out of the queue.
    #[inline]
    pub(super) fn take_ready(&mut self) -> Option<ConnectionIndex> {
        let index = self.ready.pop_front()?;
        if let Some(connection) = self.list.get_mut(usize::from(index.0)) {
            connection.is_ready = false;
        }
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_takes_about_fifty_bytes() {
        let possible = size_of::<u16>();
        assert!(size_of::<Connection>() + possible <= 50, "{} bytes", size_of::<Connection>());
    }

    #[test]
    fn old_counts_of_freed_places_are_ignored() {
        let mut outgoing = Outgoing { outstanding: 20, ..Outgoing::new() };
        assert!(outgoing.add_credit(10));
        assert_eq!([0, 9, 10, 21, 200].map(|freed| outgoing.add_credit(freed)), [false; 5]);
        assert!(outgoing.add_credit(20) && !outgoing.add_credit(20));
    }

    #[test]
    fn credit_ends_after_a_window_and_wraps_around() {
        let mut outgoing = Outgoing { freed: u16::MAX, ..Outgoing::new() };
        for _ in 0..WINDOW {
            assert!(outgoing.has_credit());
            outgoing.spend_credit();
        }
        assert!(!outgoing.has_credit());
        assert!(outgoing.add_credit(0) && outgoing.has_credit());
    }

    #[test]
    fn credit_is_due_when_the_sender_has_none() {
        let mut incoming = Incoming::new();
        for _ in 0..WINDOW {
            incoming.take_place();
        }
        incoming.free_places(1);
        assert!(incoming.is_credit_due() && incoming.freed() == 1);

        incoming.mark_reported();
        assert!(!incoming.is_credit_due());
    }

    #[test]
    fn sender_that_has_just_ended_is_known_by_its_life() {
        assert_eq!(life_of_sender(7, life_bits(7)), Some(7));
        assert_eq!(life_of_sender(8, life_bits(7)), Some(7));
        assert_eq!([life_of_sender(9, life_bits(7)), life_of_sender(10, life_bits(7))], [None; 2]);
    }
}
