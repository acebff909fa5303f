//! The program under callgrind: two nodes with a link between them, which takes no time. One thread
//! does everything, with a simulated clock.

use nicforge::failure::{ErrorContext, Failure};
use nicforge_bgl::{
    message::{Arrival, Buffer, Callbacks, Config, Disposition, MessageLayer, Received, Sent},
    packet::{PacketDevice, Rank, Torus},
};
use nicforge_hwi::torus::{MAX_CHUNKS, MAX_PACKET, MAX_PAYLOAD};

use super::{BENCH, counted};
use crate::{
    callgrind::pattern,
    machine::{SteppedMachine, build, describe},
};

/// Packets of a burst: as many as an injection FIFO holds.
pub(super) const BURST: usize = nicforge_hwi::torus::FIFO_CHUNKS as usize / MAX_CHUNKS;
/// Bytes of a long message, which has whole packets.
pub(super) const MESSAGE: usize = 240 * 273;
/// Bytes of a short message.
const SHORT: usize = 8;
/// Maximum number of steps of the machine until a burst or a message has arrived.
const MAX_STEPS: u32 = 100_000;

/// The payload of a burst of packets.
#[repr(align(64))]
pub(super) struct Burst(pub(super) [u8; BURST * MAX_PAYLOAD]);

/// A figure that callgrind counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    /// Sending a packet.
    Send,
    /// Receiving a packet.
    Receive,
    /// The machine's work for a packet.
    Torus,
    /// The message layer's work to send a packet of a long message.
    LongSend,
    /// The message layer's work to receive one.
    LongReceive,
    /// Posting a short message.
    Post,
}

impl Figure {
    /// All figures, in their order.
    pub(super) const ALL: [Self; 6] =
        [Self::Send, Self::Receive, Self::Torus, Self::LongSend, Self::LongReceive, Self::Post];

    /// Returns the figure's name on the child's command line, and in the rows.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Torus => "torus",
            Self::LongSend => "long-send",
            Self::LongReceive => "long-receive",
            Self::Post => "post",
        }
    }

    /// Returns the pattern of the function at which callgrind counts.
    pub(super) fn toggle(self) -> String {
        let function = match self {
            Self::Send => "send_burst",
            Self::Receive => "receive_burst",
            Self::Torus => "step_machine",
            Self::LongSend => "advance_sender",
            Self::LongReceive => "advance_receiver",
            Self::Post => "post",
        };
        pattern(counted::MODULE, function)
    }

    /// Returns the number of packets or messages of a round.
    pub(super) fn per_round(self) -> usize {
        match self {
            Self::Send | Self::Receive | Self::Torus => BURST,
            Self::LongSend | Self::LongReceive => MESSAGE / MAX_PAYLOAD,
            Self::Post => 1,
        }
    }

    /// Returns the bytes of a packet or message.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Post => SHORT as u64,
            _ => MAX_PACKET as u64,
        }
    }
}

/// A program that receives into memory of its own, and takes the memory of its messages back.
#[derive(Debug, Default)]
pub(super) struct Program {
    /// Memory for the next message to arrive.
    spare: Vec<u8>,
    /// Memory of the last message that was sent.
    sent: Option<Vec<u8>>,
    received: usize,
}

impl Callbacks for Program {
    fn recvnew(&mut self, arrival: &Arrival) -> Disposition {
        let mut memory = std::mem::take(&mut self.spare);
        memory.resize(arrival.length, 0);
        Disposition::Receive(Buffer::from(memory))
    }

    fn recvdone(&mut self, received: Received) {
        self.received += received.stored;
        self.spare = received.buffer.map(Buffer::into_memory).unwrap_or_default();
    }

    fn senddone(&mut self, sent: Sent) {
        self.sent = Some(sent.buffer.into_memory());
    }
}

/// Runs a figure in this process.
pub(super) fn run(figure: Figure, rounds: usize) -> Result<(), Failure> {
    let plan = describe(BENCH.name, "[[bgl]]\ntorus = [2]\n")?;
    let mut machine = SteppedMachine::new(build(&plan)?.0);
    let open = |node: u16| -> Result<Torus, Failure> {
        Torus::open(machine.open(&format!("bgl{node}.torus"), "core0")?).context(|| format!("node {node}"))
    };
    let (sender, receiver) = (open(0)?, open(1)?);

    match figure {
        Figure::Send | Figure::Receive | Figure::Torus => packets(&mut machine, sender, receiver, rounds),
        Figure::LongSend | Figure::LongReceive => messages(&mut machine, sender, receiver, (rounds, MESSAGE)),
        Figure::Post => messages(&mut machine, sender, receiver, (rounds, SHORT)),
    }
}

/// Steps the machine once.
fn step(machine: &mut SteppedMachine) {
    machine.steps(1, counted::step_machine);
}

/// Sends bursts of packets, and receives each before the next.
fn packets(
    machine: &mut SteppedMachine,
    mut sender: Torus,
    mut receiver: Torus,
    rounds: usize,
) -> Result<(), Failure> {
    let header = sender.route(Rank::new(1, 0)).ok_or_else(|| Failure::result("there is no way to node 1"))?;
    let header = header.deterministic().with_checksum(None);
    let (mut burst, mut received) = (Burst([0; BURST * MAX_PAYLOAD]), Burst([0; BURST * MAX_PAYLOAD]));

    for round in 0..rounds {
        burst.0.fill(round as u8);
        let sent = counted::send_burst(&mut sender, header, &burst).context(|| "sending".into())?;
        let mut steps = 0;
        while !sender.has_sent_all() && steps < MAX_STEPS {
            step(machine);
            steps += 1;
        }
        // The card of the receiver may have had its turn before that of the sender.
        step(machine);

        let taken = counted::receive_burst(&mut receiver, &mut received).context(|| "receiving".into())?;
        if (sent, taken) != (BURST, BURST) || received.0 != burst.0 {
            return Err(Failure::result(format!("{sent} packets of {BURST} were sent, and {taken} came")));
        }
    }
    Ok(())
}

/// Sends messages, each after the end of the one before.
fn messages(
    machine: &mut SteppedMachine,
    sender: Torus,
    receiver: Torus,
    (rounds, bytes): (usize, usize),
) -> Result<(), Failure> {
    let layer = |torus| MessageLayer::init(torus, Config::default()).context(|| "a message layer".into());
    let (mut sender, mut receiver) = (layer(sender)?, layer(receiver)?);
    let (mut at_sender, mut at_receiver) = (Program::default(), Program::default());
    let mut memory = vec![0x5a; bytes];

    for round in 1..=rounds {
        counted::post(&mut sender, Rank::new(1, 0), Buffer::from(memory)).context(|| "a message".into())?;
        let mut steps = 0;
        while (at_receiver.received < round * bytes || at_sender.sent.is_none()) && steps < MAX_STEPS {
            step(machine);
            counted::advance_receiver(&mut receiver, &mut at_receiver).context(|| "receiving".into())?;
            counted::advance_sender(&mut sender, &mut at_sender).context(|| "sending".into())?;
            steps += 1;
        }
        memory = at_sender.sent.take().ok_or_else(|| Failure::result("a message does not end"))?;
    }
    Ok(())
}
