//! DMA messages on the second socket of a client that proposed one, and clients that misuse it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::{
    os::unix::net::UnixStream,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::common::{
    neighbour::Neighbour,
    raw::{access, device_info, posted, request, words},
    *,
};
use nicforge_engine::EngineSnapshot;
use nicforge_vfio_user::{
    DMA_FLAG_READ, DMA_FLAG_WRITE, Errno, PCI_MSIX_IRQ, PeerFd,
    socket::{Framed, ReadOutcome},
    wire::{Command, Header, parse_version},
};

/// A page of client memory without a descriptor.
const PAGE: u64 = 0x1000;
/// A number of error replies that are more bytes than a socket holds.
const MANY: usize = 16_384;
/// Time-out of DMA messages, and the time in which an idle engine is observed.
const SHORT: Duration = Duration::from_millis(50);

both_loops! {
    fn a_client_that_makes_no_call_is_served_its_dma_messages(config) {
        let served = Served::start(config);
        let plain = Arc::new(UnmappedMemory(Mutex::new([vec![3; 0x800], vec![0; 0x800]].concat())));
        let client = served.client_with_memory(A, plain.clone());
        assert!(client.limits().twin_socket);
        client.dma_map(range(0, 0, 0x1000), None).unwrap();
        enable(&client);
        let done = bind(&client, PCI_MSIX_IRQ, 0);

        copy(&client, 0, 0x800, 0x800).unwrap();
        // Only the eventfd ends this wait: the thread makes no call of the client.
        wait_for(&done);

        assert_eq!(plain.0.lock().unwrap()[0x800..], [3; 0x800]);
        assert_eq!(server_of(&served.snapshot(), A).dma_messages, 2);
    }

    fn data_of_the_device_are_in_memory_before_the_register_that_announces_them(config) {
        let served = Served::start(config);
        let plain = Arc::new(UnmappedMemory(Mutex::new(vec![0; 0x1000])));
        let client = served.client_with_memory(A, plain.clone());

        client.dma_map(range(0, 0, 0x1000), None).unwrap();
        enable(&client);
        let deadline = Instant::now() + LONG;
        for round in 1..=50_u8 {
            plain.0.lock().unwrap()[..0x400].fill(round);
            copy(&client, 0, 0x800, 0x400).unwrap();
            while read64(&client, reg::COPIED) != u64::from(round) {
                assert!(Instant::now() < deadline, "the copy did not end");
            }
            assert_eq!(plain.0.lock().unwrap()[0x800..0xc00], [round; 0x400]);
        }
    }

    fn an_unmap_waits_until_an_unanswered_dma_message_times_out(config) {
        config.dma_limit = SHORT;
        let served = Served::start(config);
        let mut sockets = TwoSockets::with_dma(&served);
        for _ in 0..2 {
            sockets.send(&doorbell(64));
            let read = sockets.message();
            assert_eq!(read.command, Command::DmaRead);

            // Without an answer the unmap continues when the engine has given the message up.
            sockets.send(&request(Command::DmaUnmap, &unmap_payload()));
            assert_eq!(sockets.reply(), (Command::DmaUnmap, None));
            sockets.ask(Command::DmaMap, &map_payload());
        }
        assert_eq!(server_of(&served.snapshot(), A).dma_timeouts, 2);
    }

    fn a_client_that_closes_its_second_socket_gets_errors_and_causes_few_turns(config) {
        let served = Served::start(config);
        let mut sockets = TwoSockets::with_dma(&served);
        sockets.send(&doorbell(64));
        sockets.message();

        let TwoSockets { main, second_socket } = sockets;
        drop(second_socket);

        let snapshot = served.wait_until("the device gets an error", |snapshot| dma_errors(snapshot) == 1);
        assert!(client_of(&snapshot, A).is_some());
        let other = served.client(B);
        let before = served.snapshot().turns;
        // No request comes for a while.
        assert_eq!(other.poll_incoming(SHORT).unwrap(), 0);
        let turns = served.snapshot().turns - before;
        assert!(turns < 100, "{turns} turns in {SHORT:?}");
        drop(main);
        served.wait_until_free(A);
    }

    fn a_client_with_bad_framing_on_its_second_socket_loses_the_attachment(config) {
        let served = Served::start(config);
        let mut sockets = TwoSockets::with_dma(&served);

        sockets.second_socket.send(&[0xff; 64], &[], &[]).unwrap();

        assert_eq!(server_of(&served.wait_until_free(A), A).broken, 1);
        served.client(A).device_info().unwrap();
    }

    fn a_client_that_never_reads_its_full_second_socket_delays_no_other(config) {
        let neighbour = Neighbour::start(config);
        let mut sockets = TwoSockets::with_dma(&neighbour.served);
        sockets.fill(&neighbour.served);

        sockets.send(&device_info());
        neighbour.assert_served();

        // The request waits for the second socket, and its client keeps the attachment.
        assert_eq!(sockets.main.fill().unwrap(), ReadOutcome::WouldBlock);
        assert!(client_of(&neighbour.served.snapshot(), A).is_some());
        drop(sockets);
        neighbour.assert_served_and_reusable();
    }

    fn a_full_second_socket_causes_few_turns(config) {
        let served = Served::start(config);
        let (mut sockets, other) = (TwoSockets::with_dma(&served), served.client(B));
        sockets.fill(&served);

        let before = served.snapshot().turns;
        // No request comes for a while.
        assert_eq!(other.poll_incoming(SHORT).unwrap(), 0);

        let turns = served.snapshot().turns - before;
        assert!(turns < 100, "{turns} turns in {SHORT:?}");
        drop(sockets);
        served.wait_until_free(A);
    }

    fn a_client_that_floods_its_second_socket_does_not_delay_another(config) {
        let served = Served::start(config);
        let sockets = TwoSockets::with_dma(&served);
        let TwoSockets { main, mut second_socket } = sockets;
        let flood = std::thread::spawn(move || {
            let stray = Header::reply(1, Command::DmaRead, 0).to_bytes().repeat(256);
            while second_socket.send(&stray, &[], &[]).and_then(|()| second_socket.flush()).is_ok() {
                while second_socket.queued() > 0 && second_socket.flush().is_ok() {
                    std::thread::yield_now();
                }
            }
        });
        let other = served.client(B);

        for value in 0..200 {
            write32(&other, reg::SCRATCH, value);
            assert_eq!(read32(&other, reg::SCRATCH), value);
        }
        drop(main);
        served.wait_until_free(A);
        flood.join().unwrap();
    }
}

/// The client's ends of both sockets.
struct TwoSockets {
    main: Framed,
    second_socket: Framed,
}

impl TwoSockets {
    /// Makes a client that has mapped [`PAGE`] and lets the device start DMA, which copies from
    /// there.
    fn with_dma(served: &Served) -> Self {
        let stream = UnixStream::connect(served.path(A)).unwrap();
        let mut main = Framed::new(stream.into(), 1 << 21, 8);
        let json = br#"{"capabilities":{"max_msg_fds":8,"twin_socket":{"supported":true}}}"#;
        let version = [&[0; 4], &json[..], &[0]].concat();
        main.send(&request(Command::Version, &version), &[], &[]).unwrap();
        let mut fds = wait(&mut main, |_, payload, fds| {
            assert!(parse_version(payload).unwrap().capabilities.unwrap().twin_socket.is_some());
            fds
        });
        let mut sockets = Self { main, second_socket: Framed::new(fds.remove(0).into(), 1 << 21, 0) };

        sockets.ask(Command::DmaMap, &map_payload());
        let command = (MEMORY_DECODE | BUS_MASTER).to_le_bytes();
        sockets.ask(Command::RegionWrite, &access(COMMAND, CONFIG_REGION, 2, &command));
        for offset in [reg::SOURCE, reg::TARGET] {
            sockets.ask(Command::RegionWrite, &access(offset, 0, 8, &PAGE.to_le_bytes()));
        }
        sockets
    }

    fn send(&mut self, bytes: &[u8]) {
        self.main.send(bytes, &[], &[]).unwrap();
    }

    fn reply(&mut self) -> (Command, Option<Errno>) {
        wait(&mut self.main, |header, _, _| (header.command, header.reply_error()))
    }

    fn ask(&mut self, command: Command, payload: &[u8]) {
        self.send(&request(command, payload));
        assert_eq!(self.reply(), (command, None));
    }

    /// Sends commands on the second socket, which the server refuses, and reads no answer. The
    /// answers fill the socket, and the rest waits in the server.
    fn fill(&mut self, served: &Served) {
        let messages = |snapshot: &EngineSnapshot| client_of(snapshot, A).unwrap().messages;
        let before = messages(&served.snapshot());

        let commands = request(Command::DeviceGetInfo, &[]).repeat(MANY);
        self.second_socket.send(&commands, &[], &[]).unwrap();
        let deadline = Instant::now() + LONG;
        while self.second_socket.queued() > 0 {
            assert!(Instant::now() < deadline, "the commands are not read");
            self.second_socket.flush().unwrap();
            std::thread::yield_now();
        }

        served.wait_until("all commands are refused", |snapshot| messages(snapshot) >= before + MANY as u64);
    }

    /// Returns the next message on the second socket.
    fn message(&mut self) -> Header {
        wait(&mut self.second_socket, |header, _, _| header)
    }
}

/// Waits for the next message of a socket, and returns the result of `read` for its parts.
fn wait<T>(socket: &mut Framed, read: impl FnOnce(Header, &[u8], Vec<PeerFd>) -> T) -> T {
    let deadline = Instant::now() + LONG;

    loop {
        if let Some(message) = socket.next_message().unwrap() {
            return read(message.header, message.payload, message.fds);
        }
        assert_ne!(socket.fill().unwrap(), ReadOutcome::End);
        assert!(Instant::now() < deadline, "no message came");
        std::thread::yield_now();
    }
}

/// Returns the payload of a DMA_MAP of [`PAGE`] for reading and writing.
fn map_payload() -> Vec<u8> {
    let flags = DMA_FLAG_READ | DMA_FLAG_WRITE;
    [&words(&[32, flags])[..], &[0, PAGE, PAGE].map(u64::to_le_bytes).concat()].concat()
}

/// Returns the payload of a DMA_UNMAP of [`PAGE`].
fn unmap_payload() -> Vec<u8> {
    [&words(&[24, 0])[..], &[PAGE, PAGE].map(u64::to_le_bytes).concat()].concat()
}

/// Returns a posted write that starts a copy of this many bytes.
fn doorbell(length: u32) -> Vec<u8> {
    posted(Command::RegionWrite, &access(reg::COPY, 0, 4, &length.to_le_bytes()))
}

/// Returns how many DMA operations of attachment A have failed.
fn dma_errors(snapshot: &EngineSnapshot) -> u64 {
    snapshot.functions[0].attachments[0].counters.dma_errors
}
