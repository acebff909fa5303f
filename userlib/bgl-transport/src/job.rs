//! The ranks of a job, and their cores.

use nicforge_bgl::packet::Shape;
use nicforge_matching::Rank;

use crate::{Core, Error};

/// The ranks of a parallel program, each a core of a node of its own. All ranks must use the same
/// job.
///
/// The chip's torus has no way between the two cores of a node (paper, section 5.4), so a node has
/// one rank. The emulated card has such a way, which this transport does not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    cores: Vec<Core>,
}

impl Job {
    /// Creates a job from the ranks' cores, rank 0 first.
    pub fn new(cores: Vec<Core>) -> Self {
        Self { cores }
    }

    /// Creates a job of core 0 of nodes 0 to `nodes` - 1.
    pub fn of_nodes(nodes: u32) -> Self {
        Self::new((0..nodes as u16).map(|node| Core::new(node, 0)).collect())
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> u32 {
        self.cores.len() as u32
    }

    /// Returns the core of a rank.
    pub fn core(&self, rank: Rank) -> Option<Core> {
        self.cores.get(rank as usize).copied()
    }

    /// Returns the rank of a core.
    pub fn rank(&self, core: Core) -> Option<Rank> {
        self.cores.iter().position(|&other| other == core).map(|rank| rank as Rank)
    }

    /// Returns the cores of the ranks, rank 0 first.
    pub(crate) fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// Checks that all cores exist in a torus, and no two ranks are on one node.
    pub(crate) fn check(&self, shape: &Shape) -> Result<(), Error> {
        let nodes = shape.nodes();
        let mut ranks_of_nodes = vec![None; nodes as usize];

        for (rank, &core) in (0..).zip(&self.cores) {
            let Some(rank_of_node) = ranks_of_nodes.get_mut(usize::from(core.node())) else {
                return Err(Error::NoSuchCore { rank, core, nodes });
            };
            if let Some(first) = rank_of_node.replace(rank) {
                return Err(Error::SameNode { first, second: rank, node: core.node() });
            }
        }
        Ok(())
    }
}
