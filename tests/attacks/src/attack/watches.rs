//! Attacks by epoll watches: each write to a file notifies all its watches.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nicforge_vfio_user::wire::Command;
use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
        eventfd::{EfdFlags, EventFd},
        resource::{Resource, getrlimit, setrlimit},
    },
};

use crate::{
    arena::{Arena, Failed, Round},
    client::{self, Client},
};

/// Descriptors that are reserved for other uses.
const SPARE: u64 = 64;
/// Requests of a round.
const REQUESTS: u16 = 64;

/// Epoll watches over one file.
struct Watches {
    copies: Vec<OwnedFd>,
    instances: Vec<Epoll>,
}

/// Attaches hundreds of thousands of epoll watches to the client's end of the socket, and sends
/// cheap requests. Each reply iterates over the watches.
///
/// A correct server charges the time of its system calls to the client, and evicts a client whose
/// calls take long.
pub(super) fn socket(arena: &Arena) -> Round {
    let count = arena.size().pick(20_000, 200_000);
    arena.repeat(|| {
        let mut client = Client::negotiated(&arena.socket("target.user0"))?;
        let _watches = watch(client.stream.as_fd(), count)?;
        let questions: Vec<_> = (1..=REQUESTS)
            .flat_map(|id| client::request(id, Command::DeviceGetInfo, &client::info()))
            .collect();
        client.send(&questions)?;
        client.reply_to(REQUESTS)?;
        Ok(())
    })
}

/// Attaches as many watches to the eventfd of an interrupt, and raises the interrupt repeatedly.
///
/// A correct server acts as against [`socket`].
pub(super) fn eventfd(arena: &Arena) -> Round {
    let count = arena.size().pick(20_000, 200_000);
    let raises = client::posted(Command::DeviceSetIrqs, &client::raise()).repeat(REQUESTS.into());
    arena.repeat(|| {
        let eventfd = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC)?;
        let _watches = watch(eventfd.as_fd(), count)?;
        let mut client = Client::negotiated(&arena.socket("target.user0"))?;
        client.ask_with(Command::DeviceSetIrqs, &client::bind_eventfd(), &[eventfd.as_fd()])?;
        client.send(&raises)?;
        client.ask(Command::DeviceGetInfo, &client::info())?;
        Ok(())
    })
}

/// Creates `count` watches of `file`, as far as limits allow. An instance watches each descriptor
/// once, so the count is the product of descriptor copies and instances.
fn watch(file: BorrowedFd<'_>, count: usize) -> Result<Watches, Failed> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let available = hard.saturating_sub(SPARE) as usize;
    let copies = (count / 16).clamp(1, (available / 2).max(1));
    let instances = count.div_ceil(copies).min(available.saturating_sub(copies));
    if copies * instances < count / 10 {
        return Err(Failed::NotRun(format!("{hard} descriptors are too few for {count} watches")));
    }

    let copies = (0..copies).map(|_| file.try_clone_to_owned()).collect::<Result<Vec<_>, _>>()?;
    let mut watches = Watches { copies, instances: Vec::new() };

    for _ in 0..instances {
        let instance = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for copy in &watches.copies {
            match instance.add(copy, EpollEvent::new(EpollFlags::EPOLLIN, 0)) {
                Ok(()) => {}
                // The user's limit of watches is reached: the attack continues with the existing
                // ones.
                Err(Errno::ENOSPC) => break,
                Err(errno) => return Err(errno.into()),
            }
        }

        watches.instances.push(instance);
    }

    Ok(watches)
}
