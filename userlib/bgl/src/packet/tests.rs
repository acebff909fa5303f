//! The FIFOs, against a stand-in for the card that moves packets from an injection FIFO to a
//! reception FIFO.

use nicforge_hwi::torus::{CHUNK, FIFO_CHUNKS, HEADER, MAX_PAYLOAD, PacketHeader, mirror, window};
use nicforge_shm::{SharedMemory, Window};
use proptest::prelude::*;

use super::{Verdict, injection::Injection, reception::Reception, ring};
use crate::Error;

/// A few chunks before counts wrap around.
const FIRST: u32 = u32::MAX - 20;

fn memory(size: u64) -> Window {
    SharedMemory::create("fifo", size as usize).unwrap().window(0, size).unwrap()
}

/// The windows of a core, and the card between its FIFOs.
struct Card {
    windows: Window,
    mirrors: Window,
    /// Chunks that were taken from injection FIFO 0 and put into reception FIFO 0.
    moved: u32,
}

impl Card {
    /// Makes windows whose counts begin at `first`.
    fn new(first: u32) -> Self {
        let card = Self { windows: memory(window::SIZE), mirrors: memory(mirror::SIZE), moved: first };
        card.windows.store_u32_release(window::RECEPTION_HEAD, first).unwrap();
        card.set_counts();
        card
    }

    fn set_counts(&self) {
        self.mirrors.store_u32_release(mirror::INJECTION_HEAD, self.moved).unwrap();
        self.mirrors.store_u32_release(mirror::RECEPTION_TAIL, self.moved).unwrap();
    }

    fn injection(&self) -> Injection {
        Injection::new(&self.windows, &self.mirrors, 0).unwrap()
    }

    fn reception(&self) -> Reception {
        Reception::new(&self.windows, &self.mirrors).unwrap()
    }

    /// Moves chunks up to the tail of the injection FIFO, while the reception FIFO has room.
    fn move_chunks(&mut self, tail: u32) {
        while self.moved != tail {
            let taken = self.windows.load_u32_acquire(window::RECEPTION_HEAD).unwrap();
            if self.moved.wrapping_sub(taken) == FIFO_CHUNKS {
                return;
            }
            let offset = u64::from(self.moved % FIFO_CHUNKS) * CHUNK as u64;
            self.windows
                .copy_to(window::INJECTION + offset, &self.mirrors, mirror::RECEPTION + offset, 32)
                .unwrap();
            self.moved = self.moved.wrapping_add(1);
        }
        self.set_counts();
    }
}

fn payloads(reception: &mut Reception) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    let mut handler = |_: PacketHeader, payload: super::PayloadReader<'_>| {
        let mut bytes = vec![0; payload.len()];
        assert!(payload.copy_to(0, &mut bytes) && !payload.copy_to(1, &mut bytes));
        payloads.push(bytes);
        Verdict::Taken
    };
    reception.receive(&mut handler).unwrap();
    payloads
}

/// Writes a packet if there is room, in two pieces.
fn send(injection: &mut Injection, payload: &[u8]) -> bool {
    let (first, second) = payload.split_at(payload.len() / 3);
    let pieces = [first, &[], second].into_iter();
    let header = ring::sized(PacketHeader::to([1, 2, 3], 0), pieces.clone()).unwrap();
    let has_room = injection.find_room(header.chunks());
    if has_room {
        injection.write(header, pieces).unwrap();
    }
    has_room
}

proptest! {
    #[test]
    fn packets_of_all_sizes_pass_in_order_and_padded_with_zeros(
        lens in prop::collection::vec(0usize..=MAX_PAYLOAD, 1..60),
    ) {
        let mut card = Card::new(FIRST);
        let (mut injection, mut reception) = (card.injection(), card.reception());
        let (mut received, mut sent) = (Vec::new(), 0);

        while received.len() < lens.len() {
            while sent < lens.len() && send(&mut injection, &vec![sent as u8 + 1; lens[sent]]) {
                sent += 1;
            }
            if let Some((_, tail)) = injection.unpublished_tail() {
                injection.mark_published();
                card.move_chunks(tail);
            }
            received.append(&mut payloads(&mut reception));
        }

        prop_assert!(injection.is_empty() && sent == lens.len());
        for (number, (payload, len)) in received.iter().zip(lens).enumerate() {
            let (data, padding) = payload.split_at(len);
            prop_assert!(payload.len() == (HEADER + len).next_multiple_of(CHUNK).max(CHUNK) - HEADER);
            prop_assert!(data.iter().all(|&byte| byte == number as u8 + 1) && padding.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn any_contents_of_the_cards_memory_end_in_a_result(
        tail: u32, head: u32, first in any::<[u8; 4]>(), moved in 0u32..40,
    ) {
        let card = Card::new(0);
        let (mut injection, mut reception) = (card.injection(), card.reception());
        send(&mut injection, &[0; 240]);
        injection.mark_published();

        for chunk in 0..u64::from(FIFO_CHUNKS) {
            card.mirrors.write(mirror::RECEPTION + chunk * CHUNK as u64, &first).unwrap();
        }
        for tail in [tail, moved] {
            card.mirrors.store_u32_release(mirror::RECEPTION_TAIL, tail).unwrap();
            card.mirrors.store_u32_release(mirror::INJECTION_HEAD, head).unwrap();
            let mut handler = |_: PacketHeader, _: super::PayloadReader<'_>| Verdict::Taken;
            let _ = reception.receive(&mut handler);
            // There is never more room than the FIFO has.
            prop_assert!(!injection.find_room(FIFO_CHUNKS + 1));
            prop_assert_eq!(injection.find_room(FIFO_CHUNKS), head == 8);
        }
    }
}

#[test]
fn all_chunks_of_an_injection_fifo_can_be_used() {
    let card = Card::new(0);
    let mut injection = card.injection();
    let sent = (0..5).filter(|_| send(&mut injection, &[1; MAX_PAYLOAD])).count();
    assert_eq!(sent, 4);

    // The card takes a packet.
    injection.mark_published();
    card.mirrors.store_u32_release(mirror::INJECTION_HEAD, 8).unwrap();
    assert!(send(&mut injection, &[1; MAX_PAYLOAD]) && !send(&mut injection, &[]));
}

#[test]
fn payload_that_is_too_long_is_refused() {
    let pieces = [[0; 200].as_slice(), &[0; 41]];
    let result = ring::sized(PacketHeader::default(), pieces.into_iter());
    assert_eq!(result, Err(Error::PayloadTooLong { len: 241, most: 240 }));
}

#[test]
fn packet_that_is_left_is_offered_again() {
    let mut card = Card::new(FIRST);
    let (mut injection, mut reception) = (card.injection(), card.reception());
    send(&mut injection, &[1; 16]);
    send(&mut injection, &[2; 16]);
    card.move_chunks(injection.unpublished_tail().unwrap().1);

    let mut offered = 0;
    let mut handler = |_: PacketHeader, _: super::PayloadReader<'_>| {
        offered += 1;
        if offered == 2 { Verdict::Left } else { Verdict::Taken }
    };
    assert_eq!(reception.receive(&mut handler), Ok(1));
    assert_eq!(payloads(&mut reception), [[2; 16]]);
}

#[test]
fn heads_are_announced_after_half_a_fifo() {
    let mut card = Card::new(0);
    let (mut injection, mut reception) = (card.injection(), card.reception());
    for packets in [1, 2, 3] {
        send(&mut injection, &[0; MAX_PAYLOAD]);
        card.move_chunks(injection.unpublished_tail().unwrap().1);
        payloads(&mut reception);
        assert_eq!(reception.must_announce(), packets >= 2);
    }
    reception.mark_announced();
    assert!(!reception.must_announce());
}
