//! Test bodies of VELO: processes on the VPIDs of two cards, through the library.
//!
//! Each body gets a machine of its own ([`machine`]) behind some door: cards `ex0` and `ex1` with
//! VPIDs `vpid0` to `vpid3`.
//!
//! - this file: messages, order, tags, waits
//! - `connections.rs`: credit messages of ended connections, extreme configurations
//! - `flow.rs`: receivers that do not read
//! - `hostile.rs`: hostile software
//! - `torn.rs`: messages that reach the card in pieces

pub mod connections;
pub mod flow;
pub mod hostile;
pub mod torn;

use std::{
    collections::VecDeque,
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use nicforge_core::{
    fabric::{Direction, Fault, LinkId},
    machine::Machine,
};
use nicforge_driver::{Cancel, Deadline, Relax, SharedPoster};
use nicforge_hwi::extoll::reg;
use nicforge_machine::{build::build, description::parse};
use nicforge_nics::families;
use nicforge_test_body::body;
use nicforge_velo::{
    Address, Config, DeviceError, Error, Filter, MAX_MESSAGE, Message, PeerLink, Port, Waiting,
};

use crate::{
    backing::{LIMIT, Rig, ask, test_deadline},
    bodies::{GuestDoor, Guests, TestMachine, reasons},
    pattern::pattern,
};

/// The machine of all bodies of VELO, with a watchdog of half a second.
pub static MACHINE: TestMachine = TestMachine {
    name: "velo",
    make: || machine(500),
    guests: Guests::Booted {
        attachments: &[(&["ex0", "ex1"], &["vpid0", "vpid1", "vpid2", "vpid3"])],
        doors: &[GuestDoor::Vfio, GuestDoor::Shim, GuestDoor::Own],
    },
};

/// The same cards, whose cores and links take the time of the first EXTOLL card's.
pub static SLOW_CORES: TestMachine = TestMachine {
    name: "velo_slow_cores",
    make: || machine_with(500, SLOW_CORES_LINES),
    guests: Guests::None(reasons::ONE_SPEED_IN_GUESTS),
};

/// The same cards, with one packet at a time on a long link.
pub static LONG_LINK: TestMachine = TestMachine {
    name: "velo_long_link",
    make: || machine_with(500, LONG_LINK_LINES),
    guests: Guests::None(reasons::ONE_SPEED_IN_GUESTS),
};

/// Lines of a machine file for cards with a clock, and links with the bandwidth of that clock.
pub(crate) const SLOW_CORES_LINES: &str = "core_mhz = 156\nhop_cycles = 10\n";

/// Lines of a machine file for links on which an announcement is in progress for long.
pub(crate) const LONG_LINK_LINES: &str = "[extoll.link]\ndelay_ns = 100_000\ncredits = 1\n";

/// VPIDs of each card.
const VPIDS: u16 = 4;

/// Returns two linked cards. `watchdog_ms` is the limit for sends that wait in a card; 0 means
/// none.
pub fn machine(watchdog_ms: u64) -> Machine {
    machine_with(watchdog_ms, "")
}

/// As [`machine`], with more lines for the cards' network.
fn machine_with(watchdog_ms: u64, lines: &str) -> Machine {
    let cards = format!("[[extoll]]\nmesh = 2\nvpids = {VPIDS}\nwatchdog_ms = {watchdog_ms}\n");
    let text = format!("name = \"velo\"\n{cards}{lines}");
    build(&parse(&text, "velo.toml", &families()).unwrap()).unwrap().0
}

/// Returns an address.
fn at(node: u32, vpid: u16) -> Address {
    Address { node, vpid }
}

/// Opens a port at an address.
fn port_with(rig: &dyn Rig, address: Address, config: Config) -> Port {
    let device = rig.open(&format!("ex{}", address.node), &format!("vpid{}", address.vpid));
    Port::open(device, config).unwrap()
}

/// Opens a port with the default configuration.
fn port(rig: &dyn Rig, address: Address) -> Port {
    port_with(rig, address, Config::default())
}

/// Steps the machine and lets ports make progress until `condition` holds.
fn drive_until(
    description: &str,
    ports: &mut [&mut Port],
    mut condition: impl FnMut(&mut [&mut Port]) -> bool,
) {
    let deadline = test_deadline();
    let mut relax = Relax::new();

    while !condition(ports) {
        assert!(!deadline.has_passed(), "not within {LIMIT:?}: {description}");
        for port in ports.iter_mut() {
            port.progress().unwrap();
            port.device().relax(&mut relax).unwrap();
        }
    }
}

/// Connects one port to another and waits for credit. The card of `from` may still know an earlier
/// client of the address, so the function first waits until it knows this one.
fn link(from: &mut Port, to: &mut Port) -> PeerLink {
    let address = to.address();
    let tenant = to.tenant_of(address);
    drive_until("the port", &mut [&mut *from], |ports| ports[0].tenant_of(address) == tenant);

    let link = from.connect(address, test_deadline(), None).unwrap();
    drive_until("credit", &mut [from, to], |ports| ports[0].credits(link) != Some(0));
    link
}

/// Returns a forged message of the library's flow control (kind 2) that answers `connect`. It
/// grants `credits` to the tenant at the other end of `back`.
fn forged_grant(connect: &Message, back: PeerLink, credits: u64) -> u64 {
    let connection = connect.quadword(0) & 0xff00_0000;
    2 | u64::from(back.tenant()) << 8 | connection | credits << 32
}

/// Messages of every length and tag, to either card, arrive whole and in order with their sender.
#[body(on(MACHINE, SLOW_CORES, LONG_LINK))]
pub fn messages_of_every_length_and_tag_arrive_in_order(rig: &dyn Rig) {
    let mut sender = port(rig, at(0, 1));
    for target in [at(1, 2), at(0, 3)] {
        let mut receiver = port(rig, target);
        let link = link(&mut sender, &mut receiver);

        for round in 0..3 {
            for quadwords in 1..=MAX_MESSAGE / 8 {
                for tag in 0..15 {
                    let bytes = pattern(round * 7 + u64::from(tag), quadwords * 8);
                    let mut waits = Relax::new();
                    while sender.send_nb(link, tag, &bytes) == Err(Error::WouldBlock) {
                        sender.progress().unwrap();
                        sender.device().relax(&mut waits).unwrap();
                    }
                    let message = receiver.recv(Filter::ANY, test_deadline(), None).unwrap();
                    assert_eq!((message.from, message.tag), (at(0, 1), tag));
                    assert_eq!(message.bytes(), bytes);
                }
            }
        }

        assert_eq!(receiver.poll().unwrap(), None);
    }

    assert_eq!(sender.statistics().sent, 2 * 3 * 8 * 15);
    assert_eq!(sender.statistics().stalls, 0);
    assert_eq!(sender.check(), Ok(()));
}

/// A port can send to itself.
#[body]
pub fn a_port_sends_to_itself(rig: &dyn Rig) {
    let mut port = port(rig, at(0, 0));
    let link = port.connect(at(0, 0), test_deadline(), None).unwrap();

    for number in 0..500_u64 {
        port.send(link, 3, &number.to_le_bytes(), test_deadline(), None).unwrap();
        let message = port.recv(Filter::from(at(0, 0)), test_deadline(), None).unwrap();
        assert_eq!(message.quadword(0), number);
    }
}

/// Two threads each send as fast as they can and receive. No message is lost, duplicated or
/// reordered, and no card waits.
#[body]
pub fn both_directions_at_once_keep_their_order(rig: &dyn Rig) {
    let messages = u64::from(rig.repetitions(20_000));

    let send_and_receive = |own: Address, other: Address, opened: mpsc::Sender<()>, finished: &AtomicU64| {
        let mut port = port(rig, own);
        opened.send(()).unwrap();
        let link = port.connect(other, test_deadline(), None).unwrap();
        let (mut sent, mut received) = (0_u64, 0_u64);
        let mut relax = Relax::new();
        let deadline = Deadline::after(3 * LIMIT);

        while sent < messages || received < messages {
            let mut moved = false;
            if sent < messages {
                match port.send_nb(link, (sent % 15) as u8, &sent.to_le_bytes()) {
                    Ok(()) => (sent, moved) = (sent + 1, true),
                    Err(Error::WouldBlock) => {}
                    Err(error) => panic!("{own}: {error}"),
                }
            }

            while let Some(message) = port.poll().unwrap() {
                assert_eq!((message.from, message.quadword(0)), (other, received));
                assert_eq!(u64::from(message.tag), received % 15);
                (received, moved) = (received + 1, true);
            }

            if moved {
                relax.reset();
            } else {
                assert!(!deadline.has_passed(), "{own}: {sent} sent, {received} received");
                port.device().relax(&mut relax).unwrap();
            }
        }

        // The other port may still wait for credit.
        finished.fetch_add(1, Ordering::SeqCst);
        drive_until("the other port finishes", &mut [&mut port], |_| finished.load(Ordering::SeqCst) == 2);

        port.statistics()
    };

    let done = AtomicU64::new(0);
    let (opened, _open) = mpsc::channel();
    thread::scope(|scope| {
        let other = opened.clone();
        let (send_and_receive, done) = (&send_and_receive, &done);
        let first = scope.spawn(move || send_and_receive(at(0, 0), at(1, 0), opened, done));
        let second = scope.spawn(move || send_and_receive(at(1, 0), at(0, 0), other, done));
        for statistics in [first.join().unwrap(), second.join().unwrap()] {
            assert_eq!((statistics.sent, statistics.received), (messages, messages));
        }
    });
}

/// Invalid messages are refused, and none is sent.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn impossible_messages_are_refused(rig: &dyn Rig) {
    let mut sender = port(rig, at(0, 0));
    let mut receiver = port(rig, at(1, 0));
    let link = link(&mut sender, &mut receiver);

    for length in [0, 1, 7, 9, 63, 65, 72, 4096] {
        assert_eq!(sender.send_nb(link, 0, &vec![0; length]), Err(Error::BadLength { length }));
    }

    assert_eq!(sender.send_nb(link, 15, &[0; 8]), Err(Error::BadTag { tag: 15, most: 14 }));

    for address in [at(2, 0), at(0, VPIDS), at(u32::MAX, u16::MAX)] {
        let refused = sender.connect(address, test_deadline(), None).unwrap_err();
        assert!(matches!(refused, Error::NoSuchPeer { .. }), "{refused}");
    }

    let slots = Config { slots: Some(100), ..Config::default() };
    drop(sender);
    let refused = Port::open(rig.open("ex0", "vpid0"), slots).unwrap_err();

    assert_eq!(refused, Error::BadRing { slots: 100, least: 64 });

    let refused = Port::open(rig.open("ex0", "admin"), Config::default()).unwrap_err();
    assert!(matches!(refused, Error::WrongDevice { .. }), "{refused}");
    assert_eq!(receiver.poll().unwrap(), None);
}

/// A receiver that filters by tag or sender gets matching messages. The others come later, in
/// order.
#[body]
pub fn messages_of_other_tags_are_kept_in_order(rig: &dyn Rig) {
    let keeps_few = Config { kept: Some(8), ..Config::default() };
    let (mut first, mut second) = (port(rig, at(0, 0)), port(rig, at(0, 1)));
    let mut receiver = port_with(rig, at(1, 0), keeps_few);
    let (from_one, from_two) = (link(&mut first, &mut receiver), link(&mut second, &mut receiver));

    for number in 0..3_u64 {
        first.send(from_one, 1, &number.to_le_bytes(), test_deadline(), None).unwrap();
        first.send(from_one, 2, &number.to_le_bytes(), test_deadline(), None).unwrap();
    }

    let expected = Filter { tag: Some(2), from: Some(at(0, 0)) };
    for number in 0..3 {
        let message = receiver.recv(expected, test_deadline(), None).unwrap();
        assert_eq!((message.tag, message.quadword(0)), (2, number));
    }

    second.send(from_two, 1, &[9; 8], test_deadline(), None).unwrap();
    let message = receiver.recv(Filter::from(at(0, 1)), test_deadline(), None).unwrap();

    assert_eq!(message.bytes(), [9; 8]);
    assert_eq!(receiver.kept(), 3);

    for number in 0..3 {
        assert_eq!(receiver.poll().unwrap().map(|message| message.quadword(0)), Some(number));
    }

    // The number of kept messages is limited, and kept ones are not lost.
    for number in 0..9_u64 {
        first.send(from_one, 1, &number.to_le_bytes(), test_deadline(), None).unwrap();
    }

    let full = receiver.recv(Filter::tag(2), test_deadline(), None);
    assert_eq!(full, Err(Error::KeptFull { kept: 8 }));

    for number in 0..9 {
        assert_eq!(receiver.recv(Filter::tag(1), test_deadline(), None).unwrap().quadword(0), number);
    }
}

/// Every wait ends at its deadline, and when its [`Cancel`] is cancelled.
#[body]
pub fn waits_end_at_their_deadline_and_when_cancelled(rig: &dyn Rig) {
    for waiting in [Waiting::Polling, Waiting::Interrupt] {
        let mut receiver = port_with(rig, at(1, 0), Config { waiting, ..Config::default() });
        let short = || Deadline::after(Duration::from_millis(30));

        assert!(matches!(receiver.recv(Filter::ANY, short(), None), Err(Error::Timeout { .. })));
        assert!(matches!(receiver.connect(at(0, 2), short(), None), Err(Error::Timeout { .. })));

        let cancel = Cancel::new().unwrap();
        cancel.cancel();
        let cancelled = receiver.recv(Filter::ANY, test_deadline(), Some(&cancel));

        assert!(matches!(cancelled, Err(Error::Cancelled { .. })));

        let (waits, cancel) = (AtomicBool::new(false), Cancel::new().unwrap());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                waits.store(true, Ordering::SeqCst);
                receiver.recv(Filter::ANY, test_deadline(), Some(&cancel))
            });
            while !waits.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            cancel.cancel();
            assert!(matches!(waiter.join().unwrap(), Err(Error::Cancelled { .. })));
        });
    }
}

/// A port that waits by interrupt gets its messages one by one, with pauses in which it sleeps.
#[body]
pub fn interrupts_wake_waiting_calls(rig: &dyn Rig) {
    let config = Config { waiting: Waiting::Interrupt, poll_phase: Duration::ZERO, ..Config::default() };
    let mut receiver = port_with(rig, at(1, 0), config);
    let mut sender = port(rig, at(0, 0));
    let to = link(&mut sender, &mut receiver);
    let received = AtomicU64::new(0);

    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..100 {
                let message = receiver.recv(Filter::ANY, test_deadline(), None).unwrap();
                assert_eq!(message.quadword(0), number);
                received.fetch_add(1, Ordering::SeqCst);
            }
        });

        for number in 0..100_u64 {
            drive_until("the receiver's turn", &mut [&mut sender], |_| {
                received.load(Ordering::SeqCst) == number
            });
            sender.send(to, 0, &number.to_le_bytes(), test_deadline(), None).unwrap();
        }

        drive_until("the last message", &mut [&mut sender], |_| received.load(Ordering::SeqCst) == 100);
    });
}

/// Closing a port ends the calls that wait for it or send to it. Messages it had sent still arrive;
/// its successor sees no old ones.
#[body(on(MACHINE, SLOW_CORES, LONG_LINK))]
pub fn a_peer_that_detaches_is_an_error_and_its_successor_is_a_new_peer(rig: &dyn Rig) {
    let mut survivor = port(rig, at(0, 0));
    let mut leaving = port(rig, at(1, 0));
    let to = link(&mut survivor, &mut leaving);
    let back = link(&mut leaving, &mut survivor);

    leaving.send(back, 0, &[1; 8], test_deadline(), None).unwrap();
    leaving.device().flush().unwrap();
    survivor.send(to, 0, &[2; 8], test_deadline(), None).unwrap();
    drop(leaving);

    let from = Filter::from(at(1, 0));
    assert_eq!(survivor.recv(from, test_deadline(), None).unwrap().bytes(), [1; 8]);

    let peer_gone = Err(Error::PeerGone { address: at(1, 0) });
    assert_eq!(survivor.recv(from, test_deadline(), None), peer_gone.clone());
    assert_eq!(survivor.send(to, 0, &[3; 8], test_deadline(), None).map(drop), peer_gone.clone().map(drop));

    let mut next = port(rig, at(1, 0));
    assert_eq!(survivor.send(to, 0, &[4; 8], test_deadline(), None).map(drop), peer_gone.map(drop));
    assert_eq!(next.poll().unwrap(), None);

    let to = link(&mut survivor, &mut next);
    survivor.send(to, 0, &[5; 8], test_deadline(), None).unwrap();

    assert_eq!(next.recv(Filter::ANY, test_deadline(), None).unwrap().bytes(), [5; 8]);
}

/// A port whose device is taken away returns an error from every call. Its neighbour gets an error
/// that the peer is gone.
#[body(not_through(guests) = EVICTION_IS_FINAL)]
pub fn an_evicted_port_returns_the_eviction_error(rig: &dyn Rig) {
    let (mut evicted, mut other) = (port(rig, at(0, 0)), port(rig, at(1, 0)));
    let to = link(&mut evicted, &mut other);
    let back = link(&mut other, &mut evicted);

    rig.evict("ex0", "vpid0");
    let error = evicted.recv(Filter::ANY, test_deadline(), None).unwrap_err();
    assert!(error.is_device_gone(), "{error}");

    drop((evicted, to));
    let peer_gone = other.recv(Filter::from(at(0, 0)), test_deadline(), None);

    assert_eq!(peer_gone, Err(Error::PeerGone { address: at(0, 0) }));
    assert_eq!(other.send_nb(back, 0, &[0; 8]), Err(Error::PeerGone { address: at(0, 0) }));
}

/// A port can be opened again on the same device, without old messages.
#[body(on(MACHINE, SLOW_CORES, LONG_LINK))]
pub fn a_port_is_opened_again(rig: &dyn Rig) {
    let mut sender = port(rig, at(0, 0));
    let device = rig.open("ex1", "vpid0");

    for round in 0..5_u64 {
        let mut receiver = Port::open(device.clone(), Config::default()).unwrap();
        let to = link(&mut sender, &mut receiver);
        for number in 0..round + 2 {
            sender.send(to, 0, &(round << 8 | number).to_le_bytes(), test_deadline(), None).unwrap();
        }
        let first = receiver.recv(Filter::ANY, test_deadline(), None).unwrap();
        assert_eq!(first.quadword(0), round << 8);
        drop(receiver);
        drive_until("the presence change", &mut [&mut sender], |ports| !ports[0].is_up(at(1, 0)));
    }
}

/// A reset of the device invalidates its port: waits return an error, peers see the port disappear,
/// and it can be opened again.
#[body(on(MACHINE, SLOW_CORES, LONG_LINK))]
pub fn a_port_whose_device_was_reset_must_be_opened_again(rig: &dyn Rig) {
    let mut survivor = port(rig, at(1, 0));
    let device = rig.open("ex0", "vpid0");
    let mut port = Port::open(device.clone(), Config::default()).unwrap();
    let to = link(&mut survivor, &mut port);

    survivor.send(to, 1, &[7; 8], test_deadline(), None).unwrap();
    drive_until("the message", &mut [&mut port], |ports| ports[0].kept() > 0);
    device.reset().unwrap();

    // Messages that had arrived can still be received.
    assert_eq!(port.recv(Filter::ANY, test_deadline(), None).unwrap().bytes(), [7; 8]);
    assert_eq!(port.recv(Filter::ANY, test_deadline(), None), Err(Error::Reset));
    assert_eq!(port.connect(at(1, 3), test_deadline(), None), Err(Error::Reset));

    drive_until("the presence change", &mut [&mut survivor], |ports| !ports[0].is_up(at(0, 0)));
    assert_eq!(survivor.send_nb(to, 1, &[8; 8]), Err(Error::PeerGone { address: at(0, 0) }));

    drop(port);
    let mut reopened = Port::open(device, Config::default()).unwrap();
    let to = link(&mut survivor, &mut reopened);
    survivor.send(to, 2, &[9; 8], test_deadline(), None).unwrap();

    assert_eq!(reopened.recv(Filter::tag(2), test_deadline(), None).unwrap().bytes(), [9; 8]);
}

/// The admin resets a VPID: waits return an error. Dropping the old port late does not affect its
/// successor.
#[body(on(MACHINE, SLOW_CORES, LONG_LINK), not_through(guests) = OPERATORS_ADMIN)]
pub fn a_reset_by_the_admin_asks_to_open_again(rig: &dyn Rig) {
    let mut survivor = port(rig, at(1, 0));
    let device = rig.open("ex0", "vpid0");
    let poster = SharedPoster::new(device.poster(0).unwrap());
    let mut old = Port::open_sharing(device.clone(), poster.clone(), Config::default()).unwrap();

    rig.open("ex0", "admin").bar(0).unwrap().write64(reg::RESET_VPID, 0).unwrap();
    assert_eq!(old.recv(Filter::ANY, test_deadline(), None), Err(Error::Reset));
    assert_eq!(old.connect(at(1, 3), test_deadline(), None), Err(Error::Reset));

    let mut new = Port::open_sharing(device, poster, Config::default()).unwrap();
    drop(old);
    let to = link(&mut survivor, &mut new);
    survivor.send(to, 2, &[9; 8], test_deadline(), None).unwrap();

    assert_eq!(new.recv(Filter::tag(2), test_deadline(), None).unwrap().bytes(), [9; 8]);
}

/// Messages wait in a card while their receiver is replaced by a new one. The new one does not get
/// them.
#[body(on(MACHINE, SLOW_CORES, LONG_LINK))]
pub fn a_successor_gets_nothing_of_its_predecessor(rig: &dyn Rig) {
    // Where a new receiver opens slowly, the watchdog drops the messages before the receiver is
    // open.
    let with_time_out = (0..10).any(|_| receiver_is_replaced_in_time(rig));
    assert!(with_time_out, "no receiver was replaced within the time of the watchdog");
}

/// Replaces a receiver while messages for it wait in the sender's card, and checks that its
/// successor gets none of them. Returns false if they did not wait for the successor.
fn receiver_is_replaced_in_time(rig: &dyn Rig) -> bool {
    const LATE: u64 = 3;

    let mut sender = port(rig, at(0, 0));
    let mut first = port(rig, at(1, 0));
    let to = link(&mut sender, &mut first);

    // A receiver that grants more credit than it has makes the sender's card wait.
    let uncounted = Config { flow_control: false, slots: Some(64), ..Config::default() };
    let mut hostile = port_with(rig, at(1, 1), uncounted);
    let to_hostile = sender.connect(at(1, 1), test_deadline(), None).unwrap();
    let back = hostile.connect(at(0, 0), test_deadline(), None).unwrap();
    let connect = hostile.recv(Filter::ANY, test_deadline(), None).unwrap();
    let credit = forged_grant(&connect, back, 1 << 20);

    hostile.send(back, nicforge_velo::CONTROL_TAG, &credit.to_le_bytes(), test_deadline(), None).unwrap();
    drive_until("the grant", &mut [&mut sender], |ports| ports[0].credits(to_hostile) != Some(0));

    for _ in 0..32 {
        sender.send(to_hostile, 0, &[1; 8], test_deadline(), None).unwrap();
    }

    for number in 0..LATE {
        sender.send(to, 0, &number.to_le_bytes(), test_deadline(), None).unwrap();
    }

    drive_until("the stall", &mut [&mut sender], |ports| ports[0].statistics().stalls > 0);
    drop(first);
    let mut second = port(rig, at(1, 0));
    let new = second.tenant_of(at(1, 0));

    drive_until("the presence change", &mut [&mut sender], |ports| ports[0].tenant_of(at(1, 0)) == new);
    let watchdog = DeviceError::Watchdog { to: at(1, 1) };
    let mut with_time_out = true;
    drive_until("the watchdog", &mut [&mut sender, &mut second], |ports| match ports[0].check() {
        Err(Error::Device { error, .. }) if error == watchdog => true,
        Err(Error::PeerGone { address }) if address == at(1, 0) => {
            with_time_out = false;
            true
        }
        checked => {
            checked.unwrap();
            false
        }
    });

    if !with_time_out {
        return false;
    }

    drive_until("the late messages", &mut [&mut sender, &mut second], |ports| {
        assert_eq!(drain(ports[1]), []);
        ports[1].statistics().dropped == LATE
    });

    // A sender that connects again is received.
    let to = link(&mut sender, &mut second);
    sender.send(to, 0, &[5; 8], test_deadline(), None).unwrap();

    assert_eq!(second.recv(Filter::ANY, test_deadline(), None).unwrap().bytes(), [5; 8]);
    true
}

/// Links corrupt many packets, which are then retransmitted. No message is lost, duplicated or
/// reordered.
#[body(not_through(guests) = OPERATORS_CODE)]
pub fn corrupt_packets_are_retransmitted_and_messages_keep_their_order(rig: &dyn Rig) {
    const MESSAGES: u64 = 5_000;

    rig.with_machine(Box::new(|machine| {
        for end in [Direction::Forward, Direction::Backward] {
            let mut state = 0x9e37_79b9_7f4a_7c15_u64;
            let hook = move |_: &mut _, _| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if state >> 62 == 0 { Fault::Corrupt } else { Fault::None }
            };
            machine.fabric().set_fault(LinkId(0), end, Some(Box::new(hook))).unwrap();
        }
    }));

    let (mut sender, mut receiver) = (port(rig, at(0, 0)), port(rig, at(1, 0)));
    let to = link(&mut sender, &mut receiver);
    let (mut sent, mut received) = (0, VecDeque::new());

    while (received.len() as u64) < MESSAGES {
        while sent < MESSAGES && sender.send_nb(to, 0, &sent.to_le_bytes()).is_ok() {
            sent += 1;
        }
        let before = received.len();
        drive_until("messages", &mut [&mut sender, &mut receiver], |ports| {
            received.extend(drain(ports[1]).iter().map(|message| message.quadword(0)));
            received.len() > before || ports[0].credits(to) != Some(0) && sent < MESSAGES
        });
    }

    assert!(received.into_iter().eq(0..MESSAGES));
    assert_eq!(receiver.poll().unwrap(), None);

    let from_sender =
        ask(rig, |machine| machine.fabric().link_stats(LinkId(0), Direction::Forward, 0).unwrap());
    assert!(from_sender.retransmissions > MESSAGES / 8, "{from_sender:?}");
}

/// Takes all messages that have arrived at a port.
fn drain(port: &mut Port) -> Vec<Message> {
    let mut messages = Vec::new();
    while let Some(message) = port.poll().unwrap() {
        messages.push(message);
    }
    messages
}
