//! Tests of rings of packet slots: bounds, order, and numbers that wrap around.
#![allow(clippy::unwrap_used, reason = "a failure to set up is a failed test")]

use nicforge_shm::{Access, MemoryError, SharedMemory, Slots, Window};

const STRIDE: usize = 320;
const COUNT: u32 = 8;
const SIZE: u64 = COUNT as u64 * STRIDE as u64;
/// Bit of the tag that ends a run.
const STOP: u32 = 1 << 4;

type Ring = Slots<STRIDE, 64, 256>;

fn window() -> Window {
    SharedMemory::create("slots", 2 * SIZE as usize).unwrap().window(0, 2 * SIZE).unwrap()
}

fn ring(window: &Window) -> Ring {
    Ring::new(window, 0, COUNT).unwrap()
}

fn payloads<const MANY: usize>() -> [[u8; 256]; MANY] {
    std::array::from_fn(|packet| std::array::from_fn(|byte| (packet * 31 + byte) as u8))
}

#[test]
fn a_packet_is_found_by_its_number_with_its_tag() {
    let ring = ring(&window());
    let [payload] = payloads();
    let mut out = [0; 256];
    ring.put(3, 0xabcd, &payload);
    ring.payload(3, &mut out);

    assert_eq!(ring.holds(3), Some(0xabcd_0000_0004));
    assert_eq!(out, payload);
    assert_eq!(ring.holds(2), None);

    // The slot's next packet has another number.
    assert_eq!(ring.holds(3 + COUNT), None);
}

#[test]
fn slots_are_at_the_offsets_of_the_layout() {
    let window = window();
    let [payload] = payloads();
    let mut out = [0; 256];
    Ring::new(&window, 640, COUNT).unwrap().put(9, 7, &payload);

    // The second slot.
    window.read(640 + 320 + 64, &mut out).unwrap();

    assert_eq!(out, payload);
    assert_eq!(window.load_u64_acquire(640 + 320).unwrap(), 7 << 32 | 10);
}

#[test]
fn nothing_outside_of_the_ring_is_written() {
    let window = window();
    window.write(0, &[0xee; 2 * SIZE as usize]).unwrap();
    let ring = Ring::new(&window, STRIDE as u64, COUNT).unwrap();
    for number in 0..3 * COUNT {
        ring.put_run(number, u32::MAX, &payloads::<20>());
    }

    let mut around = [0; STRIDE];
    window.read(0, &mut around).unwrap();

    assert_eq!(around, [0xee; STRIDE]);

    window.read(SIZE + STRIDE as u64, &mut around).unwrap();
    assert_eq!(around, [0xee; STRIDE]);
}

#[test]
fn a_run_of_puts_ends_at_the_last_slot() {
    let ring = ring(&window());
    assert_eq!(ring.put_run(5, 0, &payloads::<4>()), 3);
    assert_eq!(ring.put_run(8, 0, &payloads::<4>()), 4);
    assert_eq!(ring.put_run(0, 0, &[]), 0);
    let held: Vec<_> = (5..12).map(|number| ring.holds(number).is_some()).collect();
    assert_eq!(held, [true; 7]);
}

#[test]
fn a_run_of_takes_ends_with_the_ring_an_empty_slot_or_a_tag() {
    let ring = ring(&window());
    let sent = payloads::<5>();
    ring.put_run(0, 0xf, &sent);
    let mut out = [[0; 256]; 16];

    assert_eq!(ring.take_run(0, STOP, &mut out), 5);
    assert_eq!(out[..5], sent);
    assert_eq!(ring.take_run(0, STOP, &mut out[..2]), 2);
    assert_eq!(ring.take_run(5, STOP, &mut out), 0);

    ring.put(2, STOP, &sent[0]);
    assert_eq!(ring.take_run(0, STOP, &mut out), 2);
    assert_eq!(ring.take_run(0, 0, &mut out), 5);

    ring.put_run(5, 0, &sent);
    assert_eq!(ring.take_run(6, STOP, &mut out), 2);
}

#[test]
fn numbers_wrap_around_without_touching_the_tag() {
    let ring = ring(&window());
    let last = u32::MAX;
    let [sent] = payloads();

    assert_eq!(ring.put_run(last - 1, 0xffff_ffef, &[sent; 2]), 2);
    assert_eq!(ring.holds(last - 1), Some(0xffff_ffef_ffff_ffff));
    assert_eq!(ring.holds(last), Some(0xffff_ffef_0000_0000));

    let mut out = [[0; 256]; 4];
    assert_eq!(ring.take_run(last - 1, STOP, &mut out), 2);
    assert_eq!(out[1], sent);
    assert_eq!(ring.put_run(last.wrapping_add(1), 0, &[sent; 2]), 2);
    assert_eq!(ring.holds(0), Some(1));
}

#[test]
fn payloads_of_every_size_are_moved_whole() {
    fn check_size<const STRIDE: usize, const N: usize>() {
        let ring = Slots::<STRIDE, 64, N>::new(&window(), 0, 4).unwrap();
        let sent: [[u8; N]; 3] =
            std::array::from_fn(|packet| std::array::from_fn(|byte| (packet + byte) as u8));
        let mut out = [[0; N]; 3];
        assert_eq!(ring.put_run(1, 0, &sent), 3);
        assert_eq!(ring.take_run(1, 0, &mut out), 3);
        assert!(out == sent, "{N}");
    }

    // An odd multiple of 16 bytes, which is not a multiple of the widest moves.
    check_size::<128, 16>();
    check_size::<128, 48>();
    check_size::<128, 64>();
    check_size::<320, 240>();
    check_size::<576, 512>();
}

#[test]
fn the_start_of_a_payload_is_as_long_as_its_target_and_no_longer_than_the_payload() {
    /// The value of bytes that are not written.
    const UNTOUCHED: u8 = 0xee;

    let ring = ring(&window());
    let [sent] = payloads();
    ring.put(0, 0, &sent);

    // A payload has 256 bytes.
    for len in [0, 1, 17, 255, 256, 300] {
        let mut out = vec![UNTOUCHED; len];
        ring.payload_start(0, &mut out);
        let copied = len.min(256);
        assert_eq!(out[..copied], sent[..copied]);
        assert!(out[copied..].iter().all(|&byte| byte == UNTOUCHED));
    }
}

#[test]
fn a_ring_that_does_not_fit_is_refused() {
    let window = window();

    assert_eq!(Ring::new(&window, 0, 0).unwrap_err(), MemoryError::SlotCount { count: 0 });
    assert_eq!(Ring::new(&window, 0, 6).unwrap_err(), MemoryError::SlotCount { count: 6 });
    assert!(matches!(Ring::new(&window, 0, 1 << 31), Err(MemoryError::OutOfBounds { .. })));

    let offset = SIZE + 64;
    assert_eq!(
        Ring::new(&window, offset, COUNT).unwrap_err(),
        MemoryError::OutOfBounds { offset, len: SIZE, size: 2 * SIZE }
    );
    assert_eq!(Ring::new(&window, 32, COUNT).unwrap_err(), MemoryError::Misaligned { offset: 32, align: 64 });
    assert!(Ring::new(&window, SIZE, COUNT).is_ok());
}

#[test]
fn nothing_is_put_into_memory_that_is_mapped_read_only() {
    let memory = SharedMemory::create("slots", SIZE as usize).unwrap();
    let file = memory.fd().unwrap();
    let reader = SharedMemory::map(file, 0, SIZE as usize, Access::ReadOnly).unwrap();
    let ring = ring(&reader.window(0, SIZE).unwrap());
    let writer = Ring::new(&memory.window(0, SIZE).unwrap(), 0, COUNT).unwrap();
    let [sent] = payloads();

    assert_eq!(ring.put_run(0, 0, &[sent]), 0);

    ring.put(0, 0, &sent);
    assert_eq!(ring.holds(0), None);

    writer.put(0, 0, &sent);
    assert_eq!(ring.holds(0), Some(1));
}

#[test]
fn a_reader_that_sees_the_number_sees_the_payload() {
    let ring = ring(&window());
    let writer = ring.clone();
    let taken = std::sync::atomic::AtomicU32::new(0);
    const PACKETS: u32 = 20_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..PACKETS {
                while number - taken.load(std::sync::atomic::Ordering::Acquire) == COUNT {
                    std::thread::yield_now();
                }
                writer.put(number, number, &[number as u8; 256]);
            }
        });
        let mut out = [[0; 256]; 4];
        let mut number = 0;
        while number < PACKETS {
            let many = ring.take_run(number, 0, &mut out);
            for payload in &out[..many] {
                assert_eq!(*payload, [number as u8; 256]);
                number += 1;
            }
            taken.store(number, std::sync::atomic::Ordering::Release);
            if many == 0 {
                std::thread::yield_now();
            }
        }
    });
}
