//! FIFOs in memory of the library, and base addresses.

use nicforge_hwi::mu::atomic;
use nicforge_spi::{NO_BASE_ADDRESS, Resource};

use super::{kernel::permission_bit, library_number, numbers, with_owner};
use crate::{
    spi::{
        failure::{failure, invalid},
        library,
        subgroup::Inner,
        types::{
            BGQ_MU_NUM_FIFO_SUBGROUPS, BGQ_MU_NUM_REC_FIFOS_PER_SUBGROUP, KERNEL_INJ_FIFO_ACTIVATE,
            Kernel_MemoryRegion_t, MUHWI_BaseAddress_t, MUSPI_BaseAddressTableSubGroup_t,
            MUSPI_InjFifoSubGroup_t, MUSPI_RecFifoSubGroup_t,
        },
    },
    support::{Failure, HasHandle, guarded_status, reference},
};

/// The memory of a FIFO in this process.
struct FifoMemory {
    /// Address of the first byte.
    start: usize,
    bytes: usize,
}

/// Returns the memory of a FIFO of `size_1 + 1` bytes at an offset of a memory region.
fn fifo_memory(region: &Kernel_MemoryRegion_t, startoffset: u64, size_1: u64) -> Result<FifoMemory, Failure> {
    let bytes = size_1.checked_add(1).and_then(|bytes| usize::try_from(bytes).ok());
    let start = usize::try_from(startoffset).ok().and_then(|offset| region.BaseVa.addr().checked_add(offset));
    let is_inside = bytes.is_some_and(|bytes| {
        startoffset.checked_add(bytes as u64).is_some_and(|end| end <= region.Bytes as u64)
    });

    match (start, bytes) {
        (Some(start), Some(bytes)) if is_inside => Ok(FifoMemory { start, bytes }),
        _ => Err(invalid(format!("a FIFO at offset {startoffset:#x} leaves the memory region"))),
    }
}

/// Returns the failure of a call with memory that is not the subgroup's.
fn not_memory_of(inner: &Inner) -> Failure {
    invalid(format!("the memory is not that of subgroup {}", inner.subgroup.number()))
}

/// Assigns an injection FIFO `size_1 + 1` bytes at an offset of a memory region, both multiples of
/// 64. The FIFO makes no progress then, and is empty.
///
/// # Safety
/// `sg_ptr` is NULL, or from Kernel_AllocateInjFifos; `memregion` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_InjFifoInit(
    sg_ptr: *mut MUSPI_InjFifoSubGroup_t,
    fifoid: u32,
    memregion: *mut Kernel_MemoryRegion_t,
    startoffset: u64,
    size_1: u64,
) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        let owner = unsafe { reference(sg_ptr) }?._injfifos[0].owner;
        // SAFETY: by this function's contract.
        let FifoMemory { start, bytes } = fifo_memory(unsafe { reference(memregion) }?, startoffset, size_1)?;

        let init = |inner: &mut Inner| {
            inner.allocated_bits(Resource::InjectionFifo, &[fifoid])?;
            let (memory, offset) = inner.find_memory(start, bytes).ok_or_else(|| not_memory_of(inner))?;
            let attributes = inner.attributes[fifoid as usize];
            let subgroup = &mut inner.subgroup;
            subgroup
                .init_injection(library_number(fifoid), memory, offset, bytes as u64, attributes)
                .map_err(failure)
        };
        // SAFETY: by this function's contract.
        unsafe { with_owner(owner, init) }
    })
}

/// Assigns a reception FIFO `size_1 + 1` bytes at an offset of a memory region, both multiples of
/// 32. The FIFO takes no packets then, and is empty.
///
/// # Safety
/// `sg_ptr` is NULL, or from Kernel_AllocateRecFifos; `memregion` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_RecFifoInit(
    sg_ptr: *mut MUSPI_RecFifoSubGroup_t,
    fifoid: u32,
    memregion: *mut Kernel_MemoryRegion_t,
    startoffset: u64,
    size_1: u64,
) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        let owner = unsafe { reference(sg_ptr) }?._recfifos[0].owner;
        // SAFETY: by this function's contract.
        let FifoMemory { start, bytes } = fifo_memory(unsafe { reference(memregion) }?, startoffset, size_1)?;

        let init = |inner: &mut Inner| {
            inner.allocated_bits(Resource::ReceptionFifo, &[fifoid])?;
            let (memory, offset) = inner.find_memory(start, bytes).ok_or_else(|| not_memory_of(inner))?;
            inner
                .subgroup
                .init_reception(library_number(fifoid), memory, offset, bytes as u64)
                .map_err(failure)
        };
        // SAFETY: by this function's contract.
        unsafe { with_owner(owner, init) }
    })
}

/// Activates injection FIFOs (KERNEL_INJ_FIFO_ACTIVATE) or stops them
/// (KERNEL_INJ_FIFO_DEACTIVATE).
///
/// # Safety
/// `sg_ptr` is NULL, or from Kernel_AllocateInjFifos; `fifoids` is NULL or has `nfifos` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_InjFifoActivate(
    sg_ptr: *mut MUSPI_InjFifoSubGroup_t,
    nfifos: u32,
    fifoids: *mut u32,
    activate: u32,
) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        let owner = unsafe { reference(sg_ptr) }?._injfifos[0].owner;
        // SAFETY: by this function's contract.
        let fifos = unsafe { numbers(Resource::InjectionFifo, fifoids, nfifos) }?;
        let set = |inner: &mut Inner| {
            let bits = inner.allocated_bits(Resource::InjectionFifo, fifos)?;
            let is_active = activate == KERNEL_INJ_FIFO_ACTIVATE;
            inner.subgroup.set_injection_enabled(bits, is_active).map_err(failure)
        };
        // SAFETY: by this function's contract.
        unsafe { with_owner(owner, set) }
    })
}

/// Enables or disables reception FIFOs of a group of four subgroups. Bit 15 is FIFO 0 of the
/// group's first subgroup, and bit 0 is FIFO 3 of its last one.
fn set_reception(groupid: u32, bits: u64, enabled: bool) -> Result<(), Failure> {
    const FIFOS: usize = BGQ_MU_NUM_REC_FIFOS_PER_SUBGROUP;
    const HIGHEST_BIT: usize = BGQ_MU_NUM_FIFO_SUBGROUPS * FIFOS - 1;

    for subgroup in 0..BGQ_MU_NUM_FIFO_SUBGROUPS {
        let bit_of = |fifo: usize| HIGHEST_BIT - (subgroup * FIFOS + fifo);
        let fifos: Vec<_> =
            (0..FIFOS).filter(|&fifo| bits >> bit_of(fifo) & 1 == 1).map(|fifo| fifo as u32).collect();
        if fifos.is_empty() {
            continue;
        }

        let first_of_group = groupid.saturating_mul(BGQ_MU_NUM_FIFO_SUBGROUPS as u32);
        let number = first_of_group.saturating_add(subgroup as u32);
        library::subgroup(number)?.handle().with(|inner, _| {
            let bits = inner.allocated_bits(Resource::ReceptionFifo, &fifos)?;
            inner.subgroup.set_reception_enabled(bits, enabled).map_err(failure)
        })?;
    }
    Ok(())
}

/// Enables reception FIFOs of a group of four subgroups. Bit 15 of `enableBits` is FIFO 0 of the
/// group's first subgroup, and bit 0 is FIFO 3 of its last one.
#[unsafe(no_mangle)]
pub extern "C" fn Kernel_RecFifoEnable(groupid: u32, enableBits: u64) -> i32 {
    guarded_status(|| set_reception(groupid, enableBits, true))
}

/// Disables reception FIFOs of a group of four subgroups. The bits are those of
/// Kernel_RecFifoEnable.
#[unsafe(no_mangle)]
pub extern "C" fn Kernel_RecFifoDisable(groupid: u32, disableBits: u64) -> i32 {
    guarded_status(|| set_reception(groupid, disableBits, false))
}

/// Returns an error if an entry of a base address table is not allocated.
fn check_entry(bat: &MUSPI_BaseAddressTableSubGroup_t, entryid: u8) -> Result<(), Failure> {
    let exists = u32::from(entryid) < u8::BITS;
    let is_permitted = exists && bat.permissions & permission_bit(entryid.into()) != 0;
    let text = || format!("base address {entryid} is not allocated");
    if is_permitted { Ok(()) } else { Err(Failure::new(libc::ENXIO, text())) }
}

/// Sets an entry of a base address table.
///
/// # Safety
/// `bat` is NULL, or from Kernel_AllocateBaseAddressTable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_SetBaseAddress(
    bat: *mut MUSPI_BaseAddressTableSubGroup_t,
    entryid: u8,
    baseAddress: MUHWI_BaseAddress_t,
) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        let bat = unsafe { reference(bat) }?;
        check_entry(bat, entryid)?;
        let set = |inner: &mut Inner| inner.subgroup.set_base_address(entryid, baseAddress).map_err(failure);
        // SAFETY: by this function's contract.
        unsafe { with_owner(bat.owner, set) }
    })
}

/// Returns an entry of a base address table, or all ones for one that is not set or not allocated.
///
/// # Safety
/// `bat` is NULL, or from Kernel_AllocateBaseAddressTable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_GetBaseAddress(
    bat: *mut MUSPI_BaseAddressTableSubGroup_t,
    entryid: u8,
) -> MUHWI_BaseAddress_t {
    let mut address = NO_BASE_ADDRESS;
    guarded_status(|| {
        // SAFETY: by this function's contract.
        let bat = unsafe { reference(bat) }?;
        check_entry(bat, entryid)?;
        let get = |inner: &mut Inner| inner.subgroup.base_address(entryid).map_err(failure);
        // SAFETY: by this function's contract.
        address = unsafe { with_owner(bat.owner, get) }?;
        Ok(())
    });
    address
}

/// Returns the offset of an address from an entry of a base address table; all ones after an error.
///
/// # Safety
/// `bat` is NULL, or from Kernel_AllocateBaseAddressTable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_GetOffsetFromBaseAddress(
    bat: *mut MUSPI_BaseAddressTableSubGroup_t,
    entryid: u8,
    pa: u64,
) -> u64 {
    // SAFETY: by this function's contract.
    let base = unsafe { MUSPI_GetBaseAddress(bat, entryid) };
    if base == NO_BASE_ADDRESS { base } else { pa.wrapping_sub(base) }
}

/// Returns the offset by which a put applies the atomic operation `op`, one of
/// MUHWI_ATOMIC_OPCODE_STORE_..., to the 8 aligned bytes at an address. The entry of the base
/// address table must be an address without an operation. Returns all ones after an error.
///
/// # Safety
/// `bat` is NULL, or from Kernel_AllocateBaseAddressTable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_GetAtomicOffsetFromBaseAddress(
    bat: *mut MUSPI_BaseAddressTableSubGroup_t,
    entryid: u8,
    pa: u64,
    op: u64,
) -> u64 {
    // SAFETY: by this function's contract.
    let offset = unsafe { MUSPI_GetOffsetFromBaseAddress(bat, entryid, pa) };
    let is_possible = offset.is_multiple_of(8) && offset < atomic::INDICATOR && op <= atomic::OPERATION;
    if is_possible { offset | atomic::INDICATOR | op } else { u64::MAX }
}
