//! Messages of a FIFO without competitors go in rows. Their results are those of messages one by
//! one.

use nicforge_hwi::mu::{interrupt, reg};
use nicforge_kit::Clock;
use nicforge_mu::Options;
use proptest::prelude::*;

use crate::common::{COUNTERS, DATA, PAYLOAD, Rig, User, Way};

const WAY: Way = Way { from: 0, to: 1 };
/// The network FIFOs of messages: one, so that they can go in a row, or two, so that they take
/// turns and none does. All lead to the same link.
const MAPS: [u64; 2] = [0x8000, 0xc000];
/// Counter of the puts, and its first value.
const COUNTER: u64 = 2;
const EXPECTED: u64 = 1 << 20;

/// A message of one packet.
#[derive(Clone, Debug)]
struct Short {
    is_put: bool,
    fifo: u16,
    /// Bytes, and the offset of the payload.
    bytes: usize,
    offset: u64,
    interrupts: bool,
}

fn short() -> impl Strategy<Value = Short> {
    (any::<bool>(), 0_u16..4, 1_usize..=512, 0_u64..4096, any::<bool>()).prop_map(
        |(is_put, fifo, bytes, offset, interrupts)| Short { is_put, fifo, bytes, offset, interrupts },
    )
}

/// Returns the payload at the sender.
fn payload() -> Vec<u8> {
    (0..8192_u32).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect()
}

/// Returns the payloads of the packets that a reception FIFO gets, in their order.
fn expected_packets(messages: &[Short], fifo: u16) -> Vec<Vec<u8>> {
    let payload = payload();
    let for_it = messages.iter().filter(|message| !message.is_put && message.fifo == fifo);
    let packet = |message: &Short| {
        let mut packet = payload[message.offset as usize..][..message.bytes].to_vec();
        packet.resize(message.bytes.next_multiple_of(32), 0);
        packet
    };
    for_it.map(packet).collect()
}

/// The state at both ends after a run.
#[derive(Debug, PartialEq, Eq)]
struct Results {
    /// Payload of each packet, by reception FIFO.
    received: Vec<Vec<Vec<u8>>>,
    free: Vec<u64>,
    interrupts: u64,
    data: Vec<u8>,
    counter: u64,
    done: u64,
    counters: Vec<u64>,
}

/// The ways of messages: in rows at both ends; not in rows at the sender; and not at the receiver,
/// whose engines take time.
const WAYS: [(u64, u32); 3] = [(MAPS[0], 0), (MAPS[1], 0), (MAPS[0], 10_000)];

/// Sends messages from one FIFO, in bursts, and returns the results. `mhz` is the clock of the
/// unit; with 0, its work takes no time.
fn results(messages: &[Short], burst: usize, (map, mhz): (u64, u32)) -> Results {
    let mut rig = Rig::new(&[2], Options { clock: Clock::of_mhz(mhz), ..Options::default() });
    let mut users: [User; 2] = [0, 1].map(|node| rig.user(node, 0));
    users[0].write(PAYLOAD, &payload());
    users[1].write64(COUNTERS + 8 * COUNTER, EXPECTED);

    for burst in messages.chunks(burst) {
        for message in burst {
            let Short { is_put, fifo, bytes, offset, interrupts } = *message;
            let mut descriptor = if is_put {
                WAY.put(0, offset, COUNTER, PAYLOAD + offset, bytes)
            } else {
                WAY.fifo(fifo, PAYLOAD + offset, bytes)
            };
            descriptor.torus_fifo_map = map;
            descriptor.interrupt = u32::from(interrupts && !is_put);
            users[0].inject(&mut rig.bed, 1, &descriptor);
        }
        rig.settle();
    }
    // Engines that take time are not done when the machine has nothing to do at once.
    rig.until(|rig| {
        let received = ["fifo_packets", "put_packets"].map(|name| rig.counter(1, name));
        received.iter().sum::<u64>() == messages.len() as u64
    });

    let free = (0..4).map(|fifo| users[1].shown_reception(fifo, reg::FREE_SPACE)).collect();
    let packets = |fifo| users[1].packets(fifo).0.into_iter();
    let received = (0..4).map(|fifo| packets(fifo).map(|(_, payload)| payload).collect());
    let names = ["packets_sent", "bytes_sent", "descriptors", "faults"];
    let of_sender: Vec<_> = names.map(|name| rig.counter(0, name)).into();
    let names = ["fifo_packets", "put_packets", "bytes_received", "dropped", "delivered"];
    let of_receiver = names.map(|name| rig.counter(1, name));
    Results {
        received: received.collect(),
        free,
        interrupts: users[1].shown(reg::INTERRUPT_STATUS) & (0xf * interrupt::PACKET),
        data: users[1].read(DATA, 8192),
        counter: users[1].read64(COUNTERS + 8 * COUNTER),
        done: users[0].done(1),
        counters: of_sender.into_iter().chain(of_receiver).collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(12) })]

    #[test]
    fn rows_give_the_results_of_messages_one_by_one(
        messages in proptest::collection::vec(short(), 1..60),
        burst in 1_usize..40,
    ) {
        let [mut found, mut by_two, clocked] = WAYS.map(|way| results(&messages, burst, way));
        let puts: usize = messages.iter().filter(|message| message.is_put).map(|message| message.bytes).sum();

        prop_assert_eq!(found.done, messages.len() as u64);
        prop_assert_eq!(found.counter, EXPECTED - puts as u64);
        for fifo in 0..4 {
            prop_assert_eq!(&found.received[usize::from(fifo)], &expected_packets(&messages, fifo));
        }

        prop_assert_eq!(&found, &clocked);
        // By two network FIFOs, packets may overtake each other.
        for results in [&mut found, &mut by_two] {
            results.received.iter_mut().for_each(|packets| packets.sort());
        }
        prop_assert_eq!(found, by_two);
    }
}
