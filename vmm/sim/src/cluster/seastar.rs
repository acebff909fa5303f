//! Ranks on SeaStars: the MPI-style layer over Portals.

use std::{cell::RefCell, collections::HashMap, rc::Rc, sync::Arc, time::Duration};

use nicforge_driver::{
    Deadline,
    runtime::{self, Instant},
};
use nicforge_portals::{Interface, Kernel, KernelConfig, Mode};
use nicforge_portals_mpi::{Config, Endpoint, Job};

use super::{Attachment, Cluster, ClusterError, RankError, RankProgram, RankSite, between_barriers};
use crate::world::Picos;

/// Name of a kernel's attachment.
const KERNEL: &str = "kernel";
/// Name of the attachment of a node's first process, whose rank boots the node.
const FIRST_PROCESS: &str = "p0";
/// Time between two checks of a rank that waits for its node's kernel, or only handles messages.
const CHECK_INTERVAL: Duration = Duration::from_micros(10);
/// Time for which a rank stays after the last barrier, so that its last messages are acknowledged.
const LINGER: Duration = Duration::from_millis(1);

/// The kernels of all nodes. The ranks of a node share its kernel.
type Kernels = RefCell<HashMap<String, Arc<Kernel>>>;

impl Cluster<'_> {
    /// Runs a program on SeaStars, as [`Cluster::run`].
    pub(super) fn run_on_seastars<P: RankProgram>(
        &self,
        per_node: u16,
        mode: Mode,
        program: P,
    ) -> Result<(Vec<P::Output>, Picos), ClusterError> {
        let job = Job::of_nodes(self.nodes.len() as u32, per_node);
        let kernels: Rc<Kernels> = Rc::default();
        let body = move |site: RankSite| run_rank(&site, &kernels, mode, &job, &program);
        let (results, _) = self.start_ranks(per_node, body)?;

        // The time in which ranks stay for others is not the program's.
        let end = results.iter().map(|(_, end)| *end).max().unwrap_or_default();
        Ok((results.into_iter().map(|(result, _)| result).collect(), end.into()))
    }
}

/// Opens the endpoint of a rank on a SeaStar, waits for all others, and runs a program on it
/// between two barriers. Returns its result, and the time from the beginning to the program's end.
fn run_rank<P: RankProgram>(
    site: &RankSite,
    kernels: &Kernels,
    mode: Mode,
    job: &Job,
    program: &P,
) -> Result<(P::Output, Duration), RankError> {
    let began = Instant::now();
    let interface = open(site, kernels, mode)?;
    let mut endpoint = Endpoint::open(interface, job, Config::default())?;
    endpoint.wait_for_all(Deadline::never(), None)?;

    let result = between_barriers(&mut endpoint, |endpoint| program.run(endpoint))?;
    let end = began.elapsed();

    // Its last messages may still need this side to handle acknowledgements.
    while began.elapsed() < end + LINGER {
        endpoint.progress()?;
        runtime::sleep(CHECK_INTERVAL);
    }
    Ok((result, end))
}

/// Opens the interface of a rank. The rank of a node's first process boots the node's kernel for
/// all of them.
fn open(site: &RankSite, kernels: &Kernels, mode: Mode) -> Result<Interface, RankError> {
    let RankSite { devices, attachment: Attachment { function, name } } = site;
    if name == FIRST_PROCESS {
        let kernel = Kernel::boot(devices.open(function, KERNEL)?, KernelConfig::default())?;
        kernels.borrow_mut().insert(function.clone(), kernel);
    }

    let kernel = loop {
        if let Some(kernel) = kernels.borrow().get(function) {
            break kernel.clone();
        }
        runtime::sleep(CHECK_INTERVAL);
    };
    Ok(Interface::open(&kernel, devices.open(function, name)?, mode)?)
}
