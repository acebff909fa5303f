//! `DEVICE_GET_IRQ_INFO` and `DEVICE_SET_IRQS`.

use std::os::fd::AsFd;

use nicforge_vfio_user::{
    Client, Errno, IRQ_FLAG_AUTOMASKED, IRQ_FLAG_EVENTFD, IRQ_FLAG_MASKABLE, IrqAction, IrqPayload,
    PCI_INTX_IRQ, PCI_MSIX_IRQ, PCI_NUM_IRQS,
};
use nix::sys::eventfd::EventFd;
use vfio_bindings::bindings::vfio::*;

use super::{
    card::{Irqs, VECTORS, reg},
    rig::Rig,
};
use crate::interop::common::{eventfd, is_idle, signals, with_time_out};

/// Binds `N` interrupts from 0 on in one call.
fn bind<const N: usize>(client: &Client, index: u32) -> [EventFd; N] {
    let fds: [EventFd; N] = std::array::from_fn(|_| eventfd());
    let payload = fds.each_ref().map(|fd| Some(fd.as_fd()));
    client.set_irqs(index, 0, IrqAction::Trigger, IrqPayload::EventFd(&payload)).unwrap();
    fds
}

/// Writes a register of the card.
fn write(client: &Client, register: u64, value: u32) {
    client.region_write(0, register, &value.to_le_bytes(), false).unwrap();
}

#[test]
fn interrupt_types_of_the_vfio_user_crates_server_are_understood() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();
        let infos: Vec<_> = (0..PCI_NUM_IRQS)
            .map(|index| client.irq_info(index).unwrap())
            .map(|info| (info.flags, info.count))
            .collect();

        let line = IRQ_FLAG_EVENTFD | IRQ_FLAG_MASKABLE | IRQ_FLAG_AUTOMASKED;
        assert_eq!(infos, [(line, 1), (0, 0), (IRQ_FLAG_EVENTFD, VECTORS), (0, 0), (0, 0)]);
        assert_eq!(client.irq_info(PCI_NUM_IRQS).unwrap_err().errno(), Errno::EINVAL);
    });
}

/// The `vfio_user` crate's server accepts one descriptor in each message, so four vectors need four
/// messages.
#[test]
fn eventfds_are_passed_to_the_vfio_user_crate_one_by_one_and_are_signalled() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();
        let fds: [EventFd; 4] = bind(&client, PCI_MSIX_IRQ);

        for vector in [2, 0, 3] {
            write(&client, reg::RAISE, vector);
            assert_eq!(signals(&fds[vector as usize]), 1);
        }

        assert!(is_idle(&fds[1]));

        let flags = VFIO_IRQ_SET_ACTION_TRIGGER | VFIO_IRQ_SET_DATA_EVENTFD;
        let one_eventfd = |start| Irqs { index: PCI_MSIX_IRQ, flags, start, count: 1, fds: 1 };

        assert_eq!(*rig.seen.irqs.lock().unwrap(), [0, 1, 2, 3].map(one_eventfd));
    });
}

#[test]
fn a_vector_removed_from_the_vfio_user_crate_signals_no_more_and_disabling_silences_all() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();
        let fds: [EventFd; 2] = bind(&client, PCI_MSIX_IRQ);

        client.set_irqs(PCI_MSIX_IRQ, 1, IrqAction::Trigger, IrqPayload::EventFd(&[None])).unwrap();
        write(&client, reg::RAISE, 1);
        write(&client, reg::RAISE, 0);

        assert_eq!(signals(&fds[0]), 1);

        client.irq_disable(PCI_MSIX_IRQ).unwrap();
        write(&client, reg::RAISE, 0);

        assert!(fds.iter().all(is_idle));
    });
}

#[test]
fn interrupts_are_triggered_at_the_vfio_user_crates_server() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();
        let fds: [EventFd; 3] = bind(&client, PCI_MSIX_IRQ);

        client.set_irqs(PCI_MSIX_IRQ, 1, IrqAction::Trigger, IrqPayload::None(2)).unwrap();
        assert_eq!([signals(&fds[1]), signals(&fds[2])], [1, 1]);
        assert!(is_idle(&fds[0]));
    });
}

#[test]
fn intx_of_the_vfio_user_crates_server_is_masked_and_unmasked() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();
        let [line] = bind(&client, PCI_INTX_IRQ);
        let one = IrqPayload::None(1);

        write(&client, reg::LINE, 1);
        assert_eq!(signals(&line), 1);

        // The line masked itself and is still asserted.
        client.set_irqs(PCI_INTX_IRQ, 0, IrqAction::Unmask, one).unwrap();
        assert_eq!(signals(&line), 1);

        write(&client, reg::LINE, 0);
        client.set_irqs(PCI_INTX_IRQ, 0, IrqAction::Mask, one).unwrap();
        write(&client, reg::LINE, 1);

        assert!(is_idle(&line));

        client.set_irqs(PCI_INTX_IRQ, 0, IrqAction::Unmask, one).unwrap();
        assert_eq!(signals(&line), 1);
    });
}
