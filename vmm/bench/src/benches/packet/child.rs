//! The program under callgrind. Each figure is counted in a process of its own.
//!
//! The machine of the packet figures has a simulated clock, which advances by [`TICK`] in each
//! step. callgrind makes this program fifty times slower, and with the real clock a node could fall
//! asleep. A trapped write would then sometimes wake it.

use std::thread;

use nicforge::failure::{ErrorContext, Failure};
use nicforge_fcnp::{ComputeCore, Config, IoNode, tree::TreeChannel};
use nicforge_hwi::tree::{CORES, Header, PAYLOAD};
use nicforge_machine::in_process::LocalMachine;
use nicforge_shm::SharedMemory;

use super::{counted, route::Route};
use crate::{
    callgrind::pattern,
    machine::{SteppedMachine, open_in_process},
};

/// Number of packets in a batch, as in FCNP.
pub(super) const BATCH: usize = 8;
/// Number of packets in each FIFO: enough that no sender waits within a batch.
pub(super) const DEPTH: u32 = 64;
/// Number of steps after which all presence changes are announced, and idle nodes are cold.
const STEPS_TO_SETTLE: u32 = 1_000;
/// Number of steps in which a batch crosses the tree. A node becomes cold after 50 idle ticks.
const STEPS_TO_ARRIVE: u32 = 20;
/// Number of packets that are sent before the counted ones.
const WARM_UP: u64 = BATCH as u64;
/// Maximum number of consecutive steps in which no packet arrives. More are a failure.
const MAX_IDLE_STEPS: u32 = 10_000;
/// The idle time after which a node becomes cold in the FCNP figures. The clock is the real one
/// there, so this is practically never.
const NEVER_COLD: u64 = 1 << 62;
/// The class of the packets. It has no effect on point-to-point packets.
const CLASS: u32 = 15;
/// The name of the attachment that is used on each node.
const CORE: &str = "core0";
/// The value of each byte of a packet or message without a number.
const PATTERN: u8 = 0x5a;
/// Number of packets in a message of 1 MB.
const MESSAGE_PACKETS: u64 = (1 << 20) / PAYLOAD as u64;

/// The data of a batch, aligned for the fastest copies.
#[repr(align(64))]
pub(super) struct Batch(pub(super) [u8; BATCH * PAYLOAD]);

impl Batch {
    /// A batch without data.
    const EMPTY: Self = Self([0; BATCH * PAYLOAD]);
    /// A batch of packets with the same data.
    const UNIFORM: Self = Self([PATTERN; BATCH * PAYLOAD]);

    /// Numbers the packets, from `first` on. A packet's number is at the start of its data.
    fn number_from(&mut self, first: u64) {
        for (packet, number) in self.0.as_chunks_mut::<PAYLOAD>().0.iter_mut().zip(first..) {
            if let Some(start) = packet.first_chunk_mut() {
                *start = number.to_le_bytes();
            }
        }
    }

    /// Checks the data of the first `count` packets, whose numbers ascend from `first` on.
    fn check_packets(&self, first: u64, count: usize) -> Result<(), Failure> {
        let mut expected = Self::UNIFORM;
        expected.number_from(first);

        let packets = self.0.as_chunks::<PAYLOAD>().0.iter().zip(expected.0.as_chunks::<PAYLOAD>().0);
        match packets.take(count).zip(first..).find(|((packet, expected), _)| packet != expected) {
            None => Ok(()),
            Some((_, number)) => Err(Failure::result(format!("the content of packet {number} was lost"))),
        }
    }
}

/// A figure that callgrind counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountedFigure {
    /// Sending a batch.
    Send,
    /// Receiving a batch.
    Receive,
    /// The copy into shared memory alone.
    CopyIn,
    /// The copy out of it alone.
    CopyOut,
    /// The machine's steps, over one link.
    EngineNear,
    /// The machine's steps, over the greatest number of links.
    EngineFar,
    /// `IoNode::write`.
    FcnpSend,
    /// `ComputeCore::read`.
    FcnpReceive,
}

impl CountedFigure {
    /// All figures.
    pub(super) const ALL: [Self; 8] = [
        Self::Send,
        Self::Receive,
        Self::CopyIn,
        Self::CopyOut,
        Self::EngineNear,
        Self::EngineFar,
        Self::FcnpSend,
        Self::FcnpReceive,
    ];

    /// Returns the figure's name on the child's command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
            Self::CopyIn => "copy-in",
            Self::CopyOut => "copy-out",
            Self::EngineNear => "engine-near",
            Self::EngineFar => "engine-far",
            Self::FcnpSend => "fcnp-send",
            Self::FcnpReceive => "fcnp-receive",
        }
    }

    /// Returns patterns for the names of the functions at which callgrind begins and ends to count.
    pub(super) fn toggles(self) -> Vec<String> {
        // In a waiting loop of FCNP the thread also steps the machine, which is not the library's
        // work.
        const MACHINE: &str = "*LocalAttachment*Backing*relax*";
        let (function, machine) = match self {
            Self::Send => ("send_batch", None),
            Self::Receive => ("receive_batch", None),
            Self::CopyIn => ("copy_in", None),
            Self::CopyOut => ("copy_out", None),
            Self::EngineNear | Self::EngineFar => ("step_machine", None),
            Self::FcnpSend => ("fcnp_write", Some(MACHINE)),
            Self::FcnpReceive => ("fcnp_read", Some(MACHINE)),
        };

        [pattern(counted::MODULE, function)].into_iter().chain(machine.map(str::to_owned)).collect()
    }

    /// Returns the number of packets to count, which is a multiple of a batch or message.
    pub(super) fn packets(self, quick: bool) -> u64 {
        let times = if quick { 1 } else { 8 };
        match self {
            Self::FcnpSend | Self::FcnpReceive => MESSAGE_PACKETS * times,
            _ => 1024 * times,
        }
    }

    /// Runs the figure in this process.
    ///
    /// # Errors
    /// Returns an error when the machine cannot be built, or when packets are lost.
    pub(super) fn run(self, packets: u64) -> Result<(), Failure> {
        match self {
            Self::CopyIn | Self::CopyOut => copy_batches(packets),
            Self::FcnpSend | Self::FcnpReceive => exchange_messages(self, packets / MESSAGE_PACKETS),
            _ => stream_packets(self, packets),
        }
    }
}

/// Makes steps that are not counted.
fn step_uncounted(machine: &mut SteppedMachine, steps: u32) {
    for _ in 0..steps {
        machine.steps(1, |machine, now| machine.step(now, 1));
    }
}

/// Streams packets from the I/O node to a compute node in batches. Between two steps of the
/// machine, it sends as many batches as there is room for, and receives those that have arrived.
/// The packets are numbered, and their data is checked.
fn stream_packets(figure: CountedFigure, packets: u64) -> Result<(), Failure> {
    let (machine, route) = Route::of(figure)?;
    let mut stepped = SteppedMachine::new(machine);
    let sender = channel(&stepped, "io0")?;
    let receiver = channel(&stepped, &route.name())?;
    let interrupts = false;
    let header = Header::point_to_point(CLASS, route.address, interrupts);

    step_uncounted(&mut stepped, STEPS_TO_SETTLE);
    warm_up(&mut stepped, &sender, header, &receiver)?;

    let (mut data, mut out) = (Batch::UNIFORM, Batch::EMPTY);
    let (mut taken, mut sent, mut idle_steps) = (0, 0, 0);
    while taken < packets {
        while (sent - taken) + BATCH as u64 <= u64::from(DEPTH) && sent < packets {
            data.number_from(sent);
            sent += counted::send_batch(&sender, sender.owner(), header, &data) as u64;
        }

        stepped.steps(1, counted::step_machine);
        idle_steps += 1;

        while waiting_packets(&receiver, WARM_UP + taken) >= BATCH as u64 {
            let received = counted::receive_batch(&receiver, receiver.owner(), &mut out);
            out.check_packets(taken, received)?;
            taken += received as u64;
            idle_steps = 0;
        }

        if idle_steps > MAX_IDLE_STEPS {
            return Err(Failure::result(format!("{taken} of {packets} packets arrived, and no more")));
        }
    }

    Ok(())
}

/// Sends and receives a batch that is not counted. It wakes the nodes on the way, which then stay
/// awake.
fn warm_up(
    stepped: &mut SteppedMachine,
    sender: &TreeChannel,
    header: Header,
    receiver: &TreeChannel,
) -> Result<(), Failure> {
    let (data, mut out) = (Batch::UNIFORM, Batch::EMPTY);
    let guard = sender.send_lock().try_lock(sender.owner());
    if let Some(guard) = guard {
        sender.send_batch(guard).send_data(header, &data.0, BATCH);
    }

    // In so few steps no node becomes cold.
    step_uncounted(stepped, STEPS_TO_ARRIVE);
    let guard = receiver.receive_lock().try_lock(receiver.owner());
    match guard.map(|guard| receiver.receiver(guard).take_data(&mut out.0).packets) {
        Some(BATCH) if out.0 == data.0 => Ok(()),
        _ => Err(Failure::result("the first packets did not arrive")),
    }
}

/// Returns the number of packets that wait for the receiver after it has taken `taken`.
fn waiting_packets(channel: &TreeChannel, taken: u64) -> u64 {
    channel.received().wrapping_sub(taken as u32).into()
}

/// Opens the channel of a node's core.
fn channel(machine: &SteppedMachine, node: &str) -> Result<TreeChannel, Failure> {
    TreeChannel::open(machine.open(node, CORE)?).context(|| format!("the channel of {node}"))
}

/// Copies batches into shared memory and out of it.
fn copy_batches(packets: u64) -> Result<(), Failure> {
    let size = BATCH * PAYLOAD;
    let memory = SharedMemory::create("bench-copy", size).context(|| "shared memory".into())?;
    let window = memory.window(0, size as u64).context(|| "shared memory".into())?;
    let (data, mut out) = (Batch::UNIFORM, Batch::EMPTY);

    for _ in 0..packets / BATCH as u64 {
        if let Some(data) = data.0.as_chunks().0.first_chunk() {
            counted::copy_in(&window, data).context(|| "copying".into())?;
        }
        if let Some(out) = out.0.as_chunks_mut().0.first_chunk_mut() {
            counted::copy_out(&window, out).context(|| "copying".into())?;
        }
    }

    if out.0 == data.0 { Ok(()) } else { Err(Failure::result("the content was lost")) }
}

/// Sends messages of 1 MB from the I/O node to a compute core. The counted side runs on this
/// thread, and the other side on another thread.
fn exchange_messages(figure: CountedFigure, messages: u64) -> Result<(), Failure> {
    let (mut machine, route) = Route::of(figure)?;
    machine.set_cool_after(NEVER_COLD);
    let machine = LocalMachine::new(machine);
    let rank = route.rank;

    let io_device = open_in_process(&machine, "io0", CORE)?;
    let core_device = open_in_process(&machine, &route.name(), CORE)?;
    let io = IoNode::open(io_device, Config::default()).context(|| "the I/O node".into())?;

    let write = move || -> Result<(), Failure> {
        let data = vec![PATTERN; MESSAGE_PACKETS as usize * PAYLOAD];
        for _ in 0..messages {
            counted::fcnp_write(&io, rank * u32::from(CORES), &data).context(|| "a write".into())?;
        }
        Ok(())
    };

    let read = move || -> Result<(), Failure> {
        let core = ComputeCore::open(core_device, Config::default()).context(|| "the compute core".into())?;
        let mut buffer = vec![0; MESSAGE_PACKETS as usize * PAYLOAD];
        for _ in 0..messages {
            counted::fcnp_read(&core, &mut buffer).context(|| "a read".into())?;
        }
        if buffer.iter().all(|&byte| byte == PATTERN) {
            Ok(())
        } else {
            Err(Failure::result("content was lost"))
        }
    };

    if figure == CountedFigure::FcnpSend {
        run_in_parallel(read, write)
    } else {
        run_in_parallel(write, read)
    }
}

/// Runs `on_new_thread` on a thread of its own and `on_this_thread` on this thread, and waits for
/// both. Returns the error of `on_this_thread`, else the error of `on_new_thread`.
fn run_in_parallel(
    on_new_thread: impl FnOnce() -> Result<(), Failure> + Send,
    on_this_thread: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    thread::scope(|scope| {
        let on_new_thread = scope.spawn(on_new_thread);
        let on_this_thread = on_this_thread();
        on_this_thread.and(
            on_new_thread.join().unwrap_or_else(|_| Err(Failure::result("a thread of the bench panicked"))),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_of_packets_arrives_with_its_content() {
        assert!(CountedFigure::EngineNear.run(2 * u64::from(DEPTH)).is_ok());
    }

    #[test]
    fn data_of_an_earlier_batch_or_of_none_is_noticed() {
        let mut batch = Batch::UNIFORM;
        batch.number_from(8);

        assert!(batch.check_packets(8, BATCH).is_ok());
        assert!(batch.check_packets(16, BATCH).is_err());
        assert!(Batch::UNIFORM.check_packets(8, BATCH).is_err());
        assert!(Batch::EMPTY.check_packets(0, 1).is_err());
    }
}
