//! Allocation, memory and the coordinates of the node.

use std::{
    ffi::{c_char, c_void},
    ptr::null_mut,
    sync::Arc,
};

use nicforge_spi::{InjectionAttributes, Resource};

use super::{numbers, with_owner};
use crate::{
    spi::{
        failure::invalid,
        library,
        subgroup::nicforge_spi_subgroup,
        types::{
            Kernel_InjFifoAttributes_t, Kernel_MemoryRegion_t, Kernel_RecFifoAttributes_t,
            MUSPI_BaseAddressTableSubGroup_t, MUSPI_InjFifo_t, MUSPI_InjFifoSubGroup_t, MUSPI_RecFifo_t,
            MUSPI_RecFifoSubGroup_t, Personality_Networks_t, Personality_t,
        },
    },
    support::{Failure, HasHandle, guarded_status, last_error, non_null, reference},
};

/// Number of the first subgroup of the system.
const FIRST_SYSTEM_SUBGROUP: u32 = 64;

/// Returns the text of the calling thread's last error in any call of libnicforge; an empty text
/// without one. It is valid until the thread's next error.
#[unsafe(no_mangle)]
pub extern "C" fn nicforge_spi_last_error() -> *const c_char {
    last_error()
}

/// Closes all subgroups and the kernel that this process has opened. Their memory and structures
/// are not valid any more. Calls of other threads must have ended. A function that receives packets
/// must not call it.
#[unsafe(no_mangle)]
pub extern "C" fn nicforge_spi_close() {
    guarded_status(|| {
        library::close();
        Ok(())
    });
}

/// Allocates memory that the unit reaches, for a subgroup, rounded up to whole pages. It stays
/// valid until nicforge_spi_close. Returns NULL after an error.
#[unsafe(no_mangle)]
pub extern "C" fn nicforge_spi_allocate(subgrpid: u32, bytes: usize) -> *mut c_void {
    let mut memory = null_mut();
    guarded_status(|| {
        let subgroup = library::subgroup(subgrpid)?;
        let address = subgroup.handle().with(|inner, _| inner.allocate_memory(bytes))?;
        memory = std::ptr::with_exposed_provenance_mut(address);
        Ok(())
    });
    memory
}

/// Returns the node's coordinates in the network. `size` is the size of the structure.
///
/// # Safety
/// `personality` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_GetPersonality(personality: *mut Personality_t, size: usize) -> i32 {
    guarded_status(|| {
        let out = non_null(personality, "personality")?;
        if size < size_of::<Personality_t>() {
            return Err(invalid(format!("a personality of {size} bytes")));
        }

        let subgroup = library::any_subgroup()?;
        let position = subgroup.handle().with(|inner, _| Ok(inner.subgroup.position()))?;
        let ([a, b, c, d, e], [nodes_a, nodes_b, nodes_c, nodes_d, nodes_e]) = (position.own, position.shape);
        let network = Personality_Networks_t {
            Acoord: a,
            Bcoord: b,
            Ccoord: c,
            Dcoord: d,
            Ecoord: e,
            Anodes: nodes_a,
            Bnodes: nodes_b,
            Cnodes: nodes_c,
            Dnodes: nodes_d,
            Enodes: nodes_e,
        };

        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(Personality_t { Network_Config: network }) };
        Ok(())
    })
}

/// Describes memory from nicforge_spi_allocate to the unit. Other memory gives -EFAULT: the unit
/// reaches shared memory only.
///
/// # Safety
/// `memregion` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_CreateMemoryRegion(
    memregion: *mut Kernel_MemoryRegion_t,
    base_virtualaddress: *mut c_void,
    requested_size: usize,
) -> i32 {
    guarded_status(|| {
        let out = non_null(memregion, "memregion")?;
        let address = base_virtualaddress.addr();
        // The failure of a subgroup that could not be searched.
        let mut busy = None;
        for subgroup in library::open_subgroups()? {
            let found = subgroup.handle().with(|inner, _| Ok(inner.find_memory(address, requested_size)));
            let (buffer, offset) = match found {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                // Another thread uses the subgroup. The memory may belong to a different subgroup.
                Err(failure) if failure.errno() == libc::EBUSY => {
                    busy = Some(failure);
                    continue;
                }
                Err(failure) => return Err(failure),
            };

            // The unit uses DMA addresses where the original system has physical ones.
            let physical = (buffer.iova() + offset) as usize;
            let region = Kernel_MemoryRegion_t {
                Bytes: requested_size,
                BaseVa: base_virtualaddress,
                BasePa: std::ptr::without_provenance_mut(physical),
            };
            // SAFETY: not NULL, and valid by this function's contract.
            unsafe { out.write(region) };
            return Ok(());
        }
        let text = format!("{requested_size} bytes at {address:#x} are not from nicforge_spi_allocate");
        Err(busy.unwrap_or_else(|| Failure::new(libc::EFAULT, text)))
    })
}

/// Forgets a description of memory. The memory stays.
///
/// # Safety
/// `memregion` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_DestroyMemoryRegion(memregion: *mut Kernel_MemoryRegion_t) -> i32 {
    guarded_status(|| {
        let out = non_null(memregion, "memregion")?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(Kernel_MemoryRegion_t { Bytes: 0, BaseVa: null_mut(), BasePa: null_mut() }) };
        Ok(())
    })
}

/// Refuses a `system` attribute that does not fit the subgroup: subgroups from
/// [`FIRST_SYSTEM_SUBGROUP`] on are the system's, and those below are the users'.
fn check_attribute_fits_subgroup(subgrpid: u32, is_system: bool) -> Result<(), Failure> {
    if is_system == (subgrpid >= FIRST_SYSTEM_SUBGROUP) {
        return Ok(());
    }
    let text = format!("subgroup {subgrpid}: the system has subgroups 64 to 67, and users 0 to 63");
    Err(Failure::new(libc::EPERM, text))
}

/// Stores the numbers of a subgroup's resources that are not allocated, and how many they are.
///
/// # Safety
/// `count` and `numbers` are NULL or valid, the latter for all numbers of the resource.
unsafe fn query(resource: Resource, subgrpid: u32, count: *mut u32, numbers: *mut u32) -> i32 {
    guarded_status(|| {
        let (count, numbers) = (non_null(count, "the count")?, non_null(numbers, "the list of numbers")?);
        let free = library::subgroup(subgrpid)?.handle().with(|inner, _| Ok(inner.unallocated(resource)))?;

        let mut found = 0;
        for number in free {
            // SAFETY: the list has room for all numbers by this function's contract.
            unsafe { numbers.as_ptr().wrapping_add(found).write(number) };
            found += 1;
        }
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { count.write(found as u32) };
        Ok(())
    })
}

/// Returns the injection FIFOs of a subgroup that are not allocated: at most 8.
///
/// # Safety
/// `nfifos` is NULL or valid; `fifoids` is NULL or has 8 writable numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_QueryInjFifos(subgrpid: u32, nfifos: *mut u32, fifoids: *mut u32) -> i32 {
    // SAFETY: by this function's contract.
    unsafe { query(Resource::InjectionFifo, subgrpid, nfifos, fifoids) }
}

/// Returns the reception FIFOs of a subgroup that are not allocated: at most 4.
///
/// # Safety
/// `nfifos` is NULL or valid; `fifoids` is NULL or has 4 writable numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_QueryRecFifos(subgrpid: u32, nfifos: *mut u32, fifoids: *mut u32) -> i32 {
    // SAFETY: by this function's contract.
    unsafe { query(Resource::ReceptionFifo, subgrpid, nfifos, fifoids) }
}

/// Returns the entries of a subgroup's base address table that are not allocated: at most 8.
///
/// # Safety
/// `nbatids` is NULL or valid; `batids` is NULL or has 8 writable numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_QueryBaseAddressTable(
    subgrpid: u32,
    nbatids: *mut u32,
    batids: *mut u32,
) -> i32 {
    // SAFETY: by this function's contract.
    unsafe { query(Resource::BaseAddress, subgrpid, nbatids, batids) }
}

/// Allocates injection FIFOs of a subgroup, all or none, with an attribute structure for each, and
/// opens the subgroup. Fills in `*sg_ptr`, which MUSPI_IdToInjFifo takes.
///
/// # Safety
/// `sg_ptr` is NULL or valid; `fifoids` and `fifoAttrs` are NULL or have `nfifos` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_AllocateInjFifos(
    subgrpid: u32,
    sg_ptr: *mut MUSPI_InjFifoSubGroup_t,
    nfifos: u32,
    fifoids: *mut u32,
    fifoAttrs: *mut Kernel_InjFifoAttributes_t,
) -> i32 {
    guarded_status(|| {
        let out = non_null(sg_ptr, "sg_ptr")?;
        // SAFETY: by this function's contract.
        let fifos = unsafe { numbers(Resource::InjectionFifo, fifoids, nfifos) }?;
        let attributes = non_null(fifoAttrs, "fifoAttrs")?;
        // SAFETY: not NULL, and `nfifos` elements by this function's contract.
        let attributes = unsafe { std::slice::from_raw_parts(attributes.as_ptr(), fifos.len()) };
        for attribute in attributes {
            check_attribute_fits_subgroup(subgrpid, attribute.System != 0)?;
        }

        let subgroup = library::subgroup(subgrpid)?;
        subgroup.handle().with(|inner, _| {
            inner.allocate(Resource::InjectionFifo, fifos)?;
            for (&fifo, attribute) in fifos.iter().zip(attributes) {
                inner.attributes[fifo as usize] = InjectionAttributes {
                    remote_get: attribute.RemoteGet != 0,
                    high_priority: attribute.Priority != 0,
                };
            }
            Ok(())
        })?;

        let owner = Arc::as_ptr(&subgroup);
        let fifos = std::array::from_fn(|number| MUSPI_InjFifo_t { owner, number: number as u32 });
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(MUSPI_InjFifoSubGroup_t { _injfifos: fifos, subgroupid: subgrpid }) };
        Ok(())
    })
}

/// Allocates reception FIFOs of a subgroup, all or none, with an attribute structure for each, and
/// opens the subgroup if it is not open. Fills in `*sg_ptr`, which MUSPI_IdToRecFifo takes.
///
/// # Safety
/// `sg_ptr` is NULL or valid; `fifoids` and `fifoAttrs` are NULL or have `nfifos` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_AllocateRecFifos(
    subgrpid: u32,
    sg_ptr: *mut MUSPI_RecFifoSubGroup_t,
    nfifos: u32,
    fifoids: *mut u32,
    fifoAttrs: *mut Kernel_RecFifoAttributes_t,
) -> i32 {
    guarded_status(|| {
        let out = non_null(sg_ptr, "sg_ptr")?;
        // SAFETY: by this function's contract.
        let fifos = unsafe { numbers(Resource::ReceptionFifo, fifoids, nfifos) }?;
        let attributes = non_null(fifoAttrs, "fifoAttrs")?;
        // SAFETY: not NULL, and `nfifos` elements by this function's contract.
        let attributes = unsafe { std::slice::from_raw_parts(attributes.as_ptr(), fifos.len()) };
        for attribute in attributes {
            check_attribute_fits_subgroup(subgrpid, attribute.System != 0)?;
        }

        let subgroup = library::subgroup(subgrpid)?;
        subgroup.handle().with(|inner, _| inner.allocate(Resource::ReceptionFifo, fifos))?;

        let owner = Arc::as_ptr(&subgroup);
        let fifos = std::array::from_fn(|number| MUSPI_RecFifo_t { owner, number: number as u32 });
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(MUSPI_RecFifoSubGroup_t { _recfifos: fifos, subgroupid: subgrpid }) };
        Ok(())
    })
}

/// Allocates entries of a subgroup's base address table, all or none, and opens the subgroup. Fills
/// in `*sg_ptr`, which MUSPI_SetBaseAddress takes.
///
/// # Safety
/// `sg_ptr` is NULL or valid; `batids` is NULL or has `nbatids` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_AllocateBaseAddressTable(
    subgrpid: u32,
    sg_ptr: *mut MUSPI_BaseAddressTableSubGroup_t,
    nbatids: u32,
    batids: *mut u32,
    system: u32,
) -> i32 {
    guarded_status(|| {
        let out = non_null(sg_ptr, "sg_ptr")?;
        // SAFETY: by this function's contract.
        let entries = unsafe { numbers(Resource::BaseAddress, batids, nbatids) }?;
        check_attribute_fits_subgroup(subgrpid, system != 0)?;

        let subgroup = library::subgroup(subgrpid)?;
        subgroup.handle().with(|inner, _| inner.allocate(Resource::BaseAddress, entries))?;

        let table = MUSPI_BaseAddressTableSubGroup_t {
            owner: Arc::as_ptr(&subgroup),
            subgrpid: subgrpid as u8,
            permissions: entries.iter().fold(0, |bits, &entry| bits | permission_bit(entry)),
        };
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(table) };
        Ok(())
    })
}

/// Returns the bit of an entry in the permissions of a base address table. As in the public header,
/// entry 0 has the highest bit.
pub(super) fn permission_bit(entry: u32) -> u8 {
    0x80 >> entry
}

/// Frees resources of a subgroup, all or none.
///
/// # Safety
/// `owner` is NULL or valid; `list` is NULL or has `count` numbers.
unsafe fn free(
    owner: *const nicforge_spi_subgroup,
    resource: Resource,
    count: u32,
    list: *const u32,
) -> Result<(), Failure> {
    // SAFETY: by this function's contract.
    let list = unsafe { numbers(resource, list, count) }?;
    // SAFETY: by this function's contract.
    unsafe { with_owner(owner, |inner| inner.free(resource, list)) }
}

/// Stops and frees injection FIFOs, all or none.
///
/// # Safety
/// `sg_ptr` is NULL, or from Kernel_AllocateInjFifos; `fifoids` is NULL or has `nfifos` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_DeallocateInjFifos(
    sg_ptr: *mut MUSPI_InjFifoSubGroup_t,
    nfifos: u32,
    fifoids: *mut u32,
) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        let owner = unsafe { reference(sg_ptr) }?._injfifos[0].owner;
        // SAFETY: by this function's contract.
        unsafe { free(owner, Resource::InjectionFifo, nfifos, fifoids) }
    })
}

/// Stops and frees reception FIFOs, all or none.
///
/// # Safety
/// `sg_ptr` is NULL, or from Kernel_AllocateRecFifos; `fifoids` is NULL or has `nfifos` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_DeallocateRecFifos(
    sg_ptr: *mut MUSPI_RecFifoSubGroup_t,
    nfifos: u32,
    fifoids: *mut u32,
) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        let owner = unsafe { reference(sg_ptr) }?._recfifos[0].owner;
        // SAFETY: by this function's contract.
        unsafe { free(owner, Resource::ReceptionFifo, nfifos, fifoids) }
    })
}

/// Clears and frees entries of a base address table, all or none.
///
/// # Safety
/// `sg_ptr` is NULL, or from Kernel_AllocateBaseAddressTable; `batids` is NULL or has `nbatids`
/// numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_DeallocateBaseAddressTable(
    sg_ptr: *mut MUSPI_BaseAddressTableSubGroup_t,
    nbatids: u32,
    batids: *mut u32,
) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        let owner = unsafe { reference(sg_ptr) }?.owner;
        // SAFETY: by this function's contract.
        unsafe { free(owner, Resource::BaseAddress, nbatids, batids) }
    })
}
