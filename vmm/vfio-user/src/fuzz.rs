//! Bodies of fuzz targets: any bytes in, and nothing but a return comes out. They also run here, seeded.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use crate::types::*;
use crate::wire;
use crate::{Errno, Handler, Outcome, ServerConfig, ServerConnection};

/// A device that says yes to everything within 64 KiB.
struct Yes;

impl Handler for Yes {
    fn device_info(&mut self) -> DeviceInfo {
        DeviceInfo { flags: DEVICE_FLAGS_PCI, num_regions: 9, num_irqs: 5 }
    }

    fn region_info(&mut self, _index: u32) -> Result<RegionInfo, Errno> {
        Ok(RegionInfo { flags: REGION_FLAG_READ, size: 65536, ..Default::default() })
    }

    fn irq_info(&mut self, _index: u32) -> Result<IrqInfo, Errno> {
        Ok(IrqInfo { flags: IRQ_FLAG_EVENTFD | IRQ_FLAG_MASKABLE, count: 64 })
    }

    fn region_read(&mut self, _index: u32, offset: u64, data: &mut [u8]) -> Outcome {
        data.fill(offset as u8);
        Outcome::Done
    }

    fn region_write(&mut self, _index: u32, offset: u64, _data: &[u8]) -> Outcome {
        if offset == 1 { Outcome::Deferred(1) } else { Outcome::Done }
    }

    fn dma_map(&mut self, _map: DmaMap, _fd: Option<OwnedFd>) -> Outcome {
        Outcome::Done
    }

    fn dma_unmap(&mut self, _unmap: DmaUnmap) -> Outcome {
        Outcome::Failed(Errno::ENOENT)
    }

    fn set_irqs(&mut self, _irqs: SetIrqs) -> Result<(), Errno> {
        Ok(())
    }

    fn reset(&mut self) -> Outcome {
        Outcome::Done
    }
}

/// A client that sends these bytes to a server, which has agreed on the default limits before if `negotiated`.
pub fn server(bytes: &[u8], negotiated: bool) {
    let Ok((mut peer, socket)) = UnixStream::pair() else { return };
    if peer.set_nonblocking(true).is_err() {
        return;
    }
    let mut connection = ServerConnection::new(socket.into(), ServerConfig::default());
    if negotiated {
        let header = wire::Header::request(0, wire::Command::Version, 4, true);
        let _ = peer.write_all(&[&header.to_bytes()[..], &[0; 4]].concat());
    }
    let mut rest = bytes;
    loop {
        // Whatever the socket does not take is cut off: the connection then dies in the middle of a message.
        let sent = peer.write(rest).unwrap_or(0);
        rest = &rest[sent..];
        if connection.on_readable(&mut Yes).is_err() {
            return;
        }
        if let Some(token) = connection.deferred() {
            let _ = connection.complete(token, Err(Errno::EIO));
        }
        if sent == 0 && !connection.ready() {
            return;
        }
    }
}

/// A server's replies with these bytes as payload.
pub fn replies(bytes: &[u8]) {
    let _ = wire::parse_region_info(bytes);
    let _ = wire::parse_version(bytes);
    let _ = wire::Header::parse(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn any_bytes_come_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..600), negotiated: bool) {
            server(&bytes, negotiated);
            replies(&bytes);
        }
    }
}
