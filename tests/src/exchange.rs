//! Messages of VELO and transfers of RMA between two programs, each in a guest or on the host.
//! `ex0` is the card of the program that begins, `ex1` that of its peer.

use nicforge_driver::{Deadline, DmaBuffer, HugePages};
use nicforge_rma::{Access, Notify, Options, Port as RmaPort, Region, Role};
use nicforge_velo::{Address, Config, Filter, Port as VeloPort};

use crate::{
    backing::{Rig, limit, test_deadline},
    pattern::pattern,
};

/// Messages that go to and fro.
const MESSAGES: u64 = 40;
/// Lengths of transfers. Some are longer than a packet, and some than a page.
const LENGTHS: [usize; 5] = [1, 64, 4097, 65_537, 300_000];
/// Bytes of a side's memory.
const MEMORY: usize = 2 << 20;
/// Offset in a side's memory at which it gets its blocks back.
const BACK: u64 = 1 << 20;

/// Returns the offset of a block in the peer's memory. The distance of two blocks exceeds the
/// longest of [`LENGTHS`].
fn block_offset(number: u64) -> u64 {
    number * 0x6_0000
}

/// Opens a VELO port of card `ex{node}`.
fn velo_port(rig: &dyn Rig, node: u32, vpid: u16) -> VeloPort {
    let device = rig.open(&format!("ex{node}"), &format!("vpid{vpid}"));
    VeloPort::open(device, Config::default()).expect("a port")
}

/// Returns a message of this number, of 1 to 8 quadwords.
fn message(number: u64) -> Vec<u8> {
    pattern(number, 8 * (1 + number as usize % 8))
}

/// Sends each message to a peer, and receives it back.
///
/// # Panics
/// When one comes back changed.
pub fn velo_send(rig: &dyn Rig, vpid: u16, peer: Address) {
    let mut port = velo_port(rig, 0, vpid);
    let link = port.connect(peer, test_deadline(), None).expect("a peer");
    for number in 0..MESSAGES {
        let sent = message(number);
        port.send(link, (number % 15) as u8, &sent, test_deadline(), None).expect("room for a message");
        let back = port.recv(Filter::from(peer), test_deadline(), None).expect("an answer");
        assert_eq!(back.bytes(), sent, "message {number}");
    }
}

/// Sends each message of a peer back. It calls `opened` when its port is there.
///
/// # Panics
/// When a message is not the expected one.
pub fn velo_echo(rig: &dyn Rig, vpid: u16, peer: Address, opened: impl FnOnce()) {
    let mut port = velo_port(rig, 1, vpid);
    opened();
    // The peer's guest may still boot.
    let deadline = Deadline::after(4 * limit());
    let link = port.connect(peer, deadline, None).expect("a peer");
    for number in 0..MESSAGES {
        let got = port.recv(Filter::from(peer), test_deadline(), None).expect("a message");
        assert_eq!(got.bytes(), message(number), "message {number}");
        port.send(link, got.tag, got.bytes(), test_deadline(), None).expect("room for an answer");
    }
}

/// A port of RMA with memory that its peer reaches.
pub struct RmaSide {
    port: RmaPort,
    region: Region,
    buffer: DmaBuffer,
}

impl RmaSide {
    /// Opens a port of a card.
    ///
    /// # Panics
    /// When there is none, or no memory for it.
    pub fn open(rig: &dyn Rig, node: u32, vpid: u16) -> Self {
        let device = rig.open(&format!("ex{node}"), &format!("vpid{vpid}"));
        let buffer = device.dma_buffer(MEMORY, HugePages::Never).expect("memory");
        let port = RmaPort::open(&device, Options::default()).expect("a port");
        let region = port.register(&buffer, Access::READ_WRITE).expect("registered memory");
        Self { port, region, buffer }
    }

    /// Returns the address of its memory for peers.
    pub fn address(&self) -> u64 {
        self.region.address()
    }

    /// Puts blocks into the memory of a peer, and gets them back.
    ///
    /// # Panics
    /// When a block comes back changed.
    pub fn put_and_get(&mut self, node: u32, vpid: u16, address: u64) {
        let target = self.port.connect(node, vpid).expect("a peer");
        let own_address = self.address();
        for (number, length) in (0..).zip(LENGTHS) {
            let (sent, bytes) = (pattern(number, length), length as u64);
            self.buffer.write(0, &sent).expect("the memory is there");
            let both = Notify::REQUESTER | Notify::COMPLETER;
            let peer_address = address + block_offset(number);
            self.port.put(target, own_address, peer_address, bytes, both).expect("a put");
            self.wait_for(Role::Requester);

            self.port.get(target, peer_address, own_address + BACK, bytes, Notify::COMPLETER).expect("a get");
            self.wait_for(Role::Completer);
            let mut back = vec![0; length];
            self.buffer.read(BACK, &mut back).expect("the memory is there");
            assert!(back == sent, "{length} bytes came back changed");
        }

        // This last block tells the peer that its memory is no longer needed.
        self.port.put(target, own_address, address, 1, Notify::REQUESTER | Notify::COMPLETER).expect("a put");
        self.wait_for(Role::Requester);
    }

    /// Waits for the puts of a peer, and checks their content. It returns when the peer has also
    /// got all blocks back.
    ///
    /// # Panics
    /// When a block is not the expected one.
    pub fn check_puts(&mut self) {
        for (number, length) in (0..).zip(LENGTHS) {
            self.wait_for(Role::Completer);
            let mut got = vec![0; length];
            self.buffer.read(block_offset(number), &mut got).expect("the memory is there");
            assert!(got == pattern(number, length), "{length} bytes arrived changed");
        }
        self.wait_for(Role::Completer);
    }

    /// Waits for the next notification, which must be for this role.
    fn wait_for(&mut self, role: Role) {
        let notification = self.port.next(test_deadline(), None).expect("a notification");
        assert_eq!(notification.role, role);
    }
}
