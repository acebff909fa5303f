//! Sending.

use nicforge_driver::{Cancel, Deadline};
use nicforge_hwi::extoll_velo::{TAGS, address};

use crate::{CONTROL_TAG, Error, MAX_MESSAGE, PeerLink, Port, message::QUADWORD, wait::Waiter};

impl Port {
    /// Sends a message of 8 to 64 bytes, a multiple of 8, without waiting.
    ///
    /// The message is posted when this returns. A later call reports errors that the card finds in
    /// it.
    ///
    /// # Errors
    /// In all these cases nothing was sent.
    /// - [`Error::WouldBlock`]: the connection has no credit now, or the posted-write ring is full.
    /// - [`Error::NoCredit`]: the peer has refused the connection.
    /// - [`Error::PeerGone`], [`Error::BadLength`], [`Error::BadTag`].
    /// - Errors that [`Port::check`] reports about earlier messages.
    // The checks and the copy of a constant length disappear then: with `Port::poll` so too, a
    // message through two ports and the card costs 493 instructions, and 622 without either
    // (`nicforge-bench velo`).
    #[inline(always)]
    pub fn send_nb(&mut self, link: PeerLink, tag: u8, data: &[u8]) -> Result<(), Error> {
        let length = data.len();
        // One comparison checks both ends of the range: a length below 8 wraps to a large number.
        if length.wrapping_sub(QUADWORD) > MAX_MESSAGE - QUADWORD || !length.is_multiple_of(QUADWORD) {
            return Err(Error::BadLength { length });
        }

        let maximum = if self.flow.enabled { CONTROL_TAG - 1 } else { TAGS - 1 };
        if tag > maximum {
            return Err(Error::BadTag { tag, most: maximum });
        }

        self.check()?;

        let peer = self.flow.peers.get_mut(link.index as usize);
        let Some(peer) = peer.filter(|peer| link.tenant.is(peer.outgoing.receiver)) else {
            return Err(Error::PeerGone { address: link.address });
        };
        if self.directory.generation_at(link.entry) != link.tenant.generation() {
            return Err(Error::PeerGone { address: link.address });
        }

        if peer.outgoing.credits == 0 && self.flow.enabled {
            return self.without_credit(link);
        }

        // `link.target` has the peer's node and VPID, and bits of tag and length that are all 0.
        let offset = u64::from(link.target) | address::encode(0, 0, tag, length / QUADWORD);
        self.path.post(offset, data)?;

        peer.outgoing.credits = peer.outgoing.credits.wrapping_sub(1);
        self.statistics.sent += 1;
        Ok(())
    }

    /// Returns the error of a send without a credit.
    #[cold]
    fn without_credit(&mut self, link: PeerLink) -> Result<(), Error> {
        self.statistics.without_credit += 1;

        if self.flow.peers[link.index as usize].outgoing.refused {
            return Err(Error::NoCredit { address: link.address });
        }
        Err(Error::WouldBlock)
    }

    /// As [`Port::send_nb`], but waits for a credit and for room in the posted-write ring. Messages
    /// that arrive meanwhile are kept.
    ///
    /// # Errors
    /// As [`Port::send_nb`] except for [`Error::WouldBlock`], and:
    /// - [`Error::Timeout`], [`Error::Cancelled`]: nothing was sent.
    /// - [`Error::KeptFull`]: no more messages can be kept, and the credit may be after the next
    ///   one in the ring.
    #[inline]
    pub fn send(
        &mut self,
        link: PeerLink,
        tag: u8,
        data: &[u8],
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(), Error> {
        match self.send_nb(link, tag, data) {
            Err(Error::WouldBlock) => self.wait_and_send(link, tag, data, deadline, cancel),
            result => result,
        }
    }

    /// Sends a message that [`Port::send_nb`] could not send at once.
    #[cold]
    fn wait_and_send(
        &mut self,
        link: PeerLink,
        tag: u8,
        data: &[u8],
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(), Error> {
        let mut waiter = Waiter::new(self, deadline, cancel);

        loop {
            self.progress()?;
            match self.send_nb(link, tag, data) {
                Err(Error::WouldBlock) => {
                    if self.credits(link) == Some(0) && self.drain_control_when_full()? {
                        return Err(self.kept.full());
                    }
                    waiter.pause(self, "credit to send a message")?;
                }
                result => return result,
            }
        }
    }
}
