//! Descriptors of messages.

use std::ptr::NonNull;

use crate::{
    spi::{
        descriptors::{Route, Target, build},
        types::{
            MUHWI_Descriptor_t, MUSPI_BaseDescriptorInfoFields_t, MUSPI_CollectiveDirectPutDescriptorInfo_t,
            MUSPI_CollectiveMemoryFIFODescriptorInfo_t, MUSPI_CollectiveRemoteGetDescriptorInfo_t,
            MUSPI_Pt2PtDirectPutDescriptorInfo_t, MUSPI_Pt2PtMemoryFIFODescriptorInfo_t,
            MUSPI_Pt2PtRemoteGetDescriptorInfo_t,
        },
    },
    support::{Failure, guarded_status, non_null, reference},
};

/// Builds a descriptor and stores it for C.
///
/// # Safety
/// `out` is valid.
unsafe fn store_descriptor(
    out: NonNull<MUHWI_Descriptor_t>,
    base: &MUSPI_BaseDescriptorInfoFields_t,
    route: &Route<'_>,
    target: &Target<'_>,
) -> Result<(), Failure> {
    let descriptor = build(base, route, target)?;
    // SAFETY: valid by this function's contract. C may align it to 4 bytes only.
    unsafe { out.write_unaligned(MUHWI_Descriptor_t(descriptor)) };
    Ok(())
}

/// Makes the descriptor of a point-to-point memory-FIFO message. A field without a meaning gives
/// -EINVAL.
///
/// # Safety
/// `desc` and `info` are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_CreatePt2PtMemoryFIFODescriptor(
    desc: *mut MUHWI_Descriptor_t,
    info: *mut MUSPI_Pt2PtMemoryFIFODescriptorInfo_t,
) -> i32 {
    guarded_status(|| {
        let out = non_null(desc, "desc")?;
        // SAFETY: by this function's contract.
        let info = unsafe { reference(info) }?;
        let (route, target) = (Route::PointToPoint(&info.Pt2Pt), Target::MemoryFifo(&info.MemFIFO));
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { store_descriptor(out, &info.Base, &route, &target) }
    })
}

/// Makes the descriptor of a point-to-point direct put of 1 byte or more. A field without a
/// meaning gives -EINVAL.
///
/// # Safety
/// `desc` and `info` are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_CreatePt2PtDirectPutDescriptor(
    desc: *mut MUHWI_Descriptor_t,
    info: *mut MUSPI_Pt2PtDirectPutDescriptorInfo_t,
) -> i32 {
    guarded_status(|| {
        let out = non_null(desc, "desc")?;
        // SAFETY: by this function's contract.
        let info = unsafe { reference(info) }?;
        let (route, target) = (Route::PointToPoint(&info.Pt2Pt), Target::DirectPut(&info.DirectPut));
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { store_descriptor(out, &info.Base, &route, &target) }
    })
}

/// Makes the descriptor of a point-to-point remote get, whose payload is descriptors. A field
/// without a meaning gives -EINVAL.
///
/// # Safety
/// `desc` and `info` are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_CreatePt2PtRemoteGetDescriptor(
    desc: *mut MUHWI_Descriptor_t,
    info: *mut MUSPI_Pt2PtRemoteGetDescriptorInfo_t,
) -> i32 {
    guarded_status(|| {
        let out = non_null(desc, "desc")?;
        // SAFETY: by this function's contract.
        let info = unsafe { reference(info) }?;
        let (route, target) = (Route::PointToPoint(&info.Pt2Pt), Target::RemoteGet(&info.RemoteGet));
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { store_descriptor(out, &info.Base, &route, &target) }
    })
}

/// Makes the descriptor of a collective memory-FIFO message. A field without a meaning gives
/// -EINVAL.
///
/// # Safety
/// `desc` and `info` are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_CreateCollectiveMemoryFIFODescriptor(
    desc: *mut MUHWI_Descriptor_t,
    info: *mut MUSPI_CollectiveMemoryFIFODescriptorInfo_t,
) -> i32 {
    guarded_status(|| {
        let out = non_null(desc, "desc")?;
        // SAFETY: by this function's contract.
        let info = unsafe { reference(info) }?;
        let (route, target) = (Route::Collective(&info.Collective), Target::MemoryFifo(&info.MemFIFO));
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { store_descriptor(out, &info.Base, &route, &target) }
    })
}

/// Makes the descriptor of a collective direct put of 1 byte or more. Returns -EINVAL if a field
/// has no valid value.
///
/// # Safety
/// `desc` and `info` are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_CreateCollectiveDirectPutDescriptor(
    desc: *mut MUHWI_Descriptor_t,
    info: *mut MUSPI_CollectiveDirectPutDescriptorInfo_t,
) -> i32 {
    guarded_status(|| {
        let out = non_null(desc, "desc")?;
        // SAFETY: by this function's contract.
        let info = unsafe { reference(info) }?;
        let (route, target) = (Route::Collective(&info.Collective), Target::DirectPut(&info.DirectPut));
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { store_descriptor(out, &info.Base, &route, &target) }
    })
}

/// Makes the descriptor of a collective remote get, whose payload is descriptors. A field without
/// a meaning gives -EINVAL.
///
/// # Safety
/// `desc` and `info` are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_CreateCollectiveRemoteGetDescriptor(
    desc: *mut MUHWI_Descriptor_t,
    info: *mut MUSPI_CollectiveRemoteGetDescriptorInfo_t,
) -> i32 {
    guarded_status(|| {
        let out = non_null(desc, "desc")?;
        // SAFETY: by this function's contract.
        let info = unsafe { reference(info) }?;
        let (route, target) = (Route::Collective(&info.Collective), Target::RemoteGet(&info.RemoteGet));
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { store_descriptor(out, &info.Base, &route, &target) }
    })
}
