//! The attacks. Each one has access to nothing but sockets of the server.

mod closing;
mod connects;
mod cut;
mod eventfds;
pub mod fuse;
mod log;
mod maps;
mod memory;
mod networks;
mod peers;
mod ranks;
mod reconnect;
mod watches;

use crate::arena::{Arena, Round};

/// An attack.
#[derive(Clone, Copy)]
pub struct Attack {
    /// Its name on the command line and in the table.
    pub name: &'static str,
    /// The part of the server that it is aimed at.
    pub aimed_at: &'static str,
    /// The environment of the attacked server.
    pub environment: &'static [(&'static str, &'static str)],
    /// Whether the server's operator lets clients map files of gigabytes.
    pub maps_large_files: bool,
    /// Whether the server's log is a pipe without a reader.
    pub log_is_unread: bool,
    /// The kernel keeps the server's process while it closes a descriptor of the attacker. Only the
    /// sockets are then expected to disappear in time.
    pub kernel_keeps_process: bool,
    /// The attacker also has the sockets of honest ranks, which exchange messages in each round. A
    /// round that they do not finish in time is cut, and none may be.
    pub has_honest_ranks: bool,
    /// Runs the attack until the arena's time is up.
    pub run: fn(&Arena) -> Round,
}

/// Returns an attack on a server with the usual options.
const fn attack(name: &'static str, aimed_at: &'static str, run: fn(&Arena) -> Round) -> Attack {
    Attack {
        name,
        aimed_at,
        environment: &[],
        maps_large_files: false,
        log_is_unread: false,
        kernel_keeps_process: false,
        has_honest_ranks: false,
        run,
    }
}

/// Returns an attack of a rank on the others of its job.
const fn of_rank(name: &'static str, aimed_at: &'static str, run: fn(&Arena) -> Round) -> Attack {
    Attack { has_honest_ranks: true, ..attack(name, aimed_at, run) }
}

/// All attacks.
pub const ATTACKS: &[Attack] = &[
    attack("close-socket", "the thread that closes descriptors", closing::sockets),
    attack("close-memory", "the thread that closes descriptors", closing::memory),
    Attack {
        maps_large_files: true,
        ..attack("unmap-memory", "the thread that unmaps memory", closing::mapped)
    },
    Attack {
        kernel_keeps_process: true,
        ..attack("close-fuse", "the thread that closes descriptors", fuse::files)
    },
    attack("reset-reconnect", "turns for a client that has gone", reconnect::resets),
    attack("read-reconnect", "turns for a client that has gone", reconnect::reads),
    attack("cut-transfers", "look-ahead after a deferred request", cut::transfers),
    attack("watch-socket", "system calls on the client's socket", watches::socket),
    attack("watch-eventfd", "system calls on the client's eventfd", watches::eventfd),
    attack("block-eventfd", "a write to an eventfd", eventfds::blocking),
    attack("map-descending", "the table of DMA ranges", maps::descending),
    attack("map-mixed", "the table of DMA ranges", maps::mixed),
    attack("pending-descriptors", "the server's table of descriptors", connects::pending),
    attack("connect", "accepting connections", connects::many),
    Attack {
        maps_large_files: true,
        ..attack("touch-sparse", "memory that the server is charged for", memory::sparse)
    },
    attack("punch-holes", "page faults of the engine", memory::punched),
    attack("touch-huge", "page faults of the engine", memory::huge),
    Attack { maps_large_files: true, ..attack("remap", "the lock of the address space", memory::remapped) },
    Attack {
        environment: &[("NICFORGE_LOG", "debug")],
        log_is_unread: true,
        ..attack("log-storm", "writes to a log that is not read", log::storm)
    },
    attack("tree", "turns of devices and rings", networks::tree),
    attack("velo", "turns of devices and rings", networks::velo),
    attack("ack-flood", "answers of a Portals kernel", peers::acknowledged_puts),
    of_rank("extoll-window", "the receive ring that all ranks share", ranks::extoll_window),
    of_rank("mu-gets", "the places for gets that all ranks share", ranks::mu_gets),
    of_rank("torus-gets", "the places for gets that all ranks share", ranks::torus_gets),
    of_rank("torus-answers", "memory and time of answers to gets", ranks::torus_answers),
];

/// Returns the attack with this name.
pub fn find(name: &str) -> Option<&'static Attack> {
    ATTACKS.iter().find(|attack| attack.name == name)
}
