//! The commands of clients, on their way to the firmware.

use nicforge_core::{context::Context, ids::AttachmentId, warning::Warning};
use nicforge_seastar_firmware::chip::{Client, Event, Program};

use super::SeaStar;
use crate::mailbox::{Mailbox, Next};

impl<P: Program + Send + 'static> SeaStar<P> {
    /// Passes at most `budget` commands to the firmware, from the mailboxes in turn. Returns their
    /// number.
    #[inline]
    pub(super) fn take_commands(&mut self, context: &mut Context<'_>, budget: u32) -> u32 {
        self.has_refused_command = false;
        if self.has_commands() { self.take_in_turn(context, budget) } else { 0 }
    }

    /// Returns whether a client may have written commands.
    #[inline]
    pub(super) fn has_commands(&self) -> bool {
        let clients = self.clients.iter().take(usize::from(self.options().processes) + 1);
        clients.filter_map(|client| client.mailbox.as_ref()).any(Mailbox::has_new_commands)
    }

    /// Does the work of [`SeaStar::take_commands`], if there may be commands. A client that has
    /// none left, or whose count is invalid, is out of the round.
    fn take_in_turn(&mut self, context: &mut Context<'_>, budget: u32) -> u32 {
        let now = context.now();
        let mut count = 0;
        // The clients that may have more commands.
        let mut clients = self.attached;

        while count < budget
            && let Some(attachment_id) = clients.in_turn(AttachmentId(self.next_client))
        {
            let Some(mailbox) = &mut self.clients[usize::from(attachment_id.0)].mailbox else {
                clients.remove(attachment_id);
                continue;
            };
            match mailbox.next() {
                Next::Command { number, bytes } => {
                    let event = Event::Command { client: Client(attachment_id.0), number, bytes };
                    if !self.parts.firmware.send(now, event) {
                        self.has_refused_command = true;
                        break;
                    }
                    mailbox.advance();
                    count += 1;
                }
                Next::Nothing => clients.remove(attachment_id),
                Next::Invalid => {
                    clients.remove(attachment_id);
                    self.errors += 1;
                    let rule = &"the mailbox has room for the commands that its tail counts";
                    context.warn(attachment_id, Warning::refused(rule));
                }
            }
            self.next_client = attachment_id.0 + 1;
        }

        self.commands += u64::from(count);
        count
    }
}
