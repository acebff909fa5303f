//! The model of EXTOLL's paper: its machine, and what its software costs.

use nicforge::failure::Failure;
use nicforge_driver::runtime::Cost;

use super::{CUT_THROUGH, PROTOCOL_BYTES, SOFTWARE_COST};
use crate::{cluster::Cluster, interrupted::Interrupted, paper::experiment::Run, world::Profile};

/// Frequency of the cards' cores in MHz (section V).
pub(super) const CLOCK_MHZ: u32 = 156;

/// Bits that a link carries in a cycle of the core.
const LINK_BITS_PER_CYCLE: f64 = 32.0;

/// Bytes that an MPI message of 8 bytes takes on a link (Table I).
const PACKET_BYTES: f64 = 64.0;
/// Those of them that are the content of its packet.
const CONTENT_BYTES: f64 = 24.0;

/// Bytes of a packet that have arrived when the card forwards it: the header.
const HEAD_BYTES: u32 = 16;

/// Time of a hop in nanoseconds at [`CLOCK_MHZ`] (section V).
pub(super) const HOP_NS: f64 = 300.0;

/// Calibrated by the latency at 117 MHz: cycles of the core in a hop. The rest of [`HOP_NS`] does
/// not depend on the clock.
const HOP_CYCLES: u32 = 20;

/// Calibrated by the message rates of three and four pairs: time of a call of the MPI library, in
/// nanoseconds. It starts a send, receives a message, or polls for work. With 205 to 304 ns, four
/// pairs saturate the link and three do not. This is the middle.
const CALL_NS: f64 = 254.0;

/// Calibrated by the bandwidth at 117 MHz: time of a VELO message between memory and the card's
/// window, or between the ring and memory, in nanoseconds.
const VELO_MESSAGE_NS: f64 = 70.0;

/// Calibrated by the share of MPI in RandomAccess: time of an update, in nanoseconds.
pub(super) const UPDATE_NS: f64 = 34.6;

/// Time of a byte copied by the processor, in nanoseconds: 3.3 GB/s. The paper does not name it.
pub(super) const COPY_BYTE_NS: f64 = 0.3;

/// Costs of the software in nanoseconds.
const COSTS: [(Cost, f64); 7] = [
    (Cost::SendMessage, CALL_NS),
    (Cost::ReceiveMessage, CALL_NS),
    (Cost::Progress, CALL_NS),
    (Cost::Burst, VELO_MESSAGE_NS),
    (Cost::ReceivePacket, VELO_MESSAGE_NS),
    (Cost::CopyByte, COPY_BYTE_NS),
    (Cost::Compute, UPDATE_NS),
];

/// Ranks of each node in RandomAccess.
pub(super) const RANKS_OF_NODE: u16 = 8;

/// The mechanisms of the model that this run has, with the card's frequency and the seed.
#[derive(Clone, Copy)]
pub(super) struct Model<'a> {
    /// [`SOFTWARE_COST`].
    software_cost: bool,
    /// [`PROTOCOL_BYTES`].
    protocol_bytes: bool,
    /// [`CUT_THROUGH`].
    cut_through: bool,
    /// Frequency of the cores in MHz.
    pub(super) mhz: u32,
    /// Delay after a send in nanoseconds.
    send_delay_ns: f64,
    seed: u64,
    interrupted: Interrupted<'a>,
}

impl<'a> Model<'a> {
    /// Returns the model with the mechanisms that this run has.
    pub(super) fn of(run: &Run<'a>) -> Self {
        Self {
            software_cost: run.has(&SOFTWARE_COST),
            protocol_bytes: run.has(&PROTOCOL_BYTES),
            cut_through: run.has(&CUT_THROUGH),
            mhz: CLOCK_MHZ,
            send_delay_ns: 0.0,
            seed: run.seed(),
            interrupted: run.interrupted(),
        }
    }

    /// Returns the model with cards of another frequency.
    pub(super) fn at(self, mhz: u32) -> Self {
        Self { mhz, ..self }
    }

    /// Returns the model in which the network's software takes no time.
    pub(super) fn without_software(self) -> Self {
        Self { software_cost: false, ..self }
    }

    /// Returns the model with a delay after each send, in nanoseconds.
    pub(super) fn with_delay(self, send_delay_ns: f64) -> Self {
        Self { send_delay_ns, ..self }
    }

    /// Returns two nodes with a link between them.
    pub(super) fn pair(self) -> Result<Cluster<'a>, Failure> {
        self.cluster("mesh = 2")
    }

    /// Returns the paper's cluster of eight nodes.
    pub(super) fn torus(self) -> Result<Cluster<'a>, Failure> {
        self.cluster("torus = [2, 2, 2]")
    }

    /// Returns a cluster of this shape, with the model's links and costs.
    fn cluster(self, shape: &str) -> Result<Cluster<'a>, Failure> {
        // The delay is what the head and the card's cycles leave of the time of a hop at CLOCK_MHZ.
        // It is the same at other frequencies.
        let clock_mhz = f64::from(CLOCK_MHZ);
        let full_gbit_s = LINK_BITS_PER_CYCLE * clock_mhz / 1e3;
        let head_ns = f64::from(HEAD_BYTES) * 8.0 / full_gbit_s;
        let delay_ns = (HOP_NS - head_ns - f64::from(HOP_CYCLES) * 1e3 / clock_mhz).round();

        // Without protocol bytes, a packet takes the time of its content.
        let bits_per_cycle = if self.protocol_bytes {
            LINK_BITS_PER_CYCLE
        } else {
            LINK_BITS_PER_CYCLE * PACKET_BYTES / CONTENT_BYTES
        };
        let gbit_s = bits_per_cycle * f64::from(self.mhz) / 1e3;
        let cut_through =
            if self.cut_through { format!("cut_through_bytes = {HEAD_BYTES}\n") } else { String::new() };
        let text = format!(
            "name = \"cluster\"\n[[extoll]]\n{shape}\nvpids = {RANKS_OF_NODE}\nwatchdog_ms = 0\ncore_mhz = {}\n\
             hop_cycles = {HOP_CYCLES}\n[extoll.link]\ndelay_ns = {delay_ns}\ngbit_s = {gbit_s}\ncredits = 32\n\
             {cut_through}",
            self.mhz
        );

        let mut cluster = Cluster::parse(&text, self.profile(), self.seed)?;
        cluster.interrupted = self.interrupted;
        Ok(cluster)
    }

    /// Returns the costs of the software.
    fn profile(self) -> Profile {
        // The updates are the application's work. They take time in every model.
        let charged = COSTS.into_iter().filter(|&(kind, _)| self.software_cost || kind == Cost::Compute);
        let delayed = |(kind, time)| {
            let delay = if kind == Cost::SendMessage { self.send_delay_ns } else { 0.0 };
            (kind, time + delay)
        };
        Profile::of_nanos(charged.map(delayed))
    }
}

/// Returns the profile of the paper's processors, with the matching layer, VELO and RMA.
pub fn opteron() -> Profile {
    Profile::of_nanos(COSTS)
}
