//! The register file: which register an access of BAR 0 names, and the unit that it belongs to.
//!
//! In: offsets and lengths of accesses. Out: [`Register`], or the error code of a refusal. The
//! units know their registers' values; the card passes accesses on to them.

use nicforge_core::{fabric::Ports, ids::AttachmentId};
use nicforge_hwi::{
    extoll::{LINKS, error, reg},
    extoll_atu::command,
};
use nicforge_kit::RegisterValue;

use crate::{
    atu, config::CardConfig, packet::CHANNELS, ring_registers::RingRegister, rma, switch::Switch,
    topology::Route, velo,
};

/// The port of a route register without a route, as [`reg::ROUTE`] defines it.
const PORT_OF_NO_ROUTE: u64 = 15;
/// The port of the route register of this card's own node.
const PORT_OF_LOCAL_ROUTE: u64 = 14;
/// Lowest bit of the lane in a route register.
const ROUTE_LANE_SHIFT: u32 = 4;

/// Error: a register can't be written, or not in the present state of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotWritable;

/// A register, by the unit that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    Identity,
    Velo(velo::Register),
    Rma(rma::Register),
    Atu(atu::Register),
    Interrupt(InterruptRegister),
    Admin(AdminRegister),
    Network(NetworkRegister),
}

/// A register of an attachment's interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterruptRegister {
    Enable,
    Set,
    Clear,
}

/// A register with which the admin inspects or resets a VPID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminRegister {
    SelectVpid,
    SelectedErrors,
    ResetVpid,
}

/// A register of the links and routes, which is only read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetworkRegister {
    /// The state of a link.
    LinkState(u8),
    /// The number of packets that a link retransmitted.
    LinkRetries(u8),
    /// The route to a node.
    Route(u32),
}

impl Register {
    /// Returns the register that an access of `length` bytes names.
    ///
    /// # Errors
    /// The error code to count: the access has a wrong width, or the attachment may not make it, or
    /// there is no register.
    pub(crate) fn decode(
        config: &CardConfig,
        attachment: AttachmentId,
        offset: u64,
        length: usize,
    ) -> Result<Self, u8> {
        if !u64::is_whole_access(offset, length) {
            return Err(error::REGISTER_ACCESS);
        }
        if offset >= reg::ADMIN && attachment != config.admin() {
            return Err(error::NOT_PERMITTED);
        }
        Self::at(config, offset).ok_or(error::REGISTER_ACCESS)
    }

    /// Returns the register at an offset.
    fn at(config: &CardConfig, offset: u64) -> Option<Self> {
        Some(match offset {
            reg::IDENTITY => Self::Identity,
            reg::VELO_RING_BASE => Self::Velo(velo::Register::Ring(RingRegister::Base)),
            reg::VELO_RING_SLOTS => Self::Velo(velo::Register::Ring(RingRegister::Entries)),
            reg::VELO_RING_ENABLE => Self::Velo(velo::Register::Ring(RingRegister::Enable)),
            reg::VELO_TAKEN => Self::Velo(velo::Register::Taken),
            reg::WATCHDOG => Self::Velo(velo::Register::Watchdog),

            reg::RMA_QUEUE_BASE => Self::Rma(rma::Register::Queue(RingRegister::Base)),
            reg::RMA_QUEUE_ENTRIES => Self::Rma(rma::Register::Queue(RingRegister::Entries)),
            reg::RMA_QUEUE_ENABLE => Self::Rma(rma::Register::Queue(RingRegister::Enable)),
            reg::RMA_WATCHDOG => Self::Rma(rma::Register::Watchdog),

            command::ADDRESS => Self::Atu(atu::Register::Address),
            command::PAGES => Self::Atu(atu::Register::Pages),
            command::OWNER => Self::Atu(atu::Register::Owner),
            command::COMMAND => Self::Atu(atu::Register::Command),
            command::STATUS => Self::Atu(atu::Register::Status),
            command::RESULT => Self::Atu(atu::Register::Result),

            reg::INTERRUPT_ENABLE => Self::Interrupt(InterruptRegister::Enable),
            reg::INTERRUPT_SET => Self::Interrupt(InterruptRegister::Set),
            reg::INTERRUPT_CLEAR => Self::Interrupt(InterruptRegister::Clear),

            reg::SELECT_VPID => Self::Admin(AdminRegister::SelectVpid),
            reg::SELECTED_ERRORS => Self::Admin(AdminRegister::SelectedErrors),
            reg::RESET_VPID => Self::Admin(AdminRegister::ResetVpid),

            _ => return NetworkRegister::at(config, offset).map(Self::Network),
        })
    }
}

impl NetworkRegister {
    /// Returns the register at an offset.
    fn at(config: &CardConfig, offset: u64) -> Option<Self> {
        // The index of the register at `offset` in an array of `count` registers from `base` on, if
        // it lies in that array.
        let index_in = |base: u64, count: u64| {
            let index = offset.checked_sub(base)? / 8;
            (index < count).then_some(index)
        };

        // The indices fit: they are below the counts.
        if let Some(link) = index_in(reg::LINK_STATE, LINKS as u64) {
            return Some(Self::LinkState(link as u8));
        }
        if let Some(link) = index_in(reg::LINK_RETRIES, LINKS as u64) {
            return Some(Self::LinkRetries(link as u8));
        }
        index_in(reg::ROUTE, config.nodes.into()).map(|node| Self::Route(node as u32))
    }

    /// Returns the register's value.
    pub(crate) fn value(self, ports: &Ports<'_>, switch: &Switch) -> u64 {
        match self {
            Self::LinkState(link) => {
                let connected = ports.connected(link);
                let up = connected && ports.is_up(link);
                // The bits are those of `reg::LINK_STATE`.
                u64::from(up) | u64::from(connected) << 1
            }
            Self::LinkRetries(link) => (0..CHANNELS).map(|vc| ports.sent(link, vc).retransmissions).sum(),
            Self::Route(node) => match switch.route(node) {
                Route::None => PORT_OF_NO_ROUTE,
                Route::Local => PORT_OF_LOCAL_ROUTE,
                Route::Port { port, lane } => u64::from(port) | u64::from(lane) << ROUTE_LANE_SHIFT,
            },
        }
    }
}
