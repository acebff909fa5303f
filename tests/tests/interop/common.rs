//! What the tests of both directions use: a deadline, eventfds, and a look at the first two messages on a socket.

use std::{
    io::{Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::{UnixListener, UnixStream},
    },
    panic::resume_unwind,
    path::Path,
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Instant,
};

use nicforge_tests::backing::LIMIT;
use nicforge_vfio_user::wire::{HEADER_SIZE, Header, VersionMessage, parse_version};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};

/// Runs a test whose peer may keep it waiting for ever.
pub(crate) fn in_time(body: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let thread = thread::spawn(move || {
        body();
        // Who does not wait any more has failed already.
        let _ = done.send(());
    });

    if ended.recv_timeout(3 * LIMIT) == Err(RecvTimeoutError::Timeout) {
        panic!("the peer keeps the test waiting");
    }

    if let Err(panic) = thread.join() {
        resume_unwind(panic);
    }
}

/// Looks until `condition` holds.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::yield_now();
    }
}

pub(crate) fn eventfd() -> EventFd {
    EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).unwrap()
}

/// Waits until there is something to read.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>) {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::try_from(LIMIT).unwrap()), Ok(1), "nothing came");
}

/// Waits for a signal and takes the count.
pub(crate) fn signals(fd: &EventFd) -> u64 {
    wait_readable(fd.as_fd());
    fd.read().unwrap()
}

pub(crate) fn is_quiet(fd: &EventFd) -> bool {
    fd.read().is_err()
}

/// A `VERSION` as it was on the wire.
pub(crate) struct Version {
    pub(crate) message: VersionMessage,
    pub(crate) json: String,
}

/// Lets `client` connect to the server at `path` through a socket in `directory`, and gives the request and the reply that went
/// over it. Nothing else does: to the client it looks as if the server went away then.
pub(crate) fn version_exchange(path: &Path, directory: &Path, client: impl FnOnce(&Path)) -> [Version; 2] {
    let between = directory.join("between");
    let listener = UnixListener::bind(&between).unwrap();
    let server = path.to_owned();
    let tap = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = UnixStream::connect(server).unwrap();
        [pass_on(&mut client, &mut server), pass_on(&mut server, &mut client)]
    });

    client(&between);
    tap.join().unwrap()
}

fn pass_on(from: &mut UnixStream, to: &mut UnixStream) -> Version {
    from.set_read_timeout(Some(LIMIT)).unwrap();
    let mut header = [0; HEADER_SIZE];
    from.read_exact(&mut header).unwrap();

    let mut payload = vec![0; Header::parse(&header).unwrap().size as usize - HEADER_SIZE];
    from.read_exact(&mut payload).unwrap();
    to.write_all(&[&header, payload.as_slice()].concat()).unwrap();

    let json = String::from_utf8(payload[4..].to_vec()).unwrap();
    Version { message: parse_version(&payload).unwrap(), json }
}
