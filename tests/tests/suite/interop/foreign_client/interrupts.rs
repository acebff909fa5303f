//! `DEVICE_GET_IRQ_INFO` and `DEVICE_SET_IRQS`.

use std::os::fd::{AsFd, AsRawFd};

use nicforge_hwi::{
    pci::VENDOR_ID,
    proof::slot_fifo::*,
    tree::{BAR_MIRROR, BAR_WINDOW, Header, PAYLOAD, SLOT_CONTROL, SLOT_PAYLOAD, mirror, vector, window},
    tree_dcr::REG_INT_ENABLE,
};
use nicforge_tests::backing::{LIMIT, Rig};
use nicforge_vfio_user::{
    Errno, IRQ_FLAG_AUTOMASKED, IRQ_FLAG_EVENTFD, IRQ_FLAG_MASKABLE, IRQ_FLAG_NORESIZE, IrqAction,
    IrqPayload, PCI_CONFIG_REGION, PCI_ERR_IRQ, PCI_INTX_IRQ, PCI_MSI_IRQ, PCI_MSIX_IRQ, PCI_NUM_IRQS,
    PCI_REQ_IRQ,
};
use nix::sys::eventfd::EventFd;
use vfio_bindings::bindings::vfio::*;
use vfio_user::Client;

use super::{connect, map, proof, pset, read, read32, wake, write32};
use crate::interop::common::{eventfd, is_idle, signals, with_time_out};

/// Flags of `DEVICE_SET_IRQS`.
const TRIGGER_BY_EVENTFD: u32 = VFIO_IRQ_SET_ACTION_TRIGGER | VFIO_IRQ_SET_DATA_EVENTFD;
const TRIGGER: u32 = VFIO_IRQ_SET_ACTION_TRIGGER | VFIO_IRQ_SET_DATA_NONE;
const UNMASK: u32 = VFIO_IRQ_SET_ACTION_UNMASK | VFIO_IRQ_SET_DATA_NONE;
const MASK: u32 = VFIO_IRQ_SET_ACTION_MASK | VFIO_IRQ_SET_DATA_NONE;

/// Binds `N` interrupts from 0 on in one message.
fn bind<const N: usize>(client: &mut Client, index: u32) -> [EventFd; N] {
    let fds: [EventFd; N] = std::array::from_fn(|_| eventfd());
    let raw = fds.each_ref().map(AsRawFd::as_raw_fd);
    client.set_irqs(index, TRIGGER_BY_EVENTFD, 0, N as u32, &raw).unwrap();
    fds
}

/// Reads the slot FIFO while it is empty, so that it raises its error vector and INTx.
fn underrun(client: &mut Client) {
    read::<8>(client, 0, REG_PORT);
}

/// Clears the errors.
fn clear(client: &mut Client) {
    let errors = read32(client, 0, REG_ERROR);
    write32(client, 0, REG_ERROR, errors);
}

#[test]
fn the_vfio_user_crate_reads_every_interrupt_type() {
    with_time_out(|| {
        let served = proof();
        let mut client = connect(&served, "fifo0", "user0");
        let infos: Vec<_> = (0..PCI_NUM_IRQS).map(|index| client.get_irq_info(index).unwrap()).collect();

        assert!(infos.iter().zip(0..).all(|(info, index)| info.index == index));

        let intx = infos[PCI_INTX_IRQ as usize];
        assert_eq!(intx.flags, IRQ_FLAG_EVENTFD | IRQ_FLAG_MASKABLE | IRQ_FLAG_AUTOMASKED);

        let msix = infos[PCI_MSIX_IRQ as usize];
        assert_eq!(msix.flags, IRQ_FLAG_EVENTFD);
        assert_eq!((intx.count, msix.count), (1, 2));
        assert_eq!(infos[PCI_MSI_IRQ as usize].count, 0);

        for index in [PCI_ERR_IRQ, PCI_REQ_IRQ] {
            let info = infos[index as usize];
            assert_eq!((info.flags, info.count), (IRQ_FLAG_EVENTFD | IRQ_FLAG_NORESIZE, 1));
        }
    });
}

#[test]
fn msix_vectors_of_the_vfio_user_crate_fire_one_by_one() {
    with_time_out(|| {
        let served = proof();
        let mut client = connect(&served, "fifo0", "user0");
        let [receive, error] = bind(&mut client, PCI_MSIX_IRQ);

        underrun(&mut client);
        assert_eq!(signals(&error), 1);
        assert!(is_idle(&receive));
    });
}

/// A packet that requests an interrupt goes from one node to another, both of them the `vfio_user`
/// crate's.
#[test]
fn a_tree_packet_between_two_clients_of_the_vfio_user_crate_interrupts() {
    with_time_out(|| {
        let served = pset();
        let (mut io, mut node) = (connect(&served, "io0", "core0"), connect(&served, "cn2", "core0"));
        let (window, mirror) = (map(&io, BAR_WINDOW.into()), map(&node, BAR_MIRROR.into()));
        let [arrived] = bind(&mut node, PCI_MSIX_IRQ);

        write32(&mut node, 0, REG_INT_ENABLE, 1 << vector::RECV_IRQ);
        let payload: [u8; PAYLOAD] = std::array::from_fn(|at| at as u8 ^ 0x5a);
        let header = Header::point_to_point(0, 3, true);

        window.write(window::SEND + SLOT_PAYLOAD, &payload).unwrap();
        let control = 1 | u64::from(header.0) << 32;
        window.whole().store_u64_release(window::SEND + SLOT_CONTROL, control).unwrap();
        wake(&mut io);

        assert_eq!(signals(&arrived), 1);

        let slot = mirror.whole();
        assert_eq!(slot.load_u64_acquire(mirror::RECV + SLOT_CONTROL), Ok(control));

        let mut received = [0; PAYLOAD];
        mirror.read(mirror::RECV + SLOT_PAYLOAD, &mut received).unwrap();

        assert_eq!(received, payload);
    });
}

#[test]
fn intx_of_the_vfio_user_crate_masks_itself_until_it_is_unmasked() {
    with_time_out(|| {
        let served = proof();
        let mut client = connect(&served, "fifo0", "user0");
        let [line] = bind(&mut client, PCI_INTX_IRQ);

        underrun(&mut client);
        assert_eq!(signals(&line), 1);

        // The line is deasserted and asserted again while it is masked.
        clear(&mut client);
        underrun(&mut client);

        assert!(is_idle(&line));

        client.set_irqs(PCI_INTX_IRQ, UNMASK, 0, 1, &[]).unwrap();
        assert_eq!(signals(&line), 1);

        clear(&mut client);
        client.set_irqs(PCI_INTX_IRQ, UNMASK, 0, 1, &[]).unwrap();

        assert!(is_idle(&line));
    });
}

#[test]
fn intx_that_the_vfio_user_crate_masked_fires_when_it_is_unmasked() {
    with_time_out(|| {
        let served = proof();
        let mut client = connect(&served, "fifo0", "user0");
        let [line] = bind(&mut client, PCI_INTX_IRQ);

        client.set_irqs(PCI_INTX_IRQ, MASK, 0, 1, &[]).unwrap();
        underrun(&mut client);
        assert!(is_idle(&line));

        client.set_irqs(PCI_INTX_IRQ, UNMASK, 0, 1, &[]).unwrap();
        assert_eq!(signals(&line), 1);
    });
}

#[test]
fn intx_is_unmasked_by_an_eventfd_of_the_vfio_user_crate() {
    with_time_out(|| {
        let served = proof();
        let mut client = connect(&served, "fifo0", "user0");
        let [line] = bind(&mut client, PCI_INTX_IRQ);
        let unmask = eventfd();
        let flags = VFIO_IRQ_SET_ACTION_UNMASK | VFIO_IRQ_SET_DATA_EVENTFD;

        client.set_irqs(PCI_INTX_IRQ, flags, 0, 1, &[unmask.as_raw_fd()]).unwrap();
        underrun(&mut client);
        for _ in 0..3 {
            assert_eq!(signals(&line), 1);
            unmask.write(1).unwrap();
        }

        assert_eq!(signals(&line), 1);
    });
}

#[test]
fn the_vfio_user_crate_triggers_interrupts_itself() {
    with_time_out(|| {
        let served = proof();
        let mut client = connect(&served, "fifo0", "user0");
        let fds: [EventFd; 2] = bind(&mut client, PCI_MSIX_IRQ);

        client.set_irqs(PCI_MSIX_IRQ, TRIGGER, 0, 2, &[]).unwrap();
        assert_eq!(fds.each_ref().map(signals), [1, 1]);
    });
}

#[test]
fn a_vector_whose_eventfd_the_vfio_user_crate_removed_signals_no_more_and_others_do() {
    with_time_out(|| {
        let served = proof();
        let mut client = connect(&served, "fifo0", "user0");
        let [receive, error] = bind(&mut client, PCI_MSIX_IRQ);

        client.set_irqs(PCI_MSIX_IRQ, TRIGGER_BY_EVENTFD, 1, 1, &[]).unwrap();
        underrun(&mut client);
        client.set_irqs(PCI_MSIX_IRQ, TRIGGER, 0, 1, &[]).unwrap();

        assert_eq!(signals(&receive), 1);
        assert!(is_idle(&error));
    });
}

#[test]
fn interrupts_that_the_vfio_user_crate_disabled_are_silent_until_they_are_bound_again() {
    with_time_out(|| {
        let served = proof();
        let mut client = connect(&served, "fifo0", "user0");
        let before: [EventFd; 2] = bind(&mut client, PCI_MSIX_IRQ);

        client.set_irqs(PCI_MSIX_IRQ, TRIGGER, 0, 0, &[]).unwrap();
        underrun(&mut client);
        clear(&mut client);

        let [_, error] = bind(&mut client, PCI_MSIX_IRQ);
        underrun(&mut client);

        assert!(signals(&error) >= 1);
        assert!(before.iter().all(is_idle));
    });
}

#[test]
fn an_evicted_client_of_the_vfio_user_crate_gets_the_request_interrupt() {
    with_time_out(|| {
        let served = proof();
        let mut client = connect(&served, "fifo0", "user0");
        let ([error], [request]) = (bind(&mut client, PCI_ERR_IRQ), bind(&mut client, PCI_REQ_IRQ));

        served.evict("fifo0", "user0");
        assert_eq!(signals(&request), 1);
        assert!(is_idle(&error));
        assert!(client.region_read(PCI_CONFIG_REGION, 0, &mut [0; 2]).is_err());
    });
}

/// The server refuses an eventfd that masks the line when it is signalled, as Linux's VFIO drivers
/// do. The `vfio_user` crate does not examine the refusal.
#[test]
fn an_eventfd_for_masking_is_refused_and_none_is_signalled() {
    with_time_out(|| {
        let served = proof();
        let mut client = connect(&served, "fifo0", "user0");
        let [line] = bind(&mut client, PCI_INTX_IRQ);
        let masked = eventfd();

        let flags = VFIO_IRQ_SET_ACTION_MASK | VFIO_IRQ_SET_DATA_EVENTFD;
        assert!(client.set_irqs(PCI_INTX_IRQ, flags, 0, 1, &[masked.as_raw_fd()]).is_ok());

        client.set_irqs(PCI_INTX_IRQ, MASK, 0, 1, &[]).unwrap();
        client.set_irqs(PCI_INTX_IRQ, UNMASK, 0, 1, &[]).unwrap();
        underrun(&mut client);

        assert_eq!(signals(&line), 1);
        assert!(is_idle(&masked));

        // nicforge's own client reports the refusal.
        let own_client = nicforge_vfio_user::Client::connect(served.socket("fifo0", "user1"), LIMIT).unwrap();
        let fds = [Some(masked.as_fd())];
        let refused = own_client.set_irqs(PCI_INTX_IRQ, 0, IrqAction::Mask, IrqPayload::EventFd(&fds));

        assert_eq!(refused.unwrap_err().errno(), Errno::ENOTSUP);
    });
}

/// The `vfio_user` crate sends no data with `DATA_BOOL`. The server refuses that, and the crate
/// does not examine the refusal.
#[test]
fn the_vfio_user_crate_cannot_select_interrupts_by_bools() {
    with_time_out(|| {
        let served = proof();
        let mut client = connect(&served, "fifo0", "user0");
        let fds: [EventFd; 2] = bind(&mut client, PCI_MSIX_IRQ);

        let flags = VFIO_IRQ_SET_ACTION_TRIGGER | VFIO_IRQ_SET_DATA_BOOL;
        assert!(client.set_irqs(PCI_MSIX_IRQ, flags, 0, 2, &[]).is_ok());

        assert_eq!(read::<2>(&mut client, PCI_CONFIG_REGION, 0), VENDOR_ID.to_le_bytes());
        assert!(fds.iter().all(is_idle));
    });
}
