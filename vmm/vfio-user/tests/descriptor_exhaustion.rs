//! A process without free descriptors. The limit applies to the whole process, so this test has a
//! program of its own.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::fd::OwnedFd;

use common::*;
use nicforge_vfio_user::Errno;
use nicforge_vfio_user::wire::Command;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

#[test]
fn map_without_a_free_descriptor_is_refused_and_nothing_leaks() {
    let mut pair = Pair::negotiated();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    pair.send_fds(&request(Command::DmaMap, &map_payload(READ_WRITE, 0, 0, 4096)), &[memfd(4096)]);
    let mut taken = vec![memfd(1)];
    let highest = std::os::fd::AsRawFd::as_raw_fd(&taken[0]) as u64;
    setrlimit(Resource::RLIMIT_NOFILE, highest + 1, hard).unwrap();
    while let Ok(fd) = taken[0].try_clone() {
        taken.push(fd);
    }
    pair.serve();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();

    assert_eq!(pair.reply().header.reply_error(), Some(Errno::EMFILE));
    assert!(pair.device.maps.is_empty());
    // Two of four descriptors find room: all are closed again, and the request is refused.
    let (read, write) = nix::unistd::pipe().unwrap();
    let fds: Vec<OwnedFd> = (0..4).map(|_| write.try_clone().unwrap()).collect();
    // Four eventfds for the first four MSI-X vectors.
    let irqs = words(&[20, 4 | 32, 2, 0, 4]);
    pair.send_fds(&request(Command::DeviceSetIrqs, &irqs), &fds);
    drop((write, fds));
    setrlimit(Resource::RLIMIT_NOFILE, highest + 1, hard).unwrap();
    let mut filled = Vec::new();
    while let Ok(fd) = taken[0].try_clone() {
        filled.push(fd);
    }
    filled.truncate(filled.len().saturating_sub(2));
    pair.serve();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();

    assert_eq!(pair.reply().header.reply_error(), Some(Errno::EMFILE));
    assert!(other_end_is_closed(&read));
    pair.assert_alive();
}
