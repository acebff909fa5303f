//! Files for guests that start where nothing can be provisioned, for example in another guest.

use std::{
    fs::File,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use super::{config::GuestConfig, vmm::Vmm};
use crate::{
    error::{ErrorContext, GuestError},
    progress::Progress,
    provision::{Toolkit, vm_program},
    qemu::Qemu,
};

/// The name of the kernel in a folder of prepared files.
const KERNEL: &str = "vmlinux";
/// The name of the folder with QEMU, if a guest of it was prepared.
const QEMU: &str = "qemu";

/// The program and the kernel of our own virtual machine.
#[derive(Clone, Debug)]
pub(crate) struct OwnMachine {
    /// The program.
    pub(crate) program: PathBuf,
    /// An unpacked kernel with a PVH entry.
    pub(crate) kernel: PathBuf,
}

impl OwnMachine {
    /// Takes the caller's program, or else the one that is found.
    fn new(program: Option<PathBuf>, kernel: PathBuf) -> Result<Self, GuestError> {
        let program = program.or_else(vm_program).ok_or(GuestError::Unprovided {
            what: "program of our own virtual machine",
            why: "it is part of nicforge".into(),
            advice: "Put `nicforge` beside this program, or name it with NICFORGE_VM",
        })?;
        Ok(Self { program, kernel })
    }
}

/// A kernel and the initramfs of some guests in a folder, which [`Toolkit::prepare`] has written,
/// and the program of our own virtual machine.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The program of our own virtual machine, if the caller named one.
    vm: Option<PathBuf>,
    kernel: PathBuf,
    folder: PathBuf,
}

impl Prepared {
    /// Opens a folder of prepared files. `vm` is the program of our own virtual machine, as
    /// [`Provision::vm`](crate::Provision::vm).
    ///
    /// # Errors
    /// [`GuestError::Unsuitable`] when the folder has no kernel.
    pub fn open(folder: &Path, vm: Option<PathBuf>) -> Result<Self, GuestError> {
        let kernel = folder.join(KERNEL);
        if !kernel.is_file() {
            return Err(GuestError::Unsuitable { path: kernel, problem: "is not a file".into() });
        }
        Ok(Self { vm, kernel, folder: folder.to_owned() })
    }

    /// Returns the program and the kernel of our own virtual machine.
    pub(super) fn own_machine(&self) -> Result<OwnMachine, GuestError> {
        OwnMachine::new(self.vm.clone(), self.kernel.clone())
    }

    /// Returns the QEMU among the files.
    pub(super) fn qemu(&self) -> Result<Qemu, GuestError> {
        Qemu::in_copy(&self.folder.join(QEMU))
    }

    pub(super) fn kernel(&self) -> &Path {
        &self.kernel
    }

    /// Returns the path of a guest's initramfs.
    pub(super) fn initrd(&self, node: &str) -> PathBuf {
        initrd(&self.folder, node)
    }

    /// Returns the image of a guest's `/share`, if it was prepared with one.
    pub(super) fn share(&self, node: &str) -> Result<Option<File>, GuestError> {
        let path = share(&self.folder, node);
        match File::open(&path) {
            Ok(image) => Ok(Some(image)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context(|| path.display().to_string()),
        }
    }
}

impl Toolkit {
    /// Writes an unpacked kernel and the initramfs of each guest into a folder, for
    /// [`Guest::boot_prepared`](crate::Guest::boot_prepared) on another system. Guests of our own
    /// virtual machine also get the image of `/share`. If one of the guests is QEMU's, QEMU is
    /// copied too (about 70 MB).
    ///
    /// # Errors
    /// As [`Guest::boot`](crate::Guest::boot), before a machine is started.
    pub fn prepare(
        &self,
        configs: &[GuestConfig],
        folder: &Path,
        progress: &Progress,
    ) -> Result<(), GuestError> {
        let (source, kernel) = (self.unpacked_kernel()?, folder.join(KERNEL));
        std::fs::copy(source, &kernel).context(|| kernel.display().to_string())?;

        for config in configs {
            config.check_vmm()?;
            self.write_initramfs(config, &initrd(folder, config.node()), progress)?;
            if let (Vmm::Own, Some(image)) = (config.hardware.vmm, &config.software.share) {
                image.copy_to(&share(folder, config.node()), progress)?;
            }
        }
        if configs.iter().any(|config| config.hardware.vmm == Vmm::Qemu) {
            self.qemu()?.copy_to(&folder.join(QEMU), progress)?;
        }
        Ok(())
    }

    /// Returns the program and the kernel of our own virtual machine.
    pub(super) fn own_machine(&self) -> Result<OwnMachine, GuestError> {
        OwnMachine::new(self.vm.clone(), self.unpacked_kernel()?.to_owned())
    }

    /// Returns the unpacked kernel, which our own virtual machine needs.
    fn unpacked_kernel(&self) -> Result<&Path, GuestError> {
        self.kernel.unpacked().ok_or_else(|| GuestError::Unsuitable {
            path: self.kernel.image.clone(),
            problem: "cannot be unpacked on this host, or has no PVH entry; our own virtual machine starts \
                      no other kernel: use QEMU (--vmm qemu)"
                .into(),
        })
    }
}

/// Returns the path of a guest's initramfs in a folder of prepared files.
fn initrd(folder: &Path, node: &str) -> PathBuf {
    folder.join(format!("{node}.initrd"))
}

/// Returns the path of the image of a guest's `/share` in a folder of prepared files.
fn share(folder: &Path, node: &str) -> PathBuf {
    folder.join(format!("{node}.share"))
}
