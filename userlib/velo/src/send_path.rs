//! The way of messages to the card: a posted-write ring, or stores.
//!
//! A device without a posted-write ring takes messages as stores, and a processor may tear a
//! message into several of them. A card assembles the pieces of a message when they arrive one
//! after the other, and sends nothing of the message otherwise. Therefore a read of the card's
//! count of accepted sends follows each message. The read completes after all stores, and discards
//! an incomplete message. If the count has not changed, the message was torn, and is stored again
//! before the next one. So messages stay in order, and each is sent once.

use nicforge_driver::{
    Bar, Device, Error as DriverError, Poster, RingPosition, SharedPoster,
    runtime::{Cost, cost},
};
use nicforge_hwi::extoll::{BAR_VELO, mirror, reg};
use nicforge_shm::SharedU64;

use crate::{
    DeviceError, Error,
    card::{BAR_REGISTERS, MirrorPage},
};

/// Number of attempts after which a message counts as undeliverable.
const MAX_TRIES: u64 = 64;

/// The posted-write ring of a port.
enum PortPoster {
    /// The port's own ring.
    Own(Poster),
    /// A ring shared with other libraries of the same VPID.
    Shared(SharedPoster),
}

impl PortPoster {
    #[inline(always)]
    fn with<R>(&mut self, call: impl FnOnce(&mut Poster) -> R) -> R {
        match self {
            Self::Own(poster) => call(poster),
            Self::Shared(poster) => poster.with(call),
        }
    }

    fn with_poster<R>(&self, call: impl FnOnce(&Poster) -> R) -> R {
        match self {
            Self::Own(poster) => call(poster),
            Self::Shared(poster) => poster.with(|poster| call(poster)),
        }
    }
}

/// State of sending by stores.
struct Stores {
    registers: Bar,
    /// The card's count after the last message. `None` when it is not known.
    accepted: Option<u64>,
    /// Torn messages that were stored again.
    replayed: u64,
}

/// Posts messages, in order and each once.
///
/// Invariant: `stores` is present exactly on a device without a posted-write ring. A message is
/// then accepted, or known to be torn, before the next one is stored.
pub(crate) struct SendPath {
    poster: PortPoster,
    stores: Option<Stores>,
    /// The card's count of messages that waited for slots.
    pub(crate) stalls: SharedU64,
}

impl SendPath {
    /// Opens the path of a device: through `shared`, or through a ring of its own.
    pub(crate) fn open(
        device: &Device,
        shared: Option<SharedPoster>,
        page: &MirrorPage,
    ) -> Result<Self, Error> {
        let poster = match shared {
            Some(poster) => PortPoster::Shared(poster),
            None => PortPoster::Own(device.poster(0)?),
        };

        let stores = match device.ring_count() {
            0 => Some(Stores { registers: device.bar(BAR_REGISTERS)?, accepted: None, replayed: 0 }),
            _ => None,
        };

        Ok(Self { poster, stores, stalls: page.word(mirror::VELO_STALLS)? })
    }

    /// Calls `call` with the posted-write ring.
    #[inline(always)]
    pub(crate) fn with<R>(&mut self, call: impl FnOnce(&mut Poster) -> R) -> R {
        self.poster.with(call)
    }

    /// Returns the position after the last posted write. It is `None` for a device without rings.
    pub(crate) fn position(&self) -> Option<RingPosition> {
        self.poster.with_poster(Poster::position)
    }

    /// Returns whether the card has taken all writes before a position.
    pub(crate) fn has_passed(&self, position: RingPosition) -> bool {
        self.poster.with_poster(|poster| poster.has_passed(position))
    }

    /// Returns whether messages are sent by stores.
    pub(crate) fn uses_stores(&self) -> bool {
        self.stores.is_some()
    }

    /// Returns the number of torn messages that were stored again.
    pub(crate) fn replayed(&self) -> u64 {
        self.stores.as_ref().map_or(0, |stores| stores.replayed)
    }

    /// Posts a message. Returns false when the posted-write ring is full.
    ///
    /// An error is boxed, so that the result of a post that succeeds fits into registers.
    #[inline(always)]
    pub(crate) fn post(&mut self, offset: u64, data: &[u8]) -> Result<bool, Box<Error>> {
        let (None, PortPoster::Own(poster)) = (&self.stores, &mut self.poster) else {
            return self.post_otherwise(offset, data);
        };

        match poster.try_post(BAR_VELO, offset, data) {
            Ok(()) => Ok(true),
            Err(error) => Self::refused(error),
        }
    }

    /// As [`SendPath::post`], through a shared ring or by stores.
    #[inline(never)]
    fn post_otherwise(&mut self, offset: u64, data: &[u8]) -> Result<bool, Box<Error>> {
        if let Some(stores) = &mut self.stores {
            return stores.store(&mut self.poster, offset, data).map(|()| true).map_err(Box::new);
        }

        match self.poster.with(|poster| poster.try_post(BAR_VELO, offset, data)) {
            Ok(()) => {
                // The card sends the message while the processor stores it.
                cost(Cost::Burst, 1);
                Ok(true)
            }
            Err(error) => Self::refused(error),
        }
    }

    /// Returns the result of a post that the driver refused.
    #[cold]
    fn refused(error: DriverError) -> Result<bool, Box<Error>> {
        if let DriverError::RingFull { .. } = error { Ok(false) } else { Err(Box::new(error.into())) }
    }
}

impl Stores {
    /// Reads the card's count of accepted sends.
    fn count_accepted(&self) -> Result<u64, Error> {
        Ok(self.registers.read64(reg::VELO_TAKEN)?)
    }

    /// Stores a message until the card has accepted all of it. The message may then wait in the
    /// card, and so does this call.
    ///
    /// # Errors
    /// [`DeviceError::Torn`]: the message was not sent. After an error of the driver it may have
    /// been sent.
    #[cold]
    fn store(&mut self, poster: &mut PortPoster, offset: u64, data: &[u8]) -> Result<(), Error> {
        // The count is unknown after an error.
        let before = match self.accepted.take() {
            Some(accepted) => accepted,
            None => self.count_accepted()?,
        };

        for torn in 0..MAX_TRIES {
            poster.with(|poster| poster.try_post(BAR_VELO, offset, data))?;

            let accepted = self.count_accepted()?;
            if accepted != before {
                self.accepted = Some(accepted);
                self.replayed += torn;
                return Ok(());
            }
        }
        Err(Error::Device { error: DeviceError::Torn, count: MAX_TRIES })
    }
}
