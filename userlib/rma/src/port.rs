//! RMA of one VPID: opening the port, registering memory, and posting commands.
//!
//! `receive` takes the notifications, `wait` waits for room and for the ends of commands.

mod receive;
mod wait;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use nicforge_driver::{
    Bar, Cancel, Device, DmaBuffer, Error as DriverError, Interrupt, Poster, RingPosition, SharedPoster,
};
use nicforge_hwi::{
    extoll::{mirror, reg, window},
    extoll_rma::{Command, MAX_COMMANDS, MAX_IMMEDIATE, MAX_LENGTH, command},
};
use nicforge_shm::{SharedU64, Window};
use zerocopy::IntoBytes;

use crate::{
    Access, Error, Notify, Region,
    queue::Queue,
    region::{Translation, VpidEpoch},
};

/// BARs of registers, windows and mirror.
const BAR_REGISTERS: u8 = 0;
const BAR_WINDOWS: u8 = 1;
const BAR_MIRROR: u8 = 2;

/// Options of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Entries of the notification queue, a power of two, 64 to 65536.
    pub entries: u32,
    /// Time that a call polls before it waits for an interrupt.
    pub spin: Duration,
    /// Time that a call sleeps before it polls again without an interrupt. A reset of the VPID by
    /// the administrator raises no interrupt.
    pub sleep: Duration,
}

impl Default for Options {
    /// 4096 entries, 50 us, 10 ms.
    fn default() -> Self {
        Self { entries: 4096, spin: Duration::from_micros(50), sleep: Duration::from_millis(10) }
    }
}

/// The other side of a command: a VPID of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    node: u32,
    vpid: u16,
}

impl Target {
    /// Returns the node.
    pub fn node(self) -> u32 {
        self.node
    }

    /// Returns the VPID on that node.
    pub fn vpid(self) -> u16 {
        self.vpid
    }
}

/// RMA of a VPID. A device has at most one such port.
pub struct Port {
    device: Device,
    registers: Bar,
    /// The posted-write ring for commands. `None` when they go through another library's ring.
    poster: Option<SharedPoster>,
    translation: Arc<Translation>,
    queue: Queue,
    /// Whether [`Port::probe`] has returned the oldest notification, so that it may be freed.
    returned: bool,
    mirror: Window,
    /// The card's count of commands that have ended.
    completed: SharedU64,
    /// The card's count of lost notifications.
    overflows: SharedU64,
    /// Overflows reported so far.
    reported_overflows: u64,
    /// Number of commands posted, as the card counts them.
    posted: u64,
    interrupt: Option<Interrupt>,
    /// Ring position after the last posted write that enables the interrupt. It is `None` after the
    /// interrupt was raised, and for a port or a device without a ring.
    last_enable: Option<RingPosition>,
    spin: Duration,
    sleep: Duration,
    /// Value of [`Device::resets`] when the port was opened.
    resets: u32,
    epoch: VpidEpoch,
    /// The cancellation token that ends a wait for room.
    cancel: Option<Cancel>,
}

impl Port {
    /// Opens RMA of the VPID that `device` is, with posted-write ring 0 as its own.
    ///
    /// # Errors
    /// [`Error::NotExtoll`], [`Error::QueueLength`], [`Error::QueueRefused`];
    /// [`DriverError::RingTaken`] when the ring has another owner.
    pub fn open(device: &Device, options: Options) -> Result<Self, Error> {
        let poster: Poster = device.poster(0)?;
        Self::with_poster(device, SharedPoster::new(poster), options)
    }

    /// As [`Port::open`], with a ring that other libraries of the same VPID share.
    ///
    /// # Errors
    /// As [`Port::open`].
    pub fn with_poster(device: &Device, poster: SharedPoster, options: Options) -> Result<Self, Error> {
        Self::open_with(device, Some(poster), options)
    }

    /// As [`Port::open`], without a ring. Only [`Port::try_get_through`] posts commands.
    ///
    /// # Errors
    /// [`Error::NotExtoll`], [`Error::QueueLength`], [`Error::QueueRefused`].
    pub fn without_poster(device: &Device, options: Options) -> Result<Self, Error> {
        Self::open_with(device, None, options)
    }

    /// Opens RMA with the ring for commands, if the port has one.
    fn open_with(device: &Device, poster: Option<SharedPoster>, options: Options) -> Result<Self, Error> {
        let resets = device.resets();

        let registers = device.bar(BAR_REGISTERS)?;
        let identity = registers.read64(reg::IDENTITY)?;
        if identity != reg::IDENTITY_VALUE {
            return Err(Error::NotExtoll { identity });
        }

        let mirror = device.bar(BAR_MIRROR)?.window(mirror::NODE, mirror::SIZE)?;
        let word = |offset: u64| mirror.u64(offset - mirror::NODE);
        let epoch = VpidEpoch::current(device, word(mirror::STARTS)?);
        let (completed, overflows) = (word(mirror::RMA_COMPLETED)?, word(mirror::RMA_OVERFLOWS)?);
        // The read of a register above has updated this count: it includes all commands of an
        // earlier port.
        let posted = word(mirror::RMA_COMMANDS)?.load(Ordering::Acquire);
        let reported_overflows = overflows.load(Ordering::Acquire);
        let pointer = device.bar(BAR_WINDOWS)?.window(window::RMA_READ_POINTER, 8)?.u64(0)?;

        // An enabled queue is that of another port on this VPID.
        if registers.read64(reg::RMA_QUEUE_ENABLE)? != 0 {
            return Err(Error::QueueRefused { code: 0 });
        }

        let queue = Queue::new(device, options.entries, pointer)?;

        registers.write64(reg::RMA_QUEUE_BASE, queue.base())?;
        registers.write64(reg::RMA_QUEUE_ENTRIES, queue.entries())?;
        registers.write64(reg::RMA_QUEUE_ENABLE, 1)?;

        if registers.read64(reg::RMA_QUEUE_ENABLE)? != 1 {
            // The lowest byte of the word is the error's code.
            let last = word(mirror::LAST_ERROR)?.load(Ordering::Acquire);
            return Err(Error::QueueRefused { code: last as u8 });
        }

        Ok(Self {
            device: device.clone(),
            registers,
            poster,
            translation: Translation::new(epoch.clone(), device.bar(BAR_REGISTERS)?),
            queue,
            returned: false,
            mirror,
            completed,
            overflows,
            reported_overflows,
            posted,
            interrupt: None,
            last_enable: None,
            spin: options.spin,
            sleep: options.sleep,
            resets,
            epoch,
            cancel: None,
        })
    }

    /// Sets the cancellation token that ends a wait for room in [`Port::put`], [`Port::get`] and
    /// [`Port::put_immediate`].
    pub fn set_cancel(&mut self, cancel: Option<Cancel>) {
        self.cancel = cancel;
    }

    /// Reads a word of the mirror.
    fn word(&self, offset: u64) -> u32 {
        // The offset is within the page that `open` has mapped.
        self.mirror.load_u32_acquire(offset - mirror::NODE).unwrap_or(0)
    }

    /// Returns this card's node.
    pub fn node(&self) -> u32 {
        self.word(mirror::NODE)
    }

    /// Returns this port's VPID.
    pub fn vpid(&self) -> u16 {
        self.word(mirror::VPID) as u16
    }

    /// Registers a buffer, which must belong to the same device.
    ///
    /// # Errors
    /// [`Error::Translation`]; errors of a trapped access.
    pub fn register(&self, buffer: &DmaBuffer, access: Access) -> Result<Region, Error> {
        self.register_range(buffer.iova(), buffer.len(), access)
    }

    /// Registers memory that is mapped for DMA: `length` bytes at `iova`, both multiples of 4096.
    ///
    /// # Errors
    /// [`Error::Unaligned`]; as [`Port::register`].
    pub fn register_range(&self, iova: u64, length: u64, access: Access) -> Result<Region, Error> {
        self.translation.register(iova, length, access)
    }

    /// Returns the target for a VPID. Nothing is exchanged with it; only a command shows whether a
    /// process has the VPID.
    ///
    /// # Errors
    /// [`Error::NoSuchTarget`].
    pub fn connect(&self, node: u32, vpid: u16) -> Result<Target, Error> {
        let (nodes, vpids) = (self.word(mirror::NODES), self.word(mirror::VPIDS));
        if node < nodes && u32::from(vpid) < vpids {
            Ok(Target { node, vpid })
        } else {
            Err(Error::NoSuchTarget { node, vpid, nodes, vpids })
        }
    }

    /// Posts a put: `length` bytes from this port's address `source` to the target's address
    /// `destination`.
    ///
    /// Returns the number of commands, one for each [`MAX_LENGTH`]. Each command has its own
    /// notifications. Waits while 64 commands are in flight, or the posted-write ring is full.
    ///
    /// # Errors
    /// - [`Error::Length`], [`Error::Reset`].
    /// - [`DriverError::Timeout`] when there is no room for a command within 5 s.
    /// - [`DriverError::Cancelled`] by the cancellation token of [`Port::set_cancel`].
    /// - [`Error::QueueGone`] when there will never be room.
    ///
    /// Commands posted before the error stay posted.
    pub fn put(
        &mut self,
        target: Target,
        source: u64,
        destination: u64,
        length: u64,
        notify: Notify,
    ) -> Result<u64, Error> {
        self.transfer(target, command::PUT, source, destination, length, notify)
    }

    /// Posts a get: `length` bytes from the target's address `source` to this port's address
    /// `destination`. As [`Port::put`] otherwise.
    ///
    /// # Errors
    /// As [`Port::put`].
    pub fn get(
        &mut self,
        target: Target,
        source: u64,
        destination: u64,
        length: u64,
        notify: Notify,
    ) -> Result<u64, Error> {
        self.transfer(target, command::GET, source, destination, length, notify)
    }

    /// Posts a get of 1 to [`MAX_LENGTH`] bytes as one command, through the ring of another library
    /// of the same VPID. Does not wait.
    ///
    /// Returns `false` when the ring is full, or as many commands are in flight as a card accepts.
    /// Nothing was posted then.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::Reset`]; errors of the ring.
    #[inline]
    pub fn try_get_through(
        &mut self,
        poster: &mut Poster,
        target: Target,
        (source, destination): (u64, u64),
        length: u32,
        notify: Notify,
    ) -> Result<bool, Error> {
        let ends = [source, destination].map(|address| address.checked_add(length.into()));
        if length == 0 || length > MAX_LENGTH || ends.contains(&None) {
            return Err(Error::Length { length: length.into(), most: MAX_LENGTH.into() });
        }
        self.check_reset()?;

        if self.in_flight() >= MAX_COMMANDS as u64 {
            return Ok(false);
        }

        let command =
            Command::new(target.node, target.vpid, command::GET, notify.0, length, source, destination);

        match poster.try_post(BAR_REGISTERS, reg::RMA_COMMAND, command.as_bytes()) {
            Ok(()) => {
                self.posted += 1;
                Ok(true)
            }
            Err(DriverError::RingFull { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Posts an immediate put: 1 to 8 bytes, which the command itself carries, to the target's
    /// address `destination`.
    ///
    /// # Errors
    /// As [`Port::put`].
    pub fn put_immediate(
        &mut self,
        target: Target,
        data: &[u8],
        destination: u64,
        notify: Notify,
    ) -> Result<(), Error> {
        let mut bytes = [0; MAX_IMMEDIATE as usize];
        let length = data.len() as u64;
        match bytes.get_mut(..data.len()) {
            Some(start) if length > 0 => start.copy_from_slice(data),
            _ => return Err(Error::Length { length, most: MAX_IMMEDIATE.into() }),
        }

        let source = u64::from_le_bytes(bytes);
        self.post(target, command::IMMEDIATE_PUT, source, destination, length as u32, notify)
    }

    /// Posts a transfer as one or more commands. Returns their number.
    fn transfer(
        &mut self,
        target: Target,
        command: u8,
        source: u64,
        destination: u64,
        length: u64,
        notify: Notify,
    ) -> Result<u64, Error> {
        let ends = [source, destination].map(|address| address.checked_add(length));
        if length == 0 || ends.contains(&None) {
            return Err(Error::Length { length, most: u64::MAX });
        }

        let mut done = 0;
        while done < length {
            let piece = (length - done).min(MAX_LENGTH.into());
            self.post(target, command, source + done, destination + done, piece as u32, notify)?;
            done += piece;
        }

        Ok(length.div_ceil(MAX_LENGTH.into()))
    }

    /// Posts one command, and waits for room if necessary. The `source` of an immediate put is its
    /// data.
    #[inline]
    fn post(
        &mut self,
        target: Target,
        command: u8,
        source: u64,
        destination: u64,
        length: u32,
        notify: Notify,
    ) -> Result<(), Error> {
        let Some(poster) = &self.poster else { return Err(Error::NoPoster) };

        self.check_reset()?;
        if self.in_flight() >= MAX_COMMANDS as u64 {
            self.wait_for_room()?;
        }

        let command = Command::new(target.node, target.vpid, command, notify.0, length, source, destination);
        match poster.with(|ring| ring.try_post(BAR_REGISTERS, reg::RMA_COMMAND, command.as_bytes())) {
            Err(DriverError::RingFull { .. }) => self.post_when_room(poster, &command)?,
            posted => posted?,
        }

        self.posted += 1;
        Ok(())
    }

    /// Returns the number of commands in flight: posted, and not ended.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        self.posted.saturating_sub(self.completed.load(Ordering::Acquire))
    }

    /// Returns the device of the port.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // The card must release the queue before the queue's memory goes. After a loss or reset of
        // the device it has done so, and an enabled queue may be that of another port. In a child
        // of
        // `fork`, it is the parent's.
        if self.device.is_inherited() {
            return;
        }

        if self.epoch.is_current() && self.registers.write64(reg::RMA_QUEUE_ENABLE, 0).is_err() {
            // The posted-write ring is stalled. The card handles this record before any trapped
            // access of a later port.
            if let Some(poster) = &self.poster {
                let disable = 0_u64.to_le_bytes();
                let _ = poster.with(|ring| ring.try_post(BAR_REGISTERS, reg::RMA_QUEUE_ENABLE, &disable));
            }
        }
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("node", &self.node())
            .field("vpid", &self.vpid())
            .field("in_flight", &self.in_flight())
            .finish()
    }
}
