//! Processes of peers: connections are made and ended as processes come and go.

use nicforge_hwi::torus::presence;

use super::{
    Callbacks,
    connection::{ConnectionIndex, life_of_sender},
    slab::NONE,
    state::{Claim, State},
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

    /// Decides about the claim of a packet that was left in the device: opens a connection with the
    /// process, after the end of the connection with its predecessor, or marks the claim as stale.
    pub(super) fn settle<D: PacketDevice, C: Callbacks>(
        &mut self,
        device: &D,
        claim: Claim,
        callbacks: &mut C,
    ) -> Result<(), Error> {
        let Claim { rank, life: bits } = claim;
        let Some(route) = device.route(rank) else {
            self.stale.push(claim);
            return Ok(());
        };

        let sender = life_of_sender(device.life(rank)?, bits);
        let found = self.connections.find(rank);
        let connection = found.and_then(|index| self.connections.get(index));
        let old_life = connection.map(|connection| connection.life());
        match sender {
            // The connection with this process has ended.
            Some(life) if Some(life) == old_life => self.stale.push(claim),
            Some(life) => {
                if let Some(index) = found {
                    self.end_connection(index, callbacks);
                }
                self.open(rank, route, life);
                // The process may be gone already.
                self.checked_at = None;
            }
            None => self.stale.push(claim),
        }
        Ok(())
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
