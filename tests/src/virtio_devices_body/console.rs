//! The console.

use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
};

use nicforge_driver::Error;
use nicforge_test_body::body;
use nicforge_virtio::registers::common;
use nicforge_virtio_devices::console::{RECEIVE, TRANSMIT};

use super::{
    MACHINE,
    driver::{ALL, Piece, Virtio},
    open_host_end,
};
use crate::backing::{Rig, test_deadline};

/// Returns `length` bytes that differ from place to place.
fn text(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 256 + seed) as u8).collect()
}

/// Sends bytes of the driver, and waits until their buffer has come back.
fn send(console: &mut Virtio, bytes: &[u8]) {
    let head = console.submit(TRANSMIT, &[Piece::Out(bytes)]);
    assert_eq!(console.wait_used(TRANSMIT), (head, 0));
    console.free(TRANSMIT, head);
}

/// Reads `count` bytes at the host's end, while the driver polls its device.
fn read_at_host(console: &Virtio, remote_end: &mut UnixStream, count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    let arrived = console.device.wait_until(test_deadline(), None, || {
        console.bar.read8(common::STATUS).unwrap();
        let mut chunk = [0; 4096];
        match remote_end.read(&mut chunk) {
            Ok(length) => all.extend(&chunk[..length]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        all.len() >= count
    });
    arrived.expect("the bytes come");
    all
}

/// Receives `count` bytes into buffers of `size`.
fn receive(console: &mut Virtio, count: usize, size: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < count {
        let head = console.submit(RECEIVE, &[Piece::In(size)]);
        let (used, written) = console.wait_used(RECEIVE);
        assert_eq!(used, head);
        all.extend(console.piece(RECEIVE, head, 0, written as usize));
        console.free(RECEIVE, head);
    }
    all
}

/// Connects to the console, and waits until a byte passes from the host to the driver.
fn connect(console: &mut Virtio) -> UnixStream {
    let mut remote_end = open_host_end();
    remote_end.write_all(b"!").unwrap();
    assert_eq!(receive(console, 1, 16), b"!");
    remote_end
}

/// Bytes go each way, in order, through buffers of any size.
#[body]
pub fn bytes_go_each_way(rig: &dyn Rig) {
    let mut console = Virtio::open(rig, "con0");
    let mut host_end = connect(&mut console);

    for (seed, length) in [1, 100, 508, 509, 2048].into_iter().enumerate() {
        let bytes = text(length, seed);
        send(&mut console, &bytes);
        assert_eq!(read_at_host(&console, &mut host_end, length), bytes);
        host_end.write_all(&bytes).unwrap();
        assert_eq!(receive(&mut console, length, 300), bytes);
    }
    assert_eq!(rig.counter("con0", "lost_bytes"), 0);
    assert_eq!(rig.counter("con0", "sent_bytes"), 3166);
    assert_eq!(rig.counter("con0", "received_bytes"), 3167);
}

/// The bytes of one buffer may lie in several pieces, and an interrupt reports that the buffer was
/// returned.
#[body]
pub fn buffers_have_several_pieces(rig: &dyn Rig) {
    let mut console = Virtio::open(rig, "con0");
    let mut host_end = connect(&mut console);
    let came_back = console.device.interrupt(TRANSMIT as u32 + 1).unwrap();

    let all = text(900, 3);
    console.queues[TRANSMIT].ask_for_interrupt(Some(0));
    console.submit(TRANSMIT, &[Piece::Out(&all[..1]), Piece::Out(&all[1..600]), Piece::Out(&all[600..])]);
    came_back.wait(test_deadline(), None).unwrap();
    assert_eq!(read_at_host(&console, &mut host_end, 900), all);

    host_end.write_all(b"hello").unwrap();
    let head = console.submit(RECEIVE, &[Piece::In(2), Piece::In(1), Piece::In(50)]);
    assert_eq!(console.wait_used(RECEIVE), (head, 5));
    let parts = [(0, 2), (1, 1), (2, 2)].map(|(number, length)| console.piece(RECEIVE, head, number, length));
    assert_eq!(parts.concat(), b"hello");
}

/// Without a client the driver's bytes are lost and counted, and its buffers come back.
#[body]
pub fn bytes_without_a_client_are_lost(rig: &dyn Rig) {
    let mut console = Virtio::open(rig, "con0");
    for seed in 0..40 {
        send(&mut console, &text(1000, seed));
    }

    let all_lost = || {
        console.bar.read8(common::STATUS).unwrap();
        rig.counter("con0", "lost_bytes") == 40_000
    };
    console.device.wait_until(test_deadline(), None, all_lost).unwrap();
    assert_eq!(rig.counter("con0", "queue_errors"), 0);
}

/// When a client hangs up, the next one has the line.
#[body]
pub fn the_next_client_has_the_line(rig: &dyn Rig) {
    let mut console = Virtio::open(rig, "con0");
    for number in 0..3 {
        let mut host_end = connect(&mut console);
        let sent = text(50, number);
        send(&mut console, &sent);
        assert_eq!(read_at_host(&console, &mut host_end, 50), sent);
    }
}

/// A client that sends more than there are buffers waits, and no byte is lost.
#[body]
pub fn a_client_waits_for_buffers(rig: &dyn Rig) {
    let mut console = Virtio::open(rig, "con0");
    let mut host_end = connect(&mut console);
    let all = text(100_000, 5);
    host_end.write_all(&all).unwrap();
    rig.settle();

    assert_eq!(receive(&mut console, all.len(), 2048), all);
}

/// A reset drops buffers in progress, and the next driver has the line.
#[body]
pub fn a_reset_starts_anew(rig: &dyn Rig) {
    let mut console = Virtio::open(rig, "con0");
    let mut host_end = connect(&mut console);
    console.offer(RECEIVE, &[Piece::In(100)]);
    console.offer(TRANSMIT, &[Piece::Out(&text(2000, 0))]);
    let mut console = console.restart(ALL);

    send(&mut console, b"again");
    let arrived = console.device.wait_for(test_deadline(), None, "the bytes", || {
        console.bar.read8(common::STATUS).unwrap();
        let mut chunk = [0; 4096];
        let length = host_end.read(&mut chunk).unwrap_or(0);
        Ok::<_, Error>(chunk[..length].ends_with(b"again").then_some(()))
    });
    arrived.unwrap();
    host_end.write_all(b"and back").unwrap();
    assert_eq!(receive(&mut console, 8, 100), b"and back");
}

/// A client that reads nothing costs the driver some time and bytes, and no buffer. When it reads
/// again, later bytes come.
#[body]
pub fn a_client_that_does_not_read_loses_bytes(rig: &dyn Rig) {
    let mut console = Virtio::open(rig, "con0");
    let mut host_end = connect(&mut console);
    let mut sent = 0;
    while rig.counter("con0", "lost_bytes") == 0 {
        assert!(sent < 10_000_000, "the socket holds {sent} bytes");
        send(&mut console, &text(2000, 0));
        sent += 2000;
    }

    let held = sent - rig.counter("con0", "lost_bytes") as usize;
    read_at_host(&console, &mut host_end, held);
    send(&mut console, b"again");
    assert_eq!(read_at_host(&console, &mut host_end, 5), b"again");
}
