//! The contract of a device model.
//!
//! A device is a state machine. It owns no thread, socket, clock or lock, and it never blocks: each
//! method does a bounded amount of work and returns. Through its [`Context`] a device starts DMA,
//! raises interrupts, exchanges packets with the fabric, and sets its timer. Every call on behalf
//! of a client names the attachment, so that a device can tell clients apart as the hardware does.
//!
//! The machine calls a device from one thread, one method at a time. In each turn of a function it
//! calls [`Device::dma_done`] for finished DMA reads, [`Device::drain`] for each ring with records,
//! and then [`Device::step`]. Trapped accesses ([`Device::read`], [`Device::write`]) come between
//! turns.
//!
//! Work that takes long or may wait belongs to a companion: see [`crate::companion`].
//!
//! A device whose method panics is dropped, and its function is out of service from then on: see
//! [`crate::machine::Machine::device_panic`]. Destructors that run while a panic unwinds must not
//! panic, since that ends the process.

use nicforge_hwi::register::Register;

pub use crate::progress::Progress;
use crate::{
    context::Context,
    dma::DmaError,
    fabric::{MAX_PORTS, Ports},
    ids::{Address, AttachmentId, DmaToken},
    posted::Posted,
    spec::FunctionSpec,
};

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Write {
    /// The device carried out the write.
    Accepted,
    /// The device can't take the write now, for example because it has no credit. The write must
    /// have had no effect.
    ///
    /// The machine retries the same write in later turns. No later write of the same ring, and none
    /// of the same trapped stream, overtakes it. A stalled write does not keep the function awake.
    /// The event that ends the stall wakes it: a packet from the fabric, a timer
    /// ([`Context::wake_at`]), or a client's store to memory.
    Stalled,
}

/// Extent of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// One attachment, after the client's own reset request, a function-level reset, or the
    /// attachment's end.
    ///
    /// For a client that stays, the machine has already zeroed its own windows, emptied its rings
    /// and deasserted its INTx line. Its DMA mappings and bound interrupts stay. The device must
    /// clear memory of [`crate::spec::Scope::Group`] itself.
    Attachment(AttachmentId),
    /// The whole function, on the operator's request: every attachment that has a client, and the
    /// state that they share.
    Function,
}

impl Reset {
    /// Returns whether the reset extends to an attachment.
    pub fn reaches(self, attachment_id: AttachmentId) -> bool {
        match self {
            Self::Attachment(meant) => meant == attachment_id,
            Self::Function => true,
        }
    }
}

/// Reason for the end of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The client closed it.
    Closed,
    /// The operator or the engine evicted the client: it truncated a file, its eventfd would have
    /// blocked the engine, or the server ends.
    Evicted,
}

/// One statistic of a device: an event count, or a level such as the fill of a FIFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Name in tables: lower-case words joined by `_`.
    pub name: &'static str,
    /// Events since the function was built, or the level at the last sample.
    pub value: u64,
}

/// A device model. The module documentation states the rules that every method must keep.
pub trait Device: Send {
    /// Returns the description of the function. The machine calls it once, in
    /// [`crate::machine::Machine::add_function`].
    fn spec(&self) -> FunctionSpec;

    /// Returns the number of the device's ports to the fabric, which are numbered from 0. The
    /// machine asks once, together with [`Device::spec`], and refuses links to other ports.
    ///
    /// The default is the most that a fabric gives a function.
    fn ports(&self) -> u8 {
        MAX_PORTS
    }

    /// Returns whether the machine may leave the function's clients asleep while a packet or a
    /// timer has the function run. [`Context::clients_sleep`] says what the device must then do.
    /// The machine asks once, together with [`Device::spec`].
    ///
    /// The default is false: each packet and each timer wakes the clients, and the machine polls
    /// their memory for a while. This suits every device but one whose steps mostly pass packets of
    /// other nodes on.
    fn lets_clients_sleep(&self) -> bool {
        false
    }

    /// Returns the declarations of the function's registers, by which traces and tables name them.
    /// The machine asks once, together with [`Device::spec`], and refuses declarations that
    /// contradict it: see [`crate::spec::RegisterRule`].
    ///
    /// Registers may lie in trapped space and in memory. Attachments that have fewer of them than
    /// others do not matter. The default is none: accesses are shown by their offsets.
    fn registers(&self) -> &'static [Register] {
        &[]
    }

    /// Handles a trapped read of `data.len()` bytes, 1 to 64. `data` is filled with ones at the
    /// start, which is what a bus returns for a register that no device decodes.
    fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]);

    /// Returns the value that [`Device::read`] would return for `data`, without any effect of a
    /// read: nothing is cleared, popped or counted as an error. Returns false, with unspecified
    /// `data`, where the device has no such value. `ports` shows the fabric as it is.
    ///
    /// The machine calls it for tables of registers, in trapped space, at any time between other
    /// calls. The attachment may be without a client. A value that follows from words which the
    /// client writes is as of the device's last look at them.
    ///
    /// The default is false for each register: tables then have no value.
    fn peek(&self, ports: &Ports<'_>, from: AttachmentId, at: Address, data: &mut [u8]) -> bool {
        let _ = (ports, from, at, data);
        false
    }

    /// Handles a write of `data`, 1 to 512 bytes, either trapped or taken from a posted-write ring.
    ///
    /// A device that returns [`Write::Stalled`] must have changed nothing; it receives the same
    /// write again.
    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write;

    /// Carries out the records of a posted-write ring in order, until none is left or a write
    /// stalls.
    ///
    /// The default passes each record to [`Device::write`]. It is a trait method so that the
    /// compiler builds the loop for each device with its `write` inlined. A device that receives
    /// long runs of similar records can override it with a faster loop of the same effect.
    fn drain(&mut self, context: &mut Context<'_>, from: AttachmentId, posted: &mut Posted<'_>) -> Write {
        while let Some((at, data)) = posted.next(context) {
            if self.write(context, from, at, data) == Write::Stalled {
                return Write::Stalled;
            }
            posted.done(context);
        }

        Write::Accepted
    }

    /// Reports that a client took the attachment. The attachment's own memory is new and zeroed.
    fn attached(&mut self, context: &mut Context<'_>, attachment_id: AttachmentId) {
        let _ = (context, attachment_id);
    }

    /// Reports that the client is gone. The device can read the client's memory during this call;
    /// the machine drops the memory afterwards. A [`Reset::Attachment`] follows.
    fn detached(&mut self, context: &mut Context<'_>, attachment_id: AttachmentId, why: Ended) {
        let _ = (context, attachment_id, why);
    }

    /// Returns to the power-on state within `reach`. DMA reads in flight there are cancelled: no
    /// [`Device::dma_done`] follows for them.
    fn reset(&mut self, context: &mut Context<'_>, reach: Reset);

    /// Reports the end of a [`Context::dma_read`], exactly once for each read, unless a reset
    /// cancelled it or the device has forgotten it ([`Context::forget_reads`]).
    fn dma_done(
        &mut self,
        context: &mut Context<'_>,
        attachment_id: AttachmentId,
        token: DmaToken,
        result: Result<&[u8], DmaError>,
    ) {
        let _ = (context, attachment_id, token, result);
    }

    /// Reports that the client unmapped memory of which a lease has ended. A device that keeps
    /// leases for speed drops those that are over: each holds its memory's file, which counts
    /// against the client's limit until then.
    fn leases_ended(&mut self, context: &mut Context<'_>, attachment_id: AttachmentId) {
        let _ = (context, attachment_id);
    }

    /// Reports that a link of the function has been connected, or has gone up or down. `up` is its
    /// state at the time of the call; several changes between two steps may be one call. It comes
    /// before the next [`Device::step`]. The operator and fault tests take links down and up.
    ///
    /// A reset changes no link. A device that has lost its view in one asks
    /// [`crate::fabric::Ports::is_up`].
    fn link_changed(&mut self, context: &mut Context<'_>, port: u8, up: bool) {
        let _ = (context, port, up);
    }

    /// Does work of at most about `budget` packets or descriptors: polls mapped memory, moves
    /// packets, retries.
    ///
    /// The machine calls it while there may be work: after an access, a delivery or a timer
    /// ([`Context::wake_at`]), and again after [`Progress::Busy`]. It also calls it once before it
    /// stops polling the function's mapped memory, and a step must find there all work posted by
    /// then.
    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let _ = (context, budget);
        Progress::Idle
    }

    /// Returns the device's statistics, always the same names in the same order.
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }
}
