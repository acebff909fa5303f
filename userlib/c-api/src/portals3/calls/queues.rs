//! Event queues and events.
//!
//! UNSAFETY: as in the module above.

use std::{ffi::c_int, ptr::NonNull, slice, sync::Arc, time::Duration};

use nicforge_driver::{Deadline, Waiter};
use nicforge_portals::{Event, EventKind, Failure as Reason, ProcessId};

use super::out_pointer;
use crate::{
    portals3::{
        failure::{driver_failure, failure, guarded, refused},
        library::with_objects,
        objects::{DescriptorValues, Queue, TakenEvent},
        types::{
            NICFORGE_PORTALS_FAIL_DATA, NICFORGE_PORTALS_FAIL_MEMORY, NICFORGE_PORTALS_FAIL_NODE,
            PTL_EQ_DROPPED, PTL_EQ_EMPTY, PTL_EQ_INVALID, PTL_EVENT_ACK, PTL_EVENT_GET_END,
            PTL_EVENT_GET_START, PTL_EVENT_PUT_END, PTL_EVENT_PUT_START, PTL_EVENT_REPLY_END,
            PTL_EVENT_REPLY_START, PTL_EVENT_SEND_END, PTL_EVENT_SEND_START, PTL_EVENT_UNLINK, PTL_FAIL,
            PTL_JID_ANY, PTL_NI_OK, PTL_NO_SPACE, PTL_OK, PTL_TIME_FOREVER, PTL_UID_ANY, ptl_eq_handler_t,
            ptl_event_kind_t, ptl_event_t, ptl_handle_eq_t, ptl_handle_ni_t, ptl_process_id_t, ptl_size_t,
            ptl_time_t,
        },
    },
    support::Failure,
};

/// Maximum number of events of a queue.
const MAX_EVENTS: u32 = 65_535;

/// Allocates an event queue for at least `count` events, at most 65,535. There are no handlers:
/// `eq_handler` is PTL_EQ_HANDLER_NONE.
///
/// Returns PTL_OK, PTL_NO_INIT, PTL_NI_INVALID, PTL_NO_SPACE, PTL_SEGV, or PTL_FAIL.
///
/// # Safety
/// `eq_handle` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlEQAlloc(
    ni_handle: ptl_handle_ni_t,
    count: ptl_size_t,
    eq_handler: ptl_eq_handler_t,
    eq_handle: *mut ptl_handle_eq_t,
) -> c_int {
    guarded(|| {
        let interface = with_objects(|objects| objects.interface(ni_handle))?;
        let out = out_pointer(eq_handle, "eq_handle")?;
        if eq_handler.is_some() {
            return Err(refused(PTL_FAIL, "there are no handlers of events: use PTL_EQ_HANDLER_NONE"));
        }

        let count = u32::try_from(count).ok().filter(|&count| count <= MAX_EVENTS);
        let count = count.ok_or_else(|| refused(PTL_NO_SPACE, "a queue has at most 65535 events"))?;
        let events = interface.portals().allocate_queue(count).map_err(failure)?;
        let (owner, device) = (interface.portals().id(), interface.portals().device().clone());
        let handle = with_objects(|objects| objects.add_queue(Queue::new(ni_handle, events, owner, device)))?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(handle) };
        Ok(PTL_OK)
    })
}

/// Frees an event queue. Unlink its descriptors first, or it takes room until PtlNIFini. Waits of
/// other threads for its events end with PTL_EQ_INVALID.
///
/// Returns PTL_OK, PTL_NO_INIT or PTL_EQ_INVALID.
#[unsafe(no_mangle)]
pub extern "C" fn PtlEQFree(eq_handle: ptl_handle_eq_t) -> c_int {
    guarded(|| {
        let queue = with_objects(|objects| objects.remove_queue(eq_handle))?;
        drop(queue);
        Ok(PTL_OK)
    })
}

/// Takes the next event.
///
/// Returns PTL_OK; PTL_EQ_DROPPED with the event, when events before it were lost; PTL_EQ_EMPTY;
/// PTL_NO_INIT, PTL_EQ_INVALID, PTL_SEGV, or PTL_FAIL.
///
/// # Safety
/// `event` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlEQGet(eq_handle: ptl_handle_eq_t, event: *mut ptl_event_t) -> c_int {
    guarded(|| {
        let queue = with_objects(|objects| objects.queue(eq_handle))?;
        let out = out_pointer(event, "event")?;
        match queue.take()? {
            // SAFETY: not NULL, and valid by this function's contract.
            Some(taken) => unsafe { store_event(&queue, &taken, out) },
            None => Ok(PTL_EQ_EMPTY),
        }
    })
}

/// Waits for the next event and takes it.
///
/// Returns PTL_OK; PTL_EQ_DROPPED with the event, when events before it were lost; PTL_NO_INIT,
/// PTL_EQ_INVALID, PTL_SEGV, or PTL_FAIL.
///
/// # Safety
/// `event` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlEQWait(eq_handle: ptl_handle_eq_t, event: *mut ptl_event_t) -> c_int {
    guarded(|| {
        let queue = with_objects(|objects| objects.queue(eq_handle))?;
        let out = out_pointer(event, "event")?;
        match next_event(slice::from_ref(&queue), Deadline::never())? {
            // SAFETY: not NULL, and valid by this function's contract.
            Some((_, taken)) => unsafe { store_event(&queue, &taken, out) },
            None => Ok(PTL_EQ_EMPTY),
        }
    })
}

/// Waits for an event of any of `size` queues of one interface, and takes it. Stores the position
/// of its queue in `*which_eq`. Waits for at most `timeout` milliseconds; 0 only checks, and
/// PTL_TIME_FOREVER has no limit.
///
/// Returns PTL_OK; PTL_EQ_DROPPED with the event, when events before it were lost; PTL_EQ_EMPTY
/// after the time; PTL_NO_INIT, PTL_EQ_INVALID, PTL_SEGV, or PTL_FAIL.
///
/// # Safety
/// `eq_handles` is NULL or has `size` handles; `event` and `which_eq` are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PtlEQPoll(
    eq_handles: *const ptl_handle_eq_t,
    size: c_int,
    timeout: ptl_time_t,
    event: *mut ptl_event_t,
    which_eq: *mut c_int,
) -> c_int {
    guarded(|| {
        let handles = out_pointer(eq_handles.cast_mut(), "eq_handles")?;
        let (out, which) = (out_pointer(event, "event")?, out_pointer(which_eq, "which_eq")?);
        let size = usize::try_from(size).ok().filter(|&size| size > 0);
        let size = size.ok_or_else(|| refused(PTL_EQ_INVALID, "there are no event queues"))?;

        // SAFETY: not NULL, and of this length by this function's contract.
        let handles = unsafe { std::slice::from_raw_parts(handles.as_ptr(), size) };
        let queues = with_objects(|objects| {
            handles.iter().map(|&handle| objects.queue(handle)).collect::<Result<Vec<_>, _>>()
        })?;
        if queues.windows(2).any(|pair| pair[0].interface != pair[1].interface) {
            return Err(refused(PTL_EQ_INVALID, "the event queues belong to several interfaces"));
        }

        let deadline = match timeout {
            PTL_TIME_FOREVER => Deadline::never(),
            milliseconds => Deadline::after(Duration::from_millis(milliseconds.into())),
        };
        let Some((position, taken)) = next_event(&queues, deadline)? else { return Ok(PTL_EQ_EMPTY) };
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { which.write(position as c_int) };
        // SAFETY: as above.
        unsafe { store_event(&queues[position], &taken, out) }
    })
}

/// Waits for an event of any of the queues. Returns it with the position of its queue, or `None`
/// after the deadline.
fn next_event(queues: &[Arc<Queue>], deadline: Deadline) -> Result<Option<(usize, TakenEvent)>, Failure> {
    let Some(first) = queues.first() else { return Ok(None) };
    let mut waiter = Waiter::new(&first.device, deadline, None);

    loop {
        // An error of one queue is returned after the events of the other queues.
        let mut failed_queue = Ok(());
        for (position, queue) in queues.iter().enumerate() {
            match queue.take() {
                Ok(Some(taken)) => return Ok(Some((position, taken))),
                Ok(None) => {}
                Err(error) => failed_queue = Err(error),
            }
        }

        failed_queue?;
        if waiter.check().is_err() {
            return Ok(None);
        }
        waiter.pause(&first.device).map_err(driver_failure)?;
    }
}

/// Stores an event for C, and returns the code of the call. The event of an unlink makes the handle
/// of its descriptor invalid.
///
/// # Safety
/// `out` is valid.
unsafe fn store_event(
    queue: &Queue,
    taken: &TakenEvent,
    out: NonNull<ptl_event_t>,
) -> Result<c_int, Failure> {
    let event = &taken.event;
    let handle = event.user_pointer as u32;
    let values = with_objects(|objects| {
        let values = objects
            .descriptors
            .find_even_retired(handle)
            .map_or(DescriptorValues::UNKNOWN, |record| record.values);
        if event.kind == EventKind::Unlink {
            objects.retire_descriptor(handle);
        }
        Ok(values)
    })?;

    let stored = ptl_event_t {
        r#type: kind(event.kind),
        initiator: initiator(queue.owner, event),
        uid: PTL_UID_ANY,
        jid: PTL_JID_ANY,
        pt_index: event.message.portal.into(),
        match_bits: event.message.match_bits,
        rlength: event.message.requested.into(),
        mlength: event.message.moved.into(),
        offset: event.message.offset,
        md_handle: handle,
        md: values.into(),
        hdr_data: event.message.header_data,
        link: event.link,
        ni_fail_type: event.failure.map_or(PTL_NI_OK, reason),
        sequence: event.sequence,
    };
    // SAFETY: valid by this function's contract.
    unsafe { out.write(stored) };
    Ok(if taken.follows_loss { PTL_EQ_DROPPED } else { PTL_OK })
}

/// Returns the process that has started the operation of an event of `owner`.
fn initiator(owner: ProcessId, event: &Event) -> ptl_process_id_t {
    let id = match event.kind {
        EventKind::SendStart
        | EventKind::SendEnd
        | EventKind::ReplyStart
        | EventKind::ReplyEnd
        | EventKind::Ack => owner,
        _ => event.peer,
    };
    ptl_process_id_t { nid: id.node, pid: id.process.into() }
}

/// Returns the standard's number of an event's kind.
fn kind(kind: EventKind) -> ptl_event_kind_t {
    match kind {
        EventKind::GetStart => PTL_EVENT_GET_START,
        EventKind::GetEnd => PTL_EVENT_GET_END,
        EventKind::PutStart => PTL_EVENT_PUT_START,
        EventKind::PutEnd => PTL_EVENT_PUT_END,
        EventKind::ReplyStart => PTL_EVENT_REPLY_START,
        EventKind::ReplyEnd => PTL_EVENT_REPLY_END,
        EventKind::SendStart => PTL_EVENT_SEND_START,
        EventKind::SendEnd => PTL_EVENT_SEND_END,
        EventKind::Ack => PTL_EVENT_ACK,
        EventKind::Unlink => PTL_EVENT_UNLINK,
    }
}

/// Returns the number by which C names the reason of a failed operation.
fn reason(reason: Reason) -> u32 {
    match reason {
        Reason::Node => NICFORGE_PORTALS_FAIL_NODE,
        Reason::Data => NICFORGE_PORTALS_FAIL_DATA,
        Reason::Memory => NICFORGE_PORTALS_FAIL_MEMORY,
        Reason::Other(code) => code.into(),
    }
}
