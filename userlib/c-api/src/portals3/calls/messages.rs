//! Puts and gets.

use std::{ffi::c_int, sync::Arc};

use nicforge_portals::{Ack, Error, Interface, MemoryDescriptor, Target};

use super::{index_of_8_bits, target_of, unknown_constant};
use crate::{
    portals3::{
        failure::{failure, guarded},
        interface::NetworkInterface,
        library::with_objects,
        types::{
            PTL_AC_INDEX_INVALID, PTL_ACK_REQ, PTL_EQ_NONE, PTL_NOACK_REQ, PTL_OK, PTL_PT_INDEX_INVALID,
            ptl_ac_index_t, ptl_ack_req_t, ptl_handle_md_t, ptl_hdr_data_t, ptl_match_bits_t,
            ptl_process_id_t, ptl_pt_index_t, ptl_size_t,
        },
    },
    support::Failure,
};

/// A descriptor of this process: the source of a put's data, or the destination of a get's reply.
struct LocalDescriptor {
    interface: Arc<NetworkInterface>,
    descriptor: MemoryDescriptor,
    has_queue: bool,
}

impl LocalDescriptor {
    /// Returns the descriptor of a handle.
    fn find(handle: ptl_handle_md_t) -> Result<Self, Failure> {
        with_objects(|objects| {
            let (created, record) = objects.descriptor(handle)?;
            let interface = objects.interface(record.interface)?;
            Ok(Self { interface, descriptor: created.clone(), has_queue: record.values.queue != PTL_EQ_NONE })
        })
    }

    /// Returns whether a put asks for an acknowledgement. Without a queue nothing can report one,
    /// so none is requested.
    fn ack_for(&self, ack_req: ptl_ack_req_t) -> Result<Ack, Failure> {
        match ack_req {
            PTL_ACK_REQ if self.has_queue => Ok(Ack::Requested),
            PTL_ACK_REQ | PTL_NOACK_REQ => Ok(Ack::No),
            other => Err(unknown_constant("ack_req", other)),
        }
    }
}

/// Returns the target of a put or get.
fn target(
    process: ptl_process_id_t,
    portal: ptl_pt_index_t,
    access: ptl_ac_index_t,
    match_bits: ptl_match_bits_t,
    offset: ptl_size_t,
) -> Result<Target, Failure> {
    Ok(Target {
        process: target_of(process)?,
        portal: index_of_8_bits(portal, PTL_PT_INDEX_INVALID, "portal")?,
        access: index_of_8_bits(access, PTL_AC_INDEX_INVALID, "access control entry")?,
        match_bits,
        offset,
    })
}

/// Starts a put or get by `start`, and returns its Portals code. A bad descriptor is reported
/// before a bad target, so the target is passed as a result. The inner result of `start` is that of
/// the library; the outer one is an error of further arguments.
fn start_operation(
    md_handle: ptl_handle_md_t,
    target: Result<Target, Failure>,
    start: impl FnOnce(&Interface, &LocalDescriptor, &Target) -> Result<Result<(), Error>, Failure>,
) -> c_int {
    guarded(|| {
        let local = LocalDescriptor::find(md_handle)?;
        let started = start(local.interface.portals(), &local, &target?)?;
        started.map(|()| PTL_OK).map_err(failure)
    })
}

/// Sends all memory of a descriptor. Events report the progress and the end.
///
/// Returns PTL_OK, PTL_NO_INIT, PTL_MD_INVALID, PTL_PROCESS_INVALID, PTL_PT_INDEX_INVALID,
/// PTL_AC_INDEX_INVALID, PTL_MD_ILLEGAL for more than 2^30 bytes, PTL_NO_SPACE when too many
/// operations are in progress, PTL_NI_INVALID after the program that holds the node's kernel has
/// ended, or PTL_FAIL.
#[unsafe(no_mangle)]
pub extern "C" fn PtlPut(
    md_handle: ptl_handle_md_t,
    ack_req: ptl_ack_req_t,
    target_id: ptl_process_id_t,
    pt_index: ptl_pt_index_t,
    ac_index: ptl_ac_index_t,
    match_bits: ptl_match_bits_t,
    remote_offset: ptl_size_t,
    hdr_data: ptl_hdr_data_t,
) -> c_int {
    let target = target(target_id, pt_index, ac_index, match_bits, remote_offset);
    start_operation(md_handle, target, |interface, local, target| {
        Ok(interface.put(&local.descriptor, local.ack_for(ack_req)?, target, hdr_data))
    })
}

/// Sends `length` bytes at `local_offset` of a descriptor's memory. As PtlPut otherwise;
/// PTL_MD_ILLEGAL also for a range that leaves the memory.
#[unsafe(no_mangle)]
pub extern "C" fn PtlPutRegion(
    md_handle: ptl_handle_md_t,
    local_offset: ptl_size_t,
    length: ptl_size_t,
    ack_req: ptl_ack_req_t,
    target_id: ptl_process_id_t,
    pt_index: ptl_pt_index_t,
    ac_index: ptl_ac_index_t,
    match_bits: ptl_match_bits_t,
    remote_offset: ptl_size_t,
    hdr_data: ptl_hdr_data_t,
) -> c_int {
    let target = target(target_id, pt_index, ac_index, match_bits, remote_offset);
    start_operation(md_handle, target, |interface, local, target| {
        let ack = local.ack_for(ack_req)?;
        Ok(interface.put_region(&local.descriptor, local_offset, length, ack, target, hdr_data))
    })
}

/// Fetches data for all memory of a descriptor. A get that nothing at the target matches has no
/// event: it ends when its descriptor is unlinked.
///
/// Returns as PtlPut.
#[unsafe(no_mangle)]
pub extern "C" fn PtlGet(
    md_handle: ptl_handle_md_t,
    target_id: ptl_process_id_t,
    pt_index: ptl_pt_index_t,
    ac_index: ptl_ac_index_t,
    match_bits: ptl_match_bits_t,
    remote_offset: ptl_size_t,
) -> c_int {
    let target = target(target_id, pt_index, ac_index, match_bits, remote_offset);
    start_operation(
        md_handle,
        target,
        |interface, local, target| Ok(interface.get(&local.descriptor, target)),
    )
}

/// Fetches data for `length` bytes at `local_offset` of a descriptor's memory. As PtlGet otherwise;
/// PTL_MD_ILLEGAL also for a range that leaves the memory.
#[unsafe(no_mangle)]
pub extern "C" fn PtlGetRegion(
    md_handle: ptl_handle_md_t,
    local_offset: ptl_size_t,
    length: ptl_size_t,
    target_id: ptl_process_id_t,
    pt_index: ptl_pt_index_t,
    ac_index: ptl_ac_index_t,
    match_bits: ptl_match_bits_t,
    remote_offset: ptl_size_t,
) -> c_int {
    let target = target(target_id, pt_index, ac_index, match_bits, remote_offset);
    start_operation(md_handle, target, |interface, local, target| {
        Ok(interface.get_region(&local.descriptor, local_offset, length, target))
    })
}
