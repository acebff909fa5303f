//! Test bodies of the matching layer's transport over the EXTOLL card. They cover what
//! [`crate::matching_body`] does not.
#![allow(unsafe_code, reason = "memory is registered by address, as the matching layer does")]

use std::{ptr::NonNull, time::Duration};

use nicforge_core::{fabric::LinkId, machine::Machine};
use nicforge_driver::{Deadline, HugePages, Poster, Relax};
use nicforge_extoll_transport::{Config, Error, ExtollTransport, Job};
use nicforge_hwi::extoll::reg;
use nicforge_machine::{build::build, description::parse};
use nicforge_matching::{
    Access, Config as Matching, Endpoint, Envelope, Error as MatchingError, Get, Loss, Memory, Mode, Rank,
    Region, RemoteRegion, Selector, Taken, Transport, TransportError,
};
use nicforge_nics::families;
use nicforge_rma::Notify;
use nicforge_test_body::body;
use nicforge_velo::{Address, Port};

use crate::{
    backing::{Rig, test_deadline},
    bodies::{GuestDoor, Guests, TestMachine, reasons},
    matching_body::{Network, World},
    pattern::pattern,
    velo_body::{LONG_LINK_LINES, SLOW_CORES_LINES},
};

/// The machine of all bodies of the matching layer that run on cards.
pub static MACHINE: TestMachine = TestMachine {
    name: "transport",
    make: machine,
    guests: Guests::Booted {
        attachments: &[(&["ex0", "ex1"], &["vpid0", "vpid1", "vpid2", "vpid3"])],
        doors: &[GuestDoor::Vfio, GuestDoor::Shim, GuestDoor::ShimIommu],
    },
};

/// The same cards, whose cores and links take the time of the first EXTOLL card's.
pub static SLOW_CORES: TestMachine = TestMachine {
    name: "transport_slow_cores",
    make: || machine_with(SLOW_CORES_LINES),
    guests: Guests::None(reasons::ONE_SPEED_IN_GUESTS),
};

/// The same cards, with one packet at a time on a long link.
pub static LONG_LINK: TestMachine = TestMachine {
    name: "transport_long_link",
    make: || machine_with(LONG_LINK_LINES),
    guests: Guests::None(reasons::ONE_SPEED_IN_GUESTS),
};

/// Returns a machine with two cards of four VPIDs each.
pub fn machine() -> Machine {
    machine_with("")
}

/// As [`machine`], with more lines for the cards' network.
fn machine_with(lines: &str) -> Machine {
    let text = format!("name = \"transport\"\n[[extoll]]\nmesh = 2\nvpids = 4\n{lines}");
    build(&parse(&text, "transport.toml", &families()).unwrap()).unwrap().0
}

/// Returns a rank's address. Ranks alternate between the two cards.
fn at(rank: Rank) -> Address {
    Address { node: rank % 2, vpid: (rank / 2) as u16 }
}

/// Returns a job of `size` ranks.
fn job(size: u32) -> Job {
    Job::new((0..size).map(at).collect())
}

/// A network whose ranks are on the cards of a rig.
pub struct Extoll<'a> {
    rig: &'a dyn Rig,
    config: Config,
}

impl<'a> Extoll<'a> {
    /// Uses the default configuration.
    pub fn new(rig: &'a dyn Rig) -> Self {
        Self::with(rig, Config::default())
    }

    /// Uses the given configuration.
    pub fn with(rig: &'a dyn Rig, config: Config) -> Self {
        Self { rig, config }
    }

    /// Opens a rank of a job of `size` ranks.
    fn rank(&self, rank: Rank, size: u32) -> ExtollTransport {
        let Address { node, vpid } = at(rank);
        let device = self.rig.open(&format!("ex{node}"), &format!("vpid{vpid}"));
        ExtollTransport::open(device, &job(size), self.config).unwrap()
    }
}

impl Network for Extoll<'_> {
    type Transport = ExtollTransport;

    fn ranks(&self, size: u32) -> Vec<ExtollTransport> {
        let mut ranks: Vec<_> = (0..size).map(|rank| self.rank(rank, size)).collect();
        let (deadline, mut relax) = (test_deadline(), Relax::new());

        while !ranks.iter().all(ExtollTransport::is_complete) {
            assert!(!deadline.has_passed(), "the ranks do not find each other: {ranks:?}");
            for rank in &mut ranks {
                assert_eq!(rank.poll_gone(), None);
                rank.poll(64, &mut |_, _, _| panic!("no message was sent")).unwrap();
                rank.device().relax(&mut relax).unwrap();
            }
        }

        ranks
    }
}

/// Ranks that start one after the other wait for each other.
#[body(on(MACHINE, SLOW_CORES, LONG_LINK))]
pub fn ranks_find_each_other(rig: &dyn Rig) {
    let extoll = Extoll::new(rig);
    let mut first = extoll.rank(0, 2);
    let early = first.wait_for_all(Deadline::after(Duration::from_millis(10)), None);

    assert!(matches!(early, Err(Error::Velo(nicforge_velo::Error::Timeout { .. }))), "{early:?}");

    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut second = extoll.rank(1, 2);
            second.wait_for_all(test_deadline(), None).unwrap();
            // Keeps running until the other rank has seen this one.
            let (mut relax, deadline) = (Relax::new(), test_deadline());
            while second.poll_gone().is_none() && !deadline.has_passed() {
                second.poll(64, &mut |_, _, _| Taken::Yes).unwrap();
                second.device().relax(&mut relax).unwrap();
            }
        });

        first.wait_for_all(test_deadline(), None).unwrap();
        drop(first);
    });

    let (device, two_ranks) = (rig.open("ex0", "vpid1"), job(2));
    let refused = ExtollTransport::open(device, &two_ranks, Config::default()).unwrap_err();

    assert_eq!(refused, Error::NotOfJob { address: Address { node: 0, vpid: 1 }, size: 2 });
}

/// Many long messages at once exceed the staging memory. They use both the part that stays
/// registered and memory of their own.
#[body]
pub fn long_messages_may_exceed_the_staging_memory(rig: &dyn Rig) {
    let config =
        Config { staging: 64 << 10, longest_staging: 300_000, gets: 2, get_bytes: 8192, ..Config::default() };
    let mut world = World::pair(&Extoll::with(rig, config));
    let lengths: Vec<usize> =
        (0..40).map(|number| [20_000, 30_000, 3_000, 200_000, 32_769][number % 5]).collect();
    let mut requests = Vec::new();

    for (number, &length) in lengths.iter().enumerate() {
        for (from, to) in [(0, 1), (1, 0)] {
            let send = world.send(from, to, number as u64, &pattern(number as u64, length));
            let receive = world.receive(to as usize, Selector::exact(from as u32, 0, number as u64), length);
            requests.push((from, send, to as usize, receive, number));
        }
    }

    for (from, send, to, receive, number) in requests {
        let done = world.wait(to, receive);
        assert_eq!((done.result, done.length), (Ok(()), lengths[number]));
        assert!(done.buffer.as_slice() == pattern(number as u64, lengths[number]), "message {number}");
        assert_eq!(world.wait(from, send).result, Ok(()));
    }

    for rank in &world.ranks {
        let statistics = rank.transport().statistics();
        assert_eq!((statistics.staged, statistics.registered, statistics.failed_gets), (24, 16, 0));
    }
}

/// A long message is received before others whose sources fill the staging memory.
#[body]
pub fn the_last_of_many_long_messages_is_received_first(rig: &dyn Rig) {
    const COUNT: u64 = 30;
    const LENGTH: usize = 20_000;

    // Two sources fill the area that stays.
    let config = Config { staging: 64 << 10, ..Config::default() };
    let mut world = World::pair(&Extoll::with(rig, config));
    let sends: Vec<_> = (0..COUNT).map(|tag| world.send(0, 1, tag, &pattern(tag, LENGTH))).collect();
    for tag in (0..COUNT).rev() {
        let receive = world.receive(1, Selector::exact(0, 0, tag), LENGTH);
        let done = world.wait(1, receive);
        assert_eq!(done.result, Ok(()));
        assert!(done.buffer.as_slice() == pattern(tag, LENGTH), "message {tag}");
    }
    for send in sends {
        assert_eq!(world.wait(0, send).result, Ok(()));
    }
}

/// Deregistered memory can't be reached, neither by a peer's new requests nor by gets in flight.
#[body(on(MACHINE, SLOW_CORES, LONG_LINK))]
pub fn deregistered_memory_cannot_be_reached(rig: &dyn Rig) {
    const LENGTH: usize = 100_000;

    let config = Config { staging: 8192, ..Config::default() };
    let mut ranks = Extoll::with(rig, config).ranks(2);
    let source = pattern(1, LENGTH);
    let mut target = vec![7_u8; LENGTH];
    let memory = |bytes: *const u8| Memory { start: NonNull::new(bytes.cast_mut()).unwrap(), length: LENGTH };
    let register = |rank: &mut ExtollTransport, memory, access| {
        // SAFETY: the vectors live, unmoved, until they are deregistered; no other code touches
        // them before.
        unsafe { rank.register(memory, access) }.unwrap().unwrap()
    };
    let from = register(&mut ranks[0], memory(source.as_ptr()), Access::Source);
    let to = register(&mut ranks[1], memory(target.as_mut_ptr()), Access::Destination);
    let get = |remote: RemoteRegion, local: Region, cookie: u64| Get {
        peer: 0,
        remote,
        local,
        local_offset: 0,
        length: 50_000,
        cookie,
    };

    let wait_for_get = |ranks: &mut [ExtollTransport], cookie| {
        let (deadline, mut relax, mut ended) = (test_deadline(), Relax::new(), None);
        while ended.is_none() {
            assert!(!deadline.has_passed(), "get {cookie} does not end");
            ranks[1].poll_gets(8, &mut |which, result| ended = Some((which, result))).unwrap();
            ranks[1].device().relax(&mut relax).unwrap();
        }
        let (which, result) = ended.unwrap();
        assert_eq!(which, cookie);
        result
    };

    assert_eq!(ranks[1].start_get(&get(from.remote, to, 1)), Ok(true));
    assert_eq!(wait_for_get(&mut ranks, 1), Ok(()));

    // This get is in flight when its region is deregistered, so its data do not arrive.
    assert_eq!(ranks[1].start_get(&get(from.remote, to, 2)), Ok(true));

    ranks[1].deregister(to);
    target[..50_000].fill(9);

    assert!(wait_for_get(&mut ranks, 2).is_err());
    assert!(target[..50_000].iter().all(|byte| *byte == 9) && target[50_000..].iter().all(|byte| *byte == 7));

    let to = register(&mut ranks[1], memory(target.as_mut_ptr()), Access::Destination);
    ranks[0].deregister(from);
    assert_eq!(ranks[1].start_get(&get(from.remote, to, 3)), Ok(true));

    let refused = wait_for_get(&mut ranks, 3).unwrap_err();
    assert_eq!(refused.what, "a get's source is not registered");

    // Made-up addresses of a peer.
    let made_up = RemoteRegion { key: 0, offset: u64::MAX - 10 };
    assert!(ranks[1].start_get(&get(made_up, to, 4)).is_err());

    ranks[1].deregister(to);
    assert!(ranks[1].start_get(&get(from.remote, to, 5)).is_err());
    assert!(target[50_000..].iter().all(|byte| *byte == 7));
}

/// When a rank disappears during a rendezvous, the operations that wait for it end on both sides.
/// Other transfers are not affected. The rank's successor on the same VPID takes no part in the
/// job.
#[body(on(MACHINE, SLOW_CORES, LONG_LINK))]
pub fn a_rank_that_detaches_fails_the_requests_that_wait_for_it(rig: &dyn Rig) {
    const LONG: usize = 4 << 20;

    let extoll = Extoll::new(rig);
    for sender_dies in [true, false] {
        let mut world = World::new(&extoll, 3, Matching::default());
        let send = if sender_dies {
            world.send(1, 0, 1, &pattern(1, LONG))
        } else {
            world.send(0, 1, 1, &pattern(1, LONG))
        };

        let receive = world.receive(usize::from(!sender_dies), Selector::any_source(0, 1), LONG);
        let named = world.receive(0, Selector::exact(1, 0, 2), 8);
        let any = world.receive(0, Selector::any_source(0, 3), 8);
        let puller = usize::from(!sender_dies);

        world.drive_until("gets", |world| {
            (world.ranks[puller].transport().statistics().gets > 4).then_some(())
        });
        let dead = world.ranks.remove(1);
        drop(dead);

        let peer_gone = Err(MatchingError::PeerGone { peer: 1, why: Loss::Ended });
        let pending = if sender_dies { receive } else { send };
        let ended = world.wait(0, pending);

        assert!(
            matches!(&ended.result, Err(error) if error.is_peer() || matches!(error, MatchingError::Transport(_))),
            "{ended:?}"
        );
        assert_eq!(world.wait(0, named).result, peer_gone);

        let late = world.send(0, 1, 2, b"late");
        assert_eq!(world.wait(0, late).result, peer_gone);

        // The VPID has a new owner, which sends the same messages.
        let successor = extoll.rank(1, 3);
        let mut successor = Endpoint::new(successor, Matching::default()).unwrap();
        let stray = successor.isend(Envelope::new(0, 0, 3), Mode::Standard, b"strange".to_vec(), 0).unwrap();
        let deadline = test_deadline();

        while world.ranks[0].transport().statistics().strays == 0 {
            assert!(!deadline.has_passed(), "the successor's message does not come");
            successor.progress().unwrap();
            world.progress();
        }

        let _ = successor.test(stray).unwrap();
        // The third rank now has the second index.
        world.send(1, 0, 3, b"friendly");

        assert_eq!(world.wait(0, any).buffer.as_slice(), b"friendly");
    }
}

/// A rank whose device is taken away gets an error from each call. The other ranks get the loss
/// reported.
#[body(not_through(guests) = EVICTION_IS_FINAL)]
pub fn an_evicted_rank_returns_the_eviction_error(rig: &dyn Rig) {
    let mut world = World::pair(&Extoll::new(rig));
    let receive = world.receive(1, Selector::exact(0, 0, 0), 8);
    rig.evict("ex0", "vpid0");

    let mut evicted = world.ranks.remove(0);
    let waits = evicted.irecv(Selector::any(0), vec![0; 8], 0).unwrap();
    let error = evicted.wait(waits, test_deadline(), None).unwrap_err();

    assert_eq!(error, MatchingError::Transport(TransportError { what: "the card is gone", value: 0 }));
    assert!(evicted.transport().failure().is_some());
    assert!(evicted.progress().is_err());

    let ended = world.wait(0, receive);
    assert_eq!(ended.result, Err(MatchingError::PeerGone { peer: 0, why: Loss::Ended }));
}

/// A rank whose VPID the administrator resets gets an error, and the other ranks get the loss
/// reported.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn a_rank_whose_device_is_reset_returns_the_reset_error(rig: &dyn Rig) {
    let mut world = World::pair(&Extoll::new(rig));
    let receive = world.receive(1, Selector::exact(0, 0, 0), 8);
    rig.open("ex0", "admin").bar(0).unwrap().write64(reg::RESET_VPID, 0).unwrap();

    let mut reset = world.ranks.remove(0);
    let waits = reset.irecv(Selector::any(0), vec![0; 8], 0).unwrap();
    let error = reset.wait(waits, test_deadline(), None).unwrap_err();
    let expected = TransportError { what: "this rank's device was reset", value: 0 };

    assert_eq!(error, MatchingError::Transport(expected));
    assert_eq!(reset.transport().failure(), Some(&Error::Velo(nicforge_velo::Error::Reset)));

    let ended = world.wait(0, receive);
    assert_eq!(ended.result, Err(MatchingError::PeerGone { peer: 0, why: Loss::Ended }));
}

/// Returns the reason that rank 0 reports for the loss of rank 1.
fn loss(rank: &mut Endpoint<ExtollTransport>) -> Loss {
    let named = rank.irecv(Selector::exact(1, 0, 9), vec![0; 8], 0).unwrap();
    let (deadline, mut relax) = (test_deadline(), Relax::new());
    let done = loop {
        assert!(!deadline.has_passed(), "the rank is not given up: {:?}", rank.statistics());

        // Sends to a receiver that does not read fill the remaining buffers on the way.
        let send = rank.isend(Envelope::new(1, 0, 8), Mode::Standard, vec![0; 8], 0).unwrap();
        rank.progress().unwrap();
        if let Some(done) = rank.test(named).unwrap() {
            break done;
        }

        if rank.test(send).unwrap().is_none() {
            rank.cancel(send).unwrap();
            let _ = rank.test(send).unwrap();
        }

        rank.transport_mut().relax(&mut relax).unwrap();
    };

    match done.result {
        Err(MatchingError::PeerGone { peer: 1, why }) => why,
        other => panic!("{other:?}"),
    }
}

/// A rank may be replaced, have no room, or grant credit for room that it does not have. The
/// reported loss differs.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn the_reason_for_a_lost_rank_is_reported(rig: &dyn Rig) {
    let extoll = Extoll::new(rig);
    let mut world = World::new(&extoll, 2, Matching::default());
    drop(world.ranks.remove(1));

    let successor = extoll.rank(1, 2);
    let why = loss(&mut world.ranks[0]);
    assert!(matches!(why, Loss::Replaced { previous, current } if current == previous + 2), "{why:?}");

    drop((successor, world));
    // The watchdog drops a message that waits for credit for longer than 20 ms.
    rig.open("ex0", "admin").bar(0).unwrap().write64(reg::WATCHDOG, 20_000_000).unwrap();

    // A receiver without room grants no credit. A hostile one grants far more than it has.
    for (granted, expected) in [(0_u64, Loss::Refused), (1 << 20, Loss::TimedOut)] {
        let mut rank = Endpoint::new(extoll.rank(0, 2), Matching::default()).unwrap();
        let config = nicforge_velo::Config { flow_control: false, slots: Some(64), ..Default::default() };
        let mut hostile = Port::open(rig.open("ex1", "vpid0"), config).unwrap();
        let back = hostile.connect(at(0), test_deadline(), None).unwrap();
        let (deadline, mut relax) = (test_deadline(), Relax::new());
        let connect = loop {
            assert!(!deadline.has_passed(), "no port connects");
            rank.progress().unwrap();
            if let Some(message) = hostile.poll().unwrap() {
                break message;
            }
            hostile.device().relax(&mut relax).unwrap();
        };

        assert_eq!((connect.tag, connect.from), (nicforge_velo::CONTROL_TAG, at(0)));

        // A message of the library's flow control: kind 2, a grant, to a client of this generation.
        // It repeats the number of the connection.
        let connection = connect.quadword(0) & 0xff00_0000;
        let credit = 2 | u64::from(back.tenant()) << 8 | connection | granted << 32;
        hostile.send(back, nicforge_velo::CONTROL_TAG, &credit.to_le_bytes(), test_deadline(), None).unwrap();

        assert_eq!(loss(&mut rank), expected);
    }
}

/// A rank that was given up may still fetch a message it was offered. It gets the original content
/// or nothing.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn a_message_offered_to_an_abandoned_rank_keeps_its_content(rig: &dyn Rig) {
    const LONG: usize = 100_000;

    let set_link_up = |up: bool| {
        rig.with_machine(Box::new(move |machine| machine.fabric().set_link_up(LinkId(0), up).unwrap()));
    };
    rig.open("ex0", "admin").bar(0).unwrap().write64(reg::WATCHDOG, 20_000_000).unwrap();

    // The first and the third rank are on one card.
    let mut world = World::new(&Extoll::new(rig), 3, Matching::default());
    let send = world.send(0, 1, 1, &pattern(1, LONG));
    world.wait_for_message(1, &Selector::exact(0, 0, 1));
    set_link_up(false);

    assert_eq!(loss(&mut world.ranks[0]), Loss::TimedOut);
    assert!(world.wait(0, send).result.is_err_and(|error| error.is_peer()));

    let friendly = world.send(0, 2, 2, &pattern(2, LONG));
    world.wait_for_message(2, &Selector::exact(0, 0, 2));
    set_link_up(true);

    let receive = world.receive(1, Selector::exact(0, 0, 1), LONG);
    let done = world.wait(1, receive);
    if done.result.is_ok() {
        assert!(done.buffer.as_slice() == pattern(1, LONG), "another message's content");
    }

    let receive = world.receive(2, Selector::exact(0, 0, 2), LONG);
    let done = world.wait(2, receive);

    assert_eq!(done.result, Ok(()));
    assert!(done.buffer.as_slice() == pattern(2, LONG));
    assert_eq!(world.wait(0, friendly).result, Ok(()));
}

/// Processes on the same node outside the job use none of the room that is reserved for its ranks.
#[body]
pub fn packets_of_a_process_outside_the_job_use_no_room_of_a_rank(rig: &dyn Rig) {
    let extoll = Extoll::new(rig);
    let mut first = extoll.rank(0, 2);
    let outsiders = ["vpid1", "vpid2"].map(|vpid| {
        let mut port = Port::open(rig.open("ex1", vpid), nicforge_velo::Config::default()).unwrap();
        let link = port.connect(at(0), test_deadline(), None).unwrap();
        (port, link)
    });

    let now = || Deadline::after(Duration::ZERO);
    let is_complete = |rank: &mut ExtollTransport| match rank.wait_for_all(now(), None) {
        Ok(()) => true,
        Err(Error::Velo(nicforge_velo::Error::Timeout { .. })) => false,
        Err(error) => panic!("{error}"),
    };

    let outsiders = outsiders.map(|(mut port, link)| {
        let (deadline, mut relax) = (test_deadline(), Relax::new());
        while !port.is_refused(link) && port.credits(link) == Some(0) {
            assert!(!deadline.has_passed(), "an outsider has no answer");
            is_complete(&mut first);
            port.progress().unwrap();
            port.device().relax(&mut relax).unwrap();
        }
        (port, link)
    });

    let mut second = extoll.rank(1, 2);
    let (deadline, mut relax) = (test_deadline(), Relax::new());

    while !(is_complete(&mut first) & is_complete(&mut second)) {
        assert!(!deadline.has_passed(), "the ranks wait for each other");
        second.device().relax(&mut relax).unwrap();
    }

    assert_eq!((first.poll_gone(), second.poll_gone()), (None, None));

    for (mut port, link) in outsiders {
        assert_eq!(port.send_nb(link, 1, &[0; 8]), Err(nicforge_velo::Error::NoCredit { address: at(0) }));
    }
}

/// A rank sends more messages than its window allows, which no receive takes. It is lost, and the
/// other ranks exchange messages as before.
#[body]
pub fn a_rank_that_ignores_its_window_is_lost_alone(rig: &dyn Rig) {
    let mut ranks = Extoll::new(rig).ranks(3);
    let mut hostile = ranks.remove(1);
    let mut world = World::of(ranks, Matching::default());
    let mut round = 0;

    // An eager message of 8 bytes: context 0, size 8, tag 7.
    let mut message = [0_u8; 24];
    (message[4], message[8]) = (8, 7);
    for _ in 0..4000 {
        world.drive_until("credit", |world| {
            hostile.poll_gone();
            hostile.poll(64, &mut |_, _, _| Taken::Yes).unwrap();
            let is_lost = world.ranks[0].transport().statistics().strays > 0;
            (is_lost || hostile.try_send(0, nicforge_matching::wire::FIRST, &message).unwrap()).then_some(())
        });

        if world.ranks[0].statistics().unexpected >= 256 && round < 3 {
            let data = pattern(round, [8, 1000, 100_000][round as usize]);
            world.send(1, 0, round, &data);
            let receive = world.receive(0, Selector::exact(2, 0, round), data.len());
            assert!(world.wait(0, receive).buffer.as_slice() == data);
            round += 1;
        }
    }

    let named = world.receive(0, Selector::exact(1, 0, 1), 8);
    let error = MatchingError::PeerGone { peer: 1, why: Loss::Overrun };
    assert_eq!(world.wait(0, named).result, Err(error));
    assert_eq!(round, 3);
    assert!(world.ranks[0].transport().statistics().held < 1000);
}

/// A process with a rank's VPID sends malformed messages and more notifications than fit. Only this
/// rank is lost.
#[body]
pub fn a_hostile_rank_does_not_disturb_other_ranks(rig: &dyn Rig) {
    let extoll = Extoll::new(rig);
    let mut friends = vec![extoll.rank(0, 3), extoll.rank(2, 3)];
    let device = rig.open("ex1", "vpid0");
    let mut hostile = Port::open(device.clone(), Default::default()).unwrap();
    let link = {
        let (deadline, mut relax) = (test_deadline(), Relax::new());
        let link = hostile.connect(at(0), test_deadline(), None).unwrap();
        while hostile.credits(link) == Some(0) || !friends.iter().all(ExtollTransport::is_complete) {
            assert!(!deadline.has_passed(), "there is no credit");
            hostile.progress().unwrap();
            for friend in &mut friends {
                assert_eq!(friend.poll_gone(), None);
                friend.poll(64, &mut |_, _, _| Taken::Yes).unwrap();
            }
            device.relax(&mut relax).unwrap();
        }
        link
    };

    let mut world = World::of(friends, Matching::default());
    // No transport sends such messages: their tags or their contents are invalid.
    for (tag, bytes) in
        [(0, [1_u8; 8]), (9, [0; 8]), (14, [9; 8]), (5, [0xff; 8]), (4, [0xff; 8]), (2, [1; 8])]
    {
        while hostile.send_nb(link, tag, &bytes) == Err(nicforge_velo::Error::WouldBlock) {
            world.progress();
        }
    }

    // The rank has violated the protocol, so it counts as lost.
    let named = world.receive(0, Selector::exact(1, 0, 0), 8);
    let ended = world.wait(0, named);

    assert!(ended.result.is_err_and(|error| error.is_peer()));

    // Each get from the victim's memory makes a notification; these are more than the victim's
    // queue holds.
    let exposed = vec![1; 4096];
    let memory = Memory { start: NonNull::new(exposed.as_ptr().cast_mut()).unwrap(), length: exposed.len() };

    // SAFETY: the vector lives until it is deregistered, and no code writes it.
    let exposed_region = unsafe { world.ranks[0].transport_mut().register(memory, Access::Source) };
    let exposed_region = exposed_region.unwrap().unwrap();
    let mut rma = nicforge_rma::Port::without_poster(&device, nicforge_rma::Options::default()).unwrap();
    let (victim, own_region) =
        (rma.connect(0, 0).unwrap(), device.dma_buffer(4096, HugePages::Never).unwrap());
    let own_region = rma.register(&own_region, nicforge_rma::Access::NONE).unwrap();
    let (deadline, mut relax) = (test_deadline(), Relax::new());

    for _ in 0..6_000 {
        let ends = (exposed_region.remote.offset, own_region.address());
        let mut get = |poster: &mut Poster| rma.try_get_through(poster, victim, ends, 8, Notify::RESPONDER);
        while !hostile.with_poster(&mut get).unwrap() {
            assert!(!deadline.has_passed(), "the gets do not end");
            device.relax(&mut relax).unwrap();
        }
        relax.reset();
    }

    rma.drain(test_deadline(), None).unwrap();
    world.ranks[0].transport_mut().deregister(exposed_region);

    for round in 0..10 {
        let data = pattern(round, 100_000);
        let send = world.send(1, 0, round, &data);
        let receive = world.receive(0, Selector::exact(2, 0, round), data.len());
        let done = world.wait(0, receive);
        assert_eq!(done.result, Ok(()));
        assert!(done.buffer.as_slice() == data);
        assert_eq!(world.wait(1, send).result, Ok(()));
    }

    let statistics = world.ranks[0].transport().statistics();
    assert!(statistics.overflows > 0, "{statistics:?}");
}
