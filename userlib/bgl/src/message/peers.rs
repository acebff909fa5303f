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
            self.stale = Some(claim);
            return Ok(());
        };

        let sender = life_of_sender(device.life(rank)?, bits);
        let found = self.connections.find(rank);
        let connection = found.and_then(|index| self.connections.get(index));
        let old_life = connection.map(|connection| connection.life());
        match sender {
            // The connection with this process has ended.
            Some(life) if Some(life) == old_life => self.stale = Some(claim),
            Some(life) => {
                if let Some(index) = found {
                    self.end_connection(index, callbacks);
                }
                self.open(rank, route, life);
                // The process may be gone already.
                self.checked_at = None;
            }
            None => self.stale = Some(claim),
        }
        Ok(())
    }

    /// Ends the connections with processes that are gone, and from which nothing has come since the
    /// last call. Returns their number.
    pub(super) fn end_lost_connections<D: PacketDevice, C: Callbacks>(
        &mut self,
        device: &D,
        callbacks: &mut C,
    ) -> Result<usize, Error> {
        // A later change has another number, so it is not missed.
        let changes = device.life_changes()?;
        if self.checked_at == Some(changes) {
            return Ok(0);
        }

        let (mut lost, mut kept) = (0, 0);
        for index in self.connections.indices() {
            let Some(connection) = self.connections.get_mut(index).filter(|connection| connection.is_open)
            else {
                continue;
            };
            let has_received = connection.take_received();
            if device.life(connection.rank)? == connection.life() {
                continue;
            }

            // The last packets of the process may still arrive.
            if has_received {
                kept += 1;
            } else {
                self.end_connection(index, callbacks);
                lost += 1;
            }
        }

        self.checked_at = (kept == 0).then_some(changes);
        Ok(lost)
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
