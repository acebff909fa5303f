//! Resets, and clients that connect and disconnect.

use nicforge_hwi::{pci::VENDOR_ID, proof::slot_fifo::*};
use nicforge_tests::backing::Rig;
use nicforge_vfio_user::PCI_CONFIG_REGION;

use super::{attachment, connect, map, proof, read, read32, write32};
use crate::interop::common::{poll_until, with_time_out};

#[test]
fn a_reset_by_the_vfio_user_crate_clears_the_attachment_and_keeps_the_connection() {
    with_time_out(|| {
        let served = proof();
        let mut client = connect(&served, "fifo0", "user0");
        write32(&mut client, 0, REG_HOLD, 1);

        client.reset().unwrap();
        assert_eq!(read32(&mut client, 0, REG_HOLD), 0);
        assert_eq!(read::<2>(&mut client, PCI_CONFIG_REGION, 0), VENDOR_ID.to_le_bytes());
    });
}

#[test]
fn a_client_of_the_vfio_user_crate_that_disconnects_frees_its_attachment() {
    with_time_out(|| {
        let served = proof();
        let dropped = connect(&served, "fifo0", "user0");
        let shut_down = connect(&served, "fifo0", "user1");

        drop(dropped);
        shut_down.shutdown().unwrap();

        for name in ["user0", "user1"] {
            poll_until("the attachment is free", || attachment(&served, "fifo0", name).client.is_none());
            let server = attachment(&served, "fifo0", name).server;
            assert_eq!((server.clients, server.broken), (1, 0));
        }
    });
}

/// The `vfio_user` crate's client, nicforge's, and the `vfio_user` crate's again use one attachment
/// in turn. Each finds it in its initial state.
#[test]
fn clients_of_both_kinds_follow_each_other_and_find_a_fresh_attachment() {
    with_time_out(|| {
        let served = proof();
        let mut first = connect(&served, "fifo0", "user0");
        let windows = map(&first, 1);

        write32(&mut first, 0, REG_HOLD, 1);
        windows.write(WIN_SEND + 8, b"the first").unwrap();
        drop(first);

        let own_client = served.open("fifo0", "user0");
        let registers = own_client.bar(0).unwrap();
        assert_eq!(registers.read32(REG_HOLD).unwrap(), 0);

        registers.write32(REG_HOLD, 1).unwrap();
        drop((registers, own_client));

        let mut last = connect(&served, "fifo0", "user0");
        assert_eq!(read32(&mut last, 0, REG_HOLD), 0);
        assert_eq!(read::<9>(&mut last, 1, WIN_SEND + 8), [0; 9]);
        assert_eq!(attachment(&served, "fifo0", "user0").server.clients, 3);

        // The first client still has its memory, with the bytes that it has written.
        let mut bytes = [0; 9];
        windows.read(WIN_SEND + 8, &mut bytes).unwrap();

        assert_eq!(&bytes, b"the first");
    });
}
