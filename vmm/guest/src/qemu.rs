//! A QEMU that has `vfio-user-pci`.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{error::GuestError, progress::Progress, tool};

/// The required device; QEMU has it since 10.1.
const DEVICE: &str = "\"vfio-user-pci\"";
/// The program's usual name.
const PROGRAM: &str = "qemu-system-x86_64";

/// A program and the arguments before the caller's.
#[derive(Clone, Debug)]
pub struct Qemu {
    program: PathBuf,
    arguments: Vec<OsString>,
    version: String,
}

impl Qemu {
    /// Examines the QEMU at a path.
    ///
    /// # Errors
    /// [`GuestError::Unsuitable`] when it has no `vfio-user-pci`.
    pub fn at(program: &Path, progress: &Progress) -> Result<Self, GuestError> {
        Self::query(program.to_owned(), Vec::new(), program, progress)
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
        let program = tree.join("usr/bin").join(PROGRAM);
        let arguments = vec![
            "--library-path".into(),
            tree.join("usr/lib/x86_64-linux-gnu").into(),
            program.clone().into(),
            "-L".into(),
            tree.join("usr/share/qemu").into(),
            "-L".into(),
            tree.join("usr/share/seabios").into(),
        ];

        Self::query(tree.join("usr/lib64/ld-linux-x86-64.so.2"), arguments, &program, progress)
    }

    /// Asks a QEMU for its devices and its version. Without the required device it is refused.
    fn query(
        program: PathBuf,
        arguments: Vec<OsString>,
        shown: &Path,
        progress: &Progress,
    ) -> Result<Self, GuestError> {
        let mut qemu = Self { program, arguments, version: String::new() };
        let ask = |argument: &[&str]| {
            tool::run_quietly(&format!("asking {}", shown.display()), qemu.command().args(argument), progress)
        };

        if !ask(&["-device", "help"])?.iter().any(|line| line.contains(DEVICE)) {
            let problem = "has no device vfio-user-pci; QEMU 10.1 and newer have it".into();
            return Err(GuestError::Unsuitable { path: shown.to_owned(), problem });
        }

        let lines = ask(&["-version"])?;
        let version = lines.first().map(|line| line.trim_start_matches("QEMU emulator ").to_owned());
        qemu.version = version.unwrap_or_default();

        Ok(qemu)
    }

    /// Returns the version that QEMU reports.
    pub fn version(&self) -> &str {
        &self.version
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command
    }
}
