//! The parts of a guest: a QEMU, a kernel with its modules and headers, a few programs.
//!
//! Each part is the caller's, or the host's where it is suitable, or comes from Debian packages
//! that are unpacked into the cache. No package is installed and no root is needed.

use std::path::{Path, PathBuf};

use crate::{
    apt::{self, Selection},
    boot_image::{self, BootImage},
    cache::{Cache, Locked},
    elf,
    error::{ErrorContext, GuestError},
    modules::ModuleTree,
    progress::Progress,
    qemu::Qemu,
    tool,
};

/// The major version of the compiler of the provisioned kernel. kbuild needs the same one for
/// modules.
const KERNEL_GCC: u32 = 12;

/// The parts that the caller supplies. The others are found or provisioned.
#[derive(Clone, Debug, Default)]
pub struct Provision {
    /// A QEMU that has `vfio-user-pci`.
    pub qemu: Option<PathBuf>,
    /// Whether no QEMU is looked for or downloaded, because our own virtual machine runs all
    /// guests.
    pub without_qemu: bool,
    /// A kernel (bzImage).
    pub kernel: Option<PathBuf>,
    /// Its modules, as in `/lib/modules/VERSION`. By default they are this host's, if it has the
    /// kernel's version.
    pub modules: Option<PathBuf>,
    /// An initramfs for the guest's root file system. nicforge's own is appended to it.
    pub initrd: Option<PathBuf>,
    /// The program of our own virtual machine: one made from `nicforge::App`, whose hidden command
    /// `vm` runs a machine. By default it is the `nicforge` beside this program, or else the one of
    /// the `PATH`.
    ///
    /// A program, and not a thread of the caller's: a guest ends like QEMU's guests do, by a signal
    /// and with its memory, whatever state it is in.
    pub vm: Option<PathBuf>,
    /// The cache; by default the user's.
    pub cache: Option<PathBuf>,
}

/// A kernel to boot.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The bzImage.
    pub image: PathBuf,
    /// The kernel in it, unpacked, if QEMU can start it.
    pub(crate) unpacked: Option<PathBuf>,
    /// Its version, as `uname -r` prints it.
    pub version: String,
    /// Its modules.
    pub modules: Option<ModuleTree>,
    /// The build directory of kbuild for it.
    pub build: Option<PathBuf>,
    /// The provisioned tree with programs for kbuild, if the kernel comes from one.
    pub(crate) tree: Option<PathBuf>,
}

impl Kernel {
    /// Returns the unpacked kernel (`vmlinux`) with a PVH entry, if the image has one and this host
    /// can unpack it.
    pub fn unpacked(&self) -> Option<&Path> {
        self.unpacked.as_deref()
    }

    /// Returns the file for QEMU's `-kernel`.
    pub(crate) fn file(&self) -> &Path {
        self.unpacked.as_deref().unwrap_or(&self.image)
    }
}

/// Programs that are copied into a guest.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    /// A static busybox.
    pub(crate) busybox: PathBuf,
    /// `lspci` with its libraries and the loader, and the names of devices.
    pub(crate) lspci: Option<Lspci>,
}

/// `lspci` and the files it needs.
#[derive(Clone, Debug)]
pub(crate) struct Lspci {
    pub(crate) program: PathBuf,
    pub(crate) loader: PathBuf,
    pub(crate) libraries: Vec<PathBuf>,
    /// The names of vendors and devices (`pci.ids`).
    pub(crate) names: PathBuf,
}

/// All parts that guests are made of.
#[derive(Clone, Debug)]
pub struct Toolkit {
    /// The emulator, unless it was not asked for.
    pub(crate) qemu: Option<Qemu>,
    /// The kernel.
    pub kernel: Kernel,
    pub(crate) programs: Programs,
    /// The caller's initramfs, to which nicforge's own is appended.
    pub(crate) initrd: Option<PathBuf>,
    /// The program of our own virtual machine, if the caller named one.
    pub(crate) vm: Option<PathBuf>,
    pub(crate) cache: Cache,
}

impl Provision {
    /// Takes the parts that the environment names: `NICFORGE_QEMU`, `NICFORGE_KERNEL`,
    /// `NICFORGE_MODULES`, `NICFORGE_INITRD`, `NICFORGE_VM`.
    pub fn from_environment() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self {
            qemu: variable("NICFORGE_QEMU"),
            without_qemu: false,
            kernel: variable("NICFORGE_KERNEL"),
            modules: variable("NICFORGE_MODULES"),
            initrd: variable("NICFORGE_INITRD"),
            vm: variable("NICFORGE_VM"),
            cache: None,
        }
    }

    /// Finds or makes all parts. With a full cache this takes well under a second.
    ///
    /// # Errors
    /// - [`GuestError::Unprovided`]: a part is missing and can't be downloaded.
    /// - [`GuestError::Unsuitable`]: a file that the caller named is unsuitable.
    /// - [`GuestError::Tool`]: a download failed.
    /// - [`GuestError::Cancelled`].
    pub fn provide(&self, progress: &Progress) -> Result<Toolkit, GuestError> {
        let toolkit = self.provide_all(progress);
        progress.done();
        toolkit
    }

    /// Finds or provisions QEMU, a kernel and the programs of a guest, with the cache locked.
    fn provide_all(&self, progress: &Progress) -> Result<Toolkit, GuestError> {
        for file in [&self.kernel, &self.initrd].into_iter().flatten() {
            if !file.is_file() {
                let problem = "is not a file".into();
                return Err(GuestError::Unsuitable { path: file.clone(), problem });
            }
        }

        let cache = self.cache.as_deref().map_or_else(Cache::open, Cache::at)?;
        let locked = cache.lock(progress)?;
        cache.sweep(&locked);

        let qemu = match self.without_qemu {
            true => None,
            false => Some(self.find_qemu(&cache, &locked, progress)?),
        };

        let (mut kernel, programs) = match &self.kernel {
            None => {
                let tree = linux_tree(&cache, &locked, progress)?;
                (kernel_in_tree(&tree)?, programs_in_tree(&tree, progress)?)
            }
            Some(image) => {
                let kernel = self.own_kernel(image)?;
                let programs = match programs_of_host(progress)? {
                    Some(programs) => programs,
                    None => programs_in_tree(&linux_tree(&cache, &locked, progress)?, progress)?,
                };
                (kernel, programs)
            }
        };

        kernel.unpacked = boot_image::unpack(&kernel.image, &cache, &locked, progress)?;
        let (initrd, vm) = (self.initrd.clone(), self.vm.clone());
        Ok(Toolkit { qemu, kernel, programs, initrd, vm, cache })
    }

    /// Returns the caller's QEMU, the system's, or the one of the private tree.
    fn find_qemu(&self, cache: &Cache, locked: &Locked, progress: &Progress) -> Result<Qemu, GuestError> {
        if let Some(path) = &self.qemu {
            return Qemu::at(path, progress);
        }
        match Qemu::of_system(progress)? {
            Some(qemu) => Ok(qemu),
            None => Qemu::in_tree(&qemu_tree(cache, locked, progress)?, progress),
        }
    }

    /// Returns the caller's kernel with its modules and build directory, if they are known. The
    /// modules are those that the caller named, or the host's of the same version.
    fn own_kernel(&self, image: &Path) -> Result<Kernel, GuestError> {
        let version = BootImage::read(image)?.version;
        let host_modules = Path::new("/lib/modules").join(&version);
        let modules = match &self.modules {
            Some(path) => Some(ModuleTree::open(path)?),
            // An initramfs of the caller's for the caller's kernel has the modules that it needs.
            None if self.initrd.is_none() && host_modules.is_dir() => Some(ModuleTree::open(&host_modules)?),
            None => None,
        };

        let build = modules.as_ref().map(|modules| modules.root().join("build"));
        let build = build.filter(|build| build.join("Makefile").is_file());
        Ok(Kernel { image: image.to_owned(), unpacked: None, version, modules, build, tree: None })
    }
}

impl Toolkit {
    /// Returns the emulator.
    ///
    /// # Errors
    /// [`GuestError::Request`] when it was not asked for ([`Provision::without_qemu`]).
    pub fn qemu(&self) -> Result<&Qemu, GuestError> {
        let missing = || GuestError::Request("these parts were provisioned without QEMU".into());
        self.qemu.as_ref().ok_or_else(missing)
    }
}

/// Returns the private tree with QEMU.
fn qemu_tree(cache: &Cache, _locked: &Locked, progress: &Progress) -> Result<PathBuf, GuestError> {
    let selection = Selection {
        what: "QEMU",
        suites: &["trixie", "trixie-backports"],
        target: Some("trixie-backports"),
        packages: vec!["qemu-system-x86"],
        // The programs used here run without these packages.
        assumed: vec!["adduser", "debconf", "passwd", "openssl-provider-legacy"],
    };

    provide_tree(cache, "qemu-trixie", &selection, progress, |_| Ok(()))
}

/// Returns the private tree with a kernel and the programs for a guest.
fn linux_tree(cache: &Cache, _locked: &Locked, progress: &Progress) -> Result<PathBuf, GuestError> {
    let needs_gcc = !has_gcc(KERNEL_GCC, progress)?;
    let make =
        tool::run_quietly("asking make", std::process::Command::new("make").arg("--version"), progress);
    let mut packages = vec!["linux-image-amd64", "linux-headers-amd64", "busybox-static", "pciutils"];
    let mut assumed = vec!["initramfs-tools", "linux-initramfs-tool", "kmod", "linux-base"];
    // The headers' package depends on the compiler. apt downloads it unless it counts as installed.
    if !needs_gcc {
        assumed.push("linux-compiler-gcc-12-x86");
    }

    if make.is_err() {
        packages.push("make");
    }

    let selection = Selection { what: "a kernel", suites: &["bookworm"], target: None, packages, assumed };
    let name = if needs_gcc { "linux-bookworm-gcc" } else { "linux-bookworm" };
    provide_tree(cache, name, &selection, progress, relocate_headers)
}

/// Returns whether the host has the compiler of this major version, as `gcc-N` or as `gcc`.
fn has_gcc(major: u32, progress: &Progress) -> Result<bool, GuestError> {
    Ok(gcc(major, progress)?.is_some())
}

/// Returns the name of the host's compiler of this major version.
pub(crate) fn gcc(major: u32, progress: &Progress) -> Result<Option<String>, GuestError> {
    for program in [format!("gcc-{major}"), "gcc".to_owned()] {
        let mut command = std::process::Command::new(&program);
        match tool::run_quietly("asking the compiler", command.arg("-dumpversion"), progress) {
            Ok(lines) => {
                let version = lines.first().and_then(|line| line.split('.').next()?.parse().ok());
                if version == Some(major) {
                    return Ok(Some(program));
                }
            }
            Err(GuestError::Cancelled) => return Err(GuestError::Cancelled),
            Err(_) => {}
        }
    }

    Ok(None)
}

/// Returns the cache's tree `name`. Unless it exists, a selection is downloaded and unpacked, and
/// `finish` changes the tree's files.
fn provide_tree(
    cache: &Cache,
    name: &str,
    selection: &Selection,
    progress: &Progress,
    finish: impl FnOnce(&Path) -> Result<(), GuestError>,
) -> Result<PathBuf, GuestError> {
    let path = cache.path(name);
    if path.is_dir() {
        return Ok(path);
    }

    let downloads = cache.path("downloads").join(name);
    let packages = apt::download(selection, &downloads, progress)?;
    let path = cache.make(name, |tree| {
        apt::unpack(selection.what, &packages, tree, progress)?;
        for unused in ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/lintian"] {
            // Failure costs only space.
            let _ = std::fs::remove_dir_all(tree.join(unused));
        }
        finish(tree)
    })?;

    // A failure costs only space. The files serve an interrupted download alone.
    let _ = std::fs::remove_dir_all(&downloads);
    Ok(path)
}

/// Returns the only entry of a folder whose name begins with `start` and ends with `end`.
fn entry(folder: &Path, start: &str, end: &str) -> Result<PathBuf, GuestError> {
    let names = std::fs::read_dir(folder).context(|| folder.display().to_string())?;
    let fits = |name: &str| name.starts_with(start) && name.ends_with(end);
    let mut found: Vec<_> = names
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(fits))
        .map(|entry| entry.path())
        .collect();

    let only = found.pop().filter(|_| found.is_empty());
    only.ok_or_else(|| GuestError::Unsuitable {
        path: folder.to_owned(),
        problem: format!("has none or several of {start}*{end}; remove the tree to provision it anew"),
    })
}

/// Makes the headers' makefile independent of the tree's path: it includes its common part relative
/// to itself instead of by an absolute path.
fn relocate_headers(tree: &Path) -> Result<(), GuestError> {
    let sources = tree.join("usr/src");
    let makefile = entry(&sources, "linux-headers-", "-amd64")?.join("Makefile");
    let text = std::fs::read_to_string(&makefile).context(|| makefile.display().to_string())?;
    let text =
        text.replace("include /usr/src/", "include $(dir $(realpath $(lastword $(MAKEFILE_LIST))))../");
    std::fs::write(&makefile, text).context(|| makefile.display().to_string())
}

/// Returns the kernel of an unpacked tree of packages.
fn kernel_in_tree(tree: &Path) -> Result<Kernel, GuestError> {
    let image = entry(&tree.join("boot"), "vmlinuz-", "-amd64")?;
    let version = BootImage::read(&image)?.version;
    let modules = ModuleTree::open(&tree.join("lib/modules").join(&version))?;
    let build = entry(&tree.join("usr/src"), "linux-headers-", "-amd64")?;
    Ok(Kernel {
        image,
        unpacked: None,
        version,
        modules: Some(modules),
        build: Some(build),
        tree: Some(tree.to_owned()),
    })
}

/// Returns the programs for a guest from an unpacked tree of packages.
fn programs_in_tree(tree: &Path, progress: &Progress) -> Result<Programs, GuestError> {
    let folders = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"].map(|folder| tree.join(folder));
    let library_path = folders.map(|folder| folder.display().to_string()).join(":");
    let loader = elf::Loader { path: tree.join("lib64/ld-linux-x86-64.so.2"), library_path };
    let program = tree.join("usr/bin/lspci");
    let libraries = loader.libraries(&program, progress)?;
    let names = tree.join("usr/share/misc/pci.ids");
    let lspci = Lspci { program, loader: loader.path, libraries, names };

    Ok(Programs { busybox: tree.join("bin/busybox"), lspci: Some(lspci) })
}

/// Returns the host's own programs, if its busybox is static.
fn programs_of_host(progress: &Progress) -> Result<Option<Programs>, GuestError> {
    let Some(busybox) = on_path("busybox") else { return Ok(None) };
    let (_, dependencies) = elf::read_with_dependencies(&busybox, progress)?;
    if !dependencies.is_empty() {
        return Ok(None);
    }

    let names = ["/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids"]
        .map(PathBuf::from)
        .into_iter()
        .find(|path| path.is_file());
    let lspci = match (on_path("lspci"), names) {
        (Some(program), Some(names)) => {
            let (_, mut libraries) = elf::read_with_dependencies(&program, progress)?;
            // The last dependency is the loader.
            libraries.pop().map(|loader| Lspci { program, loader, libraries, names })
        }
        _ => None,
    };

    Ok(Some(Programs { busybox, lspci }))
}

/// Returns the `nicforge` beside this program, or else the one of the `PATH`.
pub(crate) fn vm_program() -> Option<PathBuf> {
    const PROGRAM: &str = "nicforge";

    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM));
    beside.filter(|path| path.is_file()).or_else(|| on_path(PROGRAM))
}

/// Returns the path of a program of this host.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_named_by_the_caller_must_exist() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("vmlinuz");
        let provision = Provision {
            kernel: Some(missing.clone()),
            cache: Some(folder.path().join("cache")),
            ..Provision::default()
        };

        let error = provision.provide(&Progress::silent()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&format!("{} is not a file", missing.display()).replace(" is", ": is")),
            "{error}"
        );
    }
}
