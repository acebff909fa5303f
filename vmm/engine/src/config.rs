//! What can be set about an engine.

use std::time::Duration;

use nicforge_vfio_user::ServerConfig;

/// How the engine learns that a socket is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventLoopKind {
    /// io_uring where the kernel and the container allow it, else epoll. Which one it became is
    /// said when the engine is made.
    #[default]
    Auto,
    /// io_uring, or an error.
    IoUring,
    /// epoll.
    Epoll,
}

/// What one client may take of the server. No client gets more, whatever it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Bytes of client files mapped at a time. Pages of a client's file that the server touches
    /// first are charged to the server's memory cgroup.
    pub mapped_bytes: u64,
    /// Client files (and parts of files) mapped at a time.
    pub files: usize,
    /// DMA ranges at a time.
    pub ranges: usize,
}

impl Default for Quotas {
    fn default() -> Self {
        Self { mapped_bytes: 8 << 30, files: 512, ranges: 65_536 }
    }
}

/// See the fields; [`EngineConfig::default`] is right for a machine that shares its processors with
/// the applications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Which event loop.
    pub event_loop: EventLoopKind,
    /// Steps in a row that find nothing before the engine gives its processor to others between two
    /// steps.
    pub spin: u32,
    /// How long the mapped memory of a function is looked at every turn after the last work that
    /// was found there.
    pub cool_after: Duration,
    /// Packets or descriptors that a function may handle in one step.
    pub budget: u32,
    /// Messages of one client handled in a row. 64 writes of a `REGION_WRITE_MULTI` count as one. A
    /// read of more than 4 KiB is carried out in as many turns as it has pages.
    pub messages: u32,
    /// Time after which no further message of one client is handled in a row.
    pub client_turn: Duration,
    /// Time after which no further client is served between two steps of the machine.
    pub clients_turn: Duration,
    /// Bytes of data in one message of a client. QEMU takes up to 64 MiB.
    pub max_transfer: u32,
    /// Bytes of replies that may wait for a client to read them before its requests wait.
    pub max_queued: usize,
    /// What each client may take.
    pub quotas: Quotas,
    /// How long a client may take to say its version before it loses the attachment, which others
    /// may be waiting for.
    pub version_limit: Duration,
    /// How long a register access may wait for the device before it is answered with `EAGAIN`. QEMU
    /// gives up after 5 s.
    pub stall_limit: Duration,
    /// How long a client may take to answer a DMA message before the device gets an error, from
    /// when the device asked for it: a client that does not read its socket has no more time.
    pub dma_limit: Duration,
    /// How long the engine sleeps at most while clients are there: covers a store that no wake-up
    /// followed.
    pub safety_timeout: Duration,
}

/// Processors from which on an engine that spins is in nobody's way: one for it, two applications,
/// and one for the rest.
const PLENTY: usize = 4;

impl Default for EngineConfig {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            event_loop: EventLoopKind::Auto,
            spin: if processors >= PLENTY { 32 } else { 1 },
            cool_after: Duration::from_micros(50),
            budget: 64,
            messages: 16,
            client_turn: Duration::from_millis(1),
            clients_turn: Duration::from_millis(10),
            max_transfer: 1 << 20,
            max_queued: 4 << 20,
            quotas: Quotas::default(),
            version_limit: Duration::from_secs(10),
            stall_limit: Duration::from_secs(2),
            dma_limit: Duration::from_secs(5),
            safety_timeout: nicforge_shm::SAFETY_TIMEOUT,
        }
    }
}

impl EngineConfig {
    /// The limits of one client's connection.
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
