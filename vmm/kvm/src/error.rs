//! Why a virtual machine could not be made.

use std::path::PathBuf;

use crate::function::FunctionError;

/// Why a virtual machine could not be made or started.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// There is no KVM, or this user may not use it.
    #[error("/dev/kvm: {0}")]
    NoKvm(#[source] kvm_ioctls::Error),
    /// A call of KVM failed.
    #[error("{call}: {error}")]
    Kvm {
        /// The call.
        call: &'static str,
        /// Its error.
        #[source]
        error: kvm_ioctls::Error,
    },
    /// A file of the boot cannot be read or does not fit.
    #[error("{path}: {problem}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The guest's memory cannot be made or filled.
    #[error("the guest's memory: {0}")]
    Memory(String),
    /// The configuration is impossible.
    #[error("{0}")]
    Request(String),
    /// A PCI function cannot be plugged in.
    #[error("slot {slot}: {error}")]
    Function {
        /// Its slot on the bus.
        slot: u8,
        /// The error.
        #[source]
        error: FunctionError,
    },
    /// The server of a function cannot be reached.
    #[error(transparent)]
    Remote(#[from] FunctionError),
    /// A thread or an eventfd cannot be made.
    #[error("{call}: {error}")]
    System {
        /// The call.
        call: &'static str,
        /// Its error.
        #[source]
        error: std::io::Error,
    },
}

impl VmError {
    /// Returns a function that adds the name of a call of KVM to its error.
    pub(crate) fn kvm(call: &'static str) -> impl Fn(kvm_ioctls::Error) -> Self {
        move |error| Self::Kvm { call, error }
    }

    /// Returns a function that adds the name of a system call to its error.
    pub(crate) fn system(call: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |error| Self::System { call, error }
    }
}
