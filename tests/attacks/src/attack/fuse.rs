//! Attack by a file of the attacker's own file system, whose close waits for the attacker.
//!
//! The file system is the minimum that the kernel's FUSE accepts: a directory with one file. It is
//! mounted in the attacker's own namespaces, which needs no privilege. A separate process serves
//! it. A process that served its own files could not be killed: its end closes its files, which
//! then waits for the file system's server.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::fd::{AsFd, AsRawFd},
    path::Path,
    process,
};

use nicforge_vfio_user::wire::Command;
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    unistd::{getegid, geteuid},
};

use crate::{
    arena::{Arena, Failed, Round},
    client::{self, Client},
};

/// Requests of the kernel (`enum fuse_opcode` of `<linux/fuse.h>`).
mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const OPEN: u32 = 14;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const BATCH_FORGET: u32 = 42;
}

/// Size of `struct fuse_in_header`.
const IN_HEADER: usize = 40;
/// Size of `struct fuse_out_header`.
const OUT_HEADER: usize = 16;
/// Size of `struct fuse_attr`.
const ATTR: usize = 88;
/// Largest request that is read.
const MAX_REQUEST: usize = 1 << 17;
/// The version of the FUSE protocol.
const VERSION: [u32; 2] = [7, 31];
/// The inode number of the directory.
const ROOT: u64 = 1;
/// The inode number of the file.
const FILE: u64 = 2;
/// Type and permissions of the directory.
const DIRECTORY_MODE: u32 = 0o40_755;
/// Type and permissions of the file.
const FILE_MODE: u32 = 0o100_644;

/// Passes a file of its own file system. Each close asks that file system to flush, and waits
/// without end; no signal interrupts it.
///
/// A correct server loses one thread to each such file, up to a limit, and its other work
/// continues. When asked to end, it removes its sockets in time. Its process ends when the kernel
/// allows it, which is after the attacker's end.
pub(super) fn files(arena: &Arena) -> Round {
    let folder = arena.socket("..").join("fuse");
    let device = mount_in_new_namespace(&folder).map_err(|error| Failed::NotRun(format!("FUSE: {error}")))?;
    let mut server = process::Command::new(std::env::current_exe()?)
        .args(["file-system", &process::id().to_string()])
        .stdin(device)
        .spawn()?;

    let result = arena.repeat(|| {
        let file = File::open(folder.join("file"))?;
        let mut client = Client::negotiated(&arena.socket("target.user0"))?;
        let id = client.id();
        let message = client::request(id, Command::DeviceGetInfo, &client::info());
        client.send_fds(&message, &[file.as_fd()])?;
        drop(file);
        client.reply_to(id)?;
        client.ask(Command::DeviceGetInfo, &client::info())?;
        Ok(())
    });

    server.kill()?;
    server.wait()?;
    result
}

/// Mounts the file system at `folder`, in new user and mount namespaces. Returns its device.
fn mount_in_new_namespace(folder: &Path) -> io::Result<File> {
    let (user, group) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;

    fs::create_dir_all(folder)?;
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let options = format!("fd={},rootmode=40000,user_id={user},group_id={group}", device.as_raw_fd());
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;

    mount(Some("attack"), folder, Some("fuse"), flags, Some(options.as_str()))?;
    Ok(device)
}

/// Serves the file system whose device is the standard input, until that ends. It answers every
/// request except a flush by a process other than `exempt_process`.
///
/// # Errors
/// When the standard input is not available.
pub fn serve(exempt_process: u32) -> io::Result<()> {
    let mut device = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut request = vec![0; MAX_REQUEST];

    while let Ok(length) = device.read(&mut request) {
        let Some(request) = Request::parse(&request[..length]) else { continue };
        if request.opcode == opcode::FLUSH && request.process != exempt_process {
            continue;
        }
        let Some(answer) = answer(&request) else { continue };
        // An interrupted request no longer exists, so the write may fail.
        let _ = device.write(&answer);
    }

    Ok(())
}

/// The fields of `struct fuse_in_header` that the file system uses.
struct Request {
    opcode: u32,
    /// The number that the reply repeats.
    unique: u64,
    /// The inode number.
    node: u64,
    /// The process that makes the request.
    process: u32,
}

impl Request {
    /// Parses a request. `None` if it is too short.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        bytes.get(..IN_HEADER)?;
        Some(Self { opcode: word(4)?, unique: long(8)?, node: long(16)?, process: word(32)? })
    }
}

/// Returns the reply to a request; `None` for one that gets none.
fn answer(request: &Request) -> Option<Vec<u8>> {
    let (error, body) = match request.opcode {
        opcode::FORGET | opcode::BATCH_FORGET => return None,
        opcode::INIT => (0, initialised()),
        opcode::LOOKUP => (0, [&entry()[..], &attributes(FILE)].concat()),
        opcode::GETATTR => (0, [&[0; 16][..], &attributes(request.node)].concat()),
        opcode::OPEN => (0, vec![0; 16]),
        opcode::RELEASE | opcode::FLUSH => (0, Vec::new()),
        _ => (-libc::ENOSYS, Vec::new()),
    };

    let mut bytes = Vec::with_capacity(OUT_HEADER + body.len());
    bytes.extend(((OUT_HEADER + body.len()) as u32).to_le_bytes());
    bytes.extend(error.to_le_bytes());
    bytes.extend(request.unique.to_le_bytes());
    bytes.extend(body);

    Some(bytes)
}

/// Returns `struct fuse_init_out`: the version, the largest write, and no optional features.
fn initialised() -> Vec<u8> {
    let mut words = [0_u32; 16];
    words[..2].copy_from_slice(&VERSION);
    words[5] = 4096;
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns `struct fuse_entry_out` without its attributes: the file, without caching.
fn entry() -> [u8; 40] {
    let mut bytes = [0; 40];
    bytes[..8].copy_from_slice(&FILE.to_le_bytes());
    bytes
}

/// Returns `struct fuse_attr` of the directory or the file.
fn attributes(node: u64) -> [u8; ATTR] {
    let (mode, links) = if node == ROOT { (DIRECTORY_MODE, 2_u32) } else { (FILE_MODE, 1) };
    let mut bytes = [0; ATTR];
    bytes[..8].copy_from_slice(&node.to_le_bytes());
    bytes[60..64].copy_from_slice(&mode.to_le_bytes());
    bytes[64..68].copy_from_slice(&links.to_le_bytes());
    bytes[68..72].copy_from_slice(&geteuid().as_raw().to_le_bytes());
    bytes[72..76].copy_from_slice(&getegid().as_raw().to_le_bytes());

    bytes
}
