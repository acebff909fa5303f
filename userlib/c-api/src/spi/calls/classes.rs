//! Class routes of collectives and barriers, which the node's kernel sets.

use nicforge_spi::{Box5, ClassRoute, CollectiveChannel, Resource};

use crate::{
    spi::{
        failure::{failure, invalid},
        library,
        types::{
            CR_COORD_T, CR_NUM_DIMS, CR_RECT_T, ClassRoute_t, Kernel_GlobalInterruptClassRouteAttributes_t,
        },
    },
    support::{Failure, guarded_status, non_null, reference},
};

/// Bits of a class route for its links and the node's own contribution.
const LINKS: u16 = 0xfff;
/// Position of the bits of a class route that name its virtual channel.
const CHANNEL_SHIFT: u16 = 12;

/// Returns the library's number of a class route.
pub(super) fn class(id: u32) -> Result<u8, Failure> {
    u8::try_from(id).map_err(|_| invalid(format!("there is no class route {id}")))
}

/// Allocates a class route of this kind.
fn allocate(resource: Resource, id: u32) -> Result<(), Failure> {
    let class = class(id)?;
    library::kernel()?.allocate_class(resource, class).map_err(failure)
}

/// Frees a class route of this kind.
fn free(resource: Resource, id: u32) -> Result<(), Failure> {
    let class = class(id)?;
    library::kernel()?.free(resource, 0, &[class]).map_err(failure)
}

/// Returns the library's class route, and the channel whose packets may use it.
fn route(cr: &ClassRoute_t) -> Result<(ClassRoute, CollectiveChannel), Failure> {
    let channel = match cr.input >> CHANNEL_SHIFT {
        0 => CollectiveChannel::CommWorld,
        1 => CollectiveChannel::System,
        2 => CollectiveChannel::SubComm,
        other => return Err(invalid(format!("class routes have no virtual channel {other}"))),
    };
    Ok((ClassRoute { input: cr.input & LINKS, output: cr.output & LINKS }, channel))
}

/// Allocates a class route of collectives. It opens the node's kernel.
#[unsafe(no_mangle)]
pub extern "C" fn Kernel_AllocateCollectiveClassRoute(id: u32) -> i32 {
    guarded_status(|| allocate(Resource::CollectiveClass, id))
}

/// Frees a class route of collectives.
#[unsafe(no_mangle)]
pub extern "C" fn Kernel_DeallocateCollectiveClassRoute(id: u32) -> i32 {
    guarded_status(|| free(Resource::CollectiveClass, id))
}

/// Sets this node's part of a class route of collectives.
///
/// # Safety
/// `cr` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_SetCollectiveClassRoute(id: u32, cr: *mut ClassRoute_t) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        let (route, channel) = route(unsafe { reference(cr) }?)?;
        library::kernel()?.set_collective_route(class(id)?, route, channel).map_err(failure)
    })
}

/// Allocates a class route of barriers. It opens the node's kernel.
///
/// # Safety
/// `attributes` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_AllocateGlobalInterruptClassRoute(
    id: u32,
    attributes: *mut Kernel_GlobalInterruptClassRouteAttributes_t,
) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        let attributes = unsafe { reference(attributes) }?;
        if attributes.System != 0 {
            return Err(Failure::new(libc::EPERM, "a program of users gets no barriers of the system"));
        }
        allocate(Resource::BarrierClass, id)
    })
}

/// Frees a class route of barriers.
#[unsafe(no_mangle)]
pub extern "C" fn Kernel_DeallocateGlobalInterruptClassRoute(id: i32) -> i32 {
    guarded_status(|| free(Resource::BarrierClass, id.cast_unsigned()))
}

/// Sets this node's part of a class route of barriers.
///
/// # Safety
/// `cr` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Kernel_SetGlobalInterruptClassRoute(id: i32, cr: *mut ClassRoute_t) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        let (route, _) = route(unsafe { reference(cr) }?)?;
        library::kernel()?.set_barrier_route(class(id.cast_unsigned())?, route).map_err(failure)
    })
}

/// Returns the library's coordinates of a node.
fn coordinates(position: &CR_COORD_T) -> [u8; CR_NUM_DIMS] {
    // No node has the coordinate `u8::MAX`, so the library refuses coordinates that are too high.
    position.coords.map(|coordinate| u8::try_from(coordinate).unwrap_or(u8::MAX))
}

/// Stores this node's part of the class route that spans a box of nodes (`comm`): a range of
/// coordinates in each dimension. The route's tree follows the dimensions in the order A to E, so
/// that `dims` must be NULL and `dim0` 0. The node's own contribution is one of the inputs. The
/// caller adds the bits of the virtual channel. `world` is not used, and may be NULL.
///
/// # Safety
/// `world` is not used; `worldroot`, `me`, `comm` and `cr` are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MUSPI_BuildNodeClassroute(
    world: *mut CR_RECT_T,
    worldroot: *mut CR_COORD_T,
    me: *mut CR_COORD_T,
    comm: *mut CR_RECT_T,
    dims: *mut i32,
    dim0: i32,
    cr: *mut ClassRoute_t,
) -> i32 {
    guarded_status(|| {
        let _ = world;
        let out = non_null(cr, "cr")?;
        if !dims.is_null() || dim0 != 0 {
            return Err(invalid("class routes go through the dimensions in the order A to E"));
        }

        // SAFETY: by this function's contract.
        let root = unsafe { reference(worldroot) }?;
        // SAFETY: by this function's contract.
        let me = unsafe { reference(me) }?;
        // SAFETY: by this function's contract.
        let comm = unsafe { reference(comm) }?;

        let nodes =
            Box5 { first: coordinates(&comm.ll), last: coordinates(&comm.ur), root: coordinates(root) };
        let contributes = true;
        let route = nodes.route(coordinates(me), contributes).map_err(failure)?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(ClassRoute_t { input: route.input, output: route.output }) };
        Ok(())
    })
}
