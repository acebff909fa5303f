//! A port: the endpoint of a process on a card.

use std::sync::atomic::Ordering;

use nicforge_driver::{Device, Poster, SharedPoster};
use nicforge_hwi::extoll::error;

use crate::{
    Address, Config, DeviceError, Error, Waiting,
    card::{MirrorPage, check_identity},
    card_errors::{CardErrors, UnreportedErrors},
    directory::{Directory, TableEntry},
    flow::FlowControl,
    interrupt::ReceiveInterrupt,
    kept::KeptMessages,
    receive::RecentHeader,
    ring::ReceiveRing,
    send_path::SendPath,
    tenant::{Endpoint, Tenant},
};

/// A connection to another port, made by [`Port::connect`]. It is valid for the port that made it,
/// and names one tenant of the peer's VPID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLink {
    pub(crate) address: Address,
    /// Number of the peer's address in the directory.
    pub(crate) index: u32,
    pub(crate) tenant: Tenant,
    /// Index of the peer's generation in the card's table.
    pub(crate) entry: TableEntry,
    /// The address of a message to the peer with tag 0 and one quadword.
    pub(crate) target: u32,
}

impl PeerLink {
    /// Returns the peer's address.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Returns the generation of the peer's tenant, as [`Port::tenant_of`] shows it.
    pub fn tenant(&self) -> u8 {
        self.tenant.generation()
    }
}

/// Counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages of the application that were sent.
    pub sent: u64,
    /// Messages that the application has received.
    pub received: u64,
    /// Control messages, in both directions.
    pub control: u64,
    /// Messages that were torn on their way to the card and sent again. Only devices without a
    /// posted-write ring tear messages.
    pub replayed: u64,
    /// Calls of [`Port::send_nb`] that found no credit.
    pub without_credit: u64,
    /// Messages dropped because their sender has not connected. They were for an earlier tenant of
    /// the VPID, or their sender does not use flow control.
    pub dropped: u64,
    /// Sends that waited in the card. 0 while flow control works.
    pub stalls: u64,
}

/// A process's VELO endpoint. One thread at a time uses it.
pub struct Port {
    pub(crate) device: Device,
    /// Value of [`Device::resets`] when the port was opened.
    pub(crate) resets: u32,
    pub(crate) own: Endpoint,
    pub(crate) directory: Directory,
    pub(crate) path: SendPath,
    pub(crate) ring: ReceiveRing,
    pub(crate) kept: KeptMessages,
    /// The last header that [`Port::poll`] has decoded.
    pub(crate) recent: RecentHeader,
    pub(crate) flow: FlowControl,
    pub(crate) errors: CardErrors,
    /// The interrupt of a port that sleeps; `None` when it only polls.
    pub(crate) interrupt: Option<ReceiveInterrupt>,
    /// Counters of this library. [`Port::statistics`] adds those of other layers.
    pub(crate) statistics: Statistics,
}

impl Port {
    /// Opens the VPID that `device` is. Peers can send to it when this returns.
    ///
    /// # Errors
    /// - [`Error::WrongDevice`] and [`Error::BadRing`].
    /// - [`Error::Timeout`] when the card does not enable the ring.
    /// - Errors of the driver.
    pub fn open(device: Device, config: Config) -> Result<Self, Error> {
        Self::open_with(device, None, config)
    }

    /// As [`Port::open`], with a posted-write ring that other libraries of the same VPID share.
    /// Each message takes the ring's lock, which is held for one record at a time.
    ///
    /// # Errors
    /// As [`Port::open`].
    pub fn open_sharing(device: Device, poster: SharedPoster, config: Config) -> Result<Self, Error> {
        Self::open_with(device, Some(poster), config)
    }

    /// Opens a port with a shared posted-write ring, or with a ring of its own.
    fn open_with(device: Device, shared: Option<SharedPoster>, config: Config) -> Result<Self, Error> {
        check_identity(&device)?;
        let (directory, address) = Directory::open(&device)?;
        let page = MirrorPage::open(&device)?;

        let ring = ReceiveRing::allocate(&device, &config, &directory)?;
        let slots = ring.slots() as u32;
        let kept = KeptMessages::with_capacity(config.kept.unwrap_or(slots) as usize);
        let flow = FlowControl::new(&config, &directory, slots);
        let mut errors = CardErrors::open(&page)?;
        let path = SendPath::open(&device, shared, &page)?;

        let interrupt = match config.waiting {
            Waiting::Polling => None,
            Waiting::Interrupt => Some(ReceiveInterrupt::bind(&device, &config)?),
        };

        let resets = device.resets();
        let tenant = ring.enable(&device, &directory, address).inspect_err(|_| ring.disable())?;
        errors.skip();

        let (own, statistics) = (Endpoint { address, tenant }, Statistics::default());
        Ok(Self {
            device,
            resets,
            own,
            directory,
            path,
            ring,
            kept,
            recent: RecentHeader::NONE,
            flow,
            errors,
            interrupt,
            statistics,
        })
    }

    /// Returns this port's own address.
    pub fn address(&self) -> Address {
        self.own.address
    }

    /// Returns the number of nodes of the network.
    pub fn nodes(&self) -> u32 {
        self.directory.nodes()
    }

    /// Returns the number of VPIDs of each node.
    pub fn vpids(&self) -> u32 {
        self.directory.vpids()
    }

    /// Returns the device of the port.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the counters.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            replayed: self.path.replayed(),
            stalls: self.path.stalls.load(Ordering::Relaxed),
            ..self.statistics
        }
    }

    /// Returns whether an address has a tenant, as far as this card knows.
    pub fn is_up(&self, address: Address) -> bool {
        self.directory.index(address).is_some() && self.directory.tenant(address).is_some()
    }

    /// Returns the generation of an address, as far as this card knows: odd while the address has a
    /// tenant, 0 for an invalid address. It changes only after everything that the previous tenant
    /// has sent is in the receive ring.
    #[inline]
    pub fn tenant_of(&self, address: Address) -> u8 {
        self.directory.index(address).map_or(0, |_| self.directory.generation(address))
    }

    /// Returns the generation of the tenant that sent the message last received from an address. A
    /// connect carries it, ahead of the messages. Returns 0 without a connection, and without flow
    /// control. For a kept message it may be a later tenant.
    #[inline]
    pub fn sender_of(&self, address: Address) -> u8 {
        let index = self.directory.index(address);
        index.map_or(0, |index| Tenant::generation_of(self.flow.peers[index].incoming.sender))
    }

    /// Calls `call` with the posted-write ring, for another library of the same VPID. The card
    /// carries out what is posted there in order with this port's messages.
    #[inline]
    pub fn with_poster<R>(&mut self, call: impl FnOnce(&mut Poster) -> R) -> R {
        self.path.with_poster_mut(call)
    }

    /// Reports errors that the card has found since the last report. Calls that send, and calls
    /// that wait for a message, do so too.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::PeerGone`] when the error is that a peer is gone.
    #[inline]
    pub fn check(&mut self) -> Result<(), Error> {
        if self.errors.has_unreported() { self.report() } else { Ok(()) }
    }

    /// Reports the last of the new errors of the card, unless this port need not report it.
    #[cold]
    fn report(&mut self) -> Result<(), Error> {
        self.handle_dropped_control();
        let UnreportedErrors { count, last } = self.errors.take_unreported();

        match last.error() {
            DeviceError::NoReceiver { to } if self.has_lost(to) => Err(Error::PeerGone { address: to }),
            // The dropped message was for an earlier tenant of an address that this port has
            // connected to again since, or it answered a peer that went away meanwhile.
            DeviceError::NoReceiver { .. } => Ok(()),
            // A peer that only sends to this port, and reads no credits, is no error of this port.
            DeviceError::Watchdog { to }
                if self.flow.enabled && last.dropped_control().is_some() && !self.is_connected_to(to) =>
            {
                Ok(())
            }
            // Pieces of a torn message that was sent again.
            DeviceError::Torn | DeviceError::Other { code: error::SEND_ADDRESS, .. }
                if self.path.uses_stores() =>
            {
                Ok(())
            }
            // Errors of the VPID's other unit, which its own library reports.
            DeviceError::Other { code: error::COMMAND | error::ATU | error::OVERFLOW, .. } => Ok(()),
            error => Err(Error::Device { error, count }),
        }
    }

    /// Returns whether this port sends to an address.
    fn is_connected_to(&self, address: Address) -> bool {
        let index = self.directory.index(address);
        index.is_some_and(|index| self.flow.peers[index].outgoing.receiver.is_some())
    }

    /// Returns whether this port sends to a tenant that the directory no longer shows.
    ///
    /// The card drops a message for lack of a receiver only while its directory shows none, and the
    /// directory changes before the count of errors does. So a message for a tenant that is shown
    /// was not dropped.
    fn has_lost(&self, address: Address) -> bool {
        let index = self.directory.index(address);
        let receiver = index.and_then(|index| self.flow.peers[index].outgoing.receiver);
        receiver.is_some_and(|receiver| !receiver.is(self.directory.tenant(address)))
    }

    /// Returns whether this port is still the tenant of its VPID, as far as the card has announced.
    #[inline]
    pub(crate) fn is_tenant(&self) -> bool {
        self.own.tenant.is(self.directory.tenant(self.own.address))
    }

    /// Returns the reason why the port receives nothing any more.
    #[cold]
    pub(crate) fn end_reason(&self) -> Error {
        let UnreportedErrors { count, last } = self.errors.unreported();
        let error = last.error();

        match self.ring.is_enabled() {
            Err(error) => error,
            Ok(_) if count > 0 && error == DeviceError::RingMemory => Error::Device { error, count },
            // Reset by this process, or by the administrator.
            Ok(_) => Error::Reset,
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // A ring enabled since a reset may be another port's. In a child of `fork`, it is the
        // parent's.
        if !self.device.is_inherited() && self.is_tenant() {
            self.ring.disable();
        }
    }
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port").field("address", &self.own.address).field("slots", &self.ring.slots()).finish()
    }
}
