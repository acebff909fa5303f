//! Guests for tests, booted with attachments of a served machine. The operator is at the host's end
//! of their serial line.
//!
//! - In: a [`Served`] machine, names of attachments, programs.
//! - Out: a [`Guest`] that runs commands.
//!
//! A guest's logs (console, QEMU's messages) are under `target/guest-logs`.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, OnceLock},
    time::Duration,
};

use nicforge_core::{ids::FunctionId, machine::Machine};
use nicforge_driver::Device;
use nicforge_guest::{Driver, Guest, GuestConfig, Job, Output, Progress, Provision, Stream, Toolkit, Vmm};

use nicforge_hwi::{
    pci,
    tree_dcr::{ARB_RCFG, dcr, gi, rcfg},
};

use crate::{
    backing::{Rig, Served, ask},
    bodies::GuestDoor,
};

/// Deadline of waits in guests, generous enough for emulation on a loaded machine.
pub const LONG: Duration = Duration::from_secs(300);
/// Deadline of a command in a guest. One command may run all bodies of several machines.
const COMMAND: Duration = Duration::from_secs(1800);

/// Kernel parameter of guests whose buffers of 1 MiB and more shall be in huge pages: a quarter of
/// the memory.
const HUGE_PAGES: &str = "hugepages=64";

/// Returns QEMU, a kernel and the other parts, provisioned once for each test process.
///
/// # Panics
/// When they can't be provisioned.
pub fn toolkit() -> &'static Toolkit {
    static TOOLKIT: OnceLock<Toolkit> = OnceLock::new();
    TOOLKIT.get_or_init(|| {
        let provided = Provision::from_environment().provide(&Progress::on_stderr());
        provided.unwrap_or_else(|error| panic!("{error}"))
    })
}

/// Returns the folder of a test's guest logs: beside the profile's folder of the test program.
fn logs(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("a program has a path");
    program.ancestors().nth(3).unwrap_or(Path::new(".")).join("guest-logs").join(name)
}

/// Returns the configuration of a guest named after its test, with `sockets` through `door`.
pub fn config(name: &str, door: GuestDoor, sockets: Vec<(String, PathBuf)>) -> GuestConfig {
    let config = GuestConfig::new(name).boot_deadline(LONG).logs(logs(name)).processors(2);
    let config = match door {
        // QEMU sends a message to the server for each page that the IOMMU maps or unmaps. The guest
        // behind an IOMMU with the shim has ordinary pages.
        GuestDoor::Vfio => config.iommu(true).driver(Driver::Vfio).append(HUGE_PAGES),
        GuestDoor::Shim => config.driver(Driver::Shim),
        GuestDoor::ShimIommu => config.iommu(true).driver(Driver::Shim),
        GuestDoor::Own => config.vmm(Vmm::Own).driver(Driver::Shim),
    };

    sockets.into_iter().fold(config, |config, (name, socket)| config.user_function(name, socket))
}

/// Boots the guest.
///
/// # Panics
/// When it does not start, or reports a problem of its start.
pub fn boot(config: &GuestConfig) -> Guest {
    let guest =
        Guest::boot(toolkit(), config, &Progress::on_stderr()).unwrap_or_else(|error| panic!("{error}"));
    assert!(guest.problems().is_empty(), "{:?}", guest.problems());
    guest
}

/// Compiles the checks of the kernel module (`tests/guest/shim`) into a program `shim-checks` in
/// `folder`.
///
/// # Panics
/// When compilation fails.
pub fn shim_checks(folder: &Path) -> PathBuf {
    const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

    let sources = Path::new(ROOT).join("tests/guest/shim");
    let sources =
        ["checks.c", "function.c", "interrupt.c", "memory.c", "end.c"].map(|name| sources.join(name));
    std::fs::create_dir_all(folder).expect("the tests' folder can be written");

    let program = folder.join("shim-checks");
    let output = Command::new("cc")
        .args(["-std=gnu11", "-static", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror"])
        .arg("-Wno-missing-field-initializers")
        .args(["-I", &format!("{ROOT}/kmod-shim/include"), "-I", &format!("{ROOT}/kmod-shim/include/uapi")])
        .args(sources)
        .arg("-o")
        .arg(&program)
        .output()
        .expect("there is a C compiler");

    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    program
}

/// Returns a job whose lines are printed as they arrive.
pub fn printed(script: &str) -> Job {
    Job::shell(script).on_line(Arc::new(|stream, line| match stream {
        Stream::Output => println!("{line}"),
        Stream::Error => eprintln!("{line}"),
    }))
}

/// Runs a job and prints its lines.
///
/// # Panics
/// When the job fails.
pub fn run(guest: &Guest, script: &str) -> Output {
    let output = guest.run(printed(script), COMMAND).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(output.status, 0, "{script}");
    output
}

/// Answers the requests that a guest sends over its serial line, until the guest ends: see
/// [`crate::guest_rig`]. The guest reaches functions of these machines, each of which has another
/// name.
///
/// # Panics
///
/// When the line fails before the guest's end.
pub fn answer_requests(machines: &[Served], line: &UnixStream) {
    let mut base = HashMap::new();
    // The guest keeps its attachments between bodies, so nodes keep the state of the last body. The
    // admin attachments reset them before each body.
    let nodes = machines.iter().flat_map(|served| {
        served.functions().filter_map(|name| Some((name, served.try_open(name, "admin").ok()?)))
    });
    let nodes: Vec<_> = nodes.filter(|(_, admin)| admin.identity().device == pci::DEVICE_TREE).collect();

    for request in BufReader::new(line).lines() {
        let Ok(request) = request else { return };
        if request.trim() == "begin" {
            nodes.iter().for_each(|(name, admin)| reset_node(name, admin));
        }

        let answer = answer(machines, &mut base, request.trim());
        let mut line = line;
        if writeln!(line, "{answer}").is_err() {
            return;
        }
    }
}

/// Empties the FIFOs of a tree node, and returns its global interrupt unit to the state of
/// power-on, in which compute nodes take part in all channels.
fn reset_node(name: &str, admin: &Device) {
    let registers = admin.bar(0).expect("a node has registers");
    let write = |offset, value| registers.write32(offset, value).expect("an admin may reset its node");
    write(dcr(ARB_RCFG), rcfg::RST);

    let takes_part = u32::from(!name.starts_with("io"));
    for channel in (0..gi::CHANNELS).map(|channel| gi::BASE + 16 * channel) {
        write(channel + gi::STICKY, 0);
        write(channel + gi::STATE, 0);
        write(channel + gi::PARTICIPATE, takes_part);
    }
}

/// Values of counters, by the names of function and counter.
type Counters = HashMap<(String, String), u64>;

/// Returns all counters of machines.
fn counters(machines: &[Served]) -> Counters {
    machines.iter().flat_map(|served| ask(served, counters_of)).collect()
}

/// Returns all counters of a machine.
fn counters_of(machine: &mut Machine) -> Counters {
    let functions = (0..machine.functions()).map(FunctionId);
    functions
        .flat_map(|id| {
            let name = machine.name(id).unwrap_or_default().to_owned();
            let counters = machine.counters(id).into_iter();
            counters.map(move |found| ((name.clone(), found.name.to_owned()), found.value))
        })
        .collect()
}

/// Carries out one request of a guest, and returns the answer. `base` has the counters as they were
/// when the body began, from which `counter` counts.
fn answer(machines: &[Served], base: &mut Counters, request: &str) -> String {
    let words: Vec<_> = request.split_whitespace().collect();
    match words[..] {
        ["begin"] => {
            machines.iter().for_each(Rig::settle);
            *base = counters(machines);
            "ok".to_owned()
        }
        ["settle"] => {
            machines.iter().for_each(Rig::settle);
            "ok".to_owned()
        }
        ["reset", function] => {
            match machines.iter().find(|served| served.functions().any(|name| name == function)) {
                Some(served) => served.reset(function),
                None => return "error there is no such function".to_owned(),
            }
            "ok".to_owned()
        }
        ["counter", function, name] => {
            let key = (function.to_owned(), name.to_owned());
            match counters(machines).get(&key) {
                Some(value) => format!("ok {}", value - base.get(&key).copied().unwrap_or(0)),
                None => "error there is no such counter".to_owned(),
            }
        }
        _ => "error that is no request".to_owned(),
    }
}
