//! Settings of an engine.

use std::time::Duration;

use nicforge_core::companion::{COMPANION_LIMIT, CompanionMode};
use nicforge_vfio_user::ServerConfig;

use crate::pace::LONG_CALL;

/// The mechanism that reports ready sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventLoopKind {
    /// io_uring where the kernel and the container allow it, else epoll. The choice is logged when
    /// the engine is made.
    #[default]
    Auto,
    /// io_uring, or an error.
    IoUring,
    /// epoll.
    Epoll,
}

/// Quotas of one client of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Bytes of client files mapped at a time, of a client of the server's own user or of root.
    /// Further memory is accessed by DMA messages. Each file counts as a whole, with its present
    /// size.
    ///
    /// Pages of a client's file that the server touches first are charged to the server's memory
    /// cgroup.
    pub mapped_bytes: u64,
    /// The same of a client of another user, which the socket's owner or group lets in. A file that
    /// no seal keeps from growing counts as at least 1 GiB.
    ///
    /// A client that punches a hole into its files holds the engine until the kernel has freed the
    /// pages, about 0.25 ms for each MiB of pages in these files. For clients that are not trusted,
    /// 128 MiB keep that below the time of a turn that others notice.
    pub foreign_mapped_bytes: u64,
    /// Mappings of client files at a time. A file that has grown may be mapped twice.
    pub files: usize,
    /// DMA ranges at a time.
    pub ranges: usize,
    /// Length from which on a system call for a client is charged to that client. A client whose
    /// calls are often that long loses its attachment. A longer limit suits hosts whose hypervisor
    /// takes the engine's processor away, because calls are long there by no fault of the client.
    pub long_call: Duration,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            mapped_bytes: 8 << 30,
            foreign_mapped_bytes: 128 << 20,
            files: 512,
            ranges: 65_536,
            long_call: LONG_CALL,
        }
    }
}

/// How companions of devices run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompanionConfig {
    /// In the engine's steps, or on threads.
    pub mode: CompanionMode,
    /// Time after which a companion's poll on a thread counts as hung.
    pub limit: Duration,
}

impl Default for CompanionConfig {
    fn default() -> Self {
        Self { mode: CompanionMode::Threads, limit: Duration::from_nanos(COMPANION_LIMIT) }
    }
}

/// Settings of an engine. [`EngineConfig::default`] fits a machine that shares its processors with
/// the applications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// The event loop.
    pub event_loop: EventLoopKind,
    /// Rounds without work in a row after which the engine yields its processor in each further
    /// one.
    pub spin: u32,
    /// Time without work after which a function goes cold: its mapped memory is no longer checked
    /// in every round.
    pub cool_after: Duration,
    /// Packets or descriptors that a function may handle in one step.
    pub budget: u32,
    /// Messages of one client handled in one turn. 64 writes of a `REGION_WRITE_MULTI` count as
    /// one. A read of more than 4 KiB takes as many turns as it has pages.
    pub messages: u32,
    /// Time after which no further message of one client is handled in a turn.
    pub client_turn: Duration,
    /// Time after which no further client is served or accepted in a round, that is, between two
    /// steps of the machine.
    pub service_limit: Duration,
    /// Bytes of data in one message of a client. QEMU takes up to 64 MiB.
    pub max_transfer: u32,
    /// Bytes of replies that may wait for a client to read them before no more of its requests are
    /// served.
    pub max_queued: usize,
    /// Quotas of each client.
    pub quotas: Quotas,
    /// Time that a client may take to send its version before it loses the attachment, for which
    /// others may wait.
    pub version_limit: Duration,
    /// Time that a register access may wait for the device before it is answered with `EAGAIN`.
    /// QEMU gives up after 5 s.
    pub stall_limit: Duration,
    /// Time that a client may take to answer a DMA message before the device gets an error. It
    /// starts when the device asks for the message: a client that does not read its socket gets
    /// no more time.
    pub dma_limit: Duration,
    /// Companions of devices.
    pub companions: CompanionConfig,
    /// Longest sleep of the engine while it has clients. It bounds how long a client's store waits
    /// when the wake-up for it gets lost.
    pub safety_timeout: Duration,
}

/// Number of processors from which on a spinning engine takes none from its clients: one for the
/// engine, two for clients, and one for all other processes.
const MIN_UNSHARED_PROCESSORS: usize = 4;

impl Default for EngineConfig {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            event_loop: EventLoopKind::Auto,
            spin: if processors >= MIN_UNSHARED_PROCESSORS { 32 } else { 1 },
            cool_after: Duration::from_micros(50),
            budget: 64,
            messages: 16,
            client_turn: Duration::from_millis(1),
            service_limit: Duration::from_millis(10),
            max_transfer: 1 << 20,
            max_queued: 4 << 20,
            quotas: Quotas::default(),
            version_limit: Duration::from_secs(10),
            stall_limit: Duration::from_secs(2),
            dma_limit: Duration::from_secs(5),
            companions: CompanionConfig::default(),
            safety_timeout: nicforge_shm::SAFETY_TIMEOUT,
        }
    }
}

impl EngineConfig {
    /// Returns the limits of one client's connection.
    pub(crate) fn connection(&self) -> ServerConfig {
        ServerConfig {
            budget: self.messages,
            turn: self.client_turn,
            max_data_xfer_size: self.max_transfer,
            max_queued: self.max_queued,
            max_dma_maps: u32::try_from(self.quotas.ranges).unwrap_or(u32::MAX),
            ..ServerConfig::default()
        }
    }
}
