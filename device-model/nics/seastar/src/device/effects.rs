//! The effects of the program's calls, which the device carries out when their time has come.

use nicforge_core::{context::Context, ids::AttachmentId, time::Nanos, warning::Warning};
use nicforge_seastar_firmware::chip::{Channel, Client, Event, Program, Transmit};

use super::{AttachmentState, SeaStar};
use crate::{
    memory::{Access, HAND_OVER, MemoryOwner},
    processor::{Call, Effect, HostBytes},
};

impl<P: Program + Send + 'static> SeaStar<P> {
    /// Carries out effects whose time has come. Returns their number.
    pub(super) fn carry_out_due_effects(&mut self, context: &mut Context<'_>, budget: u32) -> u32 {
        let now = context.now();
        if self.parts.firmware.next_effect_time() > now {
            return 0;
        }
        // The device uses itself and the FIFO of effects at once, so that it takes the FIFO's end
        // out.
        let Some(mut end) = self.parts.firmware.lend() else { return 0 };

        // An effect that has to wait stays at the head of the FIFO. After an effect that has halted
        // the program, no other one is carried out.
        let done = end.handle_events(budget as usize, |effect| {
            self.parts.firmware.is_lent() && effect.time <= now && self.carry_out_one(context, effect)
        });

        self.parts.firmware.give_back(end);
        done as u32
    }

    /// Carries out an effect. Returns false if it has to wait.
    pub(super) fn carry_out_one(&mut self, context: &mut Context<'_>, effect: &Effect) -> bool {
        let latest_tenant = effect.latest_tenant;

        match &effect.call {
            Call::Answer { client, number, result } => {
                if let Some(client) = self.known_client(*client, latest_tenant)
                    && let Some(mailbox) = &mut client.mailbox
                {
                    mailbox.answer(*number, *result);
                }
            }
            Call::Transmit(message) => self.queue_message(context, message, latest_tenant),
            Call::Receive { stream, length, pieces } => {
                self.receiver.set_destination(*stream, *length, pieces, latest_tenant);
            }
            Call::WriteHost { client, address, bytes } => {
                let owner = MemoryOwner { attachment_id: AttachmentId(client.0), latest_tenant };
                return self.write_host(context, owner, *address, bytes);
            }
            Call::Interrupt { client, vector } => {
                let attachment_id = AttachmentId(client.0);
                if self.parts.tenants.is_known(attachment_id, latest_tenant) {
                    context.interrupt(attachment_id, *vector);
                }
            }
            Call::SetBooted(true) => {
                let incarnation = self.parts.site.incarnations.begin(self.parts.site.node, context.now());
                self.parts.own_incarnation = incarnation;
                self.firmware.last_incarnation = incarnation;
            }
            Call::SetBooted(false) => self.end_incarnation(context),
            Call::SetTimer(time) => self.firmware.timer = *time,
            Call::Broken => self.halt(context),
        }
        true
    }

    /// Returns a client, unless its tenant has attached since the program made a call.
    /// `latest_tenant` is the highest tenant number that the program had seen then.
    pub(super) fn known_client(
        &mut self,
        client: Client,
        latest_tenant: u32,
    ) -> Option<&mut AttachmentState> {
        let is_known = self.parts.tenants.is_known(AttachmentId(client.0), latest_tenant);
        self.clients.get_mut(usize::from(client.0)).filter(|_| is_known)
    }

    /// Queues a message for the transmit engine. A program with more data messages than the engine
    /// holds is halted.
    pub(super) fn queue_message(
        &mut self,
        context: &mut Context<'_>,
        message: &Transmit,
        latest_tenant: u32,
    ) {
        let incarnation = self.parts.own_incarnation;
        let has_room = match message.channel {
            Channel::Control => {
                self.transmitter.queue_control(message, incarnation);
                true
            }
            // A node without an incarnation sends no data: the message ends at once.
            Channel::Data if incarnation == 0 => {
                self.transmitter.cut(message.name);
                true
            }
            Channel::Data => self.transmitter.queue_data(*message, incarnation, latest_tenant),
        };
        if !has_room {
            self.halt(context);
        }
    }

    /// Writes to a client's memory. The word that hands an event over is written last. Returns
    /// false if the write has to wait; the next call continues it.
    pub(super) fn write_host(
        &mut self,
        context: &mut Context<'_>,
        owner: MemoryOwner,
        address: u64,
        bytes: &HostBytes,
    ) -> bool {
        // Most writes go to leased memory.
        let MemoryOwner { attachment_id, latest_tenant } = owner;
        if self.firmware.written == 0
            && self.parts.tenants.is_known(attachment_id, latest_tenant)
            && let Some(client) = self.clients.get_mut(usize::from(attachment_id.0))
        {
            let is_written = match bytes {
                HostBytes::Inline { .. } => {
                    client.deposits.write(context, attachment_id, address, bytes.as_slice())
                }
                HostBytes::Event(event) => client.events.write(context, attachment_id, address, event),
                HostBytes::Other { .. } => {
                    client.events.write(context, attachment_id, address, bytes.as_slice())
                }
            };

            if is_written {
                self.firmware.wait = None;
                return true;
            }
        }
        self.write_host_by_copies(context, owner, address, bytes.as_slice())
    }

    /// Does the work of [`SeaStar::write_host`] for what a lease does not take.
    #[cold]
    fn write_host_by_copies(
        &mut self,
        context: &mut Context<'_>,
        owner: MemoryOwner,
        address: u64,
        bytes: &[u8],
    ) -> bool {
        // While the receive engine waits for a client's answers to earlier writes, another write
        // would prolong that wait.
        if self.receiver.awaits_answers(context) {
            return false;
        }
        while self.firmware.written < bytes.len() {
            let remaining = bytes.len() - self.firmware.written;
            // An aligned word is written in one piece.
            let is_word = remaining == size_of::<u64>() && address.is_multiple_of(size_of::<u64>() as u64);
            // All but the word that hands over, and then that word.
            let length = if remaining > HAND_OVER && !is_word { remaining - HAND_OVER } else { remaining };
            let start = self.firmware.written;
            let target = address.wrapping_add(start as u64);

            let data = &bytes[start..start + length];
            match self.parts.tenants.write(context, owner, target, data, &mut self.firmware.wait) {
                Access::Done => self.firmware.written += length,
                Access::Wait => return false,
                Access::Fault => {
                    self.errors += 1;
                    let rule = &"the memory that the firmware writes for a client is mapped for writing";
                    context.warn(owner.attachment_id, Warning::failed(rule).value(target));
                    break;
                }
            }
        }

        self.firmware.written = 0;
        true
    }

    /// Sends the firmware the event of its timer, whose time has come.
    pub(super) fn fire_timer(&mut self, now: Nanos) {
        if self.firmware.timer <= now && self.parts.firmware.send(now, Event::Timer) {
            self.firmware.timer = Nanos::NEVER;
        }
    }
}
