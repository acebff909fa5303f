//! A small virtual machine on KVM. Its PCI functions are those of served machines, or its own.
//!
//! - In: a Linux kernel, an initramfs, a command line ([`VmConfig`]), and PCI
//!   functions ([`Function`]).
//! - Out: bytes of serial ports, the end of the machine ([`End`]), counts of exits ([`Exits`]).
//! - It may touch `/dev/kvm`, the files of a boot, and the sockets of [`RemoteFunction`]s.
//!
//! The machine has RAM in a memfd, KVM's own interrupt controllers, three serial ports, an ACPI
//! that describes no hardware of a PC, and one PCI Express bus. A [`Function`] is reached in three
//! ways:
//!
//! | part of a BAR | in the guest |
//! | --- | --- |
//! | mapped, writable | memory: a KVM slot on the function's own file |
//! | mapped, read-only | memory for loads; a store is an exit, and reaches the function |
//! | anything else | an exit for each access |
//!
//! Interrupts are MSI-X, or a line for each slot (INTx). The machine makes an eventfd for each
//! vector and line, and gives it to the function and to KVM, so that an interrupt passes through no
//! thread of this process.
//!
//! [`RemoteFunction`] is a vfio-user client. Several virtual machines, QEMU guests and programs can
//! therefore share the network of one served machine. [`LocalFunction`] is a device in this
//! process, for the virtual machine's own disk, console and random bytes. A thread runs it.
//!
//! A guest is not trusted: an access to nothing reads as ones, a BAR outside the bus's windows is
//! not decoded, and a slot that KVM refuses leaves its area to exits.
//!
//! ```no_run
//! use std::{sync::Arc, time::Duration};
//! use nicforge_kvm::{RemoteFunction, Vm, VmConfig};
//!
//! let config = VmConfig::new("vmlinux").initrd("initrd").command_line("console=ttyS0");
//! let mut vm = Vm::new(&config)?;
//! vm.serial(0, Box::new(std::io::stdout()))?;
//! vm.plug(3, Arc::new(RemoteFunction::connect("/tmp/pset/cn0.core0", Duration::from_secs(5))?))?;
//! let running = vm.start()?;
//! println!("{:?}", running.wait(Duration::from_secs(60)));
//! # Ok::<(), nicforge_kvm::VmError>(())
//! ```

mod acpi;
mod boot;
mod confine;
mod error;
mod event;
mod exits;
mod function;
mod hypervisor;
mod interrupts;
mod layout;
mod local;
mod memory;
mod pci;
mod ports;
mod power;
mod probe;
mod processor;
mod remote;
mod serial;
mod slots;
mod vcpu;
mod vm;

pub use confine::{ConfineError, confine};
pub use error::VmError;
pub use event::Event;
pub use exits::Exits;
pub use function::{Area, Bar, BarKind, Doorbell, Function, FunctionError};
pub use hypervisor::{ExitAddress, Hypervisor, MemoryAccess, Message, Route};
pub use local::{LocalFunction, LocalMachine};
pub use memory::{Ram, RamRange};
pub use ports::Devices;
pub use probe::probe;
pub use remote::RemoteFunction;
pub use vm::{End, Running, Vm, VmConfig};
