//! The entropy device (5.4): one queue, whose buffers the device fills with random bytes.
//!
//! The bytes are those of the host's `getrandom`, which a companion calls, because it may wait
//! early after a boot. One block of [`BLOCK`] bytes goes to the companion to be filled, and back:
//!
//! ```text
//!   Empty --a driver is set up--> Filling --the block returned--> Ready --all given out--> Empty
//! ```
//!
//! A buffer gets what the block has left, and at least one byte. No byte is given out twice: a
//! reset drops the rest of the block.

use nicforge_core::{
    companion::{Companion, CompanionEnd, CompanionMode, CompanionSpec, DeviceEnd, SendError},
    context::Context,
    device::{Counter, Progress},
    time::Nanos,
};
use nicforge_kit::retry;
use nicforge_virtio::{Backend, Direction, Function, Model, QueueError, VirtioDevice, registers::feature};

/// Number of the type (5.4.1).
pub const DEVICE_TYPE: u16 = 4;
/// PCI class "unassigned".
pub const CLASS: u32 = 0x00_ff_00;
/// Number of the only queue.
pub const REQUESTS: usize = 0;
/// Random bytes of a block, and so the most that a buffer gets.
pub const BLOCK: usize = 1024;
/// Delay before the host is asked again when it had no random bytes, in nanoseconds.
pub const RETRY: u64 = 10_000_000;

/// The type of device.
const MODEL: Model = Model {
    device_type: DEVICE_TYPE,
    class: CLASS,
    features: feature::COMMON,
    queues: &[Direction::Write],
    config_bytes: 0,
};

/// The companion. It needs one command and one event, because one block goes back and forth.
const COMPANION: CompanionSpec =
    CompanionSpec { name: "entropy", commands: 1, events: 1, mode: CompanionMode::Threads };

/// The bytes of a block.
type Block = Box<[u8; BLOCK]>;

/// A block that the companion returns.
struct Filled {
    block: Block,
    /// Whether the host had random bytes.
    is_random: bool,
}

/// The companion, which fills blocks with the host's random bytes.
#[derive(Default)]
struct EntropySource {
    /// A filled block that waits for room in the FIFO of events.
    unsent: Option<Filled>,
}

impl Companion for EntropySource {
    type Command = Block;
    type Event = Filled;

    fn poll(&mut self, end: &mut CompanionEnd<Block, Filled>, _: u32) -> Progress {
        if self.unsent.is_none()
            && let Some(mut block) = end.receive()
        {
            let is_random = getrandom::fill(&mut block[..]).is_ok();
            self.unsent = Some(Filled { block, is_random });
        }

        if let Some(filled) = self.unsent.take()
            && let Err(SendError::Full(filled)) = end.send(filled)
        {
            self.unsent = Some(filled);
        }
        Progress::Idle
    }
}

/// The block of random bytes.
enum Supply {
    /// It has no bytes. The companion may get it from this time on.
    Empty(Block, Nanos),
    /// The companion has it.
    Filling,
    /// It has random bytes from this index on.
    Ready(Block, usize),
}

impl Supply {
    /// Returns a new block, which the companion may get at once.
    fn empty() -> Self {
        Self::Empty(Box::new([0; BLOCK]), Nanos::ZERO)
    }
}

/// The device; the module's documentation describes it.
pub struct VirtioRng {
    companion: Option<DeviceEnd<Block, Filled>>,
    supply: Supply,
    statistics: Statistics,
}

/// Statistics of the device.
#[derive(Default)]
struct Statistics {
    /// Buffers that were filled.
    buffers: u64,
    /// Random bytes that the driver got.
    bytes: u64,
    /// Blocks for which the host had no random bytes.
    failures: u64,
}

impl VirtioRng {
    /// Builds the device in the state of power-on.
    pub fn device() -> VirtioDevice<Self> {
        let statistics = Statistics::default();
        VirtioDevice::new(Self { companion: None, supply: Supply::empty(), statistics })
    }

    /// Sends an empty block to the companion to be filled, and takes a filled one back.
    fn refill(&mut self, context: &mut Context<'_>) {
        if let Supply::Filling = self.supply
            && let Some(Filled { block, is_random }) = self.companion.as_mut().and_then(DeviceEnd::receive)
        {
            self.supply = if is_random {
                Supply::Ready(block, 0)
            } else {
                self.statistics.failures += 1;
                Supply::Empty(block, context.now().after(RETRY))
            };
        }

        if let Supply::Empty(_, refill_at) = self.supply
            && retry::is_due(context, refill_at)
        {
            self.send_block(context);
        }
    }

    /// Sends the empty block to the companion, and starts the companion first if there is none.
    fn send_block(&mut self, context: &mut Context<'_>) {
        if self.companion.is_none() {
            // Without a companion the driver's buffers wait, and the next refill tries again.
            self.companion = context.start_companion(COMPANION, EntropySource::default()).ok();
        }
        let Some(companion) = &mut self.companion else { return };

        match std::mem::replace(&mut self.supply, Supply::Filling) {
            Supply::Empty(block, _) => {
                // A companion that takes no block has ended. The next reset replaces it.
                if let Err(SendError::Full(block) | SendError::Ended(block)) = companion.send(block) {
                    self.supply = Supply::Empty(block, Nanos::NEVER);
                }
            }
            other => self.supply = other,
        }
    }

    /// Fills the next buffer, if there is one and bytes for it. Returns the descriptors used.
    fn fill_buffer(&mut self, context: &mut Context<'_>, function: &mut Function) -> Result<u32, QueueError> {
        let Supply::Ready(block, next) = &mut self.supply else { return Ok(0) };
        let Some((queue, memory)) = function.queue_with_memory(context, REQUESTS) else { return Ok(0) };
        let Some(buffer) = queue.take_or_ask(&memory)? else { return Ok(0) };

        let count = buffer.writable.min((BLOCK - *next) as u64) as usize;
        let bytes = &mut block[*next..*next + count];
        queue.write(&memory, 0, bytes)?;
        // No other buffer gets these bytes.
        bytes.fill(0);
        queue.give_back(&memory, buffer, count as u32)?;

        *next += count;
        self.statistics.buffers += 1;
        self.statistics.bytes += count as u64;
        let descriptors = queue.descriptors() as u32;
        if *next == BLOCK {
            let used = std::mem::replace(&mut self.supply, Supply::Filling);
            if let Supply::Ready(block, _) = used {
                self.supply = Supply::Empty(block, Nanos::ZERO);
            }
        }
        Ok(descriptors)
    }
}

impl Backend for VirtioRng {
    fn model(&self) -> Model {
        MODEL
    }

    fn config(&self) -> &[u8] {
        &[]
    }

    fn serve(
        &mut self,
        context: &mut Context<'_>,
        function: &mut Function,
        budget: u32,
    ) -> Result<u32, QueueError> {
        let mut work = 0;
        while work < budget {
            self.refill(context);
            let used = self.fill_buffer(context, function)?;
            if used == 0 {
                break;
            }
            work += used;
        }

        function.interrupt_for_used_buffers(context, REQUESTS)?;
        Ok(work)
    }

    fn reset(&mut self, _: &mut Context<'_>) {
        // The rest of the block is not given to another driver.
        self.supply = match std::mem::replace(&mut self.supply, Supply::Filling) {
            Supply::Ready(block, _) => Supply::Empty(block, Nanos::ZERO),
            other => other,
        };

        // A companion that is halted keeps the block. The next driver gets another one.
        if self.companion.as_ref().is_none_or(|companion| companion.halt().is_some()) {
            self.companion = None;
            self.supply = Supply::empty();
        }
    }

    fn counters(&self) -> Vec<Counter> {
        let Statistics { buffers, bytes, failures } = self.statistics;
        [("buffers", buffers), ("bytes", bytes), ("failures", failures)]
            .map(|(name, value)| Counter { name, value })
            .to_vec()
    }
}
