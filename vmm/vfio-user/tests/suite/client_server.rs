//! The client against the server over a UNIX socket, through their public interfaces.
#![allow(clippy::unwrap_used)]

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::*;
use nicforge_vfio_user::wire::Command;
use nicforge_vfio_user::*;

/// Returns the settings of a server that takes 4096 bytes of data in one message.
fn small_transfers() -> ServerConfig {
    ServerConfig { max_data_xfer_size: 4096, ..Default::default() }
}

/// 64 KiB of memory at DMA address 0x10000.
struct Memory(Mutex<Vec<u8>>);

impl Memory {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(vec![0x5a; 65536])))
    }

    fn range(address: u64, len: usize) -> Result<std::ops::Range<usize>, Errno> {
        let start = address.checked_sub(0x10000).ok_or(Errno::EFAULT)? as usize;
        if start + len > 65536 { Err(Errno::EFAULT) } else { Ok(start..start + len) }
    }
}

impl GuestMemory for Memory {
    fn read(&self, address: u64, data: &mut [u8]) -> Result<(), Errno> {
        data.copy_from_slice(&self.0.lock().unwrap()[Self::range(address, data.len())?]);
        Ok(())
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), Errno> {
        self.0.lock().unwrap()[Self::range(address, data.len())?].copy_from_slice(data);
        Ok(())
    }
}

/// Waits until `condition` returns true.
#[track_caller]
fn wait_until(description: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{description} did not happen");
        std::thread::yield_now();
    }
}

#[test]
fn limits_of_the_server_reach_the_client() {
    let served = Served::start(small_transfers());

    let limits = served.client().limits();

    assert_eq!(limits.max_msg_fds, 16);
    assert_eq!(limits.max_data_xfer_size, 4096);
    assert!(limits.write_multiple);
}

#[test]
fn device_and_interrupt_info_round_trip() {
    let served = Served::start(ServerConfig::default());
    let client = served.client();

    let info = client.device_info().unwrap();
    let msix = client.irq_info(PCI_MSIX_IRQ).unwrap();

    assert_eq!((info.num_regions, info.num_irqs), (9, 5));
    assert_eq!(msix.count, VECTORS);
    assert_eq!(client.irq_info(5).unwrap_err().errno(), Errno::EINVAL);
}

#[test]
fn regions_come_with_sparse_areas_type_and_descriptor() {
    let served = Served::start(ServerConfig::default());

    let regions = served.client().regions().unwrap();

    assert_eq!(regions.len(), 9);
    assert!(regions[0].mappable().is_empty());
    assert_eq!(regions[1].mappable(), [SparseArea { offset: 4096, size: 4096 }]);
    assert_eq!(regions[1].region_type, Some(RegionType { kind: 3, subtype: 4 }));
    let file = std::fs::File::from(regions[1].fd.as_ref().unwrap().try_clone().unwrap());
    assert_eq!(file.metadata().unwrap().len(), 8192);
}

#[test]
fn read_larger_than_a_transfer_is_cut_and_put_together() {
    let served = Served::start(small_transfers());
    let client = served.client();
    let mut data = vec![0; 10_001];

    client.region_read(0, 3, &mut data).unwrap();

    assert_eq!(data, served.device.lock().unwrap().bar0[3..10_004]);
}

#[test]
fn read_of_megabytes_with_default_limits_is_right() {
    let served = Served::start(ServerConfig::default());
    let client = served.client();
    let mut data = vec![0; BAR0];

    client.region_read(0, 0, &mut data).unwrap();

    assert!(data == served.device.lock().unwrap().bar0);
}

#[test]
fn posted_writes_are_done_before_the_next_answer() {
    let served = Served::start(small_transfers());
    let client = served.client();

    client.region_write(0, 0x1000, &[1; 9000], true).unwrap();
    client.region_write(0, 0x1001, &[2], true).unwrap();
    let mut back = [0; 3];
    client.region_read(0, 0x1000, &mut back).unwrap();

    assert_eq!(back, [1, 2, 1]);
}

#[test]
fn posted_writes_of_megabytes_pass_through_a_full_socket() {
    let served = Served::start(ServerConfig::default());
    let client = served.client();
    let data: Vec<u8> = (0..BAR0 - 0x1000).map(|index| (index % 13) as u8).collect();

    client.region_write(0, 0x1000, &data, true).unwrap();
    client.region_write(0, 0x1000, &data, false).unwrap();

    assert!(served.device.lock().unwrap().bar0[0x1000..] == data[..]);
}

#[test]
fn refused_write_carries_the_servers_errno() {
    let served = Served::start(ServerConfig::default());

    let error = served.client().region_write(3, 0, &[0], false).unwrap_err();

    assert!(matches!(error, ClientError::Refused { command: Command::RegionWrite, errno: Errno::EINVAL }));
}

#[test]
fn mapping_twice_is_eexist_and_unmapping_twice_is_enoent() {
    let served = Served::start(ServerConfig::default());
    let client = served.client();
    let map = DmaMap { flags: DMA_FLAG_READ, offset: 0, address: 0x10000, size: 4096 };
    let memory = memfd(4096);

    client.dma_map(map, Some(memory.as_fd())).unwrap();
    let second_map = client.dma_map(map, None).unwrap_err();
    client.dma_unmap(DmaUnmap::Range { address: 0x10000, size: 4096 }).unwrap();
    let second_unmap = client.dma_unmap(DmaUnmap::Range { address: 0x10000, size: 4096 }).unwrap_err();

    assert_eq!(second_map.errno(), Errno::EEXIST);
    assert_eq!(second_unmap.errno(), Errno::ENOENT);
}

#[test]
fn unmap_all_empties_the_map() {
    let served = Served::start(ServerConfig::default());
    let client = served.client();
    for page in 0..10 {
        client
            .dma_map(DmaMap { flags: READ_WRITE, offset: 0, address: page << 12, size: 4096 }, None)
            .unwrap();
    }

    client.dma_unmap(DmaUnmap::All).unwrap();

    assert!(served.device.lock().unwrap().maps.is_empty());
}

#[test]
fn eventfds_beyond_a_message_are_sent_in_parts_around_gaps() {
    let served = Served::start(ServerConfig::default());
    let client = served.client();
    let fds: Vec<_> = (0..VECTORS).map(|_| eventfd()).collect();
    let mut slots: Vec<_> = fds.iter().map(|fd| Some(fd.as_fd())).collect();
    slots[20] = None;

    client.set_irqs(PCI_MSIX_IRQ, 0, IrqAction::Trigger, IrqPayload::EventFd(&slots)).unwrap();

    let bound = served.device.lock().unwrap().bound();
    assert_eq!(bound, (0..VECTORS as usize).filter(|index| *index != 20).collect::<Vec<_>>());
    client.set_irqs(PCI_MSIX_IRQ, 3, IrqAction::Trigger, IrqPayload::EventFd(&[None; 37])).unwrap();
    assert_eq!(served.device.lock().unwrap().bound(), [0, 1, 2]);
    client.irq_disable(PCI_MSIX_IRQ).unwrap();
    assert!(served.device.lock().unwrap().bound().is_empty());
}

#[test]
fn eventfd_bound_by_the_client_is_the_one_the_device_signals() {
    let served = Served::start(ServerConfig::default());
    let client = served.client();
    let event = nix::sys::eventfd::EventFd::new().unwrap();

    client
        .set_irqs(PCI_MSIX_IRQ, 5, IrqAction::Trigger, IrqPayload::EventFd(&[Some(event.as_fd())]))
        .unwrap();
    let device = served.device.lock().unwrap();
    nix::unistd::write(device.vectors[5].as_ref().unwrap(), &7u64.to_ne_bytes()).unwrap();

    assert_eq!(event.read().unwrap(), 7);
}

#[test]
fn mask_unmask_and_bool_forms_reach_the_device_unchanged() {
    let served = Served::start(ServerConfig::default());
    let client = served.client();

    client.set_irqs(PCI_INTX_IRQ, 0, IrqAction::Mask, IrqPayload::None(1)).unwrap();
    client.set_irqs(PCI_INTX_IRQ, 0, IrqAction::Unmask, IrqPayload::Bool(&[true])).unwrap();
    client.set_irqs(PCI_MSIX_IRQ, 1, IrqAction::Trigger, IrqPayload::Bool(&[false, true])).unwrap();
    let refused = client.set_irqs(PCI_MSIX_IRQ, 0, IrqAction::Mask, IrqPayload::None(1)).unwrap_err();

    let device = served.device.lock().unwrap();
    let actions: Vec<_> = device.irq_calls.iter().map(|call| (call.index, call.start, call.action)).collect();
    assert_eq!(
        actions,
        [
            (PCI_INTX_IRQ, 0, IrqAction::Mask),
            (PCI_INTX_IRQ, 0, IrqAction::Unmask),
            (PCI_MSIX_IRQ, 1, IrqAction::Trigger)
        ]
    );
    assert!(matches!(&device.irq_calls[2].data, IrqData::Bool(values) if *values == [false, true]));
    assert_eq!(refused.errno(), Errno::EINVAL);
}

#[test]
fn reset_from_another_thread_ends_a_stalled_write() {
    let served = Served::start(ServerConfig::default());
    let client = served.client();
    served.device.lock().unwrap().reset_pending_answer = Some(Errno::ECANCELED);

    let write = std::thread::scope(|scope| {
        let write = scope.spawn(|| client.region_write(0, STALL, &[1], false));
        wait_until("the write", || !served.device.lock().unwrap().writes.is_empty());
        client.reset().unwrap();
        write.join().unwrap()
    });

    assert_eq!(write.unwrap_err().errno(), Errno::ECANCELED);
    assert_eq!(served.device.lock().unwrap().resets, 1);
}

#[test]
fn deferred_read_and_map_are_answered_when_completed() {
    let complete = |server: &mut ServerConnection, _: &mut Device| match server.deferred() {
        Some(READ_TOKEN) => server.complete_read(READ_TOKEN, Ok(&[9, 8, 7])).unwrap(),
        Some(token) => server.complete(token, Ok(())).unwrap(),
        None => {}
    };
    let served = Served::start_with(ServerConfig::default(), Box::new(complete));
    let client = served.client();
    served.device.lock().unwrap().defer_maps = true;
    let mut data = [0; 3];

    client.region_read(0, STALL_READ, &mut data).unwrap();
    client.region_write(0, STALL, &[1], false).unwrap();
    client.dma_map(DmaMap { flags: READ_WRITE, offset: 0, address: 0, size: 4096 }, None).unwrap();

    assert_eq!(data, [9, 8, 7]);
}

#[test]
fn call_without_an_answer_times_out_and_the_client_stays_usable() {
    let served = Served::start(ServerConfig::default());
    let config = ClientConfig { timeout: Duration::from_secs(1), ..Default::default() };
    let client = served.client_with(config);
    let started = Instant::now();

    let error = client.region_read(0, STALL_READ, &mut [0; 3]).unwrap_err();

    assert!(matches!(error, ClientError::Timeout { command: Command::RegionRead, .. }));
    assert!(started.elapsed() < TIMEOUT);
    assert!(client.is_alive());
    // The server gives up the read, so its late reply is dropped.
    served.device.lock().unwrap().reset_pending_answer = Some(Errno::ECANCELED);
    client.reset().unwrap();
    client.region_read(0, 0, &mut [0; 3]).unwrap();
}

#[test]
fn server_reads_and_writes_client_memory_while_the_client_waits() {
    let start = |server: &mut ServerConnection, device: &mut Device| {
        if server.deferred().is_some() && server.dma_outstanding() == 0 && device.dma_reads.is_empty() {
            server.dma_read(0x10010, 10_000, 1).unwrap();
            server.dma_write(0x10000, &[1, 2, 3], 2).unwrap();
            server.dma_read(0x0, 4, 3).unwrap();
        }
        if server.deferred().is_some() && device.dma_reads.len() == 2 && device.dma_writes.len() == 1 {
            server.complete(WRITE_TOKEN, Ok(())).unwrap();
        }
    };
    let served = Served::start_with(ServerConfig::default(), Box::new(start));
    let memory = Memory::new();
    let config = ClientConfig {
        timeout: TIMEOUT,
        max_data_xfer_size: 4096,
        memory: Some(memory.clone()),
        ..Default::default()
    };
    let client = served.client_with(config);

    client.region_write(0, STALL, &[1], false).unwrap();

    let mut device = served.device.lock().unwrap();
    device.dma_reads.sort_by_key(|(token, _)| *token);
    assert_eq!(device.dma_reads[0], (1, Ok(vec![0x5a; 10_000])));
    assert_eq!(device.dma_reads[1], (3, Err(Errno::EFAULT)));
    assert_eq!(device.dma_writes, [(2, Ok(()))]);
    assert_eq!(memory.0.lock().unwrap()[..4], [1, 2, 3, 0x5a]);
}

#[test]
fn poll_incoming_serves_a_quiet_clients_memory() {
    let start = |server: &mut ServerConnection, device: &mut Device| {
        if device.resets == 1 && server.dma_outstanding() == 0 && device.dma_writes.is_empty() {
            server.dma_write(0x10000, &[7; 9], 5).unwrap();
        }
    };
    let served = Served::start_with(ServerConfig::default(), Box::new(start));
    let memory = Memory::new();
    let client = served.client_with(ClientConfig { memory: Some(memory.clone()), ..Default::default() });
    client.reset().unwrap();

    let count = client.poll_incoming(TIMEOUT).unwrap();

    assert_eq!(count, 1);
    assert_eq!(memory.0.lock().unwrap()[..10], [7, 7, 7, 7, 7, 7, 7, 7, 7, 0x5a]);
    wait_until("the completion", || served.device.lock().unwrap().dma_writes == [(5, Ok(()))]);
    assert_eq!(client.poll_incoming(Duration::from_millis(1)).unwrap(), 0);
}

#[test]
fn many_threads_share_one_client() {
    let served = Served::start(small_transfers());
    let config = ClientConfig { timeout: TIMEOUT, spin: Duration::from_micros(20), ..Default::default() };
    let client = served.client_with(config);

    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..100u64 {
                    let offset = 0x10000 + thread * 0x1000;
                    let value = (thread * 1000 + round).to_le_bytes();
                    client.region_write(0, offset, &value, round % 2 == 0).unwrap();
                    let mut back = [0; 8];
                    client.region_read(0, offset, &mut back).unwrap();
                    assert_eq!(back, value);
                }
            });
        }
    });
}

#[test]
fn is_alive_ends_with_the_server() {
    let served = Served::start(ServerConfig::default());
    let client = served.client();
    assert!(client.is_alive());

    drop(served);

    assert!(!client.is_alive());
    assert_eq!(client.reset().unwrap_err().errno(), Errno::ENOTCONN);
}

#[test]
fn connecting_to_nothing_names_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("no-server");

    let error = Client::connect(&path, TIMEOUT).unwrap_err();

    assert!(error.to_string().contains("no-server"));
}

#[test]
fn both_sides_know_the_others_process() {
    let served = Served::start_with(
        ServerConfig::default(),
        Box::new(|server, _| {
            assert_eq!(server.peer_credentials().unwrap().pid() as u32, std::process::id());
        }),
    );
    let client = served.client();

    client.reset().unwrap();

    assert_eq!(client.server_pid().unwrap() as u32, std::process::id());
}
