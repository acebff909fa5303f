//! The slots when packet numbers wrap around. A stand-in replaces the NIC, whose numbers start at
//! 0.

use nicforge_driver::Device;
use nicforge_hwi::tree::{Header, PAYLOAD, SLOT, SLOT_CONTROL, SLOT_PAYLOAD};
use nicforge_machine::{build::build, description::parse, in_process::LocalMachine};
use nicforge_nics::families;
use nicforge_shm::SharedMemory;

use super::*;

/// Number of slots of each FIFO.
const DEPTH: u32 = 8;
/// A few packet numbers before the wrap-around.
const FIRST: u32 = u32::MAX - 7;
const PACKETS: usize = 30;

fn device() -> Device {
    let description = parse("name = \"p\"\n[[pset]]\ncompute_nodes = 1\n", "p.toml", &families()).unwrap();
    let machine = LocalMachine::new(build(&description).unwrap().0);
    Device::from_backing(machine.open_named("cn0", "core0").unwrap()).unwrap()
}

fn memory(size: u64) -> Window {
    SharedMemory::create("fifo", size as usize).unwrap().window(0, size).unwrap()
}

/// Moves packets from the send slots to the receive slots as the NIC does, from number `next` on,
/// while there are any and the receive FIFO has room. Returns the number of the next packet.
fn move_packets(windows: &Window, mirrors: &Window, mut next: u32) -> u32 {
    loop {
        let slot = u64::from(next % DEPTH) * SLOT;
        let free = next.wrapping_sub(windows.load_u32_acquire(window::RECV_HEAD).unwrap()) < DEPTH;
        let control = windows.load_u64_acquire(window::SEND + slot + SLOT_CONTROL).unwrap();

        if control as u32 != next.wrapping_add(1) || !free {
            return next;
        }

        windows
            .copy_to(window::SEND + slot + SLOT_PAYLOAD, mirrors, mirror::RECV + slot + SLOT_PAYLOAD, 256)
            .unwrap();
        mirrors.store_u64_release(mirror::RECV + slot + SLOT_CONTROL, control).unwrap();
        next = next.wrapping_add(1);
        mirrors.store_u32_release(mirror::SEND_HEAD, next).unwrap();
    }
}

#[test]
fn packets_stay_in_order_when_their_numbers_wrap() {
    let (windows, mirrors, doorbell) = (memory(window::SIZE), memory(mirror::SIZE), device().doorbell());
    for word in [window::SEND_TAIL, window::RECV_HEAD] {
        windows.store_u32_release(word, FIRST).unwrap();
    }
    mirrors.store_u32_release(mirror::SEND_HEAD, FIRST).unwrap();

    let send = SendPort::new(&windows, &mirrors, DEPTH).unwrap();
    let receive = ReceivePort::new(&windows, &mirrors, DEPTH).unwrap();
    let data: Vec<u8> = (0..PACKETS * PAYLOAD - 100).map(|index| (index / 3) as u8).collect();
    let (mut received, mut sent, mut taken, mut next) = (vec![0; data.len()], 0, 0, FIRST);

    while taken < PACKETS {
        let mut batch = SendBatch::begin(&send, &doorbell, ());
        let rest = data.get(sent * PAYLOAD..).unwrap_or_default();
        sent += batch.send_data(Header::point_to_point(15, 1, false), rest, 8);
        drop(batch);

        next = move_packets(&windows, &mirrors, next);
        let mut receiver = Receiver::begin(&receive, &doorbell, ());
        taken += receiver.take_data(&mut received[taken * PAYLOAD..]).packets;
    }

    assert_eq!((sent, next), (PACKETS, FIRST.wrapping_add(PACKETS as u32)));
    assert!(received == data);
}

#[test]
fn data_stop_in_front_of_a_packet_with_the_irq_bit() {
    let (windows, mirrors, doorbell) = (memory(window::SIZE), memory(mirror::SIZE), device().doorbell());
    let send = SendPort::new(&windows, &mirrors, DEPTH).unwrap();
    let receive = ReceivePort::new(&windows, &mirrors, DEPTH).unwrap();

    let mut batch = SendBatch::begin(&send, &doorbell, ());
    for (irq, byte) in [(false, 1), (false, 2), (true, 3), (false, 4)] {
        assert!(batch.try_send(Header::point_to_point(0, 1, irq), &[byte; PAYLOAD]));
    }
    drop(batch);
    move_packets(&windows, &mirrors, 0);

    let mut receiver = Receiver::begin(&receive, &doorbell, ());
    let mut out = [0; 4 * PAYLOAD];
    let first = receiver.take_data(&mut out);
    receiver.advance();
    let second = receiver.take_data(&mut out[2 * PAYLOAD..]);

    assert_eq!(first, Taken { packets: 2, control: true });
    assert_eq!(second, Taken { packets: 1, control: false });
    assert!(out[..PAYLOAD] == [1; PAYLOAD] && out[2 * PAYLOAD..3 * PAYLOAD] == [4; PAYLOAD]);
}

#[test]
fn batch_continues_after_slots_that_a_dead_sender_had_filled() {
    let (windows, mirrors, doorbell) = (memory(window::SIZE), memory(mirror::SIZE), device().doorbell());
    let send = SendPort::new(&windows, &mirrors, DEPTH).unwrap();
    let mut dead = SendBatch::begin(&send, &doorbell, ());

    assert!(dead.try_send(Header::point_to_point(0, 1, false), &[1; PAYLOAD]));
    // The sender is killed, and the tail word does not include its packet.
    std::mem::forget(dead);

    let mut batch = SendBatch::begin(&send, &doorbell, ());
    assert!(batch.try_send(Header::point_to_point(0, 1, false), &[2; PAYLOAD]));
    drop(batch);

    assert_eq!(move_packets(&windows, &mirrors, 0), 2);
    assert_eq!(windows.load_u32_acquire(window::SEND_TAIL).unwrap(), 2);
}
