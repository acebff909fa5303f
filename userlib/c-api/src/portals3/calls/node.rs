//! The node, its network interfaces, and their memory.
//!
//! UNSAFETY: as in the module above.

use std::{
    ffi::{c_char, c_int, c_ulong, c_void},
    ptr::with_exposed_provenance_mut,
    sync::Arc,
};

use nicforge_portals::{Access, Mode, Status};

use super::{index_of_8_bits, initiator_of, out_pointer, target_of};
use crate::{
    portals3::{
        failure::{failure, guarded, refused},
        library::{self, Node, Sockets, with_objects},
        types::{
            NICFORGE_PORTALS_IFACE_HOST_BASED, NICFORGE_PORTALS_SR_PERMISSIONS_VIOLATIONS,
            PTL_AC_INDEX_INVALID, PTL_FAIL, PTL_IFACE_DEFAULT, PTL_IFACE_INVALID, PTL_JID_ANY, PTL_OK,
            PTL_PID_ANY, PTL_PT_INDEX_ANY, PTL_PT_INDEX_INVALID, PTL_SEGV, PTL_SR_DROP_COUNT,
            PTL_SR_INDEX_INVALID, PTL_UID_ANY, ptl_ac_index_t, ptl_handle_any_t, ptl_handle_ni_t,
            ptl_interface_t, ptl_jid_t, ptl_ni_limits_t, ptl_pid_t, ptl_process_id_t, ptl_pt_index_t,
            ptl_size_t, ptl_sr_index_t, ptl_sr_value_t, ptl_uid_t,
        },
    },
    support::{Failure, last_error, path},
};

/// Event queues of a process in NIC-based mode, without the one that the library may need.
const NIC_BASED_QUEUES: c_int = 15;
/// Event queues of a process in host-based mode, without the one that the library may need.
const HOST_BASED_QUEUES: c_int = 255;
/// Highest number of an access control entry.
const MAX_ACCESS: c_int = 7;
/// Highest number of a portal.
const MAX_PORTAL: c_int = 63;

/// Returns the text of the calling thread's last failure in any call of libnicforge; an empty text
/// without one. It is valid until the thread's next failure. PTL_EQ_EMPTY, PTL_EQ_DROPPED and
/// PTL_MD_NO_UPDATE have no text.
#[unsafe(no_mangle)]
pub extern "C" fn nicforge_portals_last_error() -> *const c_char {
    last_error()
}

/// Initialises the library: boots the node on which `nicforge run` has started this program. One
/// program of a node can do so at a time. Later calls are counted. Stores the number of the node's
/// processes in `*max_interfaces`; the node has at most that many interfaces.
///
/// Returns PTL_OK, PTL_SEGV, or PTL_FAIL without a node.
///
/// # Safety
/// `max_interfaces` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlInit(max_interfaces: *mut c_int) -> c_int {
    guarded(|| {
        let out = out_pointer(max_interfaces, "max_interfaces")?;
        let processes = library::init(|| Ok(Arc::new(Sockets::of_environment()?) as Arc<dyn Node>))?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(processes as c_int) };
        Ok(PTL_OK)
    })
}

/// Initialises the library as PtlInit does, with the devices that are named here. `kernel` is the
/// device of the node's kernel, and `processes` are those of its processes 0, 1 and so on. Each is
/// the path of a socket, vfio:BDF, or shim:PATH. If the library is initialised already, the call is
/// counted, and the devices do not matter.
///
/// If `kernel` is NULL, another program has the node's kernel. PtlNIInit then waits for at most
/// 10 s until that program has granted the process, by nicforge_portals_grant() for example. Such a
/// process is matched by the card.
///
/// # Safety
/// `kernel` is NULL or a C string; `processes` is NULL, or has `count` pointers, each of them NULL
/// or a C string; `max_interfaces` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_portals_init(
    kernel: *const c_char,
    processes: *const *const c_char,
    count: usize,
    max_interfaces: *mut c_int,
) -> c_int {
    guarded(|| {
        let out = out_pointer(max_interfaces, "max_interfaces")?;
        // SAFETY: NULL or a C string by this function's contract.
        let kernel = unsafe { path(kernel) };

        if processes.is_null() || count > usize::from(u16::MAX) {
            return Err(refused(PTL_SEGV, "processes is NULL, or count is too large"));
        }
        // SAFETY: not NULL, and of this length by this function's contract.
        let given = unsafe { std::slice::from_raw_parts(processes, count) };
        let processes = given.iter().map(|&process| {
            // SAFETY: NULL or a C string by this function's contract.
            unsafe { path(process) }.ok_or_else(|| refused(PTL_SEGV, "a process is NULL"))
        });
        let sockets = Sockets { kernel, processes: processes.collect::<Result<_, _>>()? };

        let processes = library::init(|| Ok(Arc::new(sockets) as Arc<dyn Node>))?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(processes as c_int) };
        Ok(PTL_OK)
    })
}

/// Grants other programs the node's process `pid`, one after the other, until PtlFini. Each of
/// them names the process's device in nicforge_portals_init(), without a kernel.
///
/// Returns PTL_OK, PTL_NO_INIT, PTL_PID_INVALID if the process does not exist or is in use, or
/// PTL_FAIL.
#[unsafe(no_mangle)]
pub extern "C" fn nicforge_portals_grant(pid: ptl_pid_t) -> c_int {
    guarded(|| library::grant(pid).map(|()| PTL_OK))
}

/// Undoes one initialisation. When none is left, all interfaces and their memory end, and the node
/// accepts no messages any more.
#[unsafe(no_mangle)]
pub extern "C" fn PtlFini() {
    guarded(|| {
        library::fini();
        Ok(PTL_OK)
    });
}

/// Opens a network interface of the node's process `pid`, or, for PTL_PID_ANY, of the first free
/// one. `interface` says where messages are matched: PTL_IFACE_DEFAULT by the card, and
/// NICFORGE_PORTALS_IFACE_HOST_BASED by the node's kernel, for which this library starts a thread.
/// Each process has one interface.
///
/// The limits are those of the mode, whatever `desired` has, and are stored in `*actual`. In
/// NIC-based mode the card's memory may hold fewer match entries and descriptors. `desired` and
/// `actual` may be NULL.
///
/// Returns PTL_OK, PTL_NO_INIT, PTL_IFACE_INVALID, PTL_PID_INVALID, PTL_NI_INVALID without a grant,
/// PTL_NO_SPACE, PTL_SEGV, or PTL_FAIL.
///
/// # Safety
/// `actual` and `ni_handle` are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlNIInit(
    interface: ptl_interface_t,
    pid: ptl_pid_t,
    desired: *const ptl_ni_limits_t,
    actual: *mut ptl_ni_limits_t,
    ni_handle: *mut ptl_handle_ni_t,
) -> c_int {
    guarded(|| {
        // The limits are not negotiable.
        let _ = desired;
        let out = out_pointer(ni_handle, "ni_handle")?;
        let mode = match interface {
            PTL_IFACE_DEFAULT => Mode::NicBased,
            NICFORGE_PORTALS_IFACE_HOST_BASED => Mode::HostBased,
            other => return Err(refused(PTL_IFACE_INVALID, format!("there is no interface {other}"))),
        };

        let handle = library::open_interface(mode, (pid != PTL_PID_ANY).then_some(pid))?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(handle) };

        if let Ok(out) = out_pointer(actual, "actual") {
            let descriptors = with_objects(|objects| Ok(objects.interface(handle)?.max_descriptors()))?;
            // SAFETY: not NULL, and valid by this function's contract.
            unsafe { out.write(limits(mode, descriptors as c_int)) };
        }
        Ok(PTL_OK)
    })
}

/// Returns the limits of an interface with at most this number of descriptors.
fn limits(mode: Mode, descriptors: c_int) -> ptl_ni_limits_t {
    ptl_ni_limits_t {
        max_mes: descriptors,
        max_mds: descriptors,
        max_eqs: if mode == Mode::NicBased { NIC_BASED_QUEUES } else { HOST_BASED_QUEUES },
        max_ac_index: MAX_ACCESS,
        max_pt_index: MAX_PORTAL,
        max_md_iovecs: 0,
        max_me_list: descriptors,
        max_getput_md: 0,
    }
}

/// Closes a network interface: its objects become invalid, its messages in flight fail, and its
/// memory from nicforge_portals_allocate must not be used any more. Waits of other threads for its
/// events end with PTL_EQ_INVALID.
///
/// Returns PTL_OK, PTL_NO_INIT or PTL_NI_INVALID.
#[unsafe(no_mangle)]
pub extern "C" fn PtlNIFini(ni_handle: ptl_handle_ni_t) -> c_int {
    guarded(|| library::close_interface(ni_handle).map(|()| PTL_OK))
}

/// Stores the value of a status register in `*status`: PTL_SR_DROP_COUNT or
/// NICFORGE_PORTALS_SR_PERMISSIONS_VIOLATIONS.
///
/// Returns PTL_OK, PTL_NO_INIT, PTL_NI_INVALID, PTL_SR_INDEX_INVALID, PTL_SEGV, or PTL_FAIL.
///
/// # Safety
/// `status` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlNIStatus(
    ni_handle: ptl_handle_ni_t,
    status_register: ptl_sr_index_t,
    status: *mut ptl_sr_value_t,
) -> c_int {
    guarded(|| {
        let interface = with_objects(|objects| objects.interface(ni_handle))?;
        let out = out_pointer(status, "status")?;
        let register = match status_register {
            PTL_SR_DROP_COUNT => Status::DropCount,
            NICFORGE_PORTALS_SR_PERMISSIONS_VIOLATIONS => Status::PermissionViolations,
            other => {
                return Err(refused(PTL_SR_INDEX_INVALID, format!("there is no status register {other}")));
            }
        };

        let value = interface.portals().status(register).map_err(failure)?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(value) };
        Ok(PTL_OK)
    })
}

/// Stores in `*distance` how far a process is: 0 for this one, 1 for another one of this node, and
/// 2 for one of another node.
///
/// Returns PTL_OK, PTL_NO_INIT, PTL_NI_INVALID, PTL_PROCESS_INVALID or PTL_SEGV.
///
/// # Safety
/// `distance` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlNIDist(
    ni_handle: ptl_handle_ni_t,
    process: ptl_process_id_t,
    distance: *mut c_ulong,
) -> c_int {
    guarded(|| {
        let interface = with_objects(|objects| objects.interface(ni_handle))?;
        let out = out_pointer(distance, "distance")?;
        let found = interface.portals().distance(target_of(process)?).map_err(failure)?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(found.into()) };
        Ok(PTL_OK)
    })
}

/// Stores the network interface that an object of any kind belongs to in `*ni_handle`.
///
/// Returns PTL_OK, PTL_NO_INIT, PTL_HANDLE_INVALID or PTL_SEGV.
///
/// # Safety
/// `ni_handle` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlNIHandle(handle: ptl_handle_any_t, ni_handle: *mut ptl_handle_ni_t) -> c_int {
    guarded(|| {
        let found = with_objects(|objects| objects.interface_of(handle))?;
        let out = out_pointer(ni_handle, "ni_handle")?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(found) };
        Ok(PTL_OK)
    })
}

/// Stores the name of an interface's process in `*id`.
///
/// Returns PTL_OK, PTL_NO_INIT, PTL_NI_INVALID or PTL_SEGV.
///
/// # Safety
/// `id` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlGetId(ni_handle: ptl_handle_ni_t, id: *mut ptl_process_id_t) -> c_int {
    guarded(|| {
        let interface = with_objects(|objects| objects.interface(ni_handle))?;
        let out = out_pointer(id, "id")?;
        let process = interface.portals().id();
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(ptl_process_id_t { nid: process.node, pid: process.process.into() }) };
        Ok(PTL_OK)
    })
}

/// Sets an access control entry: it permits messages of the initiators `match_id` to a portal.
/// `pt_index` may be PTL_PT_INDEX_ANY. At first entry 0 permits everything, and the others nothing.
/// Messages carry no user and no job, so `user_id` must be PTL_UID_ANY and `job_id` PTL_JID_ANY.
///
/// Returns PTL_OK, PTL_NO_INIT, PTL_NI_INVALID, PTL_AC_INDEX_INVALID, PTL_PROCESS_INVALID,
/// PTL_PT_INDEX_INVALID, or PTL_FAIL.
#[unsafe(no_mangle)]
pub extern "C" fn PtlACEntry(
    ni_handle: ptl_handle_ni_t,
    ac_index: ptl_ac_index_t,
    match_id: ptl_process_id_t,
    user_id: ptl_uid_t,
    job_id: ptl_jid_t,
    pt_index: ptl_pt_index_t,
) -> c_int {
    guarded(|| {
        let interface = with_objects(|objects| objects.interface(ni_handle))?;
        if (user_id, job_id) != (PTL_UID_ANY, PTL_JID_ANY) {
            return Err(refused(PTL_FAIL, "messages carry no user and no job: use PTL_UID_ANY, PTL_JID_ANY"));
        }

        let index = index_of_8_bits(ac_index, PTL_AC_INDEX_INVALID, "access control entry")?;
        let initiator = initiator_of(&interface, match_id)?;
        let portal = match pt_index {
            PTL_PT_INDEX_ANY => None,
            portal if portal > MAX_PORTAL as u32 => return Err(no_portal(portal)),
            portal => Some(portal as u8),
        };

        interface.portals().set_access(index, Access { initiator, portal }).map_err(failure)?;
        Ok(PTL_OK)
    })
}

/// Returns the failure of a call that names a portal which does not exist.
fn no_portal(portal: ptl_pt_index_t) -> Failure {
    refused(PTL_PT_INDEX_INVALID, format!("there is no portal {portal}"))
}

/// Allocates memory that messages come from and go to: `bytes` bytes rounded up to whole pages of
/// 4096, zeroed. It belongs to the interface until PtlNIFini. The memory of every descriptor must
/// lie in such memory, which is contiguous for the card, as all memory of a Catamount process is.
///
/// An interface in NIC-based mode has at most 16 such pieces, some of which its event queues take.
/// Allocate a large one and divide it.
///
/// Returns the address, or NULL. The text of nicforge_portals_last_error has the reason.
#[unsafe(no_mangle)]
pub extern "C" fn nicforge_portals_allocate(ni_handle: ptl_handle_ni_t, bytes: ptl_size_t) -> *mut c_void {
    let mut start = 0;
    let code = guarded(|| {
        let interface = with_objects(|objects| objects.interface(ni_handle))?;
        start = interface.allocate(bytes)?;
        Ok(PTL_OK)
    });

    // After a failure the address is 0.
    if code == PTL_OK { with_exposed_provenance_mut(start) } else { std::ptr::null_mut() }
}
