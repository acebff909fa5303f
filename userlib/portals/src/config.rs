//! Configuration.

use std::time::Duration;

use nicforge_seastar_firmware::matching::Limits;

/// Where the messages of a process are matched with its match entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// On the card. The process writes into a mailbox of its own, and no interrupt is needed. The
    /// card's scratch memory limits the number of objects.
    #[default]
    NicBased,
    /// In the kernel. Each call is a system call, and each message interrupts the host.
    HostBased,
}

/// Configuration of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelConfig {
    /// Slots of the kernel's event queue: a power of two, 64 to 32,768. 1,024 by default.
    pub events: u32,
    /// Limits of each process in host-based mode. By default it has 16,384 match entries and
    /// descriptors, 256 queues, and 4,096 operations in progress in each direction.
    pub limits: Limits,
    /// Maximum number of messages that wait in the kernel for each process in host-based mode,
    /// while it has as many operations in progress as its limits allow. The kernel drops further
    /// ones, and those of a node with as many waiting messages as there is room left. 65,536 by
    /// default.
    pub waiting: usize,
    /// The longest time for the answer to a command, and for the firmware's start. 5 s by default.
    pub timeout: Duration,
}

impl Default for KernelConfig {
    fn default() -> Self {
        Self {
            events: 1024,
            limits: Limits {
                entries: 16_384,
                descriptors: 16_384,
                queues: 256,
                incoming: 4096,
                outgoing: 4096,
            },
            waiting: 65_536,
            timeout: Duration::from_secs(5),
        }
    }
}
