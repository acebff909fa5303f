//! The configuration of one card.

use std::sync::Arc;

use nicforge_core::ids::AttachmentId;
use nicforge_hwi::extoll::{DEFAULT_VPIDS, LINKS, MAX_NODES, MAX_VPIDS, reg};
use nicforge_kit::Clock;
use thiserror::Error;

use crate::{packet::LANES, topology::Route};

/// Maximum number of bytes of data that an RMA packet carries on any card.
pub const MAX_RMA_MTU: u32 = 64 << 10;
/// Minimum of the number of bytes of data that an RMA packet can carry.
pub(crate) const MIN_RMA_MTU: u32 = 64;
/// Bytes of data of an RMA packet of the R1 prototype.
///
/// It is calibrated: with 80 bytes of header and framing, 256 of each 336 bytes are data. A link of
/// 624 MB/s thus moves 475 MB/s. The EXTOLL paper reports a peak of 480 MB/s (section V.A).
pub const R1_RMA_MTU: u32 = 256;

/// Configuration of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardConfig {
    /// The card's node id.
    pub node: u32,
    /// Number of nodes of the network: all ids are below it. The routing table has one entry for
    /// each node.
    pub nodes: u32,
    /// Number of VPIDs, 1 to [`MAX_VPIDS`]; the same on all cards of a network.
    pub vpids: u16,
    /// The routing table, by target node. Copies of the configuration share it.
    pub routes: Arc<[Route]>,
    /// The watchdog of VELO sends at power-on, in nanoseconds; 0 disables it.
    pub watchdog: u64,
    /// The watchdog of RMA at power-on, in nanoseconds; 0 disables it.
    pub rma_watchdog: u64,
    /// Maximum number of bytes of data that an RMA packet carries: a multiple of 8, 64 to
    /// [`MAX_RMA_MTU`].
    pub rma_mtu: u32,
    /// The clock of the core. VELO and RMA take its cycles for their work, with a data path of 32
    /// bits. By default the clock is instant: their work takes no time.
    pub clock: Clock,
}

impl CardConfig {
    /// Returns a card without links, which can send to itself.
    pub fn alone() -> Self {
        Self {
            node: 0,
            nodes: 1,
            vpids: DEFAULT_VPIDS,
            routes: Arc::new([Route::Local]),
            watchdog: reg::WATCHDOG_DEFAULT,
            rma_watchdog: reg::RMA_WATCHDOG_DEFAULT,
            rma_mtu: MAX_RMA_MTU,
            clock: Clock::default(),
        }
    }

    /// Returns the admin's attachment, which comes after the VPIDs.
    #[inline]
    pub(crate) fn admin(&self) -> AttachmentId {
        AttachmentId(self.vpids)
    }

    /// Checks node id, number of VPIDs, RMA packets and routing table.
    ///
    /// # Errors
    /// The first value that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let Self { node, nodes, vpids, ref routes, rma_mtu, .. } = *self;

        if nodes == 0 || nodes > MAX_NODES || node >= nodes {
            return Err(ConfigError::Node { node, nodes });
        }
        if vpids == 0 || vpids > MAX_VPIDS {
            return Err(ConfigError::Vpids { vpids });
        }
        if !(MIN_RMA_MTU..=MAX_RMA_MTU).contains(&rma_mtu) || !rma_mtu.is_multiple_of(8) {
            return Err(ConfigError::RmaMtu { bytes: rma_mtu });
        }
        if routes.len() != nodes as usize {
            return Err(ConfigError::Table { entries: routes.len(), nodes });
        }

        for (target, route) in (0..).zip(routes.iter()) {
            let is_valid = match *route {
                Route::None => true,
                Route::Local => target == node,
                Route::Port { port, lane } => {
                    target != node && usize::from(port) < LINKS && usize::from(lane) < LANES
                }
            };

            if !is_valid {
                return Err(ConfigError::Route { target, route: *route });
            }
        }

        Ok(())
    }
}

/// Reasons why a configuration is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The node id is not in the network.
    #[error("node {node} of {nodes}: a network has 1 to {MAX_NODES} nodes, numbered from 0")]
    Node {
        /// The id.
        node: u32,
        /// Number of nodes.
        nodes: u32,
    },
    /// VPIDs out of range.
    #[error("{vpids} VPIDs: a card has 1 to {MAX_VPIDS}")]
    Vpids {
        /// Number of VPIDs.
        vpids: u16,
    },
    /// An RMA packet can't have this size.
    #[error("RMA packets of {bytes} bytes: a multiple of 8 from 64 to {MAX_RMA_MTU} is possible")]
    RmaMtu {
        /// Bytes of data of a packet.
        bytes: u32,
    },
    /// The routing table does not have one entry for each node.
    #[error("a routing table of {entries} entries in a network of {nodes} nodes")]
    Table {
        /// Entries of the table.
        entries: usize,
        /// Number of nodes.
        nodes: u32,
    },
    /// A route names a port or lane that does not exist, or treats a wrong node as local.
    #[error(
        "the route to node {target} is {route:?}: ports are 0 to 5, lanes 0 and 1, and only the own node is local"
    )]
    Route {
        /// The target node.
        target: u32,
        /// The route.
        route: Route,
    },
}
