//! Test bodies of FCNP: applications on the compute cores and the I/O node of a pset, and the death
//! of either.
//!
//! Each body gets a machine of its own ([`machine`]) behind some door.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use nicforge_core::machine::Machine;
use nicforge_driver::{Cancel, Deadline};
use nicforge_fcnp::{ComputeCore, Config, Error, IoNode, Mode, Peer, Poller, tree::TreeChannel};
use nicforge_hwi::tree::{Header, PAYLOAD};
use nicforge_machine::{build::build, description::parse};
use nicforge_nics::families;
use nicforge_test_body::body;

use crate::{
    backing::{LIMIT, Rig, limit},
    bodies::{GuestDoor, Guests, TestMachine, reasons},
    pattern::pattern,
};

pub mod interrupted;
pub mod unwanted;

/// Compute nodes of [`machine`].
const NODES: u32 = 2;
/// Packets in each FIFO of the real machine.
pub const DEPTH: u32 = 8;
/// A size that exceeds all FIFOs and links on the way, so that its transfer cannot end before the
/// reader takes data.
const LARGE: usize = 4 << 20;

/// Returns the length of a message that is still in progress when a body ends it: 64 MiB where
/// transfers are fast.
fn long_message(rig: &dyn Rig) -> usize {
    LARGE * rig.repetitions(16) as usize
}

/// The machine of most bodies of FCNP.
pub static MACHINE: TestMachine = TestMachine {
    name: "fcnp",
    make: || machine(DEPTH),
    guests: Guests::Booted {
        attachments: &[
            (&["io0"], &["core0", "core1", "core2"]),
            (&["cn0", "cn1"], &["core0", "core1", "core2", "core3"]),
        ],
        doors: &[GuestDoor::Vfio, GuestDoor::Shim, GuestDoor::Own],
    },
};

/// The same machine, with FIFOs of one packet.
pub static DEPTH_1: TestMachine = TestMachine {
    name: "fcnp_depth_1",
    make: || machine(1),
    guests: Guests::None(reasons::ONE_DEPTH_IN_GUESTS),
};

/// The same machine, with FIFOs of two packets.
pub static DEPTH_2: TestMachine = TestMachine {
    name: "fcnp_depth_2",
    make: || machine(2),
    guests: Guests::None(reasons::ONE_DEPTH_IN_GUESTS),
};

/// The same machine, with FIFOs of 256 packets.
pub static DEPTH_256: TestMachine = TestMachine {
    name: "fcnp_depth_256",
    make: || machine(256),
    guests: Guests::None(reasons::ONE_DEPTH_IN_GUESTS),
};

/// Returns a pset of an I/O node `io0` and compute nodes `cn0` and `cn1`, with FIFOs of `depth`
/// packets.
pub fn machine(depth: u32) -> Machine {
    let text = format!("name = \"fcnp\"\n[[pset]]\ncompute_nodes = {NODES}\nfifo_depth = {depth}\n");
    build(&parse(&text, "fcnp.toml", &families()).unwrap()).unwrap().0
}

/// Returns a configuration in which no call exceeds a test's time limit.
fn config() -> Config {
    Config { timeout: Some(limit()), open_timeout: limit(), ..Config::default() }
}

/// Opens the I/O node.
fn io_node(rig: &dyn Rig) -> IoNode {
    IoNode::open(rig.open("io0", "core0"), config()).unwrap()
}

/// Opens the compute core of a rank. Each node has four.
fn compute_core(rig: &dyn Rig, rank: u32) -> ComputeCore {
    let device = rig.open(&format!("cn{}", rank / 4), &format!("core{}", rank % 4));
    ComputeCore::open(device, config()).unwrap()
}

/// Spins until `condition` holds, with a time limit. Another thread must drive the machine
/// meanwhile, or `condition` itself.
fn eventually(description: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < LIMIT, "{description} does not come true");
        thread::yield_now();
    }
}

/// Sends messages of `sizes` there and back.
fn echo(io: &IoNode, core: &ComputeCore, sizes: &[usize]) {
    let rank = core.rank();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut buffer = vec![0; sizes.iter().copied().max().unwrap_or(0)];
            for size in sizes {
                assert_eq!(io.read(rank, &mut buffer).unwrap(), *size);
                assert_eq!(io.write(rank, &buffer[..*size]).unwrap(), *size);
            }
        });

        for (seed, size) in (0..).zip(sizes.iter()) {
            let sent = pattern(seed, *size);
            let mut received = vec![0; *size];
            assert_eq!(core.write(&sent).unwrap(), *size);
            assert_eq!(core.read(&mut received).unwrap(), *size);
            assert!(sent == received, "a message of {size} bytes came back changed");
        }
    });
}

/// Checks that both ends still communicate, by a message from the core and one to it.
fn check_both_directions(io: &IoNode, core: &ComputeCore) {
    echo(io, core, &[100, 70_000]);
}

/// Returns every size to 1024, and sizes around multiples of the packets' payloads and around 64
/// KB.
fn sizes() -> Vec<usize> {
    let multiples = (1..=16).flat_map(|count| [count * 240, count * 256]).chain([65_536, 131_072]);
    let around = multiples.flat_map(|size| [size - 1, size, size + 1]).filter(|size| *size > 1024);
    let mut sizes: Vec<_> = (0..=1024).chain(around).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Sends a message of each size; in a guest of each seventh size.
#[body]
pub fn every_size_arrives_unchanged(rig: &dyn Rig) {
    let (io, core) = (io_node(rig), compute_core(rig, 0));
    let step = 7 / rig.repetitions(7) as usize;
    let sizes: Vec<_> = sizes().into_iter().step_by(step).collect();
    echo(&io, &core, &sizes);
}

/// Messages of some sizes, whatever the depth of the FIFOs.
#[body(on(DEPTH_1, DEPTH_2, DEPTH_256))]
pub fn messages_arrive_unchanged(rig: &dyn Rig) {
    let (io, core) = (io_node(rig), compute_core(rig, 5));
    echo(&io, &core, &[0, 1, 240, 241, 256, 4096, 5000, 65_535, 300_000]);
}

/// Buffers at all offsets from an aligned address, on both sides. Neither side knows the other's
/// offset, so each offset of one side occurs with two of the other.
#[body]
pub fn every_alignment_arrives_unchanged(rig: &dyn Rig) {
    const SIZES: [usize; 3] = [17, 256 + 240, 256 * 2 + 255];

    let (io, core) = (io_node(rig), compute_core(rig, 0));
    let combinations = || {
        SIZES.into_iter().flat_map(|size| (0..2 * 32).map(move |index| (size, index / 2, 13 * index % 32)))
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = vec![0; 1024];
            for (size, _, offset) in combinations() {
                assert_eq!(io.read(0, &mut buffer[offset..offset + size]).unwrap(), size);
                assert_eq!(io.write(0, &buffer[offset..offset + size]).unwrap(), size);
            }
        });

        let (sent, mut received) = (pattern(1, 1024), vec![0; 1024]);
        for (size, offset, _) in combinations() {
            let range = offset..offset + size;
            received.fill(0);
            assert_eq!(core.write(&sent[range.clone()]).unwrap(), size);
            assert_eq!(core.read(&mut received[range.clone()]).unwrap(), size);
            assert!(
                sent[range.clone()] == received[range],
                "{size} bytes at offset {offset} came back changed"
            );
        }
    });
}

/// The smaller of both sides' sizes is transferred, and no other byte is touched.
#[body]
pub fn unequal_sizes_transfer_the_smaller_size(rig: &dyn Rig) {
    const SIZES: [usize; 14] = [0, 1, 16, 239, 240, 241, 255, 256, 257, 496, 511, 512, 1000, 5000];

    let (io, core) = (io_node(rig), compute_core(rig, 1));
    let pairs = || SIZES.into_iter().flat_map(|ours| SIZES.map(|theirs| (ours, theirs)));
    thread::scope(|scope| {
        scope.spawn(|| {
            for (_, size) in pairs() {
                let mut buffer = vec![0xee; size];
                let count = io.read(1, &mut buffer).unwrap();
                assert!(
                    buffer[..count] == pattern(3, count) && buffer[count..].iter().all(|byte| *byte == 0xee)
                );
                assert_eq!(io.write(1, &pattern(4, size)).unwrap(), count);
            }
        });

        for (size, theirs) in pairs() {
            let lesser = size.min(theirs);
            assert_eq!(core.write(&pattern(3, size)).unwrap(), lesser);
            let mut buffer = vec![0xee; size];
            assert_eq!(core.read(&mut buffer).unwrap(), lesser);
            assert!(
                buffer[..lesser] == pattern(4, lesser) && buffer[lesser..].iter().all(|byte| *byte == 0xee)
            );
        }
    });
}

/// All cores of both nodes read and write at once, each from two threads. Acknowledgements are
/// therefore handed over, and acknowledgements of writes interleave with data.
#[body]
pub fn all_cores_at_once_get_their_own_messages(rig: &dyn Rig) {
    let messages = rig.repetitions(20) as usize;
    let io = io_node(rig);
    let cores: Vec<_> = (0..NODES * 4).map(|rank| compute_core(rig, rank)).collect();
    let size = |rank: u32, message: usize| (rank as usize * 997 + message * 1013) % 9000;
    let seed = |rank: u32, message: usize| u64::from(rank) * 1000 + message as u64;

    thread::scope(|scope| {
        for core in &cores {
            let (io, rank) = (&io, core.rank());
            scope.spawn(move || {
                (0..messages).for_each(|message| {
                    let sent = pattern(seed(rank, message), size(rank, message));
                    assert_eq!(core.write(&sent).unwrap(), sent.len());
                })
            });

            scope.spawn(move || {
                (0..messages).for_each(|message| {
                    let mut received = vec![0; 10_000];
                    let count = core.read(&mut received).unwrap();
                    assert!(received[..count] == pattern(seed(rank, message) + 1, size(rank, message)));
                })
            });

            scope.spawn(move || {
                (0..messages).for_each(|message| {
                    let mut received = vec![0; 10_000];
                    let count = io.read(rank, &mut received).unwrap();
                    assert!(received[..count] == pattern(seed(rank, message), size(rank, message)));
                })
            });

            scope.spawn(move || {
                (0..messages).for_each(|message| {
                    let sent = pattern(seed(rank, message) + 1, size(rank, message));
                    assert_eq!(io.write(rank, &sent).unwrap(), sent.len());
                })
            });
        }
    });

    let statistics = io.statistics();
    let expected = u64::from(NODES * 4) * messages as u64;
    assert_eq!((statistics.messages_sent, statistics.messages_received), (expected, expected));
    assert_eq!((statistics.orphans, statistics.strays), (0, 0));
}

/// The daemon sleeps until the interrupt of a request for which no call polls.
#[body]
pub fn interrupt_mode_wakes_the_daemon_and_the_call(rig: &dyn Rig) {
    let config = Config { mode: Mode::Interrupt, ..config() };
    let io = IoNode::open(rig.open("io0", "core0"), config).unwrap();
    let core = compute_core(rig, 0);
    let round = || {
        check_both_directions(&io, &core);
        // The application pauses for longer than the daemon polls.
        let start = Instant::now();
        eventually("time passes", || start.elapsed() > Duration::from_millis(2));
    };

    eventually("an interrupt", || {
        round();
        io.statistics().interrupts > 0
    });
}

/// With the daemon as the only poller, messages go in both directions at once, and a call that
/// sleeps ends when its device is reset.
#[body]
pub fn only_the_daemon_polls_while_calls_sleep(rig: &dyn Rig) {
    // Many times what the FIFOs hold. Four threads share a guest's processor for each few packets.
    let long = 256 << 10;
    for mode in [Mode::Polling, Mode::Interrupt] {
        let config = Config { mode, poller: Poller::Daemon, ..config() };
        let io = IoNode::open(rig.open("io0", "core0"), config).unwrap();
        let (writer, reader) = (compute_core(rig, 0), compute_core(rig, 5));

        for bytes in [1, 240, 241, long] {
            let (up, down) = (pattern(1, bytes), pattern(2, bytes));
            let (mut at_io, mut at_core) = (vec![0; bytes], vec![0; bytes]);
            thread::scope(|scope| {
                scope.spawn(|| io.read(0, &mut at_io).unwrap());
                scope.spawn(|| io.write(5, &down).unwrap());
                scope.spawn(|| writer.write(&up).unwrap());
                scope.spawn(|| reader.read(&mut at_core).unwrap());
            });
            assert!(at_io == up && at_core == down, "{bytes} bytes, {mode:?}");
        }

        thread::scope(|scope| {
            let waits = scope.spawn(|| io.read(1, &mut [0; 8]));
            io.channel().device().reset().unwrap();
            assert!(waits.join().unwrap().unwrap_err().is_device_gone());
        });
    }
}

/// A core dies during its write. The I/O node's read ends, another core is served, and so is the
/// core's next process.
#[body(not_through(guests) = EVICTION_IS_FINAL)]
pub fn core_that_dies_in_its_write_frees_the_read(rig: &dyn Rig) {
    let long = long_message(rig);
    let (io, core, other) = (io_node(rig), compute_core(rig, 0), compute_core(rig, 4));
    thread::scope(|scope| {
        let read = scope.spawn(|| io.read(0, &mut vec![0; long]));
        let write = scope.spawn(|| core.write(&vec![1; long]));
        eventually("data arrive", || io.statistics().packets_received > 20);
        rig.evict("cn0", "core0");
        assert!(write.join().unwrap().unwrap_err().is_device_gone());
        assert_eq!(read.join().unwrap(), Err(Error::PeerGone { peer: Peer::Core { rank: 0 } }));
    });

    drop(core);
    check_both_directions(&io, &other);
    check_both_directions(&io, &compute_core(rig, 0));
}

/// A core dies during its read while it holds the node's receive lock. The I/O node's write ends,
/// and another core of the same node continues.
#[body(not_through(guests) = EVICTION_IS_FINAL)]
pub fn core_that_dies_in_its_read_leaves_its_node_working(rig: &dyn Rig) {
    let long = long_message(rig);
    let (io, core, other) = (io_node(rig), compute_core(rig, 0), compute_core(rig, 3));
    thread::scope(|scope| {
        let write = scope.spawn(|| io.write(0, &vec![1; long]));
        let read = scope.spawn(|| core.read(&mut vec![0; long]));
        let waits = scope.spawn(|| {
            let mut buffer = [0; 1000];
            (other.read(&mut buffer), buffer)
        });

        eventually("data arrive", || core.statistics().packets_received > 20);
        rig.evict("cn0", "core0");

        assert!(read.join().unwrap().unwrap_err().is_device_gone());
        assert_eq!(write.join().unwrap(), Err(Error::PeerGone { peer: Peer::Core { rank: 0 } }));
        assert_eq!(io.write(3, &[7; 1000]), Ok(1000));
        assert_eq!(waits.join().unwrap(), (Ok(1000), [7; 1000]));
    });

    drop(core);
    check_both_directions(&io, &other);
    check_both_directions(&io, &compute_core(rig, 0));
}

/// A core dies while a call waits for its request.
#[body]
pub fn core_that_dies_without_a_request_ends_the_wait(rig: &dyn Rig) {
    let io = io_node(rig);
    let core = compute_core(rig, 0);
    thread::scope(|scope| {
        let read = scope.spawn(|| io.read(0, &mut [0; 8]));
        // The call has begun to wait for this process.
        eventually("the call polls", || io.statistics().polls > 1000);
        drop(core);
        assert_eq!(read.join().unwrap(), Err(Error::PeerGone { peer: Peer::Core { rank: 0 } }));
    });

    check_both_directions(&io, &compute_core(rig, 0));
}

/// The I/O node's process dies during a transfer in each direction and is restarted. The cores
/// continue without a restart.
#[body(not_through(guests) = EVICTION_IS_FINAL)]
pub fn io_node_that_dies_is_found_again_by_the_cores(rig: &dyn Rig) {
    let long = long_message(rig);
    let io = io_node(rig);
    let (writer, reader) = (compute_core(rig, 0), compute_core(rig, 5));
    thread::scope(|scope| {
        let reads = scope.spawn(|| io.read(0, &mut vec![0; long]));
        let writes = scope.spawn(|| io.write(5, &vec![1; long]));
        let write = scope.spawn(|| writer.write(&vec![1; long]));
        let read = scope.spawn(|| reader.read(&mut vec![0; long]));

        eventually("data arrive", || {
            io.statistics().packets_received > 20 && reader.statistics().packets_received > 20
        });
        rig.evict("io0", "core0");

        assert!(reads.join().unwrap().unwrap_err().is_device_gone());
        assert!(writes.join().unwrap().unwrap_err().is_device_gone());
        assert!(matches!(write.join().unwrap(), Err(Error::PeerGone { peer: Peer::IoNode { .. } })));
        assert!(matches!(read.join().unwrap(), Err(Error::PeerGone { peer: Peer::IoNode { .. } })));
    });

    drop(io);
    // The other direction of each core reports the loss too.
    assert!(matches!(writer.read(&mut [0]), Err(Error::PeerGone { .. })));

    let io = io_node(rig);
    assert!(matches!(reader.write(&[0]), Err(Error::PeerGone { .. })));

    check_both_directions(&io, &writer);
    check_both_directions(&io, &reader);
}

/// The I/O node's process dies while a core is in no call. The core's next call in each direction
/// reports that at once, and only that call.
#[body(not_through(guests) = QEMU_HOLDS_ATTACHMENTS)]
pub fn death_of_the_io_node_between_calls_is_reported_once_for_each_direction(rig: &dyn Rig) {
    let io = io_node(rig);
    let core = compute_core(rig, 0);
    check_both_directions(&io, &core);
    drop(io);

    let down = || core.channel().presence(core.channel().info().io_node, 0).0 & 1 == 0;
    eventually("the I/O node is seen down", || {
        core.channel().relax(&mut core.channel().device().new_relax()).unwrap();
        down()
    });

    let peer_gone =
        |result: Result<usize, Error>| matches!(result, Err(Error::PeerGone { peer: Peer::IoNode { .. } }));

    assert!(peer_gone(core.read(&mut [0; 8])));

    let short_deadline = Deadline::after(Duration::from_millis(20));
    assert!(matches!(core.read_until(&mut [0; 8], short_deadline, None), Err(Error::Timeout { .. })));

    // The other direction is called only after the restart, and still reports the loss.
    let io = io_node(rig);
    assert!(peer_gone(core.write(&[0; 8])));

    check_both_directions(&io, &core);
    assert_eq!(core.statistics().peers_lost, 1);
}

/// A process drops its I/O node and opens it again on the same device. The core's next call in each
/// direction reports the loss of the first one at once, and both directions work afterwards.
#[body]
pub fn io_node_opened_again_on_its_device_is_a_new_peer(rig: &dyn Rig) {
    let device = rig.open("io0", "core0");
    let io = IoNode::open(device.clone(), config()).unwrap();
    let core = compute_core(rig, 0);
    check_both_directions(&io, &core);
    drop(io);

    let io = IoNode::open(device, config()).unwrap();
    assert!(matches!(core.write(&[0; 8]), Err(Error::PeerGone { peer: Peer::IoNode { .. } })));
    assert!(matches!(core.read(&mut [0; 8]), Err(Error::PeerGone { peer: Peer::IoNode { .. } })));

    check_both_directions(&io, &core);
}

/// A process resets its core's device during a write. Its call and the I/O node's read end with
/// errors, and both continue.
#[body]
pub fn core_reset_in_its_write_ends_both_calls(rig: &dyn Rig) {
    let long = long_message(rig);
    let (io, core) = (io_node(rig), compute_core(rig, 0));
    thread::scope(|scope| {
        let read = scope.spawn(|| io.read(0, &mut vec![0; long]));
        let write = scope.spawn(|| core.write(&vec![1; long]));
        eventually("data arrive", || io.statistics().packets_received > 20);
        core.channel().device().reset().unwrap();
        assert!(write.join().unwrap().unwrap_err().is_device_gone());
        assert_eq!(read.join().unwrap(), Err(Error::PeerGone { peer: Peer::Core { rank: 0 } }));
    });

    assert_eq!(io.write(0, &[]), Err(Error::PeerGone { peer: Peer::Core { rank: 0 } }));

    check_both_directions(&io, &core);
    drop(core);
    check_both_directions(&io, &compute_core(rig, 0));
}

/// A process resets its core's device during a read. Both calls end with errors.
#[body]
pub fn core_reset_in_its_read_ends_both_calls(rig: &dyn Rig) {
    let long = long_message(rig);
    let (io, core) = (io_node(rig), compute_core(rig, 6));
    thread::scope(|scope| {
        let write = scope.spawn(|| io.write(6, &vec![1; long]));
        let read = scope.spawn(|| core.read(&mut vec![0; long]));
        eventually("data arrive", || core.statistics().packets_received > 20);
        core.channel().device().reset().unwrap();
        assert!(read.join().unwrap().unwrap_err().is_device_gone());
        assert_eq!(write.join().unwrap(), Err(Error::PeerGone { peer: Peer::Core { rank: 6 } }));
    });

    // The other direction reports the loss too.
    assert_eq!(io.read(6, &mut []), Err(Error::PeerGone { peer: Peer::Core { rank: 6 } }));

    check_both_directions(&io, &core);
    drop(core);
    check_both_directions(&io, &compute_core(rig, 6));
}

/// The I/O node's process resets its device during a transfer in each direction. Its calls and
/// those of the cores end with errors, and it can be opened again on the same device.
#[body]
pub fn io_node_reset_in_transfers_ends_all_calls(rig: &dyn Rig) {
    let long = long_message(rig);
    for mode in [Mode::Polling, Mode::Interrupt] {
        let io = IoNode::open(rig.open("io0", "core0"), Config { mode, ..config() }).unwrap();
        let (writer, reader, idle) = (compute_core(rig, 0), compute_core(rig, 5), compute_core(rig, 1));
        thread::scope(|scope| {
            // The calls repeat, since one direction may finish a message before the other one
            // begins.
            let reads = scope.spawn(|| repeat_until_error(|| io.read(0, &mut vec![0; long])));
            let writes = scope.spawn(|| repeat_until_error(|| io.write(5, &vec![1; long])));
            let waits = scope.spawn(|| repeat_until_error(|| io.read(7, &mut [0; 8])));
            let write = scope.spawn(|| repeat_until_error(|| writer.write(&vec![1; long])));
            let read = scope.spawn(|| repeat_until_error(|| reader.read(&mut vec![0; long])));

            eventually("data arrive", || {
                io.statistics().packets_received > 20 && reader.statistics().packets_received > 20
            });
            io.channel().device().reset().unwrap();

            for call in [reads, writes, waits] {
                assert!(call.join().unwrap().is_device_gone());
            }

            for call in [write, read] {
                assert!(matches!(call.join().unwrap(), Error::PeerGone { peer: Peer::IoNode { .. } }));
            }
        });

        let device = io.channel().device().clone();
        assert!(io.write(1, &[0; 8]).unwrap_err().is_device_gone());

        drop(io);
        let io = IoNode::open(device, Config { mode, ..config() }).unwrap();
        let results = [writer.read(&mut [0]), reader.write(&[0]), idle.read(&mut [0]), idle.write(&[0])];

        assert!(results.iter().all(|result| matches!(result, Err(Error::PeerGone { .. }))), "{results:?}");

        for core in [&writer, &reader, &idle] {
            check_both_directions(&io, core);
        }
    }
}

/// Repeats a call until it fails, and returns its error.
fn repeat_until_error(mut call: impl FnMut() -> Result<usize, Error>) -> Error {
    loop {
        if let Err(error) = call() {
            return error;
        }
    }
}

/// A core that is opened before the I/O node waits for it.
#[body]
pub fn core_waits_for_the_io_node(rig: &dyn Rig) {
    thread::scope(|scope| {
        let core = scope.spawn(|| compute_core(rig, 0));
        let io = io_node(rig);
        check_both_directions(&io, &core.join().unwrap());
    });
}

/// Without an I/O node, opening a core ends at its deadline.
#[body]
pub fn core_without_an_io_node_times_out(rig: &dyn Rig) {
    let config = Config { open_timeout: Duration::from_millis(20), ..config() };
    let opened = ComputeCore::open(rig.open("cn0", "core0"), config);
    assert!(matches!(opened, Err(Error::Timeout { .. })));
}

/// Impossible calls are refused with the reason.
#[body]
pub fn impossible_calls_are_refused(rig: &dyn Rig) {
    let (io, core) = (io_node(rig), compute_core(rig, 0));
    assert_eq!(io.read(8, &mut []), Err(Error::NoSuchCore { core: 8, cores: 8 }));
    assert!(matches!(IoNode::open(rig.open("cn1", "core0"), config()), Err(Error::WrongDevice { .. })));
    assert!(matches!(ComputeCore::open(rig.open("io0", "core1"), config()), Err(Error::WrongDevice { .. })));
    assert!(matches!(
        IoNode::open(rig.open("io0", "core2"), config()),
        Err(Error::AlreadyServed { owner: 0 })
    ));

    let cancel = Cancel::new().unwrap();
    thread::scope(|scope| {
        let before = core.statistics().packets_sent;
        scope.spawn(|| core.read_until(&mut [0; 4], Deadline::never(), Some(&cancel)));
        eventually("the first call has begun", || core.statistics().packets_sent > before);
        assert!(matches!(core.read(&mut [0; 4]), Err(Error::Busy { .. })));
        cancel.cancel();
    });
}

/// Packets of a misbehaving process on a compute node do not affect the others.
#[body]
pub fn random_packets_are_discarded(rig: &dyn Rig) {
    let (io, core) = (io_node(rig), compute_core(rig, 0));
    let wild = TreeChannel::open(rig.open("cn1", "core0")).unwrap();
    let io_address = wild.info().io_node;
    let stop = AtomicBool::new(false);

    thread::scope(|scope| {
        scope.spawn(|| {
            let mut relax = wild.device().new_relax();
            for seed in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }

                // Types 0 to 3, then anything.
                let mut payload: [u8; PAYLOAD] = pattern(seed, PAYLOAD).try_into().unwrap();
                payload[..4].copy_from_slice(&((seed % 4) as u32).to_le_bytes());

                let header = Header::point_to_point(0, io_address, true);
                if let Some(guard) = wild.send_lock().try_lock(wild.owner()) {
                    wild.send_batch(guard).try_send(header, &payload);
                }

                wild.relax(&mut relax).unwrap();
                relax.reset();
            }
        });

        echo(&io, &core, &[10, 1000, 100_000]);
        eventually("wild packets arrive", || io.statistics().strays > 0);
        stop.store(true, Ordering::Relaxed);
    });

    drop(wild);
    check_both_directions(&io, &compute_core(rig, 4));
}

/// Data packets are discarded where no call receives, on either side.
#[body]
pub fn data_packets_without_a_transfer_are_discarded(rig: &dyn Rig) {
    let (io, core) = (io_node(rig), compute_core(rig, 0));
    let wild = TreeChannel::open(rig.open("cn1", "core0")).unwrap();
    let targets = [wild.info().io_node, core.channel().info().address];

    for (number, target) in targets.into_iter().cycle().take(6).enumerate() {
        let guard = wild.send_lock().try_lock(wild.owner()).unwrap();
        let header = Header::point_to_point(0, target, false);
        assert!(wild.send_batch(guard).try_send(header, &[number as u8; PAYLOAD]));
    }

    eventually("the I/O node discards them", || {
        wild.relax(&mut wild.device().new_relax()).unwrap();
        io.statistics().orphans == 3
    });
    check_both_directions(&io, &core);

    assert_eq!(core.statistics().orphans, 3);
}

/// The packet layer: more packets than any FIFO holds arrive in order, with their headers.
#[body]
pub fn packets_arrive_in_order(rig: &dyn Rig) {
    const PACKETS: u32 = 1000;

    let [from, to] = ["cn0", "cn1"].map(|node| TreeChannel::open(rig.open(node, "core0")).unwrap());
    let header = |number: u32| Header::point_to_point(0, to.info().address, number.is_multiple_of(3));
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut relax, mut number) = (from.device().new_relax(), 0);
            while number < PACKETS {
                let guard = from.send_lock().try_lock(from.owner()).unwrap();
                let mut batch = from.send_batch(guard);
                while number < PACKETS && batch.try_send(header(number), &[number as u8; PAYLOAD]) {
                    number += 1;
                }
                drop(batch);
                from.relax(&mut relax).unwrap();
            }
        });

        let (mut relax, mut payload) = (to.device().new_relax(), [0; PAYLOAD]);
        let mut receiver = to.receiver(to.receive_lock().try_lock(to.owner()).unwrap());

        for number in 0..PACKETS {
            let found = loop {
                if let Some(found) = receiver.peek() {
                    break found;
                }
                receiver.publish();
                to.relax(&mut relax).unwrap();
            };

            receiver.payload(&mut payload);
            receiver.advance();

            assert_eq!((found, payload), (header(number), [number as u8; PAYLOAD]));
        }
    });
}
