//! Two of our own virtual machines inside a guest with nested virtualisation, one from an unpacked
//! kernel and one from a bzImage. Their Linux drives virtio network devices of one served machine,
//! a card with an interrupt line, and devices of a machine's own, by its own drivers. A third
//! machine runs the test bodies of FCNP, VELO and RMA. Its programs and its network device then
//! meet those of a guest of QEMU, which runs beside it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use nicforge_guest::{Guest, GuestConfig, GuestError, Progress};
use nicforge_tests::{
    backing::PATIENCE,
    guest::{boot, printed, toolkit},
    own_vm,
};

/// Time limit of the guest's boot, generous enough for emulation on a loaded machine.
const LIMIT: Duration = Duration::from_secs(300);
/// Time limit of a command in the outer guest. One boots machines, and does all work with them: on
/// a machine with a load of 20 for two processors it took six minutes.
const COMMAND: Duration = Duration::from_secs(3000);
/// Bytes of the longer transfer between two of our own virtual machines, and between one of them
/// and QEMU's guest.
const OWN_BYTES: u64 = 1 << 20;
const BYTES: u64 = 8 << 20;
/// Writes that are posted while exits are counted.
const POSTS: u64 = 20_000;

/// Bytes of an inner guest's log that a failure shows.
const LOG_END: usize = 4096;
/// Number of times that the outer guest is booted at most.
const MAX_BOOTS: u32 = 3;
/// Lines of a command's standard error that a failure repeats.
const LAST_LINES: usize = 60;

/// Copies the prepared files. The shared folder is slow for programs and for files that QEMU maps:
/// each page is read when it is needed.
const COPY: &str = "cp -r /share/own /tmp/own";

#[test]
fn own_virtual_machines_reach_each_other() {
    let toolkit = toolkit();
    let Some(kernel) = toolkit.kernel.unpacked() else {
        eprintln!("NOT RUN, {} cannot be unpacked on this host", toolkit.kernel.image.display());
        return;
    };

    // Files with debug information would fill the guests' memory, and take long to unpack there.
    let programs = tempfile::tempdir().unwrap();
    let stripped = |program: &str| strip(Path::new(program), programs.path());

    // The host provisions what the inner machines start, and the guest finds it in a folder.
    let folder = tempfile::tempdir().unwrap();
    for (kernel, name) in [(kernel, "vmlinux"), (toolkit.kernel.image.as_path(), "vmlinuz")] {
        std::fs::copy(kernel, folder.path().join(name)).unwrap();
    }
    let station = concat!(env!("CARGO_MANIFEST_DIR"), "/guest/nested/station");
    let inner = GuestConfig::new("inner")
        .module("virtio_pci")
        .module("virtio_net")
        .module("gpio-pci-idio-16")
        .module("virtio_blk")
        .module("virtio-rng")
        .module("virtio_console")
        .program(stripped(env!("CARGO_BIN_EXE_guest-net")))
        .program(stripped(env!("CARGO_BIN_EXE_guest-gpio")))
        .file(station, "/root/station");
    let written = toolkit.write_initramfs(&inner, &folder.path().join("initrd"), &Progress::on_stderr());
    written.unwrap_or_else(|error| panic!("{error}"));

    // Another folder has QEMU, and the files of the guests in which test bodies and programs run.
    let own = folder.path().join("own");
    std::fs::create_dir(&own).unwrap();
    let share = tempfile::tempdir().unwrap();
    own_vm::fill_shared(share.path()).unwrap();
    let configs = [
        own_vm::config(|_, _| "inside".into())
            .program(stripped(env!("CARGO_BIN_EXE_guest_bodies")))
            .share(share.path()),
        own_vm::qemu_config(|_, _| "inside".into()),
    ];
    let configs = configs.map(|config| {
        let config = config.program(stripped(env!("CARGO_BIN_EXE_guest_program")));
        config.program(stripped(env!("CARGO_BIN_EXE_guest-net")))
    });
    let prepared = toolkit.prepare(&configs, &own, &Progress::on_stderr());
    prepared.unwrap_or_else(|error| panic!("{error}"));

    // The guests in the outer one write their logs into the folder.
    let logs = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guest-logs").join("nested");
    let _inner_logs = InnerLogs::new(folder.path().join("logs"), &logs);
    // One processor, so that there are no interrupts between processors: the emulator has delivered
    // one where KVM holds them. All takes 284 s so, and 215 s with two.
    let outer = GuestConfig::new("outer")
        .processors(1)
        .memory(1536)
        .module("kvm_amd")
        .program(stripped(env!("CARGO_BIN_EXE_guest-vms")))
        .program(stripped(env!("CARGO_BIN_EXE_guest-own")))
        .program(stripped(env!("CARGO_BIN_EXE_own-devices")))
        .share(folder.path())
        .boot_deadline(LIMIT)
        .logs(logs);

    // QEMU's emulation of SVM delivers an interrupt to the outer Linux where none may come, now and
    // then, and that ends it: see the book, "Our own virtual machine".
    for attempt in 1.. {
        match run_in(&outer) {
            Err(GuestError::Ended { end, .. }) if attempt < MAX_BOOTS => {
                let _ = writeln!(io::stderr(), "nested: the outer guest ended, and is booted again{end}");
            }
            outcome => return outcome.unwrap_or_else(|error| panic!("{error}")),
        }
    }
}

/// Boots the outer guest, and does all that the test does in it.
fn run_in(outer: &GuestConfig) -> Result<(), GuestError> {
    let begin = Instant::now();
    let guest = boot(outer);
    println!("the outer guest boots in {:.1?}", begin.elapsed());
    run(&guest, &format!("guest-vms /share /share/logs {OWN_BYTES}"))?;
    println!("the two machines end after {:.1?}", begin.elapsed());
    run(&guest, COPY)?;

    let own = format!("guest-own /tmp/own /root/own-devices /share/logs {BYTES} {POSTS}");
    let messages = run(&guest, &format!("{PATIENCE}=5 {own}"))?;
    let failures = messages.lines().filter(|line| line.starts_with("FAILURE")).count();
    if failures > 0 {
        // The harness keeps what a test prints to itself if the test passes, but not this.
        let _ = writeln!(io::stderr(), "nested: {failures} failures in all, before all steps held");
    }
    println!("in all {:.1?}", begin.elapsed());
    guest.power_off(LIMIT)
}

/// Runs a command, prints its lines as they come, and checks that it succeeds. The message of a
/// failure has the last lines that it printed to standard error. Returns its standard error.
fn run(guest: &Guest, script: &str) -> Result<String, GuestError> {
    let output = guest.run(printed(script), COMMAND)?;
    if output.status != 0 {
        let lines: Vec<&str> = output.stderr.lines().collect();
        let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
        panic!("{script}: status {}, after\n{}", output.status, last.join("\n"));
    }
    Ok(output.stderr)
}

/// The folder in which guests inside the outer one keep their logs, some of them in folders of an
/// attempt. They are beside the outer guest's at the end, however that is.
struct InnerLogs {
    from: PathBuf,
    to: PathBuf,
}

impl InnerLogs {
    fn new(from: PathBuf, to: &Path) -> Self {
        std::fs::create_dir(&from).unwrap();
        Self { from, to: to.to_owned() }
    }

    /// Calls `visit` with the path of each log, in the folder and relative to it.
    fn for_each(&self, mut visit: impl FnMut(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
        let mut folders = vec![self.from.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    visit(&path, path.strip_prefix(&self.from).map_err(io::Error::other)?)?;
                }
            }
        }
        Ok(())
    }

    fn copy(&self) -> io::Result<()> {
        self.for_each(|path, name| {
            let to = self.to.join(name);
            std::fs::create_dir_all(to.parent().unwrap_or(&self.to))?;
            std::fs::copy(path, to).map(drop)
        })
    }

    /// Prints the ends of the logs.
    fn print(&self) -> io::Result<()> {
        self.for_each(|path, name| {
            let text = std::fs::read(path)?;
            let text = String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_END)..]).into_owned();
            eprintln!("--- the end of {}:\n{text}", name.display());
            Ok(())
        })
    }
}

impl Drop for InnerLogs {
    fn drop(&mut self) {
        let copied = self.copy();
        let printed = if std::thread::panicking() { self.print() } else { Ok(()) };
        if let Err(error) = copied.and(printed) {
            eprintln!("the inner guests' logs: {error}");
        }
    }
}

/// Copies a program into a folder without its debug information. Returns the path of the copy.
fn strip(program: &Path, folder: &Path) -> PathBuf {
    let copy = folder.join(program.file_name().unwrap());
    let status = Command::new("strip").arg("-o").arg(&copy).arg(program).status();
    assert!(status.expect("the tools of the linker").success(), "{}", program.display());
    copy
}
