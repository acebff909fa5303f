//! Messages that are being received.

use alloc::{boxed::Box, vec};

use nicforge_hwi::seastar::STREAMS;

use crate::{
    chip::Stream,
    matching::{Answer, OperationHandle},
};

/// The use of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Reception {
    /// No message, or one whose data are discarded.
    #[default]
    None,
    /// A message for a process in NIC-based mode.
    Process {
        process: u16,
        operation: OperationHandle,
        /// The Portals acknowledgement that follows, and the node and process that it goes to.
        answer: Option<(Answer, u32, u16)>,
    },
    /// A message for a process in host-based mode. Its destination is not known.
    Waiting { token: u32, process: u16, length: u32 },
    /// A message for a process in host-based mode. This many bytes are kept.
    Kernel { token: u32, process: u16, kept: u32 },
    /// Its process has ended before the destination was known: it must be discarded.
    Orphan,
}

/// The table of all streams.
pub(super) struct Streams {
    receptions: Box<[Reception]>,
    orphans: u16,
    /// Number of messages for processes in host-based mode.
    messages: u32,
}

/// Reservations for streams that were detached, which are no longer needed.
#[derive(Default)]
pub(super) struct Detached {
    /// Events of the kernel.
    pub(super) kernel_events: u32,
    /// Acknowledgements of Portals.
    pub(super) acknowledgements: u16,
}

impl Streams {
    /// Bytes of scratch memory.
    pub(super) const BYTES: usize = STREAMS as usize * size_of::<Reception>();

    pub(super) fn new() -> Self {
        let receptions = vec![Reception::None; usize::from(STREAMS)].into_boxed_slice();
        Self { receptions, orphans: 0, messages: 0 }
    }

    /// Returns a new name of a message for the kernel. The lower byte is the stream, if there is
    /// one.
    pub(super) fn name(&mut self, stream: Option<Stream>) -> u32 {
        self.messages = self.messages.wrapping_add(1);
        self.messages << 8 | stream.map_or(0, |stream| u32::from(stream.0))
    }

    /// Sets the purpose of a stream.
    pub(super) fn set(&mut self, stream: Stream, reception: Reception) {
        if let Some(entry) = self.receptions.get_mut(usize::from(stream.0)) {
            *entry = reception;
        }
    }

    /// Returns the purpose of a stream that ends, and forgets it.
    pub(super) fn take(&mut self, stream: Stream) -> Reception {
        let reception =
            self.receptions.get_mut(usize::from(stream.0)).map(core::mem::take).unwrap_or_default();
        if matches!(reception, Reception::Orphan) {
            self.orphans -= 1;
        }
        reception
    }

    /// Returns the stream of a message whose destination the kernel must name, its process, and
    /// its length.
    pub(super) fn waiting(&self, name: u32) -> Option<(Stream, u16, u32)> {
        let stream = Stream((name & 0xff) as u16);
        match self.receptions.get(usize::from(stream.0))? {
            Reception::Waiting { token, process, length } if *token == name => {
                Some((stream, *process, *length))
            }
            _ => None,
        }
    }

    /// Detaches the streams of a process, or those of all for `None`. Streams without a destination
    /// become orphans.
    ///
    /// A stream that the kernel has given a destination still reports its end when its process has
    /// ended: until then the receive engine uses the kernel's command list.
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

    /// Returns whether the process of a stream has ended before the stream had a destination.
    pub(super) fn has_orphan(&self) -> bool {
        self.orphans > 0
    }

    /// Returns a stream whose process has ended before the stream had a destination, and forgets
    /// it.
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
