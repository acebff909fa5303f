//! The waiting page of a client, and the eventfd that wakes it: see
//! [`nicforge_hwi::attachment::waiting`].
//!
//! The page is memory of the server's, sealed like a window of the device, and made when the client
//! asks for it. Other clients than nicforge's never do.

use std::sync::{Arc, OnceLock, atomic::Ordering};

use nicforge_core::{
    ids::{AttachmentId, FunctionId},
    interrupt::{INDICES, InterruptSink},
    machine::{ClientWaker, Machine, region},
};
use nicforge_hwi::attachment::waiting;
use nicforge_shm::{SharedMemory, register_membarrier};
use nicforge_vfio_user::{
    Errno, IRQ_FLAG_EVENTFD, IrqInfo, PeerFd, REGION_FLAG_MMAP, REGION_FLAG_READ, REGION_FLAG_WRITE,
    RegionInfo, SparseArea,
};

use crate::{
    errno,
    sink::{EventFdOwner, EventFdSink, EventFds},
};

const _: () = assert!(waiting::REGION == region::COUNT && waiting::IRQ == INDICES);

/// Returns whether a client of the function can be woken. It has the mirror, whose writer the
/// machine is, and a barrier of the client's reaches this process.
pub(crate) fn is_offered(machine: &Machine, function: FunctionId) -> bool {
    let has_mirror = machine.spec(function).is_some_and(|spec| spec.rings.is_some());
    has_mirror && is_reached()
}

/// Returns whether barriers of clients reach this process. The first call can take seconds on a
/// busy host, so it comes before there are clients.
pub(crate) fn is_reached() -> bool {
    static IS_REACHED: OnceLock<bool> = OnceLock::new();
    *IS_REACHED.get_or_init(|| register_membarrier().unwrap_or(false))
}

/// Describes the interrupt that wakes the client.
pub(crate) fn irq_info() -> IrqInfo {
    IrqInfo { flags: IRQ_FLAG_EVENTFD, count: 1 }
}

/// The waiting page of one client, once it has asked for it.
#[derive(Default)]
pub(crate) struct WaitingPage(Option<SharedMemory>);

impl WaitingPage {
    /// Describes the page, and makes it at the first call.
    pub(crate) fn region_info(&mut self) -> Result<RegionInfo, Errno> {
        let page = match &mut self.0 {
            Some(page) => page,
            none => none.insert(make_page().map_err(|error| errno::of_memory(&error))?),
        };

        let fd = page.fd().ok_or(Errno::ENOTSUP)?.try_clone_to_owned()?;
        Ok(RegionInfo {
            flags: REGION_FLAG_READ | REGION_FLAG_WRITE | REGION_FLAG_MMAP,
            size: waiting::SIZE,
            areas: vec![SparseArea { offset: 0, size: waiting::SIZE }],
            fd: Some(fd),
            ..RegionInfo::default()
        })
    }

    /// Binds the eventfd that wakes the client, or unbinds it if the list has no descriptor.
    ///
    /// # Errors
    /// `EINVAL` without the page, or for anything but one eventfd.
    pub(crate) fn bind(
        &self,
        machine: &mut Machine,
        (function, attachment): (FunctionId, AttachmentId),
        fds: Vec<Option<PeerFd>>,
        owner: &Arc<EventFdOwner>,
        eventfds: &Arc<EventFds>,
    ) -> Result<(), Errno> {
        let page = self.0.as_ref().ok_or(Errno::EINVAL)?;
        if fds.len() > 1 {
            return Err(Errno::EINVAL);
        }

        let waker = match fds.into_iter().next().flatten() {
            Some(fd) => Some(ClientWaker {
                word: page.u32(waiting::WAITING).map_err(|error| errno::of_memory(&error))?,
                sink: EventFdSink::bind(fd, owner, eventfds)? as Arc<dyn InterruptSink>,
            }),
            None => None,
        };
        machine.set_client_waker(function, attachment, waker).map_err(|error| errno::of_machine(&error))
    }
}

/// Makes a page that holds the magic word.
fn make_page() -> Result<SharedMemory, nicforge_shm::MemoryError> {
    let page = SharedMemory::create("nicforge-waiting", waiting::SIZE as usize)?;
    page.u32(waiting::MAGIC)?.store(waiting::MAGIC_VALUE, Ordering::Release);
    Ok(page)
}
