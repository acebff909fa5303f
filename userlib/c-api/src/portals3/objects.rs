//! The objects that C names by handles.

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr::with_exposed_provenance_mut,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use nicforge_driver::Device;
use nicforge_portals::{Error, Event, EventQueue, MatchEntry, MemoryDescriptor, ProcessId, Unlink};

use super::{
    failure::{failure, refused},
    interface::NetworkInterface,
    table::{Kind, Table},
    types::{
        PTL_EQ_INVALID, PTL_EQ_NONE, PTL_HANDLE_INVALID, PTL_MD_INVALID, PTL_ME_INVALID, PTL_NI_INVALID,
        PTL_NO_SPACE, ptl_handle_any_t, ptl_handle_eq_t, ptl_handle_md_t, ptl_handle_me_t, ptl_handle_ni_t,
        ptl_md_t,
    },
};
use crate::support::Failure;

/// The values of a [`ptl_md_t`], the standard's memory descriptor, with addresses in place of
/// pointers.
#[derive(Clone, Copy, Debug)]
pub(super) struct DescriptorValues {
    pub(super) start: usize,
    pub(super) length: u64,
    pub(super) threshold: c_int,
    pub(super) max_size: u64,
    pub(super) options: c_uint,
    user_ptr: usize,
    pub(super) queue: ptl_handle_eq_t,
}

impl DescriptorValues {
    /// The values of an event whose descriptor's values are not known any more.
    pub(super) const UNKNOWN: Self =
        Self { start: 0, length: 0, threshold: 0, max_size: 0, options: 0, user_ptr: 0, queue: PTL_EQ_NONE };
}

impl From<ptl_md_t> for DescriptorValues {
    fn from(md: ptl_md_t) -> Self {
        Self {
            start: md.start.expose_provenance(),
            length: md.length,
            threshold: md.threshold,
            max_size: md.max_size,
            options: md.options,
            user_ptr: md.user_ptr.expose_provenance(),
            queue: md.eq_handle,
        }
    }
}

impl From<DescriptorValues> for ptl_md_t {
    fn from(values: DescriptorValues) -> Self {
        let pointer = |address: usize| -> *mut c_void { with_exposed_provenance_mut(address) };
        Self {
            start: pointer(values.start),
            length: values.length,
            threshold: values.threshold,
            max_size: values.max_size,
            options: values.options,
            user_ptr: pointer(values.user_ptr),
            eq_handle: values.queue,
        }
    }
}

/// Number of times that a call tries to read an event while the card overwrites events in the
/// queue.
const MAX_READS: usize = 4;

/// An event queue.
pub(super) struct Queue {
    pub(super) interface: ptl_handle_ni_t,
    pub(super) events: EventQueue,
    /// The process that the queue belongs to, and the device of that process.
    pub(super) owner: ProcessId,
    pub(super) device: Device,
    /// Whether the queue's handle has become invalid. Threads that wait for an event check it.
    is_closed: AtomicBool,
    /// Whether events were lost since the last event that was taken. The next one will report it.
    has_lost: AtomicBool,
}

/// An event that was taken from a queue.
pub(super) struct TakenEvent {
    pub(super) event: Event,
    /// Whether events before it were lost.
    pub(super) follows_loss: bool,
}

impl Queue {
    /// Returns an open queue.
    pub(super) fn new(
        interface: ptl_handle_ni_t,
        events: EventQueue,
        owner: ProcessId,
        device: Device,
    ) -> Self {
        let (is_closed, has_lost) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { interface, events, owner, device, is_closed, has_lost }
    }

    /// Ends the waits of other threads.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Takes the next event, if there is one.
    pub(super) fn take(&self) -> Result<Option<TakenEvent>, Failure> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(no_queue());
        }

        // The card may overwrite unread events more than once during this call.
        for _ in 0..MAX_READS {
            match self.events.get() {
                Ok(Some(event)) => {
                    // Usually no event was lost, and a load is cheaper than a swap.
                    let follows_loss =
                        self.has_lost.load(Ordering::Relaxed) && self.has_lost.swap(false, Ordering::Relaxed);
                    return Ok(Some(TakenEvent { event, follows_loss }));
                }
                Ok(None) => break,
                Err(Error::EventsLost { .. }) => self.has_lost.store(true, Ordering::Relaxed),
                Err(error) => return Err(failure(error)),
            }
        }
        Ok(None)
    }
}

/// The record of a match entry.
pub(super) struct EntryRecord {
    pub(super) interface: ptl_handle_ni_t,
    /// The library's match entry. It is `None` while the call that creates it is in progress.
    pub(super) created: Option<MatchEntry>,
    /// Whether the entry is unlinked with its descriptor.
    pub(super) unlink: Unlink,
    pub(super) descriptor: Option<ptl_handle_md_t>,
}

/// The record of a memory descriptor. The descriptor's events carry its handle, by which they find
/// the record.
pub(super) struct DescriptorRecord {
    pub(super) interface: ptl_handle_ni_t,
    pub(super) values: DescriptorValues,
    pub(super) unlink: Unlink,
    pub(super) entry: Option<ptl_handle_me_t>,
    /// The library's descriptor. It is `None` while the call that creates it is in progress, and
    /// after the handle was retired.
    pub(super) created: Option<MemoryDescriptor>,
}

/// All objects.
pub(super) struct Objects {
    interfaces: Table<Arc<NetworkInterface>>,
    queues: Table<Arc<Queue>>,
    pub(super) entries: Table<EntryRecord>,
    pub(super) descriptors: Table<DescriptorRecord>,
}

/// Removed queues and interfaces. Their drop waits for the card, so the caller drops them after it
/// has released the lock of the objects.
pub(super) struct Removed {
    _queues: Vec<Arc<Queue>>,
    _interfaces: Vec<Arc<NetworkInterface>>,
}

impl Objects {
    /// Returns tables without objects.
    pub(super) fn new() -> Self {
        Self {
            interfaces: Table::new(Kind::Interface),
            queues: Table::new(Kind::Queue),
            entries: Table::new(Kind::Entry),
            descriptors: Table::new(Kind::Descriptor),
        }
    }

    /// Returns the numbers of the processes that have an interface.
    pub(super) fn processes(&self) -> Vec<u16> {
        self.interfaces.iter().map(|interface| interface.portals().id().process).collect()
    }

    // The following four add an object and return its handle.
    pub(super) fn add_interface(&mut self, interface: NetworkInterface) -> Result<ptl_handle_ni_t, Failure> {
        self.interfaces.insert(Arc::new(interface)).ok_or_else(no_room)
    }

    pub(super) fn add_queue(&mut self, queue: Queue) -> Result<ptl_handle_eq_t, Failure> {
        self.interface(queue.interface)?;
        self.queues.insert(Arc::new(queue)).ok_or_else(no_room)
    }

    pub(super) fn add_entry(&mut self, entry: EntryRecord) -> Result<ptl_handle_me_t, Failure> {
        self.interface(entry.interface)?;
        self.entries.insert(entry).ok_or_else(no_room)
    }

    pub(super) fn add_descriptor(
        &mut self,
        descriptor: DescriptorRecord,
    ) -> Result<ptl_handle_md_t, Failure> {
        self.interface(descriptor.interface)?;
        self.descriptors.insert(descriptor).ok_or_else(no_room)
    }

    /// Returns the interface of a handle, or `PTL_NI_INVALID`.
    pub(super) fn interface(&self, handle: ptl_handle_ni_t) -> Result<Arc<NetworkInterface>, Failure> {
        let invalid = || refused(PTL_NI_INVALID, "there is no such network interface");
        self.interfaces.find(handle).cloned().ok_or_else(invalid)
    }

    /// Returns the event queue of a handle, or `PTL_EQ_INVALID`.
    pub(super) fn queue(&self, handle: ptl_handle_eq_t) -> Result<Arc<Queue>, Failure> {
        self.queues.find(handle).cloned().ok_or_else(no_queue)
    }

    /// Returns the match entry of a handle and its record, or `PTL_ME_INVALID`.
    pub(super) fn entry(&self, handle: ptl_handle_me_t) -> Result<(MatchEntry, &EntryRecord), Failure> {
        let found = self.entries.find(handle).and_then(|entry| Some((entry.created?, entry)));
        found.ok_or_else(|| refused(PTL_ME_INVALID, "there is no such match entry"))
    }

    /// Returns the match entry of a handle, and the handle and the object of the entry's interface.
    pub(super) fn entry_with_interface(
        &self,
        handle: ptl_handle_me_t,
    ) -> Result<(MatchEntry, ptl_handle_ni_t, Arc<NetworkInterface>), Failure> {
        let (created, entry) = self.entry(handle)?;
        Ok((created, entry.interface, self.interface(entry.interface)?))
    }

    /// Returns the memory descriptor of a handle and its record, or `PTL_MD_INVALID`.
    pub(super) fn descriptor(
        &self,
        handle: ptl_handle_md_t,
    ) -> Result<(&MemoryDescriptor, &DescriptorRecord), Failure> {
        let found = self.descriptors.find(handle).and_then(|record| Some((record.created.as_ref()?, record)));
        found.ok_or_else(|| refused(PTL_MD_INVALID, "there is no such memory descriptor"))
    }

    /// Returns the interface that an object of any kind belongs to, or `PTL_HANDLE_INVALID`.
    pub(super) fn interface_of(&self, handle: ptl_handle_any_t) -> Result<ptl_handle_ni_t, Failure> {
        let found = match Kind::of(handle) {
            Kind::Interface => self.interfaces.find(handle).map(|_| handle),
            Kind::Queue => self.queues.find(handle).map(|queue| queue.interface),
            Kind::Entry => self.entries.find(handle).map(|entry| entry.interface),
            Kind::Descriptor => self.descriptors.find(handle).map(|descriptor| descriptor.interface),
        };
        found.ok_or_else(|| refused(PTL_HANDLE_INVALID, "the handle names no object"))
    }

    /// Makes the handle of a descriptor invalid, and that of its entry if the entry is unlinked
    /// with it. The descriptor's record stays for a while, so that events which are still in a
    /// queue find the descriptor's values.
    pub(super) fn retire_descriptor(&mut self, handle: ptl_handle_md_t) {
        let Some(descriptor) = self.descriptors.retire(handle) else { return };
        descriptor.created = None;

        let Some(entry_handle) = descriptor.entry else { return };
        match self.entries.find_mut(entry_handle) {
            Some(entry) if entry.unlink == Unlink::Retain => {
                // The program may have attached another descriptor before it read the event that
                // this one was unlinked.
                if entry.descriptor == Some(handle) {
                    entry.descriptor = None;
                }
            }
            _ => drop(self.entries.remove(entry_handle)),
        }
    }

    /// Makes the handles of an entry and of its descriptor invalid.
    pub(super) fn remove_entry(&mut self, handle: ptl_handle_me_t) {
        if let Some(EntryRecord { descriptor: Some(descriptor), .. }) = self.entries.remove(handle) {
            self.retire_descriptor(descriptor);
        }
    }

    /// Removes an event queue and returns it, or `PTL_EQ_INVALID`.
    pub(super) fn remove_queue(&mut self, handle: ptl_handle_eq_t) -> Result<Arc<Queue>, Failure> {
        let queue = self.queues.remove(handle).ok_or_else(no_queue)?;
        queue.close();
        Ok(queue)
    }

    /// Removes an interface with all its objects, or returns `PTL_NI_INVALID`.
    pub(super) fn remove_interface(&mut self, handle: ptl_handle_ni_t) -> Result<Removed, Failure> {
        let interface = self.interface(handle)?;
        self.interfaces.remove(handle);
        self.entries.remove_all(|entry| entry.interface == handle);
        self.descriptors.remove_all(|descriptor| descriptor.interface == handle);

        let queues = self.queues.remove_all(|queue| queue.interface == handle);
        queues.iter().for_each(|queue| queue.close());
        Ok(Removed { _queues: queues, _interfaces: vec![interface] })
    }

    /// Removes all objects.
    pub(super) fn remove_all(&mut self) -> Removed {
        self.entries.remove_all(|_| true);
        self.descriptors.remove_all(|_| true);
        let queues = self.queues.remove_all(|_| true);
        queues.iter().for_each(|queue| queue.close());
        Removed { _queues: queues, _interfaces: self.interfaces.remove_all(|_| true) }
    }
}

/// Returns the failure of a call when no handle is free.
fn no_room() -> Failure {
    refused(PTL_NO_SPACE, "the table of handles is full: unlink what is not used")
}

/// Returns the failure of a call whose handle names no event queue.
fn no_queue() -> Failure {
    refused(PTL_EQ_INVALID, "there is no such event queue")
}
