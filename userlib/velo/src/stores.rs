//! Sending by stores, on a device without a posted-write ring. A processor may tear a message into
//! several stores.
//!
//! A card assembles the pieces of a message when they arrive one after the other, and sends nothing
//! of the message otherwise. Therefore a read of the card's count of accepted sends follows each
//! message. The read completes behind all stores, and discards an incomplete message. If the count
//! has not changed, the message was torn, and is stored again before the next one. So messages stay
//! in order, and each is sent once.

use nicforge_hwi::extoll::{BAR_VELO, reg};

use crate::{DeviceError, Error, Port};

/// Number of attempts after which a message counts as undeliverable.
const MAX_TRIES: u64 = 64;

/// State of sending by stores.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stores {
    /// The card's count after the last message. `None` when it is not known.
    taken: Option<u64>,
}

impl Port {
    /// Returns the card's count of accepted sends.
    fn sends_taken(&self) -> Result<u64, Error> {
        Ok(self.registers.read64(reg::VELO_TAKEN)?)
    }

    /// Stores a message until the card has accepted all of it. The message may then wait in the
    /// card, and so does this call.
    ///
    /// # Errors
    /// [`DeviceError::Torn`]: the message was not sent. After an error of the driver it may have
    /// been sent.
    #[cold]
    pub(crate) fn store(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let known = self.stores.replace(Stores::default()).and_then(|stores| stores.taken);
        let before = match known {
            Some(taken) => taken,
            None => self.sends_taken()?,
        };

        for torn in 0..MAX_TRIES {
            self.poster.with(|poster| poster.try_post(BAR_VELO, offset, data))?;

            let taken = self.sends_taken()?;
            if taken != before {
                self.stores = Some(Stores { taken: Some(taken) });
                self.statistics.replayed += torn;
                return Ok(());
            }
        }
        Err(Error::Device { error: DeviceError::Torn, count: MAX_TRIES })
    }
}
