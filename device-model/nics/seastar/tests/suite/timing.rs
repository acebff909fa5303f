//! Times: of the processor, the host interface, and links.

use nicforge_core::{companion::CompanionMode, fabric::Direction};
use nicforge_hwi::seastar::KERNEL;
use nicforge_kit::Clock;
use nicforge_seastar::{Options, noisy_link};
use nicforge_seastar_firmware::chip::{Event, Pieces, TransferStatus};

use crate::common::{Message, Rig, pattern, piece, receive_at};

/// 2.5 GB/s in each direction, which are 25.6 ns for a packet.
const LINK: u64 = 20_000_000_000;

/// Returns two nodes, and a machine that polls no memory, so that its timers are exact.
fn rig(options: Options) -> Rig {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], options);
    rig.bed.set_cool_after(0);
    rig
}

fn timed() -> Options {
    let mut options = Options { clock: Clock::of_mhz(500), ..Options::default() };
    options.link.bits_per_second = LINK;
    options.link.delay = 30;
    options
}

/// Returns the processor's time at the last event of a kind.
fn time_of(rig: &Rig, node: usize, matches: impl Fn(&Event) -> bool) -> u64 {
    let state = rig.scripts[node].lock();
    state.events.iter().rfind(|(_, event)| matches(event)).unwrap().0
}

fn is_header(event: &Event) -> bool {
    matches!(event, Event::Header { .. })
}

fn is_received(event: &Event) -> bool {
    matches!(event, Event::Received { .. })
}

/// Sends a message and returns the time from the command's end to the header.
fn flight(rig: &mut Rig, message: Message) -> u64 {
    let before = rig.scripts[1].count(is_header);
    rig.send(0, message);
    rig.until(|rig| rig.scripts[1].count(is_header) > before);
    let sent = time_of(rig, 0, |event| matches!(event, Event::Command { .. }));
    time_of(rig, 1, is_header) - sent
}

#[test]
fn effects_take_place_when_the_processor_has_come_to_them() {
    let mut rig = self::rig(timed());
    rig.scripts[0].lock().charge = 500;

    let before = rig.now();
    rig.act(0, |_| {});
    // 500 cycles of 2 ns.
    assert!((1000..3000).contains(&(rig.now().0 - before.0)), "{:?} to {:?}", before, rig.now());

    // Ten commands that are there together take ten times as long.
    let before = rig.now();
    let last = (0..8).map(|_| rig.start(0, |_| {})).last().unwrap();
    rig.until(|rig| rig.kernels[0].result(last).is_some());
    assert!((8000..10_000).contains(&(rig.now().0 - before.0)), "{:?} to {:?}", before, rig.now());
}

#[test]
fn packets_take_the_time_of_the_link() {
    let mut rig = self::rig(timed());

    // A control message and a short one are packets of 64 bytes: 25.6 ns, and 30 ns of delay.
    let short = flight(&mut rig, Message::ack(1, 1));
    assert!((55..=58).contains(&short), "{short} ns");
    let inline = flight(&mut rig, Message::put(1, 1, 0, 16));
    assert!((55..=58).contains(&inline), "{inline} ns");
}

#[test]
fn long_message_has_the_bandwidth_of_the_link() {
    let mut rig = self::rig(timed());
    rig.scripts[1].on_event(receive_at(0));
    const LENGTH: u64 = 64_000;

    rig.send(0, Message::put(1, 1, 0, LENGTH as usize));
    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::Complete]);

    let took = time_of(&rig, 1, is_received) - time_of(&rig, 1, is_header);
    let minimum = (LENGTH + 4) * 8 * 1_000_000_000 / LINK;
    assert!((minimum..minimum + minimum / 50).contains(&took), "{took} ns, at minimum {minimum} ns");
}

#[test]
fn long_message_has_the_bandwidth_of_a_slower_host_interface() {
    let mut rig = self::rig(Options { host_rate: 1100, ..timed() });
    rig.scripts[1].on_event(receive_at(0));
    const LENGTH: u64 = 64_000;

    rig.send(0, Message::put(1, 1, 0, LENGTH as usize));
    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::Complete]);

    let took = time_of(&rig, 1, is_received) - time_of(&rig, 1, is_header);
    let minimum = LENGTH * 1000 / 1100;
    assert!((minimum..minimum + minimum / 10).contains(&took), "{took} ns, at minimum {minimum} ns");
}

#[test]
fn timer_comes_at_its_time() {
    let mut rig = self::rig(timed());
    let time = rig.now().0 + 123_456;
    rig.act(0, move |chip| {
        chip.set_timer(time + 1_000_000).unwrap();
        chip.set_timer(time).unwrap();
    });

    rig.until(|rig| rig.scripts[0].count(|event| matches!(event, Event::Timer)) == 1);
    assert_eq!(time_of(&rig, 0, |event| matches!(event, Event::Timer)), time);
    rig.settle();
    assert_eq!(rig.scripts[0].count(|event| matches!(event, Event::Timer)), 1);
}

/// Sends two messages of 10,000 bytes over a link, which inverts the bits of `error` in packet 50,
/// from byte 3 on. Returns the messages' ends and the number of packets that the link repeated.
fn send_two_messages_with_error(error: &'static [u8]) -> (Vec<TransferStatus>, u64) {
    let mut rig = self::rig(timed());
    rig.kernels[0].write(0, &pattern(1, 10_000));
    rig.scripts[1].on_event(|chip, event| {
        if let Event::Header { packet, stream: Some(stream), .. } = *event {
            let place = Pieces::One(piece(KERNEL, 0, 10_000));
            chip.receive(stream, packet.trusted.length, place).unwrap();
        }
    });

    let link = rig.links[0];
    let hook = noisy_link(move |bytes, number| {
        if number == 50 {
            bytes[3..].iter_mut().zip(error).for_each(|(byte, error)| *byte ^= error);
        }
    });
    rig.bed.fabric().set_fault(link, Direction::Forward, Some(hook)).unwrap();
    rig.send(0, Message::put(1, 1, 0, 10_000));
    rig.send(0, Message::put(2, 1, 0, 10_000));
    rig.until(|rig| rig.scripts[1].received().len() == 2);
    let ends = rig.scripts[1].received();
    let corrupt = ends.iter().filter(|end| **end == TransferStatus::Corrupt).count() as u64;
    assert_eq!(rig.counter(1, "corrupt"), corrupt);

    let channels = 0..timed().link.credits.len();
    let stats = channels.map(|channel| rig.bed.fabric().link_stats(link, Direction::Forward, channel));
    (ends, stats.map(|stats| stats.unwrap().retransmissions).sum())
}

#[test]
fn error_that_the_link_finds_is_repeated() {
    let (ends, repeated) = send_two_messages_with_error(&[1]);
    assert_eq!(ends, [TransferStatus::Complete; 2]);
    assert!(repeated > 0);
}

#[test]
fn error_that_the_link_misses_is_found_end_to_end() {
    // These bits are the generator polynomial of the link's check.
    let (ends, repeated) = send_two_messages_with_error(&[0x01, 0x10, 0x21]);
    assert_eq!((ends, repeated), (vec![TransferStatus::Corrupt, TransferStatus::Complete], 0));
}
