//! The library's errors, with the values that were refused.

use std::time::Duration;

use nicforge_shm::MemoryError;
use thiserror::Error;

/// The way in which a device was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GoneCause {
    /// The server closed the connection or died, or a function behind the kernel reads as all ones.
    #[error("its server hung up, or the device was pulled; open it again when it is back")]
    HungUp,
    /// The server ended this attachment: by its operator, or because of its client's fault, such as
    /// a truncated file.
    #[error("the server evicted this attachment; reset the device or open it again")]
    Evicted,
    /// Another party reset the attachment, or it has a new tenant.
    #[error("the attachment was reset from outside; reset the device or open it again")]
    Reset,
    /// The engine behind the device has stopped its heartbeat.
    #[error("its engine stopped; check the server")]
    Stopped,
    /// The kernel asked for the function back (it is being unplugged or unbound), or reported an
    /// error that it could not correct.
    #[error("the kernel has requested its release; close it, and open it again when it is bound again")]
    Withdrawn,
}

/// The reason why a PCI function cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenProblem {
    /// The text is not an address.
    #[error("that is no address: write vfio:0000:00:03.0, shim:/dev/nicforge0, or the path of a socket")]
    Address,
    /// There is no such PCI function.
    #[error("there is no such PCI function; `lspci -D` lists them")]
    NoFunction,
    /// The function is bound to another driver, or to none.
    #[error("{}; as root: {}", bound_to(driver), bind_commands(address, wanted))]
    NotBound {
        /// The function's address.
        address: String,
        /// The driver that the function is bound to.
        driver: Option<String>,
        /// The driver that it must be bound to.
        wanted: &'static str,
    },
    /// The kernel has not put the function into an IOMMU group.
    #[error(
        "it is in no IOMMU group: switch the IOMMU on (in the firmware, and by intel_iommu=on or amd_iommu=on), or use the shim"
    )]
    NoGroup,
    /// Other functions of its group belong to host drivers.
    #[error("group {group} is not viable: give vfio-pci all its functions: {members}")]
    NotViable {
        /// The IOMMU group's number.
        group: u32,
        /// The PCI functions in it.
        members: String,
    },
    /// Another program has the function open.
    #[error("it is in use by another program")]
    Busy,
    /// A file is missing, or opening it is not allowed.
    #[error("{path}: {}; {advice}", nix::errno::Errno::from_raw(*errno).desc())]
    File {
        /// The path of the file.
        path: String,
        /// The error number of the system call.
        errno: i32,
        /// The remedy that the error's text names.
        advice: &'static str,
    },
    /// The kernel's interface has another version.
    #[error("the kernel has version {found} of the interface, and this library needs version {wanted}")]
    Version {
        /// The kernel's version.
        found: u32,
        /// The version that this library needs.
        wanted: u32,
    },
}

/// Returns the text that names the driver of a function.
fn bound_to(driver: &Option<String>) -> String {
    driver.as_ref().map_or_else(|| "no driver has it".to_owned(), |driver| format!("driver {driver} has it"))
}

/// Returns the shell commands that bind a function to a driver.
fn bind_commands(address: &str, driver: &str) -> String {
    let device = format!("/sys/bus/pci/devices/{address}");
    format!(
        "modprobe {driver}; echo {driver} > {device}/driver_override; \
         echo {address} > {device}/driver/unbind; echo {address} > /sys/bus/pci/drivers_probe"
    )
}

/// The reason why a call to a device failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The device is lost, until [`crate::Device::reset`] where the cause allows that. Every later
    /// wait fails, too. After [`GoneCause::Stopped`] and [`GoneCause::Reset`], a trapped read or a
    /// posted write may still reach the device.
    #[error("the device is gone: {cause}")]
    DeviceGone {
        /// The way in which the device was lost.
        cause: GoneCause,
    },
    /// The deadline of a wait passed.
    #[error("nothing happened within {waited:?} while waiting for {what}")]
    Timeout {
        /// The event that the wait was for.
        what: &'static str,
        /// How long the wait took.
        waited: Duration,
    },
    /// The wait was cancelled through its [`crate::Cancel`].
    #[error("the wait was cancelled")]
    Cancelled,
    /// This process is a child, by `fork`, of the one that has opened the device. Nothing was done.
    #[error("another process has opened the device, and this one is its child: open a device of its own")]
    ForeignProcess,
    /// A posted-write ring has no room for a record now. Only calls that do not wait return it.
    #[error("posted-write ring {ring} is full: try again, or use the call that waits")]
    RingFull {
        /// The ring's number.
        ring: u8,
    },
    /// Another [`crate::Poster`] holds the ring.
    #[error("posted-write ring {ring} is in use: share its poster by a lock, or use another ring")]
    RingTaken {
        /// The ring's number.
        ring: u8,
    },
    /// An access leaves its region, BAR, buffer or list.
    #[error("{what} {index}: {len} bytes at offset {offset:#x} leave its {size:#x} bytes")]
    OutOfRange {
        /// The kind of the thing that was accessed.
        what: &'static str,
        /// Its number, or 0 if there is only one.
        index: u32,
        /// First byte of the access.
        offset: u64,
        /// Length of the access in bytes.
        len: u64,
        /// Size of the region, BAR, buffer or list in bytes.
        size: u64,
    },
    /// A register access is not aligned to its own width.
    #[error("an access of {width} bytes at offset {offset:#x} is not aligned to its width")]
    Misaligned {
        /// First byte of the access.
        offset: u64,
        /// Its width in bytes.
        width: u64,
    },
    /// The range is not mapped memory. Its registers are reached by trapped accesses only.
    #[error(
        "region {region}: [{offset:#x}, +{len:#x}) is not mapped memory; use trapped reads and writes there"
    )]
    NotMapped {
        /// VFIO region index (0 to 5 are the BARs).
        region: u32,
        /// First byte of the range.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
    },
    /// The device has no resource of this kind and number.
    #[error("the device has no {what} {index} (it has {count})")]
    NoSuch {
        /// The kind of the resource.
        what: &'static str,
        /// The number that was requested.
        index: u32,
        /// The number of such resources that the device has.
        count: u32,
    },
    /// The device or its backing cannot do this.
    #[error("not supported: {what}")]
    Unsupported {
        /// The requested operation.
        what: &'static str,
    },
    /// The data of a posted write or burst has an impossible length.
    #[error("{len} bytes of data: 1 to {most} are possible here")]
    BadLength {
        /// The length of the data in bytes.
        len: usize,
        /// The greatest possible length.
        most: usize,
    },
    /// The server or the kernel refused a request.
    #[error("{what} was refused: {}", nix::errno::Errno::from_raw(*errno).desc())]
    Refused {
        /// The requested operation.
        what: &'static str,
        /// The error number of the reply.
        errno: i32,
    },
    /// The device or its server gave an invalid description or reply.
    #[error("the device breaks the protocol: {what} ({value:#x})")]
    Protocol {
        /// The rule that it violates.
        what: &'static str,
        /// The value that it gave.
        value: u64,
    },
    /// A PCI function cannot be opened through the kernel.
    #[error("{device} cannot be opened: {problem}")]
    Open {
        /// The device's address.
        device: String,
        /// The reason, with a remedy.
        problem: OpenProblem,
    },
    /// The connection to a vfio-user server failed in another way.
    #[error("vfio-user: {reason}")]
    Connection {
        /// The client's description of the failure.
        reason: String,
    },
    /// The device's address space has no room for a DMA buffer.
    #[error("no room for {len:#x} bytes in the device's DMA address space: drop buffers that are not needed")]
    AddressSpace {
        /// The requested length in bytes.
        len: u64,
    },
    /// An environment variable that `nicforge run` sets is missing or invalid.
    #[error(
        "environment variable {name} {problem}: start this program with `nicforge run`, or set it to a device's socket, vfio:BDF or shim:PATH"
    )]
    Environment {
        /// The name of the variable.
        name: String,
        /// The defect of its value.
        problem: &'static str,
    },
    /// Shared memory could not be created, mapped or accessed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl Error {
    /// Returns whether this error means that the device is lost.
    pub fn is_gone(&self) -> bool {
        matches!(self, Error::DeviceGone { .. })
    }

    /// Returns the error for a failed system call: `operation` was refused with `errno`.
    pub fn system(operation: &'static str, errno: nix::errno::Errno) -> Self {
        Error::Refused { what: operation, errno: errno as i32 }
    }
}
