//! Accesses to BAR 0 ([`nicforge_hwi::tree_dcr`]): decoding, permissions and error bits.

use nicforge_core::{
    context::Context,
    fabric::Ports,
    ids::{Address, AttachmentId},
    warning::Warning,
};
use nicforge_hwi::{
    tree::{ATTACHMENT_ADMIN, PORTS, VC_SYSTEM, VC_USER, VCS},
    tree_dcr::{
        ARB_HD_COUNT, ARB_HD00, ARB_RCFG, ARB_RSTAT, ARB_XSTAT, CLASS_RDR_COUNT, CLASS_RDR0, DCR_BASE,
        DCR_COUNT, ERR_S0_RETRY, GLOB_FPTR, GLOB_NADDR, GLOB_VCFG0, GLOB_VCFG1, INJ_CSHD0, INJ_CSHD1,
        INJ_CSPY0, INJ_CSPY1, INJ_PIXEN, INJ_PIXF, REC_PRXEN, REC_PRXF, REG_INT_ENABLE, REG_INT_STATUS, dcr,
        gi, pix, port, prx, rcfg, rdr,
    },
};
use nicforge_kit::RegisterValue;

use crate::{
    barrier,
    config::ClassRoute,
    fifo::{Channel, ChannelConfig, Exceptions, Refused, SendHead},
    nic::TreeNic,
    presence,
};

/// End of the device control registers in BAR 0.
const DCR_END: u64 = DCR_BASE + 4 * DCR_COUNT;

/// Returns the virtual channel of an attachment.
pub(crate) fn channel_of(attachment: AttachmentId) -> usize {
    if attachment.0 == ATTACHMENT_ADMIN { VC_SYSTEM } else { VC_USER }
}

/// Returns whether an attachment is at processor port 1 (cores 2 and 3), which has error bits of
/// its own.
fn is_at_second_port(attachment: AttachmentId) -> bool {
    matches!(attachment.0, 2 | 3)
}

/// Checks that an access covers a whole register: an aligned word.
fn check_whole_register(offset: u64, length: usize) -> Result<(), Refused> {
    if u32::is_whole_access(offset, length) { Ok(()) } else { Err(Refused::Align) }
}

impl TreeNic {
    /// Handles a read of BAR 0. A refused read sets an error bit and leaves `data` unchanged.
    pub(crate) fn read_register(
        &mut self,
        context: &mut Context<'_>,
        from: AttachmentId,
        at: Address,
        data: &mut [u8],
    ) {
        let channel = channel_of(from);

        let result = match at.offset {
            offset if at.bar != 0 || offset >= nicforge_hwi::tree_dcr::REGISTERS => Err(Refused::Address),
            offset if offset < DCR_BASE => {
                // The register `SO` shows the status word of the other one of the two channels.
                let other_channel = 1 - channel;
                let (channel, offset) =
                    if offset == port::SO { (other_channel, port::SX) } else { (channel, offset) };
                let halves = &mut self.halves[usize::from(from.0)];
                self.channels[channel].read_port(halves, offset, data)
            }
            offset => self.read_word(context, from, offset, data),
        };

        if let Err(refused) = &result {
            context.warn(from, Warning::refused(refused.rule()).register(at));
        }
        let error = match result {
            Ok(()) | Err(Refused::Reported) => 0,
            Err(Refused::Align) if is_at_second_port(from) => prx::ALIGN1,
            Err(Refused::Align) => prx::ALIGN0,
            Err(Refused::Address) if is_at_second_port(from) => prx::ADDR1,
            Err(Refused::Address) => prx::ADDR0,
        };

        self.channels[channel].events.receive_error(error);
    }

    /// Answers a read of BAR 0 as far as it has no effect. Returns false for the ports to FIFOs,
    /// and if the read would be refused.
    pub(crate) fn peek_register(
        &self,
        ports: &Ports<'_>,
        from: AttachmentId,
        at: Address,
        data: &mut [u8],
    ) -> bool {
        const REC_PRXF_OFFSET: u64 = dcr(REC_PRXF);
        const INJ_PIXF_OFFSET: u64 = dcr(INJ_PIXF);

        let channel = channel_of(from);
        let value = match at.offset {
            _ if at.bar != 0 || !u32::is_whole_access(at.offset, data.len()) => None,
            port::SX => Some(self.channels[channel].status_last_seen()),
            port::SO => Some(self.channels[1 - channel].status_last_seen()),
            REC_PRXF_OFFSET => Some(self.exceptions_last_seen(from).receive),
            INJ_PIXF_OFFSET => Some(self.exceptions_last_seen(from).inject),
            offset if (DCR_BASE..DCR_END).contains(&offset) => {
                self.stored_dcr(ports, (offset - DCR_BASE) / 4)
            }
            gi::BASE => Some(self.global_interrupts.status(ports)),
            REG_INT_ENABLE => Some(self.interrupts.enabled(from)),
            REG_INT_STATUS => Some(self.conditions_last_seen(from)),
            _ => None,
        };
        value.map(|value| value.answer_read(data)).is_some()
    }

    /// Reads a device control, global interrupt or interrupt register.
    fn read_word(
        &mut self,
        context: &mut Context<'_>,
        from: AttachmentId,
        offset: u64,
        data: &mut [u8],
    ) -> Result<(), Refused> {
        let value = match offset & !3 {
            base if base < DCR_END => {
                check_whole_register(offset, data.len())?;
                self.read_dcr(context, from, (base - DCR_BASE) / 4).ok_or(Refused::Address)?
            }
            gi::BASE => {
                check_whole_register(offset, data.len())?;
                self.global_interrupts.status(&context.ports())
            }
            REG_INT_ENABLE => {
                check_whole_register(offset, data.len())?;
                self.interrupts.enabled(from)
            }
            REG_INT_STATUS => {
                check_whole_register(offset, data.len())?;
                self.conditions(from)
            }
            _ => return Err(Refused::Address),
        };

        value.answer_read(data);
        Ok(())
    }

    /// Handles a write of BAR 0. A refused write sets an error bit and has no other effect.
    pub(crate) fn write_register(
        &mut self,
        context: &mut Context<'_>,
        from: AttachmentId,
        at: Address,
        data: &[u8],
    ) {
        let channel = channel_of(from);

        let result = match at.offset {
            offset if at.bar != 0 || offset >= nicforge_hwi::tree_dcr::REGISTERS => Err(Refused::Address),
            offset if offset < DCR_BASE => {
                let halves = &mut self.halves[usize::from(from.0)];
                self.channels[channel].write_port(&mut context.ports(), halves, offset, data)
            }
            offset => self.write_word(context, from, offset, data),
        };

        if let Err(refused) = &result {
            context.warn(from, Warning::refused(refused.rule()).register(at).written(data));
        }
        let error = match result {
            Ok(()) | Err(Refused::Reported) => 0,
            Err(Refused::Align) if is_at_second_port(from) => pix::ALIGN1,
            Err(Refused::Align) => pix::ALIGN0,
            Err(Refused::Address) if is_at_second_port(from) => pix::ADDR1,
            Err(Refused::Address) => pix::ADDR0,
        };

        self.channels[channel].events.inject_error(error);
    }

    /// Writes a device control, global interrupt or interrupt enable register.
    fn write_word(
        &mut self,
        context: &mut Context<'_>,
        from: AttachmentId,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Refused> {
        check_whole_register(offset, data.len())?;

        let value = u32::from_write(data).ok_or(Refused::Align)?;
        let admin = from.0 == ATTACHMENT_ADMIN;

        let done = match offset {
            offset if offset < DCR_END => admin && self.write_dcr(context, (offset - DCR_BASE) / 4, value),
            offset if (gi::BASE..gi::BASE + gi::SIZE).contains(&offset) => {
                let is_privileged = u64::from(barrier::gi_channel_of(offset)) >= gi::PRIVILEGED;
                (admin || !is_privileged)
                    && self.global_interrupts.write(offset - gi::BASE, value, &mut context.ports())
            }
            REG_INT_ENABLE => {
                self.enable_interrupts(context, from, value);
                true
            }
            _ => false,
        };

        if done { Ok(()) } else { Err(Refused::Address) }
    }

    /// Reads a device control register. Returns `None` if `from` can't read one of that number.
    /// Exception flags are cleared by the read.
    fn read_dcr(&mut self, context: &mut Context<'_>, from: AttachmentId, number: u64) -> Option<u32> {
        let admin = from.0 == ATTACHMENT_ADMIN;

        match number {
            ARB_RSTAT => Some(self.router_status(context)),
            _ if (ARB_HD00..ARB_HD00 + ARB_HD_COUNT).contains(&number) => {
                Some(self.waiting_header(context, number - ARB_HD00))
            }
            GLOB_FPTR => Some(self.fifo_pointers()),
            REC_PRXF => Some(self.or_of_channels(from, admin, Channel::take_receive_exceptions)),
            INJ_PIXF => Some(self.or_of_channels(from, admin, Channel::take_inject_exceptions)),
            _ => self.stored_dcr(&context.ports(), number),
        }
    }

    /// Returns the value of a device control register that needs no look at the FIFOs. Returns
    /// `None` if none of that number can be read.
    fn stored_dcr(&self, ports: &Ports<'_>, number: u64) -> Option<u32> {
        Some(match number {
            _ if (CLASS_RDR0..CLASS_RDR0 + CLASS_RDR_COUNT).contains(&number) => {
                let class = 2 * (number - CLASS_RDR0) as usize;

                u32::from(self.router.class(class).0) << 16 | u32::from(self.router.class(class + 1).0)
            }
            ARB_RCFG => self.router.configuration(),
            ARB_XSTAT => {
                // The router orders its bits port 0, 1, 2, send FIFO from bit 0. The register has
                // port 2, 1, 0, send FIFO from the top of four bits for each channel.
                let four_bits = |channel| {
                    let blocked = u32::from(self.router.blocked(channel));
                    (blocked & 4) << 1 | (blocked & 2) << 1 | (blocked & 1) << 1 | (blocked >> 3) & 1
                };

                four_bits(VC_SYSTEM) << 28 | four_bits(VC_USER) << 24
            }
            GLOB_NADDR => self.config.node_address,
            GLOB_VCFG0 => self.channels[0].config.value(),
            GLOB_VCFG1 => self.channels[1].config.value(),
            REC_PRXEN => self.enabled_exceptions.receive,
            INJ_PIXEN => self.enabled_exceptions.inject,
            INJ_CSPY0 => self.channels[0].checksums.payload,
            INJ_CSHD0 => self.channels[0].checksums.header,
            INJ_CSPY1 => self.channels[1].checksums.payload,
            INJ_CSHD1 => self.channels[1].checksums.header,
            _ => {
                let port = number.checked_sub(ERR_S0_RETRY).filter(|offset| offset % 4 == 0)? / 4;
                if port >= PORTS as u64 {
                    return None;
                }

                let retries = |channel| ports.sent(port as u8, channel).retransmissions;
                (0..VCS).map(retries).sum::<u64>() as u32
            }
        })
    }

    /// Returns the exceptions that `from` would read: those of both channels, or of its own alone.
    fn exceptions_last_seen(&self, from: AttachmentId) -> Exceptions {
        let of_both_channels = from.0 == ATTACHMENT_ADMIN;
        let seen = (0..VCS).filter(|&number| of_both_channels || number == channel_of(from));
        seen.map(|number| self.channels[number].exceptions_last_seen()).fold(
            Exceptions::default(),
            |all, one| Exceptions { receive: all.receive | one.receive, inject: all.inject | one.inject },
        )
    }

    /// Returns the OR of the words that `take_word` returns for both channels, or for the channel
    /// of `from` alone.
    fn or_of_channels(
        &mut self,
        from: AttachmentId,
        of_both_channels: bool,
        take_word: impl Fn(&mut Channel) -> u32,
    ) -> u32 {
        let own_channel = channel_of(from);

        let channels = self.channels.iter_mut().enumerate();
        channels
            .filter(|(number, _)| of_both_channels || *number == own_channel)
            .fold(0, |word, (_, channel)| word | take_word(channel))
    }

    /// Writes a device control register. Returns false if none of that number can be written.
    fn write_dcr(&mut self, context: &mut Context<'_>, number: u64, value: u32) -> bool {
        match number {
            _ if (CLASS_RDR0..CLASS_RDR0 + CLASS_RDR_COUNT).contains(&number) => {
                let class = 2 * (number - CLASS_RDR0) as usize;
                self.router.set_class(class, ClassRoute((value >> 16) as u16 & rdr::ACCEPT));
                self.router.set_class(class + 1, ClassRoute(value as u16 & rdr::ACCEPT));
            }
            ARB_RCFG => {
                self.router.configure(value);
                if value & rcfg::RST != 0 {
                    self.soft_reset(context);
                }
            }
            GLOB_VCFG0 => self.channels[0].config = ChannelConfig::written(value),
            GLOB_VCFG1 => self.channels[1].config = ChannelConfig::written(value),
            REC_PRXEN => self.enabled_exceptions.receive = value & prx::ALL,
            INJ_PIXEN => self.enabled_exceptions.inject = value & (pix::ALL | pix::ENABLE),
            INJ_CSPY0 => self.channels[0].checksums.payload = value,
            INJ_CSHD0 => self.channels[0].checksums.header = value,
            INJ_CSPY1 => self.channels[1].checksums.payload = value,
            INJ_CSHD1 => self.channels[1].checksums.header = value,
            _ => return false,
        }

        true
    }

    /// Returns the router status word: sources that have a packet, and targets without room.
    fn router_status(&mut self, context: &mut Context<'_>) -> u32 {
        let ports = context.ports();
        let mut word = 0;

        for (channel, fifo) in self.channels.iter_mut().enumerate() {
            // Bit 0 is the FIFO's, and bit p + 1 that of port p.
            let mut waits = u32::from(fifo.poll_send_head() != SendHead::Empty);
            let mut full = u32::from(fifo.is_recv_full());

            for port in 0..PORTS {
                waits |= u32::from(ports.peek(port as u8, channel).is_some()) << (port + 1);
                let linked = ports.connected(port as u8);
                full |= u32::from(linked && ports.credits(port as u8, channel) == 0) << (port + 1);
            }
            // As `ARB_RSTAT` defines: four bits for each channel, channel 0 first.
            word |= waits << (28 - 4 * channel) | full << (20 - 4 * channel);
        }
        word
    }

    /// Returns the header of the packet that waits first at a source, or 0. `index` is the number
    /// of the register after [`ARB_HD00`]: two for each port, one of each virtual channel, and then
    /// those of the send FIFOs.
    fn waiting_header(&mut self, context: &mut Context<'_>, index: u64) -> u32 {
        let (source, channel) = ((index / 2) as u8, (index % 2) as usize);

        if source < PORTS as u8 {
            let ports = context.ports();
            let header = ports.peek(source, channel).map_or(0, |packet| packet.header);
            return if presence::parse(header).is_some() { 0 } else { header as u32 };
        }

        // The index of a send FIFO's register follows those of two channels of each port.
        let channel = (index as usize) - 2 * PORTS;
        match self.channels.get_mut(channel).map(Channel::poll_send_head) {
            Some(SendHead::Packet(header)) => header.0,
            _ => 0,
        }
    }

    /// Returns the FIFO pointer word, as [`GLOB_FPTR`] defines it. Packets move whole, so payload
    /// and header pointers are equal.
    fn fifo_pointers(&mut self) -> u32 {
        /// The pointers have 3 bits.
        const MASK: u32 = 7;

        let mut word = 0;
        for (number, channel) in self.channels.iter_mut().enumerate() {
            let injection = channel.send_head().wrapping_add(channel.send_count()) & MASK;
            let reception = channel.recv_head() & MASK;

            // The pointers of channel 1 are 8 bits below those of channel 0.
            let shift = 8 * number as u32;
            word |= (injection << 28 | injection << 24 | reception << 12 | reception << 8) >> shift;
        }
        word
    }
}
