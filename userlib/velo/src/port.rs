//! A port: the endpoint of a process on a card.

use std::{collections::VecDeque, sync::atomic::Ordering};

use nicforge_driver::{
    Bar, Deadline, Device, DmaBuffer, Doorbell, Error as DriverError, HugePages, Interrupt, Mark, Poster,
    SharedPoster,
};
use nicforge_hwi::{
    extoll::{BAR_DIRECTORY, directory, error, mirror, reg, vector, window},
    extoll_velo::{MAX_SLOTS, MIN_SLOTS, SLOT, address},
    pci,
};
use nicforge_shm::{SharedU64, Window};

use crate::{
    Address, CONTROL_TAG, Config, DeviceError, Error, Message, Waiting,
    flow::{self, Peer},
    stores::Stores,
};

/// BAR of the register file.
const BAR_REGISTERS: u8 = 0;
/// BAR of the windows.
const BAR_WINDOWS: u8 = 1;
/// BAR of the mirror.
const BAR_MIRROR: u8 = 2;
/// Time that the card may take to enable a ring.
const OPENING: std::time::Duration = std::time::Duration::from_secs(5);

/// A connection to another port, made by [`Port::connect`]. It is valid for the port that made it,
/// and names one tenant of the peer's VPID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLink {
    pub(crate) address: Address,
    /// Index of the peer in [`Port::peers`].
    pub(crate) index: u32,
    /// Generation of the peer's tenant.
    pub(crate) generation: u8,
}

impl PeerLink {
    /// Returns the peer's address.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Returns the generation of the peer's tenant, as [`Port::tenant_of`] shows it.
    pub fn tenant(&self) -> u8 {
        self.generation
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

/// The posted-write ring of a port.
pub(crate) enum PortPoster {
    /// The port's own ring.
    Own(Poster),
    /// A ring shared with other libraries of the same VPID.
    Shared(SharedPoster),
}

impl PortPoster {
    #[inline(always)]
    pub(crate) fn with<R>(&mut self, call: impl FnOnce(&mut Poster) -> R) -> R {
        match self {
            Self::Own(poster) => call(poster),
            Self::Shared(poster) => poster.with(call),
        }
    }
}

/// A process's VELO endpoint. One thread at a time uses it.
pub struct Port {
    pub(crate) device: Device,
    /// Value of [`Device::resets`] when the port was opened.
    pub(crate) resets: u32,
    pub(crate) config: Config,
    pub(crate) address: Address,
    pub(crate) nodes: u32,
    pub(crate) vpids: u32,
    /// The generation under which peers know this port.
    pub(crate) generation: u8,
    pub(crate) registers: Bar,
    pub(crate) poster: PortPoster,
    /// State of sending by stores, on a device without a posted-write ring.
    pub(crate) stores: Option<Stores>,
    doorbell: Doorbell,
    pub(crate) directory: Window,
    errors: SharedU64,
    last_error: SharedU64,
    stalls: SharedU64,
    errors_reported: u64,
    /// Errors that [`Port::handle_dropped_control`] has looked at. [`Port::check`] has also
    /// reported those of `errors_reported`.
    errors_checked: u64,
    pub(crate) interrupt: Option<Interrupt>,
    /// Mark behind the last write that enables the interrupt, while the interrupt has not been
    /// raised.
    pub(crate) armed: Option<Mark>,
    pub(crate) ring: Window,
    pub(crate) slots: u64,
    /// Messages taken out of the ring so far.
    pub(crate) taken: u64,
    /// Taken messages that the card does not know of yet.
    pub(crate) unreported: u32,
    /// Number of taken messages after which the card is informed.
    pub(crate) batch: u32,
    read_pointer: SharedU64,
    /// Messages that arrived while a call waited for another one, in order.
    pub(crate) kept: VecDeque<Message>,
    /// Capacity of `kept`.
    pub(crate) kept_capacity: usize,
    /// Peers by node, then VPID.
    pub(crate) peers: Vec<Peer>,
    /// By node: credits granted to its VPIDs, and kept messages whose grant has ended.
    pub(crate) reserved: Vec<u32>,
    /// Credits that may be granted to the VPIDs of one node together.
    pub(crate) budget: u32,
    /// Peers with a pending control message. Each is in the queue at most once.
    pub(crate) pending: VecDeque<u32>,
    pub(crate) statistics: Statistics,
    /// The ring's memory. The card loses access to it when this is dropped.
    _memory: DmaBuffer,
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

    fn open_with(device: Device, shared: Option<SharedPoster>, config: Config) -> Result<Self, Error> {
        let identity = device.identity();
        let wrong = |found: String| Error::WrongDevice { found };
        if (identity.vendor, identity.device) != (pci::VENDOR_EXTOLL, pci::DEVICE_EXTOLL) {
            return Err(wrong(format!("PCI {:04x}:{:04x}", identity.vendor, identity.device)));
        }

        let shown = device.bar(BAR_MIRROR)?;
        let (node, vpid) = (shown.read32(mirror::NODE)?, shown.read32(mirror::VPID)?);
        let (nodes, vpids) = (shown.read32(mirror::NODES)?, shown.read32(mirror::VPIDS)?);
        if vpid >= vpids || node >= nodes {
            return Err(wrong(format!("attachment {vpid} of node {node} is the admin's")));
        }

        let slots = slots(&config, nodes, vpids)?;

        let registers = device.bar(BAR_REGISTERS)?;
        let windows = device.bar(BAR_WINDOWS)?.window(window::VELO_READ_POINTER, window::SIZE)?;
        let directory = device.bar(BAR_DIRECTORY)?.window(0, u64::from(nodes) * directory::STRIDE)?;

        let mirror_page = shown.window(mirror::NODE, mirror::SIZE)?;
        let word = |offset: u64| mirror_page.u64(offset - mirror::NODE);
        let memory = device.dma_buffer((u64::from(slots) * SLOT) as usize, HugePages::Try)?;
        let interrupt = match config.waiting {
            Waiting::Polling => None,
            Waiting::Interrupt => Some(device.interrupt(vector::VELO_RECEIVE.into())?),
        };

        let mut port = Self {
            address: Address { node, vpid: vpid as u16 },
            nodes,
            vpids,
            generation: 0,
            registers,
            poster: shared.map_or_else(
                || device.poster(0).map(PortPoster::Own),
                |poster| Ok(PortPoster::Shared(poster)),
            )?,
            stores: (device.ring_count() == 0).then(Stores::default),
            doorbell: device.doorbell(),
            directory,
            errors: word(mirror::ERRORS)?,
            last_error: word(mirror::LAST_ERROR)?,
            stalls: word(mirror::VELO_STALLS)?,
            errors_reported: 0,
            errors_checked: 0,
            interrupt,
            armed: None,
            ring: memory.window().clone(),
            slots: slots.into(),
            taken: 0,
            unreported: 0,
            batch: (slots / nodes / 8).clamp(1, 64),
            read_pointer: windows.u64(0)?,
            kept: VecDeque::new(),
            kept_capacity: config.kept.unwrap_or(slots) as usize,
            peers: vec![Peer::default(); nodes as usize * vpids as usize],
            reserved: vec![0; nodes as usize],
            budget: flow::budget(slots, nodes, vpids),
            pending: VecDeque::new(),
            statistics: Statistics::default(),
            resets: device.resets(),
            device,
            config,
            _memory: memory,
        };

        port.enable(slots)?;
        Ok(port)
    }

    /// Hands the ring to the card, and waits until the directory shows the port to its peers.
    fn enable(&mut self, slots: u32) -> Result<(), Error> {
        let deadline = Deadline::after(OPENING);
        let own = self.entry(self.address);
        let registers = &self.registers;
        let shows = |on: bool| -> Result<(), Error> {
            self.device.wait_for(deadline, None, "the card to know of the receive ring", || {
                let generation = self.directory.load_u8_relaxed(own)?;
                Ok((generation & 1 == u8::from(on)).then_some(()))
            })
        };

        // An earlier port of this process may have left the ring enabled.
        registers.write64(reg::VELO_RING_ENABLE, 0)?;
        shows(false)?;

        self.read_pointer.store(0, Ordering::Release);
        registers.write64(reg::VELO_RING_BASE, self._memory.iova())?;
        registers.write64(reg::VELO_RING_SLOTS, slots.into())?;
        registers.write64(reg::VELO_RING_ENABLE, 1)?;

        if registers.read64(reg::VELO_RING_ENABLE)? != 1 {
            return Err(Error::BadRing { slots, least: least_slots(self.nodes) });
        }

        shows(true)?;
        self.generation = self.directory.load_u8_relaxed(own)?;
        self.errors_reported = self.errors.load(Ordering::Acquire);
        self.errors_checked = self.errors_reported;
        Ok(())
    }

    /// Returns this port's own address.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Returns the number of nodes of the network.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Returns the number of VPIDs of each node.
    pub fn vpids(&self) -> u32 {
        self.vpids
    }

    /// Returns the device of the port.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the counters.
    pub fn statistics(&self) -> Statistics {
        Statistics { stalls: self.stalls.load(Ordering::Relaxed), ..self.statistics }
    }

    /// Returns whether an address has a tenant, as far as this card knows.
    pub fn is_up(&self, address: Address) -> bool {
        self.index(address).is_some() && self.tenant(address) & 1 != 0
    }

    /// Returns the generation of an address, as far as this card knows: odd while the address has a
    /// tenant, 0 for an invalid address. It changes only after everything that the previous tenant
    /// has sent is in the receive ring.
    #[inline]
    pub fn tenant_of(&self, address: Address) -> u8 {
        if self.index(address).is_some() { self.tenant(address) } else { 0 }
    }

    /// Returns the generation of the tenant that sent the message last received from an address. A
    /// connect carries it, ahead of the messages. Returns 0 without a connection, and without flow
    /// control. For a kept message it may be a later tenant.
    #[inline]
    pub fn sender_of(&self, address: Address) -> u8 {
        self.index(address).map_or(0, |index| self.peers[index].sender)
    }

    /// Calls `call` with the posted-write ring, for another library of the same VPID. The card
    /// carries out what is posted there in order with this port's messages.
    #[inline]
    pub fn with_poster<R>(&mut self, call: impl FnOnce(&mut Poster) -> R) -> R {
        self.poster.with(call)
    }

    /// Reports errors that the card has found since the last report. Calls that send, and calls
    /// that wait for a message, do so too.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::PeerGone`] when the error is that a peer is gone.
    #[inline]
    pub fn check(&mut self) -> Result<(), Error> {
        if self.errors.load(Ordering::Acquire) == self.errors_reported { Ok(()) } else { self.report() }
    }

    /// Looks for a control message that the card has dropped, before more of them are sent.
    /// [`Port::check`] still reports the error.
    #[inline]
    pub(crate) fn handle_dropped_control(&mut self) {
        let errors = self.errors.load(Ordering::Acquire);
        if errors != self.errors_checked {
            self.errors_checked = errors;
            let word = self.last_error.load(Ordering::Acquire);
            if let DeviceError::Watchdog { to } = DeviceError::of_word(word)
                && self.config.flow_control
                && tag_of(word) == CONTROL_TAG
            {
                self.mark_unresponsive(to);
            }
        }
    }

    /// Reports new errors of the card, except for those that are no fault of this port.
    #[cold]
    fn report(&mut self) -> Result<(), Error> {
        self.handle_dropped_control();
        let errors = self.errors.load(Ordering::Acquire);
        let word = self.last_error.load(Ordering::Acquire);
        let found = DeviceError::of_word(word);
        let count = errors.wrapping_sub(self.errors_reported);
        self.errors_reported = errors;

        match found {
            DeviceError::NoReceiver { to } => match self.index(to).map(|index| self.peers[index]) {
                Some(peer) if peer.receiver != 0 => Err(Error::PeerGone { address: to }),
                // The message answered a peer that went away meanwhile.
                _ => Ok(()),
            },
            DeviceError::Watchdog { to } if self.config.flow_control && tag_of(word) == CONTROL_TAG => {
                // A peer that only sends to this port, and reads no credits, is no error of this
                // port.
                let connected = self.index(to).is_some_and(|index| self.peers[index].receiver != 0);
                if connected { Err(Error::Device { error: found, count }) } else { Ok(()) }
            }
            // Pieces of a torn message that was sent again.
            DeviceError::Torn | DeviceError::Other { code: error::SEND_ADDRESS, .. }
                if self.stores.is_some() =>
            {
                Ok(())
            }
            // Errors of the VPID's other unit, which its own library reports.
            DeviceError::Other { code: error::COMMAND | error::ATU | error::OVERFLOW, .. } => Ok(()),
            error => Err(Error::Device { error, count }),
        }
    }

    /// Returns whether this port is still the tenant of its VPID, as far as the card has announced.
    #[inline]
    pub(crate) fn is_tenant(&self) -> bool {
        self.tenant(self.address) == self.generation
    }

    /// Returns the reason why the port receives nothing any more.
    #[cold]
    pub(crate) fn end_reason(&self) -> Error {
        let count = self.errors.load(Ordering::Acquire).wrapping_sub(self.errors_reported);
        let found = DeviceError::of_word(self.last_error.load(Ordering::Acquire));

        match self.registers.read64(reg::VELO_RING_ENABLE) {
            Err(error) => error.into(),
            Ok(_) if count > 0 && found == DeviceError::RingMemory => Error::Device { error: found, count },
            // Reset by this process, or by the administrator.
            Ok(_) => Error::Reset,
        }
    }

    /// Enables the receive interrupt, and leaves the VPID's other interrupts as they are.
    ///
    /// The write is posted. A trapped write would wait behind the first message of the ring,
    /// however long that takes. One such write in flight is enough. When the ring is full, the
    /// caller sleeps without the interrupt.
    pub(crate) fn arm(&mut self) -> Result<(), Error> {
        let Self { poster, armed, .. } = self;
        poster.with(|poster| {
            if armed.is_some_and(|armed| !poster.has_passed(armed)) {
                return Ok(());
            }

            let enable = 1_u64 << vector::VELO_RECEIVE;
            match poster.try_post(BAR_REGISTERS, reg::INTERRUPT_SET, &enable.to_le_bytes()) {
                Ok(()) => *armed = poster.mark(),
                Err(DriverError::RingFull { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            Ok(())
        })
    }

    /// Stores the read pointer for the card, which frees the slots of all taken messages.
    #[inline(never)]
    pub(crate) fn report_taken(&mut self) -> Result<(), Error> {
        self.read_pointer.store(self.taken, Ordering::Release);
        self.unreported = 0;
        Ok(self.doorbell.after_store()?)
    }

    /// Returns the index of an address in [`Port::peers`]; `None` when the network has no such
    /// address.
    #[inline]
    pub(crate) fn index(&self, address: Address) -> Option<usize> {
        (address.node < self.nodes && u32::from(address.vpid) < self.vpids)
            .then(|| address.node as usize * self.vpids as usize + usize::from(address.vpid))
    }

    /// Returns the address of a peer.
    pub(crate) fn address_of(&self, index: u32) -> Address {
        Address { node: index / self.vpids, vpid: (index % self.vpids) as u16 }
    }

    /// Returns the offset of an address in the directory.
    #[inline]
    pub(crate) fn entry(&self, address: Address) -> u64 {
        u64::from(address.node) * directory::STRIDE + u64::from(address.vpid)
    }

    /// Returns the generation that the directory shows for an address.
    #[inline]
    pub(crate) fn tenant(&self, address: Address) -> u8 {
        self.directory.load_u8_relaxed(self.entry(address)).unwrap_or(0)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // A device that is gone or was reset has disabled the ring already, and a ring enabled
        // since may be another port's.
        if self.generation == 0 || self.is_tenant() {
            let _ = self.registers.write64(reg::VELO_RING_ENABLE, 0);
        }
    }
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port").field("address", &self.address).field("slots", &self.slots).finish()
    }
}

/// Returns the tag of the message that an error word names.
fn tag_of(word: u64) -> u8 {
    address::decode(word >> 8 & 0xffff_ffff).2
}

/// Returns the smallest number of slots that a network allows.
fn least_slots(nodes: u32) -> u32 {
    nodes.next_power_of_two().max(MIN_SLOTS as u32)
}

/// Returns the number of slots for a configuration, if the network allows it.
fn slots(config: &Config, nodes: u32, vpids: u32) -> Result<u32, Error> {
    let least = least_slots(nodes);
    let slots = config.slots.unwrap_or_else(|| flow::suitable_slots(nodes, vpids).max(least));

    if slots.is_power_of_two() && (least..=MAX_SLOTS as u32).contains(&slots) {
        Ok(slots)
    } else {
        Err(Error::BadRing { slots, least })
    }
}
