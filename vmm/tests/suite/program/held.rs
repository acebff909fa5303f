//! Tests with clients and readers that block the server. It must continue to serve, and end in
//! time.

use std::{
    fs::File,
    io::{BufRead, BufReader, PipeReader, Read, Write},
    os::{
        fd::{AsFd, AsRawFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use nicforge_driver::{Device, OpenOptions};
use nicforge_hwi::tree_dcr::REG_INT_ENABLE;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::Signal,
};

use super::{machine, nicforge, output, server::Server, text, wait};

/// The time within which a server must end after a signal. On a busy host it needs more than two
/// seconds.
const IN_TIME: Duration = Duration::from_secs(4);
/// Number of connections that each make the server log. Their lines are many times what a pipe and
/// the log's queue hold.
const LOGGED_CONNECTIONS: usize = 3000;

/// Starts a server that logs to a pipe that is not read.
fn serve_with_unread_log() -> (Server, PipeReader) {
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut child = nicforge(&["serve", &machine("pset.toml"), "--dir"])
        .arg(folder.path().join("m"))
        .env("NICFORGE_LOG", "debug")
        .stdout(Stdio::piped())
        .stderr(writer)
        .spawn()
        .unwrap();

    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();

    assert!(line.starts_with("serving "), "{line}");
    (Server { child, folder }, reader)
}

/// Makes the server log, with a client whose first message is malformed.
fn send_malformed_message(socket: &Path) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(super::LIMIT)).unwrap();
    stream.write_all(&[0xff; 16]).unwrap();
    let mut rest = Vec::new();
    // The server closes the connection, with or without an answer.
    let _ = stream.read_to_end(&mut rest);
}

/// Returns whether a pipe has no room for another write.
fn is_full(pipe: &PipeReader) -> bool {
    let writer = File::options().write(true).open(format!("/proc/self/fd/{}", pipe.as_raw_fd())).unwrap();
    let mut fds = [PollFd::new(writer.as_fd(), PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::ZERO) == Ok(0)
}

#[test]
fn serve_with_an_unread_log_keeps_serving_and_ends_on_sigterm() {
    let (mut server, pipe) = serve_with_unread_log();
    let client = Device::open_vfio_user(server.socket("cn0.core0"), OpenOptions::default()).unwrap();
    let registers = client.bar(0).unwrap();

    for _ in 0..LOGGED_CONNECTIONS {
        send_malformed_message(&server.socket("io0.core0"));
    }

    assert!(is_full(&pipe));
    registers.read32(REG_INT_ENABLE).unwrap();

    let since = Instant::now();
    server.signal(Signal::SIGTERM);

    assert_eq!(wait(&mut server.child), Some(0));
    assert!(since.elapsed() < IN_TIME, "{:?}", since.elapsed());
    assert!(!server.directory().exists());
}

#[test]
fn reset_and_stat_are_answered_despite_silent_control_connections() {
    let server = Server::of_machine("pset.toml", &[]);
    let directory = server.directory();
    let silent: Vec<_> =
        (0..20).map(|_| UnixStream::connect(directory.join("admin/control")).unwrap()).collect();
    for arguments in
        [vec!["reset", directory.to_str().unwrap(), "cn1"], vec!["stat", directory.to_str().unwrap()]]
    {
        let output = output(&mut nicforge(&arguments));
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    drop(silent);
}

#[test]
fn programs_of_run_have_the_limit_on_open_files_that_run_was_started_with() {
    let folder = tempfile::tempdir().unwrap();
    let script = "ulimit -Sn 500; exec \"$@\"";
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_nicforge"), "run", &machine("proof.toml"), "--dir"])
        .arg(folder.path().join("m"))
        .args(["--", "sh", "-c", "ulimit -Sn; ulimit -Hn; grep 'open files' /proc/$PPID/limits"]);
    let output = output(&mut command);

    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));

    let stdout = text(&output.stdout);
    let lines: Vec<_> = stdout.lines().filter_map(|line| line.strip_prefix("fifo0 | ")).collect();

    assert_eq!(lines[0], "500");
    let hard: u64 = lines[1].parse().unwrap_or(u64::MAX);
    let limit: u64 = lines[2].split_whitespace().nth(3).unwrap().parse().unwrap();

    assert_eq!(limit, hard.min(1 << 20), "{stdout}");
}
