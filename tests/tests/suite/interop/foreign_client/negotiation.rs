//! `VERSION` and `DEVICE_GET_INFO`.

use std::io::ErrorKind;

use nicforge_hwi::pci::VENDOR_ID;
use nicforge_tests::backing::LIMIT;
use nicforge_vfio_user::{
    DEVICE_FLAGS_PCI, DEVICE_FLAGS_RESET, PCI_CONFIG_REGION, PCI_NUM_IRQS, PCI_NUM_REGIONS,
    wire::Capabilities,
};
use tempfile::TempDir;
use vfio_user::{Client, Error};

use super::{attachment, connect, proof, read};
use crate::interop::common::{poll_until, version_exchange, with_time_out};

/// The `vfio_user` crate proposes version 0.1 with a capability of an older draft. The reply has
/// 0.0, and those of the named capabilities that the server knows.
#[test]
fn the_reply_to_the_vfio_user_crates_version_has_the_capabilities_it_named() {
    with_time_out(|| {
        let (served, directory) = (proof(), TempDir::new().unwrap());
        let [request, reply] =
            version_exchange(&served.socket("fifo0", "user0"), directory.path(), |between| {
                // The connection ends after the negotiation.
                assert!(matches!(Client::new(between), Err(Error::StreamRead(_) | Error::StreamWrite(_))));
            });

        let named = |max_msg_fds| Capabilities {
            max_msg_fds: Some(max_msg_fds),
            max_data_xfer_size: Some(1 << 20),
            ..Capabilities::default()
        };

        assert_eq!((request.message.major, request.message.minor), (0, 1));
        assert_eq!(request.message.capabilities, Some(named(1)));
        assert!(request.json.contains(r#""migration":{"pgsize":"#), "{}", request.json);
        assert_eq!((reply.message.major, reply.message.minor), (0, 0));
        assert_eq!(reply.message.capabilities, Some(named(16)));
        assert!(!reply.json.contains("migration"), "{}", reply.json);
    });
}

/// When it connects, the `vfio_user` crate requests the information of the device and of all its
/// regions. It misreads the reset flag as its opposite.
#[test]
fn the_vfio_user_crate_sees_a_pci_device_of_ten_regions_and_takes_it_for_one_without_reset() {
    with_time_out(|| {
        let served = proof();
        let client = connect(&served, "fifo0", "user0");

        let indices: Vec<_> = (0..100).filter(|&index| client.region(index).is_some()).collect();
        assert_eq!(indices, (0..=PCI_NUM_REGIONS).collect::<Vec<_>>());
        assert!(!client.resettable());

        let own_client = nicforge_vfio_user::Client::connect(served.socket("fifo0", "user1"), LIMIT).unwrap();
        let info = own_client.device_info().unwrap();

        assert_eq!(info.flags, DEVICE_FLAGS_PCI | DEVICE_FLAGS_RESET);
        // The waiting page and its interrupt come after those of PCI.
        assert_eq!((info.num_regions, info.num_irqs), (PCI_NUM_REGIONS + 1, PCI_NUM_IRQS + 1));
    });
}

/// The refusal is an error reply to `VERSION`, which the `vfio_user` crate reads as the start of a
/// longer reply. It waits for the rest until the server disconnects.
#[test]
fn a_second_client_of_the_vfio_user_crate_ends_when_the_server_hangs_up() {
    with_time_out(|| {
        let served = proof();
        let mut first = connect(&served, "fifo0", "user0");

        let second = Client::new(&served.socket("fifo0", "user0"));
        assert!(matches!(second, Err(Error::StreamRead(error)) if error.kind() == ErrorKind::UnexpectedEof));
        poll_until("the refusal is counted", || attachment(&served, "fifo0", "user0").server.refused == 1);
        assert_eq!(read::<2>(&mut first, PCI_CONFIG_REGION, 0), VENDOR_ID.to_le_bytes());
    });
}
