//! Sockets that are given to other users and groups: the clients that can connect, those that
//! cannot, and the refused options.

#![allow(
    unsafe_code,
    reason = "a thread takes another user's credentials by raw calls: libc's change the whole process"
)]

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::{
        fd::AsFd,
        unix::{
            fs::{MetadataExt, PermissionsExt},
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use nicforge_vfio_user::{Client, DMA_FLAG_READ, DMA_FLAG_WRITE, DmaMap};
use nix::{
    errno::Errno,
    libc,
    sys::{
        memfd::{MFdFlags, memfd_create},
        signal::{Signal, kill},
    },
    unistd::{Pid, ftruncate, getegid, geteuid},
};

use super::{machine, nicforge, output, server::Server, text};

/// Numbers that no user or group of the host is likely to have.
const ALICE: u32 = 71_001;
const BOB: u32 = 71_002;
const TENANTS: u32 = 71_003;

/// Returns a folder that other users can pass, like the temporary directory.
fn searchable_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    folder
}

fn serve(options: &[&str]) -> Server {
    Server::start_in(searchable_folder(), Path::new(&machine("pset.toml")), options)
}

/// Connects to a socket with the given credentials. Returns `Ok` when the server answers the first
/// message, `EACCES` when the kernel refuses the connection, and `ECONNRESET` when the server
/// closes it, whether before the message or after it.
fn try_connect(user: u32, groups: &[u32], socket: PathBuf) -> Result<(), Errno> {
    let groups = groups.to_vec();
    let connect = move || {
        become_user(user, &groups);
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(super::LIMIT))?;
        // VERSION 0.0 without capabilities: a header of 16 bytes, with the command at byte 2 and
        // the message's size at byte 4, and two numbers of the version.
        let mut message = [0; 20];
        (message[2], message[4]) = (1, 20);
        stream.write_all(&message)?;
        stream.read_exact(&mut [0; 16])
    };

    std::thread::spawn(connect).join().unwrap().map_err(|error: std::io::Error| {
        match error.raw_os_error().map(Errno::from_raw) {
            None | Some(Errno::EPIPE) => Errno::ECONNRESET,
            Some(other) => other,
        }
    })
}

/// Changes user, group and further groups of the calling thread only.
fn become_user(user: u32, groups: &[u32]) {
    let own_group = groups.first().copied().unwrap_or(user);
    // SAFETY: the call reads `groups`, of the length given.
    let groups = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    // SAFETY: the call touches no memory of this process.
    let group = unsafe { libc::syscall(libc::SYS_setresgid, own_group, own_group, own_group) };

    // SAFETY: as above.
    let user = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
    assert_eq!([groups, group, user], [0; 3]);
}

/// Returns whether this process can give files away and become another user. A test that needs this
/// passes without a check otherwise.
fn is_root() -> bool {
    geteuid().is_root()
}

#[test]
fn a_socket_of_another_user_admits_only_that_user() {
    if !is_root() {
        return;
    }

    let server =
        serve(&["--socket-owner", &format!("cn0={ALICE}"), "--socket-owner", &format!("cn1.core2={BOB}")]);

    assert_eq!(try_connect(ALICE, &[], server.socket("cn0.core0")), Ok(()));
    assert_eq!(try_connect(BOB, &[], server.socket("cn1.core2")), Ok(()));
    assert_eq!(try_connect(BOB, &[], server.socket("cn0.core1")), Err(Errno::EACCES));
    assert_eq!(try_connect(ALICE, &[], server.socket("cn1.core1")), Err(Errno::EACCES));
    assert_eq!(try_connect(ALICE, &[], server.socket("admin/control")), Err(Errno::EACCES));
}

#[test]
fn a_socket_whose_mode_its_owner_opens_still_admits_only_the_owner() {
    if !is_root() {
        return;
    }

    let server = serve(&["--socket-owner", &ALICE.to_string()]);
    let socket = server.socket("cn0.core0");
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o777)).unwrap();

    assert_eq!(try_connect(BOB, &[], socket.clone()), Err(Errno::ECONNRESET));
    assert_eq!(try_connect(ALICE, &[], socket), Ok(()));
}

#[test]
fn a_socket_of_a_group_admits_members_by_primary_or_other_group() {
    if !is_root() {
        return;
    }

    let server = serve(&["--socket-group", &TENANTS.to_string()]);
    // These are more groups than the server's first buffer has room for.
    let many: Vec<u32> = (72_000..72_100).chain([TENANTS]).collect();

    assert_eq!(try_connect(ALICE, &[TENANTS], server.socket("cn0.core0")), Ok(()));
    assert_eq!(try_connect(ALICE, &many, server.socket("cn0.core1")), Ok(()));
    assert_eq!(try_connect(BOB, &many[..100], server.socket("cn0.core2")), Err(Errno::EACCES));
    std::fs::set_permissions(server.socket("cn0.core2"), std::fs::Permissions::from_mode(0o777)).unwrap();

    assert_eq!(try_connect(BOB, &many[..100], server.socket("cn0.core2")), Err(Errno::ECONNRESET));
}

/// Connects to a socket with the given credentials, if there are any, and maps a file of 512 MiB
/// that no seal keeps from growing. Returns the client.
fn map_guest_memory(user: Option<u32>, socket: PathBuf) -> Client {
    let map = move || {
        if let Some(user) = user {
            become_user(user, &[]);
        }
        let client = Client::connect(socket, super::LIMIT).unwrap();
        let memory = memfd_create(c"guest-memory", MFdFlags::MFD_CLOEXEC).unwrap();
        ftruncate(&memory, 512 << 20).unwrap();
        let flags = DMA_FLAG_READ | DMA_FLAG_WRITE;
        client
            .dma_map(DmaMap { flags, offset: 0, address: 0, size: 512 << 20 }, Some(memory.as_fd()))
            .unwrap();
        client
    };
    std::thread::spawn(map).join().unwrap()
}

/// Returns the number of mappings of a guest's memory in a server.
fn count_guest_memory(server: &Server) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap();
    maps.lines().filter(|line| line.contains("memfd:guest-memory")).count()
}

#[test]
fn unsealed_memory_of_the_servers_user_is_mapped_by_default() {
    let server = serve(&[]);
    let _client = map_guest_memory(None, server.socket("cn0.core0"));
    assert_eq!(count_guest_memory(&server), 1);
}

#[test]
fn unsealed_memory_of_another_user_is_not_mapped_and_the_log_names_the_option() {
    if !is_root() {
        return;
    }

    let folder = searchable_folder();
    let log = folder.path().join("log");
    let owner = ALICE.to_string();
    let options = ["--socket-owner", &owner];
    let server = Server::start_with_log(folder, Path::new(&machine("pset.toml")), &options, &log);

    let _foreign = map_guest_memory(Some(ALICE), server.socket("cn0.core0"));
    assert_eq!(count_guest_memory(&server), 0);
    let deadline = Instant::now() + super::LIMIT;
    while !std::fs::read_to_string(&log).unwrap().contains("--mapped-limit") {
        assert!(Instant::now() < deadline, "{}", std::fs::read_to_string(&log).unwrap());
        crate::pause();
    }

    // Root and the server's user have the other limit at the same sockets.
    let _own = map_guest_memory(None, server.socket("cn0.core1"));
    assert_eq!(count_guest_memory(&server), 1);
}

#[test]
fn named_limit_holds_for_other_users_too() {
    if !is_root() {
        return;
    }

    let server = serve(&["--socket-owner", &ALICE.to_string(), "--mapped-limit", "1G"]);
    let _client = map_guest_memory(Some(ALICE), server.socket("cn0.core0"));
    assert_eq!(count_guest_memory(&server), 1);
}

/// As the owner of a directory, replaces `m` in it by a link to a directory of another user again
/// and again, until it is told to stop. Every second time it waits until `m` has a directory in it.
fn exchange_until(stop: &AtomicBool, folder: &Path, target: &Path) {
    become_user(ALICE, &[]);
    let (path, moved) = (folder.join("m"), folder.join("moved"));
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let Ok(metadata) = path.symlink_metadata() else { continue };
        // Each call fails when the server was faster.
        if metadata.is_symlink() {
            let _ = std::fs::remove_file(&path);
        } else if metadata.nlink() >= 2 + number % 2
            && std::fs::rename(&path, moved.with_extension(number.to_string())).is_ok()
        {
            let _ = std::os::unix::fs::symlink(target, &path);
            number += 1;
        }
    }
}

#[test]
fn owner_of_the_parent_directory_leads_the_server_to_no_other_file() {
    const STARTS: usize = 30;
    if !is_root() {
        return;
    }

    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
    let (folder, precious) = (searchable_folder(), tempfile::tempdir().unwrap());
    let of_alice = folder.path().join("alice");
    std::fs::create_dir(&of_alice).unwrap();
    std::os::unix::fs::chown(&of_alice, Some(ALICE), Some(ALICE)).unwrap();
    std::fs::set_permissions(precious.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let stop = AtomicBool::new(false);

    std::thread::scope(|scope| {
        scope.spawn(|| exchange_until(&stop, &of_alice, precious.path()));
        for _ in 0..STARTS {
            let mut child =
                nicforge(&["serve", &machine("proof.toml"), "--socket-owner", &ALICE.to_string()])
                    .arg("--dir")
                    .arg(of_alice.join("m"))
                    .stdout(Stdio::piped())
                    .stderr(Stdio::null())
                    .spawn()
                    .unwrap();
            // A server that serves prints a line, and one that is refused ends.
            let mut reader = BufReader::new(child.stdout.take().unwrap());
            reader.read_line(&mut String::new()).unwrap();
            kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
            super::wait(&mut child);
        }
        stop.store(true, Ordering::Relaxed);
    });

    assert_eq!(mode(precious.path()), 0o700);
    let left: Vec<_> = std::fs::read_dir(precious.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_servers_own_group_needs_no_privilege_and_admin_sockets_stay_private() {
    let group = getegid().as_raw();
    let server = serve(&["--socket-group", &format!("cn0={group}")]);
    let mode = |name: &str| std::fs::metadata(server.socket(name)).unwrap().mode() & 0o777;

    assert_eq!(std::fs::metadata(server.socket("cn0.core0")).unwrap().gid(), group);
    assert_eq!([mode("cn0.core0"), mode("cn1.core0"), mode("admin/cn0.admin")], [0o660, 0o600, 0o600]);
    assert_eq!([mode(""), mode("admin")], [0o711, 0o700]);
}

#[test]
fn missing_users_and_directories_that_others_cannot_enter_are_refused() {
    let folder = searchable_folder();
    let closed = folder.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    let refused = |directory: &Path, option: &str, name: &str| {
        let file = machine("pset.toml");
        output(nicforge(&["serve", &file, option, name, "--dir"]).arg(directory))
    };

    let unknown = refused(&folder.path().join("m"), "--socket-owner", "cn0=no-such-user");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("there is no user no-such-user"), "{}", text(&unknown.stderr));

    let shut = refused(&closed.join("m"), "--socket-group", &getegid().to_string());
    assert_eq!(shut.status.code(), Some(3));
    assert!(
        text(&shut.stderr).contains("closed can be entered by its own user only"),
        "{}",
        text(&shut.stderr)
    );
    assert!(!closed.join("m").exists());
}
