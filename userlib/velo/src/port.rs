//! A port: what a process has of a card.

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
/// How long the card may take to enable a ring.
const OPENING: std::time::Duration = std::time::Duration::from_secs(5);

/// A connection to another port, by [`Port::connect`]. It belongs to the port that made it, and stands for one tenant of the peer's VPID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub(crate) address: Address,
    /// Of the peer, in [`Port::peers`].
    pub(crate) index: u32,
    /// Of the peer's tenant.
    pub(crate) generation: u8,
}

impl Link {
    /// Who is at its other end.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Which tenant of that address, by the generation that the directory shows: [`Port::tenant_of`].
    pub fn tenant(&self) -> u8 {
        self.generation
    }
}

/// What a port has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages of the application that were sent.
    pub sent: u64,
    /// Messages that the application has got.
    pub received: u64,
    /// Messages about credits, both ways.
    pub control: u64,
    /// Times that a message was torn on its way to the card, and sent again. Only where there is no posted-write ring.
    pub replayed: u64,
    /// Calls of [`Port::send_nb`] that found no credit.
    pub without_credit: u64,
    /// Messages that were dropped since their sender has not connected: they were for somebody who had the VPID before, or are of one that does not
    /// use flow control.
    pub dropped: u64,
    /// Sends that had to wait in the card: 0 as long as flow control works.
    pub stalls: u64,
}

/// Where a port posts its messages.
pub(crate) enum Way {
    /// In a ring that nobody else has.
    Own(Poster),
    /// In one that other libraries have too.
    Shared(SharedPoster),
}

impl Way {
    #[inline(always)]
    pub(crate) fn with<R>(&mut self, call: impl FnOnce(&mut Poster) -> R) -> R {
        match self {
            Self::Own(poster) => call(poster),
            Self::Shared(poster) => poster.with(call),
        }
    }
}

/// A process's end of VELO. One thread at a time uses it.
pub struct Port {
    pub(crate) device: Device,
    /// What [`Device::resets`] was.
    pub(crate) resets: u32,
    pub(crate) config: Config,
    pub(crate) address: Address,
    pub(crate) nodes: u32,
    pub(crate) vpids: u32,
    /// The generation that the others know this port under.
    pub(crate) generation: u8,
    pub(crate) registers: Bar,
    pub(crate) way: Way,
    /// How messages are sent where there is no ring to post them in.
    pub(crate) stores: Option<Stores>,
    doorbell: Doorbell,
    pub(crate) directory: Window,
    errors: SharedU64,
    last_error: SharedU64,
    stalls: SharedU64,
    errors_seen: u64,
    /// Errors that [`Port::notice`] has looked at. Those of [`Port::errors_seen`] were reported, too.
    errors_noticed: u64,
    pub(crate) interrupt: Option<Interrupt>,
    /// Behind what has enabled it last, and has not raised it.
    pub(crate) armed: Option<Mark>,
    pub(crate) ring: Window,
    pub(crate) slots: u64,
    /// Messages taken out of the ring so far, and how many of them the card does not know of.
    pub(crate) taken: u64,
    pub(crate) untold: u32,
    /// How many of those may come together.
    pub(crate) batch: u32,
    read_pointer: SharedU64,
    pub(crate) kept: VecDeque<Message>,
    pub(crate) keeps: usize,
    /// By node, then VPID.
    pub(crate) peers: Vec<Peer>,
    /// By node: what was promised to its VPIDs.
    pub(crate) promised: Vec<u32>,
    pub(crate) budget: u32,
    /// Peers that are to be told of credit. Each is in it once.
    pub(crate) due: VecDeque<u32>,
    pub(crate) statistics: Statistics,
    /// The ring's memory; taken away from the card when this is dropped.
    _memory: DmaBuffer,
}

impl Port {
    /// Opens the VPID that `device` is: it can be sent to when this returns.
    ///
    /// # Errors
    /// [`Error::WrongDevice`], [`Error::BadRing`]; [`Error::Timeout`] when the card does not enable the ring; what the driver says.
    pub fn open(device: Device, config: Config) -> Result<Self, Error> {
        Self::with(device, None, config)
    }

    /// As [`Port::open`], with a ring that is shared with other libraries of the same VPID. A message then takes the ring's lock, which nobody
    /// holds for longer than a record.
    ///
    /// # Errors
    /// As [`Port::open`].
    pub fn open_sharing(device: Device, poster: SharedPoster, config: Config) -> Result<Self, Error> {
        Self::with(device, Some(poster), config)
    }

    fn with(device: Device, shared: Option<SharedPoster>, config: Config) -> Result<Self, Error> {
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
            way: shared.map_or_else(|| device.poster(0).map(Way::Own), |poster| Ok(Way::Shared(poster)))?,
            stores: (device.ring_count() == 0).then(Stores::default),
            doorbell: device.doorbell(),
            directory,
            errors: word(mirror::ERRORS)?,
            last_error: word(mirror::LAST_ERROR)?,
            stalls: word(mirror::VELO_STALLS)?,
            errors_seen: 0,
            errors_noticed: 0,
            interrupt,
            armed: None,
            ring: memory.window().clone(),
            slots: slots.into(),
            taken: 0,
            untold: 0,
            batch: (slots / nodes / 8).clamp(1, 64),
            read_pointer: windows.u64(0)?,
            kept: VecDeque::new(),
            keeps: config.kept.unwrap_or(slots) as usize,
            peers: vec![Peer::default(); nodes as usize * vpids as usize],
            promised: vec![0; nodes as usize],
            budget: flow::budget(slots, nodes, vpids),
            due: VecDeque::new(),
            statistics: Statistics::default(),
            resets: device.resets(),
            device,
            config,
            _memory: memory,
        };
        port.enable(slots)?;
        Ok(port)
    }

    /// Gives the card the ring, and waits until the others can be expected to know.
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
        // Whoever had the VPID before in this process may have left it enabled.
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
        self.errors_seen = self.errors.load(Ordering::Acquire);
        self.errors_noticed = self.errors_seen;
        Ok(())
    }

    /// This port's own address.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Nodes of the network.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// VPIDs of each node.
    pub fn vpids(&self) -> u32 {
        self.vpids
    }

    /// The device that the port is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What was done so far.
    pub fn statistics(&self) -> Statistics {
        Statistics { stalls: self.stalls.load(Ordering::Relaxed), ..self.statistics }
    }

    /// Whether somebody has an address, as far as this card has heard.
    pub fn is_up(&self, address: Address) -> bool {
        self.index(address).is_some() && self.tenant(address) & 1 != 0
    }

    /// The tenant that has an address now, as far as this card has heard: a generation, odd while there is one. 0 for what can be no address. It
    /// changes after all that the tenant before has sent is in the receive ring.
    #[inline]
    pub fn tenant_of(&self, address: Address) -> u8 {
        if self.index(address).is_some() { self.tenant(address) } else { 0 }
    }

    /// The tenant that sent the message which was taken last from an address: who connects says which it is, before its messages. 0 when
    /// nobody there has connected, and on ports without flow control. Of messages that a call kept it may be a later tenant.
    #[inline]
    pub fn sender_of(&self, address: Address) -> u8 {
        self.index(address).map_or(0, |index| self.peers[index].of)
    }

    /// Calls `call` with the way to the card, for another library of the same VPID: what is posted there is carried out in order with this port's
    /// messages.
    #[inline]
    pub fn with_poster<R>(&mut self, call: impl FnOnce(&mut Poster) -> R) -> R {
        self.way.with(call)
    }

    /// Reports what the card has found wrong since the last report. The calls that send, and those that wait for a message, do it too.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::PeerGone`] when what was wrong is that a peer is not there any more.
    #[inline]
    pub fn check(&mut self) -> Result<(), Error> {
        if self.errors.load(Ordering::Acquire) == self.errors_seen { Ok(()) } else { self.report() }
    }

    /// Takes notice of a control message that the card has dropped, before more are sent. It is reported by [`Port::check`] all the same.
    #[inline]
    pub(crate) fn notice(&mut self) {
        let errors = self.errors.load(Ordering::Acquire);
        if errors != self.errors_noticed {
            self.errors_noticed = errors;
            let word = self.last_error.load(Ordering::Acquire);
            if let DeviceError::Watchdog { to } = DeviceError::of_word(word)
                && self.config.flow_control
                && tag_of(word) == CONTROL_TAG
            {
                self.fall_silent(to);
            }
        }
    }

    #[cold]
    fn report(&mut self) -> Result<(), Error> {
        self.notice();
        let errors = self.errors.load(Ordering::Acquire);
        let word = self.last_error.load(Ordering::Acquire);
        let found = DeviceError::of_word(word);
        let count = errors.wrapping_sub(self.errors_seen);
        self.errors_seen = errors;
        match found {
            DeviceError::NoReceiver { to } => match self.index(to).map(|index| self.peers[index]) {
                Some(peer) if peer.to != 0 => Err(Error::PeerGone { address: to }),
                // An answer to somebody who went away meanwhile.
                _ => Ok(()),
            },
            DeviceError::Watchdog { to } if self.config.flow_control && tag_of(word) == CONTROL_TAG => {
                // Nothing else is wrong when only somebody has connected to us who reads no answer.
                let connected = self.index(to).is_some_and(|index| self.peers[index].to != 0);
                if connected { Err(Error::Device { error: found, count }) } else { Ok(()) }
            }
            // Pieces of a message that was sent again.
            DeviceError::Torn | DeviceError::Other { code: error::SEND_ADDRESS, .. }
                if self.stores.is_some() =>
            {
                Ok(())
            }
            // The VPID's other unit has its own ways to tell.
            DeviceError::Other { code: error::COMMAND | error::ATU | error::OVERFLOW, .. } => Ok(()),
            error => Err(Error::Device { error, count }),
        }
    }

    /// Whether the VPID is still this port's, as far as the card has told.
    #[inline]
    pub(crate) fn is_tenant(&self) -> bool {
        self.tenant(self.address) == self.generation
    }

    /// Why nothing will come any more.
    #[cold]
    pub(crate) fn ended(&self) -> Error {
        let count = self.errors.load(Ordering::Acquire).wrapping_sub(self.errors_seen);
        let found = DeviceError::of_word(self.last_error.load(Ordering::Acquire));
        match self.registers.read64(reg::VELO_RING_ENABLE) {
            Err(error) => error.into(),
            Ok(_) if count > 0 && found == DeviceError::RingMemory => Error::Device { error: found, count },
            // By this process, or by the admin.
            Ok(_) => Error::Reset,
        }
    }

    /// Enables the interrupt that tells of messages, and leaves those of the VPID's other libraries as they are. It is posted: a trapped write would
    /// wait as long as the message in front of the ring does, whatever the caller's deadline. One that is on its way is enough, and who finds no room sleeps
    /// without.
    pub(crate) fn arm(&mut self) -> Result<(), Error> {
        let Self { way, armed, .. } = self;
        way.with(|poster| {
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

    /// Tells the card how many messages were taken.
    #[inline(never)]
    pub(crate) fn tell_taken(&mut self) -> Result<(), Error> {
        self.read_pointer.store(self.taken, Ordering::Release);
        self.untold = 0;
        Ok(self.doorbell.after_store()?)
    }

    /// Where an address is in [`Port::peers`], if it can be.
    #[inline]
    pub(crate) fn index(&self, address: Address) -> Option<usize> {
        (address.node < self.nodes && u32::from(address.vpid) < self.vpids)
            .then(|| address.node as usize * self.vpids as usize + usize::from(address.vpid))
    }

    /// The address of a peer.
    pub(crate) fn address_of(&self, index: u32) -> Address {
        Address { node: index / self.vpids, vpid: (index % self.vpids) as u16 }
    }

    /// Where an address is in the directory.
    #[inline]
    pub(crate) fn entry(&self, address: Address) -> u64 {
        u64::from(address.node) * directory::STRIDE + u64::from(address.vpid)
    }

    /// The generation that the directory shows for an address.
    #[inline]
    pub(crate) fn tenant(&self, address: Address) -> u8 {
        self.directory.load_u8_relaxed(self.entry(address)).unwrap_or(0)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // A device that is gone or was reset has disabled it, and the ring there may be another port's.
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

/// The tag of the message that the card's word about an error is of.
fn tag_of(word: u64) -> u8 {
    address::decode(word >> 8 & 0xffff_ffff).2
}

/// The fewest slots that a network allows.
fn least_slots(nodes: u32) -> u32 {
    nodes.next_power_of_two().max(MIN_SLOTS as u32)
}

fn slots(config: &Config, nodes: u32, vpids: u32) -> Result<u32, Error> {
    let least = least_slots(nodes);
    let slots = config.slots.unwrap_or_else(|| flow::suitable_slots(nodes, vpids).max(least));
    if slots.is_power_of_two() && (least..=MAX_SLOTS as u32).contains(&slots) {
        Ok(slots)
    } else {
        Err(Error::BadRing { slots, least })
    }
}
