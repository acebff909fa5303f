//! Embeds the sources of the kernel module (`kmod-shim`) in the library. A program can then build
//! the module for a guest wherever the program is installed.
//!
//! The folder `kmod-shim` here is a link. Without it, the library is built without the sources, and
//! a warning says so. A guest then has no driver of nicforge, and `Toolkit::shim` returns an error.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
};

fn main() -> std::io::Result<()> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).unwrap_or_default();
    // It is a link to the folder in the repository, and a folder in a package of this crate.
    let root = variable("CARGO_MANIFEST_DIR").join("kmod-shim");
    let root = root.canonicalize().unwrap_or(root);
    println!("cargo::rerun-if-changed={}", root.display());

    let mut files = Vec::new();
    if root.is_dir() {
        collect(&root, &root, &mut files)?;
    }

    if !files.iter().any(|(name, _)| name == "Kbuild" || name == "Makefile") {
        println!(
            "cargo::warning=no kernel module's sources in {}: guests can't have nicforge's own driver (--driver shim)",
            root.display()
        );
    }

    // The text of a slice of pairs, each a file's name and content.
    files.sort();
    let mut text = String::from("&[\n");

    for (name, path) in files {
        // Writing to a string can't fail.
        let _ = writeln!(text, "    ({name:?}, include_bytes!({:?})),", path.display().to_string());
    }

    text.push_str("]\n");
    std::fs::write(variable("OUT_DIR").join("shim_sources.rs"), text)
}

/// Collects the files of a folder that kbuild reads: C sources, headers and makefiles. Each has its
/// path relative to `root` and its real path. Files that kbuild makes itself are left out.
fn collect(root: &Path, folder: &Path, files: &mut Vec<(String, PathBuf)>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() {
            if !name.starts_with('.') && name != "tests" {
                collect(root, &path, files)?;
            }
        } else if (name.ends_with(".c") && !name.ends_with(".mod.c"))
            || name.ends_with(".h")
            || name == "Kbuild"
            || name == "Makefile"
        {
            let relative = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            files.push((relative, path.canonicalize()?));
        }
    }

    Ok(())
}
