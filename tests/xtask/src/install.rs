//! `cargo xtask install`: the C library with its headers, for programs outside this repository.
//!
//! A file that exists is replaced by renaming a new one, so that programs that run keep the library
//! that they have loaded.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use clap::Args;
use serde_json::Value;

use crate::steps::{Failed, Steps};

/// The folder of the C library.
const LIBRARY: &str = "userlib/c-api";
/// The archive and the shared library as cargo names them.
const BUILT_LIBRARIES: [&str; 2] = ["libnicforge_c.a", "libnicforge_c.so"];
/// The name that programs record for the shared library, which its build script sets.
const SONAME: &str = concat!("libnicforge.so.", env!("CARGO_PKG_VERSION_MAJOR"));
/// Characters that a prefix may have besides letters and digits. In nicforge.pc all others would
/// need quotes of some kind.
const ALLOWED_PUNCTUATION: &str = "/._-+@:,=%~";

#[derive(Args)]
pub(crate) struct Install {
    /// Where programs will find the library: DIR/include, DIR/lib and DIR/lib/pkgconfig.
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    prefix: PathBuf,
    /// Write below this folder as if it were `/`, to make a package. The files name only the
    /// prefix.
    #[arg(long, value_name = "DIR")]
    destdir: Option<PathBuf>,
    /// Install the libraries that cargo has left in this folder, for example target/debug, instead
    /// of building them again.
    #[arg(long, value_name = "DIR")]
    libraries: Option<PathBuf>,
}

/// Builds the C library and installs it.
pub(crate) fn run(steps: &Steps, install: &Install) -> Result<(), Failed> {
    let prefix = checked_prefix(&install.prefix)?;
    // A folder that can't be made is reported here, before the long build.
    let target = Target::create(below(install.destdir.as_deref(), &prefix))?;

    let libraries = match &install.libraries {
        Some(folder) => folder.clone(),
        None => build(steps)?,
    };

    target.install(&steps.root().join(LIBRARY), &libraries, &prefix)?;

    steps.print_heading(&format!(
        "installed libnicforge {} in {}",
        env!("CARGO_PKG_VERSION"),
        target.folder.display()
    ));
    if install.destdir.is_none() {
        eprintln!("    To compile a program with it:");
        eprintln!("    export PKG_CONFIG_PATH={prefix}/lib/pkgconfig");
        eprintln!("    cc program.c $(pkg-config --cflags --libs nicforge) -Wl,-rpath,{prefix}/lib");
    }
    Ok(())
}

/// Builds the libraries with optimisation, and returns their folder.
fn build(steps: &Steps) -> Result<PathBuf, Failed> {
    steps.cargo("the C library", &["build", "--release", "--package", "nicforge-c"])?;
    let metadata =
        steps.cargo_output("target folder", &["metadata", "--no-deps", "--format-version", "1"])?;
    let metadata: Value = serde_json::from_str(&metadata)
        .map_err(|error| Failed::new(format!("cargo's metadata are no JSON: {error}")))?;

    let folder = metadata["target_directory"].as_str();
    folder
        .map(|folder| Path::new(folder).join("release"))
        .ok_or_else(|| Failed::new("cargo's metadata name no target folder"))
}

/// Returns the prefix as an absolute path that nicforge.pc can contain.
fn checked_prefix(prefix: &Path) -> Result<String, Failed> {
    let refused = |why: String| Failed::new(format!("--prefix {}: {why}", prefix.display()));
    let absolute = std::path::absolute(prefix).map_err(|error| refused(error.to_string()))?;
    let text = absolute.to_str().ok_or_else(|| refused("the path is not UTF-8".to_owned()))?;

    match text.chars().find(|letter| !letter.is_alphanumeric() && !ALLOWED_PUNCTUATION.contains(*letter)) {
        Some(letter) => Err(refused(format!(
            "nicforge.pc can't name a folder with {letter:?} in it; letters, digits and {ALLOWED_PUNCTUATION} are possible"
        ))),
        None if text == "/" => Ok(text.to_owned()),
        None => Ok(text.trim_end_matches('/').to_owned()),
    }
}

/// Returns the folder that stands for `prefix` below `destdir`.
fn below(destdir: Option<&Path>, prefix: &str) -> PathBuf {
    match destdir {
        Some(destdir) => destdir.join(prefix.trim_start_matches('/')),
        None => PathBuf::from(prefix),
    }
}

/// The folder that is written to.
struct Target {
    folder: PathBuf,
}

impl Target {
    /// Makes the folders of all files.
    fn create(folder: PathBuf) -> Result<Self, Failed> {
        for name in ["include/nicforge", "lib/pkgconfig"] {
            let path = folder.join(name);
            fs::create_dir_all(&path).map_err(|error| failure_at(&path, &error))?;
        }
        Ok(Self { folder })
    }

    /// Installs the libraries of a folder and the headers of a library's folder. nicforge.pc names
    /// `prefix`.
    fn install(&self, library: &Path, libraries: &Path, prefix: &str) -> Result<(), Failed> {
        let [archive, shared] = BUILT_LIBRARIES.map(|name| libraries.join(name));
        for file in [&archive, &shared] {
            if !file.exists() {
                return Err(Failed::new(format!(
                    "{} is missing: run `cargo build -p nicforge-c`, and name its folder with --libraries",
                    file.display()
                )));
            }
        }

        for folder in ["", "nicforge"] {
            self.copy_headers(&library.join("include").join(folder), &Path::new("include").join(folder))?;
        }
        self.copy_file(&archive, "lib/libnicforge.a".as_ref(), 0o644)?;
        self.copy_file(&shared, &Path::new("lib").join(SONAME), 0o755)?;
        self.replace_file("lib/libnicforge.so".as_ref(), |path| symlink(SONAME, path))?;

        let template = library.join("nicforge.pc.in");
        let template = fs::read_to_string(&template).map_err(|error| failure_at(&template, &error))?;
        let flags = template.replace("@PREFIX@", prefix).replace("@VERSION@", env!("CARGO_PKG_VERSION"));
        self.replace_file("lib/pkgconfig/nicforge.pc".as_ref(), |path| {
            File::create_new(path)?.write_all(flags.as_bytes())
        })
    }

    /// Installs the headers of a folder, without those of folders in it.
    fn copy_headers(&self, from: &Path, into: &Path) -> Result<(), Failed> {
        for entry in fs::read_dir(from).map_err(|error| failure_at(from, &error))? {
            let path = entry.map_err(|error| failure_at(from, &error))?.path();
            if let (Some(name), true) = (path.file_name(), path.is_file()) {
                self.copy_file(&path, &into.join(name), 0o644)?;
            }
        }
        Ok(())
    }

    /// Installs a copy of a file with these permissions.
    fn copy_file(&self, from: &Path, name: &Path, mode: u32) -> Result<(), Failed> {
        self.replace_file(name, |path| {
            let mut copy = File::create_new(path)?;
            io::copy(&mut File::open(from)?, &mut copy)?;
            copy.set_permissions(fs::Permissions::from_mode(mode))
        })
    }

    /// Makes a file by `make`, and puts it in the place of one that may exist. `make` must fail
    /// when there is a file already: in a folder that another user can write to, it may be a link.
    fn replace_file(&self, name: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), Failed> {
        let path = self.folder.join(name);
        let mut new = path.clone().into_os_string();
        new.push(".new");
        let new = PathBuf::from(new);

        let replace = || {
            // An earlier installation may have ended before its rename.
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            make(&new)?;
            fs::rename(&new, &path)
        };
        replace().map_err(|error| failure_at(&path, &error))
    }
}

/// Returns the failure at a file, with advice for a folder that belongs to another user.
fn failure_at(path: &Path, error: &io::Error) -> Failed {
    let advice = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; choose a folder of your own with --prefix, or collect the files in one with --destdir"
        }
        _ => "",
    };
    Failed::new(format!("{}: {error}{advice}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the folder of the C library in this repository.
    fn library() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(LIBRARY)
    }

    /// Returns all files below a folder, by their names in it.
    fn files(folder: &Path) -> Vec<String> {
        let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
        while let Some(next) = folders.pop() {
            for path in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    folders.push(path);
                } else {
                    files.push(path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
                }
            }
        }

        files.sort();
        files
    }

    /// Makes a folder whose libraries are files with `content`.
    fn libraries(content: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in BUILT_LIBRARIES {
            fs::write(folder.path().join(name), content).unwrap();
        }
        folder
    }

    #[test]
    fn installation_has_headers_libraries_and_flags() {
        let (libraries, destdir) = (libraries("first"), tempfile::tempdir().unwrap());
        let target = Target::create(below(Some(destdir.path()), "/opt/nicforge")).unwrap();
        target.install(&library(), libraries.path(), "/opt/nicforge").unwrap();

        let expected = [
            "include/fcnp_cn.h",
            "include/fcnp_ion.h",
            "include/nicforge/bgl.h",
            "include/nicforge/extoll.h",
            "include/nicforge/fcnp.h",
            "include/nicforge/matching.h",
            "include/nicforge/muhwi.h",
            "include/nicforge/portals3.h",
            "include/nicforge/rma.h",
            "include/nicforge/spi.h",
            "include/nicforge/velo.h",
            "lib/libnicforge.a",
            "lib/libnicforge.so",
            "lib/libnicforge.so.0",
            "lib/pkgconfig/nicforge.pc",
        ];
        assert_eq!(files(destdir.path()), expected.map(|name| format!("opt/nicforge/{name}")));

        let flags = fs::read_to_string(target.folder.join("lib/pkgconfig/nicforge.pc")).unwrap();
        assert!(flags.contains("\nprefix=/opt/nicforge\n"), "{flags}");
        assert!(flags.contains(&format!("\nVersion: {}\n", env!("CARGO_PKG_VERSION"))), "{flags}");
        assert!(!flags.contains('@') && !flags.contains(destdir.path().to_str().unwrap()), "{flags}");
    }

    #[test]
    fn a_second_installation_replaces_the_first() {
        let prefix = tempfile::tempdir().unwrap();
        let target = Target::create(prefix.path().to_owned()).unwrap();
        for content in ["first", "second"] {
            target.install(&library(), libraries(content).path(), "/opt/nicforge").unwrap();
            let shared = fs::read_to_string(prefix.path().join("lib/libnicforge.so")).unwrap();
            assert_eq!(shared, content);
        }
    }

    #[test]
    fn a_prefix_is_absolute_and_needs_no_quotes() {
        assert_eq!(checked_prefix("/opt/nicforge-1.0/".as_ref()).unwrap(), "/opt/nicforge-1.0");
        assert_eq!(checked_prefix("/".as_ref()).unwrap(), "/");
        assert!(checked_prefix("here".as_ref()).unwrap().ends_with("/here"));
        for prefix in ["/my files", "/a$b", "/a\"b", "/a\\b", "/a\nb"] {
            assert!(checked_prefix(prefix.as_ref()).is_err(), "{prefix}");
        }
    }

    #[test]
    fn failures_name_the_file_and_advise() {
        let (empty, prefix) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let target = Target::create(prefix.path().to_owned()).unwrap();
        let missing = target.install(&library(), empty.path(), "/opt").unwrap_err().to_string();
        assert!(missing.contains("libnicforge_c.a is missing: run `cargo build"), "{missing}");

        let denied =
            failure_at("/usr/local/lib".as_ref(), &io::ErrorKind::PermissionDenied.into()).to_string();
        assert!(denied.starts_with("/usr/local/lib: ") && denied.contains("--prefix"), "{denied}");
    }
}
