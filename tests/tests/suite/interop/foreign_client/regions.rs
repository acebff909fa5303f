//! `DEVICE_GET_REGION_INFO`, `REGION_READ`, `REGION_WRITE`, configuration space, and mapped
//! regions.

use std::os::fd::AsFd;

use nicforge_hwi::{
    pci::{DEVICE_SLOT_FIFO, DEVICE_TREE, VENDOR_ID},
    proof::slot_fifo::*,
};
use nicforge_shm::{Access, SharedMemory};
use nicforge_tests::backing::{LIMIT, Served};
use nicforge_vfio_user::{
    PCI_CONFIG_REGION, PCI_NUM_REGIONS, REGION_FLAG_CAPS, REGION_FLAG_MMAP, REGION_FLAG_WRITE,
};

use super::{connect, map, proof, pset, read, read32, wake, write32};
use crate::interop::common::{poll_until, with_time_out};

/// A region's flags, size, offset in its file (if there is a descriptor), and the offsets and sizes
/// of its areas.
type RegionReport = (u32, u64, Option<u64>, Vec<(u64, u64)>);

/// Returns all regions of an attachment as the `vfio_user` crate's client understands them.
fn regions_for_the_vfio_user_crate(served: &Served, function: &str, attachment: &str) -> Vec<RegionReport> {
    let client = connect(served, function, attachment);
    let region = |index| {
        let region = client.region(index).unwrap();
        let areas = region.sparse_areas.iter().map(|area| (area.offset, area.size)).collect();
        let start = region.file_offset.as_ref().map(|file| file.start());
        (region.flags & !REGION_FLAG_CAPS, region.size, start, areas)
    };

    // The waiting page comes after the regions of PCI.
    (0..=PCI_NUM_REGIONS).map(region).collect()
}

/// Returns all regions of an attachment as nicforge's client understands them.
fn regions_for_our_client(served: &Served, function: &str, attachment: &str) -> Vec<RegionReport> {
    let mut client = None;
    poll_until("the attachment is free", || {
        client = nicforge_vfio_user::Client::connect(served.socket(function, attachment), LIMIT).ok();
        client.is_some()
    });

    let regions = client.unwrap().regions().unwrap();
    let region = |region: nicforge_vfio_user::RegionInfo| {
        let areas = region.areas.iter().map(|area| (area.offset, area.size)).collect();
        let start = region.fd.as_ref().map(|_| region.offset);
        (region.flags & !REGION_FLAG_CAPS, region.size, start, areas)
    };

    regions.into_iter().map(region).collect()
}

/// The `vfio_user` crate's client gets the same information about every region of every kind of
/// device as nicforge's, with sparse areas and descriptor.
#[test]
fn the_vfio_user_crate_reads_the_same_regions_as_our_client() {
    with_time_out(|| {
        let (proof, pset) = (proof(), pset());
        let attachments = [
            (&proof, "fifo0", "user0"),
            (&proof, "dma0", "user1"),
            (&proof, "send0", "user2"),
            (&pset, "io0", "admin"),
            (&pset, "cn3", "core2"),
        ];

        for (served, function, attachment) in attachments {
            let regions = regions_for_the_vfio_user_crate(served, function, attachment);

            assert_eq!(
                regions,
                regions_for_our_client(served, function, attachment),
                "{function}-{attachment}"
            );
            let is_mappable = |(flags, _, start, areas): &RegionReport| {
                assert_eq!(flags & REGION_FLAG_MMAP != 0, start.is_some());
                assert_eq!(start.is_some(), !areas.is_empty());
                start.is_some()
            };
            assert!(regions.iter().filter(|region| is_mappable(region)).count() >= 2);
        }
    });
}

/// The server passes a descriptor of the region's own file, so each side sees the other side's
/// stores without a message.
#[test]
fn a_region_that_the_vfio_user_crate_maps_shares_stores_in_both_directions() {
    with_time_out(|| {
        let served = proof();
        let mut client = connect(&served, "fifo0", "user0");
        let (windows, mirror) = (map(&client, 1), map(&client, 2));
        let message: Vec<u8> = (0..DATA as u8).collect();

        windows.write(WIN_SEND + 8, &message).unwrap();
        windows.whole().store_u64_release(WIN_SEND, 1).unwrap();
        wake(&mut client);

        poll_until("the message comes back", || mirror.whole().load_u64_acquire(MIRROR_RECEIVE) == Ok(1));
        let mut back = vec![0; DATA];
        mirror.read(MIRROR_RECEIVE + 8, &mut back).unwrap();

        assert_eq!(back, message);
        assert_eq!(mirror.whole().load_u64_acquire(MIRROR_TAKEN), Ok(1));
    });
}

/// Trapped accesses and the mapping reach the same bytes.
#[test]
fn a_mapped_region_is_the_one_that_messages_reach() {
    with_time_out(|| {
        let served = proof();
        let mut client = connect(&served, "fifo0", "user0");
        let windows = map(&client, 1);

        client.region_write(1, WIN_SEND + 0x808, b"by a message").unwrap();
        let mut bytes = [0; 12];
        windows.read(WIN_SEND + 0x808, &mut bytes).unwrap();

        assert_eq!(&bytes, b"by a message");

        windows.write(WIN_SEND + 0x848, b"by a store").unwrap();
        assert_eq!(&read(&mut client, 1, WIN_SEND + 0x848), b"by a store");
    });
}

/// The kernel enforces that a read-only region is mapped only for reading.
#[test]
fn a_region_without_the_write_flag_cannot_be_mapped_for_writing() {
    with_time_out(|| {
        let served = proof();
        let client = connect(&served, "fifo0", "user0");
        let region = client.region(2).unwrap();
        let file = region.file_offset.as_ref().unwrap();

        assert_eq!(region.flags & REGION_FLAG_WRITE, 0);
        let map = |access| SharedMemory::map(file.file().as_fd(), file.start(), region.size as usize, access);
        assert!(map(Access::ReadOnly).is_ok());
        assert!(map(Access::ReadWrite).is_err());
    });
}

#[test]
fn accesses_of_the_vfio_user_crate_have_every_width() {
    with_time_out(|| {
        let served = proof();
        let mut client = connect(&served, "fifo0", "user0");

        // The offset is after the part that the device reads.
        let free = WIN_HEAD + 0x100;

        for len in [1, 2, 3, 4, 8, 16, 2048] {
            let data: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
            client.region_write(1, free, &data).unwrap();
            let mut back = vec![0; len];
            client.region_read(1, free, &mut back).unwrap();
            assert_eq!(back, data);
        }

        // A register accepts only its own width.
        write32(&mut client, 0, REG_HOLD, 1);
        assert_eq!(read32(&mut client, 0, REG_HOLD), 1);

        for word in 1..=7_u64 {
            client.region_write(0, REG_PORT, &word.to_le_bytes()).unwrap();
        }

        assert_eq!(read32(&mut client, 0, REG_FILL), 1);
        assert_eq!(u64::from_le_bytes(read(&mut client, 0, REG_PORT)), 1);
        assert_eq!(read::<4>(&mut client, 0, REG_PORT), [0xff; 4]);
        assert_eq!(read32(&mut client, 0, REG_ERROR), ERROR_WIDTH);
    });
}

#[test]
fn the_vfio_user_crate_reads_and_writes_configuration_space() {
    with_time_out(|| {
        let (proof, pset) = (proof(), pset());
        for (served, function, attachment, device) in
            [(&proof, "fifo0", "user0", DEVICE_SLOT_FIFO), (&pset, "cn0", "core0", DEVICE_TREE)]
        {
            let mut client = connect(served, function, attachment);
            let config = PCI_CONFIG_REGION;
            let header: [u8; 256] = read(&mut client, config, 0);

            assert_eq!(header[..4], [VENDOR_ID.to_le_bytes(), device.to_le_bytes()].concat());
            for at in [0, 3, 0x34, 0xff] {
                assert_eq!(read::<1>(&mut client, config, at as u64), header[at..at + 1]);
            }
            client.region_write(config, 4, &6_u16.to_le_bytes()).unwrap();
            assert_eq!(u16::from_le_bytes(read(&mut client, config, 4)), 6);
            // The identity is read-only.
            client.region_write(config, 0, &[0; 4]).unwrap();
            assert_eq!(read::<4>(&mut client, config, 0), header[..4]);
        }
    });
}
