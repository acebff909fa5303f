//! Memory descriptors.
//!
//! UNSAFETY: as in the module above.

use std::{ffi::c_int, sync::Arc};

use nicforge_portals::{
    Descriptor, Error, EventQueue, MatchEntry, MemoryDescriptor, Options, Position, Refusal, Region,
    Threshold, Unlink,
};

use super::{criteria_of, entries::is_gone, out_pointer, position_of, unlink_of};
use crate::{
    portals3::{
        failure::{failure, guarded, refused},
        interface::NetworkInterface,
        library::with_objects,
        objects::{DescriptorRecord, DescriptorValues, EntryRecord, Queue},
        types::{
            PTL_EQ_INVALID, PTL_EQ_NONE, PTL_MD_ACK_DISABLE, PTL_MD_EVENT_END_DISABLE,
            PTL_MD_EVENT_START_DISABLE, PTL_MD_ILLEGAL, PTL_MD_MANAGE_REMOTE, PTL_MD_MAX_SIZE,
            PTL_MD_NO_UPDATE, PTL_MD_OP_GET, PTL_MD_OP_PUT, PTL_MD_THRESH_INF, PTL_MD_TRUNCATE,
            PTL_ME_INVALID, PTL_OK, ptl_handle_eq_t, ptl_handle_md_t, ptl_handle_me_t, ptl_handle_ni_t,
            ptl_ins_pos_t, ptl_match_bits_t, ptl_md_t, ptl_process_id_t, ptl_unlink_t,
        },
    },
    support::Failure,
};

/// The standard's options, and those of the library with the same meaning.
const OPTIONS: [(u32, Options); 7] = [
    (PTL_MD_OP_PUT, Options::PUT),
    (PTL_MD_OP_GET, Options::GET),
    (PTL_MD_MANAGE_REMOTE, Options::MANAGE_REMOTE),
    (PTL_MD_TRUNCATE, Options::TRUNCATE),
    (PTL_MD_ACK_DISABLE, Options::ACK_DISABLE),
    (PTL_MD_EVENT_START_DISABLE, Options::START_DISABLE),
    (PTL_MD_EVENT_END_DISABLE, Options::END_DISABLE),
];

/// The checked values of a descriptor, and what they refer to.
struct PreparedDescriptor<'a> {
    ni_handle: ptl_handle_ni_t,
    interface: &'a NetworkInterface,
    values: DescriptorValues,
    region: Region,
    offset: u64,
    options: Options,
    threshold: Threshold,
    unlink: Unlink,
    queue: Option<Arc<Queue>>,
}

impl<'a> PreparedDescriptor<'a> {
    /// Checks the values of a descriptor, and finds its event queue and its memory.
    fn new(
        ni_handle: ptl_handle_ni_t,
        interface: &'a NetworkInterface,
        values: DescriptorValues,
        unlink: Unlink,
    ) -> Result<Self, Failure> {
        let queue = match values.queue {
            PTL_EQ_NONE => None,
            handle => Some(with_objects(|objects| objects.queue(handle))?),
        };
        if queue.as_ref().is_some_and(|queue| queue.interface != ni_handle) {
            return Err(illegal("its event queue belongs to another interface"));
        }

        let threshold = match (values.threshold, u32::try_from(values.threshold)) {
            (PTL_MD_THRESH_INF, _) => Threshold::Infinite,
            (_, Ok(count)) => Threshold::Operations(count),
            _ => return Err(illegal("its threshold is negative")),
        };

        let options = options(values.options)?;
        let Some((region, offset)) = interface.locate(values.start, values.length)? else {
            return Err(illegal("its memory is not from nicforge_portals_allocate of this interface"));
        };
        // Handles of descriptors that were unlinked automatically are retired first, so that the
        // new descriptor can take their room.
        interface.retire_unlinked()?;
        Ok(Self { ni_handle, interface, values, region, offset, options, threshold, unlink, queue })
    }

    /// Returns the descriptor for the Portals library. Its events carry `handle`.
    fn to_library(&self, handle: ptl_handle_md_t) -> Descriptor<'_> {
        let DescriptorValues { length, max_size, .. } = self.values;
        let unlink_queue = self.needed_unlink_queue();
        // The unlink queue gets no events but that of the unlink.
        let no_events = Options::START_DISABLE | Options::END_DISABLE;

        Descriptor {
            region: &self.region,
            offset: self.offset,
            length,
            threshold: self.threshold,
            max_size: (self.values.options & PTL_MD_MAX_SIZE != 0).then_some(max_size),
            options: if unlink_queue.is_some() { self.options | no_events } else { self.options },
            unlink: self.unlink,
            user_pointer: handle.into(),
            queue: self.queue.as_ref().map(|queue| &queue.events).or(unlink_queue),
        }
    }

    /// Returns the queue whose events report that the descriptor was unlinked automatically, if the
    /// program has given it no queue.
    fn needed_unlink_queue(&self) -> Option<&EventQueue> {
        let is_needed = self.queue.is_none() && self.unlink == Unlink::Automatic;
        if is_needed { self.interface.unlink_queue() } else { None }
    }

    /// Adds a record of the descriptor to the objects, and returns its handle, by which events find
    /// the record.
    fn add_record(&self, entry: Option<ptl_handle_me_t>) -> Result<ptl_handle_md_t, Failure> {
        let Self { ni_handle: interface, values, unlink, .. } = *self;
        with_objects(|objects| {
            objects.add_descriptor(DescriptorRecord { interface, values, unlink, entry, created: None })
        })
    }

    /// Completes the record by the descriptor that a call has created, or removes it if the call
    /// has failed. Returns the handle or the failure. An event may have retired the record already.
    fn complete_record(
        handle: ptl_handle_md_t,
        created: Result<MemoryDescriptor, Error>,
    ) -> Result<ptl_handle_md_t, Failure> {
        with_objects(|objects| {
            let Ok(created) = &created else {
                objects.descriptors.remove(handle);
                return Ok(());
            };
            let Some(record) = objects.descriptors.find_mut(handle) else { return Ok(()) };
            record.created = Some(created.clone());

            let entry = record.entry.and_then(|entry| objects.entries.find_mut(entry));
            if let Some(entry) = entry {
                entry.descriptor = Some(handle);
            }
            Ok(())
        })?;
        created.map(|_| handle).map_err(failure)
    }
}

/// Returns the failure of a call with an invalid descriptor.
fn illegal(text: &str) -> Failure {
    refused(PTL_MD_ILLEGAL, format!("the descriptor: {text}"))
}

/// Returns the library's options for those of a descriptor.
fn options(given: u32) -> Result<Options, Failure> {
    let known = OPTIONS.iter().fold(PTL_MD_MAX_SIZE, |all, (bit, _)| all | bit);
    if given & !known != 0 {
        return Err(illegal(&format!("its options have bits {:#x}, which are not known", given & !known)));
    }
    let given_options = OPTIONS.iter().filter(|(bit, _)| given & bit != 0);
    Ok(given_options.fold(Options::empty(), |all, (_, option)| all | *option))
}

/// Adds a descriptor to a match entry. With PTL_UNLINK it is removed when it is inactive and its
/// last operation has ended.
///
/// Returns PTL_OK, PTL_NO_INIT, PTL_ME_INVALID, PTL_ME_IN_USE when the entry has a descriptor,
/// PTL_MD_ILLEGAL, PTL_EQ_INVALID, PTL_NO_SPACE, PTL_SEGV, or PTL_FAIL. PTL_MD_ILLEGAL is also the
/// result for memory that is not from nicforge_portals_allocate.
///
/// # Safety
/// `md_handle` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlMDAttach(
    me_handle: ptl_handle_me_t,
    md: ptl_md_t,
    unlink_op: ptl_unlink_t,
    md_handle: *mut ptl_handle_md_t,
) -> c_int {
    guarded(|| {
        let (entry, ni_handle, interface) = with_objects(|objects| objects.entry_with_interface(me_handle))?;
        let out = out_pointer(md_handle, "md_handle")?;
        let unlink = unlink_of("unlink_op", unlink_op)?;
        let prepared = PreparedDescriptor::new(ni_handle, &interface, md.into(), unlink)?;

        let handle = prepared.add_record(Some(me_handle))?;
        let created = interface.portals().attach_descriptor(entry, &prepared.to_library(handle));
        let handle = PreparedDescriptor::complete_record(handle, created)?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(handle) };
        Ok(PTL_OK)
    })
}

/// Makes a descriptor for puts and gets of this process. With PTL_UNLINK it is removed when it is
/// inactive and its last operation has ended.
///
/// Returns PTL_OK, PTL_NO_INIT, PTL_NI_INVALID, PTL_MD_ILLEGAL as PtlMDAttach, PTL_EQ_INVALID,
/// PTL_NO_SPACE, PTL_SEGV, or PTL_FAIL.
///
/// # Safety
/// `md_handle` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlMDBind(
    ni_handle: ptl_handle_ni_t,
    md: ptl_md_t,
    unlink_op: ptl_unlink_t,
    md_handle: *mut ptl_handle_md_t,
) -> c_int {
    guarded(|| {
        let interface = with_objects(|objects| objects.interface(ni_handle))?;
        let out = out_pointer(md_handle, "md_handle")?;
        let unlink = unlink_of("unlink_op", unlink_op)?;
        let prepared = PreparedDescriptor::new(ni_handle, &interface, md.into(), unlink)?;

        let handle = prepared.add_record(None)?;
        let created = interface.portals().bind_descriptor(&prepared.to_library(handle));
        let handle = PreparedDescriptor::complete_record(handle, created)?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(handle) };
        Ok(PTL_OK)
    })
}

/// Removes a descriptor, and its match entry if that has PTL_UNLINK. Gets without a reply end
/// without an event.
///
/// Returns PTL_OK, PTL_NO_INIT, PTL_MD_INVALID, PTL_MD_IN_USE while it has operations in progress,
/// or PTL_FAIL.
#[unsafe(no_mangle)]
pub extern "C" fn PtlMDUnlink(md_handle: ptl_handle_md_t) -> c_int {
    guarded(|| {
        let (created, interface) = with_objects(|objects| {
            let (created, record) = objects.descriptor(md_handle)?;
            Ok((created.clone(), objects.interface(record.interface)?))
        })?;

        let unlinked = interface.portals().unlink_descriptor(&created);
        if is_gone(&unlinked, Refusal::Descriptor) {
            with_objects(|objects| {
                objects.retire_descriptor(md_handle);
                Ok(())
            })?;
        }
        unlinked.map(|()| PTL_OK).map_err(failure)
    })
}

/// Replaces the values of a descriptor if the event queue `eq_handle` is empty and no operation in
/// progress will write an event there, or always for PTL_EQ_NONE. `*old_md` gets the values as the
/// program has set them: its threshold does not count down. Either pointer may be NULL; without
/// `new_md` nothing is changed.
///
/// Returns PTL_OK, PTL_NO_INIT, PTL_MD_INVALID, PTL_MD_ILLEGAL as PtlMDAttach, PTL_EQ_INVALID,
/// PTL_MD_NO_UPDATE when the queue is not empty or the descriptor has operations in progress, or
/// PTL_FAIL.
///
/// # Safety
/// `old_md` and `new_md` are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlMDUpdate(
    md_handle: ptl_handle_md_t,
    old_md: *mut ptl_md_t,
    new_md: *const ptl_md_t,
    eq_handle: ptl_handle_eq_t,
) -> c_int {
    guarded(|| {
        let (mut created, old, unlink, ni_handle, interface) = with_objects(|objects| {
            let (created, record) = objects.descriptor(md_handle)?;
            let interface = objects.interface(record.interface)?;
            Ok((created.clone(), record.values, record.unlink, record.interface, interface))
        })?;
        // SAFETY: NULL or valid by this function's contract.
        let new = unsafe { new_md.as_ref() }.map(|md| DescriptorValues::from(*md));
        if let Ok(out) = out_pointer(old_md, "old_md") {
            // SAFETY: not NULL, and valid by this function's contract.
            unsafe { out.write(old.into()) };
        }

        let Some(values) = new else { return Ok(PTL_OK) };
        let tested = tested_queue(ni_handle, eq_handle)?;
        let prepared = PreparedDescriptor::new(ni_handle, &interface, values, unlink)?;
        let (values, tested) = (prepared.to_library(md_handle), tested.as_ref().map(|queue| &queue.events));
        if !interface.portals().update_descriptor(&mut created, &values, tested).map_err(failure)? {
            return Ok(PTL_MD_NO_UPDATE);
        }

        with_objects(|objects| {
            if let Some(record) = objects.descriptors.find_mut(md_handle) {
                (record.created, record.values) = (Some(created), prepared.values);
            }
            Ok(PTL_OK)
        })
    })
}

/// Returns the queue that must be empty for a call to take effect. It must belong to the interface.
fn tested_queue(ni_handle: ptl_handle_ni_t, handle: ptl_handle_eq_t) -> Result<Option<Arc<Queue>>, Failure> {
    if handle == PTL_EQ_NONE {
        return Ok(None);
    }
    let queue = with_objects(|objects| objects.queue(handle))?;
    if queue.interface != ni_handle {
        return Err(refused(PTL_EQ_INVALID, "the tested event queue belongs to another interface"));
    }
    Ok(Some(queue))
}

/// Adds a match entry beside the entry `base`, and its descriptor, if the event queue `eq_handle`
/// is empty and no operation in progress will write an event there. `eq_handle` may be PTL_EQ_NONE.
///
/// The call is PtlMEInsert, PtlMDAttach and PtlMDUpdate in one command of the card, as
/// R. Brightwell and others describe it. The Cray XT has it as PtlMEMDPost.
///
/// Returns PTL_OK, PTL_NO_INIT, PTL_NI_INVALID, PTL_ME_INVALID, PTL_PROCESS_INVALID, PTL_MD_ILLEGAL
/// as PtlMDAttach, PTL_EQ_INVALID, PTL_MD_NO_UPDATE when the queue is not empty, PTL_NO_SPACE,
/// PTL_SEGV, or PTL_FAIL.
///
/// # Safety
/// `me_handle` and `md_handle` are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlPost(
    ni_handle: ptl_handle_ni_t,
    base: ptl_handle_me_t,
    match_id: ptl_process_id_t,
    match_bits: ptl_match_bits_t,
    ignore_bits: ptl_match_bits_t,
    unlink: ptl_unlink_t,
    position: ptl_ins_pos_t,
    md: ptl_md_t,
    unlink_op: ptl_unlink_t,
    me_handle: *mut ptl_handle_me_t,
    md_handle: *mut ptl_handle_md_t,
    eq_handle: ptl_handle_eq_t,
) -> c_int {
    guarded(|| {
        let (interface, base) = with_objects(|objects| {
            let interface = objects.interface(ni_handle)?;
            match objects.entry(base)? {
                (created, entry) if entry.interface == ni_handle => Ok((interface, created)),
                _ => Err(refused(PTL_ME_INVALID, "the base belongs to another interface")),
            }
        })?;
        let (entry_out, descriptor_out) =
            (out_pointer(me_handle, "me_handle")?, out_pointer(md_handle, "md_handle")?);

        let position = position_of(position, base, Position::Before, Position::After)?;
        let criteria = criteria_of(&interface, match_id, match_bits, ignore_bits)?;
        let (unlink, unlink_op) = (unlink_of("unlink", unlink)?, unlink_of("unlink_op", unlink_op)?);
        let tested = tested_queue(ni_handle, eq_handle)?;
        let prepared = PreparedDescriptor::new(ni_handle, &interface, md.into(), unlink_op)?;

        let entry = EntryRecord { interface: ni_handle, created: None, unlink, descriptor: None };
        let entry = with_objects(|objects| objects.add_entry(entry))?;
        let posted = post(&prepared, entry, |descriptor| {
            let tested = tested.as_ref().map(|queue| &queue.events);
            interface.portals().post(position, criteria, unlink, descriptor, tested).map_err(failure)
        });
        let posted = posted.inspect_err(|_| drop(remove_entry(entry)))?;

        let Some(descriptor) = posted else {
            remove_entry(entry)?;
            return Ok(PTL_MD_NO_UPDATE);
        };
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { entry_out.write(entry) };
        // SAFETY: as above.
        unsafe { descriptor_out.write(descriptor) };
        Ok(PTL_OK)
    })
}

/// Makes the handle of a match entry invalid, because the card has not accepted the entry.
fn remove_entry(entry: ptl_handle_me_t) -> Result<(), Failure> {
    with_objects(|objects| {
        objects.remove_entry(entry);
        Ok(())
    })
}

/// Posts a descriptor by `call`, with its entry, whose record is `entry`. Returns the descriptor's
/// handle, or `None` when the tested queue is not empty.
fn post(
    prepared: &PreparedDescriptor<'_>,
    entry: ptl_handle_me_t,
    call: impl FnOnce(&Descriptor<'_>) -> Result<Option<(MatchEntry, MemoryDescriptor)>, Failure>,
) -> Result<Option<ptl_handle_md_t>, Failure> {
    let handle = prepared.add_record(Some(entry))?;
    let posted = call(&prepared.to_library(handle));

    let Ok(Some((made_entry, created))) = posted else {
        with_objects(|objects| {
            objects.descriptors.remove(handle);
            Ok(())
        })?;
        return posted.map(|_| None);
    };
    with_objects(|objects| {
        if let Some(record) = objects.entries.find_mut(entry) {
            record.created = Some(made_entry);
        }
        Ok(())
    })?;
    PreparedDescriptor::complete_record(handle, Ok(created)).map(Some)
}
