//! FCNP against a hostile peer on the tree.
//!
//! The peer sends control packets of all kinds in the name of any core, unrequested data, and
//! wrong, early or surplus answers. It dies at any point. Each call ends in time, and after the
//! next process follows the protocol, messages pass again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nicforge_core::ids::{AttachmentId, FunctionId};
use nicforge_driver::{Deadline, Device};
use nicforge_fcnp::{
    ComputeCore, Config, IoNode,
    protocol::{ABORT, Control, CoreName, HEAD, Kind, ResetHead},
    tree::TreeChannel,
};
use nicforge_hwi::tree::{Header, PAYLOAD, window};
use nicforge_machine::{build::build, in_process::LocalMachine};
use zerocopy::IntoBytes;

use crate::{input::Input, world};

/// Maximum number of actions in one input.
const MAX: usize = 40;
/// Time limit of operations that must succeed.
const LIMIT: Duration = Duration::from_secs(60);
/// Time limit of calls that depend on the hostile peer's answers.
const SHORT: Duration = Duration::from_millis(2);
/// The longest message.
const LONGEST: u32 = 4000;
/// The node of the compute core whose name no hostile process uses. As on Blue Gene/P, the sender
/// of a control packet writes its core's name into it. FCNP therefore can't tell a forged packet
/// that arrives after that core's own reset from a true one.
const WELL_BEHAVED_NODE: u32 = 2;
/// The number of that core on its node.
const WELL_BEHAVED_CORE: u16 = 1;

/// Returns the options of both sides, which give up on a lost peer soon.
fn config() -> Config {
    Config { timeout: Some(LIMIT), open_timeout: LIMIT, recovery: SHORT, ..Config::default() }
}

/// Returns a pset whose FIFOs are of some depth.
fn machine(input: &mut Input<'_>) -> Arc<LocalMachine> {
    LocalMachine::new(build(&world::plan(input.pick(&[8, 1, 2]))).unwrap().0)
}

/// Opens a core's attachment of a node's tree NIC. Node 0 is the I/O node.
fn open(machine: &Arc<LocalMachine>, node: u32, core: u16) -> Device {
    Device::from_backing(machine.open(FunctionId(node), AttachmentId(core)).unwrap()).unwrap()
}

/// Returns the deadline of a call that depends on the hostile peer.
fn short() -> Deadline {
    Deadline::after(SHORT)
}

/// Runs a hostile compute node against an I/O node that follows the protocol.
pub fn io(data: &[u8]) {
    let mut input = Input::new(data);
    let machine = machine(&mut input);
    let io = IoNode::open(open(&machine, 0, 0), config()).unwrap();
    let mut hostile = Hostile::new(open(&machine, 1, 0));

    if input.below(4) > 0 {
        // The hostile core announces itself correctly, so that later packets get further.
        hostile.send_reset(&mut input, true);
    }

    for _ in 0..MAX {
        if input.is_empty() {
            break;
        }

        match input.below(8) {
            0..=3 => hostile.send_unrequested(&mut input),
            4 => {
                let mut buffer = vec![0; input.below(LONGEST) as usize];
                if let Ok(count) = io.read_until(rank(&mut input), &mut buffer, short(), None) {
                    assert!(count <= buffer.len());
                }
            }
            5 => {
                let buffer = vec![1; input.below(LONGEST) as usize];
                if let Ok(count) = io.write_until(rank(&mut input), &buffer, short(), None) {
                    assert!(count <= buffer.len());
                }
            }
            6 if input.below(4) == 0 => {
                drop(hostile);
                hostile = Hostile::new(open(&machine, 1, 0));
            }
            _ => drop(hostile.receive()),
        }

        machine.settle(8);
    }

    // After the hostile process has ended, a well-behaved core exchanges messages.
    drop(hostile);
    let core = well_behaved_core(&machine);
    check_messages(&io, &core);
}

/// Runs a hostile I/O node, and perhaps a core of the same node, against a compute core that
/// follows the protocol.
pub fn compute(data: &[u8]) {
    let mut input = Input::new(data);
    let machine = machine(&mut input);
    let corrupting_core = (input.below(4) == 0).then(|| Hostile::new(open(&machine, 1, 2)));
    let hostile = Hostile::new(open(&machine, 0, 0));
    let calls = input.array::<6>();
    let script = input.rest();
    let stop = AtomicBool::new(false);
    let mut core = None;

    std::thread::scope(|scope| {
        let (machine, stop) = (&machine, &stop);
        let peer = scope.spawn(move || play_io_node(hostile, corrupting_core, script, stop));
        core = ComputeCore::open_until(open(machine, 1, 0), config(), Deadline::after(10 * SHORT), None).ok();

        for call in calls {
            let Some(core) = &core else { break };
            let length = usize::from(call) * 16;
            // The call may fail, but it must end in time.
            if call & 1 == 0 {
                let _ = core.write_until(&vec![call; length], short(), None);
            } else {
                let _ = core.read_until(&mut vec![0; length], short(), None);
            }
        }

        stop.store(true, Ordering::Release);
        peer.join().unwrap();
    });

    let io = open_next_io_process(&machine, core.as_ref());
    let core = core.unwrap_or_else(|| well_behaved_core(&machine));
    check_messages(&io, &core);
}

/// Opens the well-behaved core: core [`WELL_BEHAVED_CORE`] of node [`WELL_BEHAVED_NODE`].
fn well_behaved_core(machine: &Arc<LocalMachine>) -> ComputeCore {
    ComputeCore::open(open(machine, WELL_BEHAVED_NODE, WELL_BEHAVED_CORE), config()).unwrap()
}

/// Opens the I/O node for a process that follows the hostile one.
///
/// The opening waits until each core has seen the report of the new process's presence. That report
/// comes behind the hostile process's packets, and only calls of a core take packets of that core.
/// So an open core makes calls meanwhile.
fn open_next_io_process(machine: &Arc<LocalMachine>, core: Option<&ComputeCore>) -> IoNode {
    let opened = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let io = scope.spawn(|| {
            let io = IoNode::open(open(machine, 0, 1), config());
            opened.store(true, Ordering::Release);
            io.unwrap()
        });

        while let Some(core) = core
            && !opened.load(Ordering::Acquire)
        {
            let _ = core.read_until(&mut [0; 16], short(), None);
        }

        io.join().unwrap()
    })
}

/// Plays the hostile I/O node until `stop` is set. `corrupting_core`, another core of the compute
/// core's node, meanwhile writes to the SRAM that they share, and clears it at the end: the next
/// process finds it as new.
fn play_io_node(mut hostile: Hostile, corrupting_core: Option<Hostile>, script: &[u8], stop: &AtomicBool) {
    let mut input = Input::new(script);
    while !stop.load(Ordering::Acquire) {
        match hostile.receive() {
            Some(packet) => hostile.answer(packet, &mut input),
            None if !input.is_empty() && input.below(64) == 0 => hostile.send_unrequested(&mut input),
            None => std::thread::yield_now(),
        }

        if let Some(corrupting_core) = &corrupting_core
            && !input.is_empty()
        {
            // No process may panic because another core of its node has corrupted the memory that
            // they share. The smaller of two numbers is mostly a word near the start, where FCNP's
            // state lies.
            let word = u64::from(input.below((window::SRAM_SIZE / 4) as u32)).min(input.number());
            corrupting_core.channel.shared().store_u32_release(4 * word, input.number32()).unwrap();
        }
    }

    if let Some(corrupting_core) = corrupting_core {
        corrupting_core.channel.shared().zero(0, window::SRAM_SIZE).unwrap();
    }
}

/// Checks messages of one packet and of many, both ways.
fn check_messages(io: &IoNode, core: &ComputeCore) {
    for size in [100, 3000] {
        std::thread::scope(|scope| {
            let echo = scope.spawn(|| {
                let mut buffer = vec![0; size];
                let count = io.read(core.rank(), &mut buffer).unwrap();
                assert_eq!(io.write(core.rank(), &buffer[..count]).unwrap(), count);
            });

            let sent: Vec<_> = (0..size).map(|index| index as u8).collect();
            let mut received = vec![0; size];

            // The first call of each direction may report that the hostile process is gone.
            let count = core.write(&sent).or_else(|_| core.write(&sent)).unwrap();
            let back = core.read(&mut received).or_else(|_| core.read(&mut received)).unwrap();

            assert_eq!((count, back), (size, size));
            assert!(sent == received, "the message came back changed");

            echo.join().unwrap();
        });
    }
}

/// Returns a rank, mostly the hostile core's.
fn rank(input: &mut Input<'_>) -> u32 {
    if input.below(8) > 0 { 0 } else { input.number32() }
}

/// A core that uses the packet layer arbitrarily.
struct Hostile {
    channel: TreeChannel,
}

impl Hostile {
    /// Opens the packet layer of a core's attachment.
    fn new(device: Device) -> Self {
        Self { channel: TreeChannel::open(device).unwrap() }
    }

    /// Returns whether the core is one of a compute node.
    fn is_compute(&self) -> bool {
        self.channel.info().pset_rank.is_some()
    }

    /// Returns the core's true name.
    fn name(&self) -> CoreName {
        let info = self.channel.info();
        let rank_in_pset = info.pset_rank.unwrap_or(0) as u16;
        CoreName { node: info.address, core: info.core, rank_in_pset }
    }

    /// Returns the node of the attacked core.
    fn peer(&self) -> u32 {
        if self.is_compute() { self.channel.info().io_node } else { 1 }
    }

    /// Sends a packet, if there is room for it.
    fn send(&self, header: Header, payload: &[u8; PAYLOAD]) {
        let Some(guard) = self.channel.send_lock().try_lock(self.channel.owner()) else { return };
        // A packet lost in a full FIFO is an acceptable case.
        let _ = self.channel.send_batch(guard).try_send(header, payload);
    }

    /// Sends a control packet to the attacked core.
    fn send_control(&self, control: &Control) {
        self.send(Header::point_to_point(0, self.peer(), true), &control.encode());
    }

    /// Takes a packet, if one has arrived.
    fn receive(&self) -> Option<(Header, [u8; PAYLOAD])> {
        let guard = self.channel.receive_lock().try_lock(self.channel.owner())?;
        let mut receiver = self.channel.receiver(guard);
        let header = receiver.peek()?;
        let mut payload = [0; PAYLOAD];

        receiver.payload(&mut payload);
        receiver.advance();
        Some((header, payload))
    }

    /// Returns a true or false name of a core, but never that of the well-behaved one.
    fn any_name(&self, input: &mut Input<'_>) -> CoreName {
        let own_name = self.name();
        let name = match input.below(4) {
            0..=1 => own_name,
            2 => CoreName {
                node: input.below(6),
                core: input.below(5) as u16,
                rank_in_pset: input.below(5) as u16,
            },
            _ => CoreName { node: input.number32(), core: input.u16(), rank_in_pset: input.u16() },
        };

        // Either of the two numbers may name the well-behaved core's node.
        let is_well_behaved = name.core == WELL_BEHAVED_CORE
            && (name.node == WELL_BEHAVED_NODE || u32::from(name.rank_in_pset) + 1 == WELL_BEHAVED_NODE);
        if is_well_behaved { own_name } else { name }
    }

    /// Sends a reset: the core's correct one if `is_valid`, otherwise any.
    fn send_reset(&self, input: &mut Input<'_>, is_valid: bool) {
        let name = if is_valid { self.name() } else { self.any_name(input) };
        let generation = if is_valid || input.below(4) > 0 {
            self.channel.presence(name.node, name.core).0
        } else {
            input.u8()
        };

        let size = if is_valid { 0 } else { input.pick(&[0, 1, 2, 3, u32::MAX]) };
        let head = ResetHead {
            token: input.u32().into(),
            core: name.core as u8,
            generation,
            reserved: input.u16().into(),
        };

        self.send_control(&Control::new(Kind::Reset, name, size).with_head(head.as_bytes()));
    }

    /// Sends an unrequested packet.
    fn send_unrequested(&mut self, input: &mut Input<'_>) {
        match input.below(8) {
            // Control packets
            0 | 1 => self.send_reset(input, false),
            2..=4 => {
                let kind = input.pick(&[Kind::Read, Kind::Write]);
                let size = match input.below(4) {
                    0..=2 => input.below(LONGEST),
                    _ => input.pick(&[ABORT, 0, u32::MAX - 1, 0xffff_ff00]),
                };
                let head = input.bytes(HEAD.min(8));
                self.send_control(&Control::new(kind, self.any_name(input), size).with_head(head));
            }

            // Arbitrary packets, and data
            5 => {
                let mut payload = [0; PAYLOAD];
                let bytes = input.bytes(24);
                payload[..bytes.len()].copy_from_slice(bytes);
                self.send(Header::point_to_point(0, self.peer(), input.flag()), &payload);
            }
            6 => {
                for _ in 0..=input.below(8) {
                    self.send(Header::point_to_point(0, self.peer(), false), &[6; PAYLOAD]);
                }
            }

            // Packets to other nodes too. Packets of collectives are missing: one that the other
            // nodes do not answer would block the channel until the operator's reset, as on Blue
            // Gene/P. The body in `packets` sends those.
            _ => self.send(Header::point_to_point(0, input.number32(), input.flag()), &[7; PAYLOAD]),
        }
    }

    /// Answers a packet of a compute core, usually correctly.
    fn answer(&mut self, (header, payload): (Header, [u8; PAYLOAD]), input: &mut Input<'_>) {
        let Ok(control) = Control::decode(&payload) else { return };
        if !header.irq() {
            return;
        }

        let mut answer = control;
        match input.below(8) {
            0 => return self.send_unrequested(input),
            1 => answer.size = input.number32(),
            2 => answer.core = self.any_name(input),
            3 => answer.head[..8].copy_from_slice(&input.array::<8>()),
            _ => {}
        }

        if control.kind == Kind::Reset && input.below(4) < 3 {
            let info = *self.channel.info();
            let generation = self.channel.presence(info.address, info.core).0;
            let token = ResetHead::of(&answer).token;
            let head = ResetHead { token, core: info.core as u8, generation, reserved: 0.into() };
            answer = answer.with_head(head.as_bytes());
        }

        self.send_control(&answer);
        if control.kind == Kind::Read {
            // Sends the data that the core reads, or a part of it, or more.
            let packets = (answer.size.min(LONGEST) as usize).div_ceil(PAYLOAD);
            let packets = if input.below(4) > 0 { packets } else { input.below(20) as usize };
            for _ in 0..packets.min(16) {
                self.send(Header::point_to_point(0, self.peer(), false), &[8; PAYLOAD]);
            }
        }
    }
}
