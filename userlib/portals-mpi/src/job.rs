//! The ranks of a job, and their processes.

use std::collections::HashMap;

use nicforge_matching::Rank;
use nicforge_portals::ProcessId;

use crate::{Error, config::MAX_RANKS};

/// The ranks of a parallel program, each a process of a node. All ranks must use the same job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    processes: Vec<ProcessId>,
}

impl Job {
    /// Creates a job from the ranks' processes, rank 0 first.
    pub fn new(processes: Vec<ProcessId>) -> Self {
        Self { processes }
    }

    /// Creates a job of processes 0 to `per_node` - 1 of nodes 0 to `nodes` - 1, node by node.
    pub fn of_nodes(nodes: u32, per_node: u16) -> Self {
        let of_node = |node| (0..per_node).map(move |process| ProcessId { node, process });
        Self::new((0..nodes).flat_map(of_node).collect())
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> u32 {
        self.processes.len() as u32
    }

    /// Returns the process of a rank.
    pub fn process(&self, rank: Rank) -> Option<ProcessId> {
        self.processes.get(rank as usize).copied()
    }

    /// Returns the rank of each process.
    pub(crate) fn ranks(&self) -> Result<HashMap<ProcessId, Rank>, Error> {
        if self.processes.is_empty() || self.processes.len() > MAX_RANKS as usize {
            return Err(Error::BadSize { ranks: self.size() });
        }

        let mut ranks = HashMap::with_capacity(self.processes.len());
        for (second, &process) in (0..).zip(&self.processes) {
            if let Some(first) = ranks.insert(process, second) {
                return Err(Error::SameProcess { first, second, process });
            }
        }
        Ok(ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_numbered_node_by_node() {
        let job = Job::of_nodes(3, 2);
        let id = ProcessId { node: 1, process: 1 };

        assert_eq!((job.size(), job.process(3), job.process(6)), (6, Some(id), None));
        assert_eq!(job.ranks().unwrap()[&id], 3);
    }

    #[test]
    fn impossible_jobs_are_refused() {
        let id = ProcessId { node: 0, process: 0 };

        assert_eq!(Job::new(Vec::new()).ranks(), Err(Error::BadSize { ranks: 0 }));
        assert_eq!(Job::of_nodes(4097, 1).ranks(), Err(Error::BadSize { ranks: 4097 }));
        let twice = Job::new(vec![id, id]).ranks();
        assert_eq!(twice, Err(Error::SameProcess { first: 0, second: 1, process: id }));
    }
}
