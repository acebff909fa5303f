//! The network device (5.1): frames between its queues and its port.
//!
//! The device has one port to the fabric, [`PORT`], and one queue for each direction:
//!
//! ```text
//!   transmit queue --> packet of the fabric --> port
//!   receive queue  <-- packet of the fabric <-- port
//! ```
//!
//! - A frame is sent when the link has a credit. Without a credit its buffer stays in the queue.
//!   Without a link the frame is dropped.
//! - A received frame waits for a buffer, for [`NicConfig::hold`] at most. Then it is dropped, and
//!   so are those behind it until the driver offers a buffer. A driver that has stopped thus holds
//!   its link only for that time.
//! - A queue that breaks the rules stops the device: it needs a reset, and reports that.
//! - While there is work, the device polls its queues and asks for no notifications, and for
//!   [`LINGER`] longer.

mod statistics;

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Progress, Reset, Write},
    fabric::{Ports, Unsent},
    ids::{Address, AttachmentId},
    spec::FunctionSpec,
    time::Nanos,
};
use nicforge_kit::retry;
use nicforge_virtio::{Action, Buffer, Direction, Event, Function, Model, QueueError, USER};
use thiserror::Error;
use zerocopy::IntoBytes;

use self::statistics::{Dropped, Statistics, Watches};
use crate::{
    CHANNEL, ETHERNET_FRAMING, ETHERNET_HEADER, MacAddress,
    checksum::PartialChecksum,
    max_frame,
    registers::{
        CLASS_ETHERNET, DEVICE_BASE, DEVICE_NET, DeviceConfig, FRAME_HEADER, FrameHeader, LINK_UP, MAX_SEND,
        RECEIVE, TRANSMIT, feature,
    },
};

/// The device's port to the fabric.
pub const PORT: u8 = 0;
/// Default time for which a received frame waits for a buffer, in nanoseconds.
pub const HOLD: u64 = 10_000_000;
/// Time without work after which the device asks for notifications again, in nanoseconds. It is
/// shorter than the time for which a machine polls a function without work.
pub const LINGER: u64 = 20_000;
/// The type of device.
const MODEL: Model = Model {
    device_type: DEVICE_NET - DEVICE_BASE,
    class: CLASS_ETHERNET,
    features: feature::OFFERED,
    queues: &[Direction::Write, Direction::Read],
    config_bytes: size_of::<DeviceConfig>(),
};

/// MTU of an ordinary Ethernet.
pub const DEFAULT_MTU: u16 = 1500;
/// Smallest MTU of a network (5.1.4.1).
pub const MIN_MTU: u16 = 68;

/// Parameters of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// Its address.
    pub mac: MacAddress,
    /// The network's MTU in bytes. The packets of the fabric must hold [`max_frame`] of it.
    pub mtu: u16,
    /// Time for which a received frame waits for a buffer, in nanoseconds.
    pub hold: u64,
}

impl NicConfig {
    /// Returns the parameters of a device with this address on an ordinary Ethernet.
    pub fn new(mac: MacAddress) -> Self {
        Self { mac, mtu: DEFAULT_MTU, hold: HOLD }
    }
}

/// Reason why a device can't have its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NicConfigError {
    /// The address is that of a group, or zero.
    #[error("{mac} is no address of a single port: clear bit 0 of its first byte, and let it not be zero")]
    Mac {
        /// The address.
        mac: MacAddress,
    },
    /// The MTU is smaller than any network's.
    #[error("an MTU of {mtu} bytes is too small: {MIN_MTU} is the least")]
    Mtu {
        /// The MTU.
        mtu: u16,
    },
}

/// The device; the module's documentation describes it.
pub struct VirtioNet {
    config: NicConfig,
    function: Function,
    /// The link was up when it was looked at last.
    link_up: bool,
    /// The longest packet of the link in bytes, if there is one.
    longest_packet: Option<usize>,
    /// Time at which the device last moved a frame or was notified.
    last_work: Nanos,
    /// Time since which the first received frame waits for a buffer.
    starved_since: Option<Nanos>,
    statistics: Statistics,
    watches: Watches,
}

/// The result of [`VirtioNet::transmit`].
#[derive(Clone, Copy, Default)]
struct Transmitted {
    /// Number of descriptors used.
    descriptors: u32,
    /// The link has no credit for more frames.
    is_blocked: bool,
}

impl VirtioNet {
    /// Builds the device in the state of power-on.
    ///
    /// # Errors
    /// [`NicConfigError`].
    pub fn new(config: NicConfig) -> Result<Self, NicConfigError> {
        if !config.mac.is_valid_source() {
            return Err(NicConfigError::Mac { mac: config.mac });
        }
        if config.mtu < MIN_MTU {
            return Err(NicConfigError::Mtu { mtu: config.mtu });
        }

        Ok(Self {
            config,
            function: Function::new(MODEL),
            link_up: false,
            longest_packet: None,
            last_work: Nanos::ZERO,
            starved_since: None,
            statistics: Statistics::default(),
            watches: Watches::default(),
        })
    }

    /// Returns the configuration that the driver reads.
    fn device_config(&self) -> DeviceConfig {
        DeviceConfig {
            mac: self.config.mac.0,
            status: if self.link_up { LINK_UP } else { 0 }.to_le_bytes(),
            max_queue_pairs: 1_u16.to_le_bytes(),
            mtu: self.mtu().to_le_bytes(),
        }
    }

    /// Returns the MTU that the driver is offered: frames must also fit the link.
    fn mtu(&self) -> u16 {
        let Some(longest) = self.longest_packet else { return self.config.mtu };
        // A frame of no payload is its header and tag alone.
        let available = longest.saturating_sub(max_frame(0)).min(usize::from(u16::MAX));
        self.config.mtu.min(available as u16)
    }

    /// Records whether the link is up, and reports a change.
    fn update_link(&mut self, context: &mut Context<'_>) {
        let ports = context.ports();
        let link_up = ports.is_up(PORT);
        self.longest_packet = ports.connected(PORT).then(|| ports.max_packet(PORT));
        if link_up != self.link_up {
            self.link_up = link_up;
            self.function.change_config(context);
        }
    }

    /// Moves frames, about `budget` in each direction. Returns the descriptors used, or 0 if
    /// nothing moved.
    fn move_frames(&mut self, context: &mut Context<'_>, budget: u32) -> Result<u32, QueueError> {
        let Transmitted { descriptors, is_blocked } = self.transmit(context, budget)?;
        let work = descriptors + self.receive(context, budget)?;

        // While the link has no credit, the device waits for the link, and needs no notification.
        if work > 0 {
            self.last_work = context.now();
        } else if !is_blocked && self.ask_for_frames(context)? {
            // A frame has come, which the next step sends.
            return Ok(1);
        }

        Ok(work)
    }

    /// Sends frames of the transmit queue, about `budget` descriptors.
    fn transmit(&mut self, context: &mut Context<'_>, budget: u32) -> Result<Transmitted, QueueError> {
        let (features, max_frame) = (self.function.features(), max_frame(self.config.mtu));
        let Some(queue) = self.function.queue(TRANSMIT) else { return Ok(Transmitted::default()) };
        let Ok((memory, mut ports)) = context.guest_memory_and_ports(USER) else {
            return Ok(Transmitted::default());
        };
        let (statistics, link_up) = (&mut self.statistics, self.link_up);

        let mut work = 0;
        let mut is_blocked = false;
        while work < budget {
            if link_up && ports.credits(PORT, CHANNEL) == 0 {
                is_blocked = true;
                break;
            }
            let Some(buffer) = queue.take(&memory)? else { break };
            work += queue.descriptors() as u32;

            let load = |frame: &mut [u8], offset: u64| queue.read(&memory, offset, frame);
            match send(&mut ports, buffer, link_up, features, max_frame, load)? {
                Ok(bytes) => {
                    statistics.sent += 1;
                    statistics.sent_bytes += bytes as u64;
                }
                Err(reason) => statistics.count_drop(&reason),
            }

            queue.give_back(&memory, buffer, 0)?;
        }

        if queue.needs_interrupt(&memory)? {
            self.function.interrupt(context, Event::Queue(TRANSMIT));
        }

        Ok(Transmitted { descriptors: work, is_blocked })
    }

    /// Puts frames from the port into buffers of the receive queue, about `budget` descriptors.
    /// Returns the number of descriptors used, and of frames dropped.
    fn receive(&mut self, context: &mut Context<'_>, budget: u32) -> Result<u32, QueueError> {
        let takes_partial_checksums = self.function.features() & feature::GUEST_CSUM != 0;
        let Some(queue) = self.function.queue(RECEIVE) else { return Ok(self.drop_arrived(context, budget)) };
        let Ok((memory, mut ports)) = context.guest_memory_and_ports(USER) else {
            return Ok(self.wait_for_buffer(context, budget));
        };

        let mut work = 0;
        let mut is_starved = false;
        while work < budget
            && let Some(packet) = ports.peek_mut(PORT, CHANNEL)
        {
            let Some(buffer) = queue.take(&memory)? else {
                // A buffer may have come before the driver saw that it is asked.
                if queue.ask_for_notification(&memory)? {
                    continue;
                }
                is_starved = true;
                break;
            };
            work += queue.descriptors() as u32;
            self.starved_since = None;

            let length = packet.len();
            let written = FRAME_HEADER + length;
            if buffer.writable < written as u64 {
                // The frame is dropped, and the buffer serves for the next one.
                queue.put_back();
                self.statistics.short_buffer += 1;
            } else {
                // A driver that takes no partial checksums gets a complete one.
                let mut partial = PartialChecksum::from_word(packet.header, length);
                if let Some(checksum) = partial.take_if(|_| !takes_partial_checksums) {
                    checksum.complete(packet.bytes_mut());
                    self.statistics.checksums += 1;
                }

                queue.write(&memory, 0, FrameHeader::received(partial).as_bytes())?;
                queue.write(&memory, FRAME_HEADER as u64, packet.bytes())?;
                queue.give_back(&memory, buffer, written as u32)?;
                self.statistics.received += 1;
                self.statistics.received_bytes += length as u64;
            }

            if let Some(packet) = ports.take(PORT, CHANNEL) {
                ports.recycle(packet);
            }
        }

        if queue.needs_interrupt(&memory)? {
            self.function.interrupt(context, Event::Queue(RECEIVE));
        }

        Ok(if is_starved { work + self.wait_for_buffer(context, budget) } else { work })
    }

    /// Lets received frames wait for a buffer, or drops them if the time for that is over. Returns
    /// the number of frames dropped.
    #[cold]
    fn wait_for_buffer(&mut self, context: &mut Context<'_>, budget: u32) -> u32 {
        if context.ports().peek(PORT, CHANNEL).is_none() {
            return 0;
        }

        let since = *self.starved_since.get_or_insert(context.now());
        if !retry::is_due(context, since.after(self.config.hold)) {
            return 0;
        }

        let dropped = drop_frames(context, budget);
        self.statistics.no_buffer += u64::from(dropped);

        dropped
    }

    /// Drops received frames, because the driver is not set up. Returns their number.
    fn drop_arrived(&mut self, context: &mut Context<'_>, budget: u32) -> u32 {
        let dropped = drop_frames(context, budget);
        self.statistics.no_driver += u64::from(dropped);
        dropped
    }

    /// Asks the driver for a notification of the next frame to send, if the device has had no work
    /// for [`LINGER`]. Returns whether a frame came in the meantime.
    fn ask_for_frames(&mut self, context: &mut Context<'_>) -> Result<bool, QueueError> {
        let Some(queue) = self.function.queue(TRANSMIT) else { return Ok(false) };
        if queue.is_notifying() || !retry::is_due(context, self.last_work.after(LINGER)) {
            return Ok(false);
        }

        let Ok(memory) = context.guest_memory(USER) else { return Ok(false) };
        queue.ask_for_notification(&memory)
    }
}

/// Sends the frame of a buffer. `load` copies bytes of the buffer from an offset on. The inner
/// result is the frame's length, or the reason why the frame was dropped; the outer one is an error
/// of the queue.
///
/// # Errors
/// The errors of `load`, and [`QueueError::Buffer`].
#[inline]
fn send(
    ports: &mut Ports<'_>,
    buffer: Buffer,
    link_up: bool,
    features: u64,
    max_frame: usize,
    load: impl Fn(&mut [u8], u64) -> Result<(), QueueError>,
) -> Result<Result<usize, Dropped>, QueueError> {
    if buffer.readable < FRAME_HEADER as u64 || buffer.readable > MAX_SEND {
        return Err(QueueError::Buffer);
    }

    let length = buffer.readable as usize - FRAME_HEADER;
    let mut header = FrameHeader::default();
    load(header.as_mut_bytes(), 0)?;

    if !(ETHERNET_HEADER..=max_frame).contains(&length) {
        return Ok(Err(Dropped::BadLength));
    }
    let Ok(partial) = header.partial_checksum(features, length) else { return Ok(Err(Dropped::BadHeader)) };
    if !link_up {
        return Ok(Err(Dropped::NoLink));
    }
    let mut packet = match ports.new_packet(length) {
        Ok(packet) => packet,
        Err(reason) => return Ok(Err(reason.into())),
    };

    if let Err(error) = load(packet.bytes_mut(), FRAME_HEADER as u64) {
        ports.recycle(packet);
        return Err(error);
    }
    packet.header = PartialChecksum::to_word(partial);
    packet.framing = ETHERNET_FRAMING;

    match ports.send(PORT, CHANNEL, packet) {
        Ok(()) => Ok(Ok(length)),
        Err(Unsent { packet, reason }) => {
            ports.recycle(packet);
            Ok(Err(reason.into()))
        }
    }
}

/// Drops the frames that have arrived, at most `maximum`. Returns their number.
fn drop_frames(context: &mut Context<'_>, maximum: u32) -> u32 {
    context.ports().take_while(PORT, CHANNEL, maximum, |_| true)
}

impl Device for VirtioNet {
    fn spec(&self) -> FunctionSpec {
        self.function.spec()
    }

    fn ports(&self) -> u8 {
        PORT + 1
    }

    fn read(&mut self, context: &mut Context<'_>, _: AttachmentId, at: Address, data: &mut [u8]) {
        // A driver may read the configuration before the first step.
        self.update_link(context);
        let config = self.device_config();
        self.function.read(context, at, config.as_bytes(), data);
    }

    fn write(&mut self, context: &mut Context<'_>, _: AttachmentId, at: Address, data: &[u8]) -> Write {
        match self.function.write(context, at, data) {
            Action::None => {}
            Action::Reset => self.starved_since = None,
            Action::Notified(_) => self.last_work = context.now(),
        }

        Write::Accepted
    }

    fn reset(&mut self, context: &mut Context<'_>, _: Reset) {
        self.function.reset(context);
        self.starved_since = None;
    }

    fn link_changed(&mut self, context: &mut Context<'_>, _: u8, _: bool) {
        self.update_link(context);
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let moved = if self.function.is_live() {
            self.move_frames(context, budget)
        } else {
            Ok(self.drop_arrived(context, budget))
        };

        self.watches.log(context, &self.statistics);
        match moved {
            Ok(0) => Progress::Idle,
            Ok(_) => Progress::Busy,
            Err(error) => {
                self.function.fail(context, error);
                Progress::Busy
            }
        }
    }

    fn counters(&self) -> Vec<Counter> {
        self.statistics.counters(&self.function)
    }
}
