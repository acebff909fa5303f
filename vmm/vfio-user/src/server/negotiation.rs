//! `VERSION`: the capabilities of both sides, and the largest message from then on.

use super::ConnectionError;
use std::os::fd::{AsFd, OwnedFd};

use super::deferred::Request;
use super::dispatcher::{Dispatcher, Phase};
use super::reply::reply;
use super::second_socket::SecondSocket;
use crate::Errno;
use crate::socket::SendHalf;
use crate::wire::*;

impl Dispatcher {
    /// Serves the first message, which must be a `VERSION`. Any other message ends the connection,
    /// and so does a version that does not suit.
    pub(super) fn negotiate(
        &mut self,
        out: &mut SendHalf<'_>,
        request: Request,
        payload: &[u8],
    ) -> Result<(), ConnectionError> {
        if request.command != Command::Version {
            self.fail(out, request, Errno::EINVAL)?;
            return Err(ConnectionError::NotNegotiated { command: request.command });
        }

        let proposed = match parse_version(payload) {
            Ok(proposed) => proposed,
            Err(error) => {
                self.fail(out, request, Errno::EINVAL)?;
                return Err(error.into());
            }
        };

        if proposed.major != VERSION_MAJOR {
            self.fail(out, request, Errno::ENOTSUP)?;
            return Err(ConnectionError::Major { major: proposed.major });
        }

        let client = proposed.capabilities.clone().unwrap_or_default();
        let client_transfer = client.max_data_xfer_size.unwrap_or(DEFAULT_MAX_DATA_XFER_SIZE.into());
        // With zero bytes in a message every transfer would be endless.
        if client_transfer == 0 {
            self.fail(out, request, Errno::EINVAL)?;
            return Err(ConnectionError::NoTransfers);
        }
        // The answer names no limit that the client did not name. So the client assumes the default
        // for the server's limit, too.
        if client.max_data_xfer_size.is_none() {
            self.max_access = DEFAULT_MAX_DATA_XFER_SIZE as usize;
        }
        self.dma_limits.max_transfer = usize::try_from(client_transfer)
            .unwrap_or(usize::MAX)
            .min(self.config.max_data_xfer_size as usize);
        self.new_message_limit =
            Some(self.config.message_limit(self.max_access.max(self.dma_limits.max_transfer)));

        let client_end = self.make_second_socket(&client, request);
        let answer = VersionMessage {
            major: VERSION_MAJOR,
            // The version here is the lowest there is, so it never exceeds the proposed one.
            minor: VERSION_MINOR,
            has_json: proposed.has_json,
            capabilities: proposed.capabilities.as_ref().map(|client| self.capabilities_for(client)),
        };
        self.client_capabilities = client;
        self.phase = Phase::Running;

        let fd = client_end.as_ref().map(AsFd::as_fd);
        Ok(reply(out, request, &build_version(&answer), &[], fd.as_slice())?)
    }

    /// Makes a second socket for a client that proposed it and takes descriptors, and returns the
    /// client's end. A server without a free descriptor does not agree, and sends its requests on
    /// the first socket.
    fn make_second_socket(&mut self, client: &Capabilities, request: Request) -> Option<OwnedFd> {
        let is_proposed = client.twin_socket.as_ref().is_some_and(|offer| offer.supported);
        let takes_fds = client.max_msg_fds.is_none_or(|fds| fds > 0);
        if !is_proposed || !takes_fds || request.no_reply {
            return None;
        }

        let limit = self.config.message_limit(self.dma_limits.max_transfer);
        let (second_socket, client_end) = SecondSocket::pair(limit, self.closer.clone()).ok()?;
        self.second_socket = Some(second_socket);
        Some(client_end)
    }

    /// Returns the capabilities for the answer: a subset of those that the client named, as the
    /// specification requires. The reply is therefore no longer than the request, except for a few
    /// digits and the index of the second socket's descriptor.
    fn capabilities_for(&self, client: &Capabilities) -> Capabilities {
        let config = &self.config;
        Capabilities {
            max_msg_fds: client.max_msg_fds.map(|_| config.max_msg_fds.into()),
            max_data_xfer_size: client.max_data_xfer_size.map(|_| config.max_data_xfer_size.into()),
            pgsizes: client.pgsizes.map(|_| config.pgsizes),
            // QEMU ends the connection over a limit that is higher than its own.
            max_dma_maps: client
                .max_dma_maps
                .map(|client_maximum| client_maximum.min(config.max_dma_maps.into())),
            write_multiple: client.write_multiple.filter(|is_proposed| *is_proposed && config.write_multiple),
            twin_socket: self
                .second_socket
                .as_ref()
                .map(|_| TwinSocket { supported: true, fd_index: Some(0) }),
        }
    }
}
