//! A QEMU that has `vfio-user-pci`.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    elf::{self, Loader},
    error::{ErrorContext, GuestError},
    progress::Progress,
    provision::on_path,
    tool,
};

/// The required device; QEMU has it since 10.1.
const DEVICE: &str = "\"vfio-user-pci\"";
/// The program's usual name.
const PROGRAM: &str = "qemu-system-x86_64";

/// The firmware of a guest's machine, its start of an unpacked and of a packed kernel, and the code
/// that KVM patches into firmware.
const FIRMWARE: [&str; 4] = ["bios-256k.bin", "pvh.bin", "linuxboot_dma.bin", "kvmvapic.bin"];

/// The names in the folder of a copy. The loader is there if the program needs one.
const COPIED_PROGRAM: &str = "qemu";
const COPIED_LOADER: &str = "loader";
const COPIED_LIBRARIES: &str = "lib";
const COPIED_FIRMWARE: &str = "firmware";
const COPIED_VERSION: &str = "version";

/// A program, and the files that it runs with.
#[derive(Clone, Debug)]
pub struct Qemu {
    program: PathBuf,
    /// The loader that starts the program. Without one the system finds it.
    loader: Option<Loader>,
    /// Folders of firmware that are searched before the program's own.
    firmware: Vec<PathBuf>,
    version: String,
}

impl Qemu {
    /// Examines the QEMU at a path.
    ///
    /// # Errors
    /// [`GuestError::Unsuitable`] when it has no `vfio-user-pci`.
    pub fn at(program: &Path, progress: &Progress) -> Result<Self, GuestError> {
        let name = program.to_str().filter(|name| !name.contains('/'));
        let program = name.and_then(on_path).unwrap_or_else(|| program.to_owned());
        Self { program, loader: None, firmware: Vec::new(), version: String::new() }.examined(progress)
    }

    /// Returns a QEMU that is not examined, for tests of command lines.
    #[cfg(test)]
    pub(crate) fn unexamined() -> Self {
        Self { program: PROGRAM.into(), loader: None, firmware: Vec::new(), version: String::new() }
    }

    /// Returns the system's QEMU, if it is installed and new enough.
    pub(crate) fn of_system(progress: &Progress) -> Result<Option<Self>, GuestError> {
        match Self::at(Path::new(PROGRAM), progress) {
            Ok(qemu) => Ok(Some(qemu)),
            Err(GuestError::Cancelled) => Err(GuestError::Cancelled),
            Err(error) => {
                tracing::debug!(%error, "the system's QEMU is not used");
                Ok(None)
            }
        }
    }

    /// Returns the QEMU of an unpacked tree. It runs with the tree's C library, independent of the
    /// host's.
    pub(crate) fn in_tree(tree: &Path, progress: &Progress) -> Result<Self, GuestError> {
        let loader = Loader {
            path: tree.join("usr/lib64/ld-linux-x86-64.so.2"),
            library_path: tree.join("usr/lib/x86_64-linux-gnu").display().to_string(),
        };
        let qemu = Self {
            program: tree.join("usr/bin").join(PROGRAM),
            loader: Some(loader),
            firmware: ["qemu", "seabios"].map(|name| tree.join("usr/share").join(name)).into(),
            version: String::new(),
        };
        qemu.examined(progress)
    }

    /// Returns the QEMU that [`Self::copy_to`] has put into a folder. It is not examined, because
    /// that takes emulated processors more than a second.
    pub(crate) fn in_copy(folder: &Path) -> Result<Self, GuestError> {
        let version = folder.join(COPIED_VERSION);
        let version = std::fs::read_to_string(&version).context(|| version.display().to_string())?;
        let library_path = folder.join(COPIED_LIBRARIES).display().to_string();
        let loader = Loader { path: folder.join(COPIED_LOADER), library_path };

        Ok(Self {
            program: folder.join(COPIED_PROGRAM),
            loader: loader.path.is_file().then_some(loader),
            firmware: vec![folder.join(COPIED_FIRMWARE)],
            version,
        })
    }

    /// Copies the program into a folder, with all that it needs to run there in another system.
    pub(crate) fn copy_to(&self, folder: &Path, progress: &Progress) -> Result<(), GuestError> {
        let (libraries, firmware) = (folder.join(COPIED_LIBRARIES), folder.join(COPIED_FIRMWARE));
        for folder in [&libraries, &firmware] {
            std::fs::create_dir_all(folder).context(|| folder.display().to_string())?;
        }
        let version = folder.join(COPIED_VERSION);
        std::fs::write(&version, &self.version).context(|| version.display().to_string())?;

        copy(&self.program, &folder.join(COPIED_PROGRAM))?;
        if let Some(loader) = self.own_or_system_loader()? {
            copy(&loader.path, &folder.join(COPIED_LOADER))?;
            for library in loader.libraries(&self.program, progress)? {
                copy(&library, &libraries.join(library.file_name().unwrap_or_default()))?;
            }
        }

        // QEMU lists the folders of its firmware.
        let folders = self.ask(&["-L", "help"], progress)?;
        for name in FIRMWARE {
            let found = folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.is_file());
            let found = found.ok_or_else(|| self.unsuitable(format!("has no firmware {name}")))?;
            copy(&found, &firmware.join(name))?;
        }
        Ok(())
    }

    /// Returns the loader of the program, or `None` when the program is linked statically.
    fn own_or_system_loader(&self) -> Result<Option<Loader>, GuestError> {
        if self.loader.is_some() {
            return Ok(self.loader.clone());
        }
        let program = std::fs::read(&self.program).context(|| self.program.display().to_string())?;
        if !elf::is_elf(&program) {
            return Err(self.unsuitable("is no ELF file, which alone runs in another system".into()));
        }
        let path = elf::interpreter(&program);
        Ok(path.map(|path| Loader { path: path.into(), library_path: String::new() }))
    }

    /// Runs the program to find out its devices and its version. Without the required device it is
    /// refused.
    fn examined(mut self, progress: &Progress) -> Result<Self, GuestError> {
        if !self.ask(&["-device", "help"], progress)?.iter().any(|line| line.contains(DEVICE)) {
            let problem = "has no device vfio-user-pci; QEMU 10.1 and newer have it";
            return Err(self.unsuitable(problem.into()));
        }

        let lines = self.ask(&["-version"], progress)?;
        let version = lines.first().map(|line| line.trim_start_matches("QEMU emulator ").to_owned());
        self.version = version.unwrap_or_default();
        Ok(self)
    }

    /// Returns the lines that the program prints for these arguments.
    fn ask(&self, arguments: &[&str], progress: &Progress) -> Result<Vec<String>, GuestError> {
        let what = format!("asking {}", self.program.display());
        tool::run_quietly(&what, self.command().args(arguments), progress)
    }

    /// Returns an error about the program.
    fn unsuitable(&self, problem: String) -> GuestError {
        GuestError::Unsuitable { path: self.program.clone(), problem }
    }

    /// Returns the version that QEMU reports.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the command that starts the program, by its loader and with its firmware.
    pub(crate) fn command(&self) -> Command {
        let mut command = match &self.loader {
            Some(loader) => {
                let mut command = Command::new(&loader.path);
                command.args(["--library-path", &loader.library_path]).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        for folder in &self.firmware {
            command.arg("-L").arg(folder);
        }
        command
    }
}

/// Copies a file, or the one that a link leads to, with its permissions.
fn copy(from: &Path, to: &Path) -> Result<(), GuestError> {
    std::fs::copy(from, to).map(drop).context(|| format!("{} to {}", from.display(), to.display()))
}
