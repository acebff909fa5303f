//! Tests the program through its command line: its commands, exit codes, output, and the files that
//! it leaves behind.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod ends;
mod held;
mod owners;
mod places;
mod registers;
mod traced;

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    sys::{
        signal::{Signal, kill},
        socket::{Backlog, listen},
    },
    unistd::Pid,
};

use crate::server::{self, Server};

const LIMIT: Duration = Duration::from_secs(60);

/// Returns the command `nicforge` with these arguments and an empty input.
fn nicforge(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nicforge"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the path of one of the project's machine files.
fn machine(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../machines").join(name).display().to_string()
}

/// Returns the JSON output of `nicforge stat`.
fn stat(server: &Server) -> serde_json::Value {
    let directory = server.directory();
    let output = output(&mut nicforge(&["stat", directory.to_str().unwrap(), "--json"]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Waits for the end of a program, and returns its exit code.
fn wait(child: &mut Child) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        crate::pause();
    }

    panic!("the program did not end");
}

#[test]
fn serve_makes_private_sockets_and_removes_them_on_sigterm() {
    let mut server = Server::of_machine("pset.toml", &[]);
    let directory = server.directory();
    for socket in ["io0.core0", "cn3.core3", "admin/io0.admin", "admin/control"] {
        let mode = std::fs::metadata(directory.join(socket)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{socket}");
    }

    server.signal(Signal::SIGTERM);
    assert_eq!(wait(&mut server.child), Some(0));
    assert!(!directory.exists(), "the directory is left behind");
}

#[test]
fn serve_ends_on_ctrl_c_with_either_event_loop() {
    for event_loop in ["epoll", "auto"] {
        let mut server = Server::of_machine("proof.toml", &["--event-loop", event_loop]);
        server.signal(Signal::SIGINT);
        assert_eq!(wait(&mut server.child), Some(0));
        assert!(!server.directory().exists());
    }
}

#[test]
fn serve_refuses_a_directory_that_is_served_already() {
    let server = Server::of_machine("proof.toml", &[]);
    let directory = server.directory();
    let second =
        output(&mut nicforge(&["serve", &machine("proof.toml"), "--dir", directory.to_str().unwrap()]));
    assert_eq!(second.status.code(), Some(3));
    assert!(text(&second.stderr).contains("served already"), "{}", text(&second.stderr));
    assert!(stat(&server)["nodes"].is_array());
}

#[test]
fn serve_reuses_the_directory_of_a_killed_server() {
    let mut server = Server::of_machine("proof.toml", &[]);
    server.signal(Signal::SIGKILL);
    server.child.wait().unwrap();

    for socket in ["fifo0.user0", "admin/control"] {
        assert!(server.directory().join(socket).exists(), "{socket}");
    }

    let folder = std::mem::replace(&mut server.folder, tempfile::tempdir().unwrap());
    let second_server = Server::start_in(folder, Path::new(&machine("proof.toml")), &[]);

    assert_eq!(stat(&second_server)["machine"], "proof");
}

#[test]
fn a_bad_machine_file_is_a_usage_error_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.toml");
    std::fs::write(&file, "name = \"x\"\n[[pset]]\ncompute_nodes = 1000\n").unwrap();
    let output = output(&mut nicforge(&["serve", file.to_str().unwrap()]));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("line 3: compute_nodes is 1000; expected 1 to 256"));
}

#[test]
fn own_virtual_machine_refuses_what_only_qemu_does_before_anything_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("served");
    let pset = machine("pset.toml");
    let only_qemu: [&[&str]; 4] =
        [&["--iommu"], &["--driver", "vfio"], &["--root-ports"], &["--accel", "tcg"]];

    for options in only_qemu {
        let command = ["boot", &pset, "--vmm", "own", "--dir", directory.to_str().unwrap(), "--lspci"];
        let output = output(nicforge(&command).args(options));
        assert_eq!(output.status.code(), Some(2));
        let errors = text(&output.stderr);
        assert!(errors.contains(options[0]) && errors.contains("--vmm qemu"), "{errors}");
        assert!(!directory.exists(), "{options:?}");
    }
}

#[test]
fn nested_boot_refuses_what_only_qemu_does() {
    let pset = machine("pset.toml");
    for options in [["--vmm", "qemu"], ["--accel", "tcg"], ["--driver", "vfio"], ["--dir", "/tmp/x"]] {
        let output = output(nicforge(&["boot", &pset, "--nested", "--lspci"]).args(options));
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        assert!(text(&output.stderr).contains(options[0]), "{}", text(&output.stderr));
    }
}

#[test]
fn stat_shows_all_nodes_as_a_table_and_as_json() {
    let server = Server::of_machine("pset.toml", &[]);
    let directory = server.directory();
    let table = output(&mut nicforge(&["stat", directory.to_str().unwrap(), "--attachments"]));

    assert!(table.status.success());
    let table = text(&table.stdout);
    for word in ["io0", "cn3", "core2", "admin", "recv fill", "stalls", "interrupts", "errors"] {
        assert!(table.contains(word), "{word} is not in\n{table}");
    }

    assert_eq!(stat(&server)["nodes"].as_array().unwrap().len(), 5);
}

#[test]
fn stat_with_a_closed_output_pipe_ends_without_a_message() {
    let server = Server::of_machine("proof.toml", &[]);
    let directory = server.directory();
    let mut child = nicforge(&["stat", directory.to_str().unwrap(), "--json", "--every", "0.05"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();

    drop(child.stdout.take());
    assert_eq!(wait(&mut child), Some(141));
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();

    // Lines of nicforge begin with its name. The environment may add others.
    assert!(!stderr.contains("nicforge:"), "{stderr}");
}

/// Returns whether a program has blocked SIGTERM, to take it from a descriptor.
fn blocks_sigterm(child: &Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    let blocks = |signal| mask & 1 << (signal as u32 - 1) != 0;
    // A thread that starts another one blocks all signals for a moment.
    blocks(Signal::SIGTERM) && !blocks(Signal::SIGUSR1)
}

#[test]
fn stat_with_an_unread_output_pipe_ends_on_sigterm() {
    let server = Server::of_machine("proof.toml", &[]);
    let directory = server.directory();
    let (_unread, mut output) = std::io::pipe().unwrap();
    let size = fcntl(&output, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
    output.write_all(&vec![b'x'; size as usize]).unwrap();
    let mut child = nicforge(&["stat", directory.to_str().unwrap(), "--json", "--every", "0.05"])
        .stdout(output)
        .spawn()
        .unwrap();

    let start = Instant::now();
    while !blocks_sigterm(&child) {
        assert!(start.elapsed() < LIMIT, "the program does not wait for signals");
        crate::pause();
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();

    assert_eq!(wait(&mut child), Some(0));
}

#[test]
fn stat_of_a_server_that_accepts_no_connection_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin/control");
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    listen(&listener, Backlog::new(0).unwrap()).unwrap();
    // The only connection that the backlog has room for.
    let _waiting = UnixStream::connect(&path).unwrap();

    let start = Instant::now();
    let mut child =
        nicforge(&["stat", folder.path().to_str().unwrap()]).stderr(Stdio::piped()).spawn().unwrap();
    let code = wait(&mut child);

    assert_eq!(code, Some(3));
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn stat_without_a_server_reports_it() {
    let folder = tempfile::tempdir().unwrap();
    let output = output(&mut nicforge(&["stat", folder.path().to_str().unwrap()]));
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("no machine answers"));
}

/// Answers each request to the control socket in `directory` with these bytes.
fn answer_as_a_stranger(directory: &Path, answer: &'static str) {
    let path = directory.join("admin/control");
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
}

/// Asserts that a terminal shows a text, and acts on nothing in it.
fn assert_harmless(text: &str) {
    let acts = |character: char| character.is_control() && !matches!(character, '\n' | '\t');
    assert!(!text.contains(acts), "{text:?}");
}

#[test]
fn stat_prints_no_control_sequences_of_whoever_answers() {
    let folder = tempfile::tempdir().unwrap();
    answer_as_a_stranger(
        folder.path(),
        r#"{"stat":{"machine":"a\u001b]0;title\u0007","uptime_ms":1,"event_loop":"\u009b2J","awake":0,
        "longest_turn":{"us":1,"attachment":"x\ny","pid":1},
        "columns":[{"title":"\u001b[31m","counters":["c"],"packets":true}],
        "nodes":[{"name":"\u001b[1A\nforged","role":"r","rank":0,"functions":["\u007ff"],
        "panics":["p\u001b[2J\nforged"],"companions":["c\r"],
        "counters":[["c",18446744073709551615],["\u009b1m.c",1]],
        "attachments":[{"name":"\u001bc","pid":1,"trapped":18446744073709551615,"posted":0,"stalls":0,"interrupts":0,"errors":0},
        {"name":"b","pid":1,"trapped":1,"posted":0,"stalls":0,"interrupts":0,"errors":0}]}]}}"#,
    );

    for options in [&["--attachments"][..], &["--json"]] {
        let output = output(nicforge(&["stat", folder.path().to_str().unwrap()]).args(options));
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let shown = text(&output.stdout);
        assert_harmless(&shown);
        assert!(!shown.lines().any(|line| line.starts_with("forged")), "{shown}");
    }
}

#[test]
fn a_refusal_of_whoever_answers_is_one_line_without_control_sequences() {
    let folder = tempfile::tempdir().unwrap();
    answer_as_a_stranger(folder.path(), r#"{"refused":{"message":"no\u001b[2J\nnicforge: done"}}"#);

    for command in [&["stat"][..], &["reset"]] {
        let mut command = nicforge(command);
        command.arg(folder.path());
        if command.get_args().any(|word| word == "reset") {
            command.arg("cn0");
        }
        let output = output(&mut command);
        assert_eq!(output.status.code(), Some(3));
        let message = text(&output.stderr);
        assert_harmless(&message);
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn an_error_in_a_machine_file_prints_no_control_sequences() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.toml");
    for content in [
        "name = \"\\u001b[2Jx\"\n",
        "name = \"x\"\n[[function]]\nname = \"\\u009b2J\"\nkind = \"\\u001b[2J\"\n",
    ] {
        std::fs::write(&file, content).unwrap();
        let output = output(&mut nicforge(&["serve", file.to_str().unwrap()]));
        assert_eq!(output.status.code(), Some(2));
        assert_harmless(&text(&output.stderr));
    }
}

#[test]
fn reset_of_an_unknown_node_fails_and_lists_the_nodes() {
    let server = Server::of_machine("pset.toml", &[]);
    let directory = server.directory();
    let directory = directory.to_str().unwrap();
    assert!(output(&mut nicforge(&["reset", directory, "cn1"])).status.success());
    let unknown = output(&mut nicforge(&["reset", directory, "cn9"]));
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("there are io0, cn0"));
}

/// Runs programs on the nodes of a pset with `nicforge run`.
fn run(programs: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("m").display().to_string();
    let file = machine("pset.toml");
    let mut arguments = vec!["run", &file, "--dir", &directory];
    arguments.extend(programs);
    let output = output(&mut nicforge(&arguments));

    assert!(!folder.path().join("m").exists(), "the directory is left behind");
    output
}

#[test]
fn run_starts_a_program_on_each_node_and_prefixes_its_output() {
    let output = run(&[
        "--",
        "sh",
        "-c",
        "echo $NICFORGE_ROLE $NICFORGE_RANK of $NICFORGE_SIZE; test -S ${NICFORGE_SOCKET%%:*}",
    ]);

    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let mut lines: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    let expected = [
        "cn0 | compute 0 of 4",
        "cn1 | compute 1 of 4",
        "cn2 | compute 2 of 4",
        "cn3 | compute 3 of 4",
        "io0 | io 0 of 1",
    ];

    assert_eq!(lines, expected);
}

#[test]
fn run_gives_roles_and_nodes_their_own_programs() {
    let output = run(&[
        "--io",
        "sh",
        "-c",
        "echo io",
        ":",
        "--cn2",
        "sh",
        "-c",
        "echo two",
        ":",
        "sh",
        "-c",
        "echo rest",
    ]);

    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let mut lines: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();

    assert_eq!(lines, ["cn0 | rest", "cn1 | rest", "cn2 | two", "cn3 | rest", "io0 | io"]);
}

#[test]
fn run_per_core_starts_a_program_for_each_core() {
    let output = run(&["--per-core", "--", "sh", "-c", "echo $NICFORGE_CORE; test -S $NICFORGE_SOCKET"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count(), 20);
}

#[test]
fn run_ends_with_the_code_of_the_program_that_failed_and_ends_the_others() {
    let output = run(&["--cn1", "sh", "-c", "exit 7", ":", "sleep", "1000"]);
    assert_eq!(output.status.code(), Some(7));
    assert!(text(&output.stderr).contains("cn1 ended with exit status: 7"));
}

#[test]
fn run_reports_a_program_that_was_killed_as_a_shell_does() {
    let output = run(&["--cn1", "sh", "-c", "kill -9 $$", ":", "sleep", "1000"]);
    assert_eq!(output.status.code(), Some(137));
}

#[test]
fn run_refuses_an_unknown_role_and_a_missing_program() {
    let role = run(&["--gpu", "true"]);
    assert_eq!(role.status.code(), Some(2));
    assert!(text(&role.stderr).contains("its nodes are io0, cn0"));
    let program = run(&["--", "/nonexistent/program"]);
    assert_eq!(program.status.code(), Some(3));
    assert!(text(&program.stderr).contains("can't start /nonexistent/program"));
}

#[test]
fn run_ends_its_programs_and_removes_its_sockets_on_ctrl_c() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("m").display().to_string();
    let mut child = nicforge(&["run", &machine("pset.toml"), "--dir", &directory])
        .args(["--", "sh", "-c", "echo $$; exec sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();

    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let pids: Vec<i32> = (0..5)
        .map(|_| lines.next().unwrap().unwrap().split(" | ").nth(1).unwrap().parse().unwrap())
        .collect();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();

    assert_eq!(wait(&mut child), Some(130));
    assert!(!Path::new(&directory).exists());
    for pid in pids {
        assert!(kill(Pid::from_raw(pid), None).is_err(), "process {pid} is still there");
    }
}

/// Makes a file of random bytes. Returns its folder and its path.
fn random_file(bytes: usize) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("data");
    let mut content = vec![0; bytes];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut content).unwrap();
    std::fs::write(&file, content).unwrap();
    (folder, file.display().to_string())
}

/// Runs `nicforge demo` with a file, and returns its report.
fn demo(file: &str, more: &[&str]) -> serde_json::Value {
    let mut arguments = vec!["demo", "--json", file];
    arguments.extend(more);
    let output = output(&mut nicforge(&arguments));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn demo_brings_a_file_out_and_back_unchanged() {
    let (_folder, file) = random_file(3_000_001);
    let report = demo(&file, &["--message", "100000"]);
    assert_eq!(report["demo"]["digests_agree"], true);
    assert_eq!(report["demo"]["bytes"], 3_000_001);
    assert_eq!(report["nodes"].as_array().unwrap().len(), 5);
}

#[test]
fn demo_works_with_interrupts_a_deep_fifo_and_epoll() {
    let (_folder, file) = random_file(1_000_000);
    let report =
        demo(&file, &["--interrupts", "--fifo-depth", "64", "--event-loop", "epoll", "--message", "65536"]);
    assert_eq!(report["demo"]["digests_agree"], true);
    assert_eq!(report["demo"]["fifo_depth"], 64);
}

#[test]
fn demo_explains_its_result_and_says_what_to_type_next() {
    let (_folder, file) = random_file(100_000);
    let output = output(&mut nicforge(&["demo", &file, "--fifo-depth", "8"]));
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for words in
        ["every digest agrees", "FIFOs hold 8 packets", "6.54 Gb/s", "next:\n", "machines/ethernet.toml"]
    {
        assert!(shown.contains(words), "{words} in {shown}");
    }
}

#[test]
fn demo_of_an_empty_file_and_of_one_byte_ends_well() {
    for bytes in [0, 1] {
        let (_folder, file) = random_file(bytes);
        assert_eq!(demo(&file, &[])["demo"]["bytes"], bytes);
    }
}

#[test]
fn serve_that_fails_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let long = folder.path().join("x".repeat(100));
    let output = output(&mut nicforge(&["serve", &machine("proof.toml"), "--dir", long.to_str().unwrap()]));
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("choose a shorter --dir"), "{}", text(&output.stderr));
    assert!(!long.exists());
}

#[test]
fn demo_of_a_missing_file_reports_it() {
    let output = output(&mut nicforge(&["demo", "/nonexistent/file"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("/nonexistent/file"));
}
