//! Linux guests with nicforge's devices: a QEMU, a kernel and an initramfs from packages without
//! root, and a handle that runs commands in a running guest.
//!
//! - In: sockets of served functions ([`Function`]), programs and files of the host.
//! - Out: lines and exit statuses ([`Output`]), logs.
//! - It may touch the cache ([`cache`]), temporary directories, the package mirrors that the host's
//!   apt knows, and the processes it starts.
//!
//! Machines and devices are unknown here: a function is a name and a socket. QEMU or our own
//! virtual machine ([`Vmm`]) runs the guest, in a process of its own.
//!
//! ```no_run
//! use std::time::Duration;
//! use nicforge_guest::{Guest, GuestConfig, Provision, Progress};
//!
//! let progress = Progress::on_stderr();
//! let toolkit = Provision::from_environment().provide(&progress)?;
//! let config = GuestConfig::new("cn0").user_function("cn0.core0", "/tmp/pset/cn0.core0");
//! let guest = Guest::boot(&toolkit, &config, &progress)?;
//! let output = guest.run("lspci -nn -d 1efc:", Duration::from_secs(60))?;
//! assert_eq!(output.status, 0);
//! print!("{}", output.stdout);
//! # Ok::<(), nicforge_guest::GuestError>(())
//! ```
//!
//! The environment of a command in the guest:
//!
//! | variable | content |
//! | --- | --- |
//! | `NICFORGE_NODE` | the guest's name |
//! | `NICFORGE_DEVICES` | each function with its PCI address, separated by `,` |
//! | `NICFORGE_SOCKET` | addresses of the user functions for programs, separated by `:` |
//!
//! `NICFORGE_DEVICES` is, for example, `io0.core0=0000:00:03.0,io0.core1=0000:00:04.0`.
//! `NICFORGE_SOCKET` is, for example, `shim:/dev/nicforge0` or `vfio:0000:00:03.0`. It is empty
//! without a driver. The caller can add variables. `PATH` contains busybox and `lspci`. The
//! caller's programs are in `/root`, the working directory is `/`, and `/share` is the shared
//! directory.

mod accel;
mod aliases;
mod apt;
mod boot_image;
pub mod cache;
mod cpio;
mod decompress;
mod elf;
mod error;
mod guest;
mod identity;
mod initramfs;
mod modinfo;
mod module_plan;
mod modules;
mod progress;
mod provision;
mod qemu;
mod share;
mod shim;
mod tool;

pub use accel::{Accelerator, Choice};
pub use error::{GuestError, LogEnds};
pub use guest::{
    BarrierCall, Driver, Function, Guest, GuestConfig, Job, LineSink, Output, Prepared, Running, Stream, Vmm,
};
pub use identity::PciIdentity;
pub use modules::ModuleTree;
pub use progress::Progress;
pub use provision::{Kernel, Provision, Toolkit};
pub use qemu::Qemu;
pub use share::Share;
