//! Reception of packets by functions.

use std::{
    ffi::{c_int, c_void},
    sync::{PoisonError, RwLock},
};

use nicforge_hwi::mu_packet::{HEADER, MAX_PACKET};
use nicforge_spi::Packet;
use zerocopy::IntoBytes;

use super::{library_number, with_owner};
use crate::{
    spi::{
        failure::{failure, invalid},
        subgroup::Inner,
        types::{
            BGQ_MU_NUM_REC_FIFOS_PER_SUBGROUP, MUSPI_MAX_FUNCTION_IDS, MUSPI_RecFifo_t,
            MUSPI_RecFifoSubGroup_t, MUSPI_RecvFunction_t,
        },
    },
    support::{Failure, guarded_number, guarded_status, reference},
};

/// Maximum number of packets that a poll takes from a FIFO before it calls their functions.
const POLL_BATCH: usize = 8;

/// A registered function and its parameter.
#[derive(Clone, Copy)]
struct Receiver {
    function: unsafe extern "C" fn(*mut c_void, *mut c_void, u32) -> c_int,
    /// Address of the parameter, which only C uses.
    param: usize,
}

/// The registered functions by their ids, for all FIFOs of the process.
static RECEIVERS: RwLock<[Option<Receiver>; MUSPI_MAX_FUNCTION_IDS]> =
    RwLock::new([None; MUSPI_MAX_FUNCTION_IDS]);

/// Returns the receiver for a function that is not NULL.
fn receiver(function: MUSPI_RecvFunction_t, param: *mut c_void) -> Result<Receiver, Failure> {
    let function = function.ok_or_else(|| Failure::new(libc::EFAULT, "the function is NULL"))?;
    Ok(Receiver { function, param: param.expose_provenance() })
}

/// Calls `call` with the table of functions, to change it.
fn change_table<R>(call: impl FnOnce(&mut [Option<Receiver>; MUSPI_MAX_FUNCTION_IDS]) -> R) -> R {
    call(&mut RECEIVERS.write().unwrap_or_else(PoisonError::into_inner))
}

/// Sets the function for packets whose first software byte is `id`, in place of an earlier one.
/// Returns 0, or a negative error number; the public function returns nothing.
///
/// # Safety
/// `fn_` may be called with `param` and a packet until it is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_RegisterRecvFunction(
    fn_: MUSPI_RecvFunction_t,
    param: *mut c_void,
    id: u32,
) -> i32 {
    guarded_status(|| {
        let receiver = receiver(fn_, param)?;
        change_table(|table| match table.get_mut(id as usize) {
            Some(slot) => {
                *slot = Some(receiver);
                Ok(())
            }
            None => Err(invalid(format!("there is no function id {id}"))),
        })
    })
}

/// Sets the function of the lowest free id. Returns the id, or a negative error number.
///
/// # Safety
/// As MUSPI_RegisterRecvFunction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_RegisterReceiveFunction(fn_: MUSPI_RecvFunction_t, param: *mut c_void) -> i32 {
    guarded_number(|| {
        let receiver = receiver(fn_, param)?;
        change_table(|table| {
            let free = table.iter().position(Option::is_none);
            let free = free.ok_or_else(|| Failure::new(libc::ENOBUFS, "all function ids are in use"))?;
            table[free] = Some(receiver);
            Ok(free as i32)
        })
    })
}

/// Removes the function of an id.
#[unsafe(no_mangle)]
pub extern "C" fn MUSPI_DeRegisterReceiveFunction(id: u32) -> i32 {
    guarded_status(|| {
        let removed = change_table(|table| table.get_mut(id as usize).map(Option::take));
        removed.map(drop).ok_or_else(|| invalid(format!("there is no function id {id}")))
    })
}

/// Returns a reception FIFO of a subgroup, or NULL if none has this number.
///
/// # Safety
/// `fg_ptr` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_IdToRecFifo(
    fifoid: i32,
    fg_ptr: *mut MUSPI_RecFifoSubGroup_t,
) -> *mut MUSPI_RecFifo_t {
    let number = usize::try_from(fifoid).unwrap_or(usize::MAX);
    if fg_ptr.is_null() || number >= BGQ_MU_NUM_REC_FIFOS_PER_SUBGROUP {
        return std::ptr::null_mut();
    }
    // SAFETY: not NULL, and valid by this function's contract.
    let fifos = unsafe { &raw mut (*fg_ptr)._recfifos };
    fifos.cast::<MUSPI_RecFifo_t>().wrapping_add(number)
}

/// A copy of a packet, aligned as C's structures of headers are.
#[repr(C, align(32))]
struct PacketCopy {
    bytes: [u8; MAX_PACKET],
    length: u32,
}

impl PacketCopy {
    const EMPTY: Self = Self { bytes: [0; MAX_PACKET], length: 0 };

    /// Copies a packet: its header, and its payload after it.
    fn fill(&mut self, packet: &Packet<'_>) -> Result<(), nicforge_spi::Error> {
        let (header, payload) = self.bytes.split_at_mut(HEADER);
        header.copy_from_slice(packet.header().as_bytes());
        self.length = (HEADER + packet.read(payload)?) as u32;
        Ok(())
    }

    /// Returns the number of the packet's function: the first software byte. The software bytes are
    /// the last ones of the header.
    fn function_id(&self) -> u8 {
        self.bytes[HEADER - nicforge_spi::SOFTWARE_BYTES]
    }
}

/// Removes at most `npackets` packets from a FIFO, and passes each to the function registered for
/// its first software byte. A packet without a function is dropped. It does not wait for packets.
///
/// Returns the number of packets removed, dropped ones included. Returns 0 when the FIFO is empty,
/// and also after an error, which sets the text of nicforge_spi_last_error.
///
/// A registered function may call all functions of this header except nicforge_spi_close, also for
/// this FIFO. MUSPI_RecFifoPoll removes up to 8 packets before it passes on the first of them. So
/// when a registered function calls it, later packets are passed on before the rest of those 8.
///
/// # Safety
/// `rec_fifo` is NULL, or from MUSPI_IdToRecFifo. The contract of MUSPI_RegisterRecvFunction holds
/// for all registered functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_RecFifoPoll(rec_fifo: *mut MUSPI_RecFifo_t, npackets: u32) -> u32 {
    let mut taken_count = 0;
    let mut buffers = [const { PacketCopy::EMPTY }; POLL_BATCH];

    while taken_count < npackets {
        let maximum = (npackets - taken_count).min(POLL_BATCH as u32);
        // SAFETY: by this function's contract.
        let count = unsafe { copy_packets(rec_fifo, maximum, &mut buffers) };
        if count == 0 {
            break;
        }

        for packet in &mut buffers[..count] {
            let id = usize::from(packet.function_id());
            let receiver = RECEIVERS.read().unwrap_or_else(PoisonError::into_inner)[id];
            if let Some(Receiver { function, param }) = receiver {
                let param = std::ptr::with_exposed_provenance_mut(param);
                // SAFETY: the function may be called with its parameter and a packet by the
                // contract of its registration. The subgroup is not locked.
                unsafe { function(param, packet.bytes.as_mut_ptr().cast(), packet.length) };
            }
        }
        taken_count += count as u32;
    }
    taken_count
}

/// Takes at most `maximum` packets from a FIFO, copies them to `buffers`, and returns their number.
///
/// # Safety
/// `rec_fifo` is NULL, or from MUSPI_IdToRecFifo.
unsafe fn copy_packets(
    rec_fifo: *const MUSPI_RecFifo_t,
    maximum: u32,
    buffers: &mut [PacketCopy; POLL_BATCH],
) -> usize {
    let mut count = 0;
    guarded_status(|| {
        // SAFETY: by this function's contract.
        let fifo = unsafe { reference(rec_fifo) }?;
        let receive = |inner: &mut Inner| {
            let mut copied = Ok(());
            let received = inner.subgroup.receive(library_number(fifo.number), maximum, |packet, _| {
                // A packet that can't be read is lost, and so are those of this call after it.
                if copied.is_ok()
                    && let Some(buffer) = buffers.get_mut(count)
                {
                    copied = buffer.fill(packet);
                    count += usize::from(copied.is_ok());
                }
            });
            received.and(copied).map_err(failure)
        };

        // SAFETY: its owner is NULL or valid by this function's contract.
        unsafe { with_owner(fifo.owner, receive) }
    });
    count
}
