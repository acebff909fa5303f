//! The client against servers that send malformed messages: each call ends with an error, in time,
//! and nothing panics.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{TIMEOUT, eventfd, message, words};
use nicforge_vfio_user::socket::FrameError;
use nicforge_vfio_user::wire::{Command, Header};
use nicforge_vfio_user::*;
use proptest::prelude::*;

/// Time that the client waits for a silent server; a busy machine still negotiates within it.
const SHORT: Duration = Duration::from_millis(500);

/// Returns the server's bytes in answer to a request.
type Script = Box<dyn FnMut(Header, &[u8]) -> Vec<u8> + Send>;

/// Runs a server that answers the version with `json`, and each later request with the result of
/// `script`.
fn connect_to_script(json: &[u8], timeout: Duration, script: Script) -> Result<Client, ClientError> {
    connect_to_script_with_version(crate::common::version(json), timeout, script)
}

/// As [`connect_to_script`], with the whole payload of the answer to the version.
fn connect_to_script_with_version(
    version: Vec<u8>,
    timeout: Duration,
    mut script: Script,
) -> Result<Client, ClientError> {
    let (local_end, remote_end) = UnixStream::pair().unwrap();

    std::thread::spawn(move || {
        let mut stream = remote_end;
        let mut first = true;
        while let Some((header, payload)) = read_request(&mut stream) {
            let bytes = if first {
                message(Header::reply(header.id, Command::Version, version.len()), &version)
            } else {
                script(header, &payload)
            };
            first = false;
            if stream.write_all(&bytes).is_err() {
                return;
            }
        }
    });
    Client::from_socket(local_end.into(), ClientConfig { timeout, ..Default::default() })
}

/// Reads a message, or returns `None` at the end of the stream.
fn read_request(stream: &mut UnixStream) -> Option<(Header, Vec<u8>)> {
    let mut bytes = [0; 16];
    stream.read_exact(&mut bytes).ok()?;
    let header = Header::parse(&bytes)?;
    let mut payload = vec![0; header.size as usize - 16];
    stream.read_exact(&mut payload).ok()?;
    Some((header, payload))
}

fn client_of_script(script: Script) -> Client {
    connect_to_script(b"", TIMEOUT, script).unwrap()
}

/// Returns a script that answers each request with this payload.
fn reply_with(payload: Vec<u8>) -> Script {
    Box::new(move |header, _| message(Header::reply(header.id, header.command, payload.len()), &payload))
}

#[test]
fn server_that_states_no_limits_has_the_default_limits() {
    let limits = client_of_script(reply_with(vec![])).limits();

    assert_eq!((limits.max_msg_fds, limits.max_data_xfer_size), (1, 1 << 20));
    assert_eq!((limits.pgsizes, limits.max_dma_maps, limits.write_multiple), (4096, 65535, false));
}

#[test]
fn eventfds_to_a_server_with_default_limits_are_sent_one_per_message() {
    let requests = Arc::new(std::sync::Mutex::new(Vec::new()));
    let record = requests.clone();
    let script = Box::new(move |header: Header, payload: &[u8]| {
        // The low bytes of the first interrupt and of the number of interrupts.
        record.lock().unwrap().push((payload[12], payload[16]));
        Header::reply(header.id, header.command, 0).to_bytes().to_vec()
    });
    let client = client_of_script(script);
    let fds = [eventfd(), eventfd(), eventfd()];
    let slots: Vec<_> = fds.iter().map(|fd| Some(std::os::fd::AsFd::as_fd(fd))).collect();

    client.set_irqs(PCI_MSIX_IRQ, 4, IrqAction::Trigger, IrqPayload::EventFd(&slots)).unwrap();

    assert_eq!(*requests.lock().unwrap(), [(4, 1), (5, 1), (6, 1)]);
}

#[test]
fn invalid_version_reply_is_malformed() {
    for json in [&b"{"[..], b"[1]", b"{\"capabilities\":{\"max_data_xfer_size\":0}}", b"\xff"] {
        let client = connect_to_script(json, TIMEOUT, reply_with(vec![]));

        assert!(matches!(client, Err(ClientError::Malformed { command: Command::Version, .. })), "{json:?}");
    }
}

#[test]
fn version_that_was_not_proposed_is_malformed() {
    for version in [[1, 0, 0, 0], [0, 0, 1, 0]] {
        let client = connect_to_script_with_version(version.to_vec(), TIMEOUT, reply_with(vec![]));

        let error = client.unwrap_err();
        assert!(matches!(error, ClientError::Malformed { command: Command::Version, .. }), "{error}");
    }
}

#[test]
fn silent_server_times_out() {
    let (local_end, _remote_end) = UnixStream::pair().unwrap();
    let started = Instant::now();

    let error = Client::from_socket(local_end.into(), ClientConfig { timeout: SHORT, ..Default::default() })
        .unwrap_err();

    assert!(matches!(error, ClientError::Timeout { command: Command::Version, .. }));
    assert!(started.elapsed() >= SHORT && started.elapsed() < TIMEOUT);
}

#[test]
fn reply_with_bad_framing_ends_the_client() {
    for size in [0, 15, 1 << 30] {
        let script = Box::new(move |header: Header, _: &[u8]| {
            Header { size, ..Header::reply(header.id, header.command, 0) }.to_bytes().to_vec()
        });
        let client = client_of_script(script);

        let error = client.device_info().unwrap_err();

        assert!(matches!(error, ClientError::Disconnected { .. }), "{size}: {error:?}");
        assert!(!client.is_alive());
        assert!(matches!(client.reset(), Err(ClientError::Disconnected { .. })));
    }
}

#[test]
fn server_that_closes_instead_of_answering_is_disconnected() {
    let (local_end, mut remote_end) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let (header, _) = read_request(&mut remote_end).unwrap();
        remote_end.write_all(&message(Header::reply(header.id, Command::Version, 4), &[0; 4])).unwrap();
        read_request(&mut remote_end).unwrap();
    });
    let client = Client::from_socket(local_end.into(), ClientConfig::default()).unwrap();

    let error = client.device_info().unwrap_err();

    thread.join().unwrap();
    assert!(matches!(error, ClientError::Disconnected { reason } if matches!(*reason, FrameError::Closed)));
}

#[test]
fn replies_cut_short_are_malformed() {
    let client = client_of_script(reply_with(vec![1, 2, 3]));

    for error in [
        client.device_info().unwrap_err(),
        client.region_info(0).unwrap_err(),
        client.irq_info(0).unwrap_err(),
        client.region_read(0, 0, &mut [0; 4]).unwrap_err(),
        client.region_write(0, 0, &[0; 4], false).unwrap_err(),
    ] {
        assert!(matches!(error, ClientError::Malformed { .. }), "{error:?}");
    }
}

#[test]
fn read_reply_with_fewer_bytes_than_it_claims_is_malformed() {
    let client = client_of_script(reply_with(crate::common::access(0, 0, 4, &[1, 2])));

    assert!(matches!(client.region_read(0, 0, &mut [0; 4]), Err(ClientError::Malformed { .. })));
}

#[test]
fn region_info_that_always_grows_is_an_error() {
    for argsz in [5000, u32::MAX] {
        let script = Box::new(move |header: Header, payload: &[u8]| {
            let request = u32::from_le_bytes(payload[..4].try_into().unwrap());
            let mut reply = words(&[request.saturating_add(argsz), 0, 0, 0]);
            reply.extend([0; 16]);
            message(Header::reply(header.id, header.command, reply.len()), &reply)
        });
        let client = client_of_script(script);

        assert!(matches!(client.region_info(0), Err(ClientError::Malformed { .. })));
    }
}

#[test]
fn device_with_too_many_regions_is_malformed() {
    let client = client_of_script(reply_with(words(&[16, 3, u32::MAX, 1])));

    assert!(matches!(client.regions(), Err(ClientError::Malformed { .. })));
}

#[test]
fn replies_to_other_requests_are_dropped_until_the_deadline() {
    let script = Box::new(|header: Header, _: &[u8]| {
        let mut bytes = Header::reply(header.id.wrapping_add(1), header.command, 0).to_bytes().to_vec();
        bytes.extend(Header::reply(header.id, Command::DmaMap, 0).to_bytes());
        bytes
    });
    let client = connect_to_script(b"", SHORT, script).unwrap();

    assert!(matches!(client.device_info(), Err(ClientError::Timeout { .. })));
}

#[test]
fn server_that_floods_with_requests_cannot_pass_the_deadline() {
    let (local_end, remote_end) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let mut stream = remote_end;
        let payload = [0; 16];
        let request = message(Header::request(1, Command::DmaRead, 16, true), &payload);
        while stream.write_all(&request.repeat(100)).is_ok() {}
    });
    let started = Instant::now();

    let error = Client::from_socket(local_end.into(), ClientConfig { timeout: SHORT, ..Default::default() })
        .unwrap_err();

    assert!(matches!(error, ClientError::Timeout { .. }), "{error:?}");
    assert!(started.elapsed() < TIMEOUT);
    thread.join().unwrap();
}

#[test]
fn requests_that_a_client_cannot_serve_are_answered_with_an_errno() {
    let (local_end, mut remote_end) = UnixStream::pair().unwrap();
    remote_end.set_read_timeout(Some(TIMEOUT)).unwrap();
    let thread = std::thread::spawn(move || {
        let (header, _) = read_request(&mut remote_end).unwrap();
        let version = [0; 4];
        remote_end.write_all(&message(Header::reply(header.id, Command::Version, 4), &version)).unwrap();
        let huge = [[0xff; 8], [0xff; 8]].concat();
        let mut errors = Vec::new();
        for (command, payload) in [
            (Command::DmaRead, vec![0; 16]),
            (Command::DmaRead, huge.clone()),
            (Command::DmaWrite, huge),
            (Command::DmaWrite, vec![0; 3]),
            (Command::DeviceReset, vec![]),
            (Command::Unknown(99), vec![1]),
        ] {
            remote_end.write_all(&crate::common::request(command, &payload)).unwrap();
            let (reply, _) = read_request(&mut remote_end).unwrap();
            errors.push(reply.reply_error());
        }
        errors
    });
    let client = Client::from_socket(local_end.into(), ClientConfig::default()).unwrap();
    let mut served = 0;
    while served < 6 {
        served += client.poll_incoming(TIMEOUT).unwrap();
    }

    let errors = thread.join().unwrap();

    assert_eq!(
        errors,
        [Errno::EFAULT, Errno::EINVAL, Errno::EINVAL, Errno::EINVAL, Errno::ENOTSUP, Errno::ENOSYS].map(Some)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn arbitrary_replies_never_panic_and_never_pass_the_deadline(
        payload in proptest::collection::vec(any::<u8>(), 0..128),
        flags in 0u32..64,
    ) {
        let script = Box::new(move |header: Header, _: &[u8]| {
            let reply = Header { flags, ..Header::reply(header.id, header.command, payload.len()) };
            message(reply, &payload)
        });
        let client = connect_to_script(b"", Duration::from_millis(100), script);
        prop_assume!(client.is_ok());
        let client = client.unwrap();
        let started = Instant::now();

        let _ = client.region_info(1);
        let _ = client.region_read(0, 0, &mut [0; 8]);

        prop_assert!(started.elapsed() < TIMEOUT);
    }
}
