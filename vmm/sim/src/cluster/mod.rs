//! A cluster of nodes with EXTOLL cards, SeaStars, Message Units of Blue Gene/Q or a torus of Blue
//! Gene/L, and parallel programs on it, in virtual time.
//!
//! A program has ranks. Each rank is a process with its own attachment of a node's card. On EXTOLL
//! that is a VPID, and the rank uses the matching layer over VELO and RMA as on a host. On a
//! SeaStar it uses the MPI-style layer over Portals. On Blue Gene/Q it has a subgroup, and uses the
//! matching layer over the Message Unit. On Blue Gene/L it has a core, and uses the matching layer
//! over the message layer. The programs are those of [`nicforge_mpi_programs`]: [`programs`] sets
//! them up, and measures them.

pub mod mu;
pub mod programs;
mod seastar;
pub mod torus;

use std::{
    cell::RefCell,
    fs::File,
    io::{self, BufWriter},
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use nicforge::failure::Failure;
use nicforge_bgl_transport::Error as BglTransportError;
use nicforge_core::ids::FunctionId;
use nicforge_driver::{Deadline, Device, runtime};
use nicforge_extoll::family::NODE as EXTOLL;
use nicforge_extoll_transport::{Config, Error as TransportError, ExtollTransport, Job};
use nicforge_family::Plan;
use nicforge_machine::{
    build::{self, BuildError},
    description::{self, DescriptionError},
};
use nicforge_matching::{Endpoint, Error as MatchingError};
use nicforge_mpi_programs::{Endpoint as ProgramEndpoint, Error as ProgramError, collective::barrier};
use nicforge_mu::family::NODE as MESSAGE_UNIT;
use nicforge_mu_transport::Error as MuTransportError;
use nicforge_nics::families;
use nicforge_portals::{Error as PortalsError, Mode};
use nicforge_portals_mpi::Error as PortalsMpiError;
use nicforge_seastar::family::NODE as SEASTAR;
use nicforge_torus::family::NODE as TORUS;
use nicforge_trace::Stream;
use thiserror::Error;

use crate::{
    interrupted::Interrupted,
    world::{DeviceError, Devices, Picos, Profile, World, WorldError},
};

/// Virtual time after which a program counts as stuck, unless the cluster has another limit.
const LIMIT: Duration = Duration::from_secs(60);

/// Maximum time by which the start of a rank is late. It differs from rank to rank and by the
/// seed, as on a real cluster.
const LATE_START: Duration = Duration::from_nanos(100);

/// The reason why a program has no result.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// The simulation did not end.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The machine file is wrong.
    #[error(transparent)]
    Description(#[from] DescriptionError),
    /// The machine could not be built.
    #[error("the machine cannot be built: {0}")]
    Build(#[from] BuildError),
    /// The machine has no node with an EXTOLL card, a SeaStar, a Message Unit or a torus.
    #[error(
        "machine {name} has no EXTOLL cards, SeaStars, Message Units or tori, which programs in virtual time need: \
         add a section [[extoll]], [[seastar]], [[bgq]] or [[bgl]]"
    )]
    NoCards {
        /// The machine's name.
        name: String,
    },
    /// The machine has other cards, and the program needs EXTOLL cards.
    #[error("machine {name} has no EXTOLL cards, which this program needs: add a section [[extoll]]")]
    NoExtoll {
        /// The machine's name.
        name: String,
    },
    /// The trace could not be written.
    #[error("the trace {}: {reason}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: io::Error,
    },
    /// A node has fewer VPIDs, processes or subgroups than ranks.
    #[error("node {node} has {vpids} VPIDs, processes or subgroups, too few for {ranks} ranks")]
    Vpids {
        /// The node.
        node: String,
        /// Its VPIDs or processes.
        vpids: usize,
        /// The ranks of each node.
        ranks: u16,
    },
    /// The program can't run on so many ranks or nodes.
    #[error("there are {found} {what}; {program} needs {needed}")]
    Size {
        /// The counted items.
        what: &'static str,
        /// Their number.
        found: usize,
        /// The program.
        program: &'static str,
        /// The numbers that are possible.
        needed: &'static str,
    },
    /// A rank failed.
    #[error("rank {rank}: {error}")]
    Rank {
        /// The rank.
        rank: u32,
        /// Its error.
        error: RankError,
    },
}

impl From<ClusterError> for Failure {
    fn from(error: ClusterError) -> Self {
        match error {
            ClusterError::World(error) => error.into(),
            _ => Self::result(error.to_string()),
        }
    }
}

/// The reason why a rank failed.
#[derive(Debug, Error)]
pub enum RankError {
    /// The device could not be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The transport failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The transport over the Message Unit failed.
    #[error(transparent)]
    MuTransport(#[from] MuTransportError),
    /// The transport over Blue Gene/L's torus failed.
    #[error(transparent)]
    BglTransport(#[from] BglTransportError),
    /// The endpoint failed.
    #[error(transparent)]
    Matching(#[from] MatchingError),
    /// Portals failed.
    #[error(transparent)]
    Portals(#[from] PortalsError),
    /// The MPI-style layer over Portals failed.
    #[error(transparent)]
    PortalsMpi(#[from] PortalsMpiError),
    /// The program failed.
    #[error(transparent)]
    Program(Box<dyn std::error::Error>),
}

impl<E: std::error::Error + 'static> From<ProgramError<E>> for RankError {
    fn from(error: ProgramError<E>) -> Self {
        Self::Program(Box::new(error))
    }
}

/// The cards of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cards {
    /// EXTOLL cards.
    Extoll,
    /// SeaStars, whose messages are matched in this mode.
    SeaStar(Mode),
    /// Message Units of Blue Gene/Q.
    MessageUnit,
    /// A torus of Blue Gene/L. A node has one rank, because the torus has no way between its cores.
    Torus,
}

/// A program that each rank runs, on any card.
pub(crate) trait RankProgram: 'static {
    /// The result of one rank.
    type Output: 'static;

    /// Runs the program on one rank.
    fn run<E: ProgramEndpoint>(&self, endpoint: &mut E) -> Result<Self::Output, RankError>;
}

/// A rank's end of a network of EXTOLL cards.
pub type RankEndpoint = Endpoint<ExtollTransport>;

/// A node of a cluster.
#[derive(Clone, Debug)]
struct Node {
    name: String,
    /// The attachments of its VPIDs, processes or subgroups.
    vpids: Vec<Attachment>,
}

/// The names of an attachment and of its function in the machine.
#[derive(Clone, Debug)]
struct Attachment {
    function: String,
    name: String,
}

impl Attachment {
    /// Returns the names of a node's attachment. That of a function with a name of its own begins
    /// with the function's name.
    fn of_node(node: &str, attachment: &str) -> Self {
        match attachment.split_once('.') {
            Some((function, name)) => Self { function: format!("{node}.{function}"), name: name.to_owned() },
            None => Self { function: node.to_owned(), name: attachment.to_owned() },
        }
    }
}

/// A modelled cluster and its software.
#[derive(Debug)]
pub struct Cluster<'a> {
    plan: Plan,
    /// The nodes with such cards.
    nodes: Vec<Node>,
    name: String,
    /// The kind of its cards.
    pub cards: Cards,
    /// The costs of each rank's software.
    pub profile: Profile,
    /// Determines the random numbers of libraries and programs, and how late each rank starts.
    pub seed: u64,
    /// File for the trace of the cards, in the form that its name asks for
    /// ([`nicforge_trace::Format::of_file`]): none, unless it is set.
    pub trace: Option<PathBuf>,
    /// Virtual time after which a program counts as stuck: 60 s, unless it is set.
    pub limit: Duration,
    /// The check of whether the user has ended the run: never, unless it is set.
    pub interrupted: Interrupted<'a>,
}

impl Cluster<'_> {
    /// Creates the cluster of a machine file's text.
    ///
    /// # Errors
    /// [`ClusterError::Description`], [`ClusterError::Build`], [`ClusterError::NoCards`].
    pub fn parse(text: &str, profile: Profile, seed: u64) -> Result<Self, ClusterError> {
        Self::of(description::parse(text, "the cluster", &families())?, profile, seed)
    }

    /// Creates the cluster of a machine file.
    ///
    /// # Errors
    /// As [`Cluster::parse`].
    pub fn read(path: &Path, profile: Profile, seed: u64) -> Result<Self, ClusterError> {
        Self::of(description::read(path, &families())?, profile, seed)
    }

    /// Returns the cluster of a plan, which is built once to check it.
    fn of(plan: Plan, profile: Profile, seed: u64) -> Result<Self, ClusterError> {
        let (_, built) = build::build(&plan)?;
        let cluster_node = |node: &build::Node| Node {
            name: node.name.clone(),
            vpids: node.users().map(|vpid| Attachment::of_node(&node.name, &vpid.name)).collect(),
        };
        let nodes_of = |role| -> Vec<_> {
            built.nodes.iter().filter(|node| node.role == role).map(cluster_node).collect()
        };

        // A machine with several kinds of cards counts as one of the first kind here.
        let (mut cards, mut nodes) = (Cards::Extoll, nodes_of(EXTOLL));
        if nodes.is_empty() {
            (cards, nodes) = (Cards::SeaStar(Mode::NicBased), nodes_of(SEASTAR));
        }
        if nodes.is_empty() {
            (cards, nodes) = (Cards::MessageUnit, nodes_of(MESSAGE_UNIT));
        }
        if nodes.is_empty() {
            (cards, nodes) = (Cards::Torus, nodes_of(TORUS));
            nodes.iter_mut().for_each(|node| node.vpids.truncate(1));
        }
        if nodes.is_empty() {
            return Err(ClusterError::NoCards { name: built.name });
        }
        let interrupted = Interrupted::default();
        Ok(Self {
            plan,
            nodes,
            name: built.name,
            cards,
            profile,
            seed,
            trace: None,
            limit: LIMIT,
            interrupted,
        })
    }

    /// Returns the name of the machine.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of VPIDs, processes or subgroups that each node has.
    pub fn vpids(&self) -> u16 {
        let minimum = self.nodes.iter().map(|node| node.vpids.len()).min();
        minimum.unwrap_or_default().try_into().unwrap_or(u16::MAX)
    }

    /// Runs a program on EXTOLL cards with `per_node` ranks on each node. Ranks are numbered node
    /// by node. The program begins on each rank after a barrier, and a rank ends when all ranks
    /// have. Returns the results of the ranks, and the virtual time at the end. The failure of a
    /// rank ends the run.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub fn run<R: 'static>(
        &self,
        per_node: u16,
        program: impl Fn(&mut RankEndpoint) -> Result<R, RankError> + 'static,
    ) -> Result<(Vec<R>, Picos), ClusterError> {
        if self.cards != Cards::Extoll {
            return Err(ClusterError::NoExtoll { name: self.name.clone() });
        }
        let job = Job::of_nodes(self.nodes.len() as u32, per_node);
        self.start_ranks(per_node, move |site| run_rank(&site, &job, &program))
    }

    /// Runs a program on any cards, as [`Cluster::run`].
    pub(crate) fn run_program<P: RankProgram>(
        &self,
        per_node: u16,
        program: P,
    ) -> Result<(Vec<P::Output>, Picos), ClusterError> {
        match self.cards {
            Cards::Extoll => self.run(per_node, move |endpoint| program.run(endpoint)),
            Cards::SeaStar(mode) => self.run_on_seastars(per_node, mode, program),
            Cards::MessageUnit => self.run_on_message_units(per_node, program),
            Cards::Torus => self.run_on_torus(per_node, program),
        }
    }

    /// Runs `body` in a thread of each rank. Returns the results of the ranks in their order, and
    /// the virtual time at the end.
    fn start_ranks<R: 'static>(
        &self,
        per_node: u16,
        body: impl Fn(RankSite) -> Result<R, RankError> + 'static,
    ) -> Result<(Vec<R>, Picos), ClusterError> {
        let (mut machine, built) = build::build(&self.plan)?;
        if let Some(path) = &self.trace {
            Stream::begin(&mut machine, path)
                .map_err(|reason| ClusterError::Trace { path: path.clone(), reason })?;
        }
        let mut world = World::new(machine, self.seed);
        let body = Rc::new(body);
        let outcomes: Rc<RefCell<Vec<RankResult<R>>>> = Rc::default();

        let mut rank = 0;
        for node in &self.nodes {
            let Some(attachments) = node.vpids.get(..usize::from(per_node)) else {
                let (node, vpids) = (node.name.clone(), node.vpids.len());
                return Err(ClusterError::Vpids { node, vpids, ranks: per_node });
            };

            let functions: Vec<FunctionId> = built
                .node(&node.name)
                .map(|node| node.functions.iter().map(|function| function.id).collect())
                .unwrap_or_default();
            for attachment in attachments {
                let process = world.add_process(functions.clone(), self.profile.clone());
                let site = RankSite { devices: world.devices(), attachment: attachment.clone() };
                let (body, outcomes) = (body.clone(), outcomes.clone());
                world.start(process, &format!("rank {rank}"), move || {
                    let result = body(site);
                    outcomes.borrow_mut().push((rank, result));
                });
                rank += 1;
            }
        }

        // The other ranks would wait for ever for one that has failed, so its failure ends the run.
        let has_failed = || outcomes.borrow().iter().any(|(_, outcome)| outcome.is_err());
        let run_result = world.run_unless(self.limit, &|| has_failed() || self.interrupted.is_interrupted());
        if let Some(path) = &self.trace
            && let Some(stream) = world.with_machine(Stream::<BufWriter<File>>::take_from)
        {
            stream.finish().map_err(|reason| ClusterError::Trace { path: path.clone(), reason })?;
        }
        Ok((results(outcomes.take(), run_result)?, world.now()))
    }
}

/// The result of a rank, with its number.
type RankResult<R> = (u32, Result<R, RankError>);

/// The attachment of a rank, and the devices of the world to open it from.
struct RankSite {
    devices: Devices,
    attachment: Attachment,
}

impl RankSite {
    /// Opens the rank's attachment.
    fn open(&self) -> Result<Device, DeviceError> {
        self.devices.open(&self.attachment.function, &self.attachment.name)
    }
}

/// Returns the results of all ranks in their order, or the first error. The error of a rank comes
/// before that of the run, which it has caused.
fn results<R>(
    outcomes: Vec<RankResult<R>>,
    run_result: Result<(), WorldError>,
) -> Result<Vec<R>, ClusterError> {
    let mut results = Vec::new();
    for (rank, outcome) in outcomes {
        results.push((rank, outcome.map_err(|error| ClusterError::Rank { rank, error })?));
    }

    run_result?;
    results.sort_by_key(|(rank, _)| *rank);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Opens the transport of a rank on an EXTOLL card, waits for all others, and runs a program on it
/// between two barriers.
fn run_rank<R>(
    site: &RankSite,
    job: &Job,
    program: &impl Fn(&mut RankEndpoint) -> Result<R, RankError>,
) -> Result<R, RankError> {
    let device = site.open()?;
    let mut transport = ExtollTransport::open(device, job, Config::default())?;
    transport.wait_for_all(Deadline::never(), None)?;

    let mut endpoint = Endpoint::new(transport, Default::default())?;
    between_barriers(&mut endpoint, program)
}

/// Runs a program between two barriers. After the first one, each rank begins late by a random
/// time: see [`LATE_START`].
fn between_barriers<E: ProgramEndpoint, R>(
    endpoint: &mut E,
    program: impl FnOnce(&mut E) -> Result<R, RankError>,
) -> Result<R, RankError> {
    let deadline = Deadline::never();
    barrier(endpoint, deadline)?;
    let late = runtime::random() % (LATE_START.as_nanos() as u64 + 1);
    runtime::sleep(Duration::from_nanos(late));

    let result = program(endpoint)?;
    barrier(endpoint, deadline)?;
    Ok(result)
}
