//! Matching over Blue Gene/Q's Message Unit on a served machine: all-to-all and RandomAccess on 32
//! nodes with the data checked, and ranks that are killed in the middle of transfers.
//!
//! The test binary itself is the process that is killed, when it runs only [`child_process_body`].

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::{
    path::Path,
    time::{Duration, Instant},
};

use nicforge_driver::{Deadline, Device, OpenOptions, Relax};
use nicforge_matching::{Completion, Endpoint, Envelope, Error, Loss, Mode, Request, Selector, Transport};
use nicforge_mpi_programs::{
    Program,
    all_to_all::{Blocks, Parameters},
    drive,
    random_access::{Table, Updates},
};
use nicforge_mu_transport::{Config, Job, MuTransport, RankAddress};

use crate::{
    built::built,
    c_program::run,
    child_process::{ChildProcess, report},
    server::Server,
};

/// The longest wait.
const LIMIT: Duration = Duration::from_secs(60);
/// Time after which a rank that is gone is given up.
const RANK_TIMEOUT: Duration = Duration::from_secs(3);
/// Nodes of `machines/bgq.toml`.
const NODES: u32 = 32;
/// Bytes of a message that is fetched, and of one that is sent eagerly in three packets.
const LONG: usize = 4 << 20;
const SHORT: usize = 1_500;
/// The value of each byte of a message with the killed process.
const PATTERN: u8 = 0x5a;
/// Number of complete messages after which the process is killed.
const MESSAGES_BEFORE_KILL: u64 = 3;

type Rank = Endpoint<MuTransport>;

/// Opens a rank. It retries, because the server notices the end of a subgroup's previous process
/// only after some time.
fn open(folder: &Path, job: &Job, rank: u32, config: Config) -> Rank {
    let RankAddress { node, subgroup } = job.address(rank).unwrap();
    let socket = folder.join(format!("bgq{node}.s{subgroup}"));
    let started = Instant::now();

    loop {
        match Device::open_vfio_user(&socket, OpenOptions::default()) {
            Ok(device) => {
                let transport = MuTransport::open(&device, job, config).unwrap();
                return Endpoint::new(transport, Default::default()).unwrap();
            }
            Err(error) => assert!(started.elapsed() < LIMIT, "{}: {error}", socket.display()),
        }
        crate::pause();
    }
}

/// Drives the programs of all ranks to their end.
fn finish<P: Program>(mut ranks: Vec<P>) {
    let result = drive(&mut ranks, Deadline::after(LIMIT), &mut Relax::new());
    assert!(result.is_ok(), "{:?}", result.err().map(|error| error.to_string()));
}

#[test]
fn all_to_all_and_random_access_are_right_on_32_served_nodes() {
    let server = Server::of_machine("bgq.toml", &[]);
    let job = Job::of_nodes(NODES, 1);
    let mut ranks: Vec<_> =
        (0..NODES).map(|rank| open(&server.directory(), &job, rank, Config::default())).collect();

    // Eager messages of one packet and of several, and fetched ones.
    for (context, bytes) in [(1, 8), (2, 1_000), (3, 5_001)] {
        let terms = Parameters { bytes, rounds: 2, context };
        finish(ranks.iter_mut().map(|rank| Blocks::new(rank, terms).unwrap()).collect());
    }

    let mut tables: Vec<_> = (0..NODES).map(|rank| Table::new(rank, NODES, 8).unwrap()).collect();
    for pass in 0..2 {
        let pairs = ranks.iter_mut().zip(&mut tables);
        finish(pairs.map(|(rank, table)| Updates::new(rank, table, 4 + pass).unwrap()).collect());

        let wrong: u64 = tables.iter().map(Table::count_wrong).sum();
        // After one pass most words differ.
        assert_eq!(wrong == 0, pass == 1, "{wrong} wrong words after pass {pass}");
    }

    for rank in &ranks {
        let statistics = rank.transport().statistics();
        assert!(statistics.sent > 0 && statistics.gets >= 2 * u64::from(NODES - 1), "{statistics:?}");
        assert_eq!((statistics.strays, statistics.failed_gets, statistics.restarts), (0, 0, 0));
    }
}

/// The transfers in which a rank is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It sends eager messages.
    Eager,
    /// It sends messages that are fetched.
    Source,
    /// It fetches messages.
    Target,
}

const ROLES: [(&str, Role); 3] = [("eager", Role::Eager), ("source", Role::Source), ("target", Role::Target)];

impl Role {
    /// Returns the ranks of its job: ranks 0 and 2 stay, and rank 1 is killed. Each role has
    /// subgroups of its own.
    fn job(self) -> Job {
        let subgroup = self as u16;
        let at = |node, subgroup| RankAddress { node, subgroup };
        Job::new(vec![at(0, subgroup), at(1, subgroup), at(1, subgroup + 3)])
    }

    /// Returns the bytes of a message with the killed rank.
    fn bytes(self) -> usize {
        if self == Self::Eager { SHORT } else { LONG }
    }
}

/// Returns the settings of ranks that give a rank up after [`RANK_TIMEOUT`].
fn short_patience() -> Config {
    Config { patience: RANK_TIMEOUT, ..Config::default() }
}

fn send(rank: &mut Rank, to: u32, tag: u64, data: Vec<u8>) -> Request {
    rank.isend(Envelope::new(to, 0, tag), Mode::Standard, data, 0).unwrap()
}

fn receive(rank: &mut Rank, from: u32, tag: u64, length: usize) -> Request {
    rank.irecv(Selector::exact(from, 0, tag), vec![0; length], 0).unwrap()
}

/// This is no test. It is the process that is killed, when the environment selects a role. It sends
/// or receives messages until then.
#[test]
fn child_process_body() {
    let (Some(folder), Ok(name)) = (std::env::var_os("MU_FOLDER"), std::env::var("MU_ROLE")) else {
        return;
    };
    let (_, role) = ROLES.into_iter().find(|(role, _)| *role == name).unwrap();
    let mut rank = open(Path::new(&folder), &role.job(), 1, short_patience());

    for number in 0.. {
        let request = match role {
            Role::Target => receive(&mut rank, 0, 0, LONG),
            _ => send(&mut rank, 0, 0, vec![PATTERN; role.bytes()]),
        };
        let done = rank.wait(request, Deadline::after(LIMIT), None).unwrap();
        done.result.unwrap();
        if number + 1 == MESSAGES_BEFORE_KILL {
            report("transferring");
        }
    }
}

/// Three ranks of which one is killed, while the others also exchange messages with each other.
struct Scenario {
    role: Role,
    victim: ChildProcess,
    is_killed: bool,
    /// Ranks 0 and 2.
    ranks: [Rank; 2],
    /// The request of rank 0 with the victim, and how it has ended after the kill.
    with_victim: Option<Request>,
    failed: Option<Completion>,
    /// The pending send of rank 0 and receive of rank 2, and how many have ended.
    pending: [Option<Request>; 2],
    exchanged: u64,
}

impl Scenario {
    fn new(folder: &Path, name: &str, role: Role) -> Self {
        let job = role.job();
        let ranks = [0, 2].map(|rank| open(folder, &job, rank, short_patience()));
        let variables = [("MU_FOLDER", folder.as_os_str()), ("MU_ROLE", name.as_ref())];
        let victim = ChildProcess::start("mu_mpi", &variables);
        Self {
            role,
            victim,
            is_killed: false,
            ranks,
            with_victim: None,
            failed: None,
            pending: [None, None],
            exchanged: 0,
        }
    }

    /// Makes progress at both ranks, and exchanges messages between them.
    fn progress_and_exchange(&mut self) {
        for rank in &mut self.ranks {
            rank.progress().unwrap();
        }

        for (rank, pending) in self.ranks.iter_mut().zip(&mut self.pending) {
            let Some(request) = *pending else { continue };
            if let Some(done) = rank.test(request).unwrap() {
                assert_eq!(done.result, Ok(()));
                assert!(done.buffer.as_slice().iter().all(|byte| *byte == self.exchanged as u8));
                *pending = None;
            }
        }

        if self.pending == [None, None] {
            self.exchanged += 1;
            let length = [8, 2048, 100_000][self.exchanged as usize % 3];
            let [zero, two] = &mut self.ranks;
            let data = vec![self.exchanged as u8; length];
            self.pending = [Some(send(zero, 2, 1, data)), Some(receive(two, 0, 1, length))];
        }
    }

    /// Exchanges messages with the victim, and kills it in the middle of one.
    fn exchange_with_victim(&mut self) {
        self.progress_and_exchange();
        let (role, zero) = (self.role, &mut self.ranks[0]);
        if self.failed.is_some() {
            return;
        }

        let request = *self.with_victim.get_or_insert_with(|| match role {
            Role::Target => send(zero, 1, 0, vec![PATTERN; LONG]),
            _ => receive(zero, 1, 0, role.bytes()),
        });
        if !self.is_killed && self.victim.next().is_some() {
            self.victim.kill();
            self.is_killed = true;
        }

        let Some(done) = zero.test(request).unwrap() else { return };
        self.with_victim = None;
        if done.result.is_err() {
            assert!(self.is_killed, "{role:?}: {:?}", done.result);
            self.failed = Some(done);
        } else if role != Role::Target {
            assert!(done.buffer.as_slice().iter().all(|byte| *byte == PATTERN));
        }
    }
}

/// Drives all scenarios until the condition holds for each.
fn drive_until(
    scenarios: &mut [Scenario],
    description: &str,
    mut condition: impl FnMut(&mut Scenario) -> bool,
) {
    let (deadline, mut relax) = (Deadline::after(LIMIT), Relax::new());
    loop {
        let mut all = true;
        for scenario in &mut *scenarios {
            all &= condition(scenario);
        }
        if all {
            return;
        }

        assert!(!deadline.has_passed(), "no {description}");
        relax.reset();
        scenarios[0].ranks[0].transport_mut().relax(&mut relax).unwrap();
    }
}

#[test]
fn a_rank_killed_in_any_transfer_is_an_error_to_the_others_and_leaves_its_node_usable() {
    let server = Server::of_text("name = \"mu\"\n[[bgq]]\ntorus = [2]\nsubgroups = 6\n", "auto");
    let folder = server.directory();
    let mut scenarios: Vec<_> =
        ROLES.into_iter().map(|(name, role)| Scenario::new(&folder, name, role)).collect();

    drive_until(&mut scenarios, "failed transfers", |scenario| {
        scenario.exchange_with_victim();
        scenario.failed.is_some()
    });
    for scenario in &scenarios {
        let error = scenario.failed.as_ref().unwrap().result.as_ref().unwrap_err();
        assert!(error.is_peer() || matches!(error, Error::Transport(_)), "{error}");
    }

    // From now on each operation with the rank fails, at all ranks. An eager send before the report
    // of the end is complete.
    check_requests_fail(&mut scenarios, |[zero, two]| {
        vec![(0, receive(zero, 1, 9, 8)), (1, receive(two, 1, 9, 8))]
    });
    check_requests_fail(&mut scenarios, |[zero, two]| {
        vec![
            (0, send(zero, 1, 9, vec![0; 8])),
            (0, send(zero, 1, 9, vec![0; LONG])),
            (1, send(two, 1, 9, vec![0; LONG])),
        ]
    });
    drop(scenarios);

    for (_, role) in ROLES {
        reopen_and_exchange(&folder, &role.job());
    }
}

/// Starts requests with the killed ranks, by the index of the rank that makes each. Waits until all
/// have failed, and the others have exchanged further messages.
fn check_requests_fail(scenarios: &mut [Scenario], start: impl Fn(&mut [Rank; 2]) -> Vec<(usize, Request)>) {
    let mut started: Vec<_> =
        scenarios.iter_mut().map(|scenario| (start(&mut scenario.ranks), scenario.exchanged + 15)).collect();
    let mut index = 0;

    drive_until(scenarios, "errors", |scenario| {
        scenario.progress_and_exchange();
        let (requests, exchanged_at_end) = &mut started[index % ROLES.len()];
        index += 1;

        requests.retain(|(rank, request)| {
            let Some(done) = scenario.ranks[*rank].test(*request).unwrap() else { return true };
            assert_eq!(
                done.result,
                Err(Error::PeerGone { peer: 1, why: Loss::Silent }),
                "{:?}",
                scenario.role
            );
            false
        });
        requests.is_empty() && scenario.exchanged >= *exchanged_at_end
    });
}

/// Opens all ranks of a job anew, and sends a message around.
fn reopen_and_exchange(folder: &Path, job: &Job) {
    let mut ranks: Vec<_> = (0..3).map(|rank| open(folder, job, rank, Config::default())).collect();
    let terms = Parameters { bytes: 100_000, rounds: 1, context: 1 };
    finish(ranks.iter_mut().map(|rank| Blocks::new(rank, terms).unwrap()).collect());
}

/// Runs the example on each of four nodes, and returns its output.
fn example(words: &[&str]) -> String {
    let folder = built(&["--package", "nicforge-mu-transport", "--example", "mu_mpi"]);
    let program = folder.join("examples/mu_mpi");
    let directory = tempfile::tempdir().unwrap();
    let words: Vec<_> = ["--", program.to_str().unwrap()].into_iter().chain(words.iter().copied()).collect();
    let machine = directory.path().join("four.toml");
    std::fs::write(&machine, "name = \"four\"\n[[bgq]]\ntorus = [2, 2]\nsubgroups = 1\n").unwrap();
    run(machine.to_str().unwrap(), directory.path(), &words)
}

#[test]
fn the_example_runs_a_process_on_each_node() {
    let out = example(&["random_access", "6"]);
    assert!(out.contains("4 ranks, 256 words, 1024 updates"), "{out}");
    assert!(out.contains("0 words are wrong"), "{out}");

    let out = example(&["all_to_all", "2"]);
    let bytes: Vec<_> =
        out.lines().filter_map(|line| line.split_once('|')?.1.split_whitespace().next()).collect();
    assert_eq!(bytes, ["bytes", "8", "512", "2048", "20001"], "{out}");
}
