//! Runs each body with inputs from a fixed seed, and with the inputs that once found a defect.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use nicforge_fuzz_bodies::{BODIES, named, seed};

/// Prints an input and its number when a body panics, so that the input can be kept.
struct PrintOnPanic<'a>(usize, &'a [u8]);

impl Drop for PrintOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: String = self.1.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("input {}: {hex}", self.0);
        }
    }
}

/// Runs a body with its inputs from the seed.
fn seeded(name: &str) {
    let body = named(name);
    for (number, input) in seed::inputs(body).enumerate() {
        let _witness = PrintOnPanic(number, &input);
        (body.run)(&input);
    }
}

/// Runs a body with the inputs in its folder of regressions, if it has one.
fn regressions(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions").join(name);
    let Ok(entries) = std::fs::read_dir(&folder) else { return };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();

    paths.sort();
    for path in paths {
        eprintln!("{}", path.display());
        (named(name).run)(&std::fs::read(&path).unwrap());
    }
}

macro_rules! bodies {
    ($($name:ident),* $(,)?) => {
        $(
            mod $name {
                #[test]
                fn every_input_terminates() {
                    super::seeded(stringify!($name));
                }

                #[test]
                fn inputs_of_past_failures_pass() {
                    super::regressions(stringify!($name));
                }
            }
        )*

        #[test]
        fn every_body_is_tested() {
            let names: Vec<_> = BODIES.iter().map(|body| body.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

bodies!(
    control,
    engine,
    extoll,
    fcnp_compute,
    fcnp_io,
    machine_file,
    matching,
    messages,
    mu,
    packets,
    probe,
    registers,
    replies,
    rings,
    seastar,
    stream,
    torus,
    velo,
    virtio,
    virtio_devices,
    vm,
);

#[test]
fn every_regression_belongs_to_a_body() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        assert!(
            !entry.file_type().unwrap().is_dir() || BODIES.iter().any(|body| body.name == name),
            "{name}"
        );
    }
}
