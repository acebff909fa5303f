//! The register file.

use nicforge_core::{context::Context, device::AttachmentId};
use nicforge_hwi::extoll::{LINKS, error, reg};

use crate::{card::Card, topology::Route, wire::CHANNELS};

impl Card {
    /// A read of BAR 0. What can't be read reads as ones.
    pub(crate) fn read_register(
        &mut self,
        context: &mut Context<'_>,
        from: AttachmentId,
        offset: u64,
        data: &mut [u8],
    ) {
        let whole = data.len() == 8 && offset.is_multiple_of(8);
        let code = if !whole {
            error::REGISTER_ACCESS
        } else if offset >= reg::ADMIN && from != self.admin() {
            error::NOT_PERMITTED
        } else if let Some(value) = self.register(context, from, offset) {
            data.copy_from_slice(&value.to_le_bytes());
            return;
        } else {
            error::REGISTER_ACCESS
        };
        self.fail(context, from, code, offset);
    }

    fn register(&mut self, context: &mut Context<'_>, from: AttachmentId, offset: u64) -> Option<u64> {
        let vpid = self.vpids.get(usize::from(from.0))?;
        Some(match offset {
            reg::IDENTITY => reg::IDENTITY_VALUE,
            reg::VELO_RING_BASE => vpid.place.base,
            reg::VELO_RING_SLOTS => vpid.place.slots,
            reg::VELO_RING_ENABLE => vpid.ring.is_some().into(),
            reg::INTERRUPT_ENABLE => vpid.interrupts_enabled,
            reg::WATCHDOG => self.watchdog,
            reg::SELECT_VPID => self.selected,
            reg::SELECTED_ERRORS => {
                let selected = usize::try_from(self.selected).ok()?;
                self.vpids.get(selected).map_or(0, |vpid| vpid.counts.errors)
            }
            _ => return self.link_or_route(context, offset),
        })
    }

    /// The registers that there are several of.
    fn link_or_route(&self, context: &mut Context<'_>, offset: u64) -> Option<u64> {
        let within = |base: u64, count: u64| {
            let index = offset.checked_sub(base)? / 8;
            (index < count).then_some(index)
        };
        let ports = context.ports();
        if let Some(link) = within(reg::LINK_STATE, LINKS as u64) {
            let connected = ports.connected(link as u8);
            let up = connected && ports.is_up(link as u8);
            return Some(u64::from(up) | u64::from(connected) << 1);
        }
        if let Some(link) = within(reg::LINK_RETRIES, LINKS as u64) {
            return Some((0..CHANNELS).map(|vc| ports.sent(link as u8, vc).retransmissions).sum());
        }
        let node = within(reg::ROUTE, u64::from(self.config.nodes))?;
        Some(match self.switch.route(node as u32) {
            Route::None => 15,
            Route::Local => 14,
            Route::Port { port, lane } => u64::from(port) | u64::from(lane) << 4,
        })
    }

    /// A write of BAR 0.
    pub(crate) fn write_register(
        &mut self,
        context: &mut Context<'_>,
        from: AttachmentId,
        offset: u64,
        data: &[u8],
    ) {
        let code = match <[u8; 8]>::try_from(data) {
            Ok(_) if offset >= reg::ADMIN && from != self.admin() => error::NOT_PERMITTED,
            Ok(bytes) if self.set_register(context, from, offset, u64::from_le_bytes(bytes)) => return,
            _ => error::REGISTER_ACCESS,
        };
        self.fail(context, from, code, offset);
    }

    /// False when there is no such register to write.
    fn set_register(
        &mut self,
        context: &mut Context<'_>,
        from: AttachmentId,
        offset: u64,
        value: u64,
    ) -> bool {
        let Some(vpid) = self.vpids.get_mut(usize::from(from.0)) else { return false };
        match offset {
            reg::VELO_RING_BASE | reg::VELO_RING_SLOTS if vpid.ring.is_some() => return false,
            reg::VELO_RING_BASE => vpid.place.base = value,
            reg::VELO_RING_SLOTS => vpid.place.slots = value,
            reg::VELO_RING_ENABLE => self.enable_ring(context, from, value & 1 != 0),
            reg::INTERRUPT_ENABLE => self.enable_interrupts(context, from, value),
            reg::WATCHDOG => self.watchdog = value,
            reg::SELECT_VPID => self.selected = value,
            reg::RESET_VPID => match u16::try_from(value) {
                Ok(number) if number < self.config.vpids => self.restart(context, AttachmentId(number)),
                _ => return false,
            },
            _ => return false,
        }
        true
    }
}
