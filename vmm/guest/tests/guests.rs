//! A guest boots, runs commands and reports their exit statuses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{path::Path, sync::Arc, time::Duration};

use nicforge_guest::{Guest, GuestConfig, Job, Progress, Provision};

/// Deadline of each step, generous enough for a loaded machine.
const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn a_guest_runs_commands_and_gives_their_statuses() {
    let progress = Progress::on_stderr();
    let toolkit = Provision::from_environment().provide(&progress).unwrap_or_else(|error| panic!("{error}"));
    let config = GuestConfig::new("n0").boot_deadline(LIMIT).env("GREETING", "it's");
    let guest = Guest::boot(&toolkit, &config, &progress).unwrap_or_else(|error| panic!("{error}"));

    assert!(guest.problems().is_empty(), "{:?}", guest.problems());

    let output = guest.run("echo \"$GREETING\"; echo bad >&2; exit 3", LIMIT).unwrap();
    assert_eq!((output.status, output.stdout.as_str(), output.stderr.as_str()), (3, "it's\n", "bad\n"));

    let output = guest.run(Job::program(["lspci", "-nn", "-s", "00:00.0"]), LIMIT).unwrap();
    assert!(output.stdout.contains("Host bridge"), "{output:?}");

    // The end of a long output arrives too, however slowly the callback takes it.
    let slow = Job::shell("seq 1 15000").on_line(Arc::new(|_, line| {
        if line.ends_with("00") {
            std::thread::sleep(Duration::from_millis(10));
        }
    }));

    let output = guest.run(slow, LIMIT).unwrap();
    assert_eq!((output.status, output.truncated, output.stdout.lines().count()), (0, false, 15_000));

    // A background process of a job neither delays the job's end nor dies with it.
    let output = guest.run("(sleep 30; echo late; touch /tmp/lives) & echo -n begun", LIMIT).unwrap();
    assert_eq!((output.status, output.stdout.as_str()), (0, "begun\n"));

    let output = guest.run("until [ -e /tmp/lives ]; do sleep 1; done", LIMIT).unwrap();
    assert_eq!(output.status, 0);

    // SIGINT ends a program with the usual status.
    let output = guest.run("sh -c 'kill -INT $$; echo lives'", LIMIT).unwrap();
    assert_eq!((output.status, output.stdout.as_str()), (130, ""));

    let endless = guest.start("sleep 1000 & sleep 1000").unwrap();
    endless.kill().unwrap();
    assert_eq!(endless.wait(LIMIT).unwrap().status, 137);

    guest.power_off(LIMIT).unwrap();
}

#[test]
fn a_guest_that_is_reset_boots_again_from_files_that_have_no_names() {
    let progress = Progress::on_stderr();
    let toolkit = Provision::from_environment().provide(&progress).unwrap_or_else(|error| panic!("{error}"));
    let logs = tempfile::tempdir().unwrap();
    let config = GuestConfig::new("n0").boot_deadline(LIMIT).reboots(true).logs(logs.path());
    let guest = Guest::boot(&toolkit, &config, &progress).unwrap_or_else(|error| panic!("{error}"));
    let words = std::fs::read(format!("/proc/{}/cmdline", guest.pid())).unwrap();
    let words = String::from_utf8(words).unwrap();
    let sockets: Vec<_> = words.split([',', '\0']).filter_map(|word| word.strip_prefix("path=")).collect();

    assert_eq!(sockets.len(), 3, "{words}");
    assert!(sockets.iter().all(|path| !Path::new(path).exists()), "{words}");
    assert!(words.contains("\0-initrd\0/proc/self/fd/0\0"), "{words}");

    guest.reset().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(guest.run("exit 3", LIMIT).unwrap().status, 3);

    guest.power_off(LIMIT).unwrap();
    assert!(logs.path().join("n0.trace.log").is_file());
}

#[test]
fn parts_without_qemu_need_none() {
    let qemu = Some("/no/such/qemu".into());
    let provision = Provision { qemu, without_qemu: true, ..Provision::from_environment() };
    let toolkit = provision.provide(&Progress::on_stderr()).unwrap_or_else(|error| panic!("{error}"));

    assert!(toolkit.kernel.image.is_file());
    assert!(toolkit.qemu().unwrap_err().to_string().contains("without QEMU"));
    let error = Guest::boot(&toolkit, &GuestConfig::new("n0"), &Progress::silent()).map(drop).unwrap_err();
    assert!(error.to_string().contains("without QEMU"), "{error}");
}
