//! The entropy device (5.4): one queue, whose buffers the device fills with random bytes.
//!
//! The bytes are those of the host's `getrandom`, which a companion calls, because it may wait
//! early after a boot. One block of [`BLOCK`] bytes goes to the companion to be filled, and back:
//!
//! ```text
//!   Empty --a driver is set up--> Filling --the block returned--> Ready --all given out--> Empty
//! ```
//!
//! A block that is refused by its source, or lost with a companion that halts, is replaced by an
//! empty one, which goes to the companion [`RETRY`] later. So does the next try to start a
//! companion when the machine refuses one.
//!
//! A buffer gets what the block has left, and at least one byte. No byte is given out twice: a
//! reset drops the rest of the block.

use std::sync::Arc;

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
/// Delay before the next try when the host had no random bytes or its companion failed, in
/// nanoseconds.
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

/// The source of random bytes: fills a block, and returns whether it had the bytes for it.
type Source = dyn Fn(&mut [u8]) -> bool + Send + Sync;

/// The bytes of a block.
type Block = Box<[u8; BLOCK]>;

/// A block that the companion returns.
struct Filled {
    block: Block,
    /// Whether the host had random bytes.
    is_random: bool,
}

/// The companion, which fills blocks with random bytes.
struct EntropySource {
    source: Arc<Source>,
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
            let is_random = (self.source)(&mut block[..]);
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
        Self::Empty(new_block(), Nanos::ZERO)
    }
}

/// Returns a block without random bytes.
fn new_block() -> Block {
    Box::new([0; BLOCK])
}

/// The device; the module's documentation describes it.
pub struct VirtioRng {
    source: Arc<Source>,
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
    /// Blocks that got no random bytes: the host had none, or the companion halted.
    failures: u64,
}

impl VirtioRng {
    /// Builds the device in the state of power-on, with the host's `getrandom` as its source.
    pub fn device() -> VirtioDevice<Self> {
        Self::with_source(|bytes| getrandom::fill(bytes).is_ok())
    }

    /// Builds the device in the state of power-on, with a source of its own. The source fills its
    /// argument with random bytes, and returns whether it had them. A companion calls it, so it may
    /// wait on a machine whose companions have threads.
    pub fn with_source(source: impl Fn(&mut [u8]) -> bool + Send + Sync + 'static) -> VirtioDevice<Self> {
        VirtioDevice::new(Self {
            source: Arc::new(source),
            companion: None,
            supply: Supply::empty(),
            statistics: Statistics::default(),
        })
    }

    /// Takes a filled block back from the companion, and sends it an empty one when that is due.
    fn refill(&mut self, context: &mut Context<'_>) {
        if let Supply::Filling = self.supply {
            self.take_block(context);
        }

        if let Supply::Empty(_, refill_at) = self.supply
            && retry::is_due(context, refill_at)
        {
            self.send_block(context);
        }
    }

    /// Takes the block back if the companion has filled it, or has failed to.
    fn take_block(&mut self, context: &mut Context<'_>) {
        let Some(companion) = &mut self.companion else { return };

        match companion.receive() {
            Some(Filled { block, is_random: true }) => self.supply = Supply::Ready(block, 0),
            Some(Filled { block, .. }) => {
                self.statistics.failures += 1;
                self.retry_later(context, block);
            }
            // A companion that is halted keeps the block.
            None if companion.halt().is_some() => {
                self.statistics.failures += 1;
                self.companion = None;
                self.retry_later(context, new_block());
            }
            None => {}
        }
    }

    /// Sends the empty block to the companion, and starts the companion first if there is none.
    fn send_block(&mut self, context: &mut Context<'_>) {
        let block = match std::mem::replace(&mut self.supply, Supply::Filling) {
            Supply::Empty(block, _) => block,
            other => {
                self.supply = other;
                return;
            }
        };

        let companion = match self.companion.take() {
            Some(companion) => Ok(companion),
            None => {
                let source = EntropySource { source: Arc::clone(&self.source), unsent: None };
                context.start_companion(COMPANION, source)
            }
        };
        // The machine has no thread for the companion now.
        let Ok(mut companion) = companion else { return self.retry_later(context, block) };

        match companion.send(block) {
            Ok(()) => self.companion = Some(companion),
            // The companion is halted, and the next try starts another one.
            Err(SendError::Full(block) | SendError::Ended(block)) => self.retry_later(context, block),
        }
    }

    /// Keeps the empty block until [`RETRY`] from now, and asks for a step at that time.
    fn retry_later(&mut self, context: &mut Context<'_>, block: Block) {
        let refill_at = context.now().after(RETRY);
        self.supply = Supply::Empty(block, refill_at);
        context.wake_at(refill_at);
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
