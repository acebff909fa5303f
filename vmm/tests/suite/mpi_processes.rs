//! Matching over the EXTOLL card between processes. One is killed during a rendezvous, and its
//! neighbours must continue. Other tests run the transport's programs with `nicforge run`.
//!
//! The test binary itself is the process that is killed, when it runs only [`child_process_body`].

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use nicforge_driver::{Deadline, Device, OpenOptions, Relax};
use nicforge_extoll_transport::{Config, ExtollTransport, Job};
use nicforge_matching::{Completion, Endpoint, Envelope, Error, Loss, Mode, Request, Selector, Transport};
use nicforge_velo::Address;

use crate::{
    built::{built, workspace},
    child_process::{ChildProcess, report},
    server::Server,
};

/// The served machine: two cards.
const MACHINE: &str = "name = \"mpi\"\n[[extoll]]\nmesh = 2\nvpids = 4\n";
/// The longest wait.
const LIMIT: Duration = Duration::from_secs(60);
/// Number of times that the process is killed in each role.
const ROUNDS: u64 = 3;
/// Bytes of the messages during which it is killed.
const LONG: usize = 8 << 20;
/// Number of complete long messages after which it is killed.
const MESSAGES_BEFORE_KILL: u64 = 3;
/// The value of each byte of a long message.
const PATTERN: u8 = 0x5a;
/// The environment's value of `MPI_ROLE` for a victim that sends. All others receive.
const SOURCE: &str = "source";
/// The addresses of the ranks. The victim has rank 1.
const RANKS: [Address; 3] =
    [Address { node: 0, vpid: 0 }, Address { node: 1, vpid: 0 }, Address { node: 1, vpid: 1 }];

type Rank = Endpoint<ExtollTransport>;

/// Opens a rank. It retries, because the server notices the end of the rank's previous process only
/// after some time.
fn open(folder: &Path, rank: usize) -> Rank {
    let Address { node, vpid } = RANKS[rank];
    let socket = folder.join(format!("ex{node}.vpid{vpid}"));
    let started = Instant::now();

    loop {
        match Device::open_vfio_user(&socket, OpenOptions::default()) {
            Ok(device) => {
                let job = Job::new(RANKS.to_vec());
                let transport = ExtollTransport::open(device, &job, Config::default()).unwrap();
                return Endpoint::new(transport, Default::default()).unwrap();
            }
            Err(error) => assert!(started.elapsed() < LIMIT, "{}: {error}", socket.display()),
        }
        crate::pause();
    }
}

fn send(rank: &mut Rank, to: u32, tag: u64, data: Vec<u8>) -> Request {
    rank.isend(Envelope::new(to, 0, tag), Mode::Standard, data, 0).unwrap()
}

fn receive(rank: &mut Rank, from: u32, tag: u64, length: usize) -> Request {
    rank.irecv(Selector::exact(from, 0, tag), vec![0; length], 0).unwrap()
}

/// This is no test. It is the process that is killed, when the environment selects a role. It sends
/// or receives long messages until then.
#[test]
fn child_process_body() {
    let (Some(folder), Ok(role)) = (std::env::var_os("MPI_FOLDER"), std::env::var("MPI_ROLE")) else {
        return;
    };
    let mut rank = open(Path::new(&folder), 1);
    let mut data = vec![PATTERN; LONG];

    for number in 0.. {
        let request = if role == SOURCE {
            send(&mut rank, 0, 0, data)
        } else {
            rank.irecv(Selector::exact(0, 0, 0), data, 0).unwrap()
        };

        let done = rank.wait(request, Deadline::after(LIMIT), None).unwrap();
        done.result.unwrap();
        data = done.buffer.into_vec().unwrap();
        if number + 1 == MESSAGES_BEFORE_KILL {
            report("transferring");
        }
    }
}

/// The victim's side of the long messages.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Source,
    Target,
}

/// Starts the process that is killed.
fn victim(folder: &Path, role: Role) -> ChildProcess {
    let role = match role {
        Role::Source => SOURCE,
        Role::Target => "target",
    };

    ChildProcess::start("mpi_processes", &[("MPI_FOLDER", folder.as_os_str()), ("MPI_ROLE", role.as_ref())])
}

/// A pair of ranks that continuously exchange short and long messages.
struct Neighbours {
    ranks: [Rank; 2],
    /// The pending requests: the send of the first rank, and the receive of the second.
    pending: [Option<Request>; 2],
    exchanged: u64,
}

impl Neighbours {
    /// Returns the bytes of the next message.
    fn length(&self) -> usize {
        [8, 2048, 100_000][self.exchanged as usize % 3]
    }

    /// Makes a turn of both ranks, and checks the exchanged messages.
    fn progress_and_exchange(&mut self) {
        for rank in &mut self.ranks {
            rank.progress().unwrap();
        }

        let tag = 1 + self.exchanged;
        let [zero, two] = &mut self.ranks;

        for (rank, pending) in [zero, two].into_iter().zip(&mut self.pending) {
            let Some(request) = *pending else { continue };
            if let Some(done) = rank.test(request).unwrap() {
                assert_eq!(done.result, Ok(()));
                assert!(done.buffer.as_slice().iter().all(|byte| *byte == tag as u8));
                *pending = None;
            }
        }

        if self.pending == [None, None] {
            self.exchanged += 1;
            self.start();
        }
    }

    /// Starts the next message.
    fn start(&mut self) {
        let (tag, length) = (1 + self.exchanged, self.length());
        let [zero, two] = &mut self.ranks;
        let sent = send(zero, 2, tag, vec![tag as u8; length]);
        self.pending = [Some(sent), Some(receive(two, 0, tag, length))];
    }

    /// Drives both ranks until `attempt` returns a value.
    fn drive_until<R>(&mut self, description: &str, mut attempt: impl FnMut(&mut Self) -> Option<R>) -> R {
        let (deadline, mut relax) = (Deadline::after(LIMIT), Relax::new());
        loop {
            if let Some(value) = attempt(self) {
                return value;
            }
            assert!(!deadline.has_passed(), "no {description}");
            self.progress_and_exchange();
            relax.reset();
            self.ranks[0].transport_mut().relax(&mut relax).unwrap();
        }
    }

    /// Drives both ranks until they have exchanged this many further messages.
    fn exchange(&mut self, messages: u64) {
        let total = self.exchanged + messages;
        self.drive_until("messages", |pair| (pair.exchanged >= total).then_some(()));
    }
}

/// Exchanges long messages with the victim until one fails, and returns that one's completion. The
/// victim is killed in the middle of a message, after [`MESSAGES_BEFORE_KILL`] complete ones.
fn exchange_until_victim_is_killed(
    pair: &mut Neighbours,
    victim: &mut ChildProcess,
    role: Role,
) -> Completion {
    let mut is_killed = false;
    let mut data = vec![PATTERN; LONG];

    for number in 0.. {
        let before = pair.ranks[0].transport().statistics();
        let request = match role {
            Role::Source => pair.ranks[0].irecv(Selector::exact(1, 0, 0), data, 0).unwrap(),
            Role::Target => send(&mut pair.ranks[0], 1, 0, data),
        };

        let done = pair.drive_until("end of a long message", |pair| {
            // A receiver fetches a long message by gets, so its first get shows that the transfer
            // has begun. A sender does not see the gets of its receiver.
            let gets = pair.ranks[0].transport().statistics().gets;
            let has_begun = role == Role::Target || gets > before.gets;
            if !is_killed && has_begun && number >= MESSAGES_BEFORE_KILL && victim.next().is_some() {
                victim.kill();
                is_killed = true;
            }
            pair.ranks[0].test(request).unwrap()
        });

        if done.result.is_err() {
            assert!(is_killed, "{:?}", done.result);
            return done;
        }

        if role == Role::Source {
            assert!(done.buffer.as_slice().iter().all(|byte| *byte == PATTERN), "message {number}");
        }

        data = done.buffer.into_vec().unwrap();
    }

    unreachable!("numbers do not end")
}

/// Kills a rank again and again in the middle of a rendezvous, and checks what the others see.
fn check_kill_in_the_middle(event_loop: &str) {
    let server = Server::of_text(MACHINE, event_loop);
    let folder = server.directory();

    for round in 0..2 * ROUNDS {
        let role = if round % 2 == 0 { Role::Source } else { Role::Target };
        let ranks = [open(&folder, 0), open(&folder, 2)];
        let mut pair = Neighbours { ranks, pending: [None, None], exchanged: 0 };
        pair.start();
        let mut victim = victim(&folder, role);
        pair.exchange(10);
        let done = exchange_until_victim_is_killed(&mut pair, &mut victim, role);
        let error = done.result.unwrap_err();

        // A get in flight may be the first operation that fails.
        assert!(error.is_peer() || matches!(error, Error::Transport(_)), "{error}");
        let peer_gone = Err(Error::PeerGone { peer: 1, why: Loss::Ended });
        // An eager send before the report of the end is complete. After the report every operation
        // fails.
        let attempts: [fn(&mut Rank) -> Request; 3] = [
            |rank| receive(rank, 1, 9, 8),
            |rank| send(rank, 1, 9, vec![0; 8]),
            |rank| send(rank, 1, 9, vec![0; LONG]),
        ];

        for attempt in attempts {
            let request = attempt(&mut pair.ranks[0]);
            let done = pair.drive_until("the report of its end", |pair| pair.ranks[0].test(request).unwrap());
            assert_eq!(done.result, peer_gone);
        }

        let named = receive(&mut pair.ranks[1], 1, 9, 8);
        let done = pair.drive_until("the report of its end", |pair| pair.ranks[1].test(named).unwrap());

        assert_eq!(done.result, peer_gone);
        pair.exchange(30);
    }
}

#[test]
fn a_process_killed_in_the_middle_of_a_rendezvous_is_an_error_to_its_partner_and_nothing_to_the_others() {
    check_kill_in_the_middle("auto");
}

#[test]
fn a_process_killed_in_the_middle_of_a_rendezvous_is_an_error_with_epoll() {
    check_kill_in_the_middle("epoll");
}

/// Runs an example on each node of a machine, and returns its output.
fn run(example: &str, arguments: &[&str]) -> String {
    let folder = built(&["--package", "nicforge-extoll-transport", "--example", example]);
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_nicforge"))
        .arg("run")
        .arg(workspace().join("machines/extoll.toml"))
        .arg("--dir")
        .arg(directory.path().join("m"))
        .arg("--")
        .arg(folder.join("examples").join(example))
        .args(arguments)
        .output()
        .unwrap();

    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");

    out.into_owned()
}

/// Returns the columns of the lines that begin with numbers.
fn table(text: &str) -> Vec<Vec<f64>> {
    let columns = |line: &str| -> Option<Vec<f64>> {
        line.split_once('|')?.1.split_whitespace().map(|word| word.parse().ok()).collect()
    };
    text.lines().filter_map(columns).filter(|row: &Vec<f64>| !row.is_empty()).collect()
}

#[test]
fn the_message_rate_program_has_a_row_for_each_number_of_pairs_and_size() {
    let rows = table(&run("message_rate", &["2"]));
    let expected: Vec<_> = [1.0, 2.0, 4.0]
        .iter()
        .flat_map(|pairs| (0..=12).map(|power| [*pairs, f64::from(1 << power)]))
        .collect();
    assert_eq!(rows.iter().map(|row| [row[0], row[1]]).collect::<Vec<_>>(), expected);
    assert!(rows.iter().all(|row| row[3] > 0.0), "{rows:?}");
}

#[test]
fn the_ping_pong_program_has_a_time_for_each_size() {
    let rows = table(&run("ping_pong", &["20"]));
    assert_eq!(rows.len(), 21);
    assert!(rows.iter().all(|row| row[1] > 0.0 && row[2] >= row[1]), "{rows:?}");
}

#[test]
fn random_access_ends_with_a_table_without_errors() {
    let text = run("random_access", &["10"]);
    assert!(text.contains("8 ranks, 8192 words, 32768 updates"), "{text}");
    assert!(text.contains("0 words are wrong (0.0000 %)"), "{text}");
}
