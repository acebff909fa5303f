//! The kernel module `kmod-shim`, built with kbuild once for each pair of sources and guest kernel.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use sha2::{Digest, Sha256};

use crate::{
    cache::hex,
    error::{ErrorContext, GuestError},
    progress::Progress,
    provision::{Kernel, Toolkit, gcc},
    tool,
};

/// Bytes of a digest that names a module in the cache.
const DIGEST_SIZE: usize = 12;

/// Names and contents of the module's sources.
static SOURCES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/shim_sources.rs"));

/// The major version of the compiler that built the provisioned kernel.
const GCC: u32 = 12;

impl Toolkit {
    /// Returns whether the module's sources are embedded and the kernel's build directory is known.
    pub fn has_shim(&self) -> bool {
        self.kernel.build.is_some() && has_sources()
    }

    /// Returns the module's file. It is built if there is none for this kernel yet.
    ///
    /// # Errors
    /// [`GuestError::Unprovided`] if this program has no sources of the module, or the kernel's
    /// headers are not known; [`GuestError::Tool`] with the compiler's messages.
    pub fn shim(&self, progress: &Progress) -> Result<PathBuf, GuestError> {
        if !has_sources() {
            return Err(GuestError::Unprovided {
                what: "kernel module of nicforge",
                why: "this program was built without the folder kmod-shim, the module's sources".into(),
                advice: "Build it in a checkout of nicforge, or choose another driver with --driver",
            });
        }

        let module = self.build_module("kmod-shim", SOURCES, progress);
        progress.done();
        module
    }

    /// Builds an out-of-tree module from its sources, which include a `Kbuild` or `Makefile`.
    ///
    /// # Errors
    /// As [`Self::shim`].
    pub fn build_module(
        &self,
        name: &str,
        sources: &[(&str, &[u8])],
        progress: &Progress,
    ) -> Result<PathBuf, GuestError> {
        let Some(build) = &self.kernel.build else {
            return Err(GuestError::Unprovided {
                what: "kernel module for this guest",
                why: format!("the headers of kernel {} are not known", self.kernel.version),
                advice: "Name a directory of modules with --modules that has `build` in it, or use the provisioned kernel",
            });
        };

        let directory = format!("modules/{name}-{}", module_digest(sources, &self.kernel));
        if !self.cache.path(&directory).is_dir() {
            let _lock = self.cache.lock(progress)?;
            progress.step(&format!("building {name} for kernel {}", self.kernel.version));
            self.cache
                .make(&directory, |folder| self.build_by_kbuild(name, sources, build, folder, progress))?;
        }

        let folder = self.cache.path(&directory);
        let entries = std::fs::read_dir(&folder).context(|| folder.display().to_string())?;
        let module = entries
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|end| end == "ko"));

        module.ok_or_else(|| GuestError::Unsuitable { path: folder, problem: "has no module (*.ko)".into() })
    }

    /// Builds a kernel module from these sources by kbuild, and copies it to `folder`.
    fn build_by_kbuild(
        &self,
        name: &str,
        sources: &[(&str, &[u8])],
        build: &Path,
        folder: &Path,
        progress: &Progress,
    ) -> Result<(), GuestError> {
        // kbuild can't handle some characters that the cache's path may contain. The path of a
        // temporary directory has none of them.
        let work = tempfile::tempdir().context(|| "a directory to build in".into())?;

        for (name, content) in sources {
            let path = work.path().join(name);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent).context(|| parent.display().to_string())?;
            }
            std::fs::write(&path, content).context(|| path.display().to_string())?;
        }

        let mut command = self.make(build, progress)?;
        command.arg(format!("M={}", work.path().display())).arg("modules").env("LC_ALL", "C");
        tool::run_quietly(&format!("building {name}"), &mut command, progress)?;

        let entries = std::fs::read_dir(work.path()).context(|| work.path().display().to_string())?;
        for entry in entries.flatten() {
            if entry.path().extension().is_some_and(|end| end == "ko") {
                let to = folder.join(entry.file_name());
                std::fs::copy(entry.path(), &to).context(|| to.display().to_string())?;
            }
        }

        Ok(())
    }

    /// Returns `make` for the kernel's build directory, with the compiler that built the kernel.
    fn make(&self, build: &Path, progress: &Progress) -> Result<Command, GuestError> {
        let mut command = Command::new("make");
        command.arg("-C").arg(build);
        if let Some(tree) = &self.kernel.tree {
            // The tree's programs come after the host's on the path. Their libraries are needed,
            // except for the C library, which may be older than the host's.
            let programs = tree.join("usr/bin");
            let path = std::env::var_os("PATH").unwrap_or_default();
            let folders = std::env::split_paths(&path).chain([programs.clone()]);
            if let Ok(path) = std::env::join_paths(folders) {
                command.env("PATH", path);
            }

            let compiler = match gcc(GCC, progress)? {
                Some(compiler) => compiler,
                None => programs.join(format!("x86_64-linux-gnu-gcc-{GCC}")).display().to_string(),
            };

            command.arg(format!("CC={compiler}"));
            command.env("LD_LIBRARY_PATH", tree_libraries(tree)?);
        }

        Ok(command)
    }
}

/// Returns a folder for the loader's path, with links to the tree's libraries except for its C
/// library. It is made once.
fn tree_libraries(tree: &Path) -> Result<PathBuf, GuestError> {
    let folder = tree.join("tool-libraries");
    if folder.is_dir() {
        return Ok(folder);
    }

    let making = tempfile::tempdir_in(tree).context(|| tree.display().to_string())?;
    // Folders of libraries: in the tree, and as the target of links in the new folder.
    for (source, link_target) in [
        ("usr/lib/x86_64-linux-gnu", "../usr/lib/x86_64-linux-gnu"),
        ("lib/x86_64-linux-gnu", "../lib/x86_64-linux-gnu"),
    ] {
        let Ok(entries) = std::fs::read_dir(tree.join(source)) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if KBUILD_LIBRARIES.iter().any(|wanted| name.starts_with(wanted)) {
                // Two folders may have the same library; one is enough.
                let _ =
                    std::os::unix::fs::symlink(format!("{link_target}/{name}"), making.path().join(&name));
            }
        }
    }

    let made = making.keep();
    if std::fs::rename(&made, &folder).is_err() {
        // Another process has made the folder meanwhile.
        let _ = std::fs::remove_dir_all(&made);
    }

    Ok(folder)
}

/// Libraries that kbuild's programs and the compiler need besides the C library.
const KBUILD_LIBRARIES: [&str; 12] = [
    "libelf",
    "libz.so",
    "libzstd",
    "libmpc",
    "libmpfr",
    "libgmp",
    "libisl",
    "libbfd",
    "libopcodes",
    "libctf",
    "libsframe",
    "libjansson",
];

/// Returns whether the module's sources are in this program.
fn has_sources() -> bool {
    SOURCES.iter().any(|(name, _)| *name == "Kbuild" || *name == "Makefile")
}

/// Returns the part of a module's name in the cache that changes with its sources and the kernel.
fn module_digest(sources: &[(&str, &[u8])], kernel: &Kernel) -> String {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };

    add(kernel.version.as_bytes());
    add(kernel.build.as_deref().unwrap_or(Path::new("")).as_os_str().as_encoded_bytes());

    for (name, content) in sources {
        add(name.as_bytes());
        add(content);
    }

    hex(&hash.finalize()[..DIGEST_SIZE])
}
