//! Serving of one message: check the request, call the handler, send the reply.

use std::sync::Arc;

use zerocopy::IntoBytes;

use super::config::ServerConfig;
use super::connection::Counters;
use super::deferred::{Deferred, ReplyKind, Request};
use super::dma::{DmaLimits, DmaTable};
use super::error::ConnectionError;
use super::handler::{Handler, Outcome};
use super::mapping::unmapped_by;
use super::reply::{Refusal, acknowledge, reply, reply_fixed};
use super::second_socket::SecondSocket;
use super::{info, irqs};
use crate::Errno;
use crate::socket::{Closer, FrameError, Message, SendHalf};
use crate::wire::*;

/// Stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The client has not sent its `VERSION` yet.
    AwaitVersion,
    /// Requests are served.
    Running,
    /// The client has closed the connection, or an error has ended it.
    Ended,
}

/// Dispatches the messages of one client, and keeps the state that a request leaves for later ones.
#[derive(Debug)]
pub(super) struct Dispatcher {
    /// The second socket, if the client proposed one.
    pub(super) second_socket: Option<SecondSocket>,
    /// Closes descriptors of the client.
    pub(super) closer: Option<Arc<dyn Closer>>,
    pub(super) config: ServerConfig,
    pub(super) phase: Phase,
    /// The capabilities that the client named in its `VERSION`.
    pub(super) client_capabilities: Capabilities,
    /// The request that waits for its answer; no later request is served before it.
    pub(super) deferred: Option<Deferred>,
    /// The operations on the client's memory.
    pub(super) dma: DmaTable,
    pub(super) dma_limits: DmaLimits,
    pub(super) counters: Counters,
    /// A new limit of the size of messages, set on the stream once no message is borrowed from it.
    pub(super) new_message_limit: Option<usize>,
    /// Stream position up to which messages behind a deferred request were examined.
    pub(super) examined: u64,
    /// Resets found there that were not served yet.
    pub(super) resets_ahead: u32,
    /// Maximum number of bytes of data in one access of a region.
    pub(super) max_access: usize,
    /// Buffer for the data of a read.
    pub(super) read_data: Vec<u8>,
}

impl Dispatcher {
    pub(super) fn new(config: ServerConfig) -> Self {
        Self {
            second_socket: None,
            closer: None,
            phase: Phase::AwaitVersion,
            client_capabilities: Capabilities::default(),
            deferred: None,
            dma: DmaTable::new(config.max_dma_outstanding),
            dma_limits: DmaLimits {
                max_transfer: DEFAULT_MAX_DATA_XFER_SIZE as usize,
                max_queued: config.max_queued,
            },
            counters: Counters::default(),
            new_message_limit: None,
            examined: 0,
            resets_ahead: 0,
            max_access: config.max_data_xfer_size as usize,
            read_data: Vec::new(),
            config,
        }
    }

    /// Serves one message of the first socket.
    ///
    /// # Errors
    /// [`ConnectionError`] when the connection has ended. A refused request is no error here.
    pub(super) fn dispatch(
        &mut self,
        out: &mut SendHalf<'_>,
        message: Message<'_>,
        handler: &mut dyn Handler,
    ) -> Result<(), ConnectionError> {
        self.counters.messages += 1;
        let header = message.header;
        if header.message_type() == MessageType::Reply {
            // A reply gets no answer. A reply that no operation waits for is dropped, as by QEMU.
            let is_expected = self.expects(&header);
            if !is_expected || !self.dma.on_reply(out, self.dma_limits, &header, message.payload, handler)? {
                self.counters.unmatched_replies += 1;
            }
            return Ok(());
        }

        let request = Request { id: header.id, command: header.command, no_reply: header.no_reply() };
        // This reset was examined, and counted, while a request in front of it was deferred.
        if header.command == Command::DeviceReset && message.end <= self.examined {
            self.resets_ahead = self.resets_ahead.saturating_sub(1);
        }

        if self.phase == Phase::AwaitVersion {
            return self.negotiate(out, request, message.payload);
        }

        let result = match header.command {
            Command::DmaMap => self.dma_map(out, request, message, handler),
            Command::DmaUnmap => self.dma_unmap(out, request, message.payload, handler),
            Command::DeviceGetInfo => info::device_info(out, request, message.payload, handler),
            Command::DeviceGetRegionInfo => self.region_info(out, request, message.payload, handler),
            Command::DeviceGetIrqInfo => info::irq_info(out, request, message.payload, handler),
            Command::DeviceSetIrqs => match irqs::parse_set_irqs(message, handler) {
                Ok(irqs) => match handler.set_irqs(irqs) {
                    Ok(()) => Ok(reply_fixed(out, request, &[])?),
                    Err(errno) => Err(errno.into()),
                },
                Err(errno) => Err(errno.into()),
            },
            Command::RegionRead => self.region_read(out, request, message.payload, handler),
            Command::RegionWrite => self.region_write(out, request, message.payload, handler),
            Command::RegionWriteMulti => self.write_multi(out, request, message.payload, handler),
            Command::DeviceReset => self.finish_or_defer(out, request, handler.reset(), ReplyKind::Empty),
            // A client sends its version only once, and only a server sends DMA requests.
            Command::Version | Command::DmaRead | Command::DmaWrite => Err(Errno::EINVAL.into()),
            // Every feature in the specification belongs to migration, which is not offered here. A
            // probe of such a feature fails with EINVAL, as in libvfio-user.
            Command::DeviceFeature | Command::MigDataRead | Command::MigDataWrite => {
                Err(Errno::EINVAL.into())
            }
            // To clients with the dirty page command of older drafts of the specification, ENOTSUP
            // means a device without migration.
            Command::DirtyPages | Command::DeviceGetRegionIoFds => Err(Errno::ENOTSUP.into()),
            Command::Unknown(_) => Err(Errno::ENOSYS.into()),
        };

        match result {
            Ok(()) => Ok(()),
            Err(Refusal::Errno(errno)) => Ok(self.fail(out, request, errno)?),
            Err(Refusal::Frame(error)) => Err(error.into()),
        }
    }

    /// Returns whether a DMA operation waits for this reply on the first socket.
    pub(super) fn expects(&self, header: &Header) -> bool {
        self.second_socket.is_none() && self.dma.expects(header)
    }

    /// Answers the deferred request, or continues it, if it was completed. Returns false when no
    /// request is deferred, or when it is not completed yet.
    pub(super) fn finish_deferred(
        &mut self,
        out: &mut SendHalf<'_>,
        handler: &mut dyn Handler,
    ) -> Result<bool, ConnectionError> {
        let Some(deferred) = self.deferred.take_if(|deferred| deferred.result.is_some()) else {
            return Ok(false);
        };

        let request = deferred.request;
        let result = match (deferred.result.unwrap_or(Ok(())), deferred.kind) {
            (Err(errno), _) => Err(errno.into()),
            (Ok(()), ReplyKind::Read(access)) => {
                reply(out, request, access.as_bytes(), &deferred.data, &[]).map_err(Refusal::from)
            }
            (Ok(()), ReplyKind::Multi { records, next }) => {
                self.run_multi(out, request, records.into(), next, handler)
            }
            (Ok(()), ReplyKind::Unmap(entry)) => match unmapped_by(&entry) {
                Ok(unmap) => self.finish_unmap(out, request, entry, unmap, handler),
                Err(errno) => Err(errno.into()),
            },
            (Ok(()), kind) => acknowledge(out, request, &kind).map_err(Refusal::from),
        };

        match result {
            Ok(()) => Ok(true),
            Err(Refusal::Errno(errno)) => {
                self.fail(out, request, errno)?;
                Ok(true)
            }
            Err(Refusal::Frame(error)) => Err(error.into()),
        }
    }

    /// Answers a request with an error.
    pub(super) fn fail(
        &mut self,
        out: &mut SendHalf<'_>,
        request: Request,
        errno: Errno,
    ) -> Result<(), FrameError> {
        self.counters.failed += 1;
        if request.no_reply {
            return Ok(());
        }
        out.send(&Header::error_reply(request.id, request.command, errno).to_bytes(), &[], &[])
    }

    /// Answers a request that the handler has served, or keeps it if it is deferred.
    pub(super) fn finish_or_defer(
        &mut self,
        out: &mut SendHalf<'_>,
        request: Request,
        outcome: Outcome,
        kind: ReplyKind,
    ) -> Result<(), Refusal> {
        match outcome {
            Outcome::Done => Ok(acknowledge(out, request, &kind)?),
            Outcome::Failed(errno) => Err(errno.into()),
            Outcome::Deferred(token) => {
                let data = Vec::new();
                self.deferred = Some(Deferred { token, request, kind, result: None, data, was_asked: false });
                Ok(())
            }
        }
    }
}
