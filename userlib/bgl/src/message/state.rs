//! The state of a message layer, without its packet device.

use nicforge_driver::runtime::{Cost, charge};
use nicforge_hwi::torus::PacketHeader;

use super::{
    Config, MAX_SETTLED, Statistics,
    connection::{Connection, ConnectionIndex, Connections},
    incoming::IncomingMessage,
    outgoing::OutgoingMessage,
    pool::Pool,
    slab::Slab,
    wire::{Control, Kind, MessageId, SoftwareHeader, WINDOW, life_bits},
};
use crate::{
    Error,
    packet::{PacketDevice, Place, Rank},
};

/// A packet's claim to come from a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) rank: Rank,
    /// Bits of the process's life.
    pub(super) life: u8,
}

/// A claim to be the successor of a process whose connection is open.
#[derive(Clone, Copy, Debug)]
pub(super) struct PutOff {
    pub(super) claim: Claim,
    /// Number of passes over the packets since the one that has met it.
    pub(super) passes: u32,
}

/// The state of a message layer.
///
/// Messages that are sent and received are lists of records: each connection has the first record
/// of its lists. The functions are in `send`, `receive` and `peers`.
#[derive(Debug)]
pub(super) struct State {
    /// This rank, as its packets name it.
    pub(super) own: Claim,
    pub(super) config: Config,
    /// As [`Config::repeated_packets`] returns it.
    pub(super) repeated_packets: u8,
    pub(super) connections: Connections,
    pub(super) sends: Slab<OutgoingMessage>,
    pub(super) receives: Slab<IncomingMessage>,
    pub(super) pool: Pool,
    pub(super) statistics: Statistics,
    /// Claims of packets that were left in the device, because no connection is with those
    /// processes: at most [`MAX_SETTLED`].
    pub(super) unsettled: Vec<Claim>,
    /// Claims among them that were put off.
    pub(super) put_off: Vec<PutOff>,
    /// Claims that were found to be of processes that had ended, at most as many as one call asks
    /// about.
    pub(super) stale: Vec<Claim>,
    /// Whether no message may begin, because the program takes a checkpoint.
    pub(super) is_draining: bool,
    /// The device's number of changes of lives, when all peers were last checked.
    pub(super) checked_at: Option<u32>,
}

impl State {
    /// Returns the state of a layer without connections.
    pub(super) fn new(place: &Place, config: Config) -> Self {
        Self {
            own: Claim { rank: place.rank, life: life_bits(place.life) },
            repeated_packets: config.repeated_packets(),
            config,
            connections: Connections::new(place.ranks()),
            sends: Slab::new(),
            receives: Slab::new(),
            pool: Pool::new(),
            statistics: Statistics::default(),
            unsettled: Vec::with_capacity(MAX_SETTLED),
            put_off: Vec::with_capacity(MAX_SETTLED),
            stale: Vec::with_capacity(2 * MAX_SETTLED),
            is_draining: false,
            checked_at: None,
        }
    }

    /// Opens the connection with a process of a rank. The rank has no open connection.
    pub(super) fn open(&mut self, rank: Rank, route: PacketHeader, life: u16) -> ConnectionIndex {
        let connection = Connection::new(rank, route, life);
        if let Some(index) = self.connections.find(rank) {
            self.connections.replace(index, connection);
            return index;
        }

        // The pool has a packet for each place of each connection.
        self.pool.grow(WINDOW);
        self.connections.add(connection)
    }

    /// Returns the header of a packet to the peer of a connection.
    #[inline]
    pub(super) fn header(
        &self,
        connection: &Connection,
        kind: Kind,
        id: MessageId,
        field: u32,
    ) -> PacketHeader {
        let Claim { rank: source, life } = self.own;
        let software = SoftwareHeader { kind, source, life, id, field }.encode();
        PacketHeader { software, ..connection.header() }
    }

    /// Sends a packet of high priority that has control information only. Returns whether there was
    /// room.
    pub(super) fn send_control<D: PacketDevice>(
        &mut self,
        device: &mut D,
        index: ConnectionIndex,
        (kind, id): (Kind, MessageId),
        payload: &[u8],
    ) -> Result<bool, Error> {
        let Some(connection) = self.connections.get(index) else { return Ok(true) };
        let control = Control { length: 0, freed: connection.incoming.freed() };
        let header = self.header(connection, kind, id, control.encode()).high_priority();
        if !device.send(header, [payload].into_iter())? {
            self.statistics.stalls += 1;
            return Ok(false);
        }

        charge(Cost::ControlPacket, 1);
        self.statistics.packets_sent += 1;
        if let Some(connection) = self.connections.get_mut(index) {
            connection.incoming.mark_reported();
        }
        Ok(true)
    }
}
