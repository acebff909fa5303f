//! The messages of the reference implementation's sample client at nicforge's server, in its order
//! and with its sizes.
//!
//! That client is blocking and strict:
//! - It reads the header of a reply separately.
//! - It accepts descriptors only where it expects some.
//! - It fails on a reply of another size than it has room for.
//! - It proposes no second socket, and keeps its memory in a file on a disk.
//! - It serves DMA requests on the first socket while it waits for no reply.

use std::{
    fs::File,
    io::{IoSlice, IoSliceMut, Read},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::{fs::FileExt, net::UnixStream},
    },
};

use nicforge_hwi::{pci::VENDOR_ID, proof::dma_engine::*};
use nicforge_shm::{Access, SharedMemory};
use nicforge_tests::{
    backing::{EventLoopKind, LIMIT, Served},
    proof_body,
};
use nicforge_vfio_user::{
    Errno, PCI_CONFIG_REGION, PCI_MSIX_IRQ, PCI_NUM_IRQS, PCI_NUM_REGIONS, PeerFd, REGION_FLAG_CAPS,
    REGION_FLAG_MMAP, REGION_FLAG_WRITE,
    socket::{Framed, ReadOutcome},
    wire::{Command, HEADER_SIZE, Header, parse_region_info, parse_version},
};
use nix::sys::{
    eventfd::EventFd,
    socket::{ControlMessage, MsgFlags, recvmsg, sendmsg},
};
use vfio_bindings::bindings::vfio::{VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD};

use crate::interop::common::{eventfd, signals, wait_readable, with_time_out};

const PAGE: u64 = 0x1000;
/// Maximum data in a message to the client. It is low, so that transfers are split.
const TRANSFER: u64 = 1024;
/// Number of descriptors that the client accepts in one message.
const CLIENT_FDS: usize = 32;

/// The reference implementation's client.
struct Reference {
    stream: UnixStream,
    /// The client's memory. DMA addresses are offsets in the file.
    file: File,
}

impl Reference {
    /// Connects, and sends no message.
    fn connect(served: &Served, function: &str, attachment: &str) -> Self {
        let stream = UnixStream::connect(served.socket(function, attachment)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Self { stream, file }
    }

    /// Sends a message in one piece.
    fn send(&self, header: Header, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        let header = header.to_bytes();
        let fds: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&fds)];
        let rights = if fds.is_empty() { &[][..] } else { &rights };
        let parts = [IoSlice::new(&header), IoSlice::new(payload)];
        let sent = sendmsg::<()>(self.stream.as_raw_fd(), &parts, rights, MsgFlags::MSG_NOSIGNAL, None);

        assert_eq!(sent, Ok(header.len() + payload.len()));
    }

    /// Receives only a header. A descriptor with it would end the client, which has no room for
    /// one.
    fn header(&self) -> Header {
        let mut bytes = [0; HEADER_SIZE];
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg::<()>(self.stream.as_raw_fd(), &mut parts, None, MsgFlags::empty()).unwrap();
        assert!(!received.flags.intersects(MsgFlags::MSG_CTRUNC | MsgFlags::MSG_TRUNC), "a descriptor came");
        assert_eq!(received.bytes, HEADER_SIZE);
        Header::parse(&bytes).unwrap()
    }

    /// Receives a message with its descriptors.
    fn message(&self) -> (Vec<u8>, Vec<PeerFd>) {
        let mut framed = Framed::new(self.stream.try_clone().unwrap().into(), 1 << 16, CLIENT_FDS);
        loop {
            if let Some(message) = framed.next_message().unwrap() {
                return (message.payload.to_vec(), message.fds);
            }
            wait_readable(self.stream.as_fd());
            assert_ne!(framed.fill().unwrap(), ReadOutcome::End);
        }
    }

    /// Receives the payload after a header.
    fn body(&self, header: &Header) -> Vec<u8> {
        let mut payload = vec![0; header.size as usize - HEADER_SIZE];
        (&self.stream).read_exact(&mut payload).unwrap();
        payload
    }

    /// Sends a request and receives its reply without descriptors. A refusal must be only a header.
    fn ask(
        &self,
        id: u16,
        command: Command,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>, Errno> {
        self.send(Header::request(id, command, payload.len(), false), payload, fds);
        let header = self.header();

        assert_eq!((header.id, header.command), (id, command));

        if let Some(errno) = header.reply_error() {
            assert_eq!(header.size as usize, HEADER_SIZE);
            return Err(errno);
        }

        Ok(self.body(&header))
    }

    /// As [`Self::ask`], for a reply of `length` bytes without descriptors.
    fn get(&self, id: u16, command: Command, payload: &[u8], length: usize) -> Vec<u8> {
        let reply = self.ask(id, command, payload, &[]).unwrap();
        assert_eq!(reply.len(), length);
        reply
    }

    /// Negotiates the version. Returns the number of descriptors that the server takes in a
    /// message.
    fn negotiate(&self) -> u64 {
        let json = r#"{"capabilities":{"max_msg_fds":32,"max_data_xfer_size":1024}}"#;
        let payload = [&[0, 0, 1, 0], json.as_bytes(), &[0]].concat();
        let reply = self.ask(0xda55, Command::Version, &payload, &[]).unwrap();
        let version = parse_version(&reply).unwrap();

        assert_eq!((version.major, reply.last()), (0, Some(&0)));

        let capabilities = version.capabilities.unwrap();
        assert_eq!(capabilities.twin_socket, None);

        capabilities.max_msg_fds.unwrap()
    }

    /// Reads bytes of a region.
    fn read(&self, region: u32, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let access = access(region, offset, length);
        let reply = self.ask(0xf00f, Command::RegionRead, &access, &[])?;
        assert_eq!(reply[..16], access);
        assert_eq!(reply.len(), 16 + length);
        Ok(reply[16..].to_vec())
    }

    /// Writes bytes of a region.
    fn write(&self, region: u32, offset: u64, data: &[u8]) {
        let access = access(region, offset, data.len());
        let reply = self.get(0xf00e, Command::RegionWrite, &[&access, data].concat(), 16);
        assert_eq!(reply, access);
    }

    /// Maps the first pages of its file, with one message and descriptor for each.
    fn map_pages(&self, pages: u64) {
        self.file.set_len(pages * PAGE).unwrap();
        for page in 0..pages {
            let words = [32, 3].map(u32::to_le_bytes).concat();
            let longs = [page * PAGE, page * PAGE, PAGE].map(u64::to_le_bytes).concat();
            let id = 0x1234 + page as u16;
            let map = [words, longs].concat();
            assert_eq!(self.ask(id, Command::DmaMap, &map, &[self.file.as_fd()]), Ok(Vec::new()));
        }
    }

    /// Binds an eventfd to the first interrupt of a type.
    fn bind(&self, index: u32, fd: &EventFd) {
        let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
        let set = [20, flags, index, 0, 1].map(u32::to_le_bytes).concat();
        assert_eq!(self.ask(0x1bae, Command::DeviceSetIrqs, &set, &[fd.as_fd()]), Ok(Vec::new()));
    }

    /// Serves the server's next request and returns its command and number of bytes.
    fn serve_dma(&self) -> (Command, u64) {
        let header = self.header();
        let payload = self.body(&header);
        let [address, count] =
            [&payload[..8], &payload[8..16]].map(|word| u64::from_le_bytes(word.try_into().unwrap()));

        assert!(count <= TRANSFER);

        let mut reply = payload[..16].to_vec();
        if header.command == Command::DmaWrite {
            assert_eq!(payload.len() as u64, 16 + count);
            self.file.write_all_at(&payload[16..], address).unwrap();
        } else {
            reply.resize(16 + count as usize, 0);
            self.file.read_exact_at(&mut reply[16..], address).unwrap();
        }

        self.send(Header::reply(header.id, header.command, reply.len()), &reply, &[]);
        (header.command, count)
    }
}

/// Returns the payload of a region access, without data.
fn access(region: u32, offset: u64, length: usize) -> Vec<u8> {
    [&offset.to_le_bytes()[..], &region.to_le_bytes(), &(length as u32).to_le_bytes()].concat()
}

/// Returns the payload of a request for a region's information, with room for `argsz` bytes.
fn region_info(index: u32, argsz: u32) -> Vec<u8> {
    let mut payload = [argsz, 0, index, 0].map(u32::to_le_bytes).concat();
    payload.resize(argsz as usize, 0);
    payload
}

/// Serves the proof devices.
fn proof() -> Served {
    Served::new(proof_body::machine(), EventLoopKind::Auto)
}

#[test]
fn the_reference_client_reads_device_info_and_maps_regions() {
    with_time_out(|| {
        let served = proof();
        let client = Reference::connect(&served, "fifo0", "user0");
        client.negotiate();

        assert_eq!(client.read(0xdead_beef, 0, 4), Err(Errno::EINVAL));

        let info =
            client.get(0xb10c, Command::DeviceGetInfo, &[16, 0, 0, 0].map(u32::to_le_bytes).concat(), 16);

        // The waiting page and its interrupt come after those of PCI.
        assert_eq!(info[8..], [PCI_NUM_REGIONS + 1, PCI_NUM_IRQS + 1].map(u32::to_le_bytes).concat());

        let mut mapped = 0;
        for index in 0..PCI_NUM_REGIONS {
            // The first request has room only for the structure, and for no descriptor.
            let short = client.get(0xabcd, Command::DeviceGetRegionInfo, &region_info(index, 32), 32);
            let (first, argsz) = parse_region_info(&short).unwrap();

            assert_eq!((first.flags & REGION_FLAG_CAPS, &short[12..16]), (0, &[0; 4][..]));

            if argsz == 32 {
                assert_eq!(first.flags & REGION_FLAG_MMAP, 0, "no descriptor without a capability");
                continue;
            }

            let request = region_info(index, argsz);
            let command = Command::DeviceGetRegionInfo;
            client.send(Header::request(0xabcd, command, request.len(), false), &request, &[]);

            let (full, fds) = client.message();
            assert_eq!((full.len(), fds.len()), (argsz as usize, 1));

            let (info, needed) = parse_region_info(&full).unwrap();
            assert_eq!((needed, info.flags), (argsz, first.flags | REGION_FLAG_CAPS));

            let access =
                if info.flags & REGION_FLAG_WRITE == 0 { Access::ReadOnly } else { Access::ReadWrite };

            for area in info.areas {
                let at = info.offset + area.offset;
                SharedMemory::map(fds[0].as_fd(), at, area.size as usize, access).unwrap();
                mapped += 1;
            }
        }

        assert!(mapped >= 2);
    });
}

#[test]
fn the_references_client_sets_up_memory_and_interrupts_and_gets_no_dirty_pages() {
    with_time_out(|| {
        let served = proof();
        let client = Reference::connect(&served, "fifo0", "user0");
        let fds = client.negotiate();

        assert_eq!(client.read(PCI_CONFIG_REGION, 0, 64).unwrap()[..2], VENDOR_ID.to_le_bytes());
        assert_eq!(client.ask(1, Command::DeviceReset, &[], &[]), Ok(Vec::new()));

        client.map_pages(fds * 2);
        for index in 0..PCI_NUM_IRQS {
            let payload = [16, 0, index, 0].map(u32::to_le_bytes).concat();
            let info = client.get(0x1bad, Command::DeviceGetIrqInfo, &payload, 16);
            assert_eq!(info[8..12], index.to_le_bytes());
        }

        client.bind(0, &eventfd());

        // The client requests the start of DMA logging and ends here, since this server does not
        // track dirty pages.
        let start = [[24, 6 | 1 << 17].map(u32::to_le_bytes).concat(), vec![0; 16]].concat();

        assert_eq!(client.ask(0, Command::DeviceFeature, &start, &[]), Err(Errno::EINVAL));
        assert_eq!(client.read(PCI_CONFIG_REGION, 0, 2).unwrap(), VENDOR_ID.to_le_bytes());
    });
}

/// The file is on a disk, so the server does not map it. It sends its requests between the replies.
#[test]
fn the_references_client_serves_dma_to_its_file_by_messages_of_its_size() {
    with_time_out(|| {
        let served = proof();
        let client = Reference::connect(&served, "dma0", "user0");
        client.negotiate();
        client.map_pages(4);

        let done = eventfd();
        client.bind(PCI_MSIX_IRQ, &done);
        client.write(PCI_CONFIG_REGION, 4, &6_u16.to_le_bytes());

        let data: Vec<u8> = (0..PAGE).map(|at| (at * 31) as u8).collect();
        client.file.write_all_at(&data, 2 * PAGE).unwrap();
        client.file.write_all_at(&[2 * PAGE, PAGE, PAGE].map(u64::to_le_bytes).concat(), 0).unwrap();
        client.write(0, REG_LIST, &0_u64.to_le_bytes());
        client.write(0, REG_COUNT, &1_u32.to_le_bytes());

        client.write(0, REG_START, &1_u32.to_le_bytes());
        let (mut read, mut written) = (0, 0);

        while written < PAGE {
            match client.serve_dma() {
                (Command::DmaRead, count) => read += count,
                (_, count) => written += count,
            }
        }

        assert_eq!(signals(&done), 1);
        assert!(read >= PAGE);

        let mut copied = vec![0; PAGE as usize];
        client.file.read_exact_at(&mut copied, PAGE).unwrap();
        assert_eq!(copied, data);

        let unmap =
            [[24, 0].map(u32::to_le_bytes).concat(), [PAGE, PAGE].map(u64::to_le_bytes).concat()].concat();

        assert_eq!(client.get(3, Command::DmaUnmap, &unmap, 24), unmap);
    });
}
