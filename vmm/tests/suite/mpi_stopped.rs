//! A stopped rank is not a lost rank: its process is stopped for longer than the card's watchdog,
//! and then continues. A rank that is killed while it is stopped is lost.
//!
//! The test binary itself is the process that is stopped, when it runs only [`child_process_body`].

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nicforge_driver::{Deadline, Device, OpenOptions, Relax};
use nicforge_extoll_transport::{Config, ExtollTransport, Job};
use nicforge_matching::{Endpoint, Envelope, Error, Loss, Mode, Request, Selector, Transport};
use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

use crate::server::Server;

/// Two cards with the default watchdog of 500 ms.
const MACHINE: &str = "name = \"stopped\"\n[[extoll]]\nmesh = 2\nvpids = 4\n";
/// How long the process is stopped: four times the watchdog.
const STOP_TIME: Duration = Duration::from_secs(2);
/// The longest wait.
const LIMIT: Duration = Duration::from_secs(60);
/// The greatest number of messages in flight. It exceeds the credits that a rank is granted.
const MAX_UNANSWERED: u64 = 200;
/// Number of answered messages between two stops of the process, and number of messages in all.
const ANSWERED_BETWEEN_STOPS: u64 = 300;
const MESSAGES: u64 = 3_000;
/// The tag of the answers.
const ANSWER_TAG: u64 = 1 << 40;

type Rank = Endpoint<ExtollTransport>;

/// Returns the bytes of a message. Most are short, some are sent in pieces, and some are fetched.
fn length(number: u64) -> usize {
    match number % 50 {
        49 => 100_000,
        48 => 2_000,
        _ => 8,
    }
}

/// Returns the data of a message.
fn data(number: u64) -> Vec<u8> {
    let mut data = vec![number as u8; length(number)];
    data[..8].copy_from_slice(&number.to_le_bytes());
    data
}

/// Opens a rank. It retries until the device is free.
fn open(folder: &Path, rank: u32) -> Rank {
    let socket = folder.join(format!("ex{rank}.vpid0"));
    let started = Instant::now();
    let device = loop {
        match Device::open_vfio_user(&socket, OpenOptions::default()) {
            Ok(device) => break device,
            Err(error) => assert!(started.elapsed() < LIMIT, "{}: {error}", socket.display()),
        }
        crate::pause();
    };

    let mut transport = ExtollTransport::open(device, &Job::of_nodes(2, 1), Config::default()).unwrap();
    transport.wait_for_all(Deadline::after(LIMIT), None).unwrap();

    Endpoint::new(transport, Default::default()).unwrap()
}

/// This is no test. It is the process that is stopped, when the environment names a folder. It
/// receives messages in order and answers each.
#[test]
fn child_process_body() {
    let Some(folder) = std::env::var_os("STOPPED_FOLDER") else { return };
    let mut rank = open(Path::new(&folder), 1);

    for number in 0..MESSAGES {
        let receive = rank.irecv(Selector::exact(0, 0, 0), vec![0; 100_000], 0).unwrap();
        let done = rank.wait(receive, Deadline::after(LIMIT), None).unwrap();
        done.result.unwrap();
        assert!(done.buffer.as_slice()[..done.length] == data(number), "message {number}");
        let answer =
            rank.isend(Envelope::new(0, 0, ANSWER_TAG), Mode::Standard, data(number)[..8].to_vec(), 0);
        let done = rank.wait(answer.unwrap(), Deadline::after(LIMIT), None).unwrap();
        done.result.unwrap();
    }

    // The process waits for a last message, so that the other end has all answers when this one
    // ends.
    let last = rank.irecv(Selector::exact(0, 0, 1), vec![0; 8], 0).unwrap();
    let _ = rank.wait(last, Deadline::after(LIMIT), None);
}

/// The process that is stopped.
struct StoppedProcess(Child);

impl StoppedProcess {
    /// Starts the process of rank 1, whose reports are shown.
    fn start(folder: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "mpi_stopped::child_process_body", "--nocapture", "--test-threads=1"])
            .env("STOPPED_FOLDER", folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();

        let output = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || output.lines().map_while(Result::ok).for_each(|line| eprintln!("{line}")));

        Self(child)
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id() as i32)
    }

    /// Stops the process, and returns when it has stopped.
    fn stop(&self) {
        kill(self.pid(), Signal::SIGSTOP).unwrap();
        let stopped = waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert_eq!(stopped, WaitStatus::Stopped(self.pid(), Signal::SIGSTOP));
    }

    fn resume(&self) {
        kill(self.pid(), Signal::SIGCONT).unwrap();
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        // This is SIGKILL. The process may already have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The sending side. It sends up to [`MAX_UNANSWERED`] messages ahead, and takes the answers.
struct Source {
    rank: Rank,
    sends: Vec<Request>,
    answer: Request,
    sent: u64,
    answered: u64,
}

impl Source {
    fn open(folder: &Path) -> Self {
        let mut rank = open(folder, 0);
        let answer = Self::receive_answer(&mut rank);
        Self { rank, sends: Vec::new(), answer, sent: 0, answered: 0 }
    }

    /// Posts the receive of the next answer.
    fn receive_answer(rank: &mut Rank) -> Request {
        rank.irecv(Selector::exact(1, 0, ANSWER_TAG), vec![0; 8], 0).unwrap()
    }

    /// Sends what flow control allows, makes progress and checks the answers. Returns the error of
    /// the first request that fails.
    fn progress_and_check(&mut self, relax: &mut Relax) -> Result<(), Error> {
        while self.sent < MESSAGES && self.sent < self.answered + MAX_UNANSWERED {
            let send = self.rank.isend(Envelope::new(1, 0, 0), Mode::Standard, data(self.sent), 0).unwrap();
            self.sends.push(send);
            self.sent += 1;
        }

        self.rank.progress().unwrap();
        let rank = &mut self.rank;
        let mut failed = Ok(());
        self.sends.retain(|send| match rank.test(*send).unwrap() {
            Some(done) => {
                failed = failed.clone().and(done.result);
                false
            }
            None => true,
        });

        failed?;
        while let Some(done) = self.rank.test(self.answer).unwrap() {
            done.result?;
            assert_eq!(done.buffer.as_slice(), self.answered.to_le_bytes());
            self.answered += 1;
            self.answer = Self::receive_answer(&mut self.rank);
        }

        self.rank.transport_mut().relax(relax).unwrap();
        Ok(())
    }

    /// Drives the rank until `answered` messages were answered.
    fn drive_until_answered(&mut self, answered: u64) {
        let (deadline, mut relax) = (Deadline::after(LIMIT), Relax::new());
        while self.answered < answered {
            assert!(!deadline.has_passed(), "{} of {answered} answers", self.answered);
            self.progress_and_check(&mut relax).unwrap();
            relax.reset();
        }
    }
}

/// Stops the receiver twice, and checks that the sender waits for it and that all messages arrive.
fn check_stop_and_resume(event_loop: &str) {
    let server = Server::of_text(MACHINE, event_loop);
    let folder = server.directory();
    let other = StoppedProcess::start(&folder);
    let mut source = Source::open(&folder);

    for stop in 1..=2 {
        source.drive_until_answered(stop * ANSWERED_BETWEEN_STOPS);
        other.stop();
        let (stopped, mut relax) = (Instant::now(), Relax::new());

        while stopped.elapsed() < STOP_TIME {
            source.progress_and_check(&mut relax).unwrap();
        }

        // All answers of the stopped process have come. Messages within its granted credits wait
        // for it.
        let answered = source.answered;
        assert!(source.sent > answered);
        other.resume();
        source.drive_until_answered(answered + 1);
    }

    source.drive_until_answered(MESSAGES);
    assert_eq!(
        source.rank.transport().velo_statistics().stalls,
        0,
        "flow control keeps the card from waiting"
    );
}

#[test]
fn a_rank_that_stands_still_for_longer_than_the_watchdog_loses_nothing() {
    check_stop_and_resume("auto");
}

#[test]
fn a_rank_that_stands_still_loses_nothing_with_epoll() {
    check_stop_and_resume("epoll");
}

#[test]
fn a_rank_killed_while_stopped_is_reported_lost() {
    let server = Server::of_text(MACHINE, "auto");
    let folder = server.directory();
    let other = StoppedProcess::start(&folder);
    let mut source = Source::open(&folder);
    source.drive_until_answered(ANSWERED_BETWEEN_STOPS);
    other.stop();
    kill(other.pid(), Signal::SIGKILL).unwrap();
    let (deadline, mut relax) = (Deadline::after(LIMIT), Relax::new());

    let error = loop {
        assert!(!deadline.has_passed(), "a killed rank is not given up");
        if let Err(error) = source.progress_and_check(&mut relax) {
            break error;
        }
    };

    assert_eq!(error, Error::PeerGone { peer: 1, why: Loss::Ended });
}
