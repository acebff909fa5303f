//! The contract of a device model.
//!
//! A device is a state machine. It owns no thread, socket, clock or lock and never waits: each
//! method does a bounded piece of work and returns. Through its [`Context`] it starts DMA, raises
//! interrupts, exchanges packets with the fabric, and asks to be woken. Every call that comes from
//! a client names the attachment, so that a device can tell clients apart as the hardware does.

use crate::{context::Context, dma::DmaError, posted::Posted, spec::FunctionSpec};

/// Number of an attachment in its function: what PCI calls a PASID, the papers a VPID, a core, a
/// mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentId(pub u16);

/// Number of a function in its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

/// Where in a function's BARs an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// BAR, 0 to 5.
    pub bar: u8,
    /// Offset in it in bytes.
    pub offset: u64,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Write {
    /// Done.
    Accepted,
    /// The device can't take it now (no credits); the same write is offered again later, and
    /// nothing of the same ring or of the same trapped stream passes it. Nothing of it has had an
    /// effect.
    ///
    /// A record in a ring is offered in each turn of the function, and does not keep it from going
    /// cold: what gives the credit back (the fabric, a timer, a client's store to memory) wakes it.
    /// After a turn in which a record stalled, the clients to which the least was given of late
    /// come first, and the records of all are carried out in turns only, not in front of trapped
    /// accesses: a device takes records as they come, and those who want the same thing share it.
    Stalled,
}

/// What a [`Device::step`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Something, and there may be more at once.
    Busy,
    /// Nothing to do until a client writes, the fabric delivers, DMA completes or a timer fires.
    Idle,
}

/// How far a reset reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// One attachment: the client's own reset request, a function-level reset, or its end. When the
    /// client stays, its own windows are zeroed already, its rings empty, its INTx line not
    /// asserted; what it maps and binds stays. Memory of [`crate::spec::Scope::Group`] is the
    /// device's to clear.
    Attachment(AttachmentId),
    /// The whole function, by the operator: as for each attachment that has a client, and what they
    /// share.
    Function,
}

/// Why an attachment ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The client closed it.
    Closed,
    /// The operator or the engine took it away (a truncated file, an eventfd that made the engine
    /// wait, the end of the server).
    Evicted,
}

/// Chosen by the device when it starts a DMA read; comes back with the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DmaToken(pub u64);

/// A number that a device counts, or a level such as a FIFO's fill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Name in tables: lower case words with `_`.
    pub name: &'static str,
    /// How many since the function was built; of a level, its value when it was last looked at.
    pub value: u64,
}

/// A device model. See the module for the rules.
pub trait Device: Send {
    /// What it is. Called once, when it is added to a machine.
    fn spec(&self) -> FunctionSpec;

    /// A trapped read of `data.len()` bytes (1 to 64). `data` comes filled with ones, what a bus
    /// without a device answers.
    fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]);

    /// A write of `data` (1 to 512 bytes), trapped or out of a posted-write ring.
    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write;

    /// Carry out what is in a posted-write ring, in order, until nothing is left or a write stalls.
    ///
    /// What is here does it by [`Device::write`], record by record; as a method, so that the loop
    /// is compiled for each device with its `write` inside. A device whose records come in long
    /// rows can have one of its own that does the same for less.
    fn drain(&mut self, context: &mut Context<'_>, from: AttachmentId, posted: &mut Posted<'_>) -> Write {
        while let Some((at, data)) = posted.next(context) {
            if self.write(context, from, at, data) == Write::Stalled {
                return Write::Stalled;
            }
            posted.done(context);
        }
        Write::Accepted
    }

    /// A client took the attachment. Its memory is new and zeroed.
    fn attached(&mut self, context: &mut Context<'_>, who: AttachmentId) {
        let _ = (context, who);
    }

    /// The client is gone. Its memory can still be read in this call and is dropped afterwards. A
    /// [`Reset::Attachment`] follows.
    fn detached(&mut self, context: &mut Context<'_>, who: AttachmentId, why: Ended) {
        let _ = (context, who, why);
    }

    /// Go to the state of power-on, as far as `reach` says. DMA that was started for it does not
    /// come back.
    fn reset(&mut self, context: &mut Context<'_>, reach: Reset);

    /// A [`Context::dma_read`] ended. Comes exactly once for each that was started, unless a reset
    /// came first.
    fn dma_done(
        &mut self,
        context: &mut Context<'_>,
        who: AttachmentId,
        token: DmaToken,
        result: Result<&[u8], DmaError>,
    ) {
        let _ = (context, who, token, result);
    }

    /// Do at most about `budget` packets' or descriptors' worth of work: look at mapped memory,
    /// move packets, retry. Called when there may be something to do: after an access, a delivery,
    /// a timer ([`Context::wake_at`]), and as long as it says [`Progress::Busy`]; and again before
    /// the machine stops looking at the function's mapped memory.
    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let _ = (context, budget);
        Progress::Idle
    }

    /// Its statistics, always the same names in the same order.
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }
}
