//! The choice between KVM and QEMU's own emulation (TCG).
//!
//! An accessible `/dev/kvm` proves little: a machine may offer a KVM that can't run 64-bit code. A
//! trial guest is therefore booted once, and the result is kept until the host reboots.

use std::{
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use crate::{
    cpio::Archive,
    error::{ErrorContext, GuestError},
    progress::{CHECK_INTERVAL, Progress},
    provision::Toolkit,
    tool,
};

/// Time limit of the trial boot. Under a working KVM the guest prints its word within two seconds.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(20);
/// The word that the trial guest prints on its console.
const TRIAL_WORD: &str = "nicforge-kvm-works";
const DEVICE: &str = "/dev/kvm";

/// How a guest's processors are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// By the host's processors.
    Kvm,
    /// By QEMU's emulator.
    Tcg,
}

impl Accelerator {
    /// Returns QEMU's name of the accelerator.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }

    /// Returns the processor model with all supported features.
    pub(crate) const fn processor(self) -> &'static str {
        match self {
            Self::Kvm => "host",
            Self::Tcg => "max",
        }
    }
}

/// An accelerator, and the reason for choosing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The accelerator.
    pub accelerator: Accelerator,
    /// The reason, as text for the user.
    pub reason: String,
}

impl Toolkit {
    /// Chooses KVM if a guest boots with it, else TCG.
    ///
    /// # Errors
    /// [`GuestError::Cancelled`], or the cache can't be written.
    pub fn accelerator(&self, progress: &Progress) -> Result<Choice, GuestError> {
        let tcg = |reason: &str| Choice { accelerator: Accelerator::Tcg, reason: reason.to_owned() };
        if let Err(error) = std::fs::File::options().read(true).write(true).open(DEVICE) {
            return Ok(tcg(&format!("{DEVICE}: {error}")));
        }

        // The cached result is the id of the host's boot, and then the name of the accelerator.
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let cache_file = self.cache.path("accel");
        let cached = std::fs::read_to_string(&cache_file).unwrap_or_default();
        let works = match cached.strip_prefix(&boot_id).filter(|_| !boot_id.is_empty()) {
            Some("kvm") => true,
            Some("tcg") => false,
            _ => {
                progress.step("trying KVM");
                let works = self.kvm_works(progress);
                progress.done();

                let works = works?;
                let text = format!("{boot_id}{}", if works { "kvm" } else { "tcg" });

                // Without the file, the next process repeats the trial.
                if let Err(error) = std::fs::write(&cache_file, text) {
                    tracing::debug!(%error, "{}", cache_file.display());
                }

                works
            }
        };

        Ok(if works {
            Choice { accelerator: Accelerator::Kvm, reason: "a guest boots with it".into() }
        } else {
            tcg(&format!("{DEVICE} exists, but no guest boots with it"))
        })
    }

    /// Returns whether a minimal guest under KVM boots far enough to print [`TRIAL_WORD`].
    fn kvm_works(&self, progress: &Progress) -> Result<bool, GuestError> {
        let folder = tempfile::tempdir().context(|| "a temporary directory".into())?;
        let (initrd, console) = (folder.path().join("initrd"), folder.path().join("console"));
        self.write_trial_initramfs(&initrd)?;

        let mut command = self.qemu()?.command();
        command
            .args(["-machine", "q35", "-accel", "kvm", "-cpu", "host", "-m", "256", "-nodefaults"])
            .args(["-no-user-config", "-display", "none", "-no-reboot", "-kernel"])
            .arg(self.kernel.file())
            .arg("-initrd")
            .arg(&initrd)
            .args(["-append", "console=ttyS0 quiet panic=-1 rdinit=/init", "-serial"])
            .arg(format!("file:{}", console.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());

        let mut child = tool::end_with_this_thread(&mut command).spawn().context(|| "start QEMU".into())?;
        let start = Instant::now();
        let works = loop {
            let output = std::fs::read(&console).unwrap_or_default();
            if String::from_utf8_lossy(&output).contains(TRIAL_WORD) {
                break true;
            }
            let ended = child.try_wait().context(|| "wait for QEMU".into())?.is_some();
            if ended || start.elapsed() > TRIAL_TIMEOUT || progress.is_cancelled() {
                break false;
            }
            std::thread::sleep(CHECK_INTERVAL);
        };

        // QEMU may have ended by itself.
        let _ = child.kill();
        let _ = child.wait();
        progress.check()?;

        Ok(works)
    }

    /// Writes the initramfs of the trial guest, which prints [`TRIAL_WORD`] and powers off.
    fn write_trial_initramfs(&self, path: &Path) -> Result<(), GuestError> {
        let shown = || path.display().to_string();
        let busybox = std::fs::read(&self.programs.busybox).context(|| "busybox".into())?;
        let init = format!(
            "#!/busybox sh\n/busybox mkdir /dev\n/busybox mount -t devtmpfs dev /dev\n\
             /busybox echo {TRIAL_WORD} > /dev/console\n/busybox poweroff -f\n"
        );
        let mut archive = Archive::new(std::fs::File::create(path).context(shown)?);

        archive.add_file("busybox", 0o755, &busybox).context(shown)?;
        archive.add_file("init", 0o755, init.as_bytes()).context(shown)?;
        archive.finish().context(shown).map(drop)
    }
}
