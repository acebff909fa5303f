//! Processes of peers: connections are made and ended as processes come and go.

use nicforge_hwi::torus::{FIFO_CHUNKS, PacketHeader, presence};

use super::{
    Callbacks,
    connection::{ConnectionIndex, life_of_sender},
    slab::NONE,
    state::{Claim, PutOff, State},
};
use crate::{
    Error,
    packet::{PacketDevice, Rank},
};

impl State {
    /// Returns the open connection with a rank, and makes it if there is none.
    pub(super) fn connect<D: PacketDevice>(
        &mut self,
        device: &D,
        rank: Rank,
    ) -> Result<ConnectionIndex, Error> {
        let found = self.connections.find(rank);
        let connection = found.and_then(|index| self.connections.get(index));
        if let (Some(index), Some(connection)) = (found, connection)
            && connection.is_open
        {
            return Ok(index);
        }

        let ranks = device.place().ranks();
        let route = device.route(rank).ok_or(Error::Unreachable { rank: rank.0, ranks })?;
        let ended_life = connection.map(|connection| connection.life());
        let life = device.life(rank)?;
        if !presence::is_up(life) || Some(life) == ended_life {
            return Err(Error::PeerDown { rank: rank.0 });
        }
        Ok(self.open(rank, route, life))
    }

    /// Decides about the claims of the packets that the last pass has left in the device.
    ///
    /// A claim of the successor of an open connection is put off, because the last packets of the
    /// connection may lie in another FIFO, behind one that was left too. They had arrived before
    /// the successor began. So the connection ends when a whole pass after the claim was met has
    /// left nothing but such claims.
    ///
    /// Wrong packets may keep that from happening. But each pass takes a packet from each FIFO that
    /// has any of another kind, so after as many passes as a FIFO has chunks, the last packets were
    /// taken.
    pub(super) fn settle<D: PacketDevice, C: Callbacks>(
        &mut self,
        device: &D,
        callbacks: &mut C,
    ) -> Result<(), Error> {
        let unsettled = std::mem::take(&mut self.unsettled);
        let mut put_off = std::mem::take(&mut self.put_off);
        let result = self.settle_claims(device, &unsettled, &mut put_off, callbacks);
        (self.unsettled, self.put_off) = (unsettled, put_off);
        result
    }

    /// Decides about claims, of which `put_off` has those that were put off before.
    fn settle_claims<D: PacketDevice, C: Callbacks>(
        &mut self,
        device: &D,
        claims: &[Claim],
        put_off: &mut Vec<PutOff>,
        callbacks: &mut C,
    ) -> Result<(), Error> {
        put_off.retain(|before| claims.contains(&before.claim));
        let (mut has_settled, mut longest) = (false, None);
        for &claim in claims {
            let Some(successor) = self.settle_claim(device, claim)? else {
                has_settled = true;
                continue;
            };
            let Some(before) = put_off.iter_mut().find(|before| before.claim == claim) else {
                put_off.push(PutOff { claim, passes: 0 });
                continue;
            };
            before.passes += 1;
            if longest.is_none_or(|(passes, _)| passes < before.passes) {
                longest = Some((before.passes, successor));
            }
        }

        // One at a time: the last packets of other connections may lie behind this one.
        if let Some((passes, (index, route, life))) = longest
            && (!has_settled || passes >= FIFO_CHUNKS)
            && let Some(rank) = self.connections.get(index).map(|connection| connection.rank)
        {
            self.end_connection(index, callbacks);
            self.open_for_packet(rank, route, life);
        }
        Ok(())
    }

    /// Decides about the claim of a packet that was left in the device: opens a connection with the
    /// process, or marks the claim as stale. Returns the open connection with a predecessor of the
    /// process, and the new one's route and life, if the claim must wait for its end.
    fn settle_claim<D: PacketDevice>(
        &mut self,
        device: &D,
        claim: Claim,
    ) -> Result<Option<(ConnectionIndex, PacketHeader, u16)>, Error> {
        let Claim { rank, life: bits } = claim;
        let Some(route) = device.route(rank) else {
            self.stale.push(claim);
            return Ok(None);
        };

        let sender = life_of_sender(device.life(rank)?, bits);
        let found = self.connections.find(rank);
        let connection = found.and_then(|index| self.connections.get(index));
        let old_life = connection.map(|connection| connection.life());
        match sender {
            // The connection with this process has ended.
            Some(life) if Some(life) == old_life => self.stale.push(claim),
            Some(life) => {
                if let Some(index) = found.filter(|_| connection.is_some_and(|old| old.is_open)) {
                    return Ok(Some((index, route, life)));
                }
                self.open_for_packet(rank, route, life);
            }
            None => self.stale.push(claim),
        }
        Ok(None)
    }

    /// Opens the connection with the process of a packet that was left in the device.
    fn open_for_packet(&mut self, rank: Rank, route: PacketHeader, life: u16) {
        self.open(rank, route, life);
        // The process may be gone already.
        self.checked_at = None;
    }

    /// Marks the connections with processes that are gone. Returns whether there may be any: lives
    /// have changed since the last call.
    ///
    /// The last packets of these processes have arrived. They must be taken before the connections
    /// end.
    pub(super) fn mark_lost_connections<D: PacketDevice>(&mut self, device: &D) -> Result<bool, Error> {
        // A later change has another number, so it is not missed.
        let changes = device.life_changes()?;
        if self.checked_at == Some(changes) {
            return Ok(false);
        }

        for index in self.connections.indices() {
            if let Some(connection) = self.connections.get_mut(index).filter(|connection| connection.is_open)
            {
                connection.is_ending = device.life(connection.rank)? != connection.life();
            }
        }
        self.checked_at = Some(changes);
        Ok(true)
    }

    /// Ends the connections that were marked, and returns their number.
    pub(super) fn end_marked_connections<C: Callbacks>(&mut self, callbacks: &mut C) -> usize {
        let mut ended = 0;
        for index in self.connections.indices() {
            let is_ending = self
                .connections
                .get(index)
                .is_some_and(|connection| connection.is_open && connection.is_ending);
            if is_ending {
                self.end_connection(index, callbacks);
                ended += 1;
            }
        }
        ended
    }

    /// Ends a connection: its messages fail.
    fn end_connection<C: Callbacks>(&mut self, index: ConnectionIndex, callbacks: &mut C) {
        let Some(connection) = self.connections.get_mut(index).filter(|connection| connection.is_open) else {
            return;
        };
        connection.is_open = false;
        let rank = connection.rank;
        let sends = std::mem::replace(&mut connection.outgoing.first, NONE);
        connection.outgoing.last = NONE;
        let receives = std::mem::replace(&mut connection.incoming.first, NONE);
        connection.incoming.acknowledgements_due = 0;

        self.statistics.peers_lost += 1;
        self.fail_sends(rank, sends, callbacks);
        self.fail_receives(rank, receives, callbacks);
    }
}
