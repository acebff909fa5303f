//! The generated C headers: the hardware interface for C drivers, and the user libraries' C API.
//!
//! [`hwi`] writes the first, because its constants are in modules, which C does not have. cbindgen
//! writes the second.

mod hwi;

use std::path::{Path, PathBuf};

use crate::steps::Failed;

/// A generated file and its expected content.
struct Generated {
    path: PathBuf,
    text: String,
}

/// Writes all headers.
pub(crate) fn write(root: &Path) -> Result<(), Failed> {
    for header in generate(root)? {
        std::fs::write(&header.path, header.text)
            .map_err(|error| Failed::new(format!("{}: {error}", header.path.display())))?;
        eprintln!("    wrote {}", header.path.display());
    }
    Ok(())
}

/// Compares all headers with their expected content.
pub(crate) fn check(root: &Path) -> Result<(), Failed> {
    for header in generate(root)? {
        if std::fs::read_to_string(&header.path).ok().as_deref() != Some(&header.text) {
            return Err(Failed::new(format!(
                "{} is out of date; run `cargo xtask headers` and commit it",
                header.path.display()
            )));
        }
    }

    Ok(())
}

fn generate(root: &Path) -> Result<Vec<Generated>, Failed> {
    Ok(vec![
        Generated {
            path: root.join("kmod-shim/include/nicforge_hwi.h"),
            text: hwi::generate(&root.join("device-model/hwi/src"))?,
        },
        library(root, "userlib/fcnp/c-api", "nicforge_fcnp.h")?,
        library(root, "userlib/velo/c-api", "nicforge_velo.h")?,
        library(root, "userlib/rma/c-api", "nicforge_rma.h")?,
        library(root, "userlib/extoll-transport/c-api", "nicforge_matching.h")?,
        library(root, "userlib/extoll-c", "nicforge_extoll.h")?,
    ])
}

/// Generates the header of a library's C API.
fn library(root: &Path, room: &str, header: &str) -> Result<Generated, Failed> {
    let room = root.join(room);
    let config = cbindgen::Config::from_file(room.join("cbindgen.toml")).map_err(Failed::new)?;
    let folder = room.join("src");

    // The crate's root comes first, since declarations are in the order of the sources.
    let mut sources = vec![folder.join("lib.rs")];
    let entries =
        std::fs::read_dir(&folder).map_err(|error| Failed::new(format!("{}: {error}", folder.display())))?;
    let mut modules: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();

    modules.sort();
    let is_module = |path: &PathBuf| {
        path.extension().is_some_and(|ending| ending == "rs")
            && !path.file_stem().is_some_and(|stem| stem == "lib" || stem == "tests")
    };

    sources.extend(modules.into_iter().filter(is_module));
    let builder = cbindgen::Builder::new().with_config(config);
    let bindings = sources
        .into_iter()
        .fold(builder, cbindgen::Builder::with_src)
        .generate()
        .map_err(|error| Failed::new(format!("cbindgen: {error}")))?;

    let mut text = Vec::new();
    bindings.write(&mut text);
    let text = String::from_utf8(text).map_err(|error| Failed::new(format!("cbindgen: {error}")))?;

    Ok(Generated { path: room.join("include").join(header), text })
}
