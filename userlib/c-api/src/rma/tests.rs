//! Tests that need no card.

use std::{ffi::CStr, ptr};

use nicforge_rma::{Error, Kind, Notification, Role, Status};

use super::*;

/// Returns the text of this thread's last error.
fn last_text() -> String {
    // SAFETY: valid until this thread's next error.
    unsafe { CStr::from_ptr(rma_last_error()) }.to_str().unwrap().to_owned()
}

#[test]
fn null_gives_efault_or_nothing() {
    let calls = [
        // SAFETY: NULL is refused before it is used.
        unsafe { rma_open(ptr::null(), ptr::null(), ptr::null_mut()) },
        // SAFETY: as above.
        unsafe { rma_allocate(ptr::null(), 1, ptr::null_mut()) },
        // SAFETY: as above.
        unsafe { rma_register(ptr::null(), ptr::null(), 0, 0, 0, ptr::null_mut()) },
        // SAFETY: as above.
        unsafe { rma_connect(ptr::null(), 0, 0, ptr::null_mut()) },
        // SAFETY: as above.
        unsafe { rma_put_immediate(ptr::null(), rma_target::default(), ptr::null(), 8, 0, 0) },
        // SAFETY: as above.
        unsafe { rma_probe(ptr::null(), ptr::null_mut()) },
        // SAFETY: as above.
        unsafe { rma_cancel(ptr::null(), true) },
    ];
    assert_eq!(calls, [-libc::EFAULT; 7]);

    // SAFETY: as above.
    let counts = [unsafe { rma_put(ptr::null(), rma_target::default(), 0, 0, 1, 0) }, unsafe {
        rma_in_flight(ptr::null())
    }];
    assert_eq!(counts, [i64::from(-libc::EFAULT); 2]);

    // SAFETY: NULL is allowed, here and below.
    unsafe { rma_close(ptr::null_mut()) };
    // SAFETY: as above.
    unsafe { rma_release(ptr::null_mut()) };
    // SAFETY: as above.
    assert_eq!(unsafe { rma_deregister(ptr::null_mut()) }, 0);
    // SAFETY: as above.
    assert!(unsafe { rma_buffer_memory(ptr::null()) }.is_null());
    // SAFETY: as above.
    assert_eq!(unsafe { rma_address(ptr::null()) }, 0);
}

#[test]
fn opening_a_missing_socket_returns_an_error_and_no_handle() {
    let mut port = ptr::null_mut();
    // SAFETY: a C string, no options, a valid pointer.
    let result = unsafe { rma_open(c"/nonexistent/socket".as_ptr(), ptr::null(), &mut port) };

    assert!(result < 0 && port.is_null() && !last_text().is_empty());
}

#[test]
fn unknown_notification_bits_are_an_error() {
    // SAFETY: the bits are checked before the handle is used.
    let result = unsafe { rma_put(ptr::null(), rma_target::default(), 0, 0, 1, 8) };

    assert_eq!(
        (result, last_text().as_str()),
        (i64::from(-libc::EINVAL), "notify 0x8 has unknown bits 0x8: use RMA_NOTIFY_...")
    );
}

#[test]
fn notifications_are_translated_field_by_field() {
    let notification = Notification {
        role: Role::Completer,
        status: Status::TimedOut,
        kind: Kind::Get,
        node: 5,
        vpid: 6,
        length: 7,
        address: 8,
    };

    let expected = rma_notification {
        address: 8,
        length: 7,
        node: 5,
        vpid: 6,
        role: RMA_NOTIFY_COMPLETER as u8,
        kind: RMA_GET,
        status: RMA_TIMED_OUT,
    };

    assert_eq!(rma_notification::from(&notification), expected);
}

#[test]
fn errors_have_the_documented_numbers() {
    let errno = |error| failure(error).errno();
    assert_eq!(errno(Error::Length { length: 0, most: 8 }), libc::EINVAL);
    assert_eq!(errno(Error::Overflow { lost: 1 }), libc::EOVERFLOW);
    assert_eq!(errno(Error::Reset), libc::ENOTCONN);
    assert_eq!(errno(Error::Translation { what: "register", status: 2 }), libc::ENOMEM);
}
