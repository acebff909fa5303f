//! Tests of the model alone, in virtual time.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use courier::{
    device::Courier,
    registers::{
        Descriptor, MAX_FRAME, REG_RECEIVE, REG_SEND, REG_SENT, VECTOR_RECEIVED, VECTOR_SENT, status,
    },
};
use nicforge_core::{
    fabric::LinkSpec,
    ids::{AttachmentId, FunctionId},
    register::show,
};
use nicforge_test_kit::{Client, ClientMemory, InterruptCount, PeerPacket, PostedRing, Testbed};

/// Places in a client's memory.
const SEND: u64 = 0x1_0000;
const RECEIVE: u64 = 0x1_0010;
const SEND_FRAME: u64 = 0x1_0100;
const RECEIVE_FRAME: u64 = 0x1_0800;

// ANCHOR: client
/// A client of a card.
struct User {
    client: Client,
    memory: ClientMemory,
    ring: PostedRing,
    interrupts: Vec<Arc<InterruptCount>>,
}

impl User {
    fn attach(bed: &mut Testbed, card: FunctionId) -> Self {
        let client = Client::attach(bed, card, AttachmentId(0));
        let mut memory = ClientMemory::new(client);
        memory.map(bed, SEND, 4096);
        Self { client, memory, ring: client.ring(bed), interrupts: client.bind_msix(bed) }
    }

    /// Writes a descriptor, and rings a doorbell with its address.
    fn post(&mut self, doorbell: u64, at: u64, address: u64, length: usize) {
        let descriptor = Descriptor { address, length: length as u32, status: status::PENDING };
        self.memory.write(at, &descriptor.to_bytes());
        self.ring.push64(0, doorbell as u32, at);
    }

    fn send(&mut self, frame: &[u8]) {
        self.memory.write(SEND_FRAME, frame);
        self.post(REG_SEND, SEND, SEND_FRAME, frame.len());
    }

    fn receive(&mut self) {
        self.post(REG_RECEIVE, RECEIVE, RECEIVE_FRAME, MAX_FRAME);
    }

    /// Returns the length and the status of a descriptor.
    fn result(&self, at: u64) -> (u32, u32) {
        (self.memory.read32(at + 8), self.memory.read32(at + 12))
    }
}
// ANCHOR_END: client

// ANCHOR: pair
#[test]
fn a_frame_goes_from_card_to_card() {
    let mut bed = Testbed::new();
    let [a, b] = ["a", "b"].map(|name| bed.add(name, Courier::default()));
    bed.connect((a, 0), (b, 0), LinkSpec::default());
    let [mut here, mut there] = [a, b].map(|card| User::attach(&mut bed, card));

    there.receive();
    here.send(b"hello");
    bed.run_until_idle();

    assert_eq!((here.result(SEND), there.result(RECEIVE)), ((5, status::DONE), (5, status::DONE)));
    assert_eq!(there.memory.read(RECEIVE_FRAME, 5), b"hello");
    assert_eq!(here.interrupts[usize::from(VECTOR_SENT)].get(), 1);
    assert_eq!(there.interrupts[usize::from(VECTOR_RECEIVED)].get(), 1);
}
// ANCHOR_END: pair

// ANCHOR: peer
#[test]
fn frames_wait_until_there_is_a_descriptor_for_each() {
    let mut bed = Testbed::new();
    let card = bed.add("card", Courier::default());
    let peer = bed.peer((card, 0), LinkSpec { credits: vec![2], ..LinkSpec::default() });
    let mut user = User::attach(&mut bed, card);

    // The link has room for two frames, and the third one finds no credit.
    let sent = [b"one", b"two", b"six"].map(|frame| peer.try_send(&mut bed, 0, &PeerPacket::new(0, frame)));
    user.receive();
    bed.run_until_idle();
    let first = user.memory.read(RECEIVE_FRAME, 3);
    user.receive();
    bed.run_until_idle();

    assert_eq!(sent, [true, true, false]);
    assert_eq!((first.as_slice(), user.memory.read(RECEIVE_FRAME, 3).as_slice()), (&b"one"[..], &b"two"[..]));
}
// ANCHOR_END: peer

#[test]
fn a_doorbell_waits_while_its_direction_has_no_credit() {
    let mut bed = Testbed::new();
    let card = bed.add("card", Courier::default());
    let peer = bed.peer((card, 0), LinkSpec { credits: vec![1], ..LinkSpec::default() });
    let mut user = User::attach(&mut bed, card);

    for frame in [b"1", b"2", b"3"] {
        user.send(frame);
        bed.run_until_idle();
    }
    let before = user.client.try_read(&mut bed, 0, REG_SENT, &mut [0; 8]);
    let mut arrived = Vec::new();
    bed.run_until(|bed| {
        arrived.extend(peer.take(bed, 0));
        arrived.len() == 3
    });
    bed.run_until_idle();

    // The second frame holds the card, and the third one's doorbell the ring, with reads behind it.
    assert_eq!(before.unwrap(), nicforge_core::machine::Access::Stalled);
    assert_eq!(user.client.read64(&mut bed, 0, REG_SENT), 3);
}

#[test]
fn frames_reach_memory_that_only_messages_reach() {
    const REMOTE: u64 = 0x8_0000;
    let mut bed = Testbed::new();
    let card = bed.add("card", Courier::default());
    let peer = bed.peer((card, 0), LinkSpec::default());
    let mut user = User::attach(&mut bed, card);
    user.memory.map_remote(&mut bed, REMOTE, 4096);

    user.post(REG_RECEIVE, REMOTE, REMOTE + 0x800, MAX_FRAME);
    peer.send(&mut bed, 0, &PeerPacket::new(0, b"far away"));
    bed.run_until(|bed| {
        user.memory.answer(bed);
        user.interrupts[usize::from(VECTOR_RECEIVED)].get() > 0
    });

    assert_eq!(user.result(REMOTE), (8, status::DONE));
    assert_eq!(user.memory.read(REMOTE + 0x800, 8), b"far away");
}

#[test]
fn bad_descriptors_are_answered_with_their_fault() {
    let mut bed = Testbed::new();
    let card = bed.add("card", Courier::default());
    let peer = bed.peer((card, 0), LinkSpec::default());
    let mut user = User::attach(&mut bed, card);

    let mut outcome = |doorbell, address, length| {
        let at = if doorbell == REG_SEND { SEND } else { RECEIVE };
        user.post(doorbell, at, address, length);
        peer.send(&mut bed, 0, &PeerPacket::new(0, &[7; 64]));
        bed.run_until_idle();
        user.result(at).1
    };

    assert_eq!(outcome(REG_SEND, SEND_FRAME, MAX_FRAME + 1), status::BAD_LENGTH);
    assert_eq!(outcome(REG_SEND, 0xdead_0000, 64), status::BAD_ADDRESS);
    assert_eq!(outcome(REG_RECEIVE, RECEIVE_FRAME, 63), status::BAD_LENGTH);
    assert_eq!(outcome(REG_RECEIVE, 0xdead_0000, 64), status::BAD_ADDRESS);
}

#[test]
fn a_reset_forgets_the_work_and_keeps_the_card_usable() {
    let mut bed = Testbed::new();
    let card = bed.add("card", Courier::default());
    let peer = bed.peer((card, 0), LinkSpec::default());
    let mut user = User::attach(&mut bed, card);
    user.receive();
    bed.run_until_idle();

    bed.reset_attachment(card, user.client.attachment).unwrap();
    user.ring.restart();
    peer.send(&mut bed, 0, &PeerPacket::new(0, b"late"));
    bed.run_until_idle();
    let forgotten = user.result(RECEIVE);
    user.client.enable_bus_master(&mut bed);
    user.receive();
    bed.run_until_idle();

    assert_eq!(forgotten, (MAX_FRAME as u32, status::PENDING));
    assert_eq!(user.result(RECEIVE), (4, status::DONE));
}

#[test]
fn declared_registers_have_the_values_that_software_reads() {
    let mut bed = Testbed::new();
    let card = bed.add("card", Courier::default());
    let peer = bed.peer((card, 0), LinkSpec::default());
    let mut user = User::attach(&mut bed, card);
    user.send(b"hello");
    bed.run_until_idle();

    assert_eq!(user.client.compare_peeks(&mut bed), ["SENT", "RECEIVED"]);
    let sent = user.client.read64(&mut bed, 0, REG_SENT).to_le_bytes();
    assert_eq!(show(bed.registers(card), 0, REG_SENT, &sent).to_string(), "SENT 0x0000000000000001");
    assert!(peer.take(&mut bed, 0).is_some());
}
