//! The `vfio_user` crate's client at nicforge's server: an engine that serves the proof devices, or
//! the tree of `machines/pset.toml`.

mod dma;
mod endings;
mod interrupts;
mod negotiation;
mod refusals;
mod regions;

use std::{os::fd::AsFd, path::Path};

use nicforge_engine::AttachmentSnapshot;
use nicforge_hwi::{
    attachment::control,
    pci::{CAP_ID_VENDOR, CAP_KIND_ATTACHMENT},
};
use nicforge_machine::{build::build, description};
use nicforge_nics::families;
use nicforge_shm::{Access, SharedMemory};
use nicforge_tests::{
    backing::{EventLoopKind, Served},
    proof_body,
};
use nicforge_vfio_user::{PCI_CONFIG_REGION, REGION_FLAG_WRITE};
use vfio_user::Client;

use crate::interop::common::poll_until;

/// Serves `fifo0`, `dma0` and `send0`, each with `user0` to `user3`.
fn proof() -> Served {
    Served::new(proof_body::machine(), EventLoopKind::Auto)
}

/// Serves `io0` and `cn0` to `cn3`, each with `core0` to `core3` and `admin`.
fn pset() -> Served {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../machines/pset.toml");
    let plan = description::read(&path, &families()).unwrap();
    Served::new(build(&plan).unwrap().0, EventLoopKind::Auto)
}

/// Connects to an attachment as soon as it is free. The server notices only after a while that its
/// last client has disconnected.
fn connect(served: &Served, function: &str, attachment: &str) -> Client {
    let path = served.socket(function, attachment);
    let mut client = None;
    poll_until("the attachment is free", || {
        client = Client::new(&path).ok();
        client.is_some()
    });

    client.unwrap()
}

/// Reads `N` bytes of a region.
fn read<const N: usize>(client: &mut Client, region: u32, offset: u64) -> [u8; N] {
    let mut data = [0; N];
    client.region_read(region, offset, &mut data).unwrap();
    data
}

/// Reads a register of 32 bits.
fn read32(client: &mut Client, region: u32, offset: u64) -> u32 {
    u32::from_le_bytes(read(client, region, offset))
}

/// Writes a register of 32 bits.
fn write32(client: &mut Client, region: u32, offset: u64, value: u32) {
    client.region_write(region, offset, &value.to_le_bytes()).unwrap();
}

/// Enables memory decoding and bus mastering.
fn enable(client: &mut Client) {
    client.region_write(PCI_CONFIG_REGION, 4, &6_u16.to_le_bytes()).unwrap();
}

/// Maps a region, as the `vfio_user` crate was informed of it, up to the end of its last mappable
/// area.
fn map(client: &Client, index: u32) -> SharedMemory {
    let region = client.region(index).unwrap();
    let file = region.file_offset.as_ref().unwrap();
    let end = region.sparse_areas.iter().map(|area| area.offset + area.size).max();
    let len = end.unwrap_or(region.size) as usize;
    let access = if region.flags & REGION_FLAG_WRITE != 0 { Access::ReadWrite } else { Access::ReadOnly };
    SharedMemory::map(file.file().as_fd(), file.start(), len, access).unwrap()
}

/// Notifies the engine of a store to mapped memory, by the control page that the PCI capability
/// names.
fn wake(client: &mut Client) {
    let mut at = u64::from(read::<1>(client, PCI_CONFIG_REGION, 0x34)[0]);
    loop {
        assert_ne!(at, 0, "there is an attachment capability");
        let [id, next, _, kind] = read(client, PCI_CONFIG_REGION, at);
        if (id, kind) == (CAP_ID_VENDOR, CAP_KIND_ATTACHMENT) {
            break;
        }
        at = next.into();
    }

    let [_, bar, ..] = read::<4>(client, PCI_CONFIG_REGION, at + 4);
    let offset = read32(client, PCI_CONFIG_REGION, at + 8);
    write32(client, bar.into(), u64::from(offset) + control::WAKE, 1);
}

/// Returns the engine's snapshot of an attachment.
fn attachment(served: &Served, function: &str, name: &str) -> AttachmentSnapshot {
    let functions = served.snapshot().functions;
    let function = functions.into_iter().find(|candidate| candidate.name == function).unwrap();
    function.attachments.into_iter().find(|candidate| candidate.name == name).unwrap()
}
