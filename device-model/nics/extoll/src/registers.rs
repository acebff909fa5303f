//! The register file.

use nicforge_core::{context::Context, dma::DmaPermission, ids::AttachmentId};
use nicforge_hwi::{
    extoll::{LINKS, error, reg},
    extoll_atu::command,
};

use crate::{atu::AtuRegisters, card::Card, topology::Route, wire::CHANNELS};

impl Card {
    /// Handles a read of BAR 0. A refused read counts as an error and leaves `data` unchanged.
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

    /// Returns the value of a register; `None` if it can't be read.
    fn register(&mut self, context: &mut Context<'_>, from: AttachmentId, offset: u64) -> Option<u64> {
        if offset == reg::VELO_TAKEN {
            // All earlier stores have arrived, so an incomplete message can no longer become
            // complete.
            self.give_up_split(context, from);
        }

        let vpid = self.vpids.get(usize::from(from.0))?;

        Some(match offset {
            reg::IDENTITY => reg::IDENTITY_VALUE,
            reg::VELO_RING_BASE => vpid.ring_registers.base,
            reg::VELO_RING_SLOTS => vpid.ring_registers.slots,
            reg::VELO_RING_ENABLE => vpid.ring.is_some().into(),
            reg::VELO_TAKEN => vpid.counts.taken(),
            reg::RMA_QUEUE_BASE | reg::RMA_QUEUE_ENTRIES | reg::RMA_QUEUE_ENABLE => {
                return self.queue_register(from, offset);
            }
            command::ADDRESS => vpid.atu.address,
            command::PAGES => vpid.atu.pages,
            command::OWNER => vpid.atu.owner,
            command::STATUS => vpid.atu.status,
            command::RESULT => vpid.atu.result,
            reg::INTERRUPT_ENABLE => vpid.interrupts_enabled,
            reg::WATCHDOG => self.watchdog,
            reg::RMA_WATCHDOG => self.rma.watchdog.limit(),
            reg::SELECT_VPID => self.selected,
            reg::SELECTED_ERRORS => {
                let selected = usize::try_from(self.selected).ok()?;
                self.vpids.get(selected).map_or(0, |vpid| vpid.counts.errors)
            }
            _ => return self.link_or_route(context, offset),
        })
    }

    /// Returns the value of a register of the notification queue.
    fn queue_register(&mut self, from: AttachmentId, offset: u64) -> Option<u64> {
        let client = self.rma.client(from)?;
        Some(match offset {
            reg::RMA_QUEUE_BASE => client.registers.base,
            reg::RMA_QUEUE_ENTRIES => client.registers.entries,
            _ => client.queue.is_some().into(),
        })
    }

    /// Returns the value of a register of a link or a route.
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

    /// Handles a write of BAR 0. A refused write counts as an error and has no other effect.
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

    /// Writes a register. Returns false if no such register can be written.
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
            reg::VELO_RING_BASE => vpid.ring_registers.base = value,
            reg::VELO_RING_SLOTS => vpid.ring_registers.slots = value,
            reg::VELO_RING_ENABLE => self.enable_ring(context, from, value & 1 != 0),
            reg::RMA_QUEUE_BASE | reg::RMA_QUEUE_ENTRIES => {
                let Some(client) = self.rma.client(from).filter(|client| client.queue.is_none()) else {
                    return false;
                };
                let registers = &mut client.registers;
                *(if offset == reg::RMA_QUEUE_BASE { &mut registers.base } else { &mut registers.entries }) =
                    value;
            }

            reg::RMA_QUEUE_ENABLE => self.enable_queue(context, from, value & 1 != 0),
            command::ADDRESS => vpid.atu.address = value,
            command::PAGES => vpid.atu.pages = value,
            command::OWNER => vpid.atu.owner = value,
            command::COMMAND => self.translate(context, from, value),

            reg::INTERRUPT_ENABLE => self.enable_interrupts(context, from, value),
            reg::INTERRUPT_SET => {
                let enabled = vpid.interrupts_enabled;
                self.enable_interrupts(context, from, enabled | value);
            }
            reg::INTERRUPT_CLEAR => vpid.interrupts_enabled &= !value,
            reg::WATCHDOG => self.watchdog = value,
            reg::RMA_WATCHDOG => self.rma.watchdog.set_limit(context, value),
            reg::SELECT_VPID => self.selected = value,

            reg::RESET_VPID => match u16::try_from(value) {
                Ok(number) if number < self.config.vpids => self.restart(context, AttachmentId(number)),
                _ => return false,
            },
            _ => return false,
        }

        true
    }

    /// Carries out a command of the address translation unit.
    fn translate(&mut self, context: &mut Context<'_>, from: AttachmentId, value: u64) {
        let admin = self.admin();
        let vpids = u64::from(self.config.vpids);
        let Some(vpid) = self.vpids.get(usize::from(from.0)) else { return };
        let AtuRegisters { address, pages, owner, .. } = vpid.atu;
        let owner = if from == admin {
            u16::try_from(owner).ok().filter(|_| owner < vpids).map(AttachmentId)
        } else {
            Some(from)
        };

        let class = (value >> command::CLASS_SHIFT & 3) as u8;
        let others = DmaPermission { read: value & command::READ != 0, write: value & command::WRITE != 0 };

        let result = match (value & command::WHAT, owner) {
            _ if value & command::RESERVED != 0 => Err(command::MALFORMED),
            (command::REGISTER, None) => Err(command::NO_OWNER),
            (command::REGISTER, Some(owner)) => {
                self.atu.register(context, &mut self.work, owner, class, others, (address, pages)).map(Some)
            }
            (command::DEREGISTER, _) => {
                self.atu.deregister(&mut self.work, (from != admin).then_some(from), address).map(|()| None)
            }
            _ => Err(command::MALFORMED),
        };

        let Some(vpid) = self.vpids.get_mut(usize::from(from.0)) else { return };
        match result {
            Ok(first) => {
                vpid.atu.status = command::DONE;
                vpid.atu.result = first.unwrap_or(vpid.atu.result);
            }
            Err(status) => {
                vpid.atu.status = status;
                self.fail(context, from, error::ATU, command::COMMAND);
            }
        }
    }
}
