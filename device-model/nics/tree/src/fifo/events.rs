//! A channel's events: exceptions, watermarks, and the interrupts for them.

use nicforge_core::warning::Warning;
use nicforge_hwi::{
    tree::{VC_SYSTEM, vector},
    tree_dcr::{error_word, pix, prx},
};
use nicforge_kit::PendingWarnings;

use super::{checksums::ChannelConfig, receive::ReceiveFifo, send::SendFifo};

/// The watermark bits of both channels.
const WATERMARKS: Exceptions = Exceptions { receive: prx::WM0 | prx::WM1, inject: pix::WM0 | pix::WM1 };

/// Receive exceptions ([`prx`]) and injection exceptions ([`pix`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exceptions {
    pub(crate) receive: u32,
    pub(crate) inject: u32,
}

impl Exceptions {
    /// Returns the enabled exceptions at power-on.
    pub(crate) fn enabled_at_power_on() -> Self {
        Self { receive: prx::ALL, inject: (pix::ALL | pix::ENABLE) & !WATERMARKS.inject }
    }

    /// Returns those of the exceptions that are in `enabled`.
    fn masked(self, enabled: Self) -> Self {
        Self { receive: self.receive & enabled.receive, inject: self.inject & enabled.inject }
    }

    /// Returns whether the receive watermark and the send watermark are among the exceptions.
    fn watermarks(self) -> Watermarks {
        let marks = self.masked(WATERMARKS);
        Watermarks { receive: marks.receive != 0, send: marks.inject != 0 }
    }

    /// Returns whether an error is among the exceptions.
    fn has_error(self) -> bool {
        self.receive & !WATERMARKS.receive != 0 || self.inject & !(WATERMARKS.inject | pix::ENABLE) != 0
    }

    /// Returns the error word of the mirror.
    pub(super) fn error_word(self) -> u32 {
        error_word(self.receive, self.inject)
    }
}

/// The exception bits of one channel.
#[derive(Clone, Copy)]
struct ChannelBits {
    payload_underflow: u32,
    header_underflow: u32,
    receive_watermark: u32,
    payload_overflow: u32,
    header_overflow: u32,
    send_watermark: u32,
}

/// The exception bits of the system channel.
const SYSTEM_BITS: ChannelBits = ChannelBits {
    payload_underflow: prx::PFU0,
    header_underflow: prx::HFU0,
    receive_watermark: prx::WM0,
    payload_overflow: pix::PFO0,
    header_overflow: pix::HFO0,
    send_watermark: pix::WM0,
};

/// The exception bits of the user channel.
const USER_BITS: ChannelBits = ChannelBits {
    payload_underflow: prx::PFU1,
    header_underflow: prx::HFU1,
    receive_watermark: prx::WM1,
    payload_overflow: pix::PFO1,
    header_overflow: pix::HFO1,
    send_watermark: pix::WM1,
};

/// Which enabled watermark exceptions hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Watermarks {
    receive: bool,
    send: bool,
}

/// The exceptions of a channel, and the vectors to raise.
///
/// An error bit that becomes set requests the error vector, and a watermark that is passed requests
/// the watermark vector. A condition that lasts thus requests its vector only once.
pub(crate) struct Events {
    bits: ChannelBits,
    /// Errors that are set and not read yet.
    errors: Exceptions,
    /// The watermarks when last compared.
    watermarks: Watermarks,
    /// Vectors to raise at the end of the step, one bit for each vector.
    requested: u32,
    /// Lines for the log, of errors that are found without the context of a call.
    pub(crate) warnings: PendingWarnings,
}

impl Events {
    /// Returns the events of a virtual channel, none so far.
    pub(super) fn new(channel: usize) -> Self {
        Self {
            bits: if channel == VC_SYSTEM { SYSTEM_BITS } else { USER_BITS },
            errors: Exceptions::default(),
            watermarks: Watermarks::default(),
            requested: 0,
            warnings: PendingWarnings::default(),
        }
    }

    /// Clears errors and watermarks. Vectors that were requested are still raised.
    pub(super) fn restart(&mut self) {
        self.errors = Exceptions::default();
        self.watermarks = Watermarks::default();
    }

    /// Requests a vector: it is raised at the end of the step.
    #[inline]
    pub(crate) fn request(&mut self, vector: u16) {
        self.requested |= 1 << vector;
    }

    /// Returns whether vectors were requested.
    #[inline]
    pub(crate) fn is_any_requested(&self) -> bool {
        self.requested != 0
    }

    /// Takes the vectors that were requested, one bit for each vector.
    #[inline]
    pub(crate) fn take_requested(&mut self) -> u32 {
        std::mem::take(&mut self.requested)
    }

    /// Sets receive exceptions.
    pub(crate) fn receive_error(&mut self, bits: u32) {
        if bits & !self.errors.receive != 0 {
            self.errors.receive |= bits;
            self.request(vector::ERROR);
        }
    }

    /// Sets injection exceptions.
    pub(crate) fn inject_error(&mut self, bits: u32) {
        if bits & !self.errors.inject != 0 {
            self.errors.inject |= bits;
            self.request(vector::ERROR);
        }
    }

    /// Raises the exception for a read of payload from an empty FIFO.
    pub(super) fn payload_underflow(&mut self) {
        self.receive_error(self.bits.payload_underflow);
    }

    /// Raises the exception for an invalid head that software wrote, which is that of a read from
    /// an empty FIFO, and logs the head.
    #[cold]
    pub(super) fn invalid_head(&mut self, head: u32) {
        let rule = &"the head of the receive FIFO moves no further than its tail";
        self.warnings.push(None, Warning::failed(rule).value(head.into()));
        self.payload_underflow();
    }

    /// Raises the exception for a packet that software sends without a route, and logs its header.
    #[cold]
    pub(crate) fn no_route(&mut self, header: u64) {
        let rule = &"a packet is for a class with a target, or for the address of a node that has a route";
        self.warnings.push(None, Warning::dropped(rule).value(header));
        self.inject_error(pix::ADDR0);
    }

    /// Raises the exception for a read of a header from an empty FIFO.
    pub(super) fn header_underflow(&mut self) {
        self.receive_error(self.bits.header_underflow);
    }

    /// Raises the exception for payload that the FIFO has no space for.
    pub(super) fn payload_overflow(&mut self) {
        self.inject_error(self.bits.payload_overflow);
    }

    /// Raises the exception for a header that the FIFO has no space for.
    pub(super) fn header_overflow(&mut self) {
        self.inject_error(self.bits.header_overflow);
    }

    /// Clears the receive errors.
    pub(super) fn clear_receive_errors(&mut self) {
        self.errors.receive = 0;
    }

    /// Clears the injection errors.
    pub(super) fn clear_inject_errors(&mut self) {
        self.errors.inject = 0;
    }

    /// Returns the errors that are set, and the watermark exceptions that hold with these numbers
    /// of packets.
    #[inline]
    pub(super) fn exceptions(&self, fill: FillComparison) -> Exceptions {
        let receive = if fill.above_receive_watermark { self.bits.receive_watermark } else { 0 };
        let inject = if fill.at_send_watermark { self.bits.send_watermark } else { 0 };

        Exceptions { receive: self.errors.receive | receive, inject: self.errors.inject | inject }
    }

    /// Compares the watermarks among `exceptions` with those of the last call, and requests the
    /// vector if one has been passed.
    #[inline]
    pub(super) fn compare_watermarks(&mut self, exceptions: Exceptions, enabled: Exceptions) {
        let (before, now) = (self.watermarks, exceptions.masked(enabled).watermarks());
        if (now.receive && !before.receive) || (now.send && !before.send) {
            self.request(vector::WATERMARK);
        }
        self.watermarks = now;
    }
}

/// How the FIFOs' numbers of packets compare with the watermarks.
#[derive(Clone, Copy, Debug)]
pub(super) struct FillComparison {
    /// The receive FIFO has more packets than its watermark.
    above_receive_watermark: bool,
    /// The send FIFO has as many packets as its watermark or fewer.
    at_send_watermark: bool,
}

impl FillComparison {
    /// Compares the FIFOs with the watermarks of `config`. The send FIFO has `send_count` packets.
    #[inline]
    pub(super) fn of(config: ChannelConfig, receive: &ReceiveFifo, send: &SendFifo, send_count: u32) -> Self {
        Self {
            above_receive_watermark: receive.count() > config.receive_watermark(receive.depth()),
            at_send_watermark: send_count <= config.send_watermark(send.depth()),
        }
    }
}

/// Returns the vectors whose condition holds, one bit for each vector. Of the `exceptions`, only
/// the `enabled` ones count.
pub(super) fn conditions(exceptions: Exceptions, enabled: Exceptions, has_irq_packets: bool) -> u32 {
    let exceptions = exceptions.masked(enabled);
    let watermarks = exceptions.watermarks();

    (u32::from(has_irq_packets) << vector::RECV_IRQ)
        | (u32::from(watermarks.receive || watermarks.send) << vector::WATERMARK)
        | (u32::from(exceptions.has_error()) << vector::ERROR)
}
