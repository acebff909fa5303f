//! What can go wrong, with the values that were refused.

use std::time::Duration;

use nicforge_shm::MemoryError;
use thiserror::Error;

/// How a device was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GoneCause {
    /// The server closed the connection, or died; a function of the kernel's answers with all ones.
    #[error("its server hung up, or the device was pulled; open it again when it is back")]
    HungUp,
    /// The server gave this attachment up because of something its client did (a truncated file).
    #[error("the server evicted this attachment; reset the device or open it again")]
    Evicted,
    /// Somebody else reset the attachment, or it has a new tenant.
    #[error("the attachment was reset from outside; reset the device or open it again")]
    Reset,
    /// The engine behind the device stopped counting its heartbeat.
    #[error("its engine stopped; look at the server")]
    Stopped,
    /// The kernel wants the function back (it is being unplugged or unbound), or reported an error of it that it can't mend.
    #[error("the kernel takes it back; close it, and open it again when it is bound again")]
    Withdrawn,
}

/// Why a PCI function can't be had through the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenProblem {
    /// The text is no address.
    #[error("that is no address: write vfio:0000:00:03.0, shim:/dev/nicforge0, or the path of a socket")]
    Address,
    /// No such PCI function.
    #[error("there is no such PCI function; `lspci -D` lists them")]
    NoFunction,
    /// Another driver has it, or none.
    #[error("{}; as root: {}", bound_to(driver), bind_commands(address, wanted))]
    NotBound {
        /// The function's address.
        address: String,
        /// The driver that has it.
        driver: Option<String>,
        /// The driver that must have it.
        wanted: &'static str,
    },
    /// The kernel gave it no IOMMU group.
    #[error(
        "it is in no IOMMU group: switch the IOMMU on (in the firmware, and by intel_iommu=on or amd_iommu=on), or use the shim"
    )]
    NoGroup,
    /// Others in its group belong to host drivers.
    #[error("group {group} is not viable: give vfio-pci all its functions: {members}")]
    NotViable {
        /// The IOMMU group's number.
        group: u32,
        /// The PCI functions in it.
        members: String,
    },
    /// Somebody has it open.
    #[error("it is in use by another program")]
    Busy,
    /// A file is missing or must not be opened.
    #[error("{path}: {}; {advice}", nix::errno::Errno::from_raw(*errno).desc())]
    File {
        /// The file.
        path: String,
        /// The error number that came back.
        errno: i32,
        /// What helps.
        advice: &'static str,
    },
    /// The kernel speaks another version of the interface.
    #[error("the kernel speaks version {found} of the interface and this library version {wanted}")]
    Version {
        /// What the kernel says.
        found: u32,
        /// What this library knows.
        wanted: u32,
    },
}

fn bound_to(driver: &Option<String>) -> String {
    driver.as_ref().map_or_else(|| "no driver has it".to_owned(), |driver| format!("driver {driver} has it"))
}

/// The commands that give a function to a driver.
fn bind_commands(address: &str, wanted: &str) -> String {
    let device = format!("/sys/bus/pci/devices/{address}");
    format!(
        "modprobe {wanted}; echo {wanted} > {device}/driver_override; \
         echo {address} > {device}/driver/unbind; echo {address} > /sys/bus/pci/drivers_probe"
    )
}

/// Why a call to a device failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The device is lost, until [`crate::Device::reset`] where the cause allows that. Every later wait fails too; after
    /// [`GoneCause::Stopped`] and [`GoneCause::Reset`] a trapped read, or a record for a ring, may still find who takes it.
    #[error("the device is gone: {cause}")]
    DeviceGone {
        /// How it was lost.
        cause: GoneCause,
    },
    /// The deadline of a wait passed.
    #[error("nothing happened within {waited:?} while waiting for {what}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// How long the wait took.
        waited: Duration,
    },
    /// The wait was cancelled through its [`crate::Cancel`].
    #[error("the wait was cancelled")]
    Cancelled,
    /// A posted-write ring has no room for a record now (only from calls that do not wait).
    #[error("posted-write ring {ring} is full: try again, or use the call that waits")]
    RingFull {
        /// Which ring.
        ring: u8,
    },
    /// A ring is held by another [`crate::Poster`].
    #[error("posted-write ring {ring} is in use: share its poster by a lock, or use another ring")]
    RingTaken {
        /// Which ring.
        ring: u8,
    },
    /// An access leaves its region, BAR, buffer or list.
    #[error("{what} {index}: {len} bytes at offset {offset:#x} leave its {size:#x} bytes")]
    OutOfRange {
        /// What was accessed.
        what: &'static str,
        /// Its number, 0 if there is one only.
        index: u32,
        /// First byte of the access.
        offset: u64,
        /// Bytes accessed.
        len: u64,
        /// Bytes there are.
        size: u64,
    },
    /// A register access must be aligned to its own width.
    #[error("an access of {width} bytes at offset {offset:#x} is not aligned to its width")]
    Misaligned {
        /// First byte of the access.
        offset: u64,
        /// Its width in bytes.
        width: u64,
    },
    /// The place is not mapped memory: registers there are reached by trapped accesses only.
    #[error(
        "region {region}: [{offset:#x}, +{len:#x}) is not mapped memory; use trapped reads and writes there"
    )]
    NotMapped {
        /// VFIO region index (0 to 5 are the BARs).
        region: u32,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The device has no such thing.
    #[error("the device has no {what} {index} (it has {count})")]
    NoSuch {
        /// What was asked for.
        what: &'static str,
        /// Which.
        index: u32,
        /// How many there are.
        count: u32,
    },
    /// The device or its backing cannot do this.
    #[error("not supported: {what}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// The data of a posted write or burst has an impossible length.
    #[error("{len} bytes of data: 1 to {most} are possible here")]
    BadLength {
        /// Bytes there were.
        len: usize,
        /// The most that are possible.
        most: usize,
    },
    /// The server or the kernel refused a request.
    #[error("{what} was refused: {}", nix::errno::Errno::from_raw(*errno).desc())]
    Refused {
        /// What was asked.
        what: &'static str,
        /// The error number that came back.
        errno: i32,
    },
    /// The device or its server said something that makes no sense.
    #[error("the device breaks the protocol: {what} ({value:#x})")]
    Protocol {
        /// What is wrong.
        what: &'static str,
        /// The value found.
        value: u64,
    },
    /// A PCI function can't be had through the kernel.
    #[error("{device} cannot be opened: {problem}")]
    Open {
        /// What was to be opened.
        device: String,
        /// Why not, and what helps.
        problem: OpenProblem,
    },
    /// The connection to a vfio-user server failed otherwise.
    #[error("vfio-user: {reason}")]
    Connection {
        /// The client's own words.
        reason: String,
    },
    /// No room for a DMA buffer in the device's address space.
    #[error("no room for {len:#x} bytes in the device's DMA address space: drop buffers that are not needed")]
    AddressSpace {
        /// Bytes asked for.
        len: u64,
    },
    /// An environment variable that `nicforge run` sets is missing or useless.
    #[error(
        "environment variable {name} {problem}: start this program with `nicforge run`, or set it to a device's socket, vfio:BDF or shim:PATH"
    )]
    Environment {
        /// The variable.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Shared memory could not be created, mapped or accessed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl Error {
    /// Whether the device itself is lost.
    pub fn is_gone(&self) -> bool {
        matches!(self, Error::DeviceGone { .. })
    }

    /// A system call's error number as a refusal of `what`.
    pub fn system(what: &'static str, errno: nix::errno::Errno) -> Self {
        Error::Refused { what, errno: errno as i32 }
    }
}
