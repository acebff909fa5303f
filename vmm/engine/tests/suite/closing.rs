//! Clients whose descriptors, sockets and memory take long to close.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::{
    io::{ErrorKind, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::AsFd,
    time::Duration,
};

use crate::common::{
    neighbour::Neighbour,
    raw::{Raw, access, client_with_dma, device_info, request, version},
    *,
};
use nicforge_vfio_user::{Errno, wire::Command};
use nix::{
    libc,
    sys::socket::{setsockopt, sockopt},
};

/// How long the close of a [`Lingering`] connection blocks: longer than any wait of a test.
const LINGER: Duration = Duration::from_secs(120);

/// Number of unclosed descriptors from which on a client is not served.
const HOLDING_DESCRIPTORS: u64 = 64;

/// A TCP connection with unsent data. Its last close blocks until its peer reads or the time is
/// over.
struct Lingering {
    stream: TcpStream,
    peer: Peer,
}

/// Accepts no connection, so that the data stay unread. Dropping it ends the close.
struct Peer(#[allow(dead_code, reason = "it is there to be dropped")] TcpListener);

impl Lingering {
    fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let full = loop {
            if let Err(error) = stream.write(&[0; 65536]) {
                break error.kind();
            }
        };
        assert_eq!(full, ErrorKind::WouldBlock);
        stream.set_nonblocking(false).unwrap();
        let seconds = LINGER.as_secs() as libc::c_int;
        setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: seconds }).unwrap();
        Self { stream, peer: Peer(listener) }
    }
}

/// Returns a client whose write waits for credits, with messages queued after it.
fn client_with_lingering_descriptors_queued_after_a_stalled_write(
    served: &Served,
    messages: usize,
) -> (Raw, Peer) {
    let mut raw = Raw::negotiated(&served.path(A));
    let peer = queue_lingering_descriptors_after_a_stalled_write(served, &mut raw, messages);
    (raw, peer)
}

/// Sends a write that waits for credits, and messages after it. These carry a descriptor of which
/// the server has the only copy, so the server's close is the last one.
fn queue_lingering_descriptors_after_a_stalled_write(
    served: &Served,
    raw: &mut Raw,
    messages: usize,
) -> Peer {
    raw.send(&request(Command::RegionWrite, &access(reg::SEND, 0, 4, &[0; 4])));
    served.wait_until("the write stalls", |snapshot| client_of(snapshot, A).unwrap().stalled);
    let Lingering { stream, peer } = Lingering::new();
    for _ in 0..messages {
        raw.send_fds(&device_info(), &[stream.as_fd()]);
    }
    peer
}

/// Lets a stalled write of attachment A continue. The operator writes for the client of B.
fn add_credit(served: &Served) {
    let write = served.handle.call(LONG, |control| {
        control.machine().write(FUNCTION, B, 0, reg::CREDITS, &1_u64.to_le_bytes()).map(drop)
    });
    write.unwrap().unwrap();
}

/// Has the server hold a client back: its descriptors wait to be closed behind one whose close
/// blocks, until the returned peer is dropped.
fn hold_back(served: &Served, raw: &mut Raw) -> Peer {
    let messages = |snapshot: &_| client_of(snapshot, A).unwrap().messages;
    let peer = queue_lingering_descriptors_after_a_stalled_write(served, raw, 1);
    let before = messages(&served.snapshot());
    add_credit(served);

    let cheap = eventfd();
    for _ in 0..2 * HOLDING_DESCRIPTORS {
        raw.send_fds(&device_info(), &[cheap.as_fd()]);
    }
    // The stalled write was counted before, so each of these messages has a descriptor.
    served
        .wait_until("the client is held back", |snapshot| messages(snapshot) - before >= HOLDING_DESCRIPTORS);
    peer
}

both_loops! {
    fn unclaimed_descriptors_delay_no_other_client(config) {
        config.stall_limit = LINGER;
        let neighbour = Neighbour::start(config);
        let served = &neighbour.served;
        let (mut raw, _peer) = client_with_lingering_descriptors_queued_after_a_stalled_write(served, 1);

        add_credit(served);

        assert_eq!(raw.reply().0.command, Command::RegionWrite);
        assert_eq!(raw.reply().0.command, Command::DeviceGetInfo);
        raw.assert_served();
        neighbour.assert_served();
        drop(raw);
        neighbour.assert_served_and_reusable();
    }

    fn descriptors_left_unread_in_a_socket_delay_no_other_client(config) {
        config.stall_limit = LINGER;
        let neighbour = Neighbour::start(config);
        // More than the server reads ahead: the rest is closed with the socket.
        let (raw, _peer) = client_with_lingering_descriptors_queued_after_a_stalled_write(&neighbour.served, 48);
        drop(raw);
        neighbour.assert_served_and_reusable();
    }

    fn dma_of_a_client_that_is_held_back_times_out(config) {
        config.dma_limit = Duration::from_millis(30);
        config.stall_limit = LINGER;
        // The deadline for the version must not come first.
        config.version_limit = LINGER;
        let served = Served::start(config);
        let (mut raw, _other) = (client_with_dma(&served, A), served.client(B));
        let _peer = hold_back(&served, &mut raw);

        // The client is not served, so the operator starts the copy.
        served.handle.call(LONG, |control| {
            control.machine().write(FUNCTION, A, 0, reg::COPY, &64_u32.to_le_bytes()).map(drop)
        }).unwrap().unwrap();
        let snapshot =
            served.wait_until("the message times out", |snapshot| server_of(snapshot, A).dma_timeouts == 1);

        assert_eq!(server_of(&snapshot, A).dma_messages, 0);
        assert_eq!(snapshot.functions[0].attachments[0].counters.dma_errors, 1);
    }

    fn descriptors_before_the_version_are_not_kept(config) {
        let served = Served::start(config);
        let mut raw = Raw::connect(&served.path(A));
        let (mut local_end, remote_end) = std::os::unix::net::UnixStream::pair().unwrap();
        local_end.set_read_timeout(Some(LONG)).unwrap();
        raw.send_fds(&version(0, 0, b"{}\0")[..4], &[remote_end.as_fd()]);
        drop(remote_end);
        // The passed end of the pair is closed although the message is incomplete.
        assert_eq!(std::io::Read::read_to_end(&mut local_end, &mut Vec::new()).unwrap(), 0);
        raw.send(&version(0, 0, b"{}\0")[4..]);

        assert_eq!(raw.reply().0.reply_error(), None);
    }

    fn a_silent_refused_connection_delays_no_other(config) {
        let served = Served::start(config);
        let first = served.client(A);
        let _silent: Vec<_> = (0..4).map(|_| Raw::connect(&served.path(A))).collect();
        let mut third = Raw::connect(&served.path(A));

        third.send(&version(0, 0, b"{}\0"));

        assert_eq!(third.reply().0.reply_error(), Some(Errno::EBUSY));
        assert_eq!(read32(&first, reg::SCRATCH), 0);
    }
}
