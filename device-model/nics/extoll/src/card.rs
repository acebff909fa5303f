//! The state of a card, and the changes that concern all its units.
//!
//! Each unit owns its state: VELO its messages and rings, RMA its commands and notifications, the
//! ATU the registrations, the switch the queues of packets, and `Attachments` the error words and
//! interrupts. The card owns the units, builds their context for a call, and passes register
//! accesses on to them.

use nicforge_core::{context::Context, fabric::Ports, ids::AttachmentId};
use nicforge_hwi::extoll::{error, reg, vector};
use nicforge_kit::RegisterValue;

use crate::{
    attachment::{Attachments, Set, Windows},
    atu::{self, Atu},
    command_budget::CommandBudget,
    config::{CardConfig, ConfigError},
    directory::Directory,
    failure::Failure,
    registers::{AdminRegister, InterruptRegister, NotWritable, Register},
    rma::Rma,
    switch::Switch,
    unit::{SharedParts, UnitContext},
    velo::{self, Velo},
};

/// An EXTOLL card; the crate's documentation describes it.
pub struct Card {
    pub(crate) parts: SharedParts,
    pub(crate) velo: Velo,
    pub(crate) rma: Rma,
    /// The VPID whose errors the admin reads.
    selected_vpid: u64,
    /// Attachments with a client. The machine resets an attachment after its client has detached;
    /// that reset must not open the client's windows again.
    pub(crate) clients: Set,
}

impl Card {
    /// Builds a card in the state of power-on.
    ///
    /// # Errors
    /// The configuration is not valid.
    pub fn new(config: CardConfig) -> Result<Self, ConfigError> {
        config.validate()?;

        let attachments = usize::from(config.vpids) + 1;
        let (velo, rma) =
            (Velo::new(attachments, config.watchdog), Rma::new(attachments, config.rma_watchdog));
        let parts = SharedParts {
            switch: Switch::new(config.node, config.routes.clone()),
            directory: Directory::new(config.nodes, config.vpids),
            attachments: Attachments::new(config.vpids),
            atu: Atu::new(config.vpids),
            command_budget: CommandBudget::default(),
            config,
        };

        Ok(Self { parts, velo, rma, selected_vpid: 0, clients: Set::default() })
    }

    /// Returns the admin's attachment.
    pub fn admin(&self) -> AttachmentId {
        self.parts.config.admin()
    }

    /// Returns VELO and RMA, and their context for a call.
    #[inline(always)]
    pub(crate) fn units<'a, 'b>(
        &'a mut self,
        context: &'a mut Context<'b>,
    ) -> (&'a mut Velo, &'a mut Rma, UnitContext<'a, 'b>) {
        let Self { parts, velo, rma, .. } = self;
        (velo, rma, UnitContext { context, parts })
    }

    /// Returns an attachment to the state of power-on, and opens the windows of its client, if
    /// there is one.
    pub(crate) fn reset_attachment(&mut self, context: &Context<'_>, attachment: AttachmentId) {
        let has_client = self.clients.contains(attachment);
        let windows = if has_client { Windows::open(context, attachment) } else { None };
        let (mirror, velo_read_pointer, rma_read_pointer) = match windows {
            Some(Windows { mirror, velo_read_pointer, rma_read_pointer }) => {
                (Some(mirror), Some(velo_read_pointer), Some(rma_read_pointer))
            }
            None => (None, None, None),
        };

        self.parts.command_budget.remove(attachment.0);
        self.velo.power_on(attachment, velo_read_pointer);
        self.parts.atu.power_on(attachment);
        self.rma.power_on(attachment, rma_read_pointer);
        self.parts.attachments.power_on(&self.parts.config, attachment, mirror);
    }

    /// Handles the departure of a client: withdraws its waiting command, disables its rings,
    /// deregisters its regions, and drops its windows.
    pub(crate) fn detach(&mut self, attachment: AttachmentId) {
        self.parts.command_budget.remove(attachment.0);
        self.velo.detach(attachment);
        self.parts.atu.power_on(attachment);
        self.rma.power_on(attachment, None);
        self.parts.attachments.detach(attachment);
    }

    /// Returns the state that the attachments share to that of power-on: the directory, the
    /// selected VPID and the watchdogs' limits. Asks all nodes to announce their enabled rings.
    pub(crate) fn reset_shared_state(&mut self, context: &mut Context<'_>) {
        self.parts.directory.clear();
        self.selected_vpid = 0;

        let (watchdog, rma_watchdog) = (self.parts.config.watchdog, self.parts.config.rma_watchdog);
        let (velo, rma, mut unit) = self.units(context);
        velo.reset_unit(watchdog);
        rma.reset_unit(&mut unit, rma_watchdog);
    }

    /// Handles a read of BAR 0. A refused read counts as an error and leaves `data` unchanged.
    pub(crate) fn read_register(
        &mut self,
        context: &mut Context<'_>,
        from: AttachmentId,
        offset: u64,
        data: &mut [u8],
    ) {
        let code = match Register::decode(&self.parts.config, from, offset, data.len()) {
            Ok(register) => {
                if register == Register::Velo(velo::Register::Taken) {
                    // All earlier stores have arrived, so an incomplete message can no longer
                    // become complete.
                    let (velo, _, mut unit) = self.units(context);
                    velo.give_up_split(&mut unit, from);
                }
                match self.register_value(&context.ports(), from, register) {
                    Some(value) => return value.answer_read(data),
                    None => error::REGISTER_ACCESS,
                }
            }
            Err(code) => code,
        };

        self.parts.attachments.fail(context, from, Failure::of_register(code, offset));
    }

    /// Answers a read of BAR 0 without its effects. Returns false if the read would be refused.
    pub(crate) fn peek_register(
        &self,
        ports: &Ports<'_>,
        from: AttachmentId,
        offset: u64,
        data: &mut [u8],
    ) -> bool {
        let register = Register::decode(&self.parts.config, from, offset, data.len());
        let value = register.ok().and_then(|register| self.register_value(ports, from, register));
        value.map(|value| value.answer_read(data)).is_some()
    }

    /// Returns the value of a register; `None` if it can't be read.
    fn register_value(&self, ports: &Ports<'_>, from: AttachmentId, register: Register) -> Option<u64> {
        let Self { parts, velo, rma, selected_vpid, .. } = self;

        match register {
            Register::Identity => Some(reg::IDENTITY_VALUE),
            Register::Velo(register) => velo.register(from, register),
            Register::Rma(register) => rma.register(from, register),
            Register::Atu(register) => parts.atu.register_value(from, register),
            Register::Interrupt(InterruptRegister::Enable) => {
                Some(parts.attachments.interrupts_enabled(from))
            }
            Register::Admin(AdminRegister::SelectVpid) => Some(*selected_vpid),
            Register::Admin(AdminRegister::SelectedErrors) => {
                Some(parts.attachments.errors_of(*selected_vpid))
            }
            Register::Network(register) => Some(register.value(ports, &parts.switch)),
            // Set, clear and reset registers are only written.
            Register::Interrupt(_) | Register::Admin(_) => None,
        }
    }

    /// Handles a write of BAR 0. A refused write counts as an error and has no other effect.
    pub(crate) fn write_register(
        &mut self,
        context: &mut Context<'_>,
        from: AttachmentId,
        offset: u64,
        data: &[u8],
    ) {
        let register = Register::decode(&self.parts.config, from, offset, data.len());
        let code = match (register, u64::from_write(data)) {
            (Ok(register), Some(value)) => match self.set_register(context, from, register, value) {
                Ok(()) => return,
                Err(NotWritable) => error::REGISTER_ACCESS,
            },
            (Err(code), _) => code,
            (Ok(_), None) => error::REGISTER_ACCESS,
        };

        let failure = Failure::of_register(code, offset).with_value(u64::from_write(data));
        self.parts.attachments.fail(context, from, failure);
    }

    /// Writes a register.
    ///
    /// # Errors
    /// The register can't be written.
    fn set_register(
        &mut self,
        context: &mut Context<'_>,
        from: AttachmentId,
        register: Register,
        value: u64,
    ) -> Result<(), NotWritable> {
        let (velo, rma, mut unit) = self.units(context);

        match register {
            Register::Velo(register) => velo.write_register(&mut unit, from, register, value)?,
            Register::Rma(register) => rma.write_register(&mut unit, from, register, value)?,
            Register::Atu(register) => atu::write_register(&mut unit, from, register, value)?,
            Register::Interrupt(register) => self.set_interrupts(context, from, register, value),
            Register::Admin(AdminRegister::SelectVpid) => self.selected_vpid = value,
            Register::Admin(AdminRegister::ResetVpid) => self.reset_vpid(context, value)?,
            Register::Admin(AdminRegister::SelectedErrors) | Register::Identity | Register::Network(_) => {
                return Err(NotWritable);
            }
        }
        Ok(())
    }

    /// Handles a write of an interrupt register. An enabled interrupt whose condition holds already
    /// is raised at once.
    fn set_interrupts(
        &mut self,
        context: &mut Context<'_>,
        attachment: AttachmentId,
        register: InterruptRegister,
        value: u64,
    ) {
        let (velo, rma, mut unit) = self.units(context);
        let enabled = unit.parts.attachments.interrupts_enabled(attachment);
        let enabled = match register {
            InterruptRegister::Enable => value,
            InterruptRegister::Set => enabled | value,
            InterruptRegister::Clear => {
                return unit.parts.attachments.enable_interrupts(attachment, enabled & !value);
            }
        };

        let has_messages = velo.poll_unread(&mut unit, attachment);
        unit.parts.attachments.enable_interrupts(attachment, enabled);
        if has_messages {
            unit.raise(attachment, vector::VELO_RECEIVE);
        }
        if rma.poll_notifications(&mut unit, attachment) {
            unit.raise(attachment, vector::RMA_NOTIFICATION);
        }
    }

    /// Resets a VPID on the admin's behalf, with the same effect as the client's own reset.
    ///
    /// # Errors
    /// There is no such VPID.
    fn reset_vpid(&mut self, context: &mut Context<'_>, vpid: u64) -> Result<(), NotWritable> {
        let vpid =
            u16::try_from(vpid).ok().filter(|&vpid| vpid < self.parts.config.vpids).ok_or(NotWritable)?;
        let attachment = AttachmentId(vpid);

        // A reset deregisters all regions of the VPID. It is charged like the deregistrations, so
        // that an admin that posts many resets stays within the card's budget for expensive
        // commands.
        self.parts.command_budget.spend(self.parts.atu.cost_of_deregistering_all(attachment));
        self.reset_attachment(context, attachment);
        Ok(())
    }
}
