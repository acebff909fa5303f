//! The directories of served machines: which are refused, what is left of them, and what a second
//! server gets.

use std::{
    io::{BufRead, BufReader},
    os::{fd::AsRawFd, unix::fs::PermissionsExt},
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use nix::{
    fcntl::{Flock, FlockArg},
    sys::{
        signal::{Signal, kill},
        socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket},
    },
    unistd::Pid,
};

use super::{machine, nicforge, output, server::Server, text, wait};

fn serve(directory: &Path) -> Output {
    output(nicforge(&["serve", &machine("proof.toml"), "--dir"]).arg(directory))
}

#[test]
fn a_refused_directory_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("m");
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o775)).unwrap();
    let refused = serve(&directory);

    assert_eq!(refused.status.code(), Some(3));
    assert!(text(&refused.stderr).contains("can be written by other users"), "{}", text(&refused.stderr));
    assert!(directory.exists());
}

#[test]
fn a_users_own_directory_stays_and_created_files_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("m")).unwrap();
    let mut server = Server::start_in(folder, Path::new(&machine("proof.toml")), &[]);
    server.signal(Signal::SIGTERM);
    assert_eq!(wait(&mut server.child), Some(0));
    assert_eq!(std::fs::read_dir(server.directory()).unwrap().count(), 0);
}

#[test]
fn parents_that_were_made_for_a_machine_that_was_not_served_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let failed = serve(&folder.path().join("a").join("b".repeat(100)));
    assert_eq!(failed.status.code(), Some(3));
    assert!(!folder.path().join("a").exists());
}

#[test]
fn the_socket_of_a_server_that_does_not_listen_yet_is_left_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("m");
    std::fs::create_dir_all(directory.join("admin")).unwrap();

    for part in [directory.clone(), directory.join("admin")] {
        std::fs::set_permissions(part, std::fs::Permissions::from_mode(0o700)).unwrap();
    }

    // A server that is about to start holds the directory in this way.
    let lock =
        Flock::lock(std::fs::File::open(&directory).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
    let bound = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    let control = directory.join("admin/control");
    bind(bound.as_raw_fd(), &UnixAddr::new(&control).unwrap()).unwrap();
    let mut second = nicforge(&["serve", &machine("proof.toml"), "--dir"])
        .arg(&directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();

    // A server that serves prints a line, and one that is refused ends.
    let mut line = String::new();
    BufReader::new(second.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if !line.is_empty() {
        second.kill().unwrap();
    }

    assert_eq!(wait(&mut second), Some(3), "{line}");
    assert!(control.exists());

    drop(lock);
}

#[test]
fn stat_of_a_machine_name_ignores_a_folder_of_that_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("machine.toml");
    std::fs::copy(machine("proof.toml"), &file).unwrap();
    std::fs::create_dir(folder.path().join("proof")).unwrap();
    let here = |arguments: &[&str]| {
        let mut command = nicforge(arguments);
        command.current_dir(folder.path()).env("XDG_RUNTIME_DIR", folder.path().join("runtime"));
        command
    };

    let mut server = here(&["serve", "machine.toml"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    // The reader is kept, because a server whose output is closed ends.
    let mut reader = BufReader::new(server.stdout.take().unwrap());
    reader.read_line(&mut line).unwrap();
    let stat = output(&mut here(&["stat", "proof", "--json"]));
    kill(Pid::from_raw(server.id() as i32), Signal::SIGTERM).unwrap();

    assert_eq!(wait(&mut server), Some(0), "{line}");
    assert_eq!(stat.status.code(), Some(0), "{}", text(&stat.stderr));
    assert!(!folder.path().join("runtime").exists(), "what was made for it is left behind");
}

#[test]
fn serve_under_nohup_keeps_serving_when_its_terminal_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("m");
    let child = Command::new("nohup")
        .args([env!("CARGO_BIN_EXE_nicforge"), "serve", &machine("proof.toml"), "--dir"])
        .arg(&directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();

    let mut server = Server { child, folder };
    let mut line = String::new();
    // The reader is kept, because a server whose output is closed ends.
    let mut reader = BufReader::new(server.child.stdout.take().unwrap());
    reader.read_line(&mut line).unwrap();

    assert!(line.starts_with("serving "), "{line}");
    server.signal(Signal::SIGHUP);
    // A server that handled the signal would end at once.
    let since = Instant::now();

    while since.elapsed() < Duration::from_secs(2) {
        assert_eq!(server.child.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(20));
    }

    server.signal(Signal::SIGTERM);
    assert_eq!(wait(&mut server.child), Some(0));
}
