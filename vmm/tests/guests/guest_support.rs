//! Helpers for tests with guests: a server process, folders for logs, and the output of the
//! server's log when a test fails.

#![allow(clippy::unwrap_used, clippy::panic, dead_code, reason = "helpers of tests; each test uses some")]

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nicforge_guest::{Guest, GuestConfig, Progress, Provision, Toolkit};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// The longest wait, also for an emulated guest on a busy host.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// Returns an empty folder for a test's logs, in `target/guest-logs`.
pub(crate) fn logs(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guest-logs").join(test);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Returns QEMU, a kernel and so on. Without them a test fails with the reason.
pub(crate) fn toolkit() -> Toolkit {
    Provision::from_environment().provide(&Progress::on_stderr()).unwrap_or_else(|error| panic!("{error}"))
}

/// Boots a guest, with its logs in the test's folder.
pub(crate) fn boot(toolkit: &Toolkit, config: GuestConfig, logs: &Path) -> Guest {
    let guest = Guest::boot(toolkit, &config.logs(logs), &Progress::silent());
    let guest = guest.unwrap_or_else(|error| panic!("{error}"));
    assert!(guest.problems().is_empty(), "{:?}", guest.problems());
    guest
}

/// Runs a script in a guest, and returns its standard output. The script must succeed.
pub(crate) fn run(guest: &Guest, script: &str) -> String {
    let output = guest.run(script, LIMIT).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(output.status, 0, "{script}\n{}{}", output.stdout, output.stderr);
    output.stdout
}

/// Compiles the checks of the kernel module (`tests/guest/shim`) into a program `shim-checks` in
/// `folder`.
pub(crate) fn shim_checks(folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (sources, headers) = (root.join("tests/guest/shim"), root.join("kmod-shim/include"));
    let sources =
        ["checks.c", "function.c", "interrupt.c", "memory.c", "end.c"].map(|name| sources.join(name));
    let program = folder.join("shim-checks");
    let output = Command::new("cc")
        .args(["-std=gnu11", "-static", "-O1", "-pthread", "-I"])
        .arg(&headers)
        .arg("-I")
        .arg(headers.join("uapi"))
        .args(sources)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();

    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A `nicforge serve` process, with its log in the test's folder.
pub(crate) struct Server {
    child: Child,
    directory: PathBuf,
    log: PathBuf,
    _folder: tempfile::TempDir,
}

impl Server {
    /// Serves the machine of a machine file's text, with a log in the folder `logs`.
    pub(crate) fn start(machine: &str, logs: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("machine.toml");
        std::fs::write(&file, machine).unwrap();
        let directory = folder.path().join("m");
        let log = logs.join("server.log");
        let mut child = Command::new(env!("CARGO_BIN_EXE_nicforge"))
            .arg("serve")
            .arg(&file)
            .arg("--dir")
            .arg(&directory)
            .env("NICFORGE_LOG", "debug")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();

        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();

        assert!(line.starts_with("serving "), "{line}");
        Self { child, directory, log, _folder: folder }
    }

    pub(crate) fn socket(&self, name: &str, admin: bool) -> PathBuf {
        if admin { self.directory.join("admin").join(name) } else { self.directory.join(name) }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends the server as Ctrl-C does.
    pub(crate) fn stop(&mut self) {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    /// Returns whether a client is connected to a node's attachment.
    fn is_used(&self, node: &str, attachment: &str) -> bool {
        let output = Command::new(env!("CARGO_BIN_EXE_nicforge"))
            .args(["stat", self.directory.to_str().unwrap(), "--json"])
            .output()
            .unwrap();
        let stat: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let named = |list: &serde_json::Value, name: &str| {
            list.as_array().unwrap().iter().find(|entry| entry["name"] == name).unwrap().clone()
        };

        !named(&named(&stat["nodes"], node)["attachments"], attachment)["pid"].is_null()
    }

    /// Waits until no client is connected to a node's attachment.
    pub(crate) fn wait_unused(&self, node: &str, attachment: &str) {
        let start = Instant::now();
        while self.is_used(node, attachment) {
            assert!(start.elapsed() < LIMIT, "{node}.{attachment} is still in use");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();

        if std::thread::panicking() {
            let text = std::fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            eprintln!("--- the end of {}:", self.log.display());
            for line in &lines[lines.len().saturating_sub(40)..] {
                eprintln!("{line}");
            }
        }
    }
}
