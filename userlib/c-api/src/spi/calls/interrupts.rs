//! Interrupts and thresholds of FIFOs.

use std::time::Duration;

use nicforge_driver::{Deadline, Error as DriverError};
use nicforge_spi::{Error, FifoInterrupts, Resource};

use super::{numbers, with_owner};
use crate::{
    spi::{
        failure::{failure, invalid},
        library,
        subgroup::nicforge_spi_subgroup,
        types::{
            Kernel_InjFifoInterrupts_t, Kernel_RecFifoInterrupts_t, MUSPI_InjFifoSubGroup_t,
            MUSPI_RecFifoSubGroup_t, NICFORGE_SPI_CYCLES_PER_US,
        },
    },
    support::{Failure, HasHandle, guarded_status, non_null, reference},
};

/// Number of 32-byte chunks of one descriptor.
const CHUNKS_PER_DESCRIPTOR: u64 = 2;

/// The lists of a call that changes interrupts, as C passes them.
struct FifoSettings<T> {
    /// Injection or reception FIFOs.
    resource: Resource,
    /// Number of elements of both lists.
    count: u32,
    /// Numbers of the FIFOs.
    fifos: *const u32,
    /// A structure for each FIFO.
    settings: *mut T,
}

/// Changes the enabled interrupts of a subgroup's FIFOs, which must be allocated. `change` is
/// called with the bit of each FIFO and its structure.
///
/// # Safety
/// `owner` is NULL or valid; the lists are NULL or have `count` elements.
unsafe fn configure<T: Copy>(
    owner: *const nicforge_spi_subgroup,
    lists: &FifoSettings<T>,
    change: impl Fn(&mut FifoInterrupts, u8, T),
) -> Result<(), Failure> {
    let resource = lists.resource;
    // SAFETY: by this function's contract.
    let fifos = unsafe { numbers(resource, lists.fifos, lists.count) }?;
    let settings = non_null(lists.settings, "the interrupts")?;
    // SAFETY: not NULL, and `count` elements by this function's contract.
    let settings = unsafe { std::slice::from_raw_parts(settings.as_ptr(), fifos.len()) };

    let configure = |inner: &mut crate::spi::subgroup::Inner| {
        inner.allocated_bits(resource, fifos)?;
        let mut enabled = inner.subgroup.enabled_interrupts().map_err(failure)?;
        for (&fifo, &setting) in fifos.iter().zip(settings) {
            change(&mut enabled, 1 << fifo, setting);
        }
        inner.subgroup.set_interrupts(enabled).map_err(failure)
    };
    // SAFETY: by this function's contract.
    unsafe { with_owner(owner, configure) }
}

/// Sets or clears a bit.
fn assign_bit(bits: &mut u8, bit: u8, is_set: bool) {
    *bits = if is_set { *bits | bit } else { *bits & !bit };
}

/// Chooses the injection FIFOs whose thresholds wake nicforge_spi_wait_interrupts.
///
/// # Safety
/// `sg_ptr` is NULL, or from Kernel_AllocateInjFifos; `fifoids` and `fifoInterrupts` are NULL or
/// have `nfifos` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_ConfigureInjFifoInterrupts(
    sg_ptr: *mut MUSPI_InjFifoSubGroup_t,
    nfifos: u32,
    fifoids: *mut u32,
    fifoInterrupts: *mut Kernel_InjFifoInterrupts_t,
) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        let owner = unsafe { reference(sg_ptr) }?._injfifos[0].owner;
        let lists = FifoSettings {
            resource: Resource::InjectionFifo,
            count: nfifos,
            fifos: fifoids,
            settings: fifoInterrupts,
        };
        let change = |enabled: &mut FifoInterrupts, fifo, setting: Kernel_InjFifoInterrupts_t| {
            assign_bit(&mut enabled.injection, fifo, setting.Threshold_Crossing != 0);
        };
        // SAFETY: by this function's contract.
        unsafe { configure(owner, &lists, change) }
    })
}

/// Chooses the reception FIFOs whose thresholds wake nicforge_spi_wait_interrupts, and those whose
/// packets do if they ask for an interrupt.
///
/// # Safety
/// `sg_ptr` is NULL, or from Kernel_AllocateRecFifos; `fifoids` and `fifoInterrupts` are NULL or
/// have `nfifos` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_ConfigureRecFifoInterrupts(
    sg_ptr: *mut MUSPI_RecFifoSubGroup_t,
    nfifos: u32,
    fifoids: *mut u32,
    fifoInterrupts: *mut Kernel_RecFifoInterrupts_t,
) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        let owner = unsafe { reference(sg_ptr) }?._recfifos[0].owner;
        let lists = FifoSettings {
            resource: Resource::ReceptionFifo,
            count: nfifos,
            fifos: fifoids,
            settings: fifoInterrupts,
        };
        let change = |enabled: &mut FifoInterrupts, fifo, setting: Kernel_RecFifoInterrupts_t| {
            assign_bit(&mut enabled.reception, fifo, setting.Threshold_Crossing != 0);
            assign_bit(&mut enabled.packets, fifo, setting.Packet_Arrival != 0);
        };
        // SAFETY: by this function's contract.
        unsafe { configure(owner, &lists, change) }
    })
}

/// Sets the thresholds of the injection FIFOs of all subgroups, in descriptors of free space. A
/// FIFO interrupts above `*normalThreshold`; one for remote gets interrupts below
/// `*remoteGetThreshold`. NULL leaves a threshold as it is. It opens the node's kernel.
///
/// # Safety
/// `normalThreshold` and `remoteGetThreshold` are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_ConfigureInjFifoThresholds(
    normalThreshold: *mut u64,
    remoteGetThreshold: *mut u64,
) -> i32 {
    guarded_status(|| {
        // SAFETY: NULL or valid by this function's contract.
        let normal = unsafe { normalThreshold.as_ref() };
        // SAFETY: NULL or valid by this function's contract.
        let gets = unsafe { remoteGetThreshold.as_ref() };
        // The unit counts the free space of a FIFO for remote gets in chunks.
        let gets = gets.map(|descriptors| descriptors.saturating_mul(CHUNKS_PER_DESCRIPTOR));
        library::kernel()?.set_thresholds(normal.copied(), gets, None).map_err(failure)
    })
}

/// Sets the threshold of the reception FIFOs of all subgroups: the free space in chunks of 32 bytes
/// below which a FIFO interrupts. It opens the node's kernel.
#[unsafe(no_mangle)]
pub extern "C" fn Kernel_ConfigureRecFifoThreshold(threshold: u64) -> i32 {
    guarded_status(|| library::kernel()?.set_thresholds(None, None, Some(threshold)).map_err(failure))
}

/// Waits until one of the `wanted` interrupts of a subgroup is pending, for at most
/// `timeoutInCycles` cycles of 1.6 GHz. Stores the pending ones in `*come`, and clears them.
/// Returns 0, or -EAGAIN when none is pending.
///
/// The bits are NICFORGE_SPI_INTERRUPT_INJECTION, NICFORGE_SPI_INTERRUPT_RECEPTION and
/// NICFORGE_SPI_INTERRUPT_PACKET, each shifted by the number of a FIFO.
///
/// # Safety
/// `come` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nicforge_spi_wait_interrupts(
    subgrpid: u32,
    wanted: u32,
    timeoutInCycles: u64,
    come: *mut u32,
) -> i32 {
    guarded_status(|| {
        let out = non_null(come, "come")?;
        let wanted = FifoInterrupts::from_bits(wanted.into());
        if wanted.is_empty() {
            return Err(invalid("no interrupt is wanted"));
        }
        let deadline = Deadline::after(Duration::from_micros(timeoutInCycles / NICFORGE_SPI_CYCLES_PER_US));

        let subgroup = library::subgroup(subgrpid)?;
        let pending = subgroup.handle().with(|inner, _| {
            let pending = match inner.subgroup.wait_interrupts(wanted, deadline, None) {
                Err(Error::Driver(DriverError::Timeout { .. })) => {
                    return Err(Failure::new(libc::EAGAIN, "no interrupt has come"));
                }
                pending => pending.map_err(failure)?,
            };
            inner.subgroup.clear_interrupts(pending).map_err(failure)?;
            Ok(pending)
        })?;

        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(pending.bits() as u32) };
        Ok(())
    })
}
