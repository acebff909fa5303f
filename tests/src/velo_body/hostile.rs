//! Software that writes arbitrary data to the pages of its VPID. Other VPIDs continue, and the
//! sender of a message is always true.

use std::cell::RefCell;

use nicforge_driver::{Device, WriteMode};
use nicforge_hwi::{
    extoll::{BAR_DIRECTORY, BAR_VELO, REGISTERS, RING_CELLS, window},
    extoll_velo::address,
    posted::CELL,
};
use nicforge_test_body::body;
use proptest::prelude::*;

use super::*;
use crate::random::runner;

/// An action of hostile software.
#[derive(Clone, Debug)]
enum Action {
    /// Write to any offset of a BAR, with any width.
    Write { bar: u32, offset: u64, data: Vec<u8> },
    /// Read from any offset of a BAR, with any width.
    Read { bar: u32, offset: u64, width: usize },
    /// Store to the posted-write ring or the windows after it.
    Store { word: u64, value: u64 },
    /// Write a piece of a send, at any position.
    Piece { node: u32, vpid: u16, tag: u8, quadwords: usize, position: u64, data: Vec<u8> },
}

/// Generates the data of a write, mostly of a plausible width.
fn data() -> impl Strategy<Value = Vec<u8>> {
    let width = prop_oneof![Just(8_usize), Just(16), Just(64), 1_usize..70];
    (width, any::<u8>()).prop_map(|(width, byte)| vec![byte; width])
}

/// Generates an action.
fn action() -> impl Strategy<Value = Action> {
    let offset = prop_oneof![0_u64..0x900, 0x1000_u64..0x1100, 0x2000_u64..0x2180, 0_u64..REGISTERS];
    let ring = u64::from(RING_CELLS) * CELL as u64;
    let piece = (0_u32..3, 0_u16..6, 0_u8..16, 1_usize..9, 0_u64..64, data()).prop_map(
        |(node, vpid, tag, quadwords, position, data)| Action::Piece {
            node,
            vpid,
            tag,
            quadwords,
            position,
            data,
        },
    );

    prop_oneof![
        4 => (offset.clone(), data()).prop_map(|(offset, data)| Action::Write { bar: 0, offset, data }),
        2 => (0_u32..6, any::<u32>(), data())
            .prop_map(|(bar, offset, data)| Action::Write { bar, offset: offset.into(), data }),
        2 => (0_u32..6, any::<u16>(), 1_usize..70)
            .prop_map(|(bar, offset, width)| Action::Read { bar, offset: offset.into(), width }),
        3 => (prop_oneof![0_u64..64, 0_u64..(ring + window::SIZE) / 8], any::<u64>())
            .prop_map(|(word, value)| Action::Store { word, value }),
        6 => piece,
    ]
}

/// Performs an action.
fn perform(device: &Device, action: Action) {
    let backing = device.backing();
    match action {
        // Accesses beyond the BAR or to read-only memory are refused.
        Action::Write { bar, offset, data } => {
            drop(backing.write(bar, offset, &data, WriteMode::Confirmed));
        }
        Action::Read { bar, offset, width } => drop(backing.read(bar, offset, &mut vec![0; width])),
        Action::Store { word, value } => {
            let _ = device.bar(1).unwrap().write64(8 * word, value);
            device.doorbell().after_store().unwrap();
        }
        Action::Piece { node, vpid, tag, quadwords, position, data } => {
            let offset = address::encode(node, vpid, tag, quadwords) + position;
            drop(backing.write(BAR_VELO.into(), offset, &data, WriteMode::Confirmed));
        }
    }
}

/// Whatever is written to a VPID's pages, each resulting message names that VPID as sender, and the
/// neighbours' messages pass.
#[body]
pub fn a_hostile_process_cannot_forge_messages_of_others(rig: &dyn Rig) {
    let uncounted = Config { flow_control: false, slots: Some(64), ..Config::default() };
    let mut victims = [at(0, 0), at(1, 0), at(1, 1)].map(|address| port_with(rig, address, uncounted));
    let links: Vec<_> = {
        let (first, _) = victims.split_at_mut(1);
        [at(1, 0), at(1, 1)].map(|to| first[0].connect(to, test_deadline(), None).unwrap()).into()
    };
    let hostile = rig.open("ex0", "vpid2");

    // The cases share a machine; the runner needs a `Fn`.
    let state = RefCell::new((victims, 0_u64));
    let actions = prop::collection::vec(action(), 1..60);
    let outcome = runner(rig, 48).run(&actions, |actions| {
        let (victims, number) = &mut *state.borrow_mut();
        for action in actions {
            perform(&hostile, action);
            // The hostile VPID's messages are read, so that they do not fill its card's share. Each
            // names its true sender.
            for victim in victims.iter_mut() {
                while let Some(message) = victim.poll().unwrap() {
                    assert_eq!(message.from, at(0, 2));
                }
            }
        }

        *number += 1;
        for (index, link) in links.iter().enumerate() {
            victims[0].send(*link, 7, &number.to_le_bytes(), test_deadline(), None).unwrap();
            loop {
                let message = victims[index + 1].recv(Filter::ANY, test_deadline(), None).unwrap();
                if message.from == at(0, 0) {
                    assert_eq!((message.tag, message.quadword(0)), (7, *number));
                    break;
                }
                assert_eq!(message.from, at(0, 2));
            }
        }

        // The hostile device's rings are reset before the next case.
        let _ = hostile.reset();
        Ok(())
    });

    outcome.unwrap();
    for port in &mut state.borrow_mut().0 {
        assert_eq!(port.check(), Ok(()));
    }
}

/// Returns a forged connection message of the library's flow control (kind 1). It asks for 64
/// credits, from a sender of one generation to a receiver of another.
fn connect(sender: u64, receiver: u8) -> u64 {
    1 | sender << 8 | u64::from(receiver) << 16 | 64 << 32
}

/// Returns a forged message (kind 3) by which a sender closes its connection.
fn close(sender: u64) -> u64 {
    3 | sender << 8
}

/// Sends `messages` from `victim` to `neighbour` and back, while a process that never reads floods
/// the victim with messages that `forge` returns. The arguments of `forge` are the generations of
/// the flooding port and of the victim, and the number of forged messages so far. Returns the
/// number of forged messages.
fn exchange_during_flood(
    rig: &dyn Rig,
    victim: &mut Port,
    neighbour: &mut Port,
    (to, back): (PeerLink, PeerLink),
    messages: u64,
    forge: impl Fn(u64, u8, u64) -> u64,
) -> u64 {
    let uncounted = Config { flow_control: false, slots: Some(64), ..Config::default() };
    let mut hostile = port_with(rig, at(1, 0), uncounted);
    let hostile_link = hostile.connect(victim.address(), test_deadline(), None).unwrap();

    drive_until("the hostile port", &mut [&mut *victim], |ports| ports[0].is_up(at(1, 0)));
    let tenant = u64::from(victim.tenant_of(at(1, 0)));
    let (mut sent, mut received, mut forged) = (0, 0, 0_u64);
    let (mut unsent_reply, mut relax) = (None, Relax::new());
    let deadline = Deadline::after(3 * LIMIT);

    while received < messages {
        assert!(!deadline.has_passed(), "{sent} sent, {received} received, {forged} forged");

        let word = forge(tenant, hostile_link.tenant(), forged);
        let was_sent = hostile.send_nb(hostile_link, nicforge_velo::CONTROL_TAG, &word.to_le_bytes()).is_ok();
        forged += u64::from(was_sent);
        if sent < messages && victim.send_nb(to, 0, &sent.to_le_bytes()).is_ok() {
            sent += 1;
        }

        // The neighbour keeps an answer that it can't send yet, so that the victim's messages are
        // taken meanwhile.
        while let Some(message) = unsent_reply.take().or_else(|| neighbour.poll().unwrap()) {
            match neighbour.send_nb(back, 1, message.bytes()) {
                Err(Error::WouldBlock) => {
                    unsent_reply = Some(message);
                    break;
                }
                result => result.unwrap(),
            }
        }

        if unsent_reply.is_some() {
            neighbour.progress().unwrap();
        }

        while let Some(message) = victim.poll().unwrap() {
            assert_eq!((message.from, message.quadword(0)), (at(1, 1), received));
            received += 1;
        }

        victim.device().relax(&mut relax).unwrap();
        relax.reset();
    }

    assert!(forged > 100, "{forged}");

    forged
}

/// A process floods a port with connection messages and reads no answer. The port continues to talk
/// to others.
#[body]
pub fn a_peer_that_connects_repeatedly_and_never_reads_blocks_no_other(rig: &dyn Rig) {
    let (mut victim, mut neighbour) = (port(rig, at(0, 0)), port(rig, at(1, 1)));
    let links = (link(&mut victim, &mut neighbour), link(&mut neighbour, &mut victim));
    exchange_during_flood(rig, &mut victim, &mut neighbour, links, 10_000, |own, target, forged| {
        // A message that names another generation has no effect either.
        connect(if forged % 4 == 3 { own ^ (forged & 0xfe) } else { own }, target)
    });

    assert_eq!((victim.statistics().stalls, victim.check()), (0, Ok(())));
}

/// A process that also closes each connection must be answered each time, and so stalls its
/// victim's card until the watchdog drops an answer. It then gets no more answers. After three such
/// clients of its address, no further one is answered. Messages of the victim to others do not
/// fail.
#[body]
pub fn a_peer_that_disconnects_and_connects_repeatedly_is_ignored(rig: &dyn Rig) {
    let (mut victim, mut neighbour) = (port(rig, at(0, 0)), port(rig, at(1, 1)));
    let links = (link(&mut victim, &mut neighbour), link(&mut neighbour, &mut victim));
    let stalls: Vec<_> = (0..5)
        .map(|_| {
            exchange_during_flood(rig, &mut victim, &mut neighbour, links, 5000, |own, target, forged| {
                if forged % 2 == 0 { connect(own, target) } else { close(own) }
            });
            assert_eq!(victim.check(), Ok(()));
            victim.statistics().stalls
        })
        .collect();

    assert!(stalls[0] > 0, "{stalls:?}");
    assert_eq!(stalls[2], stalls[4], "{stalls:?}");
}

/// Processes that have not connected flood a port. Each of the port's calls takes at most as many
/// messages as its ring has slots, and a wait ends at its deadline.
#[body]
pub fn a_flood_without_a_connection_blocks_no_call(rig: &dyn Rig) {
    const SLOTS: u32 = 64;

    let dropped = u64::from(rig.repetitions(20_000));
    let mut victim = port_with(rig, at(1, 0), Config { slots: Some(SLOTS), ..Config::default() });
    let uncounted = Config { flow_control: false, slots: Some(SLOTS), ..Config::default() };
    let flood = [at(0, 0), at(0, 1), at(1, 1)].map(|address| port_with(rig, address, uncounted));
    let stop = AtomicBool::new(false);

    thread::scope(|scope| {
        for mut sender in flood {
            let (stop, to) = (&stop, victim.address());
            scope.spawn(move || {
                let to = sender.connect(to, test_deadline(), None).unwrap();
                let (mut relax, deadline) = (Relax::new(), test_deadline());
                while !stop.load(Ordering::Relaxed) && !deadline.has_passed() {
                    if sender.send_nb(to, 0, &[1; 8]).is_err() {
                        sender.device().relax(&mut relax).unwrap();
                    }
                }
            });
        }

        let (deadline, mut most_by_a_call, mut relax) = (test_deadline(), 0, Relax::new());
        while victim.statistics().dropped < dropped && !deadline.has_passed() {
            for call in [|port: &mut Port| port.poll_for(Filter::ANY).map(drop), Port::progress] {
                let before = victim.statistics().dropped;
                call(&mut victim).unwrap();
                most_by_a_call = most_by_a_call.max(victim.statistics().dropped - before);
            }
            victim.device().relax(&mut relax).unwrap();
        }

        let waited = victim.recv(Filter::ANY, Deadline::after(Duration::from_millis(20)), None);
        stop.store(true, Ordering::Relaxed);

        assert!(victim.statistics().dropped >= dropped, "{:?}", victim.statistics());
        assert!(most_by_a_call <= SLOTS.into(), "one call took {most_by_a_call} messages");
        assert!(matches!(waited, Err(Error::Timeout { .. })), "{waited:?}");
    });
}

/// Clients can't write the pages that the card writes.
#[body]
pub fn writes_to_the_mirror_and_the_directory_are_refused(rig: &dyn Rig) {
    let device = rig.open("ex0", "vpid0");
    for bar in [2, BAR_DIRECTORY] {
        let mirror = device.bar(bar).unwrap();
        for offset in (0..mirror.size().min(0x2000)).step_by(8) {
            assert!(mirror.write64(offset, u64::MAX).is_err(), "BAR {bar}, {offset:#x}");
        }
    }
}
