//! vfio-user messages to a served machine. A client sends messages of every type with any payload
//! and descriptors to the engine, which carries them out on real devices. The client's neighbour
//! continues, and the attachment's next client is served.

use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::{Duration, Instant},
};

use nicforge_core::ids::{AttachmentId, FunctionId};
use nicforge_engine::{Engine, EngineConfig, Quotas, Stop};
use nicforge_hwi::proof::slot_fifo;
use nicforge_machine::build::build;
use nicforge_vfio_user::{
    Client, PCI_CONFIG_REGION,
    wire::{Command, HEADER_SIZE, Header, MessageType, VersionMessage, build_version},
};
use tempfile::TempDir;

use crate::{
    input::Input,
    messages::{Message, message, send},
    world::{self, ENGINE, FIFO, SEND},
};

/// Maximum number of messages in one input.
const MAX: usize = 48;
/// Time limit of operations that must succeed.
const LIMIT: Duration = Duration::from_secs(60);
/// Time to wait for a stalled access or an unanswered DMA message.
const SHORT: Duration = Duration::from_millis(10);
/// Id of the request whose answer shows that all earlier ones were served.
const MARKER: u16 = 0xffff;

/// Runs the test body on one fuzz input. The module's documentation describes the steps.
pub fn body(data: &[u8]) {
    let mut input = Input::new(data);
    let function = input.pick(&[ENGINE, FIFO, SEND, FunctionId(1)]);
    let client_id = (function, AttachmentId(0));
    let config = EngineConfig {
        quotas: Quotas { mapped_bytes: 64 << 10, files: 4, ranges: 8, ..Quotas::default() },
        stall_limit: SHORT,
        dma_limit: SHORT,
        messages: input.pick(&[16, 1]),
        ..EngineConfig::default()
    };

    let (machine, _) = build(&world::plan(8)).unwrap();
    let mut engine = Engine::new(machine, config).unwrap();
    let [hostile, neighbour] = ["hostile", "neighbour"].map(socket);

    engine.listen(client_id.0, client_id.1, &hostile).unwrap();
    engine.listen(FIFO, AttachmentId(3), &neighbour).unwrap();
    let stop = Stop::new().unwrap();
    std::thread::scope(|scope| {
        let (engine, stop_of_engine) = (&mut engine, stop.clone());
        let served = scope.spawn(move || engine.run(&stop_of_engine).unwrap());
        let client = Client::connect(&neighbour, LIMIT).unwrap();

        attack(&hostile, &mut input);
        check_works(&client, 1);
        let successor = connect_after(&hostile);

        assert!(successor.device_info().unwrap().num_regions > 0);

        let mut vendor = [0; 2];
        successor.region_read(PCI_CONFIG_REGION, 0, &mut vendor).unwrap();
        assert_eq!(u16::from_le_bytes(vendor), nicforge_hwi::pci::VENDOR_ID);

        successor.reset().unwrap();
        check_works(&client, 0);
        stop.stop();
        served.join().unwrap();
    });
}

/// Connects the hostile client, which sends messages until the server or the input ends.
fn attack(path: &Path, input: &mut Input<'_>) {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();

    if input.below(16) > 0 {
        let version = VersionMessage { major: 0, minor: 0, has_json: false, capabilities: None };
        let payload = build_version(&version);
        let header = Header::request(0, Command::Version, payload.len(), false);
        let _ = stream.write_all(&[&header.to_bytes()[..], &payload].concat());
    }

    if input.flag() {
        // Enables memory and bus mastering in the PCI command register, so that the function can
        // start DMA.
        post(&mut stream, PCI_CONFIG_REGION, 4, &6_u16.to_le_bytes());
    }

    for number in 0..MAX {
        if input.is_empty() {
            break;
        }

        let next = message(input);
        if !deliver(&mut stream, next) {
            return;
        }

        if number % 8 == 7 && !is_served(&mut stream) {
            return;
        }
    }

    let _ = is_served(&mut stream);
}

/// Sends a write that asks for no reply.
fn post(stream: &mut UnixStream, region: u32, offset: u64, data: &[u8]) {
    let head =
        [&offset.to_le_bytes()[..], &region.to_le_bytes(), &(data.len() as u32).to_le_bytes()].concat();
    let header = Header::request(1, Command::RegionWrite, head.len() + data.len(), true);
    let _ = stream.write_all(&[&header.to_bytes()[..], &head, data].concat());
}

/// Sends a message and returns whether the server took all of it. If not, the server has closed the
/// connection, or waits for this client to read, which ends the input.
fn deliver(stream: &mut UnixStream, message: Message) -> bool {
    let sent = send(stream, &message.bytes, &message.fds);
    sent == message.bytes.len()
}

/// Sends one more request and waits for its answer. Returns false when the server has closed the
/// connection.
fn is_served(stream: &mut UnixStream) -> bool {
    // The payload is as long as the reply's. Its first word says so.
    let mut payload = [0; 16];
    payload[0] = payload.len() as u8;
    let header = Header::request(MARKER, Command::DeviceGetInfo, payload.len(), false);
    if stream.write_all(&[&header.to_bytes()[..], &payload].concat()).is_err() {
        return false;
    }

    loop {
        let mut bytes = [0; HEADER_SIZE];
        match stream.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("the server does not answer and does not hang up")
            }
            Err(_) => return false,
        }

        let header = Header::parse(&bytes).unwrap();
        let mut payload = vec![0; header.size as usize - HEADER_SIZE];
        if stream.read_exact(&mut payload).is_err() {
            return false;
        }

        let reply = header.message_type() == MessageType::Reply;
        if reply && header.id == MARKER && header.command == Command::DeviceGetInfo {
            return true;
        }
    }
}

/// Checks that the neighbour's device takes a value and returns it.
fn check_works(client: &Client, value: u32) {
    let mut bytes = [0; 4];
    client.region_write(0, slot_fifo::REG_HOLD, &value.to_le_bytes(), false).unwrap();
    client.region_read(0, slot_fifo::REG_HOLD, &mut bytes).unwrap();
    assert_eq!(u32::from_le_bytes(bytes), value);
}

/// Connects the next client, once the server has noticed that the last one is gone.
fn connect_after(path: &Path) -> Client {
    let started = Instant::now();
    loop {
        match Client::connect(path, LIMIT) {
            Ok(client) => return client,
            Err(error) => assert!(started.elapsed() < LIMIT, "{error}"),
        }
        std::thread::yield_now();
    }
}

/// Returns the path of a socket, which the inputs use one after the other.
fn socket(name: &str) -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path().join(name)
}
