//! VELO between processes of a served machine. One is killed while its neighbours send to it, and
//! its VPID gets a new owner.
//!
//! The test binary itself is the program on the node, when it runs only [`child_process_body`].

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use nicforge_driver::{Deadline, Device, OpenOptions, Relax};
use nicforge_velo::{Address, Config, Error, Filter, Port};

use crate::{
    child_process::{ChildProcess, report},
    server::Server,
};

/// The longest wait.
const LIMIT: Duration = Duration::from_secs(30);
/// Number of times that the process is killed.
const ROUNDS: u64 = 8;
/// The address of the process that is killed.
const VICTIM: Address = Address { node: 1, vpid: 0 };

fn test_deadline() -> Deadline {
    Deadline::after(LIMIT)
}

/// Opens a VPID. It retries, because the server notices the end of the previous client only after
/// some time.
fn open(socket: &Path) -> Port {
    let started = Instant::now();
    loop {
        match Device::open_vfio_user(socket, OpenOptions::default()) {
            Ok(device) => return Port::open(device, Config::default()).unwrap(),
            Err(error) => assert!(started.elapsed() < LIMIT, "{}: {error}", socket.display()),
        }
        crate::pause();
    }
}

/// This is no test. It is the process on the node, when the environment selects it. It receives
/// messages of its own round until it is killed.
#[test]
fn child_process_body() {
    let (Some(socket), Ok(round)) = (std::env::var_os("VELO_SOCKET"), std::env::var("VELO_ROUND")) else {
        return;
    };
    let round: u64 = round.parse().unwrap();
    let mut port = open(Path::new(&socket));
    report("ready");
    let mut counts = BTreeMap::<Address, u32>::new();
    let mut has_reported = false;

    loop {
        let message = port.recv(Filter::ANY, test_deadline(), None).unwrap();
        if message.quadword(0) != round {
            report(format_args!("message of round {}", message.quadword(0)));
            return;
        }

        *counts.entry(message.from).or_default() += 1;
        // Both neighbours are in the middle of sending.
        if !has_reported && counts.len() == 2 && counts.values().all(|count| *count >= 300) {
            has_reported = true;
            report("transferring");
        }
    }
}

/// Starts the process that receives messages of a round and is killed.
fn victim(socket: &Path, round: u64) -> ChildProcess {
    let round = OsString::from(round.to_string());
    ChildProcess::start("velo_processes", &[("VELO_SOCKET", socket.as_os_str()), ("VELO_ROUND", &round)])
}

/// A machine with two cards.
const MACHINE: &str = "name = \"velo\"\n[[extoll]]\nmesh = 2\nvpids = 4\n";

/// Returns the socket of a VPID.
fn socket(server: &Server, at: Address) -> PathBuf {
    server.socket(&format!("ex{}.vpid{}", at.node, at.vpid))
}

/// Sends messages of a round until the victim is gone.
fn send_until_victim_ends(port: &mut Port, round: u64) {
    let deadline = test_deadline();
    // The first calls may still report the end of the previous victim.
    let link = loop {
        if let Some(link) = none_if_victim_ended(port.connect(VICTIM, test_deadline(), None)) {
            break link;
        }
        assert!(!deadline.has_passed(), "the end of the victim is still reported");
    };

    while none_if_victim_ended(port.send(link, 1, &round.to_le_bytes(), test_deadline(), None)).is_some()
        || port.is_up(VICTIM)
    {
        assert!(!deadline.has_passed(), "the victim is not gone");
    }
    // The card may have dropped some messages. It reports that with the same error, or not at all.
    let deadline = test_deadline();
    let mut relax = Relax::new();

    while port.is_up(VICTIM) {
        assert!(!deadline.has_passed(), "the directory does not show the victim's end");
        none_if_victim_ended(port.progress());
        port.device().relax(&mut relax).unwrap();
    }

    match port.check() {
        Ok(()) => {}
        Err(error) => assert_eq!(error, Error::PeerGone { address: VICTIM }),
    }
}

/// Returns the value of a call, or `None` when the call reports the victim's end.
fn none_if_victim_ended<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert_eq!(error, Error::PeerGone { address: VICTIM });
            None
        }
    }
}

/// Kills the victim again and again while both neighbours send to it, and checks that they see its
/// end, still reach each other, and that its successor gets no message of an earlier round.
fn check_kill_while_neighbours_send(event_loop: &str) {
    let server = Server::of_text(MACHINE, event_loop);
    let neighbours = [Address { node: 0, vpid: 0 }, Address { node: 1, vpid: 1 }];
    let mut ports = neighbours.map(|at| open(&socket(&server, at)));

    for round in 1..=ROUNDS {
        let victim = self::victim(&socket(&server, VICTIM), round);
        victim.expect("ready");
        thread::scope(|scope| {
            let senders: Vec<_> = ports
                .iter_mut()
                .map(|port| scope.spawn(move || send_until_victim_ends(port, round)))
                .collect();
            victim.expect("transferring");
            drop(victim);
            for sender in senders {
                sender.join().unwrap();
            }
        });

        // The neighbours still reach each other. Any of these calls may report messages to the
        // victim that the card dropped.
        let (first, second) = ports.split_at_mut(1);
        let deadline = test_deadline();
        let link = loop {
            if let Some(link) = none_if_victim_ended(first[0].connect(neighbours[1], test_deadline(), None)) {
                break link;
            }
            assert!(!deadline.has_passed(), "the end of the victim is still reported");
        };

        loop {
            match first[0].send_nb(link, 2, &round.to_le_bytes()) {
                Ok(()) => break,
                Err(Error::WouldBlock) => {}
                Err(error) => assert_eq!(error, Error::PeerGone { address: VICTIM }),
            }
            assert!(!deadline.has_passed(), "there is never room");
            none_if_victim_ended(first[0].progress());
            none_if_victim_ended(second[0].progress());
        }

        let message = loop {
            if let Some(message) =
                none_if_victim_ended(second[0].recv(Filter::from(neighbours[0]), test_deadline(), None))
            {
                break message;
            }
            assert!(!deadline.has_passed(), "the end of the victim is still reported");
        };

        assert_eq!(message.quadword(0), round);
    }
}

#[test]
fn killed_process_is_an_error_to_its_neighbours_and_its_successor_sees_nothing_old() {
    check_kill_while_neighbours_send("auto");
}

#[test]
fn killed_process_is_an_error_to_its_neighbours_with_epoll() {
    check_kill_while_neighbours_send("epoll");
}
