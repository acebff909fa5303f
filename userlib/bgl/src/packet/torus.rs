//! The torus function of a node, as a packet device.

use nicforge_driver::{
    Bar, Cancel, Deadline, Device, Error as DriverError, Poster,
    runtime::{Cost, charge, note_store},
};
use nicforge_hwi::{
    pci,
    torus::{
        BAR_MIRROR, BAR_WINDOW, CORES, Channel, DIMENSIONS, INJECTION_FIFOS, MAX_NODES, PacketHeader, hint,
        mirror, presence, reg, window,
    },
};
use nicforge_shm::Window;

use super::{
    InjectionFifo, PacketDevice, PayloadReader, Place, Rank, Shape, Verdict, injection::Injection,
    reception::Reception, ring,
};
use crate::Error;

/// BAR of the registers.
const BAR_REGISTERS: u8 = 0;
/// The FIFOs of normal priority.
const NORMAL: [InjectionFifo; 3] = [InjectionFifo::Normal0, InjectionFifo::Normal1, InjectionFifo::Normal2];

/// A core of a torus function.
///
/// A posted write announces each batch of packets. A reset of the device ends the use of this
/// value: open the device again.
#[derive(Debug)]
pub struct Torus {
    place: Place,
    injection: [Injection; INJECTION_FIFOS],
    reception: Reception,
    registers: Bar,
    poster: Poster,
    device: Device,
}

impl Torus {
    /// Maps the windows of `device`, an attachment of a torus function for a core. The torus takes
    /// ownership of the device and of its posted-write ring 0.
    ///
    /// # Errors
    /// Returns [`Error::WrongDevice`] when the device is not a core of a torus function,
    /// [`Error::BadDevice`] when its mirror shows invalid values, and [`Error::Device`] when the
    /// driver fails.
    pub fn open(device: Device) -> Result<Self, Error> {
        check_kind(&device)?;
        let windows = device.bar(BAR_WINDOW)?.window(0, window::SIZE)?;
        let mirrors = device.bar(BAR_MIRROR)?.window(0, mirror::SIZE)?;

        let fifo = |fifo: InjectionFifo| Injection::new(&windows, &mirrors, fifo as usize);
        let [first, second, third] = NORMAL;
        Ok(Self {
            place: read_place(&mirrors)?,
            injection: [fifo(first)?, fifo(second)?, fifo(third)?, fifo(InjectionFifo::Priority)?],
            reception: Reception::new(&windows, &mirrors)?,
            registers: device.bar(BAR_REGISTERS)?,
            poster: device.poster(0)?,
            device,
        })
    }

    /// Returns the device below.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Puts a packet into a FIFO that the caller chooses, if there is room, and returns whether
    /// there was: `BGLTorusInjectPacket`. The packet waits for [`PacketDevice::publish`].
    ///
    /// # Errors
    /// Returns [`Error::PayloadTooLong`] or [`Error::Memory`].
    #[inline]
    pub fn inject<'a>(
        &mut self,
        fifo: InjectionFifo,
        header: PacketHeader,
        payload: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Result<bool, Error> {
        let header = ring::sized(header, payload.clone())?;
        if !self.injection[fifo as usize].find_room(header.chunks()) {
            return Ok(false);
        }

        self.write(fifo, header, payload)?;
        Ok(true)
    }

    /// Returns a FIFO of normal priority with room for a number of chunks, other than a full one.
    fn find_other(&mut self, full: InjectionFifo, chunks: u32) -> Option<InjectionFifo> {
        let mut others = NORMAL.iter().cycle().skip(full as usize + 1).take(NORMAL.len() - 1);
        others.find(|&&fifo| self.injection[fifo as usize].find_room(chunks)).copied()
    }

    /// Writes a packet into a FIFO that has room for it.
    #[inline]
    fn write<'a>(
        &mut self,
        fifo: InjectionFifo,
        header: PacketHeader,
        payload: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), Error> {
        self.injection[fifo as usize].write(header, payload)?;
        note_store();
        charge(Cost::SendPacket, 1);
        Ok(())
    }

    /// Waits until a rank's core has software.
    ///
    /// # Errors
    /// Returns [`Error::Unreachable`] for a rank that the machine does not have, and
    /// [`Error::Device`] when the wait ends.
    pub fn wait_for_peer(
        &self,
        rank: Rank,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(), Error> {
        self.device.wait_for(deadline, cancel, "a peer's process", || {
            Ok(presence::is_up(self.life(rank)?).then_some(()))
        })
    }
}

impl PacketDevice for Torus {
    fn place(&self) -> &Place {
        &self.place
    }

    fn life(&self, rank: Rank) -> Result<u16, Error> {
        let ranks = self.place.ranks();
        if rank.0 >= ranks {
            return Err(Error::Unreachable { rank: rank.0, ranks });
        }
        let word = self.registers.read32(reg::PRESENCE + 4 * u64::from(rank.node()))?;
        Ok(presence::life(word, rank.core()))
    }

    fn life_changes(&self) -> Result<u32, Error> {
        Ok(self.registers.read32(reg::PRESENCE_CHANGES)?)
    }

    /// Sends a packet by a FIFO that the library chooses: `BGLTorusSendPacket`.
    ///
    /// A packet of high priority has its own FIFO. Other packets go into the FIFO of the first
    /// dimension in which they move, because the packets behind one that waits for a link wait too.
    /// If it is full, they go into any other.
    #[inline]
    fn send<'a>(
        &mut self,
        header: PacketHeader,
        payload: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Result<bool, Error> {
        if header.channel() == Channel::BubblePriority {
            return self.inject(InjectionFifo::Priority, header, payload);
        }

        let header = ring::sized(header, payload.clone())?;
        let chunks = header.chunks();
        let mut fifo = NORMAL[first_dimension(header.hints())];
        if !self.injection[fifo as usize].find_room(chunks) {
            match self.find_other(fifo, chunks) {
                Some(other) => fifo = other,
                None => return Ok(false),
            }
        }

        self.write(fifo, header, payload)?;
        Ok(true)
    }

    #[inline]
    fn publish(&mut self) -> Result<(), Error> {
        for injection in &mut self.injection {
            let Some((register, tail)) = injection.unpublished_tail() else { continue };
            match self.poster.try_post(BAR_REGISTERS, register, &tail.to_le_bytes()) {
                Ok(()) => injection.mark_published(),
                // The next call tries again.
                Err(DriverError::RingFull { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn has_sent_all(&self) -> bool {
        self.injection.iter().all(Injection::is_empty)
    }

    #[inline]
    fn receive(
        &mut self,
        mut handler: impl FnMut(PacketHeader, PayloadReader<'_>) -> Verdict,
    ) -> Result<usize, Error> {
        let taken = self.reception.receive(&mut handler)?;

        // The first call after a post that failed finds that it is still due.
        if self.reception.must_announce() {
            match self.poster.try_post(BAR_REGISTERS, reg::HEADS_MOVED, &[1, 0, 0, 0]) {
                Ok(()) => self.reception.mark_announced(),
                Err(DriverError::RingFull { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(taken)
    }
}

/// Returns the first dimension in which a packet with these hints may move; 0 without any.
#[inline]
fn first_dimension(hints: u8) -> usize {
    // The bits of the links have the order of their ports.
    match hints & hint::ALL {
        0 => 0,
        hints => (hints.leading_zeros() - hint::XP.leading_zeros()) as usize / 2,
    }
}

/// Checks that a device is a torus function's attachment for a core.
fn check_kind(device: &Device) -> Result<(), Error> {
    let identity = device.identity();
    let (vendor, id) = (identity.vendor, identity.device);
    if (vendor, id) != (pci::VENDOR_ID, pci::DEVICE_TORUS) {
        return Err(Error::WrongDevice { found: format!("PCI device {vendor:04x}:{id:04x}") });
    }

    let attachment = device.attachment();
    if attachment >= u32::from(CORES) {
        return Err(Error::WrongDevice { found: format!("attachment {attachment} of a torus") });
    }
    Ok(())
}

/// Returns the coordinates in a word of the mirror.
fn coordinates_of(word: u32) -> [u8; DIMENSIONS] {
    let [x, y, z, _] = word.to_be_bytes();
    [x, y, z]
}

/// Reads the place of a core from the mirror, and checks its values.
fn read_place(mirrors: &Window) -> Result<Place, Error> {
    let load = |offset| mirrors.load_u32_acquire(offset);
    let bad = |what, value: u32| Error::BadDevice { what, value: value.into() };

    let (last, wraps) = (load(mirror::LAST)?, load(mirror::WRAPS)?);
    let shape =
        Shape { last: coordinates_of(last), wraps: [0, 1, 2].map(|dimension| wraps >> dimension & 1 == 1) };
    if shape.nodes() > MAX_NODES {
        return Err(bad("the machine's last coordinates", last));
    }

    let (node, at) = (load(mirror::NODE)?, load(mirror::COORDINATES)?);
    if shape.node(coordinates_of(at)) != Some(node) {
        return Err(bad("the node's coordinates", at));
    }

    let (core, life) = (load(mirror::GROUP)?, load(mirror::LIFE)?);
    if core >= u32::from(CORES) {
        return Err(bad("a FIFO group", core));
    }
    match u16::try_from(life) {
        Ok(life) if presence::is_up(life) => Ok(Place {
            rank: Rank::new(node as u16, core as u16),
            life,
            coordinates: coordinates_of(at),
            shape,
        }),
        _ => Err(bad("the core's own life", life)),
    }
}
