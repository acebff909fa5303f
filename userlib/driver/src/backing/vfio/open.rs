//! From a PCI address to a device's descriptor, through its IOMMU group and a container of its own.

use std::{
    fs,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    sys::stat::Mode,
};
use vfio_bindings::bindings::vfio::{VFIO_API_VERSION, VFIO_GROUP_FLAGS_VIABLE, VFIO_TYPE1v2_IOMMU};

use super::sys;
use crate::{Error, OpenProblem, PciAddress};

/// The driver that a function must be bound to.
const DRIVER: &str = "vfio-pci";
/// The file that makes a new container each time it is opened.
const CONTAINER: &str = "/dev/vfio/vfio";

/// A device, its container and its group. They are closed in this order.
pub(super) struct Opened {
    pub(super) device: OwnedFd,
    pub(super) container: OwnedFd,
    /// Keeps the group attached to the container.
    pub(super) group: OwnedFd,
}

/// Returns the name of the file that a symbolic link points to.
fn link_name(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_string_lossy().into_owned())
}

/// Opens a file for reading and writing. `advice` tells in an error what to do.
fn open_file(path: &str, advice: &'static str) -> Result<OwnedFd, OpenProblem> {
    open(path, OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()).map_err(|errno| match errno {
        Errno::EBUSY => OpenProblem::Busy,
        errno => OpenProblem::File { path: path.to_owned(), errno: errno as i32, advice },
    })
}

/// Lists the functions of a group for the text of an error.
fn members_of(group: u32) -> String {
    let devices = format!("/sys/kernel/iommu_groups/{group}/devices");
    let mut names: Vec<_> = fs::read_dir(devices)
        .map(|list| list.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();

    names.sort();
    names.join(" ")
}

/// Opens a function that is bound to vfio-pci: its group, a container with an IOMMU, and the device
/// in them.
fn try_open(address: PciAddress) -> Result<Opened, OpenProblem> {
    // The function must be bound to the driver, and be in an IOMMU group.
    let name = address.to_string();
    let sysfs = PathBuf::from(format!("/sys/bus/pci/devices/{name}"));

    if !sysfs.exists() {
        return Err(OpenProblem::NoFunction);
    }

    let driver = link_name(&sysfs.join("driver"));
    if driver.as_deref() != Some(DRIVER) {
        return Err(OpenProblem::NotBound { address: name, driver, wanted: DRIVER });
    }

    let group_name = link_name(&sysfs.join("iommu_group"));
    let number: u32 = group_name.and_then(|name| name.parse().ok()).ok_or(OpenProblem::NoGroup)?;

    let refused = |operation: &'static str, advice| {
        move |errno: Errno| match errno {
            Errno::EBUSY => OpenProblem::Busy,
            errno => OpenProblem::File { path: operation.to_owned(), errno: errno as i32, advice },
        }
    };

    // The container must have this version of the interface, and support the IOMMU.
    let container = open_file(CONTAINER, "load the modules vfio and vfio_iommu_type1")?;
    let found = sys::api_version(container.as_fd()).map_err(refused(CONTAINER, "is it VFIO's file?"))?;
    if found != VFIO_API_VERSION {
        return Err(OpenProblem::Version { found, wanted: VFIO_API_VERSION });
    }

    let advice = "load the module vfio_iommu_type1";
    if !sys::has_iommu(container.as_fd(), VFIO_TYPE1v2_IOMMU).map_err(refused(CONTAINER, advice))? {
        return Err(OpenProblem::File { path: CONTAINER.to_owned(), errno: Errno::ENODEV as i32, advice });
    }

    // The group is put into the container, which then gets its IOMMU.
    let path = format!("/dev/vfio/{number}");
    let group = open_file(&path, "run as root, or chown the group's file")?;
    let flags = sys::group_flags(group.as_fd()).map_err(refused("the group's state", "try again"))?;

    if flags & VFIO_GROUP_FLAGS_VIABLE == 0 {
        return Err(OpenProblem::NotViable { group: number, members: members_of(number) });
    }

    sys::set_container(group.as_fd(), container.as_fd()).map_err(refused(
        "putting the group into a container",
        "is another group's IOMMU of another kind?",
    ))?;
    sys::set_iommu(container.as_fd(), VFIO_TYPE1v2_IOMMU).map_err(refused(
        "giving the container an IOMMU",
        "allow unsafe interrupts, or switch interrupt remapping on",
    ))?;

    let device = sys::device(group.as_fd(), &name)
        .map_err(refused("taking the device out of its group", "is it still bound to vfio-pci?"))?;
    Ok(Opened { device, container, group })
}

/// Opens the function at `address`.
pub(super) fn open_function(address: PciAddress) -> Result<Opened, Error> {
    try_open(address).map_err(|problem| Error::Open { device: format!("vfio:{address}"), problem })
}
