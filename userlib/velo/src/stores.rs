//! Sending without a posted-write ring: by stores, which a processor may split.
//!
//! A card puts the pieces of a message together when they come one after the other. When they do not, nothing of the message is sent. So each message
//! is followed by a read of the card's count of the sends that it is done with. The read comes behind all stores, and ends what is not whole: if the message
//! is not counted it was torn, and is stored again before anything else is. So messages stay in order, and each is sent once.

use nicforge_hwi::extoll::{BAR_VELO, reg};

use crate::{DeviceError, Error, Port};

/// Times that a message is stored before it counts as one that can't be sent.
const TRIES: u64 = 64;

/// What a port knows of its stores.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stores {
    /// The card's count after the last message. `None` when it is not known.
    taken: Option<u64>,
}

impl Port {
    fn sends_taken(&self) -> Result<u64, Error> {
        Ok(self.registers.read64(reg::VELO_TAKEN)?)
    }

    /// Stores a message until the card has all of it. It may wait in the card then, and so does this call.
    ///
    /// # Errors
    /// [`DeviceError::Torn`]: the message was not sent. What the driver says: whether it was is not known.
    #[cold]
    pub(crate) fn store(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let known = self.stores.replace(Stores::default()).and_then(|stores| stores.taken);
        let before = match known {
            Some(taken) => taken,
            None => self.sends_taken()?,
        };
        for torn in 0..TRIES {
            self.way.with(|poster| poster.try_post(BAR_VELO, offset, data))?;
            let taken = self.sends_taken()?;
            if taken != before {
                self.stores = Some(Stores { taken: Some(taken) });
                self.statistics.replayed += torn;
                return Ok(());
            }
        }
        Err(Error::Device { error: DeviceError::Torn, count: TRIES })
    }
}
