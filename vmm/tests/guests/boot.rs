//! Tests of `nicforge boot` through its command line.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    fs::Permissions,
    io::{BufRead, BufReader, Write},
    os::{
        fd::AsFd,
        unix::{fs::PermissionsExt, net::UnixStream},
    },
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use crate::guest_support::{LIMIT, logs, toolkit};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sha2::{Digest, Sha256};

/// `nicforge boot` of a machine, with sockets and temporary files in a folder of its own.
struct Boot {
    folder: tempfile::TempDir,
    machine: &'static str,
}

impl Boot {
    /// A pset.
    fn new() -> Self {
        Self::of("pset.toml")
    }

    /// One of the project's machines.
    fn of(machine: &'static str) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), machine }
    }

    /// Returns the command `nicforge boot` of the machine.
    fn command(&self, arguments: &[&str]) -> Command {
        let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../machines").join(self.machine);
        let temporary = self.folder.path().join("tmp");
        std::fs::create_dir_all(&temporary).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicforge"));
        command
            .arg("boot")
            .arg(machine)
            .arg("--dir")
            .arg(self.folder.path().join("m"))
            .args(arguments)
            .env("TMPDIR", temporary)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());

        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Waits until no QEMU process of this folder exists, for at most [`LIMIT`].
    fn wait_for_no_guest(&self) {
        let deadline = Instant::now() + LIMIT;
        let folder = self.folder.path().to_str().unwrap();
        let runs = || {
            std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
                let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
                let line = String::from_utf8_lossy(&line).into_owned();
                line.contains("qemu-system") && line.contains(folder)
            })
        };

        // QEMU is no child of this process, which is therefore not informed of its end.
        while runs() {
            assert!(Instant::now() < deadline, "a guest is left");
            std::thread::yield_now();
        }
    }
}

fn to_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits for the end of a program, and returns its exit code.
fn wait(child: &mut Child) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::yield_now();
    }

    panic!("the program did not end");
}

/// Starts a guest whose command reports that it runs, and waits for the report.
fn start_running_guest(boot: &Boot) -> Child {
    let mut child =
        boot.command(&["--node", "cn0", "--", "sh", "-c", "echo runs; sleep 1000"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "cn0 | runs\n");
    child
}

#[test]
fn commands_run_in_two_guests_and_the_exit_code_is_that_of_the_first_that_failed() {
    toolkit();
    let boot = Boot::new();
    let share = boot.folder.path().join("share");
    std::fs::create_dir(&share).unwrap();
    std::fs::write(share.join("in"), "from the host\n").unwrap();
    let script = "cat /share/in; echo $NICFORGE_DEVICES; echo well >&2; echo yes >/share/$NICFORGE_NODE
        until [ -e /share/io0 ] && [ -e /share/cn1 ]; do usleep 20000; done
        [ $NICFORGE_ROLE = io ] || exit 5
        sleep 1000";
    let logs = logs("boot");
    let output = boot.run(&[
        "--node",
        "io0",
        "--node",
        "cn1",
        "--share",
        share.to_str().unwrap(),
        "--logs",
        logs.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        script,
    ]);

    let (stdout, errors) = (to_text(&output.stdout), to_text(&output.stderr));
    assert_eq!(output.status.code(), Some(5), "{stdout}{errors}");
    assert!(stdout.contains("io0 | from the host\n") && stdout.contains("cn1 | from the host\n"), "{stdout}");

    let devices =
        "cn1 | cn1.core0=0000:00:03.0,cn1.core1=0000:00:04.0,cn1.core2=0000:00:05.0,cn1.core3=0000:00:06.0\n";
    assert!(stdout.contains(devices), "{stdout}");
    assert!(errors.contains("cn1 | well\n"), "{errors}");
    assert!(errors.contains("the command in cn1 ended with 5; ending the other guests"), "{errors}");
    assert!(errors.contains("KVM") || errors.contains("TCG"), "{errors}");
    assert_eq!(std::fs::read_to_string(share.join("io0")).unwrap(), "yes\n");
    assert!(!boot.folder.path().join("m").exists(), "the sockets are left");
    assert!(logs.join("cn1.console.log").exists() && logs.join("io0.qemu.log").exists());

    boot.wait_for_no_guest();
}

#[test]
fn stock_driver_is_found_by_modalias_and_a_named_module_has_its_parameters() {
    toolkit();
    let boot = Boot::of("idio16.toml");
    let script = "basename $(readlink /sys/bus/pci/devices/${NICFORGE_DEVICES#*=}/driver)
        ls -d /sys/class/net/dummy*; echo sockets: $NICFORGE_SOCKET";
    let module = ["--module", "dummy:numdummies=2"];
    let output = boot.run(&[&module[..], &["--", "sh", "-c", script]].concat());

    let (stdout, errors) = (to_text(&output.stdout), to_text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}{errors}");
    assert_eq!(
        stdout,
        "gpio0 | pci-idio-16\ngpio0 | /sys/class/net/dummy0\ngpio0 | /sys/class/net/dummy1\n\
         gpio0 | sockets:\n"
    );
    assert!(errors.contains("Linux has a driver for gpio0: gpio_pci_idio_16\n"), "{errors}");
    assert!(!errors.contains("not bound") && !errors.contains("not loaded"), "{errors}");
}

#[test]
fn nested_boot_runs_a_command_in_our_own_virtual_machine_and_has_its_exit_code() {
    toolkit();
    let folder = tempfile::tempdir().unwrap();
    let logs = logs("nested-boot");
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../machines/pset.toml");
    let share = tempfile::tempdir().unwrap();
    let content = "a line of a file that is not empty\n".repeat(1000);
    std::fs::write(share.path().join("file"), &content).unwrap();
    let sum: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    let script = "echo $NICFORGE_DEVICES; lspci -n -d 1efc:; ls /dev/nicforge0; sha256sum </share/file
                  echo new >/share/file || exit 7";
    let output = Command::new(env!("CARGO_BIN_EXE_nicforge"))
        .arg("boot")
        .arg(machine)
        .args(["--node", "cn0", "--memory", "256", "--nested", "--logs"])
        .arg(&logs)
        .arg("--share")
        .arg(share.path())
        .args(["--driver", "shim", "--", "sh", "-c", script])
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();

    let (stdout, errors) = (to_text(&output.stdout), to_text(&output.stderr));
    assert_eq!(output.status.code(), Some(7), "{stdout}{errors}");
    assert!(stdout.contains("cn0 | cn0.core0=0000:00:03.0,cn0.core1=0000:00:04.0"), "{stdout}");
    assert!(
        stdout.contains("cn0 | 00:03.0 0280: 1efc:b601") && stdout.contains("/dev/nicforge0"),
        "{stdout}"
    );
    assert!(stdout.contains(&format!("cn0 | {sum}")), "{stdout}{errors}");
    assert!(errors.contains("Read-only file system"), "{errors}");
    for log in ["nested.console.log", "nested.qemu.log", "cn0.console.log", "cn0.vm.log"] {
        assert!(logs.join(log).exists(), "{log}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "files are left");
}

/// The variable by which [`fake_qemu`] gets the arguments of QEMU.
const QEMU_ARGUMENTS: &str = "NICFORGE_TEST_QEMU_ARGUMENTS";

/// A QEMU for a test, which starts it as a program: its guest says that it takes jobs, and begins
/// none. In a run of the tests it does nothing.
#[test]
fn fake_qemu() {
    let Ok(arguments) = std::env::var(QEMU_ARGUMENTS) else { return };
    let path_after = |word: &str| {
        let (_, rest) = arguments.split_once(word).unwrap();
        rest.split([' ', ',']).next().unwrap().to_owned()
    };
    let line = |name: &str| UnixStream::connect(path_after(&format!("id={name},path="))).unwrap();
    let (mut console, mut agent, mut monitor) = (line("console"), line("agent"), line("monitor"));

    console.write_all(b"the outer console\n").unwrap();
    let logs = Path::new(&path_after("local,id=share,path=")).join("logs");
    std::fs::write(logs.join("cn0.console.log"), "the inner console\n").unwrap();
    monitor.write_all(b"{\"QMP\": {}}\n{\"return\": {}, \"id\": 1}\n").unwrap();
    agent.write_all(b"0 ready\n").unwrap();
    // The process is killed.
    std::thread::park();
}

#[test]
fn nested_guest_that_hangs_is_ended_with_its_consoles_and_tried_again() {
    toolkit();
    let folder = tempfile::tempdir().unwrap();
    let (silent, deaf) = (folder.path().join("silent"), folder.path().join("deaf"));
    let fake = format!(
        "exec env {QEMU_ARGUMENTS}=\"$*\" {} --exact boot::fake_qemu",
        std::env::current_exe().unwrap().display()
    );
    for (path, hang) in [(&silent, "exec sleep 1000"), (&deaf, fake.as_str())] {
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in\n*'-device help') echo 'name \"vfio-user-pci\"' ;;\n\
             *-version) echo QEMU emulator version 11 ;;\n*) {hang} ;;\nesac\n"
        );
        std::fs::write(path, script).unwrap();
        std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }

    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../machines/pset.toml");
    for (qemu, messages) in [
        // QEMU itself hangs.
        (&silent, &["nested: booting took longer than 8s"][..]),
        // The outer guest hangs, or a guest in it.
        (
            &deaf,
            &[
                "nested: the start of cn0 in it (--boot-timeout) took longer than 8s",
                "nested.console.log:\nthe outer console\n",
                "cn0.console.log:\nthe inner console\n",
            ],
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_nicforge"))
            .arg("boot")
            .arg(&machine)
            .args(["--node", "cn0", "--nested", "--driver", "none", "--boot-timeout", "8", "--qemu"])
            .arg(qemu)
            .args(["--", "true"])
            .env("TMPDIR", folder.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();

        let errors = to_text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{errors}");
        let retries = [2, 3]
            .map(|start| format!("nested guest did not start within 8 s; trying again ({start} of 3)\n"));
        assert!(retries.iter().all(|retry| errors.contains(retry)), "{errors}");
        for message in messages {
            assert_eq!(errors.matches(message).count(), 3, "{message}: {errors}");
        }
        // Nothing but the two programs is left.
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}

#[test]
fn module_that_the_kernel_does_not_have_is_named() {
    toolkit();
    let boot = Boot::of("idio16.toml");
    let output = boot.run(&["--driver", "none", "--module", "no-such", "--", "true"]);
    let errors = to_text(&output.stderr);

    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("the kernel has no module no_such"), "{errors}");
}

#[test]
fn a_guest_runs_until_the_commands_of_all_guests_have_ended() {
    toolkit();
    let boot = Boot::new();
    let share = boot.folder.path().join("share");
    std::fs::create_dir(&share).unwrap();

    // The command of cn0 ends after the first barrier, and leaves a process that answers cn1. The
    // command of cn1 asks only when that of cn0 has ended, which ends the barrier without cn0.
    let script = "nicforge-barrier 'no name' && exit 8
        if [ $NICFORGE_NODE = cn1 ]; then
            nicforge-barrier alone 1
            [ $? = 124 ] || exit 9
        fi
        nicforge-barrier start 200 || exit 10
        if [ $NICFORGE_NODE = cn0 ]; then
            (until [ -e /share/question ]; do usleep 20000; done; echo here >/share/answer) &
            exit 0
        fi
        nicforge-barrier end 200
        [ $? = 1 ] || exit 11
        echo asks >/share/question
        for _ in $(seq 1 500); do
            [ -e /share/answer ] && exit 0
            usleep 200000
        done
        exit 12";
    let options = ["--node", "cn0", "--node", "cn1", "--hold", "--driver", "none"];
    let share_options = ["--share", share.to_str().unwrap(), "--", "sh", "-c", script];
    let output = boot.run(&[&options[..], &share_options[..]].concat());

    let (stdout, errors) = (to_text(&output.stdout), to_text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}{errors}");
    assert!(errors.contains("cn1 | nicforge-barrier: end: the command in cn0 has ended\n"), "{errors}");
    boot.wait_for_no_guest();
}

#[test]
fn guest_that_ends_while_it_is_held_ends_the_others() {
    toolkit();
    let boot = Boot::new();
    // The barrier can't be passed, so it ends when the host knows that the command has ended.
    let script = "if [ $NICFORGE_NODE = cn0 ]; then
            (nicforge-barrier both; poweroff -f) &
            exit 0
        fi
        sleep 1000";
    let options = ["--node", "cn0", "--node", "cn1", "--hold", "--driver", "none", "--", "sh", "-c", script];
    let output = boot.run(&options);

    let errors = to_text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("cn0: the guest ended during staying for the other guests"), "{errors}");
    boot.wait_for_no_guest();
}

#[test]
fn ctrl_c_ends_guests_and_removes_sockets_and_a_killed_program_leaves_no_guest() {
    toolkit();
    let boot = Boot::new();
    let mut child = start_running_guest(&boot);
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();

    assert_eq!(wait(&mut child), Some(130));
    assert!(!boot.folder.path().join("m").exists(), "the sockets are remaining");
    boot.wait_for_no_guest();

    let remaining = std::fs::read_dir(boot.folder.path().join("tmp")).unwrap().count();
    assert_eq!(remaining, 0, "temporary files are remaining");

    let mut child = start_running_guest(&boot);
    child.kill().unwrap();
    child.wait().unwrap();

    boot.wait_for_no_guest();
}

#[test]
fn a_shell_takes_commands_and_its_exit_code_is_that_of_the_program() {
    toolkit();
    let boot = Boot::new();
    let options = ["--shell", "--node", "cn2", "--root-ports", "--cpus", "2"];
    let mut child = boot.command(&options).stdin(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(
            b"lspci -n -d 1efc: | wc -l\necho at $NICFORGE_NODE with $(nproc): $NICFORGE_DEVICES\nexit 4",
        )
        .unwrap();

    let output = child.wait_with_output().unwrap();
    let (stdout, errors) = (to_text(&output.stdout), to_text(&output.stderr));

    assert_eq!(output.status.code(), Some(4), "{stdout}{errors}");
    assert!(
        stdout.contains("at cn2 with 2: cn2.core0=0000:01:00.0,cn2.core1=0000:02:00.0,"),
        "{stdout}{errors}"
    );
    assert!(stdout.lines().any(|line| line.trim_end().ends_with('4')), "{stdout}");
}

#[test]
fn a_command_that_takes_too_long_is_ended() {
    toolkit();
    let boot = Boot::new();
    let output = boot.run(&["--node", "cn0", "--timeout", "1", "--", "sleep", "1000"]);

    assert_eq!(output.status.code(), Some(3), "{}", to_text(&output.stderr));
    assert!(
        to_text(&output.stderr).contains("the command (--timeout) took longer than 1s"),
        "{}",
        to_text(&output.stderr)
    );

    boot.wait_for_no_guest();
}

#[test]
fn ctrl_c_and_the_time_limit_end_guests_whose_output_is_not_read() {
    toolkit();
    for (limit, signal, code) in [("1000", Some(Signal::SIGINT), 130), ("10", None, 3)] {
        let boot = Boot::new();
        let (_reader, writer) = std::io::pipe().unwrap();
        let arguments = ["--node", "cn0", "--timeout", limit, "--", "yes", "that nobody reads"];
        let mut child = boot.command(&arguments).stdout(writer.try_clone().unwrap()).spawn().unwrap();

        if let Some(signal) = signal {
            let start = Instant::now();
            let mut fds = [PollFd::new(writer.as_fd(), PollFlags::POLLOUT)];
            while poll(&mut fds, PollTimeout::ZERO).unwrap() > 0 {
                assert!(start.elapsed() < LIMIT, "the pipe does not get full");
                std::thread::sleep(Duration::from_millis(20));
            }
            kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        }

        assert_eq!(wait(&mut child), Some(code));
        assert!(!boot.folder.path().join("m").exists(), "the sockets are left");
        boot.wait_for_no_guest();
    }
}

#[test]
fn impossible_options_are_refused_before_any_download() {
    let boot = Boot::new();
    let cache = boot.folder.path().join("cache");
    let assert_fails = |command: &mut Command, code: i32, words: &[&str]| {
        let output = command.env("NICFORGE_CACHE", &cache).output().unwrap();
        let errors = to_text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{errors}");
        for word in words {
            assert!(errors.contains(word), "{word:?} is not in {errors}");
        }
    };

    assert_fails(&mut boot.command(&[]), 2, &["--shell", "--lspci"]);
    assert_fails(&mut boot.command(&["--node", "cn9", "--", "true"]), 2, &["there is no node cn9", "cn3"]);
    assert_fails(
        &mut boot.command(&["--shell", "--node", "cn0", "--node", "cn1"]),
        2,
        &["--shell is for one node"],
    );
    assert_fails(&mut boot.command(&["--shell", "--hold"]), 2, &["--hold", "--shell"]);
    assert_fails(&mut boot.command(&["--module", "a:b", "--", "true"]), 2, &["NAME:PARAM=VALUE"]);
    assert_fails(&mut boot.command(&["--qemu", "/bin/false", "--", "true"]), 3, &["/bin/false", "failed"]);
    assert_fails(
        &mut boot.command(&["--qemu", "/bin/true", "--", "true"]),
        2,
        &["has no device vfio-user-pci", "10.1"],
    );
    assert_fails(
        &mut boot.command(&["--kernel", "/no/kernel", "--", "true"]),
        2,
        &["/no/kernel: is not a file"],
    );
    // The host has no apt and no QEMU in this `PATH`.
    let empty_path = boot.folder.path().join("bin");
    let words = ["there is no QEMU here", "no relative of Debian", "--qemu", "--kernel"];
    assert_fails(boot.command(&["--", "true"]).env("PATH", empty_path), 3, &words);

    // The mirror does not exist.
    let mirror = format!("file:{}/mirror", boot.folder.path().display());
    let words = ["no mirror of Debian gave its lists", "NICFORGE_DEBIAN_MIRROR"];
    let mut command = boot.command(&["--", "true"]);
    assert_fails(
        command.env("NICFORGE_DEBIAN_MIRROR", mirror).env("PATH", path_without_qemu(&boot)),
        3,
        &words,
    );
}

/// Returns a `PATH` without QEMU, because the host's QEMU may be new enough.
fn path_without_qemu(boot: &Boot) -> std::ffi::OsString {
    let folder = boot.folder.path().join("programs");
    std::fs::create_dir(&folder).unwrap();
    let path = std::env::var_os("PATH").unwrap();

    for program in ["apt-get", "sh"] {
        let found =
            std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.exists());
        if let Some(found) = found {
            std::os::unix::fs::symlink(found, folder.join(program)).unwrap();
        }
    }

    folder.into_os_string()
}
