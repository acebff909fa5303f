//! Sending.

use nicforge_driver::{Cancel, Deadline, Error as DriverError};
use nicforge_hwi::{extoll::BAR_VELO, extoll_velo::TAGS, extoll_velo::address};

use crate::{CONTROL_TAG, Error, Link, MAX_MESSAGE, Port, receive::Waiter};

impl Port {
    /// Sends a message of 8 to 64 bytes, a multiple of 8, if that is possible at once. The message is on its way when this returns; what becomes
    /// wrong with it there a later call reports.
    ///
    /// # Errors
    /// [`Error::WouldBlock`]: the connection has no credit now, or the way to the card is full; nothing was sent. [`Error::PeerGone`],
    /// [`Error::NoCredit`], [`Error::BadLength`], [`Error::BadTag`]; what [`Port::check`] reports about earlier messages, and then this one was not sent either.
    #[inline]
    pub fn send_nb(&mut self, link: Link, tag: u8, data: &[u8]) -> Result<(), Error> {
        let length = data.len();
        if length.wrapping_sub(8) > MAX_MESSAGE - 8 || !length.is_multiple_of(8) {
            return Err(Error::BadLength { length });
        }
        let most = if self.config.flow_control { CONTROL_TAG - 1 } else { TAGS - 1 };
        if tag > most {
            return Err(Error::BadTag { tag, most });
        }
        self.check()?;
        let index = link.index as usize;
        let known = self.peers.get(index).is_some_and(|peer| peer.to == link.generation);
        if !known || self.tenant(link.address) != link.generation {
            return Err(Error::PeerGone { address: link.address });
        }
        if self.config.flow_control && self.peers[index].credits == 0 {
            return self.without_credit(link);
        }
        let offset = address::encode(link.address.node, link.address.vpid, tag, length / 8);
        if !self.post(offset, data)? {
            return Err(Error::WouldBlock);
        }
        self.peers[index].credits = self.peers[index].credits.wrapping_sub(1);
        self.statistics.sent += 1;
        Ok(())
    }

    #[cold]
    fn without_credit(&mut self, link: Link) -> Result<(), Error> {
        self.statistics.without_credit += 1;
        if self.peers[link.index as usize].refused {
            return Err(Error::NoCredit { address: link.address });
        }
        Err(Error::WouldBlock)
    }

    /// As [`Port::send_nb`], waiting until it is possible. Messages that arrive meanwhile are kept.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Cancelled`]: nothing was sent; [`Error::KeptFull`] when no more messages are kept, and the credit may be behind one that
    /// would have to be; otherwise as [`Port::send_nb`], without [`Error::WouldBlock`].
    #[inline]
    pub fn send(
        &mut self,
        link: Link,
        tag: u8,
        data: &[u8],
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(), Error> {
        match self.send_nb(link, tag, data) {
            Err(Error::WouldBlock) => self.send_later(link, tag, data, deadline, cancel),
            result => result,
        }
    }

    #[cold]
    fn send_later(
        &mut self,
        link: Link,
        tag: u8,
        data: &[u8],
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(), Error> {
        let mut waiter = Waiter::new(self, deadline, cancel);
        loop {
            self.pump()?;
            match self.send_nb(link, tag, data) {
                Err(Error::WouldBlock) => {
                    if self.credits(link) == Some(0) && self.is_held_up()? {
                        return Err(Error::KeptFull { kept: self.kept.len() });
                    }
                    waiter.turn(self, "credit to send a message")?;
                }
                result => return result,
            }
        }
    }

    /// Posts a message. False when the way to the card is full.
    #[inline]
    pub(crate) fn post(&mut self, offset: u64, data: &[u8]) -> Result<bool, Error> {
        if self.stores.is_some() {
            return self.store(offset, data).map(|()| true);
        }
        match self.way.with(|poster| poster.try_post(BAR_VELO, offset, data)) {
            Ok(()) => Ok(true),
            Err(DriverError::RingFull { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
