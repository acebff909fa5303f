//! Attacks by eventfds that block the server.

use std::os::fd::AsFd;

use nicforge_vfio_user::wire::Command;
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::eventfd::{EfdFlags, EventFd},
};

use crate::{
    arena::{Arena, Round},
    client::{self, Client},
};

/// Number of interrupts that are raised in a round.
const RAISES: usize = 4;

/// Binds an eventfd to an interrupt, makes it blocking with a full counter, and raises the
/// interrupt. The server's write then blocks. The next round repeats this with a new connection.
///
/// A correct server ends the write soon, evicts the client, and keeps the attachment closed to the
/// next one for a while.
pub(super) fn blocking(arena: &Arena) -> Round {
    let raises = client::posted(Command::DeviceSetIrqs, &client::raise()).repeat(RAISES);
    arena.repeat(|| {
        let eventfd = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC)?;
        let mut client = Client::negotiated(&arena.socket("target.user0"))?;
        client.ask_with(Command::DeviceSetIrqs, &client::bind_eventfd(), &[eventfd.as_fd()])?;

        // The server made the open file description non-blocking, which both sides share.
        let flags = OFlag::from_bits_retain(fcntl(&eventfd, FcntlArg::F_GETFL)?);
        fcntl(&eventfd, FcntlArg::F_SETFL(flags & !OFlag::O_NONBLOCK))?;
        eventfd.write(u64::MAX - 1)?;
        client.send(&raises)?;
        client.ask(Command::DeviceGetInfo, &client::info())?;

        Ok(())
    })
}
