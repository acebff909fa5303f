//! Tests of the records of a machine with an idio16 card and with links.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use nicforge_core::{
    context::Context,
    device::{Device, Ended, Reset, Write},
    dma::DmaError,
    fabric::{Direction, LinkId, LinkSpec},
    ids::{Address, AttachmentId, FunctionId},
    machine::Machine,
    spec::{FunctionSpec, Identity},
    time::Nanos,
    trace::{Crossing, Event, TraceSink},
};
use nicforge_hwi::idio16::{INTERRUPT_CONTROL, INTERRUPT_STATUS, OUTPUTS_LOW, PORTS_BAR};
use nicforge_idio16::Idio16;
use nicforge_test_kit::Client;
use nicforge_trace::{
    Capture, Filter, FilterError, Format, Kind, Names, Observer, Recorder, Selection, Stream, Writer,
};
use pcap_file::pcapng::{Block, PcapNgReader, blocks::enhanced_packet::EnhancedPacketOption};

const CARD: FunctionId = FunctionId(0);
const USER: AttachmentId = AttachmentId(0);

/// Returns a machine with two cards.
fn machine() -> Machine {
    let mut machine = Machine::new();
    for name in ["idio0", "idio1"] {
        machine.add_function(name, Box::new(Idio16::default())).unwrap();
    }
    machine
}

/// A device that has ports and does nothing.
struct Hub;

impl Device for Hub {
    fn spec(&self) -> FunctionSpec {
        FunctionSpec::hub(Identity {
            vendor: 1,
            device: 2,
            subsystem_vendor: 3,
            subsystem: 4,
            class: 0x02_80_00,
            revision: 0,
        })
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {}
}

/// Returns a machine of two hubs, whose ports 0 and 3 are linked.
fn linked_machine() -> Machine {
    let mut machine = Machine::new();
    let hubs = ["hub0", "hub1"].map(|name| machine.add_function(name, Box::new(Hub)).unwrap());
    machine.fabric().connect((hubs[0], 0), (hubs[1], 3), LinkSpec::default()).unwrap();
    machine
}

/// Switches outputs on, lets the card notice it, and reads the cause of the interrupt.
fn drive(machine: &mut Machine, card: FunctionId) {
    let client = Client::attach(machine, card, USER);
    let bar = PORTS_BAR.into();
    client.read::<1>(machine, bar, INTERRUPT_CONTROL);
    client.write(machine, bar, OUTPUTS_LOW, &[0x81]);
    machine.step(Nanos(1_000), 64);
    client.read::<1>(machine, bar, INTERRUPT_STATUS);
    client.detach(machine);
}

/// Returns the events of a recorder as text, without times.
fn lines(machine: &mut Machine) -> Vec<String> {
    let names = Names::of(machine);
    let batch = machine.trace_sink::<Recorder>().unwrap().read(0, 1000);
    let entries = batch.records.iter().map(|record| names.entry(record));
    entries.map(|entry| format!("{} {} {}", entry.source(), entry.kind.name(), entry.text)).collect()
}

fn record_all(machine: &mut Machine, selection: &Selection) {
    let filter = Filter::new(selection, &Names::of(machine)).unwrap();
    machine.set_trace(Some(Box::new(Recorder::new(filter, 1000))));
}

#[test]
fn accesses_show_the_registers_and_fields_that_the_card_declares() {
    let mut machine = machine();
    record_all(&mut machine, &Selection::default());
    drive(&mut machine, CARD);

    let expected = [
        "idio0.user0 client attached",
        "idio0.user0 read INTERRUPT_CONTROL 0xff",
        "idio0.user0 write OUTPUTS_LOW 0x81",
        "idio0.user0 interrupt INTx asserted",
        "idio0.user0 read INTERRUPT_STATUS 0x05 CHANGED_LOW PENDING",
        "idio0.user0 interrupt INTx deasserted",
        "idio0.user0 client detached",
    ];
    let shown: Vec<_> =
        lines(&mut machine).into_iter().filter(|line| !line.ends_with("reset reset")).collect();
    assert_eq!(shown, expected);
}

#[test]
fn a_filter_selects_by_source_kind_and_register() {
    let selection = |sources: &[&str], kinds: &[Kind], registers: &[&str]| Selection {
        sources: sources.iter().map(|&source| source.to_owned()).collect(),
        kinds: kinds.to_vec(),
        registers: registers.iter().map(|&register| register.to_owned()).collect(),
    };
    let shown = |selection| {
        let mut machine = machine();
        record_all(&mut machine, &selection);
        drive(&mut machine, CARD);
        drive(&mut machine, FunctionId(1));
        lines(&mut machine)
    };

    let writes = ["idio0.user0 write OUTPUTS_LOW 0x81", "idio1.user0 write OUTPUTS_LOW 0x81"];
    assert_eq!(shown(selection(&[], &[Kind::Write], &[])), writes);
    assert_eq!(shown(selection(&[], &[], &["OUTPUTS_LOW"])), writes);
    assert_eq!(shown(selection(&["idio1.user0"], &[], &["OUTPUTS_LOW"])), writes[1..]);
    assert_eq!(shown(selection(&["idio0"], &[Kind::Read], &["OUTPUTS_LOW"])), [""; 0]);
}

#[test]
fn a_selection_of_a_name_that_does_not_exist_lists_those_that_do() {
    let names = Names::of(&mut machine());
    let unknown = Selection { sources: vec!["idio2".to_owned()], ..Selection::default() };
    let error = Filter::new(&unknown, &names).unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no node or attachment idio2; there are idio0, idio0.user0, idio1, idio1.user0"
    );
    let unknown = Selection { registers: vec!["TDT".to_owned()], ..Selection::default() };
    assert!(matches!(Filter::new(&unknown, &names), Err(FilterError::NoRegister { .. })));
}

/// Passes `count` resets of the card to a sink.
fn pass_resets(sink: &mut dyn TraceSink, count: u64) {
    for time in 0..count {
        sink.event(Nanos(time), CARD, Some(USER), &Event::Reset);
    }
}

#[test]
fn a_recorder_keeps_the_last_events_and_counts_those_that_a_reader_has_lost() {
    let mut recorder = Recorder::new(Filter::all(), 4);
    pass_resets(&mut recorder, 3);
    let first = recorder.read(0, 2);
    assert_eq!((first.records.len(), first.lost, first.next), (2, 0, 2));

    pass_resets(&mut recorder, 7);
    let second = recorder.read(first.next, 100);
    let numbers: Vec<_> = second.records.iter().map(|record| record.sequence).collect();
    assert_eq!((numbers, second.lost, second.next), (vec![6, 7, 8, 9], 4, 10));

    // A number from the future, as of a reader of another trace, is no reader's loss.
    let ahead = recorder.read(u64::MAX, 100);
    assert_eq!((ahead.records.len(), ahead.lost, ahead.next), (0, 0, 10));
}

#[test]
fn failed_dma_is_marked_as_an_error() {
    let mut machine = machine();
    let mut stream = Stream::new(Names::of(&mut machine), Filter::all(), Format::Text, Vec::new());
    let outcome = Err(DmaError::Gone);
    let events = [
        Event::DmaRead { iova: 0x1000, length: 4, outcome: Ok(&[1, 2, 3, 4]) },
        Event::DmaWrite { iova: 0x2000, data: &[0xab; 100], outcome: Ok(()) },
        Event::DmaWrite { iova: 0x3000, data: &[], outcome },
        Event::Device { name: "descriptor fetched", values: &[("length", 0x40)] },
    ];
    for event in &events {
        stream.event(Nanos(1_000_000_002), CARD, Some(USER), event);
    }

    let text = String::from_utf8(stream.finish().unwrap()).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "    1.000000002  idio0.user0    dma       read 0x1000 4 bytes: 01020304");
    assert!(lines[1].contains("write 0x2000 100 bytes: abababab ") && lines[1].ends_with("abababab ..."));
    assert!(lines[2].starts_with("    1.000000002! ") && lines[2].contains("write 0x3000 0 bytes failed: "));
    assert!(lines[3].ends_with("device    descriptor fetched length=0x40"));
}

/// A file for Perfetto is one JSON document. A packet has a slice on each link that it crosses, and
/// its flow begins with the first one.
#[test]
fn a_perfetto_file_has_a_track_for_each_attachment_and_link() {
    let mut machine = linked_machine();
    let mut stream = Stream::new(Names::of(&mut machine), Filter::all(), Format::Perfetto, Vec::new());
    stream.event(Nanos(1_500), CARD, None, &Event::Reset);
    for (packet, direction) in [(1, Direction::Forward), (1, Direction::Backward), (2, Direction::Forward)] {
        let crossing = Crossing {
            link: LinkId(0),
            direction,
            channel: 0,
            packet,
            header: 7,
            arrives: Nanos(4_000),
            repeats: 0,
            length: 1,
            data: &[1],
        };
        stream.event(Nanos(2_000), CARD, None, &Event::Packet(crossing));
    }

    let document: serde_json::Value = serde_json::from_slice(&stream.finish().unwrap()).unwrap();
    let events = document["traceEvents"].as_array().unwrap();
    let of_phase = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
    let names: Vec<_> = of_phase("M").iter().map(|event| event["args"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["hub0", "node", "links", "hub0:0 > hub1:3", "hub1:3 > hub0:0"]);
    assert_eq!(of_phase("i")[0]["ts"], 1.5);

    let slices: Vec<_> = of_phase("X").iter().map(|event| (&event["tid"], event["dur"].as_f64())).collect();
    assert_eq!((slices.len(), slices[0].1), (3, Some(2.0)));
    assert!(slices[0].0 == slices[2].0 && slices[0].0 != slices[1].0);
    assert_eq!((of_phase("s").len(), of_phase("t").len()), (2, 1));
}

#[test]
fn a_document_without_events_is_complete_too() {
    let empty = Writer::new(Format::Perfetto, Vec::new()).finish().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&empty).unwrap();
    assert_eq!(document["traceEvents"].as_array().unwrap().len(), 0);
}

/// Two runs of one machine in virtual time give the same bytes.
#[test]
fn a_trace_of_the_same_run_has_the_same_bytes() {
    let run = || {
        let mut machine = machine();
        let stream = Stream::new(Names::of(&mut machine), Filter::all(), Format::Text, Vec::new());
        machine.set_trace(Some(Box::new(stream)));
        drive(&mut machine, CARD);
        machine.detach(CARD, USER, Ended::Closed).ok();
        let sink: Box<dyn std::any::Any> = machine.set_trace(None).unwrap();
        sink.downcast::<Stream<Vec<u8>>>().unwrap().finish().unwrap()
    };
    assert!(!run().is_empty());
    assert_eq!(run(), run());
}

/// Returns a crossing of the machine's only link.
fn crossing(direction: Direction, data: &[u8]) -> Event<'_> {
    Event::Packet(Crossing {
        link: LinkId(0),
        direction,
        channel: 2,
        packet: 1,
        header: 0x0102_0304_0506_0708,
        arrives: Nanos(4_000),
        repeats: 0,
        length: data.len(),
        data,
    })
}

/// Returns the packets of a pcapng file, as an independent reader finds them: interface, time,
/// flags and data.
fn packets(file: &[u8]) -> Vec<(u32, Duration, u32, Vec<u8>)> {
    let mut reader = PcapNgReader::new(file).unwrap();
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap().into_owned() {
            let flags = packet.options.iter().find_map(|option| match option {
                EnhancedPacketOption::Flags(flags) => Some(*flags),
                _ => None,
            });
            assert_eq!(packet.original_len as usize, packet.data.len());
            packets.push((packet.interface_id, packet.timestamp, flags.unwrap(), packet.data.to_vec()));
        }
    }
    packets
}

#[test]
fn a_capture_has_the_packets_of_both_ends_with_their_directions() {
    let mut machine = linked_machine();
    let ports = ["hub1:3".to_owned(), "hub0:0".to_owned()];
    let capture = Capture::new(&mut machine, &ports, 1 << 16).unwrap();
    let mut observer = Observer { recorder: None, captures: vec![capture] };
    let time = Nanos(5_000_000_123);
    observer.event(time, CARD, None, &crossing(Direction::Forward, b"ping."));
    observer.event(time, FunctionId(1), None, &crossing(Direction::Backward, &[]));

    let file = observer.captures[0].take(Vec::new());
    let prefix = [2, 0, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1];
    let time = Duration::new(5, 123);
    let ping = [prefix.as_slice(), b"ping."].concat();
    let (inbound, outbound) = (1, 2);
    assert_eq!(
        packets(&file),
        [
            (0, time, inbound, ping.clone()),
            (1, time, outbound, ping),
            (0, time, outbound, prefix.to_vec()),
            (1, time, inbound, prefix.to_vec()),
        ]
    );
}

#[test]
fn packets_without_room_in_a_capture_are_counted() {
    let mut machine = linked_machine();
    let capture = Capture::new(&mut machine, &["hub0:0".to_owned()], 1_000).unwrap();
    let mut observer = Observer { recorder: None, captures: vec![capture] };
    for _ in 0..10 {
        observer.event(Nanos(1), CARD, None, &crossing(Direction::Forward, &[7; 300]));
    }

    let lost = observer.captures[0].lost();
    assert_eq!(packets(&observer.captures[0].take(Vec::new())).len() as u64, 10 - lost);
    assert!((1..10).contains(&lost), "{lost}");
}

#[test]
fn a_port_without_a_link_is_refused_with_those_that_have_one() {
    let mut machine = linked_machine();
    let mut refusal =
        |port: &str| Capture::new(&mut machine, &[port.to_owned()], 1_000).unwrap_err().to_string();
    assert_eq!(refusal("hub0:3"), "no link is at hub0:3; links are at hub0:0, hub1:3");
    for wrong in ["hub0", "hub0:x", "hub0:256", ""] {
        assert!(refusal(wrong).contains("is no port"), "{wrong}");
    }
}
