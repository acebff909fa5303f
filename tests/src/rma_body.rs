//! Test bodies of the RMA library on two cards with four VPIDs each.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use nicforge_core::{fabric::LinkId, machine::Machine};
use nicforge_driver::{
    Cancel, Deadline, Device, DmaBuffer, DmaPermission, Error as DriverError, HugePages, Relax, SharedPoster,
};
use nicforge_hwi::{extoll::reg, extoll_atu::command, extoll_rma::MAX_COMMANDS};
use nicforge_machine::{build::build, description::parse};
use nicforge_nics::families;
use nicforge_rma::{
    Access, Error, Kind, MAX_LENGTH, Notification, Notify, Options, Port, Region, Role, Status, Target,
};
use nicforge_shm::SharedMemory;
use nicforge_test_body::body;
use nicforge_velo::{Config, Filter, Port as VeloPort, Waiting};

use crate::{
    backing::{LIMIT, Rig, test_deadline},
    bodies::{GuestDoor, Guests, TestMachine},
    pattern::pattern,
};

/// The machine of all bodies of RMA. Some need more contiguous memory than a kernel has without an
/// IOMMU.
pub static MACHINE: TestMachine = TestMachine {
    name: "rma",
    make: machine,
    guests: Guests::Booted {
        attachments: &[(&["ex0", "ex1"], &["vpid0", "vpid1", "vpid2", "vpid3"])],
        doors: &[GuestDoor::Vfio, GuestDoor::Shim, GuestDoor::ShimIommu, GuestDoor::Own],
    },
};

/// Bytes of a MiB.
const MIB: usize = 1 << 20;

/// Returns a machine with two cards, `ex0` and `ex1`.
pub fn machine() -> Machine {
    let text = "name = \"rma\"\n[[extoll]]\nmesh = 2\nvpids = 4\n";
    build(&parse(text, "rma.toml", &families()).unwrap()).unwrap().0
}

/// A port with registered memory.
struct Side {
    port: Port,
    region: Option<Region>,
    buffer: DmaBuffer,
    device: Device,
}

impl Side {
    /// Opens a VPID with `bytes` bytes of memory.
    fn new(rig: &dyn Rig, node: &str, vpid: u16, bytes: usize) -> Self {
        let device = rig.open(node, &format!("vpid{vpid}"));
        let buffer = device.dma_buffer(bytes, HugePages::Try).unwrap();
        Self::with(device, buffer, Options::default())
    }

    /// Opens a port of a device, and registers the buffer.
    fn with(device: Device, buffer: DmaBuffer, options: Options) -> Self {
        let port = Port::open(&device, options).unwrap();
        let region = port.register(&buffer, Access::READ_WRITE).unwrap();
        Self { port, region: Some(region), buffer, device }
    }

    /// Returns the network address of an offset in the memory.
    fn at(&self, offset: u64) -> u64 {
        self.region.as_ref().unwrap().address() + offset
    }

    /// Stores bytes in the memory.
    fn write(&self, offset: u64, bytes: &[u8]) {
        self.buffer.write(offset, bytes).unwrap();
    }

    /// Returns bytes of the memory.
    fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.buffer.read(offset, &mut bytes).unwrap();
        bytes
    }

    /// Waits for the next notification.
    fn next(&mut self) -> Notification {
        self.port.next(test_deadline(), None).unwrap()
    }

    /// Returns another side as the target of commands.
    fn to(&self, other: &Self) -> Target {
        self.port.connect(other.port.node(), other.port.vpid()).unwrap()
    }
}

/// Opens a side on each card, with `bytes` bytes of memory each.
fn pair(rig: &dyn Rig, bytes: usize) -> (Side, Side) {
    (Side::new(rig, "ex0", 0, bytes), Side::new(rig, "ex1", 1, bytes))
}

/// Puts and gets of many sizes and alignments arrive, with a notification on every side that asked
/// for one.
#[body]
pub fn puts_and_gets_of_all_sizes_arrive(rig: &dyn Rig) {
    let (mut local, mut remote) = pair(rig, 2 * MIB);
    let target = local.to(&remote);
    let all_parties = Notify::REQUESTER | Notify::RESPONDER | Notify::COMPLETER;

    for (round, length) in [1, 7, 64, 4095, 4096, 65_537, 300_000, MIB].into_iter().enumerate() {
        let (from, to) = (round as u64 * 3, 4096 - round as u64);
        let bytes = pattern(round as u64, length);
        local.write(from, &bytes);
        local.port.put(target, local.at(from), remote.at(to), length as u64, all_parties).unwrap();

        let notified = remote.next();
        assert_eq!(
            (notified.role, notified.kind, notified.status),
            (Role::Completer, Kind::Put, Status::Done)
        );
        assert_eq!(
            (notified.node, notified.vpid, notified.length as usize, notified.address),
            (0, 0, length, remote.at(to))
        );
        assert!(remote.read(to, length) == bytes);
        assert_eq!(local.next().role, Role::Requester);

        local.write(from, &vec![0; length]);
        local.port.get(target, remote.at(to), local.at(from), length as u64, all_parties).unwrap();
        let notified = [local.next(), local.next()];

        assert_eq!(
            notified.map(|notified| (notified.role, notified.kind)),
            [(Role::Requester, Kind::Get), (Role::Completer, Kind::Get)]
        );
        assert!(local.read(from, length) == bytes);
        assert_eq!(remote.next().role, Role::Responder);
    }
}

/// An immediate put wakes a thread that waits for it.
#[body]
pub fn an_immediate_put_wakes_a_sleeping_receiver(rig: &dyn Rig) {
    let (mut local, mut remote) = pair(rig, 4096);
    let (target, address) = (local.to(&remote), remote.at(16));
    let start = Barrier::new(2);

    std::thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            assert_eq!(remote.next().kind, Kind::ImmediatePut);
            assert_eq!(remote.read(16, 5), *b"hello");
        });

        start.wait();
        // Usually long enough for the other thread to sleep. The test is correct in either case.
        assert!(local.port.wait(Deadline::after(Duration::from_millis(30)), None).is_err());

        local.port.put_immediate(target, b"hello", address, Notify::COMPLETER).unwrap();
        local.port.drain(test_deadline(), None).unwrap();
    });

    assert!(matches!(
        local.port.put_immediate(target, &[0; 9], address, Notify::NONE),
        Err(Error::Length { .. })
    ));
}

/// Threads that sleep in two libraries on one VPID are each woken by their own interrupt. A sleep
/// has no other end within the test's deadline.
#[body]
pub fn sleepers_of_two_libraries_do_not_disturb_each_other(rig: &dyn Rig) {
    const NEVER: Duration = Duration::from_secs(3600);
    const ROUNDS: u64 = 120;

    let device = rig.open("ex1", "vpid0");
    let buffer = device.dma_buffer(4096, HugePages::Never).unwrap();
    let poster = SharedPoster::new(device.poster(0).unwrap());
    let waiting = Waiting::Interrupt;
    let config = Config { waiting, poll_phase: Duration::ZERO, sleep: NEVER, ..Config::default() };
    let mut velo = VeloPort::open_sharing(device.clone(), poster.clone(), config).unwrap();
    let options = Options { spin: Duration::ZERO, sleep: NEVER, ..Options::default() };
    let mut rma = Port::with_poster(&device, poster, options).unwrap();
    let region = rma.register(&buffer, Access::READ_WRITE).unwrap();
    let mut sender = VeloPort::open(rig.open("ex0", "vpid0"), Config::default()).unwrap();
    let mut writer = Side::new(rig, "ex0", 1, 4096);
    let target = writer.port.connect(rma.node(), rma.vpid()).unwrap();
    let address = velo.address();
    let taken = [AtomicU64::new(0), AtomicU64::new(0)];

    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..ROUNDS {
                let message = velo.recv(Filter::ANY, test_deadline(), None).unwrap();
                assert_eq!(message.quadword(0), number);
                taken[0].fetch_add(1, Ordering::SeqCst);
            }
        });

        scope.spawn(|| {
            for _ in 0..ROUNDS {
                assert_eq!(rma.next(test_deadline(), None).unwrap().kind, Kind::ImmediatePut);
                taken[1].fetch_add(1, Ordering::SeqCst);
            }
        });

        let link = sender.connect(address, test_deadline(), None).unwrap();
        let mut relax = Relax::new();

        // One sleeper is woken several times while the other one sleeps, then the reverse.
        for number in 0..2 * ROUNDS {
            let sleeper = usize::from(number / 5 % 2 == 1);
            let before = taken[sleeper].load(Ordering::SeqCst);
            if sleeper == 0 {
                sender.send(link, 0, &before.to_le_bytes(), test_deadline(), None).unwrap();
            } else {
                let at = region.address();
                writer.port.put_immediate(target, b"wake up", at, Notify::COMPLETER).unwrap();
            }

            let deadline = test_deadline();
            while taken[sleeper].load(Ordering::SeqCst) == before {
                assert!(!deadline.has_passed(), "sleeper {sleeper} is not woken");
                sender.progress().unwrap();
                writer.device.relax(&mut relax).unwrap();
            }
        }
    });
}

/// A transfer longer than a command's maximum is posted as several commands.
#[body(not_through(shim) = LARGE_CONTIGUOUS_MEMORY)]
pub fn a_long_transfer_is_several_commands(rig: &dyn Rig) {
    let length = 2 * MAX_LENGTH as usize + 4097;
    let (mut local, remote) = pair(rig, length.next_multiple_of(4096));
    let target = local.to(&remote);

    local.write(0, &pattern(1, length));
    let commands =
        local.port.put(target, local.at(0), remote.at(0), length as u64, Notify::REQUESTER).unwrap();

    assert_eq!(commands, 3);
    assert_eq!(local.port.finish(commands, test_deadline(), None, |_| ()).unwrap(), None);
    assert!(remote.read(0, length) == pattern(1, length));
}

/// Many small commands cause more notifications than the queue has entries.
#[body]
pub fn a_stream_of_small_puts_wraps_around_the_queue(rig: &dyn Rig) {
    let puts = u64::from(rig.repetitions(2000));
    let device = rig.open("ex0", "vpid0");
    let buffer = device.dma_buffer(4096, HugePages::Never).unwrap();
    let mut local = Side::with(device, buffer, Options { entries: 64, ..Options::default() });
    let remote = Side::new(rig, "ex1", 1, 4096);
    let target = local.to(&remote);
    let (mut posted, mut notified) = (0u64, 0u64);

    while notified < puts {
        while posted < puts && posted - notified < 64 {
            local
                .port
                .put(target, local.at(0), remote.at(posted % 4000), 1 + posted % 64, Notify::REQUESTER)
                .unwrap();
            posted += 1;
        }
        let next = local.next();
        assert_eq!((next.is_done(), u64::from(next.length)), (true, 1 + notified % 64));
        notified += 1;
    }

    assert_eq!(local.port.probe().unwrap(), None);
}

/// The card's refusals are reported as errors of specific types.
#[body]
pub fn refusals_report_their_reason(rig: &dyn Rig) {
    let (mut local, remote) = pair(rig, MIB);
    let target = local.to(&remote);
    let (source, destination) = (local.at(0), remote.at(0));
    let closed = remote.port.register(&remote.buffer, Access::NONE).unwrap();
    let cases = [
        (source, closed.address(), 8, Status::RemoteAddress),
        (source, destination + remote.buffer.len() - 4, 8, Status::RemoteAddress),
        (source + local.buffer.len() - 4, destination, 8, Status::LocalAddress),
        (closed.address() + (1 << 50), destination, 8, Status::LocalAddress),
    ];

    for (from, to, length, status) in cases {
        local.port.put(target, from, to, length, Notify::NONE).unwrap();
        assert_eq!(local.next().status, status);
    }

    assert!(matches!(
        local.port.connect(2, 0),
        Err(Error::NoSuchTarget { node: 2, vpid: 0, nodes: 2, vpids: 4 })
    ));
    assert!(matches!(local.port.register_range(1, 4096, Access::NONE), Err(Error::Unaligned { .. })));
    assert!(matches!(
        local.port.register_range(1 << 40, 4096, Access::NONE),
        Err(Error::Translation { what: "register", .. })
    ));
    let end = local.buffer.len();
    assert!(matches!(local.region.as_ref().unwrap().at(1, end), Err(Error::OutsideRegion { .. })));
    assert!(matches!(
        local.port.put(target, source, destination, 0, Notify::NONE),
        Err(Error::Length { .. })
    ));
    assert!(matches!(
        Port::open(&local.device, Options { entries: 100, ..Options::default() }),
        Err(Error::Driver(DriverError::RingTaken { .. }))
    ));

    let other = rig.open("ex0", "vpid3");
    let no_power_of_two = Options { entries: 100, ..Options::default() };

    assert!(matches!(Port::open(&other, no_power_of_two), Err(Error::QueueLength { entries: 100 })));
}

/// A region of pages that were mapped one by one, in any order, works like others. It ends at the
/// first page that is unmapped.
#[body(
    not_through(shim, shim_iommu) = "the kernel chooses the addresses, and puts no two mappings side by side"
)]
pub fn a_region_of_scattered_pages_is_one(rig: &dyn Rig) {
    const PAGE: u64 = 4096;

    // More than a table of 512 pages has, in a guest too.
    let count = u64::from(rig.repetitions(4800));
    let mut local = Side::new(rig, "ex0", 0, 4096);
    let device = rig.open("ex1", "vpid2");
    let mut port = Port::open(&device, Options::default()).unwrap();
    let memory = SharedMemory::create("pages", (count * PAGE) as usize).unwrap();

    // The pages are mapped backwards, at successive addresses.
    let mut pages: Vec<_> = (0..count)
        .rev()
        .map(|page| device.map_dma(&memory, page * PAGE, PAGE, DmaPermission::READ_WRITE).unwrap())
        .collect();
    let start = pages[0].iova();

    assert!(
        pages.iter().zip(0..).all(|(page, at)| page.iova() == start + at * PAGE),
        "the pages have successive addresses"
    );

    let region = port.register_range(start, count * PAGE, Access::READ_WRITE).unwrap();
    let to_itself = port.connect(1, 2).unwrap();
    let length = count / 3 * PAGE + 77;

    for (at, page) in (0..).zip(&pages) {
        page.write(0, &pattern(at, PAGE as usize)).unwrap();
    }

    // Copies from page 0 on to an offset in the page in the middle, by a put to the own VPID.
    let destination = count / 2 * PAGE + 99;
    port.put(
        to_itself,
        region.at(5, length).unwrap(),
        region.at(destination, length).unwrap(),
        length,
        Notify::REQUESTER,
    )
    .unwrap();

    assert!(port.next(test_deadline(), None).unwrap().is_done());

    let mut expected: Vec<_> = (0..count).flat_map(|at| pattern(at, PAGE as usize)).collect();
    expected.copy_within(5..5 + length as usize, destination as usize);
    let contents = |pages: &[DmaBuffer]| {
        let mut bytes = vec![0; pages.len() * PAGE as usize];
        for (page, chunk) in pages.iter().zip(bytes.chunks_mut(PAGE as usize)) {
            page.read(0, chunk).unwrap();
        }
        bytes
    };

    assert!(contents(&pages) == expected);

    // Without its last page, none of it is written.
    let target = local.port.connect(1, 2).unwrap();
    drop(pages.pop());
    local.write(0, &[1; 4096]);
    local.port.put(target, local.at(0), region.address(), 4096, Notify::REQUESTER).unwrap();

    assert_eq!(local.next().status, Status::Withdrawn);
    assert!(contents(&pages) == expected[..expected.len() - PAGE as usize]);
    drop(region);
}

/// A VPID without a client receives no data, and the admin has no queue.
#[body(not_through(guests) = QEMU_HOLDS_ATTACHMENTS)]
pub fn an_absent_vpid_and_the_admin_are_invalid_partners(rig: &dyn Rig) {
    let (mut local, remote) = pair(rig, 4096);
    let absent = local.port.connect(1, 3).unwrap();
    local.port.put(absent, local.at(0), remote.at(0), 8, Notify::NONE).unwrap();
    assert_eq!(local.next().status, Status::NoReceiver);
    let admin = rig.open("ex0", "admin");
    assert!(matches!(Port::open(&admin, Options::default()), Err(Error::QueueRefused { .. })));
}

/// A wait ends at its deadline, and when its [`Cancel`] is cancelled.
#[body]
pub fn waits_end_at_their_deadline_and_when_cancelled(rig: &dyn Rig) {
    let mut side = Side::new(rig, "ex0", 0, 4096);
    let short = Deadline::after(Duration::from_millis(20));

    assert!(matches!(side.port.wait(short, None), Err(Error::Driver(DriverError::Timeout { .. }))));

    let cancel = Cancel::new().unwrap();
    cancel.cancel();
    assert!(matches!(
        side.port.next(test_deadline(), Some(&cancel)),
        Err(Error::Driver(DriverError::Cancelled))
    ));

    side.port.free().unwrap();
}

/// A [`Cancel`] ends the wait of a put for room. The commands posted before stay posted.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn a_put_that_waits_for_room_is_cancelled(rig: &dyn Rig) {
    let (mut local, remote) = pair(rig, 4096);
    let target = local.to(&remote);
    set_watchdog(rig, "ex0", LIMIT);
    set_link_up(rig, false);

    let cancel = Cancel::new().unwrap();
    cancel.cancel();
    local.port.set_cancel(Some(cancel));

    let mut put =
        || local.port.put(target, local.region.as_ref().unwrap().address(), remote.at(0), 8, Notify::NONE);
    for command in 0..MAX_COMMANDS {
        assert_eq!(put(), Ok(1), "command {command}");
    }
    assert_eq!(put(), Err(Error::Driver(DriverError::Cancelled)));
    assert_eq!(local.port.in_flight(), MAX_COMMANDS as u64);

    set_link_up(rig, true);
    local.port.drain(test_deadline(), None).unwrap();
}

/// Lost notifications are reported once, after those that were not lost.
#[body]
pub fn lost_notifications_are_reported(rig: &dyn Rig) {
    let device = rig.open("ex1", "vpid1");
    let buffer = device.dma_buffer(4096, HugePages::Never).unwrap();
    let mut remote = Side::with(device, buffer, Options { entries: 64, ..Options::default() });
    let mut local = Side::new(rig, "ex0", 0, 4096);
    let target = local.to(&remote);

    for _ in 0..70 {
        local.port.put(target, local.at(0), remote.at(0), 8, Notify::COMPLETER).unwrap();
    }

    local.port.drain(test_deadline(), None).unwrap();
    for _ in 0..64 {
        assert!(remote.next().is_done());
    }

    remote.device.flush().unwrap();
    assert_eq!(remote.port.next(test_deadline(), None), Err(Error::Overflow { lost: 6 }));
    assert_eq!(remote.port.probe(), Ok(None));
}

/// Private memory of a process is transferred by DMA messages.
#[body]
pub fn private_memory_is_transferred_by_messages(rig: &dyn Rig) {
    let device = rig.open("ex0", "vpid0");
    let buffer = device.private_dma_buffer(MIB).unwrap();
    let mut local = Side::with(device, buffer, Options::default());
    let remote = Side::new(rig, "ex1", 1, MIB);
    let target = local.to(&remote);
    let bytes = pattern(3, 300_000);

    local.write(5, &bytes);
    local.port.put(target, local.at(5), remote.at(9), 300_000, Notify::REQUESTER).unwrap();

    assert!(local.next().is_done());
    assert!(remote.read(9, 300_000) == bytes);

    local.port.get(target, remote.at(9), local.at(400_000), 300_000, Notify::REQUESTER).unwrap();
    assert!(local.next().is_done());

    // Posted writes are messages too, and a trapped access is answered after them.
    local.device.flush().unwrap();

    assert!(local.read(400_000, 300_000) == bytes);
}

/// Once a region is deregistered no byte of it changes, whatever is in flight.
#[body(not_through(shim) = LARGE_CONTIGUOUS_MEMORY)]
pub fn a_deregistered_region_is_not_touched(rig: &dyn Rig) {
    let (mut local, mut remote) = pair(rig, 8 * MIB);
    let target = local.to(&remote);

    for round in 0..rig.repetitions(10) as u8 {
        local.write(0, &vec![round + 1; 8 * MIB]);
        local.port.put(target, local.at(0), remote.at(0), 8 * MIB as u64, Notify::REQUESTER).unwrap();
        remote.region.take().unwrap().deregister().unwrap();
        let bytes = remote.read(0, 8 * MIB);
        let status = local.next().status;
        assert!(matches!(status, Status::Done | Status::Withdrawn | Status::RemoteAddress), "{status:?}");
        assert!(remote.read(0, 8 * MIB) == bytes);
        remote.region = Some(remote.port.register(&remote.buffer, Access::WRITE).unwrap());
    }
}

/// Commands to a partner that detaches end. Its successor gets none of their notifications.
#[body(not_through(shim) = LARGE_CONTIGUOUS_MEMORY)]
pub fn commands_to_a_partner_that_detaches_fail(rig: &dyn Rig) {
    let (mut local, remote) = pair(rig, 8 * MIB);
    let target = local.to(&remote);
    let address = remote.at(0);
    let notify = Notify::REQUESTER | Notify::COMPLETER;

    local.port.put(target, local.at(0), address, 8 * MIB as u64, notify).unwrap();
    drop(remote);
    let status = local.next().status;

    assert!(status != Status::LocalAddress && status != Status::Command, "{status:?}");

    let mut reopened = Side::new(rig, "ex1", 1, MIB);
    assert_eq!(reopened.port.probe(), Ok(None));

    local.port.put(target, local.at(0), reopened.at(0), MIB as u64, notify).unwrap();
    assert!(local.next().is_done() && reopened.next().is_done());
}

/// A device that is taken away ends waits.
#[body(not_through(guests) = EVICTION_IS_FINAL)]
pub fn an_eviction_ends_a_wait(rig: &dyn Rig) {
    let mut side = Side::new(rig, "ex0", 0, 4096);
    rig.evict("ex0", "vpid0");
    let ended = side.port.wait(Deadline::after(LIMIT), None);
    assert!(matches!(ended, Err(Error::Driver(DriverError::DeviceGone { .. }))), "{ended:?}");
}

/// Sets the watchdog of a node's card.
fn set_watchdog(rig: &dyn Rig, node: &str, limit: Duration) {
    let admin = rig.open(node, "admin");
    admin.bar(0).unwrap().write64(reg::RMA_WATCHDOG, limit.as_nanos() as u64).unwrap();
}

/// Plugs or unplugs the cable between the two cards.
fn set_link_up(rig: &dyn Rig, up: bool) {
    rig.with_machine(Box::new(move |machine| {
        machine.fabric().set_link_up(LinkId(0), up).unwrap();
    }));
}

/// Transfers whose target never answers end by the watchdog. Transfers posted after the target is
/// reachable again succeed.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn a_target_that_never_answers_ends_commands(rig: &dyn Rig) {
    let (mut local, remote) = pair(rig, MIB);
    let (target, local_target) = (local.to(&remote), local.to(&local));
    set_watchdog(rig, "ex0", Duration::from_millis(200));
    set_link_up(rig, false);
    local.port.put(target, local.at(0), remote.at(0), 300_000, Notify::NONE).unwrap();
    local.port.get(target, remote.at(0), local.at(400_000), 300_000, Notify::REQUESTER).unwrap();
    local.port.put_immediate(target, b"late", remote.at(8), Notify::NONE).unwrap();

    // Commands to a reachable target continue meanwhile.
    local.port.put(local_target, local.at(0), local.at(8192), 4096, Notify::REQUESTER).unwrap();
    let notified: Vec<_> = (0..4).map(|_| local.next()).collect();
    let notifications_for = |target: Target| {
        notified
            .iter()
            .filter(move |notified| (notified.node, notified.vpid) == (target.node(), target.vpid()))
    };

    assert_eq!(
        notifications_for(target).map(|notified| (notified.kind, notified.status)).collect::<Vec<_>>(),
        [Kind::Put, Kind::Get, Kind::ImmediatePut].map(|kind| (kind, Status::TimedOut))
    );
    assert_eq!(
        notifications_for(local_target).map(|notified| notified.status).collect::<Vec<_>>(),
        [Status::Done]
    );
    assert_eq!(local.port.in_flight(), 0);

    set_link_up(rig, true);
    set_watchdog(rig, "ex0", LIMIT);
    local.write(0, &pattern(2, MIB));
    local.port.put(target, local.at(0), remote.at(0), MIB as u64, Notify::REQUESTER).unwrap();

    assert!(local.next().is_done());
    assert!(remote.read(0, MIB) == pattern(2, MIB));
}

/// After a reset of the device its port and regions return errors, and do not disturb their
/// successors.
#[body]
pub fn after_a_reset_old_objects_return_errors_and_new_ones_work(rig: &dyn Rig) {
    let (mut local, mut remote) = pair(rig, MIB);
    let target = local.to(&remote);
    local.port.put(target, local.at(0), remote.at(0), 8, Notify::REQUESTER).unwrap();
    local.port.drain(test_deadline(), None).unwrap();
    local.device.reset().unwrap();

    let Side { mut port, region, buffer, device } = local;
    let region = region.unwrap();

    // Notifications that had arrived can still be taken.
    assert!(port.next(test_deadline(), None).unwrap().is_done());

    let length = MIB as u64;
    assert_eq!(region.at(0, 8), Err(Error::Reset));
    assert_eq!(port.put(target, region.address(), remote.at(0), 8, Notify::NONE), Err(Error::Reset));
    assert_eq!(port.put_immediate(target, b"x", remote.at(0), Notify::NONE), Err(Error::Reset));
    assert_eq!(port.probe(), Err(Error::Reset));
    assert_eq!(port.next(test_deadline(), None), Err(Error::Reset));
    assert_eq!(port.drain(test_deadline(), None), Err(Error::Reset));
    assert!(matches!(port.register(&buffer, Access::NONE), Err(Error::Reset)));

    let other = port.connect(1, 1).unwrap();
    drop(port);

    // Partners get an address error for the region until it is registered again.
    let back = remote.port.connect(0, 0).unwrap();
    remote.port.put(back, remote.at(0), region.address(), 8, Notify::NONE).unwrap();

    assert_eq!(remote.next().status, Status::RemoteAddress);

    let mut reopened = Side::with(device, buffer, Options::default());
    assert_eq!(region.deregister(), Err(Error::Reset));

    reopened.write(0, &pattern(4, MIB));
    reopened.port.put(other, reopened.at(0), remote.at(0), length, Notify::REQUESTER).unwrap();

    assert!(reopened.next().is_done());
    assert!(remote.read(0, MIB) == pattern(4, MIB));
}

/// A VPID that the admin resets loses its queue, and waits return an error.
#[body(not_through(guests) = OPERATORS_CODE)]
pub fn a_reset_by_the_admin_ends_waits(rig: &dyn Rig) {
    let (mut local, remote) = pair(rig, MIB);
    let target = local.to(&remote);
    set_link_up(rig, false);
    local.port.put(target, local.at(0), remote.at(0), 8, Notify::REQUESTER).unwrap();
    local.device.flush().unwrap();
    rig.open("ex0", "admin").bar(0).unwrap().write64(reg::RESET_VPID, 0).unwrap();

    assert_eq!(local.port.drain(test_deadline(), None), Err(Error::QueueGone));
    assert_eq!(local.port.next(test_deadline(), None), Err(Error::QueueGone));

    let region = local.region.take().unwrap();
    assert_eq!(region.deregister(), Err(Error::Reset));

    let Side { port, buffer, device, .. } = local;
    drop(port);
    set_link_up(rig, true);

    let mut reopened = Side::with(device, buffer, Options::default());
    reopened.port.put(target, reopened.at(0), remote.at(0), 8, Notify::REQUESTER).unwrap();

    assert!(reopened.next().is_done());
}

/// Objects from before a reset by the admin can be dropped at any later time without effect on new
/// ones.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn objects_of_before_an_admin_reset_can_be_dropped_after_it(rig: &dyn Rig) {
    let remote = Side::new(rig, "ex1", 1, MIB);
    let device = rig.open("ex0", "vpid0");
    let poster = SharedPoster::new(device.poster(0).unwrap());
    let open = || Port::with_poster(&device, poster.clone(), Options::default()).unwrap();
    let buffer = device.dma_buffer(MIB, HugePages::Never).unwrap();
    let old = open();
    let old_region = old.register(&buffer, Access::READ_WRITE).unwrap();

    rig.open("ex0", "admin").bar(0).unwrap().write64(reg::RESET_VPID, 0).unwrap();
    let mut new = open();
    let region = new.register(&buffer, Access::READ_WRITE).unwrap();

    assert_eq!(old_region.at(0, 8), Err(Error::Reset));

    drop((old_region, old));
    let target = new.connect(1, 1).unwrap();
    new.put(target, region.address(), remote.at(0), 8, Notify::REQUESTER).unwrap();

    assert!(new.next(test_deadline(), None).unwrap().is_done());
}

/// A VPID can't use the part of the card's table that is reserved for others, and the others get
/// theirs.
#[body]
pub fn a_vpid_cannot_use_the_table_entries_reserved_for_others(rig: &dyn Rig) {
    let (local, remote) = (Side::new(rig, "ex0", 0, 4 * MIB), Side::new(rig, "ex0", 1, 4 * MIB));
    // The range starts at an odd page, so that only the smallest pages fit.
    let register = |side: &Side| side.port.register_range(side.buffer.iova() + 4096, 3 << 20, Access::NONE);
    let mut regions = Vec::new();
    let refused = loop {
        match register(&local) {
            Ok(region) => regions.push(region),
            Err(error) => break error,
        }
    };

    assert!(matches!(refused, Error::Translation { what: "register", status: command::QUOTA }), "{refused}");
    assert!(refused.to_string().contains("kept for others"), "{refused}");

    // The limit is half of 65,536 entries plus an eighth of them, in units of 768. Each side's
    // buffer uses up to 1,024, depending on the alignment of its address.
    assert!((39_936 / 768..=40_960 / 768).contains(&regions.len()), "{}", regions.len());

    for _ in 0..(8192 - 1024) / 768 {
        regions.push(register(&remote).unwrap());
    }
}

/// A call of `free` frees only a notification that the port has returned before.
#[body]
pub fn a_notification_that_was_not_returned_is_not_freed(rig: &dyn Rig) {
    let (mut local, mut remote) = pair(rig, 4096);
    let target = local.to(&remote);
    assert_eq!(remote.port.probe(), Ok(None));

    for offset in [0, 8, 16] {
        local.port.put(target, local.at(offset), remote.at(offset), 8, Notify::COMPLETER).unwrap();
    }
    local.port.drain(test_deadline(), None).unwrap();

    remote.port.free().unwrap();
    let expected = remote.at(0);
    assert_eq!(remote.port.wait(test_deadline(), None).unwrap().address, expected);

    for _ in 0..2 {
        remote.port.free().unwrap();
    }
    assert_eq!(remote.next().address, remote.at(8));

    remote.port.free().unwrap();
    assert_eq!(remote.next().address, remote.at(16));
}

/// A port that is opened while commands of an earlier port are in flight waits for its own
/// commands.
#[body(not_through(shim) = LARGE_CONTIGUOUS_MEMORY)]
pub fn a_port_does_not_count_the_commands_of_an_earlier_one(rig: &dyn Rig) {
    const BYTES: usize = 8 * MIB;

    let (local, remote) = pair(rig, BYTES);
    let target = local.to(&remote);
    let Side { mut port, region, buffer, device } = local;
    let source = region.as_ref().unwrap().address();

    for round in 1..=10_u8 {
        for _ in 0..5 {
            port.put(target, source, remote.at(0), 8, Notify::NONE).unwrap();
        }
        drop(port);
        port = Port::open(&device, Options::default()).unwrap();

        buffer.write(BYTES as u64 - 1, &[round]).unwrap();
        port.put(target, source, remote.at(0), BYTES as u64, Notify::NONE).unwrap();
        port.drain(test_deadline(), None).unwrap();
        assert_eq!(remote.read(BYTES as u64 - 1, 1), [round]);
    }
}

/// A VPID with both libraries, whose posted-write ring is stalled by messages for a process that
/// does not read. The card's watchdog drops one of them each half second.
struct StalledRing {
    rma: Port,
    velo: VeloPort,
    buffer: DmaBuffer,
    region: Region,
    /// The process that does not read.
    _idle: VeloPort,
}

impl StalledRing {
    /// Opens `vpid0` of the first card, and stalls its ring for about four seconds.
    fn new(rig: &dyn Rig) -> Self {
        const SLOTS: u32 = 64;
        const STALLS: u32 = 8;

        let device = rig.open("ex0", "vpid0");
        let buffer = device.dma_buffer(4096, HugePages::Never).unwrap();
        let poster = SharedPoster::new(device.poster(0).unwrap());
        let uncounted = Config { flow_control: false, slots: Some(SLOTS), ..Config::default() };
        let mut velo = VeloPort::open_sharing(device.clone(), poster.clone(), uncounted).unwrap();
        let options = Options { spin: Duration::ZERO, ..Options::default() };
        let rma = Port::with_poster(&device, poster, options).unwrap();
        let region = rma.register(&buffer, Access::READ_WRITE).unwrap();

        let idle = VeloPort::open(rig.open("ex1", "vpid0"), uncounted).unwrap();
        let link = velo.connect(idle.address(), test_deadline(), None).unwrap();
        // The card's half of the ring's slots, and more.
        for _ in 0..SLOTS / 2 + STALLS {
            velo.send(link, 0, &[1; 8], test_deadline(), None).unwrap();
        }

        let (deadline, mut relax) = (test_deadline(), Relax::new());
        while velo.statistics().stalls == 0 {
            assert!(!deadline.has_passed(), "no message waits for credit");
            device.relax(&mut relax).unwrap();
        }
        Self { rma, velo, buffer, region, _idle: idle }
    }
}

/// A wait for a notification ends at its deadline while the posted-write ring is stalled.
#[body(not_through(guests) = REAL_PROCESSORS_TIMES)]
pub fn a_wait_ends_while_the_ring_is_stalled(rig: &dyn Rig) {
    let mut stalled = StalledRing::new(rig);

    let start = Instant::now();
    let waited = stalled.rma.wait(Deadline::after(Duration::from_millis(100)), None);
    let elapsed = start.elapsed();

    assert!(matches!(waited, Err(Error::Driver(DriverError::Timeout { .. }))), "{waited:?}");
    assert!(elapsed < Duration::from_secs(1), "{elapsed:?}");
}

/// A region that is dropped, and a port that is dropped, while the posted-write ring is stalled are
/// not known to the card afterwards.
#[body(not_through(guests) = "a guest's processor is not told that an access waited too long")]
pub fn a_region_and_a_port_end_while_the_ring_is_stalled(rig: &dyn Rig) {
    let StalledRing { rma, velo, buffer, region, _idle } = StalledRing::new(rig);
    let (address, device) = (region.address(), velo.device().clone());
    drop(region);

    let mut writer = Side::new(rig, "ex1", 1, 4096);
    let target = writer.port.connect(rma.node(), rma.vpid()).unwrap();
    writer.port.put(target, writer.at(0), address, 8, Notify::REQUESTER).unwrap();
    assert_eq!(writer.next().status, Status::RemoteAddress);

    drop((rma, velo, buffer));
    let (deadline, mut relax) = (test_deadline(), Relax::new());
    while let Err(error) = Port::open(&device, Options::default()) {
        assert!(!matches!(error, Error::QueueRefused { .. }), "{error}");
        assert!(!deadline.has_passed(), "{error}");
        device.relax(&mut relax).unwrap();
    }
}
