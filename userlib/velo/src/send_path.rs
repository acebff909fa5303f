//! The sending of messages to the card: through a posted-write ring, or by stores.
//!
//! A device without a posted-write ring takes messages as stores, and a processor may tear a
//! message into several of them. A card assembles the pieces of a message when they arrive one
//! after the other, and sends nothing of the message otherwise. Therefore a read of the card's
//! count of accepted sends follows each message. The read completes after all stores, and discards
//! an incomplete message. If the count has not changed, the message was torn, and is stored again
//! before the next one. So messages stay in order, and each is sent once.

use nicforge_driver::{
    Bar, Device, Error as DriverError, Poster, QuickPost, RingPosition, SharedPoster,
    runtime::{Cost, charge},
};
use nicforge_hwi::extoll::{BAR_VELO, mirror, reg};
use nicforge_shm::SharedU64;

use crate::{
    DeviceError, Error,
    card::{BAR_REGISTERS, MirrorPage},
};

/// Number of attempts after which a message counts as undeliverable.
const MAX_TRIES: u64 = 64;

/// Access to a device's posted writes.
enum PortPoster {
    /// The port's own.
    Own(Poster),
    /// One that other libraries of the same VPID share.
    Shared(SharedPoster),
}

impl PortPoster {
    /// Calls `call` with the poster.
    #[inline(always)]
    fn with_poster_mut<R>(&mut self, call: impl FnOnce(&mut Poster) -> R) -> R {
        match self {
            Self::Own(poster) => call(poster),
            Self::Shared(poster) => poster.with(call),
        }
    }

    /// As [`Self::with_poster_mut`], for a call that changes nothing.
    fn with_poster<R>(&self, call: impl FnOnce(&Poster) -> R) -> R {
        match self {
            Self::Own(poster) => call(poster),
            Self::Shared(poster) => poster.with(|poster| call(poster)),
        }
    }
}

/// State of sending by stores.
struct Stores {
    poster: PortPoster,
    registers: Bar,
    /// The card's count after the last message. `None` when it is not known.
    accepted: Option<u64>,
    /// Torn messages that were stored again.
    replayed: u64,
}

/// The methods by which messages are sent to the card. A message by stores is accepted, or known to
/// be torn, before the next one is stored.
enum SendMethod {
    /// The port's own posted-write ring. It is apart from a shared one, because a send looks only
    /// at this tag.
    Ring(Poster),
    /// A posted-write ring that other libraries of the same VPID share.
    SharedRing(SharedPoster),
    /// Stores, on a device without a posted-write ring.
    Stores(Box<Stores>),
}

/// Posts messages, in order and each once.
pub(crate) struct SendPath {
    method: SendMethod,
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

        let method = match poster {
            poster if device.ring_count() == 0 => {
                let registers = device.bar(BAR_REGISTERS)?;
                SendMethod::Stores(Box::new(Stores { poster, registers, accepted: None, replayed: 0 }))
            }
            PortPoster::Own(poster) => SendMethod::Ring(poster),
            PortPoster::Shared(poster) => SendMethod::SharedRing(poster),
        };

        Ok(Self { method, stalls: page.word(mirror::VELO_STALLS)? })
    }

    /// Calls `call` with the poster.
    #[inline(always)]
    pub(crate) fn with_poster_mut<R>(&mut self, call: impl FnOnce(&mut Poster) -> R) -> R {
        match &mut self.method {
            SendMethod::Ring(poster) => call(poster),
            SendMethod::SharedRing(poster) => poster.with(call),
            SendMethod::Stores(stores) => stores.poster.with_poster_mut(call),
        }
    }

    /// As [`Self::with_poster_mut`], for a call that changes nothing.
    fn with_poster<R>(&self, call: impl FnOnce(&Poster) -> R) -> R {
        match &self.method {
            SendMethod::Ring(poster) => call(poster),
            SendMethod::SharedRing(poster) => poster.with(|poster| call(poster)),
            SendMethod::Stores(stores) => stores.poster.with_poster(call),
        }
    }

    /// Returns the position after the last posted write. It is `None` for a device without rings.
    pub(crate) fn position(&self) -> Option<RingPosition> {
        self.with_poster(Poster::position)
    }

    /// Returns whether the card has taken all writes before a position.
    pub(crate) fn has_passed(&self, position: RingPosition) -> bool {
        self.with_poster(|poster| poster.has_passed(position))
    }

    /// Returns whether messages are sent by stores.
    pub(crate) fn uses_stores(&self) -> bool {
        matches!(self.method, SendMethod::Stores(_))
    }

    /// Returns the number of torn messages that were stored again.
    pub(crate) fn replayed(&self) -> u64 {
        if let SendMethod::Stores(stores) = &self.method { stores.replayed } else { 0 }
    }

    /// Posts a message.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when the posted-write ring is full, and errors of the driver.
    // Most messages take the first branch, in which no whole `Error` is passed on.
    #[inline(always)]
    pub(crate) fn post(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let posted = match &mut self.method {
            SendMethod::Ring(poster) => poster.post_quickly(BAR_VELO, offset, data),
            _ => QuickPost::NotPosted,
        };
        if posted == QuickPost::Posted { Ok(()) } else { self.post_otherwise(posted, offset, data) }
    }

    /// As [`SendPath::post`], for a message that was not posted quickly, or that was posted while
    /// the engine sleeps, with `posted` as the result.
    #[inline(never)]
    fn post_otherwise(&mut self, posted: QuickPost, offset: u64, data: &[u8]) -> Result<(), Error> {
        let posted = match (&mut self.method, posted) {
            (SendMethod::Stores(stores), _) => return stores.store(offset, data),
            (SendMethod::Ring(poster), QuickPost::MustWake) => poster.wake_engine(),
            (SendMethod::Ring(poster), _) => poster.try_post(BAR_VELO, offset, data),
            (SendMethod::SharedRing(poster), _) => {
                poster.with(|poster| poster.try_post(BAR_VELO, offset, data)).inspect(|()| {
                    // The card sends the message while the processor stores it.
                    charge(Cost::Burst, 1);
                })
            }
        };

        posted.map_err(|error| match error {
            DriverError::RingFull { .. } => Error::WouldBlock,
            error => error.into(),
        })
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
    fn store(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        // The count is unknown after an error.
        let before = match self.accepted.take() {
            Some(accepted) => accepted,
            None => self.count_accepted()?,
        };

        for torn in 0..MAX_TRIES {
            self.poster.with_poster_mut(|poster| poster.try_post(BAR_VELO, offset, data))?;

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
