//! Ranks on Blue Gene/L nodes: the matching layer over the message layer.

use nicforge_bgl_transport::{BglTransport, Config, Job};
use nicforge_driver::{Deadline, runtime::Cost};
use nicforge_matching::Endpoint;

use super::{Cluster, ClusterError, RankError, RankProgram, RankSite, between_barriers};
use crate::world::{Picos, Profile};

/// Nanoseconds of an instruction on the paper's simulator, which takes one for each cycle of 700
/// MHz (section 6).
const INSTRUCTION_NS: f64 = 1.0 / 0.7;
/// Instructions of the paper's message layer to get a packet into the hardware: `msgsend_adv`.
const SEND: f64 = 671.0;
/// Instructions to get a packet out of it: `dispatch`, of the same program (BT).
const RECEIVE: f64 = 518.0;
/// Instructions of `postsend` without those of the packet that it sends.
const POST: f64 = 629.0;

/// Returns the profile of Blue Gene/L's processors, PowerPC 440 cores of 700 MHz, with the paper's
/// message layer of 2003. Matching takes no time: it is in the paper's callbacks, which depend on
/// the program.
pub fn ppc440() -> Profile {
    let costs = [(Cost::SendPacket, SEND), (Cost::ReceivePacket, RECEIVE), (Cost::SendMessage, POST)];
    Profile::of_nanos(costs.map(|(kind, instructions)| (kind, instructions * INSTRUCTION_NS)))
}

impl Cluster<'_> {
    /// Runs a program on the torus, as [`Cluster::run`].
    pub(super) fn run_on_torus<P: RankProgram>(
        &self,
        per_node: u16,
        program: P,
    ) -> Result<(Vec<P::Output>, Picos), ClusterError> {
        let job = Job::of_nodes(self.nodes.len() as u32);
        self.start_ranks(per_node, move |site| run_rank(&site, &job, &program))
    }
}

/// Opens the transport of a rank on a core, waits for all others, and runs a program on it between
/// two barriers.
fn run_rank<P: RankProgram>(site: &RankSite, job: &Job, program: &P) -> Result<P::Output, RankError> {
    let device = site.open()?;
    let mut transport = BglTransport::open(device, job, Config::default())?;
    transport.wait_for_all(Deadline::never(), None)?;

    let mut endpoint = Endpoint::new(transport, Default::default())?;
    between_barriers(&mut endpoint, |endpoint| program.run(endpoint))
}
