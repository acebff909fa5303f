//! The host's end of a console's line: a client of a socket, or a file.
//!
//! Two companions work on it, one in each direction, so that each may wait for its own. Chunks of
//! [`CHUNK`] bytes go between them and the device.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, ErrorKind, Read, Write},
    os::{
        fd::{AsFd, AsRawFd},
        unix::{
            fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket, sockopt},
    unistd::{Uid, geteuid},
};
use thiserror::Error;

/// Bytes of a chunk.
pub const CHUNK: usize = 508;
/// Longest wait for the host's end, in milliseconds.
const MAX_WAIT_MS: u16 = 100;

/// Reason why a line can't be made.
#[derive(Debug, Error)]
pub enum LineError {
    /// The socket's path is in use.
    #[error("{} is in use: end the server that has it, or name another path", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// The file is a directory, a device or a pipe.
    #[error("{} is no regular file; name one, or a socket", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The system refused it.
    #[error("{}: {reason}; name a path that the server may write", path.display())]
    System {
        /// The path.
        path: PathBuf,
        /// The system's answer.
        reason: io::Error,
    },
}

/// Some bytes on their way between the device and the host's end.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    /// The driver's incarnation when the bytes were read. It has no meaning for bytes of the
    /// driver.
    pub(super) incarnation: u32,
    length: u16,
    bytes: [u8; CHUNK],
}

impl Chunk {
    /// Returns a chunk of no bytes.
    pub(super) const fn new() -> Self {
        Self { incarnation: 0, length: 0, bytes: [0; CHUNK] }
    }

    /// Returns a chunk of `length` bytes, at most [`CHUNK`], which `fill` copies.
    pub(super) fn filled<E>(length: usize, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Self, E> {
        let mut chunk = Self::new();
        let length = length.min(CHUNK);
        fill(&mut chunk.bytes[..length])?;
        chunk.length = length as u16;
        Ok(chunk)
    }

    /// Returns the bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// The host's end of a line.
#[derive(Debug)]
pub struct Line {
    end: End,
    /// Number of the driver's incarnation, which each reset ends.
    incarnation: AtomicU32,
    /// Bytes of the driver that were dropped.
    lost: AtomicU64,
}

/// The kinds of a line's far end.
#[derive(Debug)]
enum End {
    /// The client of a socket, one at a time.
    Socket(Listener),
    /// A file, to which the driver's bytes are appended.
    File(File),
}

/// The identity of a file: those of two files differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Returns the identity of the file with this metadata.
    fn of(metadata: &fs::Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// A listening socket. Its file is removed when this is dropped.
#[derive(Debug)]
struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// Identity of the socket's file.
    file: FileId,
    /// The server's user. A confined process may no longer ask for it when a client connects.
    owner: Uid,
    /// The client that is connected, if there is one.
    client: Mutex<Option<Arc<UnixStream>>>,
}

impl Line {
    /// Listens at `path`, for clients of the server's own user and of root. A socket that a dead
    /// server left there is replaced.
    ///
    /// # Errors
    /// [`LineError::InUse`], [`LineError::System`].
    pub fn listen(path: &Path) -> Result<Self, LineError> {
        Ok(Self::new(End::Socket(Listener::new(path)?)))
    }

    /// Appends the driver's bytes to a regular file, which is made if there is none.
    ///
    /// # Errors
    /// [`LineError::NotAFile`], [`LineError::System`].
    pub fn append_to(path: &Path) -> Result<Self, LineError> {
        let system = |reason| LineError::System { path: path.to_owned(), reason };
        // Without this flag, the opening of a pipe would wait for a reader.
        let flags = OFlag::O_NONBLOCK.bits();
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600).custom_flags(flags);
        let file = options.open(path).map_err(system)?;
        if !file.metadata().map_err(system)?.is_file() {
            return Err(LineError::NotAFile { path: path.to_owned() });
        }

        Ok(Self::new(End::File(file)))
    }

    /// Returns the line of a host's end.
    const fn new(end: End) -> Self {
        Self { end, incarnation: AtomicU32::new(0), lost: AtomicU64::new(0) }
    }

    /// Returns the number of the driver's incarnation.
    pub(super) fn incarnation(&self) -> u32 {
        self.incarnation.load(Ordering::Acquire)
    }

    /// Begins the driver's next incarnation. Chunks that were read before belong to an earlier one.
    pub(super) fn begin_incarnation(&self) {
        self.incarnation.fetch_add(1, Ordering::Release);
    }

    /// Removes the socket's file, so that no client connects any more. A companion may use the line
    /// for some time longer.
    pub(super) fn close(&self) {
        if let End::Socket(listener) = &self.end {
            listener.remove_file();
        }
    }

    /// Returns the number of bytes of the driver that were lost: no client was there, or it took
    /// none.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Counts bytes of the driver that are lost.
    pub(super) fn count_lost(&self, bytes: usize) {
        self.lost.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the next bytes for the driver, if there are any. It waits for some time if
    /// `may_wait`.
    pub(super) fn read(&self, may_wait: bool) -> Option<Chunk> {
        let End::Socket(listener) = &self.end else { return None };
        let client = listener.client(may_wait)?;
        if may_wait {
            wait_for(&*client, PollFlags::POLLIN);
        }

        let mut chunk = Chunk { incarnation: self.incarnation(), ..Chunk::new() };
        match (&*client).read(&mut chunk.bytes) {
            Ok(length @ 1..) => {
                chunk.length = length as u16;
                Some(chunk)
            }
            Err(error) if is_temporary(&error) => None,
            Ok(0) | Err(_) => {
                listener.hang_up(&client);
                None
            }
        }
    }

    /// Passes bytes of the driver on. Returns the number of bytes that were written or lost. After
    /// a 0 the caller must call again with the same bytes.
    ///
    /// While no client is connected, bytes are lost. If the client or file takes none now, the call
    /// waits for some time if `may_wait`, and the bytes are lost otherwise.
    pub(super) fn write(&self, bytes: &[u8], may_wait: bool) -> usize {
        let written = match &self.end {
            End::File(file) => (&*file).write(bytes),
            End::Socket(listener) => listener.write(bytes, may_wait),
        };

        match written {
            Ok(length @ 1..) => length,
            Err(error) if is_temporary(&error) && may_wait => 0,
            Ok(0) | Err(_) => {
                self.count_lost(bytes.len());
                bytes.len()
            }
        }
    }

    /// Returns whether bytes can come from the host's end.
    pub(super) fn has_input(&self) -> bool {
        matches!(self.end, End::Socket(_))
    }
}

impl Listener {
    /// Listens at `path`.
    fn new(path: &Path) -> Result<Self, LineError> {
        let system = |reason| LineError::System { path: path.to_owned(), reason };
        remove_stale(path)?;

        let socket = UnixListener::bind(path).map_err(|reason| match reason.kind() {
            ErrorKind::AddrInUse => LineError::InUse { path: path.to_owned() },
            _ => system(reason),
        })?;
        let metadata = fs::symlink_metadata(path).map_err(system)?;
        let file = FileId::of(&metadata);
        let owner = geteuid();
        let listener = Self { socket, path: path.to_owned(), file, owner, client: Mutex::default() };

        make_private(path).map_err(system)?;
        listener.socket.set_nonblocking(true).map_err(system)?;
        Ok(listener)
    }

    /// Locks the client that is connected.
    fn current(&self) -> MutexGuard<'_, Option<Arc<UnixStream>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the client, or accepts the next one. It waits for some time if `may_wait`.
    fn client(&self, may_wait: bool) -> Option<Arc<UnixStream>> {
        if let Some(client) = self.current().clone() {
            return Some(client);
        }

        if may_wait {
            wait_for(&self.socket, PollFlags::POLLIN);
        }
        let (client, _) = self.socket.accept().ok()?;
        if !self.admits(&client) || client.set_nonblocking(true).is_err() {
            return None;
        }

        let client = Arc::new(client);
        *self.current() = Some(Arc::clone(&client));
        Some(client)
    }

    /// Returns whether a client belongs to the server's user or to root.
    fn admits(&self, client: &UnixStream) -> bool {
        getsockopt(client, sockopt::PeerCredentials)
            .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == self.owner.as_raw())
    }

    /// Forgets a client that is gone.
    fn hang_up(&self, client: &Arc<UnixStream>) {
        let mut current = self.current();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, client)) {
            *current = None;
        }
    }

    /// Writes bytes to the client. Returns 0 if there is none, and a temporary error if the client
    /// takes none now, after a wait for it if `may_wait`.
    fn write(&self, bytes: &[u8], may_wait: bool) -> io::Result<usize> {
        // Clients are accepted by the reader's companion only.
        let Some(client) = self.current().clone() else { return Ok(0) };
        let written = (&*client).write(bytes);
        if may_wait && written.as_ref().is_err_and(is_temporary) {
            wait_for(&*client, PollFlags::POLLOUT);
        }
        written
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.remove_file();
    }
}

impl Listener {
    /// Removes the socket's file, unless another socket has taken its place.
    fn remove_file(&self) {
        let is_ours =
            fs::symlink_metadata(&self.path).is_ok_and(|metadata| FileId::of(&metadata) == self.file);
        if is_ours {
            // If that fails, the file stays, and the next server replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the socket of a server that has ended, if there is one at `path`.
fn remove_stale(path: &Path) -> Result<(), LineError> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }

    let system = |errno: Errno| LineError::System { path: path.to_owned(), reason: errno.into() };
    // A trial that blocks would wait for a server whose queue of connections is full.
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let trial = socket(AddressFamily::Unix, SockType::Stream, flags, None).map_err(system)?;
    let address = UnixAddr::new(path).map_err(system)?;
    match connect(trial.as_raw_fd(), &address) {
        Err(Errno::ECONNREFUSED) => {
            fs::remove_file(path).map_err(|reason| LineError::System { path: path.to_owned(), reason })
        }
        // A server lives: it accepts the connection, or its queue of connections is full.
        Ok(()) | Err(Errno::EAGAIN) => Err(LineError::InUse { path: path.to_owned() }),
        Err(errno) => Err(system(errno)),
    }
}

/// Gives a socket's file mode 0600. In a directory that another user can write to, that user may
/// have replaced it: a link is not followed, and no file of another kind is changed.
fn make_private(path: &Path) -> io::Result<()> {
    let flags = (OFlag::O_PATH | OFlag::O_NOFOLLOW).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.file_type().is_socket() {
        return Err(io::Error::other("another file has replaced the socket"));
    }
    // A descriptor without access has no `fchmod`.
    fs::set_permissions(format!("/proc/self/fd/{}", file.as_raw_fd()), Permissions::from_mode(0o600))
}

/// Waits until a descriptor is ready, for [`MAX_WAIT_MS`] at most.
fn wait_for(descriptor: &impl AsFd, events: PollFlags) {
    // An interrupted wait ends early, which is no harm.
    let _ = poll(&mut [PollFd::new(descriptor.as_fd(), events)], PollTimeout::from(MAX_WAIT_MS));
}

/// Returns whether a read or write can succeed later.
fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
