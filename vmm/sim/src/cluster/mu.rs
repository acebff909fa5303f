//! Ranks on Blue Gene/Q nodes: the matching layer over the Message Unit.

use nicforge_driver::{Deadline, runtime::Cost};
use nicforge_matching::Endpoint;
use nicforge_mu_transport::{Config, Job, MuTransport};

use super::{Cluster, ClusterError, RankError, RankProgram, RankSite, between_barriers};
use crate::world::{Picos, Profile};

/// Time of the software on Blue Gene/Q for a message, in nanoseconds: "about 95 ns to 100 ns" for
/// the descriptor, the poll for its arrival, and the loop (section V). Each side has half of it.
const SOFTWARE_NS: f64 = 96.0;

/// Returns the profile of Blue Gene/Q's processors, which are A2 cores. Matching and copies take no
/// time: the paper states no cost of them.
pub fn a2() -> Profile {
    let half_of_each_side = [Cost::SendMessage, Cost::ReceivePacket].map(|kind| (kind, SOFTWARE_NS / 2.0));
    Profile::of_nanos(half_of_each_side)
}

impl Cluster<'_> {
    /// Runs a program on Message Units, as [`Cluster::run`].
    pub(super) fn run_on_message_units<P: RankProgram>(
        &self,
        per_node: u16,
        program: P,
    ) -> Result<(Vec<P::Output>, Picos), ClusterError> {
        let job = Job::of_nodes(self.nodes.len() as u32, per_node);
        self.start_ranks(per_node, move |site| run_rank(&site, &job, &program))
    }
}

/// Opens the transport of a rank on a Message Unit, waits for all others, and runs a program on it
/// between two barriers.
fn run_rank<P: RankProgram>(site: &RankSite, job: &Job, program: &P) -> Result<P::Output, RankError> {
    let device = site.open()?;
    let mut transport = MuTransport::open(&device, job, Config::default())?;
    transport.wait_for_all(Deadline::never(), None)?;

    let mut endpoint = Endpoint::new(transport, Default::default())?;
    between_barriers(&mut endpoint, |endpoint| program.run(endpoint))
}
