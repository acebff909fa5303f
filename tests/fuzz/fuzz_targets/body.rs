//! The fuzz target of all bodies. The environment variable `NICFORGE_FUZZ_BODY` names the body that
//! a process runs.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use nicforge_fuzz_bodies::{Body, named};

/// The body of this process.
static BODY: OnceLock<Body> = OnceLock::new();

/// Returns the body that the environment names.
fn body() -> Body {
    let name = std::env::var("NICFORGE_FUZZ_BODY").expect("NICFORGE_FUZZ_BODY names a body");
    named(&name)
}

// The body is chosen at the start, so that a wrong name is no finding.
fuzz_target!(init: drop(BODY.set(body())), |data: &[u8]| {
    (BODY.get_or_init(body).run)(data);
});
