//! The nodes whose functions should run, in the order in which events have woken them.

/// A queue of the indices of nodes. Its memory begins anew whenever it has become empty.
#[derive(Debug, Default)]
pub(super) struct WakeQueue {
    nodes: Vec<u32>,
    /// Number of nodes that have been taken, from the front of `nodes`.
    taken: usize,
}

impl WakeQueue {
    /// Makes room for this number of nodes.
    pub(super) fn reserve(&mut self, nodes: usize) {
        self.nodes.reserve(nodes.saturating_sub(self.nodes.len()));
    }

    /// Adds a node.
    #[inline]
    pub(super) fn push(&mut self, node: u32) {
        if self.nodes.len() == self.nodes.capacity() {
            self.forget_taken();
        }
        self.nodes.push(node);
    }

    /// Removes and returns the first node.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<u32> {
        let node = *self.nodes.get(self.taken)?;
        self.taken += 1;
        if self.taken == self.nodes.len() {
            self.nodes.clear();
            self.taken = 0;
        }
        Some(node)
    }

    /// Returns the node after `ahead` others.
    #[inline]
    pub(super) fn get(&self, ahead: usize) -> Option<u32> {
        self.nodes.get(self.taken + ahead).copied()
    }

    /// Returns whether the queue has a node.
    pub(super) fn contains(&self, node: u32) -> bool {
        self.nodes[self.taken..].contains(&node)
    }

    /// Returns the number of nodes.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.taken
    }

    /// Returns whether there are no nodes.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Frees the places of the nodes that have been taken.
    #[cold]
    #[inline(never)]
    fn forget_taken(&mut self) {
        self.nodes.drain(..self.taken);
        self.taken = 0;
    }
}
