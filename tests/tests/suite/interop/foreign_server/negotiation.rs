//! `VERSION`, `DEVICE_GET_INFO`, and clients that connect and disconnect.

use std::{sync::atomic::Ordering, time::Duration};

use nicforge_tests::backing::LIMIT;
use nicforge_vfio_user::{
    Client, ClientError, DEVICE_FLAGS_PCI, DEVICE_FLAGS_RESET, Errno, PCI_NUM_IRQS, PCI_NUM_REGIONS,
    wire::{Capabilities, Command, TwinSocket},
};

use super::{card::reg, rig::Rig};
use crate::interop::common::{poll_until, version_exchange, with_time_out};

/// The `vfio_user` crate always answers with its own capabilities. One of them is of an older draft
/// and is ignored here. Those it does not name have the specification's defaults.
#[test]
fn our_version_is_answered_with_the_vfio_user_crates_own_capabilities() {
    with_time_out(|| {
        let rig = Rig::start();
        let mut limits = None;
        let [request, reply] = version_exchange(&rig.path, rig.directory.path(), |between| {
            limits = Some(Client::connect(between, LIMIT).unwrap().limits());
        });

        let requested = request.message.capabilities.unwrap();
        assert_eq!((request.message.major, request.message.minor), (0, 0));
        assert_eq!((requested.max_msg_fds, requested.max_data_xfer_size), (Some(8), Some(1 << 20)));
        assert_eq!((requested.pgsizes, requested.max_dma_maps), (Some(4096), Some(65535)));

        let twin = TwinSocket { supported: true, fd_index: None };
        assert_eq!((requested.write_multiple, requested.twin_socket), (Some(true), Some(twin)));

        let named = Capabilities {
            max_msg_fds: Some(1),
            max_data_xfer_size: Some(1 << 20),
            ..Capabilities::default()
        };

        assert_eq!((reply.message.major, reply.message.minor), (0, 0));
        assert_eq!(reply.message.capabilities, Some(named));
        assert!(reply.json.contains(r#""migration":{"pgsize":"#), "{}", reply.json);

        let limits = limits.unwrap();
        assert_eq!((limits.max_msg_fds, limits.max_data_xfer_size), (1, 1 << 20));
        assert_eq!((limits.pgsizes, limits.max_dma_maps), (4096, 65535));
        assert!(!limits.write_multiple && !limits.twin_socket);
    });
}

#[test]
fn device_info_of_the_vfio_user_crates_server_matches_the_card() {
    with_time_out(|| {
        for (resettable, flag) in [(true, DEVICE_FLAGS_RESET), (false, 0)] {
            let rig = Rig::start_with(resettable);
            let info = rig.client().device_info().unwrap();
            assert_eq!(info.flags, DEVICE_FLAGS_PCI | flag);
            assert_eq!((info.num_regions, info.num_irqs), (PCI_NUM_REGIONS, PCI_NUM_IRQS));
        }
    });
}

/// The next client finds the device as the last one left it, as the specification requires.
#[test]
fn the_vfio_user_crate_serves_one_client_after_another() {
    with_time_out(|| {
        let rig = Rig::start();
        for round in 0..3_u32 {
            let client = rig.client();
            let mut scratch = [0; 4];
            client.region_read(0, reg::SCRATCH, &mut scratch).unwrap();
            assert_eq!(u32::from_le_bytes(scratch), round);
            client.region_write(0, reg::SCRATCH, &(round + 1).to_le_bytes(), false).unwrap();
        }
        poll_until("all have gone", || rig.served.load(Ordering::SeqCst) == 3);
    });
}

/// The `vfio_user` crate accepts one client at a time. It does not refuse another one, but does not
/// answer it.
#[test]
fn a_second_client_at_the_vfio_user_crates_server_gives_up_by_its_deadline() {
    with_time_out(|| {
        let rig = Rig::start();
        let first = rig.client();

        let second = Client::connect(&rig.path, Duration::from_millis(100));
        assert!(matches!(second, Err(ClientError::Timeout { command: Command::Version, .. })));
        assert!(first.device_info().is_ok());
        drop(first);
        assert!(rig.client().device_info().is_ok());
    });
}

#[test]
fn the_end_of_the_vfio_user_crates_server_is_noticed() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();
        assert!(client.is_alive());

        let last = client.region_write(0, reg::LEAVE, &[1; 4], false);
        assert_eq!(last.unwrap_err().errno(), Errno::ENOTCONN);
        assert!(!client.is_alive());
    });
}

#[test]
fn a_reset_of_ours_reaches_the_vfio_user_crates_device() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();
        client.region_write(0, reg::SCRATCH, &[9; 4], false).unwrap();

        client.reset().unwrap();
        let mut scratch = [1; 4];
        client.region_read(0, reg::SCRATCH, &mut scratch).unwrap();
        assert_eq!((scratch, *rig.seen.resets.lock().unwrap()), ([0; 4], 1));
    });
}
