//! Match entries.
//!
//! UNSAFETY: as in the module above.

use std::{ffi::c_int, sync::Arc};

use nicforge_portals::{Criteria, Error, Position, Refusal, Unlink};

use super::{criteria_of, index_of_8_bits, out_pointer, position_of, unlink_of};
use crate::{
    portals3::{
        failure::{failure, guarded},
        interface::NetworkInterface,
        library::with_objects,
        objects::EntryRecord,
        types::{
            PTL_OK, PTL_PT_INDEX_INVALID, ptl_handle_me_t, ptl_handle_ni_t, ptl_ins_pos_t, ptl_match_bits_t,
            ptl_process_id_t, ptl_pt_index_t, ptl_unlink_t,
        },
    },
    support::Failure,
};

/// Adds a match entry to a portal's list: at its head for PTL_INS_BEFORE, at its tail for
/// PTL_INS_AFTER. With PTL_UNLINK it is removed with its descriptor.
///
/// Returns PTL_OK, PTL_NO_INIT, PTL_NI_INVALID, PTL_PT_INDEX_INVALID, PTL_PROCESS_INVALID,
/// PTL_NO_SPACE, PTL_SEGV, or PTL_FAIL.
///
/// # Safety
/// `me_handle` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlMEAttach(
    ni_handle: ptl_handle_ni_t,
    pt_index: ptl_pt_index_t,
    match_id: ptl_process_id_t,
    match_bits: ptl_match_bits_t,
    ignore_bits: ptl_match_bits_t,
    unlink: ptl_unlink_t,
    position: ptl_ins_pos_t,
    me_handle: *mut ptl_handle_me_t,
) -> c_int {
    guarded(|| {
        let interface = with_objects(|objects| objects.interface(ni_handle))?;
        let out = out_pointer(me_handle, "me_handle")?;
        let portal = index_of_8_bits(pt_index, PTL_PT_INDEX_INVALID, "portal")?;
        let position = position_of(position, portal, Position::Head, Position::Tail)?;
        let criteria = criteria_of(&interface, match_id, match_bits, ignore_bits)?;

        let handle = attach(ni_handle, &interface, position, criteria, unlink_of("unlink", unlink)?)?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(handle) };
        Ok(PTL_OK)
    })
}

/// Adds a match entry in front of the entry `base`, or after it. With PTL_UNLINK it is removed
/// with its descriptor.
///
/// Returns PTL_OK, PTL_NO_INIT, PTL_ME_INVALID, PTL_PROCESS_INVALID, PTL_NO_SPACE, PTL_SEGV, or
/// PTL_FAIL.
///
/// # Safety
/// `me_handle` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlMEInsert(
    base: ptl_handle_me_t,
    match_id: ptl_process_id_t,
    match_bits: ptl_match_bits_t,
    ignore_bits: ptl_match_bits_t,
    unlink: ptl_unlink_t,
    position: ptl_ins_pos_t,
    me_handle: *mut ptl_handle_me_t,
) -> c_int {
    guarded(|| {
        let (base, ni_handle, interface) = with_objects(|objects| objects.entry_with_interface(base))?;
        let out = out_pointer(me_handle, "me_handle")?;
        let position = position_of(position, base, Position::Before, Position::After)?;
        let criteria = criteria_of(&interface, match_id, match_bits, ignore_bits)?;

        let handle = attach(ni_handle, &interface, position, criteria, unlink_of("unlink", unlink)?)?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(handle) };
        Ok(PTL_OK)
    })
}

/// Adds a match entry and returns its handle.
fn attach(
    ni_handle: ptl_handle_ni_t,
    interface: &Arc<NetworkInterface>,
    position: Position,
    criteria: Criteria,
    unlink: Unlink,
) -> Result<ptl_handle_me_t, Failure> {
    // The handle is allocated first, so that a full table leaves no entry on the card.
    let entry = EntryRecord { interface: ni_handle, created: None, unlink, descriptor: None };
    let handle = with_objects(|objects| objects.add_entry(entry))?;
    let attached = interface.portals().attach_entry(position, criteria, unlink);

    with_objects(|objects| {
        match (&attached, objects.entries.find_mut(handle)) {
            (Ok(created), Some(entry)) => entry.created = Some(*created),
            _ => objects.remove_entry(handle),
        }
        Ok(())
    })?;
    attached.map(|_| handle).map_err(failure)
}

/// Removes a match entry, with its descriptor if it has one.
///
/// Returns PTL_OK, PTL_NO_INIT, PTL_ME_INVALID, PTL_ME_IN_USE while the descriptor has operations
/// in progress, or PTL_FAIL.
#[unsafe(no_mangle)]
pub extern "C" fn PtlMEUnlink(me_handle: ptl_handle_me_t) -> c_int {
    guarded(|| {
        let (created, _, interface) = with_objects(|objects| objects.entry_with_interface(me_handle))?;

        let unlinked = interface.portals().unlink_entry(created);
        if is_gone(&unlinked, Refusal::Entry) {
            with_objects(|objects| {
                objects.remove_entry(me_handle);
                Ok(())
            })?;
        }
        unlinked.map(|()| PTL_OK).map_err(failure)
    })
}

/// Returns whether an object does not exist any more after a call that should unlink it: the call
/// succeeded, or it was refused because there is `no_such_object`.
pub(super) fn is_gone(unlinked: &Result<(), Error>, no_such_object: Refusal) -> bool {
    unlinked.as_ref().map_or_else(|error| error.refusal() == Some(no_such_object), |()| true)
}
