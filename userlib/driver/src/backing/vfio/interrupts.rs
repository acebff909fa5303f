//! Interrupts through the kernel, with one eventfd for each vector.
//!
//! A function uses one kind of interrupt at a time. The kernel sets up vectors when the first one
//! of a kind is bound, and older kernels cannot add vectors later. So the first binding asks for
//! all of them, without eventfds, and each vector gets its eventfd when it is bound.
//!
//! A vector without an eventfd is masked in the function. MSI-X vectors are masked in this way: the
//! function keeps their pending bits, and fires when they get their eventfds back.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex},
};

use nicforge_shm::Uninherited;
use nix::{errno::Errno, sys::eventfd::EventFd};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_AUTOMASKED, VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_MASKABLE, VFIO_IRQ_SET_ACTION_MASK,
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_ACTION_UNMASK,
};

use super::{super::event_source::eventfd, sys};
use crate::{Error, IRQ_INTX, IRQ_MSIX, IrqInfo, device::lock};

/// The bound vectors of the kind in use.
#[derive(Default)]
struct Bound {
    /// VFIO index of the kind in use, if one is.
    index: Option<u32>,
    /// The number of vectors that the kernel has set up.
    enabled: u32,
    /// The eventfd of each bound vector.
    events: BTreeMap<u32, Arc<EventFd>>,
}

/// Whether vectors are masked or unmasked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Masking {
    Mask,
    Unmask,
}

/// The interrupts of one device.
pub(super) struct Interrupts {
    device: Arc<Uninherited<OwnedFd>>,
    bound: Mutex<Bound>,
}

impl Interrupts {
    /// Makes the interrupts of a device, none of them bound.
    pub(super) fn new(device: Arc<Uninherited<OwnedFd>>) -> Self {
        Self { device, bound: Mutex::default() }
    }

    /// Returns the device's descriptor.
    fn fd(&self) -> BorrowedFd<'_> {
        (**self.device).as_fd()
    }

    /// Describes the interrupts of an index. A device without the index has none of them.
    pub(super) fn info(&self, index: u32) -> Result<IrqInfo, Errno> {
        let found = match sys::irq_info(self.fd(), index) {
            // The device does not have this index.
            Err(Errno::EINVAL) => return Ok(IrqInfo::default()),
            found => found?,
        };

        let has = |flag| found.flags & flag != 0;
        Ok(IrqInfo {
            count: if has(VFIO_IRQ_INFO_EVENTFD) { found.count } else { 0 },
            maskable: has(VFIO_IRQ_INFO_MASKABLE) || index == IRQ_MSIX,
            automasked: has(VFIO_IRQ_INFO_AUTOMASKED),
        })
    }

    /// Has the kernel set up `count` vectors, without eventfds. If it cannot have so many, sets up
    /// as many as it can, if `vector` is among them. Returns the number of vectors.
    fn enable(&self, index: u32, vector: u32, count: u32) -> Result<u32, Errno> {
        let no_eventfds = |count: u32| vec![None; count as usize];
        let action = VFIO_IRQ_SET_ACTION_TRIGGER;

        let fewer = match sys::bind_irqs(self.fd(), index, 0, &no_eventfds(count), action) {
            Ok(0) => return Ok(count),
            Ok(fewer) => fewer as u32,
            // The kernel does not say how many it can have: enough for `vector` may do.
            Err(Errno::ENOSPC) => vector + 1,
            Err(errno) => return Err(errno),
        };

        if vector >= fewer {
            return Err(Errno::ENOSPC);
        }

        match sys::bind_irqs(self.fd(), index, 0, &no_eventfds(fewer), action)? {
            0 => Ok(fewer),
            _ => Err(Errno::ENOSPC),
        }
    }

    /// Binds a vector to a new eventfd.
    pub(super) fn bind(&self, index: u32, vector: u32) -> Result<Arc<EventFd>, Error> {
        let operation = "binding an interrupt";
        let event = Arc::new(eventfd()?);
        let mut bound = lock(&self.bound);

        let action = VFIO_IRQ_SET_ACTION_TRIGGER;
        let bind = |fds: &[_]| sys::bind_irqs(self.fd(), index, vector, fds, action);

        match bound.index {
            Some(other) if other != index => {
                return Err(Error::Unsupported {
                    what: "interrupts of two kinds at once through the kernel: drop the others first",
                });
            }
            // The kernel sets INTx up with its only vector.
            None if index == IRQ_INTX => (),
            None => {
                let count = self.info(index).map_err(|errno| Error::system(operation, errno))?.count;
                bound.enabled =
                    self.enable(index, vector, count).map_err(|errno| Error::system(operation, errno))?;
                bound.index = Some(index);
            }
            Some(_) if index != IRQ_INTX && vector >= bound.enabled => {
                return Err(Error::system(operation, Errno::ENOSPC));
            }
            Some(_) => (),
        }

        if let Err(errno) = bind(&[Some(event.as_fd())]) {
            if bound.events.is_empty() && bound.index.is_some() {
                // No vector of this kind is bound. Its vectors are taken down, so that another kind
                // can be used. An error of that is not the one to report.
                let _ = self.disable(&mut bound, index);
            }
            return Err(Error::system(operation, errno));
        }

        bound.index = Some(index);
        bound.events.insert(vector, event.clone());
        Ok(event)
    }

    /// Unbinds all vectors of an index.
    pub(super) fn unbind(&self, index: u32) -> Result<(), Errno> {
        let mut bound = lock(&self.bound);
        if bound.index != Some(index) {
            return Ok(());
        }

        self.disable(&mut bound, index)
    }

    /// Takes all vectors of an index down.
    fn disable(&self, bound: &mut Bound, index: u32) -> Result<(), Errno> {
        sys::act_on_irqs(self.fd(), index, 0, 0, VFIO_IRQ_SET_ACTION_TRIGGER)?;
        *bound = Bound::default();
        Ok(())
    }

    /// Masks or unmasks `count` vectors from `start` on.
    pub(super) fn set_masking(
        &self,
        index: u32,
        start: u32,
        count: u32,
        masking: Masking,
    ) -> Result<(), Errno> {
        let is_masked = masking == Masking::Mask;
        if index != IRQ_MSIX {
            let action = if is_masked { VFIO_IRQ_SET_ACTION_MASK } else { VFIO_IRQ_SET_ACTION_UNMASK };
            return sys::act_on_irqs(self.fd(), index, start, count, action);
        }

        let bound = lock(&self.bound);
        if bound.index != Some(index) || start.checked_add(count).is_none_or(|end| end > bound.enabled) {
            return Err(Errno::EINVAL);
        }

        // An MSI-X vector is masked by taking its eventfd away.
        let fds: Vec<_> = (start..start + count)
            .map(|vector| bound.events.get(&vector).filter(|_| !is_masked).map(|event| event.as_fd()))
            .collect();

        sys::bind_irqs(self.fd(), index, start, &fds, VFIO_IRQ_SET_ACTION_TRIGGER).map(drop)
    }

    /// Binds the one vector of an index that reports on the device itself: an error, or a request
    /// to release it. Returns `false` when the device has no such vector.
    pub(super) fn bind_device_event(&self, index: u32, event: &EventFd) -> Result<bool, Errno> {
        if self.info(index)?.count == 0 {
            return Ok(false);
        }

        sys::bind_irqs(self.fd(), index, 0, &[Some(event.as_fd())], VFIO_IRQ_SET_ACTION_TRIGGER)?;
        Ok(true)
    }
}
