//! Messages that are being received.

use alloc::{boxed::Box, vec};

use nicforge_hwi::seastar::STREAMS;

use crate::{
    chip::Stream,
    matching::{Answer, OperationHandle},
};

/// The present use of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Reception {
    /// No message, or one whose data are discarded.
    #[default]
    None,
    /// A message for a process in NIC-based mode.
    Process {
        process: u16,
        operation: OperationHandle,
        /// The Portals acknowledgement that follows when the data are in memory.
        answer: Option<ReservedAnswer>,
    },
    /// A message for a process in host-based mode. The kernel has not set its destination yet.
    Waiting { token: u32, process: u16, length: u32 },
    /// A message for a process in host-based mode, whose destination the kernel has set for the
    /// first `kept` bytes.
    Kernel { token: u32, process: u16, kept: u32 },
    /// A message whose process ended before its destination was set: it must be discarded.
    Orphan,
}

/// A Portals acknowledgement that will be sent, and for which space in the pool is reserved.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReservedAnswer {
    pub(super) answer: Answer,
    /// The node and the process that it goes to.
    pub(super) node: u32,
    pub(super) process: u16,
}

/// A message whose destination the kernel must set.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingMessage {
    pub(super) stream: Stream,
    /// The process that it is for.
    pub(super) process: u16,
    /// Bytes of its data.
    pub(super) length: u32,
}

/// The table of all streams.
pub(super) struct Streams {
    receptions: Box<[Reception]>,
    /// Number of streams that are [`Reception::Orphan`].
    orphans: u16,
    /// Number of tokens given to messages for the kernel, modulo 2^32.
    tokens: u32,
}

/// Numbers of reservations that [`Streams::detach`] makes superfluous.
#[derive(Default)]
pub(super) struct Detached {
    /// Slots for events in the kernel's queue.
    pub(super) kernel_events: u32,
    /// Space for Portals acknowledgements.
    pub(super) acknowledgements: u16,
}

impl Streams {
    /// Bytes of scratch memory.
    pub(super) const BYTES: usize = STREAMS as usize * size_of::<Reception>();

    pub(super) fn new() -> Self {
        let receptions = vec![Reception::None; usize::from(STREAMS)].into_boxed_slice();
        Self { receptions, orphans: 0, tokens: 0 }
    }

    /// Returns a new token, by which the kernel names a message. Its low byte is the message's
    /// stream, if it has one.
    pub(super) fn new_token(&mut self, stream: Option<Stream>) -> u32 {
        self.tokens = self.tokens.wrapping_add(1);
        self.tokens << 8 | stream.map_or(0, |stream| u32::from(stream.0))
    }

    /// Records what a stream receives from now on.
    pub(super) fn set(&mut self, stream: Stream, reception: Reception) {
        if let Some(entry) = self.receptions.get_mut(usize::from(stream.0)) {
            *entry = reception;
        }
    }

    /// Returns what a stream that has ended was receiving, and forgets it.
    pub(super) fn take(&mut self, stream: Stream) -> Reception {
        let reception =
            self.receptions.get_mut(usize::from(stream.0)).map(core::mem::take).unwrap_or_default();
        if matches!(reception, Reception::Orphan) {
            self.orphans -= 1;
        }
        reception
    }

    /// Returns the message with a token, if it waits for the kernel to set its destination.
    pub(super) fn waiting(&self, token: u32) -> Option<WaitingMessage> {
        let stream = Stream((token & 0xff) as u16);
        match *self.receptions.get(usize::from(stream.0))? {
            Reception::Waiting { token: waiting, process, length } if waiting == token => {
                Some(WaitingMessage { stream, process, length })
            }
            _ => None,
        }
    }

    /// Takes the streams of the process `ended` from it, or those of all processes for `None`.
    /// Streams without a destination become orphans.
    ///
    /// A stream for which the kernel has set a destination still reports its end to the kernel:
    /// until then the receive engine uses the kernel's list of pieces.
    pub(super) fn detach(&mut self, ended: Option<u16>) -> Detached {
        let mut detached = Detached::default();
        for entry in &mut self.receptions {
            let owner = match *entry {
                Reception::Process { process, .. }
                | Reception::Waiting { process, .. }
                | Reception::Kernel { process, .. } => process,
                Reception::None | Reception::Orphan => continue,
            };
            let stays_with_kernel = matches!(entry, Reception::Kernel { .. }) && ended.is_some();
            if stays_with_kernel || ended.is_some_and(|process| process != owner) {
                continue;
            }

            let former = core::mem::take(entry);
            match former {
                Reception::Process { answer, .. } => detached.acknowledgements += u16::from(answer.is_some()),
                Reception::Kernel { .. } => detached.kernel_events += 1,
                Reception::Waiting { .. } => {
                    detached.kernel_events += 1;
                    *entry = Reception::Orphan;
                    self.orphans += 1;
                }
                Reception::None | Reception::Orphan => {}
            }
        }
        detached
    }

    /// Returns whether there is a stream whose process ended before its destination was set.
    pub(super) fn has_orphan(&self) -> bool {
        self.orphans > 0
    }

    /// Returns a stream whose process ended before its destination was set, and forgets it. The
    /// caller discards the stream's data.
    pub(super) fn take_orphan(&mut self) -> Option<Stream> {
        if self.orphans == 0 {
            return None;
        }
        let index = self.receptions.iter().position(|entry| matches!(entry, Reception::Orphan))?;
        *self.receptions.get_mut(index)? = Reception::None;
        self.orphans -= 1;
        Some(Stream(index as u16))
    }
}
