//! The `vfio_user` crate's server and client, with a register of four bytes.

use std::{
    cell::RefCell,
    fs::File,
    io,
    path::{Path, PathBuf},
    rc::Rc,
};

use nicforge::failure::{ErrorContext, Failure};
use vfio_bindings::bindings::vfio::{
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
};
use vfio_user::{Client, DmaMapFlags, DmaUnmapFlags, Server, ServerBackend, ServerRegion};

use super::{Contestant, Effort, Measurement, in_a_row, paced, server::ServerProcess};
use crate::row::Backing;

/// Bytes of the region.
const REGION_BYTES: u64 = 4096;
/// Offset of the register.
const REGISTER: u64 = 8;

/// Returns the path of the server's socket.
fn socket(directory: &Path) -> PathBuf {
    directory.join("vfio_user-crate")
}

/// A register.
struct Register(u32);

impl ServerBackend for Register {
    fn region_read(&mut self, _: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match (offset, <&mut [u8; 4]>::try_from(data)) {
            (REGISTER, Ok(data)) => {
                *data = self.0.to_le_bytes();
                Ok(())
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn region_write(&mut self, _: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        match (offset, <[u8; 4]>::try_from(data)) {
            (REGISTER, Ok(data)) => {
                self.0 = u32::from_le_bytes(data);
                Ok(())
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn dma_map(&mut self, _: DmaMapFlags, _: u64, _: u64, _: u64, _: Option<File>) -> io::Result<()> {
        Ok(())
    }

    fn dma_unmap(&mut self, _: DmaUnmapFlags, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn set_irqs(&mut self, _: u32, _: u32, _: u32, _: u32, _: Vec<File>) -> io::Result<()> {
        Ok(())
    }
}

/// Serves the register to one client after the other, in a thread of its own.
pub(super) fn serve(directory: &Path) -> Result<(), Failure> {
    let region = ServerRegion {
        region_info: vfio_region_info {
            argsz: size_of::<vfio_region_info>() as u32,
            flags: VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE,
            index: 0,
            cap_offset: 0,
            size: REGION_BYTES,
            offset: 0,
        },
        sparse_areas: Vec::new(),
        mmap_fd: None,
    };

    let server = Server::new(&socket(directory), false, Vec::new(), vec![region])
        .context(|| "the vfio_user crate's server".into())?;
    let serve = move || {
        let mut register = Register(0);
        // The error of one connection does not concern the next one.
        while server.run(&mut register).is_ok() {}
    };

    std::thread::Builder::new()
        .name("vfio_user-crate".into())
        .spawn(serve)
        .map(drop)
        .context(|| "a thread for the vfio_user crate's server".into())
}

/// Reads by the crate's client.
struct CrateRead {
    client: Rc<RefCell<Client>>,
    /// Whether the server sleeps before each read.
    asleep: bool,
}

/// Returns two contestants: reads without a pause, and reads after a pause. Both block, as the
/// crate always does.
pub(super) fn contestants(server: &ServerProcess) -> Result<Vec<Box<dyn Contestant>>, Failure> {
    let client = Client::new(&socket(server.path())).context(|| "the vfio_user crate's client".into())?;
    // The crate's server serves one client at a time, so both contestants share one.
    let client = Rc::new(RefCell::new(client));
    Ok(vec![
        Box::new(CrateRead { client: Rc::clone(&client), asleep: false }),
        Box::new(CrateRead { client, asleep: true }),
    ])
}

impl Contestant for CrateRead {
    fn path(&self) -> &'static str {
        if self.asleep { "vfio_user-crate-read-asleep" } else { "vfio_user-crate-read" }
    }

    fn backing(&self) -> Option<Backing> {
        Some(Backing::VfioUser)
    }

    fn measure(&mut self, effort: &Effort) -> Result<Measurement, Failure> {
        let mut value = [0; 4];
        let mut client = self.client.borrow_mut();
        let mut read =
            || client.region_read(0, REGISTER, &mut value).context(|| "the vfio_user crate's client".into());
        if self.asleep { paced(effort, || Ok(()), read) } else { in_a_row(effort, &mut read) }
    }
}
