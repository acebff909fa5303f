//! Packets that violate the protocol are dropped, and harm no other connection.

#![allow(clippy::unwrap_used, reason = "tests")]

mod network;

use nicforge_bgl::{
    message::{
        Config, MAX_MESSAGE, WINDOW,
        wire::{Acknowledgement, Control, Details, Kind, MessageId, Protocol, SoftwareHeader, life_bits},
    },
    packet::Rank,
};
use nicforge_hwi::torus::{MAX_PAYLOAD, PacketHeader};
use proptest::prelude::*;
use zerocopy::IntoBytes;

use network::{Layout, Policy, Program, World, filled, information, software_header};

const LIMIT: usize = 100_000;
/// The rank that sends wrong packets: core 0 of node 2.
const ROGUE: usize = 2;

/// A world in which node 2 has no layer, but sends what a test wants.
struct Attack {
    world: World,
}

impl Attack {
    fn new(policy: Policy) -> Self {
        let config = Config { eager: 800, mid_size: 3000, ..Config::default() };
        let mut world = World::new(3, 1, config);
        world.layers.truncate(ROGUE);
        world.programs[0] = Program::with(policy);
        Self { world }
    }

    /// Sends a packet to node 0 in the name of the rogue rank.
    fn send(&mut self, kind: Kind, id: u16, field: u32, payload: &[u8]) {
        self.send_as(World::rank(ROGUE), kind, id, field, payload);
    }

    fn send_as(&mut self, source: Rank, kind: Kind, id: u16, field: u32, payload: &[u8]) {
        let header = SoftwareHeader { kind, source, life: life_bits(1), id: MessageId::new(id), field };
        self.send_words(header.encode().map(|word| word.get()), payload);
    }

    fn send_words(&mut self, words: [u32; 2], payload: &[u8]) {
        self.put_words(words, payload);
        self.world.advance(0);
    }

    /// Sends a packet that node 0 takes later, with others.
    fn put(&mut self, kind: Kind, id: u16, field: u32, payload: &[u8]) {
        let (source, id) = (World::rank(ROGUE), MessageId::new(id));
        let header = SoftwareHeader { kind, source, life: life_bits(1), id, field };
        self.put_words(header.encode().map(|word| word.get()), payload);
    }

    fn put_words(&mut self, words: [u32; 2], payload: &[u8]) {
        let software = words.map(Into::into);
        let header = PacketHeader { software, ..PacketHeader::to([0; 3], 0) };
        self.world.network.deliver(World::rank(0), header, payload);
    }

    fn malformed(&self) -> u64 {
        self.world.layers[0].statistics().malformed
    }

    /// Checks that the two honest ranks exchange messages.
    fn check_others(&mut self) {
        let before = self.world.programs[1].finished.len();
        for (number, len) in (500..).zip([10, 700, 2500, 9000]) {
            self.world.post(0, 1, number, filled(Layout::At(3), number, len));
        }
        self.world.run_until(LIMIT, |world| world.programs[1].finished.len() == before + 4);
        assert!(self.world.programs[1].finished.iter().all(|finished| finished.result == Ok(())));
    }
}

/// Returns the payload of a packet that announces a message.
fn announcement(number: u32, length: usize, head: usize, protocol: Protocol, rest: usize) -> Vec<u8> {
    let details = Details::new(length, head, protocol);
    [information(number).as_slice(), details.as_bytes(), &vec![0x77; rest]].concat()
}

fn acknowledgement(wanted: u32, head: u8) -> Acknowledgement {
    Acknowledgement { wanted: wanted.into(), head, reserved: [0; 11] }
}

/// A packet: its kind, its field and its payload.
type Sample = (Kind, u32, Vec<u8>);

#[test]
fn wrong_packets_of_each_kind_are_counted_and_dropped() {
    let single = |length| Control { length, freed: 0 }.encode();
    let eager = |length, head| announcement(0, length, head, Protocol::Eager, 200);
    let mut bad_protocol = eager(500, 0);
    bad_protocol[21] = 3;

    let wrong: [(&str, Sample); 15] = [
        ("longer than its packet", (Kind::Single, single(100), vec![0; 48])),
        ("longer than any packet", (Kind::Single, single(225), vec![0; MAX_PAYLOAD])),
        ("without details", (Kind::Lead, 0, vec![0; 16])),
        ("of a protocol without leads", (Kind::Lead, 0, announcement(0, 500, 0, Protocol::Rendezvous, 0))),
        ("with an unknown protocol", (Kind::Lead, 0, bad_protocol)),
        ("with a head of 16 bytes", (Kind::Lead, 0, eager(500, 16))),
        ("with a head beyond the message", (Kind::Lead, 0, eager(3, 4))),
        ("too long", (Kind::Lead, 0, eager(MAX_MESSAGE + 1, 0))),
        ("repeated in the eager protocol", (Kind::Repeat, 0, eager(500, 0))),
        (
            "repeated beyond the message",
            (Kind::Repeat, 200, announcement(0, 2000, 0, Protocol::MidSize, 200)),
        ),
        ("requested by the eager protocol", (Kind::Request, 0, eager(500, 0))),
        ("without a message", (Kind::Data, 0, vec![0; MAX_PAYLOAD])),
        ("without a message", (Kind::Ends, 0, vec![0; 16])),
        ("beyond the message", (Kind::Eager, 40, vec![0; MAX_PAYLOAD])),
        ("shorter than its part", (Kind::Lead, 0, announcement(0, 500, 0, Protocol::Eager, 16))),
    ];
    for (case, (kind, field, payload)) in wrong {
        let mut attack = Attack::new(Policy::Receive(Layout::At(0)));
        attack.send(kind, 0, field, &payload);
        // A message that is as long as the lead below says, for the packets that need one.
        if attack.malformed() == 0 && kind == Kind::Eager {
            attack.send(Kind::Lead, 0, 0, &eager(500, 0));
        }
        assert_eq!(attack.malformed(), 1, "{kind:?} {case}");
        attack.check_others();
    }
}

#[test]
fn unknown_kinds_and_senders_are_dropped() {
    let mut attack = Attack::new(Policy::Discard);
    for kind in [0, 12, 15] {
        attack.send_words([4 | kind << 13, 0], &[0; 16]);
    }
    assert_eq!(attack.malformed(), 3);

    // Ranks beyond the machine, and another life.
    for source in [Rank::new(3, 0), Rank::new(100, 0)] {
        attack.send_as(source, Kind::Single, 0, 0, &[0; 16]);
    }
    attack.send_words([4 | 1 << 13, 9 << 24], &[0; 16]);
    assert_eq!((attack.world.layers[0].statistics().stale, attack.malformed()), (3, 3));
    assert!(attack.world.programs[0].presented.is_empty());
    attack.check_others();
}

#[test]
fn contradictions_within_a_message_are_dropped() {
    let mut attack = Attack::new(Policy::Never);
    let lead = announcement(0, 2000, 0, Protocol::MidSize, 208);
    attack.send(Kind::Lead, 0, 0, &lead);

    for other in [(1, 2000, 0), (0, 2001, 0), (0, 2000, 1)] {
        let (number, length, head) = other;
        attack.send(Kind::Repeat, 0, 13, &announcement(number, length, head, Protocol::MidSize, 208));
    }
    attack.send(Kind::Single, 0, 0, &information(0));
    attack.send(Kind::Request, 0, 0, &announcement(0, 2000, 0, Protocol::Rendezvous, 0));
    attack.send(Kind::Data, 0, 13, &[0; MAX_PAYLOAD]);
    assert_eq!((attack.malformed(), attack.world.programs[0].presented.len()), (6, 1));
    attack.check_others();
}

#[test]
fn repeated_packets_end_a_message_once() {
    let mut attack = Attack::new(Policy::Receive(Layout::At(0)));
    attack.send(Kind::Lead, 0, 0, &announcement(0, 208 + 480, 0, Protocol::Eager, 208));
    for _ in 0..5 {
        attack.send(Kind::Eager, 0, 13, &[1; MAX_PAYLOAD]);
    }

    let program = &attack.world.programs[0];
    assert_eq!((program.finished.len(), program.presented.len()), (1, 1));
    // The later packets belong to no message: their id is past.
    assert_eq!(attack.malformed(), 3);
    attack.check_others();
}

#[test]
fn packets_beyond_a_messages_length_do_not_keep_it_from_ending() {
    let mut attack = Attack::new(Policy::Receive(Layout::At(0)));
    let lead = announcement(0, 208 + 480, 0, Protocol::Eager, 208);
    attack.send(Kind::Lead, 0, 0, &lead);
    attack.send(Kind::Eager, 0, 13, &[1; MAX_PAYLOAD]);
    attack.send(Kind::Lead, 0, 0, &lead);
    // 656 bytes have come, so a full packet is one too many.
    attack.send(Kind::Eager, 0, 13, &[1; MAX_PAYLOAD]);
    assert_eq!((attack.malformed(), attack.world.programs[0].finished.len()), (1, 0));
    attack.check_others();
}

#[test]
fn ids_ahead_of_the_window_are_dropped() {
    let mut attack = Attack::new(Policy::Discard);
    let window = u16::from(WINDOW);
    for id in [window, 1000, MessageId::COUNT - 1] {
        attack.send(Kind::Single, id, 0, &information(0));
    }
    assert_eq!(attack.malformed(), 3);

    attack.send(Kind::Single, window - 1, 0, &information(0));
    assert_eq!((attack.malformed(), attack.world.layers[0].receives_in_progress()), (3, 1));
    attack.check_others();
}

#[test]
fn acknowledgements_that_nobody_waits_for_are_dropped() {
    let mut attack = Attack::new(Policy::Discard);
    // A message to the rogue rank waits for its acknowledgement.
    attack.world.post(0, ROGUE, 0, filled(Layout::At(0), 0, 9000));
    for (wanted, head) in [(9001, 0), (u32::MAX, 0), (9000, 16)] {
        attack.send(Kind::Acknowledge, 0, 0, acknowledgement(wanted, head).as_bytes());
    }
    assert_eq!(attack.malformed(), 3);
    attack.send(Kind::Acknowledge, 7, 0, acknowledgement(1, 0).as_bytes());
    assert_eq!(attack.world.programs[0].sent.len(), 0);

    attack.send(Kind::Acknowledge, 0, 0, acknowledgement(0, 0).as_bytes());
    attack.world.turns(10);
    assert_eq!((attack.world.programs[0].sent.len(), attack.malformed()), (1, 3));
    attack.check_others();
}

#[test]
fn markers_that_no_drain_sends_are_dropped() {
    let mut attack = Attack::new(Policy::Never);
    attack.world.post(0, ROGUE, 0, filled(Layout::At(0), 0, 100));
    attack.send(Kind::Marker, u16::from(WINDOW) + 1, 0, &[]);
    attack.send(Kind::MarkerAcknowledge, 1, 0, &[]);
    assert_eq!(attack.malformed(), 2);

    // An acknowledgement of another marker than the one that was sent.
    attack.world.layers[0].begin_drain();
    attack.world.turns(10);
    attack.send(Kind::MarkerAcknowledge, 0, 0, &[]);
    assert!(attack.malformed() == 3 && !attack.world.layers[0].is_drained());

    attack.send(Kind::MarkerAcknowledge, 1, 0, &[]);
    assert!(attack.malformed() == 3 && attack.world.layers[0].is_drained());
    attack.world.layers[0].end_drain();
    attack.check_others();
}

#[test]
fn flood_without_credit_takes_no_more_than_a_window() {
    let mut attack = Attack::new(Policy::Never);
    for id in 0..1000 {
        let length = 224;
        let payload = [information(id.into()).as_slice(), &[1; 224]].concat();
        attack.send(Kind::Single, id, Control { length, freed: 0 }.encode(), &payload);
    }

    let window = usize::from(WINDOW);
    assert_eq!(attack.world.layers[0].packet_places(), window);
    assert_eq!(attack.world.layers[0].receives_in_progress(), window);
    assert_eq!(attack.world.programs[0].presented.len(), window);
    assert_eq!(attack.malformed(), 1000 - u64::from(WINDOW));
    attack.check_others();
}

#[test]
fn flood_of_packets_without_a_lead_takes_no_more_than_a_window() {
    let mut attack = Attack::new(Policy::Discard);
    for number in 0..1000 {
        attack.send(Kind::Eager, number % 5, number.into(), &[0; MAX_PAYLOAD]);
    }
    assert_eq!(attack.world.layers[0].packet_places(), usize::from(WINDOW));
    assert_eq!(attack.malformed(), 1000 - u64::from(WINDOW));
    attack.check_others();
}

#[test]
fn packets_after_an_ended_request_leave_the_memory_for_packets_whole() {
    let mut attack = Attack::new(Policy::Discard);
    attack.world.post(1, 0, 0, filled(Layout::At(0), 0, 700));
    attack.world.run_until(LIMIT, |world| world.programs[0].finished.len() == 1);

    for id in 0..10 {
        attack.put(Kind::Request, id, 0, &announcement(100, 9000, 0, Protocol::Rendezvous, 0));
        for _ in 1..WINDOW {
            attack.put(Kind::Eager, id, 0, &[0; 16]);
        }
        attack.world.advance(0);
    }

    // The first packet of each honest message comes last, so the others must be stored.
    for number in 1..4 {
        attack.world.post(1, 0, number, filled(Layout::At(0), number, 700));
        let mut packets = attack.world.network.take_packets_for(World::rank(0));
        packets.sort_by_key(|packet| software_header(packet).kind == Kind::Lead);
        for packet in packets {
            attack.world.network.deliver(World::rank(0), packet.header, &packet.payload);
        }
        attack.world.run_until(LIMIT, |world| world.programs[0].numbers().contains(&number));
    }
    assert_eq!(attack.malformed(), 10 * u64::from(WINDOW - 1));
    attack.check_others();
}

/// Returns packets that look right, with fields near the limits.
fn plausible() -> impl Strategy<Value = (u32, u16, u32, Vec<u8>)> {
    let field = prop_oneof![0u32..60, Just(0xff_ffff), any::<u32>()];
    let length =
        prop_oneof![0usize..3000, Just(MAX_MESSAGE), any::<u32>().prop_map(|length| length as usize)];
    let payload = (0u32..4, length, 0usize..17, 0u8..4, 0usize..=208).prop_map(
        |(number, length, head, protocol, rest)| {
            let mut payload = announcement(number, length, head, Protocol::Eager, rest);
            payload[21] = protocol;
            payload
        },
    );
    (0u32..16, prop_oneof![0u16..6, any::<u16>()], field, payload)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_packets_leave_the_layer_working(
        packets in prop::collection::vec(plausible(), 1..120), which in 0usize..4, post: bool,
    ) {
        let layout = Layout::At(1);
        // Buffers of the program bound its memory: a message may claim to have 256 MiB.
        let policy = [Policy::Truncate(5000), Policy::Discard, Policy::Never, Policy::Truncate(0)][which];
        let mut attack = Attack::new(policy);
        if post {
            for (number, len) in (900..).zip([100, 700, 2500, 9000]) {
                attack.world.post(0, ROGUE, number, filled(layout, number, len));
            }
        }

        for (kind, id, field, payload) in packets {
            let word0 = u32::from(World::rank(ROGUE).0) | kind << 13 | u32::from(id) << 17;
            attack.send_words([word0, field], &payload);
        }
        let layer = &attack.world.layers[0];
        prop_assert!(layer.packet_places() <= usize::from(WINDOW));
        prop_assert!(layer.receives_in_progress() <= usize::from(WINDOW));
        attack.check_others();
    }
}
