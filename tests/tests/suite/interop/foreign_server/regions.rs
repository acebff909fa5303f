//! `DEVICE_GET_REGION_INFO`, `REGION_READ`, `REGION_WRITE`, and mapped regions.

use std::os::fd::AsFd;

use nicforge_shm::{Access, SharedMemory};
use nicforge_vfio_user::{
    Client, Errno, PCI_CONFIG_REGION, PCI_NUM_REGIONS, REGION_FLAG_CAPS, REGION_FLAG_MMAP, REGION_FLAG_READ,
    REGION_FLAG_WRITE,
};

use super::{
    card::{AREAS, CONFIG, FILE_OFFSET, IDENTITY, LARGE, MEMORY, REGISTERS, UNDIVIDED, reg},
    rig::Rig,
};
use crate::interop::common::{wait_readable, with_time_out};

/// The flags of a region that can be read and written.
const READ_WRITE: u32 = REGION_FLAG_READ | REGION_FLAG_WRITE;

/// Reads `N` bytes of a region.
fn read<const N: usize>(client: &Client, region: u32, offset: u64) -> [u8; N] {
    let mut data = [0; N];
    client.region_read(region, offset, &mut data).unwrap();
    data
}

#[test]
fn region_infos_of_the_vfio_user_crates_server_are_understood() {
    with_time_out(|| {
        let rig = Rig::start();
        let regions = rig.client().regions().unwrap();

        let reported: Vec<_> =
            regions.iter().map(|region| (region.flags, region.size, region.offset)).collect();
        let divided = READ_WRITE | REGION_FLAG_MMAP | REGION_FLAG_CAPS;
        let expected = [
            (READ_WRITE, REGISTERS, 0),
            (divided, MEMORY, FILE_OFFSET),
            (READ_WRITE | REGION_FLAG_MMAP, UNDIVIDED, 0),
            (READ_WRITE, LARGE, 0),
            (0, 0, 0),
            (0, 0, 0),
            (0, 0, 0),
            (READ_WRITE, CONFIG, 0),
            (0, 0, 0),
        ];

        assert_eq!(reported, expected);

        let areas: Vec<_> = regions[1].areas.iter().map(|area| (area.offset, area.size)).collect();
        assert_eq!(areas, AREAS);
        assert!(regions[1].fd.is_some());
    });
}

/// The `vfio_user` crate sends a region's descriptor only together with sparse areas. Without a
/// descriptor the client traps the region, despite its flag.
#[test]
fn a_mappable_region_without_areas_has_no_descriptor_and_is_trapped() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();
        let region = client.region_info(2).unwrap();

        assert_ne!(region.flags & REGION_FLAG_MMAP, 0);
        assert!(region.fd.is_none() && region.mappable().is_empty());
        client.region_write(2, 8, &[5; 8], false).unwrap();
        assert_eq!(read(&client, 2, 8), [5; 8]);
    });
}

#[test]
fn a_mapped_region_of_the_vfio_user_crates_server_shares_stores_in_both_directions() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();
        let region = client.region_info(1).unwrap();
        let file = region.fd.as_ref().unwrap();

        for area in region.mappable() {
            let start = region.offset + area.offset;
            let mapped =
                SharedMemory::map(file.as_fd(), start, area.size as usize, Access::ReadWrite).unwrap();

            mapped.write(8, b"ours").unwrap();
            let mut bytes = [0; 4];
            rig.seen.memory.read(FILE_OFFSET + area.offset + 8, &mut bytes).unwrap();

            assert_eq!(&bytes, b"ours");
            assert_eq!(&read(&client, 1, area.offset + 8), b"ours");

            rig.seen.memory.write(FILE_OFFSET + area.offset + 16, b"theirs").unwrap();
            let mut bytes = [0; 6];
            mapped.read(16, &mut bytes).unwrap();

            assert_eq!(&bytes, b"theirs");
        }
    });
}

#[test]
fn accesses_of_every_width_reach_the_vfio_user_crates_device() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();
        for len in [1, 2, 3, 4, 8, 16, 4096] {
            let data: Vec<u8> = (0..len).map(|at| (at * 5 + len) as u8).collect();
            client.region_write(3, 0x80, &data, false).unwrap();
            let mut back = vec![0; len];
            client.region_read(3, 0x80, &mut back).unwrap();
            assert_eq!(back, data);
        }
    });
}

#[test]
fn an_access_of_megabytes_is_split_to_the_limit_of_the_vfio_user_crate() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();
        let data: Vec<u8> = (0..(3 << 20) + 5_u32).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect();

        client.region_write(3, 3, &data, false).unwrap();
        let mut back = vec![0; data.len()];
        client.region_read(3, 3, &mut back).unwrap();
        assert!(back == data);
    });
}

#[test]
fn posted_writes_are_done_by_the_vfio_user_crate_before_the_next_answer() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();
        for value in 0..100_u32 {
            client.region_write(0, reg::SCRATCH, &value.to_le_bytes(), true).unwrap();
        }
        assert_eq!(read(&client, 0, reg::SCRATCH), 99_u32.to_le_bytes());
    });
}

#[test]
fn configuration_space_of_the_vfio_user_crates_server_is_read_and_written() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();

        assert_eq!(read(&client, PCI_CONFIG_REGION, 0), IDENTITY);
        client.region_write(PCI_CONFIG_REGION, 4, &6_u16.to_le_bytes(), false).unwrap();
        assert_eq!(read::<CONFIG_SIZE>(&client, PCI_CONFIG_REGION, 0)[4], 6);
    });
}

/// Bytes of configuration space.
const CONFIG_SIZE: usize = CONFIG as usize;

/// The `vfio_user` crate returns an error number for its own checks, and none for the device's
/// refusals.
#[test]
fn a_refusal_of_the_vfio_user_crates_server_is_an_error_and_the_client_stays_usable() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();
        let mut data = [0; 4];

        let checked = [
            client.region_info(PCI_NUM_REGIONS).map(drop),
            client.region_read(PCI_NUM_REGIONS, 0, &mut data),
        ];

        for refused in checked {
            assert_eq!(refused.unwrap_err().errno(), Errno::EINVAL);
        }

        let device = [
            client.region_read(0, REGISTERS - 2, &mut data),
            client.region_write(0, REGISTERS - 2, &data, false),
            client.region_read(4, 0, &mut data),
        ];

        for refused in device {
            assert_eq!(refused.unwrap_err().errno(), Errno::EIO);
        }

        assert_eq!(read(&client, PCI_CONFIG_REGION, 0), IDENTITY);
    });
}

/// The `vfio_user` crate answers a failed posted write, though no reply was requested. The client
/// drops the answer.
#[test]
fn the_client_drops_the_vfio_user_crates_reply_to_a_refused_posted_write() {
    with_time_out(|| {
        let rig = Rig::start();
        let client = rig.client();

        client.region_write(0, REGISTERS, &[0; 4], true).unwrap();
        wait_readable(client.socket_fd());
        assert_eq!(read(&client, PCI_CONFIG_REGION, 0), IDENTITY);
    });
}
