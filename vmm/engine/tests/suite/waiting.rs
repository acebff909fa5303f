//! The wake-up of clients that wait for their device.
#![allow(clippy::unwrap_used, reason = "a failure to set up is a failed test")]

use std::sync::atomic::Ordering;

use crate::common::*;
use nicforge_hwi::attachment::waiting;
use nicforge_shm::{Access, SharedMemory, SharedU32};
use nicforge_vfio_user::{Client, ClientError, Errno, IrqAction, IrqPayload};
use std::os::fd::AsFd;

/// Maps the waiting page of a client, and returns its waiting word.
fn waiting_word(client: &Client) -> SharedU32 {
    let region = client.region_info(waiting::REGION).unwrap();
    let fd = region.fd.unwrap();
    let page = SharedMemory::map(fd.as_fd(), region.offset, waiting::SIZE as usize, Access::ReadWrite);
    let page = page.unwrap();
    assert_eq!(page.u32(waiting::MAGIC).unwrap().load(Ordering::Acquire), waiting::MAGIC_VALUE);
    page.u32(waiting::WAITING).unwrap()
}

both_loops! {
    fn waiting_client_is_woken_when_its_function_works_and_only_then(config) {
        let served = Served::start(config);
        let client = served.client(A);
        let (word, event) = (waiting_word(&client), bind(&client, waiting::IRQ, 0));

        write32(&client, reg::SCRATCH, 1);
        read32(&client, reg::SCRATCH);
        let without_waiting = is_unsignalled(&event);
        word.store(1, Ordering::SeqCst);
        write32(&client, reg::SCRATCH, 2);
        let signals = wait_for(&event);

        assert!(without_waiting);
        assert_eq!((signals, word.load(Ordering::SeqCst)), (1, 0));
        assert_eq!(served.snapshot().client_wakes, 1);
    }

    fn wake_up_needs_the_page_and_one_eventfd(config) {
        let served = Served::start(config);
        let client = served.client(A);
        let event = eventfd();
        let bind_one = |start| {
            let payload = [Some(event.as_fd())];
            client.set_irqs(waiting::IRQ, start, IrqAction::Trigger, IrqPayload::EventFd(&payload))
        };

        let refused = |result: Result<(), ClientError>| {
            matches!(result, Err(ClientError::Refused { errno, .. }) if errno == Errno::EINVAL)
        };
        assert!(refused(bind_one(0)), "there is no page yet");
        let word = waiting_word(&client);
        assert!(refused(bind_one(1)), "there is one vector");
        bind_one(0).unwrap();
        client.irq_disable(waiting::IRQ).unwrap();
        word.store(1, Ordering::SeqCst);
        write32(&client, reg::SCRATCH, 1);
        read32(&client, reg::SCRATCH);

        assert!(is_unsignalled(&event), "the eventfd is unbound");
    }

    fn next_client_has_a_waiting_page_of_its_own(config) {
        let served = Served::start(config);
        let client = served.client(A);
        let old = waiting_word(&client);
        drop(client);
        served.wait_until_free(A);

        let client = served.client(A);
        let (new, event) = (waiting_word(&client), bind(&client, waiting::IRQ, 0));
        old.store(1, Ordering::SeqCst);
        write32(&client, reg::SCRATCH, 1);
        read32(&client, reg::SCRATCH);

        assert_eq!(new.load(Ordering::SeqCst), 0);
        assert!(is_unsignalled(&event));
    }
}
