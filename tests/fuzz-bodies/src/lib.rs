//! The bodies of the fuzz target, which accept any bytes and must return.
//!
//! A body turns its bytes into actions of an untrusted party and applies them to the real code.
//! Such actions are messages, register accesses, records in a ring, packets, or a machine file. The
//! body then asserts what must hold after any actions:
//! - no code panics;
//! - counters are consistent, and bounded quantities stay in their bounds;
//! - other clients continue;
//! - after the operator's reset everything works again.
//!
//! `tests/seeded.rs` runs each body with some thousands of inputs from a fixed seed, and with every
//! input that once found a defect (`regressions/BODY/`). The target of the cargo-fuzz crate
//! `tests/fuzz` runs any of them.
//!
//! This crate may depend on every other one, through public interfaces only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "all of this crate is tests")]

pub mod control;
pub mod engine;
pub mod extoll;
pub mod fcnp;
pub mod input;
pub mod machine_file;
pub mod matching;
pub mod messages;
pub mod mu;
pub mod packets;
pub mod probe;
pub mod registers;
pub mod replies;
pub mod rings;
pub mod seastar;
pub mod seed;
pub mod torus;
pub mod velo;
pub mod virtio;
pub mod virtio_devices;
pub mod vm;
pub mod world;

/// A body and the parameters of its test.
#[derive(Clone, Copy)]
pub struct Body {
    /// Its name, which is also the name of its folder in `regressions`.
    pub name: &'static str,
    /// The body.
    pub run: fn(&[u8]),
    /// Number of inputs from the fixed seed.
    pub cases: u32,
    /// The longest of these inputs, in bytes.
    pub longest: usize,
}

/// Every body.
pub const BODIES: &[Body] = &[
    Body { name: "control", run: control::body, cases: 1000, longest: 200 },
    Body { name: "engine", run: engine::body, cases: 100, longest: 1500 },
    Body { name: "extoll", run: extoll::body, cases: 400, longest: 800 },
    Body { name: "fcnp_compute", run: fcnp::compute, cases: 40, longest: 600 },
    Body { name: "fcnp_io", run: fcnp::io, cases: 40, longest: 600 },
    Body { name: "machine_file", run: machine_file::body, cases: 4000, longest: 400 },
    Body { name: "matching", run: matching::body, cases: 1000, longest: 600 },
    Body { name: "messages", run: messages::body, cases: 3000, longest: 800 },
    Body { name: "mu", run: mu::body, cases: 200, longest: 800 },
    Body { name: "packets", run: packets::body, cases: 300, longest: 1500 },
    Body { name: "probe", run: probe::body, cases: 500, longest: 600 },
    Body { name: "registers", run: registers::body, cases: 300, longest: 1500 },
    Body { name: "replies", run: replies::body, cases: 3000, longest: 600 },
    Body { name: "rings", run: rings::body, cases: 500, longest: 1500 },
    Body { name: "seastar", run: seastar::body, cases: 200, longest: 800 },
    Body { name: "stream", run: messages::stream, cases: 2000, longest: 600 },
    Body { name: "torus", run: torus::body, cases: 300, longest: 800 },
    Body { name: "velo", run: velo::body, cases: 100, longest: 400 },
    Body { name: "virtio", run: virtio::body, cases: 1000, longest: 1500 },
    Body { name: "virtio_devices", run: virtio_devices::body, cases: 400, longest: 1500 },
    Body { name: "vm", run: vm::body, cases: 2000, longest: 1500 },
];

/// Returns the body called `name`.
///
/// # Panics
/// When there is none.
pub fn named(name: &str) -> Body {
    *BODIES.iter().find(|body| body.name == name).unwrap_or_else(|| panic!("there is no body {name}"))
}
