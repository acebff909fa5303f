//! Common parts of the tests of both directions: a deadline, eventfds, and a look at the first two
//! messages on a socket.

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

/// Runs a test with a deadline, for peers that may block for ever.
pub(crate) fn with_time_out(body: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let thread = thread::spawn(move || {
        body();
        // The receiver is gone only if the test has failed already.
        let _ = done.send(());
    });

    if ended.recv_timeout(3 * LIMIT) == Err(RecvTimeoutError::Timeout) {
        panic!("the peer keeps the test waiting");
    }

    if let Err(panic) = thread.join() {
        resume_unwind(panic);
    }
}

/// Polls until `condition` holds.
pub(crate) fn poll_until(description: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {description}");
        thread::yield_now();
    }
}

/// Creates an eventfd that does not block.
pub(crate) fn eventfd() -> EventFd {
    EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).unwrap()
}

/// Waits until the descriptor is readable.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>) {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::try_from(LIMIT).unwrap()), Ok(1), "nothing came");
}

/// Waits for a signal and takes the count.
pub(crate) fn signals(fd: &EventFd) -> u64 {
    wait_readable(fd.as_fd());
    fd.read().unwrap()
}

/// Returns whether no signal has come since the last one was taken.
pub(crate) fn is_idle(fd: &EventFd) -> bool {
    fd.read().is_err()
}

/// A `VERSION` message as sent on the wire.
pub(crate) struct Version {
    pub(crate) message: VersionMessage,
    pub(crate) json: String,
}

/// Connects `client` to the server at `path` through a socket in `directory`. Returns the request
/// and the reply that passed over it. No further message passes: the client then sees the server
/// disconnect.
pub(crate) fn version_exchange(path: &Path, directory: &Path, client: impl FnOnce(&Path)) -> [Version; 2] {
    let between = directory.join("between");
    let listener = UnixListener::bind(&between).unwrap();
    let server = path.to_owned();
    let relay = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = UnixStream::connect(server).unwrap();
        [forward_version(&mut client, &mut server), forward_version(&mut server, &mut client)]
    });

    client(&between);
    relay.join().unwrap()
}

/// Passes one `VERSION` message on, and returns it.
fn forward_version(from: &mut UnixStream, to: &mut UnixStream) -> Version {
    from.set_read_timeout(Some(LIMIT)).unwrap();
    let mut header = [0; HEADER_SIZE];
    from.read_exact(&mut header).unwrap();

    let mut payload = vec![0; Header::parse(&header).unwrap().size as usize - HEADER_SIZE];
    from.read_exact(&mut payload).unwrap();
    to.write_all(&[&header, payload.as_slice()].concat()).unwrap();

    let json = String::from_utf8(payload[4..].to_vec()).unwrap();
    Version { message: parse_version(&payload).unwrap(), json }
}
