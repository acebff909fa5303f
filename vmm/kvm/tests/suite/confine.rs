//! The filter of system calls, in a process of its own, because it lasts until a process ends.
//!
//! UNSAFETY: some refused calls are made directly, because no library has them. None gets
//! a pointer.

#![allow(unsafe_code)]

use std::{
    fs::{File, Permissions},
    io::{self, Write as _},
    net::TcpStream,
    os::{
        fd::{AsFd, AsRawFd},
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
            process::CommandExt,
        },
    },
    path::Path,
    process::Command,
    sync::Arc,
    thread,
};

use nicforge_core::{
    ids::{AttachmentId, FunctionId},
    machine::Machine,
};
use nicforge_engine::{Engine, EngineConfig, Stop};
use nicforge_kvm::{End, Event, Function, LocalFunction, RemoteFunction, confine};
use nicforge_virtio_devices::{
    console::{VirtioConsole, line::Line},
    rng::VirtioRng,
};
use nix::libc::{self, c_long};
use vm_memory::MmapRegion;

use crate::{
    local::{self, Driver, program, shown},
    rig::{self, LIMIT, SLOT, Started, has_kvm},
};

/// The variable that names a console's socket for the confined process that has it.
const CONSOLE_SOCKET: &str = "NICFORGE_TEST_CONSOLE_SOCKET";
/// The number of a user that is not root and owns nothing.
const ORDINARY_USER: u32 = 65534;
/// The variable that names a server's socket for the confined process.
const SOCKET: &str = "NICFORGE_TEST_SOCKET";

#[test]
fn confined_machines_run_and_start_anew() {
    if !has_kvm() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("rng0");
    let mut machine = Machine::new();
    machine.add_function("rng0", Box::new(VirtioRng::device())).unwrap();
    let mut engine = Engine::new(machine, EngineConfig::default()).unwrap();
    engine.listen(FunctionId(0), AttachmentId(0), &socket).unwrap();

    let stop = Stop::new().unwrap();
    let child = thread::scope(|scope| {
        let server = scope.spawn(|| engine.run(&stop));
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "confine::confined_process", "--nocapture", "--test-threads=1"])
            .env(SOCKET, &socket)
            // A confined process removes no files, so that they are in this folder.
            .env("TMPDIR", folder.path())
            .output();
        stop.stop();
        server.join().unwrap().unwrap();
        child.unwrap()
    });
    assert!(child.status.success(), "{child:?}");
    assert!(String::from_utf8_lossy(&child.stdout).contains("1 passed"), "{child:?}");
}

#[test]
fn confined_console_takes_a_client_of_its_own_user() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    // The other user may not reach the folder of the tests.
    let program = folder.path().join("suite");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();

    let mut command = Command::new(program);
    // Every console takes clients of root, so root runs the process as another user.
    if nix::unistd::geteuid().is_root() {
        command.uid(ORDINARY_USER).gid(ORDINARY_USER);
    }
    let child = command
        .args(["--exact", "confine::confined_console", "--nocapture", "--test-threads=1"])
        .env(CONSOLE_SOCKET, folder.path().join("console0"))
        .env("TMPDIR", folder.path())
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(child.status.success(), "{child:?}");
    assert!(String::from_utf8_lossy(&child.stdout).contains("1 passed"), "{child:?}");
}

/// The body of the confined process with a console. Among the other tests it does nothing.
#[test]
fn confined_console() {
    let Some(socket) = std::env::var_os(CONSOLE_SOCKET) else { return };
    let line = Line::listen(Path::new(&socket)).unwrap();
    let driver = Driver::of("console0", Box::new(VirtioConsole::device(line)));
    let received = Event::new().unwrap();
    // A confined process connects to nothing. The console accepts the client later.
    let mut client = UnixStream::connect(&socket).unwrap();
    client.write_all(b"hi").unwrap();

    confine().unwrap();
    driver.set_up();
    driver.function.bind_vector(1, received.as_fd()).unwrap();
    driver.function.doorbells()[0].event.signal();
    local::wait(&received);
    assert_eq!(driver.used(), (1, 2));
}

/// Commands of `fcntl` (`fcntl.h` of Linux) that choose which process gets a descriptor's signals,
/// and which signal.
const F_SETOWN: c_long = 8;
const F_SETSIG: c_long = 10;
const F_SETOWN_EX: c_long = 15;

/// The body of the confined process. Among the other tests it does nothing.
#[test]
fn confined_process() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let local = LocalFunction::of_device("rng0", Box::new(VirtioRng::device())).unwrap();
    let remote = RemoteFunction::connect(&socket, LIMIT).unwrap();
    let machines = [start(local), start(remote)];
    let parent = std::os::unix::process::parent_id().cast_signed();

    confine().unwrap();
    check_refusals(Path::new(&socket), parent.into());
    for mut machine in machines {
        for round in 1..=2 {
            assert_eq!(machine.running.wait(LIMIT), Some(End::Reset));
            assert_eq!(machine.output.bytes(), shown().repeat(round));
            // New processors, memory slots, interrupts and device threads.
            machine.running = machine.running.restart().unwrap();
        }
        assert_eq!(machine.running.wait(LIMIT), Some(End::Reset));
        machine.running.stop();
        // A confined process removes no folder.
        std::mem::forget(machine.folder);
    }
}

/// Starts a program that uses a device and resets its machine.
fn start(function: impl Function + 'static) -> Started {
    rig::start(program(&function).reset(), vec![(SLOT, Arc::new(function))])
}

/// Checks that the process cannot do what no machine needs.
fn check_refusals(socket: &Path, parent: c_long) {
    let errors = [
        ("open a file", File::open("/proc/self/status").map(drop)),
        ("make a file", File::create(socket.with_extension("made")).map(drop)),
        ("connect to a socket", UnixStream::connect(socket).map(drop)),
        ("make a socket", UnixListener::bind(socket.with_extension("new")).map(drop)),
        ("connect to a host", TcpStream::connect("127.0.0.1:9").map(drop)),
        ("start a program", Command::new("/bin/true").status().map(drop)),
    ];
    for (what, result) in errors.into_iter().chain(signals_to(parent)) {
        let error = result.expect_err(what);
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{what}: {error}");
    }

    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let map = |protection| MmapRegion::<()>::build(None, 4096, protection, flags);
    assert!(map(libc::PROT_READ | libc::PROT_WRITE).is_ok());
    assert!(map(libc::PROT_READ | libc::PROT_EXEC).is_err());
    thread::spawn(|| {}).join().unwrap();
}

/// Tries to signal a process, or to make the kernel do that. Signal 0 would have no effect.
fn signals_to(process: c_long) -> [(&'static str, io::Result<()>); 4] {
    let file = io::stderr().as_raw_fd();
    let fcntl = |command, value| call(libc::SYS_fcntl, [file.into(), command, value]);
    [
        ("signal a thread of another process", call(libc::SYS_tgkill, [process, process, 0])),
        ("signal another process by a file", fcntl(F_SETOWN, process)),
        ("signal another process's thread by a file", fcntl(F_SETOWN_EX, 0)),
        ("choose the signal of a file", fcntl(F_SETSIG, 0)),
    ]
}

/// Makes a system call whose arguments are no pointers, or null pointers.
fn call(number: c_long, [first, second, third]: [c_long; 3]) -> io::Result<()> {
    // SAFETY: without pointers the call reaches no memory. The callers above name such calls only.
    let result = unsafe { libc::syscall(number, first, second, third) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
